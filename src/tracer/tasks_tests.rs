//! The state machines against a model of the kernel. Programs of several
//! processes and threads make calls, are interrupted, spawn, exec and exit; the
//! model delivers their stops in every order that a kernel may choose, and
//! kills at any step. Whatever happens: each call that entered is told once,
//! nobody is lost, and nobody is resumed who is not stopped.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::syscall::{Abi, Sys};
use crate::tracer::stop::{Birth, Disposition, Entry};

const READ: i64 = 0;
const SIGRETURN: i64 = 15;
const CLONE: i64 = 56;
const EXECVE: i64 = 59;
const EXIT: i64 = 60;
const GETPPID: i64 = 110;
const EXIT_GROUP: i64 = 231;

/// What a thread of the model does next, before the kernel lets it stop again.
#[derive(Debug, Clone)]
enum Step {
    /// It stops. The flag: this entry begins a call that is to be told.
    Stop(Stop, bool),
    /// It creates a child.
    Spawn { thread: bool },
    /// It ends every other thread of its process.
    EndOthers { exec: bool },
}

/// A thread of the model.
#[derive(Debug)]
struct Thread {
    pid: i32,
    steps: VecDeque<Step>,
    /// Its stop was reported, and it was not resumed since.
    stopped: bool,
    killed: bool,
    /// Calls it may still make of its own.
    budget: u32,
}

/// The kernel.
struct Model {
    tasks: Tasks,
    threads: BTreeMap<i32, Thread>,
    next_tid: i32,
    choices: Vec<u16>,
    at: usize,
    entered: u64,
    told: u64,
    started: (u64, u64),
    ended: (u64, u64),
    /// Kills are allowed.
    deadly: bool,
}

fn entry(number: i64, sp: u64) -> Stop {
    Stop::Entry(Entry { sys: Sys::new(Abi::X86_64, number), args: [0; 6], ip: 0x1000, sp })
}

fn exit(value: i64, ip: u64, sp: u64) -> Stop {
    Stop::Exit { value, ip, sp, spurious: false }
}

impl Model {
    fn new(choices: Vec<u16>, deadly: bool) -> Self {
        let mut model = Self {
            tasks: Tasks::new(CallSet::all(), CallSet::none()),
            threads: BTreeMap::new(),
            next_tid: 101,
            choices,
            at: 0,
            entered: 0,
            told: 0,
            started: (0, 0),
            ended: (0, 0),
            deadly,
        };
        let mut out = Outbox::default();
        model.tasks.launch(100, Follow::Every, 0, &mut out);
        model.take(&out);
        let mut root =
            Thread { pid: 100, steps: VecDeque::new(), stopped: false, killed: false, budget: 12 };
        root.steps.extend([
            Step::Stop(Stop::Trap, false),
            // The launcher's calls do not count, but for the exec that succeeds.
            Step::Stop(entry(EXECVE, 90), false),
            Step::Stop(Stop::Exec { former: 100 }, true),
            Step::Stop(exit(0, 0x1000, 90), false),
        ]);
        model.threads.insert(100, root);
        model
    }

    fn choose(&mut self, of: usize) -> usize {
        let choice = self.choices.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        usize::from(choice) % of.max(1)
    }

    /// What the state machines said.
    fn take(&mut self, out: &Outbox) {
        for event in &out.events {
            match event {
                Event::Call(_) => self.told += 1,
                Event::ProcessStarted { .. } => {
                    self.started.0 += 1;
                    self.started.1 += 1;
                }
                Event::ThreadStarted { .. } => self.started.1 += 1,
                Event::ThreadEnded { .. } => self.ended.1 += 1,
                Event::ProcessEnded { .. } => self.ended.0 += 1,
                _ => {}
            }
        }
        for &(tid, action) in &out.actions {
            match action {
                Action::Hold | Action::Wait => {}
                Action::Detach(_) | Action::ReissueAndDetach { .. } => panic!("let go of {tid}"),
                _ => {
                    let Some(thread) = self.threads.get_mut(&tid) else { continue };
                    // A killed thread may have gone on by itself: ESRCH. At its exit stop it
                    // waits for the tracer again, and cannot be listened to: EIO.
                    assert!(
                        thread.stopped || thread.killed,
                        "{tid} was resumed and was not stopped: {action:?}"
                    );
                    if !(thread.killed && action == Action::Listen) {
                        thread.stopped = false;
                    }
                }
            }
        }
    }

