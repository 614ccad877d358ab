use indexmap::IndexMap;

use super::super::{count, display_width, footer, groups, summary};
use super::{SECOND, assert_tidy, options, outlived, record, row, torch_rows, with_errors};
use crate::record::{Group, SyscallRow};

#[test]
fn the_lines_below_are_those_of_the_design() {
    let record = record(&["python3"], Some(torch_rows()));
    assert_eq!(
        footer(&record, 80),
        "coldtrace: errors 773 ENOTTY, 438 ENOENT, 1 EINVAL; 1 unfinished (futex)\n\
         coldtrace: wall 2.83 s = user 2.18 + sys 0.59 + off CPU 0.06; calls held 0.27\n"
    );
}

#[test]
fn the_lines_below_say_what_went_wrong() {
    let kinds = ["EPERM", "ENOENT", "EINTR", "EIO", "EBADF", "EAGAIN", "EINVAL"];
    let errors: IndexMap<String, u64> =
        kinds.iter().zip(10..).map(|(kind, n)| ((*kind).to_owned(), n)).collect();
    let mut rows =
        vec![SyscallRow { errors, restarts: 2, abandoned: 1, ..row("poll", 100, 4_000_000, 1, 1) }];
    rows.extend(["a", "b", "c"].map(|name| SyscallRow { unfinished: 1, ..row(name, 1, 1, 1, 1) }));
    rows.push(SyscallRow { unfinished: 9, ..row("wait4", 9, 1, 1, 1) });
    let mut record = record(&["x"], Some(rows));
    record.measurement.repaired = 3;
    record.measurement.events_lost = 1;
    record.measurement.filter = "refused".to_owned();
    record.measurement.filter_reason =
        Some("no_new_privs would change /usr/bin/sudo\x1b[2J".to_owned());
    record.measurement.notes = vec!["a note ".repeat(20), "x".repeat(200)];
    if let Some(tree) = &mut record.tree {
        tree.threads = 4;
        tree.user_ns = Some(5 * SECOND);
    }
    let text = footer(&record, 80);
    assert_tidy(&text, 80);
    assert!(text.lines().all(|line| line.starts_with("coldtrace: ")));
    assert!(!text.contains(";\n"));
    let joined = text.replace("\ncoldtrace:  ", "").replace("\ncoldtrace:", ";");
    for part in [
        "errors 16 EINVAL, 15 EAGAIN, 14 EBADF, 13 EIO, 12 EINTR, 21 more; ",
        "12 unfinished (wait4, a, b, 1 more);",
        "2 restarts (poll); 1 abandoned (poll); 3 repaired",
        "wall 2.83 s; user 5.00 + sys 0.59 s = 2.0 CPUs; calls held 4.00 s over all threads",
        "1 event LOST: the counts are too low",
        "filter refused, so every call stopped: no_new_privs",
    ] {
        assert!(joined.contains(part), "{part} in {joined}");
    }
    // One thread cannot use two CPUs.
    if let Some(tree) = &mut record.tree {
        tree.threads = 1;
    }
    assert!(!footer(&record, 80).contains("CPUs"));
}

#[test]
fn times_that_are_mostly_tracing_say_so() {
    let mut record = record(&["true"], Some(vec![row("read", 1, 300, 1, 1)]));
    record.outcome.wall_ns = 2_000_000_000;
    record.measurement.estimated_added_ns = Some(150_000_000);
    assert!(!footer(&record, 80).contains("tracing added"));
    record.measurement.estimated_added_ns = Some(450_000_000);
    assert!(footer(&record, 80).contains("tracing added about 0.45 s\n"));
}

#[test]
fn quiet_runs_have_one_line_below() {
    let mut record = record(&["true"], Some(vec![row("read", 1, 300, 1, 1)]));
    record.outcome.wall_ns = 1_840_000;
    record.measurement.estimated_added_ns = None;
    record.tree = None;
    if let Some(usage) = &mut record.rusage {
        usage.user_ns = 410_000;
        usage.sys_ns = 1_200_000;
    }
    let line = "coldtrace: wall 1.84 ms = user 0.41 + sys 1.20 + off CPU 0.23; calls held 0.30\n";
    assert_eq!(footer(&record, 80), line);
    record.rusage = None;
    record.syscalls = None;
    assert_eq!(footer(&record, 80), "coldtrace: wall 1.84 ms\n");
    assert!(count(&record, &options()).starts_with("coldtrace: no calls: nothing was traced\n"));
}

#[test]
fn groups_come_largest_first_under_their_names() {
    let group = |name: &str, pid, tid, us| Group {
        name: name.to_owned(),
        pid,
        tid,
        syscalls: vec![with_errors(row("read", 2, us, 1, 1), &[("EIO", 1)])],
    };
    let parts = [
        group("small", Some(7), None, 1),
        group("python3.11", Some(1234), Some(1236), 270_000),
        group(&format!("\x1b{}", "long".repeat(40)), None, None, 5),
    ];
    let text = groups(&parts, &options());
    assert_tidy(&text, 80);
    let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("coldtrace: ")).collect();
    assert_eq!(heads[0], "coldtrace: python3.11 (pid 1234, tid 1236): 2 calls, 1 error, 0.27 s");
    assert!(heads[1].starts_with("coldtrace: \\x1blong"));
    assert_eq!(heads[2], "coldtrace: small (pid 7): 2 calls, 1 error, 1.00 us");
    let mut record = record(&["x"], Some(torch_rows()));
    record.groups = Some(parts.to_vec());
    let text = count(&record, &options());
    assert!(text.starts_with(heads[0]) && text.ends_with(&footer(&record, 80)));
}

