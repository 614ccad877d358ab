use crate::bench::{Bench, CommandBench, RunEntry, RunKind};
use crate::render::{bench, bench_csv, bench_markdown};

/// Those of the table in the manual: wall, user, sys, ms; read, MiB; resident.
type Numbers = (u64, u64, u64, f64, f64);

fn run(kind: RunKind, number: u32, of: Numbers) -> RunEntry {
    let (wall, user, sys, read, resident) = of;
    let ms = |n: u64| n * 1_000_000;
    serde_json::from_value(serde_json::json!({
        "run": format!("{kind}-{number}"), "kind": kind, "number": number, "start": "",
        "label": kind.word(), "evidence": "1.5 MiB of 411.4 MiB read", "files": 1087,
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
first run: warm (1.5 MiB of 411.4 MiB read), so not a cold start
  not the first since boot
cold vs warm: median +631 ms (+28 %): sys +219, off CPU +454, user -14
";
    let lines: Vec<&str> = text.lines().collect();
    let expected: Vec<&str> = expected.lines().skip(1).collect();
    assert_eq!(lines.get(..expected.len()), Some(&expected[..]), "{text}");
    let traced = "traced (ptrace): 3338 ms, 1.46x the warm median, not in the table";
    assert!(text.contains(traced), "{text}");
    assert!(text.contains("cold = page cache of 1087 files evicted; metadata and"), "{text}");
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
