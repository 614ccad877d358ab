//! Rules that say what is allowed, whatever was recorded.

use std::collections::BTreeSet;

use crate::check::facts::Expected;
use crate::check::families::plain;
use crate::check::normalise::OUTPUT;
use crate::check::report::{Cause, CauseKind, Change, Changed, State, Verdict, WarningKind};
use crate::check::rule::{Access, Calls, Metric, Pattern, Rule};
use crate::check::shape::{Counts, Executed, NetUse, PathUse};

use super::{Judge, causes, is_for};

impl Judge<'_> {
    /// `metric` with `max`.
    pub(super) fn most(
        &mut self,
        rule: &Rule,
        metric: &Metric,
        max: u64,
        mut v: Verdict,
    ) -> Verdict {
        let now = self.measure(rule, metric);
        if now > max {
            v.state = State::Failed;
            v.headline = format!("{now} {}: more than {max}", metric.word());
            v.causes =
                self.facts.map(|facts| causes::causes(facts, self.shape)).unwrap_or_default();
        } else if now < max {
            let text = format!("{now} {}: max = {max} could be lower", metric.word());
            self.warn(WarningKind::Improved, rule, text);
        }
        v
    }

    /// What a metric is in the run.
    pub(super) fn measure(&self, rule: &Rule, metric: &Metric) -> u64 {
        let errors = |counts: &Counts, wanted: Option<&str>| -> u64 {
            let all = counts.values().flat_map(|count| &count.errors);
            total(all.filter(|(name, _)| wanted.is_none_or(|w| w == *name)).map(|(_, n)| *n))
        };
        let paths = self.shape.paths.values();
        match metric {
            Metric::Calls => total(self.counts(rule).values().map(|count| count.calls)),
            Metric::Errors => errors(&self.counts(rule), None),
            Metric::Errno(name) => errors(&self.counts(rule), Some(name)),
            Metric::Paths => self.shape.paths.len() as u64,
            Metric::Misses => total(paths.map(PathUse::missed)),
            Metric::Opens => total(paths.map(|used| used.opens)),
            Metric::Processes => self.shape.processes,
            Metric::Threads => self.shape.threads,
            Metric::Execs => total(self.shape.executed.values().map(|executed| executed.times)),
        }
    }

    /// `path`.
    pub(super) fn paths(
        &mut self,
        rule: &Rule,
        (paths, except, access, max): (&[Pattern], &[Pattern], Access, u64),
        mut v: Verdict,
    ) -> Verdict {
        let mut used_exceptions = BTreeSet::new();
        let mut calls = 0u64;
        let mut found = Vec::new();
        let names = self.names(rule);
        for (path, all) in &self.shape.paths {
            let mut used = PathUse::default();
            // What is one path to a baseline may be several to a rule.
            for part in all.each() {
                let n = accesses(part, access);
                let matches = |pattern: &&Pattern| part.is_called(path, |n| pattern.matches(n));
                if n == 0
                    || !is_for(rule, &names, &part.by, &part.regions)
                    || !paths.iter().any(|pattern| matches(&pattern))
                {
                    continue;
                }
                if let Some(exception) = except.iter().find(matches) {
                    used_exceptions.insert(exception.text.as_str());
                    continue;
                }
                calls = calls.saturating_add(n);
                used.merge(part);
            }
            if used != PathUse::default() {
                found.push(causes::path(path, &used));
            }
        }
        self.unused_exceptions(rule, except, &used_exceptions);
        if calls > max {
            v.state = State::Failed;
            v.headline = summary(&found, calls, max);
            v.causes = found;
        } else if calls < max {
            let text = format!("{calls} calls: max = {max} could be lower");
            self.warn(WarningKind::Improved, rule, text);
        }
        v
    }

    /// `syscall`.
    pub(super) fn calls(
        &mut self,
        rule: &Rule,
        (calls, families, except, max): (&Calls, &[String], &[Pattern], u64),
        mut v: Verdict,
    ) -> Verdict {
        let all = self.baseline.normalise.families;
        let mut used_exceptions = BTreeSet::new();
        let mut found = Vec::new();
        let mut number = 0u64;
        let by_address = !families.is_empty() || !except.is_empty();
        let names = self.names(rule);
        let counts = self.counts(rule);
        for (key, used) in &self.shape.network {
            let mut left = NetUse::default();
            for part in used.each() {
                let family = |family: &String| part.family.as_ref() == Some(family);
                if !calls.contain(&part.call, all)
                    || !is_for(rule, &names, &part.by, &part.regions)
                    || !families.is_empty() && !families.iter().any(family)
                {
                    continue;
                }
                if let Some(exception) = except.iter().find(|pattern| is_named(part, pattern)) {
                    used_exceptions.insert(exception.text.as_str());
                    continue;
                }
                // Not counted under its name, it was made by socketcall.
                let counted = if part.counted.is_empty() { &part.call } else { &part.counted };
                if by_address || !counts.contains_key(counted) {
                    number = number.saturating_add(part.calls);
                }
                left.calls = left.calls.saturating_add(part.calls);
                left.by.extend(part.by.iter().cloned());
            }
            if left.calls > 0 {
                found.push((used.address.is_some(), causes::address(key, &left)));
            }
        }
        // An address says more than the socket that was made for it.
        found.sort_by_key(|(addressed, _)| std::cmp::Reverse(*addressed));
        let mut found: Vec<Cause> = found.into_iter().map(|(_, cause)| cause).collect();
        if !by_address {
            for (name, count) in &counts {
                if !calls.contain(name, all) || count.calls == 0 {
                    continue;
                }
                number = number.saturating_add(count.calls);
                let (before, now) = (Expected::Exact(0), count.calls);
                let (call, errno, program) = (name.clone(), None, None);
                v.changes.push(Change {
                    call,
                    errno,
                    program,
                    region: rule.region.clone(),
                    before,
                    now,
                });
                if !found.iter().any(|cause| cause.what.split(' ').next() == Some(plain(name))) {
                    found.push(self.callers(rule, name, count.calls));
                }
            }
        }
        self.unused_exceptions(rule, except, &used_exceptions);
        if number > max {
            v.state = State::Failed;
            v.headline = summary(&found, number, max);
            v.causes = found;
        } else {
            v.changes.clear();
            if number < max {
                let text = format!("{number} calls: max = {max} could be lower");
                self.warn(WarningKind::Improved, rule, text);
            }
        }
        v
    }

    /// Who makes a call.
    pub(super) fn callers(&self, rule: &Rule, name: &str, calls: u64) -> Cause {
        let names = self.names(rule);
        let makes = |program: &&&String| {
            let counts = self.shape.programs.get(**program);
            counts.and_then(|counts| counts.get(name)).is_some_and(|count| count.calls > 0)
        };
        let by = names.iter().filter(makes).map(|name| (*name).clone()).collect();
        let how = if calls == 1 { String::new() } else { format!("{calls} times") };
        let (kind, change) = (CauseKind::Calls, Changed::Added);
        Cause { change, kind, what: name.to_owned(), how, by }
    }

    /// `exec`.
    pub(super) fn programs(&mut self, rule: &Rule, allowed: &[Pattern], mut v: Verdict) -> Verdict {
        let mut used = BTreeSet::new();
        let names = self.names(rule);
        let mut found = Vec::new();
        for (file, executed) in &self.shape.executed {
            let mut left = Executed::default();
            for way in executed.each(file) {
                let is =
                    |pattern: &&Pattern| way.names.iter().any(|name| pattern.matches_file(name));
                if let Some(pattern) = allowed.iter().find(is) {
                    used.insert(pattern.text.as_str());
                    continue;
                }
                // What started the command is coldtrace.
                if rule.exe.is_some() && !way.by.iter().any(|name| names.contains(&name)) {
                    continue;
                }
                left.times = left.times.saturating_add(way.times);
                left.by.extend(way.by);
            }
            let how = match left.times {
                0 => continue,
                1 => "executed".to_owned(),
                n => format!("executed {n} times"),
            };
            let by = left.by.into_iter().collect();
            let (kind, change) = (CauseKind::Program, Changed::Added);
            found.push(Cause { change, kind, what: file.clone(), how, by });
        }
        self.unused_exceptions(rule, allowed, &used);
        if !found.is_empty() {
            v.state = State::Failed;
            v.headline = summary(&found, found.len() as u64, 0);
            v.causes = found;
        }
        v
    }

    fn unused_exceptions(&mut self, rule: &Rule, all: &[Pattern], used: &BTreeSet<&str>) {
        // That a case may write in its own place says nothing about what it does there.
        let own = |text: &str| {
            let name = text.strip_suffix("/**").unwrap_or(text);
            [OUTPUT, "{tmp}", "{cwd}"].contains(&name)
        };
        let unused = |pattern: &&Pattern| !used.contains(pattern.text.as_str());
        for pattern in all.iter().filter(unused).filter(|pattern| !own(&pattern.text)) {
            self.warn(WarningKind::Unused, rule, format!("\"{}\" matches nothing", pattern.text));
        }
    }
}

/// Whether an exception means it.
fn is_named(used: &NetUse, pattern: &Pattern) -> bool {
    let address = used.address.as_deref().unwrap_or("");
    pattern.matches(address) || used.names.iter().any(|name| pattern.matches(name))
}

/// The sum, which a record that was written by hand may have too large.
fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Calls of a kind to a path.
fn accesses(used: &PathUse, access: Access) -> u64 {
    let of = |kind: &str| used.uses.get(kind).copied().unwrap_or(0);
    match access {
        Access::Any => used.calls(),
        Access::Open => of("open"),
        Access::Miss => used.missed(),
        Access::Exec => of("exec"),
        Access::Write => used.writes,
    }
}

/// The first of what was found, and how many more.
fn summary(found: &[Cause], n: u64, max: u64) -> String {
    let more = match found.len().saturating_sub(1) {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    let bound = if max > 0 { format!(": {n} calls, more than {max}") } else { String::new() };
    let first = found.first().map_or_else(|| format!("{n} calls"), Cause::in_words);
    format!("{first}{more}{bound}")
}
