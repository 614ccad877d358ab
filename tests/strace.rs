//! strace counts the same calls and the same errors, call by call, for ordinary commands and for
//! fixtures that bring out where the two mean different things. The differences that may be are
//! data: strace-differences.txt.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use coldtrace::record::{Record, SyscallRow};
use support::fixture::{Expected, Fixture};
use support::{Scratch, find_program, process, read_record, skip, table};

/// (abi, name) -> (calls, errors)
type Counts = BTreeMap<(String, String), (u64, u64)>;

/// A command whose counts repeat, and the rows that do not.
struct Case {
    argv: Vec<OsString>,
    /// Rows that depend on timing.
    open: BTreeSet<String>,
    /// How often it may differ before it counts: more than once only where a
    /// signal that arrives while a call returns makes either tool see one leg
    /// more.
    tries: u32,
}

impl Case {
    fn new(argv: &[&str]) -> Self {
        Self { argv: argv.iter().map(OsString::from).collect(), open: BTreeSet::new(), tries: 1 }
    }

    fn fixture(name: &str) -> Result<Self, String> {
        let fixture = Fixture::read(name);
        let program = fixture.build()?;
        let mut argv = vec![program.path.into_os_string()];
        argv.extend(program.arguments.into_iter().map(PathBuf::into_os_string));
        let open = fixture
            .rows
            .into_iter()
            .filter(|row| row.calls == Expected::Any)
            .map(|row| row.name)
            .collect();
        let tries = if SIGNALLED.contains(&name) { 3 } else { 1 };
        Ok(Self { argv, open, tries })
    }
}

/// Fixtures in which signals interrupt calls.
const SIGNALLED: [&str; 7] = [
    "realtime-signals",
    "signal-storm",
    "restart",
    "restart-nested",
    "eintr",
    "stop-continue",
    "killed-in-call",
];

/// One line of strace-differences.txt.
struct Allowance {
    line: String,
    call: String,
    reason: String,
}

#[test]
fn strace_counts_the_same_but_for_the_listed_differences() {
    if find_program("strace").is_none() {
        return skip("no strace");
    }
    let scratch = Scratch::new("strace");
    let allowances = allowances();
    let mut used = BTreeSet::new();
    for case in commands(scratch.root()).into_iter().chain(fixtures()) {
        process::finish(&mut in_place(&case, scratch.root(), None)); // warm
        let mut result = compare(&case, scratch.root(), &allowances);
        for _ in 1..case.tries {
            if result.is_ok() {
                break;
            }
            result = compare(&case, scratch.root(), &allowances);
        }
        used.extend(result.unwrap_or_else(|differences| panic!("{:?}:\n{differences}", case.argv)));
    }
    let unused: Vec<&str> = (0..allowances.len())
        .filter(|index| !used.contains(index))
        .map(|index| allowances[index].line.as_str())
        .collect();
    assert!(
        unused.is_empty(),
        "strace-differences.txt allows what nothing needs:\n{}",
        unused.join("\n")
    );
}

/// Commands that make the same calls every time. One that is not installed is left out.
fn commands(directory: &Path) -> Vec<Case> {
    let write = |name: &str, text: &str| {
        std::fs::write(directory.join(name), text).expect("scratch can be written");
    };
    write("empty.c", "int main(void) { return 0; }\n");
    std::fs::create_dir_all(directory.join("tree/a/b")).expect("scratch can be written");
    write("tree/a/1", "one\n");
    write("tree/a/b/2", "two\n");
    let mut commands = vec![
        Case::new(&["ls", "-lR", "/usr/include/linux"]),
        Case::new(&["gcc", "-c", "-o", "empty.o", "empty.c"]),
        Case::new(&["python3", "-c", "import json"]),
        Case::new(&["tar", "-cf", "tree.tar", "tree"]),
        Case::new(&["find", "/usr/include/linux", "-name", "*.h"]),
        Case::new(&["sh", "-c", "cat tree/a/1; (cat tree/a/b/2); exit 3"]),
    ];
    if find_program("git").is_some() {
        let repository = directory.join("repository");
        let made = process::finish(Command::new("git").args(["init", "-q"]).arg(&repository));
        made.assert_code(0);
        write("repository/file", "text\n");
        commands.push(Case::new(&["git", "-C", "repository", "status"]));
    }
    commands.retain(|case| {
        let name = case.argv[0].to_string_lossy().into_owned();
        let there = find_program(&name).is_some();
        if !there {
            skip(&format!("no {name}"));
        }
        there
    });
    commands
}

fn fixtures() -> Vec<Case> {
    [
        "processes-threads",
        "exec-i386",
        "exec-fails",
        "exec-from-thread",
        "exit-group",
        "killed-in-call",
        "realtime-signals",
        "signal-storm",
        "restart",
        "restart-nested",
        "eintr",
        "stop-continue",
        "own-seccomp",
    ]
    .into_iter()
    .filter_map(|name| Case::fixture(name).map_err(|why| skip(&why)).ok())
    .collect()
}

/// The case's command, below `tracer` when there is one, where both tools find the same: C locale,
/// no randomized addresses or hashes, no configuration from outside.
fn in_place(case: &Case, directory: &Path, tracer: Option<&[OsString]>) -> Command {
    let mut words: Vec<OsString> = Vec::new();
    if has_setarch() {
        words.extend(["setarch", "-R"].map(OsString::from));
    }
    words.extend(tracer.unwrap_or_default().iter().cloned());
    words.extend(case.argv.iter().cloned());
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .current_dir(directory)
        .env("LC_ALL", "C")
        .env("PYTHONHASHSEED", "0")
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", directory);
    command
}

