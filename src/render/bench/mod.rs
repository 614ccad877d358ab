//! A bench as text: a table of first, cold and warm runs, and what they say below it.

mod machine;
mod whole;
mod words;

use crate::bench::{Bench, CommandBench, KindBench, RunKind};

use super::text::{Clause, command_line, display_width, fold, shorten_middle};

pub use machine::{bench_csv, bench_markdown};

/// What a metric is counted in where it is printed.
#[derive(Debug, Clone, Copy)]
struct Unit {
    name: &'static str,
    /// Of what is measured, one of the last digit printed.
    step: f64,
    decimals: usize,
}

impl Unit {
    const COUNT: Self = Self { name: "", step: 1.0, decimals: 0 };
    const MIB: Self = Self { name: "MiB", step: 1_048_576.0 / 10.0, decimals: 1 };
    const PERCENT: Self = Self { name: "%", step: 0.001, decimals: 1 };

    /// For times beside one as long as this, ns.
    fn of_times(longest: f64) -> Self {
        match longest {
            t if t >= 1e11 => Self { name: "s", step: 1e8, decimals: 1 },
            t if t >= 1e8 => Self { name: "ms", step: 1e6, decimals: 0 },
            t if t >= 1e7 => Self { name: "ms", step: 1e5, decimals: 1 },
            _ => Self { name: "us", step: 1e3, decimals: 0 },
        }
    }

    /// Rounded to what is printed, in steps.
    fn steps(self, value: f64) -> i64 {
        (value / self.step).round() as i64
    }

    fn print(self, steps: i64) -> String {
        match self.decimals {
            0 => steps.to_string(),
            decimals => {
                let scale = 10i64.pow(decimals as u32);
                let sign = if steps < 0 { "-" } else { "" };
                let steps = steps.unsigned_abs();
                let (whole, rest) = (steps / scale as u64, steps % scale as u64);
                format!("{sign}{whole}.{rest:0decimals$}")
            }
        }
    }

    fn format(self, value: f64) -> String {
        let text = self.print(self.steps(value));
        if self.name == "%" {
            return format!("{} %", text.strip_suffix(".0").unwrap_or(&text));
        }
        text
    }
}

/// What is said in one line, if it is long enough.
type Line = Vec<Clause>;

/// A row of the table.
struct Row {
    name: &'static str,
    metric: &'static str,
    unit: Unit,
}

impl Row {
    /// Its name and unit, with a mark where not each number is of all runs.
    fn title(&self, of: &CommandBench) -> String {
        let mark = if self.is_partly_known(of) { "*" } else { "" };
        match self.unit.name {
            "" | "%" => format!("{}{mark}", self.name),
            unit => format!("{} {unit}{mark}", self.name),
        }
    }

    fn is_partly_known(&self, of: &CommandBench) -> bool {
        kinds(of).iter().any(|(_, runs)| {
            runs.metrics.get(self.metric).is_some_and(|summary| summary.n < runs.n)
        })
    }
}

/// The rows for this command's numbers.
fn rows(of: &CommandBench) -> Vec<Row> {
    let time = times(of);
    let row = |name, metric, unit| Row { name, metric, unit };
    vec![
        row("wall", "wall_ns", time),
        row("user", "user_ns", time),
        row("sys", "sys_ns", time),
        row("off CPU", "off_cpu_ns", time),
        row("maj faults", "major_faults", Unit::COUNT),
        row("read", "block_in_bytes", Unit::MIB),
        row("peak", "peak_rss_bytes", Unit::MIB),
        row("resident", "resident_ratio", Unit::PERCENT),
    ]
}

/// The unit that suits this command's times.
fn times(of: &CommandBench) -> Unit {
    let medians = kinds(of).into_iter().filter_map(|(_, runs)| runs.median("wall_ns"));
    Unit::of_times(medians.fold(0.0, f64::max))
}

/// The kinds of the table, those first that stand on the left.
fn kinds(of: &CommandBench) -> Vec<(RunKind, &KindBench)> {
    let mut kinds = of.kinds();
    kinds.retain(|(kind, _)| *kind != RunKind::Traced);
    kinds
}

