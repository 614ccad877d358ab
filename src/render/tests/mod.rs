//! Hand-made records for the tests of the text output.

mod bench;
mod cpu;
mod files;
mod files_machine;
mod files_search;
mod files_tree;
mod footer;
mod imports;
mod regions;
mod show;
mod table;
mod text;
mod times;

use indexmap::IndexMap;

use crate::record::{
    Exec, Measurement, Outcome, Process, ProcessSyscall, Record, Run, Rusage, SyscallRow, Thread,
    Tool, Tree, Wall,
};

use super::{TableOptions, display_width};

pub const SECOND: u64 = 1_000_000_000;

pub fn options() -> TableOptions {
    TableOptions { native_abi: "x86_64".to_owned(), ..TableOptions::default() }
}

/// A row with times in microseconds.
pub fn row(name: &str, calls: u64, total: u64, p99: u64, max: u64) -> SyscallRow {
    SyscallRow {
        name: name.to_owned(),
        abi: "x86_64".to_owned(),
        calls,
        wall_ns: Some(Wall {
            count: calls,
            total: total * 1_000,
            min: 1_000,
            max: max * 1_000,
            p50: 2_000,
            p90: 3_000,
            p99: p99 * 1_000,
        }),
        ..SyscallRow::default()
    }
}

pub fn with_errors(mut row: SyscallRow, errors: &[(&str, u64)]) -> SyscallRow {
    row.errors = errors.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    row
}

/// `exit_group`: called, and never timed.
pub fn exit_group() -> SyscallRow {
    SyscallRow { wall_ns: None, ..row("exit_group", 1, 0, 0, 0) }
}

/// The rows of `python3 -c 'import torch'` in the design's examples.
pub fn torch_rows() -> Vec<SyscallRow> {
    vec![
        with_errors(row("newfstatat", 5273, 78_871, 58, 1009), &[("ENOENT", 405)]),
        row("read", 1941, 44_396, 270, 833),
        row("mmap", 1518, 31_646, 57, 95),
        with_errors(row("openat", 1236, 25_042, 58, 514), &[("ENOENT", 26)]),
        row("brk", 482, 17_274, 211, 338),
        row("mprotect", 323, 15_589, 183, 411),
        row("close", 1213, 14_361, 40, 429),
        row("lseek", 1531, 12_932, 27, 629),
        with_errors(row("ioctl", 900, 20_000, 44, 473), &[("ENOTTY", 773)]),
        with_errors(row("readlink", 486, 6_000, 30, 90), &[("ENOENT", 7), ("EINVAL", 1)]),
        SyscallRow { unfinished: 1, ..row("futex", 1, 758, 30, 90) },
    ]
}

pub fn record(argv: &[&str], syscalls: Option<Vec<SyscallRow>>) -> Record {
    Record {
        schema: crate::record::SCHEMA.to_owned(),
        tool: Tool { name: "coldtrace".to_owned(), version: "0".to_owned() },
        run: Run {
            id: None,
            label: argv.first().copied().unwrap_or("attached").to_owned(),
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            cwd: Some("/work".to_owned()),
            attached: Vec::new(),
            start: "2026-03-01T10:00:00Z".to_owned(),
            tags: IndexMap::new(),
            stdio: None,
            aslr: None,
            output: None,
        },
        environment: None,
        platform: None,
        outcome: Outcome {
            exit_code: Some(0),
            wall_ns: 2_830_000_000,
            first_output_ns: None,
            stdout_bytes: Some(0),
            stderr_bytes: Some(12),
            ..Outcome::default()
        },
        rusage: Some(Rusage {
            user_ns: 2_180_000_000,
            sys_ns: 590_000_000,
            ru_maxrss_bytes: 242_953_420,
            minor_faults: 32_359,
            major_faults: 86,
            block_in: 30_720,
            block_out: 0,
            voluntary_switches: 95,
            involuntary_switches: 10,
            ..Rusage::default()
        }),
        tree: Some(Tree {
            processes: 1,
            threads: 1,
            wall_ns: None,
            user_ns: Some(2_180_000_000),
            sys_ns: Some(590_000_000),
            run_queue_ns: Some(3_200_000),
            minor_faults: Some(32_359),
            major_faults: Some(86),
            voluntary_switches: Some(95),
            involuntary_switches: Some(10),
            peak_rss_bytes: Some(242_953_420),
            calls: 14_904,
            errors: 1_212,
            unfinished: 1,
        }),
        measurement: Measurement {
            engine: "ptrace".to_owned(),
            times_perturbed: true,
            stops: 29_807,
            cost_per_call_ns: Some(10_400),
            estimated_added_ns: Some(155_000_000),
            filter: "off".to_owned(),
            ..Measurement::default()
        },
        syscalls,
        groups: None,
        time: None,
        processes: None,
        files: None,
        mapped: None,
        cpu: None,
        proc: None,
        cache: None,
        imports: None,
        regions: None,
        network: None,
        artifacts: None,
    }
}

/// `sh -c 'work &'`: the descendant outlived the command by two seconds.
pub fn outlived() -> Record {
    let mut record = record(&["sh", "-c", "work &"], Some(vec![row("read", 9, 1_900_000, 1, 1)]));
    record.outcome.wall_ns = 1_400_000;
    record.measurement.estimated_added_ns = Some(90_000);
    if let Some(usage) = &mut record.rusage {
        (usage.user_ns, usage.sys_ns) = (400_000, 600_000);
    }
    if let Some(tree) = &mut record.tree {
        (tree.processes, tree.threads) = (2, 2);
        tree.wall_ns = Some(2_010_000_000);
        (tree.user_ns, tree.sys_ns) = (Some(300_000_000), Some(200_000_000));
    }
    record
}

/// A process that ran one program, exited with 0 and made ten calls.
pub fn process(id: u64, parent: Option<u64>, argv: &[&str]) -> Process {
    Process {
        id,
        pid: 1_200 + id as i32,
        parent,
        start_ns: id * 1_000_000,
        end_ns: Some(id * 1_000_000 + 500_000_000),
        execs: vec![Exec {
            at_ns: 0,
            exe: Some(format!("/usr/bin/{}", argv[0])),
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        }],
        exit_code: Some(0),
        user_ns: Some(10_000_000),
        sys_ns: Some(20_000_000),
        threads: vec![Thread::default()],
        syscalls: vec![ProcessSyscall { calls: 10, ..ProcessSyscall::default() }],
        ..Process::default()
    }
}

/// No line is wider than asked, none ends in blanks, nothing drives a terminal.
pub fn assert_tidy(text: &str, width: usize) {
    assert!(text.is_empty() || text.ends_with('\n'));
    for line in text.lines() {
        assert!(display_width(line) <= width, "wider than {width}: {line:?}");
        assert_eq!(line, line.trim_end());
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}
