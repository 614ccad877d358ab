//! `coldtrace show`: a record as a person wants to read it.

use std::path::PathBuf;

use coldtrace::record::{Record, read};
use coldtrace::render::{self, Column, SortKey, TableOptions};

use super::end::{End, Failure};
use super::output::Output;

/// Options of `show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run directory, its name, a record.json, `-` or `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    run: String,
    /// Only the table of syscalls, whole
    #[arg(long)]
    syscalls: bool,
    /// Only the process tree
    #[arg(long)]
    processes: bool,
    /// Sort the table as `count -S`
    #[arg(short = 'S', long = "summary-sort-by", value_name = "KEY", default_value = "time")]
    sort: String,
    /// Columns of the table as `count -U`
    #[arg(short = 'U', long = "summary-columns", value_name = "LIST")]
    columns: Option<String>,
    /// Show only the first N rows of the table
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// The record, or the parts asked for, as JSON
    #[arg(long)]
    json: bool,
    /// Where runs are kept
    #[arg(long, value_name = "DIR", env = "COLDTRACE_RUNS", default_value = "runs")]
    runs: PathBuf,
    /// Write to FILE
    #[arg(short = 'o', long = "output", value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Runs `show`.
pub fn main(args: &Args) -> Result<End, Failure> {
    show(args).map_err(|failure| Failure { status: 2, ..failure })
}

fn show(args: &Args) -> Result<End, Failure> {
    let sort = SortKey::parse(&args.sort).map_err(Failure::own)?;
    let columns = args.columns.as_deref().map(Column::parse_list).transpose();
    let columns = columns.map_err(Failure::own)?;
    let record = read(&args.run, &args.runs).map_err(Failure::own)?;
    let mut output = Output::open(Some(&args.output))?;
    let width = output.width();
    let rows = record.syscalls.as_deref().unwrap_or_default();
    let table = TableOptions {
        top: args.top,
        sort,
        columns,
        width,
        native_abi: render::native_abi(rows).into(),
    };
    let text = if args.json {
        json(args, &record)?
    } else if args.syscalls || args.processes {
        let mut text = String::new();
        if args.processes {
            text += &render::processes(&record, width);
        }
        if args.syscalls {
            text += &render::count(&record, &table);
        }
        text
    } else {
        render::show(&record, width)
    };
    output.write(&text)?;
    Ok(End::Status(0))
}

fn json(args: &Args, record: &Record) -> Result<String, Failure> {
    let text = match (args.syscalls, args.processes) {
        (false, false) => serde_json::to_string_pretty(record),
        (true, false) => serde_json::to_string_pretty(&record.syscalls),
        (false, true) => serde_json::to_string_pretty(&record.processes),
        (true, true) => serde_json::to_string_pretty(&serde_json::json!({
            "syscalls": record.syscalls,
            "processes": record.processes,
        })),
    };
    Ok(text.map_err(Failure::own)? + "\n")
}
