//! What this process was started with, before Rust's runtime changed it: the
//! command must find the same. The runtime opens /dev/null for closed standard
//! descriptors and ignores SIGPIPE before `main`.

use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

/// Bits 0 to 2: that descriptor was closed. Bit 3: SIGPIPE was ignored.
static FOUND: AtomicI32 = AtomicI32::new(0);
const SIGPIPE_IGNORED: i32 = 8;

extern "C" fn look() {
    let mut found = 0;
    for fd in 0..=2 {
        // SAFETY: F_GETFD only asks; it is async-signal-safe and needs no runtime.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            found |= 1 << fd;
        }
    }
    // SAFETY: all-zero bytes are a valid sigaction, which the kernel overwrites.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks for the old one.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), &raw mut action) };
    if asked == 0 && action.sa_sigaction == libc::SIG_IGN {
        found |= SIGPIPE_IGNORED;
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

/// Whether SIGPIPE was ignored.
pub fn sigpipe_was_ignored() -> bool {
    FOUND.load(Relaxed) & SIGPIPE_IGNORED != 0
}
