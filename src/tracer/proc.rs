//! What /proc says of a task: its status (proc_pid_status(5)), its magic links,
//! and the file system below its root.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;

use super::patience::patiently;

/// All of a file of /proc, whose size nobody tells before: by two calls where it fits
/// into `most` bytes, as most do.
pub fn read(path: &str, most: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (mut bytes, mut length) = (vec![0; most], 0);
    loop {
        match file.read(bytes.get_mut(length..).unwrap_or_default()) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// The status of a process or thread, as read once.
#[derive(Debug)]
pub struct Status(String);

impl Status {
    /// Reads it; `None` when the task or /proc is not there.
    pub fn read(pid: i32) -> Option<Self> {
        let bytes = read(&format!("/proc/{pid}/status"), 4096).ok()?;
        Some(Self(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// What stands behind `name`, as `PPid:`.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|l| l.strip_prefix(name)).map(str::trim)
    }

    /// The first word there, as a number.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.field(name)?.split_ascii_whitespace().next()?.parse().ok()
    }

    /// A signal set: signal 1 is bit 0.
    pub fn signals(&self, name: &str) -> Option<u64> {
        u64::from_str_radix(self.field(name)?, 16).ok()
    }
}

/// What a magic link of /proc/TID leads to (`cwd`, `root`, `exe`, `fd/3`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Its text, less what the kernel adds to that of a file that is gone.
    pub path: Vec<u8>,
    /// The file has no name any more.
    pub gone: bool,
    /// Type and permissions (inode(7)).
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// The mount that it is in, as /proc/PID/mountinfo numbers them.
    pub mount: u64,
    /// Size in bytes, of a regular file.
    pub size: Option<u64>,
    /// Of a device, its major and minor number.
    pub device: (u32, u32),
}

impl Link {
    /// Reads it; `None` when the task or the descriptor is not there. No file
    /// system is asked: it could be served by a process that is stopped for us.
    pub fn read(tid: i32, link: &str) -> Option<Self> {
        let at = format!("/proc/{tid}/{link}");
        let mut path = std::fs::read_link(&at).ok()?.into_os_string().into_vec();
        let at = CString::new(at).ok()?;
        // SAFETY: all-zero bytes are a valid statx, which the kernel fills; the
        // path ends in NUL and lives through the call.
        let found = unsafe {
            let mut found: libc::statx = std::mem::zeroed();
            let wanted = libc::STATX_BASIC_STATS | libc::STATX_MNT_ID;
            let flags = libc::AT_STATX_DONT_SYNC;
            let done = libc::statx(libc::AT_FDCWD, at.as_ptr(), flags, wanted, &raw mut found);
            (done == 0).then_some(found)
        };
        let Some(found) = found else { return Some(Self { path, ..Self::default() }) };
        let gone = found.stx_nlink == 0;
        if gone && path.ends_with(b" (deleted)") {
            path.truncate(path.len() - b" (deleted)".len());
        }
        let mode = u32::from(found.stx_mode);
        Some(Self {
            path,
            gone,
            mode,
            owner: (found.stx_uid, found.stx_gid),
            mount: found.stx_mnt_id,
            size: (mode & libc::S_IFMT == libc::S_IFREG).then_some(found.stx_size),
            device: (found.stx_rdev_major, found.stx_rdev_minor),
        })
    }
}

/// How a process is executed: the bits of personality(2), from /proc.
pub fn personality(pid: i32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/personality")).ok()?;
    u32::from_str_radix(text.trim(), 16).ok()
}

/// Where the symbolic link `path`, given from a task's root, leads, as the
/// tracer sees it; `None` where it is none, or the kernel is older than 5.6.
pub fn follow(tid: i32, path: &[u8]) -> Option<Vec<u8>> {
    let itself = open(tid, path, libc::O_NOFOLLOW)?;
    if link_of(&itself)?.mode & libc::S_IFMT != libc::S_IFLNK {
        return None;
    }
    real(tid, path)
}

/// Where `path`, given from a task's root, leads, as the tracer sees it.
pub fn real(tid: i32, path: &[u8]) -> Option<Vec<u8>> {
    Some(link_of(&open(tid, path, 0)?)?.path)
}

/// Whether there is something of this name below a task's root.
pub fn is_there(tid: i32, path: &[u8]) -> bool {
    open(tid, path, libc::O_NOFOLLOW).is_some()
}

/// The regular file `path` below a task's root, opened to be read. The file
/// system is asked, and waited for: see [`patiently`].
pub fn open_file(tid: i32, path: &[u8]) -> Option<File> {
    let handle = open_now(tid, &CString::new(path).ok()?, libc::O_NOFOLLOW, 0).ok()?;
    let is_regular = link_of(&handle)?.mode & libc::S_IFMT == libc::S_IFREG;
    // By the handle: another file of that name cannot come between.
    is_regular.then(|| reopen(&format!("/proc/self/fd/{}", handle.as_raw_fd())))?
}

/// The file behind a task's descriptor, opened to be read; as [`open_file`].
pub fn open_descriptor(tid: i32, fd: i32) -> Option<File> {
    let link = Link::read(tid, &format!("fd/{fd}"))?;
    let is_regular = link.mode & libc::S_IFMT == libc::S_IFREG;
    is_regular.then(|| reopen(&format!("/proc/{tid}/fd/{fd}")))?
}

fn reopen(link: &str) -> Option<File> {
    // Whoever holds a lease on it is not waited for.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(link).ok()
}

fn link_of(file: &OwnedFd) -> Option<Link> {
    Link::read(std::process::id() as i32, &format!("fd/{}", file.as_raw_fd()))
}

/// A handle of a file below a task's root. What the kernel has in its cache is
/// found at once; for the rest a file system is asked, and not waited for.
fn open(tid: i32, path: &[u8], flags: i32) -> Option<OwnedFd> {
    let path = CString::new(path).ok()?;
    match open_now(tid, &path, flags, libc::RESOLVE_CACHED) {
        Ok(file) => Some(file),
        Err(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ESRCH) => None,
        // Not in the cache (EAGAIN), or a kernel before 5.12 (EINVAL).
        Err(_) => patiently(move || open_now(tid, &path, flags, 0).ok()).flatten(),
    }
}

fn open_now(tid: i32, path: &CString, flags: i32, how_to: u64) -> Result<OwnedFd, i32> {
    let errno = |e: io::Error| e.raw_os_error().unwrap_or(0);
    let root = File::open(format!("/proc/{tid}/root")).map_err(errno)?;
    // SAFETY: all-zero bytes are a valid open_how, which the kernel reads; the
    // path ends in NUL and lives through the call; the descriptor is ours.
    unsafe {
        let mut how: libc::open_how = std::mem::zeroed();
        how.flags = (flags | libc::O_PATH | libc::O_CLOEXEC) as u64;
        how.resolve = libc::RESOLVE_IN_ROOT | how_to;
        let (root, size) = (root.as_raw_fd(), size_of_val(&how));
        let fd = libc::syscall(libc::SYS_openat2, root, path.as_ptr(), &raw const how, size);
        if fd < 0 {
            return Err(errno(io::Error::last_os_error()));
        }
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_and_others_are_not() {
        let own = std::process::id() as i32;
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(dir.join("deep/er")).unwrap();
        std::os::unix::fs::symlink("deep/er", dir.join("link")).unwrap();
        let bytes = |name: &str| dir.join(name).into_os_string().into_vec();
        assert_eq!(follow(own, &bytes("link")), Some(bytes("deep/er")));
        assert_eq!(follow(own, &bytes("deep")), None);
        assert_eq!(follow(own, &bytes("none")), None);
        assert!(is_there(own, &bytes("link")) && !is_there(own, &bytes("none")));
    }
}
