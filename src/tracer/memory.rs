//! Reading and writing a tracee's memory.

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

/// Writes all of `from` at `address` of `tid`, through /proc/TID/mem.
pub fn write(tid: i32, address: u64, from: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mem = std::fs::OpenOptions::new().write(true).open(format!("/proc/{tid}/mem"))?;
    mem.write_all_at(from, address)
}
