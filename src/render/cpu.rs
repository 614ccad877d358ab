//! Where CPU time went, by mapped object and by thread.

use std::collections::HashMap;

use crate::record::{CpuObject, CpuSamples, CpuThread, Record};

use super::footer::{Totals, over_threads, wall_ns};
use super::grid::{Grid, Head};
use super::text::{Clause, display_width, escape, fold, shorten_middle, shorten_path};
use super::units::{Scale, counted, decimal};

/// Objects that `show` names.
const TOP: usize = 10;
/// What runs inside of calls, and when the program faults.
const KERNEL: &str = "[kernel]";
/// Fewer samples than this say little.
const FEW: u64 = 50;
/// A name is left at least this.
const NAME: usize = 8;

/// Every object and every thread; nothing where the record has no such part.
pub fn cpu(record: &Record, width: usize) -> Option<String> {
    let cpu = record.cpu.as_ref()?;
    let mut out = part(record, cpu, usize::MAX, width);
    if let Some(threads) = cpu.threads.as_deref().filter(|threads| !threads.is_empty()) {
        out.push('\n');
        out.push_str(&thread_table(record, threads, width));
    }
    Some(out)
}

/// How long calls took of the whole, and the objects that were hit most.
pub(super) fn cpu_part(record: &Record, width: usize) -> Option<String> {
    Some(part(record, record.cpu.as_ref()?, TOP, width))
}

fn part(record: &Record, cpu: &CpuSamples, top: usize, width: usize) -> String {
    let mut out = fold("", "  ", &head(record, cpu), width);
    if let Some(objects) = cpu.objects.as_deref().filter(|objects| !objects.is_empty()) {
        out.push_str(&object_table(objects, top, width));
    }
    out
}

fn head(record: &Record, cpu: &CpuSamples) -> Vec<Clause> {
    let wall_ns = wall_ns(record);
    let scale = Scale::of(wall_ns);
    let unit = scale.name;
    let mut clauses = Vec::new();
    if let Some(totals) = record.syscalls.as_deref().map(Totals::of) {
        let (held, wall) = (scale.format(totals.wall_ns), scale.format(wall_ns));
        let line = match over_threads(totals.wall_ns, wall_ns) {
            "" => format!("calls held {held} of wall {wall} {unit}"),
            over => format!("calls held {held} {unit}{over}, wall {wall} {unit}"),
        };
        clauses.push(Clause::one(line));
    }
    let Some(samples) = cpu.samples else {
        let reason = cpu.reason.as_deref().unwrap_or("the reason is not known");
        clauses.push(Clause::words(&format!("CPU not sampled: {reason}")));
        return clauses;
    };
    let period_ns = cpu.period_ns.unwrap_or(0);
    let sampled_ns = samples.saturating_mul(period_ns);
    let used_ns = used(record, cpu);
    let used = used_ns.map_or(String::new(), |ns| format!(" of {}", scale.format(ns)));
    clauses.push(Clause::one(format!("CPU sampled {}{used} {unit}", scale.format(sampled_ns))));
    let objects = cpu.objects.iter().flatten().filter(|object| object.object != KERNEL);
    let outside = objects.map(|object| object.estimated_ns).fold(0, u64::saturating_add);
    clauses.push(Clause::one(format!("outside calls {} {unit}", scale.format(outside))));
    let missed_ns = used_ns.unwrap_or(0).saturating_sub(sampled_ns);
    if missed_ns > sampled_ns / 10 && missed_ns / 10 > period_ns {
        let why = "the rest is of processes that are too short, or may not be read";
        clauses.push(Clause::words(why));
    }
    if samples < FEW && used_ns.unwrap_or(0) > 0 {
        let taken = counted(samples, "sample");
        clauses.push(Clause::words(&format!("only {taken}: run --cpu-samples 5000 takes more")));
    }
    match (&cpu.kernel_reason, cpu.kernel) {
        (Some(reason), _) => {
            clauses.push(Clause::words(&format!("not in the kernel: {reason}")));
        }
        (None, Some(true)) if record.measurement.times_perturbed => {
            clauses.push(Clause::one("[kernel] includes tracing"));
        }
        _ => {}
    }
    if let Some(lost) = cpu.lost.filter(|lost| *lost > 0) {
        let lost = counted(lost, "record");
        clauses.push(Clause::one(format!("{lost} LOST: the samples are too few")));
    }
    clauses
}

