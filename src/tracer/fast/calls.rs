//! Calls that stop: which of them are counted inside from then on, and what takes an
//! address space or a thread out of that.

use crate::syscall::Abi;

use super::super::arch::Registers;
use super::super::inside::{Met, Program};
use super::super::kernel;
use super::super::stop::Entry;
use super::layout::{self, ARENA, CHUNK, FAST, NUMBERS, ROWS, SLOW};
use super::space::Space;
use super::threads::{clone_flags, makes_tasks};
use super::{Fast, byte_of, goes_slowly, memory_of, remote, trampoline};

impl Fast {
    /// A call stopped at its entry. `quiet`: nothing else of its thread is under way,
    /// and it is the filter that made it stop. `makes` says of a thread that it makes a
    /// child just now.
    pub fn at_call(
        &mut self,
        tid: i32,
        entry: Entry,
        quiet: bool,
        makes: &dyn Fn(i32) -> bool,
    ) -> Met {
        if self.is_led_in(tid, entry.ip) {
            self.begin_without(tid);
            let _ = kernel::resume(tid, 0); // Dying: its end is reported.
            return Met::Led;
        }
        self.watch(tid, &entry);
        self.mind_the_namespace(tid, &entry);
        let Some(thread) = self.threads.get(&tid) else { return Met::Tell(entry) };
        let Some(id) = thread.space else { return Met::Tell(entry) };
        let ours = self.is_ours(entry.ip);
        if ours && self.asks(entry.ip) {
            if let Some(caught) = self.step_back(tid, false) {
                return Met::Interrupted(caught);
            }
            let _ = kernel::resume(tid, 0); // Dying: its end is reported.
            return Met::Led;
        }
        let Some(space) = self.spaces.get_mut(&id) else { return Met::Tell(entry) };
        if ours {
            // A stub's own: to everybody else it is the site's.
            let Some(site) = space.site_of_stub(self.pages.base, entry.ip) else {
                return Met::Tell(entry);
            };
            let entry = Entry { ip: site + 2, ..entry };
            let Ok(mut r) = remote::native(tid) else { return Met::Tell(entry) };
            r.rip = entry.ip;
            let _ = kernel::set_registers(tid, &Registers::Native(r));
            self.mind_the_pages(tid, &entry);
            self.mind_the_thread(tid, &entry);
            if quiet && self.can_count(tid, &entry) {
                self.see_why_it_stopped(tid, r.gs_base);
            }
            return Met::Tell(entry);
        }
        self.mind_the_pages(tid, &entry);
        self.mind_the_thread(tid, &entry);
        if quiet && makes_tasks(&entry) && !entry.sys.is_exec() {
            self.mind_the_children(tid, id, makes);
        }
        if quiet && self.can_count(tid, &entry) && self.lead(tid, id, &entry, makes) {
            return Met::Led;
        }
        Met::Tell(entry)
    }

    /// Whether who stands there asks the tracer for something, by a call that is none.
    pub fn asks(&self, ip: u64) -> bool {
        let base = self.pages.base;
        [trampoline::drained(base), trampoline::asked(base), trampoline::not_begun(base)]
            .contains(&ip)
    }

    /// A call that is to be counted went the slow way: its number may be new, or the
    /// trampoline does not find the slot.
    fn see_why_it_stopped(&mut self, tid: i32, gs: u64) {
        let Some(thread) = self.threads.get(&tid) else { return };
        if thread.gs != gs {
            self.lose(tid, "GS was changed by the program");
        } else if thread.slot.as_ref().is_some_and(|slot| slot.mode() != FAST) {
            self.lose(tid, "the program wrote where its calls are counted");
        }
    }

    /// A call after which its thread cannot count: it gets a GS of its own, or a time
    /// stamp counter that faults.
    fn mind_the_thread(&mut self, tid: i32, entry: &Entry) {
        const ARCH_SET_GS: u64 = 0x1001;
        let [what, value, ..] = entry.args;
        match entry.sys.name() {
            Some("arch_prctl") if what == ARCH_SET_GS => {
                self.lose(tid, "GS is used by the program");
            }
            Some("prctl")
                if what == libc::PR_SET_TSC as u64 && value == libc::PR_TSC_SIGSEGV as u64 =>
            {
                self.lose(tid, "the program may not read the time stamp counter");
            }
            _ => {}
        }
    }

    /// A call by which a process may come to see other segments than the tracer.
    fn mind_the_namespace(&mut self, tid: i32, entry: &Entry) {
        const IPC: u64 = libc::CLONE_NEWIPC as u64;
        self.may_be_elsewhere |= match entry.sys.name() {
            Some("unshare") => entry.args[0] & IPC != 0,
            Some("setns") => true,
            Some("clone" | "clone3") => clone_flags(tid, entry) & IPC != 0,
            _ => false,
        };
    }

    /// A program asks that its calls be dispatched by where they are made
    /// (PR_SET_SYSCALL_USER_DISPATCH): none must be made elsewhere.
    pub fn dispatches(&mut self, tid: i32, program: Program) {
        const WHY: &str = "the program dispatches its calls by where they are made";
        match self.threads.get(&tid).and_then(|t| t.space) {
            Some(id) => self.give_up(tid, id, WHY),
            None if self.refused.insert(program) => self.reason(WHY),
            None => {}
        }
    }

