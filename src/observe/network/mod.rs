//! Sockets that are made, and the addresses that they are connected and bound to
//! and that is sent to: by process, call and address.
//!
//! An address is read at the call's entry. What a descriptor is was asked of
//! socket(2) by whoever of the tree: sockets are told apart by the number that
//! /proc has for each, so that copies of a descriptor need not be followed.

mod address;

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::syscall::{Abi, CallSet, Sys};
use crate::tracer::{Call, Event, Link, Observer, Outcome, ProcessId, ThreadId};

use super::paths::{Memory, makes_careful, pair};
use super::{OpenRegions, SharedTimeline};

pub use address::{Kind, family, is_family};

/// Messages of one sendmmsg that are looked at: the kernel takes no more (UIO_MAXIOV).
const MOST_MESSAGES: u64 = 1024;

/// Calls that a thread can be in.
const MOST_NESTED: usize = 64;

/// What one row counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NetworkKey {
    /// Who.
    pub process: ProcessId,
    /// The call; of socketcall(2) the one that it stands for.
    pub name: &'static str,
    /// By which table.
    pub abi: Abi,
    /// What the socket is; `None` where that is not known.
    pub kind: Option<Kind>,
    /// The family: the address's, or else the socket's.
    pub family: Option<u16>,
    /// As text; `None` of calls that have none, and of families that are not read.
    pub address: Option<String>,
    /// What was open.
    pub regions: OpenRegions,
}

/// One row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkTally {
    /// Calls.
    pub calls: u64,
    /// (errno, calls).
    pub errors: Vec<(i32, u64)>,
}

/// One address of a call that has entered: the family, and the text.
type Addressed = (Option<u16>, Option<String>);

/// A call that has entered.
#[derive(Debug)]
struct Entered {
    sys: Sys,
    args: [u64; 6],
    tid: i32,
    /// What it is, and its own arguments, if it is a socketcall.
    name: &'static str,
    own: [u64; 6],
    /// The number of the socket that it uses.
    socket: Option<u64>,
    /// Different ones; none of a call that gives none.
    addresses: Vec<Addressed>,
}

/// The collector.
#[derive(Debug)]
pub struct Network {
    /// In order of first use.
    pub rows: IndexMap<NetworkKey, NetworkTally>,
    /// The calls that each thread is in, one interrupted by the handler of the next.
    inside: HashMap<ThreadId, Vec<Entered>>,
    /// Sockets by number.
    sockets: HashMap<u64, Kind>,
    calls: CallSet,
    timeline: SharedTimeline,
    /// A traced process may serve what others fault on.
    careful: bool,
}

impl Network {
    /// A collector; the timeline says in which regions calls were made.
    pub fn new(timeline: SharedTimeline) -> Self {
        Self {
            rows: IndexMap::new(),
            inside: HashMap::new(),
            sockets: HashMap::new(),
            calls: Self::calls(),
            timeline,
            careful: false,
        }
    }

    /// The calls that it is told of.
    pub fn calls() -> CallSet {
        let mut calls = CallSet::none();
        for sys in Abi::ALL.into_iter().flat_map(Abi::calls) {
            if sys.name().is_some_and(|name| name == "socketcall" || is_known(name)) {
                calls.insert(sys);
            }
        }
        calls
    }

    fn enter(&self, tid: i32, sys: Sys, args: &[u64; 6]) -> Option<Entered> {
        let tracee = Memory { tid, careful: self.careful };
        let (name, own) = match sys.name()? {
            "socketcall" => multiplexed(tracee, args)?,
            name => (name, *args),
        };
        let makes = matches!(name, "socket" | "socketpair");
        let socket = if makes { None } else { number(tid, own[0]) };
        let addresses = addresses(tracee, sys.abi, name, &own);
        Some(Entered { sys, args: *args, tid, name, own, socket, addresses })
    }

    fn call(&mut self, call: &Call) {
        self.careful |= call.sys.info().is_some_and(makes_careful);
        if !self.calls.contains(call.sys) {
            return;
        }
        // Of one that entered before anybody watched nothing is known.
        let Some(inside) = self.inside.get_mut(&call.thread) else { return };
        let is_it = |e: &Entered| e.sys == call.sys && e.args == call.args;
        let Some(depth) = inside.iter().rposition(is_it) else { return };
        let Some(entered) = inside.drain(depth..).next() else { return };
        let (kind, own_address) = match entered.name {
            "socket" | "socketpair" => {
                let kind = Kind::asked(&entered.own);
                (Some(kind), Some((Some(kind.family), None)))
            }
            _ => (entered.socket.and_then(|socket| self.sockets.get(&socket)).copied(), None),
        };
        if let Some(kind) = kind {
            self.remember(&entered, call.outcome, kind);
        }
        let regions = match call.entry {
            Some(at) => self.timeline.borrow_mut().open_at(at),
            None => OpenRegions::NONE,
        };
        for (family, address) in own_address.into_iter().chain(entered.addresses) {
            let key = NetworkKey {
                process: call.process,
                name: entered.name,
                abi: call.sys.abi,
                kind,
                family: family.or(kind.map(|kind| kind.family)),
                address,
                regions,
            };
            let row = self.rows.entry(key).or_default();
            row.calls += 1;
            if let Outcome::Failed(errno) = call.outcome {
                match row.errors.iter_mut().find(|(e, _)| *e == errno) {
                    Some((_, n)) => *n += 1,
                    None => row.errors.push((errno, 1)),
                }
            }
        }
    }

