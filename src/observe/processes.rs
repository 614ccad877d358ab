//! The process tree: who started whom, what each executed, how it ended, and
//! what of CPU, faults and memory was its own.

use std::collections::HashMap;
use std::fs;

use crate::syscall::CallSet;
use crate::tracer::{Ending, Event, ImageId, Nanos, Observer, ProcessId, Status, ThreadId, Usage};

/// One process.
#[derive(Debug, Clone)]
pub struct ProcessEntry {
    /// Its pid.
    pub pid: i32,
    /// Who created it.
    pub parent: Option<ProcessId>,
    /// When it started.
    pub start: Nanos,
    /// When its end was reported.
    pub end: Option<Nanos>,
    /// What it ran when it was created.
    pub image: ImageId,
    /// What it executed: (when, file, arguments).
    pub execs: Vec<(Nanos, Option<String>, Vec<String>)>,
    /// How it ended.
    pub ending: Option<Ending>,
    /// Its own usage.
    pub own: Option<Usage>,
    /// Largest VmHWM seen of its images, bytes.
    pub peak_rss: Option<u64>,
    /// Its memory at each exec and at its end: when, whether at an exec, and
    /// resident bytes (anonymous, of files, shared).
    pub memory: Vec<(Nanos, bool, [Option<u64>; 3])>,
    /// Its threads.
    pub threads: Vec<ThreadId>,
    /// It still runs in its parent's memory.
    borrowed_memory: bool,
}

/// One thread.
#[derive(Debug, Clone, Default)]
pub struct ThreadEntry {
    /// Its tid.
    pub tid: i32,
    /// Its name at its end.
    pub name: Option<String>,
    /// When it started.
    pub start: Nanos,
    /// When its end was reported.
    pub end: Option<Nanos>,
    /// Calls entered.
    pub calls: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Voluntary switches.
    pub voluntary: Option<u64>,
    /// Involuntary switches.
    pub involuntary: Option<u64>,
}

/// How much is kept of each process and thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Depth {
    /// How many there were, and the sum of their usage.
    Totals,
    /// Their names too.
    Names,
    /// All of it: a small file of /proc is read at each thread's end.
    #[default]
    Full,
}

/// The tree of a run.
#[derive(Debug, Default)]
pub struct Processes {
    /// In order of start.
    pub processes: indexmap::IndexMap<ProcessId, ProcessEntry>,
    /// By id.
    pub threads: HashMap<ThreadId, ThreadEntry>,
    /// The files that ran, by program.
    pub images: HashMap<ImageId, String>,
    /// When the last process ended.
    pub last_end: Option<Nanos>,
    depth: Depth,
    process_count: u64,
    thread_count: u64,
    own: Usage,
    /// Some process's usage could not be read.
    own_lost: bool,
}

impl Processes {
    /// A full account.
    pub fn full() -> Self {
        let own = Usage { minor_faults: Some(0), major_faults: Some(0), ..Usage::default() };
        Self { own, ..Self::default() }
    }

    /// Names and totals.
    pub fn names() -> Self {
        Self { depth: Depth::Names, ..Self::full() }
    }

    /// Totals only: memory does not grow with the processes that come and go.
    pub fn totals() -> Self {
        Self { depth: Depth::Totals, ..Self::full() }
    }

    /// Processes seen.
    pub fn process_count(&self) -> u64 {
        self.process_count
    }

    /// Threads seen, the first of each process included.
    pub fn thread_count(&self) -> u64 {
        self.thread_count
    }

    /// Usage of all processes, each without its children's; `None` when that of
    /// some could not be read.
    pub fn own(&self) -> Option<Usage> {
        (!self.own_lost).then_some(self.own)
    }

    fn total(&mut self, event: &Event) {
        match event {
            Event::ProcessStarted { .. } => {
                self.process_count += 1;
                self.thread_count += 1;
            }
            Event::ThreadStarted { .. } => self.thread_count += 1,
            Event::ProcessEnded { own: Some(own), at, .. } => {
                self.last_end = self.last_end.max(Some(*at));
                self.own.user_ns += own.user_ns;
                self.own.sys_ns += own.sys_ns;
                let sum = |a: &mut Option<u64>, b: Option<u64>| *a = a.zip(b).map(|(a, b)| a + b);
                sum(&mut self.own.minor_faults, own.minor_faults);
                sum(&mut self.own.major_faults, own.major_faults);
            }
            Event::ProcessEnded { own: None, at, .. } => {
                self.last_end = self.last_end.max(Some(*at));
                self.own_lost = true;
            }
            _ => {}
        }
    }

    fn start(&mut self, thread: ThreadId, tid: i32, start: Nanos, process: ProcessId) {
        self.threads.insert(thread, ThreadEntry { tid, start, ..ThreadEntry::default() });
        if let Some(p) = self.processes.get_mut(&process) {
            p.threads.push(thread);
        }
    }

