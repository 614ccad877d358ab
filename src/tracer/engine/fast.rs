//! Where the loop meets the fast engine: what stops in its code is put right before
//! the state machines see it, and what it counted is told to the collectors.

use crate::syscall::Abi;

use super::super::error::reason;
use super::super::fast::{makes_tasks, shares_memory};
use super::super::inside::{Caught, Met, Program};
use super::super::kernel::{self, Waited};
use super::super::memory;
use super::super::stop::{Birth, Disposition, Entry, Report, Stop, report};
use super::super::task::{Action, Follow};
use super::{Engine, change, send};

impl Engine<'_, '_> {
    /// What a stop is to the state machines; `None` where the thread went on.
    pub(super) fn meet(&mut self, tid: i32, status: i32) -> Option<Stop> {
        if !self.fast.as_ref().is_some_and(|fast| fast.is_gated(tid)) {
            return Some(self.classify(tid, status));
        }
        match report(status) {
            Report::Signal(signal) => self.meet_signal(tid, status, signal),
            Report::Plain(stop @ (Stop::Trap | Stop::GroupStop { .. })) => {
                Some(self.meet_interrupt(tid, status, stop == Stop::Trap))
            }
            Report::Exiting => {
                if let Some(caught) = self.step_back(tid, true) {
                    self.tasks.caught(tid, caught.entry, caught.at);
                }
                self.harvest(tid);
                Some(self.classify(tid, status))
            }
            Report::Syscall | Report::Seccomp => match self.classify(tid, status) {
                Stop::Entry(entry) if self.fast.as_ref().is_some_and(|f| f.asks(entry.ip)) => {
                    self.act(tid, Action::Syscall(0)); // The filter is next.
                    None
                }
                Stop::Entry(entry) => self.meet_call(tid, entry, false, Stop::Entry),
                Stop::Seccomp(entry) => {
                    let quiet = self.tasks.is_quiet(tid);
                    self.meet_call(tid, entry, quiet, Stop::Seccomp)
                }
                stop => Some(stop),
            },
            _ => Some(self.classify(tid, status)),
        }
    }

    /// A thread was made to stop, maybe by us.
    fn meet_interrupt(&mut self, tid: i32, status: i32, trap: bool) -> Stop {
        let Some(caught) = self.step_back(tid, false) else {
            return self.classify(tid, status);
        };
        let arriving = self.tasks.is_arriving(tid);
        let exit = self.exit_of(tid, &caught);
        if trap && (arriving || matches!(exit, Stop::Exit { spurious: true, .. })) {
            return exit;
        }
        self.caught(tid, &caught);
        self.classify(tid, status)
    }

    /// The end of a call that nobody saw enter, as if it had stopped there.
    fn exit_of(&mut self, tid: i32, caught: &Caught) -> Stop {
        let Caught { entry, at, value } = *caught;
        self.tasks.caught(tid, entry, at);
        let spurious = value == -i64::from(libc::EINTR)
            && self
                .tasks
                .may_repair(tid)
                .is_some_and(|evidence| kernel::is_undisturbed(tid, evidence));
        Stop::Exit { value, ip: entry.ip, sp: entry.sp, spurious }
    }

    fn meet_call(
        &mut self,
        tid: i32,
        entry: Entry,
        quiet: bool,
        stop: fn(Entry) -> Stop,
    ) -> Option<Stop> {
        let (Some(fast), tasks) = (&mut self.fast, &self.tasks) else { return Some(stop(entry)) };
        let makes = |tid: i32| tasks.entry(tid).is_some_and(|entry| makes_tasks(&entry));
        match fast.at_call(tid, entry, quiet, &makes) {
            Met::Tell(entry) => Some(stop(entry)),
            Met::Led => None,
            Met::Interrupted(caught) => {
                self.skipping = Some(tid);
                Some(self.exit_of(tid, &caught))
            }
        }
    }

