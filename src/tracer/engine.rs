//! The ptrace loop: wait, ask what the stop is, let the state machines decide,
//! tell the collectors, do what was decided. The only place that acts.

use std::collections::{HashMap, VecDeque};
use std::io;

use crate::syscall::{Abi, CallSet};

use super::arch::Registers;
use super::error::{Error, os, reason, refused};
use super::event::{Ending, Nanos, Observer, Usage};
use super::kernel::{self, Side, Waited, now};
use super::launch::{Command, Launched, launch};
use super::memory;
use super::repair;
use super::seccomp::{Filter, TRACE_DATA};
use super::signals::{Guard, Request};
use super::stop::{Disposition, Entry, Report, Stop, report};
use super::task::{Action, Follow};
use super::tasks::{Lineage, Outbox, Tasks};

/// How to trace.
#[derive(Debug, Clone)]
pub struct Options {
    /// The calls that collectors are told of.
    pub calls: CallSet,
    /// Let all other calls run at full speed, where that is possible.
    pub filter: bool,
    /// Use PTRACE_GET_SYSCALL_INFO where the kernel has it (5.3).
    pub syscall_info: bool,
}

/// What became of the wish for a filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FilterState {
    /// Not wished for.
    #[default]
    Off,
    /// Calls that were not asked for ran at full speed.
    Installed,
    /// They stopped, for this reason.
    Refused(String),
}

/// A command that was traced to the end.
#[derive(Debug, Clone)]
pub struct Traced {
    /// How the root process ended.
    pub ending: Ending,
    /// When its execve entered.
    pub started: Nanos,
    /// When its end was reported.
    pub ended: Nanos,
    /// wait4's usage of the root and of the children it waited for.
    pub usage: Option<Usage>,
    /// Stops served.
    pub stops: u64,
    /// What became of the filter.
    pub filter: FilterState,
    /// Events that the tracer did not understand, and other surprises.
    pub notes: Vec<String>,
}

/// Runs `command` under ptrace until it and all its descendants have ended.
///
/// # Errors
/// When the command cannot be run or traced; see [`Error::exit_status`].
pub fn trace(
    command: &Command,
    options: &Options,
    observers: &mut [&mut dyn Observer],
) -> Result<Traced, Error> {
    let (filter, state) = choose_filter(options);
    let strangers = kernel::has_children();
    let launched = launch(command, filter.as_ref())?;
    let guard = Guard::take();
    let mut engine = Engine {
        tasks: Tasks::new(options.calls.clone()),
        root: launched.pid,
        launched,
        guard,
        observers,
        out: Outbox::default(),
        syscall_info: options.syscall_info,
        strangers,
        patched: HashMap::new(),
        root_end: None,
        before: Usage::default(),
        held_since: None,
        stops: 0,
        batches: 0,
        filter: state,
        notes: Vec::new(),
    };
    engine.seize(filter.is_some())?;
    engine.run()?;
    engine.finish(command)
}

fn choose_filter(options: &Options) -> (Option<Filter>, FilterState) {
    if !options.filter || options.calls.is_all() {
        return (None, FilterState::Off);
    }
    // SAFETY: PR_GET_SECCOMP takes no further arguments.
    let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    if mode != 0 {
        let why = "coldtrace itself runs under a seccomp filter, which may refuse calls \
                   before a filter of its own could report them";
        return (None, FilterState::Refused(why.into()));
    }
    match Filter::stopping(&options.calls) {
        Some(filter) => (Some(filter), FilterState::Installed),
        None => (None, FilterState::Refused("the set of calls is too scattered".into())),
    }
}

struct Engine<'a, 'o> {
    tasks: Tasks,
    root: i32,
    launched: Launched,
    guard: Guard,
    observers: &'a mut [&'o mut dyn Observer],
    out: Outbox,
    syscall_info: bool,
    /// The tracer has children that it does not trace: it was exec'd by a
    /// program that had some.
    strangers: bool,
    /// Arguments to put back when a changed call returns.
    patched: HashMap<i32, Patch>,
    root_end: Option<(Ending, Nanos, Option<Usage>)>,
    /// What the launcher's child had used when it called the exec that
    /// succeeded: the launcher's doing, not the command's.
    before: Usage,
    /// Since when nothing has come but a child that nobody told of.
    held_since: Option<Nanos>,
    stops: u64,
    batches: u64,
    filter: FilterState,
    notes: Vec<String>,
}

