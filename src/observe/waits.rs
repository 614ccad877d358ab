//! Where each thread's time went: on a CPU, runnable and waiting for one, or
//! blocked in a call.
//!
//! A thread is stopped at each call's entry and exit, and what the kernel's
//! scheduler says of it then (`Schedule`) tells what it did in between.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::syscall::{CallSet, Sys};
use crate::tracer::{
    Call, Ending, Event, Nanos, Observer, Outcome, ProcessId, ThreadId, descriptor_limit,
};

/// Of how many threads /proc/TID/schedstat stays open: a descriptor saves most of
/// what a look costs, and there are only so many (RLIMIT_NOFILE).
fn most_open() -> usize {
    const MOST: usize = 128;
    descriptor_limit().map_or(0, |limit| (limit / 4).min(MOST))
}

/// Of a shorter call what was not spent on a CPU is the way to the tracer and
/// back, ns: a look at its end is saved.
const SHORT: Nanos = 50_000;

/// Calls that a thread can be in, one interrupted by the handler of the next.
const MOST_NESTED: usize = 64;

/// A thread's time on and waiting for a CPU, ns, and how often it got one: the
/// numbers of /proc/TID/schedstat (sched-stats.rst of the kernel's documentation).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Schedule {
    /// On a CPU, ns.
    pub cpu: u64,
    /// Runnable, and waiting for one, ns.
    pub run_queue: u64,
    /// How often it was put on one.
    pub slices: u64,
}

impl Schedule {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(Self { cpu: next()?, run_queue: next()?, slices: next()? })
    }

    fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            run_queue: self.run_queue.saturating_sub(before.run_queue),
            slices: self.slices.saturating_sub(before.slices),
        }
    }
}

/// How often, and how long, a thread was blocked in one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Blocked {
    /// Calls in which it got a CPU more than once: it had given it up, or lost it.
    pub calls: u64,
    /// Time in them neither on a CPU nor waiting for one, ns.
    pub ns: u64,
}

/// One thread.
#[derive(Debug)]
pub struct ThreadTime {
    tid: i32,
    file: Option<File>,
    /// From when on it is watched.
    pub start: Nanos,
    base: Schedule,
    /// Until when it was, and what it used in that time. `None` where an exec by
    /// another thread ended it: nobody saw its end.
    pub used: Option<(Nanos, Schedule)>,
    /// The calls that it is in.
    inside: Vec<(Nanos, Schedule)>,
    /// By call.
    pub blocked: HashMap<Sys, Blocked>,
    /// What it had used when it was last heard of without having exited.
    left: Option<(Nanos, Schedule)>,
}

impl ThreadTime {
    fn read(&self) -> Option<Schedule> {
        let mut text = [0; 96];
        let read = match &self.file {
            Some(file) => file.read_at(&mut text, 0),
            None => File::open(path(self.tid)).and_then(|file| file.read_at(&mut text, 0)),
        };
        Schedule::parse(text.get(..read.ok()?)?)
    }

    fn call(&mut self, call: &Call) {
        let (entered, before) = match call.entered {
            // It went on when the collectors had been told of it.
            Some(at) => {
                let Some(depth) = self.inside.iter().rposition(|(then, _)| *then <= at) else {
                    return;
                };
                let found = self.inside.get(depth).copied();
                self.inside.truncate(depth);
                let Some((_, before)) = found else { return };
                (at, before)
            }
            // It was in it when it was attached to.
            None => (self.start, self.base),
        };
        let Some(left) = call.left.or(call.cut) else { return };
        if call.outcome == Outcome::NoReturn {
            return; // It ends, and takes its time over that.
        }
        if left.saturating_sub(entered) < SHORT {
            return;
        }
        let Some(now) = self.read() else { return };
        let used = now.since(before);
        // One slice is the way from the stop at the entry to the next stop.
        let stops = if stops_inside(call.sys) { 2 } else { 1 };
        if used.slices > stops {
            let row = self.blocked.entry(call.sys).or_default();
            row.calls += 1;
            let wall = left.saturating_sub(entered);
            row.ns =
                row.ns.saturating_add(wall.saturating_sub(used.cpu.saturating_add(used.run_queue)));
        }
    }
}

/// Calls in which a thread is not blocked, but by a lock of the kernel's own: no look
/// is needed at each of them.
const WAIT_FOR_NOBODY: [&str; 62] = [
    "arch_prctl",
    "brk",
    "capget",
    "capset",
    "clock_getres",
    "clock_gettime",
    "close_range",
    "dup",
    "dup2",
    "dup3",
    "epoll_create",
    "epoll_create1",
    "epoll_ctl",
    "eventfd2",
    "getcpu",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getpgid",
    "getpgrp",
    "getpid",
    "getppid",
    "getpriority",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "gettid",
    "gettimeofday",
    "getuid",
    "kill",
    "madvise",
    "membarrier",
    "mmap",
    "mprotect",
    "munmap",
    "pipe",
    "pipe2",
    "prlimit64",
    "rseq",
    "rt_sigaction",
    "rt_sigpending",
    "rt_sigprocmask",
    "sched_get_priority_max",
    "sched_get_priority_min",
    "sched_getaffinity",
    "sched_getparam",
    "sched_getscheduler",
    "set_robust_list",
    "set_tid_address",
    "setpriority",
    "setrlimit",
    "sigaltstack",
    "sysinfo",
    "tgkill",
    "time",
    "timer_settime",
    "times",
    "umask",
    "uname",
];

