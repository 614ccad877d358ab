//! Benches that were made at different times, also in different boots, as one.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::record::{Environment, LARGEST_KEPT, Tool, read_regular};
use crate::render::counted;
use crate::tracer::reason;

use super::schedule::RunKind;
use super::summary::{LOAD, changes, comparisons};
use super::types::{Asked, Bench, CommandBench, Joined, RunEntry, SCHEMA};

/// Runs that a line names.
const NAMED: usize = 3;

/// Why benches could not be read or joined, as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A file could not be read.
    #[error("cannot read {path}: {}", reason(source))]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It holds no bench.
    #[error("{path} is no bench: {source}")]
    Json {
        /// The file.
        path: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A bench of another major version.
    #[error("{path} has schema {found}, this coldtrace reads {SCHEMA}")]
    Schema {
        /// The file.
        path: String,
        /// What it says.
        found: String,
    },
    /// They have no command in common.
    #[error("nothing to join: {one} and {other} are of other commands")]
    Commands {
        /// A bench.
        one: String,
        /// Another.
        other: String,
    },
}

/// What is kept under a name.
#[derive(Debug)]
#[non_exhaustive]
pub enum Kept {
    /// A bench.
    Bench(Box<Bench>),
    /// Something else, a record perhaps: what was read.
    Other {
        /// The file.
        path: String,
        /// What it holds.
        text: String,
    },
    /// No file of that name, or a directory that holds no bench.json.
    Nothing,
}

/// The one field that every bench and every record of any version has.
#[derive(serde::Deserialize)]
struct Head {
    schema: String,
}

/// Reads a bench: a directory, its name in `runs`, a file with one, or `-` for standard
/// input. What a file holds is told by its schema, whatever its name.
///
/// # Errors
/// When it cannot be read, or is of another major version.
pub fn read(bench: &str, runs: &Path) -> Result<Kept, JoinError> {
    let named = |path: String, text: io::Result<String>| match text {
        Ok(text) => told(path, text),
        Err(source) => Err(JoinError::Io { path, source }),
    };
    if bench == "-" {
        return named("standard input".into(), io::read_to_string(io::stdin()));
    }
    let given = PathBuf::from(bench);
    let file = if given.exists() { given } else { runs.join(bench) };
    let file = if file.is_dir() { file.join("bench.json") } else { file };
    if !file.exists() {
        return Ok(Kept::Nothing);
    }
    if !is_bench_json(&file) {
        // A pipe too (`<(...)`): it can be read once only.
        return named(file.display().to_string(), fs::read_to_string(&file));
    }
    let path = file.display().to_string();
    let text = read_regular(&file, LARGEST_KEPT).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    });
    named(path, text)
}

fn is_bench_json(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name == "bench.json")
}

fn told(path: String, text: String) -> Result<Kept, JoinError> {
    let is_meant = is_bench_json(Path::new(&path));
    let head: Head = match serde_json::from_str(&text) {
        Ok(head) => head,
        Err(source) if is_meant => return Err(JoinError::Json { path, source }),
        Err(_) => return Ok(Kept::Other { path, text }),
    };
    let major = |schema: &str| schema.split('.').take(2).collect::<Vec<_>>().join(".");
    let name = |schema: &str| schema.split('/').next().unwrap_or_default().to_owned();
    if major(&head.schema) == major(SCHEMA) {
        let bench = serde_json::from_str(&text);
        return bench.map(Kept::Bench).map_err(|source| JoinError::Json { path, source });
    }
    if is_meant || name(&head.schema) == name(SCHEMA) {
        return Err(JoinError::Schema { path, found: head.schema });
    }
    Ok(Kept::Other { path, text })
}

fn name(bench: &Bench) -> String {
    bench.id.clone().unwrap_or_else(|| bench.label.clone())
}

/// Which benches it is made of.
fn parts(bench: &Bench) -> Vec<Joined> {
    if bench.is_joined() {
        return bench.joined.clone();
    }
    vec![Joined {
        id: bench.id.clone(),
        start: bench.start.clone(),
        boot_id: bench.environment.as_ref().and_then(|e| e.boot_id.clone()),
    }]
}

