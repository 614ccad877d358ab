//! What is known of the files in which programs begin: most begin in the same one, the
//! dynamic loader. Places in a file are counted from where it is mapped.

use std::cell::Cell;
use std::rc::Rc;

use globset::GlobSet;

use super::super::memory;
use super::holes::{FileKey, Holes, Undo};
use super::space::Patch;

/// A file in which programs begin.
#[derive(Debug)]
pub struct Beginning {
    entry: u64,
    /// Its first bytes, in which a linker's own number for it is.
    head: Vec<u8>,
    /// Which file it is, where the linker gave no number.
    file: Option<FileKey>,
    /// Call sites that can be patched.
    pub sites: Vec<Known>,
    /// Where the call is that maps our code; none where nothing can be done.
    pub first: Option<u64>,
    /// What becomes of its code.
    pub pieces: Vec<Piece>,
    /// Programs that it was learned from.
    lessons: Cell<u32>,
}

/// A call site, and how it is patched.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// Where it is.
    pub site: u64,
    /// Its patch; the hole too is counted from the file's begin.
    pub patch: Patch,
}

/// Some of a file's code, and what becomes of it.
#[derive(Debug)]
pub struct Piece {
    /// Where it is.
    pub at: u64,
    /// What is there.
    pub was: Vec<u8>,
    /// What is written there.
    pub becomes: Vec<u8>,
}

/// A process to learn from.
pub struct Lesson<'a> {
    /// A thread of it, which is stopped.
    pub tid: i32,
    /// What is known of all files.
    pub holes: &'a mut Holes,
    /// Where our code pages are.
    pub base: u64,
    /// How a site is patched in this process, if it is.
    pub patch_of: &'a dyn Fn(u64) -> Option<Patch>,
    /// Puts back what was changed.
    pub undo: Undo<'a>,
}

/// Bytes of a file's begin.
const HEAD: usize = 1024;

/// `mov al, SHMAT; syscall; jmp rbx`. The rest of rax is zero: exec returns that.
pub const FIRST: [u8; 6] = [0xb0, libc::SYS_shmat as u8, 0x0f, 0x05, 0xff, 0xe3];

/// The files that are known.
#[derive(Debug)]
pub struct Beginnings {
    files: Vec<Rc<Beginning>>,
    /// Some files are not to be patched: each is asked for by name.
    by_name: bool,
}

impl Beginnings {
    /// Files that are learned.
    const MOST: usize = 64;

    /// None yet.
    pub fn new(not_patched: &GlobSet) -> Self {
        Self { files: Vec::new(), by_name: !not_patched.is_empty() }
    }

    /// The file in which a program begins, with all that matters of it as it was learned,
    /// and where it is mapped.
    pub fn find(&self, tid: i32, entry: u64, holes: &Holes) -> Option<(Rc<Beginning>, u64)> {
        const PAGE: u64 = 4096;
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

    /// Takes up what was learned.
    pub fn add(&mut self, learned: Beginning) -> Option<Rc<Beginning>> {
        let learned = Rc::new(learned);
        (self.files.len() < Self::MOST).then(|| self.files.push(Rc::clone(&learned)))?;
        Some(learned)
    }

    /// Whether a program may teach more of its file than is known.
    pub fn is_open(&self, file: &Rc<Beginning>) -> bool {
        /// Programs that differ make other calls there; after some they rarely do.
        const LESSONS: u32 = 4;
        file.lessons.get() < LESSONS && self.files.iter().any(|known| Rc::ptr_eq(known, file))
    }

    /// Takes up what else was learned of a file, if anything was.
    pub fn learned_more(&mut self, file: &Rc<Beginning>, more: Option<Beginning>) {
        let lessons = file.lessons.get() + 1;
        file.lessons.set(lessons);
        let place = self.files.iter_mut().find(|known| Rc::ptr_eq(known, file));
        if let (Some(place), Some(more)) = (place, more) {
            more.lessons.set(lessons);
            *place = Rc::new(more);
        }
    }
}

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

    /// Whether a site is known.
    pub fn knows(&self, site: u64) -> bool {
        self.sites.iter().any(|known| known.site == site)
    }

