//! How much of a working set is in memory.

use std::fs::File;
use std::io;

use indexmap::IndexMap;

use crate::render::counted;
use crate::tracer::page_cache::{cachestat, mincore, page_bytes};

use super::filesystem::Filesystem;
use super::pinned::Mapped;
use super::set::{SetFile, WorkingSet};

/// Which call told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Method {
    /// cachestat(2).
    Cachestat,
    /// mincore(2).
    Mincore,
    /// Each for some files.
    Both,
    /// None did.
    #[default]
    None,
}

impl Method {
    /// `cachestat`, `mincore`, `cachestat and mincore` or `none`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cachestat => "cachestat",
            Self::Mincore => "mincore",
            Self::Both => "cachestat and mincore",
            Self::None => "none",
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, method) | (method, Self::None) => method,
            (one, other) if one == other => one,
            _ => Self::Both,
        }
    }
}

/// What of a working set is in memory at one moment.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Residency {
    /// Files whose residency could be had.
    pub files_measured: u64,
    /// Files of the set.
    pub files_total: u64,
    /// Bytes of the files measured that are in memory; `None` where none could be.
    pub resident_bytes: Option<u64>,
    /// Those of them that no process has mapped, as far as that can be seen.
    pub evictable_bytes: Option<u64>,
    /// Those that some process has mapped; `None` where it is not known of all
    /// processes and none was seen, or no file could be measured.
    pub pinned_bytes: Option<u64>,
    /// What told.
    pub method: Method,
    /// Why files were not measured, and what else is not certain, a line each.
    pub reasons: Vec<String>,
    /// By place in the set.
    pub(super) files: Vec<Option<Pages>>,
}

/// Of one file, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pages {
    pub resident: u64,
    /// What of it is mapped.
    pub pinned: u64,
}

impl WorkingSet {
    /// What of it is in memory now. Nothing is brought in, and no file's time of its
    /// last reading changes but on filesystems that know no better.
    pub fn measure(&self) -> Residency {
        let mapped = Mapped::of(self);
        let mut found =
            Residency { files_total: self.files().len() as u64, ..Residency::default() };
        let mut reasons: IndexMap<&str, u64> = IndexMap::new();
        for (at, file) in self.files().iter().enumerate() {
            match resident(file) {
                Ok((method, bytes)) => {
                    found.method = found.method.and(method);
                    found.files_measured += 1;
                    let pinned = mapped.bytes(at).min(bytes);
                    found.files.push(Some(Pages { resident: bytes, pinned }));
                }
                Err(why) => {
                    *reasons.entry(why).or_default() += 1;
                    found.files.push(None);
                }
            }
        }
        let files = || found.files.iter().flatten();
        let any = found.files_measured > 0;
        let resident: u64 = files().fold(0, |sum, file| sum.saturating_add(file.resident));
        let pinned: u64 = files().fold(0, |sum, file| sum.saturating_add(file.pinned));
        found.resident_bytes = any.then_some(resident);
        found.evictable_bytes = any.then_some(resident.saturating_sub(pinned));
        found.pinned_bytes = (any && (pinned > 0 || mapped.unreadable == 0)).then_some(pinned);
        let line = |(why, n): (&str, u64)| format!("{}: {why}", counted(n, "file"));
        found.reasons = reasons.into_iter().map(line).collect();
        if any && mapped.unreadable > 0 {
            let processes = counted(mapped.unreadable, "process");
            found.reasons.push(format!(
                "what {processes} may have mapped cannot be seen: it counts as evictable"
            ));
        }
        found
    }
}

/// Bytes of a file in memory, and what told; or why that is not known.
fn resident(of: &SetFile) -> Result<(Method, u64), &'static str> {
    const NOT_OWN: &str = "the kernel tells only those who own it or may write it";
    let file = of.open().map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => "it may not be read",
        io::ErrorKind::NotFound => "it is not there any more, or replaced",
        _ => "it cannot be opened",
    })?;
    let size = file.metadata().map_err(|_| "it cannot be opened")?.len();
    let filesystem = Filesystem::of(&file);
    if filesystem.has_own_cache() {
        return Err("its filesystem has a cache of its own");
    }
    let (method, bytes) = match by_cachestat(&file, filesystem) {
        Some(bytes) => (Method::Cachestat, bytes),
        None => match mincore(&file, size) {
            Ok(Some(bytes)) => (Method::Mincore, bytes),
            Ok(None) => return Err(NOT_OWN),
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                return Err("it is larger than mincore is asked about (64 GiB)");
            }
            Err(_) => return Err("it cannot be mapped, which mincore needs"),
        },
    };
    // A large folio may reach over the end.
    Ok((method, bytes.min(size.next_multiple_of(page_bytes()))))
}

fn by_cachestat(file: &File, filesystem: Filesystem) -> Option<u64> {
    if filesystem.is_stacked() { None } else { cachestat(file).ok() }
}