/// What the tracer changed in a call that is in flight.
#[derive(Debug, Clone, Copy)]
struct Patch {
    args: [u64; 6],
    /// A word of memory that was changed: address and old value.
    word: Option<(u64, u64)>,
}

/// Most notes kept: a misbehaving kernel must not fill the record.
const MOST_NOTES: usize = 32;

impl Engine<'_, '_> {
    fn seize(&mut self, filter: bool) -> Result<(), Error> {
        let mut options = libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACEEXIT
            | libc::PTRACE_O_EXITKILL;
        if filter {
            options |= libc::PTRACE_O_TRACESECCOMP;
        }
        kernel::seize(self.root, options).map_err(|e| refused(self.root, &e))?;
        kernel::interrupt(self.root).map_err(|e| os("cannot stop the command", e))?;
        let follow = if filter { Follow::Filter } else { Follow::Every };
        self.tasks.launch(self.root, follow, now(), &mut self.out);
        self.tell();
        self.launched.open()
    }

    fn run(&mut self) -> Result<(), Error> {
        let mut queue: VecDeque<Waited> = VecDeque::new();
        while !self.tasks.is_empty() {
            self.answer_signals();
            if !self.drain(&mut queue)? {
                return Ok(());
            }
            while let Some(waited) = queue.pop_front() {
                self.serve(waited);
            }
        }
        Ok(())
    }

    /// Takes all reports that are there, and waits for one where there is none:
    /// a busy thread must not starve the others. False when nothing is left
    /// that could report.
    fn drain(&mut self, queue: &mut VecDeque<Waited>) -> Result<bool, Error> {
        /// Zombies that no exit stop announced are looked for this rarely while
        /// stops keep coming.
        const LOOK_ANYWAY: u64 = 64;
        self.batches += 1;
        let held = self.tasks.held().next().is_some();
        let alone = self.tasks.len() <= 1 && !held && !self.strangers;
        let drained = (|| {
            if !alone {
                while let Some(waited) = or_none(kernel::take_stop())? {
                    queue.push_back(waited);
                }
                if self.tasks.exiting() > 0 || held || self.batches.is_multiple_of(LOOK_ANYWAY) {
                    while let Some(waited) = or_none(kernel::take_zombie())? {
                        queue.push_back(waited);
                    }
                }
            }
            if queue.is_empty() && !held {
                queue.extend(kernel::wait(!alone)?);
            }
            Ok(())
        })();
        match drained {
            Ok(()) => {}
            Err(e) => match io::Error::raw_os_error(&e) {
                Some(libc::EINTR) => return Ok(true),
                Some(libc::ECHILD) => return Ok(!queue.is_empty()),
                _ => return Err(os("cannot wait for the command", e)),
            },
        }
        if queue.is_empty() && held {
            self.be_patient();
        }
        Ok(true)
    }

    /// A child has stopped before its creator told of it, which takes
    /// microseconds. A creator that was killed never will: then ask the kernel
    /// whose it is.
    fn be_patient(&mut self) {
        const PATIENCE: u64 = 20_000_000;
        let since = *self.held_since.get_or_insert_with(now);
        if now().saturating_sub(since) < PATIENCE {
            std::thread::yield_now();
            return;
        }
        self.held_since = None;
        let held: Vec<i32> = self.tasks.held().collect();
        for tid in held {
            let owner = self.tasks.pids().find(|&pid| kernel::is_thread_of(pid, tid));
            let lineage = match owner {
                Some(pid) => Lineage::ThreadOf(pid),
                None => Lineage::ChildOf(kernel::parent(tid)),
            };
            self.out.clear();
            self.tasks.adopt(tid, lineage, &mut self.out);
            self.carry_out();
        }
    }

