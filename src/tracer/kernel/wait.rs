//! Waiting for reports, and reading what a task has used.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::super::event::{Nanos, Usage};
use super::super::proc;
use super::{clock, now};

/// How long to poll before sleeping, ns. A sleeping tracer is woken on another
/// processor than its tracee's as soon as one is idle, which in a virtual
/// machine makes a stop five times dearer (benches/README.md has the figures).
/// One that polls and yields stays on the tracee's, and a command that computes
/// pays for it at most this long a stop.
const POLL: u64 = 40_000;

/// A turn that takes longer is not the tracee's way to its next stop, ns.
const TURN: u64 = 2_000_000;

/// How many waits sleep at once after such a turn: more each time, up to a
/// limit, until polling has paid again.
const LEAST_SKIP: u32 = 256;
const MOST_SKIP: u32 = 8192;
static SKIP: AtomicU32 = AtomicU32::new(0);
static PENALTY: AtomicU32 = AtomicU32::new(LEAST_SKIP);

/// One report of wait.
#[derive(Debug, Clone, Copy)]
pub struct Waited {
    /// Which task.
    pub tid: i32,
    /// Raw status.
    pub status: i32,
    /// Whether it was taken from the kernel's queue; if not, it will be reported
    /// again until the task is resumed.
    pub taken: bool,
    /// When wait returned.
    pub at: Nanos,
    /// A dead process's own usage.
    pub own: Option<Usage>,
    /// The same with the children it waited for.
    pub with_children: Option<Usage>,
}

/// Waits for any child or tracee to report, polling before it sleeps. EINTR and
/// ECHILD are the caller's to judge. A stop that is returned stays in the
/// kernel's queue until the task is resumed (but for an exec): that saves a call where no other
/// task could be waiting behind it; where one could, `take` it.
pub fn wait(take: bool) -> io::Result<Option<Waited>> {
    poll_then_sleep(|flags| look(libc::P_ALL, 0, libc::WSTOPPED | flags, take))
}

/// The same for child `pid` only.
pub fn poll_for(pid: i32) -> io::Result<Option<Waited>> {
    poll_then_sleep(|flags| look(libc::P_PID, pid, libc::WSTOPPED | flags, false))
}

/// Looks with `WNOHANG`, for a while; then without.
fn poll_then_sleep<T>(look: impl Fn(i32) -> io::Result<Option<T>>) -> io::Result<Option<T>> {
    let skip = SKIP.load(Relaxed);
    if skip > 0 {
        SKIP.store(skip - 1, Relaxed);
        return look(0);
    }
    let begun = now();
    let mut before = begun;
    while before.saturating_sub(begun) < POLL {
        if let Some(found) = look(libc::WNOHANG)? {
            if before != begun {
                PENALTY.store(LEAST_SKIP, Relaxed); // It paid.
            }
            return Ok(Some(found));
        }
        // SAFETY: it takes nothing and only gives others their turn.
        unsafe { libc::sched_yield() };
        let after = now();
        if after.saturating_sub(before) > TURN {
            // Somebody computes on this processor, and yielding gives him whole
            // slices. Who sleeps is preferred when he wakes.
            let penalty = PENALTY.load(Relaxed);
            SKIP.store(penalty, Relaxed);
            PENALTY.store((penalty * 2).min(MOST_SKIP), Relaxed);
            break;
        }
        before = after;
    }
    look(0)
}

/// Waits for child `pid` only, without polling.
pub fn wait_for(pid: i32) -> io::Result<Option<Waited>> {
    look(libc::P_PID, pid, libc::WSTOPPED, true)
}

/// A child that nobody traces has stopped or ended.
#[derive(Debug)]
pub struct Timed {
    /// The report; its time is that at which the child was found so, before anything
    /// else was asked.
    pub waited: Waited,
    /// What the scheduler says of the first thread of one that has ended.
    pub schedule: Option<Schedule>,
}

/// What the scheduler says of a thread (/proc/TID/schedstat), ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// On a CPU.
    pub on_cpu: Nanos,
    /// Runnable, and waiting for a CPU.
    pub runnable: Nanos,
}

/// Waits for child `pid` only, and does no more than timing it takes: what a zombie's
/// own usage is nobody asks.
pub fn time_for(pid: i32) -> io::Result<Option<Timed>> {
    let flags = libc::__WALL | libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
    let info = waitid(libc::P_PID, pid, flags)?;
    let at = now();
    let schedule = if info.is_dead() { schedule(pid) } else { None };
    let waited = wait4(pid, libc::WNOHANG | libc::WUNTRACED, info.is_dead())?;
    Ok(waited.map(|waited| Timed { waited: Waited { at, ..waited }, schedule }))
}

fn schedule(pid: i32) -> Option<Schedule> {
    let text = proc::read(&format!("/proc/{pid}/schedstat"), 128).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut numbers = text.split_ascii_whitespace().map(str::parse);
    Some(Schedule { on_cpu: numbers.next()?.ok()?, runnable: numbers.next()?.ok()? })
}

/// Takes the next stop that is there, or `None`; never a zombie.
pub fn take_stop() -> io::Result<Option<Waited>> {
    let flags = libc::__WALL | libc::WSTOPPED | libc::WNOHANG;
    let info = waitid(libc::P_ALL, 0, flags)?;
    Ok((info.tid != 0).then(|| info.stopped(true)))
}

