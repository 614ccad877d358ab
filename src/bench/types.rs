//! What `bench.json` holds.
//!
//! As in a record units stand in the names, and `null` means unknown.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{Environment, Interpreter, Tool};

use super::schedule::{Plan, RunKind};
use super::stats::{Ratio, Summary};

/// The schema this version writes; a reader accepts any minor of major 1.
pub const SCHEMA: &str = "coldtrace.bench/1";

/// Many runs of one command, or of several in turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Bench {
    /// Always [`SCHEMA`] when written by this version.
    pub schema: String,
    /// What wrote it.
    pub tool: Tool,
    /// The name of its directory, in which the runs' directories are; null of several
    /// that were joined.
    pub id: Option<String>,
    /// `--label`, or the first command's name.
    pub label: String,
    /// Start in UTC, RFC 3339.
    pub start: String,
    /// What was asked for; null of several that were joined.
    pub asked: Option<Asked>,
    /// The machine and its state before the first run. Of several that were joined the
    /// machine of the first, without what is of one moment: boot, load, free memory.
    pub environment: Option<Environment>,
    /// Each command.
    pub commands: Vec<CommandBench>,
    /// Each further command against the first.
    pub comparisons: Vec<Comparison>,
    /// What a reader should know of the whole, a line each.
    pub warnings: Vec<String>,
    /// Name of the signal that ended it before all runs were made; of several that were
    /// joined, the first that was ended so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// It was written down before its end, which it did not come to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
    /// The benches that were joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<Joined>,
}

impl Bench {
    /// Whether it is made of several benches.
    pub fn is_joined(&self) -> bool {
        !self.joined.is_empty()
    }
}

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Asked {
    /// Runs of each kind, beside the first.
    pub runs: Plan,
    /// Shell command before each run.
    pub prepare: Option<String>,
    /// Shell command before all.
    pub setup: Option<String>,
    /// Shell command after all.
    pub cleanup: Option<String>,
    /// Whether cold runs had the whole machine's caches dropped.
    pub drop_caches: bool,
    /// Whether runs might fail.
    pub ignore_failure: bool,
}

/// A bench among those that were joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Joined {
    /// The name of its directory.
    pub id: Option<String>,
    /// Its start.
    pub start: String,
    /// In which boot it was.
    pub boot_id: Option<String>,
}

/// What there is of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct CommandBench {
    /// The command and its arguments (invalid UTF-8 replaced).
    pub argv: Vec<String>,
    /// All runs in order, those that failed too.
    pub runs: Vec<RunEntry>,
    /// The first run of each boot: one, but of several benches that were joined.
    pub first: Option<KindBench>,
    /// Cold runs; null where there is none that did not fail.
    pub cold: Option<KindBench>,
    /// Warm runs, without the warm-ups.
    pub warm: Option<KindBench>,
    /// Traced runs: their times are tracing's too, and in no other number.
    pub traced: Option<KindBench>,
    /// Calls and errors of the traced runs, by syscall; most calls first.
    pub syscalls: Vec<SyscallCounts>,
    /// The traced runs' median wall time through the warm runs'.
    pub traced_times_warm: Option<f64>,
    /// Cold medians less warm medians; null where no cold run is labelled cold, or no
    /// warm one warm.
    pub cold_vs_warm: Option<Difference>,
    /// Runs far from the others of their kind.
    pub outliers: Vec<Outlier>,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct RunEntry {
    /// Its directory, in the bench's; of several that were joined behind the bench's.
    pub run: String,
    /// What it was for.
    pub kind: RunKind,
    /// Which of its kind, from 1.
    pub number: u32,
    /// Start in UTC, RFC 3339.
    pub start: String,
    /// How it failed: `exited 3`, `killed by SIGSEGV`. Absent of one that did not; one
    /// that did is in no statistics.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// `cold`, `warm`, `lukewarm` or `unknown`: as in the record's `cache`.
    pub label: Option<String>,
    /// What it was made of: `residency` or `block input`. Absent of `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<String>,
    /// The numbers that it was made of, in words.
    pub evidence: Option<String>,
    /// What evicted its files before it: `posix_fadvise` or `drop_caches`. Absent where
    /// nothing did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted_by: Option<String>,
    /// Files that the command reads; null where they are not known.
    pub files: Option<u64>,
    /// Those of them that the kernel was asked to let go before it. Absent where none
    /// was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_evicted: Option<u64>,
    /// What it wrote to stderr; absent where that is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_bytes: Option<u64>,
    /// What interpreted it: known of traced runs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<Interpreter>,
    /// Files of Python bytecode that it wrote; null where nobody looked.
    pub bytecode_written: Option<u64>,
    /// Other caches that it wrote: known of traced runs only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches_written: Vec<String>,
    /// Whether it is the first run of these arguments since the machine was booted that
    /// coldtrace knows of; null where that is not known.
    pub first_since_boot: Option<bool>,
    /// In which boot it was.
    pub boot_id: Option<String>,
    /// Runnable tasks before it, averaged over a minute.
    pub load: Option<f64>,
    /// What was measured.
    pub metrics: Metrics,
    /// Its calls, where it was traced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<RunCalls>,
}

