//! What /proc says of a process at the end of its last live thread: its memory
//! map, descriptors and status are still there, and nothing races with it. And at
//! other moments, while the thread that came to it stands still.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use crate::syscall::CallSet;
use crate::tracer::{Call, Ending, Event, Nanos, Observer, ProcessId, ThreadId};

use super::moments::{Moment, What};
use super::paths::opened;

/// Files of /proc/PID/task/TID that are kept of the root process. (Those of
/// /proc/PID are empty by then where the leader has ended first.)
const FILES: [&str; 8] =
    ["status", "maps", "smaps", "smaps_rollup", "cgroup", "limits", "io", "schedstat"];

/// Those that are kept of the others: what a large tree can afford.
const FEW: [&str; 5] = ["status", "smaps_rollup", "cgroup", "io", "schedstat"];

/// Of which processes snapshots are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Which {
    /// None.
    Off,
    /// The root process.
    #[default]
    Root,
    /// All of them, the others with less.
    All,
}

/// One process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Whose.
    pub process: ProcessId,
    /// When.
    pub at: Nanos,
    /// How long taking it took, ns.
    pub took: Nanos,
    /// What it was taken at: [`EXIT`], or the [text](Moment::text) of a moment.
    pub event: String,
    /// Files by name, as they were read; `fd` has a line for each descriptor.
    pub files: Vec<(&'static str, Vec<u8>)>,
}

impl Snapshot {
    /// One of its files.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.iter().find(|(n, _)| *n == name).map(|(_, text)| text.as_slice())
    }

    fn take(process: ProcessId, pid: i32, tid: i32, at: Nanos, names: &[&'static str]) -> Self {
        let dir = format!("/proc/{pid}/task/{tid}");
        let read = |name: &&'static str| {
            // A file that this kernel has not, or that may not be read, is left out.
            Some((*name, fs::read(format!("{dir}/{name}")).ok()?))
        };
        let mut files: Vec<_> = names.iter().filter_map(read).collect();
        if names.len() == FILES.len() {
            files.extend(descriptors(&dir).map(|open| ("fd", open)));
        }
        Self { process, at, took: 0, event: String::new(), files }
    }
}

/// `NUMBER -> TARGET`, a line each, by number; newlines in targets escaped.
fn descriptors(dir: &str) -> Option<Vec<u8>> {
    let mut open: Vec<(i32, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(format!("{dir}/fd")).ok()?.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let (Some(number), Ok(target)) = (number, fs::read_link(entry.path())) {
            open.push((number, target.as_os_str().as_bytes().to_vec()));
        }
    }
    open.sort();
    let mut text = Vec::new();
    for (number, target) in open {
        text.extend_from_slice(format!("{number} -> ").as_bytes());
        for byte in target {
            match byte {
                b'\n' => text.extend_from_slice(b"\\012"),
                byte => text.push(byte),
            }
        }
        text.push(b'\n');
    }
    Some(text)
}

/// Most that is kept of all snapshots but those at ends, bytes: they stay in
/// memory until the run is over.
const MOST_BYTES: usize = 64 << 20;

/// What a snapshot at the end says of when it was taken.
pub const EXIT: &str = "exit";

/// ... and one of a process that was let go.
pub const DETACH: &str = "detach";

/// The collector.
#[derive(Debug, Default)]
pub struct Snapshots {
    which: Which,
    moments: Vec<Moment>,
    /// In order.
    pub taken: Vec<Snapshot>,
    /// Those that were not taken: what others hold is too much.
    pub refused: u64,
    /// Time that taking the root's took: the command did not need it, ns.
    pub spent: Nanos,
    /// Bytes of those at moments.
    held: usize,
    /// Moments that have come, by number.
    came: Vec<bool>,
    processes: HashMap<ProcessId, Known>,
    /// Threads in a call that opens, and their tids.
    opening: HashMap<ThreadId, i32>,
}

/// What is known of a process.
#[derive(Debug)]
struct Known {
    pid: i32,
    /// It runs in another's memory: its parent's (vfork), or the launcher's.
    borrowed: bool,
    /// Moments that it has had, by number.
    had: Vec<bool>,
}

impl Snapshots {
    /// A collector of these, and of those at these moments: of every process for
    /// [`Which::All`], else of the root.
    pub fn new(which: Which, moments: &[Moment]) -> Self {
        let came = vec![false; moments.len()];
        Self { which, moments: moments.to_vec(), came, ..Self::default() }
    }

    /// Moments that never came.
    pub fn missed(&self) -> impl Iterator<Item = &Moment> {
        self.moments.iter().zip(&self.came).filter_map(|(moment, came)| (!came).then_some(moment))
    }

    /// Time that taking the root's took until then, ns.
    pub fn spent_before(&self, at: Nanos) -> Nanos {
        let root = self.taken.iter().filter(|s| s.process == ProcessId(0) && s.at < at);
        root.map(|snapshot| snapshot.took).sum()
    }

