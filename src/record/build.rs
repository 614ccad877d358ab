//! From what the collectors saw to the record.

use std::collections::HashMap;
use std::path::Path;

use indexmap::IndexMap;

use crate::observe::{
    Counts, Key, OpenRegions, ProcessEntry, Processes, Tally, ThreadEntry, ThreadTime, Waits,
    arguments,
};
use crate::syscall::errno::{errno_label, signal_name};
use crate::tracer::{Cost, Ending, FastState, FilterState, Nanos, ProcessId, Ran, Traced, Usage};

use super::time::TimeShare;
use super::types::{
    Exec, FastMeasurement, Group, Measurement, MemorySample, Outcome, Process, ProcessSyscall,
    Record, Run, Rusage, SCHEMA, SyscallRow, Thread, Tool, Tree, Wall,
};

/// A finished run, seen by the tracer and its collectors.
pub struct Observed<'a> {
    /// What the tracer says.
    pub traced: &'a Traced,
    /// The tallies.
    pub counts: &'a Counts,
    /// The tree.
    pub processes: &'a Processes,
    /// Where threads' time went, where that was asked.
    pub waits: Option<&'a Waits>,
    /// What tracing adds to a call here.
    pub cost: Option<Cost>,
}

impl Record {
    /// The record of a traced run. Groups and processes are the caller's to add.
    pub fn of_traced(run: Run, seen: &Observed) -> Self {
        let traced = seen.traced;
        let rows = syscall_rows(seen.counts.tallies(), seen.counts);
        let (filter, filter_reason) = match &traced.filter {
            FilterState::Off => ("off", None),
            FilterState::Installed => ("installed", None),
            FilterState::Refused(why) => ("refused", Some(why.clone())),
        };
        // One thread cannot lose more time than has passed.
        let longest = match seen.processes.thread_count() {
            1 => traced.ended.saturating_sub(traced.started),
            _ => u64::MAX,
        };
        let cost = seen.cost.map(|cost| cost.in_run(seen.counts.quickest()));
        let inside = match &traced.fast {
            FastState::Used(summary) => summary.cost.unwrap_or(0).saturating_mul(summary.counted),
            _ => 0,
        };
        let added =
            cost.map(|c| c.saturating_mul(traced.stops / 2).saturating_add(inside).min(longest));
        let measurement = Measurement {
            engine: engine(traced).into(),
            times_perturbed: true,
            stops: traced.stops,
            cost_per_call_ns: cost,
            estimated_added_ns: added,
            trace: None,
            status: None,
            watched_ns: traced
                .watched
                .filter(|&w| w < traced.ended.saturating_sub(traced.started) * 99 / 100),
            repaired: seen.counts.tallies().map(|(_, t)| t.repaired).sum(),
            fast: FastMeasurement::of(traced),
            events_lost: traced.lost,
            filter: filter.into(),
            filter_reason,
            notes: traced.notes.iter().cloned().chain(refused_ptrace(&rows)).collect(),
        };
        Self {
            schema: SCHEMA.into(),
            tool: Tool::this(),
            run,
            environment: None,
            platform: None,
            outcome: Outcome {
                timed_out: traced.timed_out,
                ..outcome(traced.ending, traced.started, traced.ended)
            },
            rusage: traced.usage.as_ref().map(rusage),
            tree: Some(tree(seen, &rows)),
            measurement,
            syscalls: Some(rows),
            groups: None,
            time: seen.waits.and_then(|waits| TimeShare::of(waits.threads.values())),
            processes: None,
            files: None,
            mapped: None,
            cpu: None,
            proc: None,
            cache: None,
            imports: None,
            regions: None,
            network: None,
            artifacts: None,
        }
    }

    /// Takes off what the command did not need: time, ns, that the tracer took
    /// while its process had to wait.
    pub fn take_off(&mut self, spent: Nanos) {
        let walls = self.tree.iter_mut().filter_map(|tree| tree.wall_ns.as_mut());
        for wall in walls.chain([&mut self.outcome.wall_ns]) {
            *wall = wall.saturating_sub(spent);
        }
    }

