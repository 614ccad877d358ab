//! What a run looks like to a baseline: its numbers, and the paths, programs and
//! addresses behind them, without what no two runs have in common.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{FileRow, NetworkRow, Platform, Process, ProcessSyscall, Record};

use super::normalise::Normaliser;

/// How often a call was made, and how it failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls.
    pub calls: u64,
    /// Errors by errno name.
    pub errors: BTreeMap<String, u64>,
}

/// By call; those of another table than the platform's are called `open@i386`.
pub type Counts = BTreeMap<String, Count>;

/// What one run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shape {
    /// `x86_64 linux glibc`.
    pub platform: Option<String>,
    /// Version of the C library.
    pub libc: Option<String>,
    /// Version of the kernel: `6.18`.
    pub kernel: Option<String>,
    /// All calls.
    pub calls: Counts,
    /// By program: the name of the file that a process ran last.
    pub programs: BTreeMap<String, Counts>,
    /// By region, and in it by program.
    pub regions: BTreeMap<String, BTreeMap<String, Counts>>,
    /// Files of programs by their names.
    pub files: BTreeMap<String, String>,
    /// Processes.
    pub processes: u64,
    /// Threads.
    pub threads: u64,
    /// Processes that executed nothing, by the program that they are of.
    pub forks: BTreeMap<String, u64>,
    /// Executed files.
    pub executed: BTreeMap<String, Executed>,
    /// By path.
    pub paths: BTreeMap<String, PathUse>,
    /// By call and address, and sockets by family and type.
    pub network: BTreeMap<String, NetUse>,
}

/// How a file was executed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Executed {
    /// How often.
    pub times: u64,
    /// Programs that started the processes.
    pub by: BTreeSet<String>,
}

/// How a path was used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathUse {
    /// Times by kind of call, failed ones too (`open`, `stat`, `read`, ...), and
    /// `missed`.
    pub uses: BTreeMap<String, u64>,
    /// Successful opens.
    pub opens: u64,
    /// Failures, other than misses, by errno name.
    pub errors: BTreeMap<String, u64>,
    /// Programs that used it.
    pub by: BTreeSet<String>,
    /// Regions in which it was used.
    pub regions: BTreeSet<String>,
    /// It was mapped executable.
    pub library: bool,
    /// It was opened for writing, or changed, made or removed.
    pub written: bool,
}

impl PathUse {
    /// Calls that found nothing there.
    pub fn missed(&self) -> u64 {
        self.uses.get("missed").copied().unwrap_or(0)
    }

    /// Calls of all kinds.
    pub fn calls(&self) -> u64 {
        let calls = self.uses.iter().filter(|(kind, _)| *kind != "missed");
        calls.fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// Whether nobody found it.
    pub fn is_only_missed(&self) -> bool {
        self.missed() > 0 && self.missed() >= self.calls()
    }

    /// What was done, in words: `1 open, 2 stat, ENOENT`.
    pub fn words(&self) -> String {
        let kinds = self.uses.iter().filter(|(kind, _)| *kind != "missed");
        let mut words: Vec<String> = kinds.map(|(kind, n)| format!("{n} {kind}")).collect();
        match self.missed() {
            0 => {}
            missed if missed >= self.calls() => words.push("ENOENT".into()),
            missed => words.push(format!("{missed} ENOENT")),
        }
        words.extend(self.errors.iter().map(|(errno, n)| format!("{n} {errno}")));
        words.join(", ")
    }

    fn add(&mut self, row: &FileRow) {
        let mut add = |kind: &str, n: u64| {
            if n > 0 {
                let times = self.uses.entry(kind.to_owned()).or_default();
                *times = times.saturating_add(n);
            }
        };
        add("open", row.opens());
        add("stat", row.stats);
        row.other.iter().for_each(|(kind, n)| add(kind, *n));
        add("missed", row.misses);
        self.opens = self.opens.saturating_add(row.opens());
        for (errno, n) in &row.errors {
            let times = self.errors.entry(errno.clone()).or_default();
            *times = times.saturating_add(*n);
        }
        self.library |= row.mapped_bytes > 0;
        let changing = [
            "unlink", "rename", "link", "symlink", "mkdir", "mknod", "chmod", "chown", "utime",
            "truncate", "write",
        ];
        let changed = row.other.keys().any(|kind| changing.contains(&kind.as_str()));
        self.written |= row.opens_write > 0 || changed;
        self.regions.extend(row.regions.iter().cloned());
    }
}

/// Calls to one address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetUse {
    /// The call: `connect`.
    pub call: String,
    /// `inet`, `unix`, ...; null where it is not known.
    pub family: Option<String>,
    /// The address alone, for patterns.
    pub address: Option<String>,
    /// Calls.
    pub calls: u64,
    /// Programs that made them.
    pub by: BTreeSet<String>,
    /// Regions in which they were made.
    pub regions: BTreeSet<String>,
}

/// The name of a file without its directories.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The program of a process: the file that it ran last.
fn program(process: &Process) -> Option<&str> {
    let exec = process.execs.last();
    let file = exec.and_then(|exec| exec.exe.as_deref().or(exec.argv.first().map(String::as_str)));
    file.or(process.image.as_deref())
}

impl Count {
    fn add(&mut self, row: &ProcessSyscall) {
        self.calls = self.calls.saturating_add(row.calls);
        for (errno, n) in &row.errors {
            let times = self.errors.entry(errno.clone()).or_default();
            *times = times.saturating_add(*n);
        }
    }
}

