//! Files that were mapped executable at any time: by mmap, and by the kernel at
//! exec (the program, its loader), as /proc/PID/maps has them then and at the end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use crate::tracer::{Link, Nanos, ProcessId, patiently};

/// Files by path, in order of first use.
#[derive(Debug, Default)]
pub struct Mapped(pub IndexMap<Vec<u8>, MappedEntry>);

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
}

impl Mapped {
    /// The file behind a descriptor was mapped; gives its size.
    pub fn by_descriptor(&mut self, tid: i32, fd: i32, process: ProcessId, at: Nanos) -> u64 {
        let Some(link) = Link::read(tid, &format!("fd/{fd}")) else { return 0 };
        self.add(link.path, link.size, process, at);
        link.size.unwrap_or(0)
    }

    /// What a process has mapped now; gives the paths and their sizes.
    pub fn look(
        &mut self,
        pid: i32,
        process: ProcessId,
        at: Nanos,
        at_exit: bool,
    ) -> Vec<(Vec<u8>, u64)> {
        let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mut seen: Vec<(Vec<u8>, u64)> = Vec::new();
        for path in executable(&maps) {
            if seen.last().is_some_and(|(last, _)| *last == path) {
                continue;
            }
            let known = self.0.get(&path).and_then(|entry| entry.size);
            let size = known.or_else(|| size(pid, &path));
            self.add(path.clone(), size, process, at).at_exit |= at_exit;
            seen.push((path, size.unwrap_or(0)));
        }
        seen
    }

    fn add(
        &mut self,
        path: Vec<u8>,
        size: Option<u64>,
        process: ProcessId,
        at: Nanos,
    ) -> &mut MappedEntry {
        let entry = self.0.entry(path).or_insert(MappedEntry { first: at, ..Default::default() });
        entry.size = entry.size.or(size);
        entry.processes.insert(process);
        entry
    }
}

/// Size of a file as process `pid` sees it.
fn size(pid: i32, path: &[u8]) -> Option<u64> {
    let inside = Path::new(OsStr::from_bytes(path.strip_prefix(b"/")?));
    let path = PathBuf::from(format!("/proc/{pid}/root")).join(inside);
    let found = patiently(move || fs::metadata(path).ok())??;
    found.is_file().then_some(found.len())
}

/// Paths of the executable file mappings in /proc/PID/maps (proc_pid_maps(5)).
fn executable(maps: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    maps.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut words = line.splitn(6, |&byte| byte == b' ');
        let permissions = words.nth(1)?;
        let path = words.nth(3)?.trim_ascii_start();
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        (permissions.get(2) == Some(&b'x') && path.starts_with(b"/")).then(|| unescape(path))
    })
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
            7ffe-7fff r-xp 00000000 00:00 0                          [vdso]\n";
        let found: Vec<_> = executable(maps).collect();
        assert_eq!(found, [&b"/usr/bin/cat"[..], b"/a b/lib\nx.so"]);
    }
}
