//! How to re-issue a call that a signal interrupted which the program ignores:
//! without a tracer it would never have woken for it. Its timeout goes on from
//! where it was.

use crate::syscall::Abi;

use super::memory;
use super::stop::Entry;

/// What to do with the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Issue it again with these arguments.
    Again([u64; 6]),
    /// Its time is over: let it return this.
    End(i64),
}

/// How a call says how long it waits.
enum Timeout {
    /// Milliseconds in this argument; negative: for ever.
    Milliseconds(usize),
    /// A pointer to a timespec in this argument; null: for ever.
    Timespec(usize),
    /// A socket option of the descriptor in argument 0.
    Socket(libc::c_int),
    /// For ever.
    None,
}

/// What a call returns when its time is over.
const AGAIN: i64 = -(libc::EAGAIN as i64);

/// Below the stack pointer the ABI keeps 128 bytes for the function itself.
const RED_ZONE: u64 = 128;

/// Plans the re-issue of `entry`, in which `tid` has spent `elapsed` ns.
pub fn plan(tid: i32, entry: &Entry, elapsed: u64) -> Plan {
    let (timeout, over) = match entry.sys.name().unwrap_or_default() {
        "epoll_wait" | "epoll_pwait" => (Timeout::Milliseconds(3), 0),
        "epoll_pwait2" => (Timeout::Timespec(3), 0),
        "semtimedop" => (Timeout::Timespec(3), AGAIN),
        "rt_sigtimedwait" => (Timeout::Timespec(2), AGAIN),
        "io_getevents" | "io_pgetevents" => (Timeout::Timespec(4), 0),
        "recvfrom" | "recvmsg" | "recvmmsg" | "read" | "readv" | "accept" | "accept4" => {
            (Timeout::Socket(libc::SO_RCVTIMEO), AGAIN)
        }
        "connect" => (Timeout::Socket(libc::SO_SNDTIMEO), -i64::from(libc::EINPROGRESS)),
        "sendto" | "sendmsg" | "sendmmsg" | "write" | "writev" => {
            (Timeout::Socket(libc::SO_SNDTIMEO), AGAIN)
        }
        _ => (Timeout::None, 0),
    };
    let mut args = entry.args;
    match timeout {
        Timeout::Milliseconds(which) => {
            let Some(argument) = args.get_mut(which) else {
                return Plan::Again(args);
            };
            if let Ok(total) = u32::try_from(*argument as i32) {
                let left = u64::from(total).saturating_sub(elapsed / 1_000_000);
                if left == 0 && total > 0 {
                    return Plan::End(over);
                }
                *argument = left;
            }
        }
        Timeout::Timespec(which) => {
            let Some(argument) = args.get_mut(which) else {
                return Plan::Again(args);
            };
            let Some(total) = read_timespec(tid, *argument) else {
                return Plan::Again(args);
            };
            let left = total.saturating_sub(elapsed);
            if left == 0 && total > 0 {
                return Plan::End(over);
            }
            // The program's own timespec is not ours to change: the shorter one
            // goes below its stack, where nothing lives.
            let place = entry.sp.saturating_sub(RED_ZONE + 64) & !15;
            if write_timespec(tid, place, left) {
                *argument = place;
            }
        }
        Timeout::Socket(option) => {
            // The time left of a socket's timeout cannot be passed on with the
            // call: it starts anew, unless it is over.
            let fd = args[0] as i32;
            if socket_timeout(tid, fd, option).is_some_and(|total| total > 0 && elapsed >= total) {
                return Plan::End(over);
            }
        }
        Timeout::None => {}
    }
    debug_assert!(matches!(entry.sys.abi, Abi::X86_64 | Abi::Aarch64));
    Plan::Again(args)
}

fn read_timespec(tid: i32, address: u64) -> Option<u64> {
    let mut bytes = [0; 16];
    if address == 0 || memory::read(tid, address, &mut bytes).ok()? != 16 {
        return None;
    }
    let (seconds, rest) = bytes.split_at(8);
    let seconds = u64::from_ne_bytes(seconds.try_into().ok()?);
    let rest = u64::from_ne_bytes(rest.try_into().ok()?);
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

fn write_timespec(tid: i32, address: u64, ns: u64) -> bool {
    let mut bytes = [0; 16];
    let (seconds, rest) = bytes.split_at_mut(8);
    seconds.copy_from_slice(&(ns / 1_000_000_000).to_ne_bytes());
    rest.copy_from_slice(&(ns % 1_000_000_000).to_ne_bytes());
    memory::write(tid, address, &bytes).is_ok()
}

/// A socket's timeout in ns, asked through a duplicate of the tracee's
/// descriptor (pidfd_getfd(2), Linux 5.6).
fn socket_timeout(tid: i32, fd: i32, option: libc::c_int) -> Option<u64> {
    /// Linux 6.9: a pidfd of a thread that is not the leader.
    const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let open = |flags: libc::c_uint| {
        // SAFETY: arguments by value; the result is a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, tid, flags) } as i32;
        // SAFETY: it was just opened and belongs to nobody else.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let task = open(0).or_else(|| open(PIDFD_THREAD))?;
    // SAFETY: as above.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, task.as_raw_fd(), fd, 0) } as i32;
    if copy < 0 {
        return None;
    }
    // SAFETY: as above.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `time`.
    let result = unsafe {
        libc::getsockopt(
            copy.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut time).cast(),
            &raw mut length,
        )
    };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000)
}