impl Shape {
    /// That of a record which has processes.
    pub fn of(record: &Record, normaliser: Normaliser) -> Self {
        let processes = record.processes.as_deref().unwrap_or_default();
        let tasks = processes.iter().flat_map(|p| p.threads.iter().map(|t| t.tid).chain([p.pid]));
        let normaliser = normaliser.with_tasks(tasks);
        let native = record.platform.as_ref().and_then(|platform| platform.arch.clone());
        let native = native.unwrap_or_else(|| crate::syscall::Abi::native().name().to_owned());
        let named = |row: &ProcessSyscall| {
            if row.abi == native { row.name.clone() } else { format!("{}@{}", row.name, row.abi) }
        };
        let programs: BTreeMap<u64, String> = processes
            .iter()
            .map(|p| (p.id, base_name(&normaliser.path(program(p).unwrap_or("?"))).to_owned()))
            .collect();
        let name = |id: u64| programs.get(&id).cloned().unwrap_or_else(|| "?".into());
        let mut shape = Self {
            platform: record.platform.as_ref().and_then(platform),
            libc: record.platform.as_ref().and_then(|p| p.libc_version.clone()),
            kernel: record
                .environment
                .as_ref()
                .and_then(|e| e.kernel_release.as_deref())
                .map(kernel),
            processes: processes.len() as u64,
            threads: processes.iter().map(|p| p.threads.len() as u64).sum(),
            ..Self::default()
        };
        for process in processes {
            let of = name(process.id);
            if let Some(file) = program(process) {
                shape.files.entry(of.clone()).or_insert_with(|| normaliser.path(file));
            }
            for row in &process.syscalls {
                shape.calls.entry(named(row)).or_default().add(row);
                shape
                    .programs
                    .entry(of.clone())
                    .or_default()
                    .entry(named(row))
                    .or_default()
                    .add(row);
            }
            if process.execs.is_empty() && process.parent.is_some() {
                *shape.forks.entry(of).or_default() += 1;
            }
            let started = process.parent.map(&name);
            for exec in &process.execs {
                let file = exec.exe.as_deref().or(exec.argv.first().map(String::as_str));
                let entry = shape.executed.entry(normaliser.path(file.unwrap_or("?"))).or_default();
                entry.times += 1;
                entry.by.extend(started.clone());
            }
        }
        for region in record.regions.iter().flatten().filter(|region| region.times > 0) {
            let parts = shape.regions.entry(region.name.clone()).or_default();
            for process in &region.processes {
                let counts = parts.entry(name(process.id)).or_default();
                process
                    .syscalls
                    .iter()
                    .for_each(|row| counts.entry(named(row)).or_default().add(row));
            }
        }
        for row in record.network.iter().flatten() {
            let used = shape.network.entry(endpoint(row, &normaliser)).or_default();
            used.call.clone_from(&row.name);
            used.family.clone_from(&row.family);
            used.address.clone_from(&row.address);
            used.calls = used.calls.saturating_add(row.calls);
            used.by.insert(name(row.process));
            used.regions.extend(row.regions.iter().cloned());
        }
        for row in record.files.iter().flat_map(|files| &files.paths) {
            if !row.is_path() {
                continue;
            }
            let path = shape.paths.entry(normaliser.path(&row.path)).or_default();
            path.add(row);
            path.by.extend(row.processes.iter().map(|id| name(*id)));
        }
        shape
    }
}

/// `6.18.5-generic` without what says which build it is.
fn kernel(release: &str) -> String {
    release
        .split(['-', '+'])
        .next()
        .unwrap_or(release)
        .split('.')
        .take(2)
        .collect::<Vec<_>>()
        .join(".")
}

/// `connect 127.0.0.1:8125/udp`, `connect {tmp}/socket unix/stream`, `socket inet/dgram`.
fn endpoint(row: &NetworkRow, normaliser: &Normaliser) -> String {
    let internet = matches!(row.family.as_deref(), Some("inet" | "inet6"));
    let kind = [row.family.as_deref(), row.socket_type.as_deref()];
    let kind = kind.into_iter().flatten().collect::<Vec<_>>().join("/");
    let call = &row.name;
    match (&row.address, &row.protocol) {
        (Some(address), Some(protocol)) if internet => format!("{call} {address}/{protocol}"),
        (Some(address), _) if internet => format!("{call} {address}"),
        (Some(address), _) => format!("{call} {} {kind}", normaliser.path(address)),
        (None, _) => format!("{call} {kind}"),
    }
}

/// `x86_64 linux glibc`; `None` where a part of it is not known.
fn platform(platform: &Platform) -> Option<String> {
    Some(format!("{} {} {}", platform.arch.as_ref()?, platform.os, platform.libc.as_ref()?))
}

/// The sum of counts.
pub fn sum<'a>(parts: impl IntoIterator<Item = &'a Counts>) -> Counts {
    let mut all = Counts::new();
    for (name, count) in parts.into_iter().flatten() {
        let sum = all.entry(name.clone()).or_default();
        sum.calls = sum.calls.saturating_add(count.calls);
        for (errno, n) in &count.errors {
            let times = sum.errors.entry(errno.clone()).or_default();
            *times = times.saturating_add(*n);
        }
    }
    all
}

impl Shape {
    /// All calls of a region.
    pub fn region(&self, name: &str) -> Counts {
        sum(self.regions.get(name).into_iter().flat_map(BTreeMap::values))
    }

    /// Calls of all kinds.
    pub fn call_count(&self) -> u64 {
        self.calls.values().fold(0, |sum, count| sum.saturating_add(count.calls))
    }

    /// Calls that failed.
    pub fn error_count(&self) -> u64 {
        let errors = self.calls.values().flat_map(|count| count.errors.values());
        errors.fold(0, |sum, n| sum.saturating_add(*n))
    }
}
