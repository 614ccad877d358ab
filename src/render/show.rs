//! `show`: a record as a page of text.

use crate::record::{MappedFile, ObjectMemory, Outcome, ProcSnapshot, Process, Record, TimeShare};

use super::cache::cache_line;
use super::columns::SortKey;
use super::cpu::cpu_part;
use super::files::{files_line, mapped_line};
use super::footer::{
    Totals, Wall, counted_inside, filter, in_parentheses, lost, outlived, over_threads, parallel,
    repaired, selection, wall_ns, watched,
};
use super::imports::{imports_line, slowest};
use super::regions::regions_line;
use super::table::{TableOptions, native_abi, table};
use super::text::{
    Clause, command_line, display_width, escape, fold, own_words, quote, shorten_middle,
};
use super::times::program;
use super::tree::process_tree;
use super::units::{Split, bytes, counted, span, time};

/// Rows of the syscall table.
const TOP: usize = 15;
/// Where the words behind a label begin.
const LABEL: usize = 9;
/// Imports that are named.
const IMPORTS: usize = 10;
/// Calls that are named with the time blocked in them.
const BLOCKED: usize = 4;
/// Where the outcome begins behind a short command.
const OUTCOME: usize = 34;
/// Attached processes that are named.
const PIDS: usize = 5;
/// A command that is left less than this gets a line of its own.
const COMMAND: usize = 16;
/// `ru_inblock` and `ru_oublock` count these.
const BLOCK: u64 = 512;

