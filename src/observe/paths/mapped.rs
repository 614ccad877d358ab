//! Files that were mapped executable at any time: by mmap, and by the kernel at
//! exec (the program, its loader), as /proc/PID/maps has them then and at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use crate::tracer::{ImageId, Link, Nanos, ProcessId, open_descriptor, open_file, patiently};

use super::brought::{Brought, Mapper, Member, base_name, judge};
use super::linkage::Linkage;
use super::place::Marks;

/// Names under which one file was opened that are kept.
const MOST_NAMES: usize = 8;
/// Of an environment that much is looked at for LD_PRELOAD, bytes.
const MOST_ENVIRONMENT: u64 = 1 << 20;

/// Files by path, in order of first use.
#[derive(Debug, Default)]
pub struct Mapped {
    /// The files.
    pub files: IndexMap<Vec<u8>, MappedEntry>,
    /// How each of them came in, once that was [judged](Self::judge).
    pub brought: Vec<Brought>,
    /// What each process runs.
    images: HashMap<ProcessId, ImageId>,
    /// What LD_PRELOAD named for it.
    preloaded: HashMap<ImageId, Vec<Vec<u8>>>,
    /// Files that were not read yet, by number.
    unread: Vec<usize>,
    arrivals: u32,
}

/// One file.
#[derive(Debug, Clone, Default)]
pub struct MappedEntry {
    /// Its size, bytes.
    pub size: Option<u64>,
    /// When it was first seen.
    pub first: Nanos,
    /// Who mapped it.
    pub processes: BTreeSet<ProcessId>,
    /// A process had it mapped at its end.
    pub at_exit: bool,
    /// When and by whom it was mapped in each program.
    images: BTreeMap<ImageId, (u32, Mapper)>,
    /// Names that it was opened by: links have others than what they lead to.
    names: Vec<Vec<u8>>,
    /// What it says of itself; `None` where it was not or could not be read.
    linkage: Option<Linkage>,
    /// Its name no longer leads to it.
    gone: bool,
    /// It has that name in another mount namespace than the tracer's.
    elsewhere: bool,
}

