//! The system calls of the tracer, each as one small function. Nothing is
//! decided here. Errors are the kernel's own; ESRCH means that the task is
//! dying and that its end will be reported.

mod pending;
mod wait;

use std::io;

use crate::syscall::{Abi, Sys};

use super::arch::{NATIVE_SIZE, Native, Registers, SYSTEM_CALL_SET, call_once};
use super::event::Nanos;
use super::proc::Status;
use super::stop::Entry;

pub use pending::{disposition, is_pending, is_undisturbed};
pub use wait::{
    Bell, Schedule, Waited, cpu_time, has_children, own_usage, poll_for, take, take_from,
    take_stop, take_zombie, time_for, wait, wait_for,
};

/// What a syscall stop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The call enters.
    Entry(Entry),
    /// The call returns.
    Exit {
        /// The value.
        value: i64,
        /// Instruction pointer.
        ip: u64,
        /// Stack pointer.
        sp: u64,
    },
    /// A call of an architecture that has no table here.
    Foreign,
    /// It is in no syscall stop any more: it was killed in the meantime, and
    /// what it reports next is its end.
    Gone,
}

/// Now, on `CLOCK_MONOTONIC`, ns.
pub fn now() -> Nanos {
    clock(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

fn clock(id: libc::clockid_t) -> Option<Nanos> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the kernel to fill.
    let result = unsafe { libc::clock_gettime(id, &raw mut time) };
    (result == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// ptrace(2) with raw arguments. It does not return EINTR, and if it ever did,
/// nothing would have been done.
///
/// # Safety
/// `addr` and `data` must be what the request documents.
unsafe fn ptrace(request: libc::c_uint, tid: i32, addr: usize, data: usize) -> io::Result<()> {
    let call = || {
        // SAFETY: as the caller vouches; the raw call returns -1 only on error
        // for the requests used here: none of them is a PEEK.
        match unsafe { libc::syscall(libc::SYS_ptrace, request as usize, tid as usize, addr, data) }
        {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    loop {
        let result = injected(request, tid).map_or_else(call, Err);
        match result {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            other => return other,
        }
    }
}

/// The failure that a test asks for.
#[cfg(debug_assertions)]
fn injected(request: u32, tid: i32) -> Option<io::Error> {
    super::inject::fails(request, tid)
}

#[cfg(not(debug_assertions))]
fn injected(_: u32, _: i32) -> Option<io::Error> {
    None
}

/// PTRACE_SEIZE with these options.
pub fn seize(tid: i32, options: i32) -> io::Result<()> {
    // SAFETY: SEIZE takes no address and its options by value.
    unsafe { ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize) }
}

/// As [`seize`], but EINTR where the tracer got a signal first: the thread is in
/// an exec that waits for others to end, which it may do as long as they are traced.
pub fn try_seize(tid: i32, options: i32) -> io::Result<()> {
    let request = libc::PTRACE_SEIZE;
    if let Some(error) = injected(request, tid) {
        return Err(error);
    }
    let arguments = [request as usize, tid as usize, 0, options as usize];
    // SAFETY: SEIZE takes no address and its options by value.
    match unsafe { call_once(libc::SYS_ptrace, arguments) } {
        0.. => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error as i32)),
    }
}

/// PTRACE_INTERRUPT.
pub fn interrupt(tid: i32) -> io::Result<()> {
    // SAFETY: INTERRUPT takes no arguments.
    unsafe { ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) }
}

/// PTRACE_SYSCALL, delivering `signal` unless it is 0.
pub fn resume_to_syscall(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: the signal is passed by value.
    unsafe { ptrace(libc::PTRACE_SYSCALL, tid, 0, signal as usize) }
}

/// PTRACE_CONT, delivering `signal` unless it is 0.
pub fn resume(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: the signal is passed by value.
    unsafe { ptrace(libc::PTRACE_CONT, tid, 0, signal as usize) }
}

/// PTRACE_LISTEN (Linux 3.4).
pub fn listen(tid: i32) -> io::Result<()> {
    // SAFETY: LISTEN takes no arguments.
    unsafe { ptrace(libc::PTRACE_LISTEN, tid, 0, 0) }
}

/// PTRACE_DETACH, delivering `signal` unless it is 0.
pub fn detach(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: the signal is passed by value.
    unsafe { ptrace(libc::PTRACE_DETACH, tid, 0, signal as usize) }
}

/// PTRACE_GETEVENTMSG of this event. ESRCH when the task is in another stop by
/// now: killed between its report and this, it stands at its exit stop, whose
/// message is a wait status.
pub fn event_message(tid: i32, event: i32) -> io::Result<u64> {
    let message = any_event_message(tid)?;
    match signal_sender(tid)? {
        (code, _) if code >> 8 == event => Ok(message),
        _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

fn any_event_message(tid: i32) -> io::Result<u64> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long.
    unsafe { ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message).addr()) }?;
    Ok(message)
}

