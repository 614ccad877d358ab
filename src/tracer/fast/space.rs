//! An address space that counts: its call sites, the stubs of these, what is patched.

use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use super::super::memory::{self, Writer};
use super::arena::{Chunk, Place};
use super::holes::{Hole, Holes};
use super::layout::{self, NUMBERS, STUB, STUB_SLOW, STUBS};

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// What became of a call site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiteState {
    /// It stops, and each stop leads into the trampoline.
    Redirected,
    /// It jumps there through this hole.
    Patched {
        /// Where the hole is.
        hole: u64,
        /// What was there.
        padding: [u8; 7],
    },
}

/// A call site.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// Its stub, by number.
    pub stub: u32,
    /// Times that it stopped.
    pub hits: u32,
    /// How its calls are counted.
    pub state: SiteState,
    /// It was tried to patch it.
    pub tried: bool,
}

/// An address space.
#[derive(Debug, Clone)]
pub struct Space {
    /// Call sites by the address of their `syscall`.
    pub sites: HashMap<u64, Site>,
    /// The site of each stub.
    pub stubs: Vec<u64>,
    /// The site of each hole.
    pub holes: HashMap<u64, u64>,
    /// The byte of each number as the code pages have it.
    pub table: Box<[u8; NUMBERS]>,
    /// Its slots.
    pub chunks: Vec<Rc<Chunk>>,
    /// The slot of threads that have none: never anybody's own.
    pub _parking: Option<Rc<Place>>,
    /// Threads that run in it.
    pub users: u32,
    /// Why it counts no more.
    pub given_up: Option<&'static str>,
}

impl Space {
    /// The code pages have just been written, with this table.
    pub fn new(chunk: Rc<Chunk>, table: Box<[u8; NUMBERS]>) -> Self {
        let parking = Place::take(std::slice::from_ref(&chunk)).map(|(slot, _)| Rc::new(slot));
        Self {
            _parking: parking,
            sites: HashMap::new(),
            stubs: Vec::new(),
            holes: HashMap::new(),
            table,
            chunks: vec![chunk],
            users: 0,
            given_up: None,
        }
    }

    /// Sets what the code pages say of a number.
    pub fn set_number(
        &mut self,
        memory: &Writer,
        base: u64,
        number: usize,
        byte: u8,
    ) -> io::Result<()> {
        let Some(known) = self.table.get_mut(number).filter(|known| **known != byte) else {
            return Ok(());
        };
        memory.write(base + layout::TABLE + number as u64, &[byte])?;
        *known = byte;
        Ok(())
    }

    /// The site at `ip`, with a stub; `None` where there are no more stubs.
    pub fn site(&mut self, memory: &Writer, base: u64, ip: u64) -> Option<&mut Site> {
        if !self.sites.contains_key(&ip) {
            let number = self.stubs.len() as u64;
            if number >= layout::MOST_STUBS {
                return None;
            }
            let address = base + STUBS + number * STUB;
            let bytes = layout::stub(address, ip + 2, base + layout::TRAMPOLINE);
            memory.write(address, &bytes).ok()?;
            self.stubs.push(ip);
            let state = SiteState::Redirected;
            self.sites.insert(ip, Site { stub: number as u32, hits: 0, state, tried: false });
        }
        self.sites.get_mut(&ip)
    }

    /// The site whose stub has its `syscall` at `address`, as rcx holds it.
    pub fn site_of_stub(&self, base: u64, address: u64) -> Option<u64> {
        let offset = address.checked_sub(base + STUBS)? / STUB;
        self.stubs.get(offset as usize).copied()
    }

    /// The `syscall` of a site's stub.
    pub fn stub_slow(base: u64, site: &Site) -> u64 {
        base + STUBS + u64::from(site.stub) * STUB + STUB_SLOW
    }

