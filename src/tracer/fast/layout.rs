//! Where things are in what is put into a tracee: the code pages, and the slot of
//! each thread. The assembly takes its offsets from here.

use std::mem::offset_of;

/// Calls with a number below this can be counted without a stop.
pub const NUMBERS: usize = 512;
/// Calls that have a row in each slot.
pub const ROWS: usize = 64;
/// Errors of a call that a row has room for.
pub const ERRORS: usize = 4;
/// Steps of the histogram in each power of two.
pub const STEPS: u32 = 8;
/// Powers of two that it has: from 2^3 cycles on.
pub const OCTAVES: u32 = 36;
/// Buckets of the histogram.
pub const BUCKETS: usize = (STEPS * OCTAVES) as usize;

/// What [`Slot::mode`] holds while calls are to be counted in the tracee. Any other
/// word there, and any other memory, takes them to the tracer.
pub const FAST: u32 = 0x5eed_c01d;
/// What it holds while they are not.
pub const SLOW: u32 = 0x510e_c01d;

/// One error of a call: errno (0: free) and how often.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ErrorCount {
    /// The errno.
    pub errno: u64,
    /// Calls that ended in it.
    pub calls: u64,
}

/// Times and errors of one call in one thread, in cycles of the time stamp counter.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Sum.
    pub total: u64,
    /// The complement of the shortest, so that zeroed memory has none.
    pub not_min: u64,
    /// Longest.
    pub max: u64,
    /// Errors, in order of first appearance.
    pub errors: [ErrorCount; ERRORS],
    /// Calls by duration; see [`bucket`].
    pub histogram: [u64; BUCKETS],
}

/// The begin of a slot: what the trampoline needs for the call in flight.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Head {
    /// [`FAST`] or [`SLOW`].
    pub mode: u32,
    /// The program's flags: `lahf`'s byte in the upper half, the overflow flag below.
    pub flags: u32,
    /// The program's rdx.
    pub rdx: u64,
    /// The stub that the call came by: the address of its `syscall`.
    pub stub: u64,
    /// The row of the call in flight, as an offset in the slot.
    pub row: u64,
    /// The same of its counter in `calls`; 0 while none is in flight.
    pub call: u64,
    /// When that call began, in cycles; once it has ended, how long it took.
    pub clock: u64,
    /// Its result, while the tracer is asked to make room for errors.
    pub result: u64,
    /// Times that came out negative.
    pub negative: u64,
}

/// One call that is made for the tracer, as the code pages have it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Negative: none follows.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

impl Call {
    /// Behind the last: a stop.
    pub const NONE: Self = Self { number: -1, arguments: [0; 6] };
    /// Behind the last of those that a program begins with: it goes on.
    pub const GO_ON: Self = Self { number: -2, arguments: [0; 6] };

    /// A call; arguments that are not given are 0.
    pub fn new(number: i64, given: &[u64]) -> Self {
        let mut arguments = [0; 6];
        arguments.iter_mut().zip(given).for_each(|(argument, value)| *argument = *value);
        Self { number, arguments }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let number = self.number.to_le_bytes();
        number.into_iter().chain(self.arguments.iter().flat_map(|a| a.to_le_bytes())).collect()
    }
}

/// What one thread counts into. It is shared with the tracer, and found by the GS base.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    /// The call in flight.
    pub head: Head,
    /// Calls by row.
    pub calls: [u64; ROWS],
    /// What else is known of them.
    pub rows: [Row; ROWS],
}

/// Distance of two slots, bytes: whole pages, for no two threads to share one.
pub const SLOT: usize = size_of::<Slot>().next_multiple_of(4096);
/// Slots that are mapped at once.
pub const CHUNK_SLOTS: usize = 6;
/// Their size: below a mebibyte.
pub const CHUNK: usize = CHUNK_SLOTS * SLOT;
const _: () = assert!(CHUNK <= 1 << 20);

/// The trampoline begins here in the code pages.
pub const TRAMPOLINE: u64 = 0;
/// A byte for each number: 0 where the call stops, else its row and one;
/// [`BY_ARGUMENT`] where it depends on its first argument.
pub const TABLE: u64 = 0x1000;
/// Filters and the like, for calls that are made for the tracer.
pub const DATA: u64 = 0x1200;
/// Calls that are made for the tracer in one go: no call, and room for some.
pub const CALLS: u64 = 0x1c00;
/// Those that a program begins with.
pub const BEGIN_CALLS: u64 = 0x1e00;
const _: () = assert!(BEGIN_CALLS as usize + 3 * size_of::<Call>() <= CODE as usize);
/// Length of the code pages, which all processes share.
pub const CODE: u64 = 0x2000;
/// The stubs, behind them.
pub const STUBS: u64 = CODE;
/// Distance of two stubs.
pub const STUB: u64 = 64;
/// Stubs of an address space.
pub const MOST_STUBS: u64 = 2048;
/// Their length.
pub const STUBS_LENGTH: u64 = STUB * MOST_STUBS;
/// Where the first chunk of slots is, from the code pages on.
pub const ARENA: u64 = STUBS + STUBS_LENGTH;

/// Where chunk `number` of slots is.
pub fn chunk(base: u64, number: u64) -> u64 {
    base + ARENA + number * CHUNK as u64
}

/// Chunks that an address space may have.
pub const MOST_CHUNKS: u64 = 512;

/// In [`TABLE`]: the call goes the slow way where its first argument is an address
/// in the lower two gibibytes, in which all of this is; of arch_prctl, unless it sets FS.
pub const BY_ARGUMENT: u8 = 0x80;

