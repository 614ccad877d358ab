use super::super::{processes, show, summary};
use super::{assert_tidy, outlived, process, record, row, torch_rows};
use crate::record::{BlockedCall, Exec, Memory, ProcSnapshot, Record, Thread, TimeShare};

#[test]
fn a_page_with_everything() {
    let mut record = record(&["python3", "-c", "import torch"], Some(torch_rows()));
    let mut all = vec![process(0, None, &["python3", "-c", "import torch"])];
    all.push(process(1, Some(0), &["sh", "-c", "uname -p"]));
    all[1].exit_code = Some(1);
    record.processes = Some(all);
    let text = show(&record, 80);
    assert_tidy(&text, 80);
    assert_eq!(
        text.lines().next(),
        Some("python3 -c 'import torch'         exited 0 after 2.83 s")
    );
    for line in [
        "run      started 2026-03-01T10:00:00Z in /work",
        "time     user 2.18 + sys 0.59 + off CPU 0.06 s; waited 3.20 ms for a CPU",
        "calls    14904 in 0.27 s; 1212 errors (773 ENOTTY, 438 ENOENT, 1 EINVAL)",
        "         1 unfinished (futex)",
        "memory   peak 231.7 MiB",
        "faults   86 major, 32359 minor; switches 95 voluntary, 10 involuntary",
        "I/O      disks read 15.0 MiB; stdout 0 B, stderr 12 B",
        "tree     1 process, 1 thread",
        "measured by ptrace, 29807 stops; tracing added about 155 ms (10.4 us a call)",
        "   pid   calls  cpu ms start ms wall ms process",
        "  1200      10   30.00     0.00  500.00 python3 -c 'import torch'",
        "  1201      10   30.00     1.00  500.00   sh -c 'uname -p' [exited 1]",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
    }
    assert!(text.ends_with(" total\n"));
}

#[test]
fn how_cold_a_run_was_is_said() {
    let mut record = record(&["cat", "a"], None);
    record.run.id = Some("cold-1".to_owned());
    record.run.label = "cold-1".to_owned();
    let cache = serde_json::json!({
        "label": "cold", "basis": "residency",
        "evidence": "0 B of 36.0 MiB were in memory, 36.0 MiB read; metadata may be warm",
        "resident_before_bytes": 0, "resident_after_bytes": 1, "pinned_bytes": 0,
        "set_bytes": 1, "files_measured": 1, "files_total": 5, "method": "mincore",
        "major_faults": 0, "block_input_bytes": 0, "evicted_by": "posix_fadvise",
        "files_evicted": 4, "bytecode_written": 2, "boot_id": null, "uptime_ns": null,
        "first_since_boot": false,
    });
    record.cache = Some(serde_json::from_value(cache).expect("it is one"));
    let text = summary(&record, 80);
    assert_tidy(&text, 80);
    for line in [
        "cache    cold (by residency: 0 B of 36.0 MiB were in memory, 36.0 MiB read)",
        "         metadata may be warm; 4 files evicted by posix_fadvise",
        "         wrote 2 files of bytecode",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
    }
    // Its label says nothing that its name does not.
    assert!(text.contains("run      cold-1; started") && !text.contains("label"), "{text}");
    record.run.label = "monday".to_owned();
    assert!(summary(&record, 80).contains("cold-1; label monday; started"));
    record.cache = None;
    assert!(!summary(&record, 80).contains("\ncache"));
}

#[test]
fn a_bad_end_comes_first() {
    let mut record = record(&["/usr/bin/crash", "--now"], None);
    record.outcome.exit_code = Some(3);
    assert!(show(&record, 80).starts_with("FAILED, exited 3 after 2.83 s: /usr/bin/crash --now\n"));
    record.outcome.exit_code = None;
    record.outcome.signal = Some("SIGSEGV".to_owned());
    record.outcome.core_dumped = true;
    assert!(
        show(&record, 80)
            .starts_with("KILLED by SIGSEGV, core dumped, after 2.83 s: /usr/bin/crash --now\n")
    );
    record.outcome.signal = None;
    assert!(
        show(&record, 80).starts_with("end not seen; watched for 2.83 s: /usr/bin/crash --now\n")
    );
}

