//! Memory that tracees count in, and the pools that segments come from.

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::offset_of;
use std::rc::Rc;

use super::layout::{CHUNK_SLOTS, Head, ROWS, Row, SLOT, SLOW, Slot};
use super::segment::Segment;

/// Segments of one kind. Those of processes that are gone are for those that begin: the
/// pages of a new one cost more than a short program's calls.
#[derive(Debug)]
pub struct Pool {
    /// With the slots that are zero in each, by bit.
    free: RefCell<Vec<(Rc<Segment>, u32)>>,
    length: usize,
    mode: u16,
}

impl Pool {
    /// Segments of so many bytes, which their owners may map as `mode` says.
    pub fn of(length: usize, mode: u16) -> Rc<Self> {
        Rc::new(Self { free: RefCell::default(), length, mode })
    }

    /// One that nobody has, for processes of this user.
    pub fn take(self: &Rc<Self>, user: u32) -> io::Result<Pooled> {
        let free = self.free.borrow_mut().pop();
        let (segment, zero) = match free {
            Some(free) => free,
            None => (Rc::new(Segment::new(self.length, self.mode)?), u32::MAX),
        };
        segment.give_to(user)?;
        Ok(Pooled { segment, zero: Cell::new(zero), used: Cell::new(0), pool: Rc::clone(self) })
    }
}

/// A segment, which goes back to its pool when it is dropped.
#[derive(Debug)]
pub struct Pooled {
    segment: Rc<Segment>,
    /// Bit i: slot i is zero, or was when somebody got it.
    zero: Cell<u32>,
    /// Bit i: somebody got it.
    used: Cell<u32>,
    pool: Rc<Pool>,
}

impl Pooled {
    /// Its memory.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        const MOST: usize = 16;
        let mut free = self.pool.free.borrow_mut();
        if free.len() < MOST && self.segment.take_back() {
            // Now, when nobody waits for it. What else a program wrote there is not known.
            let used = self.used.get();
            for index in (0..CHUNK_SLOTS).filter(|index| used & 1 << index != 0) {
                self.segment.clear(index * SLOT, SLOT);
            }
            free.push((Rc::clone(&self.segment), used));
        }
    }
}

/// A few slots in one segment.
#[derive(Debug)]
pub struct Chunk {
    memory: Pooled,
    /// Bit i: slot i is somebody's.
    taken: Cell<u32>,
}

impl Chunk {
    /// Of a segment.
    pub fn of(memory: Pooled) -> Rc<Self> {
        Rc::new(Self { memory, taken: Cell::new(0) })
    }

    /// Its memory.
    pub fn segment(&self) -> &Segment {
        self.memory.segment()
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
            let Pooled { zero, used, .. } = &chunk.memory;
            if zero.get() & 1 << index == 0 {
                zero.set(zero.get() | 1 << index);
                chunk.segment().clear(index * SLOT, SLOT);
            }
            used.set(used.get() | 1 << index);
            let place = Self { chunk: Rc::clone(chunk), index };
            place.clear();
            Some((place, i))
        })
    }

    /// The first slot of a new chunk, in which nobody counts: no more of it is cleared.
    pub fn park(chunk: &Rc<Chunk>) -> Self {
        chunk.taken.set(chunk.taken.get() | 1);
        let place = Self { chunk: Rc::clone(chunk), index: 0 };
        place.clear();
        place
    }

    /// Where it begins in its chunk, bytes.
    pub fn offset(&self) -> u64 {
        (self.index * SLOT) as u64
    }

    fn word<T>(&self, offset: usize) -> *mut T {
        debug_assert!(offset + size_of::<T>() <= SLOT);
        self.chunk.segment().at(self.index * SLOT + offset)
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
