//! From a wait status to a [`Stop`]. Pure: no system call is made here, so any
//! sequence that a kernel can produce can be a test.

use serde::{Deserialize, Serialize};

use crate::syscall::Sys;

use super::event::{Ending, Nanos};

/// `PTRACE_EVENT_STOP` of linux/ptrace.h, which reports group-stops and first
/// stops of seized tracees (Linux 3.4).
const EVENT_STOP: i32 = 128;

/// A system call at its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The call.
    pub sys: Sys,
    /// Its arguments as the registers hold them.
    pub args: [u64; 6],
    /// Instruction pointer, just behind the call instruction.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
}

/// How a child came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Birth {
    /// fork(2), or clone(2) with SIGCHLD as termination signal.
    Fork,
    /// vfork(2), or CLONE_VFORK.
    Vfork,
    /// Any other clone(2) or clone3(2): a thread, or a process.
    Clone,
}

/// What the signal's disposition is in the tracee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Disposition {
    /// A handler will run.
    Handled,
    /// Nothing will happen: ignored, or ignored by default.
    Ignored,
    /// The default action: it ends, stops or continues the process.
    Default,
    /// It could not be told.
    Unknown,
}

/// What the kernel said, classified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stop {
    /// Syscall-entry-stop.
    Entry(Entry),
    /// Syscall-exit-stop.
    Exit {
        /// The value the program will get; -516..=-512 when interrupted.
        value: i64,
        /// Instruction pointer.
        ip: u64,
        /// Stack pointer.
        sp: u64,
        /// It is EINTR only because the task is traced: no signal is there that
        /// the program would have noticed.
        spurious: bool,
    },
    /// Syscall-entry-stop or syscall-exit-stop: the kernel would not say of what.
    Lost,
    /// A seccomp filter said RET_TRACE, at a call's entry.
    Seccomp(Entry),
    /// Signal-delivery-stop.
    Signal {
        /// The signal.
        signal: i32,
        /// Its disposition, where the state machine asked for it.
        disposition: Disposition,
    },
    /// A signal that does nothing has ended, in EINTR, a call whose entry did not
    /// stop: without a tracer it would go on.
    Disturbed {
        /// The call.
        entry: Entry,
    },
    /// Group-stop: one of the four stopping signals is in force.
    GroupStop {
        /// Which one.
        signal: i32,
    },
    /// The first stop of a new task, or the answer to PTRACE_INTERRUPT, or the
    /// end of a group-stop.
    Trap,
    /// The first stop of a thread that was attached to, or that is watched again
    /// after a pause.
    Arrived {
        /// The call that the stop interrupted, and what it left in the register.
        inside: Option<(Entry, i64)>,
        /// That value is EINTR only because of this stop.
        spurious: bool,
        /// Its process is stopped by a signal.
        stopped: bool,
        /// Since when it slept in that call, where that could be told.
        since: Option<Nanos>,
    },
    /// A child was created.
    Child {
        /// How.
        birth: Birth,
        /// Its tid.
        child: i32,
        /// Whether it is a thread of the same process.
        thread: bool,
    },
    /// exec succeeded.
    Exec {
        /// Tid of the thread that called it, before it took the leader's.
        former: i32,
    },
    /// PTRACE_EVENT_EXIT: the task is about to end, its memory is still there.
    Exiting {
        /// The wait status that it will end with.
        status: i32,
    },
    /// The task ended by exit.
    Exited {
        /// Exit status.
        code: i32,
    },
    /// The task was killed.
    Killed {
        /// By this signal.
        signal: i32,
        /// Whether it dumped core.
        core: bool,
    },
    /// A filter was asked about what the program does through the vsyscall page:
    /// no call, and no exit stop follows.
    Vsyscall,
    /// The task was killed while the loop asked about its stop: its end follows.
    Dying,
    /// Something this version does not know: recorded, and continued past.
    Unknown {
        /// The raw status.
        status: i32,
    },
}

/// What a wait status alone says, and so what has to be asked next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// Complete as it is.
    Plain(Stop),
    /// A signal-delivery-stop.
    Signal(i32),
    /// A syscall stop: ask which side, and for the call.
    Syscall,
    /// A RET_TRACE stop: ask for the call.
    Seccomp,
    /// A birth: ask for the child's tid.
    Child(Birth),
    /// An exec: ask for the former tid.
    Exec,
    /// An exit stop: ask for the status.
    Exiting,
}

/// Reads a raw wait status (wait(2), ptrace(2)). Signals up to 127 are taken as
/// they are: wrappers that know only named signals reject the real-time ones.
pub fn report(status: i32) -> Report {
    let low = status & 0x7f;
    if low == 0 {
        return Report::Plain(Stop::Exited { code: (status >> 8) & 0xff });
    }
    if status & 0xff != 0x7f {
        return Report::Plain(Stop::Killed { signal: low, core: status & 0x80 != 0 });
    }
    let signal = (status >> 8) & 0xff;
    match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => Report::Syscall,
        0 => Report::Signal(signal),
        libc::PTRACE_EVENT_FORK => Report::Child(Birth::Fork),
        libc::PTRACE_EVENT_VFORK => Report::Child(Birth::Vfork),
        libc::PTRACE_EVENT_CLONE => Report::Child(Birth::Clone),
        libc::PTRACE_EVENT_EXEC => Report::Exec,
        libc::PTRACE_EVENT_EXIT => Report::Exiting,
        libc::PTRACE_EVENT_SECCOMP => Report::Seccomp,
        EVENT_STOP => Report::Plain(match signal {
            libc::SIGSTOP | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => {
                Stop::GroupStop { signal }
            }
            _ => Stop::Trap,
        }),
        _ => Report::Plain(Stop::Unknown { status }),
    }
}

/// How a task ended, when a wait status says that it did.
pub fn ending(status: i32) -> Option<Ending> {
    match report(status) {
        Report::Plain(Stop::Exited { code }) => Some(Ending::Exited(code)),
        Report::Plain(Stop::Killed { signal, core }) => Some(Ending::Killed { signal, core }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stopped(signal: i32, event: i32) -> i32 {
        (event << 16) | (signal << 8) | 0x7f
    }

    #[test]
    fn every_signal_to_64_is_a_signal_stop_or_a_death() {
        for signal in 1..=64 {
            assert_eq!(report(stopped(signal, 0)), Report::Signal(signal));
            assert_eq!(report(signal), Report::Plain(Stop::Killed { signal, core: false }));
            assert_eq!(report(signal | 0x80), Report::Plain(Stop::Killed { signal, core: true }));
        }
    }

    #[test]
    fn a_users_sigtrap_is_no_syscall_stop() {
        assert_eq!(report(stopped(libc::SIGTRAP, 0)), Report::Signal(libc::SIGTRAP));
        assert_eq!(report(stopped(libc::SIGTRAP | 0x80, 0)), Report::Syscall);
    }

    #[test]
    fn only_the_four_stopping_signals_are_group_stops() {
        for signal in 1..=64 {
            let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
            let wanted =
                if stops.contains(&signal) { Stop::GroupStop { signal } } else { Stop::Trap };
            assert_eq!(report(stopped(signal, EVENT_STOP)), Report::Plain(wanted));
        }
    }

    #[test]
    fn exits_keep_their_code_and_no_status_panics() {
        for code in 0..=255 {
            assert_eq!(report(code << 8), Report::Plain(Stop::Exited { code }));
        }
        for status in (i32::MIN..=i32::MAX).step_by(65_521) {
            let _ = report(status);
        }
        assert!(matches!(report(stopped(libc::SIGTRAP, 77)), Report::Plain(Stop::Unknown { .. })));
    }
}
