//! Caches that a run wrote: its next run has less to do.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::record::{FileRow, Record};

use super::set::{WorkingSet, is_written};

/// By so much the times of files may lag behind the clock.
const LAG: Duration = Duration::from_millis(20);

/// What a run wrote that later runs read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Files of Python bytecode; `None`: not known.
    pub bytecode: Option<u64>,
    /// Other files that it had looked for or read before it wrote them, in order of
    /// first use; `None`: not known.
    pub others: Option<Vec<String>>,
}

impl Written {
    /// Of a traced run.
    pub fn of(record: &Record) -> Self {
        let Some(files) = &record.files else { return Self::default() };
        // Where its output goes is nothing that the command chose to write.
        let output = record.run.output.as_deref().unwrap_or("");
        let is_output =
            |row: &FileRow| !output.is_empty() && Path::new(&row.path).starts_with(output);
        let rows = || files.paths.iter().filter(|row| is_final(row) && !is_output(row));
        let is_bytecode = |row: &&FileRow| is_pyc(Path::new(&row.path));
        let bytecode = rows().filter(is_bytecode).count() as u64;
        let looked_for = |row: &&FileRow| {
            // Whoever opens a file to write it may ask about it then, without looking for it.
            row.misses > 0 || row.read_bytes > 0 || (row.stats > 0 && row.opens_write == 0)
        };
        let others = rows().filter(|row| !is_bytecode(row)).filter(looked_for);
        let others = others.map(|row| row.path.clone()).collect();
        Self { bytecode: Some(bytecode), others: Some(others) }
    }

    /// Of a run that nobody watched, by the directories of bytecode.
    pub fn of_bytecode(before: &Bytecode) -> Self {
        Self::of_count(before.written())
    }

    /// Of a run between two moments that nobody watched, by the files of bytecode of the
    /// set that was found later. What came after it may have written them again.
    pub fn between(set: &WorkingSet, begun: SystemTime, ended: SystemTime) -> Self {
        let written = set.files().iter().filter(|file| {
            // Its time of change is when it was given its name.
            let at = || changed_at(&fs::metadata(&file.path).ok()?);
            is_pyc(&file.path) && at().is_some_and(|at| at + LAG >= begun && at <= ended)
        });
        Self::of_count(written.count() as u64)
    }

    /// Of a run that is known to have written so many files of bytecode.
    pub fn of_count(bytecode: u64) -> Self {
        Self { bytecode: Some(bytecode), others: None }
    }
}

