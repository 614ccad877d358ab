//! Runs cases of a baseline, each in its place.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::check::{Case, Cpus, Exit, Normalise, Normaliser, OUTPUT, Shape, Switch};
use crate::observe::{Moment, RegionSpec, Which};
use crate::record::{Artifact, Collect, Environment, Outcome, Record, Run, RunDir, RunDirError};
use crate::tracer::{Command, Error, Options, Place, high, reason, trace};

/// Of what the command wrote to standard error so much is looked at.
const TAIL: u64 = 4096;
/// And so many lines of it are shown.
const LINES: usize = 5;

/// Runs cases. What it needs for that is removed when it is dropped.
#[derive(Debug)]
pub struct Checker {
    normalise: Normalise,
    /// Where the baseline is.
    directory: PathBuf,
    scratch: tempfile::TempDir,
}

/// A run of a case.
#[derive(Debug)]
pub struct CaseRun {
    /// All of it.
    pub record: Record,
    /// What it looks like to a baseline.
    pub shape: Shape,
    /// How it ended, where that is not as stated.
    pub ended: Option<String>,
    /// The last lines that it wrote to standard error.
    pub stderr: Vec<String>,
}

/// Why a case was not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaseError {
    /// What comes before it failed.
    #[error("prepare: `{command}` {how}")]
    Prepare {
        /// The shell command.
        command: String,
        /// What became of it.
        how: String,
    },
    /// A file or directory of its place.
    #[error("cannot {what} {path}: {}", reason(source))]
    Place {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The tracer could not run it.
    #[error(transparent)]
    Tracer(#[from] Error),
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CaseError {
    let path = path.display().to_string();
    move |source| CaseError::Place { what, path, source }
}

impl Checker {
    /// For a baseline in `directory`.
    ///
    /// # Errors
    /// When there is no room for temporary files.
    pub fn new(normalise: &Normalise, directory: &Path) -> Result<Self, CaseError> {
        // As long each time: the length of TMPDIR is part of the place.
        let made = tempfile::Builder::new().prefix("coldtrace-").rand_bytes(8).tempdir();
        let scratch = made.map_err(failed("make a directory in", &std::env::temp_dir()))?;
        Ok(Self { normalise: normalise.clone(), directory: directory.to_owned(), scratch })
    }

    /// Runs the case once, what prepares it before. `disturb`: as [`Place`] has it.
    ///
    /// # Errors
    /// When it was not run; that it ends otherwise than stated is none.
    pub fn run(&self, case: &Case, disturb: Option<u32>) -> Result<CaseRun, CaseError> {
        let temporary = self.scratch.path().join("tmp");
        let _ = fs::remove_dir_all(&temporary);
        fs::create_dir(&temporary).map_err(failed("make", &temporary))?;
        let cwd = self.cwd(case)?;
        let env = environment(case, &temporary);
        prepare(case, &cwd, &env)?;
        let output = |name: &str| {
            let path = self.scratch.path().join(name);
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            options.open(&path).map_err(failed("write", &path))
        };
        let (stdout, mut stderr) = (output("stdout")?, output("stderr")?);
        let mut command = Command::new(case.command.iter().map(Into::into).collect());
        command.env = env;
        command.env_clear = case.env.clear;
        command.cwd = Some(cwd.clone());
        command.write_to(&stdout, &stderr)?;
        if let Some(path) = &case.stdin {
            let path = self.directory.join(path);
            let file = File::open(&path).map_err(failed("read", &path))?;
            command.stdin = Some(high(&file)?);
        }
        let cpus = match case.cpus {
            Cpus::Some(n) => Some(n as u32),
            Cpus::All => None,
        };
        command.place = Some(Place {
            aslr: case.aslr == Switch::On,
            random: case.random == Switch::On,
            cpus,
            disturb,
        });
        let (record, found) = traced(case, &command)?;
        let normaliser = self.normaliser(&cwd, &found);
        let shape = Shape::of(&record, normaliser);
        let ended = otherwise(&case.exit, &record.outcome);
        let stderr = tail(&mut stderr).unwrap_or_default();
        Ok(CaseRun { record, shape, ended, stderr })
    }

    /// Keeps the last run as a run directory below `runs`, with its output; gives
    /// its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, run: &mut CaseRun, runs: &Path) -> Result<PathBuf, RunDirError> {
        // Made by `Run::now`.
        let start = run.record.run.start.parse().unwrap_or_else(|_| jiff::Timestamp::now());
        let dir = RunDir::create(runs, start, &run.record.run.label)?;
        for (name, log) in [("stdout", "stdout.log"), ("stderr", "stderr.log")] {
            let mut to = dir.file(log)?;
            // What is not there was removed by the command.
            let _ = File::open(self.scratch.path().join(name))
                .and_then(|mut from| io::copy(&mut from, &mut to));
        }
        run.record.run.id = Some(dir.id().into());
        run.record.artifacts = Some(Artifact::all(&dir.path(), None));
        dir.write(&run.record)?;
        Ok(dir.path())
    }

    /// A saved run as a case's.
    pub fn judge_saved(&self, record: Record, exit: &Exit) -> CaseRun {
        let cwd = record.run.cwd.clone().unwrap_or_default();
        let mut found = vec![];
        for name in ["HOME", "TMPDIR"] {
            let kept = record.environment.as_ref().and_then(|e| e.values.get(name).cloned());
            found.extend(kept.map(Into::into).or_else(|| std::env::var_os(name)).map(|value| {
                let mut entry = OsString::from(format!("{name}="));
                entry.push(value);
                entry
            }));
        }
        let normaliser = self.normaliser(Path::new(&cwd), &found);
        let shape = Shape::of(&record, normaliser);
        let ended = otherwise(exit, &record.outcome);
        CaseRun { record, shape, ended, stderr: Vec::new() }
    }

    fn cwd(&self, case: &Case) -> Result<PathBuf, CaseError> {
        let path = match &case.cwd {
            Some(path) => self.directory.join(path),
            None => PathBuf::from("."),
        };
        path.canonicalize().map_err(failed("go to", &path))
    }

    fn normaliser(&self, cwd: &Path, found: &[OsString]) -> Normaliser {
        let variable = |name: &str| {
            if name == "PWD" {
                return Some(cwd.to_string_lossy().into_owned());
            }
            let entry = found.iter().find_map(|entry| {
                entry.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")
            });
            entry.map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let output = self.scratch.path().to_string_lossy();
        Normaliser::new(&self.normalise, variable).with_prefix(OUTPUT, &output)
    }
}

/// Runs what comes before a run.
fn prepare(case: &Case, cwd: &Path, env: &[(OsString, Option<OsString>)]) -> Result<(), CaseError> {
    let Some(text) = &case.prepare else { return Ok(()) };
    let mut shell = std::process::Command::new("/bin/sh");
    shell.arg("-c").arg(text).current_dir(cwd).stdin(std::process::Stdio::null());
    if case.env.clear {
        shell.env_clear();
    }
    for (name, value) in env {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let command = text.clone();
    let how = match shell.output() {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().map(|line| format!(" ({line})"));
            format!("failed: {}{}", output.status, last.unwrap_or_default())
        }
        Err(e) => format!("could not be run: {}", reason(&e)),
    };
    Err(CaseError::Prepare { command, how })
}

/// The record of one run, and the environment that the command found.
fn traced(case: &Case, command: &Command) -> Result<(Record, Vec<OsString>), CaseError> {
    let found = command.environment();
    let options = Options { timeout: case.timeout, ..Options::default() };
    let mut collect = Collect { snapshots: Which::Off, cpu_samples: None, ..Collect::default() };
    for (name, region) in &case.regions {
        // The baseline was validated.
        let moment = |event: &String| Moment::parse(event).ok();
        if let Some(from) = moment(&region.from) {
            let until = region.until.as_ref().and_then(moment);
            collect.regions.push(RegionSpec::new(name, from, until));
        }
    }
    let mut run = Run::now(&command.argv, Some(case.name.clone()));
    run.cwd = command.cwd.as_ref().map(|dir| dir.to_string_lossy().into_owned());
    let environment = Environment::now(&[]).with_variables(&found, &[]);
    let collected = collect
        .from(run, |observers| Ok::<_, Error>((trace(command, &options, observers)?, None)))?;
    let mut record = collected.record;
    record.environment = Some(environment);
    Ok((record, found))
}

/// The changes to the environment that a case states.
fn environment(case: &Case, temporary: &Path) -> Vec<(OsString, Option<OsString>)> {
    let mut env: Vec<(OsString, Option<OsString>)> = Vec::new();
    if case.env.clear {
        env.extend(case.env.pass.iter().map(|name| (name.into(), std::env::var_os(name))));
    }
    env.push(("TMPDIR".into(), Some(temporary.into())));
    env.extend(case.env.unset.iter().map(|name| (name.into(), None)));
    env.extend(case.env.set.iter().map(|(name, value)| (name.into(), Some(value.into()))));
    env
}

/// How it ended, where that is not as stated.
fn otherwise(exit: &Exit, outcome: &Outcome) -> Option<String> {
    if outcome.timed_out {
        return Some(format!("it did not end in time, and was to {exit}"));
    }
    let how = match (outcome.exit_code, &outcome.signal) {
        (Some(status), _) if *exit == Exit::Status(status) => return None,
        (_, Some(name)) if *exit == Exit::Signal(name.clone()) => return None,
        (Some(status), _) => format!("exited {status}"),
        (_, Some(name)) => format!("was killed by {name}"),
        (None, None) => "ended unseen".into(),
    };
    Some(format!("it {how}, and was to {exit}"))
}

/// The last lines of a file.
fn tail(file: &mut File) -> io::Result<Vec<String>> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(LINES);
    Ok(lines.iter().skip(first).map(|line| (*line).to_owned()).collect())
}
