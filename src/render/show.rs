//! `show`: a record as a page of text.

use crate::record::{Outcome, Record};

use super::columns::SortKey;
use super::footer::{Totals, cpu, filter, lost, over_threads, parallel, repaired};
use super::table::{TableOptions, native_abi, table};
use super::text::{clauses, command_line, display_width, escape, fold, shorten_middle, words};
use super::tree::process_tree;
use super::units::{Split, bytes, counted, span, time};

/// Rows of the syscall table.
const TOP: usize = 15;
/// Where the words behind a label begin.
const LABEL: usize = 9;
/// Where the outcome begins behind a short command.
const OUTCOME: usize = 34;
/// `ru_inblock` and `ru_oublock` count these.
const BLOCK: u64 = 512;

/// The record as text: [`summary`], then the processes and the calls. Parts
/// that the record does not hold are left out.
pub fn show(record: &Record, width: usize) -> String {
    let mut out = summary(record, width);
    let tree = processes(record, width);
    if !tree.is_empty() {
        out.push('\n');
        out.push_str(&tree);
    }
    if let Some(rows) = record.syscalls.as_deref() {
        out.push('\n');
        let options = TableOptions {
            top: Some(TOP),
            sort: SortKey::Time,
            columns: None,
            width,
            native_abi: native_abi(rows).to_owned(),
        };
        out.push_str(&table(rows, &options));
    }
    out
}

/// The process tree; empty where the record has none.
pub fn processes(record: &Record, width: usize) -> String {
    let processes = record.processes.as_deref().filter(|all| !all.is_empty());
    processes.map_or_else(String::new, |all| process_tree(all, record.syscalls.is_some(), width))
}

/// What ran and how it ended, where the time went, what it used, and how that
/// was measured.
pub fn summary(record: &Record, width: usize) -> String {
    let mut out = headline(record, width);
    let mut line = |label: &str, parts: Vec<Vec<String>>| {
        let first = format!("{label:<LABEL$}");
        out.push_str(&fold(&first, &" ".repeat(LABEL), &clauses(parts), width));
    };
    let totals = record.syscalls.as_deref().map(Totals::of);
    line("run", run(record));
    line("time", time_parts(record));
    line("calls", totals.as_ref().map_or(Vec::new(), |totals| calls(record, totals)));
    line("memory", memory(record));
    line("faults", faults(record));
    line("I/O", io(record));
    line("tree", tree(record));
    line("measured", measured(record));
    for sentence in lost(record).iter().chain(&filter(record)).chain(&record.measurement.notes) {
        let first = format!("{:<LABEL$}", "note");
        out.push_str(&fold(&first, &" ".repeat(LABEL), &words(sentence), width));
    }
    out
}

/// What ran and how it ended; the end comes first when it was a bad one.
fn headline(record: &Record, width: usize) -> String {
    let Outcome { exit_code, signal, core_dumped, wall_ns, .. } = &record.outcome;
    let after = time(*wall_ns);
    let command = if record.run.argv.is_empty() {
        escape(&record.run.label).into_owned()
    } else {
        command_line(&record.run.argv)
    };
    let core = if *core_dumped { ", core dumped," } else { "" };
    let bad = match (exit_code, signal) {
        (Some(0), _) => None,
        (Some(status), _) => Some(format!("FAILED, exited {status} after {after}")),
        (None, Some(signal)) => Some(format!("KILLED by {}{core} after {after}", escape(signal))),
        (None, None) => Some(format!("end not seen; watched for {after}")),
    };
    let good = format!("exited 0 after {after}");
    let beside = display_width(bad.as_ref().unwrap_or(&good)) + 2;
    let command = shorten_middle(&command, width.saturating_sub(beside).max(8));
    let line = if let Some(bad) = bad {
        format!("{bad}: {command}")
    } else {
        let room = width.saturating_sub(beside).min(OUTCOME - 2);
        let padding = " ".repeat(room.saturating_sub(display_width(&command)) + 2);
        format!("{command}{padding}{good}")
    };
    format!("{}\n", line.trim_end())
}

/// Label and tags, where the user gave any.
fn run(record: &Record) -> Vec<Vec<String>> {
    let run = &record.run;
    let name = run.argv.first().map(|path| path.rsplit('/').next().unwrap_or(path));
    let mut parts = Vec::new();
    if name.is_some_and(|name| name != run.label) {
        parts.push(vec![format!("label {}", escape(&run.label))]);
    }
    if !run.tags.is_empty() {
        let tags = run.tags.iter().map(|(key, value)| format!("{}={}", escape(key), escape(value)));
        let mut tags: Vec<String> = tags.collect();
        if let Some(first) = tags.first_mut() {
            first.insert_str(0, "tags ");
        }
        parts.push(tags);
    }
    parts
}

