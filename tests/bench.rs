//! What `bench` promises: the order of its runs, what is counted and what is not, how each is
//! labelled, and what is kept when it is cut short.

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use coldtrace::bench::{Bench, CommandBench, Count, KindBench, RunEntry, RunKind};
use coldtrace::cache::WorkingSet;
use coldtrace::record::Record;
use serde_json::Value;
use support::bench::{Place, fits, of_kind};
use support::page_cache::alone;
use support::process::{LIMIT, finish, start};
use support::{coldtrace, skip};

fn names(of: &CommandBench) -> Vec<&str> {
    of.runs.iter().map(|run| run.run.as_str()).collect()
}

fn n(of: Option<&KindBench>) -> usize {
    of.map_or(0, |kind| kind.n)
}

/// A shell script that appends a letter to a file.
fn append(letter: &str, file: &Path) -> String {
    format!("printf {letter} >> {}", file.display())
}

// ---- the schedule ----

#[test]
fn runs_come_in_order_and_commands_in_turns() {
    let _alone = alone();
    let place = Place::new("bench-order");
    let log = place.path("log");
    let [setup, prepare, cleanup, a, b] = ["s", "p", "c", "a", "b"].map(|l| append(l, &log));
    let options = ["-n", "2", "--cold", "1", "--warmup", "1", "--traced", "1"];
    let around = ["--setup", &setup, "--prepare", &prepare, "--cleanup", &cleanup];
    let options = [&options[..], &around[..]].concat();
    let finished = place.run(&options, &["sh", "-c", &a, ":::", "sh", "-c", &b]);
    finished.assert_code(0);
    // First, traced, cold, warm-up and two warm.
    assert_eq!(place.text("log"), format!("s{}c", "papb".repeat(6)));
    let bench = place.bench();
    let kinds = ["first", "traced-1", "cold-1", "warmup-1", "warm-1", "warm-2"];
    for (number, command) in (1..).zip(&bench.commands) {
        let expected: Vec<String> = kinds.iter().map(|kind| format!("{number}-{kind}")).collect();
        assert_eq!(names(command), expected);
        assert_eq!(n(command.warm.as_ref()), 2);
        for name in names(command) {
            let record = place.record(name);
            assert_eq!(record.outcome.exit_code, Some(0), "{name}");
            let engine = if name.contains("traced") { "ptrace" } else { "none" };
            assert_eq!(record.measurement.engine, engine, "{name}");
            assert!(record.cache.is_some() && record.environment.is_some(), "{name}");
        }
    }
    assert_eq!(bench.commands.len(), 2);
    // Two of each are too few to compare.
    assert!(bench.comparisons.iter().all(|it| it.ratio.is_none()), "{:?}", bench.comparisons);
    assert!(finished.out().contains("n too small to compare"), "{finished}");
    fits(&finished.out());
}

#[test]
fn one_command_has_plain_names() {
    let place = Place::new("bench-plain");
    place.run(&["-n", "1", "--warmup", "0", "--traced", "0"], &["true"]).assert_code(0);
    assert_eq!(names(&place.bench().commands[0]), ["first", "warm-1"]);
}

#[test]
fn a_command_like_itself_does_not_differ_and_one_that_sleeps_does() {
    let place = Place::new("bench-compare");
    let options = ["-n", "7", "--traced", "0"];
    let finished = place.run(&options, &["true", ":::", "sh", "-c", "sleep 0.2"]);
    finished.assert_code(0);
    let warm = place.bench().comparisons.into_iter().find(|it| it.kind == RunKind::Warm);
    let warm = warm.expect("both have warm runs");
    assert_eq!((warm.command, warm.differs), (1, Some(true)));
    assert!(warm.ratio.is_some_and(|ratio| ratio.low > 1.0 && ratio.ratio > 1.0), "{warm:?}");
    assert!(finished.out().contains("2 vs 1, warm: "), "{finished}");
}

#[test]
fn of_two_equal_commands_no_difference_is_seen() {
    // One in twenty intervals of 95 % does not hold the truth: not four in turn.
    let sees_none = || {
        let place = Place::new("bench-equal");
        let finished = place.run(&["-n", "7", "--traced", "0"], &["true", ":::", "true"]);
        finished.assert_code(0);
        let warm = place.bench().comparisons.into_iter().find(|it| it.kind == RunKind::Warm);
        let warm = warm.expect("both have warm runs");
        let none = warm.differs == Some(false);
        assert!(warm.ratio.is_some_and(|it| (it.low <= 1.0 && it.high >= 1.0) == none), "{warm:?}");
        assert_eq!(finished.out().contains("no difference seen"), none, "{finished}");
        none
    };
    assert!((0..4).any(|_| sees_none()));
}

