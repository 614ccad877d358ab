use crate::bench::{Bench, CommandBench, RunCalls, RunEntry, RunKind, Slot};
use crate::render::{bench, bench_csv, bench_markdown};

/// Those of the table in the manual: wall, user, sys, ms; read, MiB; resident.
type Numbers = (u64, u64, u64, f64, f64);

fn run(kind: RunKind, number: u32, of: Numbers) -> RunEntry {
    let (wall, user, sys, read, resident) = of;
    let ms = |n: u64| n * 1_000_000;
    serde_json::from_value(serde_json::json!({
        "run": Slot { command: 0, kind, number }.name(1), "kind": kind, "number": number, "start": "",
        "label": kind.word(), "evidence": "1.5 MiB of 411.4 MiB read", "files": 1091,
        "files_evicted": (kind == RunKind::Cold).then_some(1087), "basis": "block input",
        "evicted_by": (kind == RunKind::Cold).then_some("posix_fadvise"),
        "bytecode_written": 0, "first_since_boot": false, "boot_id": "b", "load": 0.1,
        "metrics": {
            "wall_ns": ms(wall), "user_ns": ms(user), "sys_ns": ms(sys),
            "off_cpu_ns": ms(wall - user - sys), "run_queue_ns": 0,
            "peak_rss_bytes": 243_000_000, "minor_faults": 1, "major_faults": 2,
            "block_in_bytes": (read * 1_048_576.0) as u64, "block_out_bytes": 0,
            "voluntary_switches": 1, "involuntary_switches": 1, "resident_ratio": resident,
        },
    }))
    .expect("it is a run")
}

fn of(runs: Vec<RunEntry>) -> Bench {
    let argv = vec!["python3".into(), "-c".into(), "import torch".into()];
    let mut bench: Bench = serde_json::from_value(serde_json::json!({
        "schema": "coldtrace.bench/1", "tool": {"name": "coldtrace", "version": "0"},
        "id": "x", "label": "x", "start": "", "asked": null, "environment": null,
        "commands": [], "comparisons": [], "warnings": [],
    }))
    .expect("it is a bench");
    bench.commands = vec![CommandBench::of(argv, runs)];
    bench
}

fn usual() -> Vec<RunEntry> {
    let mut first = run(RunKind::First, 1, (2164, 1894, 239, 1.5, 0.997));
    first.label = Some("warm".into());
    vec![
        first,
        run(RunKind::Traced, 1, (3338, 2500, 700, 0.0, 1.0)),
        run(RunKind::Cold, 1, (2637, 1752, 422, 462.4, 0.0)),
        run(RunKind::Cold, 2, (2911, 1980, 469, 462.4, 0.0)),
        run(RunKind::Cold, 3, (3322, 2096, 613, 462.5, 0.0)),
        run(RunKind::Warm, 1, (2071, 1809, 253, 0.0, 1.0)),
        run(RunKind::Warm, 2, (2280, 1994, 206, 0.0, 1.0)),
        run(RunKind::Warm, 3, (2487, 2233, 250, 0.0, 1.0)),
    ]
}

