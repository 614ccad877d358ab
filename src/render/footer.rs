//! The lines below the table, and the counts that they share with `show`.

use std::borrow::Cow;
use std::cmp::Reverse;

use indexmap::IndexMap;

use crate::record::{Record, SyscallRow};

use super::table::{errors, native_abi, shown_name};
use super::text::{Clause, LEAD, escape, own_words, shorten_middle};
use super::units::{Scale, Split, counted, span, time};

/// Kinds of errors that are named.
const KINDS: usize = 5;
/// Syscalls that are named behind a count.
const NAMES: usize = 3;
/// Descendants that go on for less than this after the command's end are not
/// worth a word.
const OUTLIVED_NS: u64 = 1_000_000;
/// What was selected may be a long list.
const SELECTION: usize = 40;

/// What all rows together say.
pub(super) struct Totals {
    /// Calls entered.
    pub calls: u64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Wall time inside all calls.
    pub wall_ns: u64,
    /// Errors by errno name, `773 ENOTTY`, the commonest first.
    pub kinds: Vec<String>,
    /// `1 unfinished (futex)` and its like, for what is not zero.
    pub oddities: Vec<Clause>,
}

impl Totals {
    /// Sums up the rows.
    pub fn of(rows: &[SyscallRow]) -> Self {
        let mut kinds: IndexMap<&str, u64> = IndexMap::new();
        for (errno, count) in rows.iter().flat_map(|row| &row.errors) {
            let sum = kinds.entry(errno).or_default();
            *sum = sum.saturating_add(*count);
        }
        let mut kinds: Vec<(&str, u64)> = kinds.into_iter().filter(|kind| kind.1 > 0).collect();
        kinds.sort_by_key(|(errno, count)| (Reverse(*count), *errno));
        let named =
            kinds.iter().take(KINDS).map(|(errno, count)| format!("{count} {}", escape(errno)));
        let rest = sum(kinds.iter().skip(KINDS).map(|kind| kind.1));
        let more = (rest > 0).then(|| format!("{rest} more"));
        Self {
            calls: sum(rows.iter().map(|row| row.calls)),
            errors: sum(rows.iter().map(errors)),
            wall_ns: sum(rows.iter().filter_map(|row| row.wall_ns).map(|wall| wall.total)),
            kinds: named.chain(more).collect(),
            oddities: [
                oddity(
                    rows,
                    |count| format!("{count} unfinished"),
                    |row| (row.unfinished, row.unfinished_ns),
                ),
                oddity(rows, |count| counted(count, "restart"), |row| (row.restarts, 0)),
                oddity(rows, |count| format!("{count} abandoned"), |row| (row.abandoned, 0)),
            ]
            .into_iter()
            .flatten()
            .collect(),
        }
    }
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// A count over all rows, and the syscalls that it comes from with the time
/// spent so, the longest first.
fn oddity(
    rows: &[SyscallRow],
    say: fn(u64) -> String,
    of: fn(&SyscallRow) -> (u64, u64),
) -> Option<Clause> {
    let native = native_abi(rows);
    let mut hit: IndexMap<Cow<str>, (u64, u64)> = IndexMap::new();
    for row in rows {
        let (count, ns) = of(row);
        if count > 0 {
            let sums = hit.entry(shown_name(&row.abi, &row.name, native)).or_default();
            *sums = (sums.0.saturating_add(count), sums.1.saturating_add(ns));
        }
    }
    hit.sort_by_key(|_, (count, ns)| Reverse((*ns, *count)));
    let total = sum(hit.values().map(|(count, _)| *count));
    let mut names: Vec<String> = hit
        .iter()
        .take(NAMES)
        .map(|(name, (_, ns))| match ns {
            0 => name.to_string(),
            ns => format!("{name} {}", span(*ns)),
        })
        .collect();
    if hit.len() > NAMES {
        names.push(format!("{} more", hit.len() - NAMES));
    }
    in_parentheses(&say(total), names)
}

/// `3 errors (2 ENOENT, 1 EIO)`; nothing where there is nothing in between.
pub(super) fn in_parentheses(what: &str, mut items: Vec<String>) -> Option<Clause> {
    items.first_mut()?.insert_str(0, &format!("{what} ("));
    items.last_mut()?.push(')');
    Some(Clause::list(items))
}

fn tree_cpu(record: &Record) -> Option<(u64, u64)> {
    record.tree.as_ref().and_then(|tree| tree.user_ns.zip(tree.sys_ns))
}

/// CPU time in user mode and in the kernel: of the whole tree where it is
/// known, else of what was waited for.
fn cpu(record: &Record) -> Option<(u64, u64)> {
    let waited_for = || record.rusage.as_ref().map(|usage| (usage.user_ns, usage.sys_ns));
    tree_cpu(record).or_else(waited_for)
}

/// When the last descendant ended, where it clearly outlived the command.
pub(super) fn outlived(record: &Record) -> Option<u64> {
    let command = record.outcome.wall_ns;
    let least = command.saturating_add(OUTLIVED_NS.max(command / 100));
    let attached = !record.run.attached.is_empty();
    record.tree.as_ref()?.wall_ns.filter(|tree| *tree > least && !attached)
}

/// From the start to the end of what the calls were counted of: the command,
/// or the descendants that outlived it.
pub(super) fn wall_ns(record: &Record) -> u64 {
    outlived(record).unwrap_or(record.outcome.wall_ns)
}

/// Whether CPUs could have been used in parallel. One thread cannot, but its
/// CPU time can exceed its wall time a little: it began before the exec.
pub(super) fn parallel(record: &Record) -> bool {
    record.tree.as_ref().is_none_or(|tree| tree.threads != 1)
}

/// ` over all threads` where the sum is more than the run took.
pub(super) fn over_threads(held_ns: u64, wall_ns: u64) -> &'static str {
    if held_ns > wall_ns { " over all threads" } else { "" }
}