// ---- what around the runs fails ----

#[test]
fn what_prepares_must_succeed() {
    let place = Place::new("bench-prepare");
    let (runs, cleaned) = (place.path("ran"), place.path("cleaned"));
    let (script, cleanup) = (append("r", &runs), append("c", &cleaned));
    let options = ["--prepare", "echo no such disk; exit 3", "--cleanup", &cleanup];
    let finished = place.run(&options, &["sh", "-c", &script]);
    finished.assert_code(125);
    let said = finished.err();
    assert!(said.starts_with("coldtrace: prepare: `echo no such disk; exit 3` exited 3"), "{said}");
    assert!(!runs.exists(), "nothing is run when what prepares it failed");
    assert_eq!(place.text("cleaned"), "c");
    // What it said is where the line says.
    let log = said.trim_end().rsplit(' ').next().expect("a path");
    assert_eq!(fs::read_to_string(log).expect("the log is kept"), "no such disk\n");

    let finished = place.run(&["--setup", "exit 4", "--cleanup", &cleanup], &["true"]);
    finished.assert_code(125);
    assert!(finished.err().contains("setup: `exit 4` exited 4"), "{finished}");
    assert_eq!(place.text("cleaned"), "c", "what was not set up is not cleaned up");
}

// ---- failing runs ----

/// Counts its runs in a file, and fails in the one that is numbered so, from 1.
fn fails_in(run: u32, file: &Path, how: &str) -> String {
    let file = file.display();
    format!("printf x >> {file}; [ $(wc -c < {file}) -ne {run} ] || {how}")
}

#[test]
fn failing_runs_are_kept_and_never_statistics() {
    for (ignore, code) in [(&[][..], 1), (&["--ignore-failure"][..], 0)] {
        let place = Place::new("bench-fails");
        // First, traced and warm-up come before: it is the second warm run.
        let script = fails_in(5, &place.path("count"), "{ echo broken >&2; sleep 0.3; exit 9; }");
        let options = [&["-n", "4"][..], ignore].concat();
        let finished = place.run(&options, &["sh", "-c", &script]);
        finished.assert_code(code);
        let bench = place.bench();
        let command = &bench.commands[0];
        let warm = command.warm.as_ref().expect("three did not fail");
        assert_eq!((warm.n, warm.failed), (3, 1));
        let failed: Vec<&RunEntry> =
            command.runs.iter().filter(|run| run.failed.is_some()).collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        assert_eq!(
            (failed[0].run.as_str(), failed[0].failed.as_deref()),
            ("warm-2", Some("exited 9"))
        );
        // It took longer than all others, and is in no number.
        let wall = &warm.metrics["wall_ns"];
        assert_eq!(wall.n, 3);
        assert!(wall.max < failed[0].metrics.wall_ns.expect("it was timed") as f64, "{wall:?}");
        assert!(finished.out().contains("1 of 7 runs failed"), "{finished}");
        assert!(finished.out().contains("warm-2 exited 9"), "{finished}");
        let log = fs::read_to_string(place.runs().join("latest/warm-2/stderr.log"));
        assert_eq!(log.expect("its output is kept"), "broken\n");
        fits(&finished.out());
    }
}

#[test]
fn a_death_by_signal_is_a_failure() {
    let place = Place::new("bench-signal");
    let script = fails_in(4, &place.path("count"), "kill -9 $$");
    place.run(&["-n", "2"], &["sh", "-c", &script]).assert_code(1);
    let bench = place.bench();
    assert_eq!(bench.commands[0].runs[3].failed.as_deref(), Some("killed by SIGKILL"));
    assert_eq!(bench.interrupted, None);
}

