//! Regions: what a program marks, and what is asked for by events; by thread and by process, and
//! that the calls which mark are nowhere else.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use coldtrace::record::{ProcessSyscall, Record, Region};
use support::fixture::{Fixture, SKIPPED, built};
use support::process::{Finished, finish};
use support::{Scratch, coldtrace, find_program, read_record, skip, table};

fn traced(scratch: &Scratch, options: &[&str], words: &[&str]) -> (Record, Finished) {
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["--output", "pass"]).args(options);
    let finished = finish(command.arg("--").args(words));
    (read_record(&scratch.path("runs/latest/record.json"), &finished), finished)
}

/// Calls, and errors as `ENOENT.stat`; of another table as `i386:stat`.
fn counts(rows: &[ProcessSyscall]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for row in rows {
        let abi = if row.abi == "x86_64" { String::new() } else { format!("{}:", row.abi) };
        all.insert(format!("{abi}{}", row.name), row.calls);
        for (errno, calls) in &row.errors {
            all.insert(format!("{errno}.{abi}{}", row.name), *calls);
        }
    }
    all
}

fn region<'r>(record: &'r Record, name: &str) -> &'r Region {
    let mut all = record.regions.iter().flatten();
    all.find(|region| region.name == name).unwrap_or_else(|| panic!("no {name}: {record:?}"))
}

/// What `WORD=N` say beside what is said; `any` leaves a word out of both.
fn differs(words: &[&str], mut actual: BTreeMap<String, u64>) -> Option<String> {
    let mut expected = BTreeMap::new();
    for (name, number) in words.iter().filter_map(|word| word.split_once('=')) {
        if number == "any" {
            actual.remove(name);
        } else {
            expected.insert(name.to_owned(), number.parse::<u64>().expect("a number"));
        }
    }
    (expected != actual).then(|| format!("{actual:?}, expected {expected:?}"))
}

/// Holds a record against the lines in a fixture's head.
fn as_promised(fixture: &Fixture, record: &Record) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(&fixture.name);
    let source = std::fs::read_to_string(source.with_extension("c")).expect("a fixture has text");
    let head = source.split_once("*/").expect("a fixture has a head").0;
    let mut wrong = table::differences(fixture, record);
    let mut promised = Vec::new();
    for line in head.lines().filter_map(|line| line.strip_prefix(" * ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["region", name, times, ref rest @ ..] if times.starts_with("times=") => {
                promised.push(name);
                let region = region(record, name);
                let found = (format!("times={}", region.times), region.open_ended);
                if found != (times.to_owned(), rest.contains(&"open_ended")) {
                    wrong.push(format!("{line}: {found:?}"));
                }
                wrong.extend(
                    differs(rest, counts(&region.syscalls)).map(|d| format!("{line}: {d}")),
                );
                let calls = region.syscalls.iter().map(|row| row.calls).sum::<u64>();
                let errors = region.syscalls.iter().map(ProcessSyscall::error_count).sum::<u64>();
                assert_eq!((region.calls, region.errors), (calls, errors), "{line}");
                let parts = region.processes.iter().flat_map(|process| &process.syscalls);
                assert_eq!(parts.map(|row| row.calls).sum::<u64>(), calls, "{line}");
            }
            ["region-process", name, id, ref rest @ ..] => {
                let process =
                    region(record, name).processes.iter().find(|p| p.id.to_string() == id);
                let found = process.map_or(BTreeMap::new(), |process| counts(&process.syscalls));
                wrong.extend(differs(rest, found).map(|d| format!("{line}: {d}")));
            }
            ["within", path, ref names @ ..] => {
                let mut rows = record.files.iter().flat_map(|files| &files.paths);
                let found = rows.find(|row| row.path == path.trim_end_matches('/'));
                let found = found.unwrap_or_else(|| panic!("no {path}"));
                if found.regions != names {
                    wrong.push(format!("{line}: {:?}", found.regions));
                }
            }
            _ => {}
        }
    }
    let notes: Vec<&str> = head.lines().filter_map(|line| line.strip_prefix(" * note ")).collect();
    assert_eq!(record.measurement.notes, notes);
    let found: Vec<&str> = record.regions.iter().flatten().map(|r| r.name.as_str()).collect();
    assert_eq!(found, promised, "in order");
    wrong.extend(table::contradictions(record));
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), table::render(record));
    let files = record.files.as_ref().expect("files were listed");
    let marks = |path: &str| {
        ["begin", "end", "mark"].iter().any(|mark| path.starts_with(&format!("/coldtrace/{mark}/")))
    };
    assert!(!files.paths.iter().any(|row| marks(&row.path)), "{:?}", files.paths);
    assert!(
        !files.searches.iter().any(|s| s.directories.iter().any(|d| d.starts_with("/coldtrace/")))
    );
    let threads = record.processes.iter().flatten().flat_map(|process| &process.threads);
    let calls: u64 = threads.map(|thread| thread.calls).sum();
    assert_eq!(Some(calls), record.tree.as_ref().map(|tree| tree.calls));
}

