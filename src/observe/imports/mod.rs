//! Imports of Python programs that run with PYTHONPROFILEIMPORTTIME: their times
//! from the log that they write to standard error, and the calls that each made.
//!
//! The log is taken from the calls that write it, so that it is known who wrote
//! a line and when, whatever else goes to the same place.

mod join;
mod log;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::syscall::{Abi, CallSet, Sys};
use crate::tracer::{Call, Event, ImageId, Nanos, Observer, Outcome, ProcessId, ThreadId, memory};

use super::paths::{Paths, Touch};
use super::processes::arguments;

use join::{Ended, searched, spans, tree};
use log::{Import, Line, Stream};

/// Python's C library writes the log there, wherever it leads.
const STDERR: u64 = 2;
/// Of one write no more than this is looked at.
const LONGEST: u64 = 1 << 16;
/// Calls of a thread that may still be found to be an import's.
const WAITING: usize = 1 << 18;

/// Sums of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    /// Calls.
    pub calls: u64,
    /// Successful opens.
    pub opens: u64,
    /// Paths that were not there, each time.
    pub misses: u64,
    /// Bytes read.
    pub read: u64,
    /// Wall time of the calls, ns.
    pub wall: u64,
}

/// An import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The module's name.
    pub name: String,
    /// Without the imports in it, microseconds.
    pub own: i64,
    /// With them, microseconds.
    pub cumulative: u64,
    /// Imports that it happened in, as Python counts them.
    pub depth: usize,
    /// The one that it happened in.
    pub parent: Option<usize>,
    /// The file of that name that it opened first.
    pub file: Option<Vec<u8>>,
    /// Its calls, without those of imports in it.
    pub sums: Sums,
}

/// A program that a process ran.
#[derive(Debug, Default)]
pub struct Program {
    /// The process.
    pub pid: i32,
    /// The arguments that it was executed with.
    pub argv: Vec<String>,
    /// The lines of its log.
    pub log: Vec<u8>,
    /// Its imports, in the order in which they ended.
    pub modules: Vec<Module>,
    /// Calls outside of any import.
    pub outside: Sums,
    /// Threads that imports ended in.
    pub threads: HashSet<ThreadId>,
    /// Calls that came so long before a line that nobody waited for it.
    pub given_up: u64,
    /// Ended since the last moment in which no import was going on.
    ended: Vec<(Import, ThreadId, Nanos, usize)>,
    /// Calls since then.
    calls: HashMap<ThreadId, Calls>,
}

/// Calls of a thread of which it is not known yet where they belong.
#[derive(Debug, Default)]
struct Calls {
    made: VecDeque<Made>,
    /// There are lines among them.
    has_lines: bool,
}

/// A call.
#[derive(Debug)]
struct Made {
    left: Nanos,
    wall: u64,
    touches: Vec<Touch>,
}

/// The collector. It has a [`Paths`] of its own, which says what calls touch.
#[derive(Debug)]
pub struct Imports {
    paths: Paths,
    programs: HashMap<(ProcessId, ImageId), Program>,
    running: HashMap<ProcessId, (i32, ImageId)>,
    argv: HashMap<ImageId, Vec<String>>,
    /// Programs that have begun a log; a fork goes on with it.
    timed: HashSet<ImageId>,
    /// What is being written to standard error, and since when.
    writes: HashMap<ThreadId, (Nanos, Vec<u8>)>,
    streams: HashMap<ThreadId, Stream>,
    /// Calls of programs without a log.
    pub elsewhere: Sums,
    /// Calls that wrote the log: they are counted nowhere else.
    pub log_calls: u64,
}

impl Default for Imports {
    fn default() -> Self {
        Self {
            paths: Paths::default().telling(),
            programs: HashMap::new(),
            running: HashMap::new(),
            argv: HashMap::new(),
            timed: HashSet::new(),
            writes: HashMap::new(),
            streams: HashMap::new(),
            elsewhere: Sums::default(),
            log_calls: 0,
        }
    }
}

impl Sums {
    fn add(&mut self, made: &Made) {
        self.calls += 1;
        self.wall += made.wall;
        for touch in &made.touches {
            self.opens += u64::from(touch.opened);
            self.misses += u64::from(touch.missed);
            self.read += touch.read;
        }
    }

    fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.wall += other.wall;
        self.opens += other.opens;
        self.misses += other.misses;
        self.read += other.read;
    }
}

impl Imports {
    /// The programs that wrote a log, in the order of their processes.
    pub fn finish(&mut self) -> Vec<Program> {
        let keys: Vec<_> = self.programs.keys().copied().collect();
        for key in keys {
            self.end(key);
        }
        let mut programs: Vec<_> = self.programs.drain().collect();
        programs.sort_by_key(|(key, _)| *key);
        let with_argv = |((_, image), program): ((ProcessId, ImageId), Program)| Program {
            argv: self.argv.get(&image).cloned().unwrap_or_default(),
            ..program
        };
        programs.into_iter().map(with_argv).collect()
    }

