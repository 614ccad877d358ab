//! From cycles of the time stamp counter to nanoseconds.

use super::super::event::Nanos;
use super::super::kernel::now;

/// The counter now.
pub fn cycles() -> u64 {
    // SAFETY: rdtsc reads a register; whether it may be read is asked in `Clock::new`.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// How cycles and time belong together, measured from the session's begin until now:
/// the longer it runs, the better.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    begin: (u64, Nanos),
    /// Nanoseconds of a cycle.
    scale: f64,
}

impl Clock {
    /// `None` where the counter is not invariant (CPUID 0x80000007, EDX bit 8): its
    /// cycles would be no time. Or where it may not be read (PR_SET_TSC).
    pub fn new() -> Option<Self> {
        use core::arch::x86_64::__cpuid;
        const INVARIANT: u32 = 1 << 8;
        let most = __cpuid(0x8000_0000).eax;
        if most < 0x8000_0007 || __cpuid(0x8000_0007).edx & INVARIANT == 0 {
            return None;
        }
        let mut state: libc::c_int = 0;
        // SAFETY: the kernel writes one int.
        let asked = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut state) };
        if asked == 0 && state != libc::PR_TSC_ENABLE {
            return None;
        }
        Some(Self { begin: pair(), scale: 0.0 })
    }

    /// Measures anew. Before the first time nothing can be converted.
    pub fn look(&mut self) {
        /// For a part in a thousand.
        const LONG_ENOUGH: Nanos = 100_000;
        let mut end = pair();
        while end.1.saturating_sub(self.begin.1) < LONG_ENOUGH {
            end = pair();
        }
        let cycles = end.0.saturating_sub(self.begin.0).max(1);
        self.scale = end.1.saturating_sub(self.begin.1) as f64 / cycles as f64;
    }

    /// Cycles since the session began.
    pub fn since_begin(&self) -> u64 {
        cycles().saturating_sub(self.begin.0)
    }

    /// A duration in ns.
    pub fn duration(&self, cycles: u64) -> Nanos {
        (cycles as f64 * self.scale).round() as u64
    }

    /// A point in time, from the session's begin until now.
    pub fn time(&self, cycles: u64) -> Nanos {
        let (begin, at) = self.begin;
        let then = at.saturating_add(self.duration(cycles.saturating_sub(begin)));
        then.min(now().max(at))
    }
}

/// Both clocks at one time: the closest of some readings.
fn pair() -> (u64, Nanos) {
    let read = || {
        let before = cycles();
        let at = now();
        (cycles().saturating_sub(before), before, at)
    };
    let (width, before, at) = (0..4).map(|_| read()).min_by_key(|r| r.0).unwrap_or_else(read);
    (before + width / 2, at)
}