fn has_setarch() -> bool {
    find_program("setarch").is_some()
        && Command::new("setarch")
            .args(["-R", "true"])
            .output()
            .is_ok_and(|output| output.status.success())
}

/// Indices of the allowances that were needed, or the differences that none explains.
fn compare(
    case: &Case,
    directory: &Path,
    allowances: &[Allowance],
) -> Result<BTreeSet<usize>, String> {
    let by_strace = by_strace(case, directory);
    let record = by_coldtrace(case, directory);
    let mut used = BTreeSet::new();
    let mut expected = Counts::new();
    for row in table::rows(&record) {
        expected.insert((row.abi.clone(), row.name.clone()), (row.calls, row.error_count()));
    }
    let redrawn = format!("redrawn-by-{}", case.argv[0].display());
    for (index, allowance) in allowances.iter().enumerate() {
        if apply(allowance, &record, &mut expected) || allowance.reason == redrawn {
            used.insert(index);
        }
    }
    let none = (0, 0);
    let keys: BTreeSet<_> = expected.keys().chain(by_strace.keys()).collect();
    let mut differences = String::new();
    for key in keys {
        let (ours, theirs) =
            (expected.get(key).unwrap_or(&none), by_strace.get(key).unwrap_or(&none));
        let random = allowances.iter().any(|a| a.reason == redrawn && a.call == key.1);
        if ours != theirs && !random && !case.open.contains(&key.1) {
            let _ = writeln!(
                differences,
                "  {} {}: strace {} calls {} errors, expected of it {} and {}",
                key.0, key.1, theirs.0, theirs.1, ours.0, ours.1
            );
        }
    }
    if differences.is_empty() { Ok(used) } else { Err(differences + &table::render(&record)) }
}

/// Changes `expected` to what strace says about the allowance's call; false when nothing changes.
fn apply(allowance: &Allowance, record: &Record, expected: &mut Counts) -> bool {
    let before = expected.clone();
    let rows = table::rows(record);
    let restarted_by_number =
        |row: &&SyscallRow| row.restarts > 0 && matches!(row.name.as_str(), "nanosleep" | "poll");
    if allowance.reason == "later-legs" {
        for row in rows.iter().filter(restarted_by_number) {
            let key = (row.abi.clone(), allowance.call.clone());
            let legs = expected.entry(key).or_default();
            legs.0 += row.restarts;
            legs.1 += row.restarts - 1;
        }
    }
    let interrupted: u64 = rows.iter().filter_map(|row| row.errors.get("EINTR")).sum();
    for row in rows.iter().filter(|row| row.name == allowance.call) {
        let counts = expected.entry((row.abi.clone(), row.name.clone())).or_default();
        match allowance.reason.as_str() {
            "never-returns" => counts.0 -= row.calls,
            "unfinished" => counts.0 -= row.unfinished,
            "restarted" => {
                counts.0 += row.restarts;
                counts.1 += row.restarts;
            }
            "restart-block" if row.restarts > 0 => counts.1 += row.calls,
            "carries-eintr" => counts.1 += interrupted,
            _ => {}
        }
    }
    expected.retain(|_, counts| *counts != (0, 0));
    *expected != before
}

fn by_strace(case: &Case, directory: &Path) -> Counts {
    let report = directory.join("strace.txt");
    let options = ["strace", "-f", "-c", "-U", "name,calls,errors", "-o"];
    let mut tracer: Vec<OsString> = options.map(OsString::from).into();
    tracer.push(report.clone().into_os_string());
    let finished = process::finish(&mut in_place(case, directory, Some(&tracer)));
    let text = std::fs::read_to_string(&report)
        .unwrap_or_else(|error| panic!("{}: {error}\n{finished}", report.display()));
    let mut abi = "x86_64";
    let mut counts = Counts::new();
    for line in text.lines() {
        if let Some((_, mode)) = line.split_once("summary for ") {
            abi = if mode.starts_with("32 bit") { "i386" } else { "x32" };
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [name, calls, errors @ ..] = fields.as_slice()
            && let Ok(calls) = calls.parse()
            && *name != "total"
        {
            let errors = errors.first().map_or(0, |n| n.parse().unwrap_or(0));
            counts.insert((abi.to_owned(), (*name).to_owned()), (calls, errors));
        }
    }
    assert!(!counts.is_empty(), "strace counted nothing: {text}\n{finished}");
    counts
}

fn by_coldtrace(case: &Case, directory: &Path) -> Record {
    let report = directory.join("coldtrace.json");
    let mut tracer: Vec<OsString> = vec![support::coldtrace_path().into()];
    tracer.extend(["count", "--json", "-o"].map(OsString::from));
    tracer.push(report.clone().into());
    tracer.push("--".into());
    let finished = process::finish(&mut in_place(case, directory, Some(&tracer)));
    read_record(&report, &finished)
}

fn allowances() -> Vec<Allowance> {
    include_str!("strace-differences.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned);
            match (words.next(), words.next(), words.next()) {
                (Some(call), Some(reason), Some(_)) => {
                    Allowance { line: line.to_owned(), call, reason }
                }
                _ => panic!("strace-differences.txt: call, reason, explanation: {line}"),
            }
        })
        .collect()
}
