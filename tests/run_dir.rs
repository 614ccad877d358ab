//! `coldtrace run` leaves one directory with the whole record and the command's output, or says
//! that it could not.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coldtrace::record::{Artifact, Process, Record};
use support::board::{is_traced, until};
use support::fixture::built;
use support::process::{Finished, finish, start};
use support::{Scratch, coldtrace, find_program, is_root, read_record, skip, table};

/// `coldtrace run --runs RUNS`.
fn run_in(runs: &Path) -> Command {
    let mut command = coldtrace("run");
    command.arg("--runs").arg(runs);
    command
}

/// Runs a fixture, and returns its record.
fn record_of(name: &str) -> Option<Record> {
    let program = built(name)?;
    let scratch = Scratch::new(name);
    let runs = scratch.path("runs");
    let finished = finish(run_in(&runs).arg("--").arg(&program.path).args(&program.arguments));
    finished.assert_code(0);
    Some(read_record(&runs.join("latest/record.json"), &finished))
}

/// Run directories in `runs`, by name.
fn run_directories(runs: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(runs)
        .unwrap_or_else(|error| panic!("{}: {error}", runs.display()))
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && !path.is_symlink())
        .collect();
    found.sort();
    found
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

// ---- the record ----

#[test]
fn the_record_says_what_ran_and_how_it_ended() {
    let scratch = Scratch::new("record");
    let runs = scratch.path("runs");
    let finished = finish(
        run_in(&runs)
            .args(["--label", "a label", "--", "sh", "-c", "exit 3"])
            .current_dir(scratch.root()),
    );
    finished.assert_code(3);
    let directory = &run_directories(&runs)[0];
    let record = read_record(&directory.join("record.json"), &finished);
    assert_eq!(record.schema, "coldtrace.record/1");
    assert_eq!(record.tool.name, "coldtrace");
    assert_eq!(record.tool.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(record.run.label, "a label");
    assert_eq!(record.run.argv, ["sh", "-c", "exit 3"]);
    assert_eq!(record.run.cwd.as_deref(), scratch.root().to_str());
    let id = record.run.id.as_deref();
    assert_eq!(id, directory.file_name().and_then(|name| name.to_str()));
    assert!(record.run.start.ends_with('Z'), "UTC: {}", record.run.start);
    assert_eq!(record.outcome.exit_code, Some(3));
    assert_eq!(record.outcome.signal, None);
    assert!(record.outcome.wall_ns > 0);
    assert!(record.rusage.as_ref().is_some_and(|rusage| rusage.ru_maxrss_bytes > 0));
    assert_eq!(table::calls(&record, "execve"), 1);
    assert_eq!(table::contradictions(&record), Vec::<String>::new());
    let processes = record.processes.as_deref().unwrap_or_default();
    assert_eq!(processes.len() as u64, record.tree.as_ref().map_or(0, |tree| tree.processes));
}

#[test]
fn json_names_are_those_of_the_schema() {
    let scratch = Scratch::new("names");
    let runs = scratch.path("runs");
    let finished = finish(run_in(&runs).args(["--", "true"]));
    let text = read(&runs.join("latest/record.json"));
    let record: serde_json::Value =
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{error}: {finished}"));
    for pointer in [
        "/schema",
        "/tool/version",
        "/run/id",
        "/run/argv/0",
        "/run/start",
        "/outcome/exit_code",
        "/outcome/signal",
        "/outcome/wall_ns",
        "/rusage/user_ns",
        "/rusage/ru_maxrss_bytes",
        "/tree/processes",
        "/tree/peak_rss_bytes",
        "/measurement/engine",
        "/measurement/stops",
        "/measurement/repaired",
        "/measurement/events_lost",
        "/syscalls/0/name",
        "/syscalls/0/wall_ns/p99",
        "/processes/0/parent",
        "/processes/0/execs/0/exe",
        "/processes/0/threads/0/tid",
        "/processes/0/syscalls/0/calls",
    ] {
        assert!(record.pointer(pointer).is_some(), "{pointer} is not in {record:#}");
    }
}

#[test]
fn the_process_tree_has_parents_threads_and_times() {
    let Some(record) = record_of("processes-threads") else {
        return;
    };
    let processes = record.processes.clone().unwrap_or_default();
    assert_eq!(processes.len(), 9);
    let root = &processes[0];
    assert_eq!((root.id, root.parent, root.threads.len()), (0, None, 1));
    assert_eq!(root.execs.len(), 1);
    for (index, process) in processes.iter().enumerate().skip(1) {
        assert_eq!((process.id, process.parent), (index as u64, Some(0)), "in order of start");
        assert_eq!(process.threads.len(), 4, "{process:#?}");
        assert_eq!(process.execs.len(), 0, "a fork that never execs");
        assert_eq!(process.exit_code, Some(0));
        let calls = |name: &str| {
            process.syscalls.iter().find(|call| call.name == name).map_or(0, |call| call.calls)
        };
        assert_eq!((calls("getppid"), calls("close"), calls("fork")), (400, 128, 0));
        for thread in &process.threads {
            assert!(thread.calls >= 132 && thread.errors == 32, "{thread:?}");
        }
    }
    for process in &processes {
        let end = process.end_ns.unwrap_or_else(|| panic!("an end: {process:#?}"));
        assert!(process.start_ns <= end && process.start_ns >= root.start_ns, "{process:#?}");
        assert!(process.threads.iter().all(|thread| thread.start_ns >= process.start_ns));
    }
    let of_processes: u64 = processes.iter().flat_map(|p| &p.syscalls).map(|c| c.calls).sum();
    let of_threads: u64 = processes.iter().flat_map(|p| &p.threads).map(|t| t.calls).sum();
    let total = record.tree.map(|tree| tree.calls);
    assert_eq!((Some(of_processes), Some(of_threads)), (total, total));
}

#[test]
fn an_exec_chain_is_in_order_with_its_arguments() {
    let Some(record) = record_of("exec-fails") else {
        return;
    };
    let processes = record.processes.unwrap_or_default();
    assert_eq!(processes.len(), 1);
    let argv: Vec<&[String]> = processes[0].execs.iter().map(|exec| exec.argv.as_slice()).collect();
    assert_eq!(argv.len(), 3, "failed ones are not in it: {argv:?}");
    assert_eq!(argv[1], ["second", "2"]);
    assert_eq!(argv[2], ["third", "3", "3"]);
    assert!(processes[0].execs.is_sorted_by_key(|exec| exec.at_ns));
    for exec in &processes[0].execs {
        assert!(exec.exe.as_deref().is_some_and(|exe| exe.ends_with("exec-fails")), "{exec:?}");
    }
}

#[test]
fn cpu_time_is_a_processs_own() {
    let Some(record) = record_of("burns-in-child") else {
        return;
    };
    let processes = record.processes.unwrap_or_default();
    let used = |process: &Process| {
        Duration::from_nanos(process.user_ns.unwrap_or(0) + process.sys_ns.unwrap_or(0))
    };
    let [root, child] = processes.as_slice() else {
        panic!("two processes are wanted: {processes:#?}");
    };
    assert!(used(child) >= Duration::from_millis(290), "the child: {:?}", used(child));
    assert!(used(root) < Duration::from_millis(150), "without its child's: {:?}", used(root));
    let tree = record.tree.unwrap_or_default();
    let total = Duration::from_nanos(tree.user_ns.unwrap_or(0) + tree.sys_ns.unwrap_or(0));
    let sum = used(root) + used(child);
    let apart = total.abs_diff(sum);
    assert!(apart < Duration::from_millis(20), "each once: {total:?}, sum {sum:?}");
}

#[test]
fn a_daemon_that_nobody_waited_for_is_in_the_tree() {
    let Some(program) = built("double-fork") else {
        return;
    };
    let scratch = Scratch::new("daemon");
    let runs = scratch.path("runs");
    let finished = finish(run_in(&runs).arg("--").arg(&program.path));
    finished.assert_code(3);
    let record = read_record(&runs.join("latest/record.json"), &finished);
    let processes = record.processes.unwrap_or_default();
    let parents: Vec<Option<u64>> = processes.iter().map(|process| process.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1)], "created by, not adopted by");
    assert!(processes[2].end_ns > processes[0].end_ns, "it outlived the command");
}

