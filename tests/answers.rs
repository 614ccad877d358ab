//! The record of one slow start answers all that was asked of it, without another tool. What it
//! says is held against what the program itself says.

mod support;

use std::collections::BTreeSet;
use std::process::Command;

use coldtrace::record::{ImportedModule, Imports, MappedFile, Record};
use support::process::finish;
use support::{Scratch, coldtrace, read_record, skip};

const PYTHON: &str = "/usr/bin/python3";

/// Imports numpy, and says what of itself it sees then.
const PROGRAM: &str = "
import numpy, sys
for line in open('/proc/self/maps'):
    words = line.split(None, 5)
    if 'x' in words[1] and words[5:] and words[5].startswith('/'): print('mapped', words[5].strip())
for line in open('/proc/self/status'):
    if line.startswith(('RssAnon:', 'RssFile:')): print(*line.split()[:2])
for name in sys.modules:
    if name.startswith('numpy'): print('module', name)
";

fn said<'a>(out: &'a str, what: &str) -> BTreeSet<&'a str> {
    out.lines().filter_map(|line| line.strip_prefix(what)?.strip_prefix(' ')).collect()
}

fn mapped<'a>(record: &'a Record, name: &str) -> Option<&'a MappedFile> {
    let base = |file: &MappedFile| file.path.rsplit('/').next().unwrap_or_default().to_owned();
    record.mapped.iter().flatten().find(|file| base(file).starts_with(name))
}

#[test]
fn the_record_of_a_slow_start_answers_what_is_asked_of_it() {
    if finish(Command::new(PYTHON).args(["-c", "import numpy"])).code() != Some(0) {
        return skip("no numpy for /usr/bin/python3");
    }
    let scratch = Scratch::new("answers");
    let runs = scratch.path("runs");
    let mut command = coldtrace("run");
    command.args(["--importtime", "--output", "log", "--runs"]).arg(&runs);
    let finished = finish(command.args(["--", PYTHON, "-c", PROGRAM]));
    finished.assert_code(0);
    let record = read_record(&runs.join("latest/record.json"), &finished);
    let out = std::fs::read_to_string(runs.join("latest/stdout.log")).expect("it was kept");

    // How long, and CPU or waiting.
    let time = record.time.as_ref().expect("where the time went");
    let parts = time.cpu_ns + time.run_queue_ns + time.blocked_ns + time.other_ns;
    assert_eq!(parts, time.lifetime_ns, "{time:?}");
    assert!(time.cpu_ns > 0 && record.outcome.wall_ns > 0, "{time:?}");

    // How many files were opened and missed: numpy's own among them.
    let files = record.files.as_ref().expect("its files");
    let opened = files.paths.iter().filter(|row| row.opens() > 0);
    assert!(opened.clone().any(|row| row.path.contains("/numpy/__pycache__/__init__.")), "{out}");
    assert!(files.paths.iter().any(|row| row.misses > 0), "a search path has misses");

    // Which native libraries: those that it sees itself, no more and no less.
    let at_exit: BTreeSet<&str> =
        record.mapped.iter().flatten().filter(|m| m.at_exit).map(|m| m.path.as_str()).collect();
    // Shared memory is no library: it is coldtrace's own here (docs/fast.md).
    let mut seen = said(&out, "mapped");
    seen.retain(|path| !path.starts_with("/SYSV"));
    assert_eq!(at_exit, seen);
    let core = mapped(&record, "_multiarray_umath.").expect("numpy's core");
    assert_eq!(core.came_by.as_deref(), Some(&["dlopen".to_owned()][..]), "{core:?}");
    let blas = mapped(&record, "libblas.").expect("what it computes with");
    assert_eq!(blas.came_by.as_deref(), Some(&["needed".to_owned()][..]), "{blas:?}");
    assert!(blas.needed_by.iter().flatten().any(|path| *path == core.path), "{blas:?}");
    assert_eq!(
        mapped(&record, "python3").and_then(|m| m.came_by.clone()),
        Some(vec!["exec".into()])
    );

    // How much memory, and whose. It was looked at a moment after the program did.
    let root = record.proc.iter().flatten().find(|p| p.process == 0).expect("a snapshot");
    let memory = root.memory.as_ref().expect("its memory");
    for (name, bytes) in [("RssAnon:", memory.anon_bytes), ("RssFile:", memory.file_bytes)] {
        let kib: u64 = said(&out, name).first().and_then(|kib| kib.parse().ok()).expect("a number");
        let bytes = bytes.expect("a number");
        assert!(bytes.abs_diff(kib * 1024) < 2 << 20, "{name} {bytes} B, the program: {kib} KiB");
    }
    let objects = root.objects.as_deref().unwrap_or_default();
    let of_core = objects.iter().find(|o| o.object == core.path).expect("whose it is");
    assert_eq!(core.resident_anon_bytes, Some(of_core.anon_bytes));
    assert_eq!(core.resident_file_bytes, Some(of_core.file_bytes));
    assert!(of_core.file_bytes > 0);

    // What the slowest imports were: all that it has, and numpy holds the most.
    let imports = record.imports.as_ref().expect("its imports");
    assert_eq!(imports.reason, None);
    let modules: Vec<&ImportedModule> = Imports::modules(imports).map(|(_, m)| m).collect();
    let names: BTreeSet<&str> = modules.iter().map(|m| m.name.as_str()).collect();
    assert!(names.contains("numpy"), "{names:?}");
    let unknown: Vec<&&str> = names
        .iter()
        .filter(|name| name.starts_with("numpy") && !said(&out, "module").contains(**name))
        .collect();
    assert!(unknown.is_empty(), "imported, but not there: {unknown:?}");
    let slowest = modules.iter().max_by_key(|m| m.cumulative_us).expect("there are some");
    assert_eq!(slowest.name, "numpy", "{slowest:?}");

    // Where the CPU time outside calls went.
    let cpu = record.cpu.as_ref().expect("asked for");
    match (&cpu.reason, cpu.samples) {
        (None, Some(samples)) => {
            let objects: u64 = cpu.objects.iter().flatten().map(|o| o.samples).sum();
            assert!(samples > 0 && objects == samples, "{cpu:?}");
        }
        (Some(_), None) => {} // This machine allows none, and the record says so.
        _ => panic!("either samples or why there are none: {cpu:?}"),
    }

    // Whether any CUDA library was mapped.
    assert!(record.mapped.iter().flatten().all(|m| m.cuda.is_none()));
    let shown = finish(coldtrace("show").arg(runs.join("latest")).arg("--mapped"));
    assert!(shown.out().contains("no CUDA library was mapped"), "{shown}");
}