#[test]
fn when_the_first_run_fails_nothing_is_repeated() {
    let place = Place::new("bench-first-fails");
    let finished = place.run(&["-n", "3"], &["sh", "-c", "exit 3"]);
    finished.assert_code(1);
    let bench = place.bench();
    assert_eq!(names(&bench.commands[0]), ["first"]);
    assert!(bench.commands[0].first.is_none() && bench.commands[0].warm.is_none());
    assert!(finished.out().contains("first exited 3"), "{finished}");

    // Who ignores failures has all runs made, and no numbers of them.
    place.run(&["-n", "3", "--ignore-failure"], &["sh", "-c", "exit 3"]).assert_code(0);
    let bench = place.bench();
    assert_eq!(bench.commands[0].runs.len(), 6);
    assert!(bench.commands[0].warm.is_none() && bench.commands[0].syscalls.is_empty());
}

#[test]
fn what_cannot_be_run_leaves_nothing() {
    let place = Place::new("bench-not-found");
    let finished = place.run(&[], &["no-such-command-anywhere"]);
    finished.assert_code(127);
    assert_eq!(finished.err().lines().count(), 1, "{finished}");
    let left: Vec<_> = fs::read_dir(place.runs())
        .expect("the directory of runs was made")
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name != ".gitignore")
        .collect();
    assert!(left.is_empty(), "{left:?}");
    place.run(&[], &["true", ":::"]).assert_code(2);
    finish(&mut place.prepared(coldtrace("bench"))).assert_code(2);
    place.run(&["--drop-caches"], &["true"]).assert_code(2);
    place.run(&["-n", "-1"], &["true"]).assert_code(2);
}

#[test]
fn cold_runs_need_to_know_the_files() {
    let _alone = alone();
    let place = Place::new("bench-no-set");
    let finished = place.run(&["-n", "1", "--cold", "1", "--traced", "0"], &["true"]);
    finished.assert_code(125);
    assert!(finished.err().contains("--traced 1 traces one"), "{finished}");
    // A run that was traced before will do.
    place.run(&["-n", "1", "--traced", "1"], &["true"]).assert_code(0);
    place.run(&["-n", "1", "--cold", "1", "--traced", "0"], &["true"]).assert_code(0);
    let bench = place.bench();
    assert_eq!(names(&bench.commands[0]), ["first", "cold-1", "warmup-1", "warm-1"]);
    assert!(bench.commands[0].runs.iter().all(|run| run.files.is_some_and(|files| files > 0)));
}

// ---- the numbers ----

/// A number of a record.
type Field = fn(&Record) -> Option<u64>;