    /// What new descriptors are.
    fn remember(&mut self, entered: &Entered, outcome: Outcome, kind: Kind) {
        let Outcome::Returned(value) = outcome else { return };
        let tid = entered.tid;
        let made = match entered.name {
            "socket" | "accept" | "accept4" => vec![value as u64],
            "socketpair" => {
                let tracee = Memory { tid, careful: self.careful };
                pair(tracee, entered.own[3]).iter().map(|&fd| fd as u64).collect()
            }
            _ => Vec::new(),
        };
        self.sockets.extend(made.into_iter().filter_map(|fd| Some((number(tid, fd)?, kind))));
    }
}

/// The number of a descriptor's socket.
fn number(tid: i32, fd: u64) -> Option<u64> {
    let link = Link::read(tid, &format!("fd/{}", fd as i32))?;
    let text = std::str::from_utf8(&link.path).ok()?;
    text.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

fn is_known(name: &str) -> bool {
    matches!(
        name,
        "socket"
            | "socketpair"
            | "connect"
            | "bind"
            | "sendto"
            | "sendmsg"
            | "sendmmsg"
            | "accept"
            | "accept4"
    )
}

/// The call that a socketcall(2) stands for, and its arguments. (linux/net.h)
fn multiplexed(tracee: Memory, args: &[u64; 6]) -> Option<(&'static str, [u64; 6])> {
    let name = match args[0] as u32 {
        1 => "socket",
        2 => "bind",
        3 => "connect",
        5 => "accept",
        8 => "socketpair",
        11 => "sendto",
        16 => "sendmsg",
        18 => "accept4",
        20 => "sendmmsg",
        _ => return None,
    };
    let mut bytes = [0; 24];
    // Few have six: what follows the others may not be there.
    let read = tracee.read_patiently(args[1], &mut bytes)?;
    let mut own = [0; 6];
    for (own, word) in own.iter_mut().zip(bytes.get(..read)?.chunks_exact(4)) {
        *own = word.first_chunk().map_or(0, |word| u32::from_ne_bytes(*word)).into();
    }
    Some((name, own))
}

/// The addresses that a call gives, each once.
fn addresses(tracee: Memory, abi: Abi, name: &str, own: &[u64; 6]) -> Vec<Addressed> {
    match name {
        "connect" | "bind" => vec![addressed(tracee, own[1], own[2])],
        "sendto" if own[4] != 0 => vec![addressed(tracee, own[4], own[5])],
        "sendmsg" => message(tracee, abi, own[1]).into_iter().collect(),
        "sendmmsg" => {
            let size = if is_wide(abi) { 64 } else { 32 }; // struct mmsghdr
            let mut found: Vec<Addressed> = Vec::new();
            for i in 0..u64::from(own[2] as u32).min(MOST_MESSAGES) {
                let at = own[1].wrapping_add(i * size);
                found.extend(message(tracee, abi, at).filter(|new| !found.contains(new)));
            }
            found
        }
        _ => Vec::new(),
    }
}

/// Whether pointers are 64 bits in structures that this table's calls are given.
fn is_wide(abi: Abi) -> bool {
    matches!(abi, Abi::X86_64 | Abi::Aarch64)
}

/// The address of a `struct msghdr`, if there is one: recvmsg(2).
fn message(tracee: Memory, abi: Abi, at: u64) -> Option<Addressed> {
    let mut bytes = [0; 12];
    let header = bytes.get_mut(..if is_wide(abi) { 12 } else { 8 })?;
    if tracee.read_patiently(at, header)? < header.len() {
        return None;
    }
    let (pointer, length) = header.split_at(header.len() - 4);
    let number = |bytes: &[u8]| match *bytes {
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        _ => bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)),
    };
    let (pointer, length) = (number(pointer), number(length));
    (pointer != 0 && length != 0).then(|| addressed(tracee, pointer, length))
}

/// The address at a place, of so many bytes as the program says.
fn addressed(tracee: Memory, at: u64, length: u64) -> Addressed {
    let mut bytes = [0; address::MOST];
    // An int; a negative one is refused by the kernel.
    let length = usize::try_from(length as i32).unwrap_or(0).min(bytes.len());
    let read = match length {
        0 => Some(0),
        length => bytes.get_mut(..length).and_then(|into| tracee.read_patiently(at, into)),
    };
    match read.filter(|&read| read == length).and_then(|read| bytes.get(..read)) {
        Some(bytes) => (address::family_of(bytes), address::text(bytes)),
        None => (None, Some("<unreadable>".into())),
    }
}

impl Observer for Network {
    fn each(&self) -> CallSet {
        self.calls.clone()
    }

    fn needs(&self) -> CallSet {
        self.calls.clone()
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::Entered { thread, tid, sys, ref args, .. } => {
                if let Some(entered) = self.enter(tid, sys, args) {
                    let inside = self.inside.entry(thread).or_default();
                    // Told again after an interruption, it is the same call.
                    if inside.last().is_some_and(|e| e.sys == sys && e.args == *args) {
                        inside.pop();
                    }
                    if inside.len() < MOST_NESTED {
                        inside.push(entered);
                    }
                }
            }
            Event::Call(ref call) => self.call(call),
            Event::ThreadEnded { thread, .. } => {
                self.inside.remove(&thread);
            }
            Event::Attached { .. } => self.careful = true, // What it did before is not known.
            Event::Watched { .. } => self.inside.clear(),
            _ => {}
        }
    }
}
