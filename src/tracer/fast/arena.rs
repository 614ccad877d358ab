//! Memory that tracees count in: slots, and before the first of them the stubs.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::offset_of;
use std::rc::Rc;

use super::layout::{CHUNK, CHUNK_SLOTS, Head, ROWS, Row, SLOT, SLOW, STUBS_LENGTH, Slot};
use super::segment::Segment;

/// Only the owner may map it.
const MODE: i32 = 0o600;

/// First segments of processes that are gone, for those that begin: the pages of a new one
/// cost more than a short program's calls.
#[derive(Debug, Default)]
pub struct Pool(RefCell<Vec<Rc<Segment>>>);

/// A few slots in one segment.
#[derive(Debug)]
pub struct Chunk {
    segment: Rc<Segment>,
    /// Bytes before the first slot.
    slots_at: usize,
    /// Bit i: slot i is somebody's.
    taken: Cell<u32>,
    /// Bit i: it was.
    used: Cell<u32>,
    /// Where the segment goes when nobody needs it.
    pool: Option<Rc<Pool>>,
}

impl Chunk {
    /// The first of a process, behind its stubs.
    pub fn first(pool: &Rc<Pool>) -> io::Result<Rc<Self>> {
        let slots_at = STUBS_LENGTH as usize;
        let known = pool.0.borrow_mut().pop();
        let segment = match known {
            Some(segment) => segment,
            None => Rc::new(Segment::new(slots_at + CHUNK, MODE)?),
        };
        Ok(Self::of(segment, slots_at, Some(Rc::clone(pool))))
    }

    /// One more: slots only.
    pub fn more() -> io::Result<Rc<Self>> {
        Ok(Self::of(Rc::new(Segment::new(CHUNK, MODE)?), 0, None))
    }

    fn of(segment: Rc<Segment>, slots_at: usize, pool: Option<Rc<Pool>>) -> Rc<Self> {
        Rc::new(Self { segment, slots_at, taken: Cell::new(0), used: Cell::new(0), pool })
    }

    /// Its memory.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        const MOST: usize = 16;
        let Some(pool) = &self.pool else { return };
        let mut free = pool.0.borrow_mut();
        if free.len() >= MOST || !self.segment.is_alone() {
            return;
        }
        // Whatever somebody wrote there, the next one finds zeros.
        for index in (0..CHUNK_SLOTS).filter(|i| self.used.get() & 1 << i != 0) {
            self.segment.clear(self.slots_at + index * SLOT, SLOT);
        }
        free.push(Rc::clone(&self.segment));
    }
}

/// A slot that is somebody's; free again when it is dropped.
#[derive(Debug)]
pub struct Place {
    chunk: Rc<Chunk>,
    index: usize,
}

impl Place {
    /// A free slot of one of these chunks, cleared, and which chunk it is in.
    pub fn take(chunks: &[Rc<Chunk>]) -> Option<(Self, usize)> {
        chunks.iter().enumerate().find_map(|(i, chunk)| {
            let index = (!chunk.taken.get()).trailing_zeros() as usize;
            if index >= CHUNK_SLOTS {
                return None;
            }
            chunk.taken.set(chunk.taken.get() | 1 << index);
            chunk.used.set(chunk.used.get() | 1 << index);
            let place = Self { chunk: Rc::clone(chunk), index };
            place.clear();
            Some((place, i))
        })
    }

    /// Where it begins in its chunk, bytes.
    pub fn offset(&self) -> u64 {
        (self.index * SLOT) as u64
    }

    fn word<T>(&self, offset: usize) -> *mut T {
        debug_assert!(offset + size_of::<T>() <= SLOT);
        self.chunk.segment.at(self.chunk.slots_at + self.index * SLOT + offset)
    }

    /// Reads a number.
    pub fn get(&self, offset: usize) -> u64 {
        // SAFETY: eight bytes of the mapping, aligned; the tracee may write them at any
        // time, which a volatile read takes as it comes.
        unsafe { self.word::<u64>(offset).read_volatile() }
    }

    /// Writes one.
    pub fn set(&self, offset: usize, value: u64) {
        // SAFETY: as in `get`.
        unsafe { self.word::<u64>(offset).write_volatile(value) }
    }

    /// Adds to one. Its thread is stopped.
    pub fn add(&self, offset: usize, value: u64) {
        self.set(offset, self.get(offset).wrapping_add(value));
    }

    /// The word that says how calls go.
    pub fn mode(&self) -> u32 {
        // SAFETY: four bytes of the mapping, aligned; as in `get`.
        unsafe { self.word::<u32>(offset_of!(Head, mode)).read_volatile() }
    }

    /// Sets it.
    pub fn set_mode(&self, mode: u32) {
        // SAFETY: as in `mode`.
        unsafe { self.word::<u32>(offset_of!(Head, mode)).write_volatile(mode) }
    }

    /// What is known of the call in flight.
    pub fn head(&self) -> Head {
        Head {
            mode: self.mode(),
            flags: (self.get(0) >> 32) as u32,
            rdx: self.get(offset_of!(Head, rdx)),
            stub: self.get(offset_of!(Head, stub)),
            row: self.get(offset_of!(Head, row)),
            call: self.get(offset_of!(Head, call)),
            clock: self.get(offset_of!(Head, clock)),
            result: self.get(offset_of!(Head, result)),
            negative: self.get(offset_of!(Head, negative)),
        }
    }

    /// Where a field of row `i` is.
    pub fn row(i: usize, field: usize) -> usize {
        offset_of!(Slot, rows) + i.min(ROWS - 1) * size_of::<Row>() + field
    }

    fn clear(&self) {
        self.set_mode(SLOW);
        for offset in (8usize..offset_of!(Slot, rows)).step_by(8) {
            self.set(offset, 0);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.chunk.taken.set(self.chunk.taken.get() & !(1 << self.index));
    }
}
