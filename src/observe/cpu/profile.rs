//! Samples by process, thread and mapped object: the pure part.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use indexmap::IndexSet;

use super::super::paths::is_segment;
use crate::tracer::Nanos;
use crate::tracer::perf::{Place, Told, What};

/// Samples, and what is needed to know where the next ones fall.
#[derive(Debug, Default)]
pub struct Profile {
    /// Names of what was hit or could have been: files, and in brackets the
    /// kernel, its vdso, memory that is no file's.
    objects: IndexSet<Vec<u8>>,
    /// By a number of the process (pids repeat) and tid.
    threads: HashMap<(u64, i32), ThreadSamples>,
    /// Records that found no room.
    pub lost: u64,
    /// What runs, by pid.
    running: HashMap<i32, Running>,
    /// Processes seen.
    processes: u64,
}

/// Samples of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadSamples {
    /// Its process.
    pub pid: i32,
    /// Its tid, as it was then: a thread that executes a program takes its leader's.
    pub tid: i32,
    /// The first one.
    pub first: Nanos,
    /// How many, by object.
    objects: HashMap<usize, u64>,
}

/// A process.
#[derive(Debug, Clone)]
struct Running {
    number: u64,
    threads: u32,
    /// Shared with its children until one of them changes its own.
    mappings: Arc<Mappings>,
}

/// What is mapped executable: by first address, the address behind and the object.
type Mappings = BTreeMap<u64, (u64, usize)>;

impl Profile {
    /// Takes what the kernel told next.
    pub fn tell(&mut self, told: Told) {
        match told.what {
            What::Sample { pid, tid, place } => self.sample(pid, tid, place, told.at),
            What::Mapped { pid, start, end, name } => {
                let object = self.object(&name);
                let running = self.running(pid);
                map(Arc::make_mut(&mut running.mappings), start, end, object);
            }
            What::Forked { pid, thread: true, .. } => self.running(pid).threads += 1,
            What::Forked { pid, parent, thread: false } => {
                let mappings = Arc::clone(&self.running(parent).mappings);
                let child = Running::new(&mut self.processes, mappings);
                self.running.insert(pid, child);
            }
            What::Execed { pid } => {
                let running = self.running(pid);
                running.threads = 1;
                running.mappings = Arc::default();
            }
            What::Exited { pid } => {
                let running = self.running(pid);
                running.threads = running.threads.saturating_sub(1);
                if running.threads == 0 {
                    self.running.remove(&pid);
                }
            }
            What::Lost(records) => self.lost = self.lost.saturating_add(records),
        }
    }

    fn sample(&mut self, pid: i32, tid: i32, place: Place, at: Nanos) {
        let running = self.running(pid);
        let number = running.number;
        let mapped = match place {
            Place::User(address) => {
                let last = running.mappings.range(..=address).next_back();
                last.filter(|(_, (end, _))| address < *end).map(|(_, (_, object))| *object)
            }
            Place::Kernel | Place::Guest => None,
        };
        let object = mapped.unwrap_or_else(|| {
            self.object(match place {
                Place::User(_) => b"[unknown]",
                Place::Kernel => Self::KERNEL,
                Place::Guest => b"[guest]",
            })
        });
        let new = || ThreadSamples { pid, tid, first: at, objects: HashMap::new() };
        let thread = self.threads.entry((number, tid)).or_insert_with(new);
        *thread.objects.entry(object).or_default() += 1;
    }

    /// The kernel, among objects.
    pub const KERNEL: &[u8] = b"[kernel]";

    /// The threads that were hit.
    pub fn threads(&self) -> impl Iterator<Item = &ThreadSamples> {
        self.threads.values()
    }

    /// What a thread's samples hit, and how often.
    pub fn objects<'a>(
        &'a self,
        thread: &'a ThreadSamples,
    ) -> impl Iterator<Item = (&'a [u8], u64)> {
        let named = |(object, samples): (&usize, &u64)| {
            Some((self.objects.get_index(*object)?.as_slice(), *samples))
        };
        thread.objects.iter().filter_map(named)
    }

    /// The process; one that nothing was told of, where that was lost, is new.
    fn running(&mut self, pid: i32) -> &mut Running {
        let processes = &mut self.processes;
        self.running.entry(pid).or_insert_with(|| Running::new(processes, Arc::default()))
    }

    fn object(&mut self, name: &[u8]) -> usize {
        let name: &[u8] = match name {
            b"//anon" => b"[anonymous]",
            b"//toolong" | b"//enomem" | b"" => b"[unknown]",
            name => match name.strip_suffix(b" (deleted)") {
                Some(name) if is_segment(name, true) => b"[shared memory]",
                Some(name) => name,
                None => name,
            },
        };
        let known = self.objects.get_index_of(name);
        known.unwrap_or_else(|| self.objects.insert_full(name.to_vec()).0)
    }
}

impl Running {
    fn new(processes: &mut u64, mappings: Arc<Mappings>) -> Self {
        *processes += 1;
        Self { number: *processes, threads: 1, mappings }
    }
}

