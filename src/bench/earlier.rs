//! Earlier traced runs of the same commands: they say which files a command reads before
//! this bench has traced it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::record::{LARGEST_KEPT, Record, read_regular};

/// So many of the newest benches are looked at: a record may be large.
const MOST: usize = 50;

/// What is read of a record first.
#[derive(Deserialize)]
struct Head {
    cache: Option<CacheHead>,
}

#[derive(Deserialize)]
struct CacheHead {
    command_sha256: Option<String>,
}

/// Of each command the newest record of a traced run that ended well, among the benches
/// kept in `runs`: by the record's `command_sha256`.
pub fn earlier(runs: &Path, commands: &[String]) -> Vec<Option<Record>> {
    let mut found: Vec<Option<Record>> = commands.iter().map(|_| None).collect();
    let mut benches = directories(runs);
    // Their names begin with when they were begun.
    benches.sort();
    let is_bench = |dir: &&PathBuf| !dir.join("record.json").exists();
    for path in benches.iter().rev().filter(is_bench).take(MOST).flat_map(|dir| traced(dir)) {
        if found.iter().all(Option::is_some) {
            break;
        }
        let Some((command, text)) = head(&path) else { continue };
        let is_wanted = |at: &usize| commands.get(*at) == Some(&command);
        let wanted: Vec<usize> = (0..commands.len()).filter(is_wanted).collect();
        let missing = wanted.iter().any(|&at| found.get(at).is_some_and(Option::is_none));
        let record = || serde_json::from_slice::<Record>(&text).ok();
        let ended_well = |it: &Record| it.outcome.exit_code == Some(0) && it.files.is_some();
        let Some(record) = missing.then(record).flatten().filter(ended_well) else { continue };
        for at in wanted {
            if let Some(found) = found.get_mut(at) {
                found.get_or_insert_with(|| record.clone());
            }
        }
    }
    found
}

/// What the command of a record is known by, and the record's text.
fn head(path: &Path) -> Option<(String, Vec<u8>)> {
    let text = read_regular(path, LARGEST_KEPT).ok()?;
    let head: Head = serde_json::from_slice(&text).ok()?;
    Some((head.cache?.command_sha256?, text))
}

/// Records of traced runs in a bench's directory.
fn traced(dir: &Path) -> Vec<PathBuf> {
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
