//! Counting inside the traced process: ptrace only for what is rare.
//!
//! A process begins as under the plain engine. Once it has made enough calls, a
//! thread of it maps our code and a slot of counters, and a filter stops every call
//! but the trampoline's own. A call that stops is led into the trampoline; the
//! second time its site is patched to go there by itself. Whatever is in doubt
//! stops, as before.
//!
//! `layout` says where things are, `trampoline` counts, and says what a thread in it
//! was about; `gate` is the filter, `arena` the counters as the tracer has them,
//! `harvest` takes them; `space` has call sites, `holes` finds room for jumps, and
//! `remote` makes calls in a tracee. Here is what binds them.

mod arena;
mod calibrate;
mod clock;
mod gate;
mod harvest;
mod holes;
mod layout;
mod remote;
mod space;
mod tier;
mod trampoline;

use std::collections::{HashMap, HashSet};

use crate::syscall::{Abi, CallSet, Sys};

use super::arch::Registers;
use super::event::{CallTimes, ImageId, Nanos, ProcessId};
use super::kernel;
use super::memory;
use super::stop::Entry;
use super::task::Action;

use arena::Place;
use clock::Clock;
use holes::Holes;
use layout::{ARENA, BY_ADDRESS, CHUNK, CODE, FAST, NUMBERS, ROWS, SLOW};
use space::Space;
use trampoline::{Place as At, look};

pub use gate::STRICT_DATA;

/// How the fast engine is to work.
#[derive(Debug, Clone)]
pub struct FastOptions {
    /// Calls of a process that stop before it is made to count by itself.
    pub after: u32,
    /// Files whose code is never patched.
    pub not_patched: globset::GlobSet,
}

/// Calls after which counting inside pays; see benches/README.md.
pub const AFTER: u32 = 150;

impl Default for FastOptions {
    fn default() -> Self {
        Self { after: AFTER, not_patched: globset::GlobSet::empty() }
    }
}

/// What the engine did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FastSummary {
    /// Address spaces that counted by themselves.
    pub spaces: u64,
    /// Call sites that were patched.
    pub patched: u64,
    /// Those that were not, each call of which stops once.
    pub redirected: u64,
    /// Calls that were counted without the tracer.
    pub counted: u64,
    /// Calls that stopped once, and were counted inside.
    pub led: u64,
    /// What counting a call inside adds to it here, ns, where that was measured.
    pub cost: Option<u64>,
    /// Why processes, threads or calls went the slow way, and how often.
    pub reasons: Vec<(String, u64)>,
}

/// A thread that has something of ours.
#[derive(Debug, Default)]
struct Thread {
    /// It is under the gate.
    gated: bool,
    space: Option<u32>,
    slot: Option<Place>,
    /// Its GS base, where it has a slot.
    gs: u64,
    /// It has no slot of its own, but that in which all calls stop.
    parked: bool,
    /// GS is the program's, or our pages are gone: all its calls stop.
    foreign: bool,
    /// Errors for which its rows had no room: row and errno.
    more_errors: Vec<(usize, i32)>,
    /// What the tracer wrote last as its mode.
    mode: u32,
}

/// A call that was found in the trampoline, interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caught {
    /// The call, as its site made it.
    pub entry: Entry,
    /// When.
    pub at: Nanos,
    /// What it left in the register.
    pub value: i64,
}

/// What is to be done with a thread that stopped at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Met {
    /// The state machines take it, as this.
    Tell(Entry),
    /// It goes on without them.
    Led,
}

/// A program that a process runs.
pub type Program = (ProcessId, ImageId);

/// Calls that a thread made since it was asked last.
pub type Harvest = Vec<(Sys, CallTimes)>;

/// The engine's state.
#[derive(Debug)]
pub struct Fast {
    after: u32,
    /// Where the code pages are, in every address space.
    base: u64,
    /// Numbers that always stop.
    slow: Box<[bool; NUMBERS]>,
    /// The number of each row.
    rows: Vec<u16>,
    spaces: HashMap<u32, Space>,
    next_space: u32,
    threads: HashMap<i32, Thread>,
    /// Calls that stopped, of programs that do not count yet.
    stopped: HashMap<Program, u32>,
    /// Programs that are not asked again.
    refused: HashSet<Program>,
    /// Programs that share their memory with other processes.
    shared: HashSet<Program>,
    /// Every call is told.
    off: bool,
    clock: Clock,
    holes: Holes,
    summary: FastSummary,
}

