//! `run --importtime`: what Python says that it imported, and which calls each import made. The
//! modules are written here, so that their files, bytes and misses are known.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use coldtrace::record::{ImportCalls, ImportProcess, ImportedModule, Imports, Record};
use support::board::until;
use support::process::{Finished, finish, start};
use support::{Scratch, coldtrace, find_program, read_record, skip};

/// What `pkg.data` reads.
const PAYLOAD: usize = 54_321;

/// The package: its first module reads a file, its second looks for two that are not there and
/// imports a third. Only modules that are built in, and there already, are used beside.
const SOURCES: [(&str, &str); 5] = [
    ("main.py", "import pkg\nfd = open(__file__, 'rb', 0)\n"),
    ("pkg/__init__.py", "import pkg.data\nimport pkg.probe\n"),
    (
        "pkg/data.py",
        "with open(__file__.replace('data.py', 'payload'), 'rb', 0) as f: SIZE = len(f.read())\n",
    ),
    (
        "pkg/probe.py",
        "import posix
for name in 'nowhere', 'never':
    try: posix.stat(__file__.replace('probe.py', name))
    except FileNotFoundError: pass
import pkg.deep
",
    ),
    ("pkg/deep.py", "WORD = 'deep'\n"),
];

/// Interpreters of this machine, themselves and no scripts that choose one, and how many suffixes
/// an extension may have.
fn pythons() -> Vec<(PathBuf, u64)> {
    let ask = "import sys, importlib.machinery as m
print(sys.executable)
print(len(m.EXTENSION_SUFFIXES) if sys.version_info >= (3, 7) else 0)";
    let mut found: Vec<(PathBuf, u64)> = Vec::new();
    for python in [find_program("python3"), Some("/usr/bin/python3".into())].into_iter().flatten() {
        if !python.is_file() {
            continue;
        }
        let finished = finish(Command::new(python).args(["-c", ask]));
        let out = finished.out();
        let mut lines = out.lines();
        let path = PathBuf::from(lines.next().unwrap_or_default());
        let suffixes = lines.next().and_then(|n| n.parse().ok()).unwrap_or(0);
        if path.is_absolute() && suffixes > 0 && !found.iter().any(|(p, _)| *p == path) {
            found.push((path, suffixes));
        }
    }
    if found.is_empty() {
        skip("no python3 from 3.7 on");
    }
    found
}

/// A directory with these files.
fn written(sources: &[(&str, &str)]) -> Scratch {
    let scratch = Scratch::new("imports");
    for (name, text) in sources {
        let path = scratch.path(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("it can be written");
        std::fs::write(path, text).expect("it can be written");
    }
    scratch
}

/// Python finds nothing but what is below its own prefix and beside the script, and leaves nothing.
fn clean(command: &mut Command) {
    for variable in ["PYTHONPATH", "PYTHONHOME", "PYTHONPROFILEIMPORTTIME", "PYTHONPYCACHEPREFIX"] {
        command.env_remove(variable);
    }
}

const ALONE: [&str; 3] = ["-S", "-B", "-s"];

/// `coldtrace run --importtime OPTIONS -- WORDS`; `runs` is in `scratch`.
fn command(scratch: &Scratch, options: &[&str], words: &[&str]) -> Command {
    let mut command = coldtrace("run");
    clean(&mut command);
    command.arg("--runs").arg(scratch.path("runs")).args(["--importtime"]).args(options);
    command.arg("--").args(words);
    command
}

fn run(scratch: &Scratch, options: &[&str], words: &[&str]) -> (Finished, Record) {
    let finished = finish(&mut command(scratch, options, words));
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    (finished, record)
}

/// With a script in `scratch`.
fn run_script(python: &Path, scratch: &Scratch, script: &str) -> (Finished, Record) {
    let script = scratch.path(script);
    let mut words = vec![python.to_str().expect("it is UTF-8")];
    words.extend(ALONE);
    words.push(script.to_str().expect("it is UTF-8"));
    run(scratch, &[], &words)
}

#[track_caller]
fn imports(record: &Record) -> &Imports {
    record.imports.as_ref().expect("it was asked for")
}

#[track_caller]
fn processes(record: &Record) -> &[ImportProcess] {
    let imports = imports(record);
    let all = imports.processes.as_deref();
    all.unwrap_or_else(|| panic!("no imports are known: {:?}", imports.reason))
}

#[track_caller]
fn module<'a>(process: &'a ImportProcess, name: &str) -> &'a ImportedModule {
    let mut named = process.modules.iter().filter(|module| module.name == name);
    match (named.next(), named.next()) {
        (Some(module), None) => module,
        found => panic!("{name}: {found:?} in {:?}", process.modules),
    }
}

