//! Programs that begin under the gate count from their first call on. Most begin in the
//! same file, the dynamic loader: which of its call sites can be patched and how is learned
//! from the first of them. In the next ones all are patched at once, and they find our code
//! themselves, without a stop: where exec leaves a program, it is led to a call that maps
//! our pages, and these map its counters and let it begin.

use std::mem::offset_of;
use std::rc::Rc;

use crate::syscall::Abi;

use super::super::arch::{Native, Registers};
use super::super::kernel;
use super::super::memory::Writer;
use super::super::stop::Entry;
use super::arena::{Chunk, Place};
use super::beginnings::{Beginning, FIRST, Lesson};
use super::layout::{ARENA, CHUNK, Head, SLOW, STUBS};
use super::space::{Patch, Space};
use super::{Fast, remote, tier, trampoline};

/// How a program begins that is under the gate.
#[derive(Debug)]
pub enum Begin {
    /// Nothing is known of the file that it begins in, at this address: the places of its
    /// calls are noted.
    Watched(u64, Vec<u64>),
    /// It has been led away from where its registers were these, to bring in our code; how
    /// its file was changed, and where that is.
    Led(Box<Native>, Rc<Beginning>, u64),
    /// Our pages could not be mapped, and are not tried again.
    Without,
}

impl Fast {
    /// A thread under the gate has executed a program, which counts from now on, where it
    /// can. `may`: nothing else of it is under way.
    pub fn begins(&mut self, tid: i32, may: bool) {
        let is_gated = self.threads.get(&tid).is_some_and(|thread| thread.gated);
        if self.off || !may || !is_gated {
            return;
        }
        let Ok(r) = remote::native(tid) else { return };
        let r = Native { rax: 0, ..r }; // As exec is about to return.
        if !is_as_exec_leaves_it(&r) {
            return;
        }
        if let Some((file, begin)) = self.beginnings.find(tid, r.rip, &self.holes) {
            let _ = self.lead_in(tid, &r, file, begin); // Or it goes on as before.
        } else if let Some(thread) = self.threads.get_mut(&tid) {
            thread.begin = Some(Begin::Watched(r.rip, Vec::new()));
        }
    }

    /// Leads a program to where it finds our code.
    fn lead_in(&mut self, tid: i32, r: &Native, file: Rc<Beginning>, begin: u64) -> Option<()> {
        const SEGV: u64 = 1 << (libc::SIGSEGV - 1);
        let first = file.first?;
        let base = self.pages.base;
        if !tier::has_room(tid, ARENA + CHUNK as u64) {
            return None;
        }
        // Where the mapping fails, the kernel takes a signal that the program blocks.
        let blocked = kernel::signal_mask(tid).is_ok_and(|mask| mask & SEGV != 0);
        if blocked || self.may_be_elsewhere && tier::is_elsewhere(tid) {
            return None;
        }
        let (stubs, slots) = self.segments(tid).ok()?;
        let segments = (stubs.segment().id(), slots.segment().id());
        let mut space = Space::new(stubs, Chunk::of(slots));
        space.users = 1;
        space.began = Some((Rc::clone(&file), r.rip));
        for known in &file.sites {
            let patch = Patch { hole: begin + known.patch.hole, ..known.patch };
            space.has_patched(base, begin + known.site, patch)?;
        }
        let (slot, _) = Place::take(&space.chunks)?;
        slot.set(offset_of!(Head, result), r.rip);
        let gs = base + ARENA + slot.offset();
        let memory = Writer::open(tid).ok()?;
        let changed =
            file.pieces.iter().try_for_each(|piece| memory.write(begin + piece.at, &piece.becomes));
        let map = self.pages.map();
        let mut led = *r;
        [led.rdi, led.rsi, led.rdx, ..] = map.arguments;
        (led.rip, led.rbx) = (begin + first, trampoline::begin_program(base));
        ((led.r12, led.rbp), led.r15) = (segments, base + STUBS);
        led.gs_base = gs;
        if changed.is_err() || kernel::set_registers(tid, &Registers::Native(led)).is_err() {
            put_back(&memory, &file, begin);
            return None;
        }
        self.summary.spaces += 1;
        self.summary.patched += file.sites.len() as u64;
        let id = self.next_space;
        self.next_space += 1;
        self.memory = Some((id, memory));
        self.spaces.insert(id, space);
        let thread = self.threads.get_mut(&tid)?;
        thread.space = Some(id);
        (thread.slot, thread.gs, thread.mode) = (Some(slot), gs, SLOW);
        thread.begin = Some(Begin::Led(Box::new(*r), file, begin));
        Some(())
    }