    /// Whether the trampoline would count this call of a thread.
    fn can_count(&mut self, tid: i32, entry: &Entry) -> bool {
        let Some(thread) = self.threads.get(&tid) else { return false };
        if self.off || thread.foreign || thread.parked || thread.slot.is_none() {
            return false;
        }
        let number = usize::try_from(entry.sys.number).unwrap_or(NUMBERS);
        if entry.sys.abi != Abi::X86_64 || self.slow.get(number).is_none_or(|slow| *slow) {
            return false;
        }
        if goes_slowly(entry.sys.number, entry.args[0]) {
            return false;
        }
        let space = thread.space.and_then(|id| self.spaces.get(&id));
        if space.is_none_or(|space| space.given_up.is_some()) {
            return false;
        }
        if self.pages.byte(number) != 0 {
            return true;
        }
        let row = match self.rows.iter().position(|n| usize::from(*n) == number) {
            Some(row) => row,
            None if self.rows.len() < ROWS - 1 => {
                self.rows.push(number as u16);
                self.rows.len() - 1
            }
            None => {
                self.reason("calls of more kinds than there are rows");
                return false;
            }
        };
        self.pages.set_byte(number, byte_of(row, number as u16));
        true
    }

    /// Whether nobody makes a child with a copy of this memory, in which a change might
    /// be or not be.
    fn is_steady(&self, id: u32, makes: &dyn Fn(i32) -> bool) -> bool {
        self.threads.iter().all(|(tid, thread)| thread.space != Some(id) || !makes(*tid))
    }

    /// A process is about to make a child: who makes many of them, each of which makes the
    /// same calls, has the places patched for all.
    fn mind_the_children(&mut self, tid: i32, id: u32, makes: &dyn Fn(i32) -> bool) {
        let steady = self.is_steady(id, makes);
        let Some(space) = self.spaces.get_mut(&id) else { return };
        if steady
            && space.given_up.is_none()
            && let Ok(memory) = memory_of(&mut self.memory, id, tid)
        {
            let patched = space.patch_all(tid, memory, self.pages.base, &mut self.holes);
            self.summary.patched += patched as u64;
        }
    }

    /// Leads a call into the trampoline, and the next ones of its site too.
    fn lead(&mut self, tid: i32, id: u32, entry: &Entry, makes: &dyn Fn(i32) -> bool) -> bool {
        let ip = entry.ip.wrapping_sub(2);
        let Some(space) = self.spaces.get_mut(&id) else { return false };
        let Some(site) = space.site(self.pages.base, ip).copied() else {
            self.reason("call sites beyond the stubs of an address space");
            return false;
        };
        let stub = Space::stub_slow(self.pages.base, &site);
        let (hits, is_due) = space.has_stopped(site);
        if hits == 1 {
            self.summary.redirected += 1;
        }
        // All threads are asked: only where something hangs on it.
        if is_due
            && self.is_steady(id, makes)
            && let Some(space) = self.spaces.get_mut(&id)
            && let Ok(memory) = memory_of(&mut self.memory, id, tid)
        {
            if space.patch(tid, memory, self.pages.base, ip, &mut self.holes) {
                self.summary.patched += 1;
                self.summary.redirected = self.summary.redirected.saturating_sub(1);
            } else {
                self.memory = None; // Of a thread that is gone, maybe.
            }
        }
        let Ok(mut r) = remote::native(tid) else { return false };
        r.rip = self.pages.base + layout::TRAMPOLINE;
        r.rcx = stub;
        r.rax = r.orig_rax;
        r.orig_rax = u64::MAX; // The call is skipped: it is made in there.
        if kernel::set_registers(tid, &Registers::Native(r)).is_err() {
            return false;
        }
        self.summary.led += 1;
        let _ = kernel::resume(tid, 0); // Dying: its end is reported.
        true
    }

    /// A call that changes mappings: over ours, the address space counts no more.
    fn mind_the_pages(&mut self, tid: i32, entry: &Entry) {
        let Some(id) = self.threads.get(&tid).and_then(|t| t.space) else { return };
        let Some(space) = self.spaces.get(&id).filter(|s| s.given_up.is_none()) else { return };
        let [at, length, third, flags, to, _] = entry.args;
        let end = self.pages.base + ARENA + (space.chunks.len() * CHUNK) as u64;
        let touches =
            |at: u64, length: u64| at < end && at.saturating_add(length) > self.pages.base;
        let over = entry.sys.abi == Abi::X86_64
            && match entry.sys.number {
                libc::SYS_mmap => flags & libc::MAP_FIXED as u64 != 0 && touches(at, length),
                libc::SYS_mprotect
                | libc::SYS_munmap
                | libc::SYS_madvise
                | libc::SYS_pkey_mprotect
                | libc::SYS_remap_file_pages => touches(at, length),
                libc::SYS_mremap => {
                    touches(at, length)
                        || flags & libc::MREMAP_FIXED as u64 != 0 && touches(to, third)
                }
                libc::SYS_shmat => third & libc::SHM_REMAP as u64 != 0 && touches(length, 1 << 30),
                _ => false,
            };
        if over {
            self.give_up(tid, id, "the program changed coldtrace's pages");
        }
    }

    /// An address space counts no more: its sites are as they were. If one still is not
    /// (a child's, which was being made meanwhile), it is by the next time.
    pub(super) fn give_up(&mut self, tid: i32, id: u32, why: &'static str) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        for ip in space.holes.values() {
            space.restore(tid, *ip);
        }
        if space.given_up.replace(why).is_some() {
            return;
        }
        for thread in self.threads.values_mut().filter(|t| t.space == Some(id)) {
            thread.foreign = true;
            thread.set_mode(SLOW);
        }
        self.reason(why);
    }

    /// A thread's calls stop from now on.
    pub(super) fn lose(&mut self, tid: i32, why: &str) {
        let Some(thread) = self.threads.get_mut(&tid).filter(|t| !t.foreign) else { return };
        thread.foreign = true;
        thread.set_mode(SLOW);
        self.reason(why);
    }
}