/// Whether a call has an event stop (ptrace(2)) between its entry and its exit.
fn stops_inside(sys: Sys) -> bool {
    sys.is_exec() || matches!(sys.name(), Some("clone" | "clone3" | "fork" | "vfork"))
}

fn path(tid: i32) -> String {
    format!("/proc/{tid}/schedstat")
}

/// The collector.
#[derive(Debug)]
pub struct Waits {
    /// By thread.
    pub threads: HashMap<ThreadId, ThreadTime>,
    calls: CallSet,
    /// Threads of the processes that are there.
    alive: HashMap<ProcessId, Vec<ThreadId>>,
    attached: HashSet<ProcessId>,
    open: usize,
    most_open: usize,
    /// The command's own time is counted.
    has_begun: bool,
}

impl Waits {
    /// Of the time in these calls, which are watched: more must not stop for it.
    pub fn new(calls: CallSet) -> Self {
        Self {
            threads: HashMap::new(),
            calls,
            alive: HashMap::new(),
            attached: HashSet::new(),
            open: 0,
            most_open: most_open(),
            has_begun: false,
        }
    }

    fn start(&mut self, process: ProcessId, thread: ThreadId, tid: i32, start: Nanos) {
        let file = if self.open < self.most_open { File::open(path(tid)).ok() } else { None };
        self.open += usize::from(file.is_some());
        let (base, used, left) = (Schedule::default(), None, None);
        let (inside, blocked) = (Vec::new(), HashMap::new());
        let mut time = ThreadTime { tid, file, start, base, used, inside, blocked, left };
        // On a busy machine it was there for a while before its creator told of it.
        time.base = time.read().unwrap_or_default();
        self.threads.insert(thread, time);
        self.alive.entry(process).or_default().push(thread);
    }

    /// Nothing more is asked of a thread.
    fn close(&mut self, thread: ThreadId) {
        if let Some(time) = self.threads.get_mut(&thread) {
            self.open -= usize::from(time.file.take().is_some());
        }
    }

    /// From here on a thread's time is its own.
    fn begin(&mut self, thread: ThreadId, at: Nanos) {
        if let Some(time) = self.threads.get_mut(&thread) {
            time.start = at;
            time.base = time.read().unwrap_or_default();
        }
    }
}

impl Observer for Waits {
    fn each(&self) -> CallSet {
        let quick = CallSet::of(WAIT_FOR_NOBODY.into_iter().flat_map(Sys::all_named));
        self.calls.clone().intersection(&quick.inverted())
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::ProcessStarted { process, thread, pid, at, .. } => {
                self.start(process, thread, pid, at);
            }
            Event::ThreadStarted { process, thread, tid, at, .. } => {
                self.start(process, thread, tid, at);
            }
            Event::Attached { process, at, .. } => {
                self.attached.insert(process);
                for thread in self.alive.get(&process).cloned().unwrap_or_default() {
                    self.begin(thread, at);
                }
            }
            // Before the command's own exec it is the launcher's time.
            Event::Execing { process: ProcessId(0), at, .. } => {
                if !self.has_begun && !self.attached.contains(&ProcessId(0)) {
                    self.has_begun = true;
                    self.begin(ThreadId(0), at);
                }
            }
            Event::Execed { process, thread, pid, .. } => {
                // The exec has ended the others.
                for other in self.alive.insert(process, vec![thread]).into_iter().flatten() {
                    if let Some(time) = self.threads.get_mut(&other) {
                        time.left = None;
                    }
                }
                let renamed = self.threads.get_mut(&thread).filter(|time| time.tid != pid);
                if let Some(time) = renamed {
                    time.tid = pid;
                    // The kernel has given it the leader's number, and others its own.
                    if time.file.is_some() {
                        time.file = File::open(path(pid)).ok();
                        self.open -= usize::from(time.file.is_none());
                    }
                }
            }
            Event::Entered { thread, at, .. } => {
                if let Some(time) = self.threads.get_mut(&thread)
                    && time.inside.len() < MOST_NESTED
                    && let Some(now) = time.read()
                {
                    time.inside.push((at, now));
                }
            }
            Event::Call(ref call) => {
                if let Some(time) = self.threads.get_mut(&call.thread) {
                    time.call(call);
                }
            }
            Event::ThreadExiting { thread, at, .. } => {
                if let Some(time) = self.threads.get_mut(&thread) {
                    time.used = time.read().map(|now| (at, now.since(time.base)));
                }
                self.close(thread);
            }
            Event::ThreadEnded { thread, at, .. } => {
                if let Some(time) = self.threads.get_mut(&thread).filter(|t| t.used.is_none()) {
                    time.left = time.read().map(|now| (at, now.since(time.base)));
                }
                self.close(thread);
            }
            Event::ProcessEnded { process, ending, .. } => {
                let threads = self.alive.remove(&process).unwrap_or_default();
                for thread in threads.iter().filter(|_| ending == Ending::Detached) {
                    if let Some(time) = self.threads.get_mut(thread) {
                        time.used = time.used.or(time.left);
                    }
                }
            }
            Event::Execing { .. }
            | Event::Needed(_)
            | Event::Counted { .. }
            | Event::Watched { .. } => {}
        }
    }

    fn needs(&self) -> CallSet {
        self.each()
    }
}
