use super::*;

/// A run whose numbers are these, ms.
fn run(kind: RunKind, number: u32, wall: u64, user: u64, sys: u64) -> RunEntry {
    const MS: u64 = 1_000_000;
    RunEntry {
        run: format!("{kind}-{number}"),
        kind,
        number,
        start: String::new(),
        failed: None,
        label: Some(kind.word().into()),
        evidence: None,
        evicted_by: None,
        files: None,
        bytecode_written: Some(0),
        caches_written: Vec::new(),
        first_since_boot: None,
        boot_id: None,
        load: None,
        metrics: Metrics {
            wall_ns: Some(wall * MS),
            user_ns: Some(user * MS),
            sys_ns: Some(sys * MS),
            off_cpu_ns: wall.checked_sub(user + sys).map(|off| off * MS),
            run_queue_ns: Some(0),
            block_in_bytes: Some(0),
            involuntary_switches: Some(3),
            ..Metrics::default()
        },
        calls: Vec::new(),
    }
}

fn command(runs: Vec<RunEntry>) -> CommandBench {
    CommandBench::of(vec!["x".into()], runs)
}

/// Warm runs that are much alike, and one that is changed.
fn one_of_ten(change: impl Fn(&mut RunEntry)) -> CommandBench {
    let mut runs: Vec<RunEntry> = (1..=10)
        .map(|number| run(RunKind::Warm, number, 1000 + u64::from(number % 3), 900, 90))
        .collect();
    change(&mut runs[6]);
    command(runs)
}

/// Its off-CPU time grows by 200 ms, and its wall time with it.
fn slower(of: &mut RunEntry) {
    let more = |n: &mut Option<u64>| *n = n.map(|n| n + 200_000_000);
    more(&mut of.metrics.wall_ns);
    more(&mut of.metrics.off_cpu_ns);
}

#[test]
fn what_failed_is_in_no_number() {
    let mut runs = vec![run(RunKind::Warm, 1, 10, 5, 5), run(RunKind::Warm, 2, 99, 5, 5)];
    runs.push(run(RunKind::Warm, 3, 20, 5, 5));
    runs[1].failed = Some("exited 1".into());
    let warm = command(runs).warm.expect("two did not fail");
    assert_eq!((warm.n, warm.failed), (2, 1));
    let wall = &warm.metrics["wall_ns"];
    assert!((wall.min - 1e7).abs() < 1.0 && (wall.max - 2e7).abs() < 1.0, "{wall:?}");
    assert!((wall.median - 1.5e7).abs() < 1.0 && (wall.mean - 1.5e7).abs() < 1.0, "{wall:?}");
    let mut all = vec![run(RunKind::Warm, 1, 10, 5, 5)];
    all[0].failed = Some("exited 1".into());
    assert_eq!(command(all).warm, None);
}

#[test]
fn a_run_far_from_the_others_is_named_once_with_its_cause() {
    let none = one_of_ten(|_| {});
    assert_eq!(none.outliers, []);
    let cause = |change: &dyn Fn(&mut RunEntry)| {
        let found = one_of_ten(|run| {
            slower(run);
            change(run);
        });
        let [outlier] = &found.outliers[..] else { panic!("{:?}", found.outliers) };
        assert_eq!((outlier.number, outlier.metric.as_str()), (7, "off_cpu_ns"));
        outlier.cause.clone()
    };
    assert_eq!(cause(&|_| {}), None);
    let waited = cause(&|run| run.metrics.run_queue_ns = Some(180_000_000));
    assert_eq!(waited.as_deref(), Some("180 ms waiting for a CPU: other load"));
    let switched = cause(&|run| run.metrics.involuntary_switches = Some(4497));
    assert_eq!(switched.as_deref(), Some("4497 involuntary switches: other load"));
    let read = cause(&|run| run.metrics.block_in_bytes = Some(8 << 20));
    assert_eq!(read.as_deref(), Some("8.0 MiB read"));
    let wrote = cause(&|run| run.bytecode_written = Some(2));
    assert_eq!(wrote.as_deref(), Some("2 files of bytecode written"));
    // A hundredth more is far from what is so even, and not worth a line.
    let little = one_of_ten(|run| run.metrics.wall_ns = Some(1_020_000_000));
    assert_eq!(little.outliers, []);
    // Ticks are shared out one way or the other.
    let ticks = one_of_ten(|run| {
        run.metrics.user_ns = Some(885_000_000);
        run.metrics.sys_ns = Some(105_000_000);
    });
    assert_eq!(ticks.outliers, []);
}

