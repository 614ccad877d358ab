//! The one record of a run: what `record.json` holds.
//!
//! Units stand in the names (`_ns`, `_bytes`). `null` means unknown, an absent
//! part means that it was not asked for; neither is ever written as 0.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::artifacts::Artifact;
use super::cache::CacheState;
use super::cpu::CpuSamples;
use super::environment::Environment;
use super::files::{Files, MappedFile};
use super::imports::Imports;
use super::network::NetworkRow;
use super::proc::ProcSnapshot;
use super::regions::Region;
use super::time::TimeShare;

/// The schema this version writes; a reader accepts any minor of major 1.
pub const SCHEMA: &str = "coldtrace.record/1";

/// One run of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Record {
    /// Always [`SCHEMA`] when written by this version.
    pub schema: String,
    /// What wrote the record.
    pub tool: Tool,
    /// What was run.
    pub run: Run,
    /// Where: the machine and its state just before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    /// What the root process's last program runs on. Absent where no command was
    /// traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// How it ended.
    pub outcome: Outcome,
    /// Of the root process and the descendants it waited for, from wait4(2).
    pub rusage: Option<Rusage>,
    /// Of every process of the tree, each counted once.
    pub tree: Option<Tree>,
    /// How the numbers were taken, and what that cost.
    pub measurement: Measurement,
    /// One row a syscall, most wall time first. Absent when nothing was traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syscalls: Option<Vec<SyscallRow>>,
    /// The same rows by process, thread or executable, when `--by` asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<Group>>,
    /// Where the time of all threads went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeShare>,
    /// One entry a process, in order of start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<Process>>,
    /// Every path: opened, asked about, looked for in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Files>,
    /// Every file that was mapped executable, in order of first use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mapped: Option<Vec<MappedFile>>,
    /// Sockets that were made, and addresses that they were connected and bound to
    /// and that was sent to; in order of first use. What io_uring did is not there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Vec<NetworkRow>>,
    /// Where CPU time went, by samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuSamples>,
    /// What /proc said of processes at their ends and at what else was asked for,
    /// in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proc: Option<Vec<ProcSnapshot>>,
    /// What of the files that the command reads was in memory before it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheState>,
    /// What Python imported, when `--importtime` asked for it: from a second run
    /// of the command, of which nothing else is in this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imports: Option<Imports>,
    /// What was done between the moments that the program marked, or that `--region`
    /// names: those that were asked for first, then as they were marked. Absent
    /// where none was marked and none asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<Vec<Region>>,
    /// The files beside it in the run directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<Artifact>>,
}

/// The program that wrote a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// `coldtrace`.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// What was run, where and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// The name of the run directory; null where there is none.
    pub id: Option<String>,
    /// `--label`, or the command's name.
    pub label: String,
    /// The command and its arguments (invalid UTF-8 replaced).
    pub argv: Vec<String>,
    /// The directory it was started in.
    pub cwd: Option<String>,
    /// Start in UTC, RFC 3339.
    pub start: String,
    /// Processes that were attached to, instead of a command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<i32>,
    /// `--tag k=v`.
    #[serde(default)]
    pub tags: IndexMap<String, String>,
    /// What its standard streams were at its first exec. Absent where no command was
    /// traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdio: Option<Stdio>,
    /// Whether the addresses of what it executed first were randomised; absent where
    /// that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aslr: Option<bool>,
    /// The directory that was made for its standard output and error (stdout.log and
    /// stderr.log in it), where coldtrace directed them to files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

/// What the command's standard streams are: `file`, `pipe`, `null` (/dev/null),
/// `terminal`, `socket`, `device` (any other), `closed`, or `other`; null where it
/// could not be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Stdio {
    /// Standard input.
    pub stdin: Option<String>,
    /// Standard output.
    pub stdout: Option<String>,
    /// Standard error.
    pub stderr: Option<String>,
}

