//! The ptrace loop: wait, ask what the stop is, let the state machines decide,
//! tell the collectors, do what was decided. The only place that acts.

mod ask;
mod change;
mod disturb;
mod drain;
mod fast;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use crate::syscall::CallSet;

use super::attach::seize_all;
use super::calibrate::Cost;
use super::error::{Error, reason};
use super::event::{Ending, Event, Nanos, Observer, Usage};
use super::fast::Fast;
use super::inside::FastSummary;
use super::kernel::{self, Bell, Waited, now};
use super::launch::{Launched, Reports};
use super::limits::{Due, Limits, Spent};
use super::privilege;
use super::session::{FilterState, Options};
use super::signals::{Guard, Request};
use super::stop::{Stop, ending};
use super::task::{Action, Follow};
use super::tasks::{Outbox, Tasks};

pub struct Engine<'a, 'o> {
    tasks: Tasks,
    /// The command's process; none when attached.
    root: Option<i32>,
    /// The launcher's child, until the command has been executed.
    launched: Option<Launched>,
    reports: Reports,
    guard: Guard,
    limits: Limits,
    detach_on_exit: bool,
    linger: Option<Duration>,
    duration: Option<Duration>,
    observers: &'a mut [&'o mut dyn Observer],
    /// The calls whose entries each is told of.
    needs: Vec<CallSet>,
    out: Outbox,
    syscall_info: bool,
    /// The tracer has children that it does not trace: it was exec'd by a
    /// program that had some.
    strangers: bool,
    /// Reports that are still to be served.
    queue: VecDeque<Waited>,
    /// Reports that are held back on purpose.
    disturb: disturb::Disturb,
    /// Arguments to put back when a changed call returns.
    patched: HashMap<i32, change::Patch>,
    root_end: Option<(Ending, Nanos, Option<Usage>)>,
    /// What a process had used before it counts: the launcher's child until the
    /// exec that succeeded, an attached process until then.
    before: HashMap<i32, Usage>,
    /// Since when threads slept that were interrupted to be watched.
    asleep: HashMap<i32, Nanos>,
    /// When to leave without those that do not stop to be let go.
    deadline: Option<Nanos>,
    /// Somebody else computes on the tracer's processor.
    crowded: bool,
    /// The command is stopped by a signal.
    root_stopped: bool,
    /// It is in a session of its own, where no job control stops it.
    apart: bool,
    #[cfg(debug_assertions)]
    recorder: super::saved::Recorder,
    stops: u64,
    /// Stops that could not be understood.
    lost: u64,
    batches: u64,
    /// It stands at a call that is skipped, whose end is not to be seen.
    skipping: Option<i32>,
    takes_no_privilege: bool,
    /// Among very many tracees.
    bell: Option<Bell>,
    /// CPU time of processes that have ended, ns.
    spent: Nanos,
    filter: FilterState,
    /// The fast engine, where calls are counted without a stop.
    fast: Option<Box<Fast>>,
    notes: Vec<String>,
}

/// Most notes kept: a misbehaving kernel must not fill the record.
const MOST_NOTES: usize = 32;

/// What a session comes to.
#[derive(Debug)]
pub struct End {
    /// The command's end: how, when, and wait4's usage.
    pub root: Option<(Ending, Nanos, Option<Usage>)>,
    /// What the launcher's child had to say.
    pub reports: Reports,
    /// When counting began.
    pub started: Option<Nanos>,
    /// Time in which calls were watched, ns; `None`: all of it.
    pub watched: Option<Nanos>,
    /// Whether time was over.
    pub timed_out: bool,
    /// Stops served.
    pub stops: u64,
    /// Stops that could not be understood.
    pub lost: u64,
    /// What became of the filter.
    pub filter: FilterState,
    /// What the fast engine did.
    pub fast: Option<FastSummary>,
    /// Surprises.
    pub notes: Vec<String>,
}

/// The calls that some collector needs.
pub fn needed_by(observers: &[&mut dyn Observer]) -> CallSet {
    observers.iter().fold(CallSet::none(), |needed, o| needed.union(&o.needs()))
}

