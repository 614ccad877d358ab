//! What an ELF file (elf(5)) says to whoever loads it: its name, what it needs,
//! its loader. Only its headers and its dynamic section are read: a library may
//! have hundreds of megabytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use elf::abi;
use elf::dynamic::DynamicTable;
use elf::endian::AnyEndian;
use elf::file::{Class, FileHeader, parse_ident};
use elf::gnu_symver::VerDefIterator;
use elf::segment::{ProgramHeader, SegmentTable};

use crate::syscall::Abi;

/// Most that is read of each part: what a file claims beyond is left out. Real
/// ones have some dozen segments and needed files.
const MOST_HEADERS: u64 = 64 << 10;
const MOST_DYNAMIC: u64 = 64 << 10;
const MOST_NEEDED: usize = 1024;
const MOST_VERSIONS: u64 = 64 << 10;
/// Longest name, as for a path (linux/limits.h).
const MOST_NAME: u64 = 4096;

/// What one file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Linkage {
    /// It is an ELF file, and some of it is to be mapped.
    pub loadable: bool,
    /// DT_SONAME: the name that others need it by.
    pub soname: Option<Vec<u8>>,
    /// DT_NEEDED, in order.
    pub needed: Vec<Vec<u8>>,
    /// PT_INTERP: the loader of a program.
    pub interpreter: Option<Vec<u8>>,
    /// The ABI that its code is for; `None` where it is another's.
    pub abi: Option<Abi>,
}

impl Linkage {
    /// Reads it. A file that is no ELF file, or ends too early to be one that can
    /// be loaded, needs nothing.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(file: &File) -> io::Result<Self> {
        let ident = read(file, 0, abi::EI_NIDENT as u64)?;
        let elf = Elf::parse(file, &ident)?.filter(|elf| elf.segment(abi::PT_LOAD).is_some());
        let Some(elf) = elf else { return Ok(Self::default()) };
        let mut linkage = Self { loadable: true, abi: elf.abi(), ..Self::default() };
        if let Some(interpreter) = elf.segment(abi::PT_INTERP) {
            linkage.interpreter = elf.name(interpreter.p_offset)?;
        }
        let entries = elf.dynamic()?;
        let Some(strings) = elf.placed(&entries, abi::DT_STRTAB) else { return Ok(linkage) };
        for (tag, at) in entries {
            let name = || elf.name(strings.saturating_add(at));
            match tag {
                abi::DT_SONAME => linkage.soname = name()?,
                abi::DT_NEEDED if linkage.needed.len() < MOST_NEEDED => {
                    linkage.needed.extend(name()?);
                }
                _ => {}
            }
        }
        Ok(linkage)
    }
}

/// The versions that a library defines symbols for, its own name the first of them.
///
/// # Errors
/// When the file cannot be read.
pub fn defined_versions(file: &File) -> io::Result<Vec<Vec<u8>>> {
    let ident = read(file, 0, abi::EI_NIDENT as u64)?;
    let Some(elf) = Elf::parse(file, &ident)? else { return Ok(Vec::new()) };
    let entries = elf.dynamic()?;
    let strings = elf.placed(&entries, abi::DT_STRTAB);
    let (Some(strings), Some(at)) = (strings, elf.placed(&entries, abi::DT_VERDEF)) else {
        return Ok(Vec::new());
    };
    let count = entries.iter().find(|(tag, _)| *tag == abi::DT_VERDEFNUM).map_or(0, |e| e.1);
    let definitions = read(file, at, MOST_VERSIONS)?;
    // It reads on from where it is told, and stops where there is nothing more.
    let all = VerDefIterator::new(elf.endian, elf.class, count, 0, &definitions);
    let mut names = Vec::new();
    for (_, mut auxiliaries) in all.take(MOST_NEEDED) {
        if let Some(name) = auxiliaries.next() {
            names.extend(elf.name(strings.saturating_add(u64::from(name.vda_name)))?);
        }
    }
    Ok(names)
}

/// A file's header and segments.
struct Elf<'f> {
    file: &'f File,
    endian: AnyEndian,
    class: Class,
    machine: u16,
    segments: Vec<ProgramHeader>,
}

