//! Benches that were made at different times, also in different boots, as one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::record::{LARGEST_KEPT, Tool, read_regular};
use crate::tracer::reason;

use super::schedule::RunKind;
use super::summary::comparisons;
use super::types::{Bench, CommandBench, Joined, RunEntry, SCHEMA};

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
        source: std::io::Error,
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

/// The `bench.json` that is meant: of a directory, its name in `runs`, or the file
/// itself; `None` where there is none.
pub fn find(bench: &str, runs: &Path) -> Option<PathBuf> {
    let given = PathBuf::from(bench);
    let path = if given.exists() { given } else { runs.join(bench) };
    let path = if path.is_dir() { path.join("bench.json") } else { path };
    (path.file_name()? == "bench.json" && path.exists()).then_some(path)
}

/// The one field that every bench of any version has.
#[derive(serde::Deserialize)]
struct Head {
    schema: String,
}

/// Reads a bench: a directory, its name in `runs`, or a bench.json. `None` where that is
/// none, but perhaps a run.
///
/// # Errors
/// When it cannot be read, or is of another major version.
pub fn read(bench: &str, runs: &Path) -> Result<Option<Bench>, JoinError> {
    let Some(file) = find(bench, runs) else { return Ok(None) };
    let path = file.display().to_string();
    let text = match read_regular(&file, LARGEST_KEPT) {
        Ok(text) => text,
        Err(source) => return Err(JoinError::Io { path, source }),
    };
    let json = |source| JoinError::Json { path: path.clone(), source };
    let head: Head = serde_json::from_slice(&text).map_err(json)?;
    let major = |schema: &str| schema.split('.').take(2).collect::<Vec<_>>().join(".");
    if major(&head.schema) != major(SCHEMA) {
        return Err(JoinError::Schema { path, found: head.schema });
    }
    serde_json::from_slice(&text).map(Some).map_err(json)
}

/// Benches as one, in order of their starts: the runs of each command of all of them
/// together. Of first runs those count that were the first of their boot, one a boot.
///
/// # Errors
/// When two of them are of other commands.
pub fn join(mut benches: Vec<Bench>) -> Result<Bench, JoinError> {
    benches.sort_by(|a, b| a.start.cmp(&b.start));
    let argvs = |bench: &Bench| -> Vec<Vec<String>> {
        bench.commands.iter().map(|command| command.argv.clone()).collect()
    };
    let name = |bench: &Bench| bench.id.clone().unwrap_or_else(|| bench.label.clone());
    let wanted = benches.first().map(|first| (name(first), argvs(first))).unwrap_or_default();
    if let Some(other) = benches.iter().find(|bench| argvs(bench) != wanted.1) {
        return Err(JoinError::Commands { one: wanted.0, other: name(other) });
    }
    let mut warnings = Vec::new();
    let mut runs: Vec<Vec<RunEntry>> = vec![Vec::new(); wanted.1.len()];
    let mut firsts: HashSet<(usize, Option<String>)> = HashSet::new();
    for bench in &benches {
        let id = name(bench);
        warnings.extend(bench.warnings.iter().map(|warning| format!("{id}: {warning}")));
        for (at, (command, runs)) in bench.commands.iter().zip(&mut runs).enumerate() {
            for run in &command.runs {
                let first = run.kind == RunKind::First;
                let is_of_boot = run.first_since_boot == Some(true) && run.boot_id.is_some();
                if first && !(is_of_boot && firsts.insert((at, run.boot_id.clone()))) {
                    warnings.push(format!(
                        "{id}/{}: not known to be the first since boot, left out",
                        run.run
                    ));
                    continue;
                }
                runs.push(RunEntry { run: format!("{id}/{}", run.run), ..run.clone() });
            }
        }
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
        environment: None,
        comparisons: comparisons(&commands),
        commands,
        warnings,
        interrupted: None,
        joined: benches
            .iter()
            .map(|bench| Joined {
                id: bench.id.clone(),
                start: bench.start.clone(),
                boot_id: bench.environment.as_ref().and_then(|e| e.boot_id.clone()),
            })
            .collect(),
    })
}