fn keeps(name: &str) {
    let Some(program) = built(name) else { return };
    let scratch = Scratch::new(name);
    let (record, finished) = traced(&scratch, &[], &[&program.path.to_string_lossy()]);
    if finished.code() == Some(SKIPPED) {
        return skip("the kernel lacks what this is about");
    }
    as_promised(&Fixture::read(name), &record);
}

#[test]
fn what_a_program_marks_is_told_apart_and_marks_are_nowhere() {
    keeps("regions");
}

#[test]
fn a_call_belongs_to_where_it_entered() {
    keeps("regions-threads");
}

#[test]
fn marks_by_another_table_count() {
    keeps("regions-int80");
}

/// Which of the powers of two the sum of getppid calls holds, and other calls.
fn held(region: &Region) -> (u64, Vec<&str>) {
    let rows = region.syscalls.iter();
    let calls = rows.clone().find(|row| row.name == "getppid").map_or(0, |row| row.calls);
    let mut names: Vec<&str> = rows.map(|row| row.name.as_str()).collect();
    names.retain(|name| *name != "getppid");
    names.sort_unstable();
    (calls, names)
}

#[test]
fn regions_begin_and_end_with_events() {
    let Some(program) = built("regions-moments") else { return };
    let program = program.path.to_string_lossy();
    let scratch = Scratch::new("events");
    for (text, getppid, open_ended) in [
        ("exec..stdout", 31, false),
        ("exec..open:status", 3, false),
        ("open:status", 124, true),
        ("open:/proc/*/status..marker:here", 4, false),
        ("open:status..syscall:write", 12, false),
        ("marker:here..call:write", 8, false),
        ("stdout..call:nanosleep", 32, false),
        ("stdout..1s", 32, false),
        ("1s", 64, true),
        ("0s..call:open", 1, false),
        ("call:getppid..call:getppid", 1, false),
        ("call:nanosleep..exec", 64, true),
    ] {
        let option = format!("r={text}");
        let sleeps = text.contains("1s");
        let words = [&*program, "sleep"];
        let words = if sleeps { &words[..] } else { &words[..1] };
        let (record, finished) = traced(&scratch, &["--region", &option], words);
        finished.assert_code(0);
        let found = region(&record, "r");
        assert_eq!((found.times, found.open_ended), (1, open_ended), "{text}");
        assert_eq!(held(found).0, getppid, "{text}: {found:?}");
        assert!(found.wall_ns <= record.outcome.wall_ns, "{text}: {found:?}");
        assert_eq!(table::contradictions(&record), Vec::<String>::new());
        assert_eq!(table::calls(&record, "access"), 0, "{text}");
    }
}

#[test]
fn a_region_has_the_call_that_it_begins_with_and_not_that_of_its_end() {
    let Some(program) = built("regions-moments") else { return };
    let program = program.path.to_string_lossy();
    let scratch = Scratch::new("bounds");
    for (text, others) in [
        ("exec..open:status", &["alarm", "open"][..]),
        ("open:status..stdout", &["open", "write"]),
        ("stdout..call:nanosleep", &["write"]),
        ("marker:here..call:write", &[]),
        ("call:nanosleep", &["exit_group", "nanosleep"]),
    ] {
        let option = format!("r={text}");
        let (record, _) = traced(&scratch, &["--region", &option], &[&program]);
        assert_eq!(held(region(&record, "r")).1, others, "{text}");
    }
    // The path that was missed before is in the region, the one that ends it is not.
    let (record, _) = traced(&scratch, &["--region", "r=exec..open:status"], &[&program]);
    let files = record.files.as_ref().expect("files were listed");
    let regions = |path: &str| {
        let row = files.paths.iter().find(|row| row.path.ends_with(path));
        row.unwrap_or_else(|| panic!("{path}: {files:?}")).regions.clone()
    };
    assert_eq!(regions("/nonexistent/status"), ["r"]);
    let opened: Vec<_> = files.paths.iter().filter(|row| row.opens() > 0).collect();
    assert!(!opened.is_empty() && opened.iter().all(|row| row.regions.is_empty()), "{opened:?}");
}

#[test]
fn regions_are_there_where_other_calls_are_asked_for() {
    let Some(program) = built("regions-moments") else { return };
    let program = program.path.to_string_lossy();
    let scratch = Scratch::new("filtered");
    let options = ["-e", "trace=getppid", "--region", "a=marker:here..stdout"];
    let (record, _) = traced(&scratch, &options, &[&program]);
    assert_eq!(held(region(&record, "a")), (24, Vec::new()));
    let rows: Vec<(&str, u64)> =
        record.syscalls.iter().flatten().map(|row| (row.name.as_str(), row.calls)).collect();
    assert_eq!(rows, [("getppid", 127)]);
}

