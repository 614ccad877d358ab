//! What is known of each system call: its classes, the role of each argument and what
//! it returns, by name and by number.
//!
//! The facts are in `syscall-tables/calls.txt`, the numbers in the `syscalls` crate and
//! `syscall-tables/numbers.txt`. Both texts are compiled in and read once, on first
//! use; an ABI's numbers are resolved when that ABI is first met.

use std::collections::{HashMap, HashSet};
use std::ops::{BitOr, BitOrAssign};
use std::sync::LazyLock;

use super::Abi;

const CALLS_TEXT: &str = include_str!("../../syscall-tables/calls.txt");
const KINDS_TEXT: &str = include_str!("../../syscall-tables/kinds.txt");
const NUMBERS_TEXT: &str = include_str!("../../syscall-tables/numbers.txt");

/// Numbers from here on are not looked up. The highest in use is 547 (x32).
pub(super) const LIMIT: i64 = 1024;

/// An enumeration whose variants each have a word in the data.
macro_rules! words {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$outer])*
        #[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// The word for it in `syscall-tables/calls.txt`.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

words! {
    /// What an argument of a call is.
    Role {
        /// The call has no such argument.
        Absent = "absent",
        /// An argument the kernel ignores.
        Unused = "unused",
        /// A string looked up as a path, relative to the [`Role::Dirfd`] right before it
        /// or else to the working directory. May be NULL where the manual says so.
        Path = "path",
        /// The directory of the path in the next argument: a descriptor or `AT_FDCWD`.
        Dirfd = "dirfd",
        /// A string that some operations of the call look up as a path and others do
        /// not (the source of mount(2)). The data file says when.
        PathIf = "pathif",
        /// The content of a symbolic link to be made: not looked up.
        Target = "target",
        /// A string that is no path: an attribute's, a type's, a module's name.
        Name = "name",
        /// A NULL-terminated array of strings.
        Strv = "strv",
        /// An open descriptor, or -1 where the call allows it.
        Fd = "fd",
        /// Where the kernel writes two new descriptors (two ints).
        FdOut = "fdout",
        /// `O_*` flags.
        Oflags = "oflags",
        /// `AT_*` flags and those of the call itself.
        Atflags = "atflags",
        /// Other flags, a mask or a protection.
        Flags = "flags",
        /// Permission bits, or the `R_OK` mask of access(2).
        Mode = "mode",
        /// Selects the operation, see [`super::split`].
        Op = "op",
        /// Bytes read or written. Their length is the next argument if that is a
        /// [`Role::Size`].
        Buf = "buf",
        /// A length in bytes.
        Size = "size",
        /// A file offset in bytes (mmap2: pages). On i386 a 64-bit one is two
        /// arguments, low half first.
        Offset = "offset",
        /// An array of `struct iovec`.
        Iov = "iov",
        /// A `struct msghdr`, or an array of `struct mmsghdr`.
        Msg = "msg",
        /// A socket address given to the kernel.
        Sockaddr = "sockaddr",
        /// The length of a socket address in bytes.
        SockaddrLen = "sockaddrlen",
        /// Where the kernel writes a socket address.
        SockaddrOut = "sockaddrout",
        /// Where the length of a socket address is (an int, read and written).
        SockaddrLenPtr = "sockaddrlenp",
        /// A process, thread, group or session id.
        Pid = "pid",
        /// A signal number.
        Sig = "sig",
        /// An address of the caller's memory.
        Addr = "addr",
        /// Points at a structure.
        Ptr = "ptr",
        /// A number.
        Num = "num",
    }
}

words! {
    /// What a call returns on success.
    ReturnRole {
        /// A new descriptor.
        Fd = "fd",
        /// A count of bytes moved or written.
        Bytes = "bytes",
        /// An address.
        Addr = "addr",
        /// A process, thread, group or session id.
        Pid = "pid",
        /// A number of the call's own: a count, an id, an offset, flags.
        Num = "num",
        /// A pointer given back.
        Ptr = "ptr",
        /// 0 and nothing else.
        None = "none",
        /// The call does not return.
        Never = "never",
    }
}

/// A set of the classes of `-e trace=%class`.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Default, Debug)]
pub struct Classes(u32);

/// Word in the data, name in an expression (without its first `%`), bit.
const CLASSES: [(&str, &str, Classes); 18] = [
    ("file", "file", Classes::FILE),
    ("process", "process", Classes::PROCESS),
    ("network", "network", Classes::NETWORK),
    ("network", "net", Classes::NETWORK),
    ("signal", "signal", Classes::SIGNAL),
    ("ipc", "ipc", Classes::IPC),
    ("desc", "desc", Classes::DESC),
    ("memory", "memory", Classes::MEMORY),
    ("creds", "creds", Classes::CREDS),
    ("stat", "stat", Classes::STAT),
    ("lstat", "lstat", Classes::LSTAT),
    ("fstat", "fstat", Classes::FSTAT),
    ("statlike", "%stat", Classes::STAT_LIKE),
    ("statfs", "statfs", Classes::STATFS),
    ("fstatfs", "fstatfs", Classes::FSTATFS),
    ("statfslike", "%statfs", Classes::STATFS_LIKE),
    ("clock", "clock", Classes::CLOCK),
    ("pure", "pure", Classes::PURE),
];

