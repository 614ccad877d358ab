//! Programs that begin under the gate count from their first call on. Most begin in the
//! same file, the dynamic loader: which of its call sites can be patched and how is learned
//! from the first of them. In the next ones all are patched at once, and they find our code
//! themselves, without a stop: where exec leaves a program, it is led to a call that maps
//! our pages, and these map its counters and let it begin.

use std::mem::offset_of;
use std::rc::Rc;

use globset::GlobSet;

use crate::syscall::Abi;

use super::super::arch::{Native, Registers};
use super::super::kernel;
use super::super::memory::{self, Writer};
use super::super::stop::Entry;
use super::arena::Place;
use super::holes::{FileKey, Holes};
use super::layout::{ARENA, CHUNK, Head, SLOW, STUBS};
use super::space::{Patch, Space};
use super::{Fast, remote, tier, trampoline};

/// How a program begins that is under the gate.
#[derive(Debug)]
pub enum Begin {
    /// It stands where exec left it.
    Fresh,
    /// Nothing is known of the file that it begins in, at this address: the places of its
    /// calls are noted.
    Watched(u64, Vec<u64>),
    /// It has been led away from where its registers were these, to bring in our code; how
    /// its file was changed, and where that is.
    Led(Box<Native>, Rc<Beginning>, u64),
}

/// A file in which programs begin. Places are counted from where it is mapped.
#[derive(Debug)]
pub struct Beginning {
    entry: u64,
    /// Its first bytes, in which a linker's own number for it is.
    head: Vec<u8>,
    /// Which file it is, where the linker gave no number.
    file: Option<FileKey>,
    sites: Vec<Known>,
    /// Where the call is that maps our code; none where nothing can be done.
    first: Option<u64>,
    pieces: Vec<Piece>,
}

/// A call site that can be patched, and how.
#[derive(Debug, Clone, Copy)]
struct Known {
    site: u64,
    patch: Patch,
}

/// Some of a file's code, and what becomes of it.
#[derive(Debug)]
struct Piece {
    at: u64,
    was: Vec<u8>,
    becomes: Vec<u8>,
}

/// Bytes of a file's begin.
const HEAD: usize = 1024;

/// The files that are known.
#[derive(Debug)]
pub struct Beginnings {
    files: Vec<Rc<Beginning>>,
    /// Some files are not to be patched: each is asked for by name.
    by_name: bool,
}

impl Beginnings {
    /// None yet.
    pub fn new(not_patched: &GlobSet) -> Self {
        Self { files: Vec::new(), by_name: !not_patched.is_empty() }
    }

    /// The file in which a program begins, with all that matters of it as it was learned,
    /// and where it is mapped.
    fn find(&self, tid: i32, entry: u64, holes: &Holes) -> Option<(Rc<Beginning>, u64)> {
        let mut files = self.files.iter().filter(|file| entry % PAGE == file.entry % PAGE);
        let found = files.find_map(|file| {
            let begin = entry.checked_sub(file.entry)?;
            file.is_at(tid, begin).then(|| (Rc::clone(file), begin))
        })?;
        let named = || holes.file_at(tid, entry).map(|(file, _)| file);
        let is_it = match &found.0.file {
            Some(file) => named().as_ref() == Some(file),
            None => !self.by_name || named().is_some(),
        };
        is_it.then_some(found)
    }
}

const PAGE: u64 = 4096;

impl Beginning {
    /// Whether it is mapped at `begin`, unchanged.
    fn is_at(&self, tid: i32, begin: u64) -> bool {
        let head = [(0, &self.head)];
        let all = head.into_iter().chain(self.pieces.iter().map(|piece| (piece.at, &piece.was)));
        let parts: Vec<_> =
            all.clone().map(|(at, was)| (begin.wrapping_add(at), was.len())).collect();
        let bytes = memory::read_all(tid, &parts);
        bytes.is_some_and(|bytes| {
            let mut rest = bytes.as_slice();
            all.into_iter().all(|(_, was)| {
                let (part, behind) = rest.split_at_checked(was.len()).unwrap_or_default();
                rest = behind;
                part == was.as_slice()
            })
        })
    }

