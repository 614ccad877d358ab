//! The `proc` part: what /proc said of a process at its end, and at other moments,
//! parsed.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::{DETACH, EXIT, Snapshot};
use crate::tracer::Nanos;

/// One process at one moment. What could not be read is null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcSnapshot {
    /// Whose: an id of `processes`.
    pub process: u64,
    /// What it was taken at: `exit`, the end of its last thread; `detach`, when it
    /// was let go and went on; or, as
    /// `--snapshot-at` names it, `exec`: right after one; `call:NAME`: as it entered
    /// that call for the first time; `open:GLOB`: right after the first open of a
    /// path that matches.
    pub event: String,
    /// When, since the run's start.
    pub at_ns: u64,
    /// The directory, in that of the run, where its files are as they were read.
    /// Absent for those at ends: the root's lie beside the record, others are not
    /// kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Its memory.
    pub memory: Option<Memory>,
    /// Resident memory by object (a file, `[heap]`, `[stack]`, `[anonymous]`),
    /// most first; only of the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<Vec<ObjectMemory>>,
    /// What it moved, by /proc/PID/io (`rchar`, `wchar`: through calls;
    /// `read_bytes`, `write_bytes`: from and to disks).
    pub io: Option<IndexMap<String, u64>>,
    /// Open descriptors and what they led to; only of the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub descriptors: Option<Vec<Descriptor>>,
    /// Resource limits by the names of /proc/PID/limits; only of the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<IndexMap<String, Limit>>,
    /// Its control groups, a line each (cgroups(7)).
    pub cgroups: Option<Vec<String>>,
}

/// Memory of a process, bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// Resident, anonymous (RssAnon).
    pub anon_bytes: Option<u64>,
    /// Resident, of files (RssFile).
    pub file_bytes: Option<u64>,
    /// Resident, shared memory (RssShmem).
    pub shmem_bytes: Option<u64>,
    /// In swap (VmSwap).
    pub swap_bytes: Option<u64>,
    /// Address space (VmSize).
    pub size_bytes: Option<u64>,
    /// Each page divided by those who have it (Pss).
    pub pss_bytes: Option<u64>,
    /// Largest resident set of this image (VmHWM).
    pub peak_rss_bytes: Option<u64>,
    /// Threads (1 at its end).
    pub threads: Option<u64>,
}

/// Resident memory of one object, bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ObjectMemory {
    /// A file's path, or the kernel's name in brackets; invalid UTF-8 replaced.
    pub object: String,
    /// Mapped: resident or not.
    pub size_bytes: u64,
    /// Resident and written to, or never a file's.
    pub anon_bytes: u64,
    /// Resident as the file has it.
    pub file_bytes: u64,
}

/// An open descriptor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Descriptor {
    /// Its number.
    pub fd: i32,
    /// What /proc/PID/fd says; invalid UTF-8 replaced.
    pub target: String,
}

/// A resource limit, in its own unit; null for none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Limit {
    /// The one that holds.
    pub soft: Option<u64>,
    /// How far that can be raised.
    pub hard: Option<u64>,
}

impl ProcSnapshot {
    /// Whether it is of a process's end, or of when it was let go.
    pub fn is_of_end(&self) -> bool {
        self.event == EXIT || self.event == DETACH
    }

    /// From what was read.
    pub fn of(snapshot: &Snapshot, start: Nanos) -> Self {
        let text = |name: &str| snapshot.file(name).map(String::from_utf8_lossy);
        Self {
            process: snapshot.process.0.into(),
            event: snapshot.event.clone(),
            directory: None,
            at_ns: snapshot.at.saturating_sub(start),
            memory: text("status").map(|status| {
                let rollup = text("smaps_rollup").unwrap_or_default();
                Memory::of(&status, &rollup)
            }),
            objects: text("smaps").map(|smaps| objects(&smaps)),
            io: text("io").map(|io| numbers(&io)),
            descriptors: text("fd").map(|fd| descriptors(&fd)),
            limits: text("limits").map(|limits| parse_limits(&limits)),
            cgroups: text("cgroup").map(|cgroup| cgroup.lines().map(str::to_owned).collect()),
        }
    }
}

impl Memory {
    fn of(status: &str, rollup: &str) -> Self {
        let field = |text: &str, name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        let kib = |text: &str, name: &str| field(text, name)?.checked_mul(1024);
        Self {
            anon_bytes: kib(status, "RssAnon"),
            file_bytes: kib(status, "RssFile"),
            shmem_bytes: kib(status, "RssShmem"),
            swap_bytes: kib(status, "VmSwap"),
            size_bytes: kib(status, "VmSize"),
            pss_bytes: kib(rollup, "Pss"),
            peak_rss_bytes: kib(status, "VmHWM"),
            threads: field(status, "Threads"),
        }
    }
}

