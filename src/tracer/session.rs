//! One session of the tracer: a command from its launch to the end of its tree,
//! or running processes for a while.

use std::io;
use std::time::Duration;

use crate::syscall::CallSet;

use super::calibrate::Cost;
use super::engine::{End, Engine, needed_by};
use super::error::{Error, os, refused};
use super::event::{Ending, Nanos, Observer, Usage};
use super::fast::Fast;
use super::inside::{FastOptions, FastSummary};
use super::kernel::{self, now};
use super::launch::{Command, launch};
use super::randomness::SteadyRandomness;
use super::seccomp::Filter;
use super::stop::ending;
use super::task::Follow;

/// How to trace.
#[derive(Debug, Clone)]
pub struct Options {
    /// The calls that collectors are told of. All others run at full speed,
    /// where that is possible.
    pub calls: CallSet,
    /// Of those, fcntl and ioctl stop where they make a descriptor only: a filter
    /// lets the others through, and nobody may be told of them.
    pub only_makers: bool,
    /// Use PTRACE_GET_SYSCALL_INFO where the kernel has it (5.3).
    pub syscall_info: bool,
    /// End the command, with all that it started, after this long.
    pub timeout: Option<Duration>,
    /// When the command ends, let its descendants go on untraced.
    pub detach_on_exit: bool,
    /// When the command ends, let its descendants go on untraced after this long.
    pub linger: Option<Duration>,
    /// Let go of attached processes after this long.
    pub duration: Option<Duration>,
    /// Watch attached processes in bursts, so that they take at most this many
    /// times as long (above 1); the other part is what a call costs.
    pub max_slowdown: Option<(f64, Cost)>,
    /// How calls are counted.
    pub engine: Engines,
}

/// How calls are counted: each way says the same.
#[derive(Debug, Clone)]
pub enum Engines {
    /// Each call stops twice at the tracer.
    Ptrace,
    /// Inside the process, once it has made some calls. Where that cannot be,
    /// [`Traced::fast`] says why.
    Fast(FastOptions),
    /// The same, and nothing is said of it.
    Auto(FastOptions),
}

impl Default for Engines {
    fn default() -> Self {
        Self::Auto(FastOptions::default())
    }
}

/// What became of the wish for the fast engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FastState {
    /// Not wished for, or not possible.
    #[default]
    Off,
    /// It was used.
    Used(FastSummary),
    /// Every call stopped, for this reason.
    Refused(String),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            calls: CallSet::all(),
            only_makers: false,
            syscall_info: true,
            timeout: None,
            detach_on_exit: false,
            linger: None,
            duration: None,
            max_slowdown: None,
            engine: Engines::default(),
        }
    }
}

/// What became of the wish for a filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FilterState {
    /// Not wished for.
    #[default]
    Off,
    /// Calls that were not asked for ran at full speed.
    Installed,
    /// They stopped, for this reason.
    Refused(String),
}

/// A session that has ended.
#[derive(Debug, Clone)]
pub struct Traced {
    /// How the command ended; `Detached` for processes that were attached to.
    pub ending: Ending,
    /// When the command's execve entered, or when attaching began.
    pub started: Nanos,
    /// When the command's end was reported, or tracing ended.
    pub ended: Nanos,
    /// wait4's usage of the command and of the children it waited for.
    pub usage: Option<Usage>,
    /// Time in which calls were watched, ns, when that was in bursts; `None`:
    /// all the time.
    pub watched: Option<Nanos>,
    /// Whether [`Options::timeout`] ended it.
    pub timed_out: bool,
    /// Stops served.
    pub stops: u64,
    /// Stops that could not be understood: what they told is missing.
    pub lost: u64,
    /// What became of the filter.
    pub filter: FilterState,
    /// What the fast engine did, where it was wished for.
    pub fast: FastState,
    /// Events that the tracer did not understand, and other surprises.
    pub notes: Vec<String>,
}

/// What a launched or attached tree reports.
const REPORTS: i32 = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT;

/// Runs `command` under ptrace until it and all its descendants have ended.
/// Unless they may outlive the command ([`Options::detach_on_exit`]), they are
/// killed when the tracer is.
///
/// While it runs it owns what a process has one of: it waits for, and reaps,
/// every child of this process; it takes the signals that would end the process
/// or stop it, a POSIX timer and the last real-time signal; interval timers go
/// to the command. So only one session can run at a time, from one thread.
///
/// # Errors
/// When the command cannot be run or traced; see [`Error::exit_status`].
pub fn trace(
    command: &Command,
    options: &Options,
    observers: &mut [&mut dyn Observer],
) -> Result<Traced, Error> {
    let mut steady = SteadyRandomness::default();
    let mut all: Vec<&mut dyn Observer> = Vec::with_capacity(observers.len() + 1);
    if command.place.as_ref().is_some_and(|place| !place.random) {
        all.push(&mut steady);
    }
    // Each for as long as this call only.
    all.extend(observers.iter_mut().map(|observer| &mut **observer as &mut dyn Observer));
    let observers = all.as_mut_slice();
    let (filter, state) = choose_filter(options, &needed_by(observers));
    let strangers = kernel::has_children();
    let launched = launch(command, filter.as_ref())?;
    let root = launched.pid;
    let is_disturbed = command.place.as_ref().is_some_and(|place| place.disturb.is_some());
    let (fast, why) = match choose_fast(options, is_disturbed, observers) {
        Ok(fast) => (fast, None),
        Err(why) => (None, matches!(options.engine, Engines::Fast(_)).then_some(why)),
    };
    let is_fast = fast.is_some();
    let mut engine = Engine::new(options, Some(root), strangers, state, fast, observers);
    if let Some(place) = &command.place {
        engine.set_apart();
        if let Some(seed) = place.disturb {
            engine.disturb(seed);
        }
    }
    let mut wanted = REPORTS;
    if !options.detach_on_exit {
        wanted |= libc::PTRACE_O_EXITKILL;
    }
    if filter.is_some() || is_fast {
        wanted |= libc::PTRACE_O_TRACESECCOMP;
    }
    kernel::seize(root, wanted).map_err(|e| refused(root, &e))?;
    kernel::interrupt(root).map_err(|e| os("cannot stop the command", e))?;
    let follow = if filter.is_some() { Follow::Filter } else { Follow::Every };
    engine.launch(launched, follow)?;
    engine.run()?;
    let mut end = engine.end();
    if end.root.is_none() {
        // It had to be let go, but is still our child: its status is the answer.
        end.root = wait_untraced(root);
    }
    let started = match (end.started, end.root) {
        (Some(started), _) => started,
        // Killed in its exec, or let go before it: its end is the answer.
        (None, Some((_, at, _))) if !end.reports.failed() => at,
        (None, _) => return Err(end.reports.failure(command)),
    };
    Ok(traced(end, started, why))
}

