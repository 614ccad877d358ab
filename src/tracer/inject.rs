//! The seam through which tests make a system call of the loop fail. Compiled
//! into debug builds only, and asleep unless `COLDTRACE_INJECT` says
//! `REQUEST:NTH:ERRNO[:kill]`: the NTH call with that ptrace request (`wait` for
//! waitid) fails with that error; with `kill` the task is killed too, so that
//! ESRCH is the truth.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What `REQUEST` stands for waitid.
pub const WAIT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Injection {
    request: u32,
    nth: u32,
    errno: i32,
    kill: bool,
}

static INJECTION: OnceLock<Option<Injection>> = OnceLock::new();
static SEEN: AtomicU32 = AtomicU32::new(0);

/// The error that this call has to fail with, if it is the one.
pub fn fails(request: u32, tid: i32) -> Option<io::Error> {
    let injection = (*INJECTION.get_or_init(parse))?;
    if request != injection.request || SEEN.fetch_add(1, Relaxed) + 1 != injection.nth {
        return None;
    }
    if injection.kill {
        // SAFETY: kill takes its arguments by value; the task is a tracee.
        unsafe { libc::kill(tid, libc::SIGKILL) };
    }
    Some(io::Error::from_raw_os_error(injection.errno))
}

fn parse() -> Option<Injection> {
    let text = std::env::var("COLDTRACE_INJECT").ok()?;
    let mut parts = text.split(':');
    let request = match parts.next()? {
        "seize" => libc::PTRACE_SEIZE,
        "interrupt" => libc::PTRACE_INTERRUPT,
        "syscall" => libc::PTRACE_SYSCALL,
        "cont" => libc::PTRACE_CONT,
        "listen" => libc::PTRACE_LISTEN,
        "detach" => libc::PTRACE_DETACH,
        "message" => libc::PTRACE_GETEVENTMSG,
        "siginfo" => libc::PTRACE_GETSIGINFO,
        "info" => libc::PTRACE_GET_SYSCALL_INFO,
        "getregs" => libc::PTRACE_GETREGSET,
        "setregs" => libc::PTRACE_SETREGSET,
        "wait" => WAIT,
        _ => return None,
    };
    let nth = parts.next()?.parse().ok()?;
    let errno = match parts.next()? {
        "ESRCH" => libc::ESRCH,
        "EPERM" => libc::EPERM,
        "EINTR" => libc::EINTR,
        "ENOSYS" => libc::ENOSYS,
        "EIO" => libc::EIO,
        _ => return None,
    };
    Some(Injection { request, nth, errno, kill: parts.next() == Some("kill") })
}
