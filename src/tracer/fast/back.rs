//! Stops in our code that are not calls: the thread is put where its program would be
//! without it.

use crate::syscall::{Abi, Sys};

use super::super::arch::Registers;
use super::super::inside::Caught;
use super::super::stop::Entry;
use super::super::{kernel, memory};
use super::arena::Place;
use super::trampoline::{self, Counted, Place as At, look};
use super::{Fast, clock, harvest, layout, remote};

impl Fast {
    /// A thread stopped for something else than a call: if it was in our code, it is
    /// where its program would be without. Gives the call that was interrupted.
    /// `ending`: it will not run any more.
    pub fn step_back(&mut self, tid: i32, ending: bool) -> Option<Caught> {
        self.threads.get(&tid)?.space?;
        let mut r = remote::native(tid).ok()?;
        if self.is_led_in(tid, r.rip) {
            return None;
        }
        let thread = self.threads.get(&tid)?;
        let space = self.spaces.get(&thread.space?)?;
        if !self.is_ours(r.rip) {
            if let Some(site) = space.behind_hole(tid, self.pages.base, r.rip) {
                r.rip = site;
                let _ = kernel::set_registers(tid, &Registers::Native(r));
            }
            return None;
        }
        if r.rip >= self.pages.base + layout::STUBS {
            // On the way in, or about to make the call that stops.
            r.rip = space.behind_stub(self.pages.base, r.rip)?;
            let _ = kernel::set_registers(tid, &Registers::Native(r));
            return None;
        }
        let slot = thread.slot.as_ref();
        let head = slot.map(Place::head).unwrap_or_default();
        let found = look(r.rip - self.pages.base, &r, &head);
        let site = space.site_of_stub(self.pages.base, found.stub)?;
        let row = layout::row_at(head.call);
        let number = row.and_then(|row| self.rows.get(row)).map(|n| i64::from(*n));
        let in_call = (r.orig_rax as i64) >= 0 && found.place == At::Returned;
        let interrupted = match found.place {
            At::Returned => in_call && (ending || is_unsettled(found.rax, r.orig_rax)),
            At::Counting(Counted::Nothing) => {
                found.rax as i64 == -i64::from(libc::EINTR)
                    && number.is_some_and(|number| is_unsettled(found.rax, number as u64))
            }
            _ => false,
        };
        // The kernel went back to start it again, by a number that is not its own.
        let again = found.place == At::Before && found.rax == libc::SYS_restart_syscall as u64;
        if interrupted || again {
            self.clock.look();
        }
        let caught = number.filter(|_| interrupted || again).map(|number| {
            let sys = Sys::new(Abi::X86_64, number);
            let args = [r.rdi, r.rsi, found.rdx, r.r10, r.r8, r.r9];
            let entry = Entry { sys, args, ip: site + 2, sp: r.rsp };
            let value = if again { -516 } else { found.rax as i64 };
            Caught { entry, at: self.clock.time(head.clock).min(kernel::now()), value }
        });
        let ip = if found.place == At::Before { site } else { site + 2 };
        trampoline::restore(&found, ip, &mut r);
        let _ = kernel::set_registers(tid, &Registers::Native(r));
        let counted = match found.place {
            _ if caught.is_some() => None,
            At::Counting(counted) => Some(counted),
            At::Returned => Some(Counted::Nothing),
            _ => None,
        };
        self.settle_slot(tid, counted, found.rax, row);
        caught
    }

    /// What of a call is not counted yet is, and none is in flight.
    fn settle_slot(&mut self, tid: i32, counted: Option<Counted>, result: u64, row: Option<usize>) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let Some(slot) = &thread.slot else { return };
        if let Some(counted) = counted
            && !harvest::finish(slot, counted, clock::cycles(), result)
            && let Some(row) = row
        {
            thread.more_errors.push((row, -(result as i64) as i32));
        }
        slot.set(std::mem::offset_of!(layout::Head, call), 0);
    }

    /// A signal that our code caused: it is not the program's, and what caused it does
    /// not come again.
    pub fn caused(&mut self, tid: i32, signal: i32) -> bool {
        if !matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGTRAP) {
            return false;
        }
        let Some(id) = self.threads.get(&tid).and_then(|t| t.space) else { return false };
        // From a fault, not from somebody.
        let code = kernel::signal_sender(tid).map_or(0, |(code, _)| code);
        if code <= 0 {
            return false;
        }
        let Ok(mut r) = remote::native(tid) else { return false };
        if self.is_led_in(tid, r.rip) {
            self.begin_without(tid);
            return true;
        }
        let Some(space) = self.spaces.get(&id) else { return false };
        if signal == libc::SIGTRAP && code == libc::TRAP_TRACE {
            // Of a program that has itself stepped: our code is no step of its own.
            return self.is_ours(r.rip) || space.holes.contains_key(&r.rip);
        }
        if signal == libc::SIGTRAP {
            // It met a site while that was being changed. A trap that still is there is
            // the program's.
            let ip = r.rip.wrapping_sub(1);
            let mut now = [0];
            let met = space.changes(ip)
                && matches!(memory::read(tid, ip, &mut now), Ok(1))
                && now != [0xcc];
            if met {
                r.rip = r.rip.wrapping_sub(1);
                let _ = kernel::set_registers(tid, &Registers::Native(r));
            }
            return met;
        }
        if !self.is_ours(r.rip) && space.behind_hole(tid, self.pages.base, r.rip).is_none() {
            return false;
        }
        let in_trampoline = (self.pages.base..self.pages.base + layout::TABLE).contains(&r.rip);
        let slot_known = self.threads.get(&tid).is_some_and(|t| t.slot.is_some());
        let stub = in_trampoline.then(|| {
            let head = self.threads.get(&tid).and_then(|t| t.slot.as_ref()).map(Place::head);
            look(r.rip - self.pages.base, &r, &head.unwrap_or_default())
        });
        let _ = self.step_back(tid, false);
        if remote::native(tid).is_ok_and(|now| now.rip == r.rip) {
            // Nothing is known of where it came from: it is the program's own fault.
            self.reason("the program wrote where its calls are counted");
            return false;
        }
        let mut here = [0; 8];
        let mapped = matches!(memory::read(tid, self.pages.base + layout::STUBS, &mut here), Ok(8))
            && here != [0; 8];
        let stepped = remote::native(tid).is_ok_and(|now| now.rip != r.rip);
        // The trampoline may be led astray by GS, all else only if it is not there.
        if !mapped || !in_trampoline {
            self.give_up(tid, id, "coldtrace's pages are gone");
            return stepped;
        }
        if slot_known {
            self.lose(tid, "GS was changed by the program, or its counters are gone");
        }
        // Not the same way again: by the stub's own call.
        if stepped
            && let Some(found) = stub.filter(|found| found.place == At::Before)
            && let Ok(mut r) = remote::native(tid)
        {
            r.rip = found.stub;
            let _ = kernel::set_registers(tid, &Registers::Native(r));
        }
        stepped
    }
}

/// Whether a result means that the call is not over: the kernel will start it again,
/// or only tracing has ended it.
fn is_unsettled(value: u64, number: u64) -> bool {
    let value = value as i64;
    matches!(value, -512 | -513 | -514 | -516)
        || value == -i64::from(libc::EINTR) && Sys::new(Abi::X86_64, number as i64).is_repairable()
}