/// The wall time and where it went, both of the same span.
pub(super) struct Wall {
    /// In one unit.
    pub split: Split,
    /// Of the descendants too, which outlived the command.
    pub whole_tree: bool,
}

impl Wall {
    /// Nothing where the CPU time is not known.
    pub fn of(record: &Record) -> Option<Self> {
        let (user_ns, sys_ns) = cpu(record)?;
        // What nobody waited for is in the tree's CPU time only.
        let tree = tree_cpu(record).and_then(|_| outlived(record));
        let split = Split::new(tree.unwrap_or(record.outcome.wall_ns), user_ns, sys_ns);
        Some(Self { split, whole_tree: tree.is_some() })
    }

    /// `user 2.18 + sys 0.59 + off CPU 0.06`, with the unit behind it where it
    /// is wanted, begun and ended as told. Where it has to be parted, every term
    /// has its unit.
    pub fn sum(&self, begin: &str, unit: bool, end: &str) -> Clause {
        let Split { scale, user, sys, off_cpu, .. } = &self.split;
        let equals = if begin.is_empty() { "" } else { "= " };
        let mut terms = vec![format!("{equals}user {user}"), format!("+ sys {sys}")];
        terms.extend(off_cpu.as_ref().ok().map(|off| format!("+ off CPU {off}")));
        let mut whole = [&[begin.to_owned()], terms.as_slice()].concat();
        whole.extend(unit.then(|| scale.name.to_owned()));
        whole.push(end.to_owned());
        whole.retain(|part| !part.is_empty());
        for term in &mut terms {
            *term = format!("{term} {}", scale.name);
        }
        terms.insert(0, begin.to_owned());
        terms.push(end.to_owned());
        terms.retain(|term| !term.is_empty());
        Clause::parted(whole.join(" "), terms)
    }
}

/// Where the wall time went. On one line the unit is told once.
fn wall_line(record: &Record, totals: Option<&Totals>, width: usize) -> Vec<Clause> {
    let short = Clause::joined(&wall_clauses(record, totals, false));
    if short.width().saturating_add(LEAD.len()) <= width {
        vec![short]
    } else {
        wall_clauses(record, totals, true)
    }
}

fn wall_clauses(record: &Record, totals: Option<&Totals>, units: bool) -> Vec<Clause> {
    let mut parts = Vec::new();
    let scale = if let Some(known) = Wall::of(record) {
        let Split { scale, wall, off_cpu, .. } = &known.split;
        let wall = format!("wall {wall} {}", scale.name);
        match off_cpu {
            Ok(_) => parts.push(known.sum(&wall, false, "")),
            Err(cpus) => {
                let cpus = parallel(record).then(|| format!("= {cpus} CPUs"));
                parts.push(Clause::one(wall));
                parts.push(known.sum("", units, &cpus.unwrap_or_default()));
            }
        }
        *scale
    } else {
        let wall_ns = wall_ns(record);
        let scale = Scale::of(wall_ns);
        parts.push(Clause::one(format!("wall {} {}", scale.format(wall_ns), scale.name)));
        scale
    };
    let wall_ns = wall_ns(record);
    let unit = if units { format!(" {}", scale.name) } else { String::new() };
    let told = |ns: u64| format!("{}{unit}", scale.format(ns));
    if let Some(totals) = totals {
        let over = over_threads(totals.wall_ns, wall_ns);
        parts.push(Clause::one(format!("calls held {}{over}", told(totals.wall_ns))));
    }
    // Where tracing is a good part of the times, the times must not be taken
    // for the command's own.
    if let Some(added) = record.measurement.estimated_added_ns.filter(|&ns| ns > wall_ns / 10) {
        parts.push(Clause::one(format!("tracing added about {}", told(added))));
    }
    parts.extend(watched(record).map(Clause::one));
    parts
}

