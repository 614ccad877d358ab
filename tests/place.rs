//! `run --fixed`: what a command finds is the same however coldtrace was started, and what it was
//! started with stands in its record.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use coldtrace::record::Record;
use support::fixture::{Fixture, Program, built};
use support::process::finish;
use support::{Scratch, coldtrace_path, find_program, nobody, read_record, skip, table};

/// Starts coldtrace in an odd way: dispositions, mask, descriptors, umask, a timer.
const ODD: &[&str] =
    &["ignore=1", "ignore=13", "block=10", "open=17", "umask=077", "alarm=80", "setsid", "batch"];

/// What a new case of `check` sets too (docs/check.md).
const USUAL: [&str; 4] =
    ["LC_ALL=C.UTF-8", "MALLOC_ARENA_MAX=1", "MALLOC_TOP_PAD_=67108864", "PYTHONHASHSEED=0"];

#[cfg(target_arch = "x86_64")]
const ARCH: &str = "x86_64";
#[cfg(target_arch = "aarch64")]
const ARCH: &str = "aarch64";

/// The lines that `self-view` writes, below `run OPTIONS`, with the launcher's `settings`.
fn view(programs: &(Program, Program), settings: &[&str], options: &[&str]) -> (String, Record) {
    let (launcher, program) = programs;
    let scratch = Scratch::new("place");
    let mut command = Command::new(&launcher.path);
    command.args(settings).arg("--").arg(coldtrace_path()).args(["run", "--fixed", "--runs"]);
    command.arg(scratch.path("runs")).args(options).arg("--");
    command.arg(&program.path).arg(scratch.path("view"));
    command.env("HOME", "/nowhere").env("LC_ALL", "C").env("LD_LIBRARY_PATH", "/nowhere");
    let finished = finish(&mut command);
    finished.assert_code(0);
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    let text = std::fs::read_to_string(scratch.path("view"));
    (text.unwrap_or_else(|error| panic!("{error}: {finished}")), record)
}

fn programs() -> Option<(Program, Program)> {
    Some((built("launch-with")?, built("self-view")?))
}

/// The lines that begin so, without that.
fn lines<'t>(view: &'t str, start: &str) -> Vec<&'t str> {
    view.lines().filter_map(|line| line.strip_prefix(start)).collect()
}

fn one<'t>(view: &'t str, start: &str) -> &'t str {
    match lines(view, start)[..] {
        [line] => line,
        ref other => panic!("{start}: {other:?} in\n{view}"),
    }
}

#[test]
fn all_that_a_command_finds_is_fixed() {
    let Some(programs) = programs() else { return };
    for options in [&[][..], &["--no-trace"]] {
        let (view, record) = view(&programs, ODD, options);
        let path = std::env::var("PATH").expect("tests have a PATH");
        let mut found = lines(&view, "environment: ");
        let temporary = found.pop().and_then(|entry| entry.strip_prefix("TMPDIR="));
        // A directory of its own, which is gone by now.
        assert!(temporary.is_some_and(|dir| dir.ends_with("/tmp")), "{view}");
        assert!(!temporary.is_some_and(|dir| Path::new(dir).exists()), "{view}");
        let path = format!("PATH={path}");
        let variables = ["HOME=/nowhere", USUAL[0], USUAL[1], USUAL[2], &path, USUAL[3]];
        assert_eq!(found, variables, "{view}");
        for n in 1..=64 {
            let found = one(&view, &format!("signal {n}: "));
            assert_eq!(found, "default flags 0 mask 0", "{n}");
        }
        let descriptors = lines(&view, "descriptor ");
        assert_eq!(descriptors.len(), 3, "{view}");
        // /dev/null is device 1:3.
        assert!(descriptors[0].starts_with("0: device"), "{view}");
        assert!(descriptors[0].ends_with("device 0x103"), "{view}");
        assert!(descriptors[1].starts_with("1: file"), "{view}");
        assert!(descriptors[2].starts_with("2: file"), "{view}");
        assert_eq!((one(&view, "group: "), one(&view, "session: ")), ("own", "own"));
        assert_eq!(one(&view, "controlling terminal: "), "No such device or address");
        assert_eq!(one(&view, "umask "), "022");
        // ADDR_NO_RANDOMIZE (linux/personality.h).
        assert_eq!(one(&view, "personality "), "0x40000");
        assert_eq!(one(&view, "cpus").split_ascii_whitespace().count(), 1, "{view}");
        for (limit, value) in
            [(libc::RLIMIT_NOFILE, 1024), (libc::RLIMIT_STACK, 8 << 20), (libc::RLIMIT_CORE, 0)]
        {
            let soft = one(&view, &format!("limit {limit}: "));
            assert_eq!(soft.split(' ').next(), Some(value.to_string().as_str()), "{limit}");
        }
        assert_eq!(lines(&view, "timer ").len(), 3);
        assert!(lines(&view, "timer ").iter().all(|line| line.contains("not set")), "{view}");
        // The scheduler's policy is whoever's that started coldtrace.
        assert_eq!(one(&view, "scheduler "), format!("{} priority 0", libc::SCHED_BATCH));
        let environment = record.environment.expect("there is one");
        let name = |entry: &str| entry.split('=').next().unwrap_or_default().to_owned();
        let mut names: Vec<String> = variables.iter().map(|entry| name(entry)).collect();
        names.push("TMPDIR".into());
        assert_eq!(environment.variables, names);
        let values: Vec<&str> = environment.values.values().map(String::as_str).collect();
        assert_eq!(values, ["/nowhere", temporary.unwrap_or_default()]);
        assert_eq!(record.measurement.notes, [""; 0]);
    }
}

