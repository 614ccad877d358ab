//! Every path: opened, asked about, looked for in vain; what was read and
//! written through it, what it cost, who used it.
//!
//! A call's names are read at its entry, while memory is as it was; rows are
//! filled when it ends, once it is known what became of it.

mod mapped;
mod named;
mod place;
mod rows;
mod search;
mod table;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::syscall::{Abi, CallInfo, CallSet, ReturnRole, Role, Sys};
use crate::tracer::{
    Call, Event, Link, MAKING_IOCTLS, Nanos, Observer, Outcome, ProcessId, ThreadId, follow,
    is_there, real,
};

pub use mapped::{Mapped, MappedEntry};
pub use place::Marks;
pub use rows::{More, Row};
pub use search::Searched;

use named::{Entered, Memory, Name};
use place::{Base, Place, join};
use rows::Rows;
use search::{Look, Searches};
use table::{Asked, Table};

/// The collector.
#[derive(Debug, Default)]
pub struct Paths {
    rows: Rows,
    threads: HashMap<ThreadId, Thread>,
    searches: Searches,
    /// Files mapped executable.
    pub mapped: Mapped,
    /// Ask where each opened path led.
    resolve: bool,
    /// Stats by path and by descriptor.
    pub stats: (u64, u64),
    /// Path arguments that could not be read.
    pub unreadable: u64,
    /// The rows by first use, once it is known that there are no more: a call
    /// counts when it ends, and others may have begun and ended in between.
    order: Vec<u32>,
    /// A traced process may serve what others fault on (FUSE, userfaultfd).
    careful: bool,
    /// Directories may have other names than those that they were opened by.
    renamed: bool,
}

/// A thread, and what it resolves names with.
#[derive(Debug)]
struct Thread {
    tid: i32,
    process: ProcessId,
    place: Rc<RefCell<Place>>,
    table: Rc<RefCell<Table>>,
    entered: Option<Entered>,
    /// What its names stood for at the entry.
    resolved: Vec<Resolved>,
    /// It runs in the memory of who made it (vfork), until it executes.
    borrowed: bool,
}

/// What a name stands for.
#[derive(Debug, Clone)]
enum Resolved {
    Path {
        path: Vec<u8>,
        marks: Marks,
        /// The name, where the directory may have changed under the call.
        doubtful: Option<Vec<u8>>,
        /// As it was given, where it leads up and down.
        given: Option<Vec<u8>>,
    },
    /// A row, by descriptor.
    Descriptor { row: u32, argument: usize },
}

/// What became of a call.
#[derive(Clone, Copy)]
struct End {
    value: i64,
    errno: Option<i32>,
    wall: u64,
    from: Nanos,
    at: Nanos,
    process: ProcessId,
}

impl End {
    fn of(call: &Call) -> Self {
        let (value, errno) = match call.outcome {
            Outcome::Returned(value) => (value, None),
            Outcome::Failed(errno) => (-1, Some(errno)),
            // It did not come to an end: nothing was opened, and nothing missed.
            Outcome::Unfinished | Outcome::Abandoned | Outcome::NoReturn => (-1, None),
        };
        let at = call.left.or(call.cut).or(call.entered).unwrap_or(0);
        let from = call.entered.unwrap_or(at);
        Self { value, errno, wall: call.wall().unwrap_or(0), from, at, process: call.process }
    }

    fn succeeded(&self) -> bool {
        self.value >= 0
    }

    fn missed(&self) -> bool {
        matches!(self.errno, Some(libc::ENOENT | libc::ENOTDIR))
    }
}

impl Paths {
    /// A collector; with `resolve`, it asks where each opened path led.
    pub fn new(resolve: bool) -> Self {
        Self { resolve, ..Self::default() }
    }

    /// The calls that name a path or a descriptor, or make or share them.
    pub fn calls() -> CallSet {
        let mut calls = CallSet::none();
        for abi in Abi::ALL {
            for sys in abi.calls() {
                if sys.info().is_some_and(names_a_file) {
                    calls.insert(sys);
                }
            }
        }
        calls
    }

