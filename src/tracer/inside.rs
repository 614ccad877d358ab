//! What the loop and the fast engine say to each other, whatever the architecture.

use crate::syscall::Sys;

use super::event::{CallTimes, ImageId, Nanos, ProcessId};
use super::stop::Entry;

/// How the fast engine is to work.
#[derive(Debug, Clone)]
pub struct FastOptions {
    /// Calls of a process that stop before it is made to count by itself.
    pub after: u32,
    /// Files whose code is never patched.
    pub not_patched: globset::GlobSet,
}

/// Calls after which counting inside pays; see benches/README.md.
pub const AFTER: u32 = 150;

impl Default for FastOptions {
    fn default() -> Self {
        Self { after: AFTER, not_patched: globset::GlobSet::empty() }
    }
}

/// What the engine did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FastSummary {
    /// Address spaces that counted by themselves.
    pub spaces: u64,
    /// Call sites that were patched.
    pub patched: u64,
    /// Those that were not, each call of which stops once.
    pub redirected: u64,
    /// Calls that were counted without the tracer.
    pub counted: u64,
    /// Calls that stopped once, and were counted inside.
    pub led: u64,
    /// What counting a call inside adds to it here, ns, where that was measured.
    pub cost: Option<u64>,
    /// Why processes, threads or calls went the slow way, and how often.
    pub reasons: Vec<(String, u64)>,
}

/// A call that was found in the trampoline, interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caught {
    /// The call, as its site made it.
    pub entry: Entry,
    /// When.
    pub at: Nanos,
    /// What it left in the register.
    pub value: i64,
}

/// What is to be done with a thread that stopped at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub enum Met {
    /// The state machines take it, as this.
    Tell(Entry),
    /// It goes on without them.
    Led,
    /// It has returned from this call, in EINTR.
    Interrupted(Caught),
}

/// A program that a process runs.
pub type Program = (ProcessId, ImageId);

/// Calls that a thread made since it was asked last.
pub type Harvest = Vec<(Sys, CallTimes)>;

/// What a filter in the place of strict mode, which cannot be entered under a
/// filter, says of calls that strict mode kills for.
pub const STRICT_DATA: u16 = 0xc0de;
