//! An address space that counts: its call sites, the stubs of these, what is patched.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use super::super::memory::{self, Writer};
use super::arena::{Chunk, Place, Pooled};
use super::beginnings::Beginning;
use super::holes::{Holes, Undo};
use super::layout::{self, STUB, STUB_ENTRY, STUB_LOAD, STUB_LOAD_ENTRY, STUB_SLOW, STUBS};

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// How a call site jumps to our code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patch {
    /// Where the hole is.
    pub hole: u64,
    /// What was there.
    pub padding: [u8; 7],
    /// The instruction before the site, which loads a constant, where that has become the
    /// jump; else the site itself has.
    pub load: Option<[u8; 5]>,
}

impl Patch {
    /// How the site at `ip` can be patched, through a hole that is `free`. `alone`: nobody
    /// else runs there. Else two bytes can be changed under him, but only in one line of
    /// the cache, to be fetched as one.
    pub fn find(
        tid: i32,
        ip: u64,
        alone: bool,
        holes: &mut Holes,
        free: &dyn Fn(u64) -> bool,
        undo: Undo<'_>,
    ) -> Option<Self> {
        let may = alone || ip % 64 != 63;
        let near = may.then(|| holes.near(tid, ip, free, undo)).flatten();
        let near = near.map(|hole| Self { hole: hole.address, padding: hole.padding, load: None });
        near.filter(|patch| patch.change(ip).is_some()).or_else(|| {
            let hole = alone.then(|| holes.in_front(tid, ip, free, undo))??;
            let load = memory::read_all(tid, &[(ip.checked_sub(LOAD)?, LOAD as usize)])?;
            let load = <[u8; LOAD as usize]>::try_from(load).ok()?;
            if !(0xb8..=0xbf).contains(&load[0]) {
                return None;
            }
            Some(Self { hole: hole.address, padding: hole.padding, load: Some(load) })
        })
    }

    /// Where a site is changed, what was there, and what is. `None` where the hole is too
    /// far.
    pub fn change(&self, ip: u64) -> Option<(u64, Vec<u8>, Vec<u8>)> {
        if let Some(load) = self.load {
            let distance = i32::try_from(self.hole.wrapping_sub(ip) as i64).ok()?;
            let jump = [&[0xe9][..], &distance.to_le_bytes()].concat();
            return Some((ip - LOAD, load.to_vec(), jump));
        }
        let distance = i8::try_from(self.hole.wrapping_sub(ip + 2) as i64).ok()?;
        Some((ip, SYSCALL.to_vec(), vec![0xeb, distance as u8]))
    }

    /// What the hole holds: a jump by a pointer in the site's stub.
    pub fn jump(&self, base: u64, stub: u32) -> [u8; 7] {
        let entry = if self.load.is_some() { STUB_LOAD_ENTRY } else { STUB_ENTRY };
        let entry = (base + STUBS + u64::from(stub) * STUB + entry) as u32;
        let mut jump = [0xff, 0x24, 0x25, 0, 0, 0, 0];
        jump[3..].copy_from_slice(&entry.to_le_bytes());
        jump
    }

    /// Where the program is that stands in the hole.
    fn back(&self, ip: u64) -> u64 {
        if self.load.is_some() { ip - LOAD } else { ip }
    }
}

/// Length of what loads a constant.
const LOAD: u64 = 5;

/// A call site.
#[derive(Debug, Clone, Copy)]
pub struct Site {
    /// Its stub, by number.
    pub stub: u32,
    /// How it jumps to our code; else it stops, and each stop leads there.
    pub patch: Option<Patch>,
    /// It was tried to patch it.
    pub tried: bool,
}

/// The stubs of a process and of all its children by fork, which share their memory.
#[derive(Debug)]
pub struct Stubs {
    memory: Pooled,
    /// The site of each.
    sites: Vec<u64>,
    numbers: HashMap<u64, u32>,
    /// Times that each stopped, in all of them.
    hits: Vec<u32>,
    /// The constant that each loads, if it does.
    loads: Vec<Option<[u8; LOAD as usize]>>,
}

/// Stops of a site after which it is patched: that costs about what two of them do.
const HITS: u32 = 3;

