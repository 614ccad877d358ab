//! What differs from one architecture to the next: registers, and where a
//! call's number and arguments stand in them. One file an architecture; each
//! gives the same type `Registers`.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Native, Registers, SYSTEM_CALL_SET, VSYSCALL};
#[cfg(target_arch = "x86_64")]
use x86_64::{Word, ip_and_result};

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::{Native, Registers, SYSTEM_CALL_SET, VSYSCALL};
#[cfg(target_arch = "aarch64")]
use aarch64::{Word, ip_and_result};

unsafe extern "C" {
    /// A system call, made at `coldtrace_call_once_at` and done at
    /// `coldtrace_call_once_done`.
    fn coldtrace_call_once(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize;
    static coldtrace_call_once_at: u8;
    static coldtrace_call_once_done: u8;
}

/// A system call that a signal ends in EINTR, if its handler calls
/// [`end_call_once`]: also where the kernel would start it again (ERESTARTNOINTR
/// of PTRACE_SEIZE, whatever SA_RESTART says). Returns what the kernel does: an
/// error is its negative number.
///
/// # Safety
/// As the call's.
pub unsafe fn call_once(number: libc::c_long, [a, b, c, d]: [usize; 4]) -> isize {
    // SAFETY: as the caller vouches.
    unsafe { coldtrace_call_once(number as usize, a, b, c, d) }
}

/// In a signal handler: the call that was interrupted, if it is one of
/// [`call_once`], returns EINTR. One that is not begun yet does too.
///
/// # Safety
/// `context` is the handler's third argument (sigaction(2)).
pub unsafe fn end_call_once(context: *mut libc::c_void) {
    let (at, done) = (&raw const coldtrace_call_once_at, &raw const coldtrace_call_once_done);
    // SAFETY: the kernel passes a valid ucontext, which nobody else uses.
    let (ip, result) =
        ip_and_result(unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext });
    if *ip == at as Word {
        *ip = done as Word;
        *result = -libc::EINTR as Word;
    }
}

/// Bytes of the largest register set that PTRACE_GETREGSET may return.
pub const NATIVE_SIZE: usize = size_of::<Native>();
