//! One thread's state machine. Pure: given what the kernel said, it answers
//! what to do next and which calls are settled.
//!
//! The hard part is interrupted calls. The kernel leaves a call with -512 to
//! -516 and later re-issues it itself, or makes it end in EINTR, or a handler
//! jumps away and it never ends. All of these are one call with one outcome.

use crate::syscall::{Abi, Sys};

use super::event::{Nanos, Outcome};
use super::stop::{Disposition, Entry, Stop};

/// What the loop does next with the task that stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Resume to the next syscall stop, delivering this signal (0: none).
    Syscall(i32),
    /// Resume to the next event, delivering this signal (0: none).
    Continue(i32),
    /// Let it stay in group-stop, but report what ends it.
    Listen,
    /// Make it issue this call again, then resume to the next syscall stop.
    Reissue {
        /// The call as it entered.
        entry: Entry,
        /// Time spent in it so far, ns: its timeout is shortened by that.
        elapsed: u64,
    },
    /// Make it issue this call again, without the tracer.
    ReissueAndDetach {
        /// The call as it entered.
        entry: Entry,
    },
    /// Take back a re-issue: let the call end in EINTR after all, then resume
    /// to the next syscall stop, delivering the signal.
    EndInEintr {
        /// The call as it entered.
        entry: Entry,
        /// The signal, which a handler takes.
        signal: i32,
    },
    /// Stop tracing it, delivering this signal (0: none).
    Detach(i32),
    /// Leave it stopped: its birth has not been reported yet.
    Hold,
    /// It cannot be resumed: wait for what it reports next.
    Wait,
}

/// What makes a task stop at calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Every call, by PTRACE_SYSCALL.
    Every,
    /// The calls that a filter of ours says RET_TRACE to.
    Filter,
    /// None: it is not watched for now.
    Off,
}

/// A call that has entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InFlight {
    /// As it entered first.
    pub entry: Entry,
    /// When.
    pub at: Option<Nanos>,
    /// The same without what collectors took since.
    pub entered: Option<Nanos>,
    /// Re-issues by the kernel.
    pub restarts: u32,
    /// Re-issues by the tracer.
    pub repaired: u32,
    /// Since when it sleeps, where its entry was not seen.
    pub asleep: Option<Nanos>,
    /// It entered while nobody watched, and is not to be counted.
    pub silent: bool,
}

impl InFlight {
    fn new(entry: Entry) -> Self {
        Self {
            entry,
            at: None,
            entered: None,
            restarts: 0,
            repaired: 0,
            asleep: None,
            silent: false,
        }
    }
}

/// A call whose outcome is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// The call.
    pub call: InFlight,
    /// When it returned, if it did.
    pub left: Option<Nanos>,
    /// When it was cut off, if it was.
    pub cut: Option<Nanos>,
    /// How it ended.
    pub outcome: Outcome,
}

/// An interrupted call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Interrupted {
    call: InFlight,
    /// No handler has run since, as far as is known: the next entry is its own.
    fresh: bool,
    /// A later call came from a stack pointer above its own: its frame may be gone.
    left: bool,
    /// Who issues it again.
    by: Issuer,
}

impl Interrupted {
    fn fresh(call: InFlight, by: Issuer) -> Self {
        Self { call, fresh: true, left: false, by }
    }
}

/// Who issues an interrupted call again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Issuer {
    /// The kernel, of itself.
    Kernel,
    /// The kernel, because the tracer made the thread stop, and nothing else did.
    Interrupt,
    /// The tracer.
    Tracer,
}

/// A call that returned its own number, which the next stop may explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    call: InFlight,
    at: Nanos,
}

/// How many interrupted calls a thread may have before the oldest is taken as
/// abandoned: handlers nest a few deep, programs that jump out of them for ever
/// must not grow the tracer.
const MOST_INTERRUPTED: usize = 64;

const EINTR: i64 = -(libc::EINTR as i64);

/// One thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    follow: Follow,
    launching: bool,
    /// Its next first stop is its arrival; whether the call it is in counts.
    arriving: Option<bool>,
    /// The tracer asked it to stop, and it has not yet.
    asked: bool,
    current: Option<InFlight>,
    held: Option<Held>,
    interrupted: Vec<Interrupted>,
}

impl Task {
    /// A task that has not made a call yet.
    pub fn new(follow: Follow) -> Self {
        Self {
            follow,
            launching: false,
            arriving: None,
            asked: false,
            current: None,
            held: None,
            interrupted: Vec::new(),
        }
    }