    /// A thread whose script is empty decides what to do.
    fn decide(&mut self, tid: i32) {
        let choice = self.choose(12);
        let alone = self.threads.len() == 1;
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let mut steps = Vec::new();
        let sp = 1000;
        let plain = |number, value| {
            [Step::Stop(entry(number, sp), true), Step::Stop(exit(value, 0x1000, sp), false)]
        };
        if thread.budget == 0 {
            let group = choice.is_multiple_of(4) && !alone;
            steps.push(Step::Stop(entry(if group { EXIT_GROUP } else { EXIT }, sp), true));
            if group {
                steps.push(Step::EndOthers { exec: false });
            }
            steps.push(Step::Stop(Stop::Exiting { status: 0 }, false));
            steps.push(Step::Stop(Stop::Exited { code: 0 }, false));
        } else {
            thread.budget -= 1;
            match choice {
                0 | 1 => steps.extend(plain(GETPPID, 7)),
                2 => steps.extend(plain(READ, -9)),
                3 => {
                    // Interrupted, no handler: the kernel issues it again.
                    steps.extend([
                        Step::Stop(entry(READ, sp), true),
                        Step::Stop(exit(-512, 0x1000, sp), false),
                        Step::Stop(signal(Disposition::Ignored), false),
                        Step::Stop(entry(READ, sp), false),
                        Step::Stop(exit(1, 0x1000, sp), false),
                    ]);
                }
                4 | 5 => {
                    // A handler with a call of its own returns; EINTR or restart.
                    let restart = choice == 5;
                    let back = if restart { exit(READ, 0x0ffe, sp) } else { exit(-4, 0x1000, sp) };
                    steps.extend([
                        Step::Stop(entry(READ, sp), true),
                        Step::Stop(exit(-512, 0x1000, sp), false),
                        Step::Stop(signal(Disposition::Handled), false),
                        Step::Stop(entry(GETPPID, 500), true),
                        Step::Stop(exit(7, 0x1000, 500), false),
                        Step::Stop(entry(SIGRETURN, 600), true),
                        Step::Stop(back, false),
                    ]);
                    if restart {
                        steps.push(Step::Stop(entry(READ, sp), false));
                        steps.push(Step::Stop(exit(1, 0x1000, sp), false));
                    }
                }
                6 => {
                    // A handler that jumps away.
                    steps.extend([
                        Step::Stop(entry(READ, sp), true),
                        Step::Stop(exit(-512, 0x1000, sp), false),
                        Step::Stop(signal(Disposition::Handled), false),
                    ]);
                    steps.extend(plain(READ, 1));
                }
                7..=9 => {
                    steps.push(Step::Stop(entry(CLONE, sp), true));
                    steps.push(Step::Spawn { thread: choice != 9 });
                }
                10 => {
                    steps.push(Step::Stop(entry(EXECVE, sp), true));
                    steps.push(Step::EndOthers { exec: true });
                    steps.push(Step::Stop(Stop::Exec { former: tid }, false));
                    steps.push(Step::Stop(exit(0, 0x1000, sp), false));
                }
                _ => steps.extend([
                    Step::Stop(Stop::GroupStop { signal: libc::SIGSTOP }, false),
                    Step::Stop(Stop::Trap, false),
                ]),
            }
        }
        thread.steps.extend(steps);
    }

    /// Threads of a process die; `but` lives.
    fn end_others(&mut self, pid: i32, but: Option<i32>, exec: bool, status: i32) {
        let report_end = self.choose(4) != 0;
        for (&tid, thread) in &mut self.threads {
            if thread.pid != pid || Some(tid) == but {
                continue;
            }
            let end = Step::Stop(Stop::Killed { signal: libc::SIGKILL, core: false }, false);
            if thread.killed {
                // The leader whose place an exec was to take, and now will not.
                if !exec && tid == pid && thread.steps.iter().all(|s| !is_end(s)) {
                    thread.steps.push_back(end);
                }
                continue;
            }
            thread.killed = true;
            thread.stopped = false;
            thread.steps.clear();
            if report_end || exec {
                thread.steps.push_back(Step::Stop(Stop::Exiting { status }, false));
            }
            // An old leader's place is taken: it reports no end.
            if !(exec && tid == pid) {
                thread.steps.push_back(end);
            }
        }
    }

