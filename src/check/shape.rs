//! What a run looks like to a baseline: its numbers, and the paths, programs and
//! addresses behind them, without what no two runs have in common.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Exec, FileRow, NetworkRow, Platform, Process, ProcessSyscall, Record};
use crate::syscall::changes;

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
    /// By program: the name of the file that a process ran last, or all of its path
    /// where several files have that name.
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
    /// The same by who executed it under which names.
    pub ways: Vec<Way>,
}

/// How a file was executed, other than others were that are the same to a baseline.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Way {
    /// Names of the file, and of the path that it was executed by: `sh` may be a link
    /// to `dash`.
    pub names: BTreeSet<String>,
    /// The program that started the process; none where coldtrace did.
    pub by: BTreeSet<String>,
    /// How often.
    pub times: u64,
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
    /// Opens for writing, and calls that change, make or remove it; failed ones of
    /// these too.
    pub writes: u64,
    /// All names by which a rule may mean it; empty where that is only its own.
    pub names: BTreeSet<String>,
    /// The same by path as the programs gave it, where that is another or was several.
    pub parts: Vec<Self>,
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

    /// By path as the programs gave it.
    pub fn each(&self) -> &[Self] {
        if self.parts.is_empty() { std::slice::from_ref(self) } else { &self.parts }
    }

    /// Whether one of its names does; `path` is what a baseline calls it.
    pub fn is_called(&self, path: &str, mut matches: impl FnMut(&str) -> bool) -> bool {
        if self.names.is_empty() { matches(path) } else { self.names.iter().any(|n| matches(n)) }
    }

    /// The same path, used more.
    pub fn merge(&mut self, other: &Self) {
        for (kind, n) in &other.uses {
            add(&mut self.uses, kind, *n);
        }
        for (errno, n) in &other.errors {
            add(&mut self.errors, errno, *n);
        }
        self.opens = self.opens.saturating_add(other.opens);
        self.writes = self.writes.saturating_add(other.writes);
        self.library |= other.library;
        self.by.extend(other.by.iter().cloned());
        self.regions.extend(other.regions.iter().cloned());
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

    /// What a row says.
    fn of(row: &FileRow, by: BTreeSet<String>) -> Self {
        let mut uses = BTreeMap::new();
        let kinds = row.other.iter().map(|(kind, n)| (kind.as_str(), *n));
        let more = [("open", row.opens()), ("stat", row.stats), ("missed", row.misses)];
        for (kind, n) in kinds.chain(more).filter(|(_, n)| *n > 0) {
            add(&mut uses, kind, n);
        }
        let changing = row.other.iter().filter(|(kind, _)| changes(kind));
        let writes = changing.fold(row.opens_write, |sum, (_, n)| sum.saturating_add(*n));
        Self {
            uses,
            opens: row.opens(),
            errors: row.errors.iter().map(|(errno, n)| (errno.clone(), *n)).collect(),
            by,
            regions: row.regions.iter().cloned().collect(),
            library: row.mapped_bytes > 0,
            // By sendfile and its kin through a descriptor that somebody else opened.
            writes: writes.max(u64::from(row.written_bytes > 0)),
            names: BTreeSet::new(),
            parts: Vec::new(),
        }
    }
}

fn add(counts: &mut BTreeMap<String, u64>, name: &str, n: u64) {
    let sum = counts.entry(name.to_owned()).or_default();
    *sum = sum.saturating_add(n);
}

/// Calls to one address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetUse {
    /// The call: `connect`.
    pub call: String,
    /// `inet`, `unix`, ...; null where it is not known.
    pub family: Option<String>,
    /// The same as the counts have it: `connect@i386`, also where it was made by
    /// socketcall(2), which is what is counted then. Empty: as `call`.
    pub counted: String,
    /// The address alone.
    pub address: Option<String>,
    /// What an exception may be written as: the address alone and as it is shown.
    pub names: BTreeSet<String>,
    /// Calls.
    pub calls: u64,
    /// Programs that made them.
    pub by: BTreeSet<String>,
    /// Regions in which they were made.
    pub regions: BTreeSet<String>,
    /// The same by row of the record, whose addresses may be the same to a baseline.
    pub parts: Vec<Self>,
}