    /// A thread that was attached to, before its first stop. The call it may be
    /// in counts.
    pub fn attached(follow: Follow) -> Self {
        Self { arriving: Some(true), ..Self::new(follow) }
    }

    /// The launcher's child: its calls are the launcher's until an exec succeeds.
    pub fn launching(follow: Follow) -> Self {
        Self { launching: true, ..Self::new(follow) }
    }

    /// Whether the command has not been executed yet.
    pub fn is_launching(&self) -> bool {
        self.launching
    }

    /// The call it is in.
    pub fn current(&self) -> Option<&InFlight> {
        self.current.as_ref()
    }

    /// The call that it is in began so much later, ns: it was kept from it.
    pub fn excuse(&mut self, took: Nanos) {
        if let Some(entered) = self.current.as_mut().and_then(|call| call.entered.as_mut()) {
            *entered = entered.saturating_add(took);
        }
    }

    /// Whether nothing of it is under way that has to be seen call by call, and only
    /// a filter makes it stop.
    pub fn is_quiet(&self) -> bool {
        self.current.is_none() && self.has_nothing_else()
    }

    /// Whether it is in a call, and nothing else of it is under way.
    pub fn is_alone_in_call(&self) -> bool {
        self.current.is_some() && self.has_nothing_else()
    }

    /// Beside the call that it may be in, of a thread that only a filter makes stop.
    fn has_nothing_else(&self) -> bool {
        self.follow == Follow::Filter
            && !self.launching
            && self.arriving.is_none()
            && self.held.is_none()
            && self.interrupted.is_empty()
    }

    /// It is in a call that did not stop at its entry, and that has to be followed
    /// from here on.
    pub fn caught(&mut self, entry: Entry, at: Nanos) {
        self.asked |= self.arriving.take().is_some();
        self.current = Some(InFlight { at: Some(at), entered: Some(at), ..InFlight::new(entry) });
    }

    /// From its next stop on, it is followed so.
    pub fn set_follow(&mut self, follow: Follow) {
        self.follow = follow;
    }

    /// It was not watched and is from its next stop on. True when it has to be
    /// interrupted for that: inside a call that was seen to enter, its exit
    /// stops anyway.
    pub fn watch_again(&mut self) -> bool {
        self.follow = Follow::Every;
        let interrupt = self.current.is_none() && self.interrupted.is_empty();
        if interrupt && self.arriving.is_none() {
            self.arriving = Some(false);
        }
        interrupt
    }

    /// The tracer is about to make it stop, for a trap.
    pub fn ask_to_stop(&mut self) {
        self.asked = self.arriving.is_none();
    }

    /// Whether its next first stop is an arrival.
    pub fn is_arriving(&self) -> bool {
        self.arriving.is_some()
    }

    /// Whether a signal's disposition matters to it now.
    pub fn wants_disposition(&self) -> bool {
        self.interrupted.last().is_some_and(|i| i.fresh)
    }

    /// Whether it may be in a call whose entry did not stop.
    pub fn is_unwatched(&self) -> bool {
        self.follow != Follow::Every && self.current.is_none() && self.interrupted.is_empty()
    }

    /// Whether it is in a call that an ignored signal ends only under a tracer.
    pub fn is_repairable(&self) -> bool {
        self.current.is_some_and(|c| c.entry.sys.is_repairable())
    }

