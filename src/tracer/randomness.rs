//! Random bytes that are the same in each run: a name that mkstemp(3) makes up, the
//! order of a hash table, and how often somebody draws again are in a program's
//! counts.

use std::collections::HashMap;

use crate::syscall::{CallSet, Sys};

use super::event::{Call, Event, Observer, Outcome, ProcessId, ThreadId};
use super::memory;

/// The call.
const NAME: &str = "getrandom";
/// Where exec tells a program of its 16 random bytes (getauxval(3)).
const AT_RANDOM: u64 = 25;
/// So many bytes of one call are replaced; who asks for more makes no names of it.
const MOST: usize = 1 << 16;

/// Replaces what getrandom(2) has given, and the bytes at AT_RANDOM. Each process
/// gets bytes of its own, by the order in which processes began, so that two do
/// not make up the same name.
#[derive(Debug, Default)]
pub struct SteadyRandomness {
    tids: HashMap<ThreadId, i32>,
    /// Draws of each process.
    draws: HashMap<ProcessId, u64>,
}

impl SteadyRandomness {
    fn bytes(&mut self, process: ProcessId, length: usize) -> Vec<u8> {
        let draws = self.draws.entry(process).or_default();
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            *draws += 1;
            bytes.extend(mixed(u64::from(process.0) << 40 ^ *draws).to_ne_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    fn call(&mut self, call: &Call) {
        let Outcome::Returned(length @ 1..) = call.outcome else { return };
        let Some(&tid) = self.tids.get(&call.thread) else { return };
        if call.sys.name() == Some(NAME) {
            let bytes = self.bytes(call.process, (length as usize).min(MOST));
            // It is dying: nobody will look at them.
            let _ = memory::write(tid, call.args[0], &bytes);
        }
    }

    /// The new image has read nothing yet.
    fn execed(&mut self, process: ProcessId, pid: i32) {
        // 32-bit programs have another table: theirs are left alone.
        let Ok(table) = std::fs::read(format!("/proc/{pid}/auxv")) else { return };
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let mut entries = table.chunks_exact(16).map(|pair| {
            let (key, value) = pair.split_at(8);
            (word(key), word(value))
        });
        if let Some((_, address)) = entries.find(|(key, _)| *key == AT_RANDOM) {
            let bytes = self.bytes(process, 16);
            let _ = memory::write(pid, address, &bytes);
        }
    }
}

impl Observer for SteadyRandomness {
    fn each(&self) -> CallSet {
        self.needs()
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::ProcessStarted { thread, pid, .. } => drop(self.tids.insert(*thread, *pid)),
            Event::ThreadStarted { thread, tid, .. } => drop(self.tids.insert(*thread, *tid)),
            Event::Execed { process, thread, pid, .. } => {
                self.tids.insert(*thread, *pid);
                self.execed(*process, *pid);
            }
            Event::Call(call) | Event::Needed(call) => self.call(call),
            Event::ThreadEnded { thread, .. } => drop(self.tids.remove(thread)),
            Event::ProcessEnded { process, .. } => drop(self.draws.remove(process)),
            _ => {}
        }
    }

    /// Its calls stop below a filter, too.
    fn needs(&self) -> CallSet {
        CallSet::of(Sys::all_named(NAME))
    }
}

/// splitmix64 (Steele, Lea, Flood 2014).
fn mixed(counter: u64) -> u64 {
    let z = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_draw_different_bytes_and_each_run_the_same() {
        let mut one = SteadyRandomness::default();
        let first = one.bytes(ProcessId(1), 13);
        assert_eq!(first.len(), 13);
        assert_ne!(one.bytes(ProcessId(1), 13), first);
        assert_ne!(one.bytes(ProcessId(2), 13), first);
        assert_eq!(SteadyRandomness::default().bytes(ProcessId(1), 13), first);
    }
}