fn names(process: &ImportProcess) -> Vec<&str> {
    process.modules.iter().map(|module| module.name.as_str()).collect()
}

fn parent<'a>(process: &'a ImportProcess, module: &ImportedModule) -> Option<&'a str> {
    Some(process.modules[module.parent? as usize].name.as_str())
}

fn log(scratch: &Scratch) -> String {
    std::fs::read_to_string(scratch.path("runs/latest/importtime.txt")).unwrap_or_default()
}

/// Opens, misses and bytes read.
fn uses(calls: &ImportCalls) -> (u64, u64, u64) {
    (calls.opens, calls.misses, calls.read_bytes)
}

#[test]
fn each_module_has_its_files_bytes_and_misses() {
    for (python, suffixes) in pythons() {
        let scratch = written(&SOURCES);
        std::fs::write(scratch.path("pkg/payload"), vec![b'x'; PAYLOAD]).expect("it is written");
        let (finished, record) = run_script(&python, &scratch, "main.py");
        finished.assert_code(0);
        assert_eq!(imports(&record).reason, None);
        let [process] = processes(&record) else { panic!("{:?}", record.imports) };
        let size = |name: &str| {
            let source = SOURCES.iter().find(|(path, _)| *path == name);
            source.map_or(0, |(_, text)| text.len() as u64)
        };
        // A module is looked for by listing its directory, once for all in there, and opening its
        // bytecode, which is not there, and its source. Of a directory each file is asked about
        // that would make it a package, extensions first.
        let expected = [
            ("pkg", None, 0, "pkg/__init__.py", 2, suffixes + 1, 0),
            ("pkg.data", Some("pkg"), 1, "pkg/data.py", 3, 1, PAYLOAD as u64),
            ("pkg.probe", Some("pkg"), 1, "pkg/probe.py", 1, 3, 0),
            ("pkg.deep", Some("pkg.probe"), 2, "pkg/deep.py", 1, 1, 0),
        ];
        for (name, its_parent, depth, file, opens, misses, more) in expected {
            let module = module(process, name);
            let path = scratch.path(file);
            assert_eq!(module.file.as_deref(), path.to_str(), "{name} of {process:?}");
            assert_eq!(module.depth, depth, "{module:?}");
            assert_eq!(parent(process, module), its_parent, "{module:?}");
            let read = size(file) + more;
            assert_eq!(uses(&module.calls), (opens, misses, read), "{module:?} of {process:#?}");
            assert!(module.calls.calls > opens + misses && module.calls.wall_ns > 0, "{module:?}");
            assert!(module.self_us >= 0, "{module:?}");
            assert!(module.cumulative_us >= module.self_us as u64, "{module:?}");
        }
        let last: Vec<&str> = names(process).into_iter().rev().take(4).collect();
        assert_eq!(last, ["pkg", "pkg.probe", "pkg.deep", "pkg.data"]);
        // What the script itself does is no import's.
        assert!(process.outside.opens >= 2 && process.outside.calls > 50, "{:?}", process.outside);
        let lines = log(&scratch);
        assert_eq!(lines.lines().count(), process.modules.len() + 1, "{lines}");
        assert!(lines.starts_with("import time: self [us] | cumulative | imported package\n"));
        assert_eq!(imports(&record).log_calls, Some(process.modules.len() as u64 + 1));
        // None of it in what the command said.
        let said = std::fs::read_to_string(scratch.path("runs/latest/stderr.log"));
        assert_eq!(said.expect("it was kept"), "");
        is_shown(&scratch, process);
        holds_to_the_schema(&record);
    }
}