#[test]
fn what_cannot_be_raised_stays_low() {
    let Some(programs) = programs() else { return };
    let (view, _) = view(&programs, &["nofile=200"], &[]);
    assert_eq!(one(&view, &format!("limit {}: ", libc::RLIMIT_NOFILE)), "200 200");
}

#[test]
fn an_ordinary_user_has_the_same_place() {
    let Some((_, program)) = programs() else { return };
    let Some(mut nobody) = nobody() else { return };
    let scratch = Scratch::new("place-nobody");
    let everybodys = PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(scratch.root(), everybodys).expect("it is ours");
    nobody.arg(coldtrace_path()).args(["run", "--fixed", "--runs"]).arg(scratch.path("runs"));
    let finished = finish(nobody.arg("--").arg(&program.path).arg(scratch.path("view")));
    finished.assert_code(0);
    let view = std::fs::read_to_string(scratch.path("view")).expect("it was written");
    assert_eq!(one(&view, "personality "), "0x40000");
    assert_eq!(one(&view, "cpus").split_ascii_whitespace().count(), 1, "{view}");
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    assert_eq!(record.run.aslr, Some(false));
    assert_eq!(record.measurement.notes, [""; 0]);
}

#[test]
fn the_shell_finds_its_directory_and_the_variables_that_were_named() {
    let scratch = Scratch::new("place-shell");
    let mut command = Command::new(coldtrace_path());
    command.args(["run", "--fixed", "-E", "B=2", "-E", "A=1", "-E", "HOME", "--runs"]);
    command.arg(scratch.path("runs")).args(["--", "sh", "-c", "tr '\\0' '\\n' </proc/$$/environ"]);
    finish(command.env("C", "3")).assert_code(0);
    let out = std::fs::read_to_string(scratch.path("runs/latest/stdout.log")).expect("its log");
    let path = std::env::var("PATH").expect("tests have a PATH");
    // In the order of their names, whatever that of the options.
    let mut lines: Vec<&str> = out.lines().collect();
    assert!(lines.pop().is_some_and(|line| line.starts_with("TMPDIR=")), "{out}");
    let path = format!("PATH={path}");
    assert_eq!(lines, ["A=1", "B=2", USUAL[0], USUAL[1], USUAL[2], &path, USUAL[3]]);
}

/// How `words` are recorded, run by sh with these redirections.
fn recorded(redirections: &str, words: &[&str]) -> Record {
    let scratch = Scratch::new("place-stdio");
    let script = format!("exec \"$@\" {}", redirections.replace("{s}", "\"$0\""));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(scratch.root()).arg(coldtrace_path());
    command.args(["run", "--runs"]).arg(scratch.path("runs")).args(words);
    let finished = finish(&mut command);
    finished.assert_code(0);
    read_record(&scratch.path("runs/latest/record.json"), &finished)
}