#[test]
fn no_figure_is_lost_in_a_narrow_terminal() {
    let mut record = record(&["x"], Some(vec![row("read", 100, 18_440, 1, 1)]));
    record.outcome.wall_ns = 45_670_000;
    record.measurement.estimated_added_ns = Some(27_240_000);
    if let Some(tree) = &mut record.tree {
        (tree.user_ns, tree.sys_ns) = (Some(12_340_000), Some(21_050_000));
    }
    assert_eq!(
        footer(&record, 80),
        "coldtrace: wall 45.67 ms = user 12.34 + sys 21.05 + off CPU 12.28\n\
         coldtrace: calls held 18.44 ms; tracing added about 27.24 ms\n"
    );
    assert_eq!(
        footer(&record, 60),
        "coldtrace: wall 45.67 ms = user 12.34 ms + sys 21.05 ms\n\
         coldtrace:   + off CPU 12.28 ms\n\
         coldtrace: calls held 18.44 ms; tracing added about 27.24 ms\n"
    );
    assert_eq!(
        footer(&record, 40),
        "coldtrace: wall 45.67 ms = user 12.34 ms\n\
         coldtrace:   + sys 21.05 ms\n\
         coldtrace:   + off CPU 12.28 ms\n\
         coldtrace: calls held 18.44 ms\n\
         coldtrace: tracing added about 27.24 ms\n"
    );
    for cpus in [false, true] {
        if cpus && let Some(tree) = &mut record.tree {
            (tree.threads, tree.user_ns) = (4, Some(98_760_000));
        }
        for width in 38..130 {
            for text in [footer(&record, width), summary(&record, width)] {
                assert_tidy(&text, width);
                assert!(!text.contains('…') && !text.contains(";\n"), "{width}:\n{text}");
            }
        }
        for width in [38, 60] {
            let text = footer(&record, width) + &summary(&record, width);
            let user = if cpus { "user 98.76" } else { "user 12.34" };
            let rest = if cpus { "2.6 CPUs" } else { "off CPU 12.28 ms" };
            for figure in [user, "sys 21.05 ms", rest, "18.44 ms", "27.24 ms", "27.2 ms"] {
                assert!(text.contains(figure), "{figure} in {width}:\n{text}");
            }
        }
    }
}

#[test]
fn wall_and_cpu_are_of_the_same_span() {
    let mut record = outlived();
    assert_eq!(
        footer(&record, 80),
        "coldtrace: the command ended after 1.40 ms, its last descendant after 2.01 s\n\
         coldtrace: wall 2.01 s = user 0.30 + sys 0.20 + off CPU 1.51; calls held 1.90\n"
    );
    let text = footer(&record, 50);
    assert_tidy(&text, 50);
    assert!(text.starts_with(
        "coldtrace: the command ended after 1.40 ms,\n\
         coldtrace:   its last descendant after 2.01 s\n"
    ));
    // Of what was waited for, the command's own time is the right one.
    if let Some(tree) = &mut record.tree {
        tree.user_ns = None;
    }
    let text = footer(&record, 80);
    assert!(text.contains(" last descendant after 2.01 s\n"));
    assert!(text.contains("\ncoldtrace: wall 1.40 ms = user 0.40 + sys 0.60 + off CPU 0.40\n"));
    // A little later is what a tracer sees of every run.
    for (command, tree, is) in [
        (1_400_000, 2_300_000, false),
        (1_400_000, 2_500_000, true),
        (SECOND, SECOND + 9_000_000, false),
        (SECOND, SECOND + 11_000_000, true),
    ] {
        record.outcome.wall_ns = command;
        if let Some(all) = &mut record.tree {
            all.wall_ns = Some(tree);
        }
        assert_eq!(footer(&record, 80).contains("descendant"), is, "{command} {tree}");
    }
}

#[test]
fn unfinished_calls_have_their_time() {
    let unfinished = |name: &str, count, ms: u64| SyscallRow {
        unfinished: count,
        unfinished_ns: ms * 1_000_000,
        ..row(name, 1, 1, 1, 1)
    };
    let mut record = record(&["x"], Some(vec![unfinished("clock_nanosleep", 1, 990)]));
    assert!(footer(&record, 80).starts_with("coldtrace: 1 unfinished (clock_nanosleep 0.99 s)\n"));
    record.syscalls = Some(vec![
        unfinished("exit_group", 9, 0),
        unfinished("poll", 1, 12),
        unfinished("futex", 1, 700),
        unfinished("futex", 2, 800),
        unfinished("read", 5, 0),
    ]);
    let text = footer(&record, 80);
    assert!(
        text.starts_with(
            "coldtrace: 18 unfinished (futex 1.50 s, poll 12.0 ms, exit_group, 1 more)\n"
        ),
        "{text}"
    );
}

#[test]
fn what_was_selected_and_watched_is_said() {
    let mut record = record(&["x"], Some(vec![row("read", 4, 300, 1, 1)]));
    record.measurement.trace = Some("read".to_owned());
    assert!(footer(&record, 80).starts_with("coldtrace: only trace=read was counted\n"));
    record.measurement.status = Some("failed".to_owned());
    record.measurement.watched_ns = Some(283_000_000);
    let text = footer(&record, 80);
    assert!(text.starts_with("coldtrace: only trace=read, status=failed was counted\n"));
    assert!(text.contains("calls watched for 10 % of the time\n"));
    record.measurement.trace = Some(format!("%file\x1b[2J,{}", "x,".repeat(200)));
    record.measurement.watched_ns = Some(20_000_000);
    for width in [40, 60, 80] {
        let text = footer(&record, width);
        assert_tidy(&text, width);
        assert!(text.lines().all(|line| display_width(line) > 11));
    }
    assert!(footer(&record, 80).contains("calls watched for 0.7 % of the time\n"));
}
