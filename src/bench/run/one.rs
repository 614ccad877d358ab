//! One run of a bench: what is known of its command, and what was seen around it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{BenchError, Making};
use crate::bench::earlier::earlier;
use crate::bench::schedule::{RunKind, Slot};
use crate::bench::types::RunEntry;
use crate::cache::{BootRuns, Bytecode, Eviction, Observation, WorkingSet, Written};
use crate::record::{CacheState, Collect, Environment, Interpreter, Record, Run, RunDir};
use crate::tracer::{Command, Cost, Error, Options, give_back, run_untraced, trace};

/// The unit of `ru_inblock`, bytes.
const BLOCK: u64 = 512;

/// How long what a command leaves behind is followed after its end: a daemon must not
/// hold up the bench.
const LINGER: Duration = Duration::from_secs(2);

/// By so much the times of files may lag behind the clock.
const LAG: Duration = Duration::from_millis(20);

/// What there is of one command.
pub(super) struct Subject {
    pub(super) argv: Vec<OsString>,
    /// Which files it reads.
    pub(super) set: Option<WorkingSet>,
    /// What interprets it, and what its file was then.
    interpreter: Option<(Interpreter, Option<Identity>)>,
    first_since_boot: Option<bool>,
    /// The first run, which is labelled when the working set is known.
    first: Option<First>,
    pub(super) entries: Vec<RunEntry>,
}

struct First {
    dir: RunDir,
    record: Record,
    begun: SystemTime,
    ended: SystemTime,
}

/// What tells whether a file is the same: device, inode, size, times of its changes.
type Identity = (u64, u64, u64, i64, i64);

fn identity(path: &str) -> Option<Identity> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

impl Subject {
    pub(super) fn new(argv: &[OsString], runs: &Path, boot: Option<&BootRuns>) -> Self {
        let words: Vec<String> = argv.iter().map(|w| w.to_string_lossy().into_owned()).collect();
        let earlier = earlier(runs, &words);
        let first = boot.and_then(|boot| boot.is_first(argv).ok());
        Self {
            argv: argv.to_vec(),
            set: earlier.as_ref().and_then(WorkingSet::of),
            interpreter: None,
            first_since_boot: first,
            first: None,
            entries: Vec::new(),
        }
    }
}