// ---- the directory ----

#[test]
fn a_killed_tracer_leaves_no_record_and_show_says_so() {
    let scratch = Scratch::new("killed");
    let runs = scratch.path("runs");
    let ready = scratch.path("ready");
    let script = format!(": > {}; exec sleep 60", ready.display());
    let running = start(run_in(&runs).args(["--", "sh", "-c", &script]));
    until("the command to run", || ready.exists().then_some(()));
    running.kill(libc::SIGKILL);
    running.finish().assert_signal(libc::SIGKILL);
    let [dir] = &run_directories(&runs)[..] else { panic!("one run directory") };
    let names = std::fs::read_dir(dir).expect("it is ours").flatten();
    let names: Vec<_> = names.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    assert!(!names.contains(&"record.json".to_owned()), "{names:?}");
    assert!(names.contains(&"record.json.partial".to_owned()), "{names:?}");
    let finished = finish(coldtrace("show").arg(dir));
    finished.assert_code(2);
    let said = "holds no record.json: the run has not ended, or coldtrace was killed";
    assert!(finished.err().contains(said), "{finished}");
    // It is not the latest.
    assert!(!runs.join("latest").exists());
}

#[test]
fn logs_hold_what_the_command_wrote_and_it_is_shown_too() {
    let scratch = Scratch::new("logs");
    let runs = scratch.path("runs");
    let script = r"printf 'out\000\377\n'; printf 'err\001\n' >&2; printf 'no newline'";
    let finished = finish(run_in(&runs).args(["--", "sh", "-c", script]));
    finished.assert_code(0);
    let latest = runs.join("latest");
    assert_eq!(read(&latest.join("stdout.log")), b"out\0\xff\nno newline");
    assert_eq!(read(&latest.join("stderr.log")), b"err\x01\n");
    assert_eq!(finished.stdout, b"out\0\xff\nno newline");
    assert!(finished.stderr.starts_with(b"err\x01\n"), "{finished}");
    assert!(finished.err().contains("exited 0"), "a summary follows: {finished}");
    let record = read_record(&latest.join("record.json"), &finished);
    assert_eq!(record.outcome.stdout_bytes, Some(16));
    assert_eq!(record.outcome.stderr_bytes, Some(5));
}

