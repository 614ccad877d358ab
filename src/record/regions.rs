//! The `regions` part of a record: what was done between two moments of a run.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::{Counts, Key, OpenRegions, Tally, Timeline};
use crate::tracer::ProcessId;

use super::build::{process_syscall, syscall_rows};
use super::types::{ProcessSyscall, SyscallRow};

/// One region: from a call that names /coldtrace/begin/NAME to one that names
/// /coldtrace/end/NAME, or between two moments that `--region` names. It is open
/// while there were more begins than ends, whoever made them.
///
/// The calls in it are those of all threads and processes that entered while it was
/// open. A call belongs to every region that was open then; the calls that mark are
/// in none, and nowhere else in the record. Sums and rows are of what was counted
/// at all (`-e trace=`, `-e status=`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Region {
    /// NAME.
    pub name: String,
    /// How often it was opened; 0 for one that was asked for and never began.
    pub times: u64,
    /// It was open when the run ended: no end was marked, or asked for, or came.
    pub open_ended: bool,
    /// How long it was open, all times together. Includes tracing.
    pub wall_ns: u64,
    /// Calls that entered in it.
    pub calls: u64,
    /// Those of them that returned an error.
    pub errors: u64,
    /// One row a syscall, most wall time first.
    pub syscalls: Vec<ProcessSyscall>,
    /// The same rows by process, of those that made calls in it.
    pub processes: Vec<RegionProcess>,
}

/// What one process did in a region.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegionProcess {
    /// The process: an id of `processes`.
    pub id: u64,
    /// Its calls.
    pub syscalls: Vec<ProcessSyscall>,
}

impl Region {
    /// All of a run, of which the timeline is finished; none is longer than `most`,
    /// ns, if that is known. `None` where there is no region.
    pub(super) fn all(
        timeline: &Timeline,
        counts: &Counts,
        most: Option<u64>,
    ) -> Option<Vec<Self>> {
        let mut parts: BTreeMap<(u32, ProcessId), Vec<(&Key, &Tally)>> = BTreeMap::new();
        let inside = counts.tallies().filter(|(key, _)| key.regions != OpenRegions::NONE);
        for (key, tally) in inside {
            let Some(process) = key.process else { continue };
            for &region in timeline.regions_of(key.regions) {
                parts.entry((region, process)).or_default().push((key, tally));
            }
        }
        let regions = timeline.regions().zip(0..).map(|((name, times), number)| {
            let of = (number, ProcessId(0))..=(number, ProcessId(u32::MAX));
            let own: Vec<_> = parts.range(of).collect();
            let tallies = own.iter().flat_map(|(_, tallies)| tallies.iter().copied());
            let rows = syscall_rows(tallies, counts);
            Self {
                name: name.to_owned(),
                times: times.times,
                open_ended: times.open_ended,
                wall_ns: times.wall.min(most.unwrap_or(u64::MAX)),
                calls: rows.iter().map(|row| row.calls).sum(),
                errors: rows.iter().map(SyscallRow::error_count).sum(),
                syscalls: rows.into_iter().map(process_syscall).collect(),
                processes: own
                    .into_iter()
                    .map(|(&(_, process), tallies)| {
                        let rows = syscall_rows(tallies.iter().copied(), counts);
                        let syscalls = rows.into_iter().map(process_syscall).collect();
                        RegionProcess { id: process.0.into(), syscalls }
                    })
                    .collect(),
            }
        });
        let regions: Vec<Self> = regions.collect();
        (!regions.is_empty()).then_some(regions)
    }

    /// What a reader should know of them.
    pub(super) fn notes(timeline: &Timeline) -> Vec<String> {
        let strays = timeline.regions().filter(|(_, times)| times.stray_ends > 0);
        let strays = strays.map(|(name, times)| {
            let often = match times.stray_ends {
                1 => "once".to_owned(),
                n => format!("{n} times"),
            };
            format!("region {name}: its end was marked {often} without a beginning")
        });
        let left_out = Some(timeline.left_out()).filter(|&n| n > 0);
        let left_out = left_out.map(|n| {
            format!("{n} more regions, at least, were marked and left out: too many names")
        });
        strays.chain(left_out).collect()
    }
}
