//! What stands below the table.

use crate::bench::{Bench, CommandBench, Comparison, Count, KindBench, RunEntry, RunKind};
use crate::record::Environment;

use super::super::text::{Clause, escape};
use super::super::units::{bytes, counted, time};
use super::{one, times};

/// Runs that are listed one by one.
const LISTED: usize = 5;

type Line = Vec<Clause>;

/// What there is to say of a command.
pub(super) fn command(of: &CommandBench) -> Vec<Line> {
    let mut lines = Vec::new();
    lines.extend(failed(of));
    lines.extend(first(of));
    lines.extend(cold_vs_warm(of));
    lines.extend(outliers(of));
    lines.extend(labels(of));
    lines.extend(evicted(of));
    lines.extend(bytecode(of));
    lines.extend(traced(of));
    lines
}

/// Runs that failed, and that they are in no number.
fn failed(of: &CommandBench) -> Vec<Line> {
    let failed: Vec<&RunEntry> = of.runs.iter().filter(|run| run.failed.is_some()).collect();
    if failed.is_empty() {
        return Vec::new();
    }
    let all = counted(of.runs.len() as u64, "run");
    let mut items: Vec<String> = failed
        .iter()
        .take(LISTED)
        .map(|run| format!("{} {}", escape(&run.run), run.failed.as_deref().unwrap_or_default()))
        .collect();
    if failed.len() > LISTED {
        items.push(format!("{} more", failed.len() - LISTED));
    }
    let lead = format!("{} of {all} failed, in no number here:", failed.len());
    let whole = format!("{lead} {}", items.join(", "));
    vec![vec![Clause::parted(whole, std::iter::once(lead).chain(items).collect())]]
}

/// What the first run was, of one bench.
fn first(of: &CommandBench) -> Option<Line> {
    let mut firsts = of.runs.iter().filter(|run| run.kind == RunKind::First);
    let (run, None) = (firsts.next()?, firsts.next()) else { return None };
    let label = run.label.as_deref()?;
    let evidence = run.evidence.as_deref().unwrap_or_default();
    let (evidence, _) = evidence.split_once("; ").unwrap_or((evidence, ""));
    let mut text = format!("first run: {label} ({})", escape(evidence));
    if label == "warm" {
        text.push_str(", so not a cold start");
    }
    let boot = match run.first_since_boot {
        Some(true) => "the first since boot that is known",
        Some(false) => "not the first since boot",
        None => "",
    };
    Some(vec![Clause::one(text), Clause::one(boot)])
}

/// Differences of the medians, as they are printed.
fn cold_vs_warm(of: &CommandBench) -> Option<Line> {
    let unit = times(of);
    let (cold, warm) = (of.cold.as_ref()?, of.warm.as_ref()?);
    let steps = |runs: &KindBench, metric| Some(unit.steps(runs.median(metric)?));
    let less = |metric| Some(steps(cold, metric)? - steps(warm, metric)?);
    let signed = |steps: i64| match steps {
        0 => "0".to_owned(),
        1.. => format!("+{}", unit.print(steps)),
        _ => unit.print(steps),
    };
    let wall = less("wall_ns")?;
    let base = steps(warm, "wall_ns").filter(|&base| base > 0);
    let share = base.map(|base| format!(" ({:+.0} %)", wall as f64 * 100.0 / base as f64));
    let parts: Vec<String> = [("sys", "sys_ns"), ("off CPU", "off_cpu_ns"), ("user", "user_ns")]
        .into_iter()
        .filter_map(|(name, metric)| Some(format!("{name} {}", signed(less(metric)?))))
        .collect();
    let text = format!(
        "cold vs warm: median {} {}{}: {}",
        signed(wall),
        unit.name,
        share.unwrap_or_default(),
        parts.join(", ")
    );
    Some(one(text))
}

/// Runs far from the others, and why.
fn outliers(of: &CommandBench) -> Vec<Line> {
    let mut lines: Vec<Line> = of
        .outliers
        .iter()
        .take(LISTED)
        .map(|run| {
            let metric = match run.metric.as_str() {
                "off_cpu_ns" => "off CPU",
                other => other.strip_suffix("_ns").unwrap_or(other),
            };
            let value = |ns: f64| time(ns.max(0.0) as u64);
            let cause = match &run.cause {
                Some(cause) => escape(cause).into_owned(),
                None => "its cause does not show".into(),
            };
            one(format!(
                "{} {}: {metric} {}, the median {}; {cause}, kept",
                run.kind,
                run.number,
                value(run.value),
                value(run.median)
            ))
        })
        .collect();
    if of.outliers.len() > LISTED {
        lines.push(one(format!("{} more far from the others", of.outliers.len() - LISTED)));
    }
    lines
}

/// Whether runs were what they are called.
fn labels(of: &CommandBench) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut said = Vec::new();
    for (kind, runs) in [(RunKind::Cold, &of.cold), (RunKind::Warm, &of.warm)] {
        let Some(runs) = runs else { continue };
        let counts: Vec<String> =
            runs.labels.iter().map(|(label, n)| format!("{n} {label}")).collect();
        said.push(format!("{kind} runs: {}", counts.join(", ")));
        let other = |run: &&RunEntry| {
            run.kind == kind && run.failed.is_none() && run.label.as_deref() != Some(kind.word())
        };
        // One stands for all: they are the same in most benches.
        if let Some(run) = of.runs.iter().find(other) {
            lines.push(one(format!(
                "{kind} {}: {} ({})",
                run.number,
                run.label.as_deref().unwrap_or("unknown"),
                escape(run.evidence.as_deref().unwrap_or_default())
            )));
        }
    }
    if !said.is_empty() {
        lines.insert(0, one(format!("by their measured residency: {}", said.join("; "))));
    }
    lines
}