#[test]
fn a_run_that_was_timed_out_says_so() {
    let scratch = Scratch::new("timed-out");
    let runs = scratch.path("runs");
    let words = ["--timeout", "200ms", "--", "sleep", "60"];
    let finished = finish(run_in(&runs).args(words));
    finished.assert_code(124);
    assert!(finished.err().contains("TIMED OUT, killed by SIGTERM after"), "{finished}");
    let record = read_record(&runs.join("latest/record.json"), &finished);
    assert!(record.outcome.timed_out);
    // What a thread was in is no longer than the run.
    let root = record.processes.as_deref().and_then(|all| all.first()).expect("a root");
    assert_eq!(root.end_ns, Some(record.outcome.wall_ns));
}

#[test]
fn the_files_beside_the_record_are_listed_with_their_hashes() {
    if find_program("sha256sum").is_none() {
        return skip("no sha256sum");
    }
    let scratch = Scratch::new("artifacts");
    let runs = scratch.path("runs");
    let finished = finish(run_in(&runs).args(["--", "echo", "text"]));
    let latest = runs.join("latest");
    let record = read_record(&latest.join("record.json"), &finished);
    let artifacts = record.artifacts.unwrap_or_default();
    let names: Vec<&str> = artifacts.iter().map(|a| a.file.as_str()).collect();
    let mut there: Vec<String> = std::fs::read_dir(&latest)
        .expect("it is ours")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "record.json")
        .collect();
    there.sort();
    assert_eq!(names, there);
    let line = |a: &Artifact| format!("{}  {}", a.sha256.as_deref().unwrap_or("?"), a.file);
    let lines: Vec<String> = artifacts.iter().map(line).collect();
    std::fs::write(scratch.path("sums"), lines.join("\n")).expect("scratch can be written");
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--strict"]).arg(scratch.path("sums")).current_dir(&latest);
    finish(&mut check).assert_code(0);
    let stdout = artifacts.iter().find(|a| a.file == "stdout.log").expect("it is kept");
    assert_eq!(stdout.bytes, 5);
}

#[test]
fn much_output_is_kept_whole() {
    let scratch = Scratch::new("much");
    let runs = scratch.path("runs");
    let finished = finish(run_in(&runs).args(["--", "head", "-c", "3000000", "/dev/zero"]));
    finished.assert_code(0);
    assert_eq!(read(&runs.join("latest/stdout.log")).len(), 3_000_000);
    assert_eq!(finished.stdout.len(), 3_000_000);
}

