//! `coldtrace run`: trace once, keep the record and the command's output.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use coldtrace::observe::{Snapshot, Which};
use coldtrace::record::{
    Collect, Collected, Environment, Imports, Interpreter, Record, Run, RunDir,
};
use coldtrace::tracer::{Command, Ending, Options, reason, run_untraced, was_closed};
use coldtrace::{importtime, render, why_not_again};

use super::end::{End, Failure, OWN_FAILURE};
use super::options::{Target, Tracing};
use super::output::{Output, say};
use super::tee::Tee;

/// Options of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "The exit status is the command's; 125 when coldtrace itself failed, 126 \
and 127 when the command could not be run or was not found.")]
pub struct Args {
    #[command(flatten)]
    tracing: Tracing,
    /// Where runs are kept
    #[arg(long, value_name = "DIR", env = "COLDTRACE_RUNS", default_value = "runs")]
    runs: PathBuf,
    /// Name of the run, instead of the command's
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Something to remember the run by; may be given more than once
    #[arg(long = "tag", value_name = "KEY=VALUE")]
    tags: Vec<String>,
    /// The command's output: keep it and show it, only keep it, or only show it
    #[arg(long, value_name = "HOW", default_value = "tee")]
    output: Keep,
    /// Do not trace: the unperturbed run, without syscalls and processes
    #[arg(long, conflicts_with_all = ["expressions", "trace", "status", "successful_only",
        "failed_only", "split", "timeout", "detach_on_exit", "pids"])]
    no_trace: bool,
    /// Keep the operations of futex, madvise, ioctl, fcntl and prctl apart
    #[arg(long)]
    split: bool,
    /// Keep the value of this environment variable too; may be given more than
    /// once (names are always kept, values never unless named)
    #[arg(long = "env-values", value_name = "NAME")]
    env_values: Vec<String>,
    /// What /proc says at the end of the command (memory, descriptors, limits),
    /// and with `all` of every process
    #[arg(long, value_name = "WHOSE", default_value = "root")]
    snapshot: Whose,
    /// Keep of each opened path where it led, if that is elsewhere
    #[arg(long)]
    resolve: bool,
    /// What Python imports took and which calls they made. The command runs
    /// twice: the second time with PYTHONPROFILEIMPORTTIME=1, without input, its
    /// output thrown away, and only if it ended well and Python ran in it
    #[arg(long, conflicts_with_all = ["no_trace", "pids"])]
    importtime: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Keep {
    /// Keep it in stdout.log and stderr.log, and show it
    Tee,
    /// Only keep it
    Log,
    /// Only show it: the command gets coldtrace's own stdout and stderr
    Pass,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Whose {
    /// The command's own process
    Root,
    /// Every process of the tree
    All,
    /// Nobody's
    Off,
}

/// Runs `run`.
pub fn main(args: &Args) -> Result<End, Failure> {
    let mut target = args.tracing.target()?;
    let mut run = target.run(args.label.clone());
    for tag in &args.tags {
        let Some((key, value)) = tag.split_once('=') else {
            return Err(Failure::own(format_args!("--tag {tag}: it must be KEY=VALUE")));
        };
        run.tags.insert(key.into(), value.into());
    }
    let (options, statuses) = (args.tracing.options()?, args.tracing.statuses()?);
    let start = run.start.parse().map_err(Failure::own)?;
    let dir = RunDir::create(&args.runs, start, &run.label).map_err(Failure::own)?;
    let mut collect = Collect::default();
    collect.statuses = statuses;
    collect.split = args.split;
    // Of some calls only, a listing would not be one.
    collect.paths = options.calls.is_all();
    collect.resolve = args.resolve;
    collect.snapshots = match args.snapshot {
        Whose::Root => Which::Root,
        Whose::All => Which::All,
        Whose::Off => Which::Off,
    };
    let again = match &target {
        Target::Command(command) if args.importtime => Some(command.unheard()?),
        _ => None,
    };
    let how = How { tracing: &args.tracing, options, collect, trace: !args.no_trace };
    run.id = Some(dir.id().into());
    let mut environment = Environment::now(&args.env_values);
    let ran = prepare(args.output, &mut target, &dir)
        .and_then(|tee| how.run(target, run).map(|done| (done, tee)));
    let (Done { mut record, end, root }, tee) = match ran {
        Ok(ran) => ran,
        Err(failure) => {
            dir.discard(); // Nothing was run: nothing to keep.
            return Err(failure);
        }
    };
    environment.interpreter = Interpreter::of(&record);
    record.environment = Some(environment);
    let mut failures = tee.map(|tee| tee.finish(&mut record)).unwrap_or_default();
    if args.output == Keep::Log {
        record.outcome.stdout_bytes = dir.size("stdout.log");
        record.outcome.stderr_bytes = dir.size("stderr.log");
    }
    failures.extend(root.iter().flat_map(|root| keep(root, &dir)));
    let mut written = dir.write(&record);
    let mut output = Output::Stderr;
    // The record is there by now, whatever becomes of a second run.
    if let (Some(again), Ok(())) = (again, &written) {
        failures.extend(import(again, &how.options, &mut record, &dir));
        written = dir.write(&record);
    }
    if let End::Signal(signal) = end {
        output.after_ctrl_c(Ending::Killed { signal, core: false })?;
    }
    output.write(&render::summary(&record, output.width()))?;
    match written {
        Ok(()) => output.write(&format!("record   {}\n", dir.path().display()))?,
        Err(e) => failures.push(e.to_string()),
    }
    for failure in &failures {
        say(failure);
    }
    Ok(if failures.is_empty() { end } else { End::Status(OWN_FAILURE) })
}

/// Directs the command's output to where it is kept.
fn prepare(keep: Keep, target: &mut Target, dir: &RunDir) -> Result<Option<Tee>, Failure> {
    let command = match target {
        Target::Command(command) if keep != Keep::Pass => command,
        _ => return Ok(None),
    };
    let stdout = dir.file("stdout.log").map_err(Failure::own)?;
    let stderr = dir.file("stderr.log").map_err(Failure::own)?;
    if keep == Keep::Log {
        command.stdout = unless_closed(1, stdout.into());
        command.stderr = unless_closed(2, stderr.into());
        return Ok(None);
    }
    let (tee, out, err) = Tee::start(stdout, stderr)?;
    command.stdout = unless_closed(1, out);
    command.stderr = unless_closed(2, err);
    Ok(Some(tee))
}

/// A stream that was closed when coldtrace started stays closed for the command.
fn unless_closed(fd: i32, replacement: OwnedFd) -> Option<OwnedFd> {
    (!was_closed(fd)).then_some(replacement)
}

struct How<'a> {
    tracing: &'a Tracing,
    options: Options,
    collect: Collect,
    trace: bool,
}