fn time_parts(record: &Record) -> Vec<Vec<String>> {
    let Some((user_ns, sys_ns)) = cpu(record) else {
        return Vec::new();
    };
    let split = Split::new(record.outcome.wall_ns, user_ns, sys_ns);
    let Split { scale, wall, user, sys, .. } = &split;
    let unit = scale.name;
    let line = match &split.off_cpu {
        Ok(off) => format!("user {user} + sys {sys} + off CPU {off} {unit}"),
        Err(cpus) if parallel(record) => {
            format!("user {user} + sys {sys} {unit} in {wall} {unit} of wall time = {cpus} CPUs")
        }
        Err(_) => format!("user {user} + sys {sys} {unit}"),
    };
    let mut parts = vec![vec![line]];
    if let Some(waited) = record.tree.as_ref().and_then(|tree| tree.run_queue_ns) {
        parts.push(vec![format!("waited {} for a CPU", time(waited))]);
    }
    parts
}

fn calls(record: &Record, totals: &Totals) -> Vec<Vec<String>> {
    let over = over_threads(totals.wall_ns, record.outcome.wall_ns);
    let held = format!("{} in {}{over}", totals.calls, span(totals.wall_ns));
    let mut parts = vec![vec![held]];
    let mut kinds = totals.kinds.clone();
    if let Some(first) = kinds.first_mut() {
        first.insert_str(0, &format!("{} (", counted(totals.errors, "error")));
    }
    if let Some(last) = kinds.last_mut() {
        last.push(')');
        parts.push(kinds);
    } else {
        parts.push(vec![counted(totals.errors, "error")]);
    }
    parts.extend(totals.oddities.iter().map(|odd| vec![odd.clone()]));
    parts.extend(repaired(record).map(|text| vec![text]));
    parts
}

fn memory(record: &Record) -> Vec<Vec<String>> {
    let peak = record.tree.as_ref().and_then(|tree| tree.peak_rss_bytes);
    let line = match (peak, &record.rusage) {
        (Some(peak), _) => format!("peak {}", bytes(peak)),
        // Not the same: the launcher's own size is its lower bound.
        (None, Some(usage)) => format!("ru_maxrss {}", bytes(usage.ru_maxrss_bytes)),
        (None, None) => return Vec::new(),
    };
    vec![vec![line]]
}

fn faults(record: &Record) -> Vec<Vec<String>> {
    let tree = record.tree.as_ref();
    let usage = record.rusage.as_ref();
    let faults = tree
        .and_then(|tree| tree.major_faults.zip(tree.minor_faults))
        .or_else(|| usage.map(|usage| (usage.major_faults, usage.minor_faults)));
    let switches = tree
        .and_then(|tree| tree.voluntary_switches.zip(tree.involuntary_switches))
        .or_else(|| usage.map(|usage| (usage.voluntary_switches, usage.involuntary_switches)));
    let mut parts = Vec::new();
    if let Some((major, minor)) = faults {
        parts.push(vec![format!("{major} major"), format!("{minor} minor")]);
    }
    if let Some((voluntary, involuntary)) = switches {
        parts.push(vec![
            format!("switches {voluntary} voluntary"),
            format!("{involuntary} involuntary"),
        ]);
    }
    parts
}

fn io(record: &Record) -> Vec<Vec<String>> {
    let mut parts = Vec::new();
    if let Some(usage) = &record.rusage {
        let size = |blocks: u64| bytes(blocks.saturating_mul(BLOCK));
        parts.push(vec![
            format!("disks read {}", size(usage.block_in)),
            format!("written {}", size(usage.block_out)),
        ]);
    }
    let output = [("stdout", record.outcome.stdout_bytes), ("stderr", record.outcome.stderr_bytes)];
    let counted: Vec<String> = output
        .into_iter()
        .filter_map(|(name, size)| size.map(|size| format!("{name} {}", bytes(size))))
        .collect();
    if !counted.is_empty() {
        parts.push(counted);
    }
    parts
}

fn tree(record: &Record) -> Vec<Vec<String>> {
    let Some(tree) = &record.tree else {
        return Vec::new();
    };
    vec![vec![counted(tree.processes, "process"), counted(tree.threads, "thread")]]
}

fn measured(record: &Record) -> Vec<Vec<String>> {
    let measurement = &record.measurement;
    if measurement.engine == "none" {
        return vec![vec!["without tracing".to_owned()]];
    }
    let mut parts = vec![vec![
        format!("by {}", escape(&measurement.engine)),
        counted(measurement.stops, "stop"),
    ]];
    let per_call = measurement.cost_per_call_ns.map(|ns| format!("{} a call", time(ns)));
    match (measurement.estimated_added_ns, per_call) {
        (Some(added), Some(per_call)) => {
            parts.push(vec![format!("tracing added about {} ({per_call})", time(added))]);
        }
        (Some(added), None) => parts.push(vec![format!("tracing added about {}", time(added))]),
        (None, Some(per_call)) => parts.push(vec![format!("tracing adds {per_call}")]),
        (None, None) if measurement.times_perturbed => {
            parts.push(vec!["times include tracing".to_owned()]);
        }
        (None, None) => {}
    }
    if measurement.filter == "installed" {
        parts.push(vec!["filter installed".to_owned()]);
    }
    parts
}
