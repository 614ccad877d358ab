//! Which files a command reads.

use std::collections::{BTreeMap, HashMap, HashSet};
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
    /// Places of files on overlayfs of which nothing was tried yet, by device.
    overlays: BTreeMap<u64, Vec<usize>>,
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
    /// What the command read of it by calls.
    pub read_bytes: u64,
    /// The most that the command reads of it: what it read, or the size where it mapped
    /// it.
    pub touched_bytes: u64,
    /// What block input says of it.
    pub accounting: Accounting,
    pub(super) filesystem: Filesystem,
}

/// What a command does with a file of its set.
#[derive(Debug, Clone, Copy)]
struct Use {
    /// What it read by calls; `u64::MAX`: all.
    read: u64,
    /// It mapped it: how much of it that is nobody says.
    mapped: bool,
    /// Somebody used it who is not in the command's numbers.
    unwaited: bool,
}

impl WorkingSet {
    /// Of a record: regular files that were read or mapped and that the run did not
    /// open for writing, as they are now. Those of /proc and /sys and of filesystems
    /// that are memory are none. `None` where the record has no paths.
    ///
    /// What is in the files is not touched; so of overlayfs it is not known whether block
    /// input is accounted, until [`try_overlays`](Self::try_overlays).
    pub fn of(record: &Record) -> Option<Self> {
        let rows = &record.files.as_ref()?.paths;
        let processes = record.processes.iter().flatten();
        let unwaited: HashSet<u64> =
            processes.filter(|process| process.unwaited).map(|process| process.id).collect();
        let written: HashSet<PathBuf> =
            rows.iter().filter(|row| is_written(row)).filter_map(real).collect();
        let read = rows.iter().filter(|row| is_read(row)).filter_map(|row| {
            let unwaited = row.processes.iter().any(|process| unwaited.contains(process));
            Some((real(row)?, Use { read: row.read_bytes, mapped: is_mapped(row), unwaited }))
        });
        // The program and its loader too, which no call of theirs maps.
        let mapped = record.mapped.iter().flatten().filter_map(|file| {
            let path = match &file.path_bytes {
                None => PathBuf::from(&file.path),
                Some(_) => return None, // A row of the paths has it.
            };
            let mapped = Use { read: 0, mapped: true, unwaited: false };
            Some((fs::canonicalize(path).ok()?, mapped))
        });
        Some(Self::of_uses(read.chain(mapped).filter(|(path, _)| !written.contains(path))))
    }

    /// Of these files, each with what is read of it (at most its size counts).
    pub fn of_files(files: impl IntoIterator<Item = (PathBuf, u64)>) -> Self {
        let read = |(path, read)| (path, Use { read, mapped: false, unwaited: false });
        let mut set = Self::of_uses(files.into_iter().map(read));
        set.try_overlays();
        set
    }

    fn of_uses(files: impl IntoIterator<Item = (PathBuf, Use)>) -> Self {
        let mut set = Self::default();
        let mut known: HashMap<(u64, u64), usize> = HashMap::new();
        let mut filesystems: HashMap<u64, Filesystem> = HashMap::new();
        for (path, used) in files {
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if !metadata.is_file() || path.starts_with("/proc") || path.starts_with("/sys") {
                continue;
            }
            let id = (metadata.dev(), metadata.ino());
            let size = metadata.len();
            let read_bytes = used.read.min(size);
            let touched_bytes = if used.mapped { size } else { read_bytes };
            if let Some(file) = known.get(&id).and_then(|&at| set.files.get_mut(at)) {
                file.read_bytes = file.read_bytes.max(read_bytes);
                file.touched_bytes = file.touched_bytes.max(touched_bytes);
                if used.unwaited {
                    file.accounting = Accounting::Unwaited;
                }
                continue;
            }
            // Who may not read it has it in the set, and nothing known of its residency.
            let look = || Filesystem::of_path(&path).unwrap_or_default();
            let filesystem = *filesystems.entry(id.0).or_insert_with(look);
            if !filesystem.is_cached() {
                continue;
            }
            let at = set.files.len();
            if filesystem.is_overlay() {
                set.overlays.entry(id.0).or_default().push(at);
            }
            known.insert(id, at);
            let accounting =
                if used.unwaited { Accounting::Unwaited } else { filesystem.accounting(&metadata) };
            set.files.push(SetFile {
                path,
                device: id.0,
                inode: id.1,
                size_bytes: size,
                read_bytes,
                touched_bytes,
                accounting,
                filesystem,
            });
        }
        set
    }

    /// Finds of each overlayfs what block input says of its files: one of them is evicted
    /// and read, so that this is nothing to do before a run that is to find things as
    /// they are.
    pub fn try_overlays(&mut self) {
        for on_one in std::mem::take(&mut self.overlays).values() {
            self.try_overlay(on_one);
        }
    }

    /// The files.
    pub fn files(&self) -> &[SetFile] {
        &self.files
    }

    fn sum(&self, of: fn(&SetFile) -> u64) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(of(file)))
    }

    /// The most that the command reads of them.
    pub fn touched_bytes(&self) -> u64 {
        self.sum(|file| file.touched_bytes)
    }

    /// What it read of them by calls: what it mapped comes on top.
    pub fn read_bytes(&self) -> u64 {
        self.sum(|file| file.read_bytes)
    }

    /// Their sizes.
    pub fn size_bytes(&self) -> u64 {
        self.sum(|file| file.size_bytes)
    }

    /// Whether it is the same but for a hundredth, by what is read: less than a label
    /// could tell.
    pub fn is_like(&self, other: &Self) -> bool {
        let ids = |set: &Self| -> HashSet<(u64, u64)> {
            set.files.iter().map(|file| (file.device, file.inode)).collect()
        };
        let (own, others) = (ids(self), ids(other));
        let only = |set: &Self, known: &HashSet<(u64, u64)>| {
            let files = set.files.iter().filter(|file| !known.contains(&(file.device, file.inode)));
            files.fold(0u64, |sum, file| sum.saturating_add(file.touched_bytes))
        };
        only(self, &others) <= self.touched_bytes() / 100
            && only(other, &own) <= other.touched_bytes() / 100
    }

    /// What block input says of them together: what is unlike the rest does not count
    /// below 1 % of what is read (not accounted) or 5 % (in part).
    pub fn accounting(&self) -> Accounting {
        let share = |least: Accounting| {
            let files = self.files.iter().filter(|file| file.accounting >= least);
            files.fold(0u64, |sum, file| sum.saturating_add(file.touched_bytes))
        };
        let all = self.touched_bytes();
        if share(Accounting::Unwaited) > all / 100 {
            Accounting::Unwaited
        } else if share(Accounting::None) > all / 100 {
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
            files.iter().take(TRIES).find_map(|file| probe(&file.open().ok()?.0, file.size_bytes));
        for &at in on_one {
            let file = self.files.get_mut(at);
            let file = file.filter(|file| file.accounting != Accounting::Unwaited);
            if let (Some(file), Some(found)) = (file, found) {
                file.accounting = found;
            }
        }
    }
}

impl SetFile {
    /// Opens it for reading, without changing when it was last read; its size now.
    ///
    /// # Errors
    /// When it cannot be opened, or is another file by now.
    pub(super) fn open(&self) -> io::Result<(File, u64)> {
        let file = open(&self.path)?;
        let metadata = file.metadata()?;
        if (metadata.dev(), metadata.ino()) == (self.device, self.inode) {
            Ok((file, metadata.len()))
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
