//! Searches: a run of misses by one thread for one file name in several
//! directories, or for one stem with several suffixes in one directory,
//! directory probes between them included, closed by the hit. Pure.

use std::collections::HashMap;

use crate::tracer::{Nanos, ProcessId, ThreadId};

/// A search that has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Searched {
    /// The name, or what all of them begin with.
    pub stem: Vec<u8>,
    /// What followed the stem, in the order tried.
    pub suffixes: Vec<Vec<u8>>,
    /// Where, in the order tried.
    pub directories: Vec<Vec<u8>>,
    /// What ended it.
    pub found: Option<Vec<u8>>,
    /// Calls that missed.
    pub misses: u64,
    /// Probes of directories.
    pub probes: u64,
    /// Wall time of these, ns.
    pub wall: u64,
    /// When it began.
    pub start: Nanos,
    /// Who searched.
    pub process: u32,
    /// How often the same was searched for in the same places, by the same.
    pub times: u64,
    /// A path that was found in between: a probe, if it is looked below it next.
    between: Option<(Vec<u8>, u64)>,
}

/// One look at a path.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// The path.
    pub path: &'a [u8],
    /// Whether it was not there.
    pub missed: bool,
    /// Wall time, ns.
    pub wall: u64,
    /// When.
    pub at: Nanos,
    /// Who.
    pub process: ProcessId,
}

/// Searches of all threads.
#[derive(Debug, Default)]
pub struct Searches {
    open: HashMap<ThreadId, Searched>,
    done: Vec<Searched>,
    /// Where in `done` a search stands: by what was sought, where, by whom.
    known: HashMap<Key, usize>,
}

type Key = (Vec<u8>, Vec<Vec<u8>>, Vec<Vec<u8>>, Option<Vec<u8>>, u32);

/// Longest list of directories or suffixes kept of one search: somebody who
/// tries names without end is no search any more.
const MOST: usize = 4096;

impl Searches {
    /// A thread looked at a path.
    pub fn look(&mut self, thread: ThreadId, look: &Look) {
        let (directory, name) = split(look.path);
        let open = self.open.get_mut(&thread);
        if let Some(search) = open {
            if look.missed {
                if search.takes(directory, name) && search.settles_between(directory, name) {
                    search.miss(directory, name, look);
                    return;
                }
            } else if search.is_sought(directory, name) && search.settles_between(directory, name) {
                search.found = Some(look.path.to_vec());
                self.close(thread);
                return;
            } else if search.is_probe(look.path) {
                search.probes += 1;
                search.wall += look.wall;
                return;
            } else if search.between.is_none() {
                search.between = Some((look.path.to_vec(), look.wall));
                return;
            }
            self.close(thread);
        }
        if look.missed && !name.is_empty() {
            let mut search =
                Searched { start: look.at, process: look.process.0, ..Searched::default() };
            search.stem = name.to_vec();
            search.suffixes.push(Vec::new());
            search.miss(directory, name, look);
            self.open.insert(thread, search);
        }
    }

    /// A thread has ended, or does something else now.
    pub fn close(&mut self, thread: ThreadId) {
        if let Some(search) = self.open.remove(&thread)
            // A single name that is missed and not found is a miss, no search.
            && (search.misses > 1 || search.found.is_some())
        {
            let Searched { stem, suffixes, directories, found, process, .. } = &search;
            let key =
                (stem.clone(), suffixes.clone(), directories.clone(), found.clone(), *process);
            let at = *self.known.entry(key).or_insert(self.done.len());
            match self.done.get_mut(at) {
                Some(same) => {
                    same.times += 1;
                    same.misses += search.misses;
                    same.probes += search.probes;
                    same.wall = same.wall.saturating_add(search.wall);
                }
                None => self.done.push(Searched { times: 1, ..search }),
            }
        }
    }

    /// Closes all, and puts them in order.
    pub fn finish(&mut self) {
        let open: Vec<ThreadId> = self.open.keys().copied().collect();
        for thread in open {
            self.close(thread);
        }
        self.done.sort_by_key(|search| search.start);
    }

