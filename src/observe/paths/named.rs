//! What a call names: the paths that its arguments point at and the descriptors
//! that they are, as they are when it enters.

use std::cell::RefCell;

use crate::syscall::{Abi, Role, Sys};
use crate::tracer::memory::{self, PATH_MAX, read_string};
use crate::tracer::{Nanos, ThreadId, patiently};

/// AT_FDCWD (fcntl.h), as the low half of a register.
const FROM_CWD: i32 = libc::AT_FDCWD;
const EMPTY_PATH: u64 = libc::AT_EMPTY_PATH as u64;

/// The memory of a stopped tracee.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Whose.
    pub tid: i32,
    /// Only what is there is read.
    pub careful: bool,
}

thread_local! {
    /// A path of the entry that collectors are being told of, by thread and address:
    /// to read it is most of what the first of them costs, and the next wants it too.
    static READ: RefCell<Option<(i32, u64, Vec<u8>)>> = const { RefCell::new(None) };
}

/// The entry has been told of: memory may change now.
pub fn forget_path() {
    READ.with_borrow_mut(|read| *read = None);
}

impl Memory {
    /// The [path](Self::path) at an address if it is one of these; else it is kept for
    /// the next who asks, until it is [forgotten](forget_path).
    pub fn path_if(self, address: u64, is: impl FnOnce(&[u8]) -> bool) -> Option<Vec<u8>> {
        let path = self.path(address)?;
        if is(&path) {
            return Some(path);
        }
        READ.with_borrow_mut(|read| *read = Some((self.tid, address, path)));
        None
    }

    /// The path at an address: where it may have to be fetched from somebody who is
    /// stopped for us, it is waited for a while.
    pub fn path(self, address: u64) -> Option<Vec<u8>> {
        let read = READ.with_borrow_mut(|read| {
            read.take_if(|(tid, at, _)| (*tid, *at) == (self.tid, address)).map(|(.., path)| path)
        });
        if read.is_some() {
            return read;
        }
        self.patiently(address, || read_string(self.tid, address, PATH_MAX, self.careful))
    }

    /// The same of bytes: how many could be read.
    pub fn read_patiently(self, address: u64, into: &mut [u8]) -> Option<usize> {
        self.patiently(address, || self.read(address, into))
    }

    fn patiently<T>(self, address: u64, mut read: impl FnMut() -> Option<T>) -> Option<T> {
        read().or_else(|| {
            if !self.careful {
                return None;
            }
            patiently(move || bring_in(self.tid, address))?;
            read()
        })
    }

    /// How many bytes could be read.
    pub fn read(self, address: u64, into: &mut [u8]) -> Option<usize> {
        if self.careful && !memory::is_present(self.tid, address, into.len()) {
            return None;
        }
        memory::read(self.tid, address, into).ok()
    }

    /// The 64-bit word at an address; 0 where it cannot be read.
    pub fn word(self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        match self.read(address, &mut bytes) {
            Some(8) => u64::from_ne_bytes(bytes),
            _ => 0,
        }
    }
}

/// What an argument names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// A path, from a directory: `None` is the working directory.
    Path {
        /// The directory.
        from: Option<i32>,
        /// As it was given.
        name: Vec<u8>,
        /// The directory is the root of this path (RESOLVE_IN_ROOT).
        rooted: bool,
    },
    /// A descriptor.
    Descriptor(i32),
    /// The working directory itself (an empty path and AT_EMPTY_PATH).
    Cwd,
    /// An empty path, which leads nowhere.
    Empty,
    /// A path that cannot be read.
    Unreadable,
}

/// A call that has entered.
#[derive(Debug, Clone)]
pub struct Entered {
    /// The call.
    pub sys: Sys,
    /// Its arguments.
    pub args: [u64; 6],
    /// What it names: argument, and what.
    pub names: Vec<(usize, Name)>,
    /// Flags of an open (O_*) or of a clone (CLONE_*).
    pub flags: u64,
    /// When.
    pub at: Nanos,
    /// By whom.
    pub thread: ThreadId,
}

