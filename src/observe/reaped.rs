//! Who waited for whom: what a process used is in the numbers of whoever waited for it
//! (`ru_inblock` too), and of nobody else.

use std::collections::{HashMap, HashSet};

use crate::syscall::{CallSet, Sys};
use crate::tracer::{Call, Event, Observer, Outcome, ProcessId};

/// waitid(2): its first argument where the second is a pid, and bits of its options.
const P_PID: u64 = 1;
const WNOHANG: u64 = 1;
const WEXITED: u64 = 4;
const WNOWAIT: u64 = 0x0100_0000;

/// The collector.
#[derive(Debug, Default)]
pub struct Reaped {
    alive: HashMap<ProcessId, i32>,
    parents: HashMap<ProcessId, ProcessId>,
    /// Those that ended and were not waited for yet, by pid.
    ended: HashMap<i32, ProcessId>,
    /// Who waited for each.
    by: HashMap<ProcessId, ProcessId>,
    /// Waits that did not say for whom.
    unnamed: HashMap<ProcessId, usize>,
}

impl Reaped {
    /// Whether what it used is in the numbers of the root: whoever waited for it was
    /// waited for too, up to there.
    pub fn is_counted(&self, process: ProcessId) -> bool {
        let mut seen = HashSet::new();
        let mut at = process;
        while at != ProcessId(0) {
            match self.by(at) {
                Some(by) if seen.insert(at) => at = by,
                _ => return false,
            }
        }
        true
    }

    fn by(&self, process: ProcessId) -> Option<ProcessId> {
        if let Some(&by) = self.by.get(&process) {
            return Some(by);
        }
        // As many of its parent's waits as it has children that nobody else waited for.
        let &parent = self.parents.get(&process)?;
        let is_open = |id: &&ProcessId| self.parents.get(id) == Some(&parent);
        let open = self.ended.values().filter(is_open).count();
        let has_ended = self.ended.values().any(|&id| id == process);
        let waits = self.unnamed.get(&parent).copied().unwrap_or(0);
        (has_ended && open <= waits).then_some(parent)
    }

    fn call(&mut self, call: &Call) {
        let Outcome::Returned(value) = call.outcome else { return };
        let pid = match call.sys.name() {
            Some("wait4" | "waitpid") => value as i32,
            Some("waitid") => {
                let [kind, id, _, options, ..] = call.args;
                if options & WEXITED == 0 || options & WNOWAIT != 0 {
                    return;
                }
                if kind as u32 != P_PID as u32 {
                    // With WNOHANG there may have been nobody.
                    if options & WNOHANG == 0 {
                        *self.unnamed.entry(call.process).or_default() += 1;
                    }
                    return;
                }
                id as i32
            }
            _ => return,
        };
        // Whoever has not ended was reported to have stopped.
        if let Some(process) = self.ended.remove(&pid) {
            self.by.insert(process, call.process);
        }
    }
}

