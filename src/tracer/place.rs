//! A fixed place for a command: what it would find otherwise depends on who
//! starts coldtrace, and its counts with it.
//!
//! `ready` looks and allocates before the fork; `enter` is the child's side.

use std::io;

use super::error::reason;

/// A place that is the same from run to run, and on a laptop and in CI. Beside
/// what can be chosen: umask 022; soft limits of 1024 descriptors, 8 MiB of stack
/// and no core file, as far as the hard ones allow; signals neither ignored nor
/// blocked; a session of its own, so that /dev/tty leads to no terminal; of
/// coldtrace's descriptors only 0, 1 and 2; no interval timers. Environment,
/// working directory and streams are the [`Command`]'s.
///
/// In a session of its own it is coldtrace that hears the terminal. What asks for
/// an end (Ctrl-C, SIGTERM) it sends to every process of the tree, and when it is
/// asked again after the command's end, it kills what is left.
///
/// [`Command`]: super::Command
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// Leave the randomisation of addresses as it is found, instead of turning it
    /// off (personality(2)).
    pub aslr: bool,
    /// Leave randomness as it is, instead of giving the same bytes in each run: those
    /// of getrandom(2) and AT_RANDOM (getauxval(3)). Not without tracing, not of
    /// 32-bit programs' AT_RANDOM, and not what is read from /dev/urandom.
    pub random: bool,
    /// Processors that the command may use, of those that coldtrace may use the
    /// last ones; `None`: all of them.
    pub cpus: Option<u32>,
    /// Disturb its order: where there are several threads, the tracer holds back
    /// some at their calls for up to 16 ms, other ones for each number. A count that
    /// hangs on who comes first differs in such a run from what it is otherwise. It
    /// takes up to half as long again, and 0.2 s.
    pub disturb: Option<u32>,
}

impl Default for Place {
    /// Without randomisation, on one processor.
    fn default() -> Self {
        Self { aslr: false, random: false, cpus: Some(1), disturb: None }
    }
}

/// What could not be fixed: the command runs all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfixed {
    Addresses = 4,
    Processors = 5,
    Limits = 6,
}

impl Unfixed {
    /// By its number in a message of the child's.
    pub fn from_number(number: u8) -> Option<Self> {
        [Self::Addresses, Self::Processors, Self::Limits].into_iter().find(|u| *u as u8 == number)
    }

    /// One line for whoever compares counts.
    pub fn note(self, error: &io::Error) -> String {
        let (what, advice) = match self {
            Self::Addresses => (
                "addresses stay randomised, personality(2) was refused",
                ", as in containers with a filter (docker: --security-opt seccomp=unconfined)",
            ),
            Self::Processors => ("the command may use all processors of coldtrace", ""),
            Self::Limits => ("a resource limit stays as it was found", ""),
        };
        format!("{what}: {}{advice}; counts may vary", reason(error))
    }
}

/// A place, ready to be entered: between fork and exec nothing may allocate.
pub struct Ready {
    aslr: bool,
    cpus: Option<libc::cpu_set_t>,
}

/// The soft limits that a command finds; sizes in bytes.
const LIMITS: [(Resource, libc::rlim_t); 3] =
    [(libc::RLIMIT_NOFILE, 1024), (libc::RLIMIT_STACK, 8 << 20), (libc::RLIMIT_CORE, 0)];

#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// As many descriptors are looked at where close_range(2) is missing.
const MOST_DESCRIPTORS: libc::rlim_t = 1 << 16;

impl Place {
    /// Looks at what the child needs to know.
    pub fn ready(&self) -> Ready {
        let some = |n: u32| last(&allowed()?, n as usize);
        Ready { aslr: self.aslr, cpus: self.cpus.and_then(some) }
    }
}

