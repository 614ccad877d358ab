//! The views of `coldtrace files`: which rows, in which order, and the sums
//! that all views share. Each view has a file of its own.
//!
//! Rows are asked for one at a time, since there may be a million of them;
//! what is held of all of them is a key and an index.

mod machine;
mod mapped;
mod paths;
mod search;
mod tree;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use globset::GlobMatcher;

use crate::record::{FileRow, Files, Search};

use super::text::{Clause, escape};
use super::units::{bytes, counted};

pub use machine::{files_csv, files_json, files_null};
pub use mapped::mapped;
pub(super) use mapped::mapped_line;
pub use paths::files;
pub use search::files_search;
pub use tree::files_tree;

/// Where rows come from: a saved record, or the collector of a run that has
/// just ended.
pub trait FileSource {
    /// Rows.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Row `index` in order of first use.
    fn row(&self, index: usize) -> Cow<'_, FileRow>;
    /// All searches, in order.
    fn searches(&self) -> &[Search];
    /// The counts beside the rows; its `paths` and `searches` are not looked at.
    fn totals(&self) -> &Files;
}

impl FileSource for Files {
    fn len(&self) -> usize {
        self.paths.len()
    }

    fn row(&self, index: usize) -> Cow<'_, FileRow> {
        self.paths.get(index).map_or_else(|| Cow::Owned(FileRow::default()), Cow::Borrowed)
    }

    fn searches(&self) -> &[Search] {
        &self.searches
    }

    fn totals(&self) -> &Files {
        self
    }
}

/// Which rows, in which order. A row must meet all that is asked for; of
/// classes, globs and processes it must meet one.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Looked for in vain, and never found.
    pub missing: bool,
    /// Opened at least once.
    pub opened: bool,
    /// Opened for writing, or written to.
    pub written: bool,
    /// `stat`, `open` or a kind of [`FileRow::other`].
    pub classes: Vec<String>,
    /// Matched against the exact bytes of the path.
    pub globs: Vec<GlobMatcher>,
    /// This directory, or below it.
    pub under: Option<PathBuf>,
    /// Used by one of these, by [id](crate::record::Process::id).
    pub processes: Option<Vec<u64>>,
    /// Order of the rows.
    pub sort: FileSort,
    /// Rows shown; tables fold the others into one, trees show all.
    pub top: Option<usize>,
}

impl Selection {
    /// Whether the row is to be shown.
    pub fn matches(&self, row: &FileRow) -> bool {
        let class = |class: &String| match class.as_str() {
            "stat" => row.stats > 0 || row.other.contains_key("stat"),
            // Opens that failed stand among the other calls.
            "open" => row.opens() > 0 || row.other.contains_key("open"),
            kind => row.other.contains_key(kind),
        };
        let by = |ids: &Vec<u64>| ids.iter().any(|id| row.processes.contains(id));
        (!self.missing || never_found(row))
            && (!self.opened || row.opens() > 0)
            && (!self.written || row.opens_write > 0 || row.written_bytes > 0)
            && (self.classes.is_empty() || self.classes.iter().any(class))
            && self.processes.as_ref().is_none_or(by)
            && (!self.by_place() || self.at(Path::new(OsStr::from_bytes(&exact(row)))))
    }

    /// Whether the search is: where it looked, and who.
    fn matches_search(&self, search: &Search) -> bool {
        let at = |path: &String| self.at(Path::new(path));
        self.processes.as_ref().is_none_or(|ids| ids.contains(&search.process))
            && (!self.by_place()
                || search.found.iter().any(at)
                || candidates(search).any(|path| self.at(Path::new(&path))))
    }

    fn at(&self, path: &Path) -> bool {
        (self.globs.is_empty() || self.globs.iter().any(|glob| glob.is_match(path)))
            && self.under.as_ref().is_none_or(|under| path.starts_with(under))
    }

    fn by_place(&self) -> bool {
        !self.globs.is_empty() || self.under.is_some()
    }

    /// Whether anything at all was asked for.
    fn narrows(&self) -> bool {
        self.missing
            || self.opened
            || self.written
            || !self.classes.is_empty()
            || self.processes.is_some()
            || self.by_place()
    }