/// `name: number`, a line each.
fn numbers(text: &str) -> IndexMap<String, u64> {
    let number = |line: &str| {
        let (name, number) = line.split_once(':')?;
        Some((name.to_owned(), number.trim().parse().ok()?))
    };
    text.lines().filter_map(number).collect()
}

fn descriptors(text: &str) -> Vec<Descriptor> {
    let descriptor = |line: &str| {
        let (fd, target) = line.split_once(" -> ")?;
        Some(Descriptor { fd: fd.parse().ok()?, target: target.to_owned() })
    };
    text.lines().filter_map(descriptor).collect()
}

/// /proc/PID/limits (proc_pid_limits(5)): a name of up to 25 columns, two values,
/// a unit.
fn parse_limits(text: &str) -> IndexMap<String, Limit> {
    const NAME: usize = 26;
    let limit = |line: &str| {
        let (name, values) = line.split_at_checked(NAME)?;
        let mut values = values.split_ascii_whitespace().map(|value| match value {
            "unlimited" => Some(None),
            value => value.parse().ok().map(Some),
        });
        Some((name.trim().to_owned(), Limit { soft: values.next()??, hard: values.next()?? }))
    };
    text.lines().skip(1).filter_map(limit).collect()
}

/// Sums /proc/PID/smaps (proc_pid_smaps(5)) by object, most resident first.
fn objects(smaps: &str) -> Vec<ObjectMemory> {
    let mut objects: IndexMap<&str, ObjectMemory> = IndexMap::new();
    let mut current = "";
    for line in smaps.lines() {
        let first = line.split_ascii_whitespace().next().unwrap_or_default();
        let Some(name) = first.strip_suffix(':') else {
            // ADDRESS PERMISSIONS OFFSET DEVICE INODE PATH
            let path = line.splitn(6, ' ').nth(5).map_or("", str::trim_start);
            current = if path.is_empty() { "[anonymous]" } else { path };
            continue;
        };
        let number = line.split_ascii_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok());
        let Some(bytes) = number.and_then(|n| n.checked_mul(1024)) else { continue };
        let object = objects.entry(current).or_default();
        match name {
            "Size" => object.size_bytes += bytes,
            // `file_bytes` is all that is resident, until the anonymous part is known.
            "Rss" => object.file_bytes += bytes,
            "Anonymous" => {
                object.anon_bytes += bytes;
                object.file_bytes = object.file_bytes.saturating_sub(bytes);
            }
            _ => {}
        }
    }
    let named =
        |(name, object): (&str, ObjectMemory)| ObjectMemory { object: name.into(), ..object };
    let mut objects: Vec<ObjectMemory> = objects.into_iter().map(named).collect();
    objects.sort_by_key(|o| std::cmp::Reverse(o.anon_bytes + o.file_bytes));
    objects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_by_object() {
        let smaps = "\
55-56 r--p 00000000 fe:00 247030                     /usr/bin/cat
Size:                  8 kB
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
56-57 rw-p 00000000 fe:00 247030                     /usr/bin/cat
Size:                  4 kB
Rss:                   4 kB
Anonymous:             4 kB
60-61 rw-p 00000000 00:00 0
Size:                132 kB
Rss:                  16 kB
Anonymous:            16 kB
7f-80 r-xp 00000000 fe:00 1 /a b/lib.so (deleted)
Size:                100 kB
Rss:                  50 kB
Anonymous:            10 kB
";
        let found = objects(smaps);
        let row = |object: &str, size: u64, anon: u64, file: u64| ObjectMemory {
            object: object.into(),
            size_bytes: size * 1024,
            anon_bytes: anon * 1024,
            file_bytes: file * 1024,
        };
        assert_eq!(
            found,
            [
                row("/a b/lib.so (deleted)", 100, 10, 40),
                row("[anonymous]", 132, 16, 0),
                row("/usr/bin/cat", 12, 4, 8),
            ]
        );
    }

    #[test]
    fn limits_and_numbers() {
        let limits = parse_limits(
            "Limit                     Soft Limit           Hard Limit           Units     \n\
             Max cpu time              unlimited            unlimited            seconds   \n\
             Max stack size            8388608              unlimited            bytes     \n\
             nonsense\n",
        );
        assert_eq!(limits["Max cpu time"], Limit { soft: None, hard: None });
        assert_eq!(limits["Max stack size"], Limit { soft: Some(8_388_608), hard: None });
        assert_eq!(limits.len(), 2);
        assert_eq!(numbers("rchar: 7\nx\nwchar: y\n"), IndexMap::from([("rchar".into(), 7)]));
    }

    #[test]
    fn what_cannot_be_read_is_null() {
        let memory = Memory::of("RssAnon:\t     100 kB\nThreads:\t1\n", "");
        assert_eq!((memory.anon_bytes, memory.file_bytes), (Some(102_400), None));
        assert_eq!((memory.threads, memory.pss_bytes), (Some(1), None));
    }
}
