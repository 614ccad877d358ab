//! Samples by process, thread and mapped object: the pure part.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use indexmap::IndexSet;

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
            name => name.strip_suffix(b" (deleted)").unwrap_or(name),
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