#[test]
fn the_table_has_first_cold_and_warm_beside_each_other() {
    let text = bench(&of(usual()), 80);
    // Differences are of what is printed: 2911 - 2280, 469 - 250, 463 - 9 of off CPU
    // (2637 - 1752 - 422 = 463, 462, 613; 9, 80, 4), 1980 - 1994.
    let expected = "
            first |    cold, n=3 (min med max) |    warm, n=3 (min med max)
wall ms      2164 |     2637     2911     3322 |     2071     2280     2487
user ms      1894 |     1752     1980     2096 |     1809     1994     2233
sys ms        239 |      422      469      613 |      206      250      253
off CPU ms     31 |      462      463      613 |        4        9       80
maj faults      2 |        2        2        2 |        2        2        2
read MiB      1.5 |    462.4    462.4    462.5 |      0.0      0.0      0.0
peak MiB    231.7 |    231.7    231.7    231.7 |    231.7    231.7    231.7
resident   99.7 % |      0 %      0 %      0 % |    100 %    100 %    100 %
first run: warm (by block input: 1.5 MiB of 411.4 MiB read), so not a cold start
  not the first since boot
cold vs warm: median +631 ms (+28 %): sys +219, off CPU +454, user -14
";
    let lines: Vec<&str> = text.lines().collect();
    let expected: Vec<&str> = expected.lines().skip(1).collect();
    assert_eq!(lines.get(..expected.len()), Some(&expected[..]), "{text}");
    let traced = "traced (ptrace): 3338 ms, 1.46x the warm median, not in the table";
    assert!(text.contains(traced), "{text}");
    let cold = "cold = page cache of 1087 of 1091 files evicted; metadata and the host's cache";
    assert!(text.contains(cold), "{text}");
    let labels = "labels: cold runs: 3 cold; warm runs: 3 warm (by block input)";
    assert!(text.lines().any(|line| line == labels), "{text}");
}

/// The line that begins so.
fn line(of: &Bench, start: &str) -> Option<String> {
    let text = bench(of, 200);
    text.lines().find(|line| line.starts_with(start)).map(str::to_owned)
}

#[test]
fn where_nothing_was_cold_nothing_is_said_of_cold() {
    let labelled = |kind: RunKind, label: &str| {
        let mut runs = usual();
        for run in runs.iter_mut().filter(|run| run.kind == kind) {
            run.label = Some(label.into());
            run.basis = None;
        }
        of(runs)
    };
    for label in ["unknown", "warm"] {
        let found = labelled(RunKind::Cold, label);
        let vs = "cold vs warm: not known, no cold run was known to be cold";
        assert_eq!(line(&found, "cold vs").as_deref(), Some(vs));
        assert_eq!(line(&found, "cold ="), None);
    }
    let found = labelled(RunKind::Warm, "unknown");
    let vs = "cold vs warm: not known, no warm run was known to be warm";
    assert_eq!(line(&found, "cold vs").as_deref(), Some(vs));
    let labels = "labels: cold runs: 3 cold (by block input); warm runs: 3 unknown";
    assert_eq!(line(&found, "labels:").as_deref(), Some(labels));
}

#[test]
fn what_is_not_known_of_all_runs_is_marked() {
    let mut runs = usual();
    for at in [5, 7] {
        runs[at].metrics.off_cpu_ns = None;
        runs[at].metrics.resident_ratio = None;
    }
    runs[3].metrics.resident_ratio = None;
    let found = of(runs);
    let marked = "* known of some runs only: off CPU of 1 of 3 warm, resident of 2 of 3 cold, \
                  resident of 1 of 3 warm";
    assert_eq!(line(&found, "*").as_deref(), Some(marked));
    assert!(line(&found, "off CPU ms* ").is_some() && line(&found, "resident* ").is_some());
    assert!(line(&found, "peak MiB ").is_some());
    let vs = line(&found, "cold vs warm").unwrap_or_default();
    assert!(vs.ends_with(": sys +219, off CPU not known, user -14"), "{vs}");
}

#[test]
fn what_is_too_long_for_a_line_keeps_its_commas() {
    let mut runs = usual();
    for number in 2..=9 {
        let mut wrote = run(RunKind::Cold, number + 10, (3000, 1752, 422, 462.4, 0.0));
        wrote.bytecode_written = Some(1);
        runs.push(wrote);
        let mut failed = run(RunKind::Warm, number + 10, (9, 1, 1, 0.0, 0.0));
        failed.failed = Some("killed by SIGKILL".into());
        runs.push(failed);
    }
    let text = bench(&of(runs), 80);
    // Of any width the words are the same.
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let wrote = "bytecode: cold-12 wrote 1 file, cold-13 wrote 1 file, cold-14 wrote 1 file, \
                 cold-15 wrote 1 file, cold-16 wrote 1 file and 3 more: slower for that too";
    assert!(words.contains(wrote), "{text}");
    let failed = "8 of 24 runs failed, in no number here: warm-12 killed by SIGKILL, \
                  warm-13 killed by SIGKILL, warm-14 killed by SIGKILL, warm-15 killed by \
                  SIGKILL, warm-16 killed by SIGKILL and 3 more";
    assert!(words.contains(failed), "{text}");
}

