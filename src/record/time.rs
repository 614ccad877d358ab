//! The `time` part of a record: where the time of threads went.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::{Blocked, ThreadTime};
use crate::syscall::Sys;

/// Where the time of one thread went, or of all of them together. On a CPU,
/// runnable, blocked and the rest make up the lifetime.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct TimeShare {
    /// Threads in it: not those that ended unseen, by another thread's exec.
    pub threads: u64,
    /// From start to exit, while it was traced; of several, the sum.
    pub lifetime_ns: u64,
    /// On a CPU, in user mode and in the kernel (/proc/TID/schedstat).
    pub cpu_ns: u64,
    /// Runnable, and waiting for a CPU.
    pub run_queue_ns: u64,
    /// In calls of 50 us and more, neither on a CPU nor waiting for one.
    pub blocked_ns: u64,
    /// The rest: stopped for the tracer or by job control, waiting for pages of
    /// files, and in calls that were shorter or not watched.
    pub other_ns: u64,
    /// By call, longest first.
    pub blocked: Vec<BlockedCall>,
}

/// A call in which threads were blocked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct BlockedCall {
    /// Name.
    pub name: String,
    /// ABI whose table the number is from.
    pub abi: String,
    /// Calls in which a thread got a CPU more than once: it had given it up, or lost
    /// it to others.
    pub calls: u64,
    /// Time in them neither on a CPU nor waiting for one.
    pub blocked_ns: u64,
}

impl TimeShare {
    /// Of these threads; `None` where nothing is known of any.
    pub fn of<'a>(threads: impl IntoIterator<Item = &'a ThreadTime>) -> Option<Self> {
        let mut share = Self::default();
        let mut blocked: Vec<(Sys, Blocked)> = Vec::new();
        for thread in threads {
            let Some((end, used)) = thread.used else { continue };
            share.threads += 1;
            let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
            add(&mut share.lifetime_ns, end.saturating_sub(thread.start));
            add(&mut share.cpu_ns, used.cpu);
            add(&mut share.run_queue_ns, used.run_queue);
            for (&sys, row) in &thread.blocked {
                match blocked.iter_mut().find(|(other, _)| *other == sys) {
                    Some((_, sum)) => {
                        sum.calls += row.calls;
                        sum.ns = sum.ns.saturating_add(row.ns);
                    }
                    None => blocked.push((sys, *row)),
                }
            }
        }
        if share.threads == 0 {
            return None;
        }
        share.blocked = blocked.into_iter().map(|(sys, row)| BlockedCall::of(sys, row)).collect();
        share.blocked.sort_by(|a, b| {
            b.blocked_ns.cmp(&a.blocked_ns).then_with(|| (&a.name, &a.abi).cmp(&(&b.name, &b.abi)))
        });
        share.blocked_ns =
            share.blocked.iter().fold(0, |sum, call| sum.saturating_add(call.blocked_ns));
        let known =
            share.cpu_ns.saturating_add(share.run_queue_ns).saturating_add(share.blocked_ns);
        share.other_ns = share.lifetime_ns.saturating_sub(known);
        Some(share)
    }
}

impl BlockedCall {
    fn of(sys: Sys, row: Blocked) -> Self {
        Self {
            name: sys.label().into_owned(),
            abi: sys.abi.name().into(),
            calls: row.calls,
            blocked_ns: row.ns,
        }
    }
}
