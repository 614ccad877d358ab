//! System calls as numbers and names: which table a number belongs to, what a call is
//! called, which of its arguments is what, and sets of calls for `-e trace=`.
//!
//! A number means nothing without its table, so everything here is keyed by [`Sys`]:
//! an [`Abi`] and a number. Names come from the `syscalls` crate, corrected and
//! extended by `syscall-tables/numbers.txt`; roles and classes from
//! `syscall-tables/calls.txt`.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

pub mod errno;
mod operations;
pub mod set;
pub mod split;
pub mod table;

pub use set::{CallSet, ExprError};
pub use table::{CallInfo, Classes, ReturnRole, Role, changes, info};

/// The bit that marks a number of the x32 table (`__X32_SYSCALL_BIT`, asm/unistd.h).
const X32_BIT: u32 = 0x4000_0000;

/// One of the system call tables of a kernel.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd, Debug, Serialize, Deserialize)]
pub enum Abi {
    /// 64-bit x86, entered by `syscall`.
    X86_64,
    /// 32-bit x86, entered by `int 0x80` or `sysenter`, also from 64-bit code.
    I386,
    /// 64-bit x86 with 32-bit pointers: the numbers of x86_64 with bit 30 set.
    X32,
    /// 64-bit ARM.
    Aarch64,
    /// 32-bit ARM (EABI). Its names are not known here: its calls are labelled by number.
    Arm,
}

impl Abi {
    /// Every ABI, in the order of the enumeration.
    pub const ALL: [Self; 5] = [Self::X86_64, Self::I386, Self::X32, Self::Aarch64, Self::Arm];

    /// The table and the number in it, from what `PTRACE_GET_SYSCALL_INFO` and seccomp
    /// report: an `AUDIT_ARCH_*` constant (linux/audit.h) and the raw number.
    ///
    /// The number is the low 32 bits, sign-extended, so a tracer's -1 ("skip the call")
    /// stays -1. `None` for an architecture that is not one of [`Abi`].
    pub const fn from_audit(arch: u32, raw_number: u64) -> Option<(Self, i64)> {
        let number = raw_number as u32 as i32;
        let abi = match arch {
            // A negative number has the x32 bit too, and is no x32 call.
            0xC000_003E if number >= 0 && number as u32 & X32_BIT != 0 => {
                return Some((Self::X32, (number as u32 & !X32_BIT) as i64));
            }
            0xC000_003E => Self::X86_64,
            0x4000_0003 => Self::I386,
            0xC000_00B7 => Self::Aarch64,
            0x4000_0028 => Self::Arm,
            _ => return None,
        };
        Some((abi, number as i64))
    }

    /// The name used in output: `x86_64`, `i386`, `x32`, `aarch64` or `arm`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::I386 => "i386",
            Self::X32 => "x32",
            Self::Aarch64 => "aarch64",
            Self::Arm => "arm",
        }
    }

    /// The ABI this program itself is built for.
    pub const fn native() -> Self {
        if cfg!(target_arch = "aarch64") {
            Self::Aarch64
        } else if cfg!(target_arch = "arm") {
            Self::Arm
        } else if cfg!(target_arch = "x86") {
            Self::I386
        } else if cfg!(target_pointer_width = "32") {
            Self::X32
        } else {
            Self::X86_64
        }
    }

    /// The calls of its table that have a name.
    pub fn calls(self) -> impl Iterator<Item = Sys> {
        table::known(self).map(move |(number, _)| Sys::new(self, number))
    }

    /// The ABI of that [name](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|abi| abi.name() == name)
    }
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A system call: a number in the table of an ABI. Any number is allowed; those that
/// no kernel defines have no name.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd, Debug, Serialize, Deserialize)]
pub struct Sys {
    /// The table.
    pub abi: Abi,
    /// The number in the table, without the x32 bit. -1 for a call that was skipped.
    pub number: i64,
}

impl Sys {
    /// The call of that number.
    pub const fn new(abi: Abi, number: i64) -> Self {
        Self { abi, number }
    }

    /// The call of that name in that ABI.
    pub fn from_name(abi: Abi, name: &str) -> Option<Self> {
        table::number(abi, name).map(|number| Self { abi, number })
    }

    /// The calls of this name, in every ABI that has one.
    pub fn all_named(name: &str) -> impl Iterator<Item = Self> {
        Abi::ALL.into_iter().filter_map(move |abi| Self::from_name(abi, name))
    }

