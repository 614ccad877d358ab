//! A seccomp profile for containers that allows what was seen, and what a profile
//! from observation cannot know.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::facts::{Expected, Facts};
use super::shape::Shape;
use crate::syscall::Abi;

/// What such a profile cannot know: for whoever is about to use it.
pub const NOTE: &str = "Made from what was seen. It does not know what other inputs, errors and \
    signals would call, nor another version of the program, its libraries or the kernel, nor a \
    library that is loaded later, nor a machine whose clock cannot be read without a call \
    (clock_gettime, gettimeofday, time). It looks at no argument, and a name is allowed in all of \
    its architectures. What it lacks fails with EPERM: try it with SCMP_ACT_LOG first.";

/// Why calls are allowed that were not seen.
const KERNEL: &str = "Needed, and not always seen: the kernel goes on with an interrupted call \
    by restart_syscall, a handler returns by rt_sigreturn, and a program that was killed has not \
    shown how it exits.";

/// Calls of a container's runtime.
const RUNTIME: &str = "Not the command's: runc (1.1 and later) makes these after it has \
    installed the filter and before it executes the command. With no-new-privileges it needs \
    fewer. Where something else installs the filter, leave this entry out.";

/// What runc 1.1.5 calls between its filter and execve, as strace shows it in 12
/// runs; close_range and fchown, which its source has there too; and what Go's own
/// threads may call at any time, for which the filter holds as well.
const RUNTIME_CALLS: [&str; 38] = [
    "capget",
    "capset",
    "chdir",
    "clone",
    "close",
    "close_range",
    "epoll_ctl",
    "epoll_pwait",
    "execve",
    "faccessat2",
    "fchown",
    "fcntl",
    "fstat",
    "fstatfs",
    "futex",
    "getcwd",
    "getdents64",
    "getpid",
    "getppid",
    "gettid",
    "madvise",
    "mmap",
    "munmap",
    "nanosleep",
    "newfstatat",
    "openat",
    "prctl",
    "read",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_yield",
    "setgid",
    "setgroups",
    "setuid",
    "sigaltstack",
    "tgkill",
    "write",
];

/// The profile, in the format of Docker and, but for its comments, of the OCI's
/// runtime configuration (`linux.seccomp`), whose readers must ignore what they do
/// not know.
///
/// It allows the union of the calls of the shapes and of the facts, all of which
/// are of `platform` (`x86_64 linux glibc`); anything else fails with EPERM. Calls
/// without a name cannot be in a profile: its comment lists them.
pub fn seccomp_profile<'a>(
    platform: &str,
    shapes: impl IntoIterator<Item = &'a Shape>,
    facts: impl IntoIterator<Item = &'a Facts>,
) -> Value {
    let shapes = shapes.into_iter().flat_map(|shape| shape.calls.keys());
    let facts = facts.into_iter().flat_map(|facts| &facts.calls);
    let made = facts.filter(|(_, fact)| {
        // A person's words: it is not to be made.
        !matches!(fact.calls, Expected::Exact(0) | Expected::Range(_, 0))
    });
    let native = platform.split(' ').next().and_then(Abi::from_name).unwrap_or(Abi::native());
    let mut seen = Seen::default();
    seen.abis.insert(native);
    for name in shapes.chain(made.map(|(name, _)| name)) {
        seen.add(name, native);
    }
    let handlers = ["rt_sigaction", "sigaction", "signal"];
    let mut kernel = vec!["exit", "exit_group", "restart_syscall"];
    if handlers.iter().any(|name| seen.names.contains(*name)) {
        kernel.extend(["rt_sigreturn", "sigreturn"]);
    }
    let mut comment = NOTE.to_owned();
    if !seen.nameless.is_empty() {
        let nameless: Vec<&str> = seen.nameless.iter().copied().collect();
        comment.push_str(" Left out, since they have no name: ");
        comment.push_str(&nameless.join(" "));
        comment.push('.');
    }
    let architectures: Vec<&str> = seen.abis.iter().map(|abi| architecture(*abi)).collect();
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": libc::EPERM,
        "architectures": architectures,
        "syscalls": [
            allowed(seen.names.iter().copied(), &comment),
            allowed(kernel.into_iter(), KERNEL),
            allowed(RUNTIME_CALLS.into_iter(), RUNTIME),
        ],
    })
}