    /// What can be learned of a file from a program that began at `entry`, and made calls
    /// at these places.
    fn learn(tid: i32, entry: u64, calls: &[u64], holes: &mut Holes, base: u64) -> Option<Self> {
        let file = holes.file_at(tid, entry)?;
        let begin = file.1;
        let calls: Vec<u64> = calls
            .iter()
            .copied()
            .filter(|ip| holes.file_at(tid, *ip).as_ref() == Some(&file))
            .collect();
        let mut taken: Vec<u64> = Vec::new();
        let mut patch = |ip: u64, taken: &[u64]| {
            let free = |at: u64| taken.iter().all(|taken| taken.abs_diff(at) >= 7);
            Patch::find(tid, ip, true, holes, &free, &|_, _| {})
        };
        let mut sites = Vec::new();
        for ip in &calls {
            if let Some(patch) = patch(*ip, &taken) {
                taken.push(patch.hole);
                let hole = patch.hole.checked_sub(begin)?;
                sites.push(Known { site: ip - begin, patch: Patch { hole, ..patch } });
            }
        }
        // One that is left, or the last.
        let left = calls.iter().find_map(|ip| patch(*ip, &taken));
        let first = match left {
            Some(patch) => patch.hole.checked_sub(begin),
            None => sites.pop().map(|known| known.patch.hole),
        };
        let head = read(tid, begin, HEAD)?;
        let pieces = pieces(tid, begin, first, &sites, base)?;
        let file = Some(file.0).filter(|_| !has_number(&head));
        Some(Self { entry: entry - begin, head, file, sites, first, pieces })
    }
}

/// Whether a file's begin has the number by which linkers tell one file from all others
/// (NT_GNU_BUILD_ID).
fn has_number(head: &[u8]) -> bool {
    let is_it = |[a, b, c, d, _, _, _, _, rest @ ..]: &[u8; 16]| {
        [*a, *b, *c, *d] == [4, 0, 0, 0] && rest == b"\x03\0\0\0GNU\0"
    };
    head.array_windows().any(is_it)
}

/// `syscall; jmp rbx`.
const FIRST: [u8; 4] = [0x0f, 0x05, 0xff, 0xe3];

/// What becomes of a file's code: few pieces, since each is written by itself.
fn pieces(
    tid: i32,
    begin: u64,
    first: Option<u64>,
    sites: &[Known],
    base: u64,
) -> Option<Vec<Piece>> {
    const NEAR: u64 = 512;
    let mut changes: Vec<(u64, Vec<u8>)> = Vec::new();
    changes.extend(first.map(|at| (at, FIRST.to_vec())));
    for (stub, known) in (0..).zip(sites) {
        changes.push((known.patch.hole, known.patch.jump(base, stub).to_vec()));
        let (at, _, jump) = known.patch.change(known.site)?;
        changes.push((at, jump));
    }
    changes.sort();
    let mut pieces: Vec<Piece> = Vec::new();
    for (at, bytes) in changes {
        let end = at + bytes.len() as u64;
        let last = pieces.last_mut().filter(|p| at <= p.at + p.was.len() as u64 + NEAR);
        let piece = if let Some(piece) = last {
            let behind = piece.at + piece.was.len() as u64;
            let was = read(tid, begin + behind, end.saturating_sub(behind) as usize)?;
            piece.becomes.extend(&was);
            piece.was.extend(was);
            piece
        } else {
            let was = read(tid, begin + at, bytes.len())?;
            pieces.push(Piece { at, becomes: was.clone(), was });
            pieces.last_mut()?
        };
        let from = (at - piece.at) as usize;
        piece.becomes.get_mut(from..from + bytes.len())?.copy_from_slice(&bytes);
    }
    Some(pieces)
}

fn read(tid: i32, at: u64, length: usize) -> Option<Vec<u8>> {
    memory::read_all(tid, &[(at, length)])
}

