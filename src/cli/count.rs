//! `coldtrace count`: the table, nothing else written.

use std::path::PathBuf;

use coldtrace::observe::{By, Counts, Processes};
use coldtrace::record::{Observed, Record};
use coldtrace::render::{self, Column, SortKey, TableOptions};

use super::end::{End, Failure};
use super::options::{Target, Tracing};
use super::output::Output;

/// Options of `count`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Times are wall time inside the calls, tracing included; sums over threads \
exceed real time.\n\nThe exit status is the command's; 125 when coldtrace itself failed, 126 and \
127 when the command could not be run or was not found."
)]
pub struct Args {
    #[command(flatten)]
    tracing: Tracing,
    /// Count calls (always on)
    #[arg(short = 'c', long = "summary-only", hide_short_help = true)]
    summary: bool,
    /// Times are wall time (always on)
    #[arg(short = 'w', long = "summary-wall-clock", hide_short_help = true)]
    wall: bool,
    /// Write the table to FILE; - is standard output, and then the command's
    /// output goes to standard error
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Sort by: time, calls, errors, min, max, avg, p50, p90, p99, unfinished,
    /// restarts, name, none
    #[arg(short = 'S', long = "summary-sort-by", value_name = "KEY", default_value = "time")]
    sort: String,
    /// Columns to show: percent, total-time, avg, calls, errors, min, p50, p90,
    /// p99, max, unfinished, restarts, name
    #[arg(short = 'U', long = "summary-columns", value_name = "LIST")]
    columns: Option<String>,
    /// Show only the first N rows, and the others as one
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// A table for each of these
    #[arg(long, value_name = "WHAT")]
    by: Option<Group>,
    /// Keep the operations of futex, madvise, ioctl, fcntl and prctl apart
    #[arg(long)]
    split: bool,
    /// Write JSON instead, to where the table would go (-o FILE, or -o - for
    /// standard output): a record without a run directory
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// Processes
    Process,
    /// Threads
    Thread,
    /// Executables
    Exe,
}

/// Runs `count`.
pub fn main(args: &Args) -> Result<End, Failure> {
    let options = args.tracing.options()?;
    let statuses = args.tracing.statuses()?;
    let sort = SortKey::parse(&args.sort).map_err(Failure::own)?;
    let columns = args.columns.as_deref().map(Column::parse_list).transpose();
    let columns = columns.map_err(Failure::own)?;
    let mut output = Output::open(args.output.as_ref())?;
    let mut target = args.tracing.target()?;
    if let Target::Command(command) = &mut target {
        command.stdout = output.command_stdout()?;
    }
    let by = match args.by {
        None => By::All,
        Some(Group::Process) => By::Process,
        Some(Group::Exe) => By::Image,
        Some(Group::Thread) => By::Thread,
    };
    let run = target.run(None);
    let mut counts = Counts::new(by, args.split, statuses);
    let mut processes = if args.by.is_some() { Processes::names() } else { Processes::totals() };
    let (traced, cost) =
        args.tracing.trace(&target, &options, true, &mut [&mut counts, &mut processes])?;
    let seen =
        Observed { traced: &traced, counts: &counts, processes: &processes, waits: None, cost };
    let mut record = Record::of_traced(run, &seen);
    args.tracing.note_selection(&mut record.measurement);
    record.groups = args.by.map(|by| match by {
        Group::Process => seen.by_process(),
        Group::Thread => seen.by_thread(),
        Group::Exe => seen.by_executable(),
    });
    let text = if args.json {
        let mut text = serde_json::to_string_pretty(&record).map_err(Failure::own)?;
        text.push('\n');
        text
    } else {
        let width = output.width();
        let table = TableOptions { top: args.top, sort, columns, width, ..TableOptions::default() };
        render::count(&record, &table)
    };
    output.after_ctrl_c(traced.ending)?;
    output.write(&text)?;
    Ok(target.end(&traced))
}