    /// A program has ended. Without a log it is one of many.
    fn end(&mut self, key: (ProcessId, ImageId)) {
        let Some(program) = self.programs.get_mut(&key) else { return };
        program.settle(&self.paths);
        if program.modules.is_empty() {
            self.elsewhere.merge(&program.outside);
            self.programs.remove(&key);
        }
    }

    fn call(&mut self, call: &Call) {
        let key = (call.process, call.image);
        let is_timed = self.timed.contains(&call.image);
        let program = self.programs.entry(key).or_insert_with(|| Program {
            pid: self.running.get(&call.process).map_or(0, |(pid, _)| *pid),
            ..Program::default()
        });
        let mut is_log = false;
        if let Some((at, bytes)) = self.writes.remove(&call.thread)
            && is_write(call.sys)
            && let Some(bytes) = said(bytes, call.outcome)
        {
            let (lines, whole) = self.streams.entry(call.thread).or_default().take(&bytes);
            is_log = whole;
            for line in lines {
                match Line::parse(&line) {
                    Some(Line::Header) => drop(self.timed.insert(call.image)),
                    Some(Line::Import(import)) if is_timed => {
                        program.ended(import, call.thread, at);
                    }
                    // It only looks like one, or is anything else.
                    _ => {
                        is_log = false;
                        continue;
                    }
                }
                program.log.extend_from_slice(&line);
                program.log.push(b'\n');
            }
        }
        if is_log {
            self.log_calls += 1;
        } else {
            let left = call.left.or(call.cut).or(call.entered).unwrap_or(0);
            let touches = self.paths.touches().to_vec();
            let made = Made { left, wall: call.wall().unwrap_or(0), touches };
            program.made(made, call.thread, is_timed);
        }
        // What another thread imports has begun before, and so have its calls.
        if program.ended.last().is_some_and(|(import, ..)| import.depth == 0) {
            program.settle(&self.paths);
        }
    }
}

impl Program {
    fn ended(&mut self, import: Import, thread: ThreadId, at: Nanos) {
        let calls = self.calls.entry(thread).or_default();
        calls.has_lines = true;
        self.threads.insert(thread);
        self.ended.push((import, thread, at, calls.made.len()));
    }

    fn made(&mut self, made: Made, thread: ThreadId, is_timed: bool) {
        // What came before the log's first line is no import's.
        if !is_timed {
            self.outside.add(&made);
            return;
        }
        let calls = self.calls.entry(thread).or_default();
        if calls.has_lines && calls.made.len() >= WAITING {
            // Of a program that runs within an import.
            self.outside.add(&made);
            self.given_up += 1;
            return;
        }
        calls.made.push_back(made);
        if calls.made.len() > WAITING
            && !calls.has_lines
            && let Some(oldest) = calls.made.pop_front()
        {
            self.outside.add(&oldest);
            self.given_up += 1;
        }
    }

    /// No import is going on: it is known where all calls belong.
    fn settle(&mut self, paths: &Paths) {
        let mut calls = std::mem::take(&mut self.calls);
        let ended = std::mem::take(&mut self.ended);
        let base = self.modules.len();
        let tree = tree(ended.iter().map(|(import, ..)| import.depth));
        let threads: Vec<ThreadId> = calls.keys().copied().collect();
        let made: Vec<Vec<Made>> =
            threads.iter().map(|t| calls.remove(t).unwrap_or_default().made.into()).collect();
        let places: Vec<Ended> = ended
            .iter()
            .map(|&(ref import, thread, at, end)| Ended {
                at,
                took: import.cumulative,
                thread: threads.iter().position(|t| *t == thread).unwrap_or(usize::MAX),
                end,
            })
            .collect();
        let of = |thread: usize| made.get(thread).map_or(&[][..], Vec::as_slice);
        let left = |thread, call: usize| of(thread).get(call).map_or(0, |made| made.left);
        let named = |index: usize, range: std::ops::Range<usize>| {
            let (import, ..) = ended.get(index)?;
            let calls = of(places.get(index)?.thread);
            search_begins(calls.get(range.clone())?, &import.name, paths).map(|i| range.start + i)
        };
        let spans = spans(&places, &tree, left, named);
        let mut owners: Vec<Vec<Option<usize>>> =
            made.iter().map(|c| vec![None; c.len()]).collect();
        // Those that came later first: what happened in them takes its part.
        for (index, (place, span)) in places.iter().zip(&spans).enumerate().rev() {
            let owners = owners.get_mut(place.thread).and_then(|o| o.get_mut(span.clone()));
            owners.into_iter().flatten().for_each(|owner| *owner = Some(index));
        }
        self.modules.extend(ended.iter().zip(&tree).map(|((import, ..), (parent, _))| Module {
            name: import.name.clone(),
            own: import.own,
            cumulative: import.cumulative,
            depth: import.depth,
            parent: parent.map(|parent| base + parent),
            file: None,
            sums: Sums::default(),
        }));
        for (made, owner) in made.iter().flatten().zip(owners.into_iter().flatten()) {
            let module = owner.and_then(|index| self.modules.get_mut(base + index));
            match module {
                Some(module) => module.add(made, paths),
                None => self.outside.add(made),
            }
        }
    }
}

