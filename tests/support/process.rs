//! Running one program with a limit of time, and ending everything that it started.
//!
//! A started program and its descendants inherit the write end of a pipe, so that the end of the
//! last of them is seen, and a variable in their environment, by which those that stay are found
//! wherever they went.

use std::fmt;
use std::fs::File;
use std::io::PipeReader;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::{Scratch, unique};

/// Long enough for a slow machine with other work, short enough not to look like a hang.
pub const LIMIT: Duration = Duration::from_secs(90);

/// How long what a program started may outlive it.
const GRACE: Duration = Duration::from_secs(10);

/// Where descendants hold the pipe: above what programs open themselves, and always the same, so
/// that two runs see the same descriptors.
const HELD_AT: i32 = 99;

const MARK: &str = "COLDTRACE_TEST_MARK";

/// How a program ended and what it wrote.
pub struct Finished {
    /// Its status.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error.
    pub stderr: Vec<u8>,
    command: String,
}

impl Finished {
    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Exit status; none after a death by signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Panics unless the exit status is `code`.
    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(self.code(), Some(code), "exit status of {self}");
        self
    }

    /// Panics unless `signal` ended it.
    #[track_caller]
    pub fn assert_signal(&self, signal: i32) -> &Self {
        assert_eq!(self.signal(), Some(signal), "signal that ended {self}");
        self
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n  ended with {}", self.command, self.status)?;
        writeln!(f, "  stdout: {}", self.out())?;
        write!(f, "  stderr: {}", self.err())
    }
}

/// A program that has been started.
pub struct Running {
    child: Child,
    pidfd: OwnedFd,
    last_ends: PipeReader,
    mark: String,
    output: Scratch,
    command: String,
    reaped: bool,
}

/// Runs to the end. Standard input is empty; panics at [`LIMIT`] or when something is left behind.
pub fn finish(command: &mut Command) -> Finished {
    start(command).finish()
}

/// Starts `command` in its own process group; its output goes to files, so that no pipe fills.
pub fn start(command: &mut Command) -> Running {
    let output = Scratch::new("output");
    start_with(command, output, true)
}

/// As [`start`], but standard output is what the caller has set.
pub fn start_with_own_stdout(command: &mut Command) -> Running {
    start_with(command, Scratch::new("output"), false)
}

fn start_with(command: &mut Command, output: Scratch, keep_stdout: bool) -> Running {
    let file = |name: &str| {
        let path = output.path(name);
        File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let mark = format!("{}.{}", std::process::id(), unique());
    command.env(MARK, &mark).stdin(Stdio::null()).stderr(file("stderr")).process_group(0);
    if keep_stdout {
        command.stdout(file("stdout"));
    }
    let (last_ends, held) = std::io::pipe().expect("a pipe");
    let fd = held.as_raw_fd();
    // SAFETY: dup2 is async-signal-safe and all that is called between fork and exec; the copy it
    // makes is not closed by exec.
    unsafe {
        command.pre_exec(move || match libc::dup2(fd, HELD_AT) {
            HELD_AT => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let text = format!("{command:?}");
    let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {text}: {error}"));
    drop(held); // from here on only the program and its descendants have it
    let pidfd = pidfd_open(child.id()).unwrap_or_else(|| panic!("no pidfd for {text}"));
    Running { child, pidfd, last_ends, mark, output, command: text, reaped: false }
}

impl Running {
    /// Process id, and id of the group that it leads.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a signal to the program alone.
    pub fn kill(&self, signal: i32) {
        send(self.pid(), signal);
    }

    /// Sends a signal to its process group, as a terminal does.
    pub fn kill_group(&self, signal: i32) {
        send(-self.pid(), signal);
    }

    /// Whether all its threads have; the first one may be a zombie before, in an exec by another.
    pub fn has_ended(&self) -> bool {
        ready_within(&self.pidfd, Duration::ZERO)
    }

    /// Waits for the end.
    pub fn finish(mut self) -> Finished {
        if !ready_within(&self.pidfd, LIMIT) {
            let wrote = self.wrote();
            self.end_all();
            panic!(
                "{} took longer than {LIMIT:?}\n  stdout: {}\n  stderr: {}",
                self.command,
                String::from_utf8_lossy(&wrote.0),
                String::from_utf8_lossy(&wrote.1)
            );
        }
        let status = self.child.wait().expect("a child that has ended can be reaped");
        self.reaped = true;
        let (stdout, stderr) = self.wrote();
        let finished = Finished { status, stdout, stderr, command: self.command.clone() };
        let left = self.left_behind();
        assert!(left.is_empty(), "left behind: {}\n{finished}", left.join("; "));
        finished
    }

    fn wrote(&self) -> (Vec<u8>, Vec<u8>) {
        let read = |name: &str| std::fs::read(self.output.path(name)).unwrap_or_default();
        (read("stdout"), read("stderr"))
    }

    /// Descriptions of processes that are still there after [`GRACE`]; they are killed.
    fn left_behind(&self) -> Vec<String> {
        if ready_within(&self.last_ends, GRACE) {
            return Vec::new(); // the pipe's last writer is gone
        }
        let left: Vec<String> = marked(&self.mark)
            .into_iter()
            .filter_map(|pid| {
                let pidfd = pidfd_open(pid as u32)?;
                let read = |name: &str| {
                    std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default()
                };
                let state = read("status");
                let state = state
                    .lines()
                    .filter(|line| line.starts_with("State") || line.starts_with("TracerPid"));
                let description = format!(
                    "{pid} {} {}",
                    read("cmdline").replace('\0', " "),
                    state.collect::<Vec<_>>().join(" ")
                );
                signal_by(&pidfd, libc::SIGKILL);
                Some(description)
            })
            .collect();
        if left.is_empty() {
            return vec!["a process that has lost its environment".to_owned()];
        }
        left
    }

    fn end_all(&mut self) {
        if !self.reaped {
            self.kill_group(libc::SIGKILL);
            self.kill(libc::SIGKILL);
            let _ = self.child.wait();
            self.reaped = true;
        }
        for pid in marked(&self.mark) {
            if let Some(pidfd) = pidfd_open(pid as u32) {
                signal_by(&pidfd, libc::SIGKILL);
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            self.end_all();
        }
    }
}

/// Processes whose environment carries `mark`; one that is in the middle of an exec shows none.
fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|text| text.split(|&byte| byte == 0).any(|v| v == wanted.as_bytes()))
        })
        .collect()
}

fn send(pid: i32, signal: i32) {
    // SAFETY: kill takes two numbers and touches no memory of ours.
    unsafe { libc::kill(pid, signal) };
}

fn signal_by(pidfd: &OwnedFd, signal: i32) {
    // SAFETY: the descriptor is open, and a null siginfo is allowed.
    unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
}

fn pidfd_open(pid: u32) -> Option<OwnedFd> {
    // SAFETY: pidfd_open takes two numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: a descriptor that the kernel has just given us belongs to nobody else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether a pidfd's process ends, or a pipe's last writer goes, in time.
fn ready_within(fd: &impl AsRawFd, limit: Duration) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives until poll returns.
    unsafe { libc::poll(&raw mut poll, 1, limit.as_millis() as i32) > 0 }
}