/// What a program runs on: counts of one platform are not those of another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Platform {
    /// Its ABI: `x86_64`, `i386`, `x32`, `aarch64`, `arm`; null where it is another.
    pub arch: Option<String>,
    /// `linux`.
    pub os: String,
    /// `glibc`, `musl`, or `static` where it asks for no loader; null where that is
    /// another, or could not be read.
    pub libc: Option<String>,
    /// Of glibc the highest version that its libc.so.6 defines symbols for, as `2.36`;
    /// null where it is not known.
    pub libc_version: Option<String>,
}

/// How the command ended. Exactly one of `exit_code` and `signal` is set,
/// except when the end was never seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Exit status, when it exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that killed it (`SIGSEGV`, `SIGRT_3`).
    pub signal: Option<String>,
    /// Whether the kernel says that it dumped core.
    pub core_dumped: bool,
    /// Whether `--timeout` ended it.
    #[serde(default)]
    pub timed_out: bool,
    /// From the exec that started the command to the end of the root process.
    pub wall_ns: u64,
    /// From the start to the return of the first write to standard output, by
    /// whoever of the tree; null where there was none, or it was not watched for.
    pub first_output_ns: Option<u64>,
    /// Bytes written to standard output; null where they were not counted.
    pub stdout_bytes: Option<u64>,
    /// Bytes written to standard error; null where they were not counted.
    pub stderr_bytes: Option<u64>,
}

/// getrusage(2) of the root and of the children it waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rusage {
    /// CPU time in user mode.
    pub user_ns: u64,
    /// CPU time in the kernel.
    pub sys_ns: u64,
    /// `ru_maxrss`: of the largest process, and never less than what the
    /// launcher had when it forked.
    pub ru_maxrss_bytes: u64,
    /// What the launcher had then: a `ru_maxrss` that is not more says nothing of the
    /// command. Absent where the command was traced; `tree` has its peak then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rss_before_exec_bytes: Option<u64>,
    /// Page faults served without I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// `ru_inblock`, in units of 512 bytes.
    pub block_in: u64,
    /// `ru_oublock`, in units of 512 bytes.
    pub block_out: u64,
    /// Switches because the process waited.
    pub voluntary_switches: u64,
    /// Switches because its time slice ended.
    pub involuntary_switches: u64,
    /// Time that the root's first thread was on a CPU (/proc/PID/schedstat of the
    /// zombie). Absent where the command was traced; `time` has it of each thread then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_thread_cpu_ns: Option<u64>,
    /// Time that it was runnable and waited for a CPU; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_thread_run_queue_ns: Option<u64>,
}

impl Rusage {
    /// `ru_maxrss` where it is the command's own.
    pub fn peak_bytes(&self) -> Option<u64> {
        let least = self.rss_before_exec_bytes.unwrap_or(0);
        Some(self.ru_maxrss_bytes).filter(|&peak| peak > least)
    }
}

/// Totals over every process of the tree, also those nobody waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tree {
    /// Processes seen.
    pub processes: u64,
    /// Threads seen, the first of each process included.
    pub threads: u64,
    /// From the run's start to the end of the last process: longer than the
    /// outcome's where descendants outlived the command.
    #[serde(default)]
    pub wall_ns: Option<u64>,
    /// CPU time in user mode.
    pub user_ns: Option<u64>,
    /// CPU time in the kernel.
    pub sys_ns: Option<u64>,
    /// Time spent runnable but waiting for a CPU.
    pub run_queue_ns: Option<u64>,
    /// Page faults served without I/O.
    pub minor_faults: Option<u64>,
    /// Page faults that needed I/O.
    pub major_faults: Option<u64>,
    /// Switches because a thread waited.
    pub voluntary_switches: Option<u64>,
    /// Switches because a time slice ended.
    pub involuntary_switches: Option<u64>,
    /// Largest resident set of any one process (`VmHWM`).
    pub peak_rss_bytes: Option<u64>,
    /// Calls made.
    pub calls: u64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Calls that never returned.
    pub unfinished: u64,
}

