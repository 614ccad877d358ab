//! An independent check of `coldtrace files`: what Python itself says that it imported, and from
//! where, is listed as opened, and nothing is listed that is not there.

mod support;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use coldtrace::record::{FileRow, Record};
use support::paths::{contradictions, files, row};
use support::process::finish;
use support::{Scratch, coldtrace, find_program, read_record, skip};

/// Writes what each module was read from to the file that is its argument.
const SCRIPT: &str = "
import json, sys
lines = []
for name, module in list(sys.modules.items()):
    if name != '__main__':
        for key in ('__file__', '__cached__'):
            path = getattr(module, key, None)
            lines.append((name, key, path or ''))
with open(sys.argv[1], 'w') as out:
    for line in lines:
        out.write('\\t'.join(line) + '\\n')
";

/// What Python says of a module.
struct Module {
    name: String,
    file: PathBuf,
    cached: PathBuf,
}

struct Import {
    record: Record,
    modules: Vec<Module>,
    /// Names on the lines of `-X importtime`: what was really loaded in this run.
    timed: BTreeSet<String>,
    /// What the run wrote and the test removes.
    scratch: Scratch,
}

/// The interpreter itself: what is found in PATH may be a script that chooses one.
fn python() -> Option<PathBuf> {
    let Some(found) = find_program("python3") else {
        skip("no python3");
        return None;
    };
    let mut command = std::process::Command::new(found);
    let finished = finish(command.args(["-c", "import sys; print(sys.executable)"]));
    let path = PathBuf::from(finished.out().trim_end());
    if !path.is_absolute() {
        skip("python3 does not say where it is");
        return None;
    }
    Some(path)
}

fn import(options: &[&str]) -> Option<Import> {
    let python = python()?;
    let scratch = Scratch::new("python");
    let (report, list) = (scratch.path("report.json"), scratch.path("list"));
    let mut command = coldtrace("files");
    command.args(["--json", "-o"]).arg(&report).arg("--").arg(python);
    command.args(options).args(["-X", "importtime", "-c", SCRIPT]).arg(&list);
    let finished = finish(&mut command);
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    let text = std::fs::read_to_string(&list).expect("the script wrote it");
    let mut modules: Vec<Module> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [name, key, path] = words[..] else { panic!("not understood: {line}") };
        match (key, modules.last_mut()) {
            ("__cached__", Some(module)) => module.cached = PathBuf::from(path),
            _ => modules.push(Module {
                name: name.to_owned(),
                file: PathBuf::from(path),
                cached: PathBuf::new(),
            }),
        }
    }
    let err = finished.err();
    let timed = err.lines().filter_map(|line| line.strip_prefix("import time:"));
    let timed = timed.filter_map(|line| Some(line.rsplit_once('|')?.1.trim().to_owned())).collect();
    Some(Import { record, modules, timed, scratch })
}

/// The files that a module was read from, as Python says: bytecode if it is there, else the source;
/// an extension, itself. None is opened of a module that is built in or frozen.
fn read_from(module: &Module, timed: &BTreeSet<String>) -> Option<PathBuf> {
    let last =
        |path: &Path, suffix: &str| path.extension().is_some_and(|extension| extension == suffix);
    if module.file.as_os_str().is_empty() || !timed.contains(&module.name) {
        return None;
    }
    if last(&module.file, "so") {
        return Some(module.file.clone());
    }
    let from = if module.cached.is_file() { &module.cached } else { &module.file };
    (last(from, "pyc") || last(from, "py")).then(|| from.clone())
}

/// Modules that are part of the interpreter, though they have a file: their code is never read.
fn frozen() -> BTreeSet<String> {
    let script = "
import importlib.machinery, sys
for name in list(sys.modules) + ['json']:
    if importlib.machinery.FrozenImporter.find_spec(name): print(name)
";
    let Some(python) = python() else { return BTreeSet::new() };
    let mut command = std::process::Command::new(python);
    let finished = finish(command.args(["-c", script]));
    finished.assert_code(0);
    finished.out().lines().map(str::to_owned).collect()
}

#[test]
fn what_python_imported_was_opened() {
    let Some(import) = import(&[]) else { return };
    let frozen = frozen();
    let read: Vec<PathBuf> = import
        .modules
        .iter()
        .filter(|module| !frozen.contains(&module.name))
        .filter_map(|module| read_from(module, &import.timed))
        .collect();
    let names = |path: &&PathBuf| path.to_string_lossy().contains("json");
    assert!(read.iter().filter(names).count() >= 3, "json has some modules: {read:?}");
    let unseen: Vec<&PathBuf> = read
        .iter()
        .filter(|path| row(&import.record, path).is_none_or(|row| row.opens() == 0))
        .collect();
    assert!(unseen.is_empty(), "Python read them, and they are not listed as opened: {unseen:#?}");
    assert!(import.scratch.root().is_dir());
}

/// Without bytecode the sources are what is opened.
#[test]
fn without_bytecode_the_sources_were_opened() {
    let nowhere = "pycache_prefix=/nonexistent/coldtrace";
    let Some(import) = import(&["-B", "-X", nowhere]) else { return };
    let source = |module: &&Module| module.name.starts_with("json");
    let modules: Vec<&Module> = import.modules.iter().filter(source).collect();
    assert!(modules.len() >= 3, "json has some modules");
    for module in modules {
        let opened = row(&import.record, &module.file).map_or(0, FileRow::opens);
        assert_eq!(opened, 1, "{}", module.file.display());
        let missed = row(&import.record, &module.cached).map_or(0, |row| row.misses);
        assert!(missed > 0, "{}", module.cached.display());
    }
}

#[test]
fn nothing_is_listed_that_is_not_there() {
    let Some(import) = import(&[]) else { return };
    assert_eq!(contradictions(&import.record), Vec::<String>::new());
    let listed = &files(&import.record).paths;
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR")).canonicalize().expect("it is there");
    let temporary = temporary.to_string_lossy();
    let mut invented = Vec::new();
    for row in listed.iter().filter(|row| row.path.starts_with('/')) {
        let bytes = row.bytes();
        // /proc/self is another process's now; what the test itself wrote is gone.
        let ours = |path: &str| path.starts_with("/proc/") || path.starts_with(&*temporary);
        if ours(&row.path) || !row.marks.is_empty() {
            continue;
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(&bytes));
        let there = path.symlink_metadata().is_ok();
        let calls = row.stats + row.other.values().sum::<u64>();
        let only_missed = row.opens() == 0 && row.misses > 0 && row.misses >= calls;
        if there == only_missed {
            invented.push(format!("{} is there: {there}; {row:?}", row.path));
        }
    }
    assert!(invented.is_empty(), "{}", invented.join("\n"));
    assert!(listed.len() > 20, "{listed:#?}");
}