    fn meet_signal(&mut self, tid: i32, status: i32, signal: i32) -> Option<Stop> {
        if self.fast.as_mut().is_some_and(|fast| fast.caused(tid, signal)) {
            let quiet = self.tasks.is_quiet(tid);
            let action = if quiet { Action::Continue(0) } else { Action::Syscall(0) };
            self.act(tid, action);
            return None;
        }
        let Some(caught) = self.step_back(tid, false) else {
            return Some(self.classify(tid, status));
        };
        let Caught { entry, value, .. } = caught;
        if value == -i64::from(libc::EINTR)
            && kernel::disposition(tid, signal) == Disposition::Ignored
        {
            // Without a tracer the call would not have noticed.
            self.tasks.caught(tid, entry, caught.at);
            return Some(Stop::Exit { value, ip: entry.ip, sp: entry.sp, spurious: true });
        }
        self.caught(tid, &caught);
        Some(self.classify(tid, status))
    }

    fn step_back(&mut self, tid: i32, ending: bool) -> Option<Caught> {
        self.fast.as_mut()?.step_back(tid, ending)
    }

    /// A call that nobody saw enter has been interrupted: from here on it is followed.
    fn caught(&mut self, tid: i32, caught: &Caught) {
        let Caught { entry, at, value } = *caught;
        self.tasks.caught(tid, entry, at);
        let exit = Stop::Exit { value, ip: entry.ip, sp: entry.sp, spurious: false };
        let actions = self.out.actions.len();
        self.tasks.step(tid, &exit, kernel::now(), &mut self.out);
        self.out.actions.truncate(actions);
    }

    /// Tells the collectors what a thread has counted.
    fn harvest(&mut self, tid: i32) {
        let Some(fast) = &mut self.fast else { return };
        for (sys, times) in fast.harvest(tid) {
            self.tasks.counted(tid, sys, times, &mut self.out);
        }
    }

    /// From now on each call is told, if some collector has come to want that.
    pub(super) fn heed_wishes(&mut self) {
        if let Some(fast) = &mut self.fast
            && fast.is_on()
            && self.observers.iter().any(|observer| observer.wants_each())
        {
            fast.count_no_more();
        }
    }

    /// A stop that the state machines are about to take.
    pub(super) fn before(&mut self, tid: i32, stop: &Stop) {
        if self.fast.is_none() {
            return;
        }
        match *stop {
            Stop::Exec { former } => {
                let siblings = self.tasks.siblings(former);
                for sibling in &siblings {
                    self.end_of_counting(*sibling);
                }
                if let Some(fast) = &mut self.fast {
                    fast.executed(former, tid, &siblings);
                }
            }
            Stop::Exited { .. } | Stop::Killed { .. } => {
                self.end_of_counting(tid);
                if self.tasks.process_of(tid) == Some(tid)
                    && let (Some(program), Some(fast)) = (self.program(tid), &mut self.fast)
                {
                    fast.forget(program);
                }
            }
            Stop::Exit { value, .. } => self.hide(tid, value),
            _ => {}
        }
    }

    fn program(&self, tid: i32) -> Option<Program> {
        self.tasks.caller(tid).map(|(process, _, image)| (process, image))
    }

    /// A thread is gone, or its program is.
    fn end_of_counting(&mut self, tid: i32) {
        let Some(fast) = &mut self.fast else { return };
        if let Some(caught) = fast.was_in(tid) {
            self.tasks.caught(tid, caught.entry, caught.at);
        }
        self.harvest(tid);
    }