impl Ready {
    /// Fixes the place for this process, but for its descriptors; `say` is told
    /// what could not be, with errno as it was left.
    ///
    /// # Safety
    /// Only to be called in a freshly forked child.
    pub unsafe fn enter(&self, say: impl Fn(Unfixed)) {
        // SAFETY: plain system calls on values that live through them. All-zero
        // bytes are the default action and an empty set, as the kernel has them.
        unsafe {
            libc::setsid(); // A forked child leads no group, so it may.
            let default = [0u64; 4];
            for signal in 1..=64 {
                let none = std::ptr::null_mut::<u64>();
                // SIGKILL and SIGSTOP are refused, and default.
                libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), none, 8);
            }
            let empty: libc::sigset_t = std::mem::zeroed();
            libc::sigprocmask(libc::SIG_SETMASK, &raw const empty, std::ptr::null_mut());
            libc::umask(0o022);
            for (resource, soft) in LIMITS {
                let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                let asked = libc::getrlimit(resource, &raw mut limit);
                limit.rlim_cur = soft.min(limit.rlim_max);
                if asked < 0 || libc::setrlimit(resource, &raw const limit) < 0 {
                    say(Unfixed::Limits);
                }
            }
            if !self.aslr {
                const ASK: libc::c_ulong = 0xffff_ffff;
                let found = libc::personality(ASK);
                let fixed = found | libc::ADDR_NO_RANDOMIZE;
                if found < 0 || libc::personality(fixed as libc::c_ulong) < 0 {
                    say(Unfixed::Addresses);
                }
            }
            if let Some(cpus) = &self.cpus
                && libc::sched_setaffinity(0, size_of_val(cpus), cpus) < 0
            {
                say(Unfixed::Processors);
            }
        }
    }
}

/// Has the exec close all descriptors from 3 on.
///
/// # Safety
/// Only to be called in a freshly forked child.
pub unsafe fn close_at_exec() {
    // SAFETY: descriptors are numbers; the limit is a valid rlimit to fill.
    unsafe {
        const CLOEXEC: libc::c_uint = 4; // CLOSE_RANGE_CLOEXEC, Linux 5.11
        if libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, CLOEXEC) == 0 {
            return;
        }
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        for fd in 3..limit.rlim_max.min(MOST_DESCRIPTORS) as libc::c_int {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
    }
}

/// The processors that this thread may use; `None` where there are more than a
/// `cpu_set_t` holds.
fn allowed() -> Option<libc::cpu_set_t> {
    // SAFETY: all-zero bytes are a set without processors, which the kernel fills.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        let asked = libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        (asked == 0).then_some(set)
    }
}

/// The last `n` of these processors, one at least.
fn last(set: &libc::cpu_set_t, n: usize) -> Option<libc::cpu_set_t> {
    // SAFETY: all-zero bytes are a set without processors; the numbers are below
    // what it holds.
    unsafe {
        let mut some: libc::cpu_set_t = std::mem::zeroed();
        let all = (0..libc::CPU_SETSIZE as usize).rev().filter(|&cpu| libc::CPU_ISSET(cpu, set));
        let mut any = false;
        for cpu in all.take(n.max(1)) {
            libc::CPU_SET(cpu, &mut some);
            any = true;
        }
        any.then_some(some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> libc::cpu_set_t {
        // SAFETY: all-zero bytes are a set without processors.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for &cpu in cpus {
            // SAFETY: the tests' numbers are below 1024.
            unsafe { libc::CPU_SET(cpu, &mut set) };
        }
        set
    }

    fn members(set: &libc::cpu_set_t) -> Vec<usize> {
        // SAFETY: the numbers are below what it holds.
        (0..libc::CPU_SETSIZE as usize).filter(|&n| unsafe { libc::CPU_ISSET(n, set) }).collect()
    }

    #[test]
    fn the_last_processors_are_taken() {
        let all = set(&[1, 2, 5, 900]);
        for (n, cpus) in [(1, &[900][..]), (0, &[900]), (3, &[2, 5, 900]), (9, &[1, 2, 5, 900])] {
            assert_eq!(last(&all, n).map(|set| members(&set)).as_deref(), Some(cpus), "{n}");
        }
        assert!(last(&set(&[]), 1).is_none());
    }

    #[test]
    fn what_could_not_be_fixed_is_told_by_number() {
        for unfixed in [Unfixed::Addresses, Unfixed::Processors, Unfixed::Limits] {
            assert_eq!(Unfixed::from_number(unfixed as u8), Some(unfixed));
        }
        for other in [0, 1, 2, 3, 7, 255] {
            assert_eq!(Unfixed::from_number(other), None);
        }
        let note = Unfixed::Addresses.note(&io::Error::from_raw_os_error(libc::EPERM));
        assert!(note.contains("Operation not permitted") && !note.contains('\n'), "{note}");
    }
}
