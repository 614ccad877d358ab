//! The same launch without a tracer: the unperturbed run.

use std::io;

use super::error::{Error, os};
use super::event::{Ending, Nanos, Usage};
use super::kernel::{self, Schedule, now};
use super::launch::{Command, launch};
use super::signals::{Guard, Request};
use super::stop::ending;

/// A command that ran to its end untraced.
#[derive(Debug, Clone)]
pub struct Ran {
    /// How it ended.
    pub ending: Ending,
    /// When its gate was opened.
    pub started: Nanos,
    /// When its end was reported.
    pub ended: Nanos,
    /// wait4's usage of it and of the children it waited for.
    pub usage: Option<Usage>,
    /// What the scheduler says of its first thread; `None` without /proc.
    pub schedule: Option<Schedule>,
    /// What of its place could not be fixed, a line each.
    pub notes: Vec<String>,
}

/// Runs `command` and waits for it, not for its descendants.
///
/// # Errors
/// When the command cannot be run.
pub fn run_untraced(command: &Command) -> Result<Ran, Error> {
    let mut launched = launch(command, None)?;
    let pid = launched.pid;
    let mut guard = Guard::take(false);
    let apart = command.place.is_some();
    if apart {
        guard.set_apart();
    }
    let started = now();
    launched.open()?;
    let mut stopped = false;
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
            Ok(Some(timed)) => stopped = timed.waited.status & 0xff == 0x7f,
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
    Ok(Ran {
        ending,
        started,
        ended: waited.at,
        usage: waited.with_children,
        schedule: timed.schedule,
        notes: reports.unfixed,
    })
}
