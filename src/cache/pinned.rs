//! What processes keep mapped of a set of files: that cannot be evicted.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::tracer::page_cache::page_bytes;

use super::set::{SetFile, WorkingSet};

/// Bits of an entry of /proc/PID/pagemap (pagemap in the kernel's admin guide): it is
/// in memory, and it is a page of a file, not a private copy.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;

/// Pages of a file lie together in folios, which are let go whole or not at all: the
/// largest one, bytes (a page middle directory's; MAX_PAGECACHE_ORDER in the kernel).
const LARGEST_FOLIO: u64 = 2 << 20;

/// What all processes have mapped of each file of a set, at one moment.
#[derive(Debug, Clone, Default)]
pub struct Mapped {
    /// Pages of the files, by their place in the set.
    pages: HashMap<usize, HashSet<u64>>,
    /// Processes whose mappings may not be looked at.
    pub(super) unreadable: u64,
}

impl WorkingSet {
    /// What processes have mapped of it now. All of /proc is read for that: before a
    /// run's files are evicted, not between that and the run.
    pub fn mapped(&self) -> Mapped {
        let mut by_inode: HashMap<u64, Vec<usize>> = HashMap::new();
        for (at, file) in self.files().iter().enumerate() {
            by_inode.entry(file.inode).or_default().push(at);
        }
        let mut mapped = Mapped::default();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let is_process = entry.file_name().to_str().is_some_and(|n| n.parse::<u32>().is_ok());
            if is_process {
                mapped.add(&entry.path(), self, &by_inode);
            }
        }
        mapped
    }
}

impl Mapped {
    /// Bytes of the file at this place in the set.
    pub(super) fn bytes(&self, at: usize) -> u64 {
        self.count(at, 1).saturating_mul(page_bytes())
    }

    /// The most of it that an eviction leaves for that reason, bytes: a page that is mapped
    /// keeps the folio that it is in.
    pub(super) fn kept_bytes(&self, at: usize) -> u64 {
        let pages = (LARGEST_FOLIO / page_bytes()).max(1);
        self.count(at, pages).saturating_mul(pages).saturating_mul(page_bytes())
    }

    /// Blocks of so many pages in which pages are mapped.
    fn count(&self, at: usize, pages: u64) -> u64 {
        let of = self.pages.get(&at).into_iter().flatten();
        of.map(|page| page / pages).collect::<HashSet<u64>>().len() as u64
    }

    fn add(&mut self, process: &Path, set: &WorkingSet, by_inode: &HashMap<u64, Vec<usize>>) {
        let maps = match fs::read(process.join("maps")) {
            Ok(maps) => String::from_utf8_lossy(&maps).into_owned(),
            Err(e) => {
                // Any other error: it has ended.
                self.unreadable += u64::from(e.kind() == io::ErrorKind::PermissionDenied);
                return;
            }
        };
        let mut pagemap = None;
        for mapping in maps.lines().filter_map(Mapping::parse) {
            let files = by_inode.get(&mapping.inode).into_iter().flatten();
            let is = |&&at: &&usize| set.files().get(at).is_some_and(|file| mapping.is_of(file));
            let Some(&at) = files.into_iter().find(is) else { continue };
            if pagemap.is_none() {
                pagemap = File::open(process.join("pagemap")).ok();
            }
            let Some(pagemap) = &pagemap else {
                self.unreadable += 1;
                return;
            };
            let size = set.files().get(at).map_or(0, |file| file.size_bytes);
            mapping.collect(pagemap, size, self.pages.entry(at).or_default());
        }
    }
}

/// A line of /proc/PID/maps.
struct Mapping<'t> {
    start: u64,
    end: u64,
    offset: u64,
    device: u64,
    inode: u64,
    path: &'t str,
}

impl<'t> Mapping<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let mut fields = line.splitn(6, ' ');
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = hex(fields.nth(1)?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let device = libc::makedev(hex(major)? as u32, hex(minor)? as u32);
        let inode = fields.next()?.parse().ok()?;
        let path = fields.next().unwrap_or_default().trim_start_matches(' ');
        Some(Self { start: hex(start)?, end: hex(end)?, offset, device, inode, path })
    }

    /// On btrfs the device is not the one that stat(2) has.
    fn is_of(&self, file: &SetFile) -> bool {
        self.inode == file.inode
            && (self.device == file.device || file.path.to_str() == Some(self.path))
    }

    /// Adds the pages of it that are in its process's page tables.
    fn collect(&self, pagemap: &File, size: u64, pages: &mut HashSet<u64>) {
        const AT_ONCE: u64 = 8192;
        let page = page_bytes();
        let behind = size.saturating_sub(self.offset).div_ceil(page);
        let all = (self.end.saturating_sub(self.start) / page).min(behind);
        let mut buffer = vec![0u8; AT_ONCE as usize * 8];
        let mut done = 0;
        while done < all {
            let wanted = (all - done).min(AT_ONCE) as usize * 8;
            let Some(part) = buffer.get_mut(..wanted) else { return };
            let at = (self.start / page).saturating_add(done).saturating_mul(8);
            if pagemap.read_exact_at(part, at).is_err() {
                return; // The process has ended, or unmapped it.
            }
            let entries = part.as_chunks::<8>().0.iter().map(|entry| u64::from_ne_bytes(*entry));
            let first = self.offset / page + done;
            let is_there = |entry: &u64| entry & (PRESENT | OF_FILE) == PRESENT | OF_FILE;
            let there = entries.zip(first..).filter(|(entry, _)| is_there(entry));
            pages.extend(there.map(|(_, page)| page));
            done += AT_ONCE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f43-7f45 r--s 00001000 00:27 10889082                   /tmp/a b";
        let mapping = Mapping::parse(line).unwrap();
        assert_eq!((mapping.start, mapping.end, mapping.offset), (0x7f43, 0x7f45, 0x1000));
        assert_eq!((mapping.device, mapping.inode), (0x27, 10_889_082));
        assert_eq!(mapping.path, "/tmp/a b");
        let mapping = Mapping::parse("0-1000 rw-p 00000000 fd:01 0 ").unwrap();
        assert_eq!((mapping.device, mapping.path), (libc::makedev(0xfd, 1), ""));
        for broken in ["", "x", "1-2 r--p 0 0:0", "1-2 r--p zz 0:0 1", "12 r--p 0 0:0 1"] {
            assert!(Mapping::parse(broken).is_none(), "{broken}");
        }
    }

    #[test]
    fn what_this_process_runs_is_mapped() {
        let own = std::env::current_exe().unwrap();
        let set = WorkingSet::of_files([(own, u64::MAX)]);
        let mapped = set.mapped();
        let size = set.files()[0].size_bytes.next_multiple_of(page_bytes());
        assert!((1..=size).contains(&mapped.bytes(0)), "{} of {size}", mapped.bytes(0));
        assert_eq!((mapped.bytes(1), mapped.kept_bytes(1)), (0, 0));
    }

    #[test]
    fn a_page_that_is_mapped_keeps_its_folio() {
        let of = |pages: &[u64]| {
            let pages = HashMap::from([(0, pages.iter().copied().collect())]);
            let mapped = Mapped { pages, unreadable: 0 };
            (mapped.bytes(0) / page_bytes(), mapped.kept_bytes(0))
        };
        let pages = LARGEST_FOLIO / page_bytes();
        assert_eq!(of(&[]), (0, 0));
        assert_eq!(of(&[0, pages - 1]), (2, LARGEST_FOLIO));
        assert_eq!(of(&[pages - 1, pages]), (2, 2 * LARGEST_FOLIO));
    }
}
