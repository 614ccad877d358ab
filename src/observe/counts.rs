//! The tally: calls, errors, restarts and durations by syscall.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::syscall::split::{operation, operations};
use crate::syscall::{CallSet, Sys};
use crate::tracer::{Call, CallTimes, Event, ImageId, Observer, Outcome, ProcessId, ThreadId};

use super::{Histogram, OpenRegions, SharedTimeline};

/// What separate tallies are kept for, beside the syscall.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// One for all.
    #[default]
    All,
    /// One a process.
    Process,
    /// One a program: every exec begins a new one.
    Image,
    /// One a thread.
    Thread,
}

/// Which outcomes are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statuses {
    /// Calls that returned no error, and those not meant to return.
    pub successful: bool,
    /// Calls that returned an error.
    pub failed: bool,
    /// Calls that never returned.
    pub unfinished: bool,
}

impl Statuses {
    /// All of them.
    pub const ALL: Self = Self { successful: true, failed: true, unfinished: true };

    fn contain(self, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Returned(_) | Outcome::NoReturn => self.successful,
            Outcome::Failed(_) => self.failed,
            Outcome::Unfinished | Outcome::Abandoned => self.unfinished,
        }
    }
}

impl Default for Statuses {
    fn default() -> Self {
        Self::ALL
    }
}

/// What one tally counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Process, unless all are counted together.
    pub process: Option<ProcessId>,
    /// Thread, when threads are counted apart.
    pub thread: Option<ThreadId>,
    /// Program, when programs are counted apart.
    pub image: Option<ImageId>,
    /// What was open when it entered, where regions are asked about.
    pub regions: OpenRegions,
    /// The call.
    pub sys: Sys,
    /// Its operation, for [`Counts::operation`], with `--split`.
    pub operation: Option<u32>,
}

/// One tally.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls entered.
    pub calls: u64,
    /// (errno, calls), in order of first appearance.
    pub errors: Vec<(i32, u64)>,
    /// Re-issues by the kernel.
    pub restarts: u64,
    /// Calls that never returned.
    pub unfinished: u64,
    /// Time spent in those until they were cut off, ns.
    pub unfinished_ns: u64,
    /// Interrupted calls whose handler jumped away.
    pub abandoned: u64,
    /// Re-issues by the tracer.
    pub repaired: u64,
    /// Calls that were timed.
    pub timed: u64,
    /// Sum of their wall time, ns.
    pub total: u64,
    /// Shortest, ns.
    pub min: u64,
    /// Longest, ns.
    pub max: u64,
    /// All of them.
    pub histogram: Histogram,
}

impl Tally {
    /// Counts a call.
    pub fn add(&mut self, call: &Call) {
        self.calls += 1;
        self.restarts += u64::from(call.restarts);
        self.repaired += u64::from(call.repaired);
        match call.outcome {
            Outcome::Failed(errno) => self.add_error(errno, 1),
            Outcome::Unfinished => {
                self.unfinished += 1;
                let spent =
                    call.cut.zip(call.entered).map(|(cut, in_at)| cut.saturating_sub(in_at));
                self.unfinished_ns = self.unfinished_ns.saturating_add(spent.unwrap_or(0));
            }
            Outcome::Abandoned => self.abandoned += 1,
            Outcome::Returned(_) | Outcome::NoReturn => {}
        }
        if let Some(wall) = call.wall() {
            self.min = if self.timed == 0 { wall } else { self.min.min(wall) };
            self.max = self.max.max(wall);
            self.timed += 1;
            self.total = self.total.saturating_add(wall);
            self.histogram.add(wall);
        }
    }

    /// Counts calls that were counted inside.
    fn add_counted(&mut self, times: &CallTimes) {
        self.calls += times.calls;
        for &(errno, n) in &times.errors {
            self.add_error(errno, n);
        }
        self.min = if self.timed == 0 { times.min } else { self.min.min(times.min) };
        self.max = self.max.max(times.max);
        self.timed += times.calls;
        self.total = self.total.saturating_add(times.total);
        for &(ns, n) in &times.histogram {
            self.histogram.add_times(ns, n);
        }
    }