#[test]
fn cold_less_warm_is_of_the_medians() {
    let mut runs: Vec<RunEntry> =
        [30, 50, 40].into_iter().map(|wall| run(RunKind::Cold, 1, wall, 10, 5)).collect();
    runs.extend([10, 20, 12].into_iter().map(|wall| run(RunKind::Warm, 1, wall, 8, 1)));
    let found = command(runs).cold_vs_warm.expect("both are there");
    let ms = |ns: f64| (ns / 1e6).round() as i64;
    assert_eq!(ms(found.wall_ns), 28);
    // 25 less 3, 10 less 8, 5 less 1.
    assert_eq!(found.off_cpu_ns.map(ms), Some(22));
    assert_eq!((found.user_ns.map(ms), found.sys_ns.map(ms)), (Some(2), Some(4)));
    assert!(found.wall_share.is_some_and(|share| (share - 28.0 / 12.0).abs() < 1e-9));
    assert_eq!(command(vec![run(RunKind::Warm, 1, 10, 8, 1)]).cold_vs_warm, None);
}

#[test]
fn calls_are_one_number_or_a_range() {
    let traced = |number, rows: &[(&str, u64, u64)]| RunEntry {
        calls: rows
            .iter()
            .map(|&(name, calls, errors)| RunCalls {
                name: name.into(),
                abi: "x86_64".into(),
                calls,
                errors,
            })
            .collect(),
        ..run(RunKind::Traced, number, 10, 5, 5)
    };
    let runs = vec![
        traced(1, &[("read", 5, 1), ("futex", 3, 0)]),
        traced(2, &[("read", 5, 2), ("futex", 4, 0), ("brk", 1, 0)]),
    ];
    let found = command(runs).syscalls;
    let names: Vec<&str> = found.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["read", "futex", "brk"]);
    assert_eq!(found[0].calls, Count::Same(5));
    let range = |count: &Count| match count {
        Count::Varies(of) => (of.min as u64, of.max as u64),
        Count::Same(n) => panic!("{n} in each run"),
    };
    assert_eq!(range(&found[0].errors), (1, 2));
    assert_eq!(range(&found[1].calls), (3, 4));
    assert_eq!(range(&found[2].calls), (0, 1), "one run has not made it");
}

#[test]
fn commands_are_compared_from_five_runs_on() {
    let of = |wall: u64, n: u32| {
        command((1..=n).map(|i| run(RunKind::Warm, i, wall + u64::from(i % 3), 1, 1)).collect())
    };
    let twice = comparisons(&[of(100, 10), of(200, 10), of(100, 4)]);
    let [second, third] = &twice[..] else { panic!("{twice:?}") };
    assert_eq!((second.command, second.differs), (1, Some(true)));
    assert!(second.ratio.is_some_and(|ratio| (ratio.ratio - 2.0).abs() < 0.05), "{second:?}");
    assert_eq!((third.command, third.differs, third.ratio), (2, None, None));
    let same = comparisons(&[of(100, 10), of(100, 10)]);
    assert_eq!(same[0].differs, Some(false));
}

#[test]
fn what_changes_between_runs_is_warned_about() {
    let at = |change: &dyn Fn(&mut Environment)| {
        let mut environment = Environment {
            boot_id: Some("a".into()),
            cpus_allowed: Some(2),
            load: Some([0.2, 0.0, 0.0]),
            randomize_va_space: Some(2),
            ..Environment::default()
        };
        change(&mut environment);
        environment
    };
    let same = |_: &mut Environment| {};
    let runs = |second: &dyn Fn(&mut Environment)| {
        warnings(&[("first".into(), at(&same)), ("warm-1".into(), at(second))])
    };
    assert_eq!(runs(&same), Vec::<String>::new());
    assert_eq!(
        runs(&|e| e.boot_id = Some("b".into())),
        ["boot id changed before warm-1: a, then b"]
    );
    assert_eq!(
        runs(&|e| e.randomize_va_space = Some(0)),
        ["ASLR changed before warm-1: 2, then 0"]
    );
    // What is not known has not changed.
    assert_eq!(runs(&|e| e.boot_id = None), Vec::<String>::new());
    let busy = runs(&|e| e.load = Some([3.5, 0.0, 0.0]));
    assert!(busy.len() == 1 && busy[0].starts_with("load rose to 3.5 on 2 processors"), "{busy:?}");
    let before = warnings(&[("first".into(), at(&|e| e.load = Some([1.5, 0.0, 0.0])))]);
    assert!(before.len() == 1 && before[0].starts_with("load was 1.5 on 2"), "{before:?}");
}
