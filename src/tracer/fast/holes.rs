//! Padding near a call site that can hold a jump. It is taken only from between two
//! functions as .eh_frame bounds them, and only behind one that does not run on into
//! it: some do (glibc's __memmove_chk runs through seven bytes of padding into memmove).

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, ParsedEhFrameHdr, UnwindSection,
};
use globset::GlobSet;

use super::super::memory;

/// A place for a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// Where it is.
    pub address: u64,
    /// What is there.
    pub padding: [u8; 7],
}

/// Length of the jump.
const JUMP: u64 = 7;

/// What holds a file's functions: the same in every process that maps it.
type FileKey = (String, u64);

/// A hole, by its distance from the site, and what is there.
type Near = (i64, [u8; JUMP as usize]);

/// What is known of the files that were looked at.
#[derive(Debug, Default)]
pub struct Holes {
    files: HashMap<FileKey, Option<Rc<Functions>>>,
    /// The hole of a site, by file and distance from where it is mapped: `None` where
    /// there is none.
    found: HashMap<(FileKey, u64), Vec<Near>>,
    /// Files that are not to be patched.
    not: GlobSet,
}

/// The functions of a file, by the tables for unwinding, at the addresses that they
/// have where the file is mapped at 0.
#[derive(Debug)]
struct Functions {
    /// .eh_frame_hdr, and the bytes behind it, which hold .eh_frame.
    bytes: Vec<u8>,
    /// Where these are.
    at: u64,
}

/// A mapping, as /proc/PID/maps has it.
#[derive(Debug)]
struct Mapping {
    from: u64,
    to: u64,
    offset: u64,
    executable: bool,
    key: FileKey,
}

impl Holes {
    /// Of all files but those.
    pub fn except(not: GlobSet) -> Self {
        Self { not, ..Self::default() }
    }

    /// A hole near the site at `ip` that is `free`.
    pub fn near(&mut self, tid: i32, ip: u64, free: &dyn Fn(u64) -> bool) -> Option<Hole> {
        let (key, begin) = self.file_at(tid, ip)?;
        let site = (key.clone(), ip.checked_sub(begin)?);
        if !self.found.contains_key(&site) {
            let read = || Functions::read(tid, begin).map(Rc::new);
            let functions = self.files.entry(key).or_insert_with(read).clone();
            let holes = functions.map(|f| f.holes(tid, begin, ip)).unwrap_or_default();
            self.found.insert(site.clone(), holes);
        }
        let candidates = self.found.get(&site)?;
        candidates.iter().find_map(|&(distance, padding)| {
            let address = ip.wrapping_add_signed(distance);
            let mut now = [0; JUMP as usize];
            (free(address)
                && matches!(memory::read(tid, address, &mut now), Ok(n) if n == now.len())
                && now == padding)
                .then_some(Hole { address, padding })
        })
    }

    /// The file that is mapped at `ip`, and where its begin is.
    fn file_at(&self, tid: i32, ip: u64) -> Option<(FileKey, u64)> {
        let text = std::fs::read(format!("/proc/{tid}/maps")).ok()?;
        let text = String::from_utf8_lossy(&text);
        let mut begin: Option<Mapping> = None;
        for mapping in text.lines().filter_map(parse) {
            if mapping.offset == 0 && begin.as_ref().is_none_or(|b| b.key != mapping.key) {
                let (from, key) = (mapping.from, mapping.key.clone());
                begin = Some(Mapping { from, key, ..mapping });
            }
            if (mapping.from..mapping.to).contains(&ip) {
                let begin = begin.filter(|b| mapping.executable && b.key == mapping.key)?;
                let path = PathBuf::from(&begin.key.0);
                let named = begin.key.0.starts_with('/') && !self.not.is_match(path);
                return named.then_some((begin.key, begin.from));
            }
        }
        None
    }
}