/// As the traced runs of a bench count them.
fn with_calls(rows: &[(&str, [u64; 2])]) -> Bench {
    let mut runs = usual();
    runs.push(run(RunKind::Traced, 2, (3338, 2500, 700, 0.0, 1.0)));
    for (at, run) in runs.iter_mut().filter(|run| run.kind == RunKind::Traced).enumerate() {
        let calls = rows.iter().map(|(name, calls)| RunCalls {
            name: (*name).into(),
            abi: "x86_64".into(),
            calls: calls[at],
            errors: 0,
        });
        run.calls = calls.collect();
    }
    of(runs)
}

#[test]
fn calls_are_counted_in_plain_words() {
    let same = with_calls(&[("read", [600, 600]), ("openat", [400, 400])]);
    let words = "1000 calls, 2 different syscalls, the same in 2 runs";
    assert_eq!(line(&same, "1000").as_deref(), Some(words));
    let varying = with_calls(&[("read", [9, 9]), ("futex", [49, 60]), ("munmap", [44, 45])]);
    let words = "calls: 1 of 3 syscalls the same in 2 runs (9 calls); futex 49..60, munmap 44..45";
    assert_eq!(line(&varying, "calls:").as_deref(), Some(words));
    let markdown = bench_markdown(&varying);
    // Both runs' calls, and their mean.
    let row = "| traced | futex calls | 2 | 49 | 55 | 60 | 55 | n too small |";
    assert!(markdown.contains(row), "{markdown}");
    assert!(markdown.contains("| traced | read errors | 2 | 0 | 0 | 0 | 0 |"), "{markdown}");
}

#[test]
fn runs_of_several_benches_have_their_names() {
    let mut runs = usual();
    for number in 4..=9 {
        runs.push(run(RunKind::Warm, number, (2280 + u64::from(number), 1994, 206, 0.0, 1.0)));
    }
    // 500 ms more that no CPU was used.
    runs.push(run(RunKind::Warm, 3, (2780, 1994, 206, 0.0, 1.0)));
    let mut second = runs[0].clone();
    second.label = Some("cold".into());
    second.basis = Some("residency".into());
    runs.push(second);
    for run in &mut runs {
        run.run = format!("monday/{}", run.run);
    }
    runs[6].label = Some("lukewarm".into());
    let last = runs.len() - 1;
    runs[last].run = "tuesday/first".into();
    let mut joined = of(runs);
    let part = serde_json::json!({"id": "monday", "start": "", "boot_id": "b"});
    joined.joined = vec![serde_json::from_value(part).expect("it is a bench")];
    let firsts = line(&joined, "first runs:");
    assert_eq!(firsts.as_deref(), Some("first runs: 1 warm, 1 cold"));
    let evidence = "1.5 MiB of 411.4 MiB read";
    assert_eq!(
        [line(&joined, "monday/first"), line(&joined, "tuesday/first")],
        [
            Some(format!("monday/first: warm (by block input: {evidence})")),
            Some(format!("tuesday/first: cold (by residency: {evidence})")),
        ]
    );
    let far = line(&joined, "monday/warm-3").unwrap_or_default();
    assert!(far.starts_with("monday/warm-3: off CPU 580 ms, the median "), "{far}");
    let label = line(&joined, "monday/warm-2").unwrap_or_default();
    assert_eq!(label, format!("monday/warm-2: lukewarm (by block input: {evidence})"));
    // Of one bench the number will do.
    joined.joined.clear();
    assert!(line(&joined, "warm 3: off CPU 580 ms").is_some());
    // In documents too.
    assert!(bench_markdown(&joined).contains("\n- warm 3: off CPU 580 ms"));
}