    /// Takes a stop; `at` is when it was reported, for an entry when it is
    /// about to be resumed. Settled calls go to `settle`.
    pub fn step(&mut self, stop: &Stop, at: Nanos, settle: &mut impl FnMut(Settled)) -> Action {
        match *stop {
            Stop::Entry(entry) => {
                self.release(settle);
                if self.follow == Follow::Off && self.interrupted.is_empty() {
                    return self.resume(0); // It came too late.
                }
                self.enter(entry, at, settle);
                Action::Syscall(0)
            }
            Stop::Seccomp(entry) => {
                // Under PTRACE_SYSCALL the entry stop came first (seccomp(2), since 4.8).
                if self.current.is_none() {
                    self.release(settle);
                    self.enter(entry, at, settle);
                }
                Action::Syscall(0)
            }
            Stop::Lost => {
                if let Some(call) = self.current.take() {
                    self.cut(call, Outcome::Unfinished, Some(at), settle);
                } else {
                    // An entry, then: what it is will not be known.
                    let sys = Sys::new(Abi::native(), -1);
                    let entry = Entry { sys, args: [0; 6], ip: 0, sp: 0 };
                    self.current = Some(InFlight { silent: true, ..InFlight::new(entry) });
                }
                self.resume(0)
            }
            Stop::Exit { value, spurious: true, .. } if value == EINTR => {
                self.reissue(at).unwrap_or_else(|| self.resume(0))
            }
            Stop::Exit { value, ip, sp, .. } => {
                self.leave(value, ip, sp, at, settle);
                self.resume(0)
            }
            Stop::Arrived { inside, spurious, stopped, since } => {
                let reissue = self.arrive(inside, spurious, since, at, settle);
                let go_on = if stopped { Action::Listen } else { self.resume(0) };
                reissue.unwrap_or(go_on)
            }
            Stop::Disturbed { entry } => {
                // When it entered is not known: its timeout starts anew, once.
                self.current =
                    Some(InFlight { entered: Some(at), silent: true, ..InFlight::new(entry) });
                self.reissue(at).unwrap_or_else(|| self.resume(0))
            }
            Stop::Signal { signal, disposition } => self.signal(signal, disposition, at, settle),
            Stop::GroupStop { .. } => {
                self.release(settle);
                self.also_interrupted();
                Action::Listen
            }
            Stop::Exec { .. } => {
                self.launching = false;
                self.cut_interrupted(at, settle);
                self.resume(0)
            }
            Stop::Exiting { status } => {
                if let Some(held) = self.held.take_if(|_| status & 0x7f == libc::SIGSYS) {
                    // A filter killed it for this call.
                    let outcome = Outcome::Unfinished;
                    self.cut(held.call, outcome, Some(at), settle);
                }
                self.end(at, settle);
                Action::Continue(0)
            }
            Stop::Exited { .. } | Stop::Killed { .. } => {
                self.end(at, settle);
                Action::Wait
            }
            Stop::Dying => Action::Wait,
            Stop::Trap => {
                self.asked = false;
                self.resume(0)
            }
            Stop::Vsyscall | Stop::Child { .. } | Stop::Unknown { .. } => self.resume(0),
        }
    }

    /// Settles everything it is in: its calls will not return.
    pub fn end(&mut self, at: Nanos, settle: &mut impl FnMut(Settled)) {
        self.release(settle);
        self.cut_interrupted(at, settle);
        if let Some(call) = self.current.take() {
            let outcome =
                if call.entry.sys.is_exit() { Outcome::NoReturn } else { Outcome::Unfinished };
            self.cut(call, outcome, Some(at), settle);
        }
    }

    /// A call that was to be re-issued has no time left: it returned `value`.
    pub fn time_is_over(&mut self, value: i64, at: Nanos, settle: &mut impl FnMut(Settled)) {
        if let Some(i) = self.interrupted.pop_if(|i| i.fresh && i.by == Issuer::Tracer) {
            self.finish(i.call, value, at, settle);
        }
    }

    /// Resumes it in the way it is followed.
    fn resume(&self, signal: i32) -> Action {
        let stops = self.follow == Follow::Every
            || self.launching
            || self.current.is_some()
            || self.held.is_some()
            // Until it is settled, rt_sigreturn and the re-entry must be seen.
            || !self.interrupted.is_empty();
        if stops { Action::Syscall(signal) } else { Action::Continue(signal) }
    }

    fn settle(&self, settled: Settled, settle: &mut impl FnMut(Settled)) {
        if !self.launching && !settled.call.silent {
            settle(settled);
        }
    }

    /// A call that will not return; `at` is when it was cut off.
    fn cut(
        &self,
        call: InFlight,
        outcome: Outcome,
        at: Option<Nanos>,
        settle: &mut impl FnMut(Settled),
    ) {
        self.settle(Settled { call, left: None, cut: at, outcome }, settle);
    }

    /// The next stop has come and does not change what was held.
    fn release(&mut self, settle: &mut impl FnMut(Settled)) {
        if let Some(Held { call, at }) = self.held.take() {
            self.finish(call, call.entry.sys.number, at, settle);
        }
    }

    fn finish(&self, call: InFlight, value: i64, at: Nanos, settle: &mut impl FnMut(Settled)) {
        // rt_sigreturn "returns" whatever the interrupted code had in the register.
        let failed = (-4095..=-1).contains(&value) && !call.entry.sys.is_sigreturn();
        let outcome =
            if failed { Outcome::Failed(-value as i32) } else { Outcome::Returned(value) };
        self.settle(Settled { call, left: Some(at), cut: None, outcome }, settle);
    }

