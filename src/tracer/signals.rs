//! Signals that the tracer itself gets while a command runs.
//!
//! What a terminal sends it sends to the command too. What somebody sends to
//! the tracer alone (kill, timeout) is passed on, unless the command reports
//! the same signal from the same sender. The tracer ends when the command ends.
//!
//! A blocking wait cannot be woken without a race by one signal that may come
//! just before it. So a handler notes what came and starts a timer that goes
//! on interrupting the wait until the loop has seen it.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering::SeqCst};
use std::time::Duration;

use super::event::Nanos;
use super::kernel::now;

/// Signals that ask for an end, or mean something to the command.
const TAKEN: [i32; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Signals of job control: the tracer stops only after its command has.
const IGNORED: [i32; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// How long the command has to report the same signal from the same sender.
const GRACE: Duration = Duration::from_millis(50);
const TICK: Duration = Duration::from_millis(10);

/// In [`SENDERS`]: nothing came; it came from the kernel (a terminal).
const NOBODY: i32 = 0;
const KERNEL: i32 = -1;

static SENDERS: [AtomicI32; TAKEN.len()] = [const { AtomicI32::new(NOBODY) }; TAKEN.len()];
static CAME: AtomicBool = AtomicBool::new(false);
static TIMER: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
static TIMED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler;
    // si_pid is set for every code that a process can cause.
    let (code, pid) = unsafe { ((*info).si_code, (*info).si_pid()) };
    // SAFETY: errno is this thread's own; a handler must leave it as it was.
    let saved = unsafe { *libc::__errno_location() };
    if let Some(slot) = TAKEN.iter().position(|&s| s == signal)
        && let Some(sender) = SENDERS.get(slot)
    {
        sender.store(if code > 0 { KERNEL } else { pid.max(1) }, SeqCst);
        CAME.store(true, SeqCst);
        tick(TICK);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = saved };
}

/// The timer's own signal: it only interrupts.
extern "C" fn nothing(_: i32) {}

/// Starts or (with zero) stops the timer. Async-signal-safe.
fn tick(every: Duration) {
    if !TIMED.load(SeqCst) {
        return;
    }
    let time = libc::timespec { tv_sec: 0, tv_nsec: every.as_nanos() as libc::c_long };
    let spec = libc::itimerspec { it_interval: time, it_value: time };
    // SAFETY: the timer was made by `Guard::take`, `spec` is valid.
    unsafe { libc::timer_settime(TIMER.load(SeqCst), 0, &raw const spec, std::ptr::null_mut()) };
}

/// While it lives, the tracer's signals are taken as described above.
#[derive(Debug)]
pub struct Guard {
    old: Vec<(i32, libc::sigaction)>,
    /// What came to the tracer: (signal, sender, when).
    waiting: Vec<(i32, i32, Nanos)>,
    /// What the command reported lately: (signal, sender, when).
    reported: Vec<(i32, i32, Nanos)>,
    ticking: bool,
}

/// What to do about a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Send it to the command.
    Forward(i32),
    /// It came to the tracer after the command had ended: stop tracing.
    End(i32),
}

impl Guard {
    /// Installs the handlers. To be called after the command was forked, which
    /// must find the old dispositions. `ticking`: waits are interrupted all the
    /// time, for somebody who looks at the clock.
    pub fn take(ticking: bool) -> Self {
        let (waiting, reported) = (Vec::new(), Vec::new());
        let mut guard = Self { old: Vec::new(), waiting, reported, ticking };
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = note;
        for signal in TAKEN {
            guard.install(signal, handler as libc::sighandler_t, libc::SA_SIGINFO);
        }
        for signal in IGNORED {
            guard.install(signal, libc::SIG_IGN, 0);
        }
        // An ignored SIGCHLD would reap what has not been read yet.
        guard.install(libc::SIGCHLD, libc::SIG_DFL, 0);
        let nothing: extern "C" fn(i32) = nothing;
        guard.install(libc::SIGALRM, nothing as libc::sighandler_t, 0);
        // SAFETY: all-zero bytes are a valid sigevent; every field that
        // SIGEV_THREAD_ID needs is set; the timer's id goes to `timer`.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer: libc::timer_t = std::ptr::null_mut();
            if libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) == 0 {
                TIMER.store(timer, SeqCst);
                TIMED.store(true, SeqCst);
            }
        }
        if ticking {
            guard.keep_ticking();
        }
        guard
    }

    /// From now on waits are interrupted all the time.
    pub fn keep_ticking(&mut self) {
        self.ticking = true;
        tick(TICK);
    }

    fn install(&mut self, signal: i32, handler: libc::sighandler_t, flags: i32) {
        // SAFETY: all-zero bytes are a valid sigaction; the handlers installed
        // here are async-signal-safe.
        unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut old);
            // What was ignored (nohup, a shell's background job) stays so,
            // but for SIGCHLD and the timer's own.
            let keep = old.sa_sigaction == libc::SIG_IGN
                && signal != libc::SIGCHLD
                && signal != libc::SIGALRM;
            if keep {
                return;
            }
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = handler;
            new.sa_flags = flags; // No SA_RESTART: the wait must notice.
            libc::sigaction(signal, &raw const new, std::ptr::null_mut());
            self.old.push((signal, old));
        }
    }

    /// Whether [`Guard::requests`] has something to do. Cheap: one load.
    pub fn is_busy(&self) -> bool {
        CAME.load(SeqCst) || !self.waiting.is_empty()
    }

    /// The command stops to take a signal from this sender.
    pub fn command_reports(&mut self, signal: i32, code: i32, sender: i32) {
        if code <= 0 && TAKEN.contains(&signal) {
            let at = now();
            self.reported.retain(|(_, _, when)| at.saturating_sub(*when) < 1_000_000_000);
            self.reported.push((signal, sender, at));
        }
    }

    /// What is to be done now. `alive`: the root process has not ended.
    pub fn requests(&mut self, alive: bool) -> Vec<Request> {
        let at = now();
        if CAME.swap(false, SeqCst) {
            for (signal, sender) in TAKEN.iter().zip(&SENDERS) {
                let sender = sender.swap(NOBODY, SeqCst);
                if sender != NOBODY {
                    self.waiting.push((*signal, sender, at));
                }
            }
        }
        let mut requests = Vec::new();
        let reported = &mut self.reported;
        self.waiting.retain(|&(signal, sender, when)| {
            if !alive {
                requests.push(Request::End(signal));
                return false;
            }
            if sender == KERNEL {
                return false; // The terminal has sent it to the command too.
            }
            if let Some(same) = reported.iter().position(|&(s, p, _)| s == signal && p == sender) {
                reported.swap_remove(same);
                return false;
            }
            if at.saturating_sub(when) < GRACE.as_nanos() as u64 {
                return true;
            }
            requests.push(Request::Forward(signal));
            false
        });
        if self.waiting.is_empty() && !self.ticking {
            tick(Duration::ZERO);
            if CAME.load(SeqCst) {
                tick(TICK);
            }
        }
        requests
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if TIMED.swap(false, SeqCst) {
            // SAFETY: the timer was made by `take` and is deleted once.
            unsafe { libc::timer_delete(TIMER.load(SeqCst)) };
        }
        for (signal, old) in &self.old {
            // SAFETY: restores what sigaction gave.
            unsafe { libc::sigaction(*signal, old, std::ptr::null_mut()) };
        }
    }
}

/// Blocks every signal in this thread, so that a helper thread takes none of
/// those meant for the loop.
pub fn block_all() {
    // SAFETY: the set is filled before it is used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}
