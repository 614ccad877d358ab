//! All threads and processes of the tree. Pure like [`super::task`]: it turns a
//! stop of one thread into events for the collectors and into what the loop
//! does next, with that thread and sometimes with others.

mod births;

use std::collections::HashMap;

use crate::syscall::{CallSet, Sys};

use super::event::{
    Call, CallTimes, Ending, Event, ImageId, Nanos, Outcome, ProcessId, ThreadId, Usage,
};
use super::stop::{Disposition, Entry, Stop};
use super::task::{Action, Follow, Settled, Task};

pub use births::Lineage;
use births::{Early, STALE};

/// A thread that is traced.
#[derive(Debug, Clone)]
struct Slot {
    thread: ThreadId,
    process: ProcessId,
    image: ImageId,
    task: Task,
    /// Repairs in a row for which no signal was seen, and the process's signals
    /// at the last of them.
    unproven: u32,
    signals_then: u64,
    /// Its exit stop was seen: it no longer counts as live.
    exiting: bool,
}

impl Slot {
    fn caller(&self) -> (ProcessId, ThreadId, ImageId) {
        (self.process, self.thread, self.image)
    }
}

/// A process that is traced.
#[derive(Debug, Clone)]
struct Group {
    pid: i32,
    image: ImageId,
    live: u32,
    follow: Follow,
    /// Signals that its threads stopped to take.
    signals: u64,
    /// A stopping signal was delivered, and has not been followed by the end of
    /// the group-stop.
    stopping: bool,
}

/// How often in a row a call is re-issued without a signal that explains it.
const MOST_UNPROVEN: u32 = 8;

/// What one stop leads to.
#[derive(Debug, Default)]
pub struct Outbox {
    /// For the collectors, in order, before the actions are done.
    pub events: Vec<Event>,
    /// For the loop: what to do with which thread.
    pub actions: Vec<(i32, Action)>,
    /// Running threads that must be stopped to take on a new way of following.
    pub interrupt: Vec<i32>,
}

impl Outbox {
    /// Empties it, keeping its memory.
    pub fn clear(&mut self) {
        self.events.clear();
        self.actions.clear();
        self.interrupt.clear();
    }
}

/// The tree.
#[derive(Debug)]
pub struct Tasks {
    slots: HashMap<i32, Slot>,
    groups: HashMap<ProcessId, Group>,
    early: HashMap<i32, Early>,
    /// Calls that collectors are told of.
    wanted: CallSet,
    /// Calls of which they are told at the entry too.
    needed: CallSet,
    next_process: u32,
    next_thread: u32,
    next_image: u32,
    exiting: usize,
    /// The command was executed, at this time.
    started: Option<Nanos>,
    /// Everything is let go as it stops.
    letting_go: bool,
}

impl Tasks {
    /// An empty tree.
    pub fn new(wanted: CallSet, needed: CallSet) -> Self {
        Self {
            slots: HashMap::new(),
            groups: HashMap::new(),
            early: HashMap::new(),
            wanted,
            needed,
            next_process: 0,
            next_thread: 0,
            next_image: 0,
            exiting: 0,
            started: None,
            letting_go: false,
        }
    }

    /// Adds the launcher's child, seized and not yet at its exec.
    pub fn launch(&mut self, pid: i32, follow: Follow, at: Nanos, out: &mut Outbox) {
        self.add_process(pid, None, false, follow, at, out);
        if let Some(slot) = self.slots.get_mut(&pid) {
            slot.task = Task::launching(follow);
        }
    }

