//! A record held against what a fixture promises, and against itself.

use std::collections::BTreeMap;
use std::fmt::Write;

use coldtrace::record::{Process, Record, SyscallRow};

use super::fixture::{Expected, ExpectedRow, Fixture};

/// The rows of the whole tree.
pub fn rows(record: &Record) -> &[SyscallRow] {
    record.syscalls.as_deref().unwrap_or_default()
}

/// Calls of one x86_64 syscall; 0 where there is no row.
pub fn calls(record: &Record, name: &str) -> u64 {
    row(record, name).map_or(0, |row| row.calls)
}

/// The row of one x86_64 syscall.
pub fn row<'a>(record: &'a Record, name: &str) -> Option<&'a SyscallRow> {
    rows(record).iter().find(|row| row.abi == "x86_64" && row.name == name)
}

/// All that differs from what `fixture` promises, one line each.
pub fn differences(fixture: &Fixture, record: &Record) -> Vec<String> {
    let rows = rows(record);
    let mut found = compare(&fixture.rows, rows);
    if fixture.only {
        found.extend(
            rows.iter()
                .filter(|row| !fixture.rows.iter().any(|expected| is(expected, row)))
                .map(|row| format!("{} {}: not expected at all", row.abi, row.name)),
        );
    }
    let tree = record.tree.clone().unwrap_or_default();
    for (what, expected, actual) in [
        ("processes", fixture.processes, tree.processes),
        ("threads", fixture.threads, tree.threads),
    ] {
        if expected.is_some_and(|expected| expected != actual) {
            found.push(format!("{what}: {actual}, expected {expected:?}"));
        }
    }
    let outcome = &record.outcome;
    if outcome.exit_code != fixture.exit || outcome.signal != fixture.signal {
        found.push(format!(
            "outcome: {:?} {:?}, expected {:?} {:?}",
            outcome.exit_code, outcome.signal, fixture.exit, fixture.signal
        ));
    }
    if record.measurement.repaired < fixture.repaired_min {
        found.push(format!(
            "repaired: {}, expected at least {}",
            record.measurement.repaired, fixture.repaired_min
        ));
    }
    found
}

/// All that differs between expected rows and those of a table or of a part of it.
pub fn compare(expected: &[ExpectedRow], rows: &[SyscallRow]) -> Vec<String> {
    expected
        .iter()
        .flat_map(|expected| {
            let found = rows.iter().find(|row| is(expected, row));
            compare_row(expected, found)
                .into_iter()
                .map(|what| format!("{} {}: {what}", expected.abi, expected.name))
        })
        .collect()
}

/// What differs between one expected row and the calls of one process.
pub fn compare_process(expected: &ExpectedRow, process: &Process) -> Vec<String> {
    let rows: Vec<SyscallRow> = process
        .syscalls
        .iter()
        .map(|call| SyscallRow {
            name: call.name.clone(),
            abi: call.abi.clone(),
            calls: call.calls,
            errors: call.errors.clone(),
            restarts: call.restarts,
            unfinished: call.unfinished,
            ..SyscallRow::default()
        })
        .collect();
    compare(std::slice::from_ref(expected), &rows)
}

fn is(expected: &ExpectedRow, row: &SyscallRow) -> bool {
    let named = match expected.name.strip_prefix('#') {
        Some(number) => number == row.number.to_string(),
        None => expected.name == row.name,
    };
    named && expected.abi == row.abi
}

fn compare_row(expected: &ExpectedRow, row: Option<&SyscallRow>) -> Vec<String> {
    let Some(row) = row else {
        let may_be_missing = expected.absent || expected.calls == Expected::Any;
        return if may_be_missing { Vec::new() } else { vec!["no row".to_owned()] };
    };
    if expected.absent {
        return vec![format!("{} calls, expected no row", row.calls)];
    }
    let mut found: Vec<String> = [
        ("calls", expected.calls, row.calls),
        ("errors", expected.error_sum, row.error_count()),
        ("restarts", expected.restarts, row.restarts),
        ("unfinished", expected.unfinished, row.unfinished),
        ("abandoned", expected.abandoned, row.abandoned),
    ]
    .into_iter()
    .filter(|(_, expected, actual)| !expected.allows(*actual))
    .map(|(what, expected, actual)| format!("{what} {actual}, expected {expected}"))
    .collect();
    if let Some(errors) = &expected.errors {
        let actual: BTreeMap<String, u64> =
            row.errors.iter().map(|(name, n)| (name.clone(), *n)).collect();
        if *errors != actual {
            found.push(format!("errors {actual:?}, expected {errors:?}"));
        }
    }
    found
}