impl<'a, 'o> Engine<'a, 'o> {
    /// An engine that follows nothing yet. From now on it takes the tracer's
    /// signals: the command must have been forked before.
    pub fn new(
        options: &Options,
        root: Option<i32>,
        strangers: bool,
        filter: FilterState,
        fast: Option<Box<Fast>>,
        observers: &'a mut [&'o mut dyn Observer],
    ) -> Self {
        let needs: Vec<CallSet> = observers.iter().map(|o| o.needs()).collect();
        let needed = needed_by(observers);
        let mut limits = Limits::default();
        let start = now();
        if let Some(timeout) = options.timeout {
            limits.end_after(start, timeout);
        }
        if let Some(duration) = options.duration {
            limits.let_go_after(start, duration);
        }
        Self {
            tasks: Tasks::new(options.calls.clone(), needed),
            root,
            launched: None,
            reports: Reports::default(),
            guard: Guard::take(limits.is_set()),
            limits,
            detach_on_exit: options.detach_on_exit,
            linger: options.linger,
            duration: options.duration,
            observers,
            needs,
            out: Outbox::default(),
            syscall_info: options.syscall_info,
            strangers,
            queue: VecDeque::new(),
            disturb: disturb::Disturb::default(),
            patched: HashMap::new(),
            root_end: None,
            before: HashMap::new(),
            crowded: false,
            root_stopped: false,
            apart: false,
            asleep: HashMap::new(),
            deadline: None,
            #[cfg(debug_assertions)]
            recorder: super::saved::Recorder::from_environment(),
            stops: 0,
            lost: 0,
            batches: 0,
            skipping: None,
            bell: None,
            takes_no_privilege: privilege::is_harmless(),
            spent: 0,
            filter,
            fast,
            notes: Vec::new(),
        }
    }

    /// The command is in a session of its own.
    pub fn set_apart(&mut self) {
        self.apart = true;
        self.guard.set_apart();
    }

    /// Holds back stops by chance; see [`Place::disturb`](super::place::Place).
    pub fn disturb(&mut self, seed: u32) {
        self.disturb.begin(seed, now());
    }

    /// Follows the launcher's child, which was seized and asked to stop.
    pub fn launch(&mut self, mut launched: Launched, follow: Follow) -> Result<(), Error> {
        self.tasks.launch(launched.pid, follow, now(), &mut self.out);
        self.tell();
        launched.open()?;
        self.launched = Some(launched);
        Ok(())
    }

    /// Follows a process that runs already, asking for these reports.
    ///
    /// # Errors
    /// When it cannot be traced.
    pub fn attach(&mut self, pid: i32, reports: i32) -> Result<(), Error> {
        let before = kernel::own_usage(pid).unwrap_or_default();
        let until = self.limits.end_of_watch();
        self.guard.keep_ticking(); // No wait of it may last.
        let is_ended = || self.guard.is_end_asked();
        let seized = seize_all(pid, reports, until, &is_ended, &mut self.queue)?;
        self.before.insert(pid, before);
        let tids: Vec<i32> = seized.tids.iter().map(|(tid, _)| *tid).collect();
        self.asleep.extend(seized.tids.iter().filter_map(|&(tid, since)| Some((tid, since?))));
        for note in seized.notes {
            self.lost += 1;
            self.note(note);
        }
        self.tasks.attach(pid, &tids, now(), &mut self.out);
        self.carry_out();
        Ok(())
    }

    /// The session is over.
    pub fn end(mut self) -> End {
        self.hear_the_launcher();
        let started = self.tasks.started();
        End {
            root: self.root_end,
            reports: self.reports,
            started,
            watched: self.limits.watched(now()),
            timed_out: self.limits.timed_out(),
            stops: self.stops,
            lost: self.lost,
            filter: self.filter,
            fast: self.fast.map(|fast| fast.summary()),
            notes: self.notes,
        }
    }

    /// From now on, watches what was attached to in bursts, so that it takes at
    /// most `slowdown` times as long.
    pub fn slow_at_most(&mut self, slowdown: f64, cost: Cost) {
        let cpu = cpu_time(&self.tasks, self.spent);
        self.limits.slow_at_most(now(), slowdown, cost, cpu);
        self.guard.keep_ticking();
    }

    pub fn run(&mut self) -> Result<(), Error> {
        if let Some(duration) = self.duration {
            // Attaching, which may take its time, is no part of it.
            self.limits.let_go_after(now(), duration);
        }
        while !self.tasks.is_empty() {
            self.look_around();
            if self.deadline.is_some_and(|at| now() >= at) {
                self.note(format!(
                    "threads that did not stop to be let go: {}; they were when coldtrace ended",
                    self.tasks.len()
                ));
                for tid in self.tasks.tids().collect::<Vec<_>>() {
                    self.forget(tid);
                }
                return Ok(());
            }
            if !self.drain()? {
                return Ok(());
            }
            while let Some(waited) = self.queue.pop_front() {
                // A thread that reports again was killed where it was held.
                if let Some(before) = self.disturb.take(0, Some(waited.tid)) {
                    self.serve(before);
                }
                match self.disturb.choose(waited.tid, waited.status, now()) {
                    Some(time) if self.tasks.len() > 1 => self.hold_back(waited, time),
                    _ => self.serve(waited),
                }
            }
            while let Some(waited) = self.disturb.take(now(), None) {
                self.serve(waited);
            }
        }
        Ok(())
    }

    /// Serves a report later, so that others go on before.
    fn hold_back(&mut self, waited: Waited, time: Nanos) {
        if !waited.taken {
            self.take(waited.tid, waited.status);
        }
        self.disturb.hold(Waited { taken: true, ..waited }, time, now());
    }

    /// Serves one report.
    fn serve(&mut self, waited: Waited) {
        let Waited { tid, status, taken, at, own, with_children: usage } = waited;
        self.out.clear();
        let Some(stop) = self.meet(tid, status) else {
            self.stops += 1;
            return;
        };
        #[cfg(debug_assertions)]
        self.recorder.save(&super::saved::Told::Stop(tid, stop));
        self.before(tid, &stop);
        match stop {
            Stop::Exited { .. } | Stop::Killed { .. } => {
                let ending = ending(status).unwrap_or(Ending::Detached);
                self.patched.remove(&tid);
                self.spent += own.map_or(0, |own| own.user_ns + own.sys_ns);
                let own = own.map(|own| match self.before.remove(&tid) {
                    Some(before) => own.since(&before),
                    None => own,
                });
                if Some(tid) == self.root && self.root_end.is_none() {
                    self.root_end = Some((ending, at, usage));
                }
                self.tasks.ended(tid, ending, at, own, usage, &mut self.out);
            }
            _ => {
                self.stops += 1;
                let at = if matches!(stop, Stop::Entry(_) | Stop::Seccomp(_)) { now() } else { at };
                self.tasks.step(tid, &stop, at, &mut self.out);
            }
        }
        if let Stop::Entry(entry) = stop
            && entry.sys.is_exec()
            && self.tasks.started().is_none()
        {
            self.before.insert(tid, kernel::own_usage(tid).unwrap_or_default());
        }
        match stop {
            Stop::Exec { former } => {
                // The image whose call was changed is gone.
                self.patched.remove(&former);
                self.patched.remove(&tid);
                self.hear_the_launcher();
                if !self.takes_no_privilege
                    && let Some(note) = privilege::taken_from(tid)
                {
                    self.note(note);
                }
            }
            Stop::Entry(entry) | Stop::Seccomp(entry) => self.keep_traced(tid, &entry),
            // An interrupted call keeps its patch until it has returned.
            Stop::Exit { .. } if !self.patched.is_empty() && !self.tasks.wants_disposition(tid) => {
                self.unpatch(tid);
            }
            Stop::Unknown { status } if status != 0 => {
                self.note(format!("unknown wait status {status:#x} of {tid}"));
            }
            _ => {}
        }
        self.after(tid, &stop);
        if !taken && self.out.actions.contains(&(tid, Action::Hold)) {
            self.take(tid, status);
        }
        self.carry_out();
        match stop {
            Stop::GroupStop { .. } if Some(tid) == self.root => self.root_stopped = true,
            Stop::Trap if Some(tid) == self.root => self.root_stopped = false,
            Stop::Exited { .. } | Stop::Killed { .. }
                if Some(tid) == self.root && self.detach_on_exit && !self.limits.timed_out() =>
            {
                self.let_go();
            }
            Stop::Exited { .. } | Stop::Killed { .. } if Some(tid) == self.root => {
                if let Some(linger) = self.linger {
                    self.limits.let_go_after(now(), linger);
                    self.guard.keep_ticking();
                }
            }
            _ => {}
        }
    }

    /// A thread that is not resumed now: its report must not come a second time.
    fn take(&mut self, tid: i32, status: i32) {
        if let Ok(Some(waited)) = kernel::take(tid)
            && waited.status != status
        {
            self.queue.push_back(waited);
        }
    }

    /// The command has been executed: what the launcher's child had to say is
    /// complete. Without the filter that it was to install, every call stops.
    fn hear_the_launcher(&mut self) {
        let Some(mut launched) = self.launched.take() else { return };
        self.reports = launched.reports();
        for note in std::mem::take(&mut self.reports.unfixed) {
            self.note(note);
        }
        if let Some(e) = &self.reports.filter {
            self.filter = FilterState::Refused(format!("the kernel refused it: {}", reason(e)));
            self.tasks.filter_refused(&mut self.out);
        }
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < MOST_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Tells the collectors, then does what was decided.
    fn carry_out(&mut self) {
        let took = self.tell();
        for i in 0..self.out.actions.len() {
            if let Some(&(tid, action)) = self.out.actions.get(i) {
                if took > 0 {
                    self.tasks.excuse(tid, took);
                }
                self.act(tid, action);
            }
        }
        for tid in std::mem::take(&mut self.out.interrupt) {
            if self.tasks.is_arriving(tid)
                && let Some(since) = kernel::asleep_since(tid)
            {
                self.asleep.insert(tid, since);
            }
            self.tasks.ask_to_stop(tid);
            let _ = kernel::interrupt(tid); // Dying: its end is reported.
        }
    }

    /// Tells the collectors; gives how long they took, ns: whoever is stopped for
    /// it is not charged with that.
    fn tell(&mut self) -> Nanos {
        if self.out.events.is_empty() {
            return 0;
        }
        let begun = now();
        for event in &self.out.events {
            for (observer, needs) in self.observers.iter_mut().zip(&self.needs) {
                if !matches!(event, Event::Entered { sys, .. } if !needs.contains(*sys)) {
                    observer.event(event);
                }
            }
        }
        self.out.events.clear();
        self.heed_wishes();
        now().saturating_sub(begun)
    }

    fn act(&mut self, tid: i32, action: Action) {
        if let Some(fast) = &mut self.fast {
            fast.resuming(tid, &action);
        }
        let done = match action {
            Action::Syscall(signal) => self.resume_to_syscall(tid, signal),
            Action::Continue(signal) => kernel::resume(tid, signal),
            Action::Listen => match kernel::listen(tid) {
                // It has left the group-stop since: killed, it stands at its
                // exit stop, which is reported.
                Err(e) if e.raw_os_error() == Some(libc::EIO) => Ok(()),
                done => done,
            },
            Action::Reissue { entry, elapsed } => self.reissue(tid, &entry, elapsed),
            Action::EndInEintr { entry, signal } => {
                let result = change::rewrite(tid, |r| r.finish(&entry, -i64::from(libc::EINTR)));
                self.patched.remove(&tid);
                result.and_then(|()| self.resume_to_syscall(tid, signal))
            }
            Action::Detach(signal) => self.detach(tid, signal),
            Action::ReissueAndDetach { entry } => {
                let done = change::rewrite(tid, |r| r.reissue(&entry));
                done.and_then(|()| self.detach(tid, 0))
            }
            Action::Hold | Action::Wait => Ok(()),
        };
        // However it went on, it is behind that call now.
        self.skipping.take_if(|skipping| *skipping == tid);
        match done {
            Ok(()) => {}
            // It is dying: wait for what it reports.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            // Without a tracer each filtered call would fail with ENOSYS.
            Err(e) if self.is_bound() => {
                self.note(format!("{tid} was killed: cannot resume it: {}", reason(&e)));
                send(self.tasks.process_of(tid).unwrap_or(tid), libc::SIGKILL);
            }
            Err(e) => {
                // It may be our child still, and report as such.
                self.strangers |= self.root.is_some();
                self.note(format!("{tid} was let go: cannot resume it: {}", reason(&e)));
                let _ = kernel::detach(tid, 0);
                self.forget(tid);
            }
        }
    }

    /// To the next side of a call; behind one that is skipped, to the filter.
    fn resume_to_syscall(&self, tid: i32, signal: i32) -> io::Result<()> {
        if self.skipping == Some(tid) {
            kernel::resume(tid, signal)
        } else {
            kernel::resume_to_syscall(tid, signal)
        }
    }

    /// Lets a stopped thread go on without the tracer, with its own arguments.
    fn detach(&mut self, tid: i32, signal: i32) -> io::Result<()> {
        self.unpatch(tid);
        let done = kernel::detach(tid, signal);
        self.forget(tid);
        done
    }

    /// A thread goes on without the tracer.
    fn forget(&mut self, tid: i32) {
        let own = kernel::own_usage(tid);
        let own = own.zip(self.before.remove(&tid)).map(|(own, before)| own.since(&before));
        self.tasks.ended(tid, Ending::Detached, now(), own, None, &mut self.out);
        self.tell();
    }

    /// What the tracer was sent, and what the clock says.
    fn look_around(&mut self) {
        // Its calls stop with the tracer.
        if self.root_stopped || self.apart {
            self.guard.stop_if_asked();
        }
        if self.guard.is_busy() {
            let alive = self.root.is_some() && self.root_end.is_none();
            for request in self.guard.requests(alive) {
                match (request, self.root) {
                    (Request::Forward(signal), Some(root)) => {
                        // Pending: it was sent to the whole group.
                        if !kernel::is_pending(root, signal) {
                            send(root, signal);
                        }
                    }
                    (Request::Forward(_), None) => {}
                    (Request::ForwardToAll(signal), _) => {
                        self.send_all(signal);
                        self.send_all(libc::SIGCONT); // Who is stopped must take it.
                    }
                    // Nothing goes on in a place that was made for the command.
                    (Request::End(_), _) if self.apart => self.send_all(libc::SIGKILL),
                    (Request::End(signal), _) if self.is_bound() => {
                        // Under a filter they could not go on: each filtered
                        // call would fail with ENOSYS. They get the signal.
                        self.send_all(signal);
                    }
                    (Request::End(_), _) => self.let_go(),
                }
            }
        }
        if self.limits.is_set() {
            let spent = || Spent { calls: self.stops / 2, cpu: cpu_time(&self.tasks, self.spent) };
            match self.limits.due(now(), spent) {
                Some(Due::Terminate) => {
                    self.send_all(libc::SIGTERM);
                    self.send_all(libc::SIGCONT); // Who is stopped must take it.
                }
                Some(Due::Kill) => self.send_all(libc::SIGKILL),
                Some(Due::LetGo) => self.let_go(),
                Some(Due::Pause) => self.watch(false),
                Some(Due::Watch) => self.watch(true),
                None => {}
            }
        }
    }

    fn watch(&mut self, on: bool) {
        self.out.clear();
        self.tasks.watch(on, &mut self.out);
        self.carry_out();
    }

    fn send_all(&self, signal: i32) {
        for pid in self.tasks.pids() {
            send(pid, signal);
        }
    }

    /// What still runs goes on without the tracer, each thread when it stops.
    fn let_go(&mut self) {
        if self.deadline.is_some() {
            return;
        }
        if self.root.is_some() {
            self.note("descendants went on untraced after the command had ended".into());
        }
        self.tasks.let_go();
        // Whoever waits for a disk or a frozen cgroup may take its time.
        self.deadline = Some(now().saturating_add(3_000_000_000));
        self.guard.keep_ticking();
        let held: Vec<i32> = self.tasks.held().collect();
        for tid in held {
            self.adopt(tid);
        }
        for tid in self.tasks.tids() {
            let _ = kernel::interrupt(tid); // Dying: its end is reported.
        }
    }
}

/// CPU time of the processes that are traced and of those that were, ns.
fn cpu_time(tasks: &Tasks, ended: Nanos) -> Nanos {
    tasks.pids().filter_map(kernel::cpu_time).fold(ended, u64::saturating_add)
}

/// Sends a signal to a traced process, whose pid is its own until it is reaped.
fn send(pid: i32, signal: i32) {
    // SAFETY: kill takes its arguments by value.
    unsafe { libc::kill(pid, signal) };
}
