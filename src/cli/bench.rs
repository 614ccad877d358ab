//! `coldtrace bench`: the same command many times.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use coldtrace::bench::{self, Bench, BenchError, Benched, Bencher, Kept, Plan, Progress};
use coldtrace::render;
use coldtrace::tracer::{Ending, Held};

use super::end::{End, Failure, OWN_FAILURE};
use super::options::settings;
use super::output::Output;

/// Usage, or a bench that cannot be read.
const USAGE: u8 = 2;
/// A run failed.
const FAILED: u8 = 1;

/// What stands between two commands.
const BETWEEN: &str = ":::";

/// Options that say how to run: nothing is run to join.
const OF_RUNS: [&str; 12] = [
    "warm",
    "cold",
    "warmup",
    "traced",
    "drop_caches",
    "prepare",
    "setup",
    "cleanup",
    "ignore_failure",
    "env",
    "output",
    "label",
];

/// Options of `bench`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit status: 0; 1 when a run failed and --ignore-failure was not given; 2 \
usage; 125 when coldtrace itself failed, or --setup, --prepare or --cleanup did; 126 and 127 when \
the command could not be run or was not found. Ctrl-C ends it by that signal (130 in a shell). There \
is no --timeout: `timeout 10 CMD` as the command limits each run."
)]
pub struct Args {
    /// Warm runs
    #[arg(short = 'n', long = "warm", value_name = "N", default_value = "10", value_parser = number())]
    warm: u32,
    /// Cold runs: before each, the files that the command reads are evicted from the
    /// page cache
    #[arg(long, value_name = "N", default_value = "0", value_parser = number())]
    cold: u32,
    /// Runs before the warm ones that do not count
    #[arg(long, value_name = "N", default_value = "1", value_parser = number())]
    warmup: u32,
    /// Traced runs: they show which files the command reads, and its calls
    #[arg(long, value_name = "K", default_value = "1", value_parser = number())]
    traced: u32,
    /// Before cold runs drop all caches of the machine instead (root only)
    #[arg(long, requires = "cold")]
    drop_caches: bool,
    /// Shell command before each run; it must succeed
    #[arg(long, value_name = "CMD")]
    prepare: Option<String>,
    /// Shell command before all runs; it must succeed
    #[arg(long, value_name = "CMD")]
    setup: Option<String>,
    /// Shell command after all runs, also when they were cut short
    #[arg(long, value_name = "CMD")]
    cleanup: Option<String>,
    /// Go on when a run fails, and exit 0; it is in no statistics all the same
    #[arg(short, long)]
    ignore_failure: bool,
    /// Set VAR for the command; without a value, remove it
    #[arg(short = 'E', long = "env", value_name = "VAR[=VAL]")]
    env: Vec<OsString>,
    /// The command's output: keep it with each run, or show it; where it is shown, the
    /// table (or --json) goes to standard error: -o FILE keeps it apart
    #[arg(long, value_name = "HOW", default_value = "log")]
    output: Keep,
    /// Where runs are kept
    #[arg(long, value_name = "DIR", env = "COLDTRACE_RUNS", default_value = "runs")]
    runs: PathBuf,
    /// Name of the bench, instead of the command's
    #[arg(long, value_name = "NAME")]
    label: Option<String>,
    /// Make one table of benches that were made before, as of several boots: their
    /// directories, the names of these in --runs (a --label alone is none), or what
    /// --json has written; nothing is run
    #[arg(long, conflicts_with_all = OF_RUNS)]
    join: bool,
    /// All of it as JSON, instead of the table
    #[arg(long)]
    json: bool,
    /// Write all metrics as a Markdown table too
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write all metrics as CSV too
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the table to FILE instead of standard output
    #[arg(short, value_name = "FILE")]
    o: Option<PathBuf>,
    /// The command and its arguments; more commands behind `:::` each, in turns
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    words: Vec<OsString>,
}

fn number() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=100_000)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Keep {
    /// Only keep it, in stdout.log and stderr.log
    Log,
    /// Only show it: the command gets coldtrace's own stdout and stderr
    Pass,
}

fn usage(message: impl std::fmt::Display) -> Failure {
    Failure { message: message.to_string(), status: USAGE }
}

/// Where the results go, opened before anything is run.
struct Reports {
    table: Output,
    json: bool,
    markdown: Option<Output>,
    csv: Option<Output>,
}

impl Reports {
    fn open(args: &Args) -> Result<Self, Failure> {
        let open =
            |path: &Option<PathBuf>| path.as_ref().map(|p| Output::open(Some(p))).transpose();
        let table = match &args.o {
            Some(path) => Output::open(Some(path))?,
            // Standard output is the command's then.
            None if args.output == Keep::Pass => Output::Stderr,
            None => Output::Stdout,
        };
        Ok(Self { table, json: args.json, markdown: open(&args.markdown)?, csv: open(&args.csv)? })
    }