/// What no record may say, whatever was run: sums that do not add up, times out of order.
pub fn contradictions(record: &Record) -> Vec<String> {
    let rows = rows(record);
    let tree = record.tree.clone().unwrap_or_default();
    let mut found = Vec::new();
    let mut sum = |what: &str, total: u64, of_row: &dyn Fn(&SyscallRow) -> u64| {
        let sum: u64 = rows.iter().map(of_row).sum();
        if sum != total {
            found.push(format!("tree.{what} is {total}, the rows' sum {sum}"));
        }
    };
    sum("calls", tree.calls, &|row| row.calls);
    sum("errors", tree.errors, &SyscallRow::error_count);
    sum("unfinished", tree.unfinished, &|row| row.unfinished);
    for row in rows {
        let mut says = |what: String| found.push(format!("{} {}: {what}", row.abi, row.name));
        let timed = row.wall_ns.map_or(0, |wall| wall.count);
        let returned = row.calls - (row.unfinished + row.abandoned).min(row.calls);
        if !matches!(row.name.as_str(), "exit" | "exit_group") && timed != returned {
            says(format!("{timed} calls timed, {returned} returned"));
        }
        let in_histogram: u64 = row.histogram.iter().map(|(_, calls)| calls).sum();
        if in_histogram != timed {
            says(format!("{in_histogram} calls in the histogram, {timed} timed"));
        }
        if !row.histogram.is_sorted_by(|a, b| a.0 < b.0) {
            says("histogram not ascending".to_owned());
        }
        if let Some(wall) = row.wall_ns {
            let ordered = wall.min <= wall.p50
                && wall.p50 <= wall.p90
                && wall.p90 <= wall.p99
                && wall.p99 <= wall.max
                && wall.max <= wall.total;
            if !ordered {
                says(format!("times out of order: {wall:?}"));
            }
        }
        if row.error_count() > row.calls {
            says("more errors than calls".to_owned());
        }
    }
    // Who was attached to may have been in a call before.
    let timed_all = record.run.attached.is_empty();
    for blocked in record.time.iter().filter(|_| timed_all).flat_map(|time| &time.blocked) {
        let same = rows.iter().filter(|row| row.name == blocked.name && row.abi == blocked.abi);
        let in_it = same.map(|row| row.unfinished_ns + row.wall_ns.map_or(0, |wall| wall.total));
        let in_it: u64 = in_it.sum();
        if blocked.blocked_ns > in_it {
            found.push(format!(
                "{}: blocked for {} ns of {in_it}",
                blocked.name, blocked.blocked_ns
            ));
        }
    }
    let wall = |row: &SyscallRow| row.wall_ns.map_or(0, |wall| wall.total);
    if !rows.is_sorted_by(|a, b| wall(a) >= wall(b)) {
        found.push("rows are not in the order of their wall time".to_owned());
    }
    for note in &record.measurement.notes {
        // A stop of a thread that is being killed is nothing unknown.
        if note.contains("unknown") {
            found.push(format!("note: {note}"));
        }
    }
    if record.measurement.events_lost != 0 {
        found.push(format!("{} events lost", record.measurement.events_lost));
    }
    found
}

/// The table as text, for messages of failed tests.
pub fn render(record: &Record) -> String {
    let mut text = format!("{:?}\n{:?}\n", record.outcome, record.measurement);
    if let Some(tree) = &record.tree {
        let _ = writeln!(
            text,
            "{} processes, {} threads, {} calls, {} errors, {} unfinished",
            tree.processes, tree.threads, tree.calls, tree.errors, tree.unfinished
        );
    }
    let _ = writeln!(
        text,
        "{:<8}{:<24}{:>8} {:>8} {:>8} {:>8}  errors",
        "abi", "name", "calls", "restarts", "unfin.", "abandon."
    );
    for row in rows(record) {
        let errors: Vec<String> =
            row.errors.iter().map(|(name, n)| format!("{name}={n}")).collect();
        let _ = writeln!(
            text,
            "{:<8}{:<24}{:>8} {:>8} {:>8} {:>8}  {}",
            row.abi,
            row.name,
            row.calls,
            row.restarts,
            row.unfinished,
            row.abandoned,
            errors.join(" ")
        );
    }
    text
}