    /// Whether a thread at `ip` has been led away and has not begun yet.
    pub(super) fn is_led_in(&mut self, tid: i32, ip: u64) -> bool {
        let base = self.pages.base;
        let Some(thread) = self.threads.get_mut(&tid) else { return false };
        let Some(Begin::Led(_, file, begin)) = &thread.begin else { return false };
        let first = begin + file.first.unwrap_or(0);
        let on_its_way = (first..first + FIRST.len() as u64).contains(&ip)
            || ip.checked_sub(base).is_some_and(trampoline::is_beginning);
        if !on_its_way {
            thread.begin = None;
        }
        on_its_way
    }

    /// Our pages could not be mapped: the program begins without.
    pub(super) fn begin_without(&mut self, tid: i32) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let Some(Begin::Led(r, file, begin)) = thread.begin.replace(Begin::Without) else { return };
        (thread.slot, thread.gs) = (None, 0);
        if let Some(id) = thread.space.take() {
            self.leave(id);
        }
        if let Ok(memory) = Writer::open(tid) {
            put_back(&memory, &file, begin);
        }
        let before = Native { orig_rax: u64::MAX, ..*r };
        let _ = kernel::set_registers(tid, &Registers::Native(before));
        self.summary.spaces = self.summary.spaces.saturating_sub(1);
        let patched = file.sites.len() as u64;
        self.summary.patched = self.summary.patched.saturating_sub(patched);
        self.reason("coldtrace's pages could not be mapped where a program begins");
    }

    /// A thread under the gate is about to make a call.
    pub(super) fn watch(&mut self, tid: i32, entry: &Entry) {
        const MOST: usize = 64;
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if let Some(Begin::Watched(_, sites)) = &mut thread.begin {
            let site = entry.ip.wrapping_sub(2);
            if entry.sys.abi == Abi::X86_64 && sites.len() < MOST && !sites.contains(&site) {
                sites.push(site);
            }
        }
        if entry.sys.is_exec() || entry.sys.name() == Some("exit_group") {
            self.learn_from(tid);
            self.learn_more_from(tid);
        }
    }

    /// What a program that was watched has shown is used for the next ones. Gives its file
    /// and where it began.
    pub(super) fn learn_from(&mut self, tid: i32) -> Option<(Rc<Beginning>, u64)> {
        let thread = self.threads.get_mut(&tid)?;
        let watched = thread.begin.take_if(|begin| matches!(begin, Begin::Watched(..)))?;
        let Begin::Watched(entry, calls) = watched else { return None };
        if self.beginnings.find(tid, entry, &self.holes).is_some() {
            return None; // By another one meanwhile.
        }
        let (base, patch_of, undo) = (self.pages.base, &|_| None, &|_: u64, _: &mut [u8]| {});
        let mut lesson = Lesson { tid, holes: &mut self.holes, base, patch_of, undo };
        let learned = Beginning::learn(&mut lesson, entry, &calls, None)?;
        Some((self.beginnings.add(learned)?, entry))
    }

    /// A program that counts ends: where else it has made calls in the file that it began in.
    fn learn_more_from(&mut self, tid: i32) -> Option<()> {
        let space = self.spaces.get(&self.threads.get(&tid)?.space?)?;
        let (file, entry) = space.began.as_ref()?;
        if space.given_up.is_some() || !self.beginnings.is_open(file) {
            return None;
        }
        let calls: Vec<u64> = space.sites.keys().copied().collect();
        let patch_of = |ip: u64| space.sites.get(&ip)?.patch;
        let undo = |from: u64, bytes: &mut [u8]| space.undo(from, bytes);
        let (holes, base) = (&mut self.holes, self.pages.base);
        let mut lesson = Lesson { tid, holes, base, patch_of: &patch_of, undo: &undo };
        let more = Beginning::learn(&mut lesson, *entry, &calls, Some(file));
        let more = more.filter(|more| more.sites.len() > file.sites.len());
        self.beginnings.learned_more(file, more);
        Some(())
    }
}

fn put_back(memory: &Writer, file: &Beginning, begin: u64) {
    for piece in &file.pieces {
        let _ = memory.write(begin + piece.at, &piece.was);
    }
}

/// Whether these are the registers of a program that has done nothing: exec leaves zeros.
fn is_as_exec_leaves_it(r: &Native) -> bool {
    let all = [
        r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
        r.r14, r.r15, r.gs_base, r.gs,
    ];
    all == [0; 17]
}
