//! Which import a call belongs to. The log says in which order imports end and
//! how long each took; where one begins is put together from that (pure).

use std::path::Path;

use crate::tracer::Nanos;

/// An import that has ended, and what is known of where it ran.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// When its line was written.
    pub at: Nanos,
    /// How long it took, microseconds, rounded up.
    pub took: u64,
    /// Who wrote the line: any number.
    pub thread: usize,
    /// Calls that this thread had made before.
    pub end: usize,
}

/// The tree of imports: of each the one that it happened in, and the first of
/// those that happened in it (or itself). They stand in order of their ends.
pub fn tree(depths: impl Iterator<Item = usize>) -> Vec<(Option<usize>, usize)> {
    let mut tree: Vec<(Option<usize>, usize)> = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for (index, depth) in depths.enumerate() {
        let mut first = index;
        while let Some(&(child, below)) = open.last()
            && below > depth
        {
            open.pop();
            if let Some((parent, its_first)) = tree.get_mut(child) {
                *parent = Some(index);
                first = *its_first;
            }
        }
        open.push((index, depth));
        tree.push((None, first));
    }
    tree
}

/// Of each import the calls of its thread that it spans, those of imports in it
/// included. `left` says when a thread's call had returned; `named` gives, among
/// calls of a thread, the first by which a module's search can be told.
pub fn spans(
    ended: &[Ended],
    tree: &[(Option<usize>, usize)],
    left: impl Fn(usize, usize) -> Nanos,
    named: impl Fn(usize, std::ops::Range<usize>) -> Option<usize>,
) -> Vec<std::ops::Range<usize>> {
    let mut spans: Vec<std::ops::Range<usize>> = Vec::new();
    // Where the first import in it begins.
    let mut inner: Vec<usize> = ended.iter().map(|import| import.end).collect();
    for (index, import) in ended.iter().enumerate() {
        let (parent, first) = tree.get(index).copied().unwrap_or((None, index));
        let mut before = ended.iter().take(first).rev();
        // The line before it: what was called until then is of others.
        let lowest = before.find(|other| other.thread == import.thread).map_or(0, |o| o.end);
        let highest = inner.get(index).copied().unwrap_or(import.end).max(lowest);
        // Not before that by its time: the clock was read before the line was
        // written, and what it says was rounded up.
        let time = import.at.saturating_sub(import.took.saturating_sub(1).saturating_mul(1000));
        let by_time = partition(lowest..highest, |call| left(import.thread, call) <= time);
        let begin = named(index, lowest..highest).map_or(by_time, |by_name| by_name.min(by_time));
        let same = |parent: &usize| ended.get(*parent).is_some_and(|p| p.thread == import.thread);
        if let Some(parent) = parent.filter(same).and_then(|parent| inner.get_mut(parent)) {
            *parent = begin.min(*parent);
        }
        spans.push(begin..import.end);
    }
    spans
}

