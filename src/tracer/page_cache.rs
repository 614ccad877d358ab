//! The page cache, as the kernel tells of it: what of a file is in memory, and how
//! that is let go. One function a system call; nothing is decided here.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// Linux 6.5; the same number on every architecture, and not in every libc.
const SYS_CACHESTAT: libc::c_long = 451;

/// Most that [`mincore`] looks at: the kernel takes 10 s for a TiB.
pub const MINCORE_LIMIT_BYTES: u64 = 64 << 30;

/// What one mapping of [`mincore`] covers.
const WINDOW_BYTES: u64 = 1 << 30;

/// The unit of `ru_inblock`, `ru_oublock` and `st_blocks`, bytes, whatever the device's.
pub const BLOCK_BYTES: u64 = 512;

/// Bytes of a page.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf takes a number and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).ok().filter(|&size| size > 0).unwrap_or(4096)
}

/// cachestat(2) of the whole file: bytes of it in the page cache. On a filesystem
/// whose pages belong to another (overlayfs) that is 0, whatever is in memory.
///
/// # Errors
/// EPERM for files that the caller neither owns nor may write (since Linux 6.14),
/// ENOSYS before Linux 6.5, EOPNOTSUPP on hugetlbfs.
pub fn cachestat(file: &File) -> io::Result<u64> {
    #[repr(C)]
    struct Range {
        offset: u64,
        /// 0: to the end.
        length: u64,
    }
    /// Pages; only the first is looked at.
    #[repr(C)]
    #[derive(Default)]
    struct Statistics {
        cached: u64,
        rest: [u64; 4],
    }
    let range = Range { offset: 0, length: 0 };
    let mut statistics = Statistics::default();
    // SAFETY: the descriptor is open; both structures are as the kernel has them and
    // live until the call returns.
    let result = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut statistics, 0)
    };
    match result {
        0 => Ok(statistics.cached.saturating_mul(page_bytes())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A mapping that nobody touches.
struct Mapping {
    at: *mut libc::c_void,
    length: usize,
}

impl Mapping {
    fn new(file: &File, offset: u64, length: usize) -> io::Result<Self> {
        let (fd, offset) = (file.as_raw_fd(), offset as libc::off_t);
        // SAFETY: a new mapping where the kernel likes; it replaces none, and its
        // memory is never looked at, so that a file cut short does no harm.
        let at = unsafe {
            libc::mmap(null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, fd, offset)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at, length })
    }

    /// Pages of it that are in memory.
    fn resident(&self) -> io::Result<u64> {
        let mut pages = vec![0u8; self.length.div_ceil(page_bytes() as usize)];
        // SAFETY: the mapping is there as long as self, and there is a byte for each
        // of its pages.
        let result = unsafe { libc::mincore(self.at, self.length, pages.as_mut_ptr()) };
        match result {
            // Only the lowest bit means something (mincore(2)).
            0 => Ok(pages.iter().filter(|&&page| page & 1 == 1).count() as u64),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody has a reference into it.
        unsafe { libc::munmap(self.at, self.length) };
    }
}

/// mincore(2) of a file of so many bytes: bytes of it that are in memory. `None`
/// where the kernel does not tell: who neither owns a file nor may write it hears
/// "resident" of every page, also of one far behind its end, where there is none.
///
/// # Errors
/// When it cannot be mapped, or is larger than [`MINCORE_LIMIT_BYTES`].
pub fn mincore(file: &File, size: u64) -> io::Result<Option<u64>> {
    if size > MINCORE_LIMIT_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let page = page_bytes();
    // Further than the largest folio, which may reach over the end.
    let behind = size.next_multiple_of(page).saturating_add(1 << 30);
    if Mapping::new(file, behind, page as usize)?.resident()? != 0 {
        return Ok(None);
    }
    let mut pages = 0u64;
    let mut offset = 0;
    while offset < size {
        let length = WINDOW_BYTES.min(size - offset);
        pages += Mapping::new(file, offset, length as usize)?.resident()?;
        offset += length;
    }
    Ok(Some(pages.saturating_mul(page)))
}

/// posix_fadvise(POSIX_FADV_DONTNEED) of the whole file: its pages are let go, but
/// for those that are mapped, dirty or in use. A descriptor for reading is enough,
/// whoever owns the file.
///
/// # Errors
/// Those of the call; not that pages stay.
pub fn let_go(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the call touches no memory of ours.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// The number of a file's filesystem type (statfs(2)).
///
/// # Errors
/// Those of fstatfs.
pub fn filesystem_type(file: &File) -> io::Result<u64> {
    // SAFETY: statfs is numbers alone, for which zero is a value.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the structure lives until the call returns.
    match unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut statfs) } {
        // 32 bits that some systems keep in a signed number.
        0 => Ok(u64::from(statfs.f_type as u32)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that this thread had read from block devices so far.
pub fn own_block_input() -> Option<u64> {
    // SAFETY: rusage is numbers alone, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives until the call returns.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (result == 0).then(|| (usage.ru_inblock as u64).saturating_mul(BLOCK_BYTES))
}

/// sync(2): writes out what is dirty anywhere.
pub fn sync_all() {
    // SAFETY: sync takes nothing and cannot fail.
    unsafe { libc::sync() };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_in_memory_by_both_calls() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let size = 3 * page_bytes() + 1;
        file.write_all(&vec![1; size as usize]).unwrap();
        let all = 4 * page_bytes();
        assert_eq!(mincore(&file, size).unwrap(), Some(all));
        // Old kernels have it not, and overlayfs says 0.
        if let Ok(cached) = cachestat(&file) {
            assert!(cached == all || cached == 0, "{cached}");
        }
        assert!(mincore(&file, MINCORE_LIMIT_BYTES + 1).is_err());
    }

    #[test]
    fn what_is_let_go_is_out_of_memory() {
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let is_memory = [0x0102_1994, 0x8584_58f6].contains(&filesystem_type(&file).unwrap());
        let_go(&file).unwrap();
        let expected = if is_memory { 1 << 20 } else { 0 };
        assert_eq!(mincore(&file, 1 << 20).unwrap(), Some(expected));
    }
}