/// What cold means.
fn evicted(of: &CommandBench) -> Option<Line> {
    let run = of.runs.iter().find(|run| run.evicted_by.is_some())?;
    let what = match (run.evicted_by.as_deref(), run.files) {
        (Some("drop_caches"), _) => "all caches of the machine dropped; the host's".to_owned(),
        (_, Some(files)) => {
            format!("page cache of {} evicted; metadata and the host's", counted(files, "file"))
        }
        (_, None) => "page cache of its files evicted; metadata and the host's".to_owned(),
    };
    let verb = if what.contains("metadata") { "cache stay" } else { "cache stays" };
    Some(one(format!("cold = {what} {verb}")))
}

/// What later runs need not write again.
fn bytecode(of: &CommandBench) -> Vec<Line> {
    let wrote = of.runs.iter().filter_map(|run| {
        let written = run.bytecode_written.filter(|&written| written > 0)?;
        Some(format!("{} wrote {}", escape(&run.run), counted(written, "file")))
    });
    let mut wrote: Vec<String> = wrote.collect();
    let mut lines = Vec::new();
    if !wrote.is_empty() {
        wrote.truncate(LISTED);
        lines.push(one(format!("bytecode: {}: slower for that too", wrote.join(", "))));
    }
    let caches = of.runs.iter().find(|run| !run.caches_written.is_empty());
    if let Some((run, path)) = caches.and_then(|run| Some((run, run.caches_written.first()?))) {
        let more = match run.caches_written.len() {
            1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        lines.push(one(format!("{} wrote what it looks for: {}{more}", run.run, escape(path))));
    }
    lines
}

/// What tracing made of it.
fn traced(of: &CommandBench) -> Vec<Line> {
    let Some(traced) = &of.traced else { return Vec::new() };
    let unit = times(of);
    let mut lines = Vec::new();
    if let Some(wall) = traced.median("wall_ns") {
        let times = of.traced_times_warm.map(|times| format!(", {times:.2}x the warm median"));
        lines.push(one(format!(
            "traced (ptrace): {} {}{}, not in the table",
            unit.format(wall),
            unit.name,
            times.unwrap_or_default()
        )));
    }
    let mut sum = 0u64;
    let mut varying = Vec::new();
    for row in &of.syscalls {
        match &row.calls {
            Count::Same(calls) => sum = sum.saturating_add(*calls),
            Count::Varies(calls) => {
                varying.push(format!("{} {}..{}", escape(&row.name), calls.min, calls.max));
            }
        }
    }
    if traced.n > 1 && !varying.is_empty() {
        let names = of.syscalls.len();
        let lead = format!(
            "calls: {} of {names} syscalls the same in {} runs ({sum} calls);",
            names - varying.len(),
            traced.n
        );
        varying.truncate(2 * LISTED);
        let whole = format!("{lead} {}", varying.join(", "));
        lines.push(vec![Clause::parted(whole, std::iter::once(lead).chain(varying).collect())]);
    } else if !of.syscalls.is_empty() {
        let same = match traced.n {
            1 => String::new(),
            n => format!(", the same in {n} runs"),
        };
        lines.push(one(format!("calls: {sum} of {} syscalls{same}", of.syscalls.len())));
    }
    lines
}

/// What there is to say of all of them.
pub(super) fn whole(of: &Bench) -> Vec<Line> {
    let mut lines: Vec<Line> = of.comparisons.iter().map(|it| one(comparison(it))).collect();
    if let Some(environment) = &of.environment {
        lines.push(vec![Clause::list(place(environment))]);
    }
    if !of.joined.is_empty() {
        let boots: std::collections::BTreeSet<_> =
            of.joined.iter().filter_map(|bench| bench.boot_id.as_deref()).collect();
        let benches = counted(of.joined.len() as u64, "bench");
        lines.push(one(format!("{benches} of {}", counted(boots.len() as u64, "boot"))));
    }
    if of.unfinished {
        lines.push(one(
            "it did not come to its end: these are the runs that it had made".to_owned()
        ));
    }
    lines.extend(of.warnings.iter().map(|text| one(format!("warning: {}", escape(text)))));
    if let Some(signal) = &of.interrupted {
        let made: usize = of.commands.iter().map(|command| command.runs.len()).sum();
        lines.push(one(format!("ended by {signal} after {}", counted(made as u64, "run"))));
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
    let lead = format!("{} vs 1, {}:", it.command + 1, it.kind);
    match &it.ratio {
        None => format!("{lead} n too small to compare: 5 runs of each are needed"),
        Some(ratio) => {
            let interval = format!("{:.2}x to {:.2}x, 95 %", ratio.low, ratio.high);
            if ratio.spans_one() {
                format!("{lead} no difference seen ({interval})")
            } else {
                format!("{lead} {:.2}x as long ({interval})", ratio.ratio)
            }
        }
    }
}