/// Calls that always stop: they make or end tasks or programs, change what our code
/// stands on, or give signals to a program that waits for them.
const ALWAYS: [i64; 20] = [
    libc::SYS_rt_sigreturn,
    libc::SYS_clone,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_execveat,
    libc::SYS_clone3,
    libc::SYS_arch_prctl,
    libc::SYS_prctl,
    libc::SYS_seccomp,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_mremap,
    libc::SYS_shmat,
    libc::SYS_remap_file_pages,
    libc::SYS_pkey_mprotect,
    libc::SYS_modify_ldt,
    libc::SYS_ptrace,
];

/// Calls that stop where their first argument could be one of our pages.
const ON_ADDRESSES: [i64; 4] =
    [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_madvise];

impl Fast {
    /// `None` with the reason where this machine has no clock for it. Calls in
    /// `needed` always stop.
    pub fn new(options: &FastOptions, needed: &CallSet) -> Result<Self, &'static str> {
        let clock = Clock::new().ok_or("the time stamp counter of this machine is no clock")?;
        let mut slow = Box::new([false; NUMBERS]);
        for (number, slow) in slow.iter_mut().enumerate() {
            let sys = Sys::new(Abi::X86_64, number as i64);
            *slow = ALWAYS.contains(&sys.number) || needed.contains(sys) || sys.name().is_none();
        }
        // Below 2 GiB, and above where the heap of a program of a fixed place begins.
        let base = 0x5000_0000 + (any_number() & 0xfff) * 0x1_0000;
        Ok(Self {
            after: options.after,
            base,
            slow,
            rows: Vec::new(),
            spaces: HashMap::new(),
            next_space: 0,
            threads: HashMap::new(),
            stopped: HashMap::new(),
            refused: HashSet::new(),
            shared: HashSet::new(),
            off: false,
            clock,
            holes: Holes::except(options.not_patched.clone()),
            summary: FastSummary::default(),
        })
    }

    /// Whether calls are counted inside.
    pub fn is_on(&self) -> bool {
        !self.off
    }

    /// All calls stop from now on, of threads that run too: each looks at its slot
    /// before it makes one.
    pub fn count_no_more(&mut self) {
        self.off = true;
        for thread in self.threads.values_mut() {
            thread.set_mode(SLOW);
        }
    }

    /// What it did; nothing follows any more.
    pub fn summary(&self) -> FastSummary {
        let counts = self.summary.counted > 0;
        let cost = counts.then(calibrate::cost).flatten();
        FastSummary { cost, ..self.summary.clone() }
    }

    /// Whether a GS base is ours, which the program does not know.
    pub fn is_our_gs(&self, base: u64) -> bool {
        let arena = self.base + ARENA;
        (arena..arena + layout::MOST_CHUNKS * CHUNK as u64).contains(&base)
    }

    /// Whether any process is under the gate.
    pub fn has_gate(&self) -> bool {
        self.threads.values().any(|t| t.gated)
    }

    /// Whether a thread is under the gate.
    pub fn is_gated(&self, tid: i32) -> bool {
        self.threads.get(&tid).is_some_and(|t| t.gated)
    }

    fn reason(&mut self, why: &str) {
        match self.summary.reasons.iter_mut().find(|(known, _)| known == why) {
            Some((_, times)) => *times += 1,
            None => self.summary.reasons.push((why.into(), 1)),
        }
    }

    fn is_ours(&self, ip: u64) -> bool {
        (self.base..self.base + CODE).contains(&ip)
    }

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
        let Some(thread) = self.threads.get_mut(&tid) else { return Met::Tell(entry) };
        let Some(id) = thread.space else { return Met::Tell(entry) };
        let ours = self.is_ours(entry.ip);
        if ours && entry.ip == trampoline::drained(self.base) {
            let _ = self.step_back(tid, false);
            let _ = kernel::resume(tid, 0); // Dying: its end is reported.
            return Met::Led;
        }
        let Some(space) = self.spaces.get_mut(&id) else { return Met::Tell(entry) };
        if ours {
            // A stub's own: to everybody else it is the site's.
            let Some(site) = space.site_of_stub(self.base, entry.ip) else {
                return Met::Tell(entry);
            };
            let entry = Entry { ip: site + 2, ..entry };
            let Ok(mut r) = remote::native(tid) else { return Met::Tell(entry) };
            r.rip = entry.ip;
            let _ = kernel::set_registers(tid, &Registers::Native(r));
            self.mind_the_pages(tid, &entry);
            self.mind_the_thread(tid, &entry);
            if quiet && self.can_count(tid, &entry, makes) {
                self.see_why_it_stopped(tid, r.gs_base);
            }
            return Met::Tell(entry);
        }
        self.mind_the_pages(tid, &entry);
        self.mind_the_thread(tid, &entry);
        if quiet && self.can_count(tid, &entry, makes) && self.lead(tid, id, &entry, makes) {
            return Met::Led;
        }
        Met::Tell(entry)
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
    fn can_count(&mut self, tid: i32, entry: &Entry, makes: &dyn Fn(i32) -> bool) -> bool {
        let Some(thread) = self.threads.get(&tid) else { return false };
        if self.off || thread.foreign || thread.parked || thread.slot.is_none() {
            return false;
        }
        let number = usize::try_from(entry.sys.number).unwrap_or(NUMBERS);
        if entry.sys.abi != Abi::X86_64 || self.slow.get(number).is_none_or(|slow| *slow) {
            return false;
        }
        let on_address = ON_ADDRESSES.contains(&entry.sys.number);
        if on_address && entry.args[0].wrapping_sub(1) < 0x7fff_ffff {
            return false;
        }
        let Some(id) = thread.space else { return false };
        let Some(space) = self.spaces.get(&id).filter(|s| s.given_up.is_none()) else {
            return false;
        };
        if space.table.get(number).is_some_and(|byte| *byte != 0) {
            return true;
        }
        if !self.is_steady(id, makes) {
            return false;
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
        let byte = byte_of(row, number as u16);
        let Some(space) = self.spaces.get_mut(&id) else { return false };
        space.set_number(tid, self.base, number, byte).is_ok()
    }

    /// Whether nobody makes a child with a copy of this memory, in which a change might
    /// be or not be.
    fn is_steady(&self, id: u32, makes: &dyn Fn(i32) -> bool) -> bool {
        self.threads.iter().all(|(tid, thread)| thread.space != Some(id) || !makes(*tid))
    }

    /// Leads a call into the trampoline, and the next ones of its site too.
    fn lead(&mut self, tid: i32, id: u32, entry: &Entry, makes: &dyn Fn(i32) -> bool) -> bool {
        let ip = entry.ip.wrapping_sub(2);
        let Some(space) = self.spaces.get(&id) else { return false };
        let known = space.sites.get(&ip).copied();
        let steady = known.is_some_and(|site| site.tried) || self.is_steady(id, makes);
        if known.is_none() && !steady {
            return false;
        }
        let Some(space) = self.spaces.get_mut(&id) else { return false };
        let Some(site) = space.site(tid, self.base, ip) else {
            self.reason("call sites beyond the stubs of an address space");
            return false;
        };
        site.hits = site.hits.saturating_add(1);
        let stub = Space::stub_slow(self.base, site);
        let (first, second) = (site.hits == 1, site.hits >= 2 && !site.tried);
        if first {
            self.summary.redirected += 1;
        }
        if second && steady && space.patch(tid, self.base, ip, &mut self.holes) {
            self.summary.patched += 1;
            self.summary.redirected = self.summary.redirected.saturating_sub(1);
        }
        let Ok(mut r) = remote::native(tid) else { return false };
        r.rip = self.base + layout::TRAMPOLINE;
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
        let end = self.base + ARENA + (space.chunks.len() * CHUNK) as u64;
        let touches = |at: u64, length: u64| at < end && at.saturating_add(length) > self.base;
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
    fn give_up(&mut self, tid: i32, id: u32, why: &'static str) {
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
    fn lose(&mut self, tid: i32, why: &str) {
        let Some(thread) = self.threads.get_mut(&tid).filter(|t| !t.foreign) else { return };
        thread.foreign = true;
        thread.set_mode(SLOW);
        self.reason(why);
    }

    /// A thread stopped for something else than a call: if it was in our code, it is
    /// where its program would be without. Gives the call that was interrupted.
    /// `ending`: it will not run any more.
    pub fn step_back(&mut self, tid: i32, ending: bool) -> Option<Caught> {
        let thread = self.threads.get(&tid)?;
        let space = self.spaces.get(&thread.space?)?;
        let mut r = remote::native(tid).ok()?;
        if !self.is_ours(r.rip) {
            if let Some(site) = space.site_of_hole(tid, self.base, r.rip) {
                r.rip = site;
                let _ = kernel::set_registers(tid, &Registers::Native(r));
            }
            return None;
        }
        if r.rip >= self.base + layout::STUBS {
            // On the way in, or about to make the call that stops.
            let site = space.site_of_stub(self.base, r.rip)?;
            let behind = (r.rip - self.base) % layout::STUB > layout::STUB_SLOW;
            r.rip = if behind { site + 2 } else { site };
            let _ = kernel::set_registers(tid, &Registers::Native(r));
            return None;
        }
        let slot = thread.slot.as_ref();
        let head = slot.map(Place::head).unwrap_or_default();
        let found = look(r.rip - self.base, &r, &head);
        let site = space.site_of_stub(self.base, found.stub)?;
        let in_call = (r.orig_rax as i64) >= 0 && found.place == At::Returned;
        let interrupted = in_call && (ending || is_unsettled(found.rax, r.orig_rax));
        // The kernel went back to start it again, by a number that is not its own.
        let again = found.place == At::Before && found.rax == libc::SYS_restart_syscall as u64;
        let row = layout::row_at(head.call);
        let number = row.and_then(|row| self.rows.get(row)).map(|n| i64::from(*n));
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
            At::Counting(counted) => Some(counted),
            At::Returned if caught.is_none() => Some(trampoline::Counted::Nothing),
            _ => None,
        };
        self.settle_slot(tid, counted, found.rax, row);
        caught
    }

    /// What of a call is not counted yet is, and none is in flight.
    fn settle_slot(
        &mut self,
        tid: i32,
        counted: Option<trampoline::Counted>,
        result: u64,
        row: Option<usize>,
    ) {
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
            let met = space.sites.contains_key(&ip)
                && matches!(memory::read(tid, ip, &mut now), Ok(1))
                && now != [0xcc];
            if met {
                r.rip = r.rip.wrapping_sub(1);
                let _ = kernel::set_registers(tid, &Registers::Native(r));
            }
            return met;
        }
        if !self.is_ours(r.rip) && space.site_of_hole(tid, self.base, r.rip).is_none() {
            return false;
        }
        let in_trampoline = (self.base..self.base + layout::TABLE).contains(&r.rip);
        let slot_known = self.threads.get(&tid).is_some_and(|t| t.slot.is_some());
        let stub = in_trampoline.then(|| {
            let head = self.threads.get(&tid).and_then(|t| t.slot.as_ref()).map(Place::head);
            look(r.rip - self.base, &r, &head.unwrap_or_default())
        });
        let _ = self.step_back(tid, false);
        if remote::native(tid).is_ok_and(|now| now.rip == r.rip) {
            // Nothing is known of where it came from: it is the program's own fault.
            self.reason("the program wrote where its calls are counted");
            return false;
        }
        let mut here = [0; 8];
        let mapped = matches!(memory::read(tid, self.base + layout::STUBS, &mut here), Ok(8))
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
    fn give_slot(&mut self, tid: i32, id: u32) {
        let (Some(space), Some(thread)) = (self.spaces.get(&id), self.threads.get_mut(&tid)) else {
            return;
        };
        let Ok(mut r) = remote::native(tid) else { return };
        let arena = self.base + ARENA;
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
        self.threads.insert(child, Thread { gated, space, foreign, ..Thread::default() });
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

    fn leave(&mut self, id: u32) {
        let Some(space) = self.spaces.get_mut(&id) else { return };
        space.users = space.users.saturating_sub(1);
        if space.users == 0 {
            self.spaces.remove(&id);
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

fn any_number() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the kernel writes at most eight bytes; fewer are as good.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_ne_bytes(bytes)
}

impl Thread {
    /// True where the program has written there.
    fn set_mode(&mut self, mode: u32) -> bool {
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

/// What the code pages say of a number with this row.
fn byte_of(row: usize, number: u16) -> u8 {
    let on_address = ON_ADDRESSES.contains(&i64::from(number));
    (row + 1) as u8 | if on_address { BY_ADDRESS } else { 0 }
}

/// Whether a result means that the call is not over: the kernel will start it again,
/// or only tracing has ended it.
fn is_unsettled(value: u64, number: u64) -> bool {
    let value = value as i64;
    matches!(value, -512 | -513 | -514 | -516)
        || value == -i64::from(libc::EINTR) && Sys::new(Abi::X86_64, number as i64).is_repairable()
}

/// Whether a call that makes a child leaves both in one memory.
pub fn shares_memory(tid: i32, entry: &Entry) -> bool {
    const VM: u64 = libc::CLONE_VM as u64;
    match entry.sys.name() {
        Some("vfork") => true,
        Some("clone") => entry.args[0] & VM != 0,
        Some("clone3") => {
            let mut flags = [0; 8];
            let read = memory::read(tid, entry.args[0], &mut flags);
            matches!(read, Ok(8)) && u64::from_ne_bytes(flags) & VM != 0
        }
        _ => false,
    }
}

/// Whether a call makes a child, or a program.
pub fn makes_tasks(entry: &Entry) -> bool {
    matches!(entry.sys.name(), Some("fork" | "vfork" | "clone" | "clone3" | "execve" | "execveat"))
}