    /// What is known of the call: its name, classes and the roles of its arguments in
    /// this ABI. One table look-up.
    pub fn info(self) -> Option<&'static CallInfo> {
        table::by_number(self.abi, self.number)
    }

    /// The kernel's name of the call.
    pub fn name(self) -> Option<&'static str> {
        self.info().map(|info| info.name)
    }

    /// The name, or `syscall_0x1d9` (the number in hexadecimal) for a number without
    /// one, and `syscall_-1` for a negative number.
    pub fn label(self) -> Cow<'static, str> {
        match self.name() {
            Some(name) => Cow::Borrowed(name),
            None if self.number < 0 => Cow::Owned(format!("syscall_{}", self.number)),
            None => Cow::Owned(format!("syscall_{:#x}", self.number)),
        }
    }

    /// Whether it is exit or exit_group, which do not return.
    pub const fn is_exit(self) -> bool {
        match self.abi {
            Abi::X86_64 | Abi::X32 => matches!(self.number, 60 | 231),
            Abi::I386 => matches!(self.number, 1 | 252),
            Abi::Aarch64 => matches!(self.number, 93 | 94),
            Abi::Arm => matches!(self.number, 1 | 248),
        }
    }

    /// Whether it is execve or execveat.
    pub const fn is_exec(self) -> bool {
        match self.abi {
            Abi::X86_64 => matches!(self.number, 59 | 322),
            Abi::X32 => matches!(self.number, 520 | 545),
            Abi::I386 => matches!(self.number, 11 | 358),
            Abi::Aarch64 => matches!(self.number, 221 | 281),
            Abi::Arm => matches!(self.number, 11 | 387),
        }
    }

    /// Whether it is sigreturn or rt_sigreturn, whose result is a register of the
    /// interrupted code and no status.
    pub const fn is_sigreturn(self) -> bool {
        match self.abi {
            Abi::X86_64 => self.number == 15,
            Abi::X32 => self.number == 513,
            Abi::Aarch64 => self.number == 139,
            Abi::I386 | Abi::Arm => matches!(self.number, 119 | 173),
        }
    }

    /// Whether it is restart_syscall, by which the kernel goes on with a call that a
    /// signal interrupted.
    pub const fn is_restart_syscall(self) -> bool {
        match self.abi {
            Abi::X86_64 | Abi::X32 => self.number == 219,
            Abi::I386 | Abi::Arm => self.number == 0,
            Abi::Aarch64 => self.number == 128,
        }
    }
}

impl fmt::Display for Sys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_architectures() {
        assert_eq!(Abi::from_audit(0xC000_003E, 1), Some((Abi::X86_64, 1)));
        assert_eq!(Abi::from_audit(0x4000_0003, 4), Some((Abi::I386, 4)));
        assert_eq!(Abi::from_audit(0xC000_00B7, 64), Some((Abi::Aarch64, 64)));
        assert_eq!(Abi::from_audit(0x4000_0028, 0xf_0002), Some((Abi::Arm, 0xf_0002)));
        assert_eq!(Abi::from_audit(0xC000_003E, 0x4000_0200), Some((Abi::X32, 512)));
        // Only x86_64 has the x32 bit.
        assert_eq!(Abi::from_audit(0x4000_0003, 0x4000_0200), Some((Abi::I386, 0x4000_0200)));
        assert_eq!(Abi::from_audit(0xC000_00F3, 1), None);
    }

    #[test]
    fn audit_numbers_are_32_bits() {
        for minus_one in [u64::MAX, 0xffff_ffff] {
            assert_eq!(Abi::from_audit(0xC000_003E, minus_one), Some((Abi::X86_64, -1)));
        }
        assert_eq!(Abi::from_audit(0xC000_003E, 0xdead_0000_0001), Some((Abi::X86_64, 1)));
    }

    #[test]
    fn names() {
        let cases = [
            (Abi::X86_64, 0, "read"),
            (Abi::X86_64, 257, "openat"),
            (Abi::X86_64, 469, "file_setattr"),
            (Abi::X86_64, 470, "listns"),
            (Abi::X86_64, 471, "rseq_slice_yield"),
            (Abi::I386, 17, "break"),
            (Abi::I386, 4, "write"),
            (Abi::I386, 221, "fcntl64"),
            (Abi::X32, 0, "read"),
            (Abi::X32, 512, "rt_sigaction"),
            (Abi::X32, 547, "pwritev2"),
            (Abi::X32, 470, "listns"),
            (Abi::Aarch64, 79, "newfstatat"),
            (Abi::Aarch64, 64, "write"),
        ];
        for (abi, number, name) in cases {
            assert_eq!(Sys::new(abi, number).name(), Some(name), "{abi} {number}");
            assert_eq!(Sys::from_name(abi, name), Some(Sys::new(abi, number)));
            assert!(matches!(Sys::new(abi, number).label(), Cow::Borrowed(_)));
        }
        // The x32 table has gaps where it has calls of its own.
        assert_eq!(Sys::new(Abi::X32, 59).name(), None);
        assert_eq!(Sys::from_name(Abi::X86_64, "socketcall"), None);
        assert_eq!(Sys::from_name(Abi::X86_64, ""), None);
        assert_eq!(Sys::from_name(Abi::Arm, "read"), None);
    }

    #[test]
    fn labels_of_any_number() {
        assert_eq!(Sys::new(Abi::X86_64, 0x1d9).label(), "syscall_0x1d9");
        assert_eq!(Sys::new(Abi::X86_64, -1).label(), "syscall_-1");
        assert_eq!(Sys::new(Abi::Arm, 3).label(), "syscall_0x3");
        for abi in Abi::ALL {
            for number in [i64::MIN, i64::MIN + 1, -4096, 336, 400, 511, 548, 1023, 1024, i64::MAX]
            {
                let sys = Sys::new(abi, number);
                assert!(!sys.label().is_empty());
                assert_eq!(sys.to_string(), sys.label());
            }
        }
    }

    #[test]
    fn kinds_agree_with_the_names() {
        for abi in [Abi::X86_64, Abi::I386, Abi::X32, Abi::Aarch64] {
            for number in -2..1100 {
                let sys = Sys::new(abi, number);
                let name = sys.name().unwrap_or("");
                assert_eq!(sys.is_exit(), ["exit", "exit_group"].contains(&name));
                assert_eq!(sys.is_exec(), ["execve", "execveat"].contains(&name));
                assert_eq!(sys.is_sigreturn(), ["sigreturn", "rt_sigreturn"].contains(&name));
                assert_eq!(sys.is_restart_syscall(), name == "restart_syscall");
            }
        }
    }

    #[test]
    fn native_has_a_name() {
        assert_eq!(Abi::from_name(Abi::native().name()), Some(Abi::native()));
        assert_eq!(Abi::from_name("mips"), None);
    }
}
