//! What keeps a command from being traced, each as one line that says what,
//! which and why, with what to do about it where something can be done.

use std::io;

/// An error of the tracer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No command was given.
    #[error("no command given")]
    NoCommand,
    /// An argument that cannot be passed to exec.
    #[error("an argument holds a NUL byte: {word:?}")]
    NulByte {
        /// The argument.
        word: String,
    },
    /// The command does not exist.
    #[error("cannot run {name}: not found")]
    NotFound {
        /// The command.
        name: String,
    },
    /// The command exists, its interpreter or loader does not.
    #[error("cannot run {name}: it exists, but the interpreter or loader it names does not")]
    NoInterpreter {
        /// The command.
        name: String,
    },
    /// The command exists and cannot be executed.
    #[error("cannot run {name}: {}", reason(source))]
    CannotRun {
        /// The command.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The child ended before its exec.
    #[error("cannot run {name}: the process was killed before it could start")]
    DiedBeforeExec {
        /// The command.
        name: String,
    },
    /// ptrace is not allowed here.
    #[error("cannot trace: {cause}; {remedy}")]
    Refused {
        /// What refuses it.
        cause: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A system call of the tracer itself failed.
    #[error("{what}: {}", reason(source))]
    Os {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// The exit status that env(1) and others give to this.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NoInterpreter { .. } | Self::CannotRun { .. } => 126,
            _ => 125,
        }
    }
}

/// The system's own words, without Rust's "(os error N)".
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// An [`Error::Os`].
pub fn os(what: impl Into<String>, source: io::Error) -> Error {
    Error::Os { what: what.into(), source }
}

/// Why PTRACE_SEIZE of our own child `pid` was refused, as well as can be told.
pub fn refused(pid: i32, source: &io::Error) -> Error {
    let tracer = status_field(pid, "TracerPid:").filter(|&p| p != 0);
    let filtered = status_field(pid, "Seccomp:") == Some(2);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.ok().and_then(|s| s.trim().parse::<u32>().ok()).unwrap_or(0);
    let (cause, remedy) = if let Some(tracer) = tracer {
        let name = std::fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        (
            format!("the command is already traced by {} (pid {tracer})", name.trim_end()),
            "a process can have only one tracer: run coldtrace outside of it",
        )
    } else if source.raw_os_error() == Some(libc::ENOSYS) {
        (
            "ptrace is not implemented here (ENOSYS: an emulator, a sandbox or a seccomp filter)"
                .into(),
            "run it on a kernel of its own, or let the container's seccomp profile allow ptrace",
        )
    } else if scope >= 2 {
        (
            format!("the Yama security module forbids ptrace (kernel.yama.ptrace_scope = {scope})"),
            if scope == 2 {
                "run as root, or set it to 1: sysctl kernel.yama.ptrace_scope=1"
            } else {
                "it can only be lowered by a reboot with another setting"
            },
        )
    } else if filtered {
        (
            format!("a seccomp filter refuses ptrace ({})", reason(source)),
            "in a container, start it with --cap-add=SYS_PTRACE or --security-opt \
             seccomp=unconfined",
        )
    } else {
        (
            format!("ptrace was refused ({})", reason(source)),
            "check the security module's log (SELinux, AppArmor), or run as root",
        )
    };
    Error::Refused { cause, remedy }
}

fn status_field(pid: i32, name: &str) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix(name))?.trim().parse().ok()
}