impl Making<'_> {
    /// The machine as it is now, and whether what interprets the command is the same.
    fn environment(&mut self, slot: Slot, name: &str, command: &Command) -> Environment {
        let here = Environment::now(&[]).with_variables(&command.environment(), &[]);
        let known = self.subjects.get(slot.command).and_then(|s| s.interpreter.clone());
        let interpreter = known.map(|(interpreter, before)| {
            if identity(&interpreter.path) != before {
                let warning = format!("{} was replaced before {name}", interpreter.path);
                self.warnings.push(warning);
            }
            interpreter
        });
        let here = Environment { interpreter, ..here };
        self.environments.push((name.to_owned(), here.clone()));
        here
    }

    fn evict(&self, set: Option<&WorkingSet>) -> Result<Eviction, BenchError> {
        match set {
            Some(set) if self.of.drop_caches => Ok(set.evict_all()?),
            None if self.of.drop_caches => Ok(WorkingSet::default().evict_all()?),
            Some(set) => Ok(set.evict()),
            None => Err(BenchError::NoSet),
        }
    }

    pub(super) fn untraced(
        &mut self,
        slot: Slot,
        name: &str,
        dir: RunDir,
    ) -> Result<RunEntry, BenchError> {
        let subject = self.subjects.get_mut(slot.command).ok_or(BenchError::NoSet)?;
        let (argv, set) = (subject.argv.clone(), subject.set.clone());
        let first_since_boot = match slot.kind {
            RunKind::First => subject.first_since_boot.take(),
            _ => Some(false),
        };
        let command = self.command(&argv, &dir)?;
        let mut run = Run::now(&argv, None);
        run.id = Some(dir.id().into());
        let environment = self.environment(slot, name, &command);
        let evicted = (slot.kind == RunKind::Cold).then(|| self.evict(set.as_ref())).transpose()?;
        let bytecode = set.as_ref().map(Bytecode::before);
        let before = set.as_ref().map(WorkingSet::measure);
        give_back();
        let begun = SystemTime::now();
        let ran = run_untraced(&command)?;
        let ended = SystemTime::now();
        let after = set.as_ref().map(WorkingSet::measure);
        drop(command);
        self.note_boot(&argv);
        self.noted(name, &ran.notes);
        let mut record = Record::of_untraced(run, &ran);
        name.clone_into(&mut record.run.label);
        let written = bytecode.as_ref().map(Written::of_bytecode);
        let observation = Observation {
            set: set.as_ref(),
            eviction: evicted.as_ref(),
            before: before.as_ref(),
            after: after.as_ref(),
            written: written.as_ref(),
            first_since_boot,
            ..Observation::default()
        };
        record.cache = Some(cache(observation, &record, &environment));
        record.environment = Some(environment);
        self.write(&dir, &mut record)?;
        let entry = RunEntry::of(name, slot, &record);
        if slot.kind == RunKind::First
            && let Some(subject) = self.subjects.get_mut(slot.command)
        {
            subject.first = Some(First { dir, record, begun, ended });
        }
        Ok(entry)
    }

    pub(super) fn traced(
        &mut self,
        slot: Slot,
        name: &str,
        dir: &RunDir,
    ) -> Result<RunEntry, BenchError> {
        let subject = self.subjects.get(slot.command).ok_or(BenchError::NoSet)?;
        let argv = subject.argv.clone();
        let command = self.command(&argv, dir)?;
        let mut run = Run::now(&argv, None);
        run.id = Some(dir.id().into());
        let path = dir.path();
        let path = path.canonicalize().unwrap_or(path);
        run.output = Some(path.to_string_lossy().into_owned());
        name.clone_into(&mut run.label);
        let mut environment = self.environment(slot, name, &command);
        let collected = Collect::default().from(run, |observers| {
            let options = Options { linger: Some(LINGER), ..Options::default() };
            let traced = trace(&command, &options, observers)?;
            Ok::<_, Error>((traced, Cost::measure()))
        })?;
        drop(command);
        let mut record = collected.record;
        self.noted(name, &record.measurement.notes);
        environment.interpreter = Interpreter::of(&record);
        let set = WorkingSet::of(&record);
        let observation = Observation {
            set: set.as_ref(),
            written: Some(&Written::of(&record)),
            first_since_boot: Some(false),
            ..Observation::default()
        };
        record.cache = Some(cache(observation, &record, &environment));
        record.environment = Some(environment.clone());
        self.write(dir, &mut record)?;
        let entry = RunEntry::of(name, slot, &record);
        if let Some((_, noted)) = self.environments.last_mut() {
            noted.interpreter.clone_from(&environment.interpreter);
        }
        if entry.failed.is_none() {
            self.learn(slot.command, set, environment.interpreter)?;
        }
        Ok(entry)
    }

    /// What a traced run has shown of its command; its first run is labelled by it.
    fn learn(
        &mut self,
        command: usize,
        set: Option<WorkingSet>,
        interpreter: Option<Interpreter>,
    ) -> Result<(), BenchError> {
        let Some(subject) = self.subjects.get_mut(command) else { return Ok(()) };
        subject.interpreter = interpreter.map(|interpreter| {
            let identity = identity(&interpreter.path);
            (interpreter, identity)
        });
        let was_known = subject.set.is_some();
        subject.set = set.or(subject.set.take());
        let (Some(set), Some(mut first)) = (&subject.set, subject.first.take()) else {
            return Ok(());
        };
        let Some(environment) = first.record.environment.as_mut() else { return Ok(()) };
        environment.interpreter = subject.interpreter.as_ref().map(|(found, _)| found.clone());
        if !was_known {
            let environment = environment.clone();
            let written = Written::of_count(bytecode_between(set, first.begun, first.ended));
            let before = first.record.cache.as_ref().and_then(|cache| cache.first_since_boot);
            let observation = Observation {
                set: Some(set),
                written: Some(&written),
                first_since_boot: before,
                ..Observation::default()
            };
            first.record.cache = Some(cache(observation, &first.record, &environment));
        }
        if let Some(entry) = subject.entries.first_mut() {
            let slot = Slot { command, kind: RunKind::First, number: 1 };
            *entry = RunEntry::of(&entry.run, slot, &first.record);
        }
        Ok(first.dir.write(&first.record)?)
    }

    fn note_boot(&mut self, argv: &[OsString]) {
        if let Some(Err(e)) = self.boot.as_ref().map(|boot| boot.note(argv)) {
            self.warnings.push(format!(
                "cannot note that it was run since boot: {}",
                crate::tracer::reason(&e)
            ));
            self.boot = None; // Once is enough.
        }
    }
}

/// How cold a run was, by what was seen around it and what it used.
fn cache(seen: Observation, record: &Record, environment: &Environment) -> CacheState {
    let usage = record.rusage.as_ref();
    let mut state = Observation {
        block_input_bytes: usage.map(|usage| usage.block_in.saturating_mul(BLOCK)),
        major_faults: usage.map(|usage| usage.major_faults),
        ..seen
    }
    .state();
    // The first run is labelled later.
    state.uptime_ns = environment.uptime_ns;
    state
}

/// Files of bytecode of a set that were written between two moments.
fn bytecode_between(set: &WorkingSet, begun: SystemTime, ended: SystemTime) -> u64 {
    let written = set.files().iter().filter(|file| {
        let is_bytecode = file.path.extension().is_some_and(|ending| ending == "pyc");
        // Its time of change is when it was given its name.
        let changed = fs::metadata(&file.path).ok().and_then(|metadata| {
            let since = Duration::new(
                u64::try_from(metadata.ctime()).ok()?,
                u32::try_from(metadata.ctime_nsec()).ok()?,
            );
            SystemTime::UNIX_EPOCH.checked_add(since)
        });
        is_bytecode && changed.is_some_and(|at| at + LAG >= begun && at <= ended)
    });
    written.count() as u64
}