    /// What can be learned of a file from a program that began at `entry`, and made calls
    /// at these places, beside what is known of it.
    pub fn learn(
        lesson: &mut Lesson<'_>,
        entry: u64,
        calls: &[u64],
        known: Option<&Self>,
    ) -> Option<Self> {
        let tid = lesson.tid;
        let file = lesson.holes.file_at(tid, entry)?;
        let begin = file.1;
        let is_new = |ip: u64| {
            let site = ip.wrapping_sub(begin);
            !known.is_some_and(|known| known.knows(site))
        };
        let mut calls: Vec<u64> = calls.iter().copied().filter(|ip| is_new(*ip)).collect();
        calls.retain(|ip| lesson.holes.file_at(tid, *ip).as_ref() == Some(&file));
        let mut sites = known.map(|known| known.sites.clone()).unwrap_or_default();
        let mut first = known.and_then(|known| known.first);
        let mut taken: Vec<u64> = sites.iter().map(|known| known.patch.hole).collect();
        taken.extend(first);
        let mut patch = |ip: u64, taken: &[u64]| {
            let free = |at: u64| {
                let at = at.wrapping_sub(begin);
                taken.iter().all(|taken| taken.abs_diff(at) >= 7)
            };
            let its_own = (lesson.patch_of)(ip).filter(|patch| free(patch.hole));
            its_own.or_else(|| Patch::find(tid, ip, true, lesson.holes, &free, lesson.undo))
        };
        for ip in &calls {
            if let Some(patch) = patch(*ip, &taken) {
                let hole = patch.hole.checked_sub(begin)?;
                taken.push(hole);
                sites.push(Known { site: ip - begin, patch: Patch { hole, ..patch } });
            }
        }
        if first.is_none() {
            // One that is left, or the last.
            let left = calls.iter().find_map(|ip| patch(*ip, &taken));
            first = match left {
                Some(patch) => patch.hole.checked_sub(begin),
                None => sites.pop().map(|known| known.patch.hole),
            };
        }
        let read = |at: u64, length: usize| {
            let at = begin.checked_add(at)?;
            let mut bytes = memory::read_all(tid, &[(at, length)])?;
            (lesson.undo)(at, &mut bytes);
            Some(bytes)
        };
        let head = read(0, HEAD)?;
        let pieces = pieces(&read, first, &sites, lesson.base)?;
        let file = Some(file.0).filter(|_| !has_number(&head));
        let lessons = Cell::new(1);
        Some(Self { entry: entry - begin, head, file, sites, first, pieces, lessons })
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

/// What becomes of a file's code: few pieces, since each is written by itself.
fn pieces(
    read: &dyn Fn(u64, usize) -> Option<Vec<u8>>,
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
            let was = read(behind, end.saturating_sub(behind) as usize)?;
            piece.becomes.extend(&was);
            piece.was.extend(was);
            piece
        } else {
            let was = read(at, bytes.len())?;
            pieces.push(Piece { at, becomes: was.clone(), was });
            pieces.last_mut()?
        };
        let from = (at - piece.at) as usize;
        piece.becomes.get_mut(from..from + bytes.len())?.copy_from_slice(&bytes);
    }
    Some(pieces)
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

    #[test]
    fn what_is_changed_nearby_is_one_piece() {
        let text: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
        let read = |at: u64, length: usize| Some(text.get(at as usize..)?.get(..length)?.to_vec());
        let near = Patch { hole: 0x120, padding: [0x90; 7], load: None };
        let far = Patch { hole: 0x900, padding: [0x90; 7], load: Some([0xb8, 1, 0, 0, 0]) };
        let sites = [Known { site: 0x100, patch: near }, Known { site: 0xa00, patch: far }];
        let pieces = pieces(&read, Some(0x130), &sites, 0x5000_0000).expect("all is there");
        let places: Vec<_> = pieces.iter().map(|p| (p.at, p.was.len())).collect();
        assert_eq!(places, [(0x100, 0x36), (0x900, 0x100)]);
        for piece in &pieces {
            let at = piece.at as usize;
            assert_eq!(piece.was, text[at..at + piece.was.len()]);
        }
        let [one, two] = &pieces[..] else { panic!("{pieces:?}") };
        assert_eq!(one.becomes[..3], [0xeb, 0x1e, 2]); // jmp 0x120
        assert_eq!(one.becomes[0x20..0x23], [0xff, 0x24, 0x25]);
        assert_eq!(one.becomes[0x30..], FIRST);
        assert_eq!(two.becomes[..3], [0xff, 0x24, 0x25]);
        assert_eq!(two.becomes[0xfb..], [0xe9, 0x00, 0xff, 0xff, 0xff]); // jmp 0x900
        // Where some of it cannot be read there is none.
        assert!(super::pieces(&|_, _| None, Some(1), &[], 0).is_none());
    }
}