/// How the numbers were taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// `ptrace`; `fast`, where calls were counted inside the processes; `none` for
    /// `--no-trace`.
    pub engine: String,
    /// Whether tracing slowed what the times describe.
    pub times_perturbed: bool,
    /// Stops served.
    pub stops: u64,
    /// What two stops add to a call: by this run's quickest calls, within what
    /// calibration on this machine gave.
    pub cost_per_call_ns: Option<u64>,
    /// `cost_per_call_ns` times the calls that stopped, and what counting others inside
    /// added.
    pub estimated_added_ns: Option<u64>,
    /// Time in which calls were watched, when it was not all of it (`--max-slowdown`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched_ns: Option<u64>,
    /// Calls re-issued because only tracing made them end in EINTR.
    pub repaired: u64,
    /// Events known to be missing; 0 unless something went wrong.
    pub events_lost: u64,
    /// What counting inside the processes came to, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fast: Option<FastMeasurement>,
    /// What was counted, where it was not everything: the words of `-e trace=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Which outcomes were counted, where not all: `failed`, `successful`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// `off`; `installed`: calls not asked for ran at full speed;
    /// `refused`: they stopped too, for the reason in `filter_reason`.
    pub filter: String,
    /// Why a filter was refused, or not used for some processes.
    pub filter_reason: Option<String>,
    /// What a reader should know: refused privileges, unknown events, ...
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What counting inside the processes came to (`--engine fast`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FastMeasurement {
    /// Why it was not done at all; all else is 0 then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Address spaces that counted, those of forks too.
    pub address_spaces: u64,
    /// Call sites that were patched: their calls did not stop.
    pub sites_patched: u64,
    /// Call sites that were left as they are: each of their calls stopped once.
    pub sites_redirected: u64,
    /// Calls counted inside.
    pub calls_counted: u64,
    /// Of these, how many stopped once.
    pub calls_led: u64,
    /// The others: no part of them stopped.
    pub calls_without_stop: u64,
    /// What counting a call inside adds to it; null where it was not measured.
    pub cost_per_call_ns: Option<u64>,
    /// Why processes, threads or calls went the slow way, and how often.
    pub reasons: IndexMap<String, u64>,
}

/// The tally of one syscall of one ABI.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SyscallRow {
    /// Name in the ABI's own table, `syscall_0x1d9` where it has none; with
    /// `--split`, the operation follows in parentheses: `futex(WAIT)`.
    pub name: String,
    /// `x86_64`, `i386`, `x32`, `aarch64`, `arm`.
    pub abi: String,
    /// Number in that ABI's table (the x32 bit removed); -1 is kept.
    pub number: i64,
    /// Calls entered.
    pub calls: u64,
    /// Errors by errno name.
    pub errors: IndexMap<String, u64>,
    /// Times the kernel re-issued an interrupted call.
    pub restarts: u64,
    /// Calls that never returned (killed, cut off by exec or exit_group).
    pub unfinished: u64,
    /// Time spent in those until they were cut off; not part of `wall_ns`.
    #[serde(default)]
    pub unfinished_ns: u64,
    /// Interrupted calls whose handler jumped away.
    pub abandoned: u64,
    /// Wall time inside; null when no call of it returned.
    pub wall_ns: Option<Wall>,
    /// Pairs of (lower bound in ns, calls), ascending; see `Histogram`.
    pub histogram: Vec<(u64, u64)>,
}

impl SyscallRow {
    /// Calls that returned an error.
    pub fn error_count(&self) -> u64 {
        // A record that was written by hand may hold anything.
        self.errors.values().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

impl ProcessSyscall {
    /// Calls that returned an error.
    pub fn error_count(&self) -> u64 {
        self.errors.values().fold(0, |sum, n| sum.saturating_add(*n))
    }
}

/// Wall time inside a syscall. Sums over threads exceed real time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wall {
    /// Calls that were timed.
    pub count: u64,
    /// Sum.
    pub total: u64,
    /// Shortest.
    pub min: u64,
    /// Longest.
    pub max: u64,
    /// Median, from the histogram.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
}

/// Rows of one process, thread or executable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// What the group is called: the executable, and the thread's name.
    pub name: String,
    /// Process, for `--by process` and `--by thread`.
    pub pid: Option<i32>,
    /// Thread, for `--by thread`.
    pub tid: Option<i32>,
    /// Its rows, most wall time first.
    pub syscalls: Vec<SyscallRow>,
}

