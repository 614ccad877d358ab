//! What tracing adds to a call on this machine, now.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use super::kernel;
use super::stop::{Report, Stop, report};

/// Calls made to measure: some milliseconds in all.
const CALLS: u32 = 24;

/// What two stops add to a call, ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Wall time, where tracer and tracee take turns on one processor.
    pub near: u64,
    /// Wall time, where each is on its own and has to be woken there.
    pub far: u64,
    /// CPU time of the tracee itself.
    pub cpu: u64,
}

impl Cost {
    /// Measures it with children that make `CALLS` cheap calls. `None` where
    /// that cannot be done.
    pub fn measure() -> Option<Self> {
        let (near, near_cpu) = with_child(None)?;
        let allowed = affinity();
        // SAFETY: it takes nothing.
        let here = usize::try_from(unsafe { libc::sched_getcpu() });
        let here = here.ok().filter(|&cpu| cpu < libc::CPU_SETSIZE as usize);
        let there = allowed.as_ref().zip(here).and_then(|(set, here)| {
            let isset = |cpu: usize| {
                // SAFETY: `cpu` is less than CPU_SETSIZE.
                unsafe { libc::CPU_ISSET(cpu, set) }
            };
            (0..libc::CPU_SETSIZE as usize)
                .find(|&cpu| cpu != here && isset(cpu))
                .map(|there| (here, there))
        });
        let apart = there.and_then(|(here, there)| {
            keep_to(&only(here));
            let measured = with_child(Some(there));
            if let Some(set) = &allowed {
                keep_to(set);
            }
            measured
        });
        let (far, far_cpu) = apart.unwrap_or((near, near_cpu));
        Some(Self { near: near.min(far), far: far.max(near), cpu: near_cpu.max(far_cpu) })
    }

    /// The cost in a run whose quickest calls took `quickest` ns under tracing:
    /// that is the way from one stop to the next, of which a call has two.
    pub fn in_run(&self, quickest: Option<u64>) -> u64 {
        quickest.map_or(self.near, |ns| ns.saturating_mul(2).clamp(self.near, self.far))
    }
}

fn affinity() -> Option<libc::cpu_set_t> {
    // SAFETY: all-zero bytes are a valid set, which the kernel fills.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0).then_some(set)
    }
}

fn only(cpu: usize) -> libc::cpu_set_t {
    // SAFETY: all-zero bytes are a valid set, `cpu` comes from one.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        set
    }
}

/// Where it is refused, the measurement is of wherever they run.
fn keep_to(set: &libc::cpu_set_t) {
    // SAFETY: the kernel reads the set.
    unsafe { libc::sched_setaffinity(0, size_of_val(set), set) };
}

/// Wall and CPU time that tracing adds to a call of a child, on processor `cpu`
/// if one is named, ns.
fn with_child(cpu: Option<usize>) -> Option<(u64, u64)> {
    let (read, write) = super::launch::pipe().ok()?;
    let there = cpu.map(only);
    // SAFETY: the child makes plain system calls only.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => return None,
        0 => {
            if let Some(there) = &there {
                keep_to(there);
            }
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

fn measure(pid: i32, gate: &OwnedFd) -> Option<(u64, u64)> {
    kernel::seize(pid, libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL).ok()?;
    kernel::interrupt(pid).ok()?;
    // SAFETY: one byte of a static string.
    unsafe { libc::write(gate.as_raw_fd(), c"g".as_ptr().cast(), 1) };
    let mut entries: Vec<(Instant, u64)> = Vec::with_capacity(CALLS as usize);
    let mut stops = 0u32;
    while entries.len() < CALLS as usize {
        let waited = kernel::poll_for(pid).ok()??;
        match report(waited.status) {
            Report::Syscall => {
                if stops.is_multiple_of(2) {
                    entries.push((Instant::now(), kernel::cpu_time(pid)?));
                }
                stops += 1;
                let _ = kernel::syscall_info(pid);
            }
            Report::Plain(Stop::Trap) => {}
            _ => return None,
        }
        kernel::resume_to_syscall(pid, 0).ok()?;
    }
    let wall = median(entries.windows(2).filter_map(|w| {
        let [(then, _), (now, _)] = w else { return None };
        Some((*now - *then).as_nanos() as u64)
    }))?;
    let cpu = median(entries.windows(2).filter_map(|w| {
        let [(_, then), (_, now)] = w else { return None };
        Some(now.saturating_sub(*then))
    }))?;
    let untraced = untraced_cost();
    Some((wall.saturating_sub(untraced), cpu.saturating_sub(untraced)))
}

/// Other load on the machine must not pass for the cost of tracing.
fn median(times: impl Iterator<Item = u64>) -> Option<u64> {
    let mut times: Vec<u64> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

fn untraced_cost() -> u64 {
    let begun = Instant::now();
    for _ in 0..CALLS {
        // SAFETY: getppid takes nothing.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    begun.elapsed().as_nanos() as u64 / u64::from(CALLS)
}