impl<'f> Elf<'f> {
    /// `None` where it is none.
    fn parse(file: &'f File, ident: &[u8]) -> io::Result<Option<Self>> {
        // As large as the header of the larger class.
        const TAIL: u64 = 64 - abi::EI_NIDENT as u64;
        if ident.len() < abi::EI_NIDENT {
            return Ok(None);
        }
        let Ok(ident) = parse_ident::<AnyEndian>(ident) else { return Ok(None) };
        let (endian, class, ..) = ident;
        let tail = read(file, abi::EI_NIDENT as u64, TAIL)?;
        let Ok(header) = FileHeader::parse_tail(ident, &tail) else { return Ok(None) };
        let size = u64::from(header.e_phnum) * u64::from(header.e_phentsize);
        let headers = read(file, header.e_phoff, size.min(MOST_HEADERS))?;
        let segments = SegmentTable::new(endian, class, &headers).iter().collect();
        Ok(Some(Self { file, endian, class, machine: header.e_machine, segments }))
    }

    fn segment(&self, kind: u32) -> Option<&ProgramHeader> {
        self.segments.iter().find(|segment| segment.p_type == kind)
    }

    fn abi(&self) -> Option<Abi> {
        Some(match (self.machine, self.class) {
            (abi::EM_X86_64, Class::ELF64) => Abi::X86_64,
            (abi::EM_X86_64, Class::ELF32) => Abi::X32,
            (abi::EM_386, Class::ELF32) => Abi::I386,
            (abi::EM_AARCH64, Class::ELF64) => Abi::Aarch64,
            (abi::EM_ARM, Class::ELF32) => Abi::Arm,
            _ => return None,
        })
    }

    /// Tags and values of the dynamic section, none where there is none.
    fn dynamic(&self) -> io::Result<Vec<(i64, u64)>> {
        let Some(dynamic) = self.segment(abi::PT_DYNAMIC) else { return Ok(Vec::new()) };
        let dynamic = read(self.file, dynamic.p_offset, dynamic.p_filesz.min(MOST_DYNAMIC))?;
        let entries = DynamicTable::new(self.endian, self.class, &dynamic);
        let entries = entries.iter().map(|entry| (entry.d_tag, entry.d_val()));
        Ok(entries.take_while(|(tag, _)| *tag != abi::DT_NULL).collect())
    }

    /// Where the file has what a tag has the address of, as it is to be mapped.
    fn placed(&self, entries: &[(i64, u64)], tag: i64) -> Option<u64> {
        let (_, address) = entries.iter().find(|(found, _)| *found == tag)?;
        self.offset(*address)
    }

    /// Where the file has what is to be mapped at `address`.
    fn offset(&self, address: u64) -> Option<u64> {
        let load = |segment: &&ProgramHeader| {
            let inside = address.checked_sub(segment.p_vaddr);
            segment.p_type == abi::PT_LOAD && inside.is_some_and(|at| at < segment.p_filesz)
        };
        let segment = self.segments.iter().find(load)?;
        segment.p_offset.checked_add(address - segment.p_vaddr)
    }

    /// The string at `offset`, up to its NUL; `None` where it has no end.
    fn name(&self, offset: u64) -> io::Result<Option<Vec<u8>>> {
        const PART: u64 = 256;
        let mut name = Vec::new();
        while (name.len() as u64) < MOST_NAME {
            let part = read(self.file, offset.saturating_add(name.len() as u64), PART)?;
            if let Some(end) = part.iter().position(|&byte| byte == 0) {
                name.extend_from_slice(part.get(..end).unwrap_or_default());
                return Ok((!name.is_empty()).then_some(name));
            }
            if part.is_empty() {
                break;
            }
            name.extend_from_slice(&part);
        }
        Ok(None)
    }
}

