//! Threads: their slots, their children, what they have counted, their ends.

use crate::syscall::{Abi, Sys};

use super::super::arch::Registers;
use super::super::inside::{Caught, Harvest, Program};
use super::super::stop::Entry;
use super::super::task::Action;
use super::super::{kernel, memory};
use super::arena::Place;
use super::begin::Begin;
use super::layout::{self, ARENA, CHUNK, FAST, SLOW};
use super::space::Space;
use super::{Fast, Thread, harvest, remote};

impl Fast {
    /// A stopped thread is about to go on so.
    pub fn resuming(&mut self, tid: i32, action: &Action) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let Some(id) = thread.space else { return };
        let runs = match action {
            Action::Continue(_) => true,
            Action::Hold | Action::Wait => return,
            _ => false,
        };
        if thread.slot.is_none() && !thread.parked && !thread.foreign {
            self.give_slot(tid, id);
        }
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let mode = if runs && !thread.foreign && !self.off { FAST } else { SLOW };
        if thread.set_mode(mode) {
            self.reason("the program wrote where its calls are counted");
        }
    }

    /// Gives a stopped thread a slot, or that in which every call stops.
    pub(super) fn give_slot(&mut self, tid: i32, id: u32) {
        let (Some(space), Some(thread)) = (self.spaces.get(&id), self.threads.get_mut(&tid)) else {
            return;
        };
        let Ok(mut r) = remote::native(tid) else { return };
        let arena = self.pages.base + ARENA;
        let ours = arena..arena + layout::MOST_CHUNKS * CHUNK as u64;
        if r.gs != 0 || r.gs_base != 0 && !ours.contains(&r.gs_base) {
            thread.foreign = true;
            self.reason("GS is used by the program");
            return;
        }
        if let Some((slot, chunk)) = Place::take(&space.chunks) {
            r.gs_base = arena + (chunk * CHUNK) as u64 + slot.offset();
            thread.gs = r.gs_base;
            thread.mode = SLOW;
            thread.slot = Some(slot);
            thread.parked = false;
        } else {
            r.gs_base = arena;
            thread.parked = true;
        }
        thread.gs = r.gs_base;
        let _ = kernel::set_registers(tid, &Registers::Native(r));
    }

    /// A thread made a child, which has not run yet, with this call.
    pub fn has_child(&mut self, tid: i32, child: i32, entry: Option<Entry>, is_thread: bool) {
        let Some(parent) = self.threads.get(&tid) else { return };
        let (gated, space) = (parent.gated, parent.space);
        let without = matches!(parent.begin, Some(Begin::Without));
        let known = self.threads.get(&child).is_some_and(|t| t.slot.is_some());
        if known {
            return;
        }
        let shares = is_thread || entry.is_some_and(|entry| shares_memory(tid, &entry));
        let space = space.and_then(|id| {
            if shares {
                self.spaces.get_mut(&id)?.users += 1;
                return Some(id);
            }
            let copy = Space { users: 1, ..self.spaces.get(&id)?.clone() };
            let new = self.next_space;
            self.next_space += 1;
            self.spaces.insert(new, copy);
            self.summary.spaces += 1;
            Some(new)
        });
        let foreign = self
            .spaces
            .get(&space.unwrap_or(u32::MAX))
            .is_some_and(|space| space.given_up.is_some());
        let begin = without.then_some(Begin::Without);
        let thread = Thread { gated, space, foreign, begin, ..Thread::default() };
        self.threads.insert(child, thread);
    }

    /// What a thread has counted since.
    pub fn harvest(&mut self, tid: i32) -> Harvest {
        let Some(thread) = self.threads.get_mut(&tid) else { return Vec::new() };
        let Some(slot) = &thread.slot else { return Vec::new() };
        self.clock.look();
        let (taken, wrong) = harvest::take(slot, &self.clock);
        let more = std::mem::take(&mut thread.more_errors);
        let mut harvest: Harvest = Vec::with_capacity(taken.len());
        for (row, mut times) in taken {
            for (_, errno) in more.iter().filter(|(of, _)| *of == row) {
                match times.errors.iter_mut().find(|(known, _)| known == errno) {
                    Some((_, n)) => *n += 1,
                    None => times.errors.push((*errno, 1)),
                }
            }
            let Some(number) = self.rows.get(row) else { continue };
            self.summary.counted = self.summary.counted.saturating_add(times.calls);
            harvest.push((Sys::new(Abi::X86_64, i64::from(*number)), times));
        }
        if wrong {
            self.reason("the program wrote where its calls are counted");
        }
        harvest
    }

    /// The call that a thread was in when it was killed, without a stop.
    pub fn was_in(&mut self, tid: i32) -> Option<Caught> {
        let thread = self.threads.get(&tid)?;
        let slot = thread.slot.as_ref()?;
        self.clock.look();
        let (row, at) = harvest::in_flight(slot, &self.clock)?;
        let sys = Sys::new(Abi::X86_64, i64::from(*self.rows.get(row)?));
        let entry = Entry { sys, args: [0; 6], ip: 0, sp: 0 };
        Some(Caught { entry, at: at.min(kernel::now()), value: 0 })
    }

    /// A thread has ended: its slot is free.
    pub fn ended(&mut self, tid: i32) {
        let Some(thread) = self.threads.remove(&tid) else { return };
        if let Some(id) = thread.space {
            self.leave(id);
        }
    }

    pub(super) fn leave(&mut self, id: u32) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        space.users = space.users.saturating_sub(1);
        if space.users == 0 {
            self.spaces.remove(&id);
            self.memory.take_if(|(of, _)| *of == id);
        }
    }

    /// A process has a new program: nothing of ours is in it but the gate.
    pub fn executed(&mut self, former: i32, tid: i32, siblings: &[i32]) {
        let gated = self.threads.get(&former).is_some_and(|t| t.gated);
        for sibling in siblings.iter().chain([&former, &tid]) {
            self.ended(*sibling);
        }
        if gated {
            self.threads.insert(tid, Thread { gated, ..Thread::default() });
        }
    }

    /// A program that nobody is told of shares its memory with another process.
    pub fn shares(&mut self, program: Program) {
        self.shared.insert(program);
    }

    /// A process has ended.
    pub fn forget(&mut self, program: Program) {
        self.stopped.remove(&program);
        self.refused.remove(&program);
        self.shared.remove(&program);
    }
}

impl Thread {
    /// True where the program has written there.
    pub(super) fn set_mode(&mut self, mode: u32) -> bool {
        let Some(slot) = &self.slot else { return false };
        if self.mode == mode {
            return false;
        }
        let overwritten = slot.mode() != self.mode;
        slot.set_mode(mode);
        self.mode = mode;
        overwritten
    }
}

/// Whether a call that makes a child leaves both in one memory.
pub fn shares_memory(tid: i32, entry: &Entry) -> bool {
    entry.sys.name() == Some("vfork") || clone_flags(tid, entry) & libc::CLONE_VM as u64 != 0
}

/// The flags of a clone or clone3.
pub fn clone_flags(tid: i32, entry: &Entry) -> u64 {
    match entry.sys.name() {
        Some("clone") => entry.args[0],
        Some("clone3") => {
            let mut flags = [0; 8];
            let read = memory::read(tid, entry.args[0], &mut flags);
            if matches!(read, Ok(8)) { u64::from_ne_bytes(flags) } else { 0 }
        }
        _ => 0,
    }
}

/// Whether a call makes a child, or a program.
pub fn makes_tasks(entry: &Entry) -> bool {
    matches!(entry.sys.name(), Some("fork" | "vfork" | "clone" | "clone3" | "execve" | "execveat"))
}
