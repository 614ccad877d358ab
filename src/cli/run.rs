//! `coldtrace run`: trace once, keep the record and the command's output.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use coldtrace::check::{PASSED_VARIABLES, USUAL_VARIABLES};
use coldtrace::observe::{Moment, RegionSpec, Snapshot, Which};
use coldtrace::record::{
    Artifact, Collect, Collected, CpuSamples, Environment, Imports, Interpreter, Record, Run,
    RunDir,
};
use coldtrace::tracer::{
    Command, Ending, Held, Options, Place, high, reason, run_untraced, was_closed,
};
use coldtrace::{Scratch, importtime, render, why_not_again};

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
    /// [default: tee; with --fixed log]
    #[arg(long, value_name = "HOW")]
    output: Option<Keep>,
    /// Run it where its counts repeat, as `check` runs a new case: addresses are not
    /// randomised; one processor; of the environment PATH and HOME, what new cases
    /// set (LC_ALL, MALLOC_ARENA_MAX, MALLOC_TOP_PAD_, PYTHONHASHSEED), a TMPDIR of
    /// its own and what -E sets; nothing to read, and files to write to; common
    /// limits; signals, session and descriptors of nobody else
    #[arg(long, conflicts_with_all = ["pids", "detach_on_exit"])]
    fixed: bool,
    /// With --fixed: so many processors; 0 for all
    #[arg(long, value_name = "N", requires = "fixed", default_value = "1", hide = true)]
    fixed_cpus: u32,
    /// With --fixed: hold back threads by chance, others for each number
    #[arg(long, value_name = "SEED", requires = "fixed", conflicts_with = "no_trace", hide = true)]
    disturb: Option<u32>,
    /// Do not trace: the unperturbed run, without syscalls and processes
    #[arg(long, conflicts_with_all = ["expressions", "trace", "status", "successful_only",
        "failed_only", "split", "timeout", "detach_on_exit", "pids", "snapshot_at", "regions"])]
    no_trace: bool,
    /// Keep the operations of futex, madvise, ioctl, fcntl and prctl apart
    #[arg(long)]
    split: bool,
    /// Keep the value of this environment variable too; may be given more than
    /// once (names are always kept; values never unless named, but for HOME and TMPDIR
    /// with --fixed)
    #[arg(long = "env-values", value_name = "NAME")]
    env_values: Vec<String>,
    /// What /proc says at the end of the command (memory, descriptors, limits),
    /// and with `all` of every process
    #[arg(long, value_name = "WHOSE", default_value = "root")]
    snapshot: Whose,
    /// The same at other moments, of every process with `--snapshot all`, else of
    /// the command's: `exec`, after each; `call:NAME`, when it is first made (as
    /// for -e trace=); `open:GLOB`, after the first open of a path that matches
    /// (`**` crosses slashes; without any it is the file's name); `stdout`, at the
    /// first write to it. May be given more than once
    #[arg(long, value_name = "EVENT")]
    snapshot_at: Vec<String>,
    /// Keep apart what is done between two events, or from one to the end, as in
    /// `startup=exec..stdout`: those of --snapshot-at (the first of the run),
    /// `500ms` since the start, and `marker:NAME`. A program marks regions by
    /// itself: it asks, by stat or any other call, about /coldtrace/begin/NAME and
    /// /coldtrace/end/NAME (/coldtrace/mark/NAME is a marker only). May be given
    /// more than once
    #[arg(long = "region", value_name = "NAME=FROM[..UNTIL]")]
    regions: Vec<String>,
    /// Where CPU time goes, sampled so many times a second of it (1 to 10000), or
    /// `off`
    #[arg(long, value_name = "HZ", value_parser = sampling, default_value = "199")]
    cpu_samples: Sampling,
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

/// `--cpu-samples`: how many a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sampling(Option<u32>);