    /// The root ended when the run did: what came after was the tracer's.
    pub fn end_with_the_run(&mut self) {
        let wall = self.outcome.wall_ns;
        let end = |end: &mut Option<u64>| *end = end.map(|at| at.min(wall));
        if let Some(root) = self.processes.iter_mut().flatten().find(|p| p.id == 0) {
            end(&mut root.end_ns);
            root.threads.iter_mut().for_each(|thread| end(&mut thread.end_ns));
        }
    }

    /// The record of an untraced run.
    pub fn of_untraced(run: Run, ran: &Ran) -> Self {
        Self {
            schema: SCHEMA.into(),
            tool: Tool::this(),
            run,
            environment: None,
            platform: None,
            outcome: outcome(ran.ending, ran.started, ran.ended),
            rusage: ran.usage.as_ref().map(|usage| Rusage {
                rss_before_exec_bytes: Some(ran.rss_before_exec_bytes),
                first_thread_cpu_ns: ran.schedule.map(|schedule| schedule.on_cpu),
                first_thread_run_queue_ns: ran.schedule.map(|schedule| schedule.runnable),
                ..rusage(usage)
            }),
            tree: None,
            measurement: Measurement {
                engine: "none".into(),
                filter: "off".into(),
                notes: ran.notes.clone(),
                ..Measurement::default()
            },
            syscalls: None,
            groups: None,
            time: None,
            processes: None,
            files: None,
            mapped: None,
            cpu: None,
            proc: None,
            cache: None,
            imports: None,
            regions: None,
            network: None,
            artifacts: None,
        }
    }
}

/// By what calls were counted: by processes themselves, if only one of them did.
fn engine(traced: &Traced) -> &'static str {
    match &traced.fast {
        FastState::Used(summary) if summary.spaces > 0 => "fast",
        _ => "ptrace",
    }
}

impl FastMeasurement {
    fn of(traced: &Traced) -> Option<Self> {
        let summary = match &traced.fast {
            FastState::Off => return None,
            FastState::Refused(why) => {
                return Some(Self { refused: Some(why.clone()), ..Self::default() });
            }
            FastState::Used(summary) => summary,
        };
        Some(Self {
            refused: None,
            address_spaces: summary.spaces,
            sites_patched: summary.patched,
            sites_redirected: summary.redirected,
            calls_counted: summary.counted,
            calls_led: summary.led,
            calls_without_stop: summary.counted.saturating_sub(summary.led),
            cost_per_call_ns: summary.cost,
            reasons: summary.reasons.iter().cloned().collect(),
        })
    }
}

/// Why the command's own tracing failed: a process has one tracer at most.
fn refused_ptrace(rows: &[SyscallRow]) -> Option<String> {
    let refused: u64 = rows
        .iter()
        .filter(|row| row.name == "ptrace")
        .filter_map(|row| row.errors.get("EPERM"))
        .sum();
    (refused > 0).then(|| {
        format!(
            "the command tried to trace (a debugger, strace, LeakSanitizer) and was refused {}: \
             coldtrace is the one tracer that a process can have",
            if refused == 1 { "once".into() } else { format!("{refused} times") }
        )
    })
}

impl Run {
    /// A run that starts now; the label is the command's name unless given.
    pub fn now(argv: &[std::ffi::OsString], label: Option<String>) -> Self {
        let argv: Vec<String> = argv.iter().map(|a| a.to_string_lossy().into_owned()).collect();
        let name = argv.first().map_or("", |name| base_name(name));
        Self {
            id: None,
            label: label.unwrap_or_else(|| name.to_owned()),
            cwd: std::env::current_dir().ok().map(|dir| dir.to_string_lossy().into_owned()),
            start: format!("{:.3}", jiff::Timestamp::now()),
            attached: Vec::new(),
            tags: IndexMap::new(),
            stdio: None,
            aslr: None,
            output: None,
            argv,
        }
    }

    /// Of a command that is started in this directory, if not in coldtrace's own.
    #[must_use]
    pub fn in_directory(mut self, dir: Option<&Path>) -> Self {
        if let Some(dir) = dir {
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
            self.cwd = Some(dir.to_string_lossy().into_owned());
        }
        self
    }