#[test]
fn output_log_shows_nothing_and_pass_keeps_nothing() {
    let scratch = Scratch::new("output");
    let runs = scratch.path("runs");
    let finished = finish(run_in(&runs).args(["--output", "log", "--", "echo", "text"]));
    assert_eq!(finished.out(), "", "{finished}");
    assert_eq!(read(&runs.join("latest/stdout.log")), b"text\n");
    let finished = finish(run_in(&runs).args(["--output", "pass", "--", "echo", "text"]));
    assert_eq!(finished.out(), "text\n", "{finished}");
    assert!(!runs.join("latest/stdout.log").exists(), "{finished}");
    let record = read_record(&runs.join("latest/record.json"), &finished);
    assert_eq!(record.outcome.stdout_bytes, None, "unknown is null");
}

#[test]
fn latest_is_the_last_run() {
    let scratch = Scratch::new("latest");
    let runs = scratch.path("runs");
    for label in ["first", "second"] {
        finish(run_in(&runs).args(["--label", label, "--", "true"])).assert_code(0);
        let target = std::fs::read_link(runs.join("latest")).expect("a symbolic link");
        assert!(target.is_relative(), "runs/ can be moved: {}", target.display());
        assert!(target.to_string_lossy().ends_with(label), "{}", target.display());
    }
    assert_eq!(run_directories(&runs).len(), 2);
}

#[test]
fn the_directory_is_private_and_kept_from_git() {
    let scratch = Scratch::new("private");
    let runs = scratch.path("runs");
    finish(run_in(&runs).args(["--", "true"])).assert_code(0);
    let mode = std::fs::metadata(&runs).expect("runs/ is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert_eq!(read(&runs.join(".gitignore")), b"*\n");
    let names: Vec<String> = std::fs::read_dir(runs.join("latest"))
        .expect("latest/ is there")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("tmp") || name.contains("partial"))
        .collect();
    assert_eq!(names, [""; 0], "no half of a record is left");
}

#[test]
fn a_label_cannot_leave_the_directory() {
    let scratch = Scratch::new("label");
    let runs = scratch.path("runs");
    let finished = finish(run_in(&runs).args(["--label", "../../a/b\n c", "--", "true"]));
    finished.assert_code(0);
    let directories = run_directories(&runs);
    assert_eq!(directories.len(), 1, "{directories:?}");
    let record = read_record(&directories[0].join("record.json"), &finished);
    assert_eq!(record.run.label, "../../a/b\n c", "the label itself is kept");
}

#[test]
fn two_runs_of_one_name_in_one_millisecond_do_not_meet() {
    let scratch = Scratch::new("clash");
    let runs = scratch.path("runs");
    // Every name that the run could choose in the next twenty seconds is taken.
    std::fs::create_dir_all(&runs).expect("scratch can be written");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    for milliseconds in now..now + 20_000 {
        std::fs::create_dir(runs.join(format!("{}-taken", stamp(milliseconds))))
            .expect("a directory");
    }
    let finished = finish(run_in(&runs).args(["--label", "taken", "--", "true"]));
    finished.assert_code(0);
    let record = read_record(&runs.join("latest/record.json"), &finished);
    let id = record.run.id.unwrap_or_default();
    assert!(id.ends_with("Z-taken-2"), "{id}");
}

/// `20260622T022115.254Z`.
fn stamp(unix_milliseconds: u64) -> String {
    let seconds = (unix_milliseconds / 1000) as libc::time_t;
    // SAFETY: all of struct tm's fields may be zero.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values of ours that live until gmtime_r returns.
    unsafe { libc::gmtime_r(&raw const seconds, &raw mut tm) };
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}.{:03}Z",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        unix_milliseconds % 1000
    )
}

// ---- without tracing, and without room ----

#[test]
fn no_trace_records_all_but_calls() {
    let scratch = Scratch::new("no-trace");
    let runs = scratch.path("runs");
    let finished = finish(run_in(&runs).args(["--no-trace", "--", "sh", "-c", "echo out; exit 4"]));
    finished.assert_code(4);
    let record = read_record(&runs.join("latest/record.json"), &finished);
    assert_eq!(record.measurement.engine, "none");
    assert!(!record.measurement.times_perturbed);
    assert_eq!(record.measurement.stops, 0);
    assert_eq!(record.syscalls, None, "not asked for is absent");
    assert_eq!(record.outcome.exit_code, Some(4));
    assert!(record.rusage.is_some());
    assert_eq!(read(&runs.join("latest/stdout.log")), b"out\n");
}

