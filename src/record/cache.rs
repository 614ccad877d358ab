//! The `cache` part of a record: how cold the run was, and how that is known.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What of the working set (the files that the command reads) the page cache held
/// before the run and after it. Cold is said of the page cache alone: directories
/// and inodes, and what a host keeps below a virtual machine, may be warm.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct CacheState {
    /// `cold`: at most 5 % of what can be evicted was there. `warm`: 95 % or more was,
    /// and at most 1 % of the set was read. `lukewarm`: between. `unknown`: the signals
    /// disagree, or there is none.
    pub label: String,
    /// What the label was made of: `residency` or `block input`; null of `unknown`.
    pub basis: Option<String>,
    /// The numbers that it was made of, in words.
    pub evidence: String,
    /// Of the files measured before and after: what can be evicted and was in memory
    /// before the run. Null where no file could be measured both times.
    pub resident_before_bytes: Option<u64>,
    /// The same, after it.
    pub resident_after_bytes: Option<u64>,
    /// What of them was there before and cannot be evicted, since other processes have
    /// it mapped; in neither of the two above. Null where they are.
    pub pinned_bytes: Option<u64>,
    /// What an eviction left of them that is not known to be mapped; in both of the two
    /// above. Absent where nothing evicted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stayed_bytes: Option<u64>,
    /// The most that the command reads of its set: of each file what it read, or its
    /// size where it mapped it. Null where the set is not known.
    pub set_bytes: Option<u64>,
    /// Files of the set that were measured before and after the run; null where the
    /// set is not known.
    pub files_measured: Option<u64>,
    /// Files of the set; null where it is not known.
    pub files_total: Option<u64>,
    /// What told the residency: `cachestat`, `mincore`, `cachestat and mincore`; null
    /// where nothing did.
    pub method: Option<String>,
    /// Why files were not measured, and what else is not certain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Page faults that needed I/O, of the command and the children it waited for.
    pub major_faults: Option<u64>,
    /// What they had read from block devices (`ru_inblock`).
    pub block_input_bytes: Option<u64>,
    /// What evicted the set before the run: `posix_fadvise`, or `drop_caches` (the
    /// whole machine's). Absent where nothing did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evicted_by: Option<String>,
    /// Files of the set that the kernel was asked to let go; of `drop_caches` all of
    /// them. Absent where nothing evicted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_evicted: Option<u64>,
    /// Files of Python bytecode (.pyc) that the run wrote: its next run is quicker for
    /// that reason too. Null where nobody looked.
    pub bytecode_written: Option<u64>,
    /// Other files that the run had looked for or read, and wrote: caches, as a rule.
    /// Absent where that was not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caches_written: Option<Vec<String>>,
    /// Different after each boot.
    pub boot_id: Option<String>,
    /// Since the machine was booted, before the run.
    pub uptime_ns: Option<u64>,
    /// Whether it is the first run of these arguments since then that coldtrace knows
    /// of in that directory; null where that is not known.
    pub first_since_boot: Option<bool>,
    /// By what a later bench knows the command again: SHA-256 of arguments, directory,
    /// variables that name files, and the program's file. Of traced runs of a bench only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_sha256: Option<String>,
}
