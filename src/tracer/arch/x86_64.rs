//! x86_64, with i386 and x32 programs under it.

use crate::syscall::{Abi, Sys};

use super::super::stop::Entry;

/// The register set of a 64-bit tracee (NT_PRSTATUS).
pub type Native = libc::user_regs_struct;

/// Length of what PTRACE_GETREGSET returns for a 32-bit tracee: 17 words.
const COMPAT_SIZE: usize = 17 * 4;

/// `int 0x80`, which 64-bit code can use too.
const INT80: [u8; 2] = [0xcd, 0x80];

const X32_BIT: u64 = 0x4000_0000;

/// The call's number stands among the other registers.
pub const SYSTEM_CALL_SET: Option<usize> = None;

/// The vsyscall page. What a program calls there the kernel does itself: it asks
/// a filter, but makes no call of it, and kills who changes a register.
pub const VSYSCALL: std::ops::Range<u64> = 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000;

/// The registers of a stopped tracee.
#[derive(Debug, Clone, Copy)]
pub enum Registers {
    /// Of a 64-bit tracee; what is written back.
    Native(Native),
    /// Of a 32-bit tracee: ebx ecx edx esi edi ebp eax xds xes xfs xgs
    /// orig_eax eip xcs eflags esp xss.
    Compat([u32; 17]),
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
        // The 32-bit set lies packed at the start of the buffer: fields of the
        // native one, in memory order, hold two words each.
        let n = &native;
        let wide = [n.r15, n.r14, n.r13, n.r12, n.rbp, n.rbx, n.r11, n.r10, n.r9];
        let mut words = [0; 17];
        for (i, word) in words.iter_mut().enumerate() {
            let both = wide.get(i / 2).copied().unwrap_or(0);
            *word = (both >> (32 * (i % 2))) as u32;
        }
        Some(Self::Compat(words))
    }

    /// Instruction pointer.
    pub fn ip(&self) -> u64 {
        match self {
            Self::Native(r) => r.rip,
            Self::Compat(r) => r[12].into(),
        }
    }

    /// Stack pointer.
    pub fn sp(&self) -> u64 {
        match self {
            Self::Native(r) => r.rsp,
            Self::Compat(r) => r[15].into(),
        }
    }

    /// The call of an entry stop; `before` are the two bytes before the
    /// instruction pointer, which alone tell `int 0x80` in 64-bit code.
    pub fn entry(&self, before: [u8; 2]) -> Entry {
        let (sys, args) = match self {
            Self::Compat(r) => (
                Sys { abi: Abi::I386, number: i64::from(r[11] as i32) },
                [r[0], r[1], r[2], r[3], r[4], r[5]].map(u64::from),
            ),
            Self::Native(r) if before == INT80 => (
                Sys { abi: Abi::I386, number: i64::from(r.orig_rax as i32) },
                [r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp].map(|v| v & 0xffff_ffff),
            ),
            Self::Native(r) => {
                let number = i64::from(r.orig_rax as i32);
                let sys = if number >= 0 && r.orig_rax & X32_BIT != 0 {
                    Sys { abi: Abi::X32, number: number & !(X32_BIT as i64) }
                } else {
                    Sys { abi: Abi::X86_64, number }
                };
                (sys, [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9])
            }
        };
        Entry { sys, args, ip: self.ip(), sp: self.sp() }
    }

    /// Whether the stop is on the way out of a call, rather than anywhere else.
    pub fn in_call(&self) -> bool {
        match self {
            Self::Native(r) => (r.orig_rax as i64) >= 0,
            Self::Compat(r) => (r[11] as i32) >= 0,
        }
    }

    /// The value of an exit stop.
    pub fn value(&self) -> i64 {
        match self {
            Self::Native(r) => r.rax as i64,
            Self::Compat(r) => i64::from(r[6] as i32),
        }
    }

    /// Makes a 64-bit tracee issue `entry` again when it is resumed.
    pub fn reissue(&mut self, entry: &Entry) {
        if let Self::Native(r) = self {
            r.rip = entry.ip.wrapping_sub(2);
            r.rax = entry.sys.number as u64;
            r.orig_rax = u64::MAX; // Not in a call: the kernel must not restart it too.
        }
    }

    /// Makes the call that `entry` was return `value`.
    pub fn finish(&mut self, entry: &Entry, value: i64) {
        if let Self::Native(r) = self {
            r.rip = entry.ip;
            r.rax = value as u64;
            r.orig_rax = u64::MAX;
            self.set_arguments(&entry.args);
        }
    }

    /// Makes the call of an entry stop be skipped and return `value`.
    pub fn skip(&mut self, value: i64) {
        if let Self::Native(r) = self {
            r.orig_rax = u64::MAX;
            r.rax = value as u64;
        }
    }

    /// Sets all arguments.
    pub fn set_arguments(&mut self, args: &[u64; 6]) {
        if let Self::Native(r) = self {
            [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = *args;
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
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "mov r10, r8",
    "coldtrace_call_once_at:",
    "syscall",
    "coldtrace_call_once_done:",
    "ret",
);

/// A register as a signal handler sees it.
pub type Word = i64;

/// Where a signal handler returns to, and the register with a call's result.
pub fn ip_and_result(context: &mut libc::mcontext_t) -> (&mut Word, &mut Word) {
    const { assert!(libc::REG_RAX < libc::REG_RIP) };
    let (before, from) = context.gregs.split_at_mut(libc::REG_RIP as usize);
    (&mut from[0], &mut before[libc::REG_RAX as usize])
}
