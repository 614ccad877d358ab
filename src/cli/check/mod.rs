//! `coldtrace check`: a command against what was recorded of it.

mod judging;
mod recording;

use std::path::{Path, PathBuf};

use coldtrace::check::{
    Baseline, Case, Facts, Report, SECCOMP_NOTE, Shape, explain, seccomp_profile,
};
use coldtrace::observe::duration;
use coldtrace::render::{self, command_line, quote};
use coldtrace::tracer::{Error, Held, reason};
use coldtrace::{CaseError, CaseRun, Checker};

use super::end::{End, Failure};
use super::engine::EngineArgs;
use super::output::{Output, say};

/// Where cases are looked for.
const USUAL: &str = "coldtrace.toml";

/// Usage, or a bad baseline.
const USAGE: u8 = 2;
/// Nothing can be traced here.
const NO_TRACING: u8 = 3;
/// No baseline, or no facts for this platform.
const NO_FACTS: u8 = 4;
/// The command did not end as stated.
const COMMAND: u8 = 5;

/// Options of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status: 0 all rules hold; 1 a rule failed; 2 usage, or a baseline \
that cannot be read; 3 nothing can be traced here; 4 no baseline, or no facts for this platform; \
5 the command did not end as stated.")]
pub struct Args {
    /// The file of cases and rules
    #[arg(long, value_name = "FILE", default_value = USUAL)]
    baseline: PathBuf,
    /// Only this case; may be given more than once
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Record: run each case 1 + K times and write down what the last K have in
    /// common
    #[arg(long, conflicts_with_all = ["saved", "self_test", "explain", "strict", "keep",
        "format", "reports", "output", "seccomp_profile"])]
    update: bool,
    /// How many runs are recorded, beside the first one, which is never used
    #[arg(short = 'n', long, value_name = "K", default_value = "5", requires = "update",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Warnings fail too: entries that nothing uses, rules that could be stricter
    #[arg(long)]
    strict: bool,
    /// Judge a saved run: a run directory, its name, a record.json, `-` or `latest`
    #[arg(short = 'r', long = "run", value_name = "RUN", conflicts_with = "command")]
    saved: Option<String>,
    /// Where runs are looked for
    #[arg(long, value_name = "DIR", env = "COLDTRACE_RUNS", default_value = "runs")]
    runs: PathBuf,
    /// Keep each judged run as a run directory there, with the record and the
    /// command's output
    #[arg(long, value_name = "DIR", conflicts_with_all = ["saved", "update"])]
    keep: Option<PathBuf>,
    /// Say why each number is exact, ranged or ignored; nothing is run
    #[arg(long, conflicts_with_all = ["saved", "command"])]
    explain: bool,
    /// Add one call to each entry of the run, in memory, and list the entries at
    /// which no rule would fail
    #[arg(long, conflicts_with = "explain")]
    self_test: bool,
    /// How the report is written
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    format: Format,
    /// Write the same in another format to a file; may be given more than once
    #[arg(long = "report", value_name = "FORMAT=FILE", value_parser = report_file)]
    reports: Vec<(Format, PathBuf)>,
    /// Write a seccomp profile for containers (Docker's format, and OCI's) that allows
    /// the calls that were recorded and those of this run, and no others
    #[arg(long, value_name = "FILE", conflicts_with_all = ["update", "explain", "self_test"])]
    seccomp_profile: Option<PathBuf>,
    /// Write the report there instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// End each run after this long (5s, 2m), instead of what its case says
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<std::time::Duration>,
    #[command(flatten)]
    engine: EngineArgs,
    /// A command of no case, or that of one
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people
    Human,
    /// All of it
    Json,
    /// For a step summary or a comment
    Markdown,
    /// Annotations of GitHub Actions
    Github,
    /// A rule is a testcase
    Junit,
    /// For code scanning
    Sarif,
}

impl Format {
    fn write(self, report: &Report, width: usize) -> String {
        match self {
            Self::Human => render::check::human(report, width),
            Self::Json => render::check::json(report),
            Self::Markdown => render::check::markdown(report),
            Self::Github => render::check::github(report),
            Self::Junit => render::check::junit(report),
            Self::Sarif => render::check::sarif(report),
        }
    }
}