    /// A look at running processes; the command is that of the first.
    pub fn attached(pids: &[i32], label: Option<String>) -> Self {
        let argv = pids.first().map(|&pid| arguments(pid)).unwrap_or_default();
        let argv: Vec<_> = argv.into_iter().map(Into::into).collect();
        Self { attached: pids.to_vec(), ..Self::now(&argv, label) }
    }
}

impl Tool {
    /// This coldtrace.
    pub(crate) fn this() -> Self {
        Self { name: env!("CARGO_PKG_NAME").into(), version: env!("CARGO_PKG_VERSION").into() }
    }
}

fn outcome(ending: Ending, started: Nanos, ended: Nanos) -> Outcome {
    let mut outcome = Outcome { wall_ns: ended.saturating_sub(started), ..Outcome::default() };
    (outcome.exit_code, outcome.signal, outcome.core_dumped) = ended_how(Some(ending));
    outcome
}

fn ended_how(ending: Option<Ending>) -> (Option<i32>, Option<String>, bool) {
    match ending {
        Some(Ending::Exited(code)) => (Some(code), None, false),
        Some(Ending::Killed { signal, core }) => {
            (None, Some(signal_name(signal).into_owned()), core)
        }
        Some(Ending::Detached) | None => (None, None, false),
    }
}

fn rusage(u: &Usage) -> Rusage {
    Rusage {
        user_ns: u.user_ns,
        sys_ns: u.sys_ns,
        ru_maxrss_bytes: u.maxrss_bytes,
        minor_faults: u.minor_faults.unwrap_or(0),
        major_faults: u.major_faults.unwrap_or(0),
        block_in: u.block_in,
        block_out: u.block_out,
        voluntary_switches: u.voluntary_switches,
        involuntary_switches: u.involuntary_switches,
        ..Rusage::default()
    }
}

/// Sums of what is known; `None` when any part is not.
fn sum(parts: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    parts.into_iter().sum()
}

/// Time that these threads waited for a CPU; `None` when that of any is not known.
fn run_queue<'a>(threads: impl IntoIterator<Item = Option<&'a ThreadTime>>) -> Option<u64> {
    sum(threads.into_iter().map(|time| Some(time?.used?.1.run_queue)))
}

fn tree(observed: &Observed, rows: &[SyscallRow]) -> Tree {
    let (seen, started) = (observed.processes, observed.traced.started);
    let own = seen.own();
    let each = |field: fn(&ThreadEntry) -> Option<u64>| {
        let all = seen.threads.len() as u64 == seen.thread_count();
        sum(seen.threads.values().map(field)).filter(|_| all)
    };
    Tree {
        processes: seen.process_count(),
        threads: seen.thread_count(),
        wall_ns: seen.last_end.map(|at| at.saturating_sub(started)),
        user_ns: own.map(|u| u.user_ns),
        sys_ns: own.map(|u| u.sys_ns),
        run_queue_ns: observed.waits.and_then(|w| run_queue(w.threads.values().map(Some))),
        minor_faults: own.and_then(|u| u.minor_faults),
        major_faults: own.and_then(|u| u.major_faults),
        voluntary_switches: each(|t| t.voluntary),
        involuntary_switches: each(|t| t.involuntary),
        peak_rss_bytes: seen.processes.values().filter_map(|p| p.peak_rss).max(),
        calls: rows.iter().map(|r| r.calls).sum(),
        errors: rows.iter().map(SyscallRow::error_count).sum(),
        unfinished: rows.iter().map(|r| r.unfinished).sum(),
    }
}

/// Rows by syscall (and operation), whatever else the keys tell apart; most
/// wall time first, then most calls, then by name: the order is always the same.
pub fn syscall_rows<'a>(
    tallies: impl Iterator<Item = (&'a Key, &'a Tally)>,
    counts: &Counts,
) -> Vec<SyscallRow> {
    let mut merged: HashMap<Key, Tally> = HashMap::new();
    for (key, tally) in tallies {
        let regions = OpenRegions::NONE;
        let key = Key { process: None, thread: None, image: None, regions, ..*key };
        merged.entry(key).or_default().merge(tally);
    }
    let mut rows: Vec<_> = merged.iter().map(|(key, tally)| row(key, tally, counts)).collect();
    rows.sort_by(|a, b| {
        let time = |r: &SyscallRow| r.wall_ns.map_or(0, |w| w.total);
        (time(b), b.calls).cmp(&(time(a), a.calls)).then_with(|| a.name.cmp(&b.name))
    });
    rows
}

