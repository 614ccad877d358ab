//! One run of a bench, and what was seen around it.

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use super::identity::identity;
use super::subject::{First, cache, identity_of};
use super::{BenchError, Making};
use crate::bench::schedule::{RunKind, Slot};
use crate::bench::types::RunEntry;
use crate::cache::{Bytecode, Eviction, Mapped, Observation, WorkingSet, Written};
use crate::record::{Collect, Environment, Interpreter, Record, Run, RunDir};
use crate::tracer::{Command, Cost, Error, Options, give_back, run_untraced, trace};

/// How long what a command leaves behind is followed after its end: a daemon must not
/// hold up the bench.
const LINGER: Duration = Duration::from_secs(2);

impl Making<'_> {
    /// The machine as it is now, and whether what interprets the command is the same.
    fn environment(&mut self, slot: Slot, name: &str, command: &Command) -> Environment {
        let here = Environment::now(&[]).with_variables(&command.environment(), &[]);
        let known = self.subjects.get(slot.command).and_then(|s| s.interpreter.clone());
        let interpreter = known.map(|(interpreter, before)| {
            if identity_of(&interpreter.path) != before {
                let warning = format!("{} was replaced before {name}", interpreter.path);
                self.warnings.push(warning);
            }
            interpreter
        });
        let here = Environment { interpreter, ..here };
        self.environments.push((name.to_owned(), here.clone()));
        here
    }

    fn evict(
        &self,
        set: Option<&WorkingSet>,
        mapped: Option<&Mapped>,
    ) -> Result<Eviction, BenchError> {
        match set.zip(mapped) {
            Some((set, _)) if self.of.drop_caches => Ok(set.evict_all()?),
            None if self.of.drop_caches => Ok(WorkingSet::default().evict_all()?),
            Some((set, mapped)) => Ok(set.evict(mapped)),
            None => Err(BenchError::NoSet),
        }
    }

    pub(super) fn untraced(
        &mut self,
        slot: Slot,
        name: &str,
        dir: RunDir,
    ) -> Result<RunEntry, BenchError> {
        let subject = self.subjects.get(slot.command).ok_or(BenchError::NoSet)?;
        let (argv, mut set) = (subject.argv.clone(), subject.set.clone());
        let first_since_boot = match slot.kind {
            RunKind::First => self.boot.as_ref().and_then(|boot| boot.is_first(&argv).ok()),
            _ => Some(false),
        };
        let command = self.command(&argv, &dir)?;
        let mut run = Run::now(&argv, None);
        run.id = Some(dir.id().into());
        let environment = self.environment(slot, name, &command);
        // What takes long comes before the files are evicted, not between that and the run.
        let bytecode = set.as_ref().map(Bytecode::before);
        let mapped = set.as_ref().map(WorkingSet::mapped);
        give_back();
        let evict = || self.evict(set.as_ref(), mapped.as_ref());
        let evicted = (slot.kind == RunKind::Cold).then(evict).transpose()?;
        let before = set.as_ref().filter(|_| evicted.is_none()).map(WorkingSet::measure);
        let begun = SystemTime::now();
        let ran = run_untraced(&command)?;
        let ended = SystemTime::now();
        let after = set.as_ref().map(WorkingSet::measure);
        if let Some(set) = &mut set {
            set.try_overlays();
        }
        drop(command);
        self.note_boot(&argv);
        self.noted(name, &ran.notes);
        let mut record = Record::of_untraced(run, &ran);
        name.clone_into(&mut record.run.label);
        let written = bytecode.as_ref().map(Written::of_bytecode);
        let observation = Observation {
            set: set.as_ref(),
            mapped: mapped.as_ref(),
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
        if let Some(subject) = self.subjects.get_mut(slot.command) {
            subject.set = set;
            if slot.kind == RunKind::First {
                subject.first = Some(First { dir, record, begun, ended });
            }
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
        let known_by = identity(&command);
        drop(command);
        let mut record = collected.record;
        self.noted(name, &record.measurement.notes);
        environment.interpreter = Interpreter::of(&record);
        let mut set = WorkingSet::of(&record);
        if let Some(set) = &mut set {
            set.try_overlays();
        }
        let observation = Observation {
            set: set.as_ref(),
            written: Some(&Written::of(&record)),
            first_since_boot: Some(false),
            ..Observation::default()
        };
        let mut cache = cache(observation, &record, &environment);
        cache.command_sha256 = Some(known_by);
        record.cache = Some(cache);
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