#[test]
fn why_nothing_follows_is_said() {
    let mut first = run(RunKind::First, 1, (2164, 1894, 239, 1.5, 0.997));
    first.failed = Some("exited 1".into());
    first.stderr_bytes = Some(9);
    let mut failed = of(vec![first.clone()]);
    failed.commands.push(CommandBench::of(vec!["true".into()], Vec::new()));
    let words = "nothing was repeated; what it said is in x/first/stderr.log";
    assert_eq!(line(&failed, "nothing").as_deref(), Some(words));
    // What was never run is not shown.
    assert_eq!(line(&failed, "2: "), None);
    failed.commands[0].runs[0].stderr_bytes = None;
    assert_eq!(line(&failed, "nothing").as_deref(), Some("nothing was repeated"));
    failed.interrupted = Some("SIGINT".into());
    assert_eq!(line(&failed, "nothing"), None);
}

#[test]
fn a_ratio_that_differs_from_1_is_seen_to() {
    let of_ratio = |low: f64, ratio: f64, high: f64, differs: bool| {
        let mut bench_of = of(usual());
        let comparison = serde_json::json!({
            "command": usize::MAX, "kind": "warm", "differs": differs,
            "ratio": {"ratio": ratio, "low": low, "high": high},
        });
        bench_of.comparisons = vec![serde_json::from_value(comparison).expect("it is one")];
        let text = bench(&bench_of, 80);
        let words = text.lines().find_map(|line| line.split_once(" vs 1, warm: "));
        words.map(|(_, words)| words.to_owned()).unwrap_or_default()
    };
    assert_eq!(of_ratio(1.004, 1.004, 1.01, true), "1.004x as long (1.004x to 1.010x, 95 %)");
    assert_eq!(of_ratio(1.9, 2.0, 2.1, true), "2.00x as long (1.90x to 2.10x, 95 %)");
    assert_eq!(of_ratio(0.999, 1.0, 1.002, false), "no difference seen (1.00x to 1.00x, 95 %)");
}

#[test]
fn numbers_of_no_size_do_no_harm() {
    let mut bench_of = of(usual());
    let command = &mut bench_of.commands[0];
    for kind in [&mut command.cold, &mut command.warm] {
        let runs = kind.as_mut().expect("there are some");
        for (at, summary) in runs.metrics.values_mut().enumerate() {
            summary.median = if at % 2 == 0 { 1e300 } else { -1e300 };
        }
    }
    if let Some(warm) = &mut bench_of.commands[0].warm {
        warm.metrics["wall_ns"].median = -1e300;
    }
    assert!(line(&bench_of, "cold vs warm").is_some());
    bench_markdown(&bench_of);
}

#[test]
fn no_line_is_wider_than_asked_for() {
    let mut runs = usual();
    for number in 2..12 {
        let mut failed = run(RunKind::Warm, number, (9_999_999, 1, 1, 0.0, 0.0));
        failed.failed = Some("killed by SIGKILL".into());
        runs.push(failed);
    }
    runs.push(run(RunKind::First, 1, (99_000, 1, 1, 99_999.0, 0.5)));
    for width in [80, 100] {
        let text = bench(&of(runs.clone()), width);
        let wide: Vec<&str> = text.lines().filter(|l| l.chars().count() > width).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }
}