/// Who sent the signal of a signal-delivery-stop: (`si_code`, `si_pid`).
pub fn signal_sender(tid: i32) -> io::Result<(i32, i32)> {
    // SAFETY: all-zero bytes are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t.
    unsafe { ptrace(libc::PTRACE_GETSIGINFO, tid, 0, (&raw mut info).addr()) }?;
    // SAFETY: si_pid lies within the union whatever the kind of signal; for
    // kinds that have none it is some other number, and `si_code` tells.
    Ok((info.si_code, unsafe { info.si_pid() }))
}

/// The signals that a stopped thread blocks: signal 1 is bit 0 (PTRACE_GETSIGMASK,
/// Linux 3.11).
#[cfg(target_arch = "x86_64")] // For calls that are made for the tracer.
pub fn signal_mask(tid: i32) -> io::Result<u64> {
    const GETSIGMASK: libc::c_uint = 0x420a;
    let mut mask = 0u64;
    // SAFETY: the kernel writes eight bytes.
    unsafe { ptrace(GETSIGMASK, tid, size_of_val(&mask), (&raw mut mask).addr()) }?;
    Ok(mask)
}

/// Sets them (PTRACE_SETSIGMASK).
#[cfg(target_arch = "x86_64")] // For calls that are made for the tracer.
pub fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    const SETSIGMASK: libc::c_uint = 0x420b;
    // SAFETY: the kernel reads eight bytes.
    unsafe { ptrace(SETSIGMASK, tid, size_of_val(&mask), (&raw const mask).addr()) }
}

/// PTRACE_GET_SYSCALL_INFO (Linux 5.3): which side a syscall stop is, and the call.
pub fn syscall_info(tid: i32) -> io::Result<Side> {
    Ok(seccomp_info(tid)?.0)
}

