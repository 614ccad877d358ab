//! The filter's program, interpreted as the kernel would, must say of every call what the set of
//! wanted calls says, and stop besides only what the tracer itself must see.

use super::*;

/// What the kernel shows a filter (`struct seccomp_data`, linux/seccomp.h).
#[derive(Debug, Clone, Copy)]
struct Data {
    number: u32,
    arch: u32,
    argument: u64,
    second: u64,
}

impl Data {
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.arch,
            16 => self.argument as u32,
            20 => (self.argument >> 32) as u32,
            24 => self.second as u32,
            other => panic!("the filter reads at {other}"),
        }
    }
}

/// Runs the program. Panics over whatever the kernel's checker would refuse.
fn interpret(program: &[libc::sock_filter], data: Data) -> u32 {
    let mut loaded = 0;
    let mut at = 0;
    loop {
        let instruction = program.get(at).expect("a jump or the end leads out of the program");
        at += 1;
        let mut branch = |taken: bool| {
            at += usize::from(if taken { instruction.jt } else { instruction.jf });
        };
        let k = instruction.k;
        match u32::from(instruction.code) {
            code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => loaded = data.word(k),
            code if code == libc::BPF_JMP | libc::BPF_JA => at += k as usize,
            code if code == libc::BPF_JMP | libc::BPF_JEQ => branch(loaded == k),
            code if code == libc::BPF_JMP | libc::BPF_JGT => branch(loaded > k),
            code if code == libc::BPF_JMP | libc::BPF_JGE => branch(loaded >= k),
            code if code == libc::BPF_JMP | libc::BPF_JSET => branch(loaded & k != 0),
            code if code == libc::BPF_RET => return k,
            code => panic!("the filter has an instruction {code:#x}"),
        }
    }
}

/// Calls that end in EINTR when any signal wakes them: never restarted after a stop either
/// (signal(7)). Written down again, so that none gets lost there.
const NEVER_RESTARTED: &[&str] = &[
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

/// What the filter has to say, by what its documentation promises.
fn promised(wanted: &CallSet, only_makers: bool, data: Data) -> u32 {
    let Some((abi, number)) = Abi::from_audit(data.arch, u64::from(data.number)) else {
        return TRACE; // No table: the tracer has to look.
    };
    let sys = Sys { abi, number };
    let name = sys.name().unwrap_or_default();
    let first = data.argument as u32;
    let seen = match name {
        "seccomp" | "clone3" => true,
        "prctl" => first == libc::PR_SET_SECCOMP as u32,
        "clone" => first & libc::CLONE_UNTRACED as u32 != 0,
        _ => abi == Abi::native() && NEVER_RESTARTED.contains(&name),
    };
    let request = data.second as u32;
    let makes = match name {
        "fcntl" | "fcntl64" => matches!(request as i32, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC),
        "ioctl" => MAKING_IOCTLS.contains(&request),
        _ => true,
    };
    let passed = only_makers && !makes;
    if seen || wanted.contains(sys) && !passed { TRACE } else { ALLOW }
}

/// Panics where the filter for `wanted` says anything else than it should. False when it would be
/// too long.
fn holds(wanted: &CallSet, name: &str) -> bool {
    says(wanted, false, name) && says(wanted, true, name)
}

fn says(wanted: &CallSet, only_makers: bool, name: &str) -> bool {
    const X32_BIT: u32 = 0x4000_0000;
    const OTHER_ARCHES: [u32; 3] = [0, 0xc000_00f3, 0x8000_0016];
    let Some(filter) = Filter::stopping(wanted, only_makers) else {
        return false;
    };
    assert!(filter.program.len() <= libc::BPF_MAXINSNS as usize, "{name}");
    let low = 0..1100;
    let x32 = (0..1100).map(|n| n | X32_BIT);
    let odd = [X32_BIT - 1, 0x3fff_fff0, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];
    let numbers: Vec<u32> = low.chain(x32).chain(odd).collect();
    let seccomp = libc::PR_SET_SECCOMP as u64;
    let untraced = libc::CLONE_UNTRACED as u64;
    let fork = untraced | libc::SIGCHLD as u64;
    let arguments = [0, seccomp, fork, 1 << 32 | seccomp, untraced << 32, u64::MAX];
    for arch in ARCHES.iter().map(|(arch, _)| *arch).chain(OTHER_ARCHES) {
        for &number in &numbers {
            for argument in arguments {
                for second in [0, libc::F_DUPFD_CLOEXEC as u64, 3, 1 << 32, 0x5441, 0xae41, 0x5413]
                {
                    let data = Data { number, arch, argument, second };
                    let said = interpret(&filter.program, data);
                    let right = promised(wanted, only_makers, data);
                    assert_eq!(said, right, "{data:x?} under {name}");
                }
            }
        }
    }
    true
}

#[test]
fn the_filter_stops_what_is_wanted_and_what_the_tracer_must_see() {
    for expression in [
        "none",
        "all",
        "openat",
        "!openat",
        "read,write,close",
        "473,1000",
        "!473,1000",
        "0,1023",
        "%file",
        "!%file",
        "%process,%signal",
        "/^[a-m]",
        "!/^[a-m]",
        "read@32",
        "getpid@x32,getpid@64",
        "!getpid@32",
        "prctl,clone,clone3,seccomp",
        "!prctl,clone,clone3,seccomp",
        "!epoll_wait,io_uring_enter",
        "execve,exit_group",
    ] {
        let wanted = CallSet::parse(expression, Abi::native()).unwrap();
        assert!(holds(&wanted, expression), "{expression} is too long");
    }
}

#[test]
fn the_filter_stops_what_is_wanted_whatever_the_set() {
    // A generator as in C's manual: the sets are always the same.
    let mut state = 1u32;
    let mut random = move || {
        state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        state >> 16
    };
    for round in 0..40 {
        let rarity = random() % 40 + 1;
        let mut wanted = CallSet::none();
        for abi in Abi::ALL {
            for number in 0..1024 {
                if random() % (rarity + 1) == 0 {
                    wanted.insert(Sys { abi, number });
                }
            }
        }
        let wanted = if round % 2 == 0 { wanted } else { wanted.inverted() };
        assert!(holds(&wanted, &format!("set {round}")), "set {round} is too long");
    }
}

#[test]
fn a_set_too_scattered_for_the_kernel_gives_no_filter() {
    let mut wanted = CallSet::none();
    for abi in Abi::ALL {
        for number in (0..1024).step_by(2) {
            wanted.insert(Sys { abi, number });
        }
    }
    assert!(!holds(&wanted, "every second number"));
    assert!(!holds(&wanted.inverted(), "the others"));
}
