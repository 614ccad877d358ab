//! Signals that the tracer itself gets while a command runs.
//!
//! What a terminal sends it sends to the command too. What somebody sends to
//! the tracer alone (kill, timeout) is passed on, unless the command reports
//! the same signal from the same sender. The tracer ends when the command ends,
//! and stops for its shell when the command has.
//!
//! A blocking wait cannot be woken without a race by one signal that may come
//! just before it. So a handler notes what came and starts a timer that goes
//! on interrupting the wait until the loop has seen it.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering::SeqCst};
use std::time::Duration;

use super::arch::end_call_once;
use super::event::Nanos;
use super::kernel::now;

/// Highest signal number (signal(7)).
const LAST: i32 = 64;

/// The timer's own: the last real-time signal. Everybody else's alarms are the
/// command's.
const TIMER_SIGNAL: i32 = LAST;

/// How long the command has to report the same signal from the same sender.
const GRACE: Duration = Duration::from_millis(50);
const TICK: Duration = Duration::from_millis(10);

/// In [`SENDERS`]: nothing came; it came from the kernel (a terminal).
const NOBODY: i32 = 0;
const KERNEL: i32 = -1;

static SENDERS: [AtomicI32; LAST as usize + 1] =
    [const { AtomicI32::new(NOBODY) }; LAST as usize + 1];
static CAME: AtomicBool = AtomicBool::new(false);
/// By which signal job control asked the tracer to stop; 0: it did not, or asked
/// to go on since.
static STOP_ASKED: AtomicI32 = AtomicI32::new(0);
static TIMER: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());
static TIMED: AtomicBool = AtomicBool::new(false);

/// What the tracer does with a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Treatment {
    /// Pass it on to the command.
    Forward,
    /// Job control: note it.
    Job,
    /// Ignore it: the write that causes it fails anyway.
    Ignore,
    /// The default action.
    Default,
    /// It cannot be taken, or is the C library's, or a fault of our own.
    Leave,
}

fn treatment(signal: i32) -> Treatment {
    match signal {
        libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU | libc::SIGCONT => Treatment::Job,
        libc::SIGPIPE | libc::SIGXFSZ => Treatment::Ignore,
        // An ignored SIGCHLD would reap what has not been read yet.
        libc::SIGCHLD => Treatment::Default,
        libc::SIGKILL
        | libc::SIGSTOP
        | libc::SIGSEGV
        | libc::SIGBUS
        | libc::SIGFPE
        | libc::SIGILL
        | libc::SIGTRAP
        | libc::SIGABRT
        | libc::SIGSYS
        | 32
        | 33
        | TIMER_SIGNAL => Treatment::Leave,
        _ => Treatment::Forward,
    }
}

extern "C" fn note(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler;
    // si_pid is set for every code that a process can cause.
    let (code, pid) = unsafe { ((*info).si_code, (*info).si_pid()) };
    // SAFETY: errno is this thread's own; a handler must leave it as it was.
    let saved = unsafe { *libc::__errno_location() };
    match treatment(signal) {
        Treatment::Job => {
            STOP_ASKED.store(if signal == libc::SIGCONT { 0 } else { signal }, SeqCst);
        }
        _ => {
            if let Some(sender) = SENDERS.get(signal as usize) {
                sender.store(if code > 0 { KERNEL } else { pid.max(1) }, SeqCst);
                CAME.store(true, SeqCst);
            }
        }
    }
    tick(TICK);
    // SAFETY: as above; `context` is what the kernel gave.
    unsafe {
        *libc::__errno_location() = saved;
        end_call_once(context);
    }
}

/// The timer's own signal: it only interrupts.
extern "C" fn interrupt(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: `context` is what the kernel gave.
    unsafe { end_call_once(context) };
}

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

/// A signal, who sent it, and when.
#[derive(Debug, Clone, Copy)]
struct Seen {
    signal: i32,
    /// `None`: not known.
    sender: Option<i32>,
    at: Nanos,
}

impl Seen {
    /// Whether these are two deliveries of one sending to a process group.
    fn is_same(&self, other: &Self) -> bool {
        let senders = self.sender.zip(other.sender);
        self.signal == other.signal
            && senders.is_none_or(|(one, two)| one == two)
            && self.at.abs_diff(other.at) < GRACE.as_nanos() as u64
    }
}

