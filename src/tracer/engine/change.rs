//! Changing a call of a stopped tracee, and putting back what was changed.

use std::io;

use crate::syscall::Abi;

use super::super::arch::Registers;
use super::super::kernel::{self, now};
use super::super::stop::Entry;
use super::super::{memory, repair};
use super::Engine;

/// What the tracer changed in a call that is in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patch {
    args: [u64; 6],
    /// A word of memory that was changed: address and old value.
    word: Option<(u64, u64)>,
}

impl Patch {
    /// These are put back when the call returns.
    pub(super) fn of_arguments(args: [u64; 6]) -> Self {
        Self { args, word: None }
    }
}

impl Engine<'_, '_> {
    /// Lets a call go on that only tracing interrupted.
    pub(super) fn reissue(&mut self, tid: i32, entry: &Entry, elapsed: u64) -> io::Result<()> {
        match repair::plan(tid, entry, elapsed) {
            repair::Plan::Again(args) => {
                let again = Entry { args, ..*entry };
                rewrite(tid, |r| {
                    r.reissue(&again);
                    r.set_arguments(&args);
                })?;
                if args != entry.args {
                    self.patched.entry(tid).or_insert(Patch { args: entry.args, word: None });
                }
            }
            repair::Plan::End(value) => {
                rewrite(tid, |r| r.finish(entry, value))?;
                self.patched.remove(&tid);
                #[cfg(debug_assertions)]
                self.recorder.save(&super::super::saved::Told::TimeIsOver(tid, value));
                self.tasks.time_is_over(tid, value, now(), &mut self.out);
                self.tell();
            }
        }
        self.resume_to_syscall(tid, 0)
    }

    /// A child made with CLONE_UNTRACED would escape: the flag is taken out
    /// while the call runs.
    pub(super) fn keep_traced(&mut self, tid: i32, entry: &Entry) {
        const UNTRACED: u64 = libc::CLONE_UNTRACED as u64;
        let [first, ..] = entry.args;
        if entry.sys.abi != Abi::native() {
            if first & UNTRACED != 0 && entry.sys.name() == Some("clone") {
                self.lost += 1;
                self.note(format!("a CLONE_UNTRACED child of {tid} escaped: not a native call"));
            }
            return;
        }
        let changed = match entry.sys.number {
            libc::SYS_clone if first & UNTRACED != 0 => {
                let mut args = entry.args;
                args[0] &= !UNTRACED;
                self.patched.insert(tid, Patch { args: entry.args, word: None });
                rewrite(tid, |r| r.set_arguments(&args))
            }
            libc::SYS_clone3 => {
                let mut flags = [0; 8];
                let read = memory::read(tid, first, &mut flags);
                let flags = u64::from_ne_bytes(flags);
                if !matches!(read, Ok(8)) || flags & UNTRACED == 0 {
                    return;
                }
                self.patched.insert(tid, Patch { args: entry.args, word: Some((first, flags)) });
                memory::write(tid, first, &(flags & !UNTRACED).to_ne_bytes())
            }
            _ => return,
        };
        self.note(match changed {
            Ok(()) => "CLONE_UNTRACED was cleared so that the child is counted".into(),
            Err(e) => format!("a CLONE_UNTRACED child of {tid} escaped: {e}"),
        });
    }

    /// A changed call returns, or its thread is let go: what was changed is put back.
    pub(super) fn unpatch(&mut self, tid: i32) {
        let Some(patch) = self.patched.remove(&tid) else { return };
        if let Some((address, old)) = patch.word {
            let _ = memory::write(tid, address, &old.to_ne_bytes());
        }
        let _ = rewrite(tid, |r| r.set_arguments(&patch.args));
    }
}

/// Changes the registers of a stopped tracee.
pub(super) fn rewrite(tid: i32, change: impl FnOnce(&mut Registers)) -> io::Result<()> {
    let mut registers = kernel::registers(tid)?;
    change(&mut registers);
    kernel::set_registers(tid, &registers)
}