    /// Adds the threads of a process that was attached to; they were told to
    /// stop.
    pub fn attach(&mut self, pid: i32, tids: &[i32], at: Nanos, out: &mut Outbox) {
        let process = ProcessId(self.next_process);
        self.next_process += 1;
        let follow = Follow::Every;
        let image = self.new_image();
        self.groups
            .insert(process, Group { pid, image, live: 0, follow, signals: 0, stopping: false });
        // The leader first: its thread begins the process.
        let mut order: Vec<i32> = tids.to_vec();
        order.sort_by_key(|&tid| (tid != pid, tid));
        for (i, tid) in order.into_iter().enumerate() {
            if i > 0 {
                self.start_thread(tid, process, None, at, out);
            } else {
                let thread = self.add_thread(tid, process, image, follow);
                if let Some(group) = self.groups.get_mut(&process) {
                    group.live = 1;
                }
                out.events.push(Event::ProcessStarted {
                    process,
                    thread,
                    pid,
                    parent: None,
                    by: None,
                    image,
                    vfork: false,
                    at,
                });
                out.events.push(Event::Attached { process, pid, image, at });
            }
            if let Some(slot) = self.slots.get_mut(&tid) {
                slot.task = Task::attached(follow);
            }
        }
        self.started.get_or_insert(at);
    }

    /// Watches all calls again, or none for now. Threads that have to be
    /// stopped for it are in `out`.
    pub fn watch(&mut self, on: bool, out: &mut Outbox) {
        out.events.push(Event::Watched { on });
        for group in self.groups.values_mut() {
            group.follow = if on { Follow::Every } else { Follow::Off };
        }
        for (tid, slot) in &mut self.slots {
            if !on {
                slot.task.set_follow(Follow::Off);
            } else if slot.task.watch_again() && !slot.exiting {
                out.interrupt.push(*tid);
            }
        }
    }

    /// Whether this thread's next first stop is an arrival.
    pub fn is_arriving(&self, tid: i32) -> bool {
        self.slots.get(&tid).is_some_and(|s| s.task.is_arriving())
    }

    /// When the command's execve entered, once it has succeeded.
    pub fn started(&self) -> Option<Nanos> {
        self.started
    }

