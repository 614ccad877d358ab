//! What filesystems do, by their types (statfs(2), linux/magic.h).

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::tracer::page_cache::{BLOCK_BYTES, filesystem_type, let_go, mincore, own_block_input};

use super::label::Accounting;

/// Files are memory: none of them is ever cold. tmpfs, ramfs, hugetlbfs.
const MEMORY: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Files are made when they are read: proc, sysfs, cgroup, cgroup2, debugfs, tracefs,
/// securityfs, devpts, bpf.
const MADE: [u64; 9] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x1cd1,
    0xcafe_4a11,
];

const OVERLAY: u64 = 0x794c_7630;

/// Pages may belong to files of another filesystem, and cachestat(2) does not see them:
/// overlayfs, FUSE (passthrough), ecryptfs.
const STACKED: [u64; 3] = [OVERLAY, 0x6573_5546, 0xf15f];

/// What is in memory is not in the page cache: zfs.
const OWN_CACHE: [u64; 1] = [0x2fc1_2fc1];

/// What is read is what is in the file: ext2 to 4, xfs, vfat, exfat, udf, jfs.
const PLAIN: [u64; 6] = [0xef53, 0x5846_5342, 0x4d44, 0x2011_bab0, 0x1501_3346, 0x3153_464a];

/// What is read may be compressed: btrfs, f2fs, squashfs, erofs, isofs, ntfs3.
const COMPRESSING: [u64; 6] =
    [0x9123_683e, 0xf2f5_2010, 0x7371_7368, 0xe0f5_e1e2, 0x9660, 0x7366_746e];

/// What files of one filesystem are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filesystem(Option<u64>);

impl Filesystem {
    /// Of a file that need not be readable, and is not opened.
    ///
    /// # Errors
    /// Where there is no such file.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        // The access mode is none, but has to be named.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
        Ok(Self(filesystem_type(&file).ok()))
    }

    fn is_in(self, types: &[u64]) -> bool {
        self.0.is_some_and(|is| types.contains(&is))
    }

    /// Its files can be out of memory.
    pub fn is_cached(self) -> bool {
        !self.is_in(&MEMORY) && !self.is_in(&MADE)
    }

    /// cachestat(2) cannot be believed.
    pub fn is_stacked(self) -> bool {
        self.is_in(&STACKED)
    }

    /// The page cache does not tell what is in memory.
    pub fn has_own_cache(self) -> bool {
        self.is_in(&OWN_CACHE)
    }

    pub fn is_overlay(self) -> bool {
        self.is_in(&[OVERLAY])
    }

    /// What block input says of a file; of overlayfs nothing can be said by its type.
    pub fn accounting(self, metadata: &Metadata) -> Accounting {
        let allocated = metadata.blocks().saturating_mul(BLOCK_BYTES);
        if self.is_in(&PLAIN) {
            // With holes, or within its inode.
            let whole = allocated >= metadata.len() / 20 * 19;
            return if whole { Accounting::Whole } else { Accounting::Part };
        }
        if self.is_in(&COMPRESSING) { Accounting::Part } else { Accounting::None }
    }
}

/// Whether reads of a file of overlayfs are counted, which hangs on what lies below
/// it: found by reading it from there. It is in memory afterwards if any of it was.
/// `None` where this file cannot tell: it stays in memory, or nobody says.
pub fn probe(file: &File, size: u64) -> Option<Accounting> {
    let resident = || mincore(file, size).ok().flatten();
    let was = resident()?;
    // What is dirty would stay.
    file.sync_data().and_then(|()| let_go(file)).ok()?;
    if resident()? > 0 {
        return None;
    }
    let before = own_block_input()?;
    let mut buffer = vec![0; 1 << 16];
    let mut at = 0;
    while at < size
        && let Ok(n @ 1..) = file.read_at(&mut buffer, at)
    {
        at += n as u64;
    }
    let input = own_block_input()?.saturating_sub(before);
    let brought = resident()?;
    if was == 0 {
        let _ = let_go(file); // As it was.
    }
    match brought {
        0 => None,
        _ if input >= brought / 2 => Some(Accounting::Whole),
        _ if input > 0 => Some(Accounting::Part),
        _ => Some(Accounting::None),
    }
}