fn report_file(text: &str) -> Result<(Format, PathBuf), String> {
    let (format, file) = text.split_once('=').ok_or("it must be FORMAT=FILE")?;
    Ok((<Format as clap::ValueEnum>::from_str(format, false)?, file.into()))
}

/// A baseline, and where it is.
struct Opened {
    /// As it is called in reports.
    name: String,
    directory: PathBuf,
    text: String,
    baseline: Baseline,
}

fn failure(status: u8, message: impl std::fmt::Display) -> Failure {
    Failure { message: message.to_string(), status }
}

/// Runs `check`.
pub fn main(args: &Args) -> Result<End, Failure> {
    let held = Held::new();
    let end = run(args, &held);
    if let Some(signal) = held.signal() {
        return Ok(End::Signal(signal));
    }
    // Of a wrong command line the status is 2 here.
    end.map_err(|f| Failure { status: if f.status == 125 { USAGE } else { f.status }, ..f })
}

fn run(args: &Args, held: &Held) -> Result<End, Failure> {
    if args.update {
        return recording::main(args, held);
    }
    let opened = open(&args.baseline)?.ok_or_else(|| no_baseline(args))?;
    let mut cases = chosen(args, &opened)?;
    if cases.is_empty() {
        let name = &opened.name;
        let what = format!("{name} has no case\ncoldtrace check --update -- COMMAND... adds one");
        return Err(failure(NO_FACTS, what));
    }
    for case in &mut cases {
        case.timeout = args.timeout.or(case.timeout);
    }
    let mut output = Output::open(Some(args.output.as_ref().unwrap_or(&PathBuf::from("-"))))?;
    if args.explain {
        let each = cases.iter().map(|case| explain(&opened.baseline, case));
        output.write(&each.collect::<Vec<_>>().join("\n"))?;
        return Ok(End::Status(0));
    }
    if args.self_test {
        return judging::self_test(args, held, &opened, &cases, &mut output);
    }
    let (report, shapes) = judging::judge_all(args, held, &opened, &cases)?;
    // What one of them cannot be written to is no reason to lose the others.
    let mut written = vec![output.write(&args.format.write(&report, output.width()))];
    for (format, file) in &args.reports {
        let text = format.write(&report, render::DEFAULT_WIDTH);
        written.push(Output::open(Some(file)).and_then(|mut output| output.write(&text)));
    }
    if let Some(file) = &args.seccomp_profile {
        written.push(profile(file, &cases, &shapes));
    }
    let mut failures = written.into_iter().filter_map(Result::err);
    let Some(first) = failures.next() else { return Ok(End::Status(report.status())) };
    failures.for_each(|failure| say(&failure.message));
    Err(first)
}

/// Writes the profile of what was seen, and says what it cannot know.
fn profile(file: &PathBuf, cases: &[Case], shapes: &[Shape]) -> Result<(), Failure> {
    let Some(platform) = shapes.iter().find_map(|shape| shape.platform.as_deref()) else {
        return Err(failure(COMMAND, "no profile was written: nothing ran"));
    };
    let here = |case: &Case, shape: &Shape| {
        shape.platform.as_ref().and_then(|platform| case.facts.get(platform)).cloned()
    };
    let facts: Vec<Facts> =
        cases.iter().flat_map(|case| shapes.iter().filter_map(|shape| here(case, shape))).collect();
    let profile = seccomp_profile(platform, shapes, &facts);
    let text = serde_json::to_string_pretty(&profile).unwrap_or_default();
    Output::open(Some(file))?.write(&format!("{text}\n"))?;
    say(&format!("{}: {SECCOMP_NOTE}", file.display()));
    Ok(())
}

