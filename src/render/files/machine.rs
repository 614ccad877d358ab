//! The rows for programs: CSV, JSON, and paths for `xargs -0`.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use indexmap::IndexMap;
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use crate::record::{FileRow, Files, Record, Search};

use super::{FileSource, Selection, escape, exact, sum};

const COLUMNS: [&str; 19] = [
    "path",
    "path_bytes",
    "target",
    "marks",
    "opens_read",
    "opens_write",
    "stats",
    "other",
    "other_by_kind",
    "misses",
    "errors",
    "errors_by_name",
    "read_bytes",
    "written_bytes",
    "mapped_bytes",
    "wall_ns",
    "first_ns",
    "last_ns",
    "processes",
];

/// The rows as CSV (RFC 4180), with a head. Control characters are escaped as
/// in the tables; `path_bytes` has the exact bytes in base64 where `path` has
/// not. What there is several of stands in one cell: `read=3 close=1`.
pub fn files_csv(
    source: &dyn FileSource,
    selection: &Selection,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(COLUMNS)?;
    let chosen = selection.chosen(source);
    for index in selection.cut(&chosen).0 {
        csv.write_record(cells(&source.row(*index)))?;
    }
    csv.flush()
}

fn cells(row: &FileRow) -> [String; COLUMNS.len()] {
    let path = escape(&row.path);
    let bytes = match (&row.path_bytes, &path) {
        (None, Cow::Borrowed(_)) => String::new(),
        _ => STANDARD.encode(exact(row)),
    };
    let ids: Vec<String> = row.processes.iter().map(ToString::to_string).collect();
    [
        path.into_owned(),
        bytes,
        row.target.as_deref().map(escape).unwrap_or_default().into_owned(),
        escape(&row.marks.join(" ")).into_owned(),
        row.opens_read.to_string(),
        row.opens_write.to_string(),
        row.stats.to_string(),
        sum(row.other.values()).to_string(),
        by_name(&row.other),
        row.misses.to_string(),
        sum(row.errors.values()).to_string(),
        by_name(&row.errors),
        row.read_bytes.to_string(),
        row.written_bytes.to_string(),
        row.mapped_bytes.to_string(),
        row.wall_ns.to_string(),
        row.first_ns.to_string(),
        row.last_ns.to_string(),
        ids.join(" "),
    ]
}

fn by_name(counts: &IndexMap<String, u64>) -> String {
    let items: Vec<String> =
        counts.iter().map(|(name, count)| format!("{}={count}", escape(name))).collect();
    items.join(" ")
}

/// A record with `head`'s parts and the selected rows and searches as its
/// `files`, written row by row.
pub fn files_json(
    source: &dyn FileSource,
    selection: &Selection,
    head: &Record,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut head = Cow::Borrowed(head);
    if head.files.is_some() {
        // Or the part would stand there twice.
        head.to_mut().files = None;
    }
    let chosen = selection.chosen(source);
    let rows = Rows { source, chosen: selection.cut(&chosen).0 };
    let files = Selected { rows, selection };
    let mut out = BufWriter::new(out);
    serde_json::to_writer_pretty(&mut out, &Whole { head: &head, files })?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Serializes as a [`Record`].
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(flatten)]
    head: &'a Record,
    files: Selected<'a>,
}

/// Serializes as [`Files`].
struct Selected<'a> {
    rows: Rows<'a>,
    selection: &'a Selection,
}

impl Serialize for Selected<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let source = self.rows.source;
        // Named one by one, so that a new field is not forgotten here.
        let Files { paths: _, searches: _, stats_by_path, stats_by_descriptor, unreadable } =
            source.totals();
        let searches: Vec<&Search> = source
            .searches()
            .iter()
            .filter(|search| self.selection.matches_search(search))
            .collect();
        let mut files = serializer.serialize_struct("Files", 5)?;
        files.serialize_field("paths", &self.rows)?;
        files.serialize_field("searches", &searches)?;
        files.serialize_field("stats_by_path", stats_by_path)?;
        files.serialize_field("stats_by_descriptor", stats_by_descriptor)?;
        files.serialize_field("unreadable", unreadable)?;
        files.end()
    }
}

/// Serializes as the rows, one after the other.
struct Rows<'a> {
    source: &'a dyn FileSource,
    chosen: &'a [usize],
}

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some(self.chosen.len()))?;
        for index in self.chosen {
            rows.serialize_element(&*self.source.row(*index))?;
        }
        rows.end()
    }
}

/// The exact bytes of every path, each ended by a NUL. Descriptors that have
/// no path are left out.
pub fn files_null(
    source: &dyn FileSource,
    selection: &Selection,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut out = BufWriter::new(out);
    let chosen = selection.chosen(source);
    let mut left = selection.top.unwrap_or(usize::MAX);
    for index in chosen {
        let row = source.row(index);
        let path = exact(&row);
        // No path has a NUL in it; a record that was written by hand may.
        if left == 0 || !row.is_path() || path.contains(&0) {
            continue;
        }
        left -= 1;
        out.write_all(&path)?;
        out.write_all(b"\0")?;
    }
    out.flush()
}
