//! What /proc says of a process at the end of its last live thread: its memory
//! map, descriptors and status are still there, and nothing races with it.

use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::tracer::{Event, Nanos, Observer, ProcessId};

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
            files.push(("fd", descriptors(&dir)));
        }
        Self { process, at, files }
    }
}

/// `NUMBER -> TARGET`, a line each, by number; newlines in targets escaped.
fn descriptors(dir: &str) -> Vec<u8> {
    let mut open: Vec<(i32, Vec<u8>)> = Vec::new();
    for entry in fs::read_dir(format!("{dir}/fd")).into_iter().flatten().flatten() {
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
    text
}

/// The collector.
#[derive(Debug, Default)]
pub struct Snapshots {
    which: Which,
    /// In order.
    pub taken: Vec<Snapshot>,
    /// Time that taking the root's took: the command did not need it, ns.
    pub spent: Nanos,
    /// Pids, and who still runs in borrowed memory.
    processes: std::collections::HashMap<ProcessId, (i32, bool)>,
}

impl Snapshots {
    /// A collector of these.
    pub fn new(which: Which) -> Self {
        Self { which, ..Self::default() }
    }

    /// The root's last.
    pub fn into_root(self) -> Option<Snapshot> {
        self.taken.into_iter().rev().find(|snapshot| snapshot.process == ProcessId(0))
    }
}

impl Observer for Snapshots {
    fn event(&mut self, event: &Event) {
        match *event {
            Event::ProcessStarted { process, pid, vfork, .. } if self.which != Which::Off => {
                self.processes.insert(process, (pid, vfork));
            }
            Event::Execed { process, .. } => {
                if let Some((_, borrowed)) = self.processes.get_mut(&process) {
                    *borrowed = false;
                }
            }
            Event::ThreadExiting { process, tid, last: true, at, .. } => {
                let Some(&(pid, borrowed)) = self.processes.get(&process) else { return };
                let root = process == ProcessId(0);
                if borrowed || !root && self.which != Which::All {
                    return;
                }
                let begun = std::time::Instant::now();
                let names: &[&str] = if root { &FILES } else { &FEW };
                self.taken.push(Snapshot::take(process, pid, tid, at, names));
                if root {
                    self.spent += begun.elapsed().as_nanos() as u64;
                }
            }
            Event::ProcessEnded { process, .. } => {
                self.processes.remove(&process);
            }
            _ => {}
        }
    }
}