impl NetUse {
    /// By address as the programs gave it.
    pub fn each(&self) -> &[Self] {
        if self.parts.is_empty() { std::slice::from_ref(self) } else { &self.parts }
    }

    fn of(row: &NetworkRow, counted: String, names: BTreeSet<String>, by: String) -> Self {
        Self {
            call: row.name.clone(),
            counted,
            family: row.family.clone(),
            address: row.address.clone(),
            names,
            calls: row.calls,
            by: [by].into(),
            regions: row.regions.iter().cloned().collect(),
            parts: Vec::new(),
        }
    }
}

/// The name of a file without its directories.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The program of a process: the file that it ran last.
fn program(process: &Process) -> Option<&str> {
    process.execs.last().and_then(executed).or(process.image.as_deref())
}

/// The file that was executed.
fn executed(exec: &Exec) -> Option<&str> {
    exec.exe.as_deref().or(exec.argv.first().map(String::as_str))
}

impl Executed {
    /// By who executed it under which names; `file` is what a baseline calls it.
    pub fn each(&self, file: &str) -> Vec<Way> {
        if !self.ways.is_empty() {
            return self.ways.clone();
        }
        let names = BTreeSet::from([file.to_owned()]);
        vec![Way { names, by: self.by.clone(), times: self.times }]
    }

    fn add(&mut self, names: BTreeSet<String>, by: Option<String>) {
        self.times = self.times.saturating_add(1);
        self.by.extend(by.clone());
        let by = BTreeSet::from_iter(by);
        match self.ways.iter_mut().find(|way| way.names == names && way.by == by) {
            Some(way) => way.times = way.times.saturating_add(1),
            None => self.ways.push(Way { names, by, times: 1 }),
        }
    }
}

impl NetUse {
    fn add(&mut self, part: Self) {
        if self.parts.is_empty() {
            *self = Self { calls: 0, ..part.clone() };
        }
        self.calls = self.calls.saturating_add(part.calls);
        self.by.extend(part.by.iter().cloned());
        self.regions.extend(part.regions.iter().cloned());
        self.parts.push(part);
    }
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
        let counted = |name: &str, abi: &str| {
            if abi == native { name.to_owned() } else { format!("{name}@{abi}") }
        };
        let call = |row: &ProcessSyscall| counted(&row.name, &row.abi);
        let programs = programs(processes, &normaliser);
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
            threads: processes.iter().fold(0, |n, p| n.saturating_add(p.threads.len() as u64)),
            ..Self::default()
        };
        let rows = record.files.iter().flat_map(|files| &files.paths);
        let execs: Vec<&FileRow> =
            rows.filter(|row| row.other.contains_key("exec") && row.is_path()).collect();
        for process in processes {
            let of = name(process.id);
            if let Some(file) = program(process) {
                shape.files.entry(of.clone()).or_insert_with(|| normaliser.path(file));
            }
            for row in &process.syscalls {
                shape.calls.entry(call(row)).or_default().add(row);
                shape
                    .programs
                    .entry(of.clone())
                    .or_default()
                    .entry(call(row))
                    .or_default()
                    .add(row);
            }
            if process.execs.is_empty() && process.parent.is_some() {
                *shape.forks.entry(of).or_default() += 1;
            }
            let started = process.parent.map(&name);
            for exec in &process.execs {
                let names = executed_as(&execs, process, exec);
                let names = names.iter().flat_map(|name| normaliser.names(name)).collect();
                let file = normaliser.path(executed(exec).unwrap_or("?"));
                shape.executed.entry(file).or_default().add(names, started.clone());
            }
        }
        for region in record.regions.iter().flatten().filter(|region| region.times > 0) {
            let parts = shape.regions.entry(region.name.clone()).or_default();
            for process in &region.processes {
                let counts = parts.entry(name(process.id)).or_default();
                process
                    .syscalls
                    .iter()
                    .for_each(|row| counts.entry(call(row)).or_default().add(row));
            }
        }
        for row in record.network.iter().flatten() {
            let (key, names) = endpoint(row, &normaliser);
            let of = NetUse::of(row, counted(&row.name, &row.abi), names, name(row.process));
            shape.network.entry(key).or_default().add(of);
        }
        for row in record.files.iter().flat_map(|files| &files.paths) {
            if !row.is_path() {
                continue;
            }
            let of = PathUse::of(row, row.processes.iter().map(|id| name(*id)).collect());
            let path = shape.paths.entry(normaliser.path(&row.path)).or_default();
            path.merge(&of);
            let names = normaliser.names(&row.path);
            // A name in braces may be a file's own, and others' too.
            if names.len() > 1 || row.path.contains('{') {
                path.parts.push(PathUse { names, ..of });
            }
        }
        shape
    }
}

