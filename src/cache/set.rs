//! Which files a command reads.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::record::{FileRow, Record};

use super::filesystem::{Filesystem, probe};
use super::label::Accounting;

/// The files that a command reads, each once.
#[derive(Debug, Clone, Default)]
pub struct WorkingSet {
    files: Vec<SetFile>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetFile {
    /// Symbolic links followed.
    pub path: PathBuf,
    /// Device, as stat(2) has it.
    pub device: u64,
    /// Inode.
    pub inode: u64,
    /// Size.
    pub size_bytes: u64,
    /// The most that the command reads of it: what it read, or the size where it mapped
    /// it.
    pub touched_bytes: u64,
    /// What block input says of it.
    pub accounting: Accounting,
}

impl WorkingSet {
    /// Of a record: regular files that were read or mapped and that the run did not
    /// open for writing, as they are now. Those of /proc and /sys and of filesystems
    /// that are memory are none. `None` where the record has no paths.
    ///
    /// On overlayfs one file for each device is evicted and read, to see whether block
    /// input is accounted.
    pub fn of(record: &Record) -> Option<Self> {
        let rows = &record.files.as_ref()?.paths;
        let written: HashSet<PathBuf> =
            rows.iter().filter(|row| is_written(row)).filter_map(real).collect();
        let read = rows.iter().filter(|row| is_read(row)).filter_map(|row| {
            let touched = if is_mapped(row) { u64::MAX } else { row.read_bytes };
            Some((real(row)?, touched))
        });
        // The program and its loader too, which no call of theirs maps.
        let mapped = record.mapped.iter().flatten().filter_map(|file| {
            let path = match &file.path_bytes {
                None => PathBuf::from(&file.path),
                Some(_) => return None, // A row of the paths has it.
            };
            Some((fs::canonicalize(path).ok()?, u64::MAX))
        });
        Some(Self::of_files(read.chain(mapped).filter(|(path, _)| !written.contains(path))))
    }

    /// Of these files, each with the most that is read of it (at most its size counts).
    pub fn of_files(files: impl IntoIterator<Item = (PathBuf, u64)>) -> Self {
        let mut set = Self::default();
        let mut known: HashMap<(u64, u64), usize> = HashMap::new();
        let mut overlays: HashMap<u64, Vec<usize>> = HashMap::new();
        for (path, touched) in files {
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if !metadata.is_file() || path.starts_with("/proc") || path.starts_with("/sys") {
                continue;
            }
            let id = (metadata.dev(), metadata.ino());
            let touched_bytes = touched.min(metadata.len());
            if let Some(file) = known.get(&id).and_then(|&at| set.files.get_mut(at)) {
                file.touched_bytes = file.touched_bytes.max(touched_bytes);
                continue;
            }
            // Who may not even open it has it in the set, and nothing known of it.
            let filesystem = open(&path).ok().map(|file| Filesystem::of(&file));
            if filesystem.is_some_and(|filesystem| !filesystem.is_cached()) {
                continue;
            }
            let at = set.files.len();
            if filesystem.is_some_and(Filesystem::is_overlay) {
                overlays.entry(id.0).or_default().push(at);
            }
            known.insert(id, at);
            set.files.push(SetFile {
                path,
                device: id.0,
                inode: id.1,
                size_bytes: metadata.len(),
                touched_bytes,
                accounting: filesystem.map_or(Accounting::None, |is| is.accounting(&metadata)),
            });
        }
        for on_one in overlays.values() {
            set.try_overlay(on_one);
        }
        set
    }

    /// The files.
    pub fn files(&self) -> &[SetFile] {
        &self.files
    }

    /// The most that the command reads of them.
    pub fn touched_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.touched_bytes))
    }

    /// Their sizes.
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size_bytes))
    }

    /// What block input says of them together: what is unlike the rest does not count
    /// below 1 % of what is read (not accounted) or 5 % (in part).
    pub fn accounting(&self) -> Accounting {
        let share = |least: Accounting| {
            let files = self.files.iter().filter(|file| file.accounting >= least);
            files.fold(0u64, |sum, file| sum.saturating_add(file.touched_bytes))
        };
        let all = self.touched_bytes();
        if share(Accounting::None) > all / 100 {
            Accounting::None
        } else if share(Accounting::Part) > all / 20 {
            Accounting::Part
        } else {
            Accounting::Whole
        }
    }

    /// Finds by one of these files what block input says of all.
    fn try_overlay(&mut self, on_one: &[usize]) {
        /// Smaller ones may lie in an inode; larger ones take long.
        const SIZES: std::ops::Range<u64> = 16 << 10..16 << 20;
        /// Files are tried until one can tell, but not all of a thousand.
        const TRIES: usize = 16;
        let sized = on_one.iter().filter_map(|&at| self.files.get(at));
        let mut files: Vec<&SetFile> =
            sized.filter(|file| SIZES.contains(&file.size_bytes)).collect();
        files.sort_by_key(|file| file.size_bytes);
        let found =
            files.iter().take(TRIES).find_map(|file| probe(&file.open().ok()?, file.size_bytes));
        for &at in on_one {
            if let (Some(file), Some(found)) = (self.files.get_mut(at), found) {
                file.accounting = found;
            }
        }
    }
}

impl SetFile {
    /// Opens it for reading, without changing when it was last read.
    ///
    /// # Errors
    /// When it cannot be opened, or is another file by now.
    pub(super) fn open(&self) -> io::Result<File> {
        let file = open(&self.path)?;
        let metadata = file.metadata()?;
        if (metadata.dev(), metadata.ino()) == (self.device, self.inode) {
            Ok(file)
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    // Not to wait for whoever put a pipe there since it was looked at.
    let with = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
    // Only of files of one's own may one ask not to note the time.
    with(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOATIME)
        .or_else(|_| with(libc::O_NONBLOCK | libc::O_NOCTTY))
}

/// The path, symbolic links followed; none where the row's path is not ours to use.
fn real(row: &FileRow) -> Option<PathBuf> {
    if !row.is_path() || !row.marks.is_empty() {
        return None;
    }
    fs::canonicalize(OsStr::from_bytes(&row.bytes())).ok()
}

fn has(row: &FileRow, kind: &str) -> bool {
    row.other.get(kind).is_some_and(|&calls| calls > 0)
}

fn is_mapped(row: &FileRow) -> bool {
    row.mapped_bytes > 0 || has(row, "mmap") || has(row, "exec")
}

fn is_read(row: &FileRow) -> bool {
    row.read_bytes > 0 || is_mapped(row)
}

/// It was written, or at least opened so; or is what was written under another name.
pub(super) fn is_written(row: &FileRow) -> bool {
    row.opens_write > 0 || row.written_bytes > 0 || has(row, "rename") || has(row, "truncate")
}