/// Up to `length` bytes; fewer where the file ends before.
fn read(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    let mut filled = 0;
    // What lies beyond any file's end is not there, and no error.
    while i64::try_from(offset.saturating_add(filled as u64)).is_ok() {
        let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) else { break };
        match file.read_at(rest, offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn of(bytes: &[u8]) -> Linkage {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Linkage::read(&file).unwrap()
    }

    /// A shared object of 64 bits with two segments, in the layout of elf(5): the
    /// strings are mapped 0x1000 above where the file has them.
    fn sample() -> Vec<u8> {
        const STRINGS: &[u8] = b"\0libself.so.3\0libc.so.6\0libm.so.6\0/lib/ld.so\0";
        let at = |name: &[u8]| STRINGS.windows(name.len()).position(|w| w == name).unwrap() as u64;
        let (dynamic, strings) = (64 + 3 * 56, 64 + 3 * 56 + 5 * 16u64);
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        let mut put = |bytes: &[u8]| file.extend_from_slice(bytes);
        put(&3u16.to_le_bytes()); // ET_DYN
        put(&62u16.to_le_bytes()); // EM_X86_64
        put(&1u32.to_le_bytes());
        for word in [0, 64, 0u64] {
            put(&word.to_le_bytes()); // entry, program headers, section headers
        }
        put(&0u32.to_le_bytes());
        for half in [64, 56, 3, 64, 0, 0u16] {
            put(&half.to_le_bytes());
        }
        let length = STRINGS.len() as u64;
        for (kind, offset, address, size) in [
            (1u32, 0, 0x1000, strings + length),
            (2, dynamic, 0x1000 + dynamic, 5 * 16),
            (3, strings + at(b"/lib/ld.so"), 0, 11),
        ] {
            put(&kind.to_le_bytes());
            put(&4u32.to_le_bytes());
            for word in [offset, address, address, size, size, 8u64] {
                put(&word.to_le_bytes());
            }
        }
        for (tag, value) in [
            (1u64, at(b"libc.so.6")),
            (14, at(b"libself.so.3")),
            (5, 0x1000 + strings),
            (1, at(b"libm.so.6")),
            (0, 0),
        ] {
            put(&tag.to_le_bytes());
            put(&value.to_le_bytes());
        }
        put(STRINGS);
        file
    }

    #[test]
    fn names_are_read() {
        let linkage = of(&sample());
        assert_eq!(
            linkage,
            Linkage {
                loadable: true,
                soname: Some(b"libself.so.3".to_vec()),
                needed: vec![b"libc.so.6".to_vec(), b"libm.so.6".to_vec()],
                interpreter: Some(b"/lib/ld.so".to_vec()),
                abi: Some(Abi::X86_64),
            }
        );
    }

    #[test]
    fn what_is_cut_off_anywhere_says_less_and_nothing_else() {
        let whole = sample();
        let all = of(&whole);
        for end in 0..whole.len() {
            let found = of(whole.get(..end).unwrap());
            // The header, and the first of the segments.
            assert_eq!(found.loadable, end >= 64 + 56, "{end}");
            assert!(found.needed.iter().all(|name| all.needed.contains(name)), "{end} {found:?}");
            assert!(found.soname.is_none() || found.soname == all.soname, "{end} {found:?}");
        }
    }

    #[test]
    fn what_a_file_claims_costs_no_memory() {
        let mut file = sample();
        // The dynamic section ends at the end of the address space.
        file[64 + 56 + 32..][..8].copy_from_slice(&(u64::MAX).to_le_bytes());
        assert_eq!(of(&file).soname.as_deref(), Some(&b"libself.so.3"[..]));
        // And begins there.
        file[64 + 56 + 8..][..8].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
        assert_eq!(of(&file).soname, None);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(at in 0usize..400, odd in prop::collection::vec(any::<u8>(), 1..24)) {
            let mut file = sample();
            let at = at.min(file.len() - 1);
            let end = (at + odd.len()).min(file.len());
            file[at..end].copy_from_slice(&odd[..end - at]);
            let found = of(&file);
            prop_assert!(found.needed.len() <= MOST_NEEDED);
            let mut copy = tempfile::tempfile().unwrap();
            copy.write_all(&file).unwrap();
            prop_assert!(defined_versions(&copy).unwrap().len() <= MOST_NEEDED);
        }
    }
}
