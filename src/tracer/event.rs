//! What happened to the program: the only thing collectors are told.

use crate::syscall::{CallSet, Sys};

/// Nanoseconds on `CLOCK_MONOTONIC`.
pub type Nanos = u64;

/// A process of the tree, by an id of our own: pids repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub u32);

/// A thread of the tree, by an id of our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadId(pub u32);

/// A program that a process runs: every exec begins a new one, a fork goes on
/// with its parent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(pub u32);

/// One call: the program asked the kernel once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The process that made it.
    pub process: ProcessId,
    /// The thread that made it.
    pub thread: ThreadId,
    /// The program that made it; for an execve that succeeded, the program that
    /// it started.
    pub image: ImageId,
    /// What it asked for.
    pub sys: Sys,
    /// The arguments as registers hold them.
    pub args: [u64; 6],
    /// When it entered: what [`Event::Entered`] says, and by what calls of several
    /// threads are put in order. `None` for a call entered before attach.
    pub entry: Option<Nanos>,
    /// When the entry stop was resumed; `None` for a call entered before attach.
    pub entered: Option<Nanos>,
    /// When the exit stop was reported; `None` for a call that never returned.
    pub left: Option<Nanos>,
    /// When it was cut off, for one that never returned.
    pub cut: Option<Nanos>,
    /// How it ended.
    pub outcome: Outcome,
    /// How often the kernel re-issued it after an interruption.
    pub restarts: u32,
    /// How often the tracer re-issued it because only tracing interrupted it.
    pub repaired: u32,
}

impl Call {
    /// Wall time inside, in ns; `None` where it never returned.
    pub fn wall(&self) -> Option<u64> {
        Some(self.left?.saturating_sub(self.entered?))
    }
}

/// Calls of one thread that were counted where they were made: all of them had
/// ended, each as often as one [`Call`] would say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// How many.
    pub calls: u64,
    /// (errno, calls), in order of first appearance.
    pub errors: Vec<(i32, u64)>,
    /// Sum of their wall times, ns.
    pub total: u64,
    /// Shortest, ns.
    pub min: u64,
    /// Longest, ns.
    pub max: u64,
    /// (ns, calls): all of them, each time known to one part in eight.
    pub histogram: Vec<(u64, u64)>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It returned this value.
    Returned(i64),
    /// It returned an error: the errno, 1..=4095.
    Failed(i32),
    /// Cut off: killed, or ended by another thread's exec or exit_group, or by
    /// the end of tracing.
    Unfinished,
    /// A signal handler that had interrupted it jumped away.
    Abandoned,
    /// exit and exit_group: not meant to return.
    NoReturn,
}

/// How a process or thread ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exited(i32),
    /// It was killed.
    Killed {
        /// By this signal.
        signal: i32,
        /// Whether it dumped core.
        core: bool,
    },
    /// It went on without the tracer.
    Detached,
}

/// CPU time, faults and I/O of a process, read while it is a zombie.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode, ns.
    pub user_ns: u64,
    /// CPU time in the kernel, ns.
    pub sys_ns: u64,
    /// `ru_maxrss`, bytes.
    pub maxrss_bytes: u64,
    /// Page faults without I/O; `None` without /proc.
    pub minor_faults: Option<u64>,
    /// Page faults with I/O; `None` without /proc.
    pub major_faults: Option<u64>,
    /// `ru_inblock`, 512-byte units.
    pub block_in: u64,
    /// `ru_oublock`, 512-byte units.
    pub block_out: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
}

impl Usage {
    /// What was used since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let less = |field: fn(&Self) -> u64| field(self).saturating_sub(field(before));
        let faults = |field: fn(&Self) -> Option<u64>| {
            Some(field(self)?.saturating_sub(field(before).unwrap_or(0)))
        };
        // The sum is exact, its parts are scaled: keep the sum.
        let total = less(|u| u.user_ns + u.sys_ns);
        let user_ns = less(|u| u.user_ns).min(total);
        Self {
            user_ns,
            sys_ns: total - user_ns,
            maxrss_bytes: self.maxrss_bytes,
            minor_faults: faults(|u| u.minor_faults),
            major_faults: faults(|u| u.major_faults),
            block_in: less(|u| u.block_in),
            block_out: less(|u| u.block_out),
            voluntary_switches: less(|u| u.voluntary_switches),
            involuntary_switches: less(|u| u.involuntary_switches),
        }
    }
}