/// Calls of one syscall in one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunCalls {
    /// Name in its ABI's table.
    pub name: String,
    /// `x86_64`, `i386`, ...
    pub abi: String,
    /// Calls entered.
    pub calls: u64,
    /// Calls that returned an error.
    pub errors: u64,
}

/// What is measured of each run: of the command and the children that it waited for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Metrics {
    /// From the moment before its process was made to its end.
    pub wall_ns: Option<u64>,
    /// CPU time in user mode.
    pub user_ns: Option<u64>,
    /// CPU time in the kernel.
    pub sys_ns: Option<u64>,
    /// Wall time without both; 0 where there was more CPU time than wall time, since
    /// more than one processor worked.
    pub off_cpu_ns: Option<u64>,
    /// Time that its first thread was runnable and waited for a CPU; null of traced runs.
    pub run_queue_ns: Option<u64>,
    /// Largest resident set of a process; null where it is not more than what its launcher
    /// had, which says nothing.
    pub peak_rss_bytes: Option<u64>,
    /// Page faults served without I/O.
    pub minor_faults: Option<u64>,
    /// Page faults that needed I/O.
    pub major_faults: Option<u64>,
    /// Read from block devices.
    pub block_in_bytes: Option<u64>,
    /// To be written to them.
    pub block_out_bytes: Option<u64>,
    /// Switches because it waited.
    pub voluntary_switches: Option<u64>,
    /// Switches because its time slice ended.
    pub involuntary_switches: Option<u64>,
    /// Of what its files had in memory after the run, the part that was there before it:
    /// 0 to 1; null where that could not be measured. What cannot be evicted, since
    /// others have it mapped, is in neither number.
    pub resident_ratio: Option<f64>,
}

impl Metrics {
    /// Each by its name in JSON.
    pub fn each(&self) -> [(&'static str, Option<f64>); 13] {
        let number = |n: Option<u64>| n.map(|n| n as f64);
        [
            ("wall_ns", number(self.wall_ns)),
            ("user_ns", number(self.user_ns)),
            ("sys_ns", number(self.sys_ns)),
            ("off_cpu_ns", number(self.off_cpu_ns)),
            ("run_queue_ns", number(self.run_queue_ns)),
            ("peak_rss_bytes", number(self.peak_rss_bytes)),
            ("minor_faults", number(self.minor_faults)),
            ("major_faults", number(self.major_faults)),
            ("block_in_bytes", number(self.block_in_bytes)),
            ("block_out_bytes", number(self.block_out_bytes)),
            ("voluntary_switches", number(self.voluntary_switches)),
            ("involuntary_switches", number(self.involuntary_switches)),
            ("resident_ratio", self.resident_ratio),
        ]
    }

    /// One by its name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.each().into_iter().find(|(n, _)| *n == name)?.1
    }
}

/// Runs of one kind that did not fail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct KindBench {
    /// How many.
    pub n: usize,
    /// How many failed beside.
    pub failed: usize,
    /// How many of each label.
    pub labels: IndexMap<String, usize>,
    /// By metric; one that is not known of a run is made of the others: its own `n` is
    /// less then.
    pub metrics: IndexMap<String, Summary>,
}

/// Calls of one syscall in the traced runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SyscallCounts {
    /// Name in its ABI's table.
    pub name: String,
    /// `x86_64`, `i386`, ...
    pub abi: String,
    /// Calls entered.
    pub calls: Count,
    /// Calls that returned an error.
    pub errors: Count,
}

/// A count over several runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Count {
    /// The same in all.
    Same(u64),
    /// Not the same.
    Varies(Summary),
}

/// How much more the medians of cold runs are than those of warm ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Difference {
    /// Of wall time.
    pub wall_ns: f64,
    /// Of wall time, in parts of the warm median.
    pub wall_share: Option<f64>,
    /// CPU time in user mode.
    pub user_ns: Option<f64>,
    /// CPU time in the kernel.
    pub sys_ns: Option<f64>,
    /// Off CPU. This and the two above are null where they are not known of each run.
    pub off_cpu_ns: Option<f64>,
}

/// A run far from the others of its kind: it is named, and kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Outlier {
    /// Its directory.
    pub run: String,
    /// Its kind.
    pub kind: RunKind,
    /// Which of its kind.
    pub number: u32,
    /// Which metric is far from the others': `off_cpu_ns`, `cpu_ns` (user and sys
    /// together: how the kernel parts them is rough) or `wall_ns`.
    pub metric: String,
    /// What it is.
    pub value: f64,
    /// The median of its kind.
    pub median: f64,
    /// Why, where that shows; null where it does not.
    pub cause: Option<String>,
}

/// Wall time of a command against the first one's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Comparison {
    /// Which command, from 0.
    pub command: usize,
    /// `cold` or `warm`.
    pub kind: RunKind,
    /// How many times as long it takes as the first; null where either has fewer than 5
    /// runs.
    pub ratio: Option<Ratio>,
    /// Whether they are seen to differ: the interval does not hold 1. Null where there
    /// is no interval.
    pub differs: Option<bool>,
}