/// In a stub: the address of its code, for the jump in a hole.
pub const STUB_ENTRY: u64 = 0;
/// Where the call returns to.
pub const STUB_RETURN: u64 = 8;
/// Its code.
pub const STUB_CODE: u64 = 16;
/// Its own `syscall`, for calls that stop.
pub const STUB_SLOW: u64 = 32;
/// What comes before its code where the jump has taken the place of the instruction that
/// loads a constant: it does so.
pub const STUB_LOAD: u64 = 40;
/// The address of that, for the jump in a hole.
pub const STUB_LOAD_ENTRY: u64 = 48;

/// The bytes of the stub at `address`, of a site whose call returns to `to`.
pub fn stub(address: u64, to: u64, trampoline: u64) -> [u8; STUB as usize] {
    let mut bytes = [0xcc; STUB as usize];
    let mut put = |at: u64, what: &[u8]| {
        if let Some(place) = bytes.get_mut(at as usize..at as usize + what.len()) {
            place.copy_from_slice(what);
        }
    };
    put(STUB_ENTRY, &(address + STUB_CODE).to_le_bytes());
    put(STUB_RETURN, &to.to_le_bytes());
    // mov ecx, STUB_SLOW; jmp trampoline
    put(STUB_CODE, &[0xb9]);
    put(STUB_CODE + 1, &((address + STUB_SLOW) as u32).to_le_bytes());
    put(STUB_CODE + 5, &[0xe9]);
    let next = address + STUB_CODE + 10;
    put(STUB_CODE + 6, &(trampoline.wrapping_sub(next) as u32).to_le_bytes());
    // syscall; jmp [rip + STUB_RETURN]
    put(STUB_SLOW, &[0x0f, 0x05, 0xff, 0x25]);
    put(STUB_SLOW + 4, &(STUB_RETURN.wrapping_sub(STUB_SLOW + 8) as u32).to_le_bytes());
    bytes
}

/// What a stub at `address` has from [`STUB_LOAD`] on, where it is to load a
/// constant by this instruction.
pub fn stub_load(address: u64, load: [u8; 5]) -> [u8; 16] {
    let mut bytes = [0xcc; 16];
    let back = STUB_CODE.wrapping_sub(STUB_LOAD + 7) as u8;
    bytes[..5].copy_from_slice(&load);
    bytes[5..7].copy_from_slice(&[0xeb, back]); // jmp STUB_CODE
    bytes[8..].copy_from_slice(&(address + STUB_LOAD).to_le_bytes());
    bytes
}

/// The bucket of a time in cycles, as the trampoline counts it.
pub fn bucket(cycles: u64) -> usize {
    let cycles = cycles.max(u64::from(STEPS));
    let power = cycles.ilog2();
    if power > OCTAVES + 2 {
        return BUCKETS - 1;
    }
    let step = (cycles >> (power - 3)) as u32 & (STEPS - 1);
    ((power - 3) * STEPS + step) as usize
}

/// The middle of a bucket, in cycles.
pub fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let (power, step) = (bucket / u64::from(STEPS), bucket % u64::from(STEPS));
    let low = (u64::from(STEPS) + step) << power;
    low + ((1 << power) >> 1)
}

/// Offset of the counter of row `i` in a slot.
pub const fn call_offset(row: usize) -> u64 {
    (offset_of!(Slot, calls) + row * 8) as u64
}

/// The row whose counter has this offset.
pub fn row_at(call: u64) -> Option<usize> {
    let offset = (call as usize).checked_sub(offset_of!(Slot, calls))?;
    (offset < ROWS * 8 && offset % 8 == 0).then_some(offset / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_near_the_middle_of_its_bucket() {
        for shift in 4..38 {
            for part in 0..16 {
                let cycles = (1u64 << shift) + (part << (shift - 4));
                let middle = middle(bucket(cycles));
                assert!(middle.abs_diff(cycles) * 8 <= cycles, "{cycles} {middle}");
            }
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn rows_are_found_by_the_offset_of_their_counter() {
        for row in 0..ROWS {
            assert_eq!(row_at(call_offset(row)), Some(row));
        }
        assert_eq!(row_at(0), None);
        assert_eq!(row_at(call_offset(ROWS)), None);
        // The program may write anything.
        assert_eq!(row_at(call_offset(3) + 3), None);
        assert_eq!(row_at(u64::MAX), None);
    }

    #[test]
    fn a_stub_jumps_where_it_should() {
        let bytes = stub(0x5000_2000, 0x7fff_1234_5678, 0x5000_0000);
        let mut decoder = iced_x86::Decoder::with_ip(64, &bytes[16..], 0x5000_2010, 0);
        assert_eq!(decoder.decode().immediate32(), 0x5000_2020);
        assert_eq!(decoder.decode().near_branch_target(), 0x5000_0000);
        let mut decoder = iced_x86::Decoder::with_ip(64, &bytes[32..], 0x5000_2020, 0);
        assert_eq!(decoder.decode().mnemonic(), iced_x86::Mnemonic::Syscall);
        assert_eq!(decoder.decode().ip_rel_memory_address(), 0x5000_2008);
        let bytes = stub_load(0x5000_2000, [0xb8, 13, 0, 0, 0]);
        let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, 0x5000_2028, 0);
        assert_eq!(decoder.decode().immediate32(), 13);
        assert_eq!(decoder.decode().near_branch_target(), 0x5000_2010);
        assert_eq!(bytes[8..], 0x5000_2028_u64.to_le_bytes());
    }
}