    /// Serves one report.
    fn serve(&mut self, waited: Waited) {
        let Waited { tid, status, at, own, with_children: usage } = waited;
        self.held_since = None;
        let stop = self.classify(tid, status);
        self.out.clear();
        match stop {
            Stop::Exited { .. } | Stop::Killed { .. } => {
                let ending = match stop {
                    Stop::Killed { signal, core } => Ending::Killed { signal, core },
                    Stop::Exited { code } => Ending::Exited(code),
                    _ => Ending::Detached,
                };
                self.patched.remove(&tid);
                let own = match own {
                    Some(own) if tid == self.root => Some(own.since(&self.before)),
                    own => own,
                };
                if tid == self.root {
                    self.root_end.get_or_insert((ending, at, usage));
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
            self.before = kernel::own_usage(tid).unwrap_or_default();
        }
        match stop {
            Stop::Entry(entry) | Stop::Seccomp(entry) => self.keep_traced(tid, &entry),
            Stop::Exit { .. } if !self.patched.is_empty() => self.unpatch(tid),
            Stop::Unknown { status } => {
                self.note(format!("unknown wait status {status:#x} of {tid}"));
            }
            _ => {}
        }
        self.carry_out();
        if let Stop::GroupStop { signal } = stop
            && tid == self.root
        {
            stop_with_the_command(self.root, signal);
        }
    }

    /// Asks the kernel what a status does not say.
    fn classify(&mut self, tid: i32, status: i32) -> Stop {
        match report(status) {
            Report::Plain(stop) => stop,
            Report::Syscall => match self.side(tid) {
                Ok(Side::Entry(entry)) => Stop::Entry(entry),
                Ok(Side::Exit { value, ip, sp }) => {
                    let spurious = value == -i64::from(libc::EINTR)
                        && self.tasks.is_repairable(tid)
                        && kernel::is_undisturbed(tid);
                    Stop::Exit { value, ip, sp, spurious }
                }
                Ok(Side::Foreign) => Stop::Unknown { status },
                Ok(Side::Gone) => Stop::Dying,
                Err(e) => self.failed("ask for the call of", tid, &e),
            },
            Report::Seccomp => match self.seccomp_entry(tid) {
                Ok(Some(entry)) => Stop::Seccomp(entry),
                Ok(None) => Stop::Dying,
                Err(e) => self.failed("ask for the call of", tid, &e),
            },
            Report::Child(birth) => match kernel::event_message(tid) {
                Ok(child) => {
                    let child = child as i32;
                    let group = self.tasks.process_of(tid).unwrap_or(tid);
                    Stop::Child { birth, child, thread: kernel::is_thread_of(group, child) }
                }
                Err(e) => self.failed("ask for the child of", tid, &e),
            },
            Report::Exec => match kernel::event_message(tid) {
                Ok(former) => Stop::Exec { former: former as i32 },
                Err(e) => self.failed("ask who executed in", tid, &e),
            },
            Report::Exiting => match kernel::event_message(tid) {
                Ok(status) => Stop::Exiting { status: status as i32 },
                Err(_) => Stop::Exiting { status: 0 },
            },
            Report::Signal(signal) => {
                if tid == self.root
                    && let Ok((code, sender)) = kernel::signal_sender(tid)
                {
                    self.guard.command_reports(signal, code, sender);
                }
                let disposition = if self.tasks.wants_disposition(tid) {
                    kernel::disposition(tid, signal)
                } else {
                    Disposition::Unknown
                };
                Stop::Signal { signal, disposition }
            }
        }
    }

    fn side(&mut self, tid: i32) -> io::Result<Side> {
        if self.syscall_info {
            match kernel::syscall_info(tid) {
                // Before 5.3 the request is unknown.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => {
                    self.syscall_info = false;
                }
                other => return other,
            }
        }
        kernel::syscall_registers(tid, self.tasks.in_call(tid))
    }

    fn seccomp_entry(&mut self, tid: i32) -> io::Result<Option<Entry>> {
        let side = if self.syscall_info {
            kernel::syscall_info(tid)?
        } else {
            kernel::syscall_registers(tid, false)?
        };
        let Side::Entry(entry) = side else {
            return Ok(None);
        };
        if kernel::event_message(tid)? as u16 != TRACE_DATA {
            // The program's own RET_TRACE: without a tracer it is ENOSYS.
            let mut registers = kernel::registers(tid)?;
            registers.skip(-i64::from(libc::ENOSYS));
            kernel::set_registers(tid, &registers)?;
        }
        Ok(Some(entry))
    }

    /// A ptrace request failed. ESRCH is normal: the task was killed, and its
    /// end will be reported. Anything else is noted, and the task goes on.
    fn failed(&mut self, what: &str, tid: i32, error: &io::Error) -> Stop {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return Stop::Dying;
        }
        self.note(format!("cannot {what} {tid}: {}", reason(error)));
        Stop::Unknown { status: 0 }
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < MOST_NOTES && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Tells the collectors, then does what was decided.
    fn carry_out(&mut self) {
        self.tell();
        for i in 0..self.out.actions.len() {
            if let Some(&(tid, action)) = self.out.actions.get(i) {
                self.act(tid, action);
            }
        }
        for tid in std::mem::take(&mut self.out.interrupt) {
            let _ = kernel::interrupt(tid); // Dying: its end is reported.
        }
    }

    fn tell(&mut self) {
        for event in &self.out.events {
            for observer in &mut *self.observers {
                observer.event(event);
            }
        }
        self.out.events.clear();
    }

    fn act(&mut self, tid: i32, action: Action) {
        let done = match action {
            Action::Syscall(signal) => kernel::resume_to_syscall(tid, signal),
            Action::Continue(signal) => kernel::resume(tid, signal),
            Action::Listen => kernel::listen(tid),
            Action::Reissue { entry, elapsed } => self.reissue(tid, &entry, elapsed),
            Action::EndInEintr { entry, signal } => {
                let result = rewrite(tid, |r| r.finish(&entry, -i64::from(libc::EINTR)));
                self.patched.remove(&tid);
                result.and_then(|()| kernel::resume_to_syscall(tid, signal))
            }
            Action::Detach(signal) => {
                let done = kernel::detach(tid, signal);
                self.forget(tid);
                done
            }
            Action::Hold | Action::Wait => Ok(()),
        };
        match done {
            Ok(()) => {}
            // It is dying: wait for what it reports.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            Err(e) => {
                self.note(format!("{tid} was let go: cannot resume it: {}", reason(&e)));
                let _ = kernel::detach(tid, 0);
                self.forget(tid);
            }
        }
    }

