//! The filter that lets calls nobody asked for run at full speed: everything
//! is allowed but the wanted calls, which stop at the tracer (seccomp(2)).

use crate::syscall::{Abi, CallSet, Sys};

/// What our RET_TRACE carries; the program's own may carry anything else.
pub const TRACE_DATA: u16 = 0xc01d;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const TRACE: u32 = libc::SECCOMP_RET_TRACE | TRACE_DATA as u32;

/// Offsets in `struct seccomp_data` (linux/seccomp.h).
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARG0_LOW: u32 = 16;
const ARG1_LOW: u32 = 24;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const GREATER: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

#[cfg(target_arch = "x86_64")]
const X32_BIT: u32 = 0x4000_0000;

/// Architectures of this machine's programs, as AUDIT_ARCH of linux/audit.h,
/// with the ABIs under each and what is added to their numbers.
#[cfg(target_arch = "x86_64")]
const ARCHES: &[(u32, &[(Abi, u32)])] =
    &[(0xc000_003e, &[(Abi::X86_64, 0), (Abi::X32, X32_BIT)]), (0x4000_0003, &[(Abi::I386, 0)])];
#[cfg(target_arch = "aarch64")]
const ARCHES: &[(u32, &[(Abi, u32)])] =
    &[(0xc000_00b7, &[(Abi::Aarch64, 0)]), (0x4000_0028, &[(Abi::Arm, 0)])];

/// Calls that always end in EINTR when a signal wakes them (signal(7)). Reads
/// and writes with a socket timeout are too many to stop for it.
const ENDED_BY_TRACING: [&str; 9] = [
    "epoll_wait",
    "epoll_pwait",
    "epoll_pwait2",
    "semop",
    "semtimedop",
    "rt_sigtimedwait",
    "io_getevents",
    "io_pgetevents",
    "io_uring_enter",
];

/// A filter, ready to be installed in a forked child.
#[derive(Debug)]
pub struct Filter {
    program: Vec<libc::sock_filter>,
}

impl Filter {
    /// Stops `wanted`, and what the tracer itself must see: a program that
    /// installs a filter, children that would escape by CLONE_UNTRACED, and
    /// calls that an ignored signal ends only under a tracer.
    /// With `only_makers`, a wanted fcntl or ioctl stops where it makes a
    /// descriptor only.
    /// `None` when the program would be too long for the kernel.
    pub fn stopping(wanted: &CallSet, only_makers: bool) -> Option<Self> {
        let mut seen = wanted.clone();
        for name in ENDED_BY_TRACING {
            if let Some(sys) = Sys::from_name(Abi::native(), name) {
                seen.insert(sys);
            }
        }
        let wanted = &seen;
        let mut program = vec![statement(LOAD, ARCH)];
        for (arch, abis) in ARCHES {
            let mut block = vec![statement(LOAD, NUMBER)];
            for (abi, offset) in *abis {
                arguments(*abi, *offset, wanted, &mut block);
                if only_makers {
                    makers(*abi, *offset, wanted, &mut block);
                }
            }
            // Numbers no table has. Where they are wanted, so is everything
            // else that was not let through.
            let unknown = UNKNOWN.iter().any(|n| {
                abis.iter().any(|(abi, _)| wanted.contains(Sys { abi: *abi, number: *n }))
            });
            for (abi, offset) in *abis {
                let numbers = (0..1024)
                    .filter(|n| wanted.contains(Sys { abi: *abi, number: *n }) != unknown)
                    .filter_map(|n| u32::try_from(n).ok())
                    .map(|n| n + offset);
                ranges(numbers, if unknown { ALLOW } else { TRACE }, &mut block);
            }
            block.push(statement(RETURN, if unknown { TRACE } else { ALLOW }));
            // Conditional jumps reach 255 instructions, this one reaches all.
            program.push(libc::sock_filter { code: EQUAL, jt: 1, jf: 0, k: *arch });
            program.push(statement((libc::BPF_JMP | libc::BPF_JA) as u16, block.len() as u32));
            program.extend(block);
        }
        program.push(statement(RETURN, TRACE));
        (program.len() <= libc::BPF_MAXINSNS as usize).then_some(Self { program })
    }

