//! Padding near a call site that can hold a jump: behind a function as .eh_frame bounds
//! it, or within one behind a jump or a return. None that something runs into: some
//! functions run on (glibc's __memmove_chk runs through seven bytes of padding into
//! memmove), and a label may stand before the padding instead of behind.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;

use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, ParsedEhFrameHdr, UnwindSection,
};
use globset::GlobSet;

use super::super::patience::patiently;
use super::super::{memory, proc};
use super::padding::{Body, is_aimed_at, is_constant_loaded, is_padding};

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

/// A file whose code is mapped, as it is now: the same in every process that maps it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileKey {
    path: String,
    /// As /proc/PID/maps has them.
    device: String,
    inode: u64,
    /// When it was changed last (s, ns), and its size: by a compiler, most likely.
    version: Option<(i64, i64, u64)>,
}

impl FileKey {
    /// With the version that a process sees by its path. Without, where that has become
    /// another file: then nobody writes to this one any more.
    fn with_version(self, tid: i32) -> Self {
        let (path, inode) = (format!("/proc/{tid}/root{}", self.path), self.inode);
        let version = patiently(move || {
            let file = std::fs::metadata(path).ok().filter(|file| file.ino() == inode)?;
            Some((file.mtime(), file.mtime_nsec(), file.len()))
        });
        Self { version: version.flatten(), ..self }
    }
}

/// Puts back, in what was read from an address on, what was there before we changed it.
pub type Undo<'a> = &'a dyn Fn(u64, &mut [u8]);

/// A file's code in a tracee, as it was before we changed it.
struct Code<'a> {
    tid: i32,
    /// Where the file is mapped.
    begin: u64,
    undo: Undo<'a>,
}

impl Code<'_> {
    /// So many bytes from `at` on, counted from the file's begin; or nothing.
    fn read(&self, at: u64, length: u64) -> Option<Vec<u8>> {
        let address = self.begin.checked_add(at)?;
        let mut bytes = read(self.tid, address, usize::try_from(length).ok()?)?;
        (self.undo)(address, &mut bytes);
        Some(bytes)
    }
}

/// Where a hole is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Where {
    /// In reach of a short jump, behind a function.
    Behind,
    /// The same, within one.
    Within,
    /// Anywhere, behind a function: for a jump in the place of the instruction before the
    /// call, which loads a constant.
    InFront,
}

/// A hole, by its distance from the site, and what is there.
type Near = (i64, [u8; JUMP as usize]);

/// What is known of the files that were looked at.
#[derive(Debug, Default)]
pub struct Holes {
    files: HashMap<FileKey, Option<Rc<Functions>>>,
    /// The holes of a site, by file and distance from where it is mapped.
    found: HashMap<(FileKey, u64, Where), Vec<Near>>,
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
    /// Its executable segment.
    code: Range<u64>,
    /// The bytes of that, once somebody wants them, if they are not too many.
    text: OnceCell<Option<Vec<u8>>>,
}

/// A function.
#[derive(Debug, Clone, Copy)]
struct Function {
    from: u64,
    to: u64,
    /// The begin of the next one.
    next: u64,
    /// It may be entered by the unwinder.
    caught: bool,
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
    pub fn near(
        &mut self,
        tid: i32,
        ip: u64,
        free: &dyn Fn(u64) -> bool,
        undo: Undo<'_>,
    ) -> Option<Hole> {
        self.find(tid, ip, &[Where::Behind, Where::Within], free, undo)
    }

    /// One for a jump in the place of the five bytes before the site at `ip`: there a
    /// constant is loaded (most often the call's number), and nothing goes into the middle.
    pub fn in_front(
        &mut self,
        tid: i32,
        ip: u64,
        free: &dyn Fn(u64) -> bool,
        undo: Undo<'_>,
    ) -> Option<Hole> {
        self.find(tid, ip, &[Where::InFront], free, undo)
    }

