//! A run against its baseline. Pure: it reads nothing and runs nothing.

mod absolute;
mod causes;
mod compare;
mod relative;

use std::collections::BTreeSet;

use crate::check::baseline::{Baseline, Case};
use crate::check::facts::{CallFacts, Facts};
use crate::check::families::plain;
use crate::check::report::{State, Verdict, Warning, WarningKind};
use crate::check::rule::{Demand, Rule};
use crate::check::shape::{Counts, Shape, sum};
use crate::syscall::{Abi, Sys};

/// What the judge says of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Judged {
    /// By rule: those that failed first, causes before counts.
    pub verdicts: Vec<Verdict>,
    /// What is worth a look.
    pub warnings: Vec<Warning>,
    /// The platform whose facts stood in for those that are missing.
    pub instead: Option<String>,
}

/// What rules are held against.
struct Judge<'a> {
    baseline: &'a Baseline,
    shape: &'a Shape,
    facts: Option<&'a Facts>,
    /// The facts are of this platform itself.
    own: bool,
    /// Else: the architecture that they are of.
    abi: Option<Abi>,
    /// Which call does something is another choice here than it was there.
    by_family: bool,
    warnings: Vec<Warning>,
}

/// Judges a run of a case.
pub fn judge(baseline: &Baseline, case: &Case, shape: &Shape) -> Judged {
    let own = shape.platform.as_ref().and_then(|platform| case.facts.get(platform));
    let instead = if own.is_some() { None } else { stand_in(case, shape) };
    let facts = own.or_else(|| case.facts.get(instead.as_ref()?));
    let other_libc = facts.is_some_and(|facts| match (&facts.recorded.libc, &shape.libc) {
        (Some(before), Some(now)) => before != now,
        _ => false,
    });
    let mut judge = Judge {
        baseline,
        shape,
        facts,
        own: own.is_some(),
        abi: instead.as_ref().and_then(|platform| Abi::from_name(platform.split(' ').next()?)),
        by_family: own.is_none() || other_libc,
        warnings: Vec::new(),
    };
    let rules = baseline.rules.iter().filter(|rule| rule.is_for(&case.name));
    let mut verdicts: Vec<Verdict> = rules.clone().map(|rule| judge.verdict(rule)).collect();
    judge.unused(case);
    // Stable: of the same kind, in the order of the file.
    verdicts.sort_by_key(|verdict| {
        let rule = baseline.rules.iter().find(|rule| rule.id == verdict.rule);
        (verdict.state != State::Failed, rule.map_or(0, |rule| order(&rule.demand)))
    });
    Judged { verdicts, warnings: judge.warnings, instead }
}

/// Causes before counts.
fn order(demand: &Demand) -> u8 {
    match demand {
        Demand::Programs(_) => 0,
        Demand::Calls { .. } => 1,
        Demand::Paths { .. } => 2,
        Demand::NewPaths(..) => 3,
        Demand::Most(..) => 4,
        Demand::Ratio { .. } => 5,
        Demand::Unlisted => 6,
        Demand::Facts => 7,
    }
}

/// Another platform whose facts can be compared by family: with the same C
/// library. What another one calls at a program's start is another program's.
fn stand_in(case: &Case, shape: &Shape) -> Option<String> {
    let libc = |platform: &str| platform.rsplit(' ').next().map(str::to_owned);
    let here = libc(shape.platform.as_ref()?)?;
    case.facts.keys().find(|platform| libc(platform).as_ref() == Some(&here)).cloned()
}

impl<'a> Judge<'a> {
    fn verdict(&mut self, rule: &Rule) -> Verdict {
        let verdict = Verdict {
            rule: rule.id.clone(),
            line: None,
            level: rule.level,
            state: State::Passed,
            reason: rule.reason.clone(),
            headline: String::new(),
            causes: Vec::new(),
            changes: Vec::new(),
        };
        if let Some(region) = &rule.region
            && !self.shape.regions.contains_key(region)
        {
            let gone = self.never_began(rule, region, verdict.clone());
            if rule.demand.is_absolute() || self.own {
                return gone;
            }
        }
        match &rule.demand {
            Demand::Most(metric, max) => self.most(rule, metric, *max, verdict),
            Demand::Paths { paths, except, access, max } => {
                self.paths(rule, (paths, except, *access, *max), verdict)
            }
            Demand::Calls { calls, families, except, max } => {
                self.calls(rule, (calls, families, except, *max), verdict)
            }
            Demand::Programs(allowed) => self.programs(rule, allowed, verdict),
            relative => match self.facts {
                // Numbers are of one platform; what was not recorded at all can be told.
                Some(facts) if self.own || !matches!(relative, Demand::Facts) => {
                    self.relative(rule, facts, verdict)
                }
                _ => Verdict { state: State::Unjudged, ..verdict },
            },
        }
    }

