//! The `files` and `mapped` parts of a record: which paths a run touched or
//! looked for in vain, and what it mapped executable.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Every path of a run. Calls that name two paths (rename, link) count on both,
/// so sums over rows may exceed the calls made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Files {
    /// One row a path, and one for each kind of descriptor that has none; in
    /// order of first use.
    pub paths: Vec<FileRow>,
    /// Runs of misses that were one search each, in order.
    pub searches: Vec<Search>,
    /// Calls of `stat` and its kin that named a path.
    pub stats_by_path: u64,
    /// Those that named a descriptor.
    pub stats_by_descriptor: u64,
    /// Path arguments that could not be read (a bad address).
    pub unreadable: u64,
}

/// What was done with one path. Times include tracing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileRow {
    /// Absolute, `.`, `..` and doubled slashes taken out (but where the way up
    /// itself was missed: `/nosuch/../there`), symbolic links not followed; invalid UTF-8 replaced. Of a descriptor without a path its kind
    /// in angle brackets: `<pipe>`, `<socket>`, `<memfd>`, `<eventpoll>`.
    pub path: String,
    /// The exact bytes in base64 (RFC 4648), where they are no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Where `--resolve` found that it led when it was opened, if elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What the path is not to be taken for: `deleted` (its directory or it was
    /// gone), `chroot` (below another root than the tracer's), `namespace` (in
    /// another mount namespace), `relative` (to a directory that is not known).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<String>,
    /// Successful opens for reading only.
    pub opens_read: u64,
    /// Successful opens for writing, or both, or that make or empty the file (O_CREAT,
    /// O_TRUNC).
    pub opens_write: u64,
    /// Calls of `stat` and its kin, by path or descriptor, failed ones too.
    pub stats: u64,
    /// Other calls that named it or its descriptor, by kind (`readlink`,
    /// `access`, `exec`, `mmap`, `read`, `write`, ...), failed ones too; `open` of
    /// opens that failed. Not close, lseek, ioctl, poll and fcntl (but for F_DUPFD,
    /// a `dup`).
    pub other: IndexMap<String, u64>,
    /// Calls that failed with ENOENT or ENOTDIR.
    pub misses: u64,
    /// Calls that failed otherwise, by errno name.
    pub errors: IndexMap<String, u64>,
    /// Bytes read through it.
    pub read_bytes: u64,
    /// Bytes written through it.
    pub written_bytes: u64,
    /// Size of the file where it was mapped executable; 0 elsewhere.
    pub mapped_bytes: u64,
    /// Wall time of the calls that named it or its descriptor.
    pub wall_ns: u64,
    /// First use, since the run's start.
    pub first_ns: u64,
    /// Last use, since the run's start.
    pub last_ns: u64,
    /// Who used it: ids of `processes`, ascending.
    pub processes: Vec<u64>,
    /// The regions in which it was used: names of `regions`, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
}

impl FileRow {
    /// Successful opens.
    pub fn opens(&self) -> u64 {
        self.opens_read.saturating_add(self.opens_write)
    }

    /// Calls that failed, misses too.
    pub fn failed(&self) -> u64 {
        self.errors.values().fold(self.misses, |sum, n| sum.saturating_add(*n))
    }

    /// Whether it is a path at all, not a kind of descriptor.
    pub fn is_path(&self) -> bool {
        self.path.starts_with('/') || self.marks.iter().any(|mark| mark == "relative")
    }

    /// The exact bytes of the path.
    pub fn bytes(&self) -> Vec<u8> {
        use base64::Engine;
        let exact = self.path_bytes.as_ref();
        exact
            .and_then(|text| base64::engine::general_purpose::STANDARD.decode(text).ok())
            .unwrap_or_else(|| self.path.clone().into_bytes())
    }
}

/// A run of misses by one thread for one file name in several directories, or
/// for one stem with several suffixes in one directory, with the probes of
/// directories between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Search {
    /// The name, or the stem that all of them begin with.
    pub stem: String,
    /// What followed the stem, in the order tried; one empty string for a name
    /// that was looked for as it is.
    pub suffixes: Vec<String>,
    /// Where it was looked for, in the order tried.
    pub directories: Vec<String>,
    /// The path that ended it; null when it was not found.
    pub found: Option<String>,
    /// How often the same process searched for it in the same places; the sums
    /// below are of all.
    pub times: u64,
    /// Calls that missed.
    pub misses: u64,
    /// Probes of directories in between.
    pub probes: u64,
    /// Wall time of the misses and probes.
    pub wall_ns: u64,
    /// When it began first, since the run's start.
    pub start_ns: u64,
    /// The process: an id of `processes`.
    pub process: u64,
}

/// A file that was mapped executable at some time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MappedFile {
    /// As /proc has it: symbolic links followed; invalid UTF-8 replaced.
    pub path: String,
    /// The exact bytes in base64, where they are no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<String>,
    /// Size of the file; null when it could not be asked.
    pub size_bytes: Option<u64>,
    /// When it was first mapped, since the run's start.
    pub first_ns: u64,
    /// Who mapped it: ids of `processes`, ascending.
    pub processes: Vec<u64>,
    /// Whether a process had it mapped at its end.
    pub at_exit: bool,
    /// Resident anonymous memory of it in the root process at its end: pages that
    /// were written to. Absent where no snapshot of that was taken, and where it
    /// was not mapped any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_anon_bytes: Option<u64>,
    /// Resident file-backed memory of it there: pages as the file has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_file_bytes: Option<u64>,
    /// How it came in; more than one word where programs differ. `exec`: it is the
    /// program. `loader`: the kernel mapped it for the program (PT_INTERP).
    /// `preload`: LD_PRELOAD names it. `needed`: one of `needed_by` was mapped
    /// before it. `dlopen`: none was, which is told of dlopen(3) as a rule, and of
    /// an mmap of the program's own, LD_AUDIT, /etc/ld.so.preload and a program
    /// given to the loader by name as well. `mmap`: it is no ELF file that can be
    /// loaded. Absent where that is not known: it or one before it could not be read,
    /// or it was there before the process was attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came_by: Option<Vec<String>>,
    /// Paths of the mapped files whose DT_NEEDED names it, by its DT_SONAME or by
    /// the name of its file or of a link that it was opened by; in order of first
    /// use. Of a program's files only: two programs do not need each other's.
    /// Absent where there may be some that nobody knows of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed_by: Option<Vec<String>>,
    /// The CUDA library that it is, by its name: `libcudart`, `libcublas`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
}
