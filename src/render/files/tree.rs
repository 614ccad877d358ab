//! The rows by directory. Every line is the sum of the lines below it, as
//! printed too.

use std::cmp::Reverse;
use std::io::{self, Write};

use indexmap::IndexMap;

use crate::record::FileRow;

use super::super::grid::{Grid, Head};
use super::super::text::{Clause, display_width, escape, own_words, shorten_path};
use super::{FileSort, FileSource, Selection, Sums, decimal, exact, notes};

/// Directories with less than this share of the paths, in percent, are folded,
const PATHS: u128 = 5;
/// unless they have so much of the bytes or the time.
const SHARE: u128 = 25;
/// Deeper directories are not told apart.
const DEPTH: usize = 64;
/// Levels that are indented; deeper ones would leave no room for names.
const INDENTED: usize = 12;
/// Names are left at least this, or columns give way.
const NAMES: usize = 24;
/// Even in a very narrow terminal.
const NAME: usize = 8;

/// A directory that something is in.
struct Node {
    name: Box<[u8]>,
    parent: usize,
    below: IndexMap<Box<[u8]>, usize>,
    /// Of the directory itself and the files in it.
    own: Sums,
    /// With all that is below.
    total: Sums,
}

impl Node {
    fn new(name: &[u8], parent: usize) -> Self {
        let (own, total) = (Sums::default(), Sums::default());
        Self { name: name.into(), parent, below: IndexMap::new(), own, total }
    }
}

/// All directories; the first is the root.
struct Directories(Vec<Node>);

impl Directories {
    /// The directory below `parent`, if there is one.
    fn below(&self, parent: usize, name: &[u8]) -> Option<usize> {
        self.0.get(parent)?.below.get(name).copied()
    }

    /// Makes sure that there is one for the file.
    fn make(&mut self, file: &[u8], depth: usize) {
        let Some(end) = file.iter().rposition(|byte| *byte == b'/') else { return };
        let mut at = 0;
        for name in components(file.get(..end).unwrap_or_default(), depth) {
            at = self.below(at, name).unwrap_or_else(|| {
                let new = self.0.len();
                if let Some(parent) = self.0.get_mut(at) {
                    parent.below.insert(name.into(), new);
                }
                self.0.push(Node::new(name, at));
                new
            });
        }
    }

    /// Counts the row where it belongs: for the directory that it is, or the
    /// one that it is in.
    fn count(&mut self, path: &[u8], depth: usize, sums: &Sums) {
        let mut at = 0;
        for name in components(path, depth) {
            let Some(next) = self.below(at, name) else { break };
            at = next;
        }
        if let Some(node) = self.0.get_mut(at) {
            node.own.add(sums);
        }
    }

    /// Adds every directory to the one that it is in; these were made first.
    fn total(&mut self) {
        for index in (0..self.0.len()).rev() {
            let Some(node) = self.0.get_mut(index) else { continue };
            let own = node.own;
            node.total.add(&own);
            let (parent, total) = (node.parent, node.total);
            if index > 0
                && let Some(parent) = self.0.get_mut(parent)
            {
                parent.total.add(&total);
            }
        }
    }

    /// What is shown of a directory beside all that there is.
    fn show(&self, index: usize, all: &Sums, sort: FileSort) -> Option<Shown> {
        let node = self.0.get(index)?;
        let few = |sums: &Sums| {
            let less = |part: u128, whole: u128, share| part == 0 || part * 100 < whole * share;
            less(sums.paths, all.paths, PATHS)
                && less(sums.read, all.read, SHARE)
                && less(sums.mapped, all.mapped, SHARE)
                && less(sums.wall_ns, all.wall_ns, SHARE)
        };
        let mut shown = Shown {
            name: String::from_utf8_lossy(&node.name).into_owned(),
            sums: node.total,
            below: Vec::new(),
            rest: Rest { sums: node.own, own: node.own != Sums::default(), more: 0 },
        };
        for child in node.below.values().filter_map(|child| Some((*child, self.0.get(*child)?))) {
            let (index, child) = child;
            if few(&child.total) {
                shown.rest.sums.add(&child.total);
                shown.rest.more += 1;
                continue;
            }
            let Some(mut child) = self.show(index, all, sort) else { continue };
            match child.below.pop() {
                // Nearly all of it is in one directory: that is what matters.
                Some(mut only) if child.below.is_empty() && few(&child.rest.sums) => {
                    only.name = format!("{}/{}", child.name, only.name);
                    shown.rest.sums.add(&child.rest.sums);
                    shown.rest.more += child.rest.more + usize::from(child.rest.own);
                    shown.below.push(only);
                }
                last => {
                    child.below.extend(last);
                    shown.below.push(child);
                }
            }
        }
        shown.below.sort_by(|a, b| {
            let order = |shown: &Shown| match sort {
                FileSort::Path => Reverse(0),
                sort => Reverse(sort.of_sums(&shown.sums)),
            };
            order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name))
        });
        Some(shown)
    }
}

