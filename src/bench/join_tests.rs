use super::*;
use crate::bench::{Plan, RunKind};

/// A bench of `app`: a first run and a warm one.
fn bench(id: &str, boot: &str) -> Bench {
    let run = |run: &str, kind: RunKind| {
        serde_json::json!({
            "run": run, "kind": kind, "number": 1, "start": "", "label": "warm",
            "evidence": "", "files": 1, "bytecode_written": 0,
            "first_since_boot": kind == RunKind::First, "boot_id": boot, "load": 0.1,
            "metrics": {
                "wall_ns": 5, "user_ns": 1, "sys_ns": 1, "off_cpu_ns": 3, "run_queue_ns": 0,
                "peak_rss_bytes": 1, "minor_faults": 1, "major_faults": 0, "block_in_bytes": 0,
                "block_out_bytes": 0, "voluntary_switches": 0, "involuntary_switches": 0,
                "resident_ratio": null,
            },
        })
    };
    let runs = [run("first", RunKind::First), run("warm-1", RunKind::Warm)];
    let runs: Vec<RunEntry> =
        runs.map(|run| serde_json::from_value(run).expect("it is a run")).into();
    Bench {
        schema: SCHEMA.into(),
        tool: Tool::this(),
        id: Some(id.into()),
        label: "app".into(),
        start: format!("2026-01-0{}", id.len()),
        asked: Some(Asked {
            runs: Plan::default(),
            prepare: None,
            setup: None,
            cleanup: None,
            drop_caches: false,
            ignore_failure: false,
        }),
        environment: Some(Environment {
            boot_id: Some(boot.into()),
            kernel_release: Some("6.1".into()),
            randomize_va_space: Some(2),
            load: Some([0.1, 0.1, 0.1]),
            ..Environment::default()
        }),
        commands: vec![CommandBench::of(vec!["app".into()], runs)],
        comparisons: Vec::new(),
        warnings: Vec::new(),
        interrupted: None,
        unfinished: false,
        joined: Vec::new(),
    }
}

fn joined(benches: &[&Bench]) -> Bench {
    join(benches.iter().copied().cloned().collect()).expect("they are of one command")
}

fn warm(of: &Bench) -> usize {
    of.commands[0].warm.as_ref().map_or(0, |runs| runs.n)
}

#[test]
fn no_run_counts_twice() {
    let (one, two) = (bench("a", "x"), bench("bb", "y"));
    let all = joined(&[&one, &two, &one]);
    assert_eq!((warm(&all), all.joined.len()), (2, 2));
    assert_eq!(all.warnings, ["a was given twice, counted once"]);
    assert_eq!(joined(&[&one, &two]).warnings, Vec::<String>::new());
    // A bench that is in what was joined before, too.
    let more = joined(&[&joined(&[&one, &two]), &two, &bench("ccc", "z")]);
    assert_eq!((warm(&more), more.joined.len()), (3, 3));
    let names: Vec<&str> = more.commands[0].runs.iter().map(|run| run.run.as_str()).collect();
    let expected = ["a/first", "a/warm-1", "bb/first", "bb/warm-1", "ccc/first", "ccc/warm-1"];
    assert_eq!(names, expected);
    // The same name at another time is another bench.
    let later = Bench { start: "2026-02-01".into(), ..one.clone() };
    assert_eq!(warm(&joined(&[&one, &later])), 2);
}