    /// The rows to be shown, in order, by index; `top` has not cut them yet.
    fn chosen(&self, source: &dyn FileSource) -> Vec<usize> {
        match self.sort {
            FileSort::First => {
                (0..source.len()).filter(|i| self.matches(&source.row(*i))).collect()
            }
            FileSort::Path => self.sorted(source, path_key),
            sort => self.sorted(source, |row| Reverse(sort.of_row(row))),
        }
    }

    fn sorted<K: Ord>(&self, source: &dyn FileSource, key: impl Fn(&FileRow) -> K) -> Vec<usize> {
        let mut keyed: Vec<(K, usize)> = (0..source.len())
            .filter_map(|index| {
                let row = source.row(index);
                self.matches(&row).then(|| (key(&row), index))
            })
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, index)| index).collect()
    }

    /// [`Self::chosen`], as those that are shown and the rest.
    fn cut<'a>(&self, chosen: &'a [usize]) -> (&'a [usize], &'a [usize]) {
        chosen.split_at(self.top.unwrap_or(usize::MAX).min(chosen.len()))
    }
}

/// What the rows are sorted by: times of use and paths ascending but for the
/// last use, numbers with the largest first; rows that are the same in that,
/// by first use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FileSort {
    /// First use. In trees: most paths first.
    #[default]
    First,
    /// Path, a directory before what is in it.
    Path,
    /// Successful opens.
    Opens,
    /// Calls of `stat` and its kin.
    Stats,
    /// Calls of all kinds.
    Calls,
    /// Calls that found nothing.
    Misses,
    /// Calls that failed otherwise.
    Errors,
    /// Bytes read.
    Read,
    /// Bytes written.
    Written,
    /// Size, where it was mapped executable.
    Mapped,
    /// Wall time.
    Time,
    /// Last use, the latest first. In trees as `First`.
    Last,
}

/// A word that is no order of `files`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot sort by '{}': expected first, path, opens, stats, calls, misses, errors, read, \
     written, mapped, time or last", escape(.0)
)]
pub struct UnknownFileSort(pub String);

impl FileSort {
    /// The order of that name.
    pub fn parse(word: &str) -> Result<Self, UnknownFileSort> {
        Ok(match word {
            "first" | "none" | "nothing" => Self::First,
            "path" | "name" => Self::Path,
            "opens" | "open" => Self::Opens,
            "stats" | "stat" => Self::Stats,
            "calls" | "count" => Self::Calls,
            "misses" | "missing" => Self::Misses,
            "errors" | "error" => Self::Errors,
            "read" => Self::Read,
            "written" => Self::Written,
            "mapped" => Self::Mapped,
            "time" | "ms" => Self::Time,
            "last" => Self::Last,
            _ => return Err(UnknownFileSort(word.to_owned())),
        })
    }

    fn of_row(self, row: &FileRow) -> u128 {
        match self {
            Self::Last => row.last_ns.into(),
            sort => sort.of_sums(&Sums::of(row)),
        }
    }

    /// The number that decides, where it is a sum.
    fn of_sums(self, sums: &Sums) -> u128 {
        match self {
            Self::First | Self::Path | Self::Last => sums.paths,
            Self::Opens => sums.opens,
            Self::Stats => sums.stats,
            Self::Calls => sums.opens.saturating_add(sums.stats).saturating_add(sums.other),
            Self::Misses => sums.misses,
            Self::Errors => sums.errors,
            Self::Read => sums.read,
            Self::Written => sums.written,
            Self::Mapped => sums.mapped,
            Self::Time => sums.wall_ns,
        }
    }
}

/// So that a directory comes before what is in it, and that before its
/// neighbours, `/` is the least of all bytes.
fn path_key(row: &FileRow) -> Vec<u8> {
    let mut key = exact(row).into_owned();
    for byte in &mut key {
        if *byte == b'/' {
            *byte = 0;
        }
    }
    key
}

/// The exact bytes of the path.
fn exact(row: &FileRow) -> Cow<'_, [u8]> {
    match row.path_bytes {
        Some(_) => Cow::Owned(row.bytes()),
        None => Cow::Borrowed(row.path.as_bytes()),
    }
}

/// Whether every call that named the path failed, and one because there is no
/// such path. Opens that failed must stand among the other calls, as `open`.
fn never_found(row: &FileRow) -> bool {
    let made = sum(row.other.values()) + u128::from(row.stats);
    let failed = sum(row.errors.values()) + u128::from(row.misses);
    row.misses > 0 && row.opens() == 0 && row.mapped_bytes == 0 && made <= failed
}