fn row(key: &Key, tally: &Tally, counts: &Counts) -> SyscallRow {
    let mut name = key.sys.label().into_owned();
    if let Some(operation) = counts.operation(key) {
        name = format!("{name}({operation})");
    }
    let percentile = |p| {
        // The histogram knows buckets; the ends are known exactly.
        tally.histogram.percentile(p).unwrap_or(0).clamp(tally.min, tally.max)
    };
    SyscallRow {
        name,
        abi: key.sys.abi.name().into(),
        number: key.sys.number,
        calls: tally.calls,
        errors: errors(tally),
        restarts: tally.restarts,
        unfinished: tally.unfinished,
        unfinished_ns: tally.unfinished_ns,
        abandoned: tally.abandoned,
        wall_ns: (tally.timed > 0).then(|| Wall {
            count: tally.timed,
            total: tally.total,
            min: tally.min,
            max: tally.max,
            p50: percentile(50),
            p90: percentile(90),
            p99: percentile(99),
        }),
        histogram: tally.histogram.pairs().collect(),
    }
}

/// Errors by name, most first.
fn errors(tally: &Tally) -> IndexMap<String, u64> {
    let mut errors: Vec<(String, u64)> =
        tally.errors.iter().map(|&(e, n)| (errno_label(e).into_owned(), n)).collect();
    errors.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    errors.into_iter().collect()
}