    /// A stop that the state machines have taken, before anything is resumed.
    pub(super) fn after(&mut self, tid: i32, stop: &Stop) {
        if self.fast.is_none() {
            return;
        }
        match *stop {
            Stop::Child { birth, child, thread } => {
                let entry = self.tasks.entry(tid);
                let programs = [self.program(child), self.program(tid)];
                let Some(fast) = &mut self.fast else { return };
                fast.has_child(tid, child, entry, thread);
                if let ([_, Some(maker)], false) = (programs, thread) {
                    fast.has_made_process(maker);
                }
                if !thread && entry.is_some_and(|entry| shares_memory(tid, &entry)) {
                    // Two processes in one memory. By vfork its creator waits, and its
                    // call keeps it from counting meanwhile.
                    let both = if birth == Birth::Vfork { 1 } else { 2 };
                    programs.into_iter().take(both).flatten().for_each(|p| fast.shares(p));
                }
                // Who waits for its child until that executes has not returned.
                if birth != Birth::Vfork {
                    self.returns(tid, i64::from(child));
                }
            }
            Stop::Exec { .. } => {
                let begins = self.returns(tid, 0);
                if let Some(fast) = &mut self.fast {
                    fast.begins(tid, begins);
                }
            }
            Stop::Entry(entry) | Stop::Seccomp(entry) => {
                self.enter_strictly(tid, &entry);
                self.mind_dispatch(tid, &entry);
                if matches!(stop, Stop::Seccomp(_)) && entry.sys.is_sigreturn() {
                    self.returns(tid, 0);
                }
            }
            Stop::Exit { value, ip, .. } => self.maybe_tier_up(tid, value, ip),
            Stop::Exited { .. } | Stop::Killed { .. } => {
                if let Some(fast) = &mut self.fast {
                    fast.ended(tid);
                }
            }
            _ => {}
        }
    }

    /// A call whose end is known already, of a thread that counts by itself: it need not
    /// stop there. True if it goes on without.
    fn returns(&mut self, tid: i32, value: i64) -> bool {
        let (Some(entry), Some(fast)) = (self.tasks.entry(tid), &self.fast) else { return false };
        if !fast.is_gated(tid)
            || self.patched.contains_key(&tid)
            || !self.tasks.is_alone_in_call(tid)
            || !self.out.actions.contains(&(tid, Action::Syscall(0)))
        {
            return false;
        }
        self.out.actions.retain(|(stopped, _)| *stopped != tid);
        let exit = Stop::Exit { value, ip: entry.ip, sp: entry.sp, spurious: false };
        self.tasks.step(tid, &exit, kernel::now(), &mut self.out);
        self.out.actions.contains(&(tid, Action::Continue(0)))
    }

    /// Strict mode cannot be entered under a filter: another filter takes its place.
    fn enter_strictly(&mut self, tid: i32, entry: &Entry) {
        const MODE_STRICT: u64 = 1;
        const MODE_FILTER: u64 = 2;
        const SET_MODE_FILTER: u64 = 1;
        let mut args = entry.args;
        match entry.sys.number {
            _ if entry.sys.abi != Abi::X86_64 => return,
            libc::SYS_prctl if args[0] == libc::PR_SET_SECCOMP as u64 && args[1] == MODE_STRICT => {
                args[1] = MODE_FILTER;
            }
            libc::SYS_seccomp if args[0] == 0 && args[1] == 0 && args[2] == 0 => {
                args[0] = SET_MODE_FILTER;
            }
            _ => return,
        }
        let Some(program) = self.fast.as_ref().and_then(|fast| fast.strict_filter(tid, entry.sp))
        else {
            return;
        };
        args[2] = program;
        self.patched.insert(tid, change::Patch::of_arguments(entry.args));
        if let Err(e) = change::rewrite(tid, |r| r.set_arguments(&args)) {
            self.note(format!("{tid} cannot enter strict mode: {}", reason(&e)));
        }
    }

    /// Calls that are dispatched by where they are made must be made there.
    fn mind_dispatch(&mut self, tid: i32, entry: &Entry) {
        const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
        if entry.sys.name() == Some("prctl")
            && entry.args[0] == PR_SET_SYSCALL_USER_DISPATCH
            && entry.args[1] != 0
            && let (Some(program), Some(fast)) = (self.program(tid), &mut self.fast)
        {
            fast.dispatches(tid, program);
        }
    }