/// Traces running processes, with all their threads and what they start, until
/// [`Options::duration`] is over, the tracer is told to end (SIGINT, SIGTERM),
/// or they have ended; then lets them go on as they were. A process that cannot
/// be traced is said to `refuse`. They live on when the tracer is killed.
///
/// # Errors
/// When none of them can be traced.
pub fn attach(
    pids: &[i32],
    options: &Options,
    observers: &mut [&mut dyn Observer],
    refuse: &mut dyn FnMut(&Error),
) -> Result<Traced, Error> {
    let state = if options.calls.is_all() {
        FilterState::Off
    } else {
        FilterState::Refused("a filter cannot be taken off a running process".into())
    };
    let mut engine = Engine::new(options, None, kernel::has_children(), state, None, observers);
    let started = now();
    let mut any = false;
    for (i, &pid) in pids.iter().enumerate() {
        if pids.iter().take(i).any(|&earlier| earlier == pid) {
            continue;
        }
        match engine.attach(pid, REPORTS) {
            Ok(()) => any = true,
            Err(error) => refuse(&error),
        }
    }
    if !any {
        return Err(Error::NothingAttached);
    }
    if let Some((slowdown, cost)) = options.max_slowdown {
        engine.slow_at_most(slowdown, cost);
    }
    engine.run()?;
    let why = match options.engine {
        Engines::Ptrace | Engines::Auto(_) => None,
        Engines::Fast(_) => Some("a filter cannot be taken off a running process".into()),
    };
    Ok(traced(engine.end(), started, why))
}

/// Waits for a child that is not traced any more.
fn wait_untraced(pid: i32) -> Option<(Ending, Nanos, Option<Usage>)> {
    loop {
        match kernel::wait_for(pid) {
            Ok(Some(waited)) => {
                if let Some(ending) = ending(waited.status) {
                    return Some((ending, waited.at, waited.with_children));
                }
            }
            Ok(None) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

fn traced(end: End, started: Nanos, not_fast: Option<String>) -> Traced {
    let fast = match (end.fast, not_fast) {
        (Some(summary), _) => FastState::Used(summary),
        (None, Some(why)) => FastState::Refused(why),
        (None, None) => FastState::Off,
    };
    let (ending, ended, usage) = end.root.unwrap_or((Ending::Detached, now(), None));
    Traced {
        ending,
        started,
        ended,
        usage,
        watched: end.watched,
        timed_out: end.timed_out,
        stops: end.stops,
        lost: end.lost,
        filter: end.filter,
        fast,
        notes: end.notes,
    }
}

/// The fast engine, if it is wished for; the reason where it cannot be.
fn choose_fast(
    options: &Options,
    is_disturbed: bool,
    observers: &[&mut dyn Observer],
) -> Result<Option<Box<Fast>>, String> {
    let fast = match &options.engine {
        Engines::Ptrace => return Ok(None),
        Engines::Fast(fast) | Engines::Auto(fast) => fast,
    };
    if !options.calls.is_all() {
        return Err("what was not asked for runs at full speed already".into());
    }
    if is_disturbed {
        return Err("stops are held back on purpose".into());
    }
    if options.detach_on_exit || options.linger.is_some() || options.duration.is_some() {
        return Err("a process that counts by itself cannot be let go".into());
    }
    // SAFETY: PR_GET_SECCOMP takes no further arguments.
    if unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) } != 0 {
        return Err("coldtrace itself runs under a seccomp filter".into());
    }
    let needed = observers
        .iter()
        .fold(CallSet::none(), |needed, o| needed.union(&o.needs()).union(&o.each()));
    if needed.is_all() {
        return Err("each call is asked for by itself".into());
    }
    Fast::new(fast, &needed).map(|fast| Some(Box::new(fast)))
}

fn choose_filter(options: &Options, needed: &CallSet) -> (Option<Filter>, FilterState) {
    if options.calls.is_all() {
        return (None, FilterState::Off);
    }
    let refused = |why: &str| (None, FilterState::Refused(why.into()));
    if options.detach_on_exit {
        return refused("calls of a process with a filter fail when the tracer has gone");
    }
    // SAFETY: PR_GET_SECCOMP takes no further arguments.
    if unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) } != 0 {
        return refused(
            "coldtrace itself runs under a seccomp filter, which may refuse calls before a \
             filter of its own could report them",
        );
    }
    let stopping = options.calls.clone().union(needed);
    match Filter::stopping(&stopping, options.only_makers) {
        Some(filter) => (Some(filter), FilterState::Installed),
        None => refused("the set of calls is too scattered"),
    }
}