fn sampling(text: &str) -> Result<Sampling, String> {
    match text.parse() {
        _ if text == "off" => Ok(Sampling(None)),
        Ok(hz @ 1..=10_000) => Ok(Sampling(Some(hz))),
        _ => Err("a number of 1 to 10000, or off".into()),
    }
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

impl Args {
    fn moments(&self) -> Result<Vec<Moment>, Failure> {
        let moment = |text: &String| {
            Moment::for_snapshot(text)
                .map_err(|e| Failure::own(format_args!("--snapshot-at {text}: {e}")))
        };
        self.snapshot_at.iter().map(moment).collect()
    }

    fn regions(&self) -> Result<Vec<RegionSpec>, Failure> {
        let region = |text: &String| {
            RegionSpec::parse(text).map_err(|e| Failure::own(format_args!("--region {text}: {e}")))
        };
        self.regions.iter().map(region).collect()
    }
}

/// Runs `run`.
pub fn main(args: &Args) -> Result<End, Failure> {
    let mut target = args.tracing.target()?;
    let output = args.output.unwrap_or(if args.fixed { Keep::Log } else { Keep::Tee });
    let mut scratch = None;
    if let (Target::Command(command), true) = (&mut target, args.fixed) {
        let mut place = Place::default();
        place.cpus = Some(args.fixed_cpus).filter(|&n| n > 0);
        place.disturb = args.disturb;
        scratch = Some(fix(command, place)?);
    }
    let mut run = target.run(args.label.clone());
    for tag in &args.tags {
        let Some((key, value)) = tag.split_once('=') else {
            return Err(Failure::own(format_args!("--tag {tag}: it must be KEY=VALUE")));
        };
        run.tags.insert(key.into(), value.into());
    }
    let (options, statuses) = (args.tracing.options()?, args.tracing.statuses()?);
    let (moments, regions) = (args.moments()?, args.regions()?);
    let start = run.start.parse().map_err(Failure::own)?;
    let dir = RunDir::create(&args.runs, start, &run.label).map_err(Failure::own)?;
    let mut collect = Collect::default();
    collect.statuses = statuses;
    collect.split = args.split;
    collect.calls = options.calls.clone();
    collect.resolve = args.resolve;
    collect.cpu_samples = args.cpu_samples.0;
    collect.snapshots = match args.snapshot {
        Whose::Root => Which::Root,
        Whose::All => Which::All,
        Whose::Off => Which::Off,
    };
    collect.moments = moments;
    collect.regions = regions;
    let again = match &target {
        Target::Command(command) if args.importtime => Some(command.unheard()?),
        _ => None,
    };
    let how = How { tracing: &args.tracing, options, collect, trace: !args.no_trace };
    run.id = Some(dir.id().into());
    if output == Keep::Log {
        run.output = dir.path().canonicalize().ok().map(|dir| dir.to_string_lossy().into_owned());
    }
    let mut shown = args.env_values.clone();
    if scratch.is_some() {
        shown.extend(["HOME".into(), "TMPDIR".into()]);
    }
    let mut environment = environment(&target, &shown);
    let held = Held::new();
    let ran = prepare(output, &mut target, &dir)
        .and_then(|tee| how.run(target, run).map(|done| (done, tee)));
    let (Done { mut record, end, snapshots }, tee) = match ran {
        Ok(ran) => ran,
        Err(failure) => {
            dir.discard(); // Nothing was run: nothing to keep.
            return Err(failure);
        }
    };
    environment.interpreter = Interpreter::of(&record);
    record.environment = Some(environment);
    let mut failures = tee.map(|tee| tee.finish(&mut record, &held)).unwrap_or_default();
    if output == Keep::Log {
        record.outcome.stdout_bytes = dir.size("stdout.log");
        record.outcome.stderr_bytes = dir.size("stderr.log");
    }
    failures.extend(keep(&snapshots, &mut record, &dir).err());
    let write = |record: &mut Record| {
        record.artifacts = Some(Artifact::all(&dir.path(), record.artifacts.take()));
        dir.write(record)
    };
    let mut written = write(&mut record);
    if let Err(e) = &written
        && dir.make_room()
    {
        failures.push(format!("{e}: files of /proc beside the record were removed for it"));
        record.artifacts = None;
        record.proc.iter_mut().flatten().for_each(|snapshot| snapshot.directory = None);
        written = write(&mut record);
    }
    let mut shown = Output::Stderr;
    // The record is there by now, whatever becomes of a second run.
    if let (Some(again), Ok(())) = (again, &written) {
        failures.extend(import(again, &how.options, &mut record, &dir).err());
        written = write(&mut record);
    }
    if let End::Signal(signal) = end {
        shown.after_ctrl_c(Ending::Killed { signal, core: false })?;
    }
    shown.write(&render::summary(&record, shown.width()))?;
    match written {
        Ok(()) => shown.write(&format!("record   {}\n", dir.path().display()))?,
        Err(e) => failures.push(e.to_string()),
    }
    for failure in &failures {
        say(failure);
    }
    Ok(if failures.is_empty() { end } else { End::Status(OWN_FAILURE) })
}

/// Puts the command into the place of a new case of `check`; what -E says comes
/// after that. Gives where its temporary files are, until it is dropped.
fn fix(command: &mut Command, place: Place) -> Result<Scratch, Failure> {
    let scratch = Scratch::new();
    let made = scratch.and_then(|scratch| Ok((scratch.temporary()?, scratch)));
    let (temporary, scratch) = made.map_err(|e| {
        let inside = std::env::temp_dir();
        Failure::own(format_args!(
            "cannot make a directory in {}: {}",
            inside.display(),
            reason(&e)
        ))
    })?;
    let passed = PASSED_VARIABLES.map(|name| (name.into(), std::env::var_os(name)));
    let set = USUAL_VARIABLES.map(|(name, value)| (name.into(), Some(value.into())));
    let temporary = [("TMPDIR".into(), Some(temporary.into()))];
    command.env.splice(..0, passed.into_iter().chain(temporary).chain(set));
    command.env_clear = true;
    command.place = Some(place);
    let null = File::open("/dev/null")
        .map_err(|e| Failure::own(format_args!("cannot open /dev/null: {}", reason(&e))))?;
    command.stdin = Some(high(&null)?);
    Ok(scratch)
}

/// The machine as it is now, and the variables that the command is to find.
fn environment(target: &Target, shown: &[String]) -> Environment {
    let here = Environment::now(shown);
    match target {
        Target::Command(command) => here.with_variables(&command.environment(), shown),
        Target::Processes(_) => here,
    }
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
    /// What /proc said, in the order of the record.
    snapshots: Vec<Snapshot>,
}

impl How<'_> {
    /// Runs the command; it is dropped before the answer, and with it our ends
    /// of its pipes.
    fn run(&self, target: Target, run: Run) -> Result<Done, Failure> {
        if let (Target::Command(command), false) = (&target, self.trace) {
            let ran = run_untraced(command)?;
            let mut record = Record::of_untraced(run, &ran);
            let none = |hz| CpuSamples::none(hz, "without tracing (--no-trace) none are taken");
            record.cpu = self.collect.cpu_samples.map(none);
            return Ok(Done { record, end: ran.ending.into(), snapshots: Vec::new() });
        }
        let mut end = None;
        let Collected { mut record, snapshots, .. } = self.collect.from(run, |observers| {
            let traced = self.tracing.trace(&target, &self.options, true, observers)?;
            end = Some(target.end(&traced.0));
            drop(target);
            Ok::<_, Failure>(traced)
        })?;
        self.tracing.note_selection(&mut record.measurement);
        Ok(Done { record, end: end.unwrap_or(End::Status(OWN_FAILURE)), snapshots })
    }
}

