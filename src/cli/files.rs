//! `coldtrace files`: every path that a command opened, asked about or looked
//! for in vain.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use coldtrace::observe::{By, Counts, Paths, Processes, Statuses};
use coldtrace::record::{FileRow, Files, MappedFile, Observed, Process, Record, Search, read};
use coldtrace::render::{self, FileSort, FileSource, Selection};
use coldtrace::tracer::Nanos;

use super::end::{End, Failure};
use super::options::Tracing;
use super::output::Output;

/// Options of `files`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Paths are absolute and as they were named: symbolic links are not followed. \
Only calls that name a path or a descriptor stop the command. Times include tracing.\n\nThe exit \
status is the command's; 125 when coldtrace itself failed, 126 and 127 when the command could not \
be run or was not found. With -p or -r: 0."
)]
pub struct Args {
    #[command(flatten)]
    tracing: Tracing,
    /// Show a saved run instead: a run directory, its name, a record.json, `-`
    /// or `latest`
    #[arg(short = 'r', long = "run", value_name = "RUN", conflicts_with_all = ["pids", "command"])]
    saved: Option<String>,
    /// Where runs are kept
    #[arg(long, value_name = "DIR", env = "COLDTRACE_RUNS", default_value = "runs")]
    runs: PathBuf,
    #[command(flatten)]
    view: View,
    #[command(flatten)]
    choice: Choice,
    /// Say of each opened path where it led, if that is elsewhere
    #[arg(long)]
    resolve: bool,
    /// Write to FILE; - is standard output, and then the command's output goes
    /// to standard error
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
}

/// How it is shown.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct View {
    /// By directory, each line the sum of what is below it
    #[arg(long)]
    tree: bool,
    /// The searches: one name in many directories, or many suffixes of one
    #[arg(long)]
    search: bool,
    /// As JSON: a record with the rows chosen
    #[arg(long)]
    json: bool,
    /// As CSV
    #[arg(long)]
    csv: bool,
    /// Only the paths, exactly, each ended by NUL: for `xargs -0`
    #[arg(long, short = '0')]
    null: bool,
}

/// Which rows, in which order.
#[derive(Debug, clap::Args)]
struct Choice {
    /// Levels of the tree
    #[arg(long, value_name = "N", requires = "tree")]
    depth: Option<usize>,
    /// Only what was looked for and never found
    #[arg(long)]
    missing: bool,
    /// Only what was opened
    #[arg(long)]
    opened: bool,
    /// Only what was opened for writing or written to
    #[arg(long)]
    written: bool,
    /// Only paths of calls of this kind: stat, open, readlink, access, exec,
    /// mmap, read, write, ... (may be given more than once)
    #[arg(long = "class", value_name = "KIND")]
    classes: Vec<String>,
    /// Only paths that match (`*` does not cross a slash, `**` does)
    #[arg(long = "glob", value_name = "GLOB")]
    globs: Vec<String>,
    /// Only this directory and what is below it
    #[arg(long, value_name = "DIR")]
    under: Option<PathBuf>,
    /// Only paths used by this process, by pid or name
    #[arg(long = "process", value_name = "PID|NAME")]
    processes: Vec<String>,
    /// Sort by: first, path, opens, stats, calls, misses, errors, read, written,
    /// mapped, time, last
    #[arg(short = 'S', long = "sort", value_name = "KEY", default_value = "first")]
    sort: String,
    /// Show only the first N rows
    #[arg(long, value_name = "N")]
    top: Option<usize>,
}

impl Choice {
    fn selection(&self, processes: Option<&[Process]>) -> Result<Selection, Failure> {
        for class in &self.classes {
            if !Paths::kinds().any(|kind| kind == class) {
                let mut kinds: Vec<&str> = Paths::kinds().collect();
                kinds.sort_unstable();
                kinds.dedup();
                return Err(Failure::own(format_args!(
                    "--class {class}: no kind of call; known are {}",
                    kinds.join(", ")
                )));
            }
        }
        let glob = |glob: &String| {
            let mut builder = globset::GlobBuilder::new(glob);
            let glob = builder.literal_separator(true).build();
            glob.map(|glob| glob.compile_matcher())
                .map_err(|e| Failure::own(format_args!("--glob: {e}")))
        };
        let under =
            self.under.as_ref().map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
        let by_process = (!self.processes.is_empty())
            .then(|| ids(&self.processes, processes.unwrap_or_default()))
            .transpose()?;
        Ok(Selection {
            missing: self.missing,
            opened: self.opened,
            written: self.written,
            classes: self.classes.clone(),
            globs: self.globs.iter().map(glob).collect::<Result<_, _>>()?,
            under,
            processes: by_process,
            sort: FileSort::parse(&self.sort).map_err(Failure::own)?,
            top: self.top,
        })
    }
}

/// The processes that are meant by pids or names.
fn ids(wanted: &[String], processes: &[Process]) -> Result<Vec<u64>, Failure> {
    let mut ids = Vec::new();
    for want in wanted {
        let before = ids.len();
        ids.extend(processes.iter().filter(|process| is_meant(process, want)).map(|p| p.id));
        if ids.len() == before {
            return Err(Failure::own(format_args!(
                "--process {want}: no process of this run has that pid or name"
            )));
        }
    }
    Ok(ids)
}

