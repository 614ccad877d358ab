//! Reading and writing the memory of a stopped tracee.

use std::io;

/// Reads up to `into.len()` bytes at `address` of `tid`; returns how many could
/// be read before an unmapped page. Falls back from process_vm_readv(2), which
/// a container may refuse, to /proc/TID/mem.
pub fn read(tid: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: the kernel writes at most `into.len()` bytes at `into`; the remote
    // address is only ever used in the tracee.
    let count =
        unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
    if count >= 0 {
        return Ok(count as usize);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS) => {
            use std::os::unix::fs::FileExt;
            std::fs::File::open(format!("/proc/{tid}/mem"))?.read_at(into, address)
        }
        _ => Err(error),
    }
}

/// Reads all of several parts, (address, length), one behind the other; or nothing.
#[cfg(target_arch = "x86_64")] // For the fast engine.
pub(super) fn read_all(tid: i32, parts: &[(u64, usize)]) -> Option<Vec<u8>> {
    let length = parts.iter().map(|(_, length)| length).sum();
    let mut bytes = vec![0; length];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: length };
    let remote: Vec<libc::iovec> = parts
        .iter()
        .map(|&(at, iov_len)| libc::iovec { iov_base: at as *mut libc::c_void, iov_len })
        .collect();
    // SAFETY: the kernel writes at most `length` bytes into `bytes`; the remote addresses
    // are only ever used in the tracee.
    let count = unsafe {
        let (count, from) = (remote.len() as libc::c_ulong, remote.as_ptr());
        libc::process_vm_readv(tid, &raw const local, 1, from, count, 0)
    };
    if count == length as isize {
        return Some(bytes);
    }
    let mut rest = bytes.as_mut_slice();
    for (at, length) in parts {
        let (part, behind) = rest.split_at_mut_checked(*length)?;
        rest = behind;
        read(tid, *at, part).ok().filter(|read| read == length)?;
    }
    Some(bytes)
}

/// Whether all of this lies in memory now. Where it does not, reading it asks
/// for it, and may have to wait for a process that is stopped for us: the server
/// of a FUSE file, a handler of userfaultfd(2).
pub fn is_present(tid: i32, address: u64, length: usize) -> bool {
    use std::os::unix::fs::FileExt;
    const PAGE: u64 = 4096;
    const PRESENT: u64 = 1 << 63;
    // Where the kernel does not tell (CONFIG_PROC_PAGE_MONITOR), it is hoped.
    let Ok(map) = std::fs::File::open(format!("/proc/{tid}/pagemap")) else { return true };
    let last = address.saturating_add(length.max(1) as u64 - 1) / PAGE;
    (address / PAGE..=last).all(|page| {
        let mut entry = [0; 8];
        let read = map.read_at(&mut entry, page.saturating_mul(8)).unwrap_or(0);
        read == 8 && u64::from_ne_bytes(entry) & PRESENT != 0
    })
}

/// Longest path that the kernel takes, its NUL included (linux/limits.h).
pub const PATH_MAX: usize = 4096;

/// The string at `address` of `tid`, without its NUL; at most `most` bytes of
/// it. It is read page by page: what follows its last page may not be mapped.
/// `None` where it cannot be read to its end; with `careful`, also where it is
/// [not there](is_present).
pub fn read_string(tid: i32, address: u64, most: usize, careful: bool) -> Option<Vec<u8>> {
    const PAGE: u64 = 4096;
    let mut string = Vec::new();
    let mut at = address;
    while string.len() < most {
        let length = (PAGE - at % PAGE).min((most - string.len()) as u64) as usize;
        let mut page = [0; PAGE as usize];
        if careful && !is_present(tid, at, 1) {
            return None;
        }
        let read = read(tid, at, page.get_mut(..length)?).ok().filter(|&n| n > 0)?;
        let part = page.get(..read)?;
        if let Some(end) = part.iter().position(|&byte| byte == 0) {
            string.extend_from_slice(part.get(..end)?);
            return Some(string);
        }
        string.extend_from_slice(part);
        at = at.checked_add(read as u64)?;
    }
    Some(string)
}

/// The memory of a tracee, to be written: also what it may not write itself.
#[derive(Debug)]
pub(super) struct Writer(std::fs::File);

impl Writer {
    /// Opens /proc/TID/mem: the memory that `tid` has now, also after an exec.
    pub fn open(tid: i32) -> io::Result<Self> {
        std::fs::OpenOptions::new().write(true).open(format!("/proc/{tid}/mem")).map(Self)
    }

    /// Writes all of `from` at `address`.
    pub fn write(&self, address: u64, from: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        self.0.write_all_at(from, address)
    }
}

/// Writes all of `from` at `address` of `tid`.
pub(super) fn write(tid: i32, address: u64, from: &[u8]) -> io::Result<()> {
    Writer::open(tid)?.write(address, from)
}