impl Entered {
    /// Reads what a stopped thread's call names. `careful`: some page may have to
    /// be fetched from a process that is stopped for us.
    pub fn read(
        sys: Sys,
        args: [u64; 6],
        (thread, tid): (ThreadId, i32),
        at: Nanos,
        careful: bool,
    ) -> Self {
        let tracee = Memory { tid, careful };
        let mut names = Vec::new();
        let Some(info) = sys.info() else {
            return Self { sys, args, names, flags: 0, at, thread };
        };
        let flags_of = |role: Role| {
            let at = info.args.iter().position(|r| *r == role);
            at.and_then(|i| args.get(i)).copied().unwrap_or(0)
        };
        let at_flags = flags_of(Role::Atflags);
        let in_root = info.name == "openat2"
            && tracee.word(args[2].wrapping_add(16)) & libc::RESOLVE_IN_ROOT != 0;
        let mut dirfd = None;
        for (i, role) in info.args.into_iter().enumerate() {
            let argument = args.get(i).copied().unwrap_or(0);
            let fd = argument as i32;
            let from = dirfd.take();
            match role {
                Role::Dirfd => dirfd = Some(fd),
                Role::Path => {
                    let empty = at_flags & EMPTY_PATH != 0;
                    let itself = Itself {
                        empty: empty || info.name == "readlinkat",
                        null: empty || takes_null(info.name),
                    };
                    let name = path(tracee, argument, from, itself);
                    names.extend(name.map(|name| (i, rooted(name, in_root))));
                }
                Role::PathIf if is_path(info.name, &args) => {
                    names.extend(
                        path(tracee, argument, None, Itself::default()).map(|name| (i, name)),
                    );
                }
                Role::Fd if fd >= 0 && !(info.kind == "mmap" && is_anonymous(args[3])) => {
                    names.push((i, Name::Descriptor(fd)));
                }
                Role::Sockaddr => {
                    let length = args.get(i + 1).copied().unwrap_or(0);
                    names.extend(socket_path(tracee, argument, length).map(|name| (i, name)));
                }
                _ => {}
            }
        }
        let flags = match info.name {
            "creat" => libc::O_WRONLY as u64,
            "openat2" => tracee.word(args[2]),
            "clone" => args[0],
            "clone3" => tracee.word(args[0]),
            _ => flags_of(Role::Oflags),
        };
        Self { sys, args, names, flags, at, thread }
    }

    /// Whether a name could not be read at the entry. It may be at the exit, when
    /// the kernel has looked at it; an exec that succeeds has no memory then.
    pub fn is_incomplete(&self) -> bool {
        self.names.iter().any(|(_, name)| *name == Name::Unreadable)
    }

    /// Whether this is that call.
    pub fn is(&self, sys: Sys, args: &[u64; 6]) -> bool {
        self.sys == sys && self.args == *args
    }
}

fn is_anonymous(flags: u64) -> bool {
    flags & libc::MAP_ANONYMOUS as u64 != 0
}

/// Whether an argument is a path for this operation: calls.txt says when.
fn is_path(name: &str, args: &[u64; 6]) -> bool {
    const SET_PATH: u64 = 3;
    const SET_PATH_EMPTY: u64 = 4;
    const Q_QUOTAON: u64 = 0x80_0002;
    match name {
        "fsconfig" => matches!(args[1], SET_PATH | SET_PATH_EMPTY),
        "mount" => args[3] & (libc::MS_BIND | libc::MS_MOVE) != 0,
        "quotactl" => (args[0] & 0xffff_ffff) >> 8 == Q_QUOTAON,
        _ => false,
    }
}

/// When a call means the directory that it is given.
#[derive(Debug, Clone, Copy, Default)]
struct Itself {
    /// By an empty path.
    empty: bool,
    /// By NULL.
    null: bool,
}

/// Has the kernel fetch a page.
fn bring_in(tid: i32, address: u64) {
    let _ = memory::read(tid, address, &mut [0]);
}

/// Calls that allow NULL for a path: the descriptor itself, or nothing (acct).
fn takes_null(name: &str) -> bool {
    matches!(name, "utimensat" | "utimensat_time64" | "futimesat" | "fanotify_mark" | "acct")
}

fn rooted(name: Name, in_root: bool) -> Name {
    match name {
        Name::Path { from, name, .. } => Name::Path { from, name, rooted: in_root },
        other => other,
    }
}

fn path(tracee: Memory, address: u64, from: Option<i32>, is_itself: Itself) -> Option<Name> {
    let itself = || match from {
        Some(fd) if fd != FROM_CWD => Name::Descriptor(fd),
        _ => Name::Cwd,
    };
    if address == 0 && is_itself.null {
        return from.map(|_| itself());
    }
    let Some(name) = tracee.path(address) else {
        return Some(Name::Unreadable);
    };
    if name.is_empty() {
        return Some(if is_itself.empty { itself() } else { Name::Empty });
    }
    Some(Name::Path { from: from.filter(|&fd| fd != FROM_CWD), name, rooted: false })
}

/// The path of a unix socket's address (unix(7)); none of an unnamed or
/// abstract one.
fn socket_path(tracee: Memory, address: u64, length: u64) -> Option<Name> {
    let mut bytes = [0; 110];
    let length = usize::try_from(length).ok()?.min(bytes.len());
    let read = tracee.read(address, bytes.get_mut(..length)?)?;
    let family = u16::from_ne_bytes([*bytes.first()?, *bytes.get(1)?]);
    let path = bytes.get(2..read)?;
    let name = path.split(|&byte| byte == 0).next()?;
    (i32::from(family) == libc::AF_UNIX && !name.is_empty()).then(|| Name::Path {
        from: None,
        name: name.to_vec(),
        rooted: false,
    })
}

/// Two descriptors that the kernel wrote (pipe, socketpair).
pub fn pair(tracee: Memory, address: u64) -> [i32; 2] {
    let word = tracee.word(address).to_ne_bytes();
    let int = |at: usize| {
        word.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(-1, i32::from_ne_bytes)
    };
    [int(0), int(4)]
}

