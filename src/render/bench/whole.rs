//! What stands below the tables of all commands.

use std::collections::BTreeSet;

use crate::bench::{Bench, Comparison, Ratio};
use crate::record::Environment;

use super::super::text::{Clause, escape};
use super::super::units::{bytes, counted};
use super::{Line, one};

/// What there is to say of all of them.
pub(super) fn whole(of: &Bench) -> Vec<Line> {
    let mut lines: Vec<Line> = of.comparisons.iter().map(|it| one(comparison(it))).collect();
    if let Some(environment) = &of.environment {
        lines.push(vec![Clause::list(place(environment))]);
    }
    if of.is_joined() {
        let boots: BTreeSet<_> =
            of.joined.iter().filter_map(|bench| bench.boot_id.as_deref()).collect();
        let benches = counted(of.joined.len() as u64, "bench");
        lines.push(one(format!("{benches} of {}", counted(boots.len() as u64, "boot"))));
    }
    if of.unfinished && !of.is_joined() {
        lines.push(one(
            "it did not come to its end: these are the runs that it had made".to_owned()
        ));
    }
    lines.extend(of.warnings.iter().map(|text| one(format!("warning: {}", escape(text)))));
    // Of those that were joined a warning says which.
    if let Some(signal) = of.interrupted.as_ref().filter(|_| !of.is_joined()) {
        let made: usize = of.commands.iter().map(|command| command.runs.len()).sum();
        let made = counted(made as u64, "run");
        lines.push(one(format!("ended by {} after {made}", escape(signal))));
    }
    lines
}

/// The state of the machine that times hang on.
fn place(of: &Environment) -> Vec<String> {
    let known = |text: &Option<String>| match text {
        Some(text) => escape(text).into_owned(),
        None => "unknown".into(),
    };
    let aslr = match of.randomize_va_space {
        Some(0) => "off",
        Some(_) => "on",
        None => "unknown",
    };
    let mut facts = Vec::new();
    if let Some([load, ..]) = of.load {
        facts.push(format!("load {load:.1} before"));
    }
    if let Some(cpus) = of.cpus_allowed {
        facts.push(counted(cpus, "processor"));
    }
    facts.push(format!("governor {}", known(&of.cpu_governor)));
    facts.push(format!("huge pages {}", known(&of.transparent_huge_pages)));
    facts.push(format!("ASLR {aslr}"));
    if let Some(memory) = of.memory_available_bytes {
        facts.push(format!("{} available", bytes(memory)));
    }
    facts
}

/// A command against the first.
fn comparison(it: &Comparison) -> String {
    let lead = format!("{} vs 1, {}:", it.command.saturating_add(1), it.kind);
    match &it.ratio {
        None => format!("{lead} n too small to compare: 5 runs of each are needed"),
        Some(ratio) if ratio.spans_one() => {
            let interval = format!("{:.2}x to {:.2}x, 95 %", ratio.low, ratio.high);
            format!("{lead} no difference seen ({interval})")
        }
        Some(ratio) => {
            let Ratio { ratio: of, low, high } = ratio;
            let d = digits(*ratio);
            format!("{lead} {of:.d$}x as long ({low:.d$}x to {high:.d$}x, 95 %)")
        }
    }
}

/// Decimals that show that none of its numbers is 1; two, as a rule.
fn digits(of: Ratio) -> usize {
    const MOST: usize = 6;
    let looks_like_one = |digits: usize| {
        [of.ratio, of.low, of.high]
            .iter()
            .any(|x| (x - 1.0).abs() < 0.5 / 10f64.powi(digits as i32))
    };
    (2..MOST).find(|&digits| !looks_like_one(digits)).unwrap_or(MOST)
}