    /// Those that are closed.
    pub fn done(&self) -> &[Searched] {
        &self.done
    }
}

impl Searched {
    /// Whether a miss goes on with this search.
    fn takes(&self, directory: &[u8], name: &[u8]) -> bool {
        if self.directories.len() >= MOST || self.suffixes.len() >= MOST {
            return false;
        }
        let same_name = self.suffixes.iter().any(|suffix| self.is_with(name, suffix));
        let here = self.directories.last().is_some_and(|last| last == directory);
        same_name || here && common_stem(&self.stem, name).is_some()
    }

    /// What was found in between is a probe if this directory is in it. False
    /// where it was something else, and another name is looked for now: then the
    /// search was over. (The loader reads its cache on the way to a library.)
    fn settles_between(&mut self, directory: &[u8], name: &[u8]) -> bool {
        let Some((path, wall)) = self.between.take() else { return true };
        let is_probe = is_within(directory, &path);
        if is_probe {
            self.probes += 1;
            self.wall += wall;
        }
        is_probe || self.suffixes.iter().any(|suffix| self.is_with(name, suffix))
    }

    fn is_with(&self, name: &[u8], suffix: &[u8]) -> bool {
        name.strip_prefix(self.stem.as_slice()) == Some(suffix)
    }

    fn miss(&mut self, directory: &[u8], name: &[u8], look: &Look) {
        self.misses += 1;
        self.wall += look.wall;
        if !self.directories.iter().rev().take(64).any(|d| d == directory) {
            self.directories.push(directory.to_vec());
        }
        self.stem_for(name);
        if let Some(suffix) = name.strip_prefix(self.stem.as_slice())
            && !self.suffixes.iter().any(|s| s == suffix)
        {
            self.suffixes.push(suffix.to_vec());
        }
    }

    /// Shortens the stem so that this name begins with it.
    fn stem_for(&mut self, name: &[u8]) {
        if name.starts_with(&self.stem) {
            return;
        }
        let Some(length) = common_stem(&self.stem, name) else { return };
        let rest = self.stem.split_off(length);
        for suffix in &mut self.suffixes {
            let mut whole = rest.clone();
            whole.append(suffix);
            *suffix = whole;
        }
    }

    /// Whether finding this ends the search: one of the names, or the stem with
    /// another suffix where it was looked for last.
    fn is_sought(&self, directory: &[u8], name: &[u8]) -> bool {
        let same_name = self.suffixes.iter().any(|suffix| self.is_with(name, suffix));
        let here = self.directories.last().is_some_and(|last| last == directory);
        // After one miss another name that begins alike is most likely another file.
        same_name || here && self.misses > 1 && common_stem(&self.stem, name).is_some()
    }

    /// Whether a path is a directory that it looks into, or is about to.
    fn is_probe(&self, path: &[u8]) -> bool {
        let last = self.directories.last();
        // One where the stem is a directory: a package's.
        let own = last.is_some_and(|last| {
            path.strip_prefix(last.as_slice())
                .and_then(|rest| rest.strip_prefix(b"/"))
                .is_some_and(|name| name == self.stem)
        });
        own || self.directories.iter().rev().take(8).any(|directory| is_within(directory, path))
    }
}

/// Whether a directory is `path` or below it.
pub fn is_within(directory: &[u8], path: &[u8]) -> bool {
    directory.starts_with(path)
        && (path.ends_with(b"/") || matches!(directory.get(path.len()), None | Some(b'/')))
}

/// Length of what two names have in common as a stem: up to a dot in both, or
/// one of them whole before the other's dot.
fn common_stem(one: &[u8], other: &[u8]) -> Option<usize> {
    let stem = |name: &[u8]| name.iter().skip(1).position(|&b| b == b'.').map(|at| at + 1);
    let (a, b) = (stem(one).unwrap_or(one.len()), stem(other).unwrap_or(other.len()));
    (a == b && a > 0 && one.get(..a) == other.get(..b)).then_some(a)
}