fn holds_to_the_schema(record: &Record) {
    let schema = serde_json::from_str(&finish(&mut coldtrace("schema")).out()).expect("it is JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("it is a schema");
    let value = serde_json::to_value(record).expect("it can be written");
    let errors: Vec<String> = validator.iter_errors(&value).map(|e| e.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    let again: Record = serde_json::from_value(value).expect("it can be read");
    assert_eq!(again.imports, record.imports);
}

/// `show` has the slowest, and with `--imports` all, in 80 columns.
fn is_shown(scratch: &Scratch, process: &ImportProcess) {
    let show = |options: &[&str]| {
        let finished =
            finish(coldtrace("show").arg("--runs").arg(scratch.path("runs")).args(options));
        finished.assert_code(0);
        let out = finished.out();
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
        out
    };
    let mut by_time: Vec<&ImportedModule> = process.modules.iter().collect();
    by_time.sort_by_key(|module| std::cmp::Reverse(module.self_us));
    let page = show(&[]);
    assert!(page.contains(&format!("imports  {} modules in ", process.modules.len())), "{page}");
    assert!(page.contains(&format!("self: {} ", by_time[0].name)), "{page}");
    let table = page.split("\n\n").find(|part| part.starts_with("self ms")).expect("a table");
    let listed: Vec<&str> =
        table.lines().skip(1).filter_map(|line| line.split_whitespace().last()).collect();
    let slowest: Vec<i64> = listed.iter().map(|name| module(process, name).self_us).collect();
    let expected: Vec<i64> = by_time.iter().take(10).map(|module| module.self_us).collect();
    assert_eq!(slowest, expected, "{table}");
    let tree = show(&["--imports"]);
    let row = |name: &str| {
        let mut lines = tree.lines().enumerate();
        lines.find(|(_, line)| line.ends_with(&format!(" {name}"))).expect("it is listed")
    };
    let indent = |name: &str| row(name).1.rfind(name).expect("it is there");
    assert!(row("pkg").0 < row("pkg.probe").0 && row("pkg.probe").0 < row("pkg.deep").0, "{tree}");
    assert_eq!(indent("pkg") + 4, indent("pkg.deep"), "{tree}");
    let json: serde_json::Value = serde_json::from_str(&show_json(scratch)).expect("it is JSON");
    let modules = &json["processes"][0]["modules"];
    assert_eq!(modules.as_array().map(Vec::len), Some(process.modules.len()));
    assert_eq!(modules[0]["self_us"], serde_json::json!(process.modules[0].self_us));
}

fn show_json(scratch: &Scratch) -> String {
    let mut command = coldtrace("show");
    command.args(["--imports", "--json", "--runs"]).arg(scratch.path("runs"));
    finish(&mut command).out()
}

/// The run that Python tells of its imports in, without anything that knows of imports: every call,
/// open, miss and byte is some module's, or outside.
#[test]
fn modules_and_the_rest_are_all_calls_of_the_run() {
    if find_program("setarch").is_none() {
        return skip("no setarch: memory lies elsewhere in each run, and takes other calls");
    }
    for (python, _) in pythons() {
        let scratch = written(&SOURCES);
        std::fs::write(scratch.path("pkg/payload"), vec![b'x'; PAYLOAD]).expect("it is written");
        let record = |name: &str, own: &[(&str, &str)], options: &[&str]| {
            let mut command = Command::new("setarch");
            clean(&mut command);
            command.arg("-R").arg(support::coldtrace_path()).arg("run").args(options);
            command.args(["--output", "pass", "--runs"]).arg(scratch.path(name));
            command.env("PYTHONHASHSEED", "0").envs(own.iter().copied());
            command.arg("--").arg(&python).args(ALONE).arg(scratch.path("main.py"));
            let finished = finish(&mut command);
            finished.assert_code(0);
            read_record(&scratch.path(name).join("latest/record.json"), &finished)
        };
        let of = record("imports", &[], &["--importtime"]);
        let [process] = processes(&of) else { panic!("{:?}", of.imports) };
        let sum = |of_calls: fn(&ImportCalls) -> u64| -> u64 {
            let modules: u64 = process.modules.iter().map(|m| of_calls(&m.calls)).sum();
            modules
                + of_calls(&process.outside)
                + imports(&of).elsewhere.as_ref().map_or(0, of_calls)
        };
        let whole = record("whole", &[("PYTHONPROFILEIMPORTTIME", "1")], &[]);
        let calls = whole.tree.as_ref().map(|tree| tree.calls);
        assert_eq!(imports(&of).log_calls.map(|log| sum(|c| c.calls) + log), calls);
        // The log is all that it adds to the run that the record is of.
        let plain = of.tree.as_ref().map(|tree| tree.calls);
        assert_eq!(Some(sum(|c| c.calls)), plain);
        let rows = || whole.files.iter().flat_map(|files| &files.paths);
        assert_eq!(sum(|c| c.opens), rows().map(coldtrace::record::FileRow::opens).sum::<u64>());
        assert_eq!(sum(|c| c.misses), rows().map(|row| row.misses).sum::<u64>());
        assert_eq!(sum(|c| c.read_bytes), rows().map(|row| row.read_bytes).sum::<u64>());
    }
}

#[test]
fn several_pythons_are_told_apart() {
    for (python, _) in pythons() {
        let scratch = written(&[
            ("one.py", "import left\nprint('x' * 70000)\n"),
            ("two.py", "import right\nimport sys\nassert len(sys.stdin.read()) == 70001\n"),
            ("left.py", "import left_inner\n"),
            ("left_inner.py", ""),
            ("right.py", "import right_inner\n"),
            ("right_inner.py", ""),
        ]);
        let script = "\"$1\" -S -B -s \"$2/one.py\" | \"$1\" -S -B -s \"$2/two.py\"";
        let (python, dir) = (python.to_str().unwrap(), scratch.root().to_str().unwrap());
        let (finished, record) = run(&scratch, &[], &["sh", "-c", script, "sh", python, dir]);
        finished.assert_code(0);
        let of = |script: &str| {
            let runs = |p: &&ImportProcess| p.argv.iter().any(|word| word.ends_with(script));
            processes(&record).iter().find(runs).expect("it has a log")
        };
        assert_eq!(processes(&record).len(), 2, "{:?}", record.imports);
        for (process, own, others) in
            [(of("one.py"), "left", "right"), (of("two.py"), "right", "left")]
        {
            let inner = module(process, &format!("{own}_inner"));
            assert_eq!(parent(process, inner), Some(own));
            assert_eq!(module(process, own).depth, 0);
            assert!(!names(process).iter().any(|name| name.starts_with(others)), "{process:?}");
            assert!(log(&scratch).contains(&format!("process {} [\"", process.pid)));
        }
        assert_ne!(of("one.py").pid, of("two.py").pid);
        let elsewhere = imports(&record).elsewhere;
        assert!(elsewhere.is_some_and(|sums| sums.calls > 0), "the shell's own calls");
    }
}

/// What looks like a line and is none: in another format, half of one, or another program's.
#[test]
fn lines_of_others_are_no_imports() {
    for (python, _) in pythons() {
        let script = r#"
import posix, sys
err = sys.stderr
err.write('import time: 1 | 2 | fake\n')
err.write('import time:       123 |        456 |  fake_odd\n')
err.write(' import time:       123 |        456 | fake_late\n')
err.flush()
posix.system("echo 'import time:       123 |        456 | fake_sh' >&2")
posix.write(2, b'half a line, and import time:       12')
import one
posix.write(2, b'import time:       123 |        456 | fake_half')
import two
posix.write(2, b'\nnothing but words\n')
"#;
        let sources =
            [("main.py", script), ("one.py", "import inner\n"), ("two.py", ""), ("inner.py", "")];
        let scratch = written(&sources);
        let (finished, record) = run_script(&python, &scratch, "main.py");
        finished.assert_code(0);
        // Its own words are in the log of its output, and once.
        let said = std::fs::read_to_string(scratch.path("runs/latest/stderr.log")).expect("kept");
        assert_eq!(said.matches("fake_half").count(), 1, "{said}");
        assert_eq!(said.matches("import time: ").count(), 6, "{said}");
        let [process] = processes(&record) else { panic!("{:?}", record.imports) };
        let last: Vec<&str> = names(process).into_iter().rev().take(3).collect();
        assert_eq!(last, ["two", "one", "inner"]);
        assert!(!names(process).iter().any(|name| name.contains("fake")), "{process:?}");
        assert_eq!(parent(process, module(process, "inner")), Some("one"));
        assert!(!log(&scratch).contains("fake"), "{}", log(&scratch));
    }
}

#[test]
fn a_fork_goes_on_with_the_log_and_threads_import_too() {
    for (python, _) in pythons() {
        let script = "
import posix, _thread
child = posix.fork()
if child == 0:
    import late
    posix._exit(0)
posix.waitpid(child, 0)
lock = _thread.allocate_lock()
lock.acquire()
def work():
    import threaded
    lock.release()
_thread.start_new_thread(work, ())
lock.acquire()
";
        let scratch = written(&[
            ("main.py", script),
            ("late.py", ""),
            ("threaded.py", "open(__file__.replace('threaded.py', 'payload'), 'rb', 0).read()\n"),
        ]);
        std::fs::write(scratch.path("payload"), vec![b'x'; PAYLOAD]).expect("it is written");
        let (finished, record) = run_script(&python, &scratch, "main.py");
        finished.assert_code(0);
        let [first, forked] = processes(&record) else { panic!("{:?}", record.imports) };
        assert_eq!(names(forked), ["late"], "{forked:?}");
        assert_eq!(forked.argv, first.argv);
        assert_ne!(forked.pid, first.pid);
        assert_eq!(module(forked, "late").file.as_deref(), scratch.path("late.py").to_str());
        assert!(!names(first).contains(&"late"), "{first:?}");
        let threaded = module(first, "threaded");
        let source = std::fs::metadata(scratch.path("threaded.py")).expect("it is there").len();
        assert_eq!(threaded.calls.read_bytes, source + PAYLOAD as u64, "{threaded:?}");
        let said = format!("process {} imported in 2 threads", first.pid);
        assert!(imports(&record).uncertain.iter().any(|line| line.starts_with(&said)));
    }
}

/// A script that adds a line to `ran` each time it runs.
const COUNTS: &str = "open(__file__.replace('main.py', 'ran'), 'a').write('once\\n')\n";

fn times_run(scratch: &Scratch) -> usize {
    std::fs::read_to_string(scratch.path("ran")).unwrap_or_default().lines().count()
}

#[track_caller]
fn is_unknown(scratch: &Scratch, record: &Record, reason: &str) {
    assert_eq!(imports(record).processes, None);
    assert!(!scratch.path("runs/latest/importtime.txt").exists());
    let found = imports(record).reason.as_deref().unwrap_or_default();
    assert!(found.contains(reason), "{found}");
    let finished = finish(coldtrace("show").arg("--runs").arg(scratch.path("runs")));
    let page = finished.out().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains(&format!("imports none: {found} memory")), "{page}");
    assert!(record.syscalls.is_some());
}

#[test]
fn a_command_that_fails_or_is_no_python_runs_once() {
    let scratch = Scratch::new("no-python");
    let (finished, record) = run(&scratch, &[], &["true"]);
    finished.assert_code(0);
    is_unknown(&scratch, &record, "no Python ran, so it was not run a second time");
    for (python, _) in pythons() {
        let scratch = written(&[("main.py", &format!("{COUNTS}import nosuchmodule\n"))]);
        let (finished, record) = run_script(&python, &scratch, "main.py");
        finished.assert_code(1);
        assert!(finished.err().contains("nosuchmodule"), "{finished}");
        is_unknown(&scratch, &record, "the command exited 1, so it was not run a second time");
        assert_eq!(times_run(&scratch), 1);
        let killed = format!("{COUNTS}import posix\nposix.kill(posix.getpid(), 9)\n");
        let scratch = written(&[("main.py", &killed)]);
        let (finished, record) = run_script(&python, &scratch, "main.py");
        finished.assert_signal(libc::SIGKILL);
        is_unknown(&scratch, &record, "the command was killed by SIGKILL");
        assert_eq!(times_run(&scratch), 1);
    }
}

#[test]
fn the_second_run_is_said_and_unheard() {
    for (python, _) in pythons() {
        let script = format!("{COUNTS}import sys\nprint('words', len(sys.stdin.read()))\n");
        let scratch = written(&[("main.py", &script)]);
        let (finished, _) = run_script(&python, &scratch, "main.py");
        finished.assert_code(0);
        assert_eq!(times_run(&scratch), 2);
        assert_eq!(finished.out(), "words 0\n");
        assert_eq!(finished.err().matches("running it again").count(), 1, "{finished}");
    }
    let help = finish(coldtrace("run").arg("--help")).out();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("The command runs twice"), "{help}");
}