    /// Whether this thread can do its next step now.
    fn is_ready(&self, tid: i32) -> bool {
        let Some(thread) = self.threads.get(&tid) else { return false };
        let others = || self.threads.iter().filter(|(t, o)| **t != tid && o.pid == thread.pid);
        match thread.steps.front() {
            _ if thread.stopped => false,
            // A leader's end is reported after its threads'.
            Some(Step::Stop(Stop::Exited { .. } | Stop::Killed { .. }, _)) if tid == thread.pid => {
                others().count() == 0
            }
            // exec waits until all others have ended, but for the leader.
            Some(Step::Stop(Stop::Exec { .. }, _)) => {
                others().all(|(t, o)| *t == thread.pid && o.steps.is_empty())
            }
            None => !thread.killed,
            _ => true,
        }
    }

    fn advance(&mut self, tid: i32) {
        if self.threads.get(&tid).is_some_and(|t| t.steps.is_empty()) {
            self.decide(tid);
        }
        let Some(next) = self.threads.get_mut(&tid).and_then(|t| t.steps.pop_front()) else {
            return;
        };
        match next {
            Step::Spawn { thread } => self.spawn(tid, thread),
            Step::EndOthers { exec } => {
                let pid = self.threads.get(&tid).map_or(0, |t| t.pid);
                self.end_others(pid, Some(tid), exec, 0);
            }
            Step::Stop(stop, counts) => self.report(tid, stop, counts),
        }
    }

    /// The child can run, and stop, before its creator tells of it.
    fn spawn(&mut self, tid: i32, thread: bool) {
        let child = self.next_tid;
        self.next_tid += 1;
        let in_group_stop = self.choose(4) == 1;
        let Some(creator) = self.threads.get_mut(&tid) else { return };
        let pid = if thread { creator.pid } else { child };
        let budget = creator.budget / 2;
        creator.steps.push_front(Step::Stop(exit(child.into(), 0x1000, 1000), false));
        let birth = if thread { Birth::Clone } else { Birth::Fork };
        creator.steps.push_front(Step::Stop(Stop::Child { birth, child, thread }, false));
        let mut steps = VecDeque::from([Step::Stop(Stop::Trap, false)]);
        if in_group_stop {
            steps.push_front(Step::Stop(Stop::GroupStop { signal: libc::SIGSTOP }, false));
        }
        let child_thread = Thread { pid, steps, stopped: false, killed: false, budget };
        self.threads.insert(child, child_thread);
    }

    fn report(&mut self, tid: i32, stop: Stop, counts: bool) {
        self.entered += u64::from(counts);
        let mut tid = tid;
        if let Stop::Exec { former } = stop {
            // The caller takes the leader's tid.
            let pid = self.threads.get(&former).map_or(former, |t| t.pid);
            if let Some(thread) = self.threads.remove(&former) {
                self.threads.insert(pid, thread);
            }
            tid = pid;
        }
        let gone = matches!(stop, Stop::Exited { .. } | Stop::Killed { .. });
        if let Some(thread) = self.threads.get_mut(&tid) {
            // The killed run on by themselves to their exit stop, and stop there.
            let goes_on = thread.killed && !matches!(stop, Stop::Exiting { .. });
            thread.stopped = !gone && !goes_on;
        }
        if gone {
            self.threads.remove(&tid);
        }
        let mut out = Outbox::default();
        self.tasks.step(tid, &stop, 0, &mut out);
        if gone {
            let resumed = out.actions.iter().any(|(t, a)| *t == tid && *a != Action::Wait);
            assert!(!resumed, "a dead thread was resumed");
        }
        // A listened-to thread goes on when its group-stop ends.
        self.take(&out);
    }