    /// A rule of a region that did not begin: if it did when it was recorded, its
    /// marker is gone, and with it what the rule holds.
    fn never_began(&mut self, rule: &Rule, region: &str, verdict: Verdict) -> Verdict {
        let recorded = |facts: &Facts| facts.regions.contains_key(region);
        if self.own && self.facts.is_some_and(recorded) {
            let headline = format!("region {region} never began");
            return Verdict { state: State::Failed, headline, ..verdict };
        }
        let text = format!("region {region} never began: the rule says nothing");
        self.warn(WarningKind::Unused, rule, text);
        verdict
    }

    fn warn(&mut self, kind: WarningKind, rule: &Rule, text: String) {
        self.warnings.push(Warning { kind, rule: Some(rule.id.clone()), text });
    }

    /// Programs that a rule is for.
    fn names(&self, rule: &Rule) -> Vec<&'a String> {
        let matches = |name: &&String| match &rule.exe {
            None => true,
            Some(exe) => {
                let file = self.shape.files.get(*name);
                exe.matches(name) || file.is_some_and(|file| exe.matches_file(file))
            }
        };
        self.shape.programs.keys().filter(matches).collect()
    }

    /// The calls that a rule is for.
    fn counts(&self, rule: &Rule) -> Counts {
        let parts = match &rule.region {
            Some(region) => self.shape.regions.get(region),
            None => Some(&self.shape.programs),
        };
        let names = self.names(rule);
        let chosen = parts.into_iter().flatten().filter(|(name, _)| names.contains(name));
        match (&rule.exe, &rule.region) {
            (None, None) => self.shape.calls.clone(),
            _ => sum(chosen.map(|(_, counts)| counts)),
        }
    }

    /// What was recorded of the calls that a rule is for.
    fn expected(&self, rule: &Rule, facts: &Facts) -> CallFacts {
        if let Some(region) = &rule.region {
            return facts.regions.get(region).cloned().unwrap_or_default();
        }
        let Some(exe) = &rule.exe else { return facts.calls.clone() };
        if facts.programs.is_empty() {
            // There was one program only: it is this one, if it is there.
            return if self.names(rule).is_empty() {
                CallFacts::new()
            } else {
                facts.calls.clone()
            };
        }
        let names = self.names(rule);
        let mut all = CallFacts::new();
        for (name, calls) in &facts.programs {
            if !(exe.matches(name) || names.contains(&name)) {
                continue;
            }
            for (call, fact) in calls {
                let sum = all.get(call).map_or_else(|| fact.clone(), |sum| sum.plus(fact));
                all.insert(call.clone(), sum);
            }
        }
        all
    }

    /// Whether the architecture that the facts are of has such a call, or one that
    /// does the same: of what it has not, they cannot say anything.
    fn could_be_recorded(&self, name: &str) -> bool {
        self.abi.is_none_or(|abi| self.has(abi, name))
    }

    /// The same of the architecture of the run.
    fn could_be_made(&self, name: &str) -> bool {
        let here = self.shape.platform.as_ref().and_then(|platform| platform.split(' ').next());
        self.own || here.and_then(Abi::from_name).is_none_or(|abi| self.has(abi, name))
    }

    fn has(&self, abi: Abi, name: &str) -> bool {
        let members = self.baseline.normalise.families.members(plain(name));
        members.into_iter().any(|name| Sys::from_name(abi, name).is_some())
    }

    /// What is in the baseline and says nothing any more.
    fn unused(&mut self, case: &Case) {
        let rules: Vec<&Rule> =
            self.baseline.rules.iter().filter(|rule| rule.is_for(&case.name)).collect();
        if rules.is_empty() {
            let text = "nothing is held: no rule is for this case".to_owned();
            self.warnings.push(Warning { kind: WarningKind::Unused, rule: None, text });
        }
        let Some(facts) = self.facts.filter(|_| self.own) else { return };
        for rule in &rules {
            if rule.exe.is_some() && self.names(rule).is_empty() {
                let exe = rule.exe.as_ref().map_or("", |exe| &exe.text);
                let text = format!("no program of the run is {exe}");
                self.warn(WarningKind::Unused, rule, text);
            }
        }
        let held = |rule: &&&Rule| {
            matches!(rule.demand, Demand::Facts) && rule.exe.is_none() && rule.region.is_none()
        };
        if rules.iter().any(|rule| held(&rule)) {
            return;
        }
        let gone = |name: &&String| !self.shape.calls.contains_key(*name);
        let fact =
            |name: &&String| facts.calls[*name].calls != crate::check::facts::Expected::Varies;
        let names: Vec<&str> =
            facts.calls.keys().filter(gone).filter(fact).map(String::as_str).collect();
        if !names.is_empty() {
            let text = format!("recorded and not called any more: {}", names.join(" "));
            self.warnings.push(Warning { kind: WarningKind::Unused, rule: None, text });
        }
    }
}

/// Whether what these programs did, in these regions, belongs to what a rule is for;
/// `names` are the [names](Judge::names) of its programs.
fn is_for(
    rule: &Rule,
    names: &[&String],
    by: &BTreeSet<String>,
    regions: &BTreeSet<String>,
) -> bool {
    (rule.exe.is_none() || by.iter().any(|name| names.contains(&name)))
        && rule.region.as_ref().is_none_or(|region| regions.contains(region))
}
