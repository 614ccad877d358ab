//! What differs from one architecture to the next: registers, and where a
//! call's number and arguments stand in them. One file an architecture; each
//! gives the same type `Registers`.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Native, Registers, SYSTEM_CALL_SET, VSYSCALL};

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::{Native, Registers, SYSTEM_CALL_SET, VSYSCALL};

/// Bytes of the largest register set that PTRACE_GETREGSET may return.
pub const NATIVE_SIZE: usize = size_of::<Native>();
