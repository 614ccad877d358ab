//! What counting a call inside adds to it on this machine, now.

use std::mem::offset_of;
use std::time::Instant;

use super::layout::{self, FAST, Head, SLOT, STUB_RETURN, STUB_SLOW, TABLE};
use super::trampoline;

/// Calls that are timed at once, and how often: the quickest counts.
const CALLS: u32 = 100;
const ROUNDS: usize = 15;

/// Pages of this process that are mapped below 2 GiB.
struct Pages(*mut libc::c_void);

/// Of the trampoline and its table.
const LENGTH: usize = 0x2000;

impl Pages {
    /// The trampoline, which counts getppid in the first row.
    fn with_trampoline() -> Option<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
        // SAFETY: a new mapping, wherever the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, access, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        let pages = Self(at);
        let code = trampoline::code(at.addr() as u64);
        // SAFETY: the mapping is ours, writable, and longer than what is written there.
        let protected = unsafe {
            let bytes: *mut u8 = at.cast();
            std::ptr::copy_nonoverlapping(code.as_ptr(), bytes, code.len().min(TABLE as usize));
            *bytes.add(TABLE as usize + libc::SYS_getppid as usize) = 1;
            libc::mprotect(at, LENGTH, libc::PROT_READ | libc::PROT_EXEC)
        };
        (protected == 0).then_some(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that was made; nothing runs in it any more.
        unsafe { libc::munmap(self.0, LENGTH) };
    }
}

/// ns that a call takes longer; `None` where that cannot be measured.
pub fn cost() -> Option<u64> {
    const SET_GS: libc::c_long = 0x1001;
    let pages = Pages::with_trampoline()?;
    let mut slot = vec![0u64; SLOT / 8];
    *slot.get_mut(offset_of!(Head, mode) / 8)? = u64::from(FAST);
    let mut stub = [0u64; layout::STUB as usize / 8];
    let by = stub.as_mut_ptr().wrapping_byte_add(STUB_SLOW as usize);
    // SAFETY: the GS base is nobody's in this process; it leads to the slot for as long
    // as the trampoline runs, and to nothing afterwards.
    let set = unsafe { libc::syscall(libc::SYS_arch_prctl, SET_GS, slot.as_mut_ptr()) };
    if set != 0 {
        return None;
    }
    let counted = || {
        // SAFETY: it makes getppid, which takes nothing, and returns to the label behind:
        // the stub says so. It keeps all but rax, rcx and r11.
        unsafe {
            std::arch::asm!(
                "lea r11, [rip + 2f]",
                "mov qword ptr [rcx - {to_return}], r11",
                "jmp {trampoline}",
                "2:",
                to_return = const STUB_SLOW - STUB_RETURN,
                trampoline = in(reg) pages.0,
                inout("rax") libc::SYS_getppid => _,
                inout("rcx") by => _,
                out("r11") _,
            );
        }
    };
    let plain = || {
        // SAFETY: getppid takes nothing.
        unsafe {
            std::arch::asm!(
                "syscall",
                inout("rax") libc::SYS_getppid => _,
                out("rcx") _,
                out("r11") _,
            );
        }
    };
    // In turns: a machine that slows down meanwhile does so for both.
    let both = (0..ROUNDS).map(|_| (time(counted), time(plain)));
    let quickest = both.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)));
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_arch_prctl, SET_GS, 0) };
    quickest.map(|(counted, plain)| counted.saturating_sub(plain).div_ceil(u64::from(CALLS)))
}

/// What some calls take, ns.
fn time(call: impl Fn()) -> u64 {
    let begun = Instant::now();
    (0..CALLS).for_each(|_| call());
    begun.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn counting_costs_something_and_far_less_than_a_stop() {
        let cost = super::cost().expect("the trampoline runs");
        assert!((1..20_000).contains(&cost), "{cost} ns");
    }
}