#[test]
fn what_is_not_in_the_record_is_not_shown() {
    let mut record = record(&["true"], None);
    record.measurement.engine = "none".to_owned();
    record.tree = None;
    let text = show(&record, 80);
    assert!(text.contains("\nmeasured without tracing\n"));
    assert!(text.contains("\nmemory   largest process 231.7 MiB (ru_maxrss)\n"));
    for absent in ["calls", "% time", "tree", "pid"] {
        assert!(!text.contains(absent), "{absent} in\n{text}");
    }
    record.rusage = None;
    record.processes = Some(vec![process(0, None, &["true"])]);
    let text = show(&record, 80);
    assert_tidy(&text, 80);
    for absent in ["time ", "memory", "faults", "disks", "calls"] {
        assert!(!text.contains(absent), "{absent} in\n{text}");
    }
    assert!(text.contains("process\n"));
}

#[test]
fn long_and_hostile_words_stay_within_the_width() {
    let evil = "a\x1b]0;x\x07\u{202e}\n日本 ".repeat(30);
    let mut record = record(&["sh", "-c", &evil], Some(vec![row(&evil, 1, 1, 1, 1)]));
    record.run.label.clone_from(&evil);
    record.run.tags.insert(evil.clone(), evil.clone());
    record.measurement.engine.clone_from(&evil);
    record.measurement.notes.push(evil.clone());
    let mut one = process(0, None, &["x", &evil]);
    one.signal = Some("SIGKILL".to_owned());
    one.exit_code = None;
    record.processes = Some(vec![one, process(1, Some(0), &[&evil])]);
    for width in [50, 60, 80, 120, 200, usize::MAX] {
        let text = show(&record, width);
        assert_tidy(&text, width);
        assert!(!text.contains('\u{202e}'));
        assert!(width < 60 || text.contains("[killed by SIGKILL]"));
    }
    for width in 0..40 {
        let _ = show(&record, width);
    }
}