#[test]
fn what_was_not_the_same_is_said() {
    let one = bench("a", "x");
    let mut two = bench("bb", "y");
    two.environment = two
        .environment
        .map(|environment| Environment { kernel_release: Some("6.2".into()), ..environment });
    two.asked = two.asked.map(|asked| Asked { prepare: Some("sync".into()), ..asked });
    two.interrupted = Some("SIGINT".into());
    let all = joined(&[&one, &two]);
    let expected = [
        "kernel changed before bb: 6.1, then 6.2",
        "--prepare changed before bb: nothing, then `sync`",
        "bb was ended by SIGINT before all its runs were made",
    ];
    assert_eq!(all.warnings, expected);
    assert_eq!(all.interrupted.as_deref(), Some("SIGINT"));
    // What is of the machine stays, what is of one boot does not.
    let environment = all.environment.expect("both have one");
    assert_eq!((environment.randomize_va_space, environment.boot_id), (Some(2), None));
    assert_eq!(environment.load, None);

    let drops = |cold: u32| {
        let mut one = bench("a", "x");
        let mut two = bench("bb", "x");
        for (bench, drop_caches) in [(&mut one, false), (&mut two, true)] {
            let runs = Plan { cold, ..Plan::default() };
            bench.asked = bench.asked.take().map(|asked| Asked { runs, drop_caches, ..asked });
        }
        let all = joined(&[&one, &two]).warnings;
        all.into_iter().filter(|line| line.starts_with("what is evicted")).collect::<Vec<_>>()
    };
    let line = "what is evicted changed before bb: the command's files, then all caches";
    assert_eq!(drops(1), [line]);
    assert!(drops(0).is_empty());
}

#[test]
fn another_interpreter_is_another_bench() {
    let of = |id: &str, version: &str| {
        let mut made = bench(id, "x");
        made.commands[0].runs[1].interpreter = Some(crate::record::Interpreter {
            name: "python".into(),
            path: "/usr/bin/python3".into(),
            version: Some(version.into()),
        });
        made
    };
    let warnings = joined(&[&of("a", "3.11"), &of("bb", "3.12")]).warnings;
    let line = "interpreter changed before bb: /usr/bin/python3 3.11, then /usr/bin/python3 3.12";
    assert!(warnings.contains(&line.to_owned()), "{warnings:?}");
    assert!(!joined(&[&of("a", "3.11"), &of("bb", "3.11")]).warnings.concat().contains("changed"));
}

#[test]
fn load_is_said_once() {
    let load = |id: &str, boot: &str| {
        let mut made = bench(id, boot);
        made.warnings = vec![format!("{LOAD}was 1.5 on 2 processors"), "governor changed".into()];
        made
    };
    let all = joined(&[&load("a", "x"), &load("bb", "y"), &load("ccc", "z")]).warnings;
    let expected = [
        "a: governor changed",
        "bb: governor changed",
        "ccc: governor changed",
        "a: load was 1.5 on 2 processors; so it was in 2 other benches",
    ];
    assert_eq!(all, expected);
}

#[test]
fn first_runs_that_are_left_out_are_one_line() {
    let ids = ["a", "bb", "ccc", "dddd", "eeeee"];
    let benches = ids.map(|id| bench(id, "x"));
    let all = joined(&benches.each_ref());
    assert_eq!(all.commands[0].first.as_ref().map(|runs| runs.n), Some(1));
    let line = "left out, not known to be the first since boot: bb/first, ccc/first, dddd/first \
                and 1 more";
    assert_eq!(all.warnings, [line]);
}

#[test]
fn what_a_file_holds_is_told_by_its_schema() {
    let told = |path: &str, text: &str| told(path.into(), text.into());
    let text = serde_json::to_string(&bench("a", "x")).expect("it can be written");
    for path in ["x/bench.json", "j.json", "standard input"] {
        assert!(matches!(told(path, &text), Ok(Kept::Bench(_))), "{path}");
    }
    let record = r#"{"schema": "coldtrace.record/1"}"#;
    assert!(matches!(told("j.json", record), Ok(Kept::Other { .. })));
    assert!(matches!(told("j.json", "no JSON"), Ok(Kept::Other { .. })));
    assert!(matches!(told("bench.json", record), Err(JoinError::Schema { .. })));
    assert!(matches!(told("bench.json", "no JSON"), Err(JoinError::Json { .. })));
    let later = r#"{"schema": "coldtrace.bench/2"}"#;
    assert!(matches!(told("j.json", later), Err(JoinError::Schema { .. })));
    let broken = r#"{"schema": "coldtrace.bench/1"}"#;
    assert!(matches!(told("j.json", broken), Err(JoinError::Json { .. })));
}