/// The name of each process's program: its file's, or all of its path where several
/// files have that name.
fn programs(processes: &[Process], normaliser: &Normaliser) -> BTreeMap<u64, String> {
    let file = |p: &Process| normaliser.path(program(p).unwrap_or("?"));
    let files: BTreeSet<String> = processes.iter().map(file).collect();
    let several = |name: &str| files.iter().filter(|file| base_name(file) == name).count() > 1;
    let several: BTreeSet<String> =
        files.iter().map(|file| base_name(file).to_owned()).filter(|name| several(name)).collect();
    let name = |p: &Process| {
        let file = file(p);
        let base = base_name(&file);
        if several.contains(base) { file } else { base.to_owned() }
    };
    processes.iter().map(|p| (p.id, name(p))).collect()
}

/// The paths by which a file was executed: its own, and what led there. Of a script
/// this is the script, and what its first line names.
fn executed_as(rows: &[&FileRow], process: &Process, exec: &Exec) -> Vec<String> {
    let Some(file) = executed(exec) else { return vec!["?".into()] };
    let mut names = vec![file.to_owned()];
    let rows: Vec<&FileRow> =
        rows.iter().filter(|row| row.processes.contains(&process.id)).copied().collect();
    // Executed by its own name, it has no other.
    if rows.iter().any(|row| row.path == file) {
        return names;
    }
    // The program that an exec has led to is mapped under the name that led there.
    let others = |row: &&&FileRow| !process.execs.iter().any(|e| executed(e) == Some(&row.path));
    let mapped: Vec<&&FileRow> =
        rows.iter().filter(|row| row.mapped_bytes > 0).filter(others).collect();
    let first = exec.argv.first().map_or("", String::as_str);
    match mapped[..] {
        [row] => names.push(row.path.clone()),
        [] if process.execs.len() == 1 => {
            let given = |row: &&&FileRow| {
                let mut arguments = exec.argv.iter().skip(1);
                arguments.any(|argument| base_name(argument) == base_name(&row.path))
            };
            // One that was looked for along PATH and is elsewhere was not executed.
            let executed = |row: &&&FileRow| row.other.get("exec") > Some(&row.failed());
            if let Some(script) = rows.iter().filter(executed).find(given) {
                names.extend([script.path.clone(), first.to_owned()]);
            }
        }
        // Which of them it was, the program was told.
        _ => {
            let told = |row: &&&&FileRow| base_name(&row.path) == base_name(first);
            names.extend(mapped.iter().find(told).map(|row| row.path.clone()));
        }
    }
    names
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

/// `connect 127.0.0.1:8125/udp`, `connect {tmp}/socket unix/stream`, `socket inet/dgram`;
/// and what an exception may call it: that, without the call, and the address alone.
fn endpoint(row: &NetworkRow, normaliser: &Normaliser) -> (String, BTreeSet<String>) {
    let internet = matches!(row.family.as_deref(), Some("inet" | "inet6"));
    let kind = [row.family.as_deref(), row.socket_type.as_deref()];
    let kind = kind.into_iter().flatten().collect::<Vec<_>>().join("/");
    let mut names = BTreeSet::new();
    let shown = match (&row.address, &row.protocol) {
        (Some(address), protocol) if internet => {
            names.insert(address.clone());
            protocol.as_ref().map_or_else(|| address.clone(), |p| format!("{address}/{p}"))
        }
        (Some(address), _) => {
            names.extend(normaliser.names(address));
            let as_shown = |name: &String| format!("{name} {kind}");
            names.extend(names.iter().map(as_shown).collect::<Vec<_>>());
            format!("{} {kind}", normaliser.path(address))
        }
        (None, _) => kind,
    };
    names.insert(shown.clone());
    let key = format!("{} {shown}", row.name);
    names.insert(key.clone());
    (key, names)
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
