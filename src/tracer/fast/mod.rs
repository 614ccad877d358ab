//! Counting inside the traced process: ptrace only for what is rare.
//!
//! A process begins as under the plain engine. Once it has made enough calls, a
//! thread of it maps our code and a slot of counters, and a filter stops every call
//! but the trampoline's own. A call that stops is led into the trampoline; where a site
//! stops often, it is patched to go there by itself. Whatever is in doubt stops, as
//! before.
//!
//! `layout` says where things are, `trampoline` counts, and says what a thread in it
//! was about; `gate` is the filter. `segment` is memory that is shared with tracees:
//! `pages` the code, `arena` the counters, which `harvest` takes. `space` has call sites,
//! `holes` finds room for jumps in what `padding` says is dead, and `remote` makes calls
//! in a tracee. `tier` brings all that into a process, `begin` into one that is executed
//! later, by what `beginnings` knows of its file; `calls`, `back` and `threads` say what
//! to do with its stops. Here is what they share.

mod arena;
mod back;
mod begin;
mod beginnings;
mod calibrate;
mod calls;
mod clock;
mod gate;
mod harvest;
mod holes;
mod layout;
mod padding;
mod pages;
mod remote;
mod segment;
mod space;
mod threads;
mod tier;
mod trampoline;

use std::collections::{HashMap, HashSet};
use std::io;
use std::rc::Rc;

use crate::syscall::{Abi, CallSet, Sys};

use super::error::reason;
use super::inside::{FastOptions, FastSummary, Program};
use super::memory::Writer;

use arena::{Place, Pool};
use begin::Begin;
use beginnings::Beginnings;
use clock::Clock;
use holes::Holes;
use layout::{ARENA, CHUNK, NUMBERS, SLOW};
use pages::Pages;
use space::Space;

pub use threads::{makes_tasks, shares_memory};

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
    /// How its program begins, while that matters.
    begin: Option<Begin>,
}

/// The engine's state.
#[derive(Debug)]
pub struct Fast {
    after: u32,
    pages: Pages,
    /// Segments for stubs, and for slots.
    stubs: Rc<Pool>,
    chunks: Rc<Pool>,
    /// Numbers that always stop.
    slow: Box<[bool; NUMBERS]>,
    /// The number of each row.
    rows: Vec<u16>,
    spaces: HashMap<u32, Space>,
    /// The memory of the space that was written last.
    memory: Option<(u32, Writer)>,
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
    /// Some process may have left our IPC namespace.
    may_be_elsewhere: bool,
    clock: Clock,
    holes: Holes,
    beginnings: Beginnings,
    summary: FastSummary,
}

/// Calls that always stop: they make or end tasks or programs, change what our code
/// stands on, leave namespaces, or give signals to a program that waits for them.
const ALWAYS: [i64; 21] = [
    libc::SYS_rt_sigreturn,
    libc::SYS_clone,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_execveat,
    libc::SYS_clone3,
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
    libc::SYS_unshare,
    libc::SYS_setns,
];

/// Calls that stop where their first argument could be one of our pages, or says so.
const BY_ARGUMENT: [i64; 5] =
    [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_munmap, libc::SYS_madvise, libc::SYS_arch_prctl];

/// The one that every program makes.
const ARCH_SET_FS: u64 = 0x1002;

/// Whether a call stops for its first argument.
fn goes_slowly(number: i64, argument: u64) -> bool {
    if number == libc::SYS_arch_prctl {
        return argument != ARCH_SET_FS;
    }
    BY_ARGUMENT.contains(&number) && argument.wrapping_sub(1) < 0x7fff_ffff
}

impl Fast {
    /// `None` with the reason where this machine has no clock for it. Calls in
    /// `needed` always stop.
    pub fn new(options: &FastOptions, needed: &CallSet) -> Result<Self, String> {
        let clock = Clock::new().ok_or("the time stamp counter of this machine is no clock")?;
        let mut slow = Box::new([false; NUMBERS]);
        for (number, slow) in slow.iter_mut().enumerate() {
            let sys = Sys::new(Abi::X86_64, number as i64);
            *slow = ALWAYS.contains(&sys.number) || needed.contains(sys) || sys.name().is_none();
        }
        // Below 2 GiB, and above where the heap of a program of a fixed place begins.
        let base = 0x5000_0000 + (any_number() & 0xfff) * 0x1_0000;
        let pages = Pages::new(base)
            .map_err(|e| format!("the kernel gives no shared memory: {}", reason(&e)))?;
        Ok(Self {
            after: options.after,
            pages,
            stubs: Pool::of(layout::STUBS_LENGTH as usize, 0o500),
            chunks: Pool::of(CHUNK, 0o600),
            slow,
            rows: Vec::new(),
            spaces: HashMap::new(),
            memory: None,
            next_space: 0,
            threads: HashMap::new(),
            stopped: HashMap::new(),
            refused: HashSet::new(),
            shared: HashSet::new(),
            off: false,
            may_be_elsewhere: false,
            clock,
            beginnings: Beginnings::new(&options.not_patched),
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
        let arena = self.pages.base + ARENA;
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
        (self.pages.base..self.pages.base + ARENA).contains(&ip)
    }
}

/// The memory of an address space, by a thread of it, opened anew if it is not the one
/// that was written last.
fn memory_of(last: &mut Option<(u32, Writer)>, id: u32, tid: i32) -> io::Result<&Writer> {
    let writer = match last.take() {
        Some((known, writer)) if known == id => writer,
        _ => Writer::open(tid)?,
    };
    Ok(&last.insert((id, writer)).1)
}

fn any_number() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the kernel writes at most eight bytes; fewer are as good.
    unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    u64::from_ne_bytes(bytes)
}

/// What the code pages say of a number with this row.
fn byte_of(row: usize, number: u16) -> u8 {
    let by_argument = BY_ARGUMENT.contains(&i64::from(number));
    (row + 1) as u8 | if by_argument { layout::BY_ARGUMENT } else { 0 }
}
