//! Runs cases of a baseline, each in its place.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::check::{Case, Cpus, Exit, Normalise, Normaliser, OUTPUT, Shape, Switch};
use crate::observe::{Moment, RegionSpec, Which};
use crate::record::{Artifact, Collect, Environment, Outcome, Record, Run, RunDir, RunDirError};
use crate::scratch::Scratch;
use crate::tracer::{Command, Engines, Error, Options, Place, end_group, high, reason, trace};

/// Of what the command wrote to standard error so much is looked at.
const TAIL: u64 = 4096;
/// And so many lines of it are shown.
const LINES: usize = 5;
/// A run, and what comes before it, ends after this where the case has no timeout: a
/// job that never ends tells nobody why.
const LONGEST: Duration = Duration::from_mins(10);
/// So often it is looked whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// The variables whose values the record of a run keeps: its paths begin there.
pub(crate) const KEPT: [&str; 2] = ["HOME", "TMPDIR"];

/// Runs cases. What it needs for that is removed when it is dropped.
#[derive(Debug)]
pub struct Checker {
    normalise: Normalise,
    /// Where the baseline is.
    directory: PathBuf,
    scratch: Scratch,
    engine: Engines,
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
    /// A file or directory that the case names.
    #[error("{key}: cannot {what} {path}: {}", reason(source))]
    Key {
        /// The case's key: `stdin`, `cwd`.
        key: &'static str,
        /// What was tried.
        what: &'static str,
        /// The file.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A file or directory that it needs beside that.
    #[error("cannot {what} {path}: {}", reason(source))]
    Place {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Its command is not there.
    #[error("cannot run {name}: not found in {directory}")]
    NotFound {
        /// The command: a name with a slash that does not begin with one.
        name: String,
        /// The directory from which it leads.
        directory: String,
    },
    /// The tracer could not run it.
    #[error(transparent)]
    Tracer(#[from] Error),
}

impl CaseError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Prepare { .. } => "check `prepare` in the case, a shell command, and its timeout",
            Self::Key { key: "stdin", .. } => {
                "`stdin` in the case is a file, from the baseline's directory"
            }
            Self::Key { .. } => "`cwd` in the case is a directory, from the baseline's",
            Self::Place { .. } => "TMPDIR says where temporary files are made",
            Self::NotFound { .. } => "`cwd` in the case says where its command leads from",
            Self::Tracer(Error::NotFound { name }) if !name.contains('/') => {
                "check its command; a name is looked for in the PATH of its env"
            }
            Self::Tracer(_) => "check its command in the baseline",
        }
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CaseError + use<> {
    let path = path.display().to_string();
    move |source| CaseError::Place { what, path, source }
}

fn key(
    key: &'static str,
    what: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CaseError + use<> {
    let path = path.display().to_string();
    move |source| CaseError::Key { key, what, path, source }
}

/// The same, with the directory from which the command's name leads, if it does.
fn led_from(error: CaseError, cwd: &Path) -> CaseError {
    match error {
        CaseError::Tracer(Error::NotFound { name })
            if !name.starts_with('/') && name.contains('/') =>
        {
            CaseError::NotFound { name, directory: cwd.display().to_string() }
        }
        other => other,
    }
}

impl Checker {
    /// For a baseline in `directory`.
    ///
    /// # Errors
    /// When there is no room for temporary files.
    pub fn new(normalise: &Normalise, directory: &Path) -> Result<Self, CaseError> {
        let made = Scratch::new();
        let scratch = made.map_err(failed("make a directory in", &std::env::temp_dir()))?;
        let (normalise, directory) = (normalise.clone(), directory.to_owned());
        Ok(Self { normalise, directory, scratch, engine: Engines::default() })
    }

    /// The same, which counts calls so.
    #[must_use]
    pub fn with_engine(self, engine: Engines) -> Self {
        Self { engine, ..self }
    }

    /// Where a run's output is: not above its TMPDIR, which is another place to a rule.
    fn output(&self) -> PathBuf {
        self.scratch.path().join("out")
    }

    /// Runs the case once, what prepares it before. `disturb`: as [`Place`] has it;
    /// PATH and HOME are longer then, too, and mean the same: what hangs on how long
    /// they are is to be seen to vary. `asked`: whether somebody wants an end, which
    /// what prepares it is told so.
    ///
    /// # Errors
    /// When it was not run; that it ends otherwise than stated is none.
    pub fn run(
        &self,
        case: &Case,
        disturb: Option<u32>,
        asked: &dyn Fn() -> bool,
    ) -> Result<CaseRun, CaseError> {
        let temporary = self.scratch.temporary();
        let temporary = temporary.map_err(failed("empty", &self.scratch.path().join("tmp")))?;
        let cwd = self.cwd(case)?;
        let env = environment(case, &temporary);
        prepare(case, &cwd, &env, asked)?;
        std::fs::create_dir_all(self.output()).map_err(failed("make", &self.output()))?;
        let output = |name: &str| {
            let path = self.output().join(name);
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            options.open(&path).map_err(failed("write", &path))
        };
        let (stdout, mut stderr) = (output("stdout.log")?, output("stderr.log")?);
        let mut command = Command::new(case.command.iter().map(Into::into).collect());
        command.env = env;
        command.env_clear = case.env.clear;
        command.cwd = Some(cwd.clone());
        command.write_to(&stdout, &stderr)?;
        if let Some(path) = &case.stdin {
            let path = self.directory.join(path);
            let file = File::open(&path).map_err(key("stdin", "read", &path))?;
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
        let found = command.environment();
        if let Some(seed) = disturb {
            lengthen(&mut command, &found, seed);
        }
        let record = self.traced(case, &command, &found).map_err(|e| led_from(e, &cwd))?;
        let output = self.output();
        let output = output.to_string_lossy();
        let normaliser = self.normaliser(&cwd, &found).with_prefix(OUTPUT, &output);
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
        for name in ["stdout.log", "stderr.log"] {
            let mut to = dir.file(name)?;
            // What is not there was removed by the command.
            let _ = File::open(self.output().join(name))
                .and_then(|mut from| io::copy(&mut from, &mut to));
        }
        run.record.run.id = Some(dir.id().into());
        run.record.artifacts = Some(Artifact::all(&dir.path(), None));
        dir.write(&run.record)?;
        Ok(dir.path())
    }

    /// A saved run as a case's: with the directories that it had.
    pub fn judge_saved(&self, record: Record, exit: &Exit) -> CaseRun {
        let cwd = record.run.cwd.clone().unwrap_or_default();
        let mut found: Vec<OsString> = Vec::new();
        for name in self.named() {
            let environment = record.environment.as_ref();
            let kept = environment.and_then(|e| e.values.get(name).map(OsString::from));
            // What was there and not kept is taken to be what is here.
            let known = environment.is_none_or(|e| e.variables.iter().any(|found| found == name));
            let value = kept.or_else(|| std::env::var_os(name).filter(|_| known));
            found.extend(value.map(|value| [OsStr::new(name), &value].join(OsStr::new("="))));
        }
        let mut normaliser = self.normaliser(Path::new(&cwd), &found);
        if let Some(output) = &record.run.output {
            normaliser = normaliser.with_prefix(OUTPUT, output);
        }
        let shape = Shape::of(&record, normaliser);
        let ended = otherwise(exit, &record.outcome);
        CaseRun { record, shape, ended, stderr: Vec::new() }
    }

    /// The variables by which directories are named.
    fn named(&self) -> impl Iterator<Item = &str> {
        let prefixes = self.normalise.prefixes.values();
        let named = prefixes.filter_map(|value| value.strip_prefix('$'));
        KEPT.into_iter().chain(named.filter(|name| *name != "PWD" && !KEPT.contains(name)))
    }

    /// The record of one run; the command found what is in `found`, or longer.
    fn traced(
        &self,
        case: &Case,
        command: &Command,
        found: &[OsString],
    ) -> Result<Record, CaseError> {
        let (timeout, engine) = (case.timeout.or(Some(LONGEST)), self.engine.clone());
        let options = Options { timeout, engine, ..Options::default() };
        let mut collect =
            Collect { snapshots: Which::Off, cpu_samples: None, ..Collect::default() };
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
        run.output = Some(self.output().to_string_lossy().into_owned());
        let named: Vec<String> = self.named().map(str::to_owned).collect();
        let environment = Environment::now(&[]).with_variables(found, &named);
        let collected = collect
            .from(run, |observers| Ok::<_, Error>((trace(command, &options, observers)?, None)))?;
        let mut record = collected.record;
        record.environment = Some(environment);
        Ok(record)
    }

    fn cwd(&self, case: &Case) -> Result<PathBuf, CaseError> {
        let path = match &case.cwd {
            Some(path) => self.directory.join(path),
            None => PathBuf::from("."),
        };
        let found = path.canonicalize().map_err(key("cwd", "go to", &path))?;
        if !found.is_dir() {
            return Err(key("cwd", "go to", &path)(io::ErrorKind::NotADirectory.into()));
        }
        Ok(found)
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
        Normaliser::new(&self.normalise, variable)
    }
}

/// Runs what comes before a run.
fn prepare(
    case: &Case,
    cwd: &Path,
    env: &[(OsString, Option<OsString>)],
    asked: &dyn Fn() -> bool,
) -> Result<(), CaseError> {
    let Some(text) = &case.prepare else { return Ok(()) };
    // A file: who is left running may hold it, and nobody waits for that.
    let in_scratch = failed("make a file in", &std::env::temp_dir());
    let mut said = tempfile::tempfile().map_err(in_scratch)?;
    let started = said.try_clone().and_then(|stdout| {
        let mut shell = std::process::Command::new("/bin/sh");
        shell.arg("-c").arg(text).current_dir(cwd).process_group(0);
        shell.stdin(Stdio::null()).stdout(stdout).stderr(said.try_clone()?);
        if case.env.clear {
            shell.env_clear();
        }
        for (name, value) in env {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.spawn()
    });
    let limit = case.timeout.unwrap_or(LONGEST);
    let how = match started.and_then(|shell| end_of(shell, limit, asked)) {
        Ok(Ok(status)) if status.success() => return Ok(()),
        Ok(Ok(status)) => format!("failed: {status}"),
        Ok(Err(why)) => why,
        Err(e) => format!("could not be run: {}", reason(&e)),
    };
    let last = tail(&mut said).unwrap_or_default().pop();
    let how = how + &last.map_or_else(String::new, |line| format!(" ({line})"));
    Err(CaseError::Prepare { command: text.clone(), how })
}

/// Waits for the end of a process that leads a group; kills that, and says why,
/// where it takes too long or somebody wants an end.
fn end_of(
    mut child: Child,
    limit: Duration,
    asked: &dyn Fn() -> bool,
) -> io::Result<Result<ExitStatus, String>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ok(status));
        }
        let why = if asked() {
            "was interrupted".to_owned()
        } else if begun.elapsed() >= limit {
            format!("did not end within {limit:?}")
        } else {
            std::thread::sleep(LOOK);
            continue;
        };
        end_group(child.id());
        child.wait()?;
        return Ok(Err(why));
    }
}

/// Makes PATH and HOME longer by what means nothing.
fn lengthen(command: &mut Command, found: &[OsString], seed: u32) {
    // Of home little: the address of a socket in it has 108 bytes at most (unix(7)).
    for (name, times) in [("PATH", 40), ("HOME", 4)] {
        let more = "/.".repeat(times * (1 + seed as usize % 3));
        let value = found
            .iter()
            .find_map(|entry| entry.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        let last = |value: &[u8]| value.rsplit(|&byte| byte == b':').next() != Some(&[]);
        if let Some(value) = value.filter(|value| last(value)) {
            let longer = OsString::from_vec([value, more.as_bytes()].concat());
            command.env.push((name.into(), Some(longer)));
        }
    }
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
