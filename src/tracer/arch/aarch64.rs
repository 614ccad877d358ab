//! aarch64, with 32-bit arm programs under it.

use crate::syscall::{Abi, Sys};

use super::super::stop::Entry;

/// The register set of a 64-bit tracee (NT_PRSTATUS).
pub type Native = libc::user_regs_struct;

/// Length of what PTRACE_GETREGSET returns for a 32-bit tracee: 18 words.
const COMPAT_SIZE: usize = 18 * 4;

/// The register set that holds the number of the call being entered
/// (NT_ARM_SYSTEM_CALL, Linux 3.19).
pub const SYSTEM_CALL_SET: Option<usize> = Some(0x404);

/// There is no vsyscall page.
pub const VSYSCALL: std::ops::Range<u64> = 0..0;

/// The registers of a stopped tracee.
#[derive(Debug, Clone, Copy)]
pub enum Registers {
    /// Of a 64-bit tracee; what is written back.
    Native(Native),
    /// Of a 32-bit tracee: r0 to r15, cpsr, orig_r0.
    Compat([u32; 18]),
}

impl Registers {
    /// From what PTRACE_GETREGSET returned, whose length tells the kind.
    pub fn from_set(native: Native, length: usize) -> Option<Self> {
        if length == size_of::<Native>() {
            return Some(Self::Native(native));
        }
        if length != COMPAT_SIZE {
            return None;
        }
        let mut words = [0; 18];
        for (i, word) in words.iter_mut().enumerate() {
            let both = native.regs.get(i / 2).copied().unwrap_or(0);
            *word = (both >> (32 * (i % 2))) as u32;
        }
        Some(Self::Compat(words))
    }

    /// Instruction pointer.
    pub fn ip(&self) -> u64 {
        match self {
            Self::Native(r) => r.pc,
            Self::Compat(r) => r[15].into(),
        }
    }

    /// Stack pointer.
    pub fn sp(&self) -> u64 {
        match self {
            Self::Native(r) => r.sp,
            Self::Compat(r) => r[13].into(),
        }
    }

    /// The call of an entry stop. x0 still holds the first argument here; at
    /// the exit stop it does not, and x8 may have been changed.
    pub fn entry(&self, _before: [u8; 2]) -> Entry {
        let (sys, args) = match self {
            Self::Native(r) => (
                Sys { abi: Abi::Aarch64, number: i64::from(r.regs[8] as i32) },
                [r.regs[0], r.regs[1], r.regs[2], r.regs[3], r.regs[4], r.regs[5]],
            ),
            Self::Compat(r) => (
                Sys { abi: Abi::Arm, number: i64::from(r[7] as i32) },
                [r[0], r[1], r[2], r[3], r[4], r[5]].map(u64::from),
            ),
        };
        Entry { sys, args, ip: self.ip(), sp: self.sp() }
    }

    /// Whether the stop is on the way out of a call, rather than anywhere else:
    /// the registers do not tell here, but for a call that was interrupted.
    pub fn in_call(&self) -> bool {
        matches!(self.value(), -512 | -513 | -514 | -516)
    }

    /// The value of an exit stop.
    pub fn value(&self) -> i64 {
        match self {
            Self::Native(r) => r.regs[0] as i64,
            Self::Compat(r) => i64::from(r[0] as i32),
        }
    }

    /// Makes a 64-bit tracee issue `entry` again when it is resumed.
    pub fn reissue(&mut self, entry: &Entry) {
        if let Self::Native(r) = self {
            r.pc = entry.ip.wrapping_sub(4);
            r.regs[8] = entry.sys.number as u64;
        }
        self.set_arguments(&entry.args);
    }

    /// Makes the call that `entry` was return `value`.
    pub fn finish(&mut self, entry: &Entry, value: i64) {
        self.set_arguments(&entry.args);
        if let Self::Native(r) = self {
            r.pc = entry.ip;
            r.regs[0] = value as u64;
        }
    }

    /// What a call that is skipped at its entry stop will return. That it is
    /// skipped is said elsewhere: the number is not in this register set
    /// ([`SYSTEM_CALL_SET`]).
    pub fn skip(&mut self, value: i64) {
        if let Self::Native(r) = self {
            r.regs[0] = value as u64;
        }
    }

    /// Sets all arguments.
    pub fn set_arguments(&mut self, args: &[u64; 6]) {
        if let Self::Native(r) = self {
            r.regs[..6].copy_from_slice(args);
        }
    }
}

// `call_once` of mod.rs: number, a, b, c, d.
std::arch::global_asm!(
    ".globl coldtrace_call_once",
    ".hidden coldtrace_call_once",
    ".globl coldtrace_call_once_at",
    ".hidden coldtrace_call_once_at",
    ".globl coldtrace_call_once_done",
    ".hidden coldtrace_call_once_done",
    "coldtrace_call_once:",
    "mov x8, x0",
    "mov x0, x1",
    "mov x1, x2",
    "mov x2, x3",
    "mov x3, x4",
    "coldtrace_call_once_at:",
    "svc #0",
    "coldtrace_call_once_done:",
    "ret",
);

/// A register as a signal handler sees it.
pub type Word = u64;

/// Where a signal handler returns to, and the register with a call's result.
pub fn ip_and_result(context: &mut libc::mcontext_t) -> (&mut Word, &mut Word) {
    (&mut context.pc, &mut context.regs[0])
}
