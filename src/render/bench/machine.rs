//! The numbers of a bench for documents and programs: every metric of every kind.

use std::fmt::Write as _;

use crate::bench::{Bench, CommandBench, Count, KindBench, RunKind, Summary};

use super::super::text::{command_line, escape};
use super::{Unit, times};

const COLUMNS: [&str; 13] = [
    "command", "argv", "kind", "metric", "n", "min", "median", "max", "mean", "stddev", "p90",
    "p99", "outliers",
];

fn all_kinds(of: &CommandBench) -> Vec<(RunKind, &KindBench)> {
    let kinds = [
        (RunKind::First, &of.first),
        (RunKind::Cold, &of.cold),
        (RunKind::Warm, &of.warm),
        (RunKind::Traced, &of.traced),
    ];
    kinds.into_iter().filter_map(|(kind, runs)| Some((kind, runs.as_ref()?))).collect()
}

/// As CSV (RFC 4180) with a head: one row a metric, in the units that its name says;
/// calls and errors of each syscall as `calls:NAME` and `errors:NAME`. Where there are
/// too few runs for a number its cell is empty.
///
/// # Errors
/// None but for memory: it is written to a string.
pub fn bench_csv(of: &Bench) -> Result<String, csv::Error> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record(COLUMNS)?;
    for (number, command) in (1..).zip(&of.commands) {
        let argv = escape(&command_line(&command.argv)).into_owned();
        let mut row = |kind: RunKind, metric: &str, summary: &Summary| {
            let lead = [number.to_string(), argv.clone(), kind.to_string(), metric.to_owned()];
            out.write_record(lead.into_iter().chain(cells(summary)))
        };
        for (kind, runs) in all_kinds(command) {
            for (metric, summary) in &runs.metrics {
                row(kind, metric, summary)?;
            }
        }
        let n = command.traced.as_ref().map_or(0, |traced| traced.n);
        for syscall in &command.syscalls {
            let name = escape(&syscall.name);
            for (what, count) in [("calls", &syscall.calls), ("errors", &syscall.errors)] {
                if let Some(summary) = spread(count, n) {
                    row(RunKind::Traced, &format!("{what}:{name}"), &summary)?;
                }
            }
        }
    }
    let bytes = out.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A count that is the same in all runs as one that might not be.
fn spread(count: &Count, n: usize) -> Option<Summary> {
    match count {
        Count::Same(count) => Summary::of(&vec![*count as f64; n]),
        Count::Varies(summary) => Some(summary.clone()),
    }
}

fn cells(of: &Summary) -> [String; 9] {
    let optional = |number: Option<f64>| number.map(|n| n.to_string()).unwrap_or_default();
    let outliers: Vec<String> = of.outliers.iter().map(ToString::to_string).collect();
    [
        of.n.to_string(),
        of.min.to_string(),
        of.median.to_string(),
        of.max.to_string(),
        of.mean.to_string(),
        optional(of.stddev),
        optional(of.p90),
        optional(of.p99),
        outliers.join(" "),
    ]
}

/// As Markdown: a table a command.
pub fn bench_markdown(of: &Bench) -> String {
    let mut out = String::new();
    for command in &of.commands {
        let argv = escape(&command_line(&command.argv)).replace('|', "\\|");
        let _ = write!(
            out,
            "{}{}\n\n| | metric | n | min | median | max | mean | deviation | p90 | p99 |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
            if out.is_empty() { "" } else { "\n" },
            code(&argv)
        );
        for (kind, runs) in all_kinds(command) {
            for (metric, summary) in &runs.metrics {
                let (name, unit) = printed(metric, times(command));
                let number = |value: f64| unit.format(value);
                let optional =
                    |value: Option<f64>| value.map_or_else(|| "n too small".into(), number);
                let _ = writeln!(
                    out,
                    "| {kind} | {name} | {} | {} | {} | {} | {} | {} | {} | {} |",
                    summary.n,
                    number(summary.min),
                    number(summary.median),
                    number(summary.max),
                    number(summary.mean),
                    optional(summary.stddev),
                    optional(summary.p90),
                    optional(summary.p99)
                );
            }
        }
    }
    out
}

/// Text as code, whatever backticks it has.
fn code(text: &str) -> String {
    let mut longest = 0;
    let mut run = 0;
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    let fence = "`".repeat(longest + 1);
    if longest > 0 { format!("{fence} {text} {fence}") } else { format!("{fence}{text}{fence}") }
}

/// What a metric is called, with its unit.
fn printed(metric: &str, time: Unit) -> (String, Unit) {
    let (name, unit) = if let Some(name) = metric.strip_suffix("_ns") {
        (name, time)
    } else if let Some(name) = metric.strip_suffix("_bytes") {
        (name, Unit::MIB)
    } else if let Some(name) = metric.strip_suffix("_ratio") {
        (name, Unit::PERCENT)
    } else {
        (metric, Unit::COUNT)
    };
    let name = name.replace('_', " ");
    match unit.name {
        "" | "%" => (name, unit),
        of => (format!("{name} {of}"), unit),
    }
}