#[test]
fn numbers_are_those_of_the_records() {
    let _alone = alone();
    let place = Place::new("bench-numbers");
    let options = ["-n", "6", "--traced", "2", "--cold", "2"];
    let finished = place.run(&options, &["sh", "-c", "ls / >/dev/null; cat /nonexistent; true"]);
    finished.assert_code(0);
    let bench = place.bench();
    let command = &bench.commands[0];
    for (kind, summary) in [
        (RunKind::First, &command.first),
        (RunKind::Cold, &command.cold),
        (RunKind::Warm, &command.warm),
        (RunKind::Traced, &command.traced),
    ] {
        let summary = summary.as_ref().expect("none failed");
        let records: Vec<Record> =
            of_kind(command, kind).map(|run| place.record(&run.run)).collect();
        assert_eq!(summary.n, records.len());
        let fields: [(&str, Field); 5] = [
            ("wall_ns", |r| Some(r.outcome.wall_ns)),
            ("user_ns", |r| Some(r.rusage.as_ref()?.user_ns)),
            ("minor_faults", |r| Some(r.rusage.as_ref()?.minor_faults)),
            ("block_in_bytes", |r| Some(r.rusage.as_ref()?.block_in * 512)),
            ("peak_rss_bytes", |r| r.rusage.as_ref()?.peak_bytes()),
        ];
        for (name, field) in fields {
            let mut values: Vec<u64> = records.iter().filter_map(field).collect();
            if name == "peak_rss_bytes" && values.is_empty() {
                continue; // The shell is smaller than an unoptimised coldtrace.
            }
            assert_eq!(values.len(), records.len(), "{kind} {name}");
            values.sort_unstable();
            let half = values.len() / 2;
            let median = match values.len() % 2 {
                0 => (values[half - 1] + values[half]) as f64 / 2.0,
                _ => values[half] as f64,
            };
            let found = &summary.metrics[name];
            let expected = (values[0] as f64, median, values[values.len() - 1] as f64);
            let close = |a: f64, b: f64| (a - b).abs() <= 0.5;
            assert!(
                close(found.min, expected.0)
                    && close(found.median, expected.1)
                    && close(found.max, expected.2),
                "{kind} {name}: {found:?} is not {expected:?}"
            );
            assert_eq!((found.p90, found.p99), (None, None), "n is too small");
            assert_eq!(found.stddev.is_some(), summary.n >= 5);
        }
    }
    // What a call counts is in the record of each traced run.
    let records = [place.record("traced-1"), place.record("traced-2")];
    for row in &command.syscalls {
        let counts = records.each_ref().map(|record| {
            let mut rows = record.syscalls.iter().flatten();
            rows.find(|r| r.name == row.name && r.abi == row.abi).map_or(0, |r| r.calls)
        });
        match &row.calls {
            Count::Same(n) => assert_eq!([*n; 2], counts, "{}", row.name),
            Count::Varies(spread) => assert_ne!(counts[0], counts[1], "{}: {spread:?}", row.name),
        }
    }
    let execve = command.syscalls.iter().find(|row| row.name == "execve").expect("it was run");
    assert!(matches!(execve.calls, Count::Same(calls) if calls >= 3), "{execve:?}");
    // Times are of untraced runs.
    assert!(place.record("warm-1").rusage.is_some_and(|r| r.first_thread_cpu_ns > Some(0)));
    let schema = finish(coldtrace("schema").arg("bench"));
    let schema: Value = serde_json::from_str(&schema.assert_code(0).out()).expect("it is JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("it is a schema");
    let json = serde_json::to_value(&bench).expect("it can be written");
    assert!(validator.is_valid(&json), "{json:#}");
    assert!(!validator.is_valid(&serde_json::json!({ "schema": 1 })));
}

#[test]
fn all_metrics_are_written_for_programs_and_documents() {
    let place = Place::new("bench-formats");
    let (csv, markdown) = (place.path("bench.csv"), place.path("bench.md"));
    let (csv, markdown) = (csv.display().to_string(), markdown.display().to_string());
    let options = ["-n", "3", "--json", "--csv", &csv, "--markdown", &markdown];
    let finished = place.run(&options, &["sh", "-c", "echo '`a|b`' >/dev/null"]);
    let json: Bench = serde_json::from_str(&finished.assert_code(0).out()).expect("it is JSON");
    assert_eq!(json, place.bench());
    let mut reader = csv::Reader::from_path(&csv).expect("it is there");
    let rows: Vec<csv::StringRecord> =
        reader.records().map(|row| row.expect("rows are as long as the head")).collect();
    let warm = json.commands[0].warm.as_ref().expect("none failed");
    let wall = rows.iter().find(|row| &row[2] == "warm" && &row[3] == "wall_ns").expect("a row");
    assert_eq!(wall[4].parse(), Ok(3));
    assert_eq!(wall[6].parse(), Ok(warm.metrics["wall_ns"].median));
    assert_eq!((&wall[9], &wall[10]), ("", ""), "n is too small");
    assert!(rows.iter().any(|row| &row[2] == "traced" && &row[3] == "calls:execve"));
    let text = fs::read_to_string(&markdown).expect("it is there");
    assert!(text.contains("n too small"), "{text}");
    let mut options = pulldown_cmark::Options::empty();
    options.insert(pulldown_cmark::Options::ENABLE_TABLES);
    let mut cells = Vec::new();
    for event in pulldown_cmark::Parser::new_ext(&text, options) {
        match event {
            pulldown_cmark::Event::Start(pulldown_cmark::Tag::TableRow) => cells.push(0),
            pulldown_cmark::Event::Start(pulldown_cmark::Tag::TableCell) => {
                if let Some(last) = cells.last_mut() {
                    *last += 1;
                }
            }
            _ => {}
        }
    }
    assert!(cells.len() > 30 && cells.iter().all(|&n| n == 10), "{cells:?}");
}

// ---- output ----

#[test]
fn output_is_kept_with_each_run_or_passed() {
    let place = Place::new("bench-output");
    let script = "echo \"out $A\"; echo err >&2; cat";
    let finished = place.run(&["-n", "1", "-E", "A=1"], &["sh", "-c", script]);
    finished.assert_code(0);
    assert!(!finished.out().contains("out 1"), "{finished}");
    assert_eq!(finished.err(), "");
    for run in ["first", "traced-1", "warmup-1", "warm-1"] {
        let log = |name: &str| {
            fs::read_to_string(place.runs().join("latest").join(run).join(name)).expect("a log")
        };
        assert_eq!((log("stdout.log"), log("stderr.log")), ("out 1\n".into(), "err\n".into()));
        let outcome = place.record(run).outcome;
        assert_eq!((outcome.stdout_bytes, outcome.stderr_bytes), (Some(6), Some(4)), "{run}");
    }
    let finished = place.run(&["-n", "1", "--output", "pass"], &["sh", "-c", script]);
    assert_eq!(finished.assert_code(0).out(), "out \n".repeat(4));
    assert!(finished.err().contains("wall "), "{finished}");
    assert_eq!(place.record("warm-1").outcome.stdout_bytes, None);
}

// ---- signals ----

/// Waits until a file is there.
fn wait_for(file: &Path) {
    let begun = Instant::now();
    while !file.exists() {
        assert!(begun.elapsed() < LIMIT, "{} never came", file.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_interrupts_it_has_what_was_measured() {
    for (signal, name, to_group) in
        [(libc::SIGINT, "SIGINT", true), (libc::SIGTERM, "SIGTERM", false)]
    {
        let place = Place::new("bench-interrupted");
        let (ready, cleaned) = (place.path("ready"), place.path("cleaned"));
        // The third warm run, behind the first, the traced one and the warm-up, stays.
        let stay = format!("{{ : > {}; exec sleep 1000; }}", ready.display());
        let script = fails_in(6, &place.path("count"), &stay);
        let cleanup = append("c", &cleaned);
        let mut command =
            place.command(&["-n", "10", "--cleanup", &cleanup], &["sh", "-c", &script]);
        let running = start(&mut command);
        wait_for(&ready);
        if to_group {
            running.kill_group(signal);
        } else {
            running.kill(signal);
        }
        let finished = running.finish();
        finished.assert_signal(signal);
        let bench = place.bench();
        assert_eq!(bench.interrupted.as_deref(), Some(name));
        let command = &bench.commands[0];
        let expected = ["first", "traced-1", "warmup-1", "warm-1", "warm-2", "warm-3"];
        assert_eq!(names(command), expected);
        let warm = command.warm.as_ref().expect("two had ended");
        assert_eq!((warm.n, warm.failed), (2, 1));
        let last = command.runs.last().and_then(|run| run.failed.clone());
        assert_eq!(last, Some(format!("killed by {name}")));
        assert_eq!(place.text("cleaned"), "c");
        assert!(finished.out().contains(&format!("ended by {name} after 6 runs")), "{finished}");
    }
}

// ---- shown again, and joined ----

#[test]
fn a_bench_is_shown_and_joined_with_others() {
    let place = Place::new("bench-join");
    let words = ["sh", "-c", "true"];
    let finished = place.run(&["-n", "2", "--label", "one"], &words);
    finished.assert_code(0);
    fits(&finished.out());
    let one = place.bench();
    assert_eq!(one.commands[0].runs[0].first_since_boot, Some(true));
    let mut show = place.prepared(coldtrace("show"));
    let shown = finish(show.arg("latest")).assert_code(0).out();
    assert_eq!(
        finished.out().strip_prefix(&shown).map(|rest| rest.starts_with("runs: ")),
        Some(true)
    );
    let refused = finish(place.prepared(coldtrace("show")).args(["latest", "--syscalls"]));
    refused.assert_code(2);
    assert!(refused.err().contains("is a bench"), "{refused}");
    finish(place.prepared(coldtrace("show")).args(["latest/warm-1"])).assert_code(0);

    // Once more in this boot, and once in what was another.
    place.run(&["-n", "3", "--label", "two"], &words).assert_code(0);
    let two = place.bench();
    assert_eq!(two.commands[0].runs[0].first_since_boot, Some(false));
    let mut three: Value = serde_json::to_value(&one).expect("it can be written");
    three["id"] = "three".into();
    three["environment"]["boot_id"] = "another-boot".into();
    for run in three["commands"][0]["runs"].as_array_mut().expect("there are runs") {
        run["boot_id"] = "another-boot".into();
    }
    fs::create_dir(place.runs().join("three")).expect("scratch can be written");
    let file = place.runs().join("three/bench.json");
    fs::write(file, three.to_string()).expect("scratch can be written");
    let ids = [one.id.clone(), two.id.clone()].map(|id| id.expect("it has a directory"));
    let join = |json: bool| {
        let mut command = place.prepared(coldtrace("bench"));
        command.args(json.then_some("--json")).arg("--join").args(&ids).arg("three");
        let finished = finish(&mut command);
        finished.assert_code(0).out()
    };
    let joined: Bench = serde_json::from_str(&join(true)).expect("it is JSON");
    let command = &joined.commands[0];
    assert_eq!(n(command.first.as_ref()), 2, "the first of each boot");
    assert_eq!(n(command.warm.as_ref()), 2 + 3 + 2);
    assert_eq!(joined.joined.len(), 3);
    assert!(joined.warnings.iter().any(|w| w.contains("not known to be the first since boot")));
    let text = join(false);
    assert!(text.contains("first, n=2") && text.contains("3 benches of 2 boots"), "{text}");
    fits(&text);

    place.run(&["-n", "1"], &["true"]).assert_code(0);
    let mut command = place.prepared(coldtrace("bench"));
    let other = finish(command.args(["--join", &ids[0], "latest"]));
    other.assert_code(2);
    assert!(other.err().contains("of other commands"), "{other}");
    let nothing = finish(place.prepared(coldtrace("bench")).args(["--join", "nothing"]));
    nothing.assert_code(2);
    assert_eq!(nothing.err().lines().count(), 1, "{nothing}");
}

// ---- caches and interpreters ----

#[test]
fn bytecode_that_the_first_run_writes_is_reported() {
    let python = Path::new("/usr/bin/python3");
    if !python.is_file() {
        skip("no python3");
        return;
    }
    let place = Place::new("bench-bytecode");
    let package = place.path("package");
    fs::create_dir(&package).expect("scratch can be written");
    fs::write(package.join("one.py"), "import two\n").expect("scratch can be written");
    fs::write(package.join("two.py"), "x = 1\n").expect("scratch can be written");
    let probe = [package.join("one.py").display().to_string()];
    if WorkingSet::of_files(probe.iter().map(|p| (p.into(), 1))).files().is_empty() {
        skip("scratch is memory");
        return;
    }
    let setting = format!("PYTHONPATH={}", package.display());
    let mut command = place.command(
        &["-n", "2", "-E", &setting, "-E", "PYTHONDONTWRITEBYTECODE"],
        &["/usr/bin/python3", "-c", "import one"],
    );
    let finished = finish(command.env_remove("PYTHONPYCACHEPREFIX"));
    finished.assert_code(0);
    let bench = place.bench();
    let written: Vec<Option<u64>> =
        bench.commands[0].runs.iter().map(|run| run.bytecode_written).collect();
    assert_eq!(written, [Some(2), Some(0), Some(0), Some(0), Some(0)], "{finished}");
    assert!(finished.out().contains("bytecode: first wrote 2 files"), "{finished}");
    let interpreter = place.record("warm-1").environment.and_then(|e| e.interpreter);
    assert!(interpreter.is_some_and(|it| it.name == "python"), "{finished}");
}

#[test]
fn caches_that_a_run_writes_are_named() {
    let place = Place::new("bench-caches");
    let cache = place.path("cache").display().to_string();
    let script = format!("[ -e {cache} ] || echo x > {cache}");
    let prepare = format!("rm -f {cache}");
    place.run(&["-n", "1", "--prepare", &prepare], &["sh", "-c", &script]).assert_code(0);
    let bench = place.bench();
    let traced = of_kind(&bench.commands[0], RunKind::Traced).next().expect("one");
    assert_eq!(traced.caches_written, [cache]);
    // Nobody watched the others.
    let others = bench.commands[0].runs.iter().filter(|run| run.kind != RunKind::Traced);
    assert!(others.into_iter().all(|run| run.caches_written.is_empty()), "{bench:#?}");
}

#[test]
fn an_interpreter_that_is_replaced_is_warned_about() {
    let python = Path::new("/usr/bin/python3");
    let (Ok(python), place) = (python.canonicalize(), Place::new("bench-replaced")) else {
        skip("no python3");
        return;
    };
    let name = python.file_name().expect("it is a file").to_owned();
    let own = place.path(&name.to_string_lossy());
    fs::copy(&python, &own).expect("scratch can be written");
    let own = own.display().to_string();
    let prepare = format!("touch {own}");
    let options = ["-n", "1", "--warmup", "0", "--prepare", &prepare];
    place.run(&options, &[&own, "-S", "-c", "1"]).assert_code(0);
    let warnings = place.bench().warnings;
    let expected = format!("{own} was replaced before warm-1");
    assert!(warnings.contains(&expected), "{warnings:?}");
}