    fn is_meant(&self, process: ProcessId) -> bool {
        process == ProcessId(0) || self.which == Which::All
    }

    /// Takes one of the process at each moment that this is.
    fn moment(&mut self, process: ProcessId, tid: i32, at: Nanos, is: impl Fn(&What) -> bool) {
        if !self.is_meant(process) {
            return;
        }
        let Some(known) = self.processes.get_mut(&process).filter(|k| !k.borrowed) else { return };
        let pid = known.pid;
        let mut due = Vec::new();
        for (i, moment) in self.moments.iter().enumerate() {
            let again = matches!(moment.what, What::Exec);
            if let Some(had) = known.had.get_mut(i)
                && (again || !*had)
                && is(&moment.what)
            {
                *had = true;
                due.push(moment.text().to_owned());
                if let Some(came) = self.came.get_mut(i) {
                    *came = true;
                }
            }
        }
        for event in due {
            if self.held > MOST_BYTES {
                self.refused += 1;
            } else {
                let size = self.take(process, (pid, tid), at, event);
                self.held = self.held.saturating_add(size);
            }
        }
    }

    /// Takes one; gives its size.
    fn take(
        &mut self,
        process: ProcessId,
        (pid, tid): (i32, i32),
        at: Nanos,
        event: String,
    ) -> usize {
        let begun = Instant::now();
        let root = process == ProcessId(0);
        let names: &[&str] = if root { &FILES } else { &FEW };
        let snapshot = Snapshot::take(process, pid, tid, at, names);
        let size = snapshot.files.iter().map(|(_, text)| text.len()).sum();
        let took = begun.elapsed().as_nanos() as u64;
        self.taken.push(Snapshot { took, event, ..snapshot });
        if root {
            self.spent += took;
        }
        size
    }

    fn left(&mut self, call: &Call) {
        let Some(tid) = self.opening.remove(&call.thread) else { return };
        let paths = opened(call, tid);
        let at = call.left.unwrap_or(0);
        self.moment(call.process, tid, at, |what| paths.iter().any(|path| what.is_open_of(path)));
    }

    /// Whether the process may open what it has not opened yet.
    fn awaits_open(&self, process: ProcessId) -> bool {
        let Some(known) = self.processes.get(&process) else { return false };
        let awaited =
            |(moment, had): (&Moment, &bool)| !*had && matches!(moment.what, What::Open { .. });
        self.is_meant(process) && self.moments.iter().zip(&known.had).any(awaited)
    }
}

impl Observer for Snapshots {
    fn each(&self) -> CallSet {
        self.needs()
    }

    fn needs(&self) -> CallSet {
        self.moments.iter().fold(CallSet::none(), |calls, moment| calls.union(&moment.calls()))
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::ProcessStarted { process, pid, vfork, .. } => {
                // Until its exec the root is the launcher.
                let borrowed = vfork || process == ProcessId(0);
                let had = vec![false; self.moments.len()];
                self.processes.insert(process, Known { pid, borrowed, had });
            }
            Event::Attached { process, .. } => {
                if let Some(known) = self.processes.get_mut(&process) {
                    known.borrowed = false;
                }
            }
            Event::Execed { process, pid, at, .. } => {
                if let Some(known) = self.processes.get_mut(&process) {
                    known.borrowed = false;
                }
                self.moment(process, pid, at, |what| matches!(what, What::Exec));
            }
            Event::Entered { process, thread, tid, sys, ref args, at } => {
                self.moment(process, tid, at, |what| what.is_entry_of(sys, args));
                if sys.info().is_some_and(|info| info.kind == "open") && self.awaits_open(process) {
                    self.opening.insert(thread, tid);
                }
            }
            Event::Call(ref call) | Event::Needed(ref call) => self.left(call),
            Event::ThreadExiting { process, tid, last: true, at, .. } => {
                let known = self.processes.get(&process).filter(|known| !known.borrowed);
                if let Some(pid) = known.map(|known| known.pid)
                    && self.which != Which::Off
                    && self.is_meant(process)
                {
                    self.take(process, (pid, tid), at, EXIT.to_owned());
                }
            }
            Event::ThreadEnded { thread, .. } => {
                self.opening.remove(&thread);
            }
            Event::ProcessEnded { process, ending, at, .. } => {
                let known = self.processes.remove(&process).filter(|known| !known.borrowed);
                // It runs again, and is what it was a moment ago.
                if let Some(pid) = known.map(|known| known.pid)
                    && ending == Ending::Detached
                    && self.which != Which::Off
                    && self.is_meant(process)
                {
                    self.take(process, (pid, pid), at, DETACH.to_owned());
                }
            }
            _ => {}
        }
    }
}
