use indexmap::IndexMap;

use super::super::{count, footer, groups};
use super::{SECOND, assert_tidy, options, record, row, torch_rows, with_errors};
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
    let joined = text.replace("\ncoldtrace:", "");
    for part in [
        "errors 16 EINVAL, 15 EAGAIN, 14 EBADF, 13 EIO, 12 EINTR, 21 more;",
        "12 unfinished (wait4, a, b, 1 more);",
        "2 restarts (poll); 1 abandoned (poll); 3 repaired",
        "wall 2.83 s; user 5.00 + sys 0.59 = 2.0 CPUs; calls held 4.00 over all threads",
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
    assert!(footer(&record, 80).contains("tracing added about 0.45\n"));
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
