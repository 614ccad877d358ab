//! The numbers of a bench for documents and programs: every metric of every kind.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::bench::{Bench, CommandBench, Count, RunKind, Summary};

use super::super::text::{command_line, escape};
use super::{Unit, times, words};

const COLUMNS: [&str; 12] = [
    "command", "argv", "kind", "metric", "n", "min", "median", "max", "mean", "stddev", "p90",
    "p99",
];

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
        for (kind, runs) in command.kinds() {
            for (metric, summary) in &runs.metrics {
                row(kind, &escape(metric), summary)?;
            }
        }
        for (what, name, summary) in counts(command) {
            row(RunKind::Traced, &format!("{what}:{name}"), &summary)?;
        }
    }
    let bytes = out.into_inner().map_err(csv::IntoInnerError::into_error)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Calls and errors of each syscall in the traced runs.
fn counts(of: &CommandBench) -> Vec<(&'static str, Cow<'_, str>, Summary)> {
    let n = of.traced.as_ref().map_or(0, |traced| traced.n);
    let rows = of.syscalls.iter().flat_map(|row| {
        [("calls", &row.calls), ("errors", &row.errors)].map(|(what, count)| (what, row, count))
    });
    rows.filter_map(|(what, row, count)| Some((what, escape(&row.name), spread(count, n)?)))
        .collect()
}

/// A count that is the same in all runs as one that might not be.
fn spread(count: &Count, n: usize) -> Option<Summary> {
    match count {
        Count::Same(count) => Summary::of(&vec![*count as f64; n]),
        Count::Varies(summary) => Some(summary.clone()),
    }
}

fn cells(of: &Summary) -> [String; 8] {
    let optional = |number: Option<f64>| number.map(|n| n.to_string()).unwrap_or_default();
    [
        of.n.to_string(),
        of.min.to_string(),
        of.median.to_string(),
        of.max.to_string(),
        of.mean.to_string(),
        optional(of.stddev),
        optional(of.p90),
        optional(of.p99),
    ]
}

/// As Markdown: a table a command, and below it the runs that are far from the others.
pub fn bench_markdown(of: &Bench) -> String {
    let mut out = String::new();
    for command in &of.commands {
        let argv = cell(&command_line(&command.argv));
        let _ = write!(
            out,
            "{}{}\n\n| | metric | n | min | median | max | mean | deviation | p90 | p99 |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
            if out.is_empty() { "" } else { "\n" },
            code(&argv)
        );
        for (kind, runs) in command.kinds() {
            for (metric, summary) in &runs.metrics {
                let (name, unit) = printed(metric, times(command));
                out.push_str(&row(kind, &cell(&name), unit, summary));
            }
        }
        for (what, name, summary) in counts(command) {
            let name = cell(&format!("{name} {what}"));
            out.push_str(&row(RunKind::Traced, &name, Unit::COUNT, &summary));
        }
        for (at, outlier) in words::outliers(command, of.is_joined()).iter().enumerate() {
            let apart = if at == 0 { "\n" } else { "" };
            let _ = writeln!(out, "{apart}- {}", plain(outlier));
        }
    }
    out
}

fn row(kind: RunKind, name: &str, unit: Unit, of: &Summary) -> String {
    let number = |value: f64| unit.format(value);
    let optional = |value: Option<f64>| value.map_or_else(|| "n too small".into(), number);
    format!(
        "| {kind} | {name} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        of.n,
        number(of.min),
        number(of.median),
        number(of.max),
        number(of.mean),
        optional(of.stddev),
        optional(of.p90),
        optional(of.p99)
    )
}

/// Text of which nothing is Markdown.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if "\\`*_[]<>&~".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// Text that ends no cell of a table.
fn cell(text: &str) -> String {
    escape(text).replace('|', "\\|")
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
