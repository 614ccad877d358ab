//! The system calls of the tracer, each as one small function. Nothing is
//! decided here. Errors are the kernel's own; ESRCH means that the task is
//! dying and that its end will be reported.

use std::io;

use crate::syscall::{Abi, Sys};

use super::arch::{NATIVE_SIZE, Native, Registers, SYSTEM_CALL_SET};
use super::event::{Nanos, Usage};
use super::proc::Status;
use super::stop::{Disposition, Entry};

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

/// One report of wait.
#[derive(Debug, Clone, Copy)]
pub struct Waited {
    /// Which task.
    pub tid: i32,
    /// Raw status.
    pub status: i32,
    /// When wait returned.
    pub at: Nanos,
    /// A dead process's own usage.
    pub own: Option<Usage>,
    /// The same with the children it waited for.
    pub with_children: Option<Usage>,
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

/// PTRACE_GET_SYSCALL_INFO (Linux 5.3): which side a syscall stop is, and the call.
pub fn syscall_info(tid: i32) -> io::Result<Side> {
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
    Ok(match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` says that the union holds `entry`.
            let e = unsafe { info.u.entry };
            entry(e.nr, e.args)
        }
        libc::PTRACE_SYSCALL_INFO_SECCOMP => {
            // SAFETY: `op` says that the union holds `seccomp`.
            let e = unsafe { info.u.seccomp };
            entry(e.nr, e.args)
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: `op` says that the union holds `exit`.
            let value = unsafe { info.u.exit }.sval;
            Side::Exit { value, ip, sp }
        }
        _ => Side::Gone,
    })
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

/// How long to poll before sleeping, ns. A sleeping tracer is woken on another
/// processor than its tracee's as soon as one is idle, which in a virtual
/// machine makes a stop five times dearer (benches/README.md has the figures).
/// One that polls and yields stays on the tracee's, and a command that computes
/// pays for it at most this long a stop.
const POLL: u64 = 40_000;

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

/// Waits for any child or tracee to report, polling before it sleeps. EINTR and
/// ECHILD are the caller's to judge. A stop that is returned stays in the
/// kernel's queue until the task is resumed: that saves a call where no other
/// task could be waiting behind it; where one could, `take` it.
pub fn wait(take: bool) -> io::Result<Option<Waited>> {
    poll_then_sleep(libc::P_ALL, 0, take)
}

/// The same for child `pid` only.
pub fn poll_for(pid: i32) -> io::Result<Option<Waited>> {
    poll_then_sleep(libc::P_PID, pid, false)
}

fn poll_then_sleep(kind: libc::idtype_t, id: i32, take: bool) -> io::Result<Option<Waited>> {
    let begun = now();
    while now().saturating_sub(begun) < POLL {
        if let Some(waited) = look(kind, id, libc::WSTOPPED | libc::WNOHANG, take)? {
            return Ok(Some(waited));
        }
        // SAFETY: it takes nothing and only gives others their turn.
        unsafe { libc::sched_yield() };
    }
    look(kind, id, libc::WSTOPPED, take)
}

/// Waits for child `pid` only, without polling.
pub fn wait_for(pid: i32) -> io::Result<Option<Waited>> {
    look(libc::P_PID, pid, libc::WSTOPPED, true)
}

/// Takes the next stop that is there, or `None`; never a zombie.
pub fn take_stop() -> io::Result<Option<Waited>> {
    let flags = libc::__WALL | libc::WSTOPPED | libc::WNOHANG;
    let info = waitid(libc::P_ALL, 0, flags)?;
    Ok((info.tid != 0).then(|| info.stopped()))
}

/// Reaps the next zombie that is there, or `None`.
pub fn take_zombie() -> io::Result<Option<Waited>> {
    look(libc::P_ALL, 0, libc::WNOHANG, true)
}

/// Whether this process has any child.
pub fn has_children() -> bool {
    let flags = libc::__WALL | libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    waitid(libc::P_ALL, 0, flags).is_ok()
}

/// What waitid(2) says.
struct Info {
    tid: i32,
    code: i32,
    status: i32,
}

impl Info {
    fn is_dead(&self) -> bool {
        matches!(self.code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
    }

    /// A stop: `si_status` is what a wait status has from bit 8 on.
    fn stopped(&self) -> Waited {
        Waited {
            tid: self.tid,
            status: (self.status << 8) | 0x7f,
            at: now(),
            own: None,
            with_children: None,
        }
    }
}

fn waitid(kind: libc::idtype_t, id: i32, flags: i32) -> io::Result<Info> {
    #[cfg(debug_assertions)]
    if let Some(error) = injected(super::inject::WAIT, 0) {
        return Err(error);
    }
    // SAFETY: all-zero bytes are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one siginfo_t.
    if unsafe { libc::waitid(kind, id as libc::id_t, &raw mut info, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid fills these in; with WNOHANG and nothing to report they
    // stay 0.
    let (tid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok(Info { tid, code: info.si_code, status })
}

/// Looks at the next report before taking it: a zombie's usage can be read only
/// until it is reaped, and nothing announces for certain that one is coming.
fn look(kind: libc::idtype_t, id: i32, flags: i32, take: bool) -> io::Result<Option<Waited>> {
    let info = waitid(kind, id, flags | libc::__WALL | libc::WEXITED | libc::WNOWAIT)?;
    if info.tid == 0 {
        return Ok(None);
    }
    if !info.is_dead() && !take {
        return Ok(Some(info.stopped()));
    }
    let own = if info.is_dead() { own_usage(info.tid) } else { None };
    // What was looked at may have gone on (SIGKILL): never block here.
    // WUNTRACED: the stop of a child that is not traced.
    let waited = wait4(info.tid, libc::WNOHANG | libc::WUNTRACED, info.is_dead())?;
    Ok(waited.map(|w| Waited { own, ..w }))
}

fn wait4(tid: i32, flags: i32, usage: bool) -> io::Result<Option<Waited>> {
    let mut status = 0;
    // SAFETY: all-zero bytes are a valid rusage.
    let mut rusage: libc::rusage = unsafe { std::mem::zeroed() };
    let into = if usage { &raw mut rusage } else { std::ptr::null_mut() };
    // SAFETY: the kernel writes a status and, where asked for, one rusage.
    let tid = unsafe { libc::wait4(tid, &raw mut status, flags | libc::__WALL, into) };
    match tid {
        0 => Ok(None),
        1.. => Ok(Some(Waited {
            tid,
            status,
            at: now(),
            own: None,
            with_children: usage.then(|| from_rusage(&rusage)),
        })),
        _ => Err(io::Error::last_os_error()),
    }
}

fn from_rusage(r: &libc::rusage) -> Usage {
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    Usage {
        user_ns: ns(r.ru_utime),
        sys_ns: ns(r.ru_stime),
        maxrss_bytes: r.ru_maxrss as u64 * 1024,
        minor_faults: Some(r.ru_minflt as u64),
        major_faults: Some(r.ru_majflt as u64),
        block_in: r.ru_inblock as u64,
        block_out: r.ru_oublock as u64,
        voluntary_switches: r.ru_nvcsw as u64,
        involuntary_switches: r.ru_nivcsw as u64,
    }
}

/// CPU time and faults of a process, also of a zombie, without its children's.
/// The CPU clocks of a process answer until it is reaped (clock_getcpuclockid(3));
/// user and system time share the precise sum as getrusage(2) shares it.
pub fn own_usage(pid: i32) -> Option<Usage> {
    const PROF: i32 = 0;
    const VIRT: i32 = 1;
    const SCHED: i32 = 2;
    let read = |which: i32| clock((!pid << 3) | which);
    let exact = read(SCHED)?;
    let (both, user) = (read(PROF)?, read(VIRT)?);
    let user_ns = match (u128::from(exact) * u128::from(user)).checked_div(u128::from(both)) {
        Some(share) => share.min(u128::from(exact)) as u64,
        None => 0,
    };
    // A short process may have met no tick: like the kernel, call it all user time.
    let user_ns = if both == 0 { exact } else { user_ns };
    let (minor_faults, major_faults) = faults(pid).unzip();
    Some(Usage { user_ns, sys_ns: exact - user_ns, minor_faults, major_faults, ..Usage::default() })
}

/// Fields 10 and 12 of /proc/PID/stat (proc_pid_stat(5)).
fn faults(pid: i32) -> Option<(u64, u64)> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, closing parentheses too: the last one ends it.
    let end = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(7);
    let minor = fields.next()?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    Some((minor, major))
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

/// Signal sets of a thread (proc_pid_status(5)); signal 1 is bit 0.
#[derive(Debug, Clone, Copy)]
struct Signals {
    ignored: u64,
    caught: u64,
    /// Pending for the thread or its process, and not blocked.
    deliverable: u64,
}

/// Ignored by default (signal(7)). SIGCONT has done its work when it was sent.
const IGNORED_BY_DEFAULT: u64 =
    bit(libc::SIGCHLD) | bit(libc::SIGURG) | bit(libc::SIGWINCH) | bit(libc::SIGCONT);

const fn bit(signal: i32) -> u64 {
    if signal >= 1 && signal <= 64 { 1 << (signal - 1) } else { 0 }
}

impl Signals {
    fn read(tid: i32) -> Option<Self> {
        let status = Status::read(tid)?;
        let pending = status.signals("SigPnd:")? | status.signals("ShdPnd:")?;
        Some(Self {
            ignored: status.signals("SigIgn:")?,
            caught: status.signals("SigCgt:")?,
            deliverable: pending & !status.signals("SigBlk:")?,
        })
    }

    /// Signals that do nothing.
    fn harmless(&self) -> u64 {
        self.ignored | (IGNORED_BY_DEFAULT & !self.caught)
    }
}

/// What `signal` would do in the process of `tid`.
pub fn disposition(tid: i32, signal: i32) -> Disposition {
    let Some(signals) = Signals::read(tid) else { return Disposition::Unknown };
    if signals.caught & bit(signal) != 0 {
        Disposition::Handled
    } else if signals.harmless() & bit(signal) != 0 {
        Disposition::Ignored
    } else {
        Disposition::Default
    }
}

/// Whether no signal waits for `tid` but such as do nothing; with `evidence`,
/// at least one of those must be there. A signal that woke it may have been
/// taken by another thread since.
pub fn is_undisturbed(tid: i32, evidence: bool) -> bool {
    Signals::read(tid).is_some_and(|s| {
        s.deliverable & !s.harmless() == 0 && (!evidence || s.deliverable & s.harmless() != 0)
    })
}

/// Whether `signal` waits to be taken by this process.
pub fn is_pending(pid: i32, signal: i32) -> bool {
    let Some(status) = Status::read(pid) else { return false };
    let sets = ["SigPnd:", "ShdPnd:"];
    sets.iter().filter_map(|set| status.signals(set)).any(|set| set & bit(signal) != 0)
}
