//! When the command first wrote to what its standard output was at its start:
//! whoever of its tree did, by whatever descriptor.

use crate::syscall::{Abi, CallSet, Sys};
use crate::tracer::{Call, Event, Link, Nanos, Observer, Outcome, ProcessId};

use std::collections::HashMap;

/// Writes looked at before it is given up: a command that talks to others only.
const MOST: u32 = 10_000;

/// The collector.
#[derive(Debug, Default)]
pub struct FirstOutput {
    /// What /proc says that standard output is.
    stdout: Option<Vec<u8>>,
    pids: HashMap<ProcessId, i32>,
    looks: u32,
    /// When the first write to it returned.
    pub at: Option<Nanos>,
}

impl FirstOutput {
    fn call(&mut self, call: &Call) {
        let Outcome::Returned(1..) = call.outcome else { return };
        let Some(stdout) = &self.stdout else { return };
        let Some(info) = call.sys.info() else { return };
        let argument = match (info.kind, info.moves) {
            ("write", _) => 0,
            (_, Some((_, to))) => to,
            _ => return,
        };
        self.looks += 1;
        let fd = call.args.get(argument).copied().unwrap_or(0) as i32;
        let pid = self.pids.get(&call.process).copied().unwrap_or(0);
        if Link::read(pid, &format!("fd/{fd}")).is_some_and(|link| link.path == *stdout) {
            self.at = call.left;
        }
    }

    fn is_over(&self) -> bool {
        self.at.is_some() || self.looks > MOST
    }
}

impl Observer for FirstOutput {
    fn each(&self) -> CallSet {
        let writes =
            |sys: &Sys| sys.info().is_some_and(|info| info.kind == "write" || info.moves.is_some());
        CallSet::of(Abi::ALL.into_iter().flat_map(Abi::calls).filter(writes))
    }

    fn event(&mut self, event: &Event) {
        if self.is_over() {
            return;
        }
        match *event {
            Event::ProcessStarted { process, pid, .. } => {
                self.pids.insert(process, pid);
            }
            Event::Execed { process: ProcessId(0), pid, .. } if self.stdout.is_none() => {
                // Where it is closed there will be no first byte.
                self.stdout = Link::read(pid, "fd/1").map(|link| link.path).or(Some(Vec::new()));
            }
            Event::Call(ref call) => self.call(call),
            Event::ProcessEnded { process, .. } => {
                self.pids.remove(&process);
            }
            _ => {}
        }
    }
}
