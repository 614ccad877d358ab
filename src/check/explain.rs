//! Why a number is exact, ranged or not looked at, and which numbers no rule would
//! miss.

use std::fmt::Write;

use super::baseline::{Baseline, Case};
use super::facts::Expected;
use super::judge::judge;
use super::report::Verdict;
use super::shape::Shape;

/// How many entries of facts are exact, ranged and ignored: calls and their errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Held exactly.
    pub exact: usize,
    /// Held in a range.
    pub ranged: usize,
    /// Not held.
    pub ignored: usize,
}

impl Tally {
    /// Of the facts of a case on a platform.
    pub fn of(facts: &super::Facts) -> Self {
        let mut tally = Self::default();
        let entries = facts.calls.values().flat_map(|f| f.errors.values().chain([&f.calls]));
        for entry in entries {
            match entry {
                Expected::Exact(_) => tally.exact += 1,
                Expected::Range(..) => tally.ranged += 1,
                Expected::Varies => tally.ignored += 1,
            }
        }
        tally
    }

    /// All of them.
    pub fn all(self) -> usize {
        self.exact + self.ranged + self.ignored
    }
}

/// Why each number of a case is as it is.
pub fn explain(baseline: &Baseline, case: &Case) -> String {
    let mut out = String::new();
    for (platform, facts) in &case.facts {
        let tally = Tally::of(facts);
        let runs = facts.recorded.runs;
        let _ = writeln!(
            out,
            "{} on {platform}: of {} entries {} exact, {} ranged, {} ignored",
            case.name,
            tally.all(),
            tally.exact,
            tally.ranged,
            tally.ignored
        );
        for (call, fact) in &facts.calls {
            let errors = fact.errors.iter().map(|(errno, n)| (format!("{call} {errno}"), *n));
            for (name, expected) in [(call.clone(), fact.calls)].into_iter().chain(errors) {
                let why = match expected {
                    Expected::Exact(_) => format!("exact: the same in all of {runs} runs"),
                    Expected::Range(..) => "a range that somebody wrote".to_owned(),
                    Expected::Varies => {
                        "ignored: not the same in each run, and no bound is made up".to_owned()
                    }
                };
                let number =
                    if expected == Expected::Varies { "-".into() } else { expected.to_string() };
                let _ = writeln!(out, "  {name:<24} {number:>8}  {why}");
            }
        }
    }
    if case.facts.is_empty() {
        let _ = writeln!(out, "{}: nothing was recorded yet", case.name);
    }
    let rules = baseline.rules.iter().filter(|rule| rule.is_for(&case.name));
    let ids: Vec<&str> = rules.map(|rule| rule.id.as_str()).collect();
    let _ =
        writeln!(out, "  rules: {}", if ids.is_empty() { "none".into() } else { ids.join(" ") });
    out
}

/// The entries of a run to which one call more would be no failure: calls, and
/// calls that fail. Each is tried in memory.
pub fn self_test(baseline: &Baseline, case: &Case, shape: &Shape) -> Missed {
    let before = failures(baseline, case, shape);
    let mut missed = Missed::default();
    for (name, count) in &shape.calls {
        for errno in [None].into_iter().chain(count.errors.keys().map(Some)) {
            let mut more = shape.clone();
            if let Some(program) = program_of(shape, name) {
                add(more.programs.get_mut(&program), name, errno);
            }
            add(Some(&mut more.calls), name, errno);
            missed.tried += 1;
            if failures(baseline, case, &more) == before {
                let errno = errno.map_or_else(String::new, |errno| format!(" {errno}"));
                missed.entries.push(format!("{name}{errno}"));
            }
        }
    }
    missed
}

/// What a self-test found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missed {
    /// Entries that were tried.
    pub tried: usize,
    /// Those that nothing would notice.
    pub entries: Vec<String>,
}

/// One program that makes the call: a call more is made by somebody.
fn program_of(shape: &Shape, name: &str) -> Option<String> {
    shape.programs.iter().find(|(_, calls)| calls.contains_key(name)).map(|(name, _)| name.clone())
}

fn add(counts: Option<&mut super::Counts>, name: &str, errno: Option<&String>) {
    let Some(count) = counts.and_then(|counts| counts.get_mut(name)) else { return };
    count.calls += 1;
    if let Some(errno) = errno {
        *count.errors.entry(errno.clone()).or_default() += 1;
    }
}

/// What fails, with its numbers.
fn failures(baseline: &Baseline, case: &Case, shape: &Shape) -> Vec<(String, String)> {
    let judged = judge(baseline, case, shape);
    let failed = judged.verdicts.into_iter().filter(Verdict::fails);
    failed.map(|verdict| (verdict.rule, verdict.headline)).collect()
}