/// A bench as text.
pub fn bench(of: &Bench, width: usize) -> String {
    let mut out = String::new();
    let several = of.commands.len() > 1;
    for (number, command) in (1..).zip(&of.commands) {
        if command.runs.is_empty() {
            continue; // The bench ended before its turn.
        }
        if several {
            let line = format!("{number}: {}", command_line(&command.argv));
            out.push_str(&shorten_middle(&line, width));
            out.push('\n');
        }
        out.push_str(&table(command));
        for line in words::command(of, command) {
            out.push_str(&fold("", "  ", &line, width));
        }
        if several {
            out.push('\n');
        }
    }
    for line in whole::whole(of) {
        out.push_str(&fold("", "  ", &line, width));
    }
    out
}

/// A column of the table: one number, or three.
struct Column {
    head: String,
    cells: Vec<Vec<String>>,
    /// Of one cell.
    width: usize,
}

impl Column {
    fn new(kind: RunKind, runs: &KindBench, rows: &[Row]) -> Self {
        let single = kind == RunKind::First && runs.n == 1;
        let cells = rows.iter().map(|row| {
            let Some(summary) = runs.metrics.get(row.metric) else {
                return vec!["-".to_owned(); if single { 1 } else { 3 }];
            };
            let all = [summary.min, summary.median, summary.max];
            let shown = if single { all.get(1..2) } else { Some(&all[..]) };
            shown.unwrap_or_default().iter().map(|value| row.unit.format(*value)).collect()
        });
        let cells: Vec<Vec<String>> = cells.collect();
        let widest = cells.iter().flatten().map(|cell| display_width(cell)).max().unwrap_or(0);
        let head = if single { kind.to_string() } else { format!("{kind}, n={}", runs.n) };
        Self { head, cells, width: widest.max(6) }
    }

    fn is_single(&self) -> bool {
        self.cells.first().is_none_or(|cells| cells.len() == 1)
    }

    fn total(&self) -> usize {
        if self.is_single() { self.width } else { self.width * 3 + 2 }
    }

    fn line(&self, cells: &[String]) -> String {
        let cells = cells.iter().map(|cell| format!("{cell:>width$}", width = self.width));
        cells.collect::<Vec<_>>().join(" ")
    }
}

/// The table; empty where every run failed.
fn table(of: &CommandBench) -> String {
    const LEGEND: &str = " (min med max)";
    let rows = rows(of);
    let mut columns: Vec<Column> =
        kinds(of).into_iter().map(|(kind, runs)| Column::new(kind, runs, &rows)).collect();
    if columns.is_empty() {
        return String::new();
    }
    // Three times three columns have no room for it in one line.
    let crowded = columns.iter().filter(|column| !column.is_single()).count() > 2;
    for column in columns.iter_mut().filter(|column| !column.is_single()) {
        if !crowded {
            column.head.push_str(LEGEND);
            column.width = column.width.max(8);
        }
    }
    let titles: Vec<String> = rows.iter().map(|row| row.title(of)).collect();
    let title = titles.iter().map(|title| display_width(title)).max().unwrap_or(0);
    let line = |first: &str, cells: Vec<String>| format!("{first:<title$} {}\n", cells.join(" | "));
    let head = |column: &Column, text: &str| format!("{text:>width$}", width = column.total());
    let mut out = line("", columns.iter().map(|column| head(column, &column.head)).collect());
    if crowded {
        let legend = ["min", "med", "max"].map(str::to_owned);
        let cells = columns.iter().map(|column| {
            if column.is_single() { head(column, "-") } else { column.line(&legend) }
        });
        out.push_str(&line("", cells.collect()));
    }
    for (at, title) in titles.iter().enumerate() {
        let cells = columns
            .iter()
            .map(|column| column.cells.get(at).map(|cells| column.line(cells)).unwrap_or_default());
        out.push_str(&line(title, cells.collect()));
    }
    out
}

/// A line of one clause.
fn one(text: impl Into<String>) -> Line {
    vec![Clause::one(text)]
}

/// Items behind what leads them: of many the first few, and how many more there are.
fn listed(lead: String, mut items: Vec<String>, most: usize, end: &str) -> Clause {
    let more = items.len().saturating_sub(most);
    items.truncate(most);
    let last = items.len().saturating_sub(1);
    for item in items.iter_mut().take(last) {
        item.push(',');
    }
    if more > 0 {
        items.push(format!("and {more} more"));
    }
    if let Some(last) = items.last_mut() {
        last.push_str(end);
    }
    items.insert(0, lead);
    Clause::parted(items.join(" "), items)
}
