//! What was looked for in several places, and what that cost: the question of
//! `sys.path` and of the dynamic loader.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};

use indexmap::{IndexMap, IndexSet};

use crate::record::Search;

use super::super::grid::{Grid, Head};
use super::super::text::{Clause, display_width, escape, own_words, shorten_middle, shorten_path};
use super::super::units::counted;
use super::{FileSort, FileSource, Selection};

/// Shapes that are shown when nothing else is asked for.
const TOP: usize = 20;
/// A fold of so many searches in as many directories is split by prefix,
const SPLIT: usize = 8;
/// into at most so many parts;
const GROUPS: usize = 6;
/// where there are more, only those with this share of the misses, in percent.
const SHARE: u128 = 10;
/// Directories that are named, where there is room.
const LISTED: usize = 4;
/// A column of names is never narrower than this.
const NAME: usize = 8;

/// Searches of one shape: for the same name or stem with the same suffixes,
/// which ended the same way.
#[derive(Default)]
struct Shape<'a> {
    searches: Vec<&'a Search>,
    misses: u128,
    wall_ns: u128,
}

impl<'a> Shape<'a> {
    fn add(&mut self, search: &'a Search) {
        self.searches.push(search);
        self.misses += u128::from(search.misses);
        self.wall_ns += u128::from(search.wall_ns);
    }

    fn absorb(&mut self, other: Self) {
        self.searches.extend(other.searches);
        self.misses += other.misses;
        self.wall_ns += other.wall_ns;
    }

    /// In the order in which they were tried first.
    fn directories(&self) -> IndexSet<&'a str> {
        let all = self.searches.iter().flat_map(|search| &search.directories);
        all.map(|directory| named(directory)).collect()
    }

    /// `libx.so` or `mod{.cpython-311.so +2}`.
    fn sought(&self) -> String {
        let Some(search) = self.searches.first() else { return String::new() };
        let stem = escape(&search.stem);
        match search.suffixes.as_slice() {
            [] => stem.into_owned(),
            [one] => format!("{stem}{}", escape(one)),
            [one, two] => format!("{stem}{{{},{}}}", escape(one), escape(two)),
            many => {
                let first = many.iter().find(|suffix| !suffix.is_empty());
                let first = first.map(|suffix| escape(suffix)).unwrap_or_default();
                format!("{stem}{{{first} +{}}}", many.len() - 1)
            }
        }
    }

    /// What ended the searches: `no`, the file's name, or where it was, when
    /// its name is what was sought.
    fn found(&self) -> String {
        let paths: BTreeSet<&str> =
            self.searches.iter().filter_map(|search| search.found.as_deref()).collect();
        let Some(path) = paths.first() else { return "no".to_owned() };
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        match paths.len() {
            _ if escape(name) != self.sought() => escape(name).into_owned(),
            1 => escape(named(directory)).into_owned(),
            n => format!("{n} places"),
        }
    }
}

/// The root has an empty name where a slash follows.
fn named(directory: &str) -> &str {
    match directory.trim_end_matches('/') {
        "" => "/",
        trimmed => trimmed,
    }
}

/// The name of what ended a search.
fn ended(search: &Search) -> Option<&str> {
    search.found.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path))
}

/// A line of the table.
struct Line {
    misses: u128,
    us: Option<u128>,
    sought: String,
    /// Indented: a part of the line above.
    part: bool,
    place: Place,
    found: String,
}

impl Line {
    fn us(&self) -> String {
        self.us.map_or("-".to_owned(), |us| us.to_string())
    }

    fn sought(&self, room: usize) -> String {
        if self.part {
            format!("  {}", shorten_path(&self.sought, room.saturating_sub(2)))
        } else {
            shorten_middle(&self.sought, room).into_owned()
        }
    }
}

/// Where something was looked for.
enum Place {
    Text(String),
    /// As many of these as there is room for.
    Directories(Vec<String>),
}

impl Place {
    fn text(&self, room: usize) -> String {
        let all = match self {
            Self::Text(text) => return shorten_middle(text, room).into_owned(),
            Self::Directories(all) => all,
        };
        let whole = all.join(", ");
        let Some((first, rest)) = all.split_first().filter(|(_, rest)| !rest.is_empty()) else {
            return shorten_path(&whole, room).into_owned();
        };
        if all.len() <= LISTED && display_width(&whole) <= room {
            return whole;
        }
        let more = format!(", {} more", rest.len());
        let left = room.saturating_sub(more.len());
        if left < NAME {
            return shorten_middle(&counted_directories(all.len()), room).into_owned();
        }
        format!("{}{more}", shorten_path(first, left))
    }
}

fn counted_directories(n: usize) -> String {
    if n == 1 { "1 directory".to_owned() } else { format!("{n} directories") }
}

