//! Names of error numbers and signals.

use std::borrow::Cow;

/// The first real-time signal (`SIGRTMIN` of the kernel; the C library keeps two).
const RT_FIRST: i32 = 32;
/// The last signal (`_NSIG`).
const RT_LAST: i32 = 64;

/// The signals below the real-time ones, from 1 on; signal(7), the column of x86 and
/// ARM.
const SIGNALS: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// Other names of a signal, signal(7).
const SIGNAL_ALIASES: [(&str, &str); 5] = [
    ("SIGIOT", "SIGABRT"),
    ("SIGCLD", "SIGCHLD"),
    ("SIGPOLL", "SIGIO"),
    ("SIGUNUSED", "SIGSYS"),
    ("SIGRT_0", "SIGRTMIN"),
];

/// The name of an error number (positive, as errno): `ENOENT` for 2. Also those the
/// kernel uses inside and only a tracer sees: `ERESTARTSYS` (512) and its like. `None`
/// for a number without a name.
pub fn errno_name(errno: i32) -> Option<&'static str> {
    syscalls::Errno::new(errno).name()
}

/// The name of an error number, or `errno_4095` for one without a name.
pub fn errno_label(errno: i32) -> Cow<'static, str> {
    match errno_name(errno) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("errno_{errno}")),
    }
}

/// The name of a signal: `SIGHUP` to `SIGSYS`, then, as strace has them, `SIGRTMIN`
/// (32) and `SIGRT_1` (33) to `SIGRT_32` (64). `signal_65` for a number that is none.
pub fn signal_name(signal: i32) -> Cow<'static, str> {
    let ordinary =
        usize::try_from(signal).ok().and_then(|signal| SIGNALS.get(signal.checked_sub(1)?));
    match (ordinary, signal) {
        (Some(name), _) => Cow::Borrowed(name),
        (None, RT_FIRST) => Cow::Borrowed("SIGRTMIN"),
        (None, RT_FIRST..=RT_LAST) => Cow::Owned(format!("SIGRT_{}", signal - RT_FIRST)),
        (None, _) => Cow::Owned(format!("signal_{signal}")),
    }
}

/// The number of a signal, by the name [`signal_name`] gives, with or without `SIG` and
/// in any case, by another of its names, or by its number in decimal. `None` if there
/// is no such signal.
pub fn signal_number(name: &str) -> Option<i32> {
    if let Ok(number) = name.parse::<i32>() {
        return (1..=RT_LAST).contains(&number).then_some(number);
    }
    let upper = name.to_ascii_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    if full == "SIGRTMAX" {
        return Some(RT_LAST);
    }
    let full = SIGNAL_ALIASES
        .iter()
        .find(|(alias, _)| *alias == full)
        .map_or(full.as_str(), |(_, name)| *name);
    (1..=RT_LAST).find(|signal| signal_name(*signal) == full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names() {
        assert_eq!(errno_name(1), Some("EPERM"));
        assert_eq!(errno_name(2), Some("ENOENT"));
        assert_eq!(errno_name(11), Some("EAGAIN"));
        assert_eq!(errno_name(35), Some("EDEADLK"));
        assert_eq!(errno_name(38), Some("ENOSYS"));
        assert_eq!(errno_name(95), Some("EOPNOTSUPP"));
        assert_eq!(errno_name(133), Some("EHWPOISON"));
        assert_eq!(errno_label(110), "ETIMEDOUT");
        let internal = [
            (512, "ERESTARTSYS"),
            (513, "ERESTARTNOINTR"),
            (514, "ERESTARTNOHAND"),
            (515, "ENOIOCTLCMD"),
            (516, "ERESTART_RESTARTBLOCK"),
            (524, "ENOTSUPP"),
        ];
        for (errno, name) in internal {
            assert_eq!(errno_name(errno), Some(name));
        }
        // The two numbers Linux leaves out (EWOULDBLOCK and EDEADLOCK elsewhere).
        for errno in (1..=133).filter(|errno| ![41, 58].contains(errno)) {
            assert!(errno_name(errno).is_some_and(|name| name.starts_with('E')));
        }
    }

    #[test]
    fn errors_without_a_name() {
        for errno in [i32::MIN, -1, 0, 41, 134, 4095, i32::MAX] {
            assert_eq!(errno_name(errno), None);
            assert_eq!(errno_label(errno), format!("errno_{errno}"));
        }
    }

    #[test]
    fn signal_names() {
        let cases = [
            (1, "SIGHUP"),
            (9, "SIGKILL"),
            (11, "SIGSEGV"),
            (17, "SIGCHLD"),
            (28, "SIGWINCH"),
            (31, "SIGSYS"),
            (32, "SIGRTMIN"),
            (33, "SIGRT_1"),
            (34, "SIGRT_2"),
            (64, "SIGRT_32"),
            (65, "signal_65"),
            (0, "signal_0"),
            (-1, "signal_-1"),
            (i32::MIN, "signal_-2147483648"),
            (i32::MAX, "signal_2147483647"),
        ];
        for (signal, name) in cases {
            assert_eq!(signal_name(signal), name);
        }
    }

    #[test]
    fn signal_numbers() {
        for signal in 1..=64 {
            assert_eq!(signal_number(&signal_name(signal)), Some(signal));
            assert_eq!(signal_number(&signal.to_string()), Some(signal));
        }
        assert_eq!(signal_number("term"), Some(15));
        assert_eq!(signal_number("CHLD"), Some(17));
        assert_eq!(signal_number("SIGCLD"), Some(17));
        assert_eq!(signal_number("SIGPOLL"), Some(29));
        assert_eq!(signal_number("RT_0"), Some(32));
        assert_eq!(signal_number("SIGRTMAX"), Some(64));
        for none in ["", "SIG", "0", "65", "-1", "SIGRT_33", "signal_65", "SIGé"] {
            assert_eq!(signal_number(none), None, "{none}");
        }
    }
}