impl Observer for Reaped {
    fn each(&self) -> CallSet {
        CallSet::of(["wait4", "waitpid", "waitid"].into_iter().flat_map(Sys::all_named))
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::ProcessStarted { process, pid, parent, .. } => {
                // Whoever had this pid is gone: without a wait of the tree.
                self.ended.remove(&pid);
                self.alive.insert(process, pid);
                if let Some(parent) = parent {
                    self.parents.insert(process, parent);
                }
            }
            Event::ProcessEnded { process, .. } => {
                if let Some(pid) = self.alive.remove(&process) {
                    self.ended.insert(pid, process);
                }
            }
            Event::Call(ref call) | Event::Needed(ref call) => self.call(call),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syscall::{Abi, Sys};
    use crate::tracer::{Ending, ImageId, ThreadId};

    fn started(process: u32, parent: Option<u32>) -> Event {
        Event::ProcessStarted {
            process: ProcessId(process),
            thread: ThreadId(process),
            pid: 100 + process as i32,
            parent: parent.map(ProcessId),
            by: None,
            image: ImageId(0),
            vfork: false,
            at: 0,
        }
    }

    fn ended(process: u32) -> Event {
        let ending = Ending::Exited(0);
        let process = ProcessId(process);
        Event::ProcessEnded { process, ending, own: None, with_children: None, at: 0 }
    }

    fn call(process: u32, name: &str, args: [u64; 6], outcome: Outcome) -> Event {
        let number = match name {
            "wait4" => 61,
            _ => 247,
        };
        let sys = Sys { abi: Abi::X86_64, number };
        assert_eq!(sys.name(), Some(name));
        Event::Call(Call {
            process: ProcessId(process),
            thread: ThreadId(process),
            image: ImageId(0),
            sys,
            args,
            entry: None,
            entered: None,
            left: None,
            cut: None,
            outcome,
            restarts: 0,
            repaired: 0,
        })
    }

    fn wait4(process: u32, value: i64) -> Event {
        call(process, "wait4", [0; 6], Outcome::Returned(value))
    }

    fn waitid(process: u32, kind: u64, id: u64, options: u64) -> Event {
        call(process, "waitid", [kind, id, 0, options, 0, 0], Outcome::Returned(0))
    }

    /// Which of the processes are in the root's numbers.
    fn counted(events: &[Event]) -> Vec<u32> {
        let mut reaped = Reaped::default();
        for event in events {
            reaped.event(event);
        }
        (0..10).filter(|&id| reaped.is_counted(ProcessId(id))).collect()
    }

    /// The root has a child, and that one too.
    fn three() -> Vec<Event> {
        vec![started(0, None), started(1, Some(0)), started(2, Some(1))]
    }

    #[test]
    fn each_is_waited_for_up_to_the_root() {
        let all = [ended(2), wait4(1, 102), ended(1), wait4(0, 101), ended(0)];
        assert_eq!(counted(&[three(), all.to_vec()].concat()), [0, 1, 2]);
        // Its parent ended before it.
        let orphan = [ended(1), wait4(0, 101), ended(2), ended(0)];
        assert_eq!(counted(&[three(), orphan.to_vec()].concat()), [0, 1]);
        // Its parent waited for it, but nobody for that one.
        let chain = [ended(2), wait4(1, 102), ended(1), ended(0)];
        assert_eq!(counted(&[three(), chain.to_vec()].concat()), [0]);
        // A parent that ignores SIGCHLD waits until there are no more.
        let failed = call(1, "wait4", [0; 6], Outcome::Failed(10));
        let ignored = [ended(2), failed, ended(1), wait4(0, 101), ended(0)];
        assert_eq!(counted(&[three(), ignored.to_vec()].concat()), [0, 1]);
        // It was stopped then; and nobody had ended.
        let stopped = [wait4(1, 102), wait4(1, 0), ended(2), ended(1), wait4(0, 101), ended(0)];
        assert_eq!(counted(&[three(), stopped.to_vec()].concat()), [0, 1]);
        // An orphan goes to whoever takes orphans.
        let taken = [ended(1), wait4(0, 101), ended(2), wait4(0, 102), ended(0)];
        assert_eq!(counted(&[three(), taken.to_vec()].concat()), [0, 1, 2]);
    }

    #[test]
    fn a_pid_that_comes_again_is_another_process() {
        let mut events = vec![started(0, None), started(1, Some(0)), ended(1)];
        let Event::ProcessStarted { thread, by, image, vfork, at, .. } = started(2, Some(0)) else {
            unreachable!()
        };
        let (process, parent, pid) = (ProcessId(2), Some(ProcessId(0)), 101);
        events.push(Event::ProcessStarted { process, thread, pid, parent, by, image, vfork, at });
        events.extend([ended(2), wait4(0, 101), ended(0)]);
        assert_eq!(counted(&events), [0, 2]);
    }

    #[test]
    fn waitid_says_for_whom_or_as_often_as_there_were_children() {
        let by = |wait: Event| [three(), vec![ended(2), ended(1), wait, ended(0)]].concat();
        assert_eq!(counted(&by(waitid(0, P_PID, 101, WEXITED))), [0, 1]);
        assert_eq!(counted(&by(waitid(0, 3, 7, WEXITED))), [0, 1]);
        // It was only looked at; or perhaps nobody was there.
        assert_eq!(counted(&by(waitid(0, P_PID, 101, WEXITED | WNOWAIT))), [0]);
        assert_eq!(counted(&by(waitid(0, 0, 0, WEXITED | WNOHANG))), [0]);
        // Of two, one.
        let two = [started(0, None), started(1, Some(0)), started(2, Some(0))];
        let once = [ended(1), ended(2), waitid(0, 0, 0, WEXITED), ended(0)];
        assert_eq!(counted(&[&two[..], &once[..]].concat()), [0]);
        let twice = [waitid(0, 0, 0, WEXITED)];
        assert_eq!(counted(&[&two[..], &once[..], &twice[..]].concat()), [0, 1, 2]);
    }
}