#[test]
fn what_never_began_is_there_and_what_was_not_asked_for_is_not() {
    let scratch = Scratch::new("never");
    let options = ["--region", "a=call:getppid..exec", "--region", "b=1h"];
    let (record, _) = traced(&scratch, &options, &["true"]);
    for name in ["a", "b"] {
        let found = region(&record, name);
        assert_eq!((found.times, found.calls, found.wall_ns, found.open_ended), (0, 0, 0, false));
        assert!(found.syscalls.is_empty() && found.processes.is_empty(), "{found:?}");
    }
    let (record, _) = traced(&scratch, &[], &["true"]);
    assert_eq!(record.regions, None);
}

#[test]
fn several_processes_have_one_startup() {
    let scratch = Scratch::new("tree");
    let words = ["sh", "-c", "/bin/true; sh -c '/bin/true; echo x; /bin/true'"];
    let (record, _) = traced(&scratch, &["--region", "startup=exec..stdout"], &words);
    let startup = region(&record, "startup");
    assert_eq!((startup.times, startup.open_ended), (1, false));
    let execs = |rows: &[ProcessSyscall]| {
        rows.iter().filter(|row| row.name == "execve").map(|row| row.calls).sum::<u64>()
    };
    let all: u64 = record.processes.iter().flatten().map(|p| execs(&p.syscalls)).sum();
    // The first exec is before it, the last comes after the output.
    assert_eq!(execs(&startup.syscalls), all - 2, "{startup:?}");
    assert!(startup.syscalls.iter().all(|row| row.name != "write"), "{startup:?}");
}

#[test]
fn a_language_that_knows_nothing_of_it_marks_regions() {
    let Some(python) = find_program("python3") else { return skip("no python3") };
    let scratch = Scratch::new("python");
    let script = "
import os
os.path.exists('/coldtrace/begin/work')
for _ in range(10): os.getppid()
try: open('/coldtrace/end/work')
except OSError: pass
os.getppid()
";
    let words = [&*python.to_string_lossy(), "-S", "-c", script];
    let (record, finished) = traced(&scratch, &[], &words);
    assert_eq!(held(region(&record, "work")), (10, Vec::new()), "{finished}");
}

#[test]
fn regions_that_cannot_be_are_refused_in_one_line_and_nothing_is_run() {
    let scratch = Scratch::new("refused");
    for (option, why) in [
        ("a", "NAME=FROM..UNTIL"),
        ("=exec", "NAME=FROM..UNTIL"),
        ("a=exec..", "NAME=FROM..UNTIL"),
        ("a=exex", "exex: no such event"),
        ("a=exec..call:futx", "call:futx: "),
        ("a=exec..exit", "where regions end"),
    ] {
        let ran = scratch.path("ran");
        let mut command = coldtrace("run");
        command.arg("--runs").arg(scratch.path("runs")).args(["--region", option, "--"]);
        let finished = finish(command.arg("touch").arg(&ran));
        finished.assert_code(125);
        let said = finished.err();
        assert_eq!(said.lines().count(), 1, "{finished}");
        let start = format!("coldtrace: --region {option}: ");
        assert!(said.starts_with(&start) && said.contains(why), "{why}: {finished}");
        assert!(!ran.exists() && !scratch.path("runs").exists(), "{finished}");
    }
}

#[test]
fn show_prints_regions() {
    let Some(program) = built("regions") else { return };
    let scratch = Scratch::new("show");
    let (record, finished) = traced(&scratch, &[], &[&program.path.to_string_lossy()]);
    let runs = scratch.path("runs");
    let show = |option: &str| {
        let finished = finish(coldtrace("show").arg("--runs").arg(&runs).arg(option));
        finished.assert_code(0);
        finished.out()
    };
    let text = show("--regions");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for line in ["inner", "stray, which never began", "never-ended, to the run's end"] {
        assert!(text.lines().any(|found| found.ends_with(line)), "{line}: {text}");
    }
    assert!(text.contains("in shared\n"), "{text}");
    let json: Vec<Region> = serde_json::from_str(&show("--json=regions")).expect("it is JSON");
    assert_eq!(Some(json), record.regions);
    let summary = finished.err();
    let line = summary.lines().find(|line| line.starts_with("regions ")).expect("there is a line");
    assert!(line.starts_with("regions  6 regions; outer: 10 calls in "), "{line}");
    let (_, finished) = traced(&scratch, &[], &["true"]);
    assert!(!finished.err().lines().any(|line| line.starts_with("regions ")), "{finished}");
    let refused = finish(coldtrace("show").arg("--runs").arg(&runs).arg("--regions"));
    refused.assert_code(2);
    assert_eq!(refused.err().lines().count(), 1, "{refused}");
    assert!(refused.err().contains("/coldtrace/begin/NAME"), "{refused}");
}