impl Observed<'_> {
    /// One group a process, when tallies were kept so.
    pub fn by_process(&self) -> Vec<Group> {
        self.group(
            |key| key.process,
            |process| {
                let entry = self.processes.processes.get(&process);
                Group {
                    name: entry.map_or_else(|| "?".into(), |p| self.name(p)),
                    pid: entry.map(|p| p.pid),
                    ..Group::default()
                }
            },
        )
    }

    /// One group a thread, when tallies were kept so.
    pub fn by_thread(&self) -> Vec<Group> {
        self.group(
            |key| Some((key.process?, key.thread?)),
            |(process, thread)| {
                let entry = self.processes.processes.get(&process);
                let thread = self.processes.threads.get(&thread);
                let file = entry.map_or_else(|| "?".into(), |p| self.name(p));
                let name = match thread.and_then(|t| t.name.as_deref()) {
                    Some(name) if !file.starts_with(name) => format!("{file}: {name}"),
                    _ => file,
                };
                Group {
                    name,
                    pid: entry.map(|p| p.pid),
                    tid: thread.map(|t| t.tid),
                    ..Group::default()
                }
            },
        )
    }

    /// One group an executable, when tallies were kept by program. A child that
    /// was forked and has executed nothing belongs to its parent's.
    pub fn by_executable(&self) -> Vec<Group> {
        self.group(
            |key| Some(self.processes.images.get(&key.image?).map_or("?", String::as_str)),
            |file| Group { name: base_name(file).to_owned(), ..Group::default() },
        )
    }

    fn group<K: Eq + std::hash::Hash + Copy>(
        &self,
        key_of: impl Fn(&Key) -> Option<K>,
        describe: impl Fn(K) -> Group,
    ) -> Vec<Group> {
        let mut parts: IndexMap<K, Vec<(&Key, &Tally)>> = IndexMap::new();
        for (key, tally) in self.counts.tallies() {
            if let Some(part) = key_of(key) {
                parts.entry(part).or_default().push((key, tally));
            }
        }
        let mut groups: Vec<Group> = parts
            .into_iter()
            .map(|(part, tallies)| {
                let syscalls = syscall_rows(tallies.into_iter(), self.counts);
                Group { syscalls, ..describe(part) }
            })
            .collect();
        let time = |g: &Group| -> u64 {
            g.syscalls.iter().filter_map(|r| r.wall_ns).map(|w| w.total).sum()
        };
        groups.sort_by(|a, b| {
            time(b)
                .cmp(&time(a))
                .then_with(|| (&a.name, a.pid, a.tid).cmp(&(&b.name, b.pid, b.tid)))
        });
        groups
    }

    /// The file that a process ran last.
    fn file<'p>(&'p self, entry: &'p ProcessEntry) -> Option<&'p str> {
        match entry.execs.last() {
            Some((_, file, argv)) => file.as_deref().or(argv.first().map(String::as_str)),
            None => self.processes.images.get(&entry.image).map(String::as_str),
        }
    }

    fn name(&self, entry: &ProcessEntry) -> String {
        base_name(self.file(entry).unwrap_or("?")).to_owned()
    }

    /// The processes of the record, with their own calls.
    pub fn process_list(&self) -> Vec<Process> {
        let mut calls: HashMap<ProcessId, Vec<(&Key, &Tally)>> = HashMap::new();
        for (key, tally) in self.counts.tallies() {
            if let Some(process) = key.process {
                calls.entry(process).or_default().push((key, tally));
            }
        }
        let since = |at: Nanos| at.saturating_sub(self.traced.started);
        self.processes
            .processes
            .iter()
            .map(|(id, p)| {
                let (exit_code, signal, _) = ended_how(p.ending);
                let threads: Vec<&ThreadEntry> =
                    p.threads.iter().filter_map(|t| self.processes.threads.get(t)).collect();
                let times: Vec<Option<&ThreadTime>> =
                    p.threads.iter().map(|t| self.waits?.threads.get(t)).collect();
                let each =
                    |field: fn(&ThreadEntry) -> Option<u64>| sum(threads.iter().map(|t| field(t)));
                let rows =
                    syscall_rows(calls.remove(id).unwrap_or_default().into_iter(), self.counts);
                Process {
                    id: u64::from(id.0),
                    pid: p.pid,
                    parent: p.parent.map(|p| u64::from(p.0)),
                    start_ns: since(p.start),
                    end_ns: p.end.map(since),
                    unwaited: false,
                    image: self.processes.images.get(&p.image).cloned(),
                    execs: p
                        .execs
                        .iter()
                        .map(|(at, exe, argv)| Exec {
                            at_ns: since(*at),
                            exe: exe.clone(),
                            argv: argv.clone(),
                        })
                        .collect(),
                    exit_code,
                    signal,
                    user_ns: p.own.map(|u| u.user_ns),
                    sys_ns: p.own.map(|u| u.sys_ns),
                    run_queue_ns: run_queue(times.iter().copied()),
                    minor_faults: p.own.and_then(|u| u.minor_faults),
                    major_faults: p.own.and_then(|u| u.major_faults),
                    voluntary_switches: each(|t| t.voluntary),
                    involuntary_switches: each(|t| t.involuntary),
                    peak_rss_bytes: p.peak_rss,
                    memory: p
                        .memory
                        .iter()
                        .map(|&(at, exec, [anon_bytes, file_bytes, shmem_bytes])| MemorySample {
                            at_ns: since(at),
                            event: if exec { "exec" } else { "exit" }.into(),
                            anon_bytes,
                            file_bytes,
                            shmem_bytes,
                        })
                        .collect(),
                    threads: threads
                        .iter()
                        .zip(times)
                        .map(|(t, time)| Thread {
                            tid: t.tid,
                            name: t.name.clone(),
                            start_ns: since(t.start),
                            end_ns: t.end.map(since),
                            calls: t.calls,
                            errors: t.errors,
                            time: time.and_then(|time| TimeShare::of([time])),
                        })
                        .collect(),
                    syscalls: rows.into_iter().map(process_syscall).collect(),
                }
            })
            .collect()
    }
}

pub(super) fn process_syscall(row: SyscallRow) -> ProcessSyscall {
    ProcessSyscall {
        name: row.name,
        abi: row.abi,
        calls: row.calls,
        errors: row.errors,
        restarts: row.restarts,
        unfinished: row.unfinished,
        wall_ns: row.wall_ns.map_or(0, |w| w.total),
    }
}

fn base_name(path: &str) -> &str {
    path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or(path)
}
