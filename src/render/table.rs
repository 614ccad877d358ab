//! The `count` table.

use std::borrow::Cow;
use std::cmp::Reverse;

use crate::record::{Group, Record, SyscallRow};

use super::columns::{Column, SortKey};
use super::footer::footer;
use super::grid::{Grid, Head};
use super::text::{Clause, LEAD, display_width, escape, own_words, shorten_middle};
use super::units::{counted, micros, seconds, span};

/// How the table is to look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableOptions {
    /// Rows shown; the others are folded into one.
    pub top: Option<usize>,
    /// Order of the rows.
    pub sort: SortKey,
    /// Columns asked for. They are all shown, even if they do not fit.
    pub columns: Option<Vec<Column>>,
    /// Columns of the terminal.
    pub width: usize,
    /// Rows of other ABIs are shown under `abi:name`.
    pub native_abi: String,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            top: None,
            sort: SortKey::default(),
            columns: None,
            width: super::DEFAULT_WIDTH,
            native_abi: std::env::consts::ARCH.to_owned(),
        }
    }
}

/// The ABI of the machine that these rows come from, which need not be this
/// one: a record can be read anywhere.
pub fn native_abi(rows: &[SyscallRow]) -> &'static str {
    let arm = |row: &SyscallRow| matches!(row.abi.as_str(), "aarch64" | "arm");
    if rows.first().is_some_and(arm) { "aarch64" } else { "x86_64" }
}

/// A syscall's name, under its ABI where that is not the machine's own.
pub(super) fn shown_name<'a>(abi: &str, name: &'a str, native: &str) -> Cow<'a, str> {
    if abi == native {
        escape(name)
    } else {
        Cow::Owned(format!("{}:{}", escape(abi), escape(name)))
    }
}

/// Calls that returned an error. A record that was written by hand may hold
/// anything, so that nothing here may overflow.
pub(super) fn errors(row: &SyscallRow) -> u64 {
    row.errors.values().fold(0, |sum, count| sum.saturating_add(*count))
}

/// The numbers of a row, or of several folded into one.
#[derive(Clone, Default)]
struct Sums {
    name: String,
    /// ABI, the machine's own first, and number.
    place: (bool, String, i64),
    calls: u64,
    errors: u64,
    unfinished: u64,
    restarts: u64,
    timed: u64,
    total: u64,
    min: Option<u64>,
    max: Option<u64>,
    p50: Option<u64>,
    p90: Option<u64>,
    p99: Option<u64>,
}

impl Sums {
    fn of(row: &SyscallRow, native: &str) -> Self {
        let wall = row.wall_ns.filter(|wall| wall.count > 0);
        Self {
            name: shown_name(&row.abi, &row.name, native).into_owned(),
            place: (row.abi != native, row.abi.clone(), row.number),
            calls: row.calls,
            errors: errors(row),
            unfinished: row.unfinished,
            restarts: row.restarts,
            timed: wall.map_or(0, |wall| wall.count),
            total: wall.map_or(0, |wall| wall.total),
            min: wall.map(|wall| wall.min),
            max: wall.map(|wall| wall.max),
            p50: wall.map(|wall| wall.p50),
            p90: wall.map(|wall| wall.p90),
            p99: wall.map(|wall| wall.p99),
        }
    }

    /// Several rows as one. Percentiles do not add up and stay unknown.
    fn fold(name: String, rows: &[Self]) -> Self {
        let mut sums = Self { name, ..Self::default() };
        for row in rows {
            sums.calls = sums.calls.saturating_add(row.calls);
            sums.errors = sums.errors.saturating_add(row.errors);
            sums.unfinished = sums.unfinished.saturating_add(row.unfinished);
            sums.restarts = sums.restarts.saturating_add(row.restarts);
            sums.timed = sums.timed.saturating_add(row.timed);
            sums.total = sums.total.saturating_add(row.total);
            sums.min = sums.min.into_iter().chain(row.min).min();
            sums.max = sums.max.max(row.max);
        }
        sums
    }

    fn mean(&self) -> Option<u64> {
        self.total.checked_div(self.timed)
    }

    fn cell(&self, column: Column, all: u64) -> String {
        let unknown_or = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| micros(ns).to_string());
        match column {
            Column::Percent if all == 0 => "0.00".to_owned(),
            Column::Percent => format!("{:.2}", 100.0 * (self.total as f64 / all as f64)),
            // strace's columns stay numbers, for those who parse them; that a
            // call was never timed shows in ours.
            Column::Seconds => seconds(self.total),
            Column::Avg => micros(self.mean().unwrap_or(0)).to_string(),
            Column::Calls => self.calls.to_string(),
            Column::Errors => self.errors.to_string(),
            Column::Min => unknown_or(self.min),
            Column::P50 => unknown_or(self.p50),
            Column::P90 => unknown_or(self.p90),
            Column::P99 => unknown_or(self.p99),
            Column::Max => unknown_or(self.max),
            Column::Unfinished => self.unfinished.to_string(),
            Column::Restarts => self.restarts.to_string(),
            Column::Name => self.name.clone(),
        }
    }

    fn sort_value(&self, key: SortKey) -> Option<u64> {
        match key {
            SortKey::Time => Some(self.total),
            SortKey::Calls => Some(self.calls),
            SortKey::Errors => Some(self.errors),
            SortKey::Min => self.min,
            SortKey::Max => self.max,
            SortKey::Avg => self.mean(),
            SortKey::P50 => self.p50,
            SortKey::P90 => self.p90,
            SortKey::P99 => self.p99,
            SortKey::Unfinished => Some(self.unfinished),
            SortKey::Restarts => Some(self.restarts),
            SortKey::Name | SortKey::Nothing => None,
        }
    }
}

