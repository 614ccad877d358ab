//! What was mapped executable: the native libraries that were really loaded.

use std::cmp::Reverse;

use crate::record::MappedFile;

use super::super::grid::{Grid, Head};
use super::super::text::{Clause, escape, own_words, shorten_middle, shorten_path};
use super::super::units::counted;
use super::size;

/// Largest files that `show` names.
const NAMED: usize = 3;
/// A path is left at least this.
const PATH: usize = 8;

/// Every file that was mapped executable, the biggest first, and which CUDA
/// libraries are among them.
pub fn mapped(files: &[MappedFile], width: usize) -> String {
    let mut out = String::new();
    let sorted = biggest_first(files);
    if !sorted.is_empty() {
        let head =
            |title: &str, min: usize, right: bool| Head { title: title.to_owned(), min, right };
        let mut grid =
            Grid::new(vec![head("MiB", 7, true), head("at exit", 0, true), head("path", 0, false)]);
        for file in &sorted {
            let size = file.size_bytes.map_or("-".to_owned(), |n| mib(n.into(), 100));
            let at_exit = if file.at_exit { "yes" } else { "no" };
            grid.row(vec![size, at_exit.to_owned()]);
        }
        let room = grid.room(width).max(PATH);
        grid.complete(
            sorted.iter().map(|file| shorten_path(&escape(&file.path), room).into_owned()),
        );
        out.push_str(&grid.render());
    }
    let at_exit = files.iter().filter(|file| file.at_exit).count();
    let sum = Clause::list(vec![
        format!("{}, {}", objects(files), size(total(files))),
        format!("{at_exit} mapped at exit"),
    ]);
    out.push_str(&own_words(&[sum], width));
    out.push_str(&own_words(&[cuda(&sorted)], width));
    out
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