fn is_meant(process: &Process, want: &str) -> bool {
    let is = |path: &String| {
        path == want || Path::new(path).file_name().is_some_and(|name| name == want)
    };
    want.parse() == Ok(process.pid)
        || process.image.iter().any(is)
        || process.execs.iter().any(|e| e.exe.iter().chain(e.argv.first()).any(is))
        || process.threads.iter().any(|thread| thread.name.as_deref() == Some(want))
}

/// What the collector holds, row by row.
struct Collected {
    paths: Paths,
    totals: Files,
    start: Nanos,
}

impl FileSource for Collected {
    fn len(&self) -> usize {
        self.paths.len()
    }

    fn row(&self, index: usize) -> Cow<'_, FileRow> {
        Cow::Owned(FileRow::of(&self.paths, index, self.start).unwrap_or_default())
    }

    fn searches(&self) -> &[Search] {
        &self.totals.searches
    }

    fn totals(&self) -> &Files {
        &self.totals
    }
}

/// Runs `files`.
pub fn main(args: &Args) -> Result<End, Failure> {
    match &args.saved {
        Some(run) => saved(args, run).map_err(|failure| Failure { status: 2, ..failure }),
        None => traced(args),
    }
}

/// Shows a saved run.
fn saved(args: &Args, run: &str) -> Result<End, Failure> {
    args.choice.selection(None).or_else(|e| {
        // Names of processes are known only once it was read.
        if args.choice.processes.is_empty() { Err(e) } else { Ok(Selection::default()) }
    })?;
    let mut record = read(run, &args.runs).map_err(Failure::own)?;
    let Some(files) = record.files.take() else {
        return Err(Failure::own(format_args!(
            "{run} holds no files: it was taken without tracing, or of some calls only (-e trace=)"
        )));
    };
    let selection = args.choice.selection(record.processes.as_deref())?;
    // There is no command here whose standard output it would be.
    let standard = PathBuf::from("-");
    let mut output = Output::open(Some(args.output.as_ref().unwrap_or(&standard)))?;
    show(args, &files, &selection, &record, &mut output)?;
    Ok(End::Status(0))
}

/// Traces, then shows.
fn traced(args: &Args) -> Result<End, Failure> {
    let mut options = args.tracing.options()?;
    if args.tracing.statuses()? != Statuses::ALL {
        return Err(Failure::own(
            "files: calls are not chosen by status here; see --missing and --opened",
        ));
    }
    if !options.calls.is_all() {
        return Err(Failure::own(
            "files: of some calls only (-e trace=) a listing would be wrong; see --class",
        ));
    }
    options.calls = Paths::calls();
    options.only_makers = true;
    if args.choice.processes.is_empty() {
        args.choice.selection(None)?; // Wrong words are said before the command runs.
    }
    let mut output = Output::open(args.output.as_ref())?;
    let mut target = args.tracing.target()?;
    if let super::options::Target::Command(command) = &mut target {
        command.stdout = output.command_stdout()?;
    }
    let run = target.run(None);
    let mut counts = Counts::new(By::All, false, Statuses::ALL);
    let mut processes = Processes::full();
    let mut paths = Paths::new(args.resolve);
    let (traced, cost) = args.tracing.trace(
        &target,
        &options,
        args.view.json,
        &mut [&mut counts, &mut processes, &mut paths],
    )?;
    let seen =
        Observed { traced: &traced, counts: &counts, processes: &processes, waits: None, cost };
    let mut record = Record::of_traced(run, &seen);
    args.tracing.note_selection(&mut record.measurement);
    // The calls that were counted are those of files only.
    record.syscalls = None;
    record.take_off(paths.spent);
    record.processes = Some(seen.process_list());
    paths.finish();
    record.mapped = Some(MappedFile::all(&paths, traced.started));
    let totals = Files::without_paths(&paths, traced.started);
    let source = Collected { paths, totals, start: traced.started };
    output.after_ctrl_c(traced.ending)?;
    let selection = args.choice.selection(record.processes.as_deref())?;
    show(args, &source, &selection, &record, &mut output)?;
    Ok(target.end(&traced))
}

fn show(
    args: &Args,
    source: &dyn FileSource,
    selection: &Selection,
    record: &Record,
    output: &mut Output,
) -> Result<(), Failure> {
    let width = output.width();
    let view = &args.view;
    output.write_with(|out: &mut dyn Write| -> io::Result<()> {
        if view.json {
            render::files_json(source, selection, record, out)
        } else if view.csv {
            render::files_csv(source, selection, out)
        } else if view.null {
            render::files_null(source, selection, out)
        } else if view.tree {
            render::files_tree(source, selection, args.choice.depth, width, out)
        } else if view.search {
            render::files_search(source, selection, width, out)
        } else {
            render::files(source, selection, width, out)
        }
    })
}