    /// A process runs a program: from its exec on, or when it was attached to.
    fn runs(&mut self, process: ProcessId, pid: i32, image: ImageId, at: Nanos) {
        let (file, argv) = (executable(pid), arguments(pid));
        if let Some(name) = file.clone().or_else(|| argv.first().cloned()) {
            self.images.insert(image, name);
        }
        if let Some(p) = self.processes.get_mut(&process) {
            p.execs.push((at, file, argv));
        }
    }

    /// An image is about to end, by an exec.
    fn note_memory(&mut self, process: ProcessId, tid: i32, at: Nanos) {
        let Some(p) = self.processes.get_mut(&process).filter(|p| !p.borrowed_memory) else {
            return;
        };
        if let Some(status) = Status::read(tid) {
            // What a fork copied and the child does not use is not the child's.
            let copied = p.parent.is_some() && p.execs.is_empty();
            if !copied {
                p.peak_rss = p.peak_rss.max(peak_rss(&status));
            }
            p.memory.push((at, true, resident(&status)));
        }
    }

    fn exiting(&mut self, process: ProcessId, thread: ThreadId, tid: i32, last: bool, at: Nanos) {
        let Some(t) = self.threads.get_mut(&thread) else { return };
        if let Some(status) = Status::read(tid) {
            t.name = status.field("Name:").map(str::to_owned);
            t.voluntary = status.number("voluntary_ctxt_switches:");
            t.involuntary = status.number("nonvoluntary_ctxt_switches:");
            if last
                && let Some(p) = self.processes.get_mut(&process)
                && !p.borrowed_memory
            {
                p.peak_rss = p.peak_rss.max(peak_rss(&status));
                p.memory.push((at, false, resident(&status)));
            }
        }
    }
}

impl Observer for Processes {
    fn each(&self) -> CallSet {
        CallSet::none()
    }

    fn event(&mut self, event: &Event) {
        self.total(event);
        if self.depth == Depth::Totals {
            return;
        }
        let full = self.depth == Depth::Full;
        match *event {
            Event::ProcessStarted { process, thread, pid, parent, image, vfork, at, .. } => {
                self.processes.insert(
                    process,
                    ProcessEntry {
                        pid,
                        parent,
                        start: at,
                        end: None,
                        image,
                        execs: Vec::new(),
                        ending: None,
                        own: None,
                        peak_rss: None,
                        memory: Vec::new(),
                        threads: Vec::new(),
                        borrowed_memory: vfork,
                    },
                );
                self.start(thread, pid, at, process);
            }
            Event::ThreadStarted { process, thread, tid, at, .. } => {
                self.start(thread, tid, at, process);
            }
            Event::Execing { process, tid, at } if full => {
                // Before the command's own exec it is the launcher's memory.
                let launcher = process == ProcessId(0)
                    && self.processes.get(&process).is_some_and(|p| p.execs.is_empty());
                if !launcher {
                    self.note_memory(process, tid, at);
                }
            }
            Event::Execed { process, thread, pid, image, at } => {
                if let Some(p) = self.processes.get_mut(&process) {
                    p.borrowed_memory = false;
                }
                self.runs(process, pid, image, at);
                if let Some(t) = self.threads.get_mut(&thread) {
                    t.tid = pid;
                }
            }
            Event::Attached { process, pid, image, at } => self.runs(process, pid, image, at),
            Event::Call(ref call) => {
                if let Some(t) = self.threads.get_mut(&call.thread) {
                    t.calls += 1;
                    t.errors +=
                        u64::from(matches!(call.outcome, crate::tracer::Outcome::Failed(_)));
                }
            }
            Event::Counted { thread, ref times, .. } => {
                if let Some(t) = self.threads.get_mut(&thread) {
                    t.calls += times.calls;
                    t.errors += times.errors.iter().map(|(_, n)| n).sum::<u64>();
                }
            }
            Event::ThreadExiting { process, thread, tid, last, at } if full => {
                self.exiting(process, thread, tid, last, at);
            }
            Event::ThreadEnded { thread, at, .. } => {
                if let Some(t) = self.threads.get_mut(&thread) {
                    t.end = Some(at);
                }
            }
            Event::ProcessEnded { process, ending, own, at, .. } => {
                if let Some(p) = self.processes.get_mut(&process) {
                    p.end = Some(at);
                    p.ending = Some(ending);
                    p.own = own;
                }
            }
            Event::Execing { .. }
            | Event::ThreadExiting { .. }
            | Event::Entered { .. }
            | Event::Needed(_)
            | Event::Watched { .. } => {}
        }
    }
}

fn executable(pid: i32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(path.to_string_lossy().into_owned())
}

/// The arguments of a process, from /proc/PID/cmdline (invalid UTF-8 replaced).
pub fn arguments(pid: i32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes.split(|&b| b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect()
}

/// Resident memory, bytes: anonymous, of files, shared.
fn resident(status: &Status) -> [Option<u64>; 3] {
    ["RssAnon:", "RssFile:", "RssShmem:"].map(|name| status.number::<u64>(name)?.checked_mul(1024))
}

/// Largest resident set of the memory a task runs in, bytes.
fn peak_rss(status: &Status) -> Option<u64> {
    Some(status.number::<u64>("VmHWM:")? * 1024)
}
