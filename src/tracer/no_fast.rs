//! In the place of the fast engine on architectures that have none.

use crate::syscall::CallSet;

use super::event::{CallTimes, ImageId, Nanos, ProcessId};
use super::kernel::Waited;
use super::stop::Entry;
use super::task::Action;

/// As the fast engine's.
pub const STRICT_DATA: u16 = 0xc0de;

/// As the fast engine's.
#[derive(Debug, Clone, Default)]
pub struct FastOptions {
    /// Calls of a process that stop before it is made to count by itself.
    pub after: u32,
    /// Files whose code is never patched.
    pub not_patched: globset::GlobSet,
}

/// As the fast engine's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FastSummary {
    /// Address spaces that counted by themselves.
    pub spaces: u64,
    /// Call sites that were patched.
    pub patched: u64,
    /// Those that were not.
    pub redirected: u64,
    /// Calls that were counted without the tracer.
    pub counted: u64,
    /// Calls that stopped once, and were counted inside.
    pub led: u64,
    /// What counting a call inside adds to it here, ns.
    pub cost: Option<u64>,
    /// Why processes, threads or calls went the slow way, and how often.
    pub reasons: Vec<(String, u64)>,
}

/// As the fast engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caught {
    /// The call, as its site made it.
    pub entry: Entry,
    /// When.
    pub at: Nanos,
    /// What it left in the register.
    pub value: i64,
}

/// As the fast engine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// The state machines take it, as this.
    Tell(Entry),
    /// It goes on without them.
    Led,
}

/// As the fast engine's.
pub type Program = (ProcessId, ImageId);

/// There is none.
#[derive(Debug)]
pub enum Fast {}

#[allow(missing_docs, clippy::unused_self, clippy::needless_pass_by_value)]
impl Fast {
    pub fn new(_: &FastOptions, _: &CallSet) -> Result<Self, &'static str> {
        Err("this architecture has no fast engine")
    }
    pub fn is_on(&self) -> bool {
        match *self {}
    }
    pub fn count_no_more(&mut self) {
        match *self {}
    }
    pub fn summary(&self) -> FastSummary {
        match *self {}
    }
    pub fn has_gate(&self) -> bool {
        match *self {}
    }
    pub fn is_gated(&self, _: i32) -> bool {
        match *self {}
    }
    pub fn is_our_gs(&self, _: u64) -> bool {
        match *self {}
    }
    pub fn at_call(&mut self, _: i32, _: Entry, _: bool, _: &dyn Fn(i32) -> bool) -> Met {
        match *self {}
    }
    pub fn step_back(&mut self, _: i32, _: bool) -> Option<Caught> {
        match *self {}
    }
    pub fn caused(&mut self, _: i32, _: i32) -> bool {
        match *self {}
    }
    pub fn resuming(&mut self, _: i32, _: &Action) {
        match *self {}
    }
    pub fn has_child(&mut self, _: i32, _: i32, _: Option<Entry>, _: bool) {
        match *self {}
    }
    pub fn harvest(&mut self, _: i32) -> Vec<(crate::syscall::Sys, CallTimes)> {
        match *self {}
    }
    pub fn was_in(&mut self, _: i32) -> Option<Caught> {
        match *self {}
    }
    pub fn ended(&mut self, _: i32) {
        match *self {}
    }
    pub fn executed(&mut self, _: i32, _: i32, _: &[i32]) {
        match *self {}
    }
    pub fn shares(&mut self, _: Program) {
        match *self {}
    }
    pub fn forget(&mut self, _: Program) {
        match *self {}
    }
    pub fn is_due(&mut self, _: i32, _: Program) -> bool {
        match *self {}
    }
    pub fn tier_up(
        &mut self,
        _: i32,
        _: Program,
        _: u64,
        _: &[i32],
    ) -> Result<bool, Option<Box<Waited>>> {
        match *self {}
    }
    pub fn dispatches(&mut self, _: i32, _: Program) {
        match *self {}
    }
    pub fn is_parked(&self, _: i32) -> bool {
        match *self {}
    }
    pub fn unpark(&mut self, _: i32) -> Result<(), Option<Box<Waited>>> {
        match *self {}
    }
    pub fn strict_filter(&self, _: i32) -> Option<u64> {
        match *self {}
    }
}

/// No memory of ours is in any process.
pub fn shares_memory(_: i32, _: &Entry) -> bool {
    false
}

/// Nothing is patched.
pub fn makes_tasks(_: &Entry) -> bool {
    false
}
