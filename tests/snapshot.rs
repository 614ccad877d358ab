//! What /proc said at the end: of short programs, of those whose leader went first, of the killed.

mod support;

use coldtrace::record::{ProcSnapshot, Record};
use support::fixture::built;
use support::process::finish;
use support::{Scratch, coldtrace, find_program, read_record, skip};

/// The record of `coldtrace run OPTIONS -- WORDS`, in `scratch`.
fn run(scratch: &Scratch, options: &[&str], words: &[&str]) -> Record {
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["--output", "pass"]).args(options);
    let finished = finish(command.arg("--").args(words));
    read_record(&scratch.path("runs/latest/record.json"), &finished)
}

fn snapshots(record: &Record) -> &[ProcSnapshot] {
    record.proc.as_deref().unwrap_or_default()
}

#[track_caller]
fn is_whole(snapshot: &ProcSnapshot) {
    let memory = snapshot.memory.as_ref().unwrap_or_else(|| panic!("no memory: {snapshot:?}"));
    let resident = memory.anon_bytes.zip(memory.file_bytes).map(|(anon, file)| anon + file);
    assert!(resident.is_some_and(|bytes| bytes > 0), "{memory:?}");
    assert!(memory.peak_rss_bytes >= resident, "{memory:?}");
    let objects = snapshot.objects.as_ref().unwrap_or_else(|| panic!("no objects"));
    let sum: u64 = objects.iter().map(|o| o.anon_bytes + o.file_bytes).sum();
    // status counts in batches (proc_pid_status(5)), smaps page by page.
    let near = resident.unwrap_or(0).abs_diff(sum);
    assert!(near <= 1 << 20, "{resident:?} by status, {sum} by smaps");
    assert!(snapshot.limits.as_ref().is_some_and(|l| l.contains_key("Max open files")));
    assert!(snapshot.io.as_ref().is_some_and(|io| io.contains_key("rchar")), "{snapshot:?}");
    assert!(snapshot.cgroups.is_some());
}

#[test]
fn a_short_programs_memory_and_descriptors_are_known() {
    let scratch = Scratch::new("short");
    let record = run(&scratch, &[], &["true"]);
    let [snapshot] = snapshots(&record) else { panic!("{:?}", record.proc) };
    is_whole(snapshot);
    // Taking it is part of neither.
    let tree = record.tree.as_ref().and_then(|tree| tree.wall_ns);
    assert_eq!(tree, Some(record.outcome.wall_ns));
    let open = snapshot.descriptors.as_deref().unwrap_or_default();
    let fds: Vec<i32> = open.iter().map(|d| d.fd).filter(|fd| *fd < 3).collect();
    assert_eq!(fds, [0, 1, 2], "{open:?}");
    let program = |o: &coldtrace::record::ObjectMemory| o.object.ends_with("/true");
    let objects = snapshot.objects.as_deref().unwrap_or_default();
    assert!(objects.iter().any(|o| program(o) || o.object.contains("coreutils")), "{objects:?}");
    // The files that it was read from.
    let dir = scratch.path("runs/latest");
    let status = std::fs::read_to_string(dir.join("status.txt")).expect("it was kept");
    let anon = snapshot.memory.as_ref().and_then(|m| m.anon_bytes).unwrap_or(0) / 1024;
    assert!(status.contains(&format!("RssAnon:\t{anon:8} kB")), "{anon} KiB: {status}");
    for name in ["maps", "smaps", "smaps_rollup", "cgroup", "fd", "limits", "io", "schedstat"] {
        assert!(dir.join(format!("{name}.txt")).exists(), "{name}");
    }
}

#[test]
fn memory_has_an_owner() {
    if find_program("python3").is_none() {
        return skip("no python3");
    }
    let scratch = Scratch::new("owner");
    // Touched, and not given back: it lies in no file's mapping.
    let script = "import os; kept = b'x' * (64 << 20); os._exit(len(kept) & 1)";
    let record = run(&scratch, &[], &["python3", "-c", script]);
    let Some(root) = snapshots(&record).first() else { panic!("{:?}", record.proc) };
    let anonymous = root.objects.as_ref().and_then(|all| all.iter().max_by_key(|o| o.anon_bytes));
    let anonymous = anonymous.expect("there are objects");
    assert!(anonymous.object.starts_with('['), "{anonymous:?}");
    assert!((64 << 20..80 << 20).contains(&anonymous.anon_bytes), "{anonymous:?}");
}

#[test]
fn a_leader_that_ended_first_and_a_death_by_signal_hide_nothing() {
    for name in ["leader-exits-first", "root-killed"] {
        let Some(program) = built(name) else { return };
        let scratch = Scratch::new(name);
        let record = run(&scratch, &[], &[&program.path.to_string_lossy()]);
        let [snapshot] = snapshots(&record) else { panic!("{name}: {:?}", record.proc) };
        is_whole(snapshot);
    }
}

#[test]
fn all_are_taken_where_that_is_asked_for_and_none_where_not() {
    let scratch = Scratch::new("all");
    let words = ["sh", "-c", "/bin/true; /bin/true; exit 0"];
    let record = run(&scratch, &["--snapshot", "all"], &words);
    let processes = record.processes.as_ref().map_or(0, Vec::len);
    assert_eq!((snapshots(&record).len(), processes), (3, 3), "{:?}", record.proc);
    for snapshot in snapshots(&record) {
        assert!(snapshot.memory.is_some() && snapshot.at_ns > 0, "{snapshot:?}");
        assert_eq!(snapshot.objects.is_some(), snapshot.process == 0, "{snapshot:?}");
    }
    let off = run(&scratch, &["--snapshot", "off"], &words);
    assert_eq!(off.proc, None);
    assert!(!scratch.path("runs/latest/smaps.txt").exists());
}

#[test]
fn memory_is_known_at_each_exec_and_at_the_end() {
    if find_program("python3").is_none() {
        return skip("no python3");
    }
    let scratch = Scratch::new("memory");
    // 32 MiB, and then another program, which has none of it.
    let script = "import os; kept = b'x' * (32 << 20); os.execv('/bin/sh', ['sh', '-c', 'exit 0'])";
    let record = run(&scratch, &[], &["/usr/bin/python3", "-c", script]);
    let root = record.processes.as_ref().and_then(|all| all.first()).expect("there is a root");
    let events: Vec<&str> = root.memory.iter().map(|sample| sample.event.as_str()).collect();
    assert_eq!(events, ["exec", "exit"], "{:?}", root.memory);
    let anon: Vec<u64> = root.memory.iter().filter_map(|sample| sample.anon_bytes).collect();
    assert!(anon[0] > 32 << 20 && anon[1] < 8 << 20, "{:?}", root.memory);
    assert!(root.memory.is_sorted_by_key(|sample| sample.at_ns), "{:?}", root.memory);
    assert!(root.peak_rss_bytes > Some(32 << 20), "{:?}", root.peak_rss_bytes);
}
