//! What tracing adds to a call on this machine, now.

use std::time::Instant;

use super::kernel;
use super::stop::{Report, report};

/// Calls made to measure: a few milliseconds.
const CALLS: u32 = 40;

/// What two stops add to a cheap call, in ns, measured with a child that makes
/// `CALLS` of them. `None` where that cannot be done.
pub fn cost_per_call() -> Option<u64> {
    let (read, write) = super::launch::pipe().ok()?;
    // SAFETY: the child makes plain system calls only.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return None,
        0 => {
            use std::os::fd::AsRawFd;
            // SAFETY: getppid takes nothing; the gate holds the child until it
            // is seized, or the tracer is gone.
            unsafe {
                libc::close(write.as_raw_fd());
                let mut byte = 0u8;
                while libc::read(read.as_raw_fd(), (&raw mut byte).cast(), 1) < 0 {}
                if byte == 0 {
                    libc::_exit(0); // The tracer is gone.
                }
                for _ in 0..CALLS {
                    libc::syscall(libc::SYS_getppid);
                }
                libc::_exit(0)
            }
        }
        _ => {}
    }
    let cost = measure(pid, &write);
    // SAFETY: the child is ours and not yet reaped, whatever went wrong.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL);
    }
    cost
}

fn measure(pid: i32, gate: &std::os::fd::OwnedFd) -> Option<u64> {
    use std::os::fd::AsRawFd;
    kernel::seize(pid, libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL).ok()?;
    kernel::interrupt(pid).ok()?;
    // SAFETY: one byte of a static string.
    unsafe { libc::write(gate.as_raw_fd(), c"g".as_ptr().cast(), 1) };
    // Of each call, the time to the next; their median, since other load on the
    // machine must not pass for the cost of tracing.
    let mut entries: Vec<Instant> = Vec::with_capacity(CALLS as usize);
    let mut stops = 0u32;
    while entries.len() < CALLS as usize {
        let waited = kernel::poll_for(pid).ok()??;
        match report(waited.status) {
            Report::Syscall => {
                if stops.is_multiple_of(2) {
                    entries.push(Instant::now());
                }
                stops += 1;
                let _ = kernel::syscall_info(pid);
            }
            Report::Plain(super::stop::Stop::Trap) => {}
            _ => return None,
        }
        kernel::resume_to_syscall(pid, 0).ok()?;
    }
    let mut times: Vec<u64> = entries
        .windows(2)
        .filter_map(|w| Some((*w.get(1)? - *w.first()?).as_nanos() as u64))
        .collect();
    times.sort_unstable();
    Some(times.get(times.len() / 2)?.saturating_sub(untraced_cost()))
}

fn untraced_cost() -> u64 {
    let begun = Instant::now();
    for _ in 0..CALLS {
        // SAFETY: getppid takes nothing.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    begun.elapsed().as_nanos() as u64 / u64::from(CALLS)
}