#[test]
fn python_that_ignores_its_environment_is_said() {
    for (python, _) in pythons() {
        let scratch = Scratch::new("isolated");
        let words = [python.to_str().unwrap(), "-I", "-S", "-c", "pass"];
        let (finished, record) = run(&scratch, &[], &words);
        finished.assert_code(0);
        is_unknown(&scratch, &record, "runs with -E or -I");
        // The record is that of the first run, which knew nothing of a second.
        let plain = scratch.path("plain");
        let mut once = coldtrace("run");
        clean(&mut once);
        let finished = finish(once.arg("--runs").arg(&plain).arg("--").args(words));
        let once = read_record(&plain.join("latest/record.json"), &finished);
        assert_eq!(shape(&record), shape(&once));
        assert_eq!(once.imports, None);
    }
}

/// Calls and errors by name, without those that depend on where memory lies.
fn shape(record: &Record) -> BTreeMap<&str, (u64, u64)> {
    let memory = ["brk", "mmap", "munmap", "mremap", "madvise", "mprotect"];
    let rows = record.syscalls.iter().flatten();
    let rows = rows.filter(|row| !memory.contains(&row.name.as_str()));
    rows.map(|row| (row.name.as_str(), (row.calls, row.error_count()))).collect()
}

/// In the first run it ends at once; in the second it says that it is there, and stays.
const STAYS: &str = "
import posix
if b'PYTHONPROFILEIMPORTTIME' in posix.environ:
    import one
    import time
    open(__file__.replace('main.py', 'ready'), 'w').close()
    while True: time.sleep(1)
