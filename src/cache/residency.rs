//! How much of a working set is in memory.

use std::fs::File;
use std::io;

use indexmap::IndexMap;

use crate::render::counted;
use crate::tracer::page_cache::{cachestat, mincore, page_bytes};

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
    /// What told.
    pub method: Method,
    /// Why files were not measured, a line each.
    pub reasons: Vec<String>,
    /// Bytes, by place in the set.
    pub(super) files: Vec<Option<u64>>,
}

/// Bytes of a file in memory, and what told; or why that is not known.
pub(super) type Looked = Result<(Method, u64), &'static str>;

impl WorkingSet {
    /// What of it is in memory now. Nothing is brought in, and no file's time of its
    /// last reading changes but on filesystems that know no better.
    pub fn measure(&self) -> Residency {
        Residency::of(self.files().iter().map(|file| match file.open() {
            Ok((open, size)) => look(file, &open, size),
            Err(e) => Err(not_opened(&e)),
        }))
    }
}

impl Residency {
    /// Of all files of a set, in order.
    pub(super) fn of(files: impl IntoIterator<Item = Looked>) -> Self {
        let mut found = Self::default();
        let mut reasons: IndexMap<&str, u64> = IndexMap::new();
        for file in files {
            found.files_total += 1;
            match file {
                Ok((method, bytes)) => {
                    found.method = found.method.and(method);
                    found.files_measured += 1;
                    found.files.push(Some(bytes));
                }
                Err(why) => {
                    *reasons.entry(why).or_default() += 1;
                    found.files.push(None);
                }
            }
        }
        let resident = found.files.iter().flatten().fold(0u64, |sum, n| sum.saturating_add(*n));
        found.resident_bytes = (found.files_measured > 0).then_some(resident);
        let line = |(why, n): (&str, u64)| format!("{}: {why}", counted(n, "file"));
        found.reasons = reasons.into_iter().map(line).collect();
        found
    }
}

/// Why a file of a set could not be opened.
pub(super) fn not_opened(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::PermissionDenied => "it may not be read",
        io::ErrorKind::NotFound => "it is not there any more, or replaced",
        _ => "it cannot be opened",
    }
}

/// Looks at a file of a set that is open, of so many bytes.
pub(super) fn look(of: &SetFile, file: &File, size: u64) -> Looked {
    const NOT_OWN: &str = "the kernel tells only those who own it or may write it";
    if of.filesystem.has_own_cache() {
        return Err("its filesystem has a cache of its own");
    }
    let by_cachestat = (!of.filesystem.is_stacked()).then(|| cachestat(file).ok()).flatten();
    let (method, bytes) = match by_cachestat {
        Some(bytes) => (Method::Cachestat, bytes),
        None => match mincore(file, size) {
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