    /// `place` is where the runs are.
    fn write(&mut self, bench: &Bench, place: Option<&Path>) -> Result<(), Failure> {
        if let Some(markdown) = &mut self.markdown {
            markdown.write(&render::bench_markdown(bench))?;
        }
        if let Some(csv) = &mut self.csv {
            csv.write(&render::bench_csv(bench).map_err(Failure::own)?)?;
        }
        let mut text = text(bench, self.json, self.table.width())?;
        if let Some(place) = place.filter(|_| !self.json) {
            text.extend(["runs: ", &render::escape(&place.to_string_lossy()), "\n"]);
        }
        self.table.write(&text)
    }
}

/// Runs `bench`.
pub fn main(args: &Args) -> Result<End, Failure> {
    if args.join {
        return join(args);
    }
    let asked = bencher(args)?;
    let mut reports = Reports::open(args)?;
    let held = Held::new();
    let mut line = Line::new(args);
    let benched = asked.run(&held, &mut |progress| line.show(progress));
    line.clear();
    let Benched { bench, path, error, .. } = benched.map_err(failure)?;
    let failed = bench.commands.iter().flat_map(|c| &c.runs).any(|run| run.failed.is_some());
    let any = bench.commands.iter().any(|command| !command.runs.is_empty());
    if any {
        if let Some(signal) = held.signal() {
            reports.table.after_ctrl_c(Ending::Killed { signal, core: false })?;
        }
        reports.write(&bench, path.as_deref())?;
    }
    if let Some(signal) = held.signal() {
        return Ok(End::Signal(signal));
    }
    match error {
        Some(error) => Err(failure(error)),
        None if failed && !args.ignore_failure => Ok(End::Status(FAILED)),
        None => Ok(End::Status(0)),
    }
}

fn bencher(args: &Args) -> Result<Bencher, Failure> {
    let commands: Vec<Vec<OsString>> =
        args.words.split(|word| word == OsStr::new(BETWEEN)).map(<[_]>::to_vec).collect();
    if commands.iter().any(Vec::is_empty) {
        return Err(usage(format_args!("{BETWEEN} stands between two commands: A {BETWEEN} B")));
    }
    let mut bencher = Bencher::default();
    bencher.env = settings(&args.env).map_err(|failure| usage(failure.message))?;
    bencher.commands = commands;
    bencher.plan =
        Plan { traced: args.traced, cold: args.cold, warmup: args.warmup, warm: args.warm };
    bencher.prepare.clone_from(&args.prepare);
    bencher.setup.clone_from(&args.setup);
    bencher.cleanup.clone_from(&args.cleanup);
    bencher.drop_caches = args.drop_caches;
    bencher.ignore_failure = args.ignore_failure;
    bencher.pass_output = args.output == Keep::Pass;
    bencher.label.clone_from(&args.label);
    bencher.runs.clone_from(&args.runs);
    Ok(bencher)
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Tracer(error) => error.into(),
        error => Failure { message: error.to_string(), status: OWN_FAILURE },
    }
}

/// Several benches as one.
fn join(args: &Args) -> Result<End, Failure> {
    let mut benches = Vec::new();
    for word in &args.words {
        let name = word.to_string_lossy();
        match bench::read(&name, &args.runs).map_err(usage)? {
            Kept::Bench(bench) => benches.push(*bench),
            Kept::Other { path, .. } => return Err(usage(format_args!("{path} holds no bench"))),
            _ if Path::new(word).exists() || args.runs.join(word).exists() => {
                return Err(usage(format_args!(
                    "{name} holds no bench.json: it is no bench, or has not ended"
                )));
            }
            _ if name.starts_with('-') => {
                return Err(usage(format_args!("{name}: options stand before the benches")));
            }
            _ => {
                return Err(usage(format_args!(
                    "no such bench: {name}; the names of benches are those of their directories \
                     in {}",
                    args.runs.display()
                )));
            }
        }
    }
    let joined = bench::join(benches).map_err(usage)?;
    Reports::open(args)?.write(&joined, None)?;
    Ok(End::Status(0))
}

/// How far it is, on a terminal.
struct Line(bool);

impl Line {
    fn new(args: &Args) -> Self {
        Self(args.output == Keep::Log && std::io::stderr().is_terminal())
    }

    fn show(&mut self, progress: &Progress) {
        if self.0 {
            let Progress { done, all, next, .. } = progress;
            // Nobody reads it: nothing can be done about that.
            let _ =
                write!(std::io::stderr(), "\r\x1b[Kcoldtrace: run {} of {all}: {next}", done + 1);
        }
    }

    fn clear(&mut self) {
        if self.0 {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// A bench as `show` shows it.
pub fn text(bench: &Bench, json: bool, width: usize) -> Result<String, Failure> {
    if json {
        return Ok(serde_json::to_string_pretty(bench).map_err(Failure::own)? + "\n");
    }
    Ok(render::bench(bench, width))
}