/// Descriptors that came with a message (SCM_RIGHTS; cmsg(3)): of a `struct
/// msghdr` at `address`. `None` where its layout is not known: then any may
/// have come.
pub fn received(tracee: Memory, abi: Abi, address: u64) -> Option<Vec<i32>> {
    const CONTROL_AT: u64 = 32;
    const HEADER: usize = 16;
    /// More than the kernel lets pass in one message (SCM_MAX_FD is 253).
    const MOST: usize = 4096;
    if abi != Abi::native() {
        return None;
    }
    let control = tracee.word(address.wrapping_add(CONTROL_AT));
    let length = tracee.word(address.wrapping_add(CONTROL_AT + 8)) as usize;
    let mut came = Vec::new();
    if control == 0 || length < HEADER {
        return Some(came);
    }
    let mut bytes = vec![0; length.min(MOST)];
    let read = tracee.read(control, &mut bytes).unwrap_or(0);
    let mut rest = bytes.get(..read)?;
    while let Some(header) = rest.get(..HEADER) {
        let number = |at: usize| header.get(at..at + 4)?.try_into().ok().map(i32::from_ne_bytes);
        let size = usize::try_from(number(0)?).ok()?;
        if size < HEADER {
            break;
        }
        let (level, kind) = (number(8)?, number(12)?);
        let data = rest.get(HEADER..size.min(rest.len())).unwrap_or_default();
        if level == libc::SOL_SOCKET {
            match kind {
                libc::SCM_RIGHTS | 4 /* SCM_PIDFD */ => came.extend(
                    data.chunks_exact(4).filter_map(|b| b.try_into().ok().map(i32::from_ne_bytes)),
                ),
                _ => {}
            }
        }
        rest = rest.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    Some(came)
}

/// Bytes of the messages of recvmmsg and sendmmsg: `count` of `struct mmsghdr`.
pub fn messages(tracee: Memory, abi: Abi, address: u64, count: u64) -> u64 {
    const SIZE: u64 = 64;
    const LENGTH_AT: u64 = 56;
    if abi != Abi::native() {
        return 0;
    }
    let length = |i: u64| tracee.word(address.wrapping_add(i * SIZE + LENGTH_AT)) & 0xffff_ffff;
    (0..count.min(1024)).map(length).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads from this process itself, which needs no stop.
    fn of(name: &str, args: [u64; 6]) -> Entered {
        let sys = Sys::from_name(Abi::native(), name).unwrap();
        Entered::read(sys, args, (ThreadId(0), std::process::id() as i32), 0, false)
    }

    #[test]
    fn paths_and_descriptors_are_where_the_roles_say() {
        let (a, b) = (c"one".as_ptr() as u64, c"/two".as_ptr() as u64);
        let path = |from, name: &str| Name::Path { from, name: name.into(), rooted: false };
        let at = FROM_CWD as u32 as u64;
        assert_eq!(
            of("renameat2", [at, a, 7, b, 0, 0]).names,
            [(1, path(None, "one")), (3, path(Some(7), "/two"))]
        );
        let empty = c"".as_ptr() as u64;
        assert_eq!(
            of("newfstatat", [5, empty, 0, EMPTY_PATH, 0, 0]).names,
            [(1, Name::Descriptor(5))]
        );
        assert_eq!(of("newfstatat", [at, empty, 0, EMPTY_PATH, 0, 0]).names, [(1, Name::Cwd)]);
        assert_eq!(of("newfstatat", [5, empty, 0, 0, 0, 0]).names, [(1, Name::Empty)]);
        assert_eq!(of("newfstatat", [5, 16, 0, 0, 0, 0]).names, [(1, Name::Unreadable)]);
        assert_eq!(of("utimensat", [5, 0, 0, 0, 0, 0]).names, [(1, Name::Descriptor(5))]);
        assert_eq!(of("mmap", [0, 4096, 1, 0x22, 3, 0]).names, []);
        assert_eq!(of("mmap", [0, 4096, 1, 0x2, 3, 0]).names, [(4, Name::Descriptor(3))]);
        assert_eq!(of("acct", [0; 6]).names, []);
        assert_eq!(of("open", [0; 6]).names, [(0, Name::Unreadable)]);
        let flags = u64::from(libc::O_RDWR as u32);
        assert_eq!(of("openat", [at, a, flags, 0, 0, 0]).flags, flags);
    }

    #[test]
    fn a_unix_sockets_path_is_one() {
        let mut address = [0u8; 110];
        address[0] = libc::AF_UNIX as u8;
        address[2..6].copy_from_slice(b"/s/k");
        let at = address.as_ptr() as u64;
        let path = Name::Path { from: None, name: b"/s/k".to_vec(), rooted: false };
        assert_eq!(
            of("connect", [3, at, 110, 0, 0, 0]).names,
            [(0, Name::Descriptor(3)), (1, path)]
        );
        address[2] = 0; // abstract
        let at = address.as_ptr() as u64;
        assert_eq!(of("connect", [3, at, 110, 0, 0, 0]).names, [(0, Name::Descriptor(3))]);
    }
}
