//! Attaching to processes that run already: every thread of each, whatever it
//! is doing, while it goes on making more.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::time::Duration;

use super::error::{Error, cannot_attach};
use super::event::Nanos;
use super::kernel::{self, Waited, now};
use super::proc::Status;
use super::stop::{Report, report};

/// How long to wait for a thread that does not stop, ns: it sleeps where no
/// signal reaches it (a disk, the parent of a vfork) and makes no threads there.
const PATIENCE: Nanos = 50_000_000;

/// How often to try again where the kernel refuses: to a thread that ends it
/// says EPERM too, and an exec gives its number to another.
const MOST_REFUSALS: u32 = 20;

/// How long to run after a process that makes threads, ns.
const LONGEST: Nanos = 3_000_000_000;

/// The threads of a process that was attached to.
#[derive(Debug, Default)]
pub struct Seized {
    /// Those that were seized and told to stop, and since when each was asleep.
    /// Threads that these made since are traced too, and report by themselves.
    pub tids: Vec<(i32, Option<Nanos>)>,
    /// Threads that may run untraced, or do.
    pub notes: Vec<String>,
}

/// Seizes and stops every thread of process `pid`, until `until` or until
/// `is_called_off`.
///
/// A listing of a process's threads proves nothing: they make others behind it,
/// and where one ends under it, it ends too early. But once every thread in it
/// stands still, and the kernel counts no more than these, there is no other
/// that could make one.
///
/// What is reported meanwhile goes to `reports`, to be served.
///
/// # Errors
/// When the process cannot be traced, or is not there; nothing is seized then.
pub fn seize_all(
    pid: i32,
    options: i32,
    until: Nanos,
    is_called_off: &dyn Fn() -> bool,
    reports: &mut VecDeque<Waited>,
) -> Result<Seized, Error> {
    if is_self_or_ancestor(pid) {
        return Err(Error::CannotAttach {
            pid,
            cause: "it is coldtrace itself, or one of its ancestors".into(),
        });
    }
    let mut search = Search::of(pid, options, reports);
    let begun = now();
    search.last_new = begun;
    loop {
        let listed = match threads(pid) {
            // It ends meanwhile, and says so by itself.
            Err(_) if !search.found.tids.is_empty() => break,
            listed => listed?,
        };
        let pass = search.pass(&listed)?;
        let now = now();
        if pass.is_complete(now.saturating_sub(search.last_new)) {
            // An exec by a thread that was not traced yet has made it the leader.
            let is_lost = |&tid: &i32| matches!(Fate::of(tid), Fate::Unknown);
            let lost: Vec<i32> = listed.into_iter().filter(is_lost).collect();
            if !lost.is_empty() {
                search.look_anew(&lost);
            } else if search.has_none() && !has_ended(pid) {
                // Its leader is a zombie for as long as each exec by another thread takes.
                search.look_anew(&threads(pid)?);
            } else {
                break;
            }
        }
        if is_called_off() || now >= until {
            break;
        }
        if now.saturating_sub(begun) > LONGEST {
            search.found.notes.push(format!(
                "not every thread of {pid} could be attached to: some may run untraced, and their \
                 calls are missing"
            ));
            break;
        }
        if pass.moving + pass.unknown > 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    let Search { mut found, foreign, .. } = search;
    if let Some(tracer) = foreign.first() {
        found.notes.push(format!(
            "threads of {pid} are traced by process {tracer}: their calls are missing"
        ));
    }
    if found.tids.is_empty() {
        return Err(Error::CannotAttach { pid, cause: "it has ended".into() });
    }
    Ok(found)
}

/// One look after another at the threads of a process.
struct Search<'a> {
    pid: i32,
    options: i32,
    reports: &'a mut VecDeque<Waited>,
    found: Seized,
    /// Whom to seize was tried.
    tried: BTreeSet<i32>,
    /// Who can make no thread.
    still: BTreeSet<i32>,
    /// Who traces threads of it besides.
    foreign: BTreeSet<i32>,
    /// When the last new thread was seen.
    last_new: Nanos,
    refusals: u32,
}

/// What one look at all threads found.
#[derive(Debug, Default)]
struct Pass {
    /// Threads that are traced and have not stopped yet.
    moving: usize,
    /// Threads that are not traced, or were gone when they were looked at.
    unknown: usize,
    /// The kernel counts others than were listed.
    uncounted: bool,
}

impl Pass {
    /// Whether nobody is left who could make threads, or only such as have not
    /// stopped in all the time, ns, since the last new one.
    fn is_complete(&self, quiet: Nanos) -> bool {
        self.unknown == 0 && !self.uncounted && (self.moving == 0 || quiet > PATIENCE)
    }
}

impl<'a> Search<'a> {
    fn of(pid: i32, options: i32, reports: &'a mut VecDeque<Waited>) -> Self {
        Self {
            pid,
            options,
            reports,
            found: Seized::default(),
            tried: BTreeSet::new(),
            still: BTreeSet::new(),
            foreign: BTreeSet::new(),
            last_new: 0,
            refusals: 0,
        }
    }