/// Benches as one, in order of their starts: the runs of each command of all of them
/// together. Of first runs those count that were the first of their boot, one a boot. A
/// bench that is given twice, under whatever names, counts once.
///
/// # Errors
/// When two of them are of other commands.
pub fn join(mut benches: Vec<Bench>) -> Result<Bench, JoinError> {
    benches.sort_by(|a, b| a.start.cmp(&b.start));
    let argvs = |bench: &Bench| -> Vec<Vec<String>> {
        bench.commands.iter().map(|command| command.argv.clone()).collect()
    };
    let wanted = benches.first().map(|first| (name(first), argvs(first))).unwrap_or_default();
    if let Some(other) = benches.iter().find(|bench| argvs(bench) != wanted.1) {
        return Err(JoinError::Commands { one: wanted.0, other: name(other) });
    }
    let mut warnings = Vec::new();
    let mut seen = HashSet::new();
    benches.retain(|bench| {
        let parts = parts(bench).into_iter().map(|part| (part.id, part.start));
        let parts: Vec<_> = parts.collect();
        let again = parts.iter().any(|part| seen.contains(part));
        if again {
            warnings.push(format!("{} was given twice, counted once", name(bench)));
        }
        seen.extend(parts);
        !again
    });
    warnings.extend(unlike(&benches));
    warnings.extend(of_each(&benches));
    let mut runs: Vec<Vec<RunEntry>> = vec![Vec::new(); wanted.1.len()];
    let mut firsts: HashSet<(usize, Option<String>)> = HashSet::new();
    let mut left_out = Vec::new();
    for bench in &benches {
        for (at, (command, runs)) in bench.commands.iter().zip(&mut runs).enumerate() {
            for run in &command.runs {
                // Of what was joined before they are named so already.
                let named = if bench.is_joined() {
                    run.run.clone()
                } else {
                    format!("{}/{}", name(bench), run.run)
                };
                let is_of_boot = run.first_since_boot == Some(true) && run.boot_id.is_some();
                if run.kind == RunKind::First
                    && !(is_of_boot && firsts.insert((at, run.boot_id.clone())))
                {
                    left_out.push(named);
                    continue;
                }
                runs.push(RunEntry { run: named, ..run.clone() });
            }
        }
    }
    if !left_out.is_empty() {
        let runs = some(&left_out);
        warnings.push(format!("left out, not known to be the first since boot: {runs}"));
    }
    let commands: Vec<CommandBench> =
        wanted.1.into_iter().zip(runs).map(|(argv, runs)| CommandBench::of(argv, runs)).collect();
    Ok(Bench {
        schema: SCHEMA.into(),
        tool: Tool::this(),
        id: None,
        label: benches.first().map(|bench| bench.label.clone()).unwrap_or_default(),
        start: benches.first().map(|bench| bench.start.clone()).unwrap_or_default(),
        asked: None,
        environment: benches.iter().find_map(|bench| bench.environment.clone()).map(lasting),
        comparisons: comparisons(&commands),
        commands,
        warnings,
        interrupted: benches.iter().find_map(|bench| bench.interrupted.clone()),
        unfinished: benches.iter().any(|bench| bench.unfinished),
        joined: benches.iter().flat_map(parts).collect(),
    })
}

/// The first few of them, and how many more there are.
fn some(runs: &[String]) -> String {
    let first = runs.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match runs.len().saturating_sub(NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// What is so for longer than a moment.
fn lasting(environment: Environment) -> Environment {
    Environment {
        boot_id: None,
        uptime_ns: None,
        load: None,
        memory_available_bytes: None,
        page_cache_bytes: None,
        ..environment
    }
}

/// What was not the same in all benches, of what is to be.
fn unlike(benches: &[Bench]) -> Vec<String> {
    let places = benches.iter().filter_map(|bench| {
        let runs = bench.commands.iter().flat_map(|command| &command.runs);
        let interpreter = runs.clone().find_map(|run| run.interpreter.clone());
        let environment = bench.environment.clone()?;
        let interpreter = interpreter.or(environment.interpreter.clone());
        Some((name(bench), Environment { interpreter, ..environment }))
    });
    let mut lines = changes(&places.collect::<Vec<_>>());
    let shell = |command: &Option<String>| match command {
        Some(text) => format!("`{text}`"),
        None => "nothing".to_owned(),
    };
    let asked = |what: &str, of: &dyn Fn(&Asked) -> Option<String>| {
        let mut known = benches.iter().filter_map(|b| Some((name(b), of(b.asked.as_ref()?)?)));
        let (_, before) = known.next()?;
        let (bench, after) = known.find(|(_, after)| *after != before)?;
        Some(format!("{what} changed before {bench}: {before}, then {after}"))
    };
    lines.extend(asked("--setup", &|asked| Some(shell(&asked.setup))));
    lines.extend(asked("--prepare", &|asked| Some(shell(&asked.prepare))));
    lines.extend(asked("what is evicted", &|asked| {
        let what = if asked.drop_caches { "all caches" } else { "the command's files" };
        (asked.runs.cold > 0).then(|| what.to_owned())
    }));
    lines
}

/// What each of them says of itself; of load once.
fn of_each(benches: &[Bench]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut loaded: Option<(String, u64)> = None;
    for bench in benches {
        if bench.is_joined() {
            lines.extend(bench.warnings.iter().cloned()); // They have their names.
            continue;
        }
        let id = name(bench);
        if let Some(signal) = &bench.interrupted {
            lines.push(format!("{id} was ended by {signal} before all its runs were made"));
        }
        if bench.unfinished {
            lines.push(format!("{id} did not come to its end"));
        }
        for warning in &bench.warnings {
            match &mut loaded {
                _ if !warning.starts_with(LOAD) => lines.push(format!("{id}: {warning}")),
                Some((_, more)) => *more += 1,
                None => loaded = Some((format!("{id}: {warning}"), 0)),
            }
        }
    }
    lines.extend(loaded.map(|(line, more)| match more {
        0 => line,
        more => format!("{line}; so it was in {}", counted(more, "other bench")),
    }));
    lines
}

#[cfg(test)]
#[path = "join_tests.rs"]
mod tests;
