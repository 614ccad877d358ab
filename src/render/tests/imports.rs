//! What Python imported, as text.

use crate::record::{ImportCalls, ImportProcess, ImportedModule, Imports};

use super::super::{imports, show, summary};
use super::{assert_tidy, record};

fn module(name: &str, own: i64, all: u64, parent: Option<u64>) -> ImportedModule {
    let mut module = ImportedModule::default();
    name.clone_into(&mut module.name);
    (module.self_us, module.cumulative_us, module.parent) = (own, all, parent);
    let mut calls = ImportCalls::default();
    (calls.calls, calls.opens, calls.misses, calls.read_bytes) = (14, 2, 3, 2560);
    module.calls = calls;
    module
}

fn process(pid: i32, modules: Vec<ImportedModule>) -> ImportProcess {
    let mut process = ImportProcess::default();
    (process.pid, process.modules) = (pid, modules);
    process.argv = vec!["python3".into(), format!("{pid}.py")];
    process
}

fn of(processes: Vec<ImportProcess>) -> Imports {
    let mut of = Imports::unknown("said");
    (of.reason, of.processes, of.wall_ns) = (None, Some(processes), Some(2_500_000));
    of
}

#[test]
fn parents_stand_above_what_they_import() {
    let modules = vec![
        module("a.b", 250, 250, Some(2)),
        module("a.c", -5, 20, Some(2)),
        module("a", 1_500, 2_000, None),
        module("z", 10, 10, None),
    ];
    let text = imports(&of(vec![process(7, modules)]), 80);
    let expected = "\
self ms total ms calls opens misses KiB read module
  1.500    2.000    14     2      3      2.5 a
  0.250    0.250    14     2      3      2.5   a.b
 -0.005    0.020    14     2      3      2.5   a.c
  0.010    0.010    14     2      3      2.5 z
------- -------- ----- ----- ------ -------- -----------------
      -        -     0     0      0      0.0 (outside imports)
coldtrace: 4 imports, of a second run that took 2.50 ms; times include tracing
coldtrace: which calls are whose is put together from the log's times: --json
coldtrace:   says how (basis) and where it is uncertain
";
    assert_eq!(text, expected);
}

#[test]
fn a_damaged_tree_is_shown_whole() {
    let modules = vec![
        module("self", 1, 1, Some(0)),
        module("back", 1, 1, Some(0)),
        module("far", 1, 1, Some(99)),
        module("\x1b[31mred", 1, u64::MAX, Some(u64::MAX)),
    ];
    let text = imports(&of(vec![process(7, modules)]), 80);
    for name in ["self", "back", "far", "\\x1b[31mred"] {
        assert!(text.lines().any(|line| line.ends_with(&format!(" {name}"))), "{name}: {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn several_processes_are_told_apart_and_all_fits() {
    let long = "torch.ao.quantization.quantization_mappings.of_a_very_long_name".repeat(3);
    let deep = |n: u64| (0..n).map(|i| module(&long, 1, 1, (i + 1 < n).then_some(i + 1))).collect();
    let of = of(vec![process(7, deep(40)), process(8, vec![module("x", 9, 9, None)])]);
    for width in [45, 60, 80, 200] {
        assert_tidy(&imports(&of, width), width);
    }
    assert!(imports(&of, 80).contains("\nprocess 8: python3 8.py\n"));
    let mut whole = record(&["python3"], None);
    whole.imports = Some(of);
    let page = show(&whole, 80);
    assert!(
        page.contains(
            "imports  41 modules in 2 processes in 10.0 us of a second run
"
        ),
        "{page}"
    );
    assert!(page.contains(" self: x 9.00 us, torch.ao"), "{page}");
    assert!(page.contains(" x (8)\n"), "{page}");
    for width in [45, 60, 80, 200] {
        assert_tidy(&show(&whole, width), width);
    }
}

#[test]
fn why_there_are_none_is_said() {
    let none = Imports::unknown("the command exited 3, so it was not run a second time");
    let words = "the command exited 3, so it was not run a second time";
    assert_eq!(imports(&none, 80), format!("coldtrace: {words}\n"));
    let mut whole = record(&["python3"], None);
    whole.imports = Some(none);
    assert!(summary(&whole, 100).contains(&format!("\nimports  none: {words}\n")));
}