/// CPU time by the kernel's own count, of the kind that was sampled.
fn used(record: &Record, cpu: &CpuSamples) -> Option<u64> {
    let tree = record.tree.as_ref()?;
    let sys_ns = if cpu.kernel == Some(false) { 0 } else { tree.sys_ns? };
    tree.user_ns?.checked_add(sys_ns)
}

fn column(title: &str, min: usize) -> Head {
    Head { title: title.to_owned(), min, right: true }
}

fn names(title: &str) -> Head {
    Head { title: title.to_owned(), min: 0, right: false }
}

/// `49.04` of a hundred.
fn percent(part: u64, all: u64) -> String {
    let hundredths = u128::from(part) * 10_000 + u128::from(all) / 2;
    decimal(u64::try_from(hundredths / u128::from(all.max(1))).unwrap_or(u64::MAX))
}

/// One unit for all, however long it ran.
fn ms(ns: u64) -> String {
    Scale::of(1_000_000).format(ns)
}

fn object_table(objects: &[CpuObject], top: usize, width: usize) -> String {
    let sum = |of: &[CpuObject], what: fn(&CpuObject) -> u64| {
        of.iter().map(what).fold(0, u64::saturating_add)
    };
    let (all, all_ns) = (sum(objects, |o| o.samples), sum(objects, |o| o.estimated_ns));
    let mut grid =
        Grid::new(vec![column("% CPU", 6), column("samples", 7), column("ms", 9), names("object")]);
    let cells = |samples: u64, ns: u64| vec![percent(samples, all), samples.to_string(), ms(ns)];
    // One that is left over is named like the others.
    let top = if objects.len() == top.saturating_add(1) { objects.len() } else { top };
    let (shown, rest) = objects.split_at(top.min(objects.len()));
    for object in shown {
        grid.row(cells(object.samples, object.estimated_ns));
    }
    let mut last = vec!["total".to_owned()];
    if !rest.is_empty() {
        grid.row(cells(sum(rest, |o| o.samples), sum(rest, |o| o.estimated_ns)));
        last.insert(0, format!("({} more)", rest.len()));
    }
    grid.row(cells(all, all_ns));
    let room = grid.room(width).max(NAME);
    let objects = shown.iter().map(|o| shorten_path(&escape(&o.object), room).into_owned());
    grid.complete(objects.chain(last));
    grid.render()
}

fn thread_table(record: &Record, threads: &[CpuThread], width: usize) -> String {
    let processes = record.processes.iter().flatten();
    let pids: HashMap<u64, i32> = processes.map(|process| (process.id, process.pid)).collect();
    let mut grid = Grid::new(vec![
        column("pid", 6),
        column("tid", 6),
        column("samples", 7),
        column("ms", 9),
        column("kernel %", 0),
        names("thread was in"),
    ]);
    for thread in threads {
        let pid = thread.process.and_then(|id| pids.get(&id));
        grid.row(vec![
            pid.map_or(String::new(), ToString::to_string),
            thread.tid.to_string(),
            thread.samples.to_string(),
            ms(thread.estimated_ns),
            thread.kernel_samples.map_or(String::new(), |n| percent(n, thread.samples)),
        ]);
    }
    let room = grid.room(width).max(NAME);
    grid.complete(threads.iter().map(|thread| places(thread, room)));
    grid.render()
}

/// `python3.11 61 %, [kernel] 30 %, …`, as many as there is room for.
fn places(thread: &CpuThread, room: usize) -> String {
    let mut text = String::new();
    for object in &thread.objects {
        let name = object.object.rsplit('/').next().unwrap_or_default();
        let part = 100.0 * (object.samples as f64 / thread.samples.max(1) as f64);
        let share = format!(" {part:.0} %");
        if text.is_empty() {
            let room = room.saturating_sub(share.len() + ", …".len()).max(NAME);
            text = format!("{}{share}", shorten_middle(&escape(name), room));
            continue;
        }
        let longer = format!("{text}, {}{share}", escape(name));
        if display_width(&longer) + ", …".chars().count() > room {
            return text + ", …";
        }
        text = longer;
    }
    text
}