    /// The words for what calls do to a file: keys of `other`, and `open`, `stat`.
    pub fn kinds() -> impl Iterator<Item = &'static str> {
        let named = Abi::native().calls().filter_map(Sys::info);
        named.filter(|info| names_a_file(info)).map(|info| info.kind)
    }

    /// Rows, once it has [finished](Self::finish).
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A path, its marks and its row, in order of first use.
    pub fn row(&self, i: usize) -> Option<(&[u8], Marks, &Row)> {
        self.rows.get(*self.order.get(i)?)
    }

    /// The run is over: puts rows in order, closes searches.
    pub fn finish(&mut self) {
        let rows = &self.rows;
        // A directory that only led to others, and what was closed unused, are none.
        let used = |row: &u32| rows.get(*row).is_some_and(|(_, _, row)| row.is_used());
        self.order = (0..rows.len() as u32).filter(used).collect();
        self.order.sort_by_key(|&row| rows.get(row).map(|(_, _, row)| row.first));
        self.searches.finish();
    }

    /// The searches, in order, once they are closed.
    pub fn searches(&self) -> &[Searched] {
        self.searches.done()
    }

    fn call(&mut self, call: &Call) {
        let Some(info) = call.sys.info() else { return };
        self.careful |= matches!(info.name, "userfaultfd" | "mount" | "fsmount" | "io_uring_enter");
        if !names_a_file(info) {
            // A number that is free again; `run` sees it, `files` does not need to.
            if info.name == "close"
                && let Some(thread) = self.threads.get(&call.thread)
            {
                thread.table.borrow_mut().close(call.args[0] as i32, call.entered.unwrap_or(0));
            }
            return;
        }
        if info.kind == "fcntl" && !is_dup(&call.args) || info.name == "ioctl" && !makes(&call.args)
        {
            return;
        }
        let Some(thread) = self.threads.get_mut(&call.thread) else { return };
        let known = thread.entered.take().filter(|entered| entered.is(call.sys, &call.args));
        let entered = match known {
            Some(entered) if !entered.is_incomplete() || call.sys.is_exec() => entered,
            // What was not in memory then is now: the kernel has looked at it. Or it
            // entered before anybody watched, or a handler's calls came between.
            _ => self.enter(call),
        };
        let end = End::of(call);
        self.doubts(call.thread, &end);
        self.count(call.thread, info, &entered, &end);
        self.change(call.thread, info, &entered, &end);
        if let Some(thread) = self.threads.get_mut(&call.thread) {
            thread.resolved.clear();
        }
    }

    fn enter(&mut self, call: &Call) -> Entered {
        let tid = self.threads.get(&call.thread).map_or(0, |t| t.tid);
        let at = call.entered.unwrap_or(0);
        let entered = Entered::read(call.sys, call.args, (call.thread, tid), at, self.careful);
        self.resolve_names(&entered, call.process);
        entered
    }

    /// What a call's names stand for now.
    fn resolve_names(&mut self, entered: &Entered, process: ProcessId) {
        let Some(thread) = self.threads.get_mut(&entered.thread) else { return };
        let mut resolved = std::mem::take(&mut thread.resolved);
        resolved.clear();
        for (argument, name) in &entered.names {
            let argument = *argument;
            match name {
                Name::Path { from, name, rooted } => {
                    resolved.push(self.lead(entered, *from, name, *rooted));
                }
                Name::Descriptor(fd) => {
                    if let Some(row) = self.descriptor(entered.thread, *fd, entered.at, process) {
                        resolved.push(Resolved::Descriptor { row, argument });
                    }
                }
                Name::Cwd => {
                    let (base, _) = self.base(entered.thread, None, b"", entered.at);
                    let (path, marks) = (base.path, base.marks);
                    resolved.push(Resolved::Path { path, marks, doubtful: None, given: None });
                }
                Name::Empty => resolved.push(Resolved::Path {
                    path: b"<empty>".to_vec(),
                    marks: Marks::NONE,
                    doubtful: None,
                    given: None,
                }),
                Name::Unreadable => {}
            }
        }
        if let Some(thread) = self.threads.get_mut(&entered.thread) {
            thread.resolved = resolved;
        }
    }

    /// The directory that a name leads from, and whether it may be another by
    /// the time that the kernel looks.
    fn base(&mut self, id: ThreadId, from: Option<i32>, name: &[u8], at: Nanos) -> (Base, bool) {
        let Some(thread) = self.threads.get(&id) else { return (Base::default(), false) };
        let (tid, process) = (thread.tid, thread.process);
        let place = Rc::clone(&thread.place);
        let mut place = place.borrow_mut();
        if name.first() == Some(&b'/') {
            return (place.root(tid).clone(), false);
        }
        if let Some(fd) = from {
            drop(place);
            if self.renamed
                && let Some(link) = Link::read(tid, &format!("fd/{fd}"))
            {
                let base = Base::of(link);
                let root = thread.place.borrow_mut().root(tid).marks;
                return (Base { marks: base.marks.and(root), ..base }, false);
            }
            let row = self.descriptor(id, fd, at, process);
            let base = row
                .and_then(|row| self.rows.get(row))
                .map(|(path, marks, _)| Base { path: path.to_vec(), marks });
            // A descriptor that is no directory, or not open: the call fails.
            let unknown = || Base { path: b"?".to_vec(), marks: Marks::RELATIVE };
            return (base.filter(|b| b.path.first() == Some(&b'/')).unwrap_or_else(unknown), false);
        }
        let shared = Rc::strong_count(&thread.place) > 2; // ours, and the one above
        if place.changing > 0 {
            place.forget();
        }
        (place.cwd(tid).clone(), shared)
    }

    /// Where a name leads.
    fn lead(&mut self, call: &Entered, from: Option<i32>, name: &[u8], rooted: bool) -> Resolved {
        let start = if rooted { b"" } else { name };
        let (base, doubtful) = self.base(call.thread, from, start, call.at);
        let mut marks = base.marks;
        let mut path = base.path.clone();
        if let Some(thread) = self.threads.get(&call.thread) {
            let tid = thread.tid;
            let root = thread.place.borrow_mut().root(tid).path.clone();
            let floor = match rooted {
                true => base.path.len(),
                false if base.path.starts_with(&root) => root.len(),
                false => 0,
            };
            path = join(&base.path, name, floor, &|link| {
                let inside = link.strip_prefix(root.as_slice()).filter(|_| !rooted)?;
                follow(tid, inside)
            });
            // The way up from a directory that is gone leads to one that is not.
            if !path.starts_with(&base.path) {
                marks = marks.without(Marks::DELETED);
            }
        }
        let doubtful = doubtful.then(|| name.to_vec());
        let up = name.split(|&byte| byte == b'/').any(|part| part == b"..");
        let given = up.then(|| {
            let base = base.path.strip_suffix(b"/").unwrap_or(&base.path);
            let name = name.strip_prefix(b"/").unwrap_or(name);
            [base, b"/", name].concat()
        });
        Resolved::Path { path, marks, doubtful, given }
    }

    /// The row of a descriptor; asks what it is where that was not seen.
    fn descriptor(&mut self, id: ThreadId, fd: i32, at: Nanos, process: ProcessId) -> Option<u32> {
        let thread = self.threads.get(&id)?;
        if let Some(row) = thread.table.borrow().get(fd) {
            return Some(row);
        }
        let row = match table::ask(thread.tid, fd)? {
            Asked::File(base) => {
                let root = thread.place.borrow_mut().root(thread.tid).marks;
                self.rows.of(&base.path, base.marks.and(root), process)
            }
            Asked::Kind(kind) => self.rows.of(kind.as_bytes(), Marks::NONE, process),
        };
        self.threads.get(&id)?.table.borrow_mut().set(fd, row, at);
        Some(row)
    }

    /// Several threads share a working directory, and one of them changed it
    /// while this call was under way: what came of the call tells from where the
    /// kernel looked.
    fn doubts(&mut self, id: ThreadId, end: &End) {
        let Some(thread) = self.threads.get_mut(&id) else { return };
        let tid = thread.tid;
        let mut place = thread.place.borrow_mut();
        let root = place.root(tid).path.clone();
        let there = |path: &[u8]| is_there(tid, path.strip_prefix(root.as_slice()).unwrap_or(path));
        for resolved in &mut thread.resolved {
            // What is missed in `nosuch/../there` is not what lies there.
            if let Resolved::Path { path, given: Some(given), .. } = resolved
                && end.missed()
                && let Some(up) = given.windows(3).position(|part| part == b"/..")
                && !there(&[given.get(..up).unwrap_or_default(), b"/."].concat())
            {
                path.clone_from(given);
                continue;
            }
            let Resolved::Path { path, doubtful: Some(name), .. } = resolved else { continue };
            let candidates: Vec<Vec<u8>> = std::iter::once(path.clone())
                .chain(place.lately(tid).map(|base| join(&base.path, name, 0, &|_| None)))
                .collect();
            if candidates.iter().all(|candidate| candidate == path) {
                continue;
            }
            let opened = end.succeeded().then(|| Link::read(tid, &format!("fd/{}", end.value)));
            let opened = opened.flatten().map(|link| link.path);
            let fits = |candidate: &&Vec<u8>| match &opened {
                Some(opened) if candidates.contains(opened) => *candidate == opened,
                _ => there(candidate) != end.missed(),
            };
            if let Some(candidate) = candidates.iter().find(fits) {
                path.clone_from(candidate);
            }
        }
    }

    /// Fills the rows of what a call named.
    fn count(&mut self, id: ThreadId, info: &'static CallInfo, entered: &Entered, end: &End) {
        self.unreadable +=
            entered.names.iter().filter(|(_, name)| *name == Name::Unreadable).count() as u64;
        let Some(thread) = self.threads.get(&id) else { return };
        let tid = thread.tid;
        let is_path = |r: &&Resolved| matches!(r, Resolved::Path { .. });
        let has_path = thread.resolved.iter().any(|r| is_path(&r));
        let several = thread.resolved.iter().filter(is_path).count() > 1;
        let root = thread.place.borrow_mut().root(tid).path.clone();
        let mut counted: Vec<u32> = Vec::new();
        let mut executed = None;
        for resolved in &thread.resolved {
            // A descriptor that is not open any more: what it was, and what would lie
            // below it, have nothing to do with it.
            if end.errno == Some(libc::EBADF) {
                continue;
            }
            let is_named_there = match resolved {
                Resolved::Path { path, .. } if several && end.missed() => {
                    is_there(tid, path.strip_prefix(root.as_slice()).unwrap_or(path))
                }
                _ => false,
            };
            let (number, by_path) = match resolved {
                Resolved::Path { path, marks, .. } => {
                    if matches!(info.kind, "open" | "stat" | "access" | "readlink" | "exec") {
                        let missed = end.missed();
                        if missed || end.succeeded() {
                            let (wall, at, process) = (end.wall, end.from, end.process);
                            self.searches.look(id, &Look { path, missed, wall, at, process });
                        }
                    }
                    (self.rows.of(path, *marks, end.process), true)
                }
                Resolved::Descriptor { row, .. } => (*row, false),
            };
            if counted.contains(&number) {
                continue;
            }
            counted.push(number);
            let Some(row) = self.rows.get_mut(number) else { continue };
            row.used(end.from, end.at, end.process);
            row.wall += end.wall;
            match end.errno {
                // That a path is not there is not the fault of the socket.
                Some(_) if has_path && !by_path => {}
                // Of two names the one that is there was not missed.
                Some(libc::ENOENT | libc::ENOTDIR) if several && is_named_there => {}
                Some(libc::ENOENT | libc::ENOTDIR) => row.misses = row.misses.saturating_add(1),
                Some(errno) => row.more_mut().fail(errno),
                None => {}
            }
            match info.kind {
                "open" if by_path && end.errno.is_none() => {
                    if end.succeeded() {
                        let reads = entered.flags & libc::O_ACCMODE as u64 == 0;
                        let more = row.more_mut();
                        more.opens_read += u64::from(reads);
                        more.opens_write += u64::from(!reads);
                    }
                }
                "stat" => {
                    row.stats = row.stats.saturating_add(1);
                    let by = if by_path { &mut self.stats.0 } else { &mut self.stats.1 };
                    *by += 1;
                }
                "fcntl" => row.more_mut().count("dup"),
                "ioctl" | "seccomp" | "bpf" | "socketcall" => {}
                kind => row.more_mut().count(kind),
            }
            executed = (info.kind == "exec" && end.succeeded()).then_some(number);
        }
        if let Some(row) = executed {
            self.executed(id, row, end);
        }
        if let Ok(moved) = u64::try_from(end.value) {
            self.bytes(id, info, entered, moved);
        }
    }

    /// The program that runs now was mapped by the kernel: it counts under the
    /// name that it was executed by, unless that is a script's.
    fn executed(&mut self, id: ThreadId, named: u32, end: &End) {
        let Some(thread) = self.threads.get(&id) else { return };
        let Some(exe) = Link::read(thread.tid, "exe") else { return };
        let root = thread.place.borrow_mut().root(thread.tid).path.clone();
        let is_it = self.rows.get(named).is_some_and(|(path, ..)| {
            let inside = path.strip_prefix(root.as_slice()).unwrap_or(path);
            *path == *exe.path || real(thread.tid, inside).is_some_and(|real| real == exe.path)
        });
        let row = if is_it { named } else { self.rows.of(&exe.path, Marks::NONE, end.process) };
        if let Some(row) = self.rows.get_mut(row) {
            row.used(end.at, end.at, end.process);
            row.more_mut().mapped = exe.size.unwrap_or(0);
        }
    }

    /// Bytes that went through descriptors.
    fn bytes(&mut self, id: ThreadId, info: &'static CallInfo, entered: &Entered, moved: u64) {
        let Some(thread) = self.threads.get(&id) else { return };
        let row = |argument: usize| {
            thread.resolved.iter().find_map(|r| match r {
                Resolved::Descriptor { row, argument: its } if *its == argument => Some(*row),
                _ => None,
            })
        };
        let messages = || {
            named::messages(
                Memory { tid: thread.tid, careful: self.careful },
                entered.sys.abi,
                entered.args[1],
                moved,
            )
        };
        let (from, to, bytes) = match (info.kind, info.moves) {
            ("read", _) if info.returns == ReturnRole::Bytes => (row(0), None, moved),
            ("write", _) if info.returns == ReturnRole::Bytes => (None, row(0), moved),
            ("receive", _) => (row(0), None, messages()),
            ("send", _) => (None, row(0), messages()),
            (_, Some((from, to))) => (row(from), row(to), moved),
            _ => return,
        };
        // What is read there are new descriptors too.
        let gives =
            |(path, ..): (&[u8], Marks, &Row)| matches!(path, b"<fanotify>" | b"<userfaultfd>");
        if from.and_then(|row| self.rows.get(row)).is_some_and(gives) {
            thread.table.borrow_mut().forget_all();
        }
        if let Some(row) = from.and_then(|row| self.rows.get_mut(row)) {
            row.more_mut().read += bytes;
        }
        if let Some(row) = to.and_then(|row| self.rows.get_mut(row)) {
            row.more_mut().written += bytes;
        }
    }

    /// What the call changed: descriptors, directories, mappings.
    fn change(&mut self, id: ThreadId, info: &'static CallInfo, entered: &Entered, end: &End) {
        let Some(thread) = self.threads.get_mut(&id) else { return };
        let (tid, args) = (thread.tid, &entered.args);
        let memory = Memory { tid, careful: self.careful };
        if is_move(info.name) {
            let mut place = thread.place.borrow_mut();
            place.changing = place.changing.saturating_sub(1);
            if end.succeeded() {
                place.forget();
            }
        }
        if !end.succeeded() {
            return;
        }
        match info.name {
            "close_range" => {
                let (first, last, flags) = (args[0] as u32, args[1] as u32, args[2]);
                if flags & u64::from(libc::CLOSE_RANGE_UNSHARE) != 0 {
                    thread.own_table();
                }
                if flags & u64::from(libc::CLOSE_RANGE_CLOEXEC) == 0 {
                    thread.table.borrow_mut().close_range(first, last, entered.at);
                }
            }
            "dup" | "dup2" | "dup3" | "fcntl" | "fcntl64" => thread.copy_descriptor(end),
            "recvmsg" => match named::received(memory, entered.sys.abi, args[1]) {
                Some(came) => came.iter().for_each(|fd| thread.table.borrow_mut().forget(*fd)),
                None => thread.table.borrow_mut().forget_all(),
            },
            "recvmmsg" | "recvmmsg_time64" | "io_uring_enter" | "socketcall" => {
                thread.table.borrow_mut().forget_all();
            }
            "seccomp" | "bpf" | "ioctl" => thread.table.borrow_mut().forget(end.value as i32),
            "clone" | "clone3" if entered.flags & libc::CLONE_PIDFD as u64 != 0 => {
                let at = if info.name == "clone" {
                    args[2]
                } else {
                    memory.word(args[0].wrapping_add(8))
                };
                thread.table.borrow_mut().forget(named::pair(memory, at)[0]);
            }
            "unshare" => {
                let flags = args[0] as i32;
                if flags & (libc::CLONE_FS | libc::CLONE_NEWNS | libc::CLONE_NEWUSER) != 0 {
                    let own = thread.place.borrow().clone();
                    thread.place = Rc::new(RefCell::new(own));
                    thread.place.borrow_mut().forget();
                }
                if flags & libc::CLONE_FILES != 0 {
                    thread.own_table();
                }
            }
            _ => {}
        }
        if matches!(info.kind, "rename" | "rmdir" | "unlink" | "mount") {
            self.moved(id, info.kind);
            return;
        }
        if info.returns == ReturnRole::Fd && info.kind != "dup" {
            self.opened(id, info, entered, end);
        } else if let Some(at) = info.args.iter().position(|role| *role == Role::FdOut) {
            let pair = named::pair(memory, args.get(at).copied().unwrap_or(0));
            let Some(thread) = self.threads.get(&id) else { return };
            for fd in pair {
                thread.table.borrow_mut().forget(fd);
            }
        } else if info.kind == "mmap" && args[2] & libc::PROT_EXEC as u64 != 0 {
            self.mapped(id, args[4] as i32, end);
        }
    }

    /// What lay below a name lies elsewhere now, or nowhere: working directories
    /// there are asked for anew.
    fn moved(&mut self, by: ThreadId, kind: &str) {
        let Some(thread) = self.threads.get(&by) else { return };
        let first = thread.resolved.iter().find_map(|resolved| match resolved {
            Resolved::Path { path, .. } => Some(path.clone()),
            Resolved::Descriptor { .. } => None,
        });
        let Some(from) = first else { return };
        for state in self.threads.values() {
            state.place.borrow_mut().forget_below(&from);
        }
        self.renamed |= matches!(kind, "rename" | "mount");
    }

    /// A call gave a new descriptor.
    fn opened(&mut self, id: ThreadId, info: &'static CallInfo, entered: &Entered, end: &End) {
        let Some(thread) = self.threads.get(&id) else { return };
        let (tid, fd) = (thread.tid, end.value as i32);
        // An unnamed file in the directory that was named.
        let unnamed = entered.flags & libc::O_TMPFILE as u64 == libc::O_TMPFILE as u64;
        let path = thread.resolved.iter().find_map(|resolved| match resolved {
            Resolved::Path { path, marks, .. } if !unnamed => Some((path, *marks)),
            _ => None,
        });
        let Some((path, marks)) = path.filter(|_| matches!(info.kind, "open" | "mount")) else {
            thread.table.borrow_mut().forget(fd);
            return;
        };
        self.careful |= matches!(path.as_slice(), b"/dev/fuse" | b"/dev/userfaultfd");
        let row = self.rows.of(path, marks, end.process);
        thread.table.borrow_mut().set(fd, row, end.at);
        if self.resolve
            && let Some(target) = Link::read(tid, &format!("fd/{fd}"))
            && target.path != *path
            && let Some(row) = self.rows.get_mut(row)
        {
            row.more_mut().target = Some(target.path);
        }
    }

    /// A file was mapped executable.
    fn mapped(&mut self, id: ThreadId, fd: i32, end: &End) {
        let Some(thread) = self.threads.get(&id) else { return };
        let row = thread.resolved.iter().find_map(|resolved| match resolved {
            Resolved::Descriptor { row, .. } => Some(*row),
            Resolved::Path { .. } => None,
        });
        let Some(row) = row else { return };
        let size = self.mapped.by_descriptor(thread.tid, fd, thread.process, end.at);
        if let Some(row) = self.rows.get_mut(row) {
            let more = row.more_mut();
            more.mapped = more.mapped.max(size);
        }
    }

    fn born(&mut self, id: ThreadId, tid: i32, process: ProcessId, creator: Option<ThreadId>) {
        const SHARED: i32 = libc::CLONE_FS | libc::CLONE_FILES;
        let by_call = creator.and_then(|c| self.threads.get(&c));
        // Attached, or its creator could not tell: as threads of a process are.
        let sibling = || self.threads.values().find(|t| t.process == process);
        let (from, flags) = match by_call {
            Some(creator) => {
                let clone = creator.entered.as_ref().filter(|e| is_clone(e));
                // Made while nobody watched: as threads are, and processes.
                let usual = if creator.process == process { SHARED } else { 0 };
                (Some(creator), clone.map_or(usual, |e| e.flags as i32))
            }
            None => (sibling(), SHARED),
        };
        let share = |flag: i32| flags & flag != 0;
        let place = from.map(|from| {
            if share(libc::CLONE_FS) {
                return Rc::clone(&from.place);
            }
            let mut place = from.place.borrow().clone();
            place.changing = 0;
            if share(libc::CLONE_NEWNS) {
                place.forget();
            }
            Rc::new(RefCell::new(place))
        });
        let table = from.map(|from| {
            if share(libc::CLONE_FILES) {
                return Rc::clone(&from.table);
            }
            Rc::new(RefCell::new(from.table.borrow().clone()))
        });
        let (place, table) = (place.unwrap_or_default(), table.unwrap_or_default());
        let thread = Thread {
            tid,
            process,
            place,
            table,
            entered: None,
            resolved: Vec::new(),
            borrowed: false,
        };
        self.threads.insert(id, thread);
    }
}