/// At what a process is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When<'a> {
    /// It has executed this file, and nothing else was mapped yet.
    Exec(&'a [u8]),
    /// It was attached to, running this file.
    Attached(&'a [u8]),
    /// It ends.
    Exit,
}

impl Mapped {
    /// A process runs this program from now on.
    pub fn runs(&mut self, process: ProcessId, image: ImageId) {
        self.images.insert(process, image);
    }

    /// A process has ended.
    pub fn ended(&mut self, process: ProcessId) {
        self.images.remove(&process);
    }

    /// The file behind a descriptor was mapped, which was opened as `name`; gives
    /// its size.
    pub fn by_descriptor(
        &mut self,
        (tid, fd): (i32, i32),
        (name, marks): (&[u8], Marks),
        process: ProcessId,
        at: Nanos,
    ) -> u64 {
        let Some(link) = Link::read(tid, &format!("fd/{fd}")) else { return 0 };
        let (entry, fresh) = self.add(link.path, link.size, process, at, Mapper::Call);
        entry.elsewhere |= marks.has(Marks::NAMESPACE);
        let name = base_name(name).to_vec();
        if entry.names.len() < MOST_NAMES && !entry.names.contains(&name) {
            entry.names.push(name);
        }
        if link.gone && fresh {
            // No name leads to it later. Others are read at the end, when the loader has
            // done so: reading first would take the program's major faults from it.
            entry.gone = true;
            entry.linkage = patiently(move || linkage(open_descriptor(tid, fd))).flatten();
        }
        link.size.unwrap_or(0)
    }

    /// What a process has mapped now, whose root directory has these marks; gives
    /// the paths and their sizes.
    pub fn look(
        &mut self,
        pid: i32,
        marks: Marks,
        process: ProcessId,
        at: Nanos,
        when: When,
    ) -> Vec<(Vec<u8>, u64)> {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mut seen: Vec<(Vec<u8>, u64)> = Vec::new();
        for (path, gone) in executable(&maps) {
            if seen.last().is_some_and(|(last, _)| *last == path) {
                continue;
            }
            let known = self.files.get(&path).and_then(|entry| entry.size);
            let size = known.or_else(|| size(pid, &path));
            let mapper = match when {
                When::Exec(program) | When::Attached(program) if path == program => Mapper::Exec,
                When::Exec(_) => Mapper::Loader,
                When::Attached(_) => Mapper::Unseen,
                When::Exit => Mapper::Call,
            };
            let (entry, _) = self.add(path.clone(), size, process, at, mapper);
            entry.at_exit |= when == When::Exit;
            entry.gone |= gone;
            entry.elsewhere |= marks.has(Marks::NAMESPACE);
            seen.push((path, size.unwrap_or(0)));
        }
        if when != When::Exit
            && let Some(&image) = self.images.get(&process)
        {
            let names = preloaded(pid);
            if !names.is_empty() {
                self.preloaded.insert(image, names);
            }
        }
        seen
    }

    /// Adds a file; says whether it is new.
    fn add(
        &mut self,
        path: Vec<u8>,
        size: Option<u64>,
        process: ProcessId,
        at: Nanos,
        mapper: Mapper,
    ) -> (&mut MappedEntry, bool) {
        let image = self.images.get(&process).copied();
        let fresh = self.files.len();
        let entry = self.files.entry(path);
        let number = entry.index();
        let entry = entry.or_insert(MappedEntry { first: at, ..Default::default() });
        if number == fresh {
            self.unread.push(number);
        }
        entry.size = entry.size.or(size);
        entry.processes.insert(process);
        if let Some(image) = image {
            entry.images.entry(image).or_insert_with(|| {
                self.arrivals = self.arrivals.saturating_add(1);
                (self.arrivals, mapper)
            });
        }
        (entry, number == fresh)
    }

    /// Reads what the files say that a process had mapped and nobody has read yet.
    /// It is there still: `tid` is one of its threads, `root` its root directory.
    pub fn read(&mut self, tid: i32, process: ProcessId, root: &[u8]) {
        let files = &mut self.files;
        self.unread.retain(|&number| {
            let Some((path, entry)) = files.get_index_mut(number) else { return false };
            if entry.gone || !entry.processes.contains(&process) {
                return !entry.gone;
            }
            let inside = path.strip_prefix(root).unwrap_or(path).to_vec();
            entry.linkage = patiently(move || linkage(open_file(tid, &inside))).flatten();
            false
        });
    }

    /// The run is over. Reads what is left to be read (of processes that were let
    /// go), where this process finds it under the same name, and judges how each
    /// file came in.
    pub fn judge(&mut self) {
        let own = std::process::id() as i32;
        for number in std::mem::take(&mut self.unread) {
            let Some((path, entry)) = self.files.get_index_mut(number) else { continue };
            if !entry.gone && !entry.elsewhere {
                let path = path.clone();
                entry.linkage = patiently(move || linkage(open_file(own, &path))).flatten();
            }
        }
        let mut images: BTreeMap<ImageId, Vec<Member>> = BTreeMap::new();
        for (file, (path, entry)) in self.files.iter().enumerate() {
            for (image, &(order, mapper)) in &entry.images {
                let linkage = entry.linkage.as_ref();
                let soname = linkage.and_then(|linkage| linkage.soname.as_deref());
                let opened = entry.names.iter().map(Vec::as_slice);
                let names = soname.into_iter().chain(opened).chain([base_name(path)]).collect();
                let member = Member { file, order, mapper, names, linkage };
                images.entry(*image).or_default().push(member);
            }
        }
        self.brought = vec![Brought::default(); self.files.len()];
        for (image, mut members) in images {
            members.sort_by_key(|member| member.order);
            let preloaded = self.preloaded.get(&image).map_or(&[][..], Vec::as_slice);
            judge(&members, preloaded, &mut self.brought);
        }
    }
}

fn linkage(file: Option<File>) -> Option<Linkage> {
    Linkage::read(&file?).ok()
}

/// The names in LD_PRELOAD of the environment that a process was executed with.
fn preloaded(pid: i32) -> Vec<Vec<u8>> {
    let mut environment = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/environ")) {
        // What could be read of it is looked at.
        let _ = file.take(MOST_ENVIRONMENT).read_to_end(&mut environment);
    }
    let value = environment
        .split(|&byte| byte == 0)
        .find_map(|variable| variable.strip_prefix(b"LD_PRELOAD="));
    let names = value.unwrap_or_default().split(|byte| b" :".contains(byte));
    names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Size of a file as process `pid` sees it.
fn size(pid: i32, path: &[u8]) -> Option<u64> {
    let inside = Path::new(OsStr::from_bytes(path.strip_prefix(b"/")?));
    let path = PathBuf::from(format!("/proc/{pid}/root")).join(inside);
    let found = patiently(move || fs::metadata(path).ok())??;
    found.is_file().then_some(found.len())
}

/// Paths of the executable file mappings in /proc/PID/maps (proc_pid_maps(5)),
/// and whether the file is gone.
pub fn executable(maps: &[u8]) -> impl Iterator<Item = (Vec<u8>, bool)> + '_ {
    maps.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let permissions = words.nth(1)?;
        let path = words.nth(3)?.trim_ascii_start();
        let named = path.strip_suffix(b" (deleted)");
        let (path, gone) = (named.unwrap_or(path), named.is_some());
        (permissions.get(2) == Some(&b'x') && path.starts_with(b"/") && !is_segment(path, gone))
            .then(|| (unescape(path), gone))
    })
}

/// Whether it is shared memory (shmget(2)), by the name that the kernel gives it by its key:
/// no file, and coldtrace's own under the fast engine.
pub fn is_segment(path: &[u8], gone: bool) -> bool {
    let key = path.strip_prefix(b"/SYSV").filter(|_| gone);
    key.is_some_and(|key| key.len() == 8 && key.iter().all(u8::is_ascii_hexdigit))
}

/// The kernel writes a newline in a path as `\012`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            whole.push(b'\n');
            rest = after;
        } else {
            whole.push(byte);
            rest = after;
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_mappings_of_files() {
        let maps = b"55d0-55d1 r--p 00000000 08:01 42    /usr/bin/cat\n\
            55d1-55d2 r-xp 00001000 08:01 42                         /usr/bin/cat\n\
            7f00-7f01 r-xp 00000000 08:01 43   /a b/lib\\012x.so (deleted)\n\
            7f02-7f03 rw-p 00000000 00:00 0 \n\
            7f04-7f05 r-xs 00000000 00:01 9    /SYSV0000beef (deleted)\n\
            7ffe-7fff r-xp 00000000 00:00 0                          [vdso]\n";
        let found: Vec<_> = executable(maps).collect();
        assert_eq!(found, [(b"/usr/bin/cat".to_vec(), false), (b"/a b/lib\nx.so".to_vec(), true)]);
    }
}