/// An address space.
#[derive(Debug, Clone)]
pub struct Space {
    /// Call sites by the address of their `syscall`.
    pub sites: HashMap<u64, Site>,
    /// The site of each hole.
    pub holes: HashMap<u64, u64>,
    /// Shared with all its relatives.
    pub stubs: Rc<RefCell<Stubs>>,
    /// Its slots.
    pub chunks: Vec<Rc<Chunk>>,
    /// The slot of threads that have none: never anybody's own.
    pub _parking: Rc<Place>,
    /// The file in which its program began, and where, if it was under the gate then.
    pub began: Option<(Rc<Beginning>, u64)>,
    /// Threads that run in it.
    pub users: u32,
    /// Why it counts no more.
    pub given_up: Option<&'static str>,
}

impl Space {
    /// One that has these stubs and this first chunk.
    pub fn new(memory: Pooled, chunk: Rc<Chunk>) -> Self {
        Self {
            _parking: Rc::new(Place::park(&chunk)),
            sites: HashMap::new(),
            holes: HashMap::new(),
            stubs: Rc::new(RefCell::new(Stubs {
                memory,
                sites: Vec::new(),
                numbers: HashMap::new(),
                hits: Vec::new(),
                loads: Vec::new(),
            })),
            chunks: vec![chunk],
            began: None,
            users: 0,
            given_up: None,
        }
    }

    /// The site at `ip`, with a stub; `None` where there are no more stubs.
    pub fn site(&mut self, base: u64, ip: u64) -> Option<&mut Site> {
        if !self.sites.contains_key(&ip) {
            let stub = self.stub(base, ip)?;
            self.sites.insert(ip, Site { stub, patch: None, tried: false });
        }
        self.sites.get_mut(&ip)
    }

    fn stub(&self, base: u64, ip: u64) -> Option<u32> {
        let mut stubs = self.stubs.borrow_mut();
        if let Some(number) = stubs.numbers.get(&ip) {
            return Some(*number);
        }
        let number = stubs.sites.len() as u64;
        if number >= layout::MOST_STUBS {
            return None;
        }
        let address = base + STUBS + number * STUB;
        let bytes = layout::stub(address, ip + 2, base + layout::TRAMPOLINE);
        stubs.memory.segment().write((number * STUB) as usize, &bytes);
        stubs.sites.push(ip);
        stubs.hits.push(0);
        stubs.loads.push(None);
        stubs.numbers.insert(ip, number as u32);
        Some(number as u32)
    }

    /// A site that has been patched.
    pub fn has_patched(&mut self, base: u64, ip: u64, patch: Patch) -> Option<()> {
        let site = self.site(base, ip)?;
        site.tried = true;
        site.patch = Some(patch);
        let stub = site.stub;
        self.holes.insert(patch.hole, ip);
        self.load_constant(base, stub, &patch)
    }

    /// Has a stub load the constant, if it must. `None` where it loads another one.
    fn load_constant(&self, base: u64, stub: u32, patch: &Patch) -> Option<()> {
        let Some(load) = patch.load else { return Some(()) };
        let mut stubs = self.stubs.borrow_mut();
        let known = stubs.loads.get_mut(stub as usize)?;
        if known.is_some_and(|known| known != load) {
            return None; // A relative has other code in the same place.
        }
        *known = Some(load);
        let at = u64::from(stub) * STUB;
        let bytes = layout::stub_load(base + STUBS + at, load);
        stubs.memory.segment().write((at + STUB_LOAD) as usize, &bytes);
        Some(())
    }

    /// A site has stopped; how often, and whether it is time to patch it.
    pub fn has_stopped(&self, site: Site) -> (u32, bool) {
        let mut stubs = self.stubs.borrow_mut();
        let Some(hits) = stubs.hits.get_mut(site.stub as usize) else { return (0, false) };
        *hits = hits.saturating_add(1);
        (*hits, *hits >= HITS && !site.tried)
    }

    /// The site whose stub has its `syscall` at `address`, as rcx holds it.
    pub fn site_of_stub(&self, base: u64, address: u64) -> Option<u64> {
        let offset = address.checked_sub(base + STUBS)? / STUB;
        self.stubs.borrow().sites.get(usize::try_from(offset).ok()?).copied()
    }

    /// The `syscall` of a site's stub.
    pub fn stub_slow(base: u64, site: &Site) -> u64 {
        base + STUBS + u64::from(site.stub) * STUB + STUB_SLOW
    }

    /// Where the program is that stands at `rip` in a stub.
    pub fn behind_stub(&self, base: u64, rip: u64) -> Option<u64> {
        let site = self.site_of_stub(base, rip)?;
        Some(match (rip - base) % STUB {
            STUB_LOAD => site - LOAD,
            at if (STUB_SLOW + 1..STUB_LOAD).contains(&at) => site + 2,
            _ => site,
        })
    }