fn changed_at(metadata: &Metadata) -> Option<SystemTime> {
    let seconds = u64::try_from(metadata.ctime()).ok()?;
    let since = Duration::new(seconds, u32::try_from(metadata.ctime_nsec()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// It was written under this name, or got it when it was whole; not a temporary name.
fn is_final(row: &FileRow) -> bool {
    let outside = row.path.starts_with("/dev/") || row.path.starts_with("/proc/");
    if outside || !row.path.starts_with('/') || !is_written(row) {
        return false;
    }
    let renamed = row.other.contains_key("rename");
    // Whoever is renamed away was opened for writing; who is renamed to was not, unless
    // it failed.
    if renamed { row.opens_write == 0 && row.errors.is_empty() } else { row.written_bytes > 0 }
}

fn is_pyc(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "pyc")
}

/// A moment: seconds, nanoseconds.
type Time = (i64, i64);

/// The directories that hold the bytecode of a working set, as they were before a run.
/// A file that Python writes is new in its directory, so that one look at each tells
/// whether there is anything to count.
#[derive(Debug, Clone, Default)]
pub struct Bytecode {
    /// When each was changed; `None`: it was not there.
    directories: Vec<(PathBuf, Option<Time>)>,
}

impl Bytecode {
    /// As they are now.
    pub fn before(set: &WorkingSet) -> Self {
        let directories: BTreeSet<PathBuf> = set
            .files()
            .iter()
            .filter_map(|file| {
                let parent = file.path.parent()?;
                match file.path.extension()?.to_str()? {
                    "pyc" => Some(parent.to_owned()),
                    // PYTHONPYCACHEPREFIX has its own place: its files are in the set
                    // once they are read.
                    "py" => Some(parent.join("__pycache__")),
                    _ => None,
                }
            })
            .collect();
        let changed = |path: PathBuf| {
            let changed = changed(&path);
            (path, changed)
        };
        Self { directories: directories.into_iter().map(changed).collect() }
    }

    /// Files of bytecode that were written since.
    pub fn written(&self) -> u64 {
        let count = |(path, before): &(PathBuf, Option<Time>)| {
            if changed(path) == *before {
                return 0;
            }
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            let new = entries.filter(|entry| {
                is_pyc(&entry.path())
                    && entry.metadata().is_ok_and(|it| {
                        // The rename that gave it its name changed both at once.
                        before.is_none_or(|before| (it.ctime(), it.ctime_nsec()) > before)
                    })
            });
            new.count() as u64
        };
        self.directories.iter().map(count).sum()
    }
}

fn changed(directory: &Path) -> Option<Time> {
    let metadata = fs::metadata(directory).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn record(rows: &[(&str, Value)]) -> Record {
        let whole = |(path, more): &(&str, Value)| {
            let mut row = json!({
                "path": path, "opens_read": 0, "opens_write": 0, "stats": 0, "other": {},
                "misses": 0, "errors": {}, "read_bytes": 0, "written_bytes": 0,
                "mapped_bytes": 0, "wall_ns": 0, "first_ns": 0, "last_ns": 0, "processes": [0],
            });
            row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            row
        };
        let paths: Vec<Value> = rows.iter().map(whole).collect();
        serde_json::from_value(json!({
            "schema": crate::record::SCHEMA,
            "tool": {"name": "coldtrace", "version": "0"},
            "run": {"id": null, "label": "x", "argv": ["x"], "cwd": null, "start": ""},
            "outcome": {"exit_code": 0, "signal": null, "core_dumped": false, "wall_ns": 1,
                        "first_output_ns": null, "stdout_bytes": null, "stderr_bytes": null},
            "rusage": null, "tree": null,
            "measurement": {"engine": "ptrace", "times_perturbed": true, "stops": 0,
                            "cost_per_call_ns": null, "estimated_added_ns": null, "repaired": 0,
                            "events_lost": 0, "filter": "off", "filter_reason": null},
            "files": {"paths": paths, "searches": [], "stats_by_path": 0,
                      "stats_by_descriptor": 0, "unreadable": 0},
        }))
        .unwrap()
    }

    #[test]
    fn what_a_run_wrote_is_told_by_its_paths() {
        let temporary = json!({"opens_write": 1, "written_bytes": 9, "other": {"rename": 1}});
        let renamed = json!({"misses": 1, "other": {"rename": 1}});
        let record = record(&[
            ("/p/__pycache__/a.cpython-311.pyc.1402", temporary.clone()),
            ("/p/__pycache__/a.cpython-311.pyc", renamed.clone()),
            ("/p/__pycache__/b.cpython-311.pyc", json!({"read_bytes": 9, "opens_read": 1})),
            ("/p/c.pyc", json!({"opens_write": 1, "written_bytes": 9})),
            // Nobody may write there: the rename was refused.
            ("/q/d.pyc", json!({"misses": 1, "errors": {"EACCES": 1}, "other": {"rename": 1}})),
            ("/home/u/.cache/fonts/x.TMP", temporary),
            ("/home/u/.cache/fonts/x", renamed),
            ("/out/report", json!({"opens_write": 1, "written_bytes": 9})),
            ("/out/log", json!({"opens_write": 1, "written_bytes": 9, "stats": 1})),
            ("/var/cache/new", json!({"opens_write": 1, "written_bytes": 9, "misses": 1})),
            ("/var/cache/stale", json!({"stats": 1, "other": {"rename": 1}})),
            ("/dev/null", json!({"opens_write": 1, "written_bytes": 9, "stats": 1})),
            ("<pipe>", json!({"written_bytes": 9, "stats": 1})),
        ]);
        let written = Written::of(&record);
        assert_eq!(written.bytecode, Some(2));
        let others = ["/home/u/.cache/fonts/x", "/var/cache/new", "/var/cache/stale"];
        assert_eq!(written.others.unwrap(), others);
        let nothing = Record { files: None, ..record };
        assert_eq!(Written::of(&nothing), Written { bytecode: None, others: None });
    }

    #[test]
    fn new_bytecode_is_counted_in_the_directories_of_the_set() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::write(path("a.py"), "1").unwrap();
        fs::create_dir_all(path("old/__pycache__")).unwrap();
        fs::write(path("old/__pycache__/b.pyc"), "1").unwrap();
        fs::write(path("old/b.py"), "1").unwrap();
        let all = ["a.py", "old/b.py", "old/__pycache__/b.pyc"];
        let directories = |paths: &[PathBuf]| {
            paths.iter().map(|path| (path.clone(), changed(path))).collect::<Vec<_>>()
        };
        // The set leaves out what is memory; the scratch directory may be.
        let dirs = [path("__pycache__"), path("old/__pycache__")];
        let before = Bytecode { directories: directories(&dirs) };
        let set = WorkingSet::of_files(all.map(|name| (path(name), u64::MAX)));
        if !set.files().is_empty() {
            assert_eq!(Bytecode::before(&set).directories.len(), 2);
        }
        assert_eq!(before.written(), 0);
        fs::create_dir(path("__pycache__")).unwrap();
        for name in ["a.pyc", "b.pyc", "c.txt"] {
            fs::write(path("__pycache__").join(name), "2").unwrap();
        }
        assert_eq!(before.written(), 2);
        // Until the clock that files are stamped with has moved on.
        let old = changed(&dirs[1]);
        let new = path("old/__pycache__/new.pyc");
        for _ in 0..1_000_000 {
            fs::write(path("tmp"), "3").unwrap();
            fs::rename(path("tmp"), &new).unwrap();
            if changed(&dirs[1]) != old {
                break;
            }
        }
        assert_eq!(before.written(), 3);
    }
}