fn allowed<'a>(names: impl Iterator<Item = &'a str>, comment: &str) -> Value {
    let names: BTreeSet<&str> = names.collect();
    json!({ "names": names, "action": "SCMP_ACT_ALLOW", "comment": comment })
}

/// Names of calls, and the tables that they are of.
#[derive(Default)]
struct Seen<'a> {
    names: BTreeSet<&'a str>,
    nameless: BTreeSet<&'a str>,
    abis: BTreeSet<Abi>,
}

impl<'a> Seen<'a> {
    /// `open`, `open@i386`, `syscall_0x1d9`.
    fn add(&mut self, label: &'a str, native: Abi) {
        let (name, abi) = match label.split_once('@') {
            Some((name, abi)) => (name, Abi::from_name(abi)),
            None => (label, Some(native)),
        };
        match abi {
            Some(abi) if !name.starts_with("syscall_") => {
                self.names.insert(name);
                self.abis.insert(abi);
            }
            _ => drop(self.nameless.insert(label)),
        }
    }
}

/// As libseccomp calls it.
fn architecture(abi: Abi) -> &'static str {
    match abi {
        Abi::X86_64 => "SCMP_ARCH_X86_64",
        Abi::I386 => "SCMP_ARCH_X86",
        Abi::X32 => "SCMP_ARCH_X32",
        Abi::Aarch64 => "SCMP_ARCH_AARCH64",
        Abi::Arm => "SCMP_ARCH_ARM",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::CallFact;
    use crate::check::shape::Count;

    fn shape(names: &[&str]) -> Shape {
        let counts = names.iter().map(|name| ((*name).to_owned(), Count::default()));
        Shape { calls: counts.collect(), ..Shape::default() }
    }

    fn facts(calls: &[(&str, Expected)]) -> Facts {
        let fact = |n: Expected| CallFact { calls: n, errors: [].into() };
        Facts {
            calls: calls.iter().map(|(name, n)| ((*name).to_owned(), fact(*n))).collect(),
            ..Facts::default()
        }
    }

    #[test]
    fn what_was_seen_is_allowed_and_nothing_else() {
        let shapes = [shape(&["write", "execve"]), shape(&["write", "brk"])];
        let facts = facts(&[
            ("futex", Expected::Varies),
            ("poll", Expected::Range(0, 3)),
            ("ptrace", Expected::Exact(0)),
            ("read", Expected::Exact(2)),
        ]);
        let profile = seccomp_profile("x86_64 linux musl", &shapes, [&facts]);
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        assert_eq!(profile["defaultErrnoRet"], 1);
        assert_eq!(profile["architectures"], json!(["SCMP_ARCH_X86_64"]));
        let seen = &profile["syscalls"][0];
        assert_eq!(seen["names"], json!(["brk", "execve", "futex", "poll", "read", "write"]));
        assert_eq!(seen["comment"], NOTE);
        // No handler was installed, so none returns.
        let kernel = &profile["syscalls"][1]["names"];
        assert_eq!(*kernel, json!(["exit", "exit_group", "restart_syscall"]));
        assert!(profile.get("archMap").is_none(), "Docker takes one of the two only");
    }

    #[test]
    fn calls_of_other_tables_need_their_architecture() {
        let shape = shape(&["open@i386", "rt_sigaction", "syscall_0x1d9", "syscall_0x3@arm"]);
        let profile = seccomp_profile("x86_64 linux glibc", [&shape], []);
        assert_eq!(profile["architectures"], json!(["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]));
        let seen = &profile["syscalls"][0];
        assert_eq!(seen["names"], json!(["open", "rt_sigaction"]));
        let comment = seen["comment"].as_str().unwrap();
        assert!(comment.ends_with("no name: syscall_0x1d9 syscall_0x3@arm."), "{comment}");
        let kernel = profile["syscalls"][1]["names"].as_array().unwrap();
        assert!(kernel.contains(&json!("rt_sigreturn")), "{kernel:?}");
        let there = seccomp_profile("aarch64 linux glibc", [&shape], []);
        assert_eq!(there["architectures"], json!(["SCMP_ARCH_X86", "SCMP_ARCH_AARCH64"]));
    }

    #[test]
    fn calls_of_the_runtime_are_calls() {
        for name in RUNTIME_CALLS {
            assert!(crate::check::families::known(name).is_ok(), "{name}");
        }
    }
}
