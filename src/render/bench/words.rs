//! What stands below the table of a command.

use std::collections::BTreeSet;

use crate::bench::{Bench, CommandBench, Count, KindBench, RunEntry, RunKind};

use super::super::cache;
use super::super::text::{Clause, escape};
use super::super::units::{counted, time};
use super::{Line, kinds, listed, one, rows, times};

/// Runs that are listed one by one.
const LISTED: usize = 5;

/// What there is to say of a command.
pub(super) fn command(bench: &Bench, of: &CommandBench) -> Vec<Line> {
    let joined = bench.is_joined();
    let mut lines = Vec::new();
    lines.extend(partly_known(of));
    lines.extend(failed(of));
    lines.extend(not_repeated(bench, of));
    lines.extend(first(of));
    lines.extend(cold_vs_warm(of));
    lines.extend(outliers(of, joined).into_iter().map(one));
    lines.extend(labels(of, joined));
    lines.extend(evicted(of));
    lines.extend(bytecode(of));
    lines.extend(traced(of));
    lines
}

/// What the mark in the table's titles means.
fn partly_known(of: &CommandBench) -> Option<Line> {
    let mut items = Vec::new();
    for row in rows(of).iter().filter(|row| row.is_partly_known(of)) {
        for (kind, runs) in kinds(of) {
            let known = runs.metrics.get(row.metric).map_or(runs.n, |summary| summary.n);
            if known < runs.n {
                items.push(format!("{} of {known} of {} {kind}", row.name, runs.n));
            }
        }
    }
    let most = items.len();
    (most > 0).then(|| vec![listed("* known of some runs only:".into(), items, most, "")])
}

/// Runs that failed, and that they are in no number.
fn failed(of: &CommandBench) -> Option<Line> {
    let failed = of
        .runs
        .iter()
        .filter_map(|run| Some(format!("{} {}", escape(&run.run), escape(run.failed.as_deref()?))));
    let items: Vec<String> = failed.collect();
    let all = counted(of.runs.len() as u64, "run");
    let lead = format!("{} of {all} failed, in no number here:", items.len());
    (!items.is_empty()).then(|| vec![listed(lead, items, LISTED, "")])
}

/// Why nothing follows a first run that failed.
fn not_repeated(bench: &Bench, of: &CommandBench) -> Option<Line> {
    let [run] = &of.runs[..] else { return None };
    let cut = bench.is_joined() || bench.interrupted.is_some();
    let ignored = bench.asked.as_ref().is_some_and(|asked| asked.ignore_failure);
    if run.kind != RunKind::First || run.failed.is_none() || cut || ignored {
        return None;
    }
    let mut line = one("nothing was repeated");
    if let (Some(id), Some(1..)) = (&bench.id, run.stderr_bytes) {
        let log = format!("{}/{}/stderr.log", escape(id), escape(&run.run));
        line.push(Clause::one(format!("what it said is in {log}")));
    }
    Some(line)
}

/// What the first run was; of several benches what each of them was.
fn first(of: &CommandBench) -> Vec<Line> {
    let firsts = of.runs.iter().filter(|run| run.kind == RunKind::First && run.label.is_some());
    let firsts: Vec<&RunEntry> = firsts.collect();
    if let [run] = firsts[..] {
        let mut text = format!("first run: {}", label(run));
        if run.label.as_deref() == Some("warm") {
            text.push_str(", so not a cold start");
        }
        let boot = match run.first_since_boot {
            Some(true) => "first since boot under bench",
            Some(false) => "not the first since boot",
            None => "",
        };
        return vec![vec![Clause::one(text), Clause::one(boot)]];
    }
    let Some(runs) = of.first.as_ref().filter(|_| !firsts.is_empty()) else { return Vec::new() };
    let mut lines = vec![one(format!("first runs: {}", counts(runs)))];
    let each = firsts.iter().take(LISTED);
    lines.extend(each.map(|run| one(format!("{}: {}", escape(&run.run), label(run)))));
    if firsts.len() > LISTED {
        lines.push(one(format!("and {} more first runs", firsts.len() - LISTED)));
    }
    lines
}

fn label(of: &RunEntry) -> String {
    cache::label(of.label.as_deref(), of.basis.as_deref(), of.evidence.as_deref())
}

/// How many of each label.
fn counts(of: &KindBench) -> String {
    let counts = of.labels.iter().map(|(label, n)| format!("{n} {}", escape(label)));
    counts.collect::<Vec<_>>().join(", ")
}

/// Differences of the medians, as they are printed.
fn cold_vs_warm(of: &CommandBench) -> Option<Line> {
    let unit = times(of);
    let (cold, warm) = (of.cold.as_ref()?, of.warm.as_ref()?);
    for (kind, runs) in [("cold", cold), ("warm", warm)] {
        if !runs.any_is(kind) {
            let why = format!("no {kind} run was known to be {kind}");
            return Some(one(format!("cold vs warm: not known, {why}")));
        }
    }
    let steps = |runs: &KindBench, metric| Some(unit.steps(runs.median(metric)?));
    let less = |metric| Some(steps(cold, metric)?.saturating_sub(steps(warm, metric)?));
    let signed = |steps: i64| match steps {
        0 => "0".to_owned(),
        1.. => format!("+{}", unit.print(steps)),
        _ => unit.print(steps),
    };
    let wall = less("wall_ns")?;
    let base = steps(warm, "wall_ns").filter(|&base| base > 0);
    let share = base.map(|base| format!(" ({:+.0} %)", wall as f64 * 100.0 / base as f64));
    let parts = [("sys", "sys_ns"), ("off CPU", "off_cpu_ns"), ("user", "user_ns")];
    let parts = parts.map(|(name, metric)| match less(metric) {
        Some(steps) => format!("{name} {}", signed(steps)),
        None => format!("{name} not known"),
    });
    let share = share.unwrap_or_default();
    let lead = format!("cold vs warm: median {} {}{share}:", signed(wall), unit.name);
    Some(vec![listed(lead, parts.to_vec(), parts.len(), "")])
}

