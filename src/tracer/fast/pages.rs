//! The code pages that all processes of a session share, read-only: the trampoline, and
//! what it and the calls that are made for the tracer need to know.

use std::io;

use super::layout::{self, CODE, Call, DATA, NUMBERS};
use super::segment::Segment;
use super::{gate, trampoline};

/// Where things are in the data part.
const GATE: u64 = DATA;
const GATE_FILTER: u64 = DATA + 0x10;
/// `struct sock_fprog` of the filter in the place of strict mode.
const STRICT: u64 = DATA + 0x140;
const STRICT_FILTER: u64 = DATA + 0x150;

/// Them, and where they are in every address space.
#[derive(Debug)]
pub struct Pages {
    /// Their begin.
    pub base: u64,
    segment: Segment,
    /// What they say of each number.
    table: Box<[u8; NUMBERS]>,
}

impl Pages {
    /// Makes them.
    pub fn new(base: u64) -> io::Result<Self> {
        /// Everybody may map them, to read and to execute.
        const MODE: u16 = 0o555;
        let segment = Segment::new(CODE as usize, MODE)?;
        let put = |at: u64, bytes: &[u8]| segment.write(at as usize, bytes);
        put(layout::TRAMPOLINE, &trampoline::code(base));
        let gate = gate::filter(trampoline::let_through(base), [segment.id(), base]);
        for (program, filter, (bytes, length)) in
            [(GATE, GATE_FILTER, gate), (STRICT, STRICT_FILTER, gate::strict())]
        {
            put(program, &length.to_le_bytes());
            put(program + 8, &(base + filter).to_le_bytes());
            put(filter, &bytes);
        }
        put(layout::CALLS, &Call::NONE.bytes());
        // -1: the number that the program has been given.
        let to_begin = [map_slots(base, 0, u64::MAX), dont_dump(base), Call::GO_ON];
        for (i, call) in to_begin.iter().enumerate() {
            put(layout::BEGIN_CALLS + (i * size_of::<Call>()) as u64, &call.bytes());
        }
        Ok(Self { base, segment, table: Box::new([0; NUMBERS]) })
    }

    /// The call that maps them.
    pub fn map(&self) -> Call {
        Call::new(libc::SYS_shmat, &[self.segment.id(), self.base, MAP_CODE])
    }

    /// What they say of a number.
    pub fn byte(&self, number: usize) -> u8 {
        self.table.get(number).copied().unwrap_or(0)
    }

    /// Says it, to all processes at once.
    pub fn set_byte(&mut self, number: usize, byte: u8) {
        if let Some(known) = self.table.get_mut(number) {
            *known = byte;
            self.segment.write(layout::TABLE as usize + number, &[byte]);
        }
    }

    /// Lists calls to be made behind the first one; where the list is. One thread at a
    /// time makes such calls.
    pub fn list(&self, calls: &[Call]) -> u64 {
        let begin = layout::CALLS + size_of::<Call>() as u64;
        let bytes: Vec<u8> = calls.iter().chain([&Call::NONE]).flat_map(Call::bytes).collect();
        debug_assert!(begin as usize + bytes.len() <= layout::BEGIN_CALLS as usize);
        self.segment.write(begin as usize, &bytes);
        self.base + begin
    }

    /// The address of `struct sock_fprog` of the gate.
    pub fn gate(&self) -> u64 {
        self.base + GATE
    }

    /// The same of the filter in the place of strict mode.
    pub fn strict(&self) -> u64 {
        self.base + STRICT
    }
}

/// The call that maps the stubs.
pub fn map_stubs(base: u64, segment: u64) -> Call {
    Call::new(libc::SYS_shmat, &[segment, base + layout::STUBS, MAP_CODE])
}

/// The call that maps chunk `number` of slots.
pub fn map_slots(base: u64, number: u64, segment: u64) -> Call {
    Call::new(libc::SYS_shmat, &[segment, layout::chunk(base, number)])
}

/// Code cannot be made writable, where it is mapped so.
pub const MAP_CODE: u64 = (libc::SHM_RDONLY | libc::SHM_EXEC) as u64;

/// The call that keeps the first pages of ours out of cores.
pub fn dont_dump(base: u64) -> Call {
    let length = layout::ARENA + layout::CHUNK as u64;
    Call::new(libc::SYS_madvise, &[base, length, libc::MADV_DONTDUMP as u64])
}
