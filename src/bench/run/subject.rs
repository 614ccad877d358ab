//! What is known of one command of a bench.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use super::identity::identity;
use super::{BenchError, Bencher, Making};
use crate::bench::earlier::earlier;
use crate::bench::schedule::{RunKind, Slot};
use crate::bench::types::RunEntry;
use crate::cache::{Label, Observation, WorkingSet, Written};
use crate::record::{CacheState, Environment, Interpreter, Record, RunDir};
use crate::tracer::Command;
use crate::tracer::page_cache::BLOCK_BYTES;

/// What there is of one command.
pub(super) struct Subject {
    pub(super) argv: Vec<OsString>,
    /// Which files it reads.
    pub(super) set: Option<WorkingSet>,
    /// What interprets it, and what its file was then.
    pub(super) interpreter: Option<(Interpreter, Option<Identity>)>,
    /// The first run, which is labelled again when more is known.
    pub(super) first: Option<First>,
    pub(super) entries: Vec<RunEntry>,
}

/// A first run.
pub(super) struct First {
    pub(super) dir: RunDir,
    pub(super) record: Record,
    pub(super) begun: SystemTime,
    pub(super) ended: SystemTime,
}

/// What tells whether a file is the same: device, inode, size, times of its changes.
type Identity = (u64, u64, u64, i64, i64);

pub(super) fn identity_of(path: &str) -> Option<Identity> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

impl Subject {
    /// Of all commands of a bench, with what is known of earlier ones.
    pub(super) fn all(of: &Bencher) -> Vec<Self> {
        let known_by = of.commands.iter().map(|argv| {
            let mut command = Command::new(argv.clone());
            command.env.clone_from(&of.env);
            identity(&command)
        });
        let earlier = earlier(&of.runs, &known_by.collect::<Vec<_>>());
        let subject = |(argv, earlier): (&Vec<OsString>, Option<Record>)| Self {
            argv: argv.clone(),
            set: earlier.as_ref().and_then(WorkingSet::of),
            interpreter: None,
            first: None,
            entries: Vec::new(),
        };
        of.commands.iter().zip(earlier).map(subject).collect()
    }

    /// A traced run has shown which files it reads. What was measured of the first run
    /// holds where they are those that were measured.
    fn learn(&mut self, set: Option<WorkingSet>, interpreter: Option<Interpreter>) {
        self.interpreter = interpreter.map(|interpreter| {
            let identity = identity_of(&interpreter.path);
            (interpreter, identity)
        });
        let Some(set) = set else { return };
        let was_right = self.set.as_ref().is_some_and(|known| known.is_like(&set));
        let (set, interpreter) = (self.set.insert(set), &self.interpreter);
        let Some(first) = &mut self.first else { return };
        if let Some(environment) = first.record.environment.as_mut() {
            environment.interpreter = interpreter.as_ref().map(|(found, _)| found.clone());
        }
        if !was_right {
            let written = Written::between(set, first.begun, first.ended);
            first.label(set, &written, None);
        }
    }

    /// Cold runs have shown how much it reads when nothing is there; whether that told
    /// more of a first run that was not measured.
    fn settle(&mut self) -> bool {
        let of_cold = |run: &&RunEntry| {
            let cold = run.label.as_deref() == Some(Label::Cold.word());
            run.kind == RunKind::Cold && run.failed.is_none() && cold
        };
        let cold = self.entries.iter().filter(of_cold);
        let mut read: Vec<u64> = cold.filter_map(|run| run.metrics.block_in_bytes).collect();
        read.sort_unstable();
        let (Some(&median), Some(set), Some(first)) =
            (read.get(read.len() / 2), &self.set, &mut self.first)
        else {
            return false;
        };
        let Some(cache) = first.record.cache.as_ref() else { return false };
        if cache.resident_before_bytes.is_some() {
            return false;
        }
        let bytecode = cache.bytecode_written;
        let written = bytecode.map(Written::of_count).unwrap_or_default();
        first.label(set, &written, Some(median));
        true
    }
}

impl First {
    /// Labels it by its block input.
    fn label(&mut self, set: &WorkingSet, written: &Written, cold_bytes: Option<u64>) {
        let before = self.record.cache.as_ref().and_then(|cache| cache.first_since_boot);
        let observation = Observation {
            set: Some(set),
            written: Some(written),
            first_since_boot: before,
            cold_bytes,
            ..Observation::default()
        };
        let environment = self.record.environment.clone().unwrap_or_default();
        self.record.cache = Some(cache(observation, &self.record, &environment));
    }
}

impl Making<'_> {
    /// What a traced run has shown of its command; its first run is labelled by it.
    pub(super) fn learn(
        &mut self,
        command: usize,
        set: Option<WorkingSet>,
        interpreter: Option<Interpreter>,
    ) -> Result<(), BenchError> {
        let Some(subject) = self.subjects.get_mut(command) else { return Ok(()) };
        subject.learn(set, interpreter);
        self.write_first(command)
    }

    /// What all runs have shown of the first ones: to be called when they are made.
    pub(super) fn settle(&mut self) -> Result<(), BenchError> {
        for command in 0..self.subjects.len() {
            if self.subjects.get_mut(command).is_some_and(Subject::settle) {
                self.write_first(command)?;
            }
        }
        Ok(())
    }

    fn write_first(&mut self, command: usize) -> Result<(), BenchError> {
        let Some(subject) = self.subjects.get_mut(command) else { return Ok(()) };
        let Some(first) = &subject.first else { return Ok(()) };
        if let Some(entry) = subject.entries.first_mut() {
            let slot = Slot { command, kind: RunKind::First, number: 1 };
            *entry = RunEntry::of(&entry.run, slot, &first.record);
        }
        Ok(first.dir.write(&first.record)?)
    }
}

/// How cold a run was, by what was seen around it and what it used.
pub(super) fn cache(seen: Observation, record: &Record, environment: &Environment) -> CacheState {
    let usage = record.rusage.as_ref();
    Observation {
        block_input_bytes: usage.map(|usage| usage.block_in.saturating_mul(BLOCK_BYTES)),
        minor_faults: usage.map(|usage| usage.minor_faults),
        major_faults: usage.map(|usage| usage.major_faults),
        uptime_ns: environment.uptime_ns,
        ..seen
    }
    .state()
}
