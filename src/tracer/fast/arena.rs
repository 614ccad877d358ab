//! Memory that a tracee counts in, as the tracer has it mapped. The tracee writes
//! there whatever it likes: what is read is a number, never a reference.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use super::layout::{CHUNK, CHUNK_SLOTS, Head, ROWS, Row, SLOT, SLOW, Slot};

/// A few slots, in one file of memory.
#[derive(Debug)]
pub struct Chunk {
    memory: NonNull<u8>,
    /// Bit i: slot i is somebody's.
    taken: Cell<u32>,
}

impl Chunk {
    /// Maps `file`, which the tracee made, after giving it its size: the limit of the
    /// tracee's files does not count. It cannot be made smaller again, which would
    /// make a read fault here.
    pub fn map(file: &File) -> io::Result<Rc<Self>> {
        file.set_len(CHUNK as u64)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: fcntl takes its arguments by value.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes, of a file of that size.
        let memory = unsafe {
            let at = std::ptr::null_mut();
            libc::mmap(at, CHUNK, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Rc::new(Self { memory, taken: Cell::new(0) }))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that was made, and nobody has a pointer into it:
        // each place holds the chunk.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), CHUNK) };
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
        const { assert!(align_of::<T>() <= 8) };
        debug_assert!(offset + size_of::<T>() <= SLOT);
        // SAFETY: `offset` comes from the layout of a slot, which lies in the chunk.
        unsafe { self.chunk.memory.as_ptr().add(self.index * SLOT + offset).cast() }
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