/// An event. The task it speaks of is still stopped when collectors get it
/// (but for the endings), so /proc shows it as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A process began; its first thread with it.
    ProcessStarted {
        /// The process.
        process: ProcessId,
        /// Its first thread.
        thread: ThreadId,
        /// Its pid.
        pid: i32,
        /// Who created it; `None` for the root or where it could not be told.
        parent: Option<ProcessId>,
        /// Which thread created it, where the kernel told; it is in that call.
        by: Option<ThreadId>,
        /// What it runs.
        image: ImageId,
        /// Whether it shares its parent's memory until it execs (vfork).
        vfork: bool,
        /// When.
        at: Nanos,
    },
    /// The process ran before it was attached to.
    Attached {
        /// The process.
        process: ProcessId,
        /// Its pid.
        pid: i32,
        /// What it runs.
        image: ImageId,
        /// When.
        at: Nanos,
    },
    /// A further thread began.
    ThreadStarted {
        /// Its process.
        process: ProcessId,
        /// The thread.
        thread: ThreadId,
        /// Its tid.
        tid: i32,
        /// Which thread created it, where the kernel told; it is in that call.
        by: Option<ThreadId>,
        /// When.
        at: Nanos,
    },
    /// A call enters that an observer needs the arguments of: what they point at
    /// is still there. Told again when an interrupted call is issued again.
    Entered {
        /// The process.
        process: ProcessId,
        /// The thread that makes it.
        thread: ThreadId,
        /// Its tid.
        tid: i32,
        /// What it asks for.
        sys: Sys,
        /// The arguments as registers hold them.
        args: [u64; 6],
        /// When.
        at: Nanos,
    },
    /// A process is about to exec: /proc still shows the old image.
    Execing {
        /// The process.
        process: ProcessId,
        /// The thread that calls execve.
        tid: i32,
        /// When.
        at: Nanos,
    },
    /// A process has a new image. A thread that is not the leader takes the
    /// leader's tid; all others have ended.
    Execed {
        /// The process.
        process: ProcessId,
        /// The thread that called execve.
        thread: ThreadId,
        /// Its pid, which is that thread's tid from now on.
        pid: i32,
        /// What it runs now.
        image: ImageId,
        /// When.
        at: Nanos,
    },
    /// Calls are watched again, or not for now (`--max-slowdown`): what happened
    /// in between is not told.
    Watched {
        /// Again.
        on: bool,
    },
    /// A call ended (or will never).
    Call(Call),
    /// The same of a call that was not asked for, and that an observer needs.
    Needed(Call),
    /// Calls that were counted inside the tracee, of those that need not be told
    /// [each](Observer::each).
    Counted {
        /// The process that made them.
        process: ProcessId,
        /// The thread that made them.
        thread: ThreadId,
        /// The program that made them.
        image: ImageId,
        /// What they asked for.
        sys: Sys,
        /// How they ended.
        times: CallTimes,
    },
    /// A thread is at its exit stop: memory map and status are still there.
    ThreadExiting {
        /// Its process.
        process: ProcessId,
        /// The thread.
        thread: ThreadId,
        /// Its tid.
        tid: i32,
        /// Whether it is the last live thread of its process.
        last: bool,
        /// When.
        at: Nanos,
    },
    /// A thread is gone.
    ThreadEnded {
        /// Its process.
        process: ProcessId,
        /// The thread.
        thread: ThreadId,
        /// When.
        at: Nanos,
    },
    /// A process is gone.
    ProcessEnded {
        /// The process.
        process: ProcessId,
        /// How.
        ending: Ending,
        /// Its own, without its children's; `None` where it could not be read.
        own: Option<Usage>,
        /// With the children it waited for, from wait4; switches and block I/O too.
        with_children: Option<Usage>,
        /// When.
        at: Nanos,
    },
}

/// A collector.
pub trait Observer {
    /// Takes one event.
    fn event(&mut self, event: &Event);

    /// The calls of which it needs the arguments, and so [`Event::Entered`]; they
    /// stop whatever was asked for.
    fn needs(&self) -> CallSet {
        CallSet::none()
    }

    /// The calls each of which has to be told, as [`Event::Call`]. Of others
    /// [`Event::Counted`] is enough. Asked once, at the begin.
    fn each(&self) -> CallSet {
        CallSet::all()
    }

    /// Whether that is all calls by now. It is not taken back.
    fn wants_each(&self) -> bool {
        false
    }
}