/// Reads the baseline; `None` where there is none.
fn open(path: &Path) -> Result<Option<Opened>, Failure> {
    let name = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failure(USAGE, format_args!("cannot read {name}: {}", reason(&e)))),
    };
    let baseline = Baseline::parse(&text, &name).map_err(|e| failure(USAGE, e))?;
    Ok(Some(Opened { directory: directory(path), name, text, baseline }))
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn no_baseline(args: &Args) -> Failure {
    let command =
        if args.command.is_empty() { "COMMAND...".to_owned() } else { command_line(&args.command) };
    let name = args.baseline.display();
    let file = file_option(&args.baseline);
    let what =
        format!("no baseline {name}\nrecord one: coldtrace check {file}--update -- {command}");
    failure(NO_FACTS, what)
}

/// `--baseline FILE `, where it has to be said.
fn file_option(path: &Path) -> String {
    if path == Path::new(USUAL) {
        return String::new();
    }
    format!("--baseline {} ", quote(&path.display().to_string()))
}

/// The cases that are meant.
fn chosen(args: &Args, opened: &Opened) -> Result<Vec<Case>, Failure> {
    let all = &opened.baseline.cases;
    // One that is recorded gets that name.
    let new = args.update && !args.command.is_empty() && args.cases.len() == 1;
    for name in &args.cases {
        let known = all.iter().find(|case| case.name == *name);
        if let Some(case) = known
            && new
            && case.command != args.command
        {
            let what = format!(
                "--case {name}: in {} its command is `{}`; change it there, or say another name",
                opened.name,
                command_line(&case.command)
            );
            return Err(failure(USAGE, what));
        }
        if known.is_none() && !new {
            let known: Vec<&str> = all.iter().map(|case| case.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let what = format!("--case {name}: {} has no such case; it has {known}", opened.name);
            return Err(failure(USAGE, what));
        }
    }
    let named = |case: &&Case| args.cases.is_empty() || args.cases.contains(&case.name);
    let runs = |case: &&Case| args.command.is_empty() || case.command == args.command;
    let cases: Vec<Case> = all.iter().filter(named).filter(runs).cloned().collect();
    if cases.is_empty() && !args.command.is_empty() && !args.update {
        let what = format!(
            "{} has no case with this command\nrecord it: coldtrace check {}--update -- {}",
            opened.name,
            file_option(&args.baseline),
            command_line(&args.command)
        );
        return Err(failure(NO_FACTS, what));
    }
    Ok(cases)
}

/// The command line that records a case as it is now.
fn accept(args: &Args, opened: &Opened, case: &Case) -> String {
    let file = file_option(&args.baseline);
    if !args.command.is_empty() {
        return format!("coldtrace check {file}--update -- {}", command_line(&case.command));
    }
    let which = if opened.baseline.cases.len() > 1 {
        format!(" --case {}", quote(&case.name))
    } else {
        String::new()
    };
    format!("coldtrace check {file}--update{which}")
}

/// Runs a case once; a signal that wants an end is one.
fn run_case(
    checker: &Checker,
    case: &Case,
    disturb: Option<u32>,
    held: &Held,
) -> Result<Result<CaseRun, CaseError>, Failure> {
    let run = checker.run(case, disturb, &|| held.signal().is_some());
    match held.signal() {
        Some(_) => Err(failure(USAGE, "interrupted")),
        None => Ok(run),
    }
}

/// What a case that was not run ends the check with; `Err` where no other case
/// can be run either.
fn not_run(case: &Case, error: &CaseError) -> Result<String, Failure> {
    match error {
        CaseError::Tracer(e @ Error::Refused { .. }) => Err(failure(NO_TRACING, e)),
        CaseError::Tracer(Error::Os { .. }) => {
            Err(failure(NO_TRACING, format_args!("{}: {error}", case.name)))
        }
        other => Ok(other.to_string()),
    }
}

fn checker(opened: &Opened, args: &Args) -> Result<Checker, Failure> {
    let checker = Checker::new(&opened.baseline.normalise, &opened.directory);
    let engine = args.engine.engines()?;
    checker.map(|checker| checker.with_engine(engine)).map_err(|e| failure(USAGE, e))
}

/// A line about a case.
fn note(name: &str, case: &Case, text: impl std::fmt::Display) {
    say(&format!("{name}: {}: {text}", case.name));
}