impl Thread {
    /// Its table is its own from now on.
    fn own_table(&mut self) {
        let own = self.table.borrow().clone();
        self.table = Rc::new(RefCell::new(own));
    }

    /// What it returned is another number for the descriptor that it named.
    fn copy_descriptor(&mut self, end: &End) {
        let row = self.resolved.iter().find_map(|resolved| match resolved {
            Resolved::Descriptor { row, .. } => Some(*row),
            Resolved::Path { .. } => None,
        });
        let mut table = self.table.borrow_mut();
        match row {
            Some(row) => table.set(end.value as i32, row, end.at),
            None => table.forget(end.value as i32),
        }
    }
}

/// Calls that use a descriptor and say nothing of the file: to stop for them
/// costs more than all others together, and no number could become another
/// file's by them.
const SILENT: [&str; 5] = ["close", "lseek", "ioctl", "poll", "select"];

fn makes(args: &[u64; 6]) -> bool {
    MAKING_IOCTLS.contains(&(args[1] as u32))
}

fn is_dup(args: &[u64; 6]) -> bool {
    matches!(args[1] as i32, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// Whether a call names a path or a descriptor, or makes or shares them.
fn names_a_file(info: &CallInfo) -> bool {
    if SILENT.contains(&info.kind) {
        return info.name == "ioctl"; // Of which few make descriptors.
    }
    let role = |role: &Role| {
        matches!(role, Role::Path | Role::PathIf | Role::Fd | Role::FdOut | Role::Sockaddr)
    };
    info.returns == ReturnRole::Fd
        || info.args.iter().any(role)
        || matches!(info.name, "close_range" | "unshare" | "clone" | "clone3" | "fork" | "vfork")
        || matches!(info.name, "seccomp" | "bpf" | "socketcall")
}

fn is_clone(entered: &Entered) -> bool {
    matches!(entered.sys.name(), Some("clone" | "clone3"))
}

/// Calls after which paths lead from elsewhere.
fn is_move(name: &str) -> bool {
    matches!(name, "chdir" | "fchdir" | "chroot" | "pivot_root" | "setns")
}

impl Observer for Paths {
    fn needs(&self) -> CallSet {
        Self::calls()
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::ProcessStarted { process, thread, pid, by, parent, vfork, .. } => {
                let by = by.or_else(|| {
                    let parent = parent?;
                    self.threads.iter().find(|(_, t)| t.process == parent).map(|(id, _)| *id)
                });
                self.born(thread, pid, process, by);
                if let Some(state) = self.threads.get_mut(&thread) {
                    state.borrowed = vfork;
                }
            }
            Event::ThreadStarted { process, thread, tid, by, .. } => {
                self.born(thread, tid, process, by);
            }
            Event::Entered { process, thread, tid, sys, args, at } => {
                let entered = Entered::read(sys, args, (thread, tid), at, self.careful);
                self.resolve_names(&entered, process);
                let Some(state) = self.threads.get_mut(&thread) else { return };
                if sys.name().is_some_and(is_move) {
                    // Told again after an interruption, it was counted then.
                    let again = state.entered.as_ref().is_some_and(|e| e.is(sys, &args));
                    state.place.borrow_mut().changing += u32::from(!again);
                }
                state.entered = Some(entered);
            }
            Event::Call(ref call) => self.call(call),
            Event::Attached { process, pid, at, .. } => {
                self.careful = true; // What it did before is not known.
                self.mapped.look(pid, process, at, false);
            }
            Event::Watched { .. } => {
                for state in self.threads.values_mut() {
                    state.entered = None;
                    state.table.borrow_mut().forget_all();
                    let mut place = state.place.borrow_mut();
                    place.changing = 0;
                    place.forget();
                }
            }
            Event::Execed { process, thread, pid, at, .. } => {
                if let Some(state) = self.threads.get_mut(&thread) {
                    state.tid = pid;
                    state.borrowed = false;
                    state.own_table();
                }
                let program = Link::read(pid, "exe").map(|exe| exe.path).unwrap_or_default();
                for (path, size) in self.mapped.look(pid, process, at, false) {
                    // The program counts under the name that it was executed by.
                    if path != program {
                        let row = self.rows.of(&path, Marks::NONE, process);
                        if let Some(row) = self.rows.get_mut(row) {
                            row.used(at, at, process);
                            row.more_mut().mapped = size;
                        }
                    }
                }
            }
            Event::ThreadExiting { process, thread, tid, last: true, at }
                if self.threads.get(&thread).is_some_and(|state| !state.borrowed) =>
            {
                self.mapped.look(tid, process, at, true);
            }
            Event::ThreadEnded { thread, .. } => {
                self.searches.close(thread);
                self.threads.remove(&thread);
            }
            _ => {}
        }
    }
}