/// While it lives, the tracer's signals are taken as described above.
#[derive(Debug)]
pub struct Guard {
    old: Vec<(i32, libc::sigaction)>,
    /// What came to the tracer.
    waiting: Vec<Seen>,
    /// What the command reported lately.
    reported: Vec<Seen>,
    ticking: bool,
    /// The command is in a session of its own: its terminal, if any, is not ours.
    apart: bool,
}

/// What to do about a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Send it to the command.
    Forward(i32),
    /// Send it to all that the command is: somebody wants its end, and it is in a
    /// session of its own, where no terminal tells its process group.
    ForwardToAll(i32),
    /// It came to the tracer after the command had ended: stop tracing.
    End(i32),
}

impl Guard {
    /// Installs the handlers. To be called after the command was forked, which
    /// must find the old dispositions. `ticking`: waits are interrupted all the
    /// time, for somebody who looks at the clock.
    pub fn take(ticking: bool) -> Self {
        let (waiting, reported) = (Vec::new(), Vec::new());
        let mut guard = Self { old: Vec::new(), waiting, reported, ticking, apart: false };
        STOP_ASKED.store(0, SeqCst);
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = note;
        for signal in 1..=LAST {
            match treatment(signal) {
                Treatment::Forward | Treatment::Job => {
                    guard.install(signal, handler as libc::sighandler_t, libc::SA_SIGINFO);
                }
                Treatment::Ignore => guard.install(signal, libc::SIG_IGN, 0),
                Treatment::Default => guard.install(signal, libc::SIG_DFL, 0),
                Treatment::Leave => {}
            }
        }
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = interrupt;
        guard.install(TIMER_SIGNAL, handler as libc::sighandler_t, libc::SA_SIGINFO);
        // SAFETY: all-zero bytes are a valid sigevent; every field that
        // SIGEV_THREAD_ID needs is set; the timer's id goes to `timer`.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = TIMER_SIGNAL;
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

    /// The command is in a session of its own: no terminal sends to it what it
    /// sends to the tracer.
    pub fn set_apart(&mut self) {
        self.apart = true;
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
                && signal != TIMER_SIGNAL;
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

    /// Whether there is something to do. Cheap: two loads.
    pub fn is_busy(&self) -> bool {
        CAME.load(SeqCst) || !self.waiting.is_empty() || STOP_ASKED.load(SeqCst) != 0
    }

    /// Whether somebody wants the tracer to end.
    pub fn is_end_asked(&self) -> bool {
        let came = |&signal: &i32| {
            SENDERS.get(signal as usize).is_some_and(|s| s.load(SeqCst) != NOBODY)
                || self.waiting.iter().any(|seen| seen.signal == signal)
        };
        ENDING.iter().any(came)
    }

    /// The command stops to take a signal from this sender.
    pub fn command_reports(&mut self, signal: i32, code: i32, sender: i32) {
        if code <= 0 {
            self.report(signal, Some(sender.max(1)));
        }
    }

    /// The command has taken a signal by waiting for it.
    pub fn command_took(&mut self, signal: i32) {
        self.report(signal, None);
    }

    fn report(&mut self, signal: i32, sender: Option<i32>) {
        let at = now();
        self.reported.retain(|seen| at.saturating_sub(seen.at) < GRACE.as_nanos() as u64);
        self.reported.push(Seen { signal, sender, at });
    }

    /// Stops the tracer as its command has stopped, if job control asked both
    /// to and has not asked to go on since. Returns when it goes on.
    #[allow(clippy::unused_self)] // Only while the handlers are there.
    pub fn stop_if_asked(&self) {
        let signal = STOP_ASKED.swap(0, SeqCst);
        if signal == 0 {
            return;
        }
        // By the same signal, which the shell tells its user.
        // SAFETY: all-zero bytes are a valid sigaction; raise stops this process
        // until SIGCONT.
        unsafe {
            let mut handler: libc::sigaction = std::mem::zeroed();
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const default, &raw mut handler);
            libc::raise(signal);
            libc::sigaction(signal, &raw const handler, std::ptr::null_mut());
        }
    }

    /// What is to be done now. `alive`: the root process has not ended.
    pub fn requests(&mut self, alive: bool) -> Vec<Request> {
        let at = now();
        if CAME.swap(false, SeqCst) {
            for (signal, sender) in SENDERS.iter().enumerate() {
                let sender = sender.swap(NOBODY, SeqCst);
                if sender != NOBODY {
                    if ENDING.contains(&(signal as i32)) {
                        LAST_END.store(signal as i32, SeqCst);
                    }
                    self.waiting.push(Seen { signal: signal as i32, sender: Some(sender), at });
                }
            }
        }
        let mut requests = Vec::new();
        let (reported, apart) = (&mut self.reported, self.apart);
        let forward = |signal| {
            let to_all = apart && ENDING.contains(&signal);
            if to_all { Request::ForwardToAll(signal) } else { Request::Forward(signal) }
        };
        self.waiting.retain(|came| {
            if !alive {
                // Only what asks for an end.
                if ENDING.contains(&came.signal) {
                    requests.push(Request::End(came.signal));
                }
                return false;
            }
            if came.sender == Some(KERNEL) {
                // The terminal has sent it to the command too, but for a hangup,
                // which it tells its session's leader only. In a session of its own
                // it has heard nothing, and a terminal's size is none of its own.
                let unheard = if apart {
                    came.signal != libc::SIGWINCH
                } else {
                    came.signal == libc::SIGHUP && leads_session()
                };
                if unheard {
                    requests.push(forward(came.signal));
                }
                return false;
            }
            if let Some(same) = reported.iter().position(|seen| seen.is_same(came)) {
                reported.swap_remove(same);
                return false;
            }
            if at.saturating_sub(came.at) < GRACE.as_nanos() as u64 {
                return true;
            }
            requests.push(forward(came.signal));
            false
        });
        if self.waiting.is_empty() && !self.ticking && STOP_ASKED.load(SeqCst) == 0 {
            tick(Duration::ZERO);
            if CAME.load(SeqCst) {
                tick(TICK);
            }
        }
        requests
    }
}

fn leads_session() -> bool {
    // SAFETY: both only ask.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Signals by which somebody wants the tracer to end.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

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

/// While it lives, signals by which somebody wants an end are noted and do
/// nothing else, but for what a session does with them: what it saw is to be
/// written down.
#[derive(Debug)]
pub struct Held(Vec<(i32, libc::sigaction)>);

static END_ASKED: AtomicBool = AtomicBool::new(false);

/// The last signal by which somebody wanted an end; 0: none since [`Held::new`].
static LAST_END: AtomicI32 = AtomicI32::new(0);

extern "C" fn note_end(signal: i32) {
    END_ASKED.store(true, SeqCst);
    LAST_END.store(signal, SeqCst);
}

impl Held {
    /// From now on. What is ignored stays so.
    #[allow(clippy::new_without_default)] // It does something.
    pub fn new() -> Self {
        END_ASKED.store(false, SeqCst);
        LAST_END.store(0, SeqCst);
        let handler: extern "C" fn(i32) = note_end;
        let mut before = Vec::new();
        for signal in ENDING {
            // SAFETY: all-zero bytes are a valid sigaction; the handler only stores
            // to an atomic.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &raw mut old);
                if old.sa_sigaction == libc::SIG_IGN {
                    continue;
                }
                let mut new: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = handler as libc::sighandler_t;
                new.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &raw const new, std::ptr::null_mut());
                before.push((signal, old));
            }
        }
        Self(before)
    }

