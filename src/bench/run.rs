//! Makes the runs of a bench, each with a run directory of its own.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::cache::{
    BootRuns, Bytecode, DropError, Eviction, Observation, WorkingSet, Written, may_drop_caches,
    state_directory,
};
use crate::record::{
    Artifact, CacheState, Collect, Environment, Interpreter, Record, Run, RunDir, RunDirError, Tool,
};
use crate::syscall::errno::signal_name;
use crate::tracer::{Command, Cost, Ending, Error, Held, Options, give_back, run_untraced, trace};

use super::earlier::earlier;
use super::schedule::{Plan, RunKind, Slot};
use super::summary::{comparisons, warnings};
use super::types::{Asked, Bench, CommandBench, RunEntry, SCHEMA};

/// The unit of `ru_inblock`, bytes.
const BLOCK: u64 = 512;

/// By so much the times of files may lag behind the clock.
const LAG: Duration = Duration::from_millis(20);

/// A bench that is to be made.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Bencher {
    /// The commands, each with its arguments.
    pub commands: Vec<Vec<OsString>>,
    /// Changes to their environment: `None` removes.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Runs of each kind.
    pub plan: Plan,
    /// Shell command before each run.
    pub prepare: Option<String>,
    /// Shell command before all.
    pub setup: Option<String>,
    /// Shell command after all, also when they were cut short.
    pub cleanup: Option<String>,
    /// Drop the machine's caches before cold runs, instead of evicting the command's files.
    pub drop_caches: bool,
    /// Go on when the first run fails.
    pub ignore_failure: bool,
    /// The commands write to this process's own stdout and stderr instead of to files.
    pub pass_output: bool,
    /// Name of the bench, instead of the first command's.
    pub label: Option<String>,
    /// Where its directory is made.
    pub runs: PathBuf,
}

/// Why a bench ended before all its runs were made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A directory or file of the bench.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The command could not be run, or not traced.
    #[error(transparent)]
    Tracer(#[from] Error),
    /// The machine's caches could not be dropped.
    #[error(transparent)]
    Drop(#[from] DropError),
    /// A shell command around the runs failed.
    #[error("{what}: `{command}` {how}; what it said is in {}", log.display())]
    Shell {
        /// `setup`, `prepare` or `cleanup`.
        what: &'static str,
        /// The command.
        command: String,
        /// How it ended.
        how: String,
        /// What it wrote.
        log: PathBuf,
    },
    /// The files of a command are not known.
    #[error(
        "cold runs need to know which files the command reads: no run was traced that ended \
         well; --traced 1 traces one"
    )]
    NoSet,
}

/// What came of a bench.
#[derive(Debug)]
#[non_exhaustive]
pub struct Benched {
    /// The runs that were made, and what they say.
    pub bench: Bench,
    /// Its directory; `None` where no run was made and it was removed again.
    pub path: Option<PathBuf>,
    /// Why not all were made.
    pub error: Option<BenchError>,
}

/// How far a bench is.
#[derive(Debug)]
#[non_exhaustive]
pub struct Progress<'a> {
    /// Runs that were made.
    pub done: usize,
    /// Runs of the schedule.
    pub all: usize,
    /// The one that comes.
    pub next: &'a str,
}

/// What there is of one command.
struct Subject {
    argv: Vec<OsString>,
    /// Which files it reads.
    set: Option<WorkingSet>,
    /// What interprets it, and what its file was then.
    interpreter: Option<(Interpreter, Option<Identity>)>,
    first_since_boot: Option<bool>,
    /// The first run, which is labelled when the working set is known.
    first: Option<First>,
    entries: Vec<RunEntry>,
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

/// A bench in the making.
struct Making<'a> {
    of: &'a Bencher,
    dir: RunDir,
    subjects: Vec<Subject>,
    boot: Option<BootRuns>,
    /// The machine before each run.
    environments: Vec<(String, Environment)>,
    warnings: Vec<String>,
}

