//! Every path: opened, asked about, looked for in vain; what was read and
//! written through it, what it cost, who used it.
//!
//! A call's names are read at its entry, while memory is as it was; rows are
//! filled when it ends, once it is known what became of it.

mod brought;
mod change;
pub(super) mod linkage;
mod mapped;
mod named;
mod opened;
mod place;
mod resolve;
mod rows;
mod search;
mod table;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Instant;

use crate::syscall::{Abi, CallInfo, CallSet, ReturnRole, Role, Sys};
use crate::tracer::{
    Call, Event, Link, MAKING_IOCTLS, Nanos, Observer, Outcome, ProcessId, ThreadId, is_there, real,
};

pub use brought::{Brought, By};
pub use mapped::{Mapped, MappedEntry};
pub(super) use mapped::{executable, is_segment};
pub use named::{Memory, forget_path, pair};
pub use opened::{opened, opening};
pub use place::Marks;
pub use rows::{More, Row, Touch};
pub use search::Searched;

use mapped::When;
use named::{Entered, Name};
use place::{Base, Place};
use rows::Rows;
use search::{Look, Searches};
use table::Table;

use super::{OpenRegions, SharedTimeline};

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
    /// Time that looking at the root's mappings at its end took: the command did
    /// not need it, ns.
    pub spent: Nanos,
    /// A traced process may serve what others fault on (FUSE, userfaultfd).
    careful: bool,
    /// Directories may have other names than those that they were opened by.
    renamed: bool,
    /// What the last call did, if somebody wants to know.
    touches: Option<Vec<Touch>>,
    /// Where regions are asked about.
    timeline: Option<SharedTimeline>,
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
    /// When it entered, by the clock that regions go by.
    entry: Option<Nanos>,
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
        let (wall, entry) = (call.wall().unwrap_or(0), call.entry);
        Self { value, errno, wall, entry, from, at, process: call.process }
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

    /// The same, which keeps of each path in which regions it was used.
    #[must_use]
    pub fn within(self, timeline: SharedTimeline) -> Self {
        Self { timeline: Some(timeline), ..self }
    }

    /// The names of regions that were open together.
    pub fn names_of(&self, open: &BTreeSet<OpenRegions>) -> Vec<String> {
        let timeline = self.timeline.as_ref();
        timeline.map_or(Vec::new(), |t| t.borrow().names_of(open.iter().copied()))
    }

    /// What is open for who does something then.
    fn open_at(&self, at: Option<Nanos>) -> OpenRegions {
        let known = self.timeline.as_ref().zip(at);
        known.map_or(OpenRegions::NONE, |(timeline, at)| timeline.borrow_mut().open_at(at))
    }

    /// The same, which says of each call what it [touched](Self::touches).
    #[must_use]
    pub fn telling(self) -> Self {
        Self { touches: Some(Vec::new()), ..self }
    }

    /// What the call that was told of last did with paths and descriptors.
    pub fn touches(&self) -> &[Touch] {
        self.touches.as_deref().unwrap_or_default()
    }

    /// The path of a row that was touched.
    pub fn path(&self, row: u32) -> Option<&[u8]> {
        self.rows.get(row).map(|(path, ..)| path)
    }

    /// The calls that name a path or a descriptor, or make or share them.
    pub fn calls() -> CallSet {
        let named = |sys: &Sys| sys.info().is_some_and(names_a_file);
        CallSet::of(Abi::ALL.into_iter().flat_map(Abi::calls).filter(named))
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

    /// The run is over: puts rows in order, closes searches, judges mappings.
    pub fn finish(&mut self) {
        let rows = &self.rows;
        // A directory that only led to others, and what was closed unused, are none.
        let used = |row: &u32| rows.get(*row).is_some_and(|(_, _, row)| row.is_used());
        self.order = (0..rows.len() as u32).filter(used).collect();
        self.order.sort_by_key(|&row| rows.get(row).map(|(_, _, row)| row.first));
        self.searches.finish();
        self.mapped.judge();
    }

    /// The searches, in order, once they are closed.
    pub fn searches(&self) -> &[Searched] {
        self.searches.done()
    }

    /// The root directory of a thread.
    fn root(&self, id: ThreadId) -> Base {
        let thread = self.threads.get(&id);
        thread.map(|t| t.place.borrow_mut().root(t.tid).clone()).unwrap_or_default()
    }

    fn call(&mut self, call: &Call) {
        if let Some(touches) = &mut self.touches {
            touches.clear();
        }
        let Some(info) = call.sys.info() else { return };
        self.careful |= makes_careful(info);
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
        let open = self.open_at(end.entry);
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
            row.was_within(open);
            row.wall += end.wall;
            let before = (row.misses, row.opens());
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
                        // One that makes or empties the file writes, too.
                        let writing = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
                        let reads = entered.flags & writing as u64 == 0;
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
            if let Some(touches) = &mut self.touches {
                let looked = info.kind == "stat";
                let (missed, opened) = (row.misses > before.0, row.opens() > before.1);
                touches.push(Touch { row: number, by_path, looked, opened, missed, read: 0 });
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
        let open = self.open_at(end.entry);
        if let Some(row) = self.rows.get_mut(row) {
            row.used(end.at, end.at, end.process);
            row.was_within(open);
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
            let mut touches = self.touches.iter_mut().flatten();
            if let Some(touch) = touches.find(|touch| Some(touch.row) == from) {
                touch.read += bytes;
            }
        }
        if let Some(row) = to.and_then(|row| self.rows.get_mut(row)) {
            row.more_mut().written += bytes;
        }
    }
}

/// Whether after this call a traced process may serve what others fault on.
pub fn makes_careful(info: &CallInfo) -> bool {
    matches!(info.name, "userfaultfd" | "mount" | "fsmount" | "io_uring_enter")
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

/// The file that a process runs.
fn program(pid: i32) -> Vec<u8> {
    Link::read(pid, "exe").map(|exe| exe.path).unwrap_or_default()
}

/// Calls after which paths lead from elsewhere.
fn is_move(name: &str) -> bool {
    matches!(name, "chdir" | "fchdir" | "chroot" | "pivot_root" | "setns")
}

impl Observer for Paths {
    fn each(&self) -> CallSet {
        Self::calls()
    }

    fn needs(&self) -> CallSet {
        Self::calls()
    }

    fn event(&mut self, event: &Event) {
        match *event {
            Event::ProcessStarted { process, thread, pid, by, parent, image, vfork, .. } => {
                self.mapped.runs(process, image);
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
                let (program, marks) = (program(pid), Place::default().root(pid).marks);
                self.mapped.look(pid, marks, process, at, When::Attached(&program));
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
            Event::Execed { process, thread, pid, image, at } => {
                self.mapped.runs(process, image);
                if let Some(state) = self.threads.get_mut(&thread) {
                    state.tid = pid;
                    state.borrowed = false;
                    state.own_table();
                }
                let (program, marks) = (program(pid), self.root(thread).marks);
                let (when, open) = (When::Exec(&program), self.open_at(Some(at)));
                for (path, size) in self.mapped.look(pid, marks, process, at, when) {
                    // The program counts under the name that it was executed by.
                    if path != program {
                        let row = self.rows.of(&path, Marks::NONE, process);
                        if let Some(row) = self.rows.get_mut(row) {
                            row.used(at, at, process);
                            row.was_within(open);
                            row.more_mut().mapped = size;
                        }
                    }
                }
            }
            Event::ThreadExiting { process, thread, tid, last: true, at } => {
                if self.threads.get(&thread).is_none_or(|state| state.borrowed) {
                    return;
                }
                let begun = Instant::now();
                let root = self.root(thread);
                self.mapped.look(tid, root.marks, process, at, When::Exit);
                self.mapped.read(tid, process, &root.path);
                if process == ProcessId(0) {
                    self.spent += begun.elapsed().as_nanos() as u64;
                }
            }
            Event::ProcessEnded { process, .. } => self.mapped.ended(process),
            Event::ThreadEnded { thread, .. } => {
                self.searches.close(thread);
                self.threads.remove(&thread);
            }
            _ => {}
        }
    }
}