fn components(path: &[u8], depth: usize) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).take(depth)
}

/// A line, and those below it.
struct Shown {
    name: String,
    sums: Sums,
    below: Vec<Self>,
    rest: Rest,
}

/// What of a directory has no line of its own.
struct Rest {
    sums: Sums,
    /// Files in the directory, or itself.
    own: bool,
    /// Directories.
    more: usize,
}

impl Rest {
    fn label(&self) -> String {
        match (self.more, self.own) {
            (0, _) => "(own)".to_owned(),
            (more, true) => format!("({more} more, own)"),
            (more, false) => format!("({more} more)"),
        }
    }
}

/// The rows by directory, those with few of the paths folded; no directories
/// deeper than `depth`, where that is given.
pub fn files_tree(
    source: &dyn FileSource,
    selection: &Selection,
    depth: Option<usize>,
    width: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let depth = depth.unwrap_or(DEPTH).min(DEPTH);
    let chosen = selection.chosen(source);
    let mut directories = Directories(vec![Node::new(b"", 0)]);
    for index in &chosen {
        let row = source.row(*index);
        if apart(&row).is_none() {
            directories.make(&exact(&row), depth);
        }
    }
    let mut parts: IndexMap<&str, Sums> = IndexMap::new();
    for index in &chosen {
        let row = source.row(*index);
        let sums = Sums::of(&row);
        match apart(&row) {
            None => directories.count(&exact(&row), depth, &sums),
            Some(part) => parts.entry(part).or_default().add(&sums),
        }
    }
    directories.total();
    let mut all = directories.0.first().map_or(Sums::default(), |root| root.total);
    for part in parts.values() {
        all.add(part);
    }
    let mut text = String::new();
    if !chosen.is_empty()
        && let Some(mut root) = directories.show(0, &all, selection.sort)
    {
        let mut lines = Vec::new();
        root.sums = all;
        root.lines(0, &parts, exact_steps(&all).map(|(n, step)| (n + step / 2) / step), &mut lines);
        text = table(&lines, width);
    }
    let mut clauses = notes(source, selection);
    clauses.push(if chosen.is_empty() {
        Clause::one("no paths")
    } else {
        Clause::one(format!(
            "rows under {PATHS} % of the paths (and {SHARE} % of the bytes and ms) folded"
        ))
    });
    text.push_str(&own_words(&clauses, width));
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// What stands apart from the directories, since it is in none of them.
fn apart(row: &FileRow) -> Option<&'static str> {
    let marked = |mark: &str| row.marks.iter().any(|other| other == mark);
    if !row.is_path() {
        Some("(descriptors)")
    } else if marked("relative") || !row.path.starts_with('/') {
        Some("(relative)")
    } else if marked("chroot") || marked("namespace") {
        Some("(other roots)")
    } else {
        None
    }
}

/// A line as it is to be printed: indented so far, and the numbers that are
/// rounded.
struct Line {
    name: String,
    level: usize,
    sums: Sums,
    rounded: Rounded,
}

/// MiB read in hundredths, MiB mapped and ms in tenths.
type Rounded = [u128; 3];

/// The numbers that are rounded, and what they are divided by for that.
fn exact_steps(sums: &Sums) -> [(u128, u128); 3] {
    [(sums.read * 100, 1 << 20), (sums.mapped * 10, 1 << 20), (sums.wall_ns, 100_000)]
}

impl Shown {
    /// This line and those below it.
    fn lines(
        &self,
        level: usize,
        parts: &IndexMap<&str, Sums>,
        rounded: Rounded,
        lines: &mut Vec<Line>,
    ) {
        let name = format!("{}/", self.name);
        lines.push(Line { name, level, sums: self.sums, rounded });
        let rest = Some(&self.rest).filter(|rest| rest.sums != Sums::default());
        let rest = rest.filter(|_| !self.below.is_empty() || !parts.is_empty());
        let mut below: Vec<Sums> = self.below.iter().map(|shown| shown.sums).collect();
        below.extend(rest.iter().map(|rest| rest.sums));
        below.extend(parts.values());
        let mut shares = shares(rounded, &below).into_iter();
        let level = level + 1;
        for (shown, share) in self.below.iter().zip(&mut shares) {
            shown.lines(level, &IndexMap::new(), share, lines);
        }
        let rest = rest.map(|rest| (rest.label(), rest.sums));
        let parts = parts.iter().map(|(name, sums)| ((*name).to_owned(), *sums));
        for ((name, sums), rounded) in rest.into_iter().chain(parts).zip(shares) {
            lines.push(Line { name, level, sums, rounded });
        }
    }
}