impl Bencher {
    /// Makes the runs. `held` says when somebody wants an end; `progress` is told before
    /// each.
    ///
    /// # Errors
    /// When its directory cannot be made. What goes wrong later is in the answer.
    pub fn run(
        &self,
        held: &Held,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Benched, BenchError> {
        let first = self.commands.first().map_or(&[][..], Vec::as_slice);
        if self.drop_caches {
            may_drop_caches()?; // It is better known now than after the first runs.
        }
        let run = Run::now(first, self.label.clone());
        let start = run.start.parse().unwrap_or_else(|_| jiff::Timestamp::now());
        let dir = RunDir::create(&self.runs, start, &run.label)?;
        let state = state_directory().unwrap_or_else(|| self.runs.clone());
        let boot = BootRuns::within(&state);
        let subjects =
            self.commands.iter().map(|argv| Subject::new(argv, &self.runs, boot.as_ref()));
        let mut making = Making {
            of: self,
            subjects: subjects.collect(),
            boot,
            environments: Vec::new(),
            warnings: Vec::new(),
            dir,
        };
        let error = making.all(held, progress).err();
        Ok(making.finish(run, held, error))
    }
}

impl Making<'_> {
    fn all(&mut self, held: &Held, progress: &mut dyn FnMut(&Progress)) -> Result<(), BenchError> {
        if let Some(text) = &self.of.setup {
            self.shell("setup", text, &self.dir)?;
        }
        let made = self.slots(held, progress);
        // What `setup` did is undone whatever came of the runs.
        let undone = match &self.of.cleanup {
            Some(text) => self.shell("cleanup", text, &self.dir),
            None => Ok(()),
        };
        made.and(undone)
    }