    /// A thread goes on without the tracer.
    fn forget(&mut self, tid: i32) {
        self.tasks.detached(tid, now(), &mut self.out);
        self.tell();
    }

    /// Lets a call go on that only tracing interrupted.
    fn reissue(&mut self, tid: i32, entry: &Entry, elapsed: u64) -> io::Result<()> {
        match repair::plan(tid, entry, elapsed) {
            repair::Plan::Again(args) => {
                let again = Entry { args, ..*entry };
                rewrite(tid, |r| {
                    r.reissue(&again);
                    r.set_arguments(&args);
                })?;
                if args != entry.args {
                    self.patched.entry(tid).or_insert(Patch { args: entry.args, word: None });
                }
            }
            repair::Plan::End(value) => {
                rewrite(tid, |r| r.finish(entry, value))?;
                self.patched.remove(&tid);
                self.tasks.time_is_over(tid, value, now(), &mut self.out);
                self.tell();
            }
        }
        kernel::resume_to_syscall(tid, 0)
    }

    /// A child made with CLONE_UNTRACED would escape: the flag is taken out
    /// while the call runs.
    fn keep_traced(&mut self, tid: i32, entry: &Entry) {
        const UNTRACED: u64 = libc::CLONE_UNTRACED as u64;
        let [first, ..] = entry.args;
        if entry.sys.abi != Abi::native() {
            return;
        }
        let changed = match entry.sys.number {
            libc::SYS_clone if first & UNTRACED != 0 => {
                let mut args = entry.args;
                args[0] &= !UNTRACED;
                self.patched.insert(tid, Patch { args: entry.args, word: None });
                rewrite(tid, |r| r.set_arguments(&args))
            }
            libc::SYS_clone3 => {
                let mut flags = [0; 8];
                let read = memory::read(tid, first, &mut flags);
                let flags = u64::from_ne_bytes(flags);
                if !matches!(read, Ok(8)) || flags & UNTRACED == 0 {
                    return;
                }
                self.patched.insert(tid, Patch { args: entry.args, word: Some((first, flags)) });
                memory::write(tid, first, &(flags & !UNTRACED).to_ne_bytes())
            }
            _ => return,
        };
        self.note(match changed {
            Ok(()) => "CLONE_UNTRACED was cleared so that the child is counted".into(),
            Err(e) => format!("a CLONE_UNTRACED child of {tid} escaped: {e}"),
        });
    }

