//! A seccomp profile of what was seen lets a program run, and nothing else.

mod support;

use std::path::Path;
use std::process::Command;

use coldtrace::check::{Normalise, Normaliser, Shape, seccomp_profile};
use coldtrace::syscall::{Abi, Sys};
use serde_json::Value;
use support::fixture::built;
use support::process::{Finished, finish};
use support::{Scratch, coldtrace, find_program, read_record, skip};

/// Exit status of the helper where there are no filters.
const SKIPPED: i32 = 77;

/// The profile of runs of a command.
fn profile(program: &Path, arguments: &[&str], runs: usize) -> Value {
    let shape = |_| {
        let scratch = Scratch::new("profile");
        let mut run = coldtrace("run");
        run.arg("--runs").arg(scratch.root()).arg("--").arg(program).args(arguments);
        let finished = finish(&mut run);
        let record = read_record(&scratch.path("latest/record.json"), &finished);
        Shape::of(&record, Normaliser::new(&Normalise::default(), |_| None))
    };
    let shapes: Vec<Shape> = (0..runs).map(shape).collect();
    seccomp_profile(&format!("{} linux glibc", Abi::native()), &shapes, [])
}

fn names(entry: &Value) -> Vec<&str> {
    let names = entry["names"].as_array().expect("names");
    names.iter().map(|name| name.as_str().expect("a name")).collect()
}

/// Runs a command under the profile, but for what it allows to containers' runtimes: here the
/// command is executed by one call. None after saying why that is not possible here.
fn under(profile: &Value, program: &Path, arguments: &[&str]) -> Option<Finished> {
    let helper = built("under-profile")?;
    let mut command = Command::new(&helper.path);
    for name in names(&profile["syscalls"][0]).into_iter().chain(names(&profile["syscalls"][1])) {
        // Of what the kernel needs some is of other tables only.
        command.args(Sys::from_name(Abi::native(), name).map(|sys| sys.number.to_string()));
    }
    let finished = finish(command.arg("--").arg(program).args(arguments));
    if finished.code() == Some(SKIPPED) {
        skip("this kernel installs no filters");
        return None;
    }
    Some(finished)
}

#[test]
fn what_was_seen_runs_and_one_call_more_fails() {
    let Some(program) = built("one-call-more") else { return };
    let seen = profile(&program.path, &[], 1);
    let calls = ["alarm", "execve", "exit_group", "getpid", "write"];
    assert_eq!(names(&seen["syscalls"][0]), calls);
    let Some(finished) = under(&seen, &program.path, &[]) else { return };
    assert_eq!(finished.assert_code(0).out(), "ran\n");
    let more = under(&seen, &program.path, &["more"]).expect("it ran before");
    more.assert_code(3);
    // The union of runs allows it.
    let both = profile(&program.path, &["more"], 1);
    under(&both, &program.path, &["more"]).expect("it ran before").assert_code(4);
}

#[test]
fn real_programs_run_under_their_own_profile() {
    let commands: [&[&str]; 3] = [
        &["ls", "/"],
        &["sh", "-c", "echo a b | wc -w; exit 3"],
        &["python3", "-c", "import json; print(json.dumps([1]))"],
    ];
    for command in commands {
        let Some(program) = find_program(command[0]) else {
            skip(&format!("no {}", command[0]));
            continue;
        };
        let arguments = &command[1..];
        let free = finish(Command::new(&program).args(arguments));
        // Which of two processes waits for the other is another thing each time.
        let seen = profile(&program, arguments, 5);
        let Some(finished) = under(&seen, &program, arguments) else { return };
        assert_eq!(finished.code(), free.code(), "{finished}");
        assert_eq!(finished.out(), free.out(), "{finished}");
        assert_eq!(finished.err(), "", "{finished}");
    }
}