    /// Whether nothing is left to wait for. Who ended without ever having been
    /// told of is nobody's: a child that the tracer inherited through its own
    /// exec, or that was re-parented to it as PID 1.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.early.values().all(|e| matches!(e, Early::Gone { .. }))
    }

    /// Threads that are traced.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Threads whose exit stop was seen, but not their end.
    pub fn exiting(&self) -> usize {
        self.exiting
    }

    /// The pid of a traced thread's process.
    pub fn process_of(&self, tid: i32) -> Option<i32> {
        Some(self.groups.get(&self.slots.get(&tid)?.process)?.pid)
    }

    /// The tracer took so long, ns, before the call went on that a thread is in.
    pub fn excuse(&mut self, tid: i32, took: Nanos) {
        if let Some(slot) = self.slots.get_mut(&tid) {
            slot.task.excuse(took);
        }
    }

    /// Whether a signal's disposition matters to this thread now.
    pub fn wants_disposition(&self, tid: i32) -> bool {
        self.slots.get(&tid).is_some_and(|s| s.task.wants_disposition())
    }

    /// Whether this thread is in a call that an ignored signal ends only under a
    /// tracer; a stop of its whole process ends it without one too (signal(7)).
    /// `Some(true)`: only with evidence. A signal that woke it may have been
    /// taken by another thread, but an answer that the call gives of itself
    /// must not be refused for ever.
    pub fn may_repair(&mut self, tid: i32) -> Option<bool> {
        let slot = self.slots.get_mut(&tid)?;
        let group = self.groups.get(&slot.process)?;
        if !slot.task.is_repairable() || group.stopping {
            return None;
        }
        let first = slot.task.current().is_some_and(|c| c.repaired == 0);
        if first || slot.signals_then != group.signals {
            slot.unproven = 0;
        }
        slot.signals_then = group.signals;
        slot.unproven += 1;
        Some(slot.unproven > MOST_UNPROVEN)
    }

    /// Whether this thread may be in a call whose entry did not stop.
    pub fn is_unwatched(&self, tid: i32) -> bool {
        self.slots.get(&tid).is_some_and(|s| s.task.is_unwatched())
    }

    /// Whether this exit gives a signal to the program: it waited for it.
    pub fn took_signal(&self, tid: i32, value: i64) -> bool {
        let call = self.slots.get(&tid).and_then(|s| s.task.current());
        (1..=64).contains(&value)
            && call.is_some_and(|c| c.entry.sys.name() == Some("rt_sigtimedwait"))
    }

    /// The kernel refused the filter: every call stops.
    pub fn filter_refused(&mut self, out: &mut Outbox) {
        let processes: Vec<ProcessId> = self.groups.keys().copied().collect();
        for process in processes {
            self.follow_every(process, out);
        }
    }

    /// Whether this thread is inside a call: then its next syscall stop is the exit.
    pub fn in_call(&self, tid: i32) -> bool {
        self.slots.get(&tid).is_some_and(|s| s.task.current().is_some())
    }

    /// The call that a thread is in, as it entered.
    pub fn entry(&self, tid: i32) -> Option<Entry> {
        Some(self.slots.get(&tid)?.task.current()?.entry)
    }

    /// Whether nothing of this thread has to be seen call by call; see
    /// [`Task::is_quiet`].
    pub fn is_quiet(&self, tid: i32) -> bool {
        self.slots.get(&tid).is_some_and(|s| s.task.is_quiet())
    }

    /// Whether it is in a call, and else as quiet as that; see [`Task::is_alone_in_call`].
    pub fn is_alone_in_call(&self, tid: i32) -> bool {
        self.slots.get(&tid).is_some_and(|s| s.task.is_alone_in_call())
    }

    /// Whether a thread belongs to the launcher's child, before its exec.
    pub fn is_launching(&self, tid: i32) -> bool {
        self.slots.get(&tid).is_some_and(|s| s.task.is_launching())
    }

    /// How new threads of a thread's process will be followed.
    pub fn follow(&self, tid: i32) -> Option<Follow> {
        Some(self.groups.get(&self.slots.get(&tid)?.process)?.follow)
    }

    /// A thread is in a call whose entry did not stop; see [`Task::caught`].
    pub fn caught(&mut self, tid: i32, entry: Entry, at: Nanos) {
        if let Some(slot) = self.slots.get_mut(&tid) {
            slot.task.caught(entry, at);
        }
    }

    /// See [`Task::ask_to_stop`].
    pub fn ask_to_stop(&mut self, tid: i32) {
        if let Some(slot) = self.slots.get_mut(&tid) {
            slot.task.ask_to_stop();
        }
    }

    /// All threads of a thread's process stop at a filter from now on.
    pub fn follow_by_filter(&mut self, tid: i32) {
        let Some(process) = self.slots.get(&tid).map(|s| s.process) else { return };
        if let Some(group) = self.groups.get_mut(&process) {
            group.follow = Follow::Filter;
        }
        for slot in self.slots.values_mut().filter(|s| s.process == process) {
            slot.task.set_follow(Follow::Filter);
        }
    }

    /// The threads of a thread's process.
    pub fn siblings(&self, tid: i32) -> Vec<i32> {
        let Some(process) = self.slots.get(&tid).map(|s| s.process) else { return Vec::new() };
        let same = self.slots.iter().filter(|(_, s)| s.process == process);
        same.map(|(tid, _)| *tid).collect()
    }

    /// Whose calls a thread's are.
    pub fn caller(&self, tid: i32) -> Option<(ProcessId, ThreadId, ImageId)> {
        self.slots.get(&tid).map(Slot::caller)
    }

    /// Whether a thread has been told to end.
    pub fn is_exiting(&self, tid: i32) -> bool {
        self.slots.get(&tid).is_none_or(|s| s.exiting)
    }

    /// Calls of a thread that were counted where they were made.
    pub fn counted(&self, tid: i32, sys: Sys, times: CallTimes, out: &mut Outbox) {
        if let Some((process, thread, image)) = self.caller(tid) {
            out.events.push(Event::Counted { process, thread, image, sys, times });
        }
    }

    /// The traced threads.
    pub fn tids(&self) -> impl Iterator<Item = i32> + '_ {
        self.slots.keys().copied()
    }

    /// From now on, whatever stops is let go.
    pub fn let_go(&mut self) {
        self.letting_go = true;
    }

    /// The pids of traced processes.
    pub fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.groups.values().map(|g| g.pid)
    }

    /// Takes one thread's stop.
    pub fn step(&mut self, tid: i32, stop: &Stop, at: Nanos, out: &mut Outbox) {
        match *stop {
            Stop::Exec { former } => self.exec(tid, former, at, out),
            Stop::Exited { code } => self.ended(tid, Ending::Exited(code), at, None, None, out),
            Stop::Killed { signal, core } => {
                self.ended(tid, Ending::Killed { signal, core }, at, None, None, out);
            }
            _ if !self.slots.contains_key(&tid) => self.came_early(tid, stop, at, out),
            Stop::Child { birth, child, thread } => {
                self.born(tid, birth, child, thread, at, out);
                self.advance(tid, stop, at, out);
            }
            Stop::Exiting { .. } => {
                self.advance(tid, stop, at, out);
                self.exiting_now(tid, at, out);
            }
            _ => self.advance(tid, stop, at, out),
        }
        if self.letting_go {
            turn_to_detach(out);
        }
    }

    /// A thread is gone; its usage was read while it was a zombie.
    pub fn ended(
        &mut self,
        tid: i32,
        ending: Ending,
        at: Nanos,
        own: Option<Usage>,
        with_children: Option<Usage>,
        out: &mut Outbox,
    ) {
        let Some(mut slot) = self.remove(tid) else {
            // A birth is told within microseconds. What is older was a child of
            // the tracer that it does not trace (inherited, or an orphan that
            // came to it as PID 1), and its pid may come again.
            self.early.retain(|_, e| match e {
                Early::Gone { at: then, .. } => at.saturating_sub(*then) < STALE,
                Early::Held { .. } => true,
            });
            self.early.insert(tid, Early::Gone { at, ending });
            return;
        };
        self.finish_task(&mut slot, at, out);
        let (process, thread) = (slot.process, slot.thread);
        out.events.push(Event::ThreadEnded { process, thread, at });
        let Some(group) = self.groups.get_mut(&process) else { return };
        if !slot.exiting {
            group.live = group.live.saturating_sub(1);
        }
        // Threads are let go one by one, and not the leader last. (It may have ended
        // before the tracer came.)
        let is_over = if ending == Ending::Detached { group.live == 0 } else { group.pid == tid };
        if is_over {
            self.groups.remove(&process);
            out.events.push(Event::ProcessEnded { process, ending, own, with_children, at });
        }
    }

    /// A call that was to be re-issued has no time left: it returned `value`.
    pub fn time_is_over(&mut self, tid: i32, value: i64, at: Nanos, out: &mut Outbox) {
        let Some(slot) = self.slots.get_mut(&tid) else { return };
        let caller = slot.caller();
        let (told, events) = ((&self.wanted, &self.needed), &mut out.events);
        slot.task.time_is_over(value, at, &mut |settled| {
            tell(told, events, caller, &settled);
        });
    }

    fn add_process(
        &mut self,
        pid: i32,
        creator: Option<(ProcessId, Option<ThreadId>)>,
        vfork: bool,
        follow: Follow,
        at: Nanos,
        out: &mut Outbox,
    ) {
        let process = ProcessId(self.next_process);
        self.next_process += 1;
        let (parent, by) = creator.map_or((None, None), |(parent, by)| (Some(parent), by));
        let inherited = parent.and_then(|p| self.groups.get(&p)).map(|g| g.image);
        let image = inherited.unwrap_or_else(|| self.new_image());
        let thread = self.add_thread(pid, process, image, follow);
        self.groups
            .insert(process, Group { pid, image, live: 1, follow, signals: 0, stopping: false });
        let started = Event::ProcessStarted { process, thread, pid, parent, by, image, vfork, at };
        out.events.push(started);
    }

    fn new_image(&mut self) -> ImageId {
        self.next_image += 1;
        ImageId(self.next_image - 1)
    }

    fn add_thread(
        &mut self,
        tid: i32,
        process: ProcessId,
        image: ImageId,
        follow: Follow,
    ) -> ThreadId {
        let thread = ThreadId(self.next_thread);
        self.next_thread += 1;
        let task = Task::new(follow);
        self.slots.insert(
            tid,
            Slot { thread, process, image, task, unproven: 0, signals_then: 0, exiting: false },
        );
        thread
    }

    fn remove(&mut self, tid: i32) -> Option<Slot> {
        let slot = self.slots.remove(&tid)?;
        if slot.exiting {
            self.exiting = self.exiting.saturating_sub(1);
        }
        Some(slot)
    }

    fn start_thread(
        &mut self,
        tid: i32,
        process: ProcessId,
        by: Option<ThreadId>,
        at: Nanos,
        out: &mut Outbox,
    ) {
        let Some(group) = self.groups.get_mut(&process) else { return };
        group.live += 1;
        let (follow, image) = (group.follow, group.image);
        let thread = self.add_thread(tid, process, image, follow);
        out.events.push(Event::ThreadStarted { process, thread, tid, by, at });
    }

    fn advance(&mut self, tid: i32, stop: &Stop, at: Nanos, out: &mut Outbox) {
        let Some(slot) = self.slots.get_mut(&tid) else { return };
        let process = slot.process;
        let caller = slot.caller();
        if matches!(stop, Stop::Signal { .. })
            && let Some(group) = self.groups.get_mut(&process)
        {
            group.signals += 1;
        }
        if let Some(stopping) = stops_process(stop)
            && let Some(group) = self.groups.get_mut(&process)
        {
            group.stopping = stopping;
        }
        let was_inside = slot.task.current().is_some();
        let (told, events) = ((&self.wanted, &self.needed), &mut out.events);
        let mut filtered = false;
        let action = slot.task.step(stop, at, &mut |settled| {
            filtered |= installs_filter(&settled);
            tell(told, events, caller, &settled);
        });
        if let Stop::Entry(entry) | Stop::Seccomp(entry) = stop
            && self.needed.contains(entry.sys)
            && (entry.sys.is_exec() || !slot.task.is_launching())
            && (matches!(stop, Stop::Entry(_)) || !was_inside)
            && slot.task.current().is_some_and(|call| call.entry == *entry)
        {
            let (sys, args, thread) = (entry.sys, entry.args, caller.1);
            events.push(Event::Entered { process, thread, tid, sys, args, at });
        }
        let entered = match stop {
            Stop::Entry(entry) => Some(entry),
            Stop::Seccomp(entry) => Some(entry).filter(|_| !was_inside),
            _ => None,
        };
        if entered.is_some_and(|entry| entry.sys.is_exec()) {
            events.push(Event::Execing { process, tid, at });
        }
        out.actions.push((tid, action));
        if filtered {
            self.follow_every(process, out);
        }
    }

    /// The program has installed a filter of its own. What that refuses is
    /// hidden from ours: from now on all its calls stop.
    fn follow_every(&mut self, process: ProcessId, out: &mut Outbox) {
        let Some(group) = self.groups.get_mut(&process) else { return };
        if group.follow == Follow::Every {
            return;
        }
        group.follow = Follow::Every;
        for (tid, slot) in self.slots.iter_mut().filter(|(_, s)| s.process == process) {
            let stopped_now = out.actions.iter_mut().find(|(stopped, _)| stopped == tid);
            match stopped_now {
                Some((_, action)) => {
                    slot.task.set_follow(Follow::Every);
                    if let Action::Continue(signal) = *action {
                        *action = Action::Syscall(signal);
                    }
                }
                // What it is in now goes on, and does not count: nobody asked.
                None if slot.task.watch_again() => out.interrupt.push(*tid),
                None => {}
            }
        }
    }

    fn finish_task(&mut self, slot: &mut Slot, at: Nanos, out: &mut Outbox) {
        let caller = slot.caller();
        let (told, events) = ((&self.wanted, &self.needed), &mut out.events);
        slot.task.end(at, &mut |settled| tell(told, events, caller, &settled));
    }

    fn exiting_now(&mut self, tid: i32, at: Nanos, out: &mut Outbox) {
        let Some(slot) = self.slots.get_mut(&tid) else { return };
        let (process, thread) = (slot.process, slot.thread);
        let Some(group) = self.groups.get_mut(&process) else { return };
        if !slot.exiting {
            slot.exiting = true;
            self.exiting += 1;
            group.live = group.live.saturating_sub(1);
        }
        let last = group.live == 0;
        out.events.push(Event::ThreadExiting { process, thread, tid, last, at });
    }

    fn exec(&mut self, tid: i32, former: i32, at: Nanos, out: &mut Outbox) {
        // The kernel has ended every other thread of the process. The old
        // leader and some others report no exit status of their own.
        let Some(process) =
            self.slots.get(&former).or_else(|| self.slots.get(&tid)).map(|s| s.process)
        else {
            return self.came_early(tid, &Stop::Trap, at, out);
        };
        if former != tid && self.slots.contains_key(&former) {
            let others: Vec<i32> = self
                .slots
                .iter()
                .filter(|(other, s)| s.process == process && **other != former)
                .map(|(other, _)| *other)
                .collect();
            for other in others {
                if let Some(mut slot) = self.remove(other) {
                    self.finish_task(&mut slot, at, out);
                    let thread = slot.thread;
                    out.events.push(Event::ThreadEnded { process, thread, at });
                }
            }
            if let Some(slot) = self.slots.remove(&former) {
                self.slots.insert(tid, slot);
            }
            if let Some(group) = self.groups.get_mut(&process) {
                group.live = 1;
            }
        }
        let image = self.new_image();
        let Some(slot) = self.slots.get_mut(&tid) else { return };
        slot.image = image;
        if slot.task.is_launching() {
            let entered = slot.task.current().and_then(|c| c.entered);
            self.started = Some(entered.unwrap_or(at));
        }
        let thread = slot.thread;
        if let Some(group) = self.groups.get_mut(&process) {
            group.image = image;
        }
        out.events.push(Event::Execed { process, thread, pid: tid, image, at });
        self.advance(tid, &Stop::Exec { former }, at, out);
    }
}