/// Directory and name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(0) => (b"/", path.get(1..).unwrap_or_default()),
        Some(at) => (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default()),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `-path` missed, `+path` hit.
    fn searches(looks: &[&str]) -> Vec<Searched> {
        let mut searches = Searches::default();
        for (i, look) in looks.iter().enumerate() {
            let (sign, path) = look.split_at(1);
            let look = Look {
                path: path.as_bytes(),
                missed: sign == "-",
                wall: 10,
                at: i as u64,
                process: ProcessId(0),
            };
            searches.look(ThreadId(0), &look);
        }
        searches.finish();
        searches.done().to_vec()
    }

    fn text(parts: &[Vec<u8>]) -> Vec<&str> {
        parts.iter().map(|part| std::str::from_utf8(part).unwrap()).collect()
    }

    #[test]
    fn one_name_in_several_directories() {
        let found = searches(&["-/a/libx.so", "-/b/libx.so", "-/c/libx.so", "+/d/libx.so"]);
        let [search] = &found[..] else { panic!("{found:?}") };
        assert_eq!(search.stem, b"libx.so");
        assert_eq!(text(&search.suffixes), [""]);
        assert_eq!(text(&search.directories), ["/a", "/b", "/c"]);
        assert_eq!(search.found.as_deref(), Some(&b"/d/libx.so"[..]));
        assert_eq!((search.misses, search.probes, search.wall), (3, 0, 30));
    }

    #[test]
    fn the_same_search_again_is_counted() {
        let once = ["-/a/x", "-/b/x", "+/c/x"];
        let found = searches(&[once, once, once].concat());
        let [search] = &found[..] else { panic!("{found:?}") };
        assert_eq!((search.times, search.misses, search.start), (3, 6, 0));
    }

    #[test]
    fn a_directory_may_be_looked_at_before_it_is_looked_into() {
        let found = searches(&["-/a/x", "+/b", "-/b/x", "+/c", "+/c/x"]);
        let [search] = &found[..] else { panic!("{found:?}") };
        assert_eq!((search.misses, search.probes), (2, 2));
        // The loader reads its cache in between.
        let found = searches(&["-/a/l.so", "-/b/l.so", "+/etc/ld.so.cache", "+/c/l.so"]);
        assert_eq!(found[0].found.as_deref(), Some(&b"/c/l.so"[..]), "{found:?}");
        assert_eq!(searches(&["-/a/x", "+/etc/passwd", "-/b/y", "+/z"]), []);
    }

    #[test]
    fn one_stem_with_several_suffixes() {
        let found = searches(&[
            "+/p",
            "-/p/mod/__init__.cpython.so",
            "-/p/mod.cpython.so",
            "-/p/mod.abi3.so",
            "+/p",
            "-/p/mod.so",
            "+/p/mod.py",
        ]);
        let [search] = &found[..] else { panic!("{found:?}") };
        assert_eq!(search.stem, b"mod");
        assert_eq!(text(&search.suffixes), [".cpython.so", ".abi3.so", ".so"]);
        assert_eq!(text(&search.directories), ["/p"]);
        assert_eq!((search.misses, search.probes), (3, 1));
        assert_eq!(search.found.as_deref(), Some(&b"/p/mod.py"[..]));
    }

    #[test]
    fn what_is_nowhere_is_not_found() {
        let found = searches(&["-/a/x.cfg", "-/b/x.cfg", "+/etc/passwd", "-/a/y"]);
        let [search] = &found[..] else { panic!("{found:?}") };
        assert_eq!((search.found.as_ref(), search.misses), (None, 2));
    }

    #[test]
    fn a_single_miss_is_no_search() {
        assert_eq!(searches(&["-/a/x", "+/b/y", "-/c/z"]), []);
        assert_eq!(searches(&["-/etc/ld.so.preload", "+/etc/ld.so.cache"]), []);
    }

    #[test]
    fn the_next_name_begins_another_search() {
        let found = searches(&["-/a/one", "-/b/one", "-/a/two", "-/b/two", "+/c/two"]);
        assert_eq!(found.iter().map(|s| s.stem.clone()).collect::<Vec<_>>(), [b"one", b"two"]);
    }
}
