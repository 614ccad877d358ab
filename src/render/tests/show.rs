use super::super::show;
use super::{assert_tidy, process, record, row, torch_rows};
use crate::record::{Exec, Thread};

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
        "time     user 2.18 + sys 0.59 + off CPU 0.06 s; waited 3.20 ms for a CPU",
        "calls    14904 in 0.27 s; 1212 errors (773 ENOTTY, 438 ENOENT, 1 EINVAL);",
        "         1 unfinished (futex)",
        "memory   peak 231.7 MiB",
        "faults   86 major, 32359 minor; switches 95 voluntary, 10 involuntary",
        "I/O      disks read 15.0 MiB, written 0 B; stdout 0 B, stderr 12 B",
        "tree     1 process, 1 thread",
        "measured by ptrace, 29807 stops; tracing added about 155 ms (10.4 us a call)",
        "  1200      10   30.00  500.00 python3 -c 'import torch'",
        "  1201      10   30.00  500.00   sh -c 'uname -p' [exited 1]",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in\n{text}");
    }
    assert!(text.ends_with(" total\n"));
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
    assert!(text.contains("\nmemory   ru_maxrss 231.7 MiB\n"));
    for absent in ["calls", "% time", "tree", "run ", "process"] {
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
            "  1200      10   30.00   500.00 make -j",
            "     -    1990 5970.00 99500.00   199 x true",
            "  1207      10   30.00   500.00   true [exited 1]",
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
    let names: Vec<String> = tree_of(all).iter().map(|line| line[31..].to_owned()).collect();
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
    assert_eq!(lines[1], "  1201      10       -       -   python3 (forked) [end not seen]");
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