    fn add_error(&mut self, errno: i32, n: u64) {
        match self.errors.iter_mut().find(|(e, _)| *e == errno) {
            Some((_, mine)) => *mine += n,
            None => self.errors.push((errno, n)),
        }
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.restarts += other.restarts;
        self.unfinished += other.unfinished;
        self.unfinished_ns = self.unfinished_ns.saturating_add(other.unfinished_ns);
        self.abandoned += other.abandoned;
        self.repaired += other.repaired;
        for &(errno, n) in &other.errors {
            self.add_error(errno, n);
        }
        if other.timed > 0 {
            self.min = if self.timed == 0 { other.min } else { self.min.min(other.min) };
            self.max = self.max.max(other.max);
            self.timed += other.timed;
            self.total = self.total.saturating_add(other.total);
            self.histogram.merge(&other.histogram);
        }
    }

    /// Calls that returned an error.
    pub fn error_count(&self) -> u64 {
        self.errors.iter().map(|(_, n)| n).sum()
    }
}

/// Hashes the few small numbers of a key by multiplication: this is done once a
/// call, and nobody chooses the keys to collide.
#[derive(Debug, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u64(b.into());
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }
    fn write_i64(&mut self, n: i64) {
        self.write_u64(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Tallies of a run.
#[derive(Debug, Default)]
pub struct Counts {
    by: By,
    split: bool,
    statuses: Statuses,
    tallies: HashMap<Key, Tally, BuildHasherDefault<Mix>>,
    operations: indexmap::IndexSet<String>,
    timeline: Option<SharedTimeline>,
}

impl Counts {
    /// Empty tallies of calls that end in one of `statuses`; `split` keeps
    /// operations of one syscall apart.
    pub fn new(by: By, split: bool, statuses: Statuses) -> Self {
        Self { by, split, statuses, ..Self::default() }
    }

    /// The same, which keeps apart what was done in regions.
    #[must_use]
    pub fn within(self, timeline: SharedTimeline) -> Self {
        Self { timeline: Some(timeline), ..self }
    }

    /// The tallies, in no order.
    pub fn tallies(&self) -> impl Iterator<Item = (&Key, &Tally)> {
        self.tallies.iter()
    }

    /// The median wall time of the call that has the lowest, ns, of those made
    /// often enough to have one.
    pub fn quickest(&self) -> Option<u64> {
        const OFTEN: u64 = 8;
        let often = self.tallies.values().filter(|tally| tally.timed >= OFTEN);
        often.filter_map(|tally| tally.histogram.percentile(50)).min()
    }

    /// The name of an operation.
    pub fn operation(&self, key: &Key) -> Option<&str> {
        self.operations.get_index(key.operation? as usize).map(String::as_str)
    }

    /// The tally of a caller's calls, of which these are some.
    fn tally(
        &mut self,
        (process, thread, image): (ProcessId, ThreadId, ImageId),
        sys: Sys,
        regions: OpenRegions,
        operation: Option<u32>,
    ) -> &mut Tally {
        let (process, thread, image) = match self.by {
            By::All => (None, None, None),
            By::Process => (Some(process), None, None),
            By::Image => (None, None, Some(image)),
            By::Thread => (Some(process), Some(thread), None),
        };
        let key = Key { process, thread, image, regions, sys, operation };
        self.tallies.entry(key).or_default()
    }

    fn count(&mut self, call: &Call) {
        let operation = if self.split {
            operation(call.sys, &call.args).map(|name| {
                let known = self.operations.get_index_of(name.as_ref());
                known.unwrap_or_else(|| self.operations.insert_full(name.into_owned()).0) as u32
            })
        } else {
            None
        };
        // One that was entered before anybody watched is in no region.
        let known = self.timeline.as_ref().zip(call.entry);
        let regions =
            known.map_or(OpenRegions::NONE, |(timeline, at)| timeline.borrow_mut().open_at(at));
        let caller = (call.process, call.thread, call.image);
        self.tally(caller, call.sys, regions, operation).add(call);
    }
}

impl Observer for Counts {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Call(call) if self.statuses.contain(call.outcome) => self.count(call),
            Event::Counted { process, thread, image, sys, times } => {
                let caller = (*process, *thread, *image);
                self.tally(caller, *sys, OpenRegions::NONE, None).add_counted(times);
            }
            _ => {}
        }
    }

    fn each(&self) -> CallSet {
        match (self.statuses, self.split) {
            (Statuses::ALL, false) => CallSet::none(),
            (Statuses::ALL, true) => operations(),
            _ => CallSet::all(),
        }
    }
}
