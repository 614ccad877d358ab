//! What /proc says of a task: its status (proc_pid_status(5)), its magic links.

/// The status of a process or thread, as read once.
#[derive(Debug)]
pub struct Status(String);

impl Status {
    /// Reads it; `None` when the task or /proc is not there.
    pub fn read(pid: i32) -> Option<Self> {
        let bytes = std::fs::read(format!("/proc/{pid}/status")).ok()?;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its text, less what the kernel adds to that of a file that is gone.
    pub path: Vec<u8>,
    /// The file has no name any more.
    pub gone: bool,
    /// Size in bytes, of a regular file.
    pub size: Option<u64>,
}

impl Link {
    /// Reads it; `None` when the task or the descriptor is not there. No file
    /// system is asked: it could be served by a process that is stopped for us.
    pub fn read(tid: i32, link: &str) -> Option<Self> {
        use std::os::unix::ffi::OsStringExt;
        let at = format!("/proc/{tid}/{link}");
        let mut path = std::fs::read_link(&at).ok()?.into_os_string().into_vec();
        let at = std::ffi::CString::new(at).ok()?;
        // SAFETY: all-zero bytes are a valid statx, which the kernel fills; the
        // path ends in NUL and lives through the call.
        let found = unsafe {
            let mut found: libc::statx = std::mem::zeroed();
            let wanted = libc::STATX_TYPE | libc::STATX_NLINK | libc::STATX_SIZE;
            let flags = libc::AT_STATX_DONT_SYNC;
            let done = libc::statx(libc::AT_FDCWD, at.as_ptr(), flags, wanted, &raw mut found);
            (done == 0).then_some(found)
        };
        let gone = found.is_some_and(|found| found.stx_nlink == 0);
        if gone && path.ends_with(b" (deleted)") {
            path.truncate(path.len() - b" (deleted)".len());
        }
        let is_file = |mode: u16| u32::from(mode) & libc::S_IFMT == libc::S_IFREG;
        let size = found.filter(|f| is_file(f.stx_mode)).map(|f| f.stx_size);
        Some(Self { path, gone, size })
    }
}

/// Where the symbolic link `path` of a task's root leads, as the tracer sees
/// it; `None` where it is none, or the kernel is older than 5.6.
pub fn follow(tid: i32, path: &[u8]) -> Option<Vec<u8>> {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let root = std::fs::File::open(format!("/proc/{tid}/root")).ok()?;
    let path = std::ffi::CString::new(path).ok()?;
    let open = |flags: i32| {
        // SAFETY: all-zero bytes are a valid open_how, which the kernel reads; the
        // path ends in NUL and lives through the call.
        unsafe {
            let mut how: libc::open_how = std::mem::zeroed();
            how.flags = (flags | libc::O_PATH | libc::O_CLOEXEC) as u64;
            how.resolve = libc::RESOLVE_IN_ROOT;
            let size = size_of_val(&how);
            let fd = libc::syscall(
                libc::SYS_openat2,
                root.as_raw_fd(),
                path.as_ptr(),
                &raw const how,
                size,
            );
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as i32))
        }
    };
    let itself = std::fs::File::from(open(libc::O_NOFOLLOW)?);
    if !itself.metadata().ok()?.is_symlink() {
        return None;
    }
    let target = open(0)?;
    let own = std::process::id() as i32;
    Some(Link::read(own, &format!("fd/{}", target.as_raw_fd()))?.path)
}