/// Letting go: whatever would be resumed is detached instead.
fn turn_to_detach(out: &mut Outbox) {
    for (_, action) in &mut out.actions {
        *action = match *action {
            Action::Syscall(signal) | Action::Continue(signal) => Action::Detach(signal),
            Action::Listen | Action::Hold => Action::Detach(0),
            Action::Reissue { entry, .. } => Action::ReissueAndDetach { entry },
            other => other,
        };
    }
}

/// Whether a stop begins (true) or ends (false) a stop of the whole process.
fn stops_process(stop: &Stop) -> Option<bool> {
    match *stop {
        Stop::GroupStop { .. }
        | Stop::Signal { signal: libc::SIGSTOP, .. }
        | Stop::Signal {
            signal: libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU,
            disposition: Disposition::Default,
        } => Some(true),
        Stop::Trap => Some(false),
        Stop::Arrived { stopped, .. } => Some(stopped),
        _ => None,
    }
}

fn tell(
    (wanted, needed): (&CallSet, &CallSet),
    events: &mut Vec<Event>,
    (process, thread, image): (ProcessId, ThreadId, ImageId),
    settled: &Settled,
) {
    let Settled { call, left, cut, outcome } = *settled;
    let sys = call.entry.sys;
    let event = match (wanted.contains(sys), needed.contains(sys)) {
        (true, _) => Event::Call,
        (false, true) => Event::Needed,
        (false, false) => return,
    };
    events.push(event(Call {
        process,
        thread,
        image,
        sys,
        args: call.entry.args,
        entry: call.at,
        entered: call.entered,
        left,
        cut,
        outcome,
        restarts: call.restarts,
        repaired: call.repaired,
    }));
}

/// Whether the program has put itself under a seccomp filter with this call.
fn installs_filter(settled: &Settled) -> bool {
    /// SECCOMP_SET_MODE_STRICT and SECCOMP_SET_MODE_FILTER.
    const MODES: [u64; 2] = [0, 1];
    let args = &settled.call.entry.args;
    matches!(settled.outcome, Outcome::Returned(value) if value >= 0)
        && match settled.call.entry.sys.name() {
            Some("seccomp") => MODES.contains(&args[0]),
            Some("prctl") => args[0] == libc::PR_SET_SECCOMP as u64,
            _ => false,
        }
}

#[cfg(test)]
#[path = "tasks_tests.rs"]
mod tests;