fn sort(rows: &mut [Sums], key: SortKey) {
    match key {
        SortKey::Nothing => rows.sort_by(|a, b| a.place.cmp(&b.place)),
        SortKey::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
        key => rows.sort_by(|a, b| {
            let order = |row: &Sums| Reverse((row.sort_value(key), row.total, row.calls));
            order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name))
        }),
    }
}

/// The table of these rows: head, rows, total.
pub fn table(rows: &[SyscallRow], options: &TableOptions) -> String {
    let mut rows: Vec<Sums> = rows.iter().map(|row| Sums::of(row, &options.native_abi)).collect();
    let total = Sums::fold("total".to_owned(), &rows);
    sort(&mut rows, options.sort);
    if let Some((shown, rest)) = options.top.and_then(|top| rows.split_at_checked(top))
        && !rest.is_empty()
    {
        let more = Sums::fold(format!("({} more)", rest.len()), rest);
        rows = shown.iter().cloned().chain([more]).collect();
    }
    fit(rows, &total, options).render()
}

/// A name that is shorter than this is not shortened.
const NAME: usize = 16;

/// Leaves out columns, then shortens names, until the lines fit.
fn fit(mut rows: Vec<Sums>, total: &Sums, options: &TableOptions) -> Grid {
    let asked = options.columns.as_deref();
    let mut columns = asked.unwrap_or(&Column::DEFAULT).to_vec();
    let mut grid = fill(&columns, &rows, total, options.width);
    let longest = rows.iter().map(|row| display_width(&row.name)).max().unwrap_or(0);
    if asked.is_none() {
        for (ours, column) in [
            (true, Column::Max),
            (true, Column::P99),
            (false, Column::Avg),
            (false, Column::Percent),
        ] {
            let room = grid.room(options.width);
            // strace's own columns go only where not even a short name fits.
            let enough = if ours { longest <= room } else { room >= NAME };
            if !enough {
                columns.retain(|kept| *kept != column);
                grid = fill(&columns, &rows, total, options.width);
            }
        }
    }
    let room = grid.room(options.width).max(NAME);
    if longest > room {
        for row in &mut rows {
            row.name = shorten_middle(&row.name, room).into_owned();
        }
        grid = fill(&columns, &rows, total, options.width);
    }
    grid
}

fn fill(columns: &[Column], rows: &[Sums], total: &Sums, width: usize) -> Grid {
    let head = |column: &Column| Head {
        title: column.title().to_owned(),
        min: column.usual_width(),
        right: *column != Column::Name,
    };
    let cells = |row: &Sums| columns.iter().map(|column| row.cell(*column, total.total)).collect();
    let mut grid = Grid::new(columns.iter().map(head).collect());
    grid.rule();
    for row in rows {
        grid.row(cells(row));
    }
    grid.rule();
    grid.row(cells(total));
    // The dashes under the head are not to be what makes it too wide.
    let room = grid.room(width);
    grid.names_at_least(Column::Name.usual_width().min(room));
    grid
}

/// A table for every group, most wall time first, each under a line that
/// names it.
pub fn groups(groups: &[Group], options: &TableOptions) -> String {
    let mut summed: Vec<(Sums, &Group)> = groups
        .iter()
        .map(|group| {
            let rows: Vec<Sums> =
                group.syscalls.iter().map(|row| Sums::of(row, &options.native_abi)).collect();
            (Sums::fold(String::new(), &rows), group)
        })
        .collect();
    summed.sort_by_key(|(sums, _)| Reverse((sums.total, sums.calls)));
    let mut out = String::new();
    for (sums, group) in summed {
        let ids = match (group.pid, group.tid) {
            (Some(pid), Some(tid)) => format!(" (pid {pid}, tid {tid})"),
            (Some(pid), None) => format!(" (pid {pid})"),
            (None, Some(tid)) => format!(" (tid {tid})"),
            (None, None) => String::new(),
        };
        let what = format!(
            "{ids}: {}, {}, {}",
            counted(sums.calls, "call"),
            counted(sums.errors, "error"),
            span(sums.total),
        );
        let room = options.width.saturating_sub(LEAD.len() + display_width(&what)).max(8);
        let name = escape(&group.name);
        let line = format!("{}{what}", shorten_middle(&name, room));
        out.push_str(&own_words(&[Clause::one(line)], options.width));
        out.push_str(&table(&group.syscalls, options));
    }
    out
}

/// What `count` prints: the table, or one for every group, and the lines below.
pub fn count(record: &Record, options: &TableOptions) -> String {
    let mut out = match (&record.groups, &record.syscalls) {
        (Some(parts), _) => groups(parts, options),
        (None, Some(rows)) => table(rows, options),
        (None, None) => own_words(&[Clause::one("no calls: nothing was traced")], options.width),
    };
    out.push_str(&footer(record, options.width));
    out
}