fn tree_of(processes: Vec<crate::record::Process>) -> Vec<String> {
    let mut record = record(&["make"], None);
    record.syscalls = Some(Vec::new());
    record.processes = Some(processes);
    let text = show(&record, 80);
    assert_tidy(&text, 80);
    let lines = text.lines().skip_while(|line| !line.ends_with(" process")).skip(1);
    lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn siblings_that_look_the_same_share_a_line() {
    let mut all = vec![process(0, None, &["make", "-j"])];
    for id in 1..=200 {
        all.push(process(id, Some(0), &["true"]));
    }
    all[7].exit_code = Some(1);
    assert_eq!(
        tree_of(all),
        [
            "  1200      10   30.00     0.00   500.00 make -j",
            "     -    1990 5970.00     1.00 99500.00   199 x true",
            "  1207      10   30.00     7.00   500.00   true [exited 1]",
        ]
    );
}

#[test]
fn equal_families_share_lines_and_others_do_not() {
    let mut all = vec![process(0, None, &["make"])];
    for id in 1..=3 {
        all.push(process(id, Some(0), &["sh", "-c", "true; true"]));
    }
    for id in 4..=9 {
        all.push(process(id, Some((id - 4) / 2 + 1), &["true"]));
    }
    all.push(process(10, Some(0), &["sh", "-c", "true; true"]));
    let names: Vec<String> = tree_of(all).iter().map(|line| line[40..].to_owned()).collect();
    assert_eq!(names.len(), 4);
    assert!(names[1].ends_with("3 x sh -c 'true; true'"));
    assert!(names[2].ends_with("    6 x true"));
    assert!(names[3].ends_with("  sh -c 'true; true'"));
}

#[test]
fn large_trees_are_folded_by_program_then_cut() {
    let mut all = vec![process(0, None, &["make"])];
    for id in 1..=100 {
        all.push(process(id, Some(0), &["gcc", "-c", &format!("{id}.c")]));
    }
    let lines = tree_of(all);
    assert_eq!(lines.len(), 2);
    assert!(lines[1].ends_with("  100 x gcc"));

    let all = (0..5_000).map(|id: u64| process(id, id.checked_sub(1), &["fork"])).collect();
    let lines = tree_of(all);
    assert_eq!(lines.len(), 30);
    assert!(lines[29].ends_with(" (4971 more processes)"));
}

#[test]
fn forks_chains_threads_and_damage() {
    let mut all = vec![
        process(0, None, &["env", "python3"]),
        process(1, Some(0), &["x"]),
        process(2, Some(5), &["orphan"]),
        process(3, Some(3), &["loop"]),
    ];
    all[0].execs.push(Exec {
        at_ns: 1,
        exe: Some("/usr/bin/python3.11".to_owned()),
        argv: vec!["python3".to_owned(), "a b".to_owned()],
    });
    all[0].threads = vec![Thread::default(); 8];
    all[1].execs.clear();
    all[1].exit_code = None;
    all[1].end_ns = None;
    all[1].user_ns = None;
    let lines = tree_of(all);
    assert!(lines[0].ends_with(" env > python3 'a b' [8 threads]"));
    assert_eq!(
        lines[1],
        "  1201      10       -     1.00       -   python3 (forked) [end not seen]"
    );
    assert!(lines[2].ends_with(" orphan"));
    assert!(lines[3].ends_with(" loop"));
}

#[test]
fn huge_numbers_are_shown_without_overflow() {
    let mut record = record(&["x"], Some(torch_rows()));
    let most = u64::MAX;
    record.outcome.wall_ns = most;
    if let (Some(usage), Some(tree)) = (&mut record.rusage, &mut record.tree) {
        (usage.block_in, usage.block_out) = (most, most);
        (tree.processes, tree.threads, tree.peak_rss_bytes) = (most, most, Some(most));
        (tree.user_ns, tree.sys_ns, tree.run_queue_ns) = (Some(most), Some(most), Some(most));
        (tree.minor_faults, tree.major_faults) = (Some(most), Some(most));
        (tree.voluntary_switches, tree.involuntary_switches) = (Some(most), Some(most));
    }
    record.measurement.stops = most;
    record.measurement.estimated_added_ns = Some(most);
    let mut one = process(0, None, &["x"]);
    (one.user_ns, one.sys_ns, one.end_ns) = (Some(most), Some(most), Some(most));
    one.syscalls[0].calls = most;
    let mut other = process(1, Some(0), &["y"]);
    other.clone_from(&one);
    (other.id, other.parent) = (1, Some(0));
    let third = crate::record::Process { id: 2, ..other.clone() };
    record.processes = Some(vec![one, other, third]);
    assert_tidy(&show(&record, 80), 80);
}

fn line(record: &Record, label: &str) -> Option<String> {
    let text = summary(record, 80);
    assert_tidy(&text, 80);
    let mut lines = text.lines();
    Some(lines.find(|line| line.split(' ').next() == Some(label))?[9..].to_owned())
}

#[test]
fn descendants_that_outlived_the_command_are_told() {
    let record = outlived();
    let text = summary(&record, 80);
    assert!(
        text.starts_with("sh -c 'work &'                    exited 0 after 1.40 ms\n"),
        "{text}"
    );
    for (label, rest) in [
        ("time", "2.01 s of the whole tree = user 0.30 + sys 0.20 + off CPU 1.51 s"),
        ("tree", "2 processes, 2 threads; the last ended after 2.01 s"),
        ("calls", "9 in 1.90 s; 0 errors"),
    ] {
        assert_eq!(line(&record, label).as_deref(), Some(rest));
    }
    assert!(summary(&record, 44).contains(
        "time     2.01 s of the whole tree\n\
         \x20          = user 0.30 s + sys 0.20 s\n\
         \x20          + off CPU 1.51 s\n\
         \x20        waited 3.20 ms for a CPU\n"
    ));
}

#[test]
fn a_run_is_named() {
    let mut record = record(&["/usr/bin/make"], None);
    record.run.label = "make".to_owned();
    record.run.id = Some("20260301T100000.000Z-make".to_owned());
    assert_eq!(
        line(&record, "run").as_deref(),
        Some("20260301T100000.000Z-make; started 2026-03-01T10:00:00Z in /work")
    );
    record.run.id = None;
    record.run.label = "nightly".to_owned();
    record.run.cwd = Some("/a b".to_owned());
    record.run.tags.insert("k".to_owned(), "v".to_owned());
    record.run.tags.insert("l".to_owned(), "w".to_owned());
    assert_eq!(
        line(&record, "run").as_deref(),
        Some("label nightly; tags k=v, l=w; started 2026-03-01T10:00:00Z in '/a b'")
    );
    record.run.cwd = None;
    record.run.tags.clear();
    record.run.start = "\x1b".to_owned();
    assert_eq!(line(&record, "run").as_deref(), Some("label nightly; started \\x1b"));
}

#[test]
fn attached_runs_say_to_what_and_for_how_long() {
    let mut record = record(&["python3", "server.py"], Some(torch_rows()));
    record.run.attached = vec![1234, 5678];
    record.outcome.exit_code = None;
    record.outcome.wall_ns = 10_000_000_000;
    record.measurement.watched_ns = Some(1_240_000_000);
    let mut one = process(0, None, &["python3", "server.py"]);
    one.exit_code = None;
    record.processes = Some(vec![one]);
    let text = show(&record, 80);
    assert_tidy(&text, 80);
    assert!(
        text.starts_with("attached to 1234, 5678: watched for 10.0 s (1234: python3 server.py)\n"),
        "{text}"
    );
    assert!(!text.contains("not seen"));
    assert!(text.contains("calls watched for 12 % of the time"));
    record.run.attached.extend(1..20);
    record.run.argv.push("x".repeat(200));
    for width in [40, 60, 80, 100] {
        let text = summary(&record, width);
        assert_tidy(&text, width);
        let head = text.replace("\n ", "");
        assert!(
            head.starts_with(
                "attached to 1234, 5678, 1, 2, 3, 16 more: watched for 10.0 s (1234: pyth"
            ),
            "{width}: {text}"
        );
    }
    record.run.attached = vec![7];
    record.run.argv.clear();
    assert!(summary(&record, 80).starts_with("attached to 7: watched for 10.0 s\n"));
}

#[test]
fn what_was_selected_is_said() {
    let mut record = record(&["x"], Some(vec![row("read", 4, 12, 1, 1)]));
    record.measurement.trace = Some("read".to_owned());
    record.measurement.filter = "installed".to_owned();
    assert_eq!(line(&record, "calls").as_deref(), Some("4 of trace=read in 12.0 us; 0 errors"));
    assert!(summary(&record, 80).contains("other calls ran at full speed\n"));
    record.measurement.status = Some("failed".to_owned());
    assert_eq!(
        line(&record, "calls").as_deref(),
        Some("4 of trace=read with status=failed in 12.0 us")
    );
    record.measurement.trace = None;
    assert_eq!(line(&record, "calls").as_deref(), Some("4 with status=failed in 12.0 us"));
    record.measurement.filter_reason = Some("sudo ran".to_owned());
    let text = summary(&record, 80);
    assert!(!text.contains("full speed"));
    assert!(text.contains("note     in some processes all other calls stopped too: sudo ran\n"));
}

#[test]
fn memory_is_of_the_largest_process() {
    let mut record = record(&["x"], None);
    let memory = |record: &Record| line(record, "memory").unwrap();
    assert_eq!(memory(&record), "peak 231.7 MiB");
    record.tree.as_mut().unwrap().processes = 3;
    assert_eq!(memory(&record), "largest process 231.7 MiB");
    record.tree.as_mut().unwrap().peak_rss_bytes = None;
    assert_eq!(memory(&record), "largest process 231.7 MiB (ru_maxrss)");
    record.tree.as_mut().unwrap().processes = 1;
    assert_eq!(memory(&record), "peak 231.7 MiB (ru_maxrss)");
}

#[test]
fn noise_is_left_out() {
    let mut record = record(&["x"], None);
    let tree = record.tree.as_mut().unwrap();
    tree.run_queue_ns = Some(0);
    tree.major_faults = Some(0);
    (tree.voluntary_switches, tree.involuntary_switches) = (None, None);
    let usage = record.rusage.as_mut().unwrap();
    usage.block_out = 3;
    assert_eq!(line(&record, "time").as_deref(), Some("user 2.18 + sys 0.59 + off CPU 0.06 s"));
    assert_eq!(
        line(&record, "faults").as_deref(),
        Some("32359 minor; switches 95 voluntary, 10 involuntary")
    );
    assert_eq!(
        line(&record, "I/O").as_deref(),
        Some("disks read 15.0 MiB, written 1.5 KiB; stdout 0 B, stderr 12 B")
    );
}

#[test]
fn a_fork_is_named_after_what_its_parent_ran_then() {
    let mut all = vec![
        process(0, None, &["sh"]),
        process(1, Some(0), &["x"]),
        process(2, Some(1), &["x"]),
        process(3, Some(0), &["x"]),
    ];
    all[0].execs.push(Exec { argv: vec!["sleep".to_owned(), "1".to_owned()], ..Exec::default() });
    for child in &mut all[1..] {
        child.execs.clear();
    }
    all[1].image = Some("/usr/bin/dash (deleted)".to_owned());
    all[2].exit_code = Some(1);
    all[3].image = Some("/opt/\x1bbin".to_owned());
    let lines = tree_of(all);
    let names: Vec<&str> = lines.iter().map(|line| &line[40..]).collect();
    assert_eq!(
        names,
        ["sh > sleep 1", "  dash (forked)", "    dash (forked) [exited 1]", "  \\x1bbin (forked)"]
    );
}

#[test]
fn starts_give_way_first() {
    let mut record = record(&["make"], Some(Vec::new()));
    record.processes = Some(vec![process(0, None, &["make", "an-argument-of-some-length"])]);
    let head = |width| {
        let text = processes(&record, width);
        assert_tidy(&text, width);
        text.lines().next().unwrap().to_owned()
    };
    let all = "   pid   calls  cpu ms start ms wall ms process";
    assert_eq!(head(80), all);
    assert_eq!(head(71), all);
    assert_eq!(head(69), "   pid   calls  cpu ms wall ms process");
    record.processes = Some(vec![process(0, None, &["make"])]);
    assert_eq!(processes(&record, 50).lines().next(), Some(all));
}

#[test]
fn a_record_without_processes_says_why() {
    let mut record = record(&["make"], None);
    record.measurement.engine = "none".to_owned();
    assert_eq!(
        processes(&record, 80),
        "coldtrace: no processes in this record: it was not traced\n"
    );
    record.measurement.engine = "ptrace".to_owned();
    assert!(processes(&record, 80).contains("count keeps none, run keeps them"));
    assert!(!show(&record, 80).contains("no processes"));
}

#[test]
fn blocked_names_the_calls_that_took_longest_and_what_is_left() {
    let call = |name: &str, ms: u64| BlockedCall {
        name: name.to_owned(),
        abi: "x86_64".to_owned(),
        calls: 1,
        blocked_ns: ms * 1_000_000,
    };
    let mut record = record(&["x"], None);
    record.time = Some(TimeShare {
        threads: 3,
        lifetime_ns: 6_000_000_000,
        cpu_ns: 2_800_000_000,
        run_queue_ns: 3_200_000,
        blocked_ns: 3_000_000_000,
        other_ns: 196_800_000,
        blocked: vec![
            call("futex", 2000),
            call("read", 700),
            call("poll", 200),
            call("wait4", 90),
            call("write", 10),
        ],
    });
    assert_eq!(
        line(&record, "blocked").as_deref(),
        Some("3.00 s of 6.00 s in 3 threads (futex 2.00 s, read 700 ms, poll 200 ms,")
    );
    let text = summary(&record, 80);
    assert!(
        text.contains("           wait4 90.0 ms, 1 more)\n         stopped or paging 197 ms\n"),
        "{text}"
    );
    if let Some(share) = &mut record.time {
        (share.threads, share.blocked_ns, share.other_ns) = (1, 0, 0);
        share.blocked.clear();
    }
    assert_eq!(line(&record, "blocked").as_deref(), Some("0 ns of 6.00 s"));
}

#[test]
fn snapshots_that_were_asked_for_have_a_line() {
    let snapshot = |process: u64, event: &str, anon: u64, directory: &str| ProcSnapshot {
        process,
        event: event.to_owned(),
        at_ns: 1_020_000,
        directory: (!directory.is_empty()).then(|| directory.to_owned()),
        memory: Some(Memory { anon_bytes: Some(anon), file_bytes: Some(0), ..Memory::default() }),
        ..ProcSnapshot::default()
    };
    let mut record = record(&["sh"], None);
    let mut all = vec![
        snapshot(0, "exec", 64 << 10, "at-1-exec"),
        snapshot(1, "exec", 64 << 10, "at-2-exec"),
        snapshot(0, "exit", 3 << 20, ""),
    ];
    record.proc = Some(all.clone());
    let text = show(&record, 80);
    for line in [
        "proc     2 snapshots, 1 of the command itself, files in at-*",
        "         exec after 1.02 ms: 64.0 KiB resident",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
    }
    assert!(text.contains("at exit anonymous 3.0 MiB + file-backed 0 B = 3.0 MiB"), "{text}");
    // Only at the end: nothing was asked for.
    record.proc = Some(all.split_off(2));
    assert!(!show(&record, 80).contains("\nproc "));
    let evil = "open:/\x1b\n日本*".repeat(30);
    record.proc = Some(vec![snapshot(0, &evil, u64::MAX, "x"); 6]);
    for width in [50, 80, 120, usize::MAX] {
        assert_tidy(&show(&record, width), width);
    }
}