/// What a run is called: of several benches by its directory, since there are several
/// of each number.
fn title(kind: RunKind, number: u32, run: &str, joined: bool) -> String {
    if joined { escape(run).into_owned() } else { format!("{kind} {number}") }
}

/// Runs far from the others, and why.
pub(super) fn outliers(of: &CommandBench, joined: bool) -> Vec<String> {
    let mut lines: Vec<String> = of
        .outliers
        .iter()
        .take(LISTED)
        .map(|run| {
            let metric = match run.metric.as_str() {
                "off_cpu_ns" => "off CPU".into(),
                "cpu_ns" => "user + sys".into(),
                other => escape(other.strip_suffix("_ns").unwrap_or(other)),
            };
            let value = |ns: f64| time(ns.max(0.0) as u64);
            let cause = match &run.cause {
                Some(cause) => escape(cause).into_owned(),
                None => "its cause does not show".into(),
            };
            format!(
                "{}: {metric} {}, the median {}; {cause}, kept",
                title(run.kind, run.number, &run.run, joined),
                value(run.value),
                value(run.median)
            )
        })
        .collect();
    if of.outliers.len() > LISTED {
        lines.push(format!("and {} more far from the others", of.outliers.len() - LISTED));
    }
    lines
}

/// Whether runs were what they are called, and how that is known.
fn labels(of: &CommandBench, joined: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut said = Vec::new();
    for (kind, runs) in [(RunKind::Cold, &of.cold), (RunKind::Warm, &of.warm)] {
        let Some(runs) = runs.as_ref().filter(|runs| !runs.labels.is_empty()) else { continue };
        let own = of.runs.iter().filter(|run| run.kind == kind && run.failed.is_none());
        let own: Vec<&RunEntry> = own.collect();
        let bases: BTreeSet<&str> = own.iter().filter_map(|run| run.basis.as_deref()).collect();
        said.push((format!("{kind} runs: {}", counts(runs)), by(&bases)));
        // One stands for all: they are the same in most benches.
        let other = own.iter().find(|run| run.label.as_deref() != Some(kind.word()));
        if let Some(run) = other {
            lines.push(one(format!(
                "{}: {}",
                title(kind, run.number, &run.run, joined),
                label(run)
            )));
        }
    }
    let clauses = said.iter().enumerate().map(|(at, (text, by))| {
        let lead = if at == 0 { "labels: " } else { "" };
        let again = said.get(at + 1).is_some_and(|(_, next)| next == by);
        Clause::one(format!("{lead}{text}{}", if again { "" } else { by }))
    });
    let clauses: Line = clauses.collect();
    if !clauses.is_empty() {
        lines.insert(0, clauses);
    }
    lines
}

/// What labels were made of.
fn by(bases: &BTreeSet<&str>) -> String {
    let bases: Vec<_> = bases.iter().map(|basis| escape(basis)).collect();
    if bases.is_empty() { String::new() } else { format!(" (by {})", bases.join(" and ")) }
}

/// What cold means, where there was a cold run.
fn evicted(of: &CommandBench) -> Option<Line> {
    let is_cold = |run: &&RunEntry| {
        run.evicted_by.is_some() && run.failed.is_none() && run.label.as_deref() == Some("cold")
    };
    let run = of.runs.iter().find(is_cold)?;
    let what = match (run.evicted_by.as_deref(), run.files_evicted, run.files) {
        (Some("drop_caches"), ..) => {
            "all caches of the machine dropped; metadata of the files that were measured and the \
             host's cache stay"
                .to_owned()
        }
        (_, evicted, files) => {
            let number = match (evicted, files) {
                (Some(evicted), Some(files)) if evicted < files => {
                    format!("{evicted} of {files} files")
                }
                (Some(evicted), _) => counted(evicted, "file"),
                (None, _) => "its files".to_owned(),
            };
            format!("page cache of {number} evicted; metadata and the host's cache stay")
        }
    };
    Some(one(format!("cold = {what}")))
}

/// What later runs need not write again.
fn bytecode(of: &CommandBench) -> Vec<Line> {
    let wrote = of.runs.iter().filter_map(|run| {
        let written = run.bytecode_written.filter(|&written| written > 0)?;
        Some(format!("{} wrote {}", escape(&run.run), counted(written, "file")))
    });
    let wrote: Vec<String> = wrote.collect();
    let mut lines = Vec::new();
    if !wrote.is_empty() {
        lines.push(vec![listed("bytecode:".into(), wrote, LISTED, ": slower for that too")]);
    }
    if let Some(run) = of.runs.iter().find(|run| !run.caches_written.is_empty()) {
        let paths = run.caches_written.iter().map(|path| escape(path).into_owned()).collect();
        let lead = format!("{} wrote what it had looked for:", escape(&run.run));
        lines.push(vec![listed(lead, paths, 1, ": runs that find it may be quicker")]);
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
    let names = of.syscalls.len();
    if traced.n > 1 && !varying.is_empty() {
        let lead = format!(
            "calls: {} of {names} syscalls the same in {} runs ({});",
            names - varying.len(),
            traced.n,
            counted(sum, "call")
        );
        lines.push(vec![listed(lead, varying, 2 * LISTED, "")]);
    } else if names > 0 {
        let same = match traced.n {
            1 => String::new(),
            n => format!(", the same in {n} runs"),
        };
        let different = counted(names as u64, "different syscall");
        lines.push(one(format!("{}, {different}{same}", counted(sum, "call"))));
    }
    lines
}