    fn slots(
        &mut self,
        held: &Held,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(), BenchError> {
        let slots = self.of.plan.slots(self.subjects.len());
        for (done, &slot) in slots.iter().enumerate() {
            if held.signal().is_some() {
                break;
            }
            let name = slot.name(self.subjects.len());
            progress(&Progress { done, all: slots.len(), next: &name });
            let dir = self.dir.within(&name)?;
            let path = dir.path();
            if let Some(text) = &self.of.prepare {
                self.shell("prepare", text, &dir)?;
            }
            if held.signal().is_some() {
                dir.discard();
                break;
            }
            let made = match slot.kind {
                RunKind::Traced => self.traced(slot, &name, &dir),
                _ => self.untraced(slot, &name, dir),
            };
            let entry = match made {
                Ok(entry) => entry,
                Err(error) => {
                    let _ = fs::remove_dir_all(path); // Nothing was run: nothing to keep.
                    return Err(error);
                }
            };
            let failed = entry.failed.is_some();
            if let Some(subject) = self.subjects.get_mut(slot.command) {
                subject.entries.push(entry);
            }
            if held.signal().is_some() {
                self.cut_off(slot.command);
                break;
            }
            if failed && slot.kind == RunKind::First && !self.of.ignore_failure {
                break; // There is nothing to repeat.
            }
        }
        Ok(())
    }

    /// The last run of a command was ended with the bench, and says nothing.
    fn cut_off(&mut self, command: usize) {
        let last = self.subjects.get_mut(command).and_then(|subject| subject.entries.last_mut());
        if let Some(entry) = last.filter(|entry| entry.failed.is_none()) {
            entry.failed = Some("cut off".into());
        }
    }

    /// A command as it is run, with its output in the run directory.
    fn command(&self, argv: &[OsString], dir: &RunDir) -> Result<Command, BenchError> {
        let mut command = Command::new(argv.to_vec());
        command.env.clone_from(&self.of.env);
        let (stdout, stderr) = (dir.file("stdout.log")?, dir.file("stderr.log")?);
        command.write_to(&stdout, &stderr)?;
        if self.of.pass_output {
            (command.stdout, command.stderr) = (None, None);
        }
        Ok(command)
    }

    /// Runs a shell command and waits for it; its output is in `dir`.
    fn shell(&self, what: &'static str, text: &str, dir: &RunDir) -> Result<(), BenchError> {
        let log = format!("{what}.log");
        let output = dir.file(&log)?;
        let mut command = Command::new(["/bin/sh", "-c", text].map(OsString::from).to_vec());
        command.env.clone_from(&self.of.env);
        command.write_to(&output, &output)?;
        let how = match run_untraced(&command)?.ending {
            Ending::Exited(0) => return Ok(()),
            Ending::Exited(code) => format!("exited {code}"),
            Ending::Killed { signal, .. } => format!("was killed by {}", signal_name(signal)),
            Ending::Detached => "ended unseen".into(),
        };
        Err(BenchError::Shell { what, command: text.into(), how, log: dir.path().join(log) })
    }

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

    fn untraced(&mut self, slot: Slot, name: &str, dir: RunDir) -> Result<RunEntry, BenchError> {
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

    fn traced(&mut self, slot: Slot, name: &str, dir: &RunDir) -> Result<RunEntry, BenchError> {
        let subject = self.subjects.get(slot.command).ok_or(BenchError::NoSet)?;
        let argv = subject.argv.clone();
        let command = self.command(&argv, dir)?;
        let mut run = Run::now(&argv, None);
        run.id = Some(dir.id().into());
        name.clone_into(&mut run.label);
        let mut environment = self.environment(slot, name, &command);
        let collected = Collect::default().from(run, |observers| {
            let traced = trace(&command, &Options::default(), observers)?;
            Ok::<_, Error>((traced, Cost::measure()))
        })?;
        drop(command);
        let mut record = collected.record;
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

    fn write(&self, dir: &RunDir, record: &mut Record) -> Result<(), BenchError> {
        if !self.of.pass_output {
            record.outcome.stdout_bytes = dir.size("stdout.log");
            record.outcome.stderr_bytes = dir.size("stderr.log");
        }
        record.artifacts = Some(Artifact::all(&dir.path(), None));
        Ok(dir.write(record)?)
    }

    /// What the runs say; it is written down where there is any.
    fn finish(self, run: Run, held: &Held, error: Option<BenchError>) -> Benched {
        let Self { of, dir, subjects, environments, warnings: noted, .. } = self;
        let any = subjects.iter().any(|subject| !subject.entries.is_empty());
        let mut all = warnings(&environments);
        all.extend(noted);
        let commands: Vec<CommandBench> = subjects
            .into_iter()
            .map(|subject| {
                let argv = subject.argv.iter().map(|word| word.to_string_lossy().into_owned());
                CommandBench::of(argv.collect(), subject.entries)
            })
            .collect();
        let bench = Bench {
            schema: SCHEMA.into(),
            tool: Tool::this(),
            id: Some(dir.id().into()),
            label: run.label,
            start: run.start,
            asked: Some(of.asked()),
            environment: environments.into_iter().next().map(|(_, environment)| environment),
            comparisons: comparisons(&commands),
            commands,
            warnings: all,
            interrupted: held.signal().map(|signal| signal_name(signal).into_owned()),
            joined: Vec::new(),
        };
        if !any {
            // What a shell command said is to be read.
            let keep = matches!(error, Some(BenchError::Shell { .. }));
            let path = keep.then(|| dir.path());
            if !keep {
                dir.discard();
            }
            return Benched { bench, path, error };
        }
        let written = dir.write_as("bench.json", &bench).err().map(Into::into);
        Benched { bench, path: Some(dir.path()), error: error.or(written) }
    }
}

impl Subject {
    fn new(argv: &[OsString], runs: &Path, boot: Option<&BootRuns>) -> Self {
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

impl Bencher {
    fn asked(&self) -> Asked {
        Asked {
            runs: self.plan,
            prepare: self.prepare.clone(),
            setup: self.setup.clone(),
            cleanup: self.cleanup.clone(),
            drop_caches: self.drop_caches,
            ignore_failure: self.ignore_failure,
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
