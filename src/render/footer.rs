//! The lines below the table, and the counts that they share with `show`.

use std::cmp::Reverse;

use indexmap::IndexMap;

use crate::record::{Record, SyscallRow};

use super::table::{errors, native_abi, shown_name};
use super::text::{clauses, escape, own_words, words};
use super::units::{Split, counted};

/// Kinds of errors that are named.
const KINDS: usize = 5;
/// Syscalls that are named behind a count.
const NAMES: usize = 3;

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
    pub oddities: Vec<String>,
}

impl Totals {
    /// Sums up the rows.
    pub fn of(rows: &[SyscallRow]) -> Self {
        let native = native_abi(rows);
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
        let odd =
            |say: fn(u64) -> String, of: fn(&SyscallRow) -> u64| oddity(rows, native, say, of);
        Self {
            calls: sum(rows.iter().map(|row| row.calls)),
            errors: sum(rows.iter().map(errors)),
            wall_ns: sum(rows.iter().filter_map(|row| row.wall_ns).map(|wall| wall.total)),
            kinds: named.chain(more).collect(),
            oddities: [
                odd(|count| format!("{count} unfinished"), |row| row.unfinished),
                odd(|count| counted(count, "restart"), |row| row.restarts),
                odd(|count| format!("{count} abandoned"), |row| row.abandoned),
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

/// A count over all rows, and the syscalls that it comes from.
fn oddity(
    rows: &[SyscallRow],
    native: &str,
    say: fn(u64) -> String,
    of: fn(&SyscallRow) -> u64,
) -> Option<String> {
    let mut hit: Vec<&SyscallRow> = rows.iter().filter(|row| of(row) > 0).collect();
    hit.sort_by_key(|row| Reverse(of(row)));
    let total = sum(hit.iter().map(|row| of(row)));
    let mut names: Vec<String> =
        hit.iter().take(NAMES).map(|row| shown_name(row, native).into_owned()).collect();
    if hit.len() > NAMES {
        names.push(format!("{} more", hit.len() - NAMES));
    }
    (total > 0).then(|| format!("{} ({})", say(total), names.join(", ")))
}

/// CPU time in user mode and in the kernel: of the whole tree where it is
/// known, else of what was waited for.
pub(super) fn cpu(record: &Record) -> Option<(u64, u64)> {
    let tree = record.tree.as_ref().and_then(|tree| tree.user_ns.zip(tree.sys_ns));
    tree.or_else(|| record.rusage.as_ref().map(|usage| (usage.user_ns, usage.sys_ns)))
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

/// Where the wall time went.
fn wall_line(record: &Record, totals: Option<&Totals>) -> Vec<String> {
    let wall_ns = record.outcome.wall_ns;
    let cpu = cpu(record);
    let (user_ns, sys_ns) = cpu.unwrap_or_default();
    let split = Split::new(wall_ns, user_ns, sys_ns);
    let Split { scale, wall, user, sys, .. } = &split;
    let unit = scale.name;
    let mut parts = vec![match (cpu, &split.off_cpu) {
        (None, _) => vec![format!("wall {wall} {unit}")],
        (_, Ok(off)) => {
            vec![format!("wall {wall} {unit} = user {user} + sys {sys} + off CPU {off}")]
        }
        (_, Err(cpus)) if parallel(record) => {
            vec![format!("wall {wall} {unit}; user {user} + sys {sys} = {cpus} CPUs")]
        }
        (_, Err(_)) => vec![format!("wall {wall} {unit}; user {user} + sys {sys}")],
    }];
    if let Some(totals) = totals {
        let over = over_threads(totals.wall_ns, wall_ns);
        parts.push(vec![format!("calls held {}{over}", scale.format(totals.wall_ns))]);
    }
    // Where tracing is a good part of the times, the times must not be taken
    // for the command's own.
    if let Some(added) = record.measurement.estimated_added_ns.filter(|&ns| ns > wall_ns / 10) {
        parts.push(vec![format!("tracing added about {}", scale.format(added))]);
    }
    if let Some(watched) = record.measurement.watched_ns {
        let share = 100.0 * (watched as f64 / wall_ns.max(1) as f64);
        parts.push(vec![format!("calls watched for {share:.0} % of it")]);
    }
    clauses(parts)
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
        ("installed", Some(reason)) => Some(format!("filter not in force everywhere: {reason}")),
        _ => None,
    }
}

/// The lines below the table, each led by `coldtrace: ` and none of them wider
/// than `width`: errors by kind and what else is out of the ordinary, where
/// the time went, what was lost, refused or noted.
pub fn footer(record: &Record, width: usize) -> String {
    let totals = record.syscalls.as_deref().map(Totals::of);
    let mut odd: Vec<Vec<String>> = Vec::new();
    if let Some(totals) = &totals {
        let mut kinds = totals.kinds.clone();
        if let Some(first) = kinds.first_mut() {
            first.insert_str(0, "errors ");
            odd.push(kinds);
        }
        odd.extend(totals.oddities.iter().map(|odd| vec![odd.clone()]));
    }
    odd.extend(repaired(record).map(|text| vec![text]));
    let mut out = own_words(&clauses(odd), width);
    out.push_str(&own_words(&wall_line(record, totals.as_ref()), width));
    for sentence in lost(record).iter().chain(&filter(record)).chain(&record.measurement.notes) {
        out.push_str(&own_words(&words(sentence), width));
    }
    out
}