/// The searches as a table: those of one shape in one line, the costliest
/// first. `top` and `sort` of the selection hold for these lines.
pub fn files_search(
    source: &dyn FileSource,
    selection: &Selection,
    width: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut shapes: IndexMap<(&str, &[String], Option<&str>), Shape> = IndexMap::new();
    let selected = source.searches().iter().filter(|search| selection.matches_search(search));
    for search in selected {
        let key = (search.stem.as_str(), search.suffixes.as_slice(), ended(search));
        shapes.entry(key).or_default().add(search);
    }
    let mut shapes: Vec<Shape> = shapes.into_values().collect();
    match selection.sort {
        FileSort::Time => shapes.sort_by_key(|shape| Reverse(shape.wall_ns)),
        FileSort::Path => shapes.sort_by_key(Shape::sought),
        _ => shapes.sort_by_key(|shape| Reverse((shape.misses, shape.wall_ns))),
    }
    let rest = shapes.split_off(selection.top.unwrap_or(TOP).min(shapes.len()));
    let mut folded = Shape::default();
    for shape in rest {
        folded.absorb(shape);
    }
    let mut lines: Vec<Line> = shapes.iter().flat_map(lines).collect();
    let misses = (0..source.len()).map(|index| source.row(index));
    let misses = misses.filter(|row| selection.matches(row)).map(|row| u128::from(row.misses));
    let searched = shapes.iter().map(|shape| shape.misses).sum::<u128>() + folded.misses;
    // Most of these were one look at one place.
    let lone = misses.sum::<u128>().saturating_sub(searched);
    let wall_ns = shapes.iter().map(|shape| shape.wall_ns).sum::<u128>() + folded.wall_ns;
    if lone + folded.misses > 0 {
        lines.push(Line {
            misses: lone + folded.misses,
            // The time of a miss outside a search is part of its path's.
            us: (lone == 0).then_some(micros(folded.wall_ns)),
            sought: "(others: --missing)".to_owned(),
            part: false,
            place: Place::Text("-".to_owned()),
            found: "-".to_owned(),
        });
    }
    let mut text = String::new();
    if !lines.is_empty() {
        lines.push(Line {
            misses: searched + lone,
            us: Some(micros(wall_ns)),
            sought: "total".to_owned(),
            part: false,
            place: Place::Text("-".to_owned()),
            found: "-".to_owned(),
        });
        text = table(&lines, width);
    }
    text.push_str(&own_words(&totals(&shapes, &folded), width));
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn totals(shapes: &[Shape], folded: &Shape) -> Vec<Clause> {
    let all = || shapes.iter().chain([folded]).flat_map(|shape| &shape.searches);
    let times = |search: &&Search| search.times.max(1);
    let count: u64 = all().map(times).sum();
    if count == 0 {
        return vec![Clause::one("nothing was looked for in several places")];
    }
    let vain = all().filter(|search| search.found.is_none());
    let vain: u64 = vain.map(times).sum();
    let probes: u128 = all().map(|search| u128::from(search.probes)).sum();
    let searches = if count == 1 { "search" } else { "searches" };
    vec![
        Clause::list(vec![
            format!("{count} {searches}, {vain} in vain"),
            format!(
                "with {} of directories",
                counted(u64::try_from(probes).unwrap_or(u64::MAX), "probe")
            ),
        ]),
        Clause::one("us: of the searches, tracing included"),
    ]
}

/// The line of a shape, and those of the prefixes that it is split into.
fn lines(shape: &Shape) -> Vec<Line> {
    let directories = shape.directories();
    let parts = split(shape);
    let place = if parts.is_empty() {
        Place::Directories(directories.iter().map(|path| escape(path).into_owned()).collect())
    } else {
        Place::Text(counted_directories(directories.len()))
    };
    let mut lines = vec![Line {
        misses: shape.misses,
        us: Some(micros(shape.wall_ns)),
        sought: shape.sought(),
        part: false,
        place,
        found: shape.found(),
    }];
    lines.extend(parts.into_iter().map(|(prefix, part)| {
        let directories = part.directories();
        let prefix = match (prefix, directories.first()) {
            (None, _) => "(others)".to_owned(),
            (Some(_), Some(only)) if directories.len() == 1 => (*only).to_owned(),
            (Some(prefix), _) => format!("{}/**", prefix.trim_end_matches('/')),
        };
        Line {
            misses: part.misses,
            us: Some(micros(part.wall_ns)),
            sought: escape(&prefix).into_owned(),
            part: true,
            place: Place::Text(directories.len().to_string()),
            found: "-".to_owned(),
        }
    }));
    lines
}

fn micros(ns: u128) -> u128 {
    (ns + 500) / 1_000
}

/// Searches of one shape by the prefix of where they looked, most misses first:
/// the largest part is parted again, as long as there are few. What is small
/// comes last, without a prefix. Empty when there is nothing to be said by that.
fn split<'a>(shape: &Shape<'a>) -> Vec<(Option<String>, Shape<'a>)> {
    if shape.directories().len() < SPLIT || shape.searches.len() < SPLIT {
        return Vec::new();
    }
    let mut all = Shape::default();
    for search in &shape.searches {
        all.add(search);
    }
    let mut parts = vec![(common(&all), all)];
    let mut rest = Shape::default();
    while let Some((prefix, largest)) = parts.first() {
        let mut below: Vec<Shape> = below(prefix, largest).into_values().collect();
        if below.len() < 2 {
            break;
        }
        let mut small = Vec::new();
        if parts.len() - 1 + below.len() > GROUPS {
            let large = |part: &mut Shape| part.misses * 100 >= shape.misses * SHARE;
            small = below.extract_if(.., |part| !large(part)).collect();
        }
        if below.is_empty() || parts.len() - 1 + below.len() > GROUPS {
            break;
        }
        for part in small {
            rest.absorb(part);
        }
        parts.remove(0);
        parts.extend(below.into_iter().map(|part| (common(&part), part)));
        parts
            .sort_by(|(a, left), (b, right)| right.misses.cmp(&left.misses).then_with(|| a.cmp(b)));
    }
    let mut parts: Vec<_> = parts.into_iter().map(|(prefix, part)| (Some(prefix), part)).collect();
    if !rest.searches.is_empty() {
        parts.push((None, rest));
    }
    if parts.len() < 2 { Vec::new() } else { parts }
}