impl Fast {
    /// A call has returned of a thread under the gate. If that was an exec, its program
    /// counts from now on, where it can. `may`: nothing else of it is under way.
    pub fn begins(&mut self, tid: i32, may: bool) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if !matches!(thread.begin, Some(Begin::Fresh)) {
            return;
        }
        thread.begin = None;
        if self.off || !may {
            return;
        }
        let Ok(r) = remote::native(tid) else { return };
        if !is_as_exec_leaves_it(&r) {
            return;
        }
        if let Some((file, begin)) = self.beginnings.find(tid, r.rip, &self.holes) {
            let _ = self.lead_in(tid, &r, file, begin); // Or it goes on as before.
        } else if let Some(thread) = self.threads.get_mut(&tid) {
            thread.begin = Some(Begin::Watched(r.rip, Vec::new()));
        }
    }

    /// Leads a program to where it finds our code.
    fn lead_in(&mut self, tid: i32, r: &Native, file: Rc<Beginning>, begin: u64) -> Option<()> {
        let first = file.first?;
        let base = self.pages.base;
        if !tier::has_room(tid, ARENA + CHUNK as u64) {
            return None;
        }
        let chunk = self.first_chunk(tid).ok()?;
        let segment = chunk.segment().id();
        let mut space = Space::new(chunk);
        space.users = 1;
        for known in &file.sites {
            let patch = Patch { hole: begin + known.patch.hole, ..known.patch };
            space.has_patched(base, begin + known.site, patch)?;
        }
        let (slot, _) = Place::take(&space.chunks)?;
        slot.set(offset_of!(Head, result), r.rip);
        let gs = base + ARENA + slot.offset();
        let memory = Writer::open(tid).ok()?;
        let changed =
            file.pieces.iter().try_for_each(|piece| memory.write(begin + piece.at, &piece.becomes));
        let map = self.pages.map();
        let mut led = *r;
        [led.rdi, led.rsi, led.rdx, ..] = map.arguments;
        (led.rax, led.orig_rax) = (map.number as u64, u64::MAX);
        (led.rip, led.rbx) = (begin + first, trampoline::begin_program(base));
        (led.r12, led.r15) = (segment, base + STUBS);
        led.gs_base = gs;
        if changed.is_err() || kernel::set_registers(tid, &Registers::Native(led)).is_err() {
            put_back(&memory, &file, begin);
            return None;
        }
        self.summary.spaces += 1;
        self.summary.patched += file.sites.len() as u64;
        let id = self.next_space;
        self.next_space += 1;
        self.memory = Some((id, memory));
        self.spaces.insert(id, space);
        let thread = self.threads.get_mut(&tid)?;
        thread.space = Some(id);
        (thread.slot, thread.gs, thread.mode) = (Some(slot), gs, SLOW);
        thread.begin = Some(Begin::Led(Box::new(*r), file, begin));
        Some(())
    }

    /// Whether a thread at `ip` has been led away and has not begun yet.
    pub(super) fn is_led_in(&mut self, tid: i32, ip: u64) -> bool {
        let base = self.pages.base;
        let Some(thread) = self.threads.get_mut(&tid) else { return false };
        let Some(Begin::Led(_, file, begin)) = &thread.begin else { return false };
        let first = begin + file.first.unwrap_or(0);
        let on_its_way = (first..first + FIRST.len() as u64).contains(&ip)
            || ip.checked_sub(base).is_some_and(trampoline::is_beginning);
        if !on_its_way {
            thread.begin = None;
        }
        on_its_way
    }

    /// Our pages could not be mapped: the program begins without.
    pub(super) fn begin_without(&mut self, tid: i32) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let Some(Begin::Led(r, file, begin)) = thread.begin.take() else { return };
        (thread.slot, thread.gs) = (None, 0);
        if let Some(id) = thread.space.take() {
            self.leave(id);
        }
        if let Ok(memory) = Writer::open(tid) {
            put_back(&memory, &file, begin);
        }
        let before = Native { orig_rax: u64::MAX, ..*r };
        let _ = kernel::set_registers(tid, &Registers::Native(before));
        self.summary.spaces = self.summary.spaces.saturating_sub(1);
        let patched = file.sites.len() as u64;
        self.summary.patched = self.summary.patched.saturating_sub(patched);
        self.reason("coldtrace's pages could not be mapped where a program begins");
    }

    /// A thread under the gate that does not count is about to make a call.
    pub(super) fn watch(&mut self, tid: i32, entry: &Entry) {
        const MOST: usize = 64;
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let Some(Begin::Watched(_, sites)) = &mut thread.begin else { return };
        let site = entry.ip.wrapping_sub(2);
        if entry.sys.abi == Abi::X86_64 && sites.len() < MOST && !sites.contains(&site) {
            sites.push(site);
        }
        if entry.sys.is_exec() || entry.sys.name() == Some("exit_group") {
            self.learn_from(tid);
        }
    }

    /// What a program that was watched has shown is used for the next ones.
    pub(super) fn learn_from(&mut self, tid: i32) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let Some(Begin::Watched(entry, calls)) = thread.begin.take() else { return };
        let base = self.pages.base;
        if self.beginnings.files.len() < MOST_FILES
            && self.beginnings.find(tid, entry, &self.holes).is_none()
        {
            let learned = Beginning::learn(tid, entry, &calls, &mut self.holes, base);
            self.beginnings.files.extend(learned.map(Rc::new));
        }
    }
}

/// Files that are learned.
const MOST_FILES: usize = 64;

fn put_back(memory: &Writer, file: &Beginning, begin: u64) {
    for piece in &file.pieces {
        let _ = memory.write(begin + piece.at, &piece.was);
    }
}

/// Whether these are the registers of a program that has done nothing: exec leaves zeros.
fn is_as_exec_leaves_it(r: &Native) -> bool {
    let all = [
        r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
        r.r14, r.r15, r.gs_base, r.gs,
    ];
    all == [0; 17]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_number_is_found() {
        let mut head = vec![0; HEAD];
        assert!(!has_number(&head));
        head[301..317].copy_from_slice(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0");
        assert!(has_number(&head));
        head[309] = 1; // NT_GNU_ABI_TAG
        assert!(!has_number(&head));
    }
}