    /// Patches a site through a hole near it. False where there is none.
    pub fn patch(
        &mut self,
        tid: i32,
        memory: &Writer,
        base: u64,
        ip: u64,
        holes: &mut Holes,
    ) -> bool {
        let alone = self.users <= 1;
        let Some(site) = self.sites.get_mut(&ip) else { return false };
        site.tried = true;
        // Both bytes in one line of the cache, to be fetched as one.
        if ip % 64 == 63 {
            return false;
        }
        let taken = &self.holes;
        let free =
            |hole: u64| !(hole.saturating_sub(6)..hole + 7).any(|at| taken.contains_key(&at));
        let undo = |from: u64, bytes: &mut [u8]| undo(&self.sites, from, bytes);
        let hole = holes.near(tid, ip, &free, &undo);
        let Some(Hole { address, padding }) = hole else { return false };
        let Some(site) = self.sites.get_mut(&ip) else { return false };
        let jump = jump_of(base, site);
        let distance = address.wrapping_sub(ip + 2) as i64;
        let Ok(distance) = i8::try_from(distance) else { return false };
        let mut now = [0; 2];
        if !matches!(memory::read(tid, ip, &mut now), Ok(2)) || now != SYSCALL {
            return false;
        }
        if memory.write(address, &jump).is_err() {
            return false;
        }
        let done = poke(memory, ip, SYSCALL, [0xeb, distance as u8], alone);
        if done.is_err() {
            let _ = memory.write(address, &padding);
            return false;
        }
        site.state = SiteState::Patched { hole: address, padding };
        self.holes.insert(address, ip);
        true
    }

    /// The site of the hole at `address`, if our jump is there.
    pub fn site_of_hole(&self, tid: i32, base: u64, address: u64) -> Option<u64> {
        let ip = *self.holes.get(&address)?;
        let mut now = [0; 7];
        let read = matches!(memory::read(tid, address, &mut now), Ok(7));
        (read && now == jump_of(base, self.sites.get(&ip)?)).then_some(ip)
    }

    /// Puts a site back as it was. The hole stays: somebody may stand at it, and to
    /// everybody else it is padding.
    pub fn restore(&self, tid: i32, ip: u64) {
        let Some(site) = self.sites.get(&ip) else { return };
        let SiteState::Patched { hole, .. } = site.state else { return };
        let mut now = [0; 2];
        let jump = [0xeb, hole.wrapping_sub(ip + 2) as u8];
        // Somebody else's code may be there by now.
        if matches!(memory::read(tid, ip, &mut now), Ok(2)) && now == jump {
            let _ = Writer::open(tid)
                .and_then(|memory| poke(&memory, ip, jump, SYSCALL, self.users <= 1));
        }
    }
}

/// Puts back what was changed of bytes that were read from an address on.
fn undo(sites: &HashMap<u64, Site>, from: u64, bytes: &mut [u8]) {
    let mut put = |at: u64, was: &[u8]| {
        for (at, byte) in (at..).zip(was) {
            let place = at.checked_sub(from).and_then(|i| bytes.get_mut(usize::try_from(i).ok()?));
            if let Some(place) = place {
                *place = *byte;
            }
        }
    };
    for (ip, site) in sites {
        if let SiteState::Patched { hole, padding } = &site.state {
            put(*ip, &SYSCALL);
            put(*hole, padding);
        }
    }
}

/// What a hole holds: a jump by the pointer at the begin of the site's stub.
fn jump_of(base: u64, site: &Site) -> [u8; 7] {
    let entry = (base + STUBS + u64::from(site.stub) * STUB) as u32;
    let mut jump = [0xff, 0x24, 0x25, 0, 0, 0, 0];
    jump[3..].copy_from_slice(&entry.to_le_bytes());
    jump
}

/// Changes two bytes of code that others may run meanwhile, if it is not one thread
/// `alone`: through `int3`, for nobody to meet half of it. Who meets that stops, and is
/// put back to the begin.
fn poke(memory: &Writer, at: u64, was: [u8; 2], becomes: [u8; 2], alone: bool) -> io::Result<()> {
    if alone {
        return memory.write(at, &becomes);
    }
    memory.write(at, &[0xcc])?;
    let rest = memory.write(at + 1, &becomes[1..]);
    let first = if rest.is_ok() { becomes } else { was };
    memory.write(at, &first[..1])?;
    rest
}
