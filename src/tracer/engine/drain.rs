//! Waiting: for the next report, for creators that are on their way, among very
//! many tracees.

use std::io;
use std::time::Duration;

use super::super::error::{Error, os};
use super::super::event::Nanos;
use super::super::kernel::{self, Bell, Waited, now};
use super::super::tasks::Lineage;
use super::Engine;

impl Engine<'_, '_> {
    /// Takes all reports that are there, and waits for one where there is none:
    /// a busy thread must not starve the others. False when nothing is left
    /// that could report.
    pub(super) fn drain(&mut self) -> Result<bool, Error> {
        /// Zombies that no exit stop announced are looked for this rarely while
        /// stops keep coming.
        const LOOK_ANYWAY: u64 = 64;
        self.batches += 1;
        self.adopt_the_forsaken();
        let held = self.tasks.held().next().is_some() || self.disturb.holds_any();
        self.mind_the_crowd();
        let alone = self.tasks.len() <= 1 && !held && !self.strangers;
        let drained = (|| {
            if let Some(bell) = self.bell.as_ref().filter(|bell| !held && !bell.is_stale())
                && let Some(tid) = bell.poll()?
            {
                self.queue.extend(or_none(kernel::take_from(tid))?);
                return Ok(());
            }
            if !alone {
                while let Some(waited) = or_none(kernel::take_stop())? {
                    self.queue.push_back(waited);
                }
                if self.tasks.exiting() > 0 || held || self.batches.is_multiple_of(LOOK_ANYWAY) {
                    while let Some(waited) = or_none(kernel::take_zombie())? {
                        self.queue.push_back(waited);
                    }
                }
            }
            match &mut self.bell {
                Some(bell) => {
                    bell.all_is_quiet();
                    // Whoever stops from now on rings it anew.
                    if self.queue.is_empty()
                        && !held
                        && let Some(tid) = bell.sleep()?
                    {
                        self.queue.extend(or_none(kernel::take_from(tid))?);
                    }
                }
                None if self.queue.is_empty() && !held => self.queue.extend(kernel::wait(!alone)?),
                None => {}
            }
            Ok(())
        })();
        match drained {
            Ok(()) => {}
            Err(e) => match io::Error::raw_os_error(&e) {
                Some(libc::EINTR) => return Ok(true),
                Some(libc::ECHILD) => return Ok(!self.queue.is_empty()),
                _ => return Err(os("cannot wait for the command", e)),
            },
        }
        if self.queue.is_empty() && held {
            self.be_patient();
        }
        Ok(true)
    }

    /// A wait that asks every tracee costs 60 us among a thousand, 300 us among
    /// four thousand (benches/README.md): there SIGCHLD says whom to ask.
    fn mind_the_crowd(&mut self) {
        const CROWD: usize = 500;
        match &self.bell {
            None if self.tasks.len() > CROWD => self.bell = Some(Bell::hang()),
            Some(_) if self.tasks.len() < CROWD / 2 => self.bell = None,
            _ => {}
        }
    }

    /// Children that have stopped before their creators told of them, which takes
    /// microseconds. A creator that was killed never will: then the kernel is
    /// asked whose they are. All that was reported before has been served here.
    fn adopt_the_forsaken(&mut self) {
        const PATIENCE: Nanos = 20_000_000;
        let before = now().saturating_sub(PATIENCE);
        let forsaken: Vec<i32> = self.tasks.held_since(before).collect();
        for tid in forsaken {
            self.adopt(tid);
        }
    }

    /// A creator is on its way. But where somebody computes, yielding gives him
    /// whole slices, and who sleeps is preferred when he wakes.
    fn be_patient(&mut self) {
        let begun = now();
        if self.crowded || self.disturb.holds_any() {
            std::thread::sleep(Duration::from_micros(50));
        } else {
            std::thread::yield_now();
            self.crowded = now().saturating_sub(begun) > 2_000_000;
        }
    }

    pub(super) fn adopt(&mut self, tid: i32) {
        let owner = self.tasks.pids().find(|&pid| kernel::is_thread_of(pid, tid));
        let lineage = match owner {
            Some(pid) => Lineage::ThreadOf(pid),
            None => Lineage::ChildOf(kernel::parent(tid)),
        };
        self.out.clear();
        let (creator, thread) = match lineage {
            Lineage::ThreadOf(pid) => (Some(pid), true),
            Lineage::ChildOf(parent) => (parent, false),
        };
        self.tasks.adopt(tid, lineage, &mut self.out);
        self.adopted(tid, creator, thread);
        self.carry_out();
    }
}

/// Nothing to wait for is nothing to report.
fn or_none(waited: io::Result<Option<Waited>>) -> io::Result<Option<Waited>> {
    match waited {
        Err(e) if e.raw_os_error() == Some(libc::ECHILD) => Ok(None),
        other => other,
    }
}
