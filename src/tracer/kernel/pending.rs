//! What a thread does with signals, and which wait for it.

use super::super::proc::Status;
use super::super::stop::Disposition;

/// Signal sets of a thread (proc_pid_status(5)); signal 1 is bit 0.
#[derive(Debug, Clone, Copy)]
struct Signals {
    ignored: u64,
    caught: u64,
    /// Pending for the thread or its process, and not blocked.
    deliverable: u64,
}

/// Ignored by default (signal(7)). SIGCONT has done its work when it was sent.
const IGNORED_BY_DEFAULT: u64 =
    bit(libc::SIGCHLD) | bit(libc::SIGURG) | bit(libc::SIGWINCH) | bit(libc::SIGCONT);

const fn bit(signal: i32) -> u64 {
    if signal >= 1 && signal <= 64 { 1 << (signal - 1) } else { 0 }
}

impl Signals {
    fn read(tid: i32) -> Option<Self> {
        let status = Status::read(tid)?;
        let pending = status.signals("SigPnd:")? | status.signals("ShdPnd:")?;
        Some(Self {
            ignored: status.signals("SigIgn:")?,
            caught: status.signals("SigCgt:")?,
            deliverable: pending & !status.signals("SigBlk:")?,
        })
    }

    /// Signals that do nothing.
    fn harmless(&self) -> u64 {
        self.ignored | (IGNORED_BY_DEFAULT & !self.caught)
    }
}

/// What `signal` would do in the process of `tid`.
pub fn disposition(tid: i32, signal: i32) -> Disposition {
    let Some(signals) = Signals::read(tid) else { return Disposition::Unknown };
    if signals.caught & bit(signal) != 0 {
        Disposition::Handled
    } else if signals.harmless() & bit(signal) != 0 {
        Disposition::Ignored
    } else {
        Disposition::Default
    }
}

/// Whether no signal waits for `tid` but such as do nothing; with `evidence`,
/// at least one of those must be there. A signal that woke it may have been
/// taken by another thread since.
pub fn is_undisturbed(tid: i32, evidence: bool) -> bool {
    Signals::read(tid).is_some_and(|s| {
        s.deliverable & !s.harmless() == 0 && (!evidence || s.deliverable & s.harmless() != 0)
    })
}

/// Whether `signal` waits to be taken by this process.
pub fn is_pending(pid: i32, signal: i32) -> bool {
    let Some(status) = Status::read(pid) else { return false };
    let sets = ["SigPnd:", "ShdPnd:"];
    sets.iter().filter_map(|set| status.signals(set)).any(|set| set & bit(signal) != 0)
}