fn sum<'a>(numbers: impl Iterator<Item = &'a u64>) -> u128 {
    numbers.map(|n| u128::from(*n)).sum()
}

/// The paths that a search tried.
fn candidates(search: &Search) -> impl Iterator<Item = String> {
    search.directories.iter().flat_map(move |directory| {
        let directory = directory.trim_end_matches('/');
        search.suffixes.iter().map(move |suffix| format!("{directory}/{}{suffix}", search.stem))
    })
}

/// The numbers of a row, or of several. In 128 bits, so that sums are exact
/// whatever a record that was written by hand holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    /// Rows that are paths.
    paths: u128,
    /// Of these, opened.
    opened: u128,
    /// Of these, looked for and never found.
    only_missed: u128,
    opens: u128,
    stats: u128,
    other: u128,
    misses: u128,
    errors: u128,
    read: u128,
    written: u128,
    mapped: u128,
    wall_ns: u128,
}

impl Sums {
    fn of(row: &FileRow) -> Self {
        let path = row.is_path();
        Self {
            paths: path.into(),
            opened: (path && row.opens() > 0).into(),
            only_missed: (path && never_found(row)).into(),
            opens: row.opens().into(),
            stats: row.stats.into(),
            other: sum(row.other.values()),
            misses: row.misses.into(),
            errors: sum(row.errors.values()),
            read: row.read_bytes.into(),
            written: row.written_bytes.into(),
            mapped: row.mapped_bytes.into(),
            wall_ns: row.wall_ns.into(),
        }
    }

    fn each(&mut self, with: &Self, change: impl Fn(&mut u128, u128)) {
        change(&mut self.paths, with.paths);
        change(&mut self.opened, with.opened);
        change(&mut self.only_missed, with.only_missed);
        change(&mut self.opens, with.opens);
        change(&mut self.stats, with.stats);
        change(&mut self.other, with.other);
        change(&mut self.misses, with.misses);
        change(&mut self.errors, with.errors);
        change(&mut self.read, with.read);
        change(&mut self.written, with.written);
        change(&mut self.mapped, with.mapped);
        change(&mut self.wall_ns, with.wall_ns);
    }

    fn add(&mut self, other: &Self) {
        self.each(other, |sum, n| *sum += n);
    }

    /// Makes each number the larger of the two.
    fn raise(&mut self, other: &Self) {
        self.each(other, |max, n| *max = n.max(*max));
    }
}

/// A size for people.
fn size(n: u128) -> String {
    bytes(u64::try_from(n).unwrap_or(u64::MAX))
}

/// `1198 opened, 426 only missed`.
fn uses(sums: &Sums) -> [String; 2] {
    [format!("{} opened", sums.opened), format!("{} only missed", sums.only_missed)]
}

/// How the calls of `stat` divide, what could not be read, what the times are.
/// The counts are of the whole run, so they are not said of a part of it.
fn notes(source: &dyn FileSource, selection: &Selection) -> Vec<Clause> {
    let totals = source.totals();
    let mut notes = Vec::new();
    let (path, descriptor) = (totals.stats_by_path, totals.stats_by_descriptor);
    if !selection.narrows() && (path > 0 || descriptor > 0) {
        notes.push(Clause::one(format!("stats {path} by path + {descriptor} by descriptor")));
    }
    notes.push(Clause::one("times include tracing"));
    if totals.unreadable > 0 {
        let paths = counted(totals.unreadable, "path");
        notes.push(Clause::one(format!("{paths} could not be read")));
    }
    notes
}

/// The line of `show`: how many paths, and what became of them.
pub(super) fn files_line(files: &Files) -> Vec<Clause> {
    let mut all = Sums::default();
    for row in &files.paths {
        all.add(&Sums::of(row));
    }
    let [opened, missed] = uses(&all);
    vec![Clause::list(vec![opened, missed, format!("{} read", size(all.read))])]
}

/// A number of tenths, hundredths or thousandths (`steps` to one).
fn decimal(n: u128, steps: u128) -> String {
    let digits = steps.checked_ilog10().unwrap_or(0) as usize;
    format!("{}.{:0digits$}", n / steps.max(1), n % steps.max(1))
}