impl Classes {
    /// No class.
    pub const NONE: Self = Self(0);
    /// `%file`: takes a path, or gives one back.
    pub const FILE: Self = Self(1);
    /// `%process`: starts, ends or waits for a process, or signals one.
    pub const PROCESS: Self = Self(1 << 1);
    /// `%network`, `%net`: sockets.
    pub const NETWORK: Self = Self(1 << 2);
    /// `%signal`: signals.
    pub const SIGNAL: Self = Self(1 << 3);
    /// `%ipc`: System V IPC.
    pub const IPC: Self = Self(1 << 4);
    /// `%desc`: takes or makes a descriptor.
    pub const DESC: Self = Self(1 << 5);
    /// `%memory`: maps memory.
    pub const MEMORY: Self = Self(1 << 6);
    /// `%creds`: user and group ids and capabilities.
    pub const CREDS: Self = Self(1 << 7);
    /// `%stat`: stat(2) in its versions.
    pub const STAT: Self = Self(1 << 8);
    /// `%lstat`: lstat(2) in its versions.
    pub const LSTAT: Self = Self(1 << 9);
    /// `%fstat`: fstat(2), fstatat(2) and statx(2).
    pub const FSTAT: Self = Self(1 << 10);
    /// `%%stat`: the three above.
    pub const STAT_LIKE: Self = Self(1 << 11);
    /// `%statfs`: statfs(2) in its versions.
    pub const STATFS: Self = Self(1 << 12);
    /// `%fstatfs`: fstatfs(2) in its versions.
    pub const FSTATFS: Self = Self(1 << 13);
    /// `%%statfs`: the two above and ustat(2).
    pub const STATFS_LIKE: Self = Self(1 << 14);
    /// `%clock`: reads or sets a clock.
    pub const CLOCK: Self = Self(1 << 15);
    /// `%pure`: no arguments and no failure.
    pub const PURE: Self = Self(1 << 16);

    /// Whether it has a class in common with `other`.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The class of that name, as after the `%` of an expression: `file`, `net`, `%stat`.
    pub fn from_name(name: &str) -> Option<Self> {
        CLASSES.iter().find(|(_, known, _)| *known == name).map(|(_, _, class)| *class)
    }

    /// Every name that [`Classes::from_name`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CLASSES.iter().map(|(_, name, _)| *name)
    }

    fn from_words(words: &str) -> Option<Self> {
        let mut classes = Self::NONE;
        if words == "-" {
            return Some(classes);
        }
        for word in words.split(',') {
            classes |= CLASSES.iter().find(|(known, _, _)| *known == word)?.2;
        }
        Some(classes)
    }
}

impl BitOr for Classes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Classes {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// What is known of a call.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct CallInfo {
    /// The kernel's name.
    pub name: &'static str,
    /// The classes it is in.
    pub classes: Classes,
    /// The roles of its arguments; [`Role::Absent`] beyond the last.
    pub args: [Role; 6],
    /// What it returns on success.
    pub returns: ReturnRole,
    /// What it does to a file, in one word: that of several calls alike, or its
    /// own name.
    pub kind: &'static str,
    /// Between which arguments it moves bytes, if it does: (from, to).
    pub moves: Option<(usize, usize)>,
}

impl CallInfo {
    /// How many arguments the call has, 0 to 6.
    pub fn arg_count(&self) -> usize {
        self.args.iter().take_while(|role| **role != Role::Absent).count()
    }
}

/// The data: each call by name, and the lines `name@abi`, which are few.
#[derive(Default)]
struct Calls {
    plain: HashMap<&'static str, CallInfo>,
    variants: Vec<(Abi, CallInfo)>,
}

static CALLS: LazyLock<Calls> = LazyLock::new(|| {
    let mut calls = Calls { plain: HashMap::with_capacity(512), variants: Vec::new() };
    for (abi, info) in data_lines(CALLS_TEXT).filter_map(parse_line) {
        match abi {
            Some(abi) => calls.variants.push((abi, info)),
            None => _ = calls.plain.insert(info.name, info),
        }
    }
    calls
});

/// The words of kinds.txt by call.
static KINDS: LazyLock<HashMap<&'static str, Kind>> = LazyLock::new(|| {
    let mut kinds = HashMap::new();
    for line in data_lines(KINDS_TEXT) {
        let mut words = line.split_ascii_whitespace();
        let Some(kind) = words.next().map(plain_kind) else { continue };
        for word in words {
            let (name, moves) = word.split_once(':').unwrap_or((word, ""));
            let moves = moves.split_once('>');
            let moves = moves.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
            kinds.insert(name, (kind, moves));
        }
    }
    kinds
});