    fn find(
        &mut self,
        tid: i32,
        ip: u64,
        places: &[Where],
        free: &dyn Fn(u64) -> bool,
        undo: Undo<'_>,
    ) -> Option<Hole> {
        let (key, begin) = self.file_at(tid, ip)?;
        let offset = ip.checked_sub(begin)?;
        places.iter().find_map(|place| {
            let site = (key.clone(), offset, *place);
            if !self.found.contains_key(&site) {
                let read = || Functions::read(tid, begin).map(Rc::new);
                let functions = self.files.entry(key.clone()).or_insert_with(read).clone();
                let holes =
                    functions.map(|f| f.holes(&Code { tid, begin, undo }, ip - begin, *place));
                self.found.insert(site.clone(), holes.unwrap_or_default());
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
        })
    }

    /// The file that is mapped at `ip`, and where its begin is.
    pub fn file_at(&self, tid: i32, ip: u64) -> Option<(FileKey, u64)> {
        let text = proc::read(&format!("/proc/{tid}/maps"), 16 << 10).ok()?;
        let text = String::from_utf8_lossy(&text);
        let mut begin: Option<Mapping> = None;
        for mapping in text.lines().filter_map(parse) {
            if mapping.offset == 0 && begin.as_ref().is_none_or(|b| b.key != mapping.key) {
                let (from, key) = (mapping.from, mapping.key.clone());
                begin = Some(Mapping { from, key, ..mapping });
            }
            if (mapping.from..mapping.to).contains(&ip) {
                let begin = begin.filter(|b| mapping.executable && b.key == mapping.key)?;
                let path = PathBuf::from(&begin.key.path);
                let named = begin.key.path.starts_with('/') && !self.not.is_match(path);
                return named.then(|| (begin.key.with_version(tid), begin.from));
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
    let device = words.next()?.into();
    let inode = words.next()?.parse().ok()?;
    let path = words.next().unwrap_or("").trim_start().into();
    let key = FileKey { path, device, inode, version: None };
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
    memory::read_all(tid, &[(at, length)])
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// The most of .eh_frame_hdr and .eh_frame that is read, bytes.
const MOST: u64 = 64 << 20;
/// The most of a text that is looked through, bytes: a millisecond for each four MiB.
const MOST_TEXT: u64 = 16 << 20;

impl Functions {
    /// Reads them from a tracee that has the file mapped at `begin`: what is there is
    /// what runs.
    fn read(tid: i32, begin: u64) -> Option<Self> {
        /// PT_LOAD and PT_GNU_EH_FRAME of elf(5).
        const LOAD: u32 = 1;
        const UNWIND: u32 = 0x6474_e550;
        /// PF_X.
        const EXECUTABLE: u8 = 1;
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
            let executable = table.get(at + 4)? & EXECUTABLE != 0;
            let address = u64::from_le_bytes(word(&table, at + 16)?);
            let length = u64::from_le_bytes(word(&table, at + 40)?);
            Some((kind, address, length, executable))
        };
        let entries: Vec<_> = (0..count).filter_map(entry).collect();
        let first = entries.iter().find(|e| e.0 == LOAD)?.1 & !0xfff;
        let (_, tables, ..) = *entries.iter().find(|e| e.0 == UNWIND)?;
        let &(_, segment, length, _) = entries
            .iter()
            .find(|e| e.0 == LOAD && (e.1..e.1.checked_add(e.2).unwrap_or(0)).contains(&tables))?;
        let rest = (segment + length).checked_sub(tables)?;
        if rest > MOST {
            return None;
        }
        let at = tables.checked_sub(first)?;
        let bytes = read(tid, begin.checked_add(at)?, rest as usize)?;
        let mut codes = entries.iter().filter(|e| e.0 == LOAD && e.3);
        let &(_, code, length, _) = codes.next()?;
        let code = code.checked_sub(first)?;
        let code = code..code.checked_add(length)?;
        // Of one of several not all is known that may go there.
        let text = if codes.next().is_none() { OnceCell::new() } else { OnceCell::from(None) };
        Some(Self { bytes, at, code, text })
    }

    /// The function around or before `address`.
    fn around(&self, address: u64) -> Option<Function> {
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
        let to = begin.checked_add(partial.len())?;
        let caught = partial.lsda().is_some();
        (begin <= address && partial.initial_address() == begin).then_some(Function {
            from: begin,
            to,
            next,
            caught,
        })
    }

    /// The functions that have something between two addresses, last first. The one
    /// there must be known.
    fn between(&self, from: u64, to: u64) -> Vec<Function> {
        let mut functions = Vec::new();
        let mut address = to.saturating_sub(1);
        while let Some(function) = self.around(address) {
            functions.push(function);
            if function.from <= from || function.from == 0 {
                break;
            }
            address = function.from - 1;
        }
        functions
    }

    /// The functions around a site, as far as they go on.
    fn widely_around(&self, site: u64, reach: u64) -> Vec<Function> {
        let mut functions = self.between(site.saturating_sub(reach), site + 1);
        let mut next = functions.first().map(|function| function.next);
        while let Some(function) =
            next.filter(|at| *at < site + reach).and_then(|at| self.around(at))
        {
            functions.push(function);
            next = Some(function.next).filter(|at| *at > function.from);
        }
        functions
    }

    /// The holes in reach of a site, nearest first, as distances from it.
    fn holes(&self, code: &Code<'_>, site: u64, place: Where) -> Vec<Near> {
        /// Of a jump of two bytes.
        const SHORT: u64 = 128;
        /// What a longer one needs: some hole is there.
        const FAR: u64 = 2048;
        let around = |reach: u64| (site + 2).saturating_sub(reach)..site + 2 + reach;
        let is_code = self.code.contains(&site);
        let (reach, padding) = match place {
            Where::InFront if !self.is_constant_loaded(code, site) => return Vec::new(),
            Where::Within if !is_code => return Vec::new(),
            Where::Within => {
                let reach = around(SHORT);
                let functions =
                    self.between(reach.start.saturating_sub(SHORT), reach.end + SHORT + JUMP);
                (reach, self.within(code, &functions).unwrap_or_default())
            }
            Where::Behind => {
                let reach = around(SHORT);
                let functions = self.between(reach.start, reach.end);
                (reach, functions.iter().filter_map(|f| behind(code, f)).collect())
            }
            Where::InFront => {
                let functions = self.widely_around(site, FAR);
                (around(FAR), functions.iter().filter_map(|f| behind(code, f)).collect())
            }
        };
        let pieces = padding.iter().flat_map(|padding| {
            let last = padding.end.saturating_sub(JUMP - 1);
            (padding.start..last).step_by(JUMP as usize)
        });
        let mut holes: Vec<Near> = pieces
            .filter(|at| reach.contains(at))
            .filter_map(|at| Some((at as i64 - site as i64, word(&code.read(at, JUMP)?, 0)?)))
            .collect();
        holes.sort_by_key(|(distance, _)| distance.unsigned_abs());
        holes
    }

    /// Whether the instruction before a site loads a constant.
    fn is_constant_loaded(&self, code: &Code<'_>, site: u64) -> bool {
        (|| {
            let function = self.around(site).filter(|f| (f.from..f.to).contains(&site))?;
            let length = function.to.checked_sub(function.from).filter(|n| *n <= LONGEST)?;
            let bytes = code.read(function.from, length)?;
            Some(is_constant_loaded(&bytes, function.from, site))
        })()
        .unwrap_or(false)
    }

    /// The padding within these functions that nothing in the file goes to. `None` where
    /// that cannot be known.
    fn within(&self, code: &Code<'_>, functions: &[Function]) -> Option<Vec<Range<u64>>> {
        let mut bodies = Vec::new();
        for function in functions {
            bodies.push(body(code, function)?);
            let gap = function.next.checked_sub(function.to)?;
            if gap > WIDEST || !is_padding(&code.read(function.to, gap)?) {
                return None; // There is code of which nothing is known.
            }
        }
        let mut dead: Vec<_> = functions
            .iter()
            .zip(&bodies)
            .filter(|(function, _)| !function.caught)
            .flat_map(|(_, body)| body.dead.iter().cloned())
            .filter(|dead| dead.end - dead.start >= JUMP)
            .collect();
        // Short jumps are of those nearby, all else is found in the text.
        dead.retain(|d| !bodies.iter().flat_map(|body| &body.targets).any(|at| d.contains(at)));
        if dead.is_empty() {
            return None;
        }
        let text = self.text.get_or_init(|| {
            let length = self.code.end - self.code.start;
            (length <= MOST_TEXT).then(|| code.read(self.code.start, length))?
        });
        let text = text.as_ref()?;
        dead.retain(|dead| !is_aimed_at(text, self.code.start, dead));
        Some(dead)
    }
}

/// The most that lies between two functions, bytes.
const WIDEST: u64 = 64;

/// The padding behind a function, if it can be used.
fn behind(code: &Code<'_>, function: &Function) -> Option<Range<u64>> {
    let gap = function.to..function.next;
    let length = gap.end.checked_sub(gap.start)?;
    if !(JUMP..=WIDEST).contains(&length) {
        return None;
    }
    let is_free = is_padding(&code.read(gap.start, length)?) && body(code, function)?.ends;
    is_free.then_some(gap)
}

/// The longest function that is decoded, bytes.
const LONGEST: u64 = 1 << 20;

/// What its instructions say.
fn body(code: &Code<'_>, function: &Function) -> Option<Body> {
    let length = function.to.checked_sub(function.from).filter(|length| *length <= LONGEST)?;
    Body::of(&code.read(function.from, length)?, function.from)
}

/// Entries of .eh_frame_hdr's table, which is sorted; only the form that linkers write.
fn table_length(header: &[u8]) -> Option<u32> {
    /// Version 1; pointers relative to here, the count plain, the table from its begin.
    const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
    (header.get(..4)? == USUAL).then(|| word(header, 8).map(u32::from_le_bytes)).flatten()
}
