//! `coldtrace show`: a record as a person wants to read it.

use std::path::{Path, PathBuf};

use coldtrace::bench::{self, Kept};
use coldtrace::record::{Record, read};
use coldtrace::render::{self, Column, Selection, SortKey, TableOptions};

use super::end::{End, Failure};
use super::output::Output;

/// Options of `show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run directory or a bench's, its name, a file with a record or a bench, `-` or
    /// `latest`
    #[arg(value_name = "RUN", default_value = "latest")]
    run: String,
    /// Only the table of syscalls, whole
    #[arg(long)]
    syscalls: bool,
    /// Only the process tree
    #[arg(long)]
    processes: bool,
    /// Only the paths (`coldtrace files -r RUN` has more views of them)
    #[arg(long)]
    files: bool,
    /// Only the files that were mapped executable, the largest first
    #[arg(long)]
    mapped: bool,
    /// Only where CPU time went, by mapped object and by thread
    #[arg(long)]
    cpu: bool,
    /// Only what Python imported (of `run --importtime`), as a tree
    #[arg(long)]
    imports: bool,
    /// Only the regions that the program marked, or that --region named, and the
    /// calls made in each
    #[arg(long)]
    regions: bool,
    /// Only the sockets that were made and the addresses that were connected and
    /// bound to, and that was sent to
    #[arg(long)]
    network: bool,
    /// Only where it ran: kernel, machine, load, memory, container
    #[arg(long = "env")]
    environment: bool,
    /// Only where the time of each thread went: on a CPU, runnable, blocked in a
    /// call
    #[arg(long)]
    times: bool,
    /// Only whose the memory was: by object, and over time
    #[arg(long)]
    memory: bool,
    /// Sort the table by: time, calls, errors, min, max, avg, p50, p90, p99,
    /// unfinished, restarts, name, none
    #[arg(short = 'S', long = "summary-sort-by", value_name = "KEY", default_value = "time")]
    sort: String,
    /// Columns of the table: percent, total-time, avg, calls, errors, min, p50,
    /// p90, p99, max, unfinished, restarts, name
    #[arg(short = 'U', long = "summary-columns", value_name = "LIST")]
    columns: Option<String>,
    /// Show only the first N rows of the table of syscalls, or the N slowest imports
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// The record as JSON, or the parts asked for: --json --files, or by their
    /// names in the record, --json=proc,tree
    #[arg(long, value_name = "PARTS", num_args = 0..=1, require_equals = true,
        default_missing_value = "", value_delimiter = ',')]
    json: Option<Vec<String>>,
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
    let record = match bench::read(&args.run, &args.runs).map_err(Failure::own)? {
        Kept::Bench(bench) => {
            no_part(args)?;
            let mut output = Output::open(Some(&args.output))?;
            output.write(&super::bench::text(&bench, args.json.is_some(), output.width())?)?;
            return Ok(End::Status(0));
        }
        Kept::Other { path, text } => Record::from_json(path, &text).map_err(Failure::own)?,
        _ => read(&args.run, &args.runs).map_err(Failure::own)?,
    };
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
    let cut = ["syscalls", "imports"];
    if let Some(part) = args.parts().find(|part| args.top.is_some() && !cut.contains(part)) {
        return Err(Failure::own(format_args!(
            "--top is for --syscalls and --imports: {part} is not cut"
        )));
    }
    let text = if let Some(names) = &args.json {
        json(args, names, &record)?
    } else if args.parts().next().is_some() {
        let mut text = String::new();
        if args.processes {
            text += &render::processes(&record, width);
        }
        if args.environment {
            let found = record.environment.as_ref();
            let found = found.ok_or_else(|| missing(&args.run, "environment"))?;
            text += &render::environment(found, width);
        }
        if args.files {
            text += &files(&record, &args.run, width)?;
        }
        if args.mapped {
            let mapped = record.mapped.as_deref().ok_or_else(|| missing(&args.run, "mapped"))?;
            text += &render::mapped(mapped, width);
        }
        if args.times {
            record.time.as_ref().ok_or_else(|| missing(&args.run, "time"))?;
            text += &render::times(&record, width);
        }
        if args.memory {
            record.proc.as_ref().ok_or_else(|| missing(&args.run, "proc"))?;
            text += &render::memory(&record, width);
        }
        if args.regions {
            text += &render::regions(&record, width).ok_or_else(|| no_regions(&args.run))?;
        }
        if args.network {
            text +=
                &render::network(&record, width).ok_or_else(|| missing(&args.run, "network"))?;
        }
        if args.cpu {
            text += &render::cpu(&record, width).ok_or_else(|| missing(&args.run, "cpu"))?;
        }
        if args.imports {
            let found = record.imports.as_ref().ok_or_else(|| {
                let run = &args.run;
                Failure::own(format_args!("{run} holds no imports: run --importtime keeps them"))
            })?;
            text += &match args.top {
                Some(top) => render::slowest_imports(found, top, width),
                None => render::imports(found, width),
            };
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

impl Args {
    /// The parts that were asked for.
    fn parts(&self) -> impl Iterator<Item = &'static str> {
        let parts = [
            (self.syscalls, "syscalls"),
            (self.processes, "processes"),
            (self.files, "files"),
            (self.mapped, "mapped"),
            (self.cpu, "cpu"),
            (self.imports, "imports"),
            (self.regions, "regions"),
            (self.network, "network"),
            (self.environment, "environment"),
            (self.times, "time"),
            (self.memory, "proc"),
        ];
        parts.into_iter().filter_map(|(asked, part)| asked.then_some(part))
    }
}

/// A bench has none of a record's parts.
fn no_part(args: &Args) -> Result<(), Failure> {
    let named = args.json.iter().flatten().map(String::as_str).find(|name| !name.is_empty());
    match args.parts().next().or(named) {
        Some(part) => Err(Failure::own(format_args!(
            "{} is a bench: {part} is a part of its runs: show BENCH/RUN",
            args.run
        ))),
        None => Ok(()),
    }
}

fn files(record: &Record, run: &str, width: usize) -> Result<String, Failure> {
    let files = record.files.as_ref().ok_or_else(|| missing(run, "files"))?;
    let mut text = Vec::new();
    let all = Selection::default();
    render::files(files, &all, width, &mut text).map_err(Failure::own)?;
    String::from_utf8(text).map_err(Failure::own)
}

fn no_regions(run: &str) -> Failure {
    Failure::own(format_args!(
        "{run} holds no regions: a program marks them by stat of /coldtrace/begin/NAME and \
         /coldtrace/end/NAME, or run --region NAME=FROM..UNTIL names them"
    ))
}

fn missing(run: &str, part: &str) -> Failure {
    Failure::own(format_args!(
        "{run} holds no part {part}: it was taken by an older coldtrace, without tracing, of some \
         calls only (-e trace=), or with that part off"
    ))
}

/// The record; of several parts an object; one part by itself.
fn json(args: &Args, parts: &[String], record: &Record) -> Result<String, Failure> {
    let whole = serde_json::to_value(record).map_err(Failure::own)?;
    let part = |name: &str| whole.get(name).cloned().unwrap_or_default();
    let named = parts.iter().map(String::as_str).filter(|name| !name.is_empty());
    for name in named.clone() {
        if whole.get(name).is_none() {
            let there: Vec<&str> =
                whole.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            return Err(Failure::own(format_args!(
                "{} holds no part {name}; it holds {}",
                args.run,
                there.join(", ")
            )));
        }
    }
    let mut parts: Vec<&str> = args.parts().collect();
    parts.extend(named);
    let text = match parts[..] {
        [] => serde_json::to_string_pretty(record),
        [one] => serde_json::to_string_pretty(&part(one)),
        _ => {
            let parts = parts.iter().map(|name| ((*name).to_owned(), part(name)));
            serde_json::to_string_pretty(&parts.collect::<serde_json::Map<_, _>>())
        }
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
    fn parts_are_given_as_json_by_name() {
        let record: Record = serde_json::from_str(
            r#"{"schema": "coldtrace.record/1", "tool": {"name": "x", "version": "1"},
            "run": {"id": null, "label": "x", "argv": ["x"], "cwd": null, "start": "y"},
            "outcome": {"exit_code": 3, "signal": null, "core_dumped": false, "wall_ns": 5,
            "stdout_bytes": null, "stderr_bytes": null}, "rusage": null, "tree": null,
            "measurement": {"engine": "none", "times_perturbed": false, "stops": 0,
            "cost_per_call_ns": null, "estimated_added_ns": null, "repaired": 0,
            "events_lost": 0, "filter": "off", "filter_reason": null, "notes": []}}"#,
        )
        .unwrap_or_else(|error| panic!("{error}"));
        let parts = |words: &[&str]| {
            let args = args(words);
            let names = args.json.clone().unwrap_or_default();
            let text = json(&args, &names, &record).map_err(|failure| failure.message);
            text.map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default())
        };
        assert_eq!(parts(&["--json=tool"]), Ok(serde_json::json!({"name": "x", "version": "1"})));
        let two = parts(&["--json=tool,schema"]).unwrap_or_default();
        assert_eq!(two["schema"], "coldtrace.record/1");
        assert_eq!(two["tool"]["name"], "x");
        assert_eq!(parts(&["--json"]).unwrap_or_default()["outcome"]["exit_code"], 3);
        assert_eq!(parts(&["--json", "some-run"]).unwrap_or_default()["run"]["label"], "x");
        let refused = parts(&["--json=nosuch"]).err().unwrap_or_default();
        assert!(refused.starts_with("latest holds no part nosuch; it holds "), "{refused}");
    }

    #[test]
    fn no_run_yet_is_one_line() {
        let failure = main(&args(&["--runs", "/nonexistent/runs"])).err();
        let failure = failure.map(|failure| (failure.status, failure.message));
        let message = "no run in /nonexistent/runs yet: coldtrace run CMD makes one";
        assert_eq!(failure, Some((2, message.to_owned())));
    }
}
