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
        basis: None,
        evidence: None,
        evicted_by: None,
        files: None,
        files_evicted: None,
        stderr_bytes: None,
        interpreter: None,
        bytecode_written: Some(0),
        caches_written: Vec::new(),
        first_since_boot: None,
        boot_id: None,
        load: None,
        metrics: Metrics {
            wall_ns: Some(wall * MS),
            user_ns: Some(user * MS),
            sys_ns: Some(sys * MS),
            off_cpu_ns: Some(wall.saturating_sub(user + sys) * MS),
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
    // Ticks are shared out one way or the other: the sum is what is known.
    let ticks = one_of_ten(|run| {
        run.metrics.user_ns = Some(990_000_000);
        run.metrics.sys_ns = Some(0);
    });
    assert_eq!(ticks.outliers, []);
}

/// It computes 200 ms more than the others.
fn busier(of: &mut RunEntry) {
    let more = |n: &mut Option<u64>| *n = n.map(|n| n + 200_000_000);
    more(&mut of.metrics.wall_ns);
    more(&mut of.metrics.user_ns);
}

/// The CPU time of runs of one kind is much alike, but not the same.
fn one_computes(change: impl Fn(&mut RunEntry)) -> CommandBench {
    let mut runs: Vec<RunEntry> = (1..=10)
        .map(|number| run(RunKind::Warm, number, 1000, 900 + u64::from(number % 3), 50))
        .collect();
    change(&mut runs[6]);
    command(runs)
}

#[test]
fn a_wait_explains_no_computing() {
    let of = |change: &dyn Fn(&mut RunEntry)| {
        let found = one_computes(|run| {
            busier(run);
            change(run);
        });
        let [outlier] = &found.outliers[..] else { panic!("{:?}", found.outliers) };
        assert_eq!((outlier.number, outlier.metric.as_str()), (7, "cpu_ns"));
        // 901 + 200 user and 50 sys; the median is 901 and 50.
        assert!((outlier.value - 1.151e9).abs() < 1.0, "{outlier:?}");
        assert!((outlier.median - 9.51e8).abs() < 1.0, "{outlier:?}");
        outlier.cause.clone()
    };
    assert_eq!(of(&|run| run.metrics.run_queue_ns = Some(180_000_000)), None);
    assert_eq!(of(&|run| run.metrics.involuntary_switches = Some(4497)), None);
    assert_eq!(of(&|run| run.metrics.block_in_bytes = Some(8 << 20)), None);
    let compiled = of(&|run| run.bytecode_written = Some(3));
    assert_eq!(compiled.as_deref(), Some("3 files of bytecode written"));
    // Nor does it where both grew.
    let both = one_of_ten(|run| {
        slower(run);
        busier(run);
        run.metrics.run_queue_ns = Some(180_000_000);
        run.metrics.involuntary_switches = Some(4497);
    });
    let [outlier] = &both.outliers[..] else { panic!("{:?}", both.outliers) };
    assert_eq!((outlier.metric.as_str(), &outlier.cause), ("off_cpu_ns", &None));
}

#[test]
fn what_all_runs_do_explains_no_outlier() {
    let mut runs: Vec<RunEntry> = (1..=10)
        .map(|number| run(RunKind::Cold, number, 1000 + u64::from(number % 3), 900, 90))
        .collect();
    slower(&mut runs[6]);
    for run in &mut runs {
        run.bytecode_written = Some(2);
    }
    let causes = |runs: &[RunEntry]| {
        let found = command(runs.to_vec()).outliers;
        found.into_iter().map(|outlier| outlier.cause).collect::<Vec<_>>()
    };
    assert_eq!(causes(&runs), [None]);
    runs[6].bytecode_written = Some(5);
    assert_eq!(causes(&runs), [Some("5 files of bytecode written".to_owned())]);
}

