//! New threads and processes. A child can stop, and even end, before its
//! creator tells of it; then it is held until that comes.

use super::super::event::{Ending, Nanos};
use super::super::stop::{Birth, Stop};
use super::super::task::{Action, Follow};
use super::{Outbox, Tasks, turn_to_detach};

/// A tid that reported before its creator told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Early {
    /// Stopped, and held. A later stop replaces the first: killed, it has gone on
    /// from there to its exit stop.
    Held { at: Nanos, stop: Stop },
    /// Ended already.
    Gone { at: Nanos, ending: Ending },
}

/// How long an end may be waiting for the news of its birth, ns.
pub(super) const STALE: Nanos = 1_000_000_000;

/// Where a thread belongs that nobody told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lineage {
    /// A thread of the process with this pid.
    ThreadOf(i32),
    /// A process, whose parent may be known.
    ChildOf(Option<i32>),
}

impl Tasks {
    /// Takes in a thread that came early and whose creator did not live to tell
    /// of it.
    pub fn adopt(&mut self, tid: i32, lineage: Lineage, out: &mut Outbox) {
        let Some(early) = self.early.remove(&tid) else { return };
        let (Early::Held { at, .. } | Early::Gone { at, .. }) = early;
        let by_pid = |pid: i32| self.slots.get(&pid).map(|s| s.process);
        match lineage {
            Lineage::ThreadOf(pid) if by_pid(pid).is_some() => {
                let Some(process) = by_pid(pid) else { return };
                self.start_thread(tid, process, None, at, out);
            }
            Lineage::ThreadOf(_) => {
                self.add_process(tid, None, false, Follow::Every, at, out);
            }
            Lineage::ChildOf(parent) => {
                let parent = parent.and_then(by_pid).map(|parent| (parent, None));
                self.add_process(tid, parent, false, Follow::Every, at, out);
            }
        }
        self.welcome(tid, early, out);
        if self.letting_go {
            turn_to_detach(out);
        }
    }

    /// Threads that are held until their creator tells of them.
    pub fn held(&self) -> impl Iterator<Item = i32> + '_ {
        let held = |e: &Early| matches!(e, Early::Held { .. });
        self.early.iter().filter(move |(_, e)| held(e)).map(|(tid, _)| *tid)
    }

    /// Those that have been since `before`.
    pub fn held_since(&self, before: Nanos) -> impl Iterator<Item = i32> + '_ {
        let old = move |e: &Early| matches!(e, Early::Held { at, .. } if *at < before);
        self.early.iter().filter(move |(_, e)| old(e)).map(|(tid, _)| *tid)
    }

    pub(super) fn came_early(&mut self, tid: i32, stop: &Stop, at: Nanos, out: &mut Outbox) {
        if matches!(stop, Stop::Signal { .. }) {
            // A new tracee begins with another stop: this is a child that is
            // not traced, inherited by the tracer and stopped by its user.
            return;
        }
        let first = match self.early.get(&tid) {
            Some(Early::Held { at, .. }) => *at,
            _ => at,
        };
        self.early.insert(tid, Early::Held { at: first, stop: *stop });
        out.actions.push((tid, Action::Hold));
    }

    pub(super) fn born(
        &mut self,
        creator: i32,
        birth: Birth,
        child: i32,
        thread: bool,
        at: Nanos,
        out: &mut Outbox,
    ) {
        if self.slots.contains_key(&child) || child <= 0 {
            return; // Adopted before its creator could tell.
        }
        let Some(by) = self.slots.get(&creator) else { return };
        let (parent, by) = (by.process, Some(by.thread));
        if thread {
            self.start_thread(child, parent, by, at, out);
        } else {
            let Some(follow) = self.groups.get(&parent).map(|g| g.follow) else { return };
            let vfork = birth == Birth::Vfork;
            self.add_process(child, Some((parent, by)), vfork, follow, at, out);
        }
        match self.early.remove(&child) {
            Some(Early::Gone { at: then, .. }) if at.saturating_sub(then) >= STALE => {}
            Some(early) => self.welcome(child, early, out),
            None => {}
        }
    }

    /// Goes on with a task that came before its creator told of it.
    pub(super) fn welcome(&mut self, tid: i32, early: Early, out: &mut Outbox) {
        match early {
            Early::Held { at, stop } => self.step(tid, &stop, at, out),
            Early::Gone { at, ending } => self.ended(tid, ending, at, None, None, out),
        }
    }
}