type Kind = (&'static str, Option<(usize, usize)>);

/// The word of a kind without its mark.
fn plain_kind(word: &'static str) -> &'static str {
    word.strip_suffix('!').unwrap_or(word)
}

/// Whether calls of this kind change, make or remove what they name, whatever their
/// arguments are. (An open for writing does by its flags.)
pub fn changes(kind: &str) -> bool {
    static CHANGING: LazyLock<HashSet<&'static str>> = LazyLock::new(|| {
        let kinds = data_lines(KINDS_TEXT).filter_map(|line| line.split_ascii_whitespace().next());
        kinds.filter_map(|word| word.strip_suffix('!')).collect()
    });
    CHANGING.contains(kind)
}

/// The lines of a data file, without comments and blank lines.
fn data_lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or("").trim_ascii())
        .filter(|line| !line.is_empty())
}

/// Reads a line of calls.txt: the ABI after the name, if there is one, and the call.
/// `None` for a line that is not understood; a test sees to it that there is none.
fn parse_line(line: &'static str) -> Option<(Option<Abi>, CallInfo)> {
    let mut words = line.split_ascii_whitespace();
    let word = words.next()?;
    let (name, abi) = match word.split_once('@') {
        Some((name, abi)) => (name, Some(Abi::from_name(abi)?)),
        None => (word, None),
    };
    let classes = Classes::from_words(words.next()?)?;
    let returns = ReturnRole::from_word(words.next()?)?;
    let mut args = [Role::Absent; 6];
    let mut places = args.iter_mut();
    for word in words {
        *places.next()? = Role::from_word(word)?;
    }
    let (kind, moves) = KINDS.get(name).copied().unwrap_or((name, None));
    let info = CallInfo { name, classes, args, returns, kind, moves };
    Some((abi, info))
}

/// What is known of the call of that name, its arguments as 64-bit ABIs pass them.
/// For those of another ABI see [`super::Sys::info`].
pub fn info(name: &str) -> Option<&'static CallInfo> {
    CALLS.plain.get(name)
}

/// The calls of one ABI by number.
type Index = Vec<Option<&'static CallInfo>>;

static INDEX: [LazyLock<Index>; 5] = [
    LazyLock::new(|| index(Abi::X86_64)),
    LazyLock::new(|| index(Abi::I386)),
    LazyLock::new(|| index(Abi::X32)),
    LazyLock::new(|| index(Abi::Aarch64)),
    LazyLock::new(|| index(Abi::Arm)),
];

/// The name the `syscalls` crate has for a number. It has no table of x32, which shares
/// that of x86_64 below 512; its table of 32-bit ARM is not compiled in.
fn crate_name(abi: Abi, number: usize) -> Option<&'static str> {
    match abi {
        Abi::X86_64 | Abi::X32 => syscalls::x86_64::Sysno::new(number).map(|call| call.name()),
        Abi::I386 => syscalls::x86::Sysno::new(number).map(|call| call.name()),
        Abi::Aarch64 => syscalls::aarch64::Sysno::new(number).map(|call| call.name()),
        Abi::Arm => None,
    }
}

fn index(abi: Abi) -> Index {
    let mut names: Vec<Option<&'static str>> =
        (0..LIMIT as usize).map(|number| crate_name(abi, number)).collect();
    // x32 follows x86_64 in the file's calls too, and its own lines come after.
    let followed: &[&str] = if abi == Abi::X32 { &["x86_64", "x32"] } else { &[abi.name()] };
    for line in data_lines(NUMBERS_TEXT) {
        let mut words = line.split_ascii_whitespace();
        let (Some(table), Some(number), Some(name)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if !followed.contains(&table) {
            continue;
        }
        let place = number.parse().ok().and_then(|at: usize| names.get_mut(at));
        if let Some(place) = place {
            *place = (name != "-").then_some(name);
        }
    }
    names
        .into_iter()
        .map(|name| {
            let name = name?;
            let mut variants = CALLS.variants.iter();
            let variant = variants.find(|(only, info)| *only == abi && info.name == name);
            variant.map(|(_, info)| info).or_else(|| info(name))
        })
        .collect()
}

/// What is known of the call of that number. `None` for numbers that are not in use.
pub(super) fn by_number(abi: Abi, number: i64) -> Option<&'static CallInfo> {
    let at = usize::try_from(number).ok()?;
    *INDEX.get(abi as usize)?.get(at)?
}

/// The number of the call of that name.
pub(super) fn number(abi: Abi, name: &str) -> Option<i64> {
    INDEX
        .get(abi as usize)?
        .iter()
        .position(|info| info.is_some_and(|info| info.name == name))
        .map(|at| at as i64)
}

/// The numbers in use, each with its call, in rising order.
pub(super) fn known(abi: Abi) -> impl Iterator<Item = (i64, &'static CallInfo)> {
    INDEX
        .get(abi as usize)
        .into_iter()
        .flat_map(|index| index.iter().enumerate())
        .filter_map(|(at, info)| Some((at as i64, (*info)?)))
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