/// Takes what one task has to report, or `None`.
pub fn take_from(tid: i32) -> io::Result<Option<Waited>> {
    look(libc::P_PID, tid, libc::WSTOPPED | libc::WNOHANG, true)
}

/// Who has something to report, by SIGCHLD: a wait for any of thousands of
/// tracees asks each of them, this none. While it lives the signal is blocked,
/// and so kept.
#[derive(Debug)]
pub struct Bell {
    before: libc::sigset_t,
    /// When nobody else had anything to report.
    quiet: Nanos,
}

impl Bell {
    /// A signal that is pending already takes in those that follow: for how long
    /// one can be trusted to name everybody, ns.
    const TRUST: Nanos = 4_000_000;

    /// Blocks SIGCHLD. Nothing is known yet of who reported before.
    pub fn hang() -> Self {
        let set = child_signal();
        // SAFETY: all-zero bytes are a valid set, which the kernel fills.
        let before = unsafe {
            let mut before = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            before
        };
        Self { before, quiet: 0 }
    }

    /// Nobody had anything to report just now.
    pub fn all_is_quiet(&mut self) {
        self.quiet = now();
    }

    /// Whether it is time to ask everybody.
    pub fn is_stale(&self) -> bool {
        now().saturating_sub(self.quiet) > Self::TRUST
    }

    /// Who reports within the time that a tracee takes to its next stop; `None`
    /// when nobody is named: a signal that takes in others names one of them.
    pub fn poll(&self) -> io::Result<Option<i32>> {
        let begun = now();
        let mut before = begun;
        loop {
            let rung = self.wait(0)?;
            if rung.is_some() {
                return Ok(rung);
            }
            // SAFETY: it takes nothing and only gives others their turn.
            unsafe { libc::sched_yield() };
            let after = now();
            if after.saturating_sub(begun) > POLL || after.saturating_sub(before) > TURN {
                return Ok(None);
            }
            before = after;
        }
    }

    /// Sleeps until somebody reports, or for a while. EINTR is the caller's to
    /// judge.
    pub fn sleep(&self) -> io::Result<Option<i32>> {
        self.wait(Self::TRUST)
    }

    #[allow(clippy::unused_self)] // Only while it is blocked.
    fn wait(&self, nap: Nanos) -> io::Result<Option<i32>> {
        let set = child_signal();
        let time = libc::timespec { tv_sec: 0, tv_nsec: nap as libc::c_long };
        // SAFETY: all-zero bytes are a valid siginfo_t, which the kernel fills.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set, the siginfo and the time live through the call.
        if unsafe { libc::sigtimedwait(&raw const set, &raw mut info, &raw const time) } > 0 {
            // SAFETY: every SIGCHLD has it; one sent by kill names its sender.
            return Ok(Some(unsafe { info.si_pid() }).filter(|&tid| tid > 0));
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            e => Err(e),
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        // SAFETY: restores what `hang` found.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

fn child_signal() -> libc::sigset_t {
    // SAFETY: the set is emptied before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        set
    }
}

/// Takes the report of one task that was looked at only. It may be another by
/// now: the task can have been killed.
pub fn take(tid: i32) -> io::Result<Option<Waited>> {
    wait4(tid, libc::WNOHANG, false)
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

    /// An exec. Who executed without being the leader has another number since,
    /// and until its stop is taken the kernel answers ESRCH to whatever is asked
    /// (Linux 5.13: `looks_like_a_spurious_pid`).
    fn is_exec(&self) -> bool {
        self.status == libc::SIGTRAP | (libc::PTRACE_EVENT_EXEC << 8)
    }

    /// A stop: `si_status` is what a wait status has from bit 8 on.
    fn stopped(&self, taken: bool) -> Waited {
        Waited {
            tid: self.tid,
            status: (self.status << 8) | 0x7f,
            taken,
            at: now(),
            own: None,
            with_children: None,
        }
    }
}

fn waitid(kind: libc::idtype_t, id: i32, flags: i32) -> io::Result<Info> {
    #[cfg(debug_assertions)]
    if let Some(error) = super::injected(super::super::inject::WAIT, 0) {
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
    if !info.is_dead() && !info.is_exec() && !take {
        return Ok(Some(info.stopped(false)));
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
            taken: true,
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

/// CPU time of a process so far, also of a zombie, without its children's, ns.
pub fn cpu_time(pid: i32) -> Option<Nanos> {
    const SCHED: i32 = 2;
    clock((!pid << 3) | SCHED)
}

/// CPU time and faults of a process, also of a zombie, without its children's.
/// The CPU clocks of a process answer until it is reaped (clock_getcpuclockid(3));
/// user and system time share the precise sum as getrusage(2) shares it.
pub fn own_usage(pid: i32) -> Option<Usage> {
    const PROF: i32 = 0;
    const VIRT: i32 = 1;
    let read = |which: i32| clock((!pid << 3) | which);
    let exact = cpu_time(pid)?;
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
    let stat = proc::read(&format!("/proc/{pid}/stat"), 1024).ok()?;
    // The name may hold anything, closing parentheses too: the last one ends it.
    let end = stat.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace().skip(7);
    let minor = fields.next()?.parse().ok()?;
    let major = fields.nth(1)?.parse().ok()?;
    Some((minor, major))
}
