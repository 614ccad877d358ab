//! Getting files out of memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};

use indexmap::IndexMap;

use crate::render::counted;
use crate::tracer::page_cache::{let_go, sync_all};
use crate::tracer::reason;

use super::pinned::Mapped;
use super::residency::{Residency, look, not_opened};
use super::set::WorkingSet;

/// What an eviction did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Eviction {
    /// `posix_fadvise` or `drop_caches`.
    pub by: &'static str,
    /// Files that the kernel was asked to let go; of `drop_caches` the whole set.
    pub files_evicted: u64,
    /// Why others were not, a line each.
    pub failed: Vec<String>,
    /// What of the set was in memory after it: what is mapped, and what else stayed.
    pub remained: Residency,
}

impl WorkingSet {
    /// Asks the kernel to let go of each file (posix_fadvise, POSIX_FADV_DONTNEED):
    /// that works on all files that may be read, and leaves what is mapped. What is
    /// dirty is written out first. Each is opened once, and measured at once, so that
    /// nothing is left to do between the last and the run.
    pub fn evict(&self, mapped: &Mapped) -> Eviction {
        let mut failed: IndexMap<String, u64> = IndexMap::new();
        let mut files_evicted = 0;
        let mut remained = Vec::with_capacity(self.files().len());
        for (at, file) in self.files().iter().enumerate() {
            let looked = match file.open() {
                Ok((open, size)) => {
                    match let_go(&open) {
                        Ok(()) => files_evicted += 1,
                        Err(e) => *failed.entry(reason(&e)).or_default() += 1,
                    }
                    let looked = look(file, &open, size);
                    // Dirty pages stay, and are only begun to be written. To write out is
                    // slow even where nothing is dirty, so it is done only where more
                    // stayed than is mapped, or where nobody tells.
                    let stayed = looked.is_ok_and(|(_, bytes)| bytes > mapped.kept_bytes(at));
                    if stayed || looked.is_err() {
                        // Whether it worked is measured.
                        let _ = open.sync_data().and_then(|()| let_go(&open));
                        look(file, &open, size)
                    } else {
                        looked
                    }
                }
                Err(e) => {
                    *failed.entry(reason(&e)).or_default() += 1;
                    Err(not_opened(&e))
                }
            };
            remained.push(looked);
        }
        let line = |(why, n): (String, u64)| format!("{} not evicted: {why}", counted(n, "file"));
        let failed = failed.into_iter().map(line).collect();
        let remained = Residency::of(remained);
        Eviction { by: "posix_fadvise", files_evicted, failed, remained }
    }

    /// Drops all caches of the machine ([`drop_caches`]).
    ///
    /// # Errors
    /// When that may not be done.
    pub fn evict_all(&self) -> Result<Eviction, DropError> {
        drop_caches()?;
        let remained = self.measure();
        // To open them for that has brought their directories and inodes back.
        drop_caches()?;
        Ok(Eviction {
            by: "drop_caches",
            files_evicted: self.files().len() as u64,
            failed: Vec::new(),
            remained,
        })
    }
}

/// Caches were not dropped; one line.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot drop the machine's caches: /proc/sys/vm/drop_caches: {}; only root may, --cold alone \
     evicts the command's files",
    reason(.0)
)]
pub struct DropError(#[source] io::Error);

/// Writes out what is dirty, and has the kernel drop all clean pages, directories and
/// inodes of the whole machine: everybody's next reads are slow. Nothing is to be
/// restored.
///
/// # Errors
/// When that may not be done: only root may.
pub fn drop_caches() -> Result<(), DropError> {
    let mut file = may_drop_caches()?;
    sync_all();
    file.write_all(b"3\n").map_err(DropError)
}

/// What is written to, for that; to open it does nothing yet.
///
/// # Errors
/// When it may not be done.
pub fn may_drop_caches() -> Result<File, DropError> {
    OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches").map_err(DropError)
}