/// Rounds the numbers of several lines up or down, so that they add up to what
/// is printed of their sum.
fn shares(sum: Rounded, lines: &[Sums]) -> Vec<Rounded> {
    let exact: Vec<_> = lines.iter().map(exact_steps).collect();
    let down = |steps: &[(u128, u128); 3]| steps.map(|(n, step)| n / step);
    let mut shares: Vec<Rounded> = exact.iter().map(down).collect();
    for (column, sum) in sum.into_iter().enumerate() {
        let part = |line: &usize| exact.get(*line).and_then(|steps| steps.get(column));
        let cut = |line: &usize| part(line).map(|(n, step)| n % step);
        let mut order: Vec<usize> = (0..lines.len()).collect();
        order.sort_by_key(|line| Reverse(cut(line)));
        let given: u128 = shares.iter().filter_map(|share| share.get(column)).sum();
        let missing = usize::try_from(sum.saturating_sub(given)).unwrap_or(usize::MAX);
        for line in order.into_iter().take(missing) {
            if let Some(share) = shares.get_mut(line).and_then(|share| share.get_mut(column)) {
                *share += 1;
            }
        }
    }
    shares
}

/// A column of numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Column {
    Paths,
    Opens,
    Stats,
    Misses,
    Read,
    Mapped,
    Ms,
}

impl Column {
    const ALL: [Self; 7] =
        [Self::Paths, Self::Opens, Self::Stats, Self::Misses, Self::Read, Self::Mapped, Self::Ms];
    /// In the order in which they go when the names need the room.
    const EXPENDABLE: [Self; 6] =
        [Self::Opens, Self::Stats, Self::Mapped, Self::Read, Self::Misses, Self::Ms];

    fn title(self) -> &'static str {
        match self {
            Self::Paths => "paths",
            Self::Opens => "opens",
            Self::Stats => "stats",
            Self::Misses => "misses",
            Self::Read => "read MiB",
            Self::Mapped => "mapped MiB",
            Self::Ms => "ms",
        }
    }

    fn cell(self, line: &Line) -> String {
        let [read, mapped, ms] = line.rounded;
        match self {
            Self::Paths => line.sums.paths.to_string(),
            Self::Opens => line.sums.opens.to_string(),
            Self::Stats => line.sums.stats.to_string(),
            Self::Misses => line.sums.misses.to_string(),
            Self::Read => decimal(read, 100),
            Self::Mapped => decimal(mapped, 10),
            Self::Ms => decimal(ms, 10),
        }
    }
}

fn table(lines: &[Line], width: usize) -> String {
    let names = lines.iter().map(|line| display_width(&line.name) + 2 * line.level).max();
    let wanted = names.unwrap_or(0).min(NAMES).min(width / 2);
    let mut columns = Column::ALL.to_vec();
    let mut grid = fill(&columns, lines);
    for column in Column::EXPENDABLE {
        if grid.room(width) >= wanted {
            break;
        }
        columns.retain(|kept| *kept != column);
        grid = fill(&columns, lines);
    }
    let room = grid.room(width);
    grid.complete(lines.iter().map(|line| {
        let indent = 2 * line.level.min(INDENTED).min(room.saturating_sub(NAME) / 2);
        let name =
            shorten_path(&escape(&line.name), room.saturating_sub(indent).max(1)).into_owned();
        format!("{}{name}", " ".repeat(indent))
    }));
    grid.render()
}

fn fill(columns: &[Column], lines: &[Line]) -> Grid {
    let head = |column: &Column| Head { title: column.title().to_owned(), min: 0, right: true };
    let mut heads: Vec<Head> = columns.iter().map(head).collect();
    heads.push(Head { title: "path".to_owned(), min: 0, right: false });
    let mut grid = Grid::new(heads);
    for line in lines {
        grid.row(columns.iter().map(|column| column.cell(line)).collect());
    }
    grid
}
