//! What this process was started with, before Rust's runtime changed it: the
//! command must find the same. The runtime opens /dev/null for closed standard
//! descriptors and ignores SIGPIPE before `main`; SIGXFSZ is ignored by `main`.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Bits 0 to 2: that descriptor was closed. Bits 3 and 4: a signal was ignored.
static FOUND: AtomicI32 = AtomicI32::new(0);

/// Signals that this process ignores for itself, with their bits.
const IGNORED: [(i32, i32); 2] = [(libc::SIGPIPE, 8), (libc::SIGXFSZ, 16)];

extern "C" fn look() {
    let mut found = 0;
    for fd in 0..=2 {
        // SAFETY: F_GETFD only asks; it is async-signal-safe and needs no runtime.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            found |= 1 << fd;
        }
    }
    for (signal, bit) in IGNORED {
        // SAFETY: all-zero bytes are a valid sigaction, which the kernel overwrites.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a null new action only asks for the old one.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        if asked == 0 && action.sa_sigaction == libc::SIG_IGN {
            found |= bit;
        }
    }
    FOUND.store(found, Relaxed);
}

// SAFETY: the C runtime calls each pointer of .init_array once, before main;
// `look` uses nothing that needs Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether standard descriptor `fd` (0..=2) was closed.
pub fn was_closed(fd: i32) -> bool {
    FOUND.load(Relaxed) & (1 << fd) != 0
}

/// Signals that this process ignores, and that were not ignored when it started.
pub fn to_restore() -> impl Iterator<Item = i32> {
    let found = FOUND.load(Relaxed);
    IGNORED.into_iter().filter(move |(_, bit)| found & bit == 0).map(|(signal, _)| signal)
}

/// Ignores the signals of writes that fail: the error of the write is enough.
pub fn ignore_failed_writes() {
    for (signal, _) in IGNORED {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