impl Module {
    fn add(&mut self, made: &Made, paths: &Paths) {
        self.sums.add(made);
        if self.file.is_none() {
            let opened = made.touches.iter().filter(|touch| touch.opened);
            let mut opened = opened.filter_map(|touch| paths.path(touch.row));
            let its = opened.find(|path| searched(as_path(path), &self.name).is_some());
            self.file = its.map(<[u8]>::to_vec);
        }
    }
}

/// The first of the calls by which a module was looked for: where its directory
/// was asked about, just before the first of its files was named.
fn search_begins(calls: &[Made], module: &str, paths: &Paths) -> Option<usize> {
    let named = |touch: &Touch| paths.path(touch.row).filter(|_| touch.by_path);
    let (first, directory) = calls.iter().enumerate().find_map(|(i, made)| {
        let directory = |touch: &Touch| Some(searched(as_path(named(touch)?), module)?.to_owned());
        Some((i, made.touches.iter().find_map(directory)?))
    })?;
    let asks =
        |touch: &Touch| touch.looked && named(touch).is_some_and(|p| as_path(p) == directory);
    let before = calls.get(..first)?;
    Some(before.iter().rposition(|made| made.touches.iter().any(asks)).unwrap_or(first))
}

fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn is_write(sys: Sys) -> bool {
    matches!(sys.name(), Some("write" | "writev"))
}

/// What of the bytes was said for good. Where nobody took it, it was still said;
/// what was interrupted comes again.
fn said(mut bytes: Vec<u8>, outcome: Outcome) -> Option<Vec<u8>> {
    match outcome {
        Outcome::Returned(taken) => bytes.truncate(usize::try_from(taken).ok()?),
        Outcome::Failed(libc::EINTR) => return None,
        _ => {}
    }
    Some(bytes)
}

/// The bytes that a call that enters is about to write.
fn written(sys: Sys, args: &[u64; 6], tid: i32) -> Option<Vec<u8>> {
    const VECTOR: u64 = 16;
    const MOST_VECTORS: u64 = 1024;
    if args[0] as u32 as u64 != STDERR || !is_write(sys) {
        return None;
    }
    if sys.name() == Some("write") {
        return read(tid, args[1], args[2]);
    }
    if sys.abi != Abi::native() {
        return None;
    }
    let mut bytes = Vec::new();
    for i in 0..args[2].min(MOST_VECTORS) {
        let vector = read(tid, args[1].checked_add(i * VECTOR)?, VECTOR)?;
        let word = |at: usize| Some(u64::from_ne_bytes(vector.get(at..at + 8)?.try_into().ok()?));
        let room = LONGEST.saturating_sub(bytes.len() as u64);
        bytes.extend(read(tid, word(0)?, word(8)?.min(room))?);
    }
    Some(bytes)
}

/// So much of a stopped thread's memory, where it is there: nobody who is
/// stopped for us is asked for it.
fn read(tid: i32, address: u64, length: u64) -> Option<Vec<u8>> {
    let length = length.min(LONGEST) as usize;
    let mut bytes = vec![0; length];
    if length > 0 {
        memory::is_present(tid, address, length).then_some(())?;
        let read = memory::read(tid, address, &mut bytes).ok()?;
        bytes.truncate(read);
    }
    Some(bytes)
}

impl Observer for Imports {
    fn needs(&self) -> CallSet {
        self.paths.needs() // Writes are among them.
    }

    fn event(&mut self, event: &Event) {
        self.paths.event(event);
        match *event {
            Event::ProcessStarted { process, pid, image, .. } => {
                self.running.insert(process, (pid, image));
            }
            Event::Execed { process, pid, image, .. } => {
                self.argv.insert(image, arguments(pid));
                if let Some((_, before)) = self.running.insert(process, (pid, image)) {
                    self.end((process, before));
                }
            }
            Event::Entered { thread, tid, sys, ref args, at, .. } => {
                match written(sys, args, tid) {
                    Some(bytes) => drop(self.writes.insert(thread, (at, bytes))),
                    None => drop(self.writes.remove(&thread)),
                }
            }
            Event::Call(ref call) => self.call(call),
            Event::ThreadEnded { process, thread, .. } => {
                self.writes.remove(&thread);
                self.streams.remove(&thread);
                if let Some((_, image)) = self.running.get(&process)
                    && let Some(program) = self.programs.get_mut(&(process, *image))
                    && let Some(calls) = program.calls.get(&thread)
                    && !calls.has_lines
                    && let Some(calls) = program.calls.remove(&thread)
                {
                    calls.made.iter().for_each(|made| program.outside.add(made));
                }
            }
            Event::ProcessEnded { process, .. } => {
                if let Some((_, image)) = self.running.remove(&process) {
                    self.end((process, image));
                }
            }
            _ => {}
        }
    }
}