    fn cut_interrupted(&mut self, at: Nanos, settle: &mut impl FnMut(Settled)) {
        for i in std::mem::take(&mut self.interrupted) {
            if i.left {
                self.cut(i.call, Outcome::Abandoned, None, settle);
            } else {
                self.cut(i.call, Outcome::Unfinished, Some(at), settle);
            }
        }
    }

    /// Gives up the interrupted calls from position `from` on.
    fn abandon(&mut self, from: usize, settle: &mut impl FnMut(Settled)) {
        for i in self.interrupted.split_off(from.min(self.interrupted.len())) {
            self.cut(i.call, Outcome::Abandoned, None, settle);
        }
    }

    fn enter(&mut self, entry: Entry, at: Nanos, settle: &mut impl FnMut(Settled)) {
        if let Some(call) = self.current.take() {
            // An exit that the kernel never reported.
            self.cut(call, Outcome::Unfinished, Some(at), settle);
        }
        if let Some(top) = self.interrupted.last_mut() {
            let was = top.call.entry;
            let here = was.ip == entry.ip && was.sp == entry.sp;
            if top.fresh && here && (was.sys == entry.sys || entry.sys.is_restart_syscall()) {
                let by = top.by;
                self.current = self.interrupted.pop().map(|i| i.call);
                if let Some(call) = &mut self.current {
                    match by {
                        Issuer::Kernel => call.restarts += 1,
                        Issuer::Tracer => call.repaired += 1,
                        Issuer::Interrupt => {}
                    }
                }
                return;
            }
            // Something else runs first: a handler.
            top.fresh = false;
            if entry.sp >= was.sp && !entry.sys.is_sigreturn() {
                top.left = true;
            }
            // The very call again, and not by a restart: the frame of the
            // interrupted one is gone.
            let again = self.interrupted.iter().position(|i| {
                let was = i.call.entry;
                (was.sys, was.ip, was.sp) == (entry.sys, entry.ip, entry.sp)
            });
            if let Some(again) = again {
                self.abandon(again, settle);
            }
        }
        self.current = Some(InFlight { at: Some(at), entered: Some(at), ..InFlight::new(entry) });
    }

    fn leave(&mut self, value: i64, ip: u64, sp: u64, at: Nanos, settle: &mut impl FnMut(Settled)) {
        // Any stop clears the request, but a call that has entered is interrupted by it.
        let asked = std::mem::take(&mut self.asked);
        let Some(call) = self.current.take() else {
            return; // Entered before anybody watched.
        };
        if call.entry.sys.is_sigreturn() {
            self.finish(call, value, at, settle);
            self.handler_returned(value, ip, sp, at, settle);
        } else if is_interruption(value) {
            let same_frame = self.interrupted.iter().position(|i| i.call.entry.sp == call.entry.sp);
            if let Some(from) = same_frame {
                self.abandon(from, settle);
            }
            if self.interrupted.len() >= MOST_INTERRUPTED {
                let oldest = self.interrupted.remove(0);
                self.cut(oldest.call, Outcome::Abandoned, None, settle);
            }
            // A signal that came too is reported next.
            let by = if asked { Issuer::Interrupt } else { Issuer::Kernel };
            self.interrupted.push(Interrupted::fresh(call, by));
        } else if value == call.entry.sys.number {
            // What SECCOMP_RET_TRAP leaves in the register. The next stop tells.
            self.held = Some(Held { call, at });
        } else {
            self.finish(call, value, at, settle);
        }
    }

    /// The call ended in EINTR only because it is traced: it goes on.
    fn reissue(&mut self, at: Nanos) -> Option<Action> {
        let call = self.current.take()?;
        let elapsed = at.saturating_sub(call.entered.or(call.asleep).unwrap_or(at));
        self.interrupted.push(Interrupted::fresh(call, Issuer::Tracer));
        Some(Action::Reissue { entry: call.entry, elapsed })
    }