/// Keeps files of /proc as they were read: the root's at its end in the run
/// directory, those at other moments in one each. The first that cannot be
/// written is the last: one line is enough for a disk that is full.
fn keep(snapshots: &[Snapshot], record: &mut Record, dir: &RunDir) -> Result<(), String> {
    let mut number = 0;
    let parsed = record.proc.iter_mut().flatten();
    for (snapshot, parsed) in snapshots.iter().zip(parsed) {
        let place = if parsed.is_of_end() {
            if parsed.process != 0 {
                continue;
            }
            String::new()
        } else {
            number += 1;
            let name = format!("at-{number}-{}", snapshot.event);
            let name = dir.directory(&name).map_err(|e| e.to_string())?;
            parsed.directory = Some(name.clone());
            name + "/"
        };
        for (name, text) in &snapshot.files {
            put(dir, &format!("{place}{name}.txt"), text)?;
        }
    }
    Ok(())
}

/// Runs the command again for the times of its imports.
fn import(
    again: Command,
    options: &Options,
    record: &mut Record,
    dir: &RunDir,
) -> Result<(), String> {
    if let Some(why) = why_not_again(record) {
        record.imports = Some(Imports::unknown(why));
        return Ok(());
    }
    say("running it again, unheard, for the times of its imports");
    let (imports, log) = importtime(again, options);
    record.imports = Some(imports);
    if log.is_empty() { Ok(()) } else { put(dir, "importtime.txt", &log) }
}

/// Writes a file of the run directory; why it cannot is the error.
fn put(dir: &RunDir, name: &str, text: &[u8]) -> Result<(), String> {
    let mut file = dir.file(name).map_err(|e| e.to_string())?;
    file.write_all(text).map_err(|e| format!("cannot write {name}: {}", reason(&e)))
}
