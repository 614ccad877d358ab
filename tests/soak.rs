//! A tenth of what benches/soak does, and as many threads at once: crowds of processes, threads and
//! deaths are counted exactly, and the tracer grows neither in memory nor in descriptors while they
//! come and go.

mod support;

use coldtrace::record::Record;
use support::board::{Board, Word, field, state};
use support::fixture::built;
use support::process::start;
use support::{Scratch, count_json, read_record, table};

/// What the tracer's memory may grow by between a fifth of the work and all of it, KiB: what an
/// allocator does, not something kept for each of hundreds.
const SLACK_KIB: u64 = 256;

/// The tracer when so much was done.
#[derive(Debug, Clone, Copy)]
struct Sample {
    done: u64,
    /// Resident memory.
    kib: u64,
    descriptors: usize,
}

/// Counts `crowd KIND N` and watches the tracer.
fn soak(kind: &str, n: u64, flat: bool) -> Option<Record> {
    let program = built("crowd")?;
    let board = Board::new();
    let scratch = Scratch::new("soak");
    let report = scratch.path("report.json");
    let mut command = count_json(&report);
    command.arg("--").arg(&program.path).arg(&board.path).args([kind, &n.to_string()]);
    let running = start(&mut command);
    let pid = running.pid();
    let mut samples: Vec<Sample> = Vec::new();
    let mut peak = 0;
    while state(pid) != 'Z' {
        let done = board.get(Word::Count) as u64;
        let kib = |name: &str| field(&pid.to_string(), name).split(' ').next()?.parse().ok();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        if let (Some(kib), Some(most)) = (kib("VmRSS"), kib("VmHWM"))
            && done < n
        {
            samples.push(Sample { done, kib, descriptors });
            peak = most;
        }
        // Not a wait for anything: how often samples are taken.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let finished = running.finish();
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    let mut wrong = table::contradictions(&record);
    wrong.extend(record.measurement.notes.iter().cloned());
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), table::render(&record));
    assert_eq!(table::calls(&record, "getppid"), if kind == "killed" { 0 } else { n });
    samples.retain(|sample| sample.done > 0);
    let (early, late): (Vec<Sample>, Vec<Sample>) =
        samples.iter().partition(|sample| sample.done <= n / 5);
    let resident = |part: &[Sample]| part.iter().map(|sample| sample.kib).max();
    // Some are open for a moment: those that stay are in every sample.
    let open = |part: &[Sample]| part.iter().map(|sample| sample.descriptors).min();
    eprintln!(
        "soak: {n} {kind}: {} samples, peak {peak} KiB, resident {:?} to {:?} KiB",
        samples.len(),
        resident(&early),
        resident(&late)
    );
    if let (true, Some(before), Some(after)) = (flat, resident(&early), resident(&late)) {
        assert!(after <= before + SLACK_KIB, "{kind}: from {before} to {after} KiB");
        let (before, after) = (open(&early).unwrap_or(0), open(&late).unwrap_or(0));
        assert!(after <= before + 2, "{kind}: from {before} to {after} descriptors");
    }
    Some(record)
}

#[track_caller]
fn assert_tree(record: &Record, processes: u64, threads: u64) {
    let tree = record.tree.as_ref().expect("a traced run has a tree");
    let text = table::render(record);
    assert_eq!((tree.processes, tree.threads), (processes, threads), "{text}");
}

/// Calls of one row, and how many of them were cut off.
#[track_caller]
fn assert_row(record: &Record, name: &str, calls: u64, unfinished: u64) {
    let row = table::row(record, name).unwrap_or_else(|| panic!("no row of {name}"));
    let text = table::render(record);
    assert_eq!((row.calls, row.unfinished), (calls, unfinished), "{name}\n{text}");
}

#[test]
fn a_thousand_processes() {
    let Some(record) = soak("processes", 1000, true) else { return };
    assert_tree(&record, 1001, 1001);
    for (name, calls) in [("fork", 1000), ("wait4", 1000), ("exit_group", 1001), ("execve", 1)] {
        assert_row(&record, name, calls, 0);
    }
}

#[test]
fn a_thousand_threads() {
    let Some(record) = soak("threads", 1000, true) else { return };
    assert_tree(&record, 1, 1001);
    for (name, calls) in [("clone", 1000), ("exit", 1000), ("exit_group", 1)] {
        assert_row(&record, name, calls, 0);
    }
}

#[test]
fn a_thousand_threads_at_once() {
    let Some(record) = soak("concurrent", 1000, false) else { return };
    assert_tree(&record, 1, 1001);
    for (name, calls) in [("clone", 1000), ("exit", 1000), ("exit_group", 1)] {
        assert_row(&record, name, calls, 0);
    }
}

#[test]
fn a_thousand_deaths_in_the_middle_of_a_call() {
    let Some(record) = soak("killed", 1000, true) else { return };
    assert_tree(&record, 1001, 1001);
    assert_row(&record, "pause", 500, 500);
    assert_row(&record, "kill", 1000, 500);
    assert_row(&record, "getpid", 500, 0);
    assert_row(&record, "wait4", 1000, 0);
}