    /// The first stop of a thread that is watched from now on. It may be inside
    /// a call, which the stop has interrupted.
    fn arrive(
        &mut self,
        inside: Option<(Entry, i64)>,
        spurious: bool,
        since: Option<Nanos>,
        at: Nanos,
        settle: &mut impl FnMut(Settled),
    ) -> Option<Action> {
        let counted = self.arriving.take()?;
        let (entry, value) = inside?;
        let call = InFlight { silent: !counted, asleep: since, ..InFlight::new(entry) };
        if is_interruption(value) {
            self.interrupted.push(Interrupted::fresh(call, Issuer::Interrupt));
        } else if value == EINTR && spurious && entry.sys.is_repairable() {
            self.current = Some(call);
            return self.reissue(at);
        } else {
            self.finish(call, value, at, settle);
        }
        None
    }

    /// A handler has returned to `ip` and `sp`: settle the call it interrupted.
    fn handler_returned(
        &mut self,
        value: i64,
        ip: u64,
        sp: u64,
        at: Nanos,
        settle: &mut impl FnMut(Settled),
    ) {
        let found = self.interrupted.iter().rposition(|i| !i.fresh && i.call.entry.sp == sp);
        let Some(found) = found else { return };
        self.abandon(found + 1, settle);
        let Some(i) = self.interrupted.pop() else { return };
        let entry = i.call.entry;
        if ip == entry.ip {
            self.finish(i.call, value, at, settle);
        } else if ip == entry.ip.wrapping_sub(instruction_length(entry.sys.abi)) {
            self.interrupted.push(Interrupted { fresh: true, left: false, ..i });
        } else {
            self.cut(i.call, Outcome::Abandoned, None, settle);
        }
    }

    /// What the tracer interrupted would have been interrupted without.
    fn also_interrupted(&mut self) {
        if let Some(top) = self.interrupted.last_mut().filter(|i| i.fresh)
            && top.by == Issuer::Interrupt
        {
            top.by = Issuer::Kernel;
        }
    }

    fn signal(
        &mut self,
        signal: i32,
        disposition: Disposition,
        at: Nanos,
        settle: &mut impl FnMut(Settled),
    ) -> Action {
        if signal == libc::SIGSYS
            && let Some(held) = self.held.take()
        {
            // A filter's trap: what the handler leaves in the register is what
            // the program gets.
            let trapped = Interrupted::fresh(held.call, Issuer::Kernel);
            self.interrupted.push(Interrupted { fresh: false, ..trapped });
            return self.resume(signal);
        }
        self.release(settle);
        self.also_interrupted();
        if let Some(top) = self.interrupted.last_mut().filter(|i| i.fresh) {
            if top.by == Issuer::Tracer && disposition != Disposition::Ignored {
                let call = top.call;
                self.interrupted.pop();
                self.finish(call, EINTR, at, settle);
                return Action::EndInEintr { entry: call.entry, signal };
            }
            if disposition == Disposition::Handled {
                top.fresh = false;
            }
        }
        self.resume(signal)
    }
}

/// -ERESTARTSYS, -ERESTARTNOINTR, -ERESTARTNOHAND, -ERESTART_RESTARTBLOCK of
/// linux/errno.h: never seen by the program.
fn is_interruption(value: i64) -> bool {
    matches!(value, -512 | -513 | -514 | -516)
}

/// Length of the call instruction, bytes: what the kernel steps back by.
pub fn instruction_length(abi: Abi) -> u64 {
    match abi {
        Abi::X86_64 | Abi::I386 | Abi::X32 => 2,
        Abi::Aarch64 | Abi::Arm => 4,
    }
}

impl Sys {
    /// Calls that signal(7) lists as ending in EINTR whatever the handler's
    /// flags, or with a socket timeout: under ptrace an ignored signal, which
    /// the program would never have noticed, ends them. Only 64-bit ABIs: the
    /// registers of others are not rewritten.
    pub fn is_repairable(self) -> bool {
        matches!(self.abi, Abi::X86_64 | Abi::Aarch64)
            && matches!(
                self.name(),
                Some(
                    "epoll_wait"
                        | "epoll_pwait"
                        | "epoll_pwait2"
                        | "semop"
                        | "semtimedop"
                        | "rt_sigtimedwait"
                        | "io_getevents"
                        | "io_pgetevents"
                        | "recvfrom"
                        | "recvmsg"
                        | "recvmmsg"
                        | "read"
                        | "readv"
                        | "accept"
                        | "accept4"
                        | "connect"
                        | "io_uring_enter"
                        | "sendto"
                        | "sendmsg"
                        | "sendmmsg"
                        | "write"
                        | "writev"
                )
            )
    }
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