    /// The last one that has come, whether a session took it or not.
    pub fn signal(&self) -> Option<i32> {
        Some(LAST_END.load(SeqCst)).filter(|&signal| signal != 0)
    }

    /// Whether one has come that no session took.
    pub fn is_end_asked(&self) -> bool {
        END_ASKED.load(SeqCst)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (signal, old) in &self.0 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(signal: i32, sender: Option<i32>, at: Nanos) -> Seen {
        Seen { signal, sender, at }
    }

    #[test]
    fn two_deliveries_are_one_sending_only_by_sender_and_time() {
        let term = seen(libc::SIGTERM, Some(7), 1_000_000_000);
        assert!(term.is_same(&seen(libc::SIGTERM, Some(7), 1_010_000_000)));
        assert!(term.is_same(&seen(libc::SIGTERM, None, 990_000_000)));
        assert!(!term.is_same(&seen(libc::SIGTERM, Some(8), 1_010_000_000)));
        assert!(!term.is_same(&seen(libc::SIGHUP, Some(7), 1_010_000_000)));
        assert!(!term.is_same(&seen(libc::SIGTERM, Some(7), 4_000_000_000)));
    }

    #[test]
    fn what_would_end_the_tracer_is_taken() {
        for signal in 1..=LAST {
            let left = treatment(signal) == Treatment::Leave;
            let fatal_to_us = [4, 5, 6, 7, 8, 9, 11, 19, 31, 32, 33, 64].contains(&signal);
            assert_eq!(left, fatal_to_us, "{signal}");
        }
    }
}
