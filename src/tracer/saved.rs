//! Saving what the kernel said, so that it can be said again in a test.
//! Compiled into debug builds only, and asleep unless `COLDTRACE_STOPS` names a
//! file.

use std::fs::File;
use std::io::{BufWriter, Write};

use serde::{Deserialize, Serialize};

use super::stop::Stop;

/// One thing that the state machines were told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// A thread's stop.
    Stop(i32, Stop),
    /// A call of this thread had no time left and returned this.
    TimeIsOver(i32, i64),
}

/// Writes a line each.
#[derive(Debug)]
pub struct Recorder(Option<BufWriter<File>>);

impl Recorder {
    /// To the file that the environment names.
    pub fn from_environment() -> Self {
        let file = std::env::var_os("COLDTRACE_STOPS").and_then(|path| File::create(path).ok());
        Self(file.map(BufWriter::new))
    }

    /// Writes one. A test that reads a short file fails by itself.
    pub fn save(&mut self, told: &Told) {
        if let Some(file) = &mut self.0
            && let Ok(line) = serde_json::to_string(told)
        {
            let _ = writeln!(file, "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader};

    use super::*;
    use crate::syscall::CallSet;
    use crate::syscall::errno::errno_label;
    use crate::tracer::event::{Event, Outcome};
    use crate::tracer::task::Follow;
    use crate::tracer::tasks::{Outbox, Tasks};

    /// What stands in the first line of a saved sequence.
    #[derive(Deserialize)]
    struct Head {
        rows: Vec<Row>,
        processes: u64,
        threads: u64,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    struct Row {
        name: String,
        abi: String,
        calls: u64,
        errors: BTreeMap<String, u64>,
        restarts: u64,
        unfinished: u64,
        abandoned: u64,
    }

    /// Replays a sequence; gives the rows, and how many processes and threads began.
    fn replay(lines: impl Iterator<Item = String>) -> (Vec<Row>, u64, u64) {
        let mut tasks = Tasks::new(CallSet::all(), CallSet::none());
        let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
        let (mut processes, mut threads) = (0, 0);
        let mut out = Outbox::default();
        for (i, line) in lines.enumerate() {
            let told: Told = serde_json::from_str(&line).unwrap();
            let (Told::Stop(tid, _) | Told::TimeIsOver(tid, _)) = told;
            if i == 0 {
                // The first to stop is the launcher's child.
                tasks.launch(tid, Follow::Every, 0, &mut out);
            }
            match told {
                Told::Stop(tid, stop) => tasks.step(tid, &stop, 0, &mut out),
                Told::TimeIsOver(tid, value) => tasks.time_is_over(tid, value, 0, &mut out),
            }
            for event in out.events.drain(..) {
                match event {
                    Event::ProcessStarted { .. } => {
                        processes += 1;
                        threads += 1;
                    }
                    Event::ThreadStarted { .. } => threads += 1,
                    Event::Call(call) => {
                        let (name, abi) = (call.sys.label(), call.sys.abi.name());
                        let key = (name.to_string(), abi.to_string());
                        let row = rows.entry(key.clone()).or_default();
                        (row.name, row.abi) = key;
                        row.calls += 1;
                        row.restarts += u64::from(call.restarts);
                        match call.outcome {
                            Outcome::Failed(errno) => {
                                *row.errors.entry(errno_label(errno).into()).or_default() += 1;
                            }
                            Outcome::Unfinished => row.unfinished += 1,
                            Outcome::Abandoned => row.abandoned += 1,
                            Outcome::Returned(_) | Outcome::NoReturn => {}
                        }
                    }
                    _ => {}
                }
            }
            out.clear();
        }
        assert!(tasks.is_empty(), "somebody was lost");
        (rows.into_values().collect(), processes, threads)
    }

    #[test]
    fn saved_sequences_give_the_counts_of_the_run_that_they_come_from() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/stops");
        let mut replayed = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "gz") {
                continue;
            }
            let file = flate2::read::GzDecoder::new(File::open(&path).unwrap());
            let mut lines = BufReader::new(file).lines().map(Result::unwrap);
            let mut head: Head = serde_json::from_str(&lines.next().unwrap()).unwrap();
            head.rows.sort_by(|a, b| (&a.name, &a.abi).cmp(&(&b.name, &b.abi)));
            let (rows, processes, threads) = replay(lines);
            assert_eq!(rows, head.rows, "{}", path.display());
            assert_eq!((processes, threads), (head.processes, head.threads), "{}", path.display());
            replayed += 1;
        }
        assert!(replayed > 30, "only {replayed} sequences were found");
    }
}