#[test]
fn the_record_says_what_the_streams_of_the_command_were() {
    let kinds = |record: &Record| {
        let stdio = record.run.stdio.clone().expect("a command has streams");
        [stdio.stdin, stdio.stdout, stdio.stderr].map(|kind| kind.expect("it could be asked"))
    };
    for (redirections, output, expected) in [
        ("</dev/null", "tee", ["null", "pipe", "pipe"]),
        ("</dev/null", "log", ["null", "file", "file"]),
        ("<{s}/in >{s}/out 2>&1", "pass", ["file", "file", "file"]),
        ("</dev/zero >/dev/null", "pass", ["device", "null", "file"]),
        ("<&- >/dev/null", "pass", ["closed", "null", "file"]),
        ("<{s}", "log", ["other", "file", "file"]),
    ] {
        let redirections = redirections.replace("{s}/in", "/etc/passwd");
        let record = recorded(&redirections, &["--output", output, "--", "true"]);
        assert_eq!(kinds(&record), expected, "{redirections} {output}");
    }
}

#[test]
fn the_record_says_whether_addresses_were_randomised() {
    let setting = std::fs::read_to_string("/proc/sys/kernel/randomize_va_space");
    let random = setting.is_ok_and(|text| text.trim() != "0");
    assert_eq!(recorded("", &["--", "true"]).run.aslr, Some(random));
    assert_eq!(recorded("", &["--fixed", "--", "true"]).run.aslr, Some(false));
    if find_program("setarch").is_none() {
        return skip("no setarch");
    }
    // What a command turns off for its own child is not what it was started with.
    let of_child = recorded("", &["--", "setarch", "-R", "true"]);
    assert_eq!(of_child.run.aslr, Some(random));
}

#[test]
fn the_platform_is_that_of_the_last_program() {
    // Another program's word for the version: what the library says of itself.
    let of = |words: &[&str]| recorded("", words).platform.expect("a command was traced");
    let platform = of(&["--", "sh", "-c", "exec true"]);
    assert_eq!((platform.arch.as_deref(), platform.os.as_str()), (Some(ARCH), "linux"));
    let version = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    match version.ok().filter(|output| output.status.success()) {
        Some(output) => {
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let found = platform.libc_version.expect("glibc's files can be read");
            assert_eq!(platform.libc.as_deref(), Some("glibc"));
            // A release without new symbols defines those of the one before.
            assert!(said == format!("glibc {found}") || found < said, "{said} {found}");
        }
        None => skip("no glibc by getconf"),
    }
    let Some(program) = built("waits") else { return };
    let path = program.path.display().to_string();
    let words = ["--timeout", "2s", "--", "sh", "-c", "exec \"$0\"", &path];
    let scratch = Scratch::new("place-static");
    let mut command = Command::new(coldtrace_path());
    command.args(["run", "--runs"]).arg(scratch.path("runs")).args(words);
    let finished = finish(&mut command);
    finished.assert_code(124);
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    let platform = record.platform.expect("a command was traced");
    assert_eq!((platform.libc.as_deref(), platform.libc_version), (Some("static"), None));
}

#[test]
fn what_is_drawn_at_random_is_the_same_in_each_run_and_another_in_each_process() {
    if find_program("mktemp").is_none() {
        return skip("no mktemp");
    }
    let names = || {
        let scratch = Scratch::new("random");
        let mut command = support::coldtrace("run");
        command.args(["--fixed", "--runs"]).arg(scratch.path("runs"));
        command.args(["--", "sh", "-c", "for i in 1 2 3; do mktemp -u; done"]);
        finish(&mut command).assert_code(0);
        let text = std::fs::read_to_string(scratch.path("runs/latest/stdout.log"));
        let text = text.expect("its output");
        // They are in a directory of each run's own.
        let name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        text.lines().map(name).collect::<Vec<_>>()
    };
    let first = names();
    assert_eq!(first.len(), 3);
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
    assert_eq!(names(), first);
}

#[test]
fn a_disturbed_order_loses_and_invents_no_call() {
    for name in [
        "processes-threads",
        "exec-from-thread",
        "exec-while-busy",
        "exit-group",
        "killed-anywhere",
        "leader-exits-first",
        "signal-storm",
        "stop-continue",
        "vfork-counts",
    ] {
        let fixture = Fixture::read(name);
        let Some(program) = built(name) else { continue };
        for seed in ["1", "2", "3"] {
            let scratch = Scratch::new("place-disturb");
            let mut command = Command::new(coldtrace_path());
            command.args(["run", "--fixed", "--disturb", seed, "--runs"]);
            command.arg(scratch.path("runs")).arg("--").arg(&program.path).args(&program.arguments);
            let finished = finish(&mut command);
            let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
            let differences = table::differences(&fixture, &record);
            assert!(differences.is_empty(), "{name}, seed {seed}: {differences:#?}\n{finished}");
        }
    }
}