/// A run that has ended.
struct Done {
    record: Record,
    end: End,
    /// What /proc said of the root at its end.
    root: Option<Snapshot>,
}

impl How<'_> {
    /// Runs the command; it is dropped before the answer, and with it our ends
    /// of its pipes.
    fn run(&self, target: Target, run: Run) -> Result<Done, Failure> {
        if let (Target::Command(command), false) = (&target, self.trace) {
            let ran = run_untraced(command)?;
            let record = Record::of_untraced(run, &ran);
            return Ok(Done { record, end: ran.ending.into(), root: None });
        }
        let mut end = None;
        let Collected { mut record, root, .. } = self.collect.from(run, |observers| {
            let traced = self.tracing.trace(&target, &self.options, true, observers)?;
            end = Some(target.end(&traced.0));
            drop(target);
            Ok::<_, Failure>(traced)
        })?;
        self.tracing.note_selection(&mut record.measurement);
        Ok(Done { record, end: end.unwrap_or(End::Status(OWN_FAILURE)), root })
    }
}

/// Runs the command again for the times of its imports; gives what could not be
/// written.
fn import(again: Command, options: &Options, record: &mut Record, dir: &RunDir) -> Option<String> {
    if let Some(why) = why_not_again(record) {
        record.imports = Some(Imports::unknown(why));
        return None;
    }
    say("running it again, unheard, for the times of its imports");
    let (imports, log) = importtime(again, options);
    record.imports = Some(imports);
    if log.is_empty() { None } else { put(dir, "importtime.txt", &log) }
}

/// Writes a file of the run directory; gives why that could not be done.
fn put(dir: &RunDir, name: &str, text: &[u8]) -> Option<String> {
    let mut file = match dir.file(name) {
        Ok(file) => file,
        Err(e) => return Some(e.to_string()),
    };
    let written = file.write_all(text).err();
    written.map(|e| format!("cannot write {name}: {}", reason(&e)))
}

/// Keeps the root's files of /proc as they were; gives what could not be written.
fn keep(root: &Snapshot, dir: &RunDir) -> Vec<String> {
    let write = |(name, text): &(&str, Vec<u8>)| put(dir, &format!("{name}.txt"), text);
    // One line is enough for a disk that is full.
    root.files.iter().filter_map(write).take(1).collect()
}
