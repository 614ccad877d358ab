//! What /proc says at other moments than the end: after an exec, at a call, after an open; for the
//! root or for all, and with calls filtered away.

mod support;

use std::path::Path;

use coldtrace::record::{ProcSnapshot, Record};
use support::fixture::built;
use support::process::{Finished, finish};
use support::{Scratch, coldtrace, find_program, read_record, skip, table};

const MIB: u64 = 1 << 20;
/// What a program of a few pages may have beside what it mapped.
const LEEWAY: u64 = 256 << 10;

fn traced(scratch: &Scratch, options: &[&str], words: &[&str]) -> (Record, Finished) {
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["--output", "pass"]).args(options);
    let finished = finish(command.arg("--").args(words));
    (read_record(&scratch.path("runs/latest/record.json"), &finished), finished)
}

fn snapshots(record: &Record) -> &[ProcSnapshot] {
    record.proc.as_deref().unwrap_or_default()
}

/// Whose, and at what, in order.
fn taken(record: &Record) -> Vec<(u64, &str)> {
    snapshots(record).iter().map(|s| (s.process, s.event.as_str())).collect()
}

/// Anonymous memory of a snapshot, page by page.
fn anonymous(snapshot: &ProcSnapshot) -> u64 {
    let objects = snapshot.objects.as_ref().unwrap_or_else(|| panic!("no objects: {snapshot:?}"));
    objects.iter().map(|object| object.anon_bytes).sum()
}

