//! Makes the runs of a bench, each with a run directory of its own.

mod identity;
mod one;
mod subject;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::cache::{BootRuns, DropError, may_drop_caches, state_directory};
use crate::record::{Artifact, Environment, Record, Run, RunDir, RunDirError, Tool};
use crate::syscall::errno::signal_name;
use crate::tracer::{Command, Ending, Error, Held, run_untraced};

use super::schedule::{Plan, RunKind};
use super::summary::{comparisons, warnings};
use super::types::{Asked, Bench, CommandBench, SCHEMA};
use subject::Subject;

/// How often what was measured so far is written down, between runs: whoever is killed
/// loses no more.
const SAVE_EVERY: Duration = Duration::from_secs(2);

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

/// A bench in the making.
struct Making<'a> {
    of: &'a Bencher,
    dir: RunDir,
    subjects: Vec<Subject>,
    boot: Option<BootRuns>,
    run: Run,
    /// The machine before the first run, and before those that found it changed.
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
        let mut making = Making {
            of: self,
            subjects: Subject::all(self),
            boot,
            environments: Vec::new(),
            warnings: Vec::new(),
            run,
            dir,
        };
        let error = making.all(held, progress).err();
        let error = error.or(making.settle().err());
        Ok(making.finish(held, error))
    }
}

impl Making<'_> {
    fn all(&mut self, held: &Held, progress: &mut dyn FnMut(&Progress)) -> Result<(), BenchError> {
        if let Some(text) = &self.of.setup {
            self.shell("setup", text, &self.dir)?;
        }
        let made = self.look_ahead().and_then(|()| self.slots(held, progress));
        // What `setup` did is undone whatever came of the runs.
        let undone = match &self.of.cleanup {
            Some(text) => self.shell("cleanup", text, &self.dir),
            None => Ok(()),
        };
        made.and(undone)
    }

    /// What can be known before the first run, of which there is one only.
    fn look_ahead(&self) -> Result<(), BenchError> {
        let Plan { cold, traced, .. } = self.of.plan;
        let no_set = |subject: &Subject| subject.set.is_none();
        if cold > 0 && traced == 0 && !self.of.drop_caches && self.subjects.iter().any(no_set) {
            return Err(BenchError::NoSet);
        }
        if self.of.prepare.is_some() {
            return Ok(()); // It may make what is to be run.
        }
        for subject in &self.subjects {
            let mut command = Command::new(subject.argv.clone());
            command.env.clone_from(&self.of.env);
            command.look_up()?;
        }
        Ok(())
    }

    fn slots(
        &mut self,
        held: &Held,
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<(), BenchError> {
        let slots = self.of.plan.slots(self.subjects.len());
        let mut saved = Instant::now();
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
                    if !matches!(error, BenchError::RunDir(_)) {
                        let _ = fs::remove_dir_all(path); // Nothing was run: nothing to keep.
                    }
                    return Err(error);
                }
            };
            self.forget_the_same();
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
            if saved.elapsed() > SAVE_EVERY {
                let bench = Bench { unfinished: true, ..self.bench(held) };
                self.dir.write_as("bench.json", &bench)?;
                saved = Instant::now();
            }
        }
        Ok(())
    }

    /// Keeps of the machine what differs only: there may be very many runs.
    fn forget_the_same(&mut self) {
        let [first, .., last] = self.environments.as_slice() else { return };
        if warnings(&[first.clone(), last.clone()]) == warnings(std::slice::from_ref(first)) {
            self.environments.pop();
        }
    }

    /// What tracing or timing a run had to say, each thing once.
    fn noted(&mut self, run: &str, notes: &[String]) {
        for note in notes {
            if !self.warnings.iter().any(|warning| warning.ends_with(note)) {
                self.warnings.push(format!("{run}: {note}"));
            }
        }
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

    fn write(&self, dir: &RunDir, record: &mut Record) -> Result<(), BenchError> {
        if !self.of.pass_output {
            record.outcome.stdout_bytes = dir.size("stdout.log");
            record.outcome.stderr_bytes = dir.size("stderr.log");
        }
        record.artifacts = Some(Artifact::all(&dir.path(), None));
        Ok(dir.write(record)?)
    }

    /// What the runs say so far.
    fn bench(&self, held: &Held) -> Bench {
        let mut all = warnings(&self.environments);
        all.extend_from_slice(&self.warnings);
        let of_subject = |subject: &Subject| {
            let argv = subject.argv.iter().map(|word| word.to_string_lossy().into_owned());
            CommandBench::of(argv.collect(), subject.entries.clone())
        };
        let commands: Vec<CommandBench> = self.subjects.iter().map(of_subject).collect();
        Bench {
            schema: SCHEMA.into(),
            tool: Tool::this(),
            id: Some(self.dir.id().into()),
            label: self.run.label.clone(),
            start: self.run.start.clone(),
            asked: Some(self.of.asked()),
            environment: self.environments.first().map(|(_, environment)| environment.clone()),
            comparisons: comparisons(&commands),
            commands,
            warnings: all,
            interrupted: held.signal().map(|signal| signal_name(signal).into_owned()),
            unfinished: false,
            joined: Vec::new(),
        }
    }

    /// What the runs say; it is written down where there is any.
    fn finish(self, held: &Held, error: Option<BenchError>) -> Benched {
        let bench = self.bench(held);
        let dir = self.dir;
        if bench.commands.iter().all(|command| command.runs.is_empty()) {
            // What a shell command said is to be read.
            let keep = matches!(error, Some(BenchError::Shell { .. })) && held.signal().is_none();
            let path = keep.then(|| dir.path());
            if keep {
                dir.give_up();
            } else {
                dir.discard();
            }
            return Benched { bench, path, error };
        }
        let written = dir.write_as("bench.json", &bench).err().map(Into::into);
        let path = Some(dir.path()).filter(|path| path.is_dir());
        Benched { bench, path, error: error.or(written) }
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
