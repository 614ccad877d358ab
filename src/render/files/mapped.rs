//! What was mapped executable: the native libraries that were really loaded.

use std::borrow::Cow;
use std::cmp::Reverse;

use crate::record::MappedFile;

use super::super::grid::{Grid, Head};
use super::super::text::{Clause, display_width, escape, own_words, shorten_middle, shorten_path};
use super::super::units::counted;
use super::size;

/// Largest files that `show` names.
const NAMED: usize = 3;
/// Columns of who brought a file.
const CAME_BY: usize = 15;
/// A path is left at least this.
const PATH: usize = 8;

/// Every file that was mapped executable, the biggest first: what of it was
/// resident at the end, who brought it, and which CUDA libraries are among them.
pub fn mapped(files: &[MappedFile], width: usize) -> String {
    let mut out = String::new();
    let sorted = biggest_first(files);
    let resident = files.iter().any(|file| file.resident_file_bytes.is_some());
    let came = files.iter().any(|file| file.came_by.is_some());
    if !sorted.is_empty() {
        // In a narrow terminal the rest gives way to the paths.
        let mut grid = columns(&sorted, resident, came);
        for (resident, came) in [(false, came), (false, false)] {
            if grid.room(width) < PATH {
                grid = columns(&sorted, resident, came);
            }
        }
        let room = grid.room(width).max(PATH);
        grid.complete(
            sorted.iter().map(|file| shorten_directory(&escape(&file.path), room).into_owned()),
        );
        out.push_str(&grid.render());
    }
    let at_exit = files.iter().filter(|file| file.at_exit).count();
    let sum = Clause::list(vec![
        format!("{}, {}", objects(files), size(total(files))),
        format!("{at_exit} mapped at exit"),
    ]);
    let sums = |of: fn(&MappedFile) -> Option<u64>| {
        size(files.iter().filter_map(of).map(u128::from).sum())
    };
    let kept = resident.then(|| {
        Clause::list(vec![
            format!(
                "resident in the command at its end: anon {}",
                sums(|file| file.resident_anon_bytes)
            ),
            format!("file {}", sums(|file| file.resident_file_bytes)),
        ])
    });
    let clauses: Vec<Clause> = [sum].into_iter().chain(kept).collect();
    out.push_str(&own_words(&clauses, width));
    out.push_str(&own_words(&[cuda(&sorted)], width));
    out
}

/// All columns but the path's.
fn columns(sorted: &[&MappedFile], resident: bool, came: bool) -> Grid {
    let head = |title: &str, min: usize, right: bool| Head { title: title.to_owned(), min, right };
    let mut heads = vec![head("MiB", 7, true), head("at exit", 0, true)];
    if resident {
        heads.extend([head("anon", 5, true), head("file", 5, true)]);
    }
    // On the right as well: then it is counted among what leaves room for paths.
    heads.extend(came.then(|| head("came by", 0, true)));
    heads.push(head("path", 0, false));
    let mut grid = Grid::new(heads);
    for file in sorted {
        let hundredths = |size: Option<u64>| size.map_or("-".to_owned(), |n| mib(n.into(), 100));
        let at_exit = if file.at_exit { "yes" } else { "no" };
        let mut cells = vec![hundredths(file.size_bytes), at_exit.to_owned()];
        if resident {
            cells.extend([file.resident_anon_bytes, file.resident_file_bytes].map(hundredths));
        }
        cells.extend(came.then(|| came_by(file)));
        grid.row(cells);
    }
    grid
}

/// The path in at most `room` columns: its name tells one library from another,
/// and of that the beginning.
fn shorten_directory(path: &str, room: usize) -> Cow<'_, str> {
    let Some((directory, name)) = path.rsplit_once('/') else {
        return shorten_path(path, room);
    };
    if display_width(path) <= room {
        return Cow::Borrowed(path);
    }
    let left = room.saturating_sub(display_width(name) + 1);
    if left > 0 {
        return Cow::Owned(format!("{}/{name}", shorten_path(directory, left)));
    }
    Cow::Owned(format!("…/{}", shorten_middle(name, room.saturating_sub(2))))
}

/// How it came in: for what is needed, by whom first and how many more.
fn came_by(file: &MappedFile) -> String {
    let words = file.came_by.iter().flatten().map(|word| match file.needed_by.as_deref() {
        Some([first, more @ ..]) if word == "needed" => {
            let first = escape(module(stem(first))).into_owned();
            let more = if more.is_empty() { String::new() } else { format!(" +{}", more.len()) };
            let room = CAME_BY.saturating_sub(more.len());
            format!("{}{more}", shorten_middle(&first, room))
        }
        _ => escape(word).into_owned(),
    });
    let words: Vec<String> = words.collect();
    shorten_middle(&words.join(", "), CAME_BY).into_owned()
}

/// `_ssl` of `_ssl.cpython-311-x86_64-linux-gnu`.
fn module(stem: &str) -> &str {
    stem.split_once(".cpython-").map_or(stem, |(module, _)| module)
}

fn cuda(sorted: &[&MappedFile]) -> Clause {
    let mut libraries: Vec<String> = sorted
        .iter()
        .filter_map(|file| {
            let name = escape(file.cuda.as_deref()?);
            let size = file.size_bytes.map_or(String::new(), |n| format!(" {}", size(n.into())));
            Some(format!("{name}{size}"))
        })
        .collect();
    match libraries.first_mut() {
        Some(first) => first.insert_str(0, "CUDA libraries: "),
        None => return Clause::one("no CUDA library was mapped"),
    }
    Clause::list(libraries)
}

/// The line of `show`: how many objects, their size, the largest.
pub(in super::super) fn mapped_line(files: &[MappedFile], room: usize) -> Vec<Clause> {
    let head = format!("{}, {}", objects(files), size(total(files)));
    let sorted = biggest_first(files);
    let mut largest: Vec<String> = sorted
        .iter()
        .take(NAMED)
        .filter_map(|file| {
            let size = mib(file.size_bytes?.into(), 10);
            let name = escape(stem(&file.path)).into_owned();
            let room = room.saturating_sub(size.len() + 2).max(PATH);
            Some(format!("{} {size}", shorten_middle(&name, room)))
        })
        .collect();
    if sorted.len() > largest.len() && !largest.is_empty() {
        largest.push("…".to_owned());
    }
    match largest.first_mut() {
        Some(first) => first.insert_str(0, &format!("{head}: ")),
        None => largest.push(head),
    }
    vec![Clause::list(largest)]
}

/// `libtorch_cpu` of `…/libtorch_cpu.so.1.13`.
fn stem(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.find(".so") {
        None | Some(0) => name,
        Some(end) => name.get(..end).unwrap_or(name),
    }
}

fn objects(files: &[MappedFile]) -> String {
    counted(files.len() as u64, "object")
}

fn total(files: &[MappedFile]) -> u128 {
    files.iter().filter_map(|file| file.size_bytes).map(u128::from).sum()
}

fn biggest_first(files: &[MappedFile]) -> Vec<&MappedFile> {
    let mut sorted: Vec<&MappedFile> = files.iter().collect();
    sorted.sort_by(|a, b| {
        Reverse(a.size_bytes).cmp(&Reverse(b.size_bytes)).then_with(|| a.path.cmp(&b.path))
    });
    sorted
}

/// MiB in tenths or hundredths, rounded.
fn mib(n: u128, steps: u128) -> String {
    super::decimal((n * steps + (1 << 19)) >> 20, steps)
}
