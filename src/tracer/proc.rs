//! /proc/PID/status (proc_pid_status(5)).

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