/// A line of /proc/PID/maps (proc_pid_maps(5)); those without a file are of none.
fn parse(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = number(words.next()?)?;
    let device = words.next()?;
    let inode = words.next()?.parse().ok()?;
    let path = words.next().unwrap_or("").trim_start();
    let key = (if path.is_empty() { device.into() } else { path.into() }, inode);
    Some(Mapping {
        from: number(from)?,
        to: number(to)?,
        offset,
        executable: permissions.contains('x'),
        key,
    })
}

/// Reads all of it, or nothing.
fn read(tid: i32, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    matches!(memory::read(tid, at, &mut bytes), Ok(n) if n == length).then_some(bytes)
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The most of .eh_frame_hdr and .eh_frame that is read, bytes.
const MOST: u64 = 64 << 20;

impl Functions {
    /// Reads them from a tracee that has the file mapped at `begin`: what is there is
    /// what runs.
    fn read(tid: i32, begin: u64) -> Option<Self> {
        /// PT_LOAD and PT_GNU_EH_FRAME of elf(5).
        const LOAD: u32 = 1;
        const UNWIND: u32 = 0x6474_e550;
        let header = read(tid, begin, 64)?;
        if header.get(..5)? != b"\x7fELF\x02" {
            return None;
        }
        let programs = u64::from_le_bytes(word(&header, 32)?);
        let size = usize::from(u16::from_le_bytes(word(&header, 54)?));
        let count = usize::from(u16::from_le_bytes(word(&header, 56)?)).min(64);
        let table = read(tid, begin.checked_add(programs)?, size.checked_mul(count)?)?;
        let entry = |i: usize| {
            let at = i.checked_mul(size)?;
            let kind = u32::from_le_bytes(word(&table, at)?);
            let address = u64::from_le_bytes(word(&table, at + 16)?);
            let length = u64::from_le_bytes(word(&table, at + 40)?);
            Some((kind, address, length))
        };
        let entries: Vec<_> = (0..count).filter_map(entry).collect();
        let first = entries.iter().find(|e| e.0 == LOAD)?.1 & !0xfff;
        let (_, tables, _) = *entries.iter().find(|e| e.0 == UNWIND)?;
        let &(_, segment, length) = entries
            .iter()
            .find(|e| e.0 == LOAD && (e.1..e.1.checked_add(e.2).unwrap_or(0)).contains(&tables))?;
        let rest = (segment + length).checked_sub(tables)?;
        if rest > MOST {
            return None;
        }
        let at = tables.checked_sub(first)?;
        let bytes = read(tid, begin.checked_add(at)?, rest as usize)?;
        Some(Self { bytes, at })
    }

    /// The function around or before `address` and what is known of its bounds, and the
    /// begin of the next. Addresses are from where the file is mapped.
    fn around(&self, address: u64) -> Option<((u64, u64), u64)> {
        let slice = EndianSlice::new(&self.bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame_hdr(self.at);
        let header: ParsedEhFrameHdr<_> = EhFrameHdr::from(slice).parse(&bases, 8).ok()?;
        let gimli::Pointer::Direct(frames) = header.eh_frame_ptr() else { return None };
        let section = EhFrame::from(EndianSlice::new(
            self.bytes.get(frames.checked_sub(self.at)? as usize..)?,
            LittleEndian,
        ));
        let bases = bases.set_eh_frame(frames);
        // The last that begins at or before it.
        let count = table_length(&self.bytes)?;
        let begin_of = |i: u32| -> Option<(u64, u64)> {
            let entry = 12usize.checked_add(8 * i as usize)?;
            let begin = i32::from_le_bytes(word(&self.bytes, entry)?);
            let fde = i32::from_le_bytes(word(&self.bytes, entry + 4)?);
            Some((
                self.at.wrapping_add_signed(begin.into()),
                self.at.wrapping_add_signed(fde.into()),
            ))
        };
        let (mut low, mut high) = (0, count);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if begin_of(middle)?.0 <= address { low = middle } else { high = middle }
        }
        let (begin, fde) = begin_of(low)?;
        let next = begin_of(low + 1).filter(|_| low + 1 < count)?.0;
        let offset = gimli::EhFrameOffset(fde.checked_sub(frames)? as usize);
        let partial = section.fde_from_offset(&bases, offset, EhFrame::cie_from_offset).ok()?;
        let length = partial.len();
        (begin <= address && partial.initial_address() == begin)
            .then_some(((begin, begin.checked_add(length)?), next))
    }

    /// The holes in reach of the site at `ip`, nearest first, as distances from it.
    fn holes(&self, tid: i32, begin: u64, ip: u64) -> Vec<Near> {
        let from_site = ip - begin + 2;
        let reach = from_site.saturating_sub(128)..=from_site + 127;
        let mut holes = Vec::new();
        let mut address = *reach.end();
        // The function with the site must be one that is known.
        while let Some(((first, end), next)) = self.around(address) {
            if end < next && *reach.start() < next {
                holes.extend(in_gap(tid, begin, (first, end), next, &reach));
            }
            if first <= *reach.start() || first == 0 {
                break;
            }
            address = first - 1;
        }
        let mut holes: Vec<Near> = holes
            .into_iter()
            .map(|(at, padding)| ((at as i64) - (ip - begin) as i64, padding))
            .collect();
        holes.sort_by_key(|(distance, _)| distance.unsigned_abs());
        holes
    }
}

/// What of the gap behind a function can be used.
fn in_gap(
    tid: i32,
    begin: u64,
    (first, end): (u64, u64),
    next: u64,
    reach: &std::ops::RangeInclusive<u64>,
) -> Vec<(u64, [u8; 7])> {
    const WIDEST: u64 = 64;
    let mut holes = Vec::new();
    if !(JUMP..=WIDEST).contains(&(next - end)) {
        return holes;
    }
    let Some(gap) = read(tid, begin + end, (next - end) as usize) else { return holes };
    if !is_padding(&gap) || !ends_for_good(tid, begin + first, begin + end) {
        return holes;
    }
    let mut at = end;
    while at + JUMP <= next {
        let bytes = gap.get((at - end) as usize..).and_then(|rest| word(rest, 0));
        if reach.contains(&at)
            && let Some(bytes) = bytes
        {
            holes.push((at, bytes));
        }
        at += JUMP;
    }
    holes
}

/// Entries of .eh_frame_hdr's table, which is sorted; only the form that linkers write.
fn table_length(header: &[u8]) -> Option<u32> {
    /// Version 1; pointers relative to here, the count plain, the table from its begin.
    const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    (header.get(..4)? == USUAL).then(|| word(header, 8).map(u32::from_le_bytes)).flatten()
}

/// Whether these bytes are instructions that do nothing, or traps.
fn is_padding(bytes: &[u8]) -> bool {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};
    let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if !matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) {
            return false;
        }
    }
    true
}

/// Whether the function between two addresses ends in an instruction behind which
/// nothing runs, decoded from its begin. That is so of a call too: a compiler puts it
/// last only where it does not return (__stack_chk_fail).
fn ends_for_good(tid: i32, begin: u64, end: u64) -> bool {
    use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
    const LONGEST: u64 = 1 << 20;
    let length = end.saturating_sub(begin);
    if length == 0 || length > LONGEST {
        return false;
    }
    let Some(bytes) = read(tid, begin, length as usize) else { return false };
    let mut decoder = Decoder::with_ip(64, &bytes, begin, DecoderOptions::NONE);
    let mut last = None;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return false;
        }
        last = Some(instruction);
    }
    last.is_some_and(|i| {
        matches!(
            i.flow_control(),
            FlowControl::Return
                | FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Call
        ) || matches!(i.mnemonic(), Mnemonic::Ud2 | Mnemonic::Hlt | Mnemonic::Int3)
    })
}
