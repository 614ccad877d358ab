//! Calls that are many operations in one: which operation a call asks for.
//!
//! futex, madvise, ioctl, fcntl and prctl do unrelated things by one of their
//! arguments; a count by call alone says little of them.

use std::borrow::Cow;

use super::operations::{FCNTL, FUTEX, IOCTL, MADVISE, Operation, PRCTL};
use super::{Abi, CallSet, Sys};

/// `FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME` (linux/futex.h).
const FUTEX_FLAGS: u32 = 128 | 256;

/// The name of the operation of a call that has several: `WAIT` for futex, `DONTNEED`
/// for madvise, `TCGETS` for ioctl, `F_GETFL` for fcntl, `PR_SET_NAME` for prctl.
///
/// `args` are the arguments as in the registers; the operation is 32 bits wide. An
/// operation without a name here is its value in hexadecimal. `None` for every other
/// call.
pub fn operation(sys: Sys, args: &[u64; 6]) -> Option<Cow<'static, str>> {
    let (names, place, ignored) = selector(sys)?;
    let value = *args.get(place)? as u32;
    Some(match name(names, value & !ignored) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("{value:#x}")),
    })
}

/// The calls that have several.
pub fn operations() -> CallSet {
    let has_several = |sys: &Sys| selector(*sys).is_some();
    CallSet::of(Abi::ALL.into_iter().flat_map(Abi::calls).filter(has_several))
}

/// The names of a call's operations, the argument that selects one and the bits of it
/// that do not matter.
fn selector(sys: Sys) -> Option<(&'static [Operation], usize, u32)> {
    let futex = (FUTEX, 1, FUTEX_FLAGS);
    let madvise = (MADVISE, 2, 0);
    let ioctl = (IOCTL, 1, 0);
    let fcntl = (FCNTL, 1, 0);
    let prctl = (PRCTL, 0, 0);
    // By number: this is asked for each call of a run. 32-bit ABIs have two of futex
    // (futex_time64) and of fcntl (fcntl64).
    Some(match (sys.abi, sys.number) {
        (Abi::X86_64 | Abi::X32, 202) | (Abi::I386 | Abi::Arm, 240 | 422) | (Abi::Aarch64, 98) => {
            futex
        }
        (Abi::X86_64 | Abi::X32, 28) | (Abi::I386, 219) | (Abi::Arm, 220) | (Abi::Aarch64, 233) => {
            madvise
        }
        (Abi::X86_64, 16) | (Abi::X32, 514) | (Abi::I386 | Abi::Arm, 54) | (Abi::Aarch64, 29) => {
            ioctl
        }
        (Abi::X86_64 | Abi::X32, 72) | (Abi::I386 | Abi::Arm, 55 | 221) | (Abi::Aarch64, 25) => {
            fcntl
        }
        (Abi::X86_64 | Abi::X32, 157) | (Abi::I386 | Abi::Arm, 172) | (Abi::Aarch64, 167) => prctl,
        _ => return None,
    })
}

fn name(names: &'static [Operation], value: u32) -> Option<&'static str> {
    let at = names.binary_search_by_key(&value, |known| known.0).ok()?;
    names.get(at).map(|known| known.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(abi: Abi, name: &str, place: usize, value: u64) -> String {
        let mut args = [0x7fff_dead_beef; 6];
        args[place] = value;
        let sys = Sys::from_name(abi, name).unwrap();
        operation(sys, &args).unwrap().into_owned()
    }

    #[test]
    fn tables_are_sorted_and_without_repeats() {
        for table in [FUTEX, MADVISE, FCNTL, PRCTL, IOCTL] {
            assert!(table.is_sorted_by(|one, next| one.0 < next.0));
        }
    }

    #[test]
    fn names_of_operations() {
        let x86 = Abi::X86_64;
        assert_eq!(at(x86, "futex", 1, 0), "WAIT");
        assert_eq!(at(x86, "futex", 1, 1 | 128), "WAKE");
        assert_eq!(at(x86, "futex", 1, 9 | 128 | 256), "WAIT_BITSET");
        assert_eq!(at(x86, "madvise", 2, 4), "DONTNEED");
        assert_eq!(at(x86, "ioctl", 1, 0x5401), "TCGETS");
        assert_eq!(at(x86, "ioctl", 1, 0x5413), "TIOCGWINSZ");
        assert_eq!(at(x86, "ioctl", 1, 0x5421), "FIONBIO");
        assert_eq!(at(x86, "ioctl", 1, 0x541b), "FIONREAD");
        assert_eq!(at(x86, "ioctl", 1, 0x5451), "FIOCLEX");
        assert_eq!(at(x86, "fcntl", 1, 3), "F_GETFL");
        assert_eq!(at(x86, "fcntl", 1, 1030), "F_DUPFD_CLOEXEC");
        assert_eq!(at(x86, "prctl", 0, 15), "PR_SET_NAME");
        assert_eq!(at(x86, "prctl", 0, 0x5356_4d41), "PR_SET_VMA");
        assert_eq!(at(x86, "prctl", 0, 0x5961_6d61), "PR_SET_PTRACER");
    }

    #[test]
    fn unknown_operations_are_hexadecimal() {
        assert_eq!(at(Abi::X86_64, "futex", 1, 0xcd), "0xcd");
        assert_eq!(at(Abi::X86_64, "ioctl", 1, 0xdead_beef), "0xdeadbeef");
        assert_eq!(at(Abi::X86_64, "madvise", 2, u64::MAX), "0xffffffff");
        // The kernel reads 32 bits of it.
        assert_eq!(at(Abi::X86_64, "fcntl", 1, 0xffff_0000_0000_0003), "F_GETFL");
    }

    #[test]
    fn every_abi_has_the_calls_and_no_other_has_operations() {
        let calls = [
            ("futex", FUTEX),
            ("futex_time64", FUTEX),
            ("madvise", MADVISE),
            ("ioctl", IOCTL),
            ("fcntl", FCNTL),
            ("fcntl64", FCNTL),
            ("prctl", PRCTL),
        ];
        for abi in [Abi::X86_64, Abi::I386, Abi::X32, Abi::Aarch64] {
            for number in -1..1100 {
                let sys = Sys::new(abi, number);
                let expected = calls
                    .iter()
                    .find(|(name, _)| sys.name() == Some(name))
                    .map(|(_, names)| *names);
                assert_eq!(selector(sys).map(|found| found.0), expected, "{abi} {number}");
                assert_eq!(operation(sys, &[0; 6]).is_some(), expected.is_some());
            }
        }
        assert_eq!(at(Abi::I386, "fcntl64", 1, 13), "F_SETLK64");
    }
}
