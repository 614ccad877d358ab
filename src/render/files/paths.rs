//! A row a path: the view that `files` and `files --missing` show.

use std::io::{self, Write};

use crate::record::FileRow;

use super::super::text::{Clause, display_width, escape, own_words, shorten_middle, shorten_path};
use super::{FileSource, Selection, Sums, decimal, notes, size, uses};

/// A column of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Opens,
    Stats,
    Other,
    Misses,
    Errors,
    Read,
    Written,
    Ms,
}

/// In the order in which they stand.
const ALL: [Column; 8] = [
    Column::Opens,
    Column::Stats,
    Column::Other,
    Column::Misses,
    Column::Errors,
    Column::Read,
    Column::Written,
    Column::Ms,
];

/// In the order in which they go when the paths need the room.
const EXPENDABLE: [Column; 7] = [
    Column::Other,
    Column::Written,
    Column::Errors,
    Column::Read,
    Column::Stats,
    Column::Ms,
    Column::Opens,
];

impl Column {
    fn title(self) -> &'static str {
        match self {
            Self::Opens => "opens",
            Self::Stats => "stats",
            Self::Other => "other",
            Self::Misses => "misses",
            Self::Errors => "errors",
            Self::Read => "read B",
            Self::Written => "written B",
            Self::Ms => "ms",
        }
    }

    fn value(self, sums: &Sums) -> u128 {
        match self {
            Self::Opens => sums.opens,
            Self::Stats => sums.stats,
            Self::Other => sums.other,
            Self::Misses => sums.misses,
            Self::Errors => sums.errors,
            Self::Read => sums.read,
            Self::Written => sums.written,
            // In microseconds.
            Self::Ms => (sums.wall_ns + 500) / 1_000,
        }
    }

    fn cell(self, sums: &Sums) -> String {
        match self {
            Self::Ms => decimal(self.value(sums), 1_000),
            _ => self.value(sums).to_string(),
        }
    }
}

/// Which columns there are, and how wide.
struct Layout {
    columns: Vec<(Column, usize)>,
    /// What is left for the paths.
    room: usize,
}

impl Layout {
    /// For rows with numbers up to `max` and paths up to `longest` columns.
    fn new(selection: &Selection, max: &Sums, longest: usize, width: usize) -> Self {
        let found = [Column::Opens, Column::Read, Column::Written];
        let fits = |column: Column| match column {
            Column::Errors => max.errors > 0,
            // What was never found was never opened.
            column => !(selection.missing && found.contains(&column)),
        };
        let sized = |column: Column| (column, column.title().len().max(column.cell(max).len()));
        let columns = ALL.into_iter().filter(|column| fits(*column)).map(sized).collect();
        let mut layout = Self { columns, room: 0 };
        // That much of the line is for the paths, if they need it.
        let wanted = longest.max("path".len()).min(width / 8 * 3);
        let idle = EXPENDABLE.into_iter().filter(|column| column.value(max) == 0);
        for column in idle.map(Some).chain(EXPENDABLE.map(Some)).chain([None]) {
            let numbers: usize = layout.columns.iter().map(|(_, width)| width + 1).sum();
            layout.room = width.saturating_sub(numbers).max(1);
            if width.saturating_sub(numbers) >= wanted {
                break;
            }
            layout.columns.retain(|(kept, _)| Some(*kept) != column);
        }
        layout
    }

    fn write(
        &self,
        cell: impl Fn(Column) -> String,
        path: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let mut line = String::new();
        for (column, width) in &self.columns {
            let cell = cell(*column);
            line.extend([" ".repeat(width.saturating_sub(cell.len())), cell, " ".to_owned()]);
        }
        line.push_str(if path.trim().is_empty() { "-" } else { path });
        writeln!(out, "{}", line.trim_end())
    }
}

/// The rows as a table, a row a path, and totals of all that was selected.
pub fn files(
    source: &dyn FileSource,
    selection: &Selection,
    width: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    let chosen = selection.chosen(source);
    let (shown, rest) = selection.cut(&chosen);
    // What the rows need is known before the first is written, and no row is
    // kept: they are asked for twice.
    let (mut max, mut longest) = (Sums::default(), 0);
    let (mut all, mut kinds) = (Sums::default(), Sums::default());
    let mut count = |row: &FileRow| {
        let sums = Sums::of(row);
        all.add(&sums);
        if !row.is_path() {
            kinds.add(&sums);
        }
        sums
    };
    for index in shown {
        let row = source.row(*index);
        max.raise(&count(&row));
        longest = longest.max(display_width(&shown_path(&row, usize::MAX)));
    }
    let mut more = Sums::default();
    for index in rest {
        more.add(&count(&source.row(*index)));
    }
    max.raise(&more);
    let layout = Layout::new(selection, &max, longest, width);
    if !chosen.is_empty() {
        layout.write(|column| column.title().to_owned(), "path", &mut out)?;
    }
    for index in shown {
        let row = source.row(*index);
        let sums = Sums::of(&row);
        layout.write(|column| column.cell(&sums), &shown_path(&row, layout.room), &mut out)?;
    }
    if !rest.is_empty() {
        let label = format!("({} more)", rest.len());
        let label = shorten_middle(&label, layout.room);
        layout.write(|column| column.cell(&more), &label, &mut out)?;
    }
    let mut clauses = vec![found(source, selection, &all)];
    let moved = |sums: &Sums| sums.read > 0 || sums.written > 0;
    if moved(&kinds) {
        clauses.push(transfer("of it through pipes and the like: ", &kinds));
    }
    clauses.extend(notes(source, selection));
    out.write_all(own_words(&clauses, width).as_bytes())?;
    out.flush()
}

/// How many paths, what became of them, and the bytes.
fn found(source: &dyn FileSource, selection: &Selection, all: &Sums) -> Clause {
    let paths = if selection.narrows() {
        let of = (0..source.len()).filter(|index| source.row(*index).is_path()).count();
        format!("{} of {}", all.paths, super::counted(of as u64, "path"))
    } else {
        super::counted(u64::try_from(all.paths).unwrap_or(u64::MAX), "path")
    };
    let [opened, missed] = uses(all);
    Clause::list(vec![
        format!("{paths}: {opened}"),
        missed,
        format!("read {}", size(all.read)),
        format!("written {}", size(all.written)),
    ])
}

fn transfer(what: &str, sums: &Sums) -> Clause {
    Clause::list(vec![
        format!("{what}read {}", size(sums.read)),
        format!("written {}", size(sums.written)),
    ])
}

/// A path in at most `room` columns, with where it leads and its marks.
fn shown_path(row: &FileRow, room: usize) -> String {
    let path = escape(&row.path);
    let mut marks = String::new();
    if !row.marks.is_empty() {
        let joined = row.marks.join(", ");
        marks = format!(" ({})", escape(&joined));
    }
    let left = room.saturating_sub(display_width(&marks));
    let shown = match &row.target {
        None => shorten_path(&path, left).into_owned(),
        Some(target) => {
            const ARROW: &str = " -> ";
            let target = escape(target);
            let left = left.saturating_sub(ARROW.len());
            // What one of them does not need is the other's.
            let half = left.saturating_sub(display_width(&path)).max(left / 2);
            let target = shorten_path(&target, half);
            let path = shorten_path(&path, left - display_width(&target).min(left));
            format!("{path}{ARROW}{target}")
        }
    };
    shorten_middle(&format!("{shown}{marks}"), room).into_owned()
}