#[test]
fn runs_that_cannot_be_written_stop_it_before_the_command() {
    let scratch = Scratch::new("unwritable");
    let ran = scratch.path("ran");
    for runs in [Path::new("/proc/no-such/runs"), Path::new("/dev/null/runs")] {
        let finished = finish(run_in(runs).args(["--", "touch"]).arg(&ran));
        finished.assert_code(125);
        assert!(finished.err().starts_with("coldtrace: "), "{finished}");
        assert!(finished.err().contains(&*runs.to_string_lossy()), "which: {finished}");
        assert!(!ran.exists(), "the command ran: {finished}");
    }
}

/// Runs `sh -c script` on a file system of its own at `directory`, with `left` bytes left on it.
fn on_a_full_disk(directory: &Path, left: u64, script: &str) -> Option<Finished> {
    if !is_root() || find_program("unshare").is_none() {
        skip("a full disk needs root and unshare");
        return None;
    }
    std::fs::create_dir_all(directory).expect("scratch can be written");
    let setup = format!(
        "mount -t tmpfs -o size=64k none {d} 2>/dev/null || exit 77
         mkdir -m 700 {d}/runs
         head -c {} /dev/zero > {d}/fill
         {script}",
        65536 - left,
        d = directory.display()
    );
    let finished = finish(Command::new("unshare").args(["-m", "sh", "-c", &setup]));
    if finished.code() == Some(77) || finished.err().starts_with("unshare:") {
        skip("no private tmpfs here");
        return None;
    }
    Some(finished)
}

#[test]
fn a_disk_that_is_full_before_stops_it_before_the_command() {
    let scratch = Scratch::new("full");
    let (disk, ran) = (scratch.path("disk"), scratch.path("ran"));
    let script = format!(
        "{} run --runs {}/runs -- touch {}",
        support::coldtrace_path().display(),
        disk.display(),
        ran.display()
    );
    let Some(finished) = on_a_full_disk(&disk, 0, &script) else {
        return;
    };
    finished.assert_code(125);
    assert!(finished.err().contains("No space left on device"), "{finished}");
    assert!(!ran.exists(), "the command ran: {finished}");
}

/// With any room left, from none to more than the log needs at first: either the command is not
/// run, or all of its output and the summary are shown. The status says it either way.
#[test]
fn a_disk_that_fills_during_the_run_loses_no_output_and_gives_the_summary() {
    let scratch = Scratch::new("fills");
    let disk = scratch.path("disk");
    let script = format!(
        "{} run --runs {}/runs -- sh -c 'echo done >&2; head -c 200000 /dev/zero'",
        support::coldtrace_path().display(),
        disk.display()
    );
    let mut ran = 0;
    for left in (4096..=49152).step_by(4096) {
        let Some(finished) = on_a_full_disk(&disk, left, &script) else {
            return;
        };
        finished.assert_code(125);
        let text = finished.err();
        assert!(text.contains("No space left on device"), "{left} left: {finished}");
        if !text.contains("done\n") {
            assert!(finished.stdout.is_empty(), "{left} left: {finished}");
            continue;
        }
        ran += 1;
        assert_eq!(finished.stdout.len(), 200_000, "{left} left: the output is whole");
        for wanted in ["exited 0", "calls"] {
            assert!(text.contains(wanted), "{left} left, {wanted}: {finished}");
        }
    }
    assert!(ran > 0, "it never ran");
}

/// Whatever is left on the disk: a record is worth more than the files that it was made of.
#[test]
fn files_of_proc_give_way_to_the_record() {
    let scratch = Scratch::new("gives-way");
    let disk = scratch.path("disk");
    let script = format!(
        "{} run --runs {d}/runs -e trace=%file --snapshot-at exec -- true; echo status $?; ls {d}/runs/2*/",
        support::coldtrace_path().display(),
        d = disk.display()
    );
    let mut gave_way = 0;
    for left in (40960..=65536).step_by(4096) {
        let Some(finished) = on_a_full_disk(&disk, left, &script) else {
            return;
        };
        let out = finished.out();
        if !finished.err().contains("were removed for it") || !out.contains("record.json\n") {
            continue;
        }
        gave_way += 1;
        assert!(out.contains("status 125\n"), "{finished}");
        assert!(!out.contains("smaps.txt") && !out.contains("at-1"), "{finished}");
    }
    assert!(gave_way > 0, "with so much left there was room for all or for nothing");
}