/// The searches by the next directory below the prefix that is common to them.
fn below<'a>(prefix: &str, shape: &Shape<'a>) -> HashMap<String, Shape<'a>> {
    let mut parts: HashMap<String, Shape> = HashMap::new();
    for search in &shape.searches {
        let anchor = anchor(search);
        let rest = anchor.get(prefix.len()..).unwrap_or_default().trim_start_matches('/');
        let next = rest.split('/').next().unwrap_or_default();
        parts.entry(next.to_owned()).or_default().add(search);
    }
    parts
}

/// The directory that a search looked in, or that all of them are below.
fn anchor(search: &Search) -> String {
    prefix_of(search.directories.iter().map(|path| named(path)))
}

fn common(shape: &Shape) -> String {
    let anchors: Vec<String> = shape.searches.iter().map(|search| anchor(search)).collect();
    prefix_of(anchors.iter().map(String::as_str))
}

/// The longest path that all are, or are below; the root has an empty name.
fn prefix_of<'a>(mut paths: impl Iterator<Item = &'a str>) -> String {
    let mut prefix = paths.next().unwrap_or_default().trim_end_matches('/');
    for path in paths {
        while !path
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        {
            prefix = prefix.rsplit_once('/').map_or("", |(parent, _)| parent);
            if prefix.is_empty() {
                break;
            }
        }
    }
    prefix.to_owned()
}

fn table(lines: &[Line], width: usize) -> String {
    let head = |title: &str, right| Head { title: title.to_owned(), min: 0, right };
    let widest = |cells: &dyn Fn(&Line) -> usize| lines.iter().map(cells).max().unwrap_or(0);
    let misses = widest(&|line| line.misses.to_string().len()).max("misses".len());
    let us = widest(&|line| line.us().len()).max("us".len());
    // A blank before each column of names. In a narrow terminal the times give way.
    let room = width.saturating_sub(misses + 3);
    let timed = room >= us + 1 + 3 * NAME;
    let room = if timed { room - us - 1 } else { room };
    let sought = widest(&|line| display_width(&line.sought(usize::MAX)));
    let place = widest(&|line| display_width(&line.place.text(usize::MAX)));
    let found = widest(&|line| display_width(&line.found));
    let found = found.max("found".len()).min((room / 4).max(NAME));
    let room = room.saturating_sub(found);
    // What one of two columns does not need is the other's.
    let place = place.max("in".len()).min(room.saturating_sub(sought).max(room / 5 * 2));
    let sought = room.saturating_sub(place);
    let mut heads = vec![head("misses", true), head("us", true)];
    heads.truncate(1 + usize::from(timed));
    heads.extend(["sought", "in", "found"].map(|title| head(title, false)));
    let mut grid = Grid::new(heads);
    for line in lines {
        let mut cells = vec![line.misses.to_string(), line.us()];
        cells.truncate(1 + usize::from(timed));
        cells.push(line.sought(sought));
        cells.push(line.place.text(place));
        cells.push(shorten_path(&line.found, found).into_owned());
        grid.row(cells);
    }
    grid.render()
}