/// Maps `start..end`, over what was there; one with its neighbours where they are
/// of the same object, so that a compiler at run time does not make it grow.
fn map(mappings: &mut Mappings, mut start: u64, mut end: u64, object: usize) {
    if start >= end {
        return;
    }
    // What begins before it: cut off, and what is left behind it kept.
    let before = mappings.range(..start).next_back().map(|(at, to)| (*at, *to));
    if let Some((at, (to, other))) = before
        && to >= start
    {
        if other == object {
            mappings.remove(&at);
            (start, end) = (at, end.max(to));
        } else {
            mappings.insert(at, (start, other));
            if to > end {
                mappings.insert(end, (to, other));
            }
        }
    }
    let within: Vec<u64> = mappings.range(start..=end).map(|(at, _)| *at).collect();
    for at in within {
        let Some((to, other)) = mappings.remove(&at) else { continue };
        if other == object {
            end = end.max(to);
        } else if to > end {
            mappings.insert(at.max(end), (to, other));
        }
    }
    mappings.insert(start, (end, object));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(profile: &mut Profile, at: Nanos, what: What) {
        profile.tell(Told { at, what });
    }

    fn mapped(pid: i32, start: u64, end: u64, name: &str) -> What {
        What::Mapped { pid, start, end, name: name.into() }
    }

    fn at_address(pid: i32, tid: i32, address: u64) -> What {
        What::Sample { pid, tid, place: Place::User(address) }
    }

    /// (pid, tid, object, samples), in order.
    fn all(profile: &Profile) -> Vec<(i32, i32, String, u64)> {
        let mut all = Vec::new();
        for thread in profile.threads() {
            for (object, samples) in profile.objects(thread) {
                let object = String::from_utf8_lossy(object).into_owned();
                all.push((thread.pid, thread.tid, object, samples));
            }
        }
        all.sort();
        all
    }

    #[test]
    fn a_child_has_its_parents_mappings_until_one_of_them_changes_its_own() {
        let mut profile = Profile::default();
        told(&mut profile, 1, What::Execed { pid: 7 });
        told(&mut profile, 2, mapped(7, 0x1000, 0x3000, "/bin/sh"));
        told(&mut profile, 3, What::Forked { pid: 8, parent: 7, thread: false });
        told(&mut profile, 4, What::Forked { pid: 7, parent: 7, thread: true });
        told(&mut profile, 5, mapped(7, 0x2000, 0x3000, "/lib/x.so (deleted)"));
        for (pid, tid) in [(7, 7), (7, 9), (8, 8)] {
            told(&mut profile, 6, at_address(pid, tid, 0x2fff));
        }
        told(&mut profile, 7, What::Execed { pid: 8 });
        told(&mut profile, 8, at_address(8, 8, 0x2fff));
        told(&mut profile, 9, at_address(7, 7, 0x3000));
        let row = |pid, tid, object: &str| (pid, tid, object.to_owned(), 1);
        assert_eq!(
            all(&profile),
            [
                row(7, 7, "/lib/x.so"),
                row(7, 7, "[unknown]"),
                row(7, 9, "/lib/x.so"),
                row(8, 8, "/bin/sh"),
                row(8, 8, "[unknown]"),
            ]
        );
    }

    #[test]
    fn places_that_are_no_files_have_names() {
        let mut profile = Profile::default();
        let names = ["//anon", "[vdso]", "//toolong", "/SYSV00000000 (deleted)"];
        for (start, name) in (0x1000u64..).step_by(0x1000).zip(names) {
            told(&mut profile, 1, mapped(7, start, start + 0x1000, name));
            told(&mut profile, 1, at_address(7, 7, start));
        }
        for place in [Place::Kernel, Place::Kernel, Place::Guest] {
            told(&mut profile, 1, What::Sample { pid: 7, tid: 7, place });
        }
        let row = |object: &str, samples| (7, 7, object.to_owned(), samples);
        assert_eq!(
            all(&profile),
            [
                row("[anonymous]", 1),
                row("[guest]", 1),
                row("[kernel]", 2),
                row("[shared memory]", 1),
                row("[unknown]", 1),
                row("[vdso]", 1),
            ]
        );
    }

    #[test]
    fn a_pid_that_comes_again_is_apart_and_what_ended_is_forgotten() {
        let mut profile = Profile::default();
        told(&mut profile, 1, What::Execed { pid: 7 });
        for round in 1..=1000 {
            told(&mut profile, round, What::Forked { pid: 8, parent: 7, thread: false });
            told(&mut profile, round, What::Forked { pid: 8, parent: 8, thread: true });
            // The leader first, then the other.
            told(&mut profile, round, What::Exited { pid: 8 });
            if round % 500 == 0 {
                told(&mut profile, round, at_address(8, 9, 0));
            }
            told(&mut profile, round, What::Exited { pid: 8 });
        }
        assert_eq!(all(&profile).len(), 2, "{:?}", all(&profile));
        assert_eq!(profile.running.keys().collect::<Vec<_>>(), [&7]);
        told(&mut profile, 1, What::Lost(3));
        told(&mut profile, 1, What::Lost(4));
        assert_eq!(profile.lost, 7);
    }

    const SPACE: u64 = 64;

    proptest! {
        /// Against an array with a cell for each address.
        #[test]
        fn mappings_are_what_was_mapped_last(
            maps in prop::collection::vec((0..SPACE, 0..SPACE, 0..4usize), 0..40)
        ) {
            let mut mappings = Mappings::new();
            let mut cells = [None; SPACE as usize];
            for (start, length, object) in maps {
                let end = (start + length).min(SPACE);
                map(&mut mappings, start, end, object);
                for cell in start..end {
                    cells[cell as usize] = Some(object);
                }
                let mut found = [None; SPACE as usize];
                let mut last = None;
                for (&start, &(end, object)) in &mappings {
                    prop_assert!(start < end, "{mappings:?}");
                    // Apart, and never two where one would do.
                    if let Some((to, before)) = last {
                        prop_assert!(to < start || to == start && before != object, "{mappings:?}");
                    }
                    last = Some((end, object));
                    for cell in start..end {
                        found[cell as usize] = Some(object);
                    }
                }
                prop_assert_eq!(found, cells);
            }
        }
    }
}