#[test]
fn several_processors_may_be_taken_by_its_own_processes() {
    // 1000 ms of 1600 ms of CPU time: one waits 300 ms for a processor.
    let mut runs: Vec<RunEntry> = (1..=10)
        .map(|number| run(RunKind::Warm, number, 1000 + u64::from(number % 3), 1500, 100))
        .collect();
    runs[2].metrics.wall_ns = Some(1_300_000_000);
    runs[2].metrics.run_queue_ns = Some(300_000_000);
    let found = command(runs).outliers;
    let [outlier] = &found[..] else { panic!("{found:?}") };
    let cause = "300 ms waiting for a CPU: other load, or its own processes";
    assert_eq!((outlier.metric.as_str(), outlier.cause.as_deref()), ("wall_ns", Some(cause)));
}

#[test]
fn who_uses_several_processors_is_never_off_cpu() {
    let record: Record = serde_json::from_value(serde_json::json!({
        "schema": "coldtrace.record/1", "tool": {"name": "x", "version": "1"},
        "run": {"id": null, "label": "x", "argv": ["x"], "cwd": null, "start": "y"},
        "outcome": {"exit_code": 0, "signal": null, "core_dumped": false, "wall_ns": 1_000,
            "stdout_bytes": null, "stderr_bytes": 7},
        "rusage": {"user_ns": 1_500, "sys_ns": 200, "ru_maxrss_bytes": 0, "minor_faults": 0,
            "major_faults": 0, "block_in": 3, "block_out": 0, "voluntary_switches": 0,
            "involuntary_switches": 0},
        "tree": null,
        "measurement": {"engine": "none", "times_perturbed": false, "stops": 0,
            "cost_per_call_ns": null, "estimated_added_ns": null, "repaired": 0,
            "events_lost": 0, "filter": "off", "filter_reason": null, "notes": []},
        "cache": {"label": "cold", "basis": "residency", "evidence": "e",
            "resident_before_bytes": 0, "resident_after_bytes": 1, "pinned_bytes": 0,
            "set_bytes": 1, "files_measured": 1, "files_total": 5, "method": "mincore",
            "major_faults": 0, "block_input_bytes": 0, "evicted_by": "posix_fadvise",
            "files_evicted": 4, "bytecode_written": 0, "boot_id": null, "uptime_ns": null,
            "first_since_boot": null},
    }))
    .expect("it is a record");
    let slot = Slot { command: 0, kind: RunKind::Cold, number: 1 };
    let run = RunEntry::of("cold-1", slot, &record);
    assert_eq!(run.metrics.off_cpu_ns, Some(0));
    assert_eq!(run.metrics.block_in_bytes, Some(1536));
    assert_eq!((run.files, run.files_evicted, run.stderr_bytes), (Some(5), Some(4), Some(7)));
    assert_eq!(run.basis.as_deref(), Some("residency"));
}

#[test]
fn what_is_not_known_of_each_run_has_no_median() {
    let mut runs: Vec<RunEntry> = (1..=3).map(|n| run(RunKind::Cold, n, 40, 10, 5)).collect();
    runs.extend((1..=3).map(|n| run(RunKind::Warm, n, 20, 10, 5)));
    runs[4].metrics.off_cpu_ns = None;
    let of = command(runs);
    let warm = of.warm.as_ref().expect("they did not fail");
    assert_eq!((warm.n, warm.metrics["off_cpu_ns"].n), (3, 2));
    let found = of.cold_vs_warm.expect("both are there");
    assert_eq!((found.off_cpu_ns, found.sys_ns), (None, Some(0.0)));
}

#[test]
fn nothing_is_cold_or_warm_by_its_name_alone() {
    let of = |cold: &str, warm: &str| {
        let mut runs = vec![run(RunKind::Cold, 1, 30, 10, 5), run(RunKind::Warm, 1, 10, 8, 1)];
        runs[0].label = Some(cold.into());
        runs[1].label = Some(warm.into());
        command(runs).cold_vs_warm.is_some()
    };
    assert!(of("cold", "warm"));
    assert!(!of("unknown", "warm") && !of("warm", "warm") && !of("cold", "lukewarm"));
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
