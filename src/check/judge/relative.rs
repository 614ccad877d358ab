//! Rules that compare with what was recorded.

use crate::check::facts::{CallFacts, Expected, Facts, PathFact};
use crate::check::report::{Cause, State, Verdict, WarningKind};
use crate::check::rule::{Demand, Metric, Rule};
use crate::check::shape::{Count, Counts, PathUse};

use super::compare::{compare, fold_counts, fold_facts, in_words, sort};
use super::{Judge, causes, is_for};

impl Judge<'_> {
    pub(super) fn relative(&mut self, rule: &Rule, facts: &Facts, v: Verdict) -> Verdict {
        match &rule.demand {
            Demand::Unlisted => self.unlisted(rule, facts, v),
            Demand::Ratio { metric, max_ratio, min_delta } => {
                self.ratio(rule, facts, (metric, *max_ratio, *min_delta), v)
            }
            Demand::NewPaths(metric, max) => self.new_paths(rule, facts, (metric, *max), v),
            _ => self.facts(rule, facts, v),
        }
    }

    /// Both sides, by family where these are compared; without what only one of two
    /// architectures has.
    fn sides(&self, rule: &Rule, facts: &Facts) -> (CallFacts, Counts) {
        let (mut expected, mut counts) = (self.expected(rule, facts), self.counts(rule));
        expected.retain(|name, _| self.could_be_made(name));
        counts.retain(|name, _| self.could_be_recorded(name));
        if self.by_family {
            let families = self.baseline.normalise.families;
            (fold_facts(&expected, families), fold_counts(&counts, families))
        } else {
            (expected, counts)
        }
    }

    /// `facts = true`.
    fn facts(&mut self, rule: &Rule, facts: &Facts, mut v: Verdict) -> Verdict {
        let (expected, counts) = self.sides(rule, facts);
        let mut changes = compare(&expected, &counts);
        // What one program makes more and another fewer is a change too.
        if changes.is_empty() && rule.exe.is_none() && rule.region.is_none() && !self.by_family {
            for (program, expected) in &facts.programs {
                let none = Counts::new();
                let counts = self.shape.programs.get(program).unwrap_or(&none);
                let of = compare(expected, counts).into_iter();
                changes.extend(of.map(|mut change| {
                    change.program = Some(program.clone());
                    change
                }));
            }
            let regions = facts.regions.iter().filter(|(name, _)| !name.is_empty());
            for (region, expected) in regions {
                let of = compare(expected, &self.shape.region(region)).into_iter();
                changes.extend(of.map(|mut change| {
                    change.region = Some(region.clone());
                    change
                }));
            }
            sort(&mut changes);
        }
        for change in &mut changes {
            change.region = change.region.take().or_else(|| rule.region.clone());
        }
        let causes = self.of_rule(rule, causes::causes(facts, self.shape));
        if changes.is_empty() {
            // As many calls, to something else.
            let other = causes.iter().find(|cause| causes::is_other(cause));
            let Some(other) = other.filter(|_| rule.region.is_none()) else { return v };
            v.state = State::Failed;
            v.headline = other.in_words();
            v.causes = causes;
            return v;
        }
        v.state = State::Failed;
        v.headline = in_words(&changes);
        v.causes = causes;
        v.causes.extend(causes::by_program(facts, self.shape, &changes));
        causes::rank(&mut v.causes, &changes);
        v.changes = changes;
        v
    }

    /// Those of the programs that a rule is for.
    fn of_rule(&self, rule: &Rule, mut causes: Vec<Cause>) -> Vec<Cause> {
        if rule.exe.is_some() {
            let names = self.names(rule);
            causes.retain(|cause| cause.by.iter().any(|name| names.contains(&name)));
        }
        causes
    }

    /// `deny = "unlisted"`.
    fn unlisted(&mut self, rule: &Rule, facts: &Facts, mut v: Verdict) -> Verdict {
        let (expected, counts) = self.sides(rule, facts);
        // Recorded as never made, it is none that may be made.
        let listed = |name: &String| {
            expected.get(name).is_some_and(|fact| fact.calls.most().is_none_or(|most| most > 0))
        };
        let new = |(name, count): &(&String, &Count)| count.calls > 0 && !listed(name);
        let names: Vec<String> = counts.iter().filter(new).map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return v;
        }
        v.state = State::Failed;
        v.headline = names.join(" ");
        v.changes = compare(&CallFacts::new(), &counts);
        v.changes.retain(|change| names.contains(&change.call) && change.errno.is_none());
        let called = |cause: &Cause| cause.what.split(' ').next().map(str::to_owned);
        let known = causes::causes(facts, self.shape);
        for name in &names {
            let found = known.iter().find(|cause| called(cause).as_ref() == Some(name));
            let calls = counts.get(name).map_or(0, |count| count.calls);
            v.causes.push(found.cloned().unwrap_or_else(|| self.callers(rule, name, calls)));
        }
        v
    }

    /// `metric` with `max_ratio` and `min_delta`.
    fn ratio(
        &mut self,
        rule: &Rule,
        facts: &Facts,
        (metric, max_ratio, min_delta): (&Metric, f64, u64),
        mut v: Verdict,
    ) -> Verdict {
        let (before, now) = if self.own {
            let Some(before) = self.recorded(rule, facts, metric) else {
                let text =
                    format!("{} vary, or were not recorded: the rule says nothing", metric.word());
                self.warn(WarningKind::Unused, rule, text);
                return v;
            };
            (before, self.measure(rule, metric))
        } else {
            // Which files there are, what is missed among them and what runs beside is
            // another system's.
            let before = self.recorded(rule, facts, metric).filter(|_| *metric == Metric::Calls);
            let Some(before) = before else { return Verdict { state: State::Unjudged, ..v } };
            self.comparable(rule, facts, before)
        };
        let bound = before as f64 * max_ratio;
        if now as f64 > bound && now.saturating_sub(before) > min_delta {
            v.state = State::Failed;
            let name = if *metric == Metric::Calls { "" } else { metric.word() };
            let space = if name.is_empty() { "" } else { " " };
            let delta = |n: u64| format!("more than +{n}");
            v.headline = match (max_ratio > 0.0, min_delta) {
                (true, 0) => {
                    format!("{now}{space}{name}: above {before} x {max_ratio} = {}", short(bound))
                }
                (true, n) => {
                    format!(
                        "{now}{space}{name}: above {before} x {max_ratio} = {} and {}",
                        short(bound),
                        delta(n)
                    )
                }
                (false, n) => format!("{now}{space}{name}, were {before}: {}", delta(n)),
            };
            let (expected, counts) = self.sides(rule, facts);
            let mut changes = compare(&expected, &counts);
            changes.retain(|change| change.delta() > 0);
            v.causes = self.of_rule(rule, causes::causes(facts, self.shape));
            v.causes.extend(causes::by_program(facts, self.shape, &changes));
            v.changes = changes;
        } else if now < before {
            let text = format!("{now} {}, were {before}: fewer than recorded", metric.word());
            self.warn(WarningKind::Improved, rule, text);
        }
        v
    }

    /// Calls that were recorded, and that were made, on two architectures: without
    /// those that only one of them has.
    fn comparable(&self, rule: &Rule, facts: &Facts, before: u64) -> (u64, u64) {
        let expected = self.expected(rule, facts);
        let gone = expected.iter().filter(|(name, _)| !self.could_be_made(name));
        let before =
            gone.fold(before, |sum, (_, fact)| sum.saturating_sub(fact.calls.most().unwrap_or(0)));
        let counts = self.counts(rule);
        let made = counts.iter().filter(|(name, _)| self.could_be_recorded(name));
        (before, made.fold(0, |sum, (_, count)| sum.saturating_add(count.calls)))
    }

    /// The most that was recorded of a metric.
    fn recorded(&self, rule: &Rule, facts: &Facts, metric: &Metric) -> Option<u64> {
        let whole = rule.exe.is_none() && rule.region.is_none();
        let total = facts.total.filter(|_| whole);
        let each = |of: fn(&PathFact) -> Option<u64>| {
            facts.paths.values().try_fold(0u64, |sum, fact| Some(sum.saturating_add(of(fact)?)))
        };
        let has_paths = !facts.paths.is_empty();
        match metric {
            Metric::Calls => match total {
                Some(total) => total.calls.most(),
                None => sum(self.expected(rule, facts).values().map(|fact| fact.calls)),
            },
            Metric::Errors => {
                let expected = self.expected(rule, facts);
                let errors =
                    || sum(expected.values().flat_map(|fact| fact.errors.values().copied()));
                total.map_or_else(errors, |total| total.errors.most())
            }
            Metric::Errno(name) => {
                sum(self.expected(rule, facts).values().map(|fact| fact.error(name)))
            }
            Metric::Processes => total?.processes.most(),
            Metric::Threads => total?.threads.most(),
            Metric::Execs => sum(facts.executed.values().copied()).filter(|_| has_paths),
            Metric::Paths => Some(facts.paths.len() as u64).filter(|_| has_paths),
            Metric::Misses => each(PathFact::missed).filter(|_| has_paths),
            Metric::Opens => each(|fact| match fact {
                PathFact::Uses(uses) => Some(uses.get("open").copied().unwrap_or(0)),
                PathFact::Varies(_) => None,
            })
            .filter(|_| has_paths),
        }
    }

    /// `max_new_paths`.
    fn new_paths(
        &mut self,
        rule: &Rule,
        facts: &Facts,
        (metric, max): (&Metric, u64),
        mut v: Verdict,
    ) -> Verdict {
        if !self.own {
            return Verdict { state: State::Unjudged, ..v };
        }
        if facts.paths.is_empty() {
            let text = "no paths were recorded: the rule says nothing".to_owned();
            self.warn(WarningKind::Unused, rule, text);
            return v;
        }
        let names = self.names(rule);
        let counts = |used: &PathUse| match metric {
            Metric::Misses => used.missed() > 0,
            Metric::Opens => used.opens > 0,
            _ => true,
        };
        // A path that was there, and is missed now, is a new miss.
        let known = |path: &String| match (metric, facts.paths.get(path)) {
            (_, None) => false,
            (Metric::Misses, Some(fact)) => fact.missed() != Some(0),
            (_, Some(_)) => true,
        };
        let new: Vec<_> = self
            .shape
            .paths
            .iter()
            .filter(|(path, used)| {
                counts(used) && !known(path) && is_for(rule, &names, &used.by, &used.regions)
            })
            .collect();
        if new.len() as u64 > max {
            let s = if new.len() == 1 { "" } else { "s" };
            let first = new.first().map_or("", |(path, _)| path);
            let more = if new.len() > 1 { ", ..." } else { "" };
            v.state = State::Failed;
            v.headline = format!("{} new path{s}: {first}{more}", new.len());
            v.causes =
                causes::crowds(new.iter().map(|(path, used)| causes::path(path, used)).collect());
        } else if *metric == Metric::Misses {
            let gone = |(path, fact): &(&String, &PathFact)| {
                fact.missed() > Some(0)
                    && self.shape.paths.get(*path).is_none_or(|used| used.missed() == 0)
            };
            match facts.paths.iter().filter(gone).count() {
                0 => {}
                n => {
                    let text = format!("{n} recorded misses are gone");
                    self.warn(WarningKind::Improved, rule, text);
                }
            }
        }
        v
    }
}

/// The most that the sum can be; `None` where a part varies.
fn sum(mut parts: impl Iterator<Item = Expected>) -> Option<u64> {
    parts.try_fold(0u64, |sum, part| Some(sum.saturating_add(part.most()?)))
}

/// With one decimal, where there is one.
fn short(n: f64) -> String {
    let text = format!("{n:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