/// The record as text: [`summary`], then the processes, where CPU time went, the
/// slowest imports and the calls. Parts that the record does not hold are left out.
pub fn show(record: &Record, width: usize) -> String {
    let mut out = summary(record, width);
    if let Some(tree) = tree_table(record, width) {
        out.push('\n');
        out.push_str(&tree);
    }
    if let Some(cpu) = cpu_part(record, width) {
        out.push('\n');
        out.push_str(&cpu);
    }
    if let Some(table) =
        record.imports.as_ref().and_then(|imports| slowest(imports, IMPORTS, width))
    {
        out.push('\n');
        out.push_str(&table);
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

/// The process tree, or why there is none.
pub fn processes(record: &Record, width: usize) -> String {
    tree_table(record, width).unwrap_or_else(|| {
        let why = if record.measurement.engine == "none" {
            "it was not traced"
        } else {
            "count keeps none, run keeps them"
        };
        own_words(&[Clause::one(format!("no processes in this record: {why}"))], width)
    })
}

fn tree_table(record: &Record, width: usize) -> Option<String> {
    let processes = record.processes.as_deref().filter(|all| !all.is_empty())?;
    let attached = !record.run.attached.is_empty();
    Some(process_tree(processes, record.syscalls.is_some(), attached, width))
}

/// What ran and how it ended, where the time went, what it used, and how that
/// was measured.
pub fn summary(record: &Record, width: usize) -> String {
    let mut out = headline(record, width);
    let mut line = |label: &str, clauses: Vec<Clause>| {
        let first = format!("{label:<LABEL$}");
        out.push_str(&fold(&first, &" ".repeat(LABEL), &clauses, width));
    };
    let totals = record.syscalls.as_deref().map(Totals::of);
    line("run", run(record, width));
    line("time", time_parts(record));
    // Of other calls nobody knows.
    let watched = record.measurement.trace.is_none();
    let time = record.time.as_ref().filter(|share| watched || share.blocked_ns > 0);
    line("blocked", time.map_or(Vec::new(), |share| blocked(share, watched)));
    line("calls", totals.as_ref().map_or(Vec::new(), |totals| calls(record, totals)));
    line("files", record.files.as_ref().map_or(Vec::new(), files_line));
    let room = width.saturating_sub(LABEL);
    let mapped = |files: &Vec<MappedFile>| mapped_line(files, room);
    line("mapped", record.mapped.as_ref().map_or(Vec::new(), mapped));
    line("regions", record.regions.as_deref().map_or(Vec::new(), regions_line));
    line("imports", record.imports.as_ref().map_or(Vec::new(), imports_line));
    line("memory", memory(record));
    line("proc", snapshots(record));
    line("faults", faults(record));
    line("I/O", io(record));
    line("cache", record.cache.as_ref().map_or(Vec::new(), cache_line));
    line("tree", tree(record));
    line("measured", measured(record));
    for sentence in lost(record).iter().chain(&filter(record)).chain(&record.measurement.notes) {
        line("note", vec![Clause::words(sentence)]);
    }
    out
}

/// What ran and how it ended; the end comes first when it was a bad one.
fn headline(record: &Record, width: usize) -> String {
    if !record.run.attached.is_empty() {
        return attached(record, width);
    }
    let Outcome { exit_code, signal, core_dumped, timed_out, wall_ns, .. } = &record.outcome;
    let after = time(*wall_ns);
    let command = if record.run.argv.is_empty() {
        escape(&record.run.label).into_owned()
    } else {
        command_line(&record.run.argv)
    };
    let core = if *core_dumped { ", core dumped," } else { "" };
    let bad = match (exit_code, signal) {
        (Some(status), _) if *timed_out => {
            Some(format!("TIMED OUT, exited {status} after {after}"))
        }
        (None, Some(signal)) if *timed_out => {
            Some(format!("TIMED OUT, killed by {}{core} after {after}", escape(signal)))
        }
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

/// Which processes were looked at, for how long, and what the first of them is.
fn attached(record: &Record, width: usize) -> String {
    let pids = &record.run.attached;
    let mut named: Vec<String> = pids.iter().take(PIDS).map(ToString::to_string).collect();
    if pids.len() > PIDS {
        named.push(format!("{} more", pids.len() - PIDS));
    }
    let watched = format!("watched for {}", time(record.outcome.wall_ns));
    let head = format!("attached to {}: {watched}", named.join(", "));
    if record.run.argv.is_empty() {
        return fold("", "", &[Clause::one(head)], width);
    }
    let of = match pids.as_slice() {
        [first, _, ..] => format!("{first}: "),
        _ => String::new(),
    };
    let command = |room: usize| {
        let room = room.saturating_sub(of.len() + "()".len()).max(8);
        format!("({of}{})", shorten_middle(&command_line(&record.run.argv), room))
    };
    let room = width.saturating_sub(display_width(&head) + 1);
    let beside = format!("{head} {}", command(room.max(COMMAND)));
    fold("", "", &[Clause::parted(beside, vec![head, command(width.saturating_sub(2))])], width)
}

/// What tells this run from others.
fn run(record: &Record, width: usize) -> Vec<Clause> {
    let run = &record.run;
    let room = width.saturating_sub(LABEL + "label ".len()).max(8);
    let short = |text: &str| shorten_middle(text, room).into_owned();
    let name = run.argv.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
    let mut parts: Vec<Clause> = run.id.iter().map(|id| Clause::one(short(&escape(id)))).collect();
    // A run of a bench is called as its directory is.
    if name != run.label && run.id.as_ref() != Some(&run.label) {
        parts.push(Clause::one(format!("label {}", short(&escape(&run.label)))));
    }
    let tags = run.tags.iter().map(|(key, value)| format!("{}={}", escape(key), escape(value)));
    let mut tags: Vec<String> = tags.map(|tag| short(&tag)).collect();
    if let Some(first) = tags.first_mut() {
        first.insert_str(0, "tags ");
    }
    parts.push(Clause::list(tags));
    let started = format!("started {}", escape(&run.start));
    parts.push(match &run.cwd {
        Some(cwd) => {
            let place = format!("in {}", short(&quote(cwd)));
            Clause::parted(format!("{started} {place}"), vec![started, place])
        }
        None => Clause::one(started),
    });
    parts
}

fn time_parts(record: &Record) -> Vec<Clause> {
    let Some(known) = Wall::of(record) else {
        return Vec::new();
    };
    let Split { scale, wall, off_cpu, .. } = &known.split;
    let unit = scale.name;
    let mut parts = vec![match off_cpu {
        Ok(_) if known.whole_tree => {
            known.sum(&format!("{wall} {unit} of the whole tree"), true, "")
        }
        Err(cpus) if parallel(record) => {
            known.sum("", true, &format!("in {wall} {unit} of wall time = {cpus} CPUs"))
        }
        Ok(_) | Err(_) => known.sum("", true, ""),
    }];
    let waited = record.tree.as_ref().and_then(|tree| tree.run_queue_ns).filter(|&ns| ns > 0);
    parts.extend(waited.map(|ns| Clause::one(format!("waited {} for a CPU", time(ns)))));
    parts
}

/// Where threads were while they were neither on a CPU nor waiting for one.
fn blocked(share: &TimeShare, watched: bool) -> Vec<Clause> {
    let whole = if share.threads == 1 {
        format!("{} of {}", time(share.blocked_ns), time(share.lifetime_ns))
    } else {
        let threads = counted(share.threads, "thread");
        format!("{} of {} in {threads}", time(share.blocked_ns), time(share.lifetime_ns))
    };
    let mut calls: Vec<String> = share
        .blocked
        .iter()
        .take(BLOCKED)
        .map(|call| format!("{} {}", escape(&call.name), time(call.blocked_ns)))
        .collect();
    if share.blocked.len() > BLOCKED {
        calls.push(format!("{} more", share.blocked.len() - BLOCKED));
    }
    let mut parts =
        vec![in_parentheses(&whole, calls).unwrap_or_else(|| Clause::one(whole.clone()))];
    if share.other_ns > share.lifetime_ns / 100 {
        let what = if watched { "stopped or paging" } else { "stopped, paging or not watched" };
        parts.push(Clause::one(format!("{what} {}", time(share.other_ns))));
    }
    parts
}

fn calls(record: &Record, totals: &Totals) -> Vec<Clause> {
    let over = over_threads(totals.wall_ns, wall_ns(record));
    let [trace, status] = selection(record);
    let mut what = totals.calls.to_string();
    if let Some(trace) = trace {
        what.push_str(" of ");
        what.push_str(&trace);
    }
    if let Some(status) = &status {
        what.push_str(" with ");
        what.push_str(status);
    }
    let mut parts = vec![Clause::one(format!("{what} in {}{over}", span(totals.wall_ns)))];
    let errors = counted(totals.errors, "error");
    match in_parentheses(&errors, totals.kinds.clone()) {
        Some(kinds) => parts.push(kinds),
        // There may have been some that were not to be counted.
        None if status.is_some() => {}
        None => parts.push(Clause::one(errors)),
    }
    parts.extend(totals.oddities.iter().cloned());
    parts.extend(repaired(record).map(Clause::one));
    parts
}

fn memory(record: &Record) -> Vec<Clause> {
    let tree = record.tree.as_ref();
    let alone = tree.is_some_and(|tree| tree.processes == 1);
    let what = if alone { "peak" } else { "largest process" };
    let line = match (tree.and_then(|tree| tree.peak_rss_bytes), &record.rusage) {
        (Some(peak), _) => {
            let holds = |process: &&Process| process.peak_rss_bytes == Some(peak);
            let whose = record.processes.iter().flatten().find(holds).and_then(program);
            match whose.filter(|_| !alone) {
                Some(name) => format!("{what} {} ({})", bytes(peak), escape(name)),
                None => format!("{what} {}", bytes(peak)),
            }
        }
        // Not the same: the launcher's own size is its lower bound.
        (None, Some(usage)) => match usage.peak_bytes() {
            Some(peak) => format!("{what} {} (ru_maxrss)", bytes(peak)),
            None => format!("{what} at most {}", bytes(usage.ru_maxrss_bytes)),
        },
        (None, None) => String::new(),
    };
    let mut clauses: Vec<Clause> =
        (!line.is_empty()).then(|| Clause::one(line)).into_iter().collect();
    let mut ends = record.proc.iter().flatten().filter(|snapshot| snapshot.is_of_end());
    let root = ends.find(|snapshot| snapshot.process == 0);
    if let Some(memory) = root.and_then(|root| root.memory.as_ref())
        && let (Some(anon), Some(file)) = (memory.anon_bytes, memory.file_bytes)
    {
        let shmem = memory.shmem_bytes.unwrap_or(0);
        let all = bytes(anon.saturating_add(file).saturating_add(shmem));
        let shared = if shmem > 0 { format!(" + shared {}", bytes(shmem)) } else { String::new() };
        let whose = if alone { "" } else { "the command " };
        let when = root.map_or("exit", |root| root.event.as_str());
        clauses.push(Clause::one(format!(
            "{whose}at {when} anonymous {} + file-backed {}{shared} = {all}",
            bytes(anon),
            bytes(file)
        )));
    }
    if let Some(objects) = root.and_then(|root| root.objects.as_ref()) {
        clauses.extend(largest(objects, "anonymous", |o| o.anon_bytes));
        clauses.extend(largest(objects, "file-backed", |o| o.file_bytes));
    }
    clauses
}

/// The snapshots that were asked for beside those at ends: how many, where, and
/// what the command had resident at each.
fn snapshots(record: &Record) -> Vec<Clause> {
    const SHOWN: usize = 4;
    let all: Vec<&ProcSnapshot> =
        record.proc.iter().flatten().filter(|snapshot| !snapshot.is_of_end()).collect();
    if all.is_empty() {
        return Vec::new();
    }
    let own: Vec<_> = all.iter().filter(|snapshot| snapshot.process == 0).collect();
    let count = counted(all.len() as u64, "snapshot");
    let of = (own.len() < all.len()).then(|| format!("{} of the command itself", own.len()));
    let kept = all.iter().any(|snapshot| snapshot.directory.is_some());
    let place = kept.then(|| "files in at-*".to_owned());
    let head = Clause::list([count].into_iter().chain(of).chain(place).collect());
    let each = own.iter().take(SHOWN).map(|snapshot| {
        let resident = snapshot.memory.as_ref().and_then(|memory| {
            let shared = memory.shmem_bytes.unwrap_or(0);
            Some(memory.anon_bytes?.saturating_add(memory.file_bytes?).saturating_add(shared))
        });
        let resident = resident.map_or(String::new(), |n| format!(": {} resident", bytes(n)));
        Clause::words(&format!("{} after {}{resident}", snapshot.event, time(snapshot.at_ns)))
    });
    let more = own.len().saturating_sub(SHOWN);
    let more = (more > 0).then(|| Clause::one(format!("{more} more")));
    [head].into_iter().chain(each).chain(more).collect()
}

/// Whose most of a kind of memory is.
fn largest(
    objects: &[ObjectMemory],
    kind: &str,
    size: impl Fn(&ObjectMemory) -> u64,
) -> Option<Clause> {
    const SHOWN: usize = 3;
    let mut sorted: Vec<&ObjectMemory> = objects.iter().filter(|o| size(o) > 0).collect();
    sorted.sort_by_key(|o| std::cmp::Reverse(size(o)));
    let shown = sorted.iter().take(SHOWN).map(|object| {
        let name = object.object.rsplit('/').next().unwrap_or_default();
        format!("{} {}", escape(name), bytes(size(object)))
    });
    let names: Vec<String> = shown.collect();
    (!names.is_empty()).then(|| Clause::words(&format!("{kind}: {}", names.join(", "))))
}

fn faults(record: &Record) -> Vec<Clause> {
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
        let major = (major > 0).then(|| format!("{major} major"));
        parts.push(Clause::list(major.into_iter().chain([format!("{minor} minor")]).collect()));
    }
    if let Some((voluntary, involuntary)) = switches {
        parts.push(Clause::list(vec![
            format!("switches {voluntary} voluntary"),
            format!("{involuntary} involuntary"),
        ]));
    }
    parts
}

fn io(record: &Record) -> Vec<Clause> {
    let mut parts = Vec::new();
    if let Some(usage) = &record.rusage {
        let size = |blocks: u64| bytes(blocks.saturating_mul(BLOCK));
        let read = format!("disks read {}", size(usage.block_in));
        let written = Some(usage.block_out).filter(|&blocks| blocks > 0);
        let written = written.map(|blocks| format!("written {}", size(blocks)));
        parts.push(Clause::list([read].into_iter().chain(written).collect()));
    }
    let output = [("stdout", record.outcome.stdout_bytes), ("stderr", record.outcome.stderr_bytes)];
    let counted = output
        .into_iter()
        .filter_map(|(name, size)| size.map(|size| format!("{name} {}", bytes(size))));
    parts.push(Clause::list(counted.collect()));
    if let Some(first) = record.outcome.first_output_ns {
        parts.push(Clause::one(format!("first output after {}", time(first))));
    }
    parts
}

fn tree(record: &Record) -> Vec<Clause> {
    let Some(tree) = &record.tree else {
        return Vec::new();
    };
    let size = vec![counted(tree.processes, "process"), counted(tree.threads, "thread")];
    let last = outlived(record).map(|ns| Clause::one(format!("the last ended after {}", time(ns))));
    [Clause::list(size)].into_iter().chain(last).collect()
}

fn measured(record: &Record) -> Vec<Clause> {
    let measurement = &record.measurement;
    if measurement.engine == "none" {
        return vec![Clause::one("without tracing")];
    }
    let mut parts = vec![Clause::list(vec![
        format!("by {}", escape(&measurement.engine)),
        counted(measurement.stops, "stop"),
    ])];
    let per_call = measurement.cost_per_call_ns.map(|ns| format!("{} a call", time(ns)));
    let added = measurement.estimated_added_ns;
    let added = added.map(|added| format!("tracing added about {}", time(added)));
    match (added, per_call) {
        (Some(added), Some(per_call)) => {
            let per_call = format!("({per_call})");
            parts.push(Clause::parted(format!("{added} {per_call}"), vec![added, per_call]));
        }
        (Some(added), None) => parts.push(Clause::one(added)),
        (None, Some(per_call)) => parts.push(Clause::one(format!("tracing adds {per_call}"))),
        (None, None) if measurement.times_perturbed => {
            parts.push(Clause::one("times include tracing"));
        }
        (None, None) => {}
    }
    parts.extend(counted_inside(record));
    parts.extend(watched(record).map(Clause::one));
    // Where that was not so for some, a note says it.
    if measurement.filter == "installed" && measurement.filter_reason.is_none() {
        parts.push(Clause::one("other calls ran at full speed"));
    }
    parts
}
