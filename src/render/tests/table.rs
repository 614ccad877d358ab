use super::super::{Column, SortKey, TableOptions, display_width, footer, table};
use super::{assert_tidy, exit_group, options, record, row, torch_rows, with_errors};
use crate::record::{SyscallRow, Wall};

fn cells(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The columns end where the dashes end, and no cell is blank.
fn assert_aligned(text: &str) {
    let rules: Vec<&str> = text.lines().filter(|line| line.starts_with("--")).collect();
    assert_eq!(rules.len(), 2);
    assert_eq!(rules[0], rules[1]);
    let ends: Vec<usize> = rules[0].match_indices(' ').map(|(at, _)| at).collect();
    let mut rows = text.lines();
    rows.next();
    for line in rows.filter(|line| !line.starts_with("--")) {
        let mut start = 0;
        for end in &ends {
            assert!(!line[start..*end].trim().is_empty(), "blank cell in {line:?}");
            assert!(!line[start..*end].ends_with(' ') || start == 0, "{line:?}");
            assert_eq!(&line[*end..=*end], " ", "{line:?}");
            start = *end;
        }
        assert!(line.len() > start + 1, "{line:?}");
    }
}

#[test]
fn the_table_is_that_of_the_design() {
    let text = table(&torch_rows(), &TableOptions { top: Some(8), ..options() });
    let expected = "\
% time   seconds usecs/call   calls errors   p99 us   max us syscall
------ --------- ---------- ------- ------ -------- -------- -----------------
 29.55  0.078871         15    5273    405       58     1009 newfstatat
 16.64  0.044396         23    1941      0      270      833 read
";
    // The design's own order: `ioctl` is inside the folded row there.
    assert_eq!(text.lines().next(), expected.lines().next());
    assert_eq!(text.lines().nth(1), expected.lines().nth(1));
    assert_eq!(text.lines().nth(2), expected.lines().nth(2));
    assert_eq!(text.lines().nth(3), expected.lines().nth(3));
    assert_eq!(
        text.lines().last(),
        Some("100.00  0.266869         18   14904   1212        -     1009 total")
    );
    assert_aligned(&text);
    assert_tidy(&text, 80);
}

#[test]
fn folded_rows_add_up() {
    let rows = torch_rows();
    for top in 0..=12 {
        let text = table(&rows, &TableOptions { top: Some(top), ..options() });
        assert_aligned(&text);
        let (mut calls, mut errors, mut us) = (0, 0, 0);
        let body: Vec<&str> =
            text.lines().skip(2).take_while(|line| !line.starts_with("--")).collect();
        assert_eq!(body.len(), if top < rows.len() { top + 1 } else { rows.len() });
        for line in &body {
            let row = cells(line);
            calls += row[3].parse::<u64>().unwrap();
            errors += row[4].parse::<u64>().unwrap();
            us += row[1].replace('.', "").parse::<u64>().unwrap();
        }
        assert_eq!((calls, errors, us), (14_904, 1_212, 266_869));
        if top < rows.len() {
            assert_eq!(cells(body[top])[5], "-");
            assert!(body[top].ends_with(&format!(" ({} more)", rows.len() - top)));
        }
    }
}

#[test]
fn a_call_that_was_never_timed_has_no_percentiles() {
    let text = table(&[exit_group(), row("read", 1, 10, 10, 10)], &options());
    let line = text.lines().find(|line| line.ends_with("exit_group")).unwrap();
    assert_eq!(cells(line), ["0.00", "0.000000", "0", "1", "0", "-", "-", "exit_group"]);
    let text = table(&[], &options());
    assert_eq!(
        cells(text.lines().last().unwrap()),
        ["0.00", "0.000000", "0", "0", "0", "-", "-", "total"]
    );
    assert_aligned(&text);
}

#[test]
fn long_names_push_out_columns() {
    let titles = |name: &str, width: usize| {
        let text = table(&[row(name, 1, 1, 1, 1)], &TableOptions { width, ..options() });
        assert_tidy(&text, width);
        assert_aligned(&text);
        (text.contains("max us"), text.contains("p99 us"), text.contains(name))
    };
    assert_eq!(titles("sixteen_letters_", 77), (true, true, true));
    assert_eq!(titles("sixteen_letters_", 76), (false, true, true));
    assert_eq!(titles("nineteen_letters_at", 80), (true, true, true));
    assert_eq!(titles("twenty_letters_are_2", 80), (false, true, true));
    assert_eq!(titles("twenty_letters_are_2", 81), (true, true, true));
    assert_eq!(titles("i386:rt_sigtimedwait_time64", 80), (false, true, true));
    assert_eq!(titles("i386:rt_sigtimedwait_time64x", 80), (false, true, true));
    assert_eq!(titles("i386:rt_sigtimedwait_time64xy", 80), (false, false, true));
    assert_eq!(titles(&"x".repeat(60), 80), (false, false, false));
    for width in 45..140 {
        let _ = titles("i386:rt_sigtimedwait_time64", width);
        let _ = titles("read", width);
    }
}

#[test]
fn names_that_are_not_shown_push_nothing_out() {
    let rows = [row("read", 9, 9, 9, 9), row("i386:rt_sigtimedwait_time64", 1, 1, 1, 1)];
    assert!(!table(&rows, &options()).contains("max us"));
    let text = table(&rows, &TableOptions { top: Some(1), ..options() });
    assert!(text.contains("p99 us   max us") && text.contains(" (1 more)\n"));
}

#[test]
fn unsorted_rows_are_in_the_order_of_the_tables() {
    let numbered = |name: &str, abi: &str, number| SyscallRow {
        abi: abi.to_owned(),
        number,
        ..row(name, 1, 1, 1, 1)
    };
    let rows = [
        numbered("exit", "i386", 1),
        numbered("openat", "x86_64", 257),
        numbered("read", "x86_64", 0),
        numbered("futex(WAIT)", "x86_64", 202),
        numbered("futex(WAKE)", "x86_64", 202),
        numbered("syscall_-1", "x86_64", -1),
    ];
    let text = table(&rows, &TableOptions { sort: SortKey::Nothing, ..options() });
    let names: Vec<&str> = text.lines().skip(2).take(6).map(|line| cells(line)[7]).collect();
    assert_eq!(names, ["syscall_-1", "read", "futex(WAIT)", "futex(WAKE)", "openat", "i386:exit"]);
}

#[test]
fn huge_numbers_neither_overflow_nor_misalign() {
    let huge = SyscallRow {
        calls: u64::MAX,
        errors: [("EIO".to_owned(), u64::MAX), ("EINTR".to_owned(), 5)].into_iter().collect(),
        restarts: u64::MAX,
        unfinished: u64::MAX,
        abandoned: u64::MAX,
        wall_ns: Some(Wall {
            count: 1,
            total: u64::MAX,
            min: u64::MAX,
            max: u64::MAX,
            p50: u64::MAX,
            p90: u64::MAX,
            p99: u64::MAX,
        }),
        ..row("read", 1, 1, 1, 1)
    };
    let rows = vec![huge.clone(), huge, row("write", 5, 5, 5, 5)];
    for top in [None, Some(0), Some(1)] {
        let text = table(&rows, &TableOptions { top, ..options() });
        assert_aligned(&text);
        assert_tidy(&text, 80);
        assert!(text.contains("18446744073709551615"));
    }
    let mut record = record(&["x"], Some(rows));
    record.measurement.repaired = u64::MAX;
    record.measurement.events_lost = u64::MAX;
    record.outcome.wall_ns = u64::MAX;
    assert_tidy(&footer(&record, 80), 80);
}

#[test]
fn columns_of_ones_own_are_all_shown() {
    let columns =
        Column::parse_list("name,calls,min_time,p50,p90,unfinished,restarts,total-time").unwrap();
    assert_eq!(columns[0], Column::Name);
    let rows = [row("clock_nanosleep_time64", 3, 30, 3, 3), row("read", 1, 1, 1, 1)];
    let text = table(&rows, &TableOptions { columns: Some(columns), ..options() });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(cells(lines[0])[..2], ["syscall", "calls"]);
    assert_eq!(cells(lines[3]), ["read", "1", "1", "2", "3", "0", "0", "0.000001"]);
    assert!(lines.iter().all(|line| display_width(line) == display_width(lines[0])));
    assert_eq!(Column::parse_list("calls").unwrap(), [Column::Calls, Column::Name]);
}

#[test]
fn straces_words_are_understood() {
    let same = [
        (SortKey::Time, "time time-percent time_percent time-total total_time total-time"),
        (SortKey::Min, "min min-time min_time shortest time-min time_min"),
        (SortKey::Max, "max max-time max_time longest time-max time_max"),
        (SortKey::Avg, "avg avg-time avg_time time-avg time_avg"),
        (SortKey::Calls, "calls count"),
        (SortKey::Errors, "errors error"),
        (SortKey::Name, "name syscall syscall-name syscall_name"),
        (SortKey::Nothing, "nothing none"),
        (SortKey::P99, "p99"),
    ];
    for (key, words) in same {
        for word in words.split(' ') {
            assert_eq!(SortKey::parse(word), Ok(key), "{word}");
        }
    }
    assert_eq!(
        Column::parse_list("time,total_time,shortest,longest,time-avg,count,error,syscall_name")
            .unwrap(),
        [
            Column::Percent,
            Column::Seconds,
            Column::Min,
            Column::Max,
            Column::Avg,
            Column::Calls,
            Column::Errors,
            Column::Name
        ]
    );
    let errors = [
        SortKey::parse("wal\nl").unwrap_err().to_string(),
        Column::parse_list("calls,,name").unwrap_err().to_string(),
        Column::parse_list("calls,bogus").unwrap_err().to_string(),
        Column::parse_list("calls,count").unwrap_err().to_string(),
    ];
    assert!(errors.iter().all(|error| !error.contains('\n')));
    assert!(errors[0].starts_with("cannot sort by 'wal\\nl': expected time, calls"));
    assert!(errors[2].starts_with("no column 'bogus': expected time-percent"));
    assert_eq!(errors[3], "column 'count' is given twice");
}

#[test]
fn rows_are_sorted_as_asked() {
    let rows = [
        with_errors(row("b", 1, 50, 9, 9), &[("EIO", 3)]),
        exit_group(),
        row("a", 30, 90, 5, 70),
        row("c", 30, 30, 5, 7),
    ];
    let order = |sort| {
        let text = table(&rows, &TableOptions { sort, ..options() });
        let names: Vec<String> =
            text.lines().skip(2).take(4).map(|line| cells(line)[7].to_owned()).collect();
        names.join(" ")
    };
    assert_eq!(order(SortKey::Time), "a b c exit_group");
    assert_eq!(order(SortKey::Calls), "a c b exit_group");
    assert_eq!(order(SortKey::Errors), "b a c exit_group");
    assert_eq!(order(SortKey::Max), "a b c exit_group");
    assert_eq!(order(SortKey::Avg), "b a c exit_group");
    assert_eq!(order(SortKey::Name), "a b c exit_group");
    assert_eq!(order(SortKey::Nothing), "b exit_group a c");
}

#[test]
fn other_abis_are_named() {
    let i386 = SyscallRow { abi: "i386".to_owned(), ..row("getpid", 1, 1, 1, 1) };
    assert!(table(&[i386], &options()).contains(" i386:getpid\n"));
    let evil = row("a\x1b[2J\nb", 1, 1, 1, 1);
    assert_tidy(&table(&[evil], &options()), 80);
}