#[test]
fn a_signal_after_the_command_has_ended_does_not_cost_the_record() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let scratch = Scratch::new("late-signal");
        let (runs, ready) = (scratch.path("runs"), scratch.path("ready"));
        // Whoever was let go holds the streams open: coldtrace waits a little for what it writes.
        let script =
            format!("(while :; do echo x; sleep 0.02; done) & echo $! > {}", ready.display());
        let words = ["--detach-on-exit", "--", "sh", "-c", &script];
        let running = start(run_in(&runs).args(words));
        let writer: i32 = until("the command's end", || {
            let text = std::fs::read_to_string(&ready).ok()?;
            text.trim().parse().ok().filter(|&pid| !is_traced(&format!("{pid}")))
        });
        running.kill(signal);
        // It would write for ever: the wait for it has an end, and the record is there.
        until("the record", || runs.join("latest/record.json").exists().then_some(()));
        // SAFETY: kill takes two numbers; it is a descendant of ours that nobody reaped.
        unsafe { libc::kill(writer, libc::SIGKILL) };
        running.finish();
        let record = std::fs::read(runs.join("latest/record.json")).expect("it is there");
        let record: Record = serde_json::from_slice(&record).expect("it is whole");
        let notes = &record.measurement.notes;
        assert!(notes.iter().any(|note| note.contains("holds the stream open")), "{notes:?}");
    }
}

#[test]
fn variables_are_kept_by_name_and_by_value_only_where_named() {
    let scratch = Scratch::new("environment");
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["--env-values", "SHOWN", "--", "true"]);
    command.env("SHOWN", "to-be-seen").env("HIDDEN", "not-to-be-seen");
    finish(&mut command).assert_code(0);
    let text = std::fs::read_to_string(scratch.path("runs/latest/record.json")).expect("a record");
    assert!(text.contains("\"HIDDEN\"") && text.contains("to-be-seen"), "{text}");
    assert!(!text.contains("not-to-be-seen"), "a value that nobody asked for");
    let mut show = coldtrace("show");
    show.arg("--env").arg("--runs").arg(scratch.path("runs"));
    let shown = finish(&mut show);
    shown.assert_code(0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    assert!(
        shown.out().contains(kernel.trim()) && shown.out().contains("SHOWN=to-be-seen"),
        "{shown}"
    );
    assert!(shown.out().lines().all(|line| line.chars().count() <= 80), "{shown}");
}

#[test]
fn the_first_output_is_the_first_write_to_standard_output_whoever_makes_it() {
    let scratch = Scratch::new("first-output");
    let first = |how: &str, script: &str| {
        let mut command = coldtrace("run");
        command.arg("--runs").arg(scratch.path("runs")).args(["--output", how, "--"]);
        let finished = finish(command.args(["sh", "-c", script]));
        let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
        (record.outcome.first_output_ns, record.outcome.wall_ns)
    };
    for how in ["tee", "log", "pass"] {
        // A child's, by another number; what goes elsewhere before does not count.
        let (at, wall) =
            first(how, "echo no >/dev/null; exec 5>&1 >/dev/null; sleep 0.1; ls / >&5");
        let at = at.unwrap_or_else(|| panic!("{how}: no output was seen"));
        assert!((100_000_000..=wall).contains(&at), "{how}: {at} of {wall} ns");
        assert_eq!(first(how, "echo no >&2; cat </dev/null").0, None, "{how}");
    }
}

#[test]
fn the_interpreter_is_named_with_its_version() {
    let scratch = Scratch::new("interpreter");
    for (words, name) in [
        (&["python3", "-c", "0"][..], Some("python")),
        (&["bash", "-c", "exit 0"], Some("bash")),
        (&["perl", "-e", "0"], Some("perl")),
        (&["true"], None),
    ] {
        if find_program(words[0]).is_none() {
            continue;
        }
        let mut command = coldtrace("run");
        command.arg("--runs").arg(scratch.path("runs")).args(["--output", "pass", "--"]);
        let finished = finish(command.args(words));
        finished.assert_code(0);
        assert_eq!(finished.out(), "", "asking for the version is not heard");
        let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
        let found = record.environment.and_then(|environment| environment.interpreter);
        assert_eq!(found.as_ref().map(|found| found.name.as_str()), name, "{words:?}");
        if let Some(found) = found {
            let version = found.version.unwrap_or_else(|| panic!("{words:?}: no version"));
            assert!(version.chars().any(|c| c.is_ascii_digit()), "{version}");
        }
    }
}