/// The first of a range of which something does not hold that holds of all
/// before it and of none behind.
fn partition(range: std::ops::Range<usize>, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Where a module was looked for, when this is a file that one of its name would
/// be read from: `D/a/b.py`, `D/a/b/__init__.py`, their bytecode in __pycache__,
/// `D/a/b.TAG.so` of a module `a.b` are files of `D/a`.
pub fn searched<'p>(path: &'p Path, module: &str) -> Option<&'p Path> {
    let (package, tail) = match module.rsplit_once('.') {
        Some((package, tail)) => (Some(package), tail),
        None => (None, module),
    };
    let file = path.file_name()?.to_str()?;
    let (stem, suffixes) = file.split_once('.')?;
    let suffix = suffixes.rsplit('.').next()?;
    let known = suffixes == "py" || suffix == "pyc" || suffix == "so";
    let mut directory = path.parent()?;
    if suffix == "pyc" && directory.file_name().is_some_and(|name| name == "__pycache__") {
        directory = directory.parent()?;
    }
    if stem == "__init__" && directory.file_name().is_some_and(|name| name == tail) {
        directory = directory.parent()?;
    } else if stem != tail {
        return None;
    }
    // A module of a package lies in a directory of that name.
    let place = package.map(|package| package.rsplit('.').next().unwrap_or(package));
    let fits = place.is_none_or(|place| directory.file_name().is_some_and(|name| name == place));
    (known && fits).then_some(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_comes_after_its_children() {
        // a(b, c(d)), e; and what a fork had begun before, which never ends.
        assert_eq!(
            tree([1, 2, 1, 0, 0].into_iter()),
            [(Some(3), 0), (Some(2), 1), (Some(3), 1), (None, 0), (None, 4)]
        );
        assert_eq!(tree([3, 2, 2].into_iter()), [(Some(1), 0), (None, 0), (None, 2)]);
    }

    fn ended(depth: usize, at: Nanos, took: u64, thread: usize, end: usize) -> (usize, Ended) {
        (depth, Ended { at, took, thread, end })
    }

    fn all(
        ended: &[(usize, Ended)],
        left: impl Fn(usize, usize) -> Nanos,
        named: impl Fn(usize, std::ops::Range<usize>) -> Option<usize>,
    ) -> Vec<std::ops::Range<usize>> {
        let tree = tree(ended.iter().map(|(depth, _)| *depth));
        let ended: Vec<Ended> = ended.iter().map(|(_, ended)| *ended).collect();
        spans(&ended, &tree, left, named)
    }

    /// Calls return at 10 us, 20 us, ...
    fn every_ten(_: usize, call: usize) -> Nanos {
        (call as u64 + 1) * 10_000
    }

    #[test]
    fn an_import_begins_as_long_before_its_line_as_it_took() {
        // A child of 25 us, which ends after 6 calls, in a parent of 50 us.
        let imports = [ended(1, 65_000, 25, 0, 6), ended(0, 75_000, 50, 0, 7)];
        assert_eq!(all(&imports, every_ten, |_, _| None), [4..6, 2..7]);
    }

    #[test]
    fn a_line_that_was_written_late_is_set_right_by_the_name() {
        let imports = [ended(0, 65_000, 5, 0, 6)];
        assert_eq!(all(&imports, every_ten, |_, _| Some(3)).first(), Some(&(3..6)));
    }

    #[test]
    fn what_came_before_the_last_line_belongs_to_others() {
        // Both say that they took all the time there was.
        let imports =
            [ended(1, 35_000, 99, 0, 3), ended(1, 65_000, 99, 0, 6), ended(0, 70_000, 9, 0, 6)];
        assert_eq!(all(&imports, every_ten, |_, _| None), [0..3, 3..6, 0..6]);
    }

    #[test]
    fn threads_have_calls_of_their_own() {
        let imports = [ended(1, 35_000, 15, 1, 3), ended(0, 65_000, 35, 0, 6)];
        assert_eq!(all(&imports, every_ten, |_, _| None), [2..3, 3..6]);
    }

    #[test]
    fn files_of_a_module_are_told_by_their_names() {
        let place = |path: &'static str, module: &str| {
            searched(Path::new(path), module).and_then(Path::to_str)
        };
        for path in [
            "/d/a/b.py",
            "/d/a/__pycache__/b.cpython-311.pyc",
            "/d/a/b.pyc",
            "/d/a/b/__init__.py",
            "/d/a/b/__init__.abi3.so",
            "/d/a/b/__pycache__/__init__.cpython-311.opt-1.pyc",
            "/d/a/b.cpython-311-x86_64-linux-gnu.so",
            "/d/a/b.so",
        ] {
            assert_eq!(place(path, "a.b"), Some("/d/a"), "{path}");
            assert_eq!(place(path, "b"), Some("/d/a"), "{path}");
            assert_eq!(place(path, "x.b"), None, "{path}");
            assert_eq!(place(path, "a"), None, "{path}");
        }
        for path in ["/d/a/b", "/d/a/b.txt", "/d/a/b.py.txt", "/d/a/xb.py", "/d/a/__init__.py", ""]
        {
            assert_eq!(place(path, "a.b"), None, "{path}");
        }
        assert_eq!(place("/d/a/__init__.py", "a"), Some("/d"));
    }
}