/// For how much of the time calls were watched, when not for all of it.
pub(super) fn watched(record: &Record) -> Option<String> {
    let watched = record.measurement.watched_ns?;
    let share = 100.0 * (watched as f64 / wall_ns(record).max(1) as f64);
    let digits = usize::from(share < 9.95);
    Some(format!("calls watched for {share:.digits$} % of the time"))
}

/// What was counted, where that was not everything: `trace=read`, `status=failed`.
pub(super) fn selection(record: &Record) -> [Option<String>; 2] {
    let word = |name: &str, value: &Option<String>| {
        let value = value.as_deref()?;
        Some(format!("{name}={}", shorten_middle(&escape(value), SELECTION)))
    };
    let measurement = &record.measurement;
    [word("trace", &measurement.trace), word("status", &measurement.status)]
}

/// Calls that tracing would have changed.
pub(super) fn repaired(record: &Record) -> Option<String> {
    let count = record.measurement.repaired;
    (count > 0).then(|| format!("{count} repaired (cut short only by tracing)"))
}

/// What was lost, in plain words; this must never go unseen.
pub(super) fn lost(record: &Record) -> Option<String> {
    let count = record.measurement.events_lost;
    (count > 0).then(|| format!("{} LOST: the counts are too low", counted(count, "event")))
}

/// What became of the filter, where it is not what was hoped for.
pub(super) fn filter(record: &Record) -> Option<String> {
    let measurement = &record.measurement;
    let reason = measurement.filter_reason.as_deref();
    match (measurement.filter.as_str(), reason) {
        ("refused", Some(reason)) => {
            Some(format!("filter refused, so every call stopped: {reason}"))
        }
        ("refused", None) => Some("filter refused, so every call stopped".to_owned()),
        ("installed", Some(reason)) => {
            Some(format!("in some processes all other calls stopped too: {reason}"))
        }
        _ => None,
    }
}

/// What was counted inside the processes, and why not more.
pub(super) fn counted_inside(record: &Record) -> Vec<Clause> {
    let Some(fast) = &record.measurement.fast else { return Vec::new() };
    if let Some(why) = &fast.refused {
        return vec![Clause::words(&format!("no calls were counted inside: {why}"))];
    }
    let mut parts = Vec::new();
    let calls = sum(record.syscalls.iter().flatten().map(|row| row.calls));
    if fast.address_spaces > 0 && calls > 0 {
        let share = 100.0 * (fast.calls_without_stop as f64 / calls as f64);
        // Never all of them, while some did.
        let share = if fast.calls_without_stop < calls { share.min(99.9) } else { share };
        parts.push(Clause::one(format!("{share:.1} % of calls did not stop")));
    }
    for (why, times) in &fast.reasons {
        let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
        parts.push(Clause::words(&format!("some stopped: {}{times}", escape(why))));
    }
    parts
}

/// The lines below the table, each led by `coldtrace: ` and none of them wider
/// than `width`: errors by kind and what else is out of the ordinary, where
/// the time went, what was lost, refused or noted.
pub fn footer(record: &Record, width: usize) -> String {
    let totals = record.syscalls.as_deref().map(Totals::of);
    let mut out = String::new();
    let mut line = |clauses: &[Clause]| out.push_str(&own_words(clauses, width));
    let selected: Vec<String> = selection(record).into_iter().flatten().collect();
    if !selected.is_empty() {
        line(&[Clause::one(format!("only {} was counted", selected.join(", ")))]);
    }
    let mut odd = Vec::new();
    if let Some(totals) = &totals {
        let mut kinds = totals.kinds.clone();
        if let Some(first) = kinds.first_mut() {
            first.insert_str(0, "errors ");
        }
        odd.push(Clause::list(kinds));
        odd.extend(totals.oddities.iter().cloned());
    }
    odd.extend(repaired(record).map(Clause::one));
    line(&odd);
    if let Some(last) = outlived(record) {
        line(&[Clause::list(vec![
            format!("the command ended after {}", time(record.outcome.wall_ns)),
            format!("its last descendant after {}", time(last)),
        ])]);
    }
    line(&wall_line(record, totals.as_ref(), width));
    line(&counted_inside(record));
    for sentence in lost(record).iter().chain(&filter(record)).chain(&record.measurement.notes) {
        line(&[Clause::words(sentence)]);
    }
    out
}
