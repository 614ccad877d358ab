use super::super::{cpu, show};
use super::{assert_tidy, process, record, torch_rows};
use crate::record::{CpuObject, CpuSamples, CpuThread, Record};

const PERIOD: u64 = 1_003_009;

fn objects(all: &[(&str, u64)]) -> Vec<CpuObject> {
    let object = |(object, samples): &(&str, u64)| CpuObject {
        object: (*object).to_owned(),
        samples: *samples,
        estimated_ns: samples * PERIOD,
    };
    all.iter().map(object).collect()
}

/// The import of torch, with these samples.
fn sampled(all: &[(&str, u64)]) -> Record {
    let mut record = record(&["python3", "-c", "import torch"], Some(torch_rows()));
    let samples = all.iter().map(|(_, samples)| samples).sum();
    record.cpu = Some(CpuSamples {
        clock: "cpu-clock".to_owned(),
        frequency_hz: 997,
        period_ns: Some(PERIOD),
        kernel: Some(true),
        samples: Some(samples),
        lost: Some(0),
        objects: Some(objects(all)),
        threads: Some(vec![CpuThread {
            process: Some(0),
            tid: 1200,
            samples,
            kernel_samples: Some(600),
            estimated_ns: samples * PERIOD,
            objects: objects(all),
        }]),
        ..CpuSamples::default()
    });
    record.processes = Some(vec![process(0, None, &["python3"])]);
    record
}

const TORCH: [(&str, u64); 5] = [
    ("/usr/lib/python3/torch/lib/libtorch_cpu.so", 1200),
    ("/usr/bin/python3.11", 800),
    ("[kernel]", 600),
    ("/usr/lib64/ld-linux-x86-64.so.2", 150),
    ("[anonymous]", 10),
];

#[test]
fn where_the_time_outside_calls_went() {
    let record = sampled(&TORCH);
    let shown = show(&record, 80);
    assert_tidy(&shown, 80);
    let lines: Vec<&str> = shown.lines().collect();
    let begin = lines.iter().position(|line| line.starts_with("calls held")).expect("it is there");
    assert_eq!(
        lines[begin..begin + 9],
        [
            "calls held 0.27 of wall 2.83 s; CPU sampled 2.77 of 2.77 s; outside calls 2.17 s",
            "  [kernel] includes tracing",
            " % CPU samples        ms object",
            " 43.48    1200   1203.61 /usr/lib/python3/torch/lib/libtorch_cpu.so",
            " 28.99     800    802.41 /usr/bin/python3.11",
            " 21.74     600    601.81 [kernel]",
            "  5.43     150    150.45 /usr/lib64/ld-linux-x86-64.so.2",
            "  0.36      10     10.03 [anonymous]",
            "100.00    2760   2768.30 total",
        ]
    );
    assert!(lines[begin + 10].starts_with("% time"), "{shown}");
    let all = cpu(&record, 80).expect("the part is there");
    assert_tidy(&all, 80);
    let row = "  1200   1200    2760   2768.30    21.74 libtorch_cpu.so 43 %, …";
    assert!(all.lines().any(|line| line == row), "{all}");
}

#[test]
fn many_objects_are_cut_and_counted() {
    let names: Vec<String> = (0..14).map(|n| format!("/lib/{n}.so")).collect();
    let all: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 10)).collect();
    let shown = show(&sampled(&all), 80);
    assert!(shown.lines().any(|line| line == " 28.57      40     40.12 (4 more)"), "{shown}");
    assert!(!shown.contains("/lib/10.so"), "{shown}");
    assert!(cpu(&sampled(&all), 80).is_some_and(|all| all.contains("/lib/13.so")));
    // One more takes no more room than to say so.
    let shown = show(&sampled(&all[..11]), 80);
    assert!(shown.contains("/lib/10.so") && !shown.contains("more)"), "{shown}");
}

#[test]
fn what_is_missing_is_said() {
    let mut record = sampled(&TORCH[..2]);
    let part = record.cpu.as_mut().expect("it was made");
    part.lost = Some(2);
    part.kernel = Some(false);
    part.kernel_reason = Some("for root only".to_owned());
    let shown = cpu(&record, 80).unwrap_or_default();
    assert_tidy(&shown, 80);
    assert!(shown.contains("2 records LOST"), "{shown}");
    assert!(shown.contains("not in the kernel: for root only"), "{shown}");
    assert!(!shown.contains("includes tracing") && !shown.contains("the rest"), "{shown}");
    let part = record.cpu.as_mut().expect("it was made");
    part.samples = Some(100);
    let shown = cpu(&record, 80).unwrap_or_default();
    assert_tidy(&shown, 80);
    assert!(shown.contains("CPU sampled 0.10 of 2.18 s; "), "{shown}");
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("the rest is of processes that are too short"), "{shown}");

    record.cpu = Some(CpuSamples::none(997, "somebody\x1b said no"));
    let shown = show(&record, 80);
    assert_tidy(&shown, 80);
    let line = "calls held 0.27 of wall 2.83 s; CPU not sampled: somebody\\x1b said no";
    assert!(shown.lines().any(|shown| shown == line), "{shown}");
    record.cpu = None;
    assert!(!show(&record, 80).contains("calls held"));
    assert_eq!(cpu(&record, 80), None);
}

#[test]
fn hostile_and_long_names_stay_within_the_width() {
    let evil = "/a\x1b]0;x\x07\u{202e}\n日本 ".repeat(30);
    let mut record = sampled(&[(&evil, u64::MAX / PERIOD), ("[kernel]", 0)]);
    let part = record.cpu.as_mut().expect("it was made");
    for object in part.objects.iter_mut().flatten() {
        object.samples = u64::MAX;
        object.estimated_ns = u64::MAX;
    }
    for width in [60, 80, 120, usize::MAX] {
        let text = cpu(&record, width).unwrap_or_default();
        assert!(!text.contains('\u{202e}') && !text.contains('\x1b'), "{text}");
    }
    for width in 0..40 {
        let _ = cpu(&record, width);
    }
}
