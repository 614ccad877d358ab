//! What keeps a command from being traced, each as one line that says what,
//! which and why, with what to do about it where something can be done.

use std::io;

use super::proc::Status;

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
    /// A running process cannot be traced.
    #[error("cannot attach to {pid}: {cause}")]
    CannotAttach {
        /// The process.
        pid: i32,
        /// Why, and what to do where something can be done.
        cause: String,
    },
    /// None of the processes can be traced.
    #[error("nothing to trace: no process could be attached to")]
    NothingAttached,
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

/// Why ptrace was refused, as well as can be told: what, and what to do.
fn refusal(pid: i32, source: &io::Error) -> (String, &'static str) {
    let tracer = field(pid, "TracerPid:").filter(|&p| p != 0);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.ok().and_then(|s| s.trim().parse::<u32>().ok()).unwrap_or(0);
    let descends = field(pid, "PPid:") == Some(std::process::id() as i32);
    // SAFETY: geteuid takes nothing and cannot fail.
    let me = unsafe { libc::geteuid() };
    let owner = field(pid, "Uid:").and_then(|uid| u32::try_from(uid).ok());
    if let Some(tracer) = tracer {
        let name = std::fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        (
            format!("it is already traced by {} (pid {tracer})", name.trim_end()),
            "a process can have only one tracer: end that one, or run coldtrace outside of it",
        )
    } else if source.raw_os_error() == Some(libc::ENOSYS) {
        (
            "ptrace is not implemented here (ENOSYS: an emulator, a sandbox or a seccomp filter)"
                .into(),
            "run it on a kernel of its own, or let the container's seccomp profile allow ptrace",
        )
    } else if me != 0 && owner.is_some_and(|uid| uid != me) {
        (format!("it belongs to user {}", owner.unwrap_or_default()), "run coldtrace as root")
    } else if scope >= 2 || scope == 1 && !descends {
        (
            format!("the Yama security module forbids it (kernel.yama.ptrace_scope = {scope})"),
            match scope {
                1 => "run as root, or allow it: sysctl kernel.yama.ptrace_scope=0",
                2 => "run as root, or allow it: sysctl kernel.yama.ptrace_scope=1",
                _ => "it can only be lowered by a reboot with another setting",
            },
        )
    } else if field(std::process::id() as i32, "Seccomp:") == Some(2) {
        (
            format!("a seccomp filter refuses ptrace ({})", reason(source)),
            "in a container, start it with --cap-add=SYS_PTRACE or --security-opt \
             seccomp=unconfined",
        )
    } else if me != 0 {
        (reason(source), "programs that are set-user-id or not dumpable can be traced only by root")
    } else {
        (
            reason(source),
            "check the security module's log (SELinux, AppArmor) and coldtrace's capabilities",
        )
    }
}

/// Why PTRACE_SEIZE of our own child `pid` was refused.
pub fn refused(pid: i32, source: &io::Error) -> Error {
    let (cause, remedy) = refusal(pid, source);
    let cause = cause.replacen("it is already", "the command is already", 1);
    Error::Refused { cause, remedy }
}

/// Why process `pid` cannot be attached to.
pub fn cannot_attach(pid: i32, source: &io::Error) -> Error {
    let (cause, remedy) = refusal(pid, source);
    Error::CannotAttach { pid, cause: format!("{cause}; {remedy}") }
}

fn field(pid: i32, name: &str) -> Option<i32> {
    Status::read(pid)?.number(name)
}