/// One process of the tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// Our own id, from 0: pids repeat.
    pub id: u64,
    /// Process id, as the tracer sees it.
    pub pid: i32,
    /// `id` of the process that created it; null for the root.
    pub parent: Option<u64>,
    /// Start, since the run's start.
    pub start_ns: u64,
    /// End, since the run's start; null when it was not seen.
    pub end_ns: Option<u64>,
    /// It is not in `rusage`: nobody waited for it, or for whoever did. Absent: not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unwaited: bool,
    /// What it ran when it was created: the file of its parent at that time.
    /// Null for the root.
    #[serde(default)]
    pub image: Option<String>,
    /// Exec chain, in order; empty for a fork that never execs.
    pub execs: Vec<Exec>,
    /// Exit status, when it exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that killed it.
    pub signal: Option<String>,
    /// Its own CPU time in user mode, without its children's.
    pub user_ns: Option<u64>,
    /// Its own CPU time in the kernel.
    pub sys_ns: Option<u64>,
    /// Time its threads spent runnable but waiting for a CPU.
    pub run_queue_ns: Option<u64>,
    /// Its own page faults served without I/O.
    pub minor_faults: Option<u64>,
    /// Its own page faults that needed I/O.
    pub major_faults: Option<u64>,
    /// Its threads' voluntary switches.
    pub voluntary_switches: Option<u64>,
    /// Its threads' involuntary switches.
    pub involuntary_switches: Option<u64>,
    /// Largest resident set of any of its images, without the copy of its parent's
    /// that a fork makes and an exec replaces; null for a vfork child that never
    /// execs (the memory is its parent's).
    pub peak_rss_bytes: Option<u64>,
    /// Its memory when an exec replaced an image, and at its end; of an exec that
    /// failed too. And at each snapshot of it that `--snapshot-at` asked for.
    #[serde(default)]
    pub memory: Vec<MemorySample>,
    /// Its threads, the first included.
    pub threads: Vec<Thread>,
    /// Its calls.
    pub syscalls: Vec<ProcessSyscall>,
}

/// Resident memory of a process at one moment, bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemorySample {
    /// When, since the run's start.
    pub at_ns: u64,
    /// `exec`: the image that was replaced; `exit`; of a snapshot, `snapshot:` and
    /// its event: `snapshot:exec` is the new image.
    pub event: String,
    /// Anonymous memory (RssAnon).
    pub anon_bytes: Option<u64>,
    /// Pages of files (RssFile).
    pub file_bytes: Option<u64>,
    /// Shared memory (RssShmem).
    pub shmem_bytes: Option<u64>,
}

/// One image of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Exec {
    /// When, since the run's start.
    pub at_ns: u64,
    /// The file, from /proc/PID/exe.
    pub exe: Option<String>,
    /// Its arguments (invalid UTF-8 replaced), from /proc/PID/cmdline.
    pub argv: Vec<String>,
}

/// One thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Thread {
    /// Thread id, as the tracer sees it.
    pub tid: i32,
    /// Name at its end.
    pub name: Option<String>,
    /// Start, since the run's start.
    pub start_ns: u64,
    /// End, since the run's start; null when it was not seen.
    pub end_ns: Option<u64>,
    /// Calls entered.
    pub calls: u64,
    /// Calls that returned an error.
    pub errors: u64,
    /// Where its time went; null when its end was not seen.
    #[serde(default)]
    pub time: Option<TimeShare>,
}

/// The tally of one syscall in one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessSyscall {
    /// As in [`SyscallRow`].
    pub name: String,
    /// As in [`SyscallRow`].
    pub abi: String,
    /// Calls entered.
    pub calls: u64,
    /// Errors by errno name.
    pub errors: IndexMap<String, u64>,
    /// Times the kernel re-issued an interrupted call.
    pub restarts: u64,
    /// Calls that never returned.
    pub unfinished: u64,
    /// Sum of wall time inside.
    pub wall_ns: u64,
}
