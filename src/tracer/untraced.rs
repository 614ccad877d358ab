//! The same launch without a tracer: the unperturbed run.

use std::io;

use super::error::{Error, os};
use super::event::{Ending, Nanos, Usage};
use super::kernel::{self, Schedule};
use super::launch::{Command, launch_untraced};
use super::signals::{Guard, Request};
use super::stop::ending;

/// A command that ran to its end untraced.
#[derive(Debug, Clone)]
pub struct Ran {
    /// How it ended.
    pub ending: Ending,
    /// The moment before its process was made.
    pub started: Nanos,
    /// When its end was reported.
    pub ended: Nanos,
    /// wait4's usage of it and of the children it waited for.
    pub usage: Option<Usage>,
    /// The memory of its process before its exec, bytes: `ru_maxrss` is never less, so
    /// one that is not more says nothing.
    pub rss_before_exec_bytes: u64,
    /// What the scheduler says of its first thread; `None` without /proc.
    pub schedule: Option<Schedule>,
    /// What of its place could not be fixed, and other surprises, a line each.
    pub notes: Vec<String>,
}

/// Runs `command` and waits for it, not for its descendants.
///
/// # Errors
/// When the command cannot be run.
pub fn run_untraced(command: &Command) -> Result<Ran, Error> {
    let mut launched = launch_untraced(command)?;
    let mut guard = Guard::take(false);
    let apart = command.place.is_some();
    if apart {
        guard.set_apart();
    }
    // Nothing of it can be stopped for itself yet: a stop is the whole job's.
    let Some(born) = launched.start(|| guard.stop_if_asked())? else {
        return Err(launched.reports().failure(command));
    };
    let pid = born.pid;
    let (mut stopped, mut was_stopped) = (false, false);
    let timed = loop {
        if guard.is_busy() {
            for request in guard.requests(true) {
                let (to, signal) = match request {
                    Request::Forward(signal) if !kernel::is_pending(pid, signal) => (pid, signal),
                    // Who is in its group is all that is known of its tree.
                    Request::ForwardToAll(signal) => (-pid, signal),
                    Request::Forward(_) | Request::End(_) => continue,
                };
                // SAFETY: the child has not been reaped, so the pid is its own.
                unsafe { libc::kill(to, signal) };
            }
            if stopped || apart {
                guard.stop_if_asked();
            }
        }
        match kernel::time_for(pid) {
            Ok(Some(timed)) if ending(timed.waited.status).is_some() => break timed,
            // Stopped, or going on again.
            Ok(Some(timed)) => {
                stopped = timed.waited.status & 0xff == 0x7f;
                was_stopped |= stopped;
            }
            Ok(None) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(os("cannot wait for the command", e)),
        }
    };
    // What came together with the end is to be known to whoever holds it.
    guard.requests(false);
    let waited = timed.waited;
    let ending = ending(waited.status).unwrap_or(Ending::Detached);
    let reports = launched.reports();
    if reports.failed() {
        return Err(reports.failure(command));
    }
    let mut notes = reports.unfixed;
    if was_stopped {
        notes.push("it was stopped for a while, which is in its wall time".into());
    }
    Ok(Ran {
        ending,
        started: born.at,
        ended: waited.at,
        usage: waited.with_children,
        rss_before_exec_bytes: born.rss_bytes,
        schedule: timed.schedule,
        notes,
    })
}