#[test]
fn the_unit_is_that_which_suits() {
    let of_wall = |ns: u64| {
        let mut one = run(RunKind::First, 1, (1, 0, 0, 0.0, 1.0));
        one.metrics.wall_ns = Some(ns);
        let text = bench(&of(vec![one]), 80);
        text.lines().nth(1).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(of_wall(1_234_567), "wall us 1235");
    assert_eq!(of_wall(12_345_678), "wall ms 12.3");
    assert_eq!(of_wall(123_456_789), "wall ms 123");
    assert_eq!(of_wall(123_456_789_000), "wall s 123.5");
}

#[test]
fn a_few_runs_have_no_percentiles() {
    let markdown = bench_markdown(&of(usual()));
    let wall = "| warm | wall ms | 3 | 2071 | 2280 | 2487 | 2279 | n too small | n too small |";
    assert!(markdown.contains(wall), "{markdown}");
    let csv = bench_csv(&of(usual())).expect("it is written to memory");
    let row = "1,python3 -c 'import torch',warm,wall_ns,3,2071000000,2280000000,2487000000,";
    assert!(csv.contains(row), "{csv}");
}

/// Every text in it, and every name that is no field's, begins with an escape.
fn hostile(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) if !["cold", "warm", "first"].contains(&&text[..]) => {
            text.insert_str(0, "\u{1b}[31m\n");
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(hostile),
        serde_json::Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                match (&name[..], field) {
                    ("kind", _) => {}
                    ("labels" | "metrics", serde_json::Value::Object(of)) => {
                        let more = of.iter().map(|(k, v)| (format!("\u{1b}[31m{k}"), v.clone()));
                        let more: Vec<_> = more.collect();
                        of.extend(more.into_iter().filter(|(_, value)| !value.is_null()));
                    }
                    (_, field) => hostile(field),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn nothing_of_a_foreign_file_is_printed_raw() {
    let mut runs = usual();
    let mut failed = run(RunKind::Warm, 4, (9, 1, 1, 0.0, 0.0));
    failed.failed = Some("exited 1".into());
    runs.push(failed);
    runs[2].bytecode_written = Some(1);
    runs[1].caches_written = vec!["a".into(), "b".into()];
    runs[1].label = Some("unknown".into());
    runs[5].label = Some("strange".into());
    for number in 5..=9 {
        runs.push(run(RunKind::Warm, number, (2280 + u64::from(number), 1994, 206, 0.0, 1.0)));
    }
    runs.push(run(RunKind::Warm, 10, (5280, 1994, 206, 0.0, 1.0)));
    let mut whole = with_calls(&[("read", [1, 2]), ("futex", [1, 1])]);
    whole.commands.push(CommandBench::of(vec!["x".into()], runs));
    let mut alone = run(RunKind::First, 1, (2164, 1894, 239, 1.5, 0.997));
    alone.failed = Some("exited 1".into());
    alone.stderr_bytes = Some(9);
    whole.commands.push(CommandBench::of(vec!["y".into()], vec![alone]));
    whole.warnings = vec!["w".into()];
    whole.interrupted = Some("SIGINT".into());
    let environment = crate::record::Environment {
        cpu_governor: Some("g".into()),
        transparent_huge_pages: Some("t".into()),
        ..crate::record::Environment::default()
    };
    whole.environment = Some(environment);
    let outliers = &whole.commands[1].outliers;
    assert!(!outliers.is_empty(), "there is an outlier to be shown");
    let part = serde_json::json!({"id": "monday", "start": "", "boot_id": "b"});
    for (joined, interrupted) in [(false, true), (true, true), (false, false)] {
        let mut whole = whole.clone();
        if joined {
            whole.joined = vec![serde_json::from_value(part.clone()).expect("it is a bench")];
        }
        if !interrupted {
            whole.interrupted = None;
        }
        let mut value = serde_json::to_value(&whole).expect("it can be written");
        hostile(&mut value);
        let foreign: Bench = serde_json::from_value(value).expect("it is a bench still");
        let csv = bench_csv(&foreign).expect("it is written to memory");
        for text in [bench(&foreign, 80), bench_markdown(&foreign), csv] {
            assert!(text.contains("\\x1b[31m") || text.contains("\\x1b\\[31m"), "{text}");
            assert!(!text.contains('\u{1b}'), "{text:?}");
        }
    }
}

#[test]
fn what_others_wrote_cannot_drive_a_terminal() {
    let mut bench_of = of(usual());
    bench_of.warnings.push("\u{1b}[31mred".into());
    bench_of.commands[0].argv = vec!["a\u{1b}b|`c`".into()];
    let second = bench_of.commands[0].clone();
    bench_of.commands.push(second);
    let csv = bench_csv(&bench_of).expect("it is written to memory");
    for text in [bench(&bench_of, 80), bench_markdown(&bench_of), csv] {
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
