//! In the place of the fast engine on architectures that have none.

use crate::syscall::CallSet;

use super::inside::{Caught, FastOptions, FastSummary, Harvest, Met, Program};
use super::kernel::Waited;
use super::stop::Entry;
use super::task::Action;

/// There is none.
#[derive(Debug)]
pub enum Fast {}

#[allow(missing_docs, clippy::unused_self, clippy::needless_pass_by_value)]
impl Fast {
    pub fn new(_: &FastOptions, _: &CallSet) -> Result<Self, String> {
        Err("this architecture has no fast engine".into())
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
    pub fn asks(&self, _: u64) -> bool {
        false
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
    pub fn harvest(&mut self, _: i32) -> Harvest {
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
    pub fn begins(&mut self, _: i32, _: bool) {
        match *self {}
    }
    pub fn has_made_process(&mut self, _: Program) {
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
    pub fn strict_filter(&self, _: i32, _: u64) -> Option<u64> {
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