    fn pass(&mut self, listed: &[i32]) -> Result<Pass, Error> {
        let mut pass = Pass::default();
        for &tid in listed {
            if self.still.contains(&tid) {
                continue;
            }
            let refused = if self.tried.insert(tid) {
                self.last_new = now();
                self.try_one(tid)
            } else {
                None
            };
            let fate = Fate::of(tid);
            if let Some(e) = refused
                && self.found.tids.is_empty()
                && !matches!(fate, Fate::Still)
            {
                self.refusals += 1;
                if self.refusals > MOST_REFUSALS {
                    return Err(cannot_attach(self.pid, &e));
                }
                pass.unknown += 1;
                self.tried.remove(&tid);
                break;
            }
            match fate {
                Fate::Still => _ = self.still.insert(tid),
                Fate::Foreign(tracer) => {
                    self.foreign.insert(tracer);
                    self.still.insert(tid);
                }
                Fate::Moving => pass.moving += 1,
                Fate::Unknown => {
                    pass.unknown += 1;
                    self.tried.remove(&tid);
                }
            }
        }
        let counted: Option<usize> = Status::read(self.pid).and_then(|s| s.number("Threads:"));
        pass.uncounted = counted.is_some_and(|n| n != listed.len());
        Ok(pass)
    }

    /// Seizes a thread and tells it to stop; why the kernel refused it.
    fn try_one(&mut self, tid: i32) -> Option<io::Error> {
        match kernel::try_seize(tid, self.options) {
            Ok(()) => {
                let asleep = kernel::asleep_since(tid);
                let _ = kernel::interrupt(tid); // Dying: its end is reported.
                // The number of a leader may have gone to a thread that executed.
                self.found.tids.retain(|(seized, _)| *seized != tid);
                self.found.tids.push((tid, asleep));
                None
            }
            // It executes, and the kernel has it wait until the other threads
            // have ended, of which some are ours.
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {
                let dying = self.let_die();
                self.look_anew(&dying);
                None
            }
            // A seized thread has made it: it is traced already; or it has
            // ended, or is a leader that ended before its threads.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => None,
            Err(e) => Some(e),
        }
    }

    /// Lets those end that are about to; keeps what else was reported. Returns
    /// who has to be looked at anew.
    fn let_die(&mut self) -> Vec<i32> {
        let mut dying = Vec::new();
        while let Ok(Some(waited)) = kernel::take_stop() {
            if matches!(report(waited.status), Report::Exiting) && self.has(waited.tid) {
                let _ = kernel::resume(waited.tid, 0); // It may have been killed.
                dying.push(waited.tid);
            } else {
                self.reports.push_back(waited);
            }
        }
        // Nobody has heard of them yet.
        self.reports.retain(|waited| !dying.contains(&waited.tid));
        while let Ok(Some(waited)) = kernel::take_zombie() {
            // The leader's number lives on, whoever has it; its end is the process's.
            if waited.tid != self.pid && self.has(waited.tid) {
                self.reports.retain(|earlier| earlier.tid != waited.tid);
                self.found.tids.retain(|(tid, _)| *tid != waited.tid);
                dying.push(waited.tid);
            } else {
                self.reports.push_back(waited);
            }
        }
        dying
    }

    /// Nobody was found who can be traced, or is by somebody else.
    fn has_none(&self) -> bool {
        self.found.tids.is_empty() && self.foreign.is_empty()
    }

    fn has(&self, tid: i32) -> bool {
        self.found.tids.iter().any(|(seized, _)| *seized == tid)
    }

    fn look_anew(&mut self, tids: &[i32]) {
        for tid in tids {
            self.tried.remove(tid);
            self.still.remove(tid);
        }
    }
}

/// What a listed thread is.
enum Fate {
    /// It can make no thread: stopped by us, or dead.
    Still,
    /// Another process traces it.
    Foreign(i32),
    /// We trace it, and it has not stopped yet.
    Moving,
    /// Not traced, or gone.
    Unknown,
}

impl Fate {
    fn of(tid: i32) -> Self {
        let Some(status) = Status::read(tid) else { return Self::Unknown };
        let state = status.field("State:").unwrap_or_default();
        match status.number::<i32>("TracerPid:") {
            _ if state.starts_with(['Z', 'X']) => Self::Still,
            Some(tracer) if tracer == std::process::id() as i32 => {
                if state.starts_with('t') {
                    Self::Still
                } else {
                    Self::Moving
                }
            }
            Some(0) | None => Self::Unknown,
            Some(tracer) => Self::Foreign(tracer),
        }
    }
}

/// Whether the last thread of a process is dead.
fn has_ended(pid: i32) -> bool {
    let Some(status) = Status::read(pid) else { return true };
    let state = status.field("State:").unwrap_or_default();
    state.starts_with(['Z', 'X']) && status.number("Threads:") == Some(1)
}

fn threads(pid: i32) -> Result<Vec<i32>, Error> {
    let listed = fs::read_dir(format!("/proc/{pid}/task"));
    let listed = match listed {
        Ok(listed) => listed,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let cause = if std::path::Path::new("/proc/self").exists() {
                "there is no such process"
            } else {
                "/proc is not mounted, and without it its threads cannot be found"
            };
            return Err(Error::CannotAttach { pid, cause: cause.into() });
        }
        Err(e) => return Err(cannot_attach(pid, &e)),
    };
    Ok(listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// A tracer that stops its own ancestor waits for itself.
fn is_self_or_ancestor(pid: i32) -> bool {
    let mut at = std::process::id() as i32;
    while at > 1 {
        if at == pid {
            return true;
        }
        match kernel::parent(at) {
            Some(parent) => at = parent,
            None => return false,
        }
    }
    at == pid
}