    /// Installs it in this process; async-signal-safe. Negative with errno set
    /// when the kernel refuses. Without CAP_SYS_ADMIN the process must give up
    /// gaining privileges by exec, which a traced process of an unprivileged
    /// tracer cannot do anyway.
    pub fn install(&self) -> libc::c_long {
        const SET_MODE_FILTER: usize = 1;
        let program = libc::sock_fprog {
            len: self.program.len() as u16,
            filter: self.program.as_ptr().cast_mut(),
        };
        let mut flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as usize;
        // SAFETY: the kernel reads `len` instructions at `filter`; prctl takes
        // its arguments by value.
        unsafe {
            let install = |flags: usize| {
                libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const program)
            };
            let mut first = install(flags);
            if first < 0 && *libc::__errno_location() == libc::EINVAL {
                flags = 0; // SPEC_ALLOW came with Linux 4.17.
                first = install(flags);
            }
            if first >= 0 || *libc::__errno_location() != libc::EACCES {
                return first;
            }
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
                return -1;
            }
            install(flags)
        }
    }
}

/// Numbers that stand for those no table has.
const UNKNOWN: [i64; 2] = [0x3fff_fff0, -1];

fn statement(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// Calls that stop for what their first argument holds.
fn arguments(abi: Abi, offset: u32, wanted: &CallSet, block: &mut Vec<libc::sock_filter>) {
    const CLONE_UNTRACED: u32 = libc::CLONE_UNTRACED as u32;
    const PR_SET_SECCOMP: u32 = libc::PR_SET_SECCOMP as u32;
    let number = |name: &str| {
        let sys = Sys::from_name(abi, name)?;
        let number = u32::try_from(sys.number).ok()?;
        (!wanted.contains(sys)).then_some(number + offset)
    };
    for (name, test, value) in
        [("prctl", EQUAL, PR_SET_SECCOMP), ("clone", ANY_BIT, CLONE_UNTRACED)]
    {
        if let Some(number) = number(name) {
            block.extend([
                libc::sock_filter { code: EQUAL, jt: 0, jf: 4, k: number },
                statement(LOAD, ARG0_LOW),
                libc::sock_filter { code: test, jt: 0, jf: 1, k: value },
                statement(RETURN, TRACE),
                statement(RETURN, ALLOW),
            ]);
        }
    }
    // Their arguments lie in memory, which a filter cannot read.
    for name in ["seccomp", "clone3"] {
        if let Some(number) = number(name) {
            block.extend([
                libc::sock_filter { code: EQUAL, jt: 0, jf: 1, k: number },
                statement(RETURN, TRACE),
            ]);
        }
    }
}

/// Requests of ioctl that make a descriptor (ioctl_tty(2), ioctl_ns(2), KVM's).
pub const MAKING_IOCTLS: [u32; 5] = [0x5441, 0xb701, 0xb702, 0xae01, 0xae41];
const MAKING_FCNTLS: [u32; 2] = [libc::F_DUPFD as u32, libc::F_DUPFD_CLOEXEC as u32];

/// Of the fcntls and ioctls that are wanted, lets through those that make no
/// descriptor.
fn makers(abi: Abi, offset: u32, wanted: &CallSet, block: &mut Vec<libc::sock_filter>) {
    let calls: [(&str, &[u32]); 3] =
        [("fcntl", &MAKING_FCNTLS), ("fcntl64", &MAKING_FCNTLS), ("ioctl", &MAKING_IOCTLS)];
    for (name, making) in calls {
        let sys = Sys::from_name(abi, name).filter(|sys| wanted.contains(*sys));
        let Some(number) = sys.and_then(|sys| u32::try_from(sys.number).ok()) else { continue };
        let tests = making.len() as u8;
        block.extend([
            libc::sock_filter { code: EQUAL, jt: 0, jf: tests + 3, k: number + offset },
            statement(LOAD, ARG1_LOW),
        ]);
        for (i, request) in making.iter().enumerate() {
            // To the RETURN TRACE behind the last of them and one more.
            block.push(libc::sock_filter { code: EQUAL, jt: tests - i as u8, jf: 0, k: *request });
        }
        block.extend([statement(RETURN, ALLOW), statement(RETURN, TRACE)]);
    }
}

/// Returns `verdict` for each of these ascending numbers.
fn ranges(numbers: impl Iterator<Item = u32>, verdict: u32, block: &mut Vec<libc::sock_filter>) {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for n in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => runs.push((n, n)),
        }
    }
    for (first, last) in runs {
        block.extend([
            libc::sock_filter { code: AT_LEAST, jt: 0, jf: 2, k: first },
            libc::sock_filter { code: GREATER, jt: 1, jf: 0, k: last },
            statement(RETURN, verdict),
        ]);
    }
}

#[cfg(test)]
#[path = "seccomp_tests.rs"]
mod tests;