/// The files of a snapshot are there, and are what it was parsed from.
#[track_caller]
fn is_kept(dir: &Path, snapshot: &ProcSnapshot) {
    let place = snapshot.directory.as_ref().map_or(dir.to_owned(), |name| dir.join(name));
    let read = |name: &str| {
        std::fs::read_to_string(place.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let anon = snapshot.memory.as_ref().and_then(|m| m.anon_bytes).expect("it is known") / 1024;
    let status = read("status.txt");
    assert!(status.contains(&format!("RssAnon:\t{anon:8} kB")), "{anon} KiB: {status}");
    for name in ["smaps_rollup", "cgroup", "io", "schedstat"] {
        read(&format!("{name}.txt"));
    }
    if snapshot.process == 0 {
        for name in ["maps", "smaps", "fd", "limits"] {
            read(&format!("{name}.txt"));
        }
    }
}

const MOMENTS: [&str; 6] =
    ["--snapshot-at", "call:getppid", "--snapshot-at", "open:status", "--snapshot-at", "exec"];

/// What the fixture has at each, whichever calls are asked for.
fn grows(options: &[&str]) {
    let Some(program) = built("snapshot-moments") else { return };
    let scratch = Scratch::new("moments");
    let program = program.path.to_string_lossy();
    let (record, finished) = traced(&scratch, &[options, &MOMENTS].concat(), &[&program]);
    finished.assert_code(0);
    let events = [(0, "exec"), (0, "call:getppid"), (0, "open:status"), (0, "exit")];
    assert_eq!(taken(&record), events);
    let [exec, call, open, exit] = snapshots(&record) else { panic!("{:?}", record.proc) };
    assert!(anonymous(exec) < LEEWAY, "{exec:?}");
    let near = |less: &ProcSnapshot, more: &ProcSnapshot, mib: u64| {
        let grown = anonymous(more).saturating_sub(anonymous(less));
        assert!((mib * MIB..mib * MIB + LEEWAY).contains(&grown), "{mib} MiB, and not {grown}");
    };
    near(exec, call, 2);
    near(call, open, 8);
    near(open, exit, 4);
    // What was opened is open, and no more than that.
    let names = |snapshot: &ProcSnapshot| -> Vec<String> {
        let open = snapshot.descriptors.iter().flatten().map(|d| d.target.clone());
        open.filter(|target| target.ends_with("/status")).collect()
    };
    assert_eq!((names(call).len(), names(open).len()), (0, 1), "{open:?}");
    let directories: Vec<Option<&str>> =
        snapshots(&record).iter().map(|snapshot| snapshot.directory.as_deref()).collect();
    let expected = [Some("at-1-exec"), Some("at-2-call_getppid"), Some("at-3-open_status"), None];
    assert_eq!(directories, expected);
    for snapshot in snapshots(&record) {
        is_kept(&scratch.path("runs/latest"), snapshot);
    }
    assert!(snapshots(&record).is_sorted_by(|a, b| a.at_ns < b.at_ns), "{:?}", record.proc);
    // The same over time, beside what was known already.
    let root = record.processes.as_ref().and_then(|all| all.first()).expect("there is a root");
    let samples: Vec<&str> = root.memory.iter().map(|sample| sample.event.as_str()).collect();
    let events = ["snapshot:exec", "snapshot:call:getppid", "snapshot:open:status", "exit"];
    assert_eq!(samples, events);
    for (sample, snapshot) in root.memory.iter().zip(snapshots(&record)) {
        let memory = snapshot.memory.as_ref();
        assert_eq!(sample.anon_bytes, memory.and_then(|memory| memory.anon_bytes));
    }
    assert_eq!(record.measurement.notes, Vec::<String>::new());
    assert_eq!(table::contradictions(&record), Vec::<String>::new());
}

#[test]
fn memory_is_known_at_calls_and_opens() {
    grows(&[]);
}

#[test]
fn moments_come_where_other_calls_are_asked_for_and_are_not_counted() {
    for set in ["chdir", "getppid", "none"] {
        grows(&["-e", &format!("trace={set}")]);
    }
    let Some(program) = built("snapshot-moments") else { return };
    let scratch = Scratch::new("filtered");
    let options = [&["-e", "trace=chdir"][..], &MOMENTS].concat();
    let (record, _) = traced(&scratch, &options, &[&program.path.to_string_lossy()]);
    let calls: Vec<(&str, u64)> =
        record.syscalls.iter().flatten().map(|row| (row.name.as_str(), row.calls)).collect();
    assert_eq!(calls, [("chdir", 1)]);
}

#[test]
fn all_processes_have_their_moments_where_that_is_asked_for() {
    let Some(program) = built("snapshot-moments") else { return };
    let scratch = Scratch::new("all");
    let options = [&["--snapshot", "all"][..], &MOMENTS].concat();
    let (record, _) = traced(&scratch, &options, &[&program.path.to_string_lossy()]);
    let events = [
        (0, "exec"),
        (0, "call:getppid"),
        (0, "open:status"),
        (1, "call:getppid"),
        (1, "exit"),
        (0, "exit"),
    ];
    assert_eq!(taken(&record), events);
    let words = ["sh", "-c", "/bin/true; /bin/true; exit 0"];
    let (record, _) = traced(&scratch, &["--snapshot", "all", "--snapshot-at", "exec"], &words);
    let mut found = taken(&record);
    found.sort_unstable();
    let events = [(0, "exec"), (0, "exit"), (1, "exec"), (1, "exit"), (2, "exec"), (2, "exit")];
    assert_eq!(found, events);
    let directories: Vec<&str> =
        snapshots(&record).iter().filter_map(|s| s.directory.as_deref()).collect();
    assert_eq!(directories, ["at-1-exec", "at-2-exec", "at-3-exec"]);
    for snapshot in snapshots(&record).iter().filter(|s| s.directory.is_some()) {
        is_kept(&scratch.path("runs/latest"), snapshot);
        let of_root = snapshot.process == 0;
        assert_eq!(snapshot.objects.is_some(), of_root, "{snapshot:?}");
    }
}

#[test]
fn each_exec_of_the_root_is_one_and_off_leaves_the_end_out() {
    let scratch = Scratch::new("execs");
    let words = ["sh", "-c", "exec sh -c 'exec true'"];
    let (record, _) = traced(&scratch, &["--snapshot", "off", "--snapshot-at", "exec"], &words);
    assert_eq!(taken(&record), [(0, "exec"), (0, "exec"), (0, "exec")]);
    assert!(!scratch.path("runs/latest/smaps.txt").exists(), "nobody asked for the end's");
    let mapped: Vec<String> = snapshots(&record)
        .iter()
        .map(|snapshot| {
            let maps = scratch.path("runs/latest").join(snapshot.directory.as_ref().expect("kept"));
            let maps = std::fs::read_to_string(maps.join("maps.txt")).expect("it was kept");
            let first = maps.lines().next().and_then(|line| line.split_whitespace().last());
            first.unwrap_or_default().to_owned()
        })
        .collect();
    let root = record.processes.as_ref().and_then(|all| all.first()).expect("a root");
    let ran: Vec<String> = root.execs.iter().filter_map(|exec| exec.exe.clone()).collect();
    assert_eq!(mapped, ran, "the new image is what is mapped");
}

#[test]
fn the_first_output_is_a_moment() {
    let Some(program) = built("regions-moments") else { return };
    let scratch = Scratch::new("stdout");
    for options in [&["--snapshot-at", "stdout"][..], &["--snapshot-at", "stdout", "-e", "chdir"]] {
        let (record, _) = traced(&scratch, options, &[&program.path.to_string_lossy()]);
        assert_eq!(taken(&record), [(0, "stdout"), (0, "exit")]);
    }
}

#[test]
fn what_never_came_is_said() {
    let scratch = Scratch::new("never");
    let options = ["--snapshot-at", "call:getppid", "--snapshot-at", "open:/nonexistent/*"];
    let (record, finished) = traced(&scratch, &options, &["true"]);
    finished.assert_code(0);
    assert_eq!(taken(&record), [(0, "exit")]);
    let notes: Vec<&str> = record.measurement.notes.iter().map(String::as_str).collect();
    let never = |moment: &str| format!("no snapshot at {moment}: it never came");
    assert_eq!(notes, [never("call:getppid"), never("open:/nonexistent/*")]);
}

#[test]
fn paths_are_those_of_the_files_command() {
    let Some(cat) = find_program("cat") else { return skip("no cat") };
    let scratch = Scratch::new("globs");
    let dir = scratch.root().canonicalize().expect("it was just made");
    std::fs::create_dir(dir.join("sub")).expect("scratch can be written");
    std::fs::write(dir.join("sub/real.txt"), "text").expect("scratch can be written");
    std::os::unix::fs::symlink("real.txt", dir.join("sub/link")).expect("scratch can be written");
    let below = dir.to_string_lossy();
    for (glob, given, comes) in [
        (format!("{below}/sub/link"), "sub/../sub/./link", true),
        (format!("{below}/sub/real.txt"), "sub/link", true),
        (format!("{below}/*"), "sub/link", false),
        (format!("{below}/**"), "sub/link", true),
        ("li?k".to_owned(), "sub/link", true),
        ("sub".to_owned(), "sub/link", false),
        (format!("{below}/sub/*"), "sub/missing", false),
    ] {
        let mut command = coldtrace("run");
        command.arg("--runs").arg(scratch.path("runs")).args(["--output", "pass"]);
        command.args(["--snapshot", "off", "--snapshot-at", &format!("open:{glob}"), "--"]);
        let finished = finish(command.arg(&cat).arg(given).current_dir(&dir));
        let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
        assert_eq!(snapshots(&record).len(), usize::from(comes), "{glob} {given}");
    }
}

#[test]
fn unknown_events_are_refused_in_one_line_and_nothing_is_run() {
    let scratch = Scratch::new("refused");
    for (event, why) in [
        ("exex", "exec, call:NAME, open:GLOB and stdout"),
        ("marker:x", "exec, call:NAME, open:GLOB and stdout"),
        ("500ms", "exec, call:NAME, open:GLOB and stdout"),
        ("exit", "--snapshot"),
        ("call:futx", "futex"),
        ("open:[", "unclosed"),
    ] {
        let ran = scratch.path("ran");
        let mut command = coldtrace("run");
        command.arg("--runs").arg(scratch.path("runs")).args(["--snapshot-at", event, "--"]);
        let finished = finish(command.arg("touch").arg(&ran));
        finished.assert_code(125);
        let said = finished.err();
        assert_eq!(said.lines().count(), 1, "{finished}");
        let start = format!("coldtrace: --snapshot-at {event}: ");
        assert!(said.starts_with(&start) && said.contains(why), "{why}: {finished}");
        assert!(!ran.exists() && !scratch.path("runs").exists(), "{finished}");
    }
}

/// Looking takes longer than the calls and the run, which are not charged with it.
#[test]
fn looking_is_charged_to_nobody() {
    if find_program("python3").is_none() {
        return skip("no python3");
    }
    let scratch = Scratch::new("charge");
    // So many mappings that to read them takes a while.
    let script = "
import mmap, os
kept = [mmap.mmap(-1, 4096, mmap.MAP_PRIVATE, [1, 3][i % 2]) for i in range(20000)]
os.getpriority(os.PRIO_PROCESS, 0)
os._exit(0)
";
    let words = ["/usr/bin/env", "python3", "-S", "-c", script];
    let options = ["--snapshot-at", "call:getpriority", "-e", "trace=getpriority"];
    let mut found = Vec::new();
    // Where others want the processor, a call may take long by itself: once is enough.
    for _ in 0..10 {
        let (record, finished) = traced(&scratch, &options, &words);
        finished.assert_code(0);
        let mut at = snapshots(&record).iter().map(|snapshot| snapshot.at_ns);
        let (Some(call), Some(end)) = (at.next(), at.next()) else { panic!("{:?}", record.proc) };
        assert_eq!(table::contradictions(&record), Vec::<String>::new(), "{finished}");
        let took = record.syscalls.iter().flatten().find(|row| row.name == "getpriority");
        let took = took.and_then(|row| row.wall_ns).map(|wall| wall.max).expect("it was timed");
        // Between the two there is nothing but the first of them, and the call.
        let (looked, wall) = (end - call, record.outcome.wall_ns);
        if took < looked / 2 && wall < end - looked / 2 {
            return;
        }
        found.push(format!("{took} ns in the call, {looked} to look, {wall} of {end} in all"));
    }
    panic!("{}", found.join("\n"));
}

#[test]
fn show_says_how_many_there_are_and_where() {
    let Some(program) = built("snapshot-moments") else { return };
    let scratch = Scratch::new("show");
    let options = [&["--snapshot", "all"][..], &MOMENTS].concat();
    let (_, finished) = traced(&scratch, &options, &[&program.path.to_string_lossy()]);
    let text = finished.err();
    assert!(text.lines().all(|line| line.chars().count() <= 80 || line.starts_with("record")));
    let head = "proc     4 snapshots, 3 of the command itself, files in at-*";
    assert!(text.lines().any(|line| line.starts_with(head)), "{text}");
    for event in ["exec after ", "call:getppid after ", "open:status after "] {
        assert!(text.contains(event), "{text}");
    }
    let (_, finished) = traced(&scratch, &[], &["true"]);
    assert!(!finished.err().lines().any(|line| line.starts_with("proc ")), "{finished}");
}