    /// Patches a site. False where that cannot be.
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
        let stub = site.stub;
        let taken = &self.holes;
        let free =
            |hole: u64| !(hole.saturating_sub(6)..hole + 7).any(|at| taken.contains_key(&at));
        let undo = |from: u64, bytes: &mut [u8]| undo(&self.sites, from, bytes);
        let Some(patch) = Patch::find(tid, ip, alone, holes, &free, &undo) else { return false };
        let Some((at, was, becomes)) = patch.change(ip) else { return false };
        let now = memory::read_all(tid, &[(at, was.len()), (ip, SYSCALL.len())]);
        if now != Some([&was[..], &SYSCALL].concat())
            || self.load_constant(base, stub, &patch).is_none()
            || memory.write(patch.hole, &patch.jump(base, stub)).is_err()
        {
            return false;
        }
        if poke(memory, at, &was, &becomes, alone).is_err() {
            let _ = memory.write(patch.hole, &patch.padding);
            return false;
        }
        self.has_patched(base, ip, patch).is_some()
    }

    /// Patches what stops often here or in relatives, for its next children to have it so.
    pub fn patch_all(&mut self, tid: i32, memory: &Writer, base: u64, holes: &mut Holes) -> usize {
        let untried = |ip: &u64| !self.sites.get(ip).is_some_and(|site| site.tried);
        let stubs = self.stubs.borrow();
        let often = stubs.sites.iter().zip(&stubs.hits).filter(|(_, hits)| **hits >= HITS);
        let missing: Vec<u64> = often.map(|(ip, _)| *ip).filter(untried).collect();
        drop(stubs);
        let mut patch =
            |ip: u64| self.site(base, ip).is_some() && self.patch(tid, memory, base, ip, holes);
        missing.into_iter().filter(|ip| patch(*ip)).count()
    }

    /// Where the program is that stands in the hole at `address`, if our jump is there.
    pub fn behind_hole(&self, tid: i32, base: u64, address: u64) -> Option<u64> {
        let ip = *self.holes.get(&address)?;
        let site = self.sites.get(&ip)?;
        let patch = site.patch?;
        let mut now = [0; 7];
        let read = matches!(memory::read(tid, address, &mut now), Ok(7));
        (read && now == patch.jump(base, site.stub)).then(|| patch.back(ip))
    }

    /// Puts back what was changed of bytes that were read from an address on.
    pub fn undo(&self, from: u64, bytes: &mut [u8]) {
        undo(&self.sites, from, bytes);
    }

    /// Whether a site is changed at `address`.
    pub fn changes(&self, address: u64) -> bool {
        let patch = |ip: u64| self.sites.get(&ip).and_then(|site| site.patch);
        self.sites.contains_key(&address)
            || patch(address + LOAD).is_some_and(|patch| patch.load.is_some())
    }

    /// Puts a site back as it was. The hole stays: somebody may stand at it, and to
    /// everybody else it is padding.
    pub fn restore(&self, tid: i32, ip: u64) {
        let change = self.sites.get(&ip).and_then(|site| site.patch?.change(ip));
        let Some((at, was, jump)) = change else { return };
        // Somebody else's code may be there by now.
        if memory::read_all(tid, &[(at, jump.len())]).is_some_and(|now| now == jump) {
            let _ = Writer::open(tid)
                .and_then(|memory| poke(&memory, at, &jump, &was, self.users <= 1));
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
        if let Some((patch, (at, was, _))) = site.patch.and_then(|p| Some((p, p.change(*ip)?))) {
            put(at, &was);
            put(patch.hole, &patch.padding);
        }
    }
}

/// Changes some bytes of code that others may run meanwhile, if it is not one thread
/// `alone`: through `int3`, for nobody to meet half of it. Who meets that stops, and is
/// put back to the begin.
fn poke(memory: &Writer, at: u64, was: &[u8], becomes: &[u8], alone: bool) -> io::Result<()> {
    if alone {
        return memory.write(at, becomes);
    }
    let first = |bytes: &[u8]| bytes.first().copied().unwrap_or_default();
    memory.write(at, &[0xcc])?;
    let rest = memory.write(at + 1, becomes.get(1..).unwrap_or_default());
    memory.write(at, &[first(if rest.is_ok() { becomes } else { was })])?;
    rest
}