    /// A changed call returns: what was changed is put back.
    fn unpatch(&mut self, tid: i32) {
        // An interrupted call keeps its patch until it has returned.
        if self.tasks.wants_disposition(tid) {
            return;
        }
        let Some(patch) = self.patched.remove(&tid) else {
            return;
        };
        if let Some((address, old)) = patch.word {
            let _ = memory::write(tid, address, &old.to_ne_bytes());
        }
        let _ = rewrite(tid, |r| r.set_arguments(&patch.args));
    }

    fn answer_signals(&mut self) {
        if !self.guard.is_busy() {
            return;
        }
        for request in self.guard.requests(self.root_end.is_none()) {
            match request {
                Request::Forward(signal) => {
                    // SAFETY: the root has not been reaped, so the pid is its own.
                    unsafe { libc::kill(self.root, signal) };
                }
                Request::End(signal) => self.let_go(signal),
            }
        }
    }

    /// The command has ended and the tracer is told to end too: what still runs
    /// goes on without it. Under a filter it could not (every filtered call
    /// would fail with ENOSYS): it gets the signal instead.
    fn let_go(&mut self, signal: i32) {
        let tids: Vec<i32> = self.tasks.tids().collect();
        if self.filter == FilterState::Installed {
            for tid in tids {
                // SAFETY: the task is traced, so its pid is not reused.
                unsafe { libc::kill(tid, signal) };
            }
            return;
        }
        self.note("descendants were still running when tracing was ended".into());
        self.tasks.let_go();
        for tid in tids {
            let _ = kernel::interrupt(tid);
        }
    }

    fn finish(mut self, command: &Command) -> Result<Traced, Error> {
        let reports = self.launched.reports();
        let Some(started) = self.tasks.started() else {
            return Err(reports.failure(command));
        };
        if let Some(e) = &reports.filter {
            self.filter = FilterState::Refused(format!("the kernel refused it: {}", reason(e)));
        }
        let (ending, ended, usage) = self.root_end.unwrap_or((Ending::Detached, now(), None));
        Ok(Traced {
            ending,
            started,
            ended,
            usage,
            stops: self.stops,
            filter: self.filter,
            notes: self.notes,
        })
    }
}

/// Nothing to wait for is nothing to report.
fn or_none(waited: io::Result<Option<Waited>>) -> io::Result<Option<Waited>> {
    match waited {
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        other => other,
    }
}

/// Changes the registers of a stopped tracee.
fn rewrite(tid: i32, change: impl FnOnce(&mut Registers)) -> io::Result<()> {
    let mut registers = kernel::registers(tid)?;
    change(&mut registers);
    kernel::set_registers(tid, &registers)
}

/// The command was stopped from its terminal: the tracer, which its shell sees
/// as the job, stops as well, and goes on when the job does.
fn stop_with_the_command(root: i32, signal: i32) {
    // SAFETY: getpgid and getpgrp only ask; raise stops this process.
    unsafe {
        if signal != libc::SIGSTOP && libc::getpgid(root) == libc::getpgrp() {
            libc::raise(libc::SIGSTOP);
        }
    }
}