";

#[test]
fn the_first_record_outlives_a_second_run_that_is_ended() {
    for (python, _) in pythons() {
        let scratch = written(&[("main.py", STAYS), ("one.py", "")]);
        let script = scratch.path("main.py");
        let words = [&[python.to_str().unwrap()], &ALONE[..], &[script.to_str().unwrap()]].concat();
        let ended = |finished: &Finished, reason: &str| {
            finished.assert_code(0);
            let record = read_record(&scratch.path("runs/latest/record.json"), finished);
            assert_eq!(record.outcome.exit_code, Some(0));
            let found = imports(&record).reason.clone().unwrap_or_default();
            assert_eq!(found, reason);
            let [process] = processes(&record) else { panic!("{:?}", record.imports) };
            assert!(names(process).contains(&"one"), "{process:?}");
        };
        let running = start(&mut command(&scratch, &[], &words));
        until("its second run", || scratch.path("ready").exists().then_some(()));
        running.kill_group(libc::SIGINT);
        ended(&running.finish(), "the second run was killed by SIGINT: imports until then");
        let finished = finish(&mut command(&scratch, &["--timeout", "4s"], &words));
        ended(&finished, "the second run was ended by --timeout: imports until then");
    }
}

#[test]
fn what_cannot_be_run_twice_is_refused() {
    let pid = std::process::id().to_string();
    for words in [&["--importtime", "--no-trace", "true"][..], &["--importtime", "-p", &pid]] {
        let scratch = Scratch::new("refused");
        let finished = finish(coldtrace("run").arg("--runs").arg(scratch.path("runs")).args(words));
        finished.assert_code(125);
        assert!(finished.err().contains("cannot be used with"), "{finished}");
        assert!(!scratch.path("runs").exists());
    }
}