/// The same, with what a filter's RET_TRACE carried.
pub fn seccomp_info(tid: i32) -> io::Result<(Side, Option<u16>)> {
    // SAFETY: all-zero bytes are a valid ptrace_syscall_info.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `size` bytes.
    unsafe { ptrace(libc::PTRACE_GET_SYSCALL_INFO, tid, size, (&raw mut info).addr()) }?;
    let (ip, sp) = (info.instruction_pointer, info.stack_pointer);
    let entry = |number: u64, args: [u64; 6]| {
        Abi::from_audit(info.arch, number).map_or(Side::Foreign, |(abi, number)| {
            Side::Entry(Entry { sys: Sys { abi, number }, args, ip, sp })
        })
    };
    let mut data = None;
    let found = match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` says that the union holds `entry`.
            let e = unsafe { info.u.entry };
            entry(e.nr, e.args)
        }
        libc::PTRACE_SYSCALL_INFO_SECCOMP => {
            // SAFETY: `op` says that the union holds `seccomp`.
            let e = unsafe { info.u.seccomp };
            data = Some(e.ret_data as u16);
            entry(e.nr, e.args)
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: `op` says that the union holds `exit`.
            let value = unsafe { info.u.exit }.sval;
            Side::Exit { value, ip, sp }
        }
        _ => Side::Gone,
    };
    Ok((found, data))
}

/// The register set of a stopped tracee (PTRACE_GETREGSET, NT_PRSTATUS).
pub fn registers(tid: i32) -> io::Result<Registers> {
    // SAFETY: all-zero bytes are a valid register set.
    let mut native: Native = unsafe { std::mem::zeroed() };
    let mut set = libc::iovec { iov_base: (&raw mut native).cast(), iov_len: NATIVE_SIZE };
    // SAFETY: the kernel writes at most `iov_len` bytes at `iov_base` and the
    // length it wrote into `set`.
    unsafe {
        ptrace(libc::PTRACE_GETREGSET, tid, libc::NT_PRSTATUS as usize, (&raw mut set).addr())
    }?;
    Registers::from_set(native, set.iov_len)
        .ok_or_else(|| io::Error::other(format!("unknown register set of {} bytes", set.iov_len)))
}

/// Writes the registers of a stopped 64-bit tracee.
pub fn set_registers(tid: i32, registers: &Registers) -> io::Result<()> {
    let Registers::Native(native) = registers else {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    };
    let mut native = *native;
    let mut set = libc::iovec { iov_base: (&raw mut native).cast(), iov_len: NATIVE_SIZE };
    // SAFETY: the kernel reads `iov_len` bytes at `iov_base`.
    unsafe {
        ptrace(libc::PTRACE_SETREGSET, tid, libc::NT_PRSTATUS as usize, (&raw mut set).addr())
    }
}

/// Makes the call of an entry stop be skipped and return `value`.
pub fn skip_call(tid: i32, value: i64) -> io::Result<()> {
    let mut registers = registers(tid)?;
    registers.skip(value);
    set_registers(tid, &registers)?;
    let Some(which) = SYSTEM_CALL_SET else { return Ok(()) };
    let mut none: libc::c_int = -1;
    let mut set = libc::iovec { iov_base: (&raw mut none).cast(), iov_len: size_of_val(&none) };
    // SAFETY: the kernel reads `iov_len` bytes at `iov_base`.
    unsafe { ptrace(libc::PTRACE_SETREGSET, tid, which, (&raw mut set).addr()) }
}

/// The same answer as [`syscall_info`] on kernels before 5.3, where only the
/// order of stops tells the sides apart: `inside` says that a call is in flight.
pub fn syscall_registers(tid: i32, inside: bool) -> io::Result<Side> {
    let registers = registers(tid)?;
    if inside {
        return Ok(Side::Exit { value: registers.value(), ip: registers.ip(), sp: registers.sp() });
    }
    Ok(Side::Entry(registers.entry(instruction_before(tid, &registers))))
}

/// The call that a stopped thread is on its way out of, and the value in the
/// register: for threads whose entry was not seen.
pub fn call_in_flight(tid: i32) -> io::Result<Option<(Entry, i64)>> {
    let registers = registers(tid)?;
    if !registers.in_call() {
        return Ok(None);
    }
    Ok(Some((registers.entry(instruction_before(tid, &registers)), registers.value())))
}

/// Since when a sleeping thread has not run, by the scheduler's own account
/// (/proc/TID/sched, where the kernel has it).
pub fn asleep_since(tid: i32) -> Option<Nanos> {
    let last_ran = |of: &str| -> Option<f64> {
        let text = std::fs::read_to_string(format!("/proc/{of}/sched")).ok()?;
        let line = text.lines().find(|l| l.starts_with("se.exec_start"))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let then = last_ran(&tid.to_string())?;
    let ms = last_ran("thread-self")? - then;
    (ms >= 0.0).then(|| now().saturating_sub((ms * 1e6) as u64))
}

/// The two bytes before the instruction pointer. Unreadable code (execute-only)
/// leaves it at the 64-bit instruction.
fn instruction_before(tid: i32, registers: &Registers) -> [u8; 2] {
    let mut before = [0; 2];
    if matches!(registers, Registers::Native(_)) && cfg!(target_arch = "x86_64") {
        let _ = super::memory::read(tid, registers.ip().wrapping_sub(2), &mut before);
    }
    before
}

/// Whether `tid` is a thread of process `pid`: needs no /proc (tgkill(2)).
pub fn is_thread_of(pid: i32, tid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_tgkill, pid as usize, tid as usize, 0) == 0 }
}

/// The parent of a process, from /proc.
pub fn parent(pid: i32) -> Option<i32> {
    Status::read(pid)?.number("PPid:")
}