    /// What the program asks for and is ours.
    fn hide(&mut self, tid: i32, value: i64) {
        const ARCH_GET_GS: u64 = 0x1004;
        let Some(entry) = self.tasks.entry(tid) else { return };
        let mut base = [0; 8];
        if entry.sys.name() == Some("arch_prctl")
            && entry.args[0] == ARCH_GET_GS
            && value == 0
            && matches!(memory::read(tid, entry.args[1], &mut base), Ok(8))
            && self.fast.as_ref().is_some_and(|fast| fast.is_our_gs(u64::from_ne_bytes(base)))
        {
            let _ = memory::write(tid, entry.args[1], &[0; 8]);
        }
    }

    /// A call has ended: is it time for its program to count by itself?
    fn maybe_tier_up(&mut self, tid: i32, value: i64, ip: u64) {
        let Some(program) = self.program(tid) else { return };
        if self.tasks.is_launching(tid) || self.tasks.is_exiting(tid) {
            return;
        }
        let Some(fast) = &mut self.fast else { return };
        let siblings = self.tasks.siblings(tid);
        let makes = |sibling: &i32| self.tasks.entry(*sibling).is_some_and(|e| makes_tasks(&e));
        if fast.is_parked(tid) {
            if value >= 0
                && self.tasks.is_quiet(tid)
                && !siblings.iter().any(makes)
                && let Err(waited) = fast.unpark(tid)
            {
                self.dying(tid, waited);
            }
            return;
        }
        let due = fast.is_due(tid, program);
        let gated = fast.is_gated(tid);
        let follow = if gated { Follow::Filter } else { Follow::Every };
        if !due
            || value < 0
            || !self.has_nothing_open(tid)
            || self.tasks.follow(tid) != Some(follow)
        {
            return;
        }
        if siblings.iter().any(makes) {
            return; // Soon.
        }
        let Some(fast) = &mut self.fast else { return };
        match fast.tier_up(tid, program, ip.wrapping_sub(2), &siblings) {
            Ok(true) => {
                self.tasks.follow_by_filter(tid);
                for (stopped, action) in &mut self.out.actions {
                    if let (true, Action::Syscall(signal)) = (*stopped == tid, *action) {
                        *action = Action::Continue(signal);
                    }
                }
                for sibling in siblings {
                    if sibling != tid && self.tasks.entry(sibling).is_none() {
                        self.out.interrupt.push(sibling);
                    }
                }
            }
            Ok(false) => {}
            Err(waited) => self.dying(tid, waited),
        }
    }

    /// A thread ended while it made a call for us: its end is served next, or reported.
    fn dying(&mut self, tid: i32, waited: Option<Box<Waited>>) {
        if let Some(waited) = waited {
            self.queue.push_front(*waited);
        }
        self.out.actions.retain(|(stopped, _)| *stopped != tid);
    }

    /// Whether calls can be made in a thread, which stands at a call's exit.
    fn has_nothing_open(&self, tid: i32) -> bool {
        let goes_on = |action: &Action| matches!(action, Action::Syscall(0) | Action::Continue(0));
        self.out.actions.iter().any(|(stopped, action)| *stopped == tid && goes_on(action))
            && self.tasks.entry(tid).is_none()
            && !self.tasks.wants_disposition(tid)
            && !self.patched.contains_key(&tid)
    }

    /// A thread that nobody told of belongs to this process.
    pub(super) fn adopted(&mut self, tid: i32, creator: Option<i32>, thread: bool) {
        if let (Some(fast), Some(creator)) = (&mut self.fast, creator) {
            fast.has_child(creator, tid, self.tasks.entry(creator), thread);
        }
    }

    /// Killed for a call that strict mode does not have.
    pub(super) fn kill_for_strict_mode(&self, tid: i32) {
        send(self.tasks.process_of(tid).unwrap_or(tid), libc::SIGKILL);
    }

    /// Whether some process could not make its calls without the tracer.
    pub(super) fn is_bound(&self) -> bool {
        self.filter == super::FilterState::Installed
            || self.fast.as_ref().is_some_and(|fast| fast.has_gate())
    }
}
