//! `coldtrace show`: a record as a person wants to read it.

use std::path::{Path, PathBuf};

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
    /// Sort the table by: time, calls, errors, min, max, avg, p50, p90, p99,
    /// unfinished, restarts, name, none
    #[arg(short = 'S', long = "summary-sort-by", value_name = "KEY", default_value = "time")]
    sort: String,
    /// Columns of the table: percent, total-time, avg, calls, errors, min, p50,
    /// p90, p99, max, unfinished, restarts, name
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
    // Where a name exists as such, it is that file: see `read`.
    let latest = args.run == "latest" && !Path::new("latest").exists();
    if latest && args.runs.join("latest").symlink_metadata().is_err() {
        return Err(Failure::own(format_args!(
            "no run in {} yet: coldtrace run CMD makes one",
            args.runs.display()
        )));
    }
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

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn args(words: &[&str]) -> Args {
        let words = ["show"].iter().chain(words);
        let matches = Args::augment_args(Command::new("show")).get_matches_from(words);
        Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    #[test]
    fn the_words_of_the_help_are_understood() {
        let command = Args::augment_args(Command::new("show"));
        let words = |id: &str| -> Vec<String> {
            let option = command.get_arguments().find(|arg| arg.get_id() == id);
            let help = option.and_then(|arg| arg.get_help()).map(ToString::to_string);
            let help = help.unwrap_or_default();
            let list = help.split_once(": ").map_or("", |(_, list)| list);
            list.split(", ").map(str::to_owned).collect()
        };
        let columns = Column::parse_list(&words("columns").join(","));
        assert_eq!(columns.map(|columns| columns.len()), Ok(13));
        let keys = words("sort");
        assert_eq!(keys.len(), 13);
        for key in keys {
            assert!(SortKey::parse(&key).is_ok(), "{key}");
        }
        let named = Column::parse_list("percent,total-time");
        assert_eq!(named, Ok(vec![Column::Percent, Column::Seconds, Column::Name]));
    }

    #[test]
    fn no_run_yet_is_one_line() {
        let failure = main(&args(&["--runs", "/nonexistent/runs"])).err();
        let failure = failure.map(|failure| (failure.status, failure.message));
        let message = "no run in /nonexistent/runs yet: coldtrace run CMD makes one";
        assert_eq!(failure, Some((2, message.to_owned())));
    }
}