    fn run(&mut self) {
        for _ in 0..100_000 {
            let ready: Vec<i32> =
                self.threads.keys().copied().filter(|&tid| self.is_ready(tid)).collect();
            if ready.is_empty() {
                let held: Vec<i32> = self.tasks.held().collect();
                if held.is_empty() {
                    break;
                }
                // Their creators were killed before they could tell.
                for tid in held {
                    let pid = self.threads.get(&tid).map(|t| t.pid);
                    let lineage = match pid {
                        Some(pid) if pid != tid => Lineage::ThreadOf(pid),
                        _ => Lineage::ChildOf(None),
                    };
                    let mut out = Outbox::default();
                    self.tasks.adopt(tid, lineage, &mut out);
                    self.take(&out);
                }
                continue;
            }
            if self.deadly && self.choose(40) == 1 {
                let victim = ready[self.choose(ready.len())];
                let pid = self.threads[&victim].pid;
                self.end_others(pid, None, false, libc::SIGKILL);
                continue;
            }
            let tid = ready[self.choose(ready.len())];
            self.advance(tid);
        }
        assert!(self.threads.is_empty(), "some never ended: {:?}", self.threads);
        assert!(self.tasks.is_empty(), "{:?} were lost", self.tasks.tids().collect::<Vec<_>>());
        assert_eq!(self.told, self.entered, "each call that entered is told once");
        assert_eq!(self.started, self.ended, "whoever started has ended (processes, threads)");
    }
}

fn is_end(step: &Step) -> bool {
    matches!(step, Step::Stop(Stop::Exited { .. } | Stop::Killed { .. }, _))
}

fn signal(disposition: Disposition) -> Stop {
    Stop::Signal { signal: libc::SIGUSR1, disposition }
}

/// A new thread joins a group-stop, is killed there and goes on to its exit stop, all before its
/// creator tells of it: to listen to it then would leave it there for ever.
#[test]
fn a_thread_killed_while_it_is_held_is_resumed_from_its_exit_stop() {
    let mut tasks = Tasks::new(CallSet::all(), CallSet::none());
    let mut out = Outbox::default();
    tasks.launch(1, Follow::Every, 0, &mut out);
    for stop in [Stop::GroupStop { signal: libc::SIGSTOP }, Stop::Exiting { status: 9 }] {
        out.clear();
        tasks.step(2, &stop, 0, &mut out);
        assert_eq!(out.actions, [(2, Action::Hold)]);
    }
    out.clear();
    let birth = Stop::Child { birth: Birth::Clone, child: 2, thread: true };
    tasks.step(1, &birth, 0, &mut out);
    assert!(out.actions.contains(&(2, Action::Continue(0))), "{:?}", out.actions);
    assert_eq!(tasks.exiting(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    #[test]
    fn in_every_order_each_call_is_told_once(choices in prop::collection::vec(any::<u16>(), 0..600)) {
        Model::new(choices, false).run();
    }

    #[test]
    fn killed_at_any_step_nobody_is_lost(choices in prop::collection::vec(any::<u16>(), 0..600)) {
        Model::new(choices, true).run();
    }

    /// Nothing that a kernel could say makes it panic.
    #[test]
    fn any_stops_of_any_tasks_are_taken(
        stops in prop::collection::vec((0i32..6, 0u8..13, any::<i64>(), 0u64..4), 0..200)
    ) {
        let mut tasks = Tasks::new(CallSet::all(), CallSet::none());
        let mut out = Outbox::default();
        tasks.launch(1, Follow::Every, 0, &mut out);
        for (tid, kind, value, sp) in stops {
            let small = value as i32 & 7;
            let stop = match kind {
                0 | 1 => entry(value & 255, sp),
                2 | 3 => exit(value % 600, sp, sp),
                4 => signal(Disposition::Handled),
                5 => Stop::GroupStop { signal: small },
                6 => Stop::Trap,
                7 => Stop::Child { birth: Birth::Vfork, child: small, thread: value < 0 },
                8 => Stop::Exec { former: small },
                9 => Stop::Exiting { status: small },
                10 => Stop::Killed { signal: small, core: false },
                11 => Stop::Dying,
                _ => Stop::Unknown { status: small },
            };
            out.clear();
            tasks.step(tid, &stop, 0, &mut out);
            let for_it = out.actions.iter().filter(|(t, _)| *t == tid).count();
            prop_assert!(for_it <= 1, "two actions for one stop");
        }
    }
}
