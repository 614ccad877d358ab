//! An earlier record of the same command: it says which files the command reads before
//! this bench has traced it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::record::Record;

/// So many of the newest directories are looked at: a record may be large.
const MOST: usize = 50;

/// What is read of a record first.
#[derive(Deserialize)]
struct Head {
    run: RunHead,
    measurement: MeasurementHead,
}

#[derive(Deserialize)]
struct RunHead {
    argv: Vec<String>,
    cwd: Option<String>,
}

#[derive(Deserialize)]
struct MeasurementHead {
    engine: String,
}

/// The newest record of a traced run of these arguments in this directory that ended
/// well, among the runs and benches kept in `runs`.
pub fn earlier(runs: &Path, argv: &[String]) -> Option<Record> {
    let here = std::env::current_dir().ok().map(|dir| dir.to_string_lossy().into_owned());
    let mut dirs = directories(runs);
    // Their names begin with when they were begun.
    dirs.sort();
    dirs.iter().rev().take(MOST).find_map(|dir| {
        records(dir).into_iter().find_map(|path| {
            let text = fs::read(path).ok()?;
            let head: Head = serde_json::from_slice(&text).ok()?;
            let same = head.run.argv == argv && head.run.cwd == here;
            if !same || head.measurement.engine == "none" {
                return None;
            }
            let record: Record = serde_json::from_slice(&text).ok()?;
            (record.outcome.exit_code == Some(0) && record.files.is_some()).then_some(record)
        })
    })
}

/// Records of traced runs in a run directory or a bench's.
fn records(dir: &Path) -> Vec<PathBuf> {
    let own = dir.join("record.json");
    if own.exists() {
        return vec![own];
    }
    let is_traced = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.contains("traced-"))
    };
    let mut traced: Vec<PathBuf> = directories(dir).into_iter().filter(is_traced).collect();
    traced.sort();
    traced.iter().map(|path| path.join("record.json")).collect()
}

/// Directories in one, without what links to them.
fn directories(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
