//! What adversaries and reviewers found once, so that it does not come back. Each test is a program
//! that a tracer changed, miscounted, or did not end with.

mod support;

use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use coldtrace::record::{Process, Record};
use support::board::{child_running, reach_state, until};
use support::fixture::{Fixture, Program, SKIPPED, built};
use support::process::{Finished, LIMIT, Running, finish, start, start_with_own_stdout};
use support::{
    Scratch, coldtrace, coldtrace_path, count_json, find_program, read_record, skip, table,
};

/// The fields of /proc/PID/stat from the state on.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

fn kill(pid: i32, signal: i32) {
    // SAFETY: kill takes two numbers and touches no memory of ours.
    unsafe { libc::kill(pid, signal) };
}

/// A command of whom another program's arguments may be made: all its words.
fn words(command: &Command) -> impl Iterator<Item = &std::ffi::OsStr> {
    std::iter::once(command.get_program()).chain(command.get_args())
}

/// Reads to the end in a thread of its own.
fn read_all(mut reader: PipeReader) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).expect("a pipe can be read");
        all
    })
}

/// Runs a fixture untraced and counted, both ways of reading stops, with `arguments` besides its
/// own, and holds the record against what it promises.
fn holds(name: &str, arguments: &[&str], options: &[&str]) {
    let fixture = Fixture::read(name);
    let Some(program) = built(name) else {
        return;
    };
    let finished = finish(program.untraced().args(arguments));
    if finished.code() == Some(SKIPPED) {
        return skip(&format!("{name}: this kernel lacks what it is about"));
    }
    assert_eq!(finished.code(), fixture.exit, "untraced, {finished}");
    for more in [&[][..], &["--no-syscall-info"]] {
        let scratch = Scratch::new(name);
        let report = scratch.path("report.json");
        let mut command = count_json(&report);
        command.args(options).args(more).arg("--").arg(&program.path);
        let finished = finish(command.args(&program.arguments).args(arguments));
        let record = read_record(&report, &finished);
        let mut wrong = table::differences(&fixture, &record);
        wrong.extend(table::contradictions(&record));
        assert!(
            wrong.is_empty() && finished.code() == fixture.exit,
            "{name} {arguments:?} {options:?} {more:?}:\n  {}\n\n{}\n{finished}",
            wrong.join("\n  "),
            table::render(&record)
        );
    }
}

/// Runs `coldtrace run` on a program; gives how it ended and the record.
fn recorded(options: &[&str], program: &Program, arguments: &[&str]) -> (Finished, Record) {
    let scratch = Scratch::new("recorded");
    let runs = scratch.path("runs");
    let mut command = coldtrace("run");
    command.arg("--runs").arg(&runs).args(options).arg("--").arg(&program.path);
    let finished = finish(command.args(&program.arguments).args(arguments));
    let record = read_record(&runs.join("latest/record.json"), &finished);
    (finished, record)
}

/// Panics unless each process of the tree is there once and has its end. Returns them.
#[track_caller]
fn all_ended(record: &Record) -> Vec<Process> {
    let tree = record.tree.clone().unwrap_or_default();
    let processes = record.processes.clone().unwrap_or_default();
    let endless: Vec<&Process> = processes
        .iter()
        .filter(|p| p.end_ns.is_none() || p.exit_code.is_some() == p.signal.is_some())
        .collect();
    assert!(endless.is_empty(), "without their end: {endless:#?}\n{}", table::render(record));
    assert_eq!(tree.processes, processes.len() as u64, "{}", table::render(record));
    assert_eq!(table::contradictions(record), Vec::<String>::new(), "{}", table::render(record));
    processes
}

/// How often each end came, as `exited 5` or `SIGKILL`.
fn ends(processes: &[Process]) -> BTreeMap<String, usize> {
    let mut ends = BTreeMap::new();
    for process in processes {
        let end = match (&process.signal, process.exit_code) {
            (Some(signal), _) => signal.clone(),
            (None, code) => format!("exited {}", code.unwrap_or(-1)),
        };
        *ends.entry(end).or_insert(0) += 1;
    }
    ends
}

// ---- what the command must not notice ----

#[test]
fn arguments_that_were_put_aside_do_not_reach_a_new_image() {
    holds("exec-over-reissued", &[], &[]);
    holds("exec-over-reissued", &[], &["-e", "trace=execve,epoll_wait,tgkill,exit_group"]);
}

#[test]
fn a_stopping_signal_that_stops_nothing_leaves_repairs_on() {
    holds("stopping-signal-then-wait", &[], &[]);
    holds("stopping-signal-then-wait", &["handled"], &[]);
}

#[test]
fn a_call_that_answers_eintr_of_itself_ends() {
    holds("answers-eintr", &[], &[]);
}

#[test]
fn an_ignored_signal_does_not_end_a_wait_for_io_uring() {
    holds("uring-wait", &[], &[]);
}

#[test]
fn an_ignored_signal_ends_no_call_that_was_not_asked_for_either() {
    for (name, arguments) in [
        ("stopping-signal-then-wait", &[][..]),
        ("stopping-signal-then-wait", &["handled"]),
        ("uring-wait", &[]),
    ] {
        let Some(program) = built(name) else {
            return;
        };
        if finish(program.untraced().args(arguments)).code() == Some(SKIPPED) {
            skip(&format!("{name}: this kernel lacks what it is about"));
            continue;
        }
        let (finished, record) = recorded(&["-e", "trace=write"], &program, arguments);
        finished.assert_code(0);
        assert_eq!(record.measurement.filter, "installed", "{finished}");
    }
}

#[test]
fn an_alarm_set_before_the_exec_of_coldtrace_is_the_commands() {
    let Some(alarm) = built("alarm-exec") else {
        return;
    };
    let scratch = Scratch::new("alarm");
    for mode in [&["count", "-o", "/dev/null"][..], &["run", "--no-trace"], &["run"]] {
        let mut command = Command::new(&alarm.path);
        command.arg(coldtrace_path()).args(mode).args(["--", "sleep", "60"]);
        command.env("COLDTRACE_RUNS", scratch.path("runs"));
        let begun = Instant::now();
        finish(&mut command).assert_signal(libc::SIGALRM);
        assert!(begun.elapsed() < Duration::from_secs(30), "{mode:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn entries_of_the_environment_that_are_no_variables_reach_the_command() {
    let Some(odd) = built("odd-environment") else {
        return;
    };
    let scratch = Scratch::new("environment");
    let through = |words: &[&std::ffi::OsStr]| {
        let mut command = Command::new(&odd.path);
        command.args(words).arg(&odd.path).env("COLDTRACE_RUNS", scratch.path("runs"));
        let finished = finish(&mut command);
        finished.assert_code(0);
        // The mark of this test's harness is another each time.
        let lines = finished.stdout.split(|&byte| byte == b'\n');
        lines
            .filter(|line| !line.starts_with(b"COLDTRACE_TEST_MARK="))
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    let plain = through(&[]);
    assert!(plain.iter().any(|line| line == b"NOEQUALS"), "{plain:?}");
    let path = coldtrace_path().as_os_str();
    for mode in [&["count", "-o", "/dev/null"][..], &["run"], &["run", "--no-trace"]] {
        let words: Vec<_> = std::iter::once(path).chain(mode.iter().map(AsRef::as_ref)).collect();
        assert_eq!(through(&words), plain, "{mode:?}");
    }
}

// ---- processes that come and go ----

#[test]
fn threads_whose_creator_is_killed_at_the_clone_leave_no_phantom_process() {
    let Some(program) = built("killed-while-cloning") else {
        return;
    };
    for options in [&[][..], &["-e", "trace=wait4"]] {
        let (finished, record) = recorded(options, &program, &["kill"]);
        finished.assert_code(0);
        let processes = all_ended(&record);
        let expected = BTreeMap::from([("SIGKILL".into(), 100), ("exited 0".into(), 1)]);
        assert_eq!(ends(&processes), expected, "{options:?} {finished}");
    }
}

#[test]
fn threads_whose_creator_is_ended_at_the_clone_leave_no_phantom_process() {
    let Some(program) = built("killed-while-cloning") else {
        return;
    };
    for options in [&[][..], &["-e", "trace=wait4"]] {
        let (finished, record) = recorded(options, &program, &["exit"]);
        finished.assert_code(0);
        let processes = all_ended(&record);
        let expected = BTreeMap::from([("exited 5".into(), 100), ("exited 0".into(), 1)]);
        assert_eq!(ends(&processes), expected, "{options:?} {finished}");
    }
}

#[test]
fn processes_whose_creator_is_killed_at_the_fork_are_each_counted_once() {
    let Some(program) = built("killed-while-cloning") else {
        return;
    };
    for options in [&[][..], &["-e", "trace=wait4"]] {
        let (finished, record) = recorded(options, &program, &["fork"]);
        finished.assert_code(0);
        let made: usize = finished.out().parse().unwrap_or_else(|_| panic!("{finished}"));
        let processes = all_ended(&record);
        let expected = BTreeMap::from([("SIGKILL".into(), 100), ("exited 0".into(), made + 1)]);
        assert_eq!(ends(&processes), expected, "{options:?} {finished}");
    }
}

#[test]
fn children_of_the_killed_are_not_kept_waiting_by_a_bystander_that_is_busy() {
    let (Some(busy), Some(program)) = (built("busy"), built("killed-while-cloning")) else {
        return;
    };
    // The fixture waits for those children, and gives up after 20 s.
    let script = "\"$1\" & b=$!; \"$2\" fork; s=$?; kill -9 $b; exit $s";
    let mut command = coldtrace("count");
    command.args(["-o", "/dev/null", "--", "sh", "-c", script, "sh"]);
    finish(command.arg(&busy.path).arg(&program.path)).assert_code(0);
}

#[test]
fn a_process_stopped_and_at_once_killed_has_its_end() {
    holds("stopped-and-killed", &[], &[]);
    let Some(program) = built("stopped-and-killed") else {
        return;
    };
    let (finished, record) = recorded(&[], &program, &[]);
    finished.assert_code(0);
    let expected = BTreeMap::from([("SIGKILL".into(), 80), ("exited 0".into(), 1)]);
    assert_eq!(ends(&all_ended(&record)), expected, "{finished}");
}

/// Counts the fixture `busy` forty times, and lets `kills` end it, given the round and its pid.
fn killed_from_outside(kills: impl Fn(u32, i32)) {
    let Some(program) = built("busy") else {
        return;
    };
    if children_are_unknown() {
        return skip("no /proc/PID/task/TID/children");
    }
    for round in 0..40 {
        let mut command = coldtrace("count");
        command.args(["-o", "/dev/null", "--"]).arg(&program.path);
        let running = start(&mut command);
        kills(round, child_running(running.pid(), "busy"));
        running.finish().assert_signal(libc::SIGKILL);
    }
}

#[test]
fn a_command_stopped_and_at_once_killed_from_outside_died_by_sigkill() {
    killed_from_outside(|round, root| {
        sleep(Duration::from_millis(5)); // past its exec
        kill(root, libc::SIGSTOP);
        for _ in 0..round * 997 % 6000 {
            std::hint::spin_loop();
        }
        kill(root, libc::SIGKILL);
    });
}

#[test]
fn a_command_killed_in_its_exec_stop_died_by_sigkill() {
    // It has its new name before the tracer has heard of the exec.
    killed_from_outside(|_, root| kill(root, libc::SIGKILL));
}

/// No CONFIG_PROC_CHILDREN.
fn children_are_unknown() -> bool {
    !Path::new("/proc/thread-self/children").exists()
}

#[test]
fn calls_belong_to_the_program_that_makes_them() {
    let Some(program) = built("unnamed-numbers") else {
        return;
    };
    let path = program.path.display();
    // A shell that forks, a shell that is replaced, and a shell in the middle.
    let script = format!("{path}; sh -c '{path}; exit 0'; exec {path}");
    let scratch = Scratch::new("by-exe");
    let report = scratch.path("report.json");
    let finished = finish(count_json(&report).args(["--by", "exe", "--", "sh", "-c", &script]));
    if finished.code() == Some(SKIPPED) {
        return skip("number 473 has a meaning by now");
    }
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    let groups = record.groups.clone().unwrap_or_default();
    let calls = |own: bool, name: &str| -> u64 {
        groups
            .iter()
            .filter(|group| (group.name == "unnamed-numbers") == own)
            .flat_map(|group| &group.syscalls)
            .filter(|row| row.name == name)
            .map(|row| row.calls)
            .sum()
    };
    assert_eq!(groups.len(), 2, "{groups:#?}");
    for (name, own) in [("syscall_0x1d9", 15), ("syscall_0x3e8", 21), ("alarm", 3)] {
        assert_eq!((calls(true, name), calls(false, name)), (own, 0), "{name}: {groups:#?}");
    }
    for name in ["wait4", "mmap", "openat"] {
        assert_eq!(calls(true, name), 0, "{name}: {groups:#?}");
        assert_eq!(calls(false, name), table::calls(&record, name), "{name}: {groups:#?}");
    }
}

// ---- children that are not traced ----

#[test]
fn an_inherited_child_that_is_stopped_does_not_keep_coldtrace_waiting() {
    if find_program("bash").is_none() {
        return skip("no bash");
    }
    let scratch = Scratch::new("inherited");
    let pid_file = scratch.path("pid");
    for mode in ["count -o /dev/null", "run --no-trace", "run"] {
        // It does not hold the harness's pipe: it is to outlive coldtrace.
        let script = format!(
            "sleep 300 99>&- & echo $! > {}; kill -STOP $!; exec {} {mode} -- sh -c 'exit 3'",
            pid_file.display(),
            coldtrace_path().display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).env("COLDTRACE_RUNS", scratch.path("runs"));
        let running = start(&mut command);
        let finished = running.finish(); // which ends with the stopped child where it must be waited for
        let child = std::fs::read_to_string(&pid_file).unwrap_or_default();
        kill(child.trim().parse().expect("the shell wrote the child's pid"), libc::SIGKILL);
        finished.assert_code(3);
    }
}

// ---- where the command's output goes ----

const SEQ_20000: usize = 108_894;

/// `coldtrace run` of a script whose output goes to a pipe; gives the pipe's other end and where
/// the record will be.
fn running_to_pipe(scratch: &Scratch, script: &str, writer: PipeWriter) -> (Running, PathBuf) {
    let runs = scratch.path("runs");
    let mut command = coldtrace("run");
    command.arg("--runs").arg(&runs).args(["--", "sh", "-c", script]).stdout(writer);
    (start_with_own_stdout(&mut command), runs.join("latest"))
}

#[test]
fn a_reader_that_begins_after_the_commands_end_gets_all_of_the_output() {
    let scratch = Scratch::new("late-reader");
    let ended = scratch.path("ended");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let script = format!("seq 1 20000; : > {}", ended.display());
    let (running, run) = running_to_pipe(&scratch, &script, writer);
    until("the command to end", || ended.exists().then_some(()));
    // Longer than a pipe that nobody writes to is waited for.
    sleep(Duration::from_millis(900));
    let all = read_all(reader);
    let finished = running.finish();
    let all = all.join().expect("the pipe was read");
    finished.assert_code(0);
    assert_eq!(all.len(), SEQ_20000, "{finished}");
    let kept = std::fs::read(run.join("stdout.log")).expect("there is a log");
    assert!(kept == all, "the log holds {} bytes: {finished}", kept.len());
    let record = read_record(&run.join("record.json"), &finished);
    assert_eq!(record.outcome.stdout_bytes, Some(SEQ_20000 as u64));
    assert_eq!(record.measurement.notes, Vec::<String>::new());
}

fn make_non_blocking(writer: &PipeWriter) {
    let fd = writer.as_raw_fd();
    // SAFETY: fcntl with numbers on a descriptor that is open.
    unsafe {
        libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK);
        libc::fcntl(fd, libc::F_SETPIPE_SZ, 4096);
    }
}

/// Reads slowly, to the end.
fn read_slowly(mut reader: PipeReader) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut all, mut some) = (Vec::new(), [0; 2048]);
        loop {
            match reader.read(&mut some).expect("a pipe can be read") {
                0 => return all,
                n => all.extend_from_slice(&some[..n]),
            }
            sleep(Duration::from_millis(2));
        }
    })
}

#[test]
fn a_standard_output_that_does_not_block_loses_nothing() {
    let scratch = Scratch::new("non-blocking");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    make_non_blocking(&writer);
    let (running, run) = running_to_pipe(&scratch, "seq 1 20000", writer);
    let all = read_slowly(reader);
    let finished = running.finish();
    let all = all.join().expect("the pipe was read");
    finished.assert_code(0);
    assert_eq!(all.len(), SEQ_20000, "{finished}");
    let kept = std::fs::read(run.join("stdout.log")).expect("there is a log");
    assert!(kept == all, "the log holds {} bytes: {finished}", kept.len());
}

#[test]
fn a_report_to_a_standard_output_that_does_not_block_is_whole() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    make_non_blocking(&writer);
    let mut command = coldtrace("count");
    command.args(["--json", "-o", "-", "--", "sh", "-c", "ls / >/dev/null"]).stdout(writer);
    let running = start_with_own_stdout(&mut command);
    drop(command); // and with it our end of the pipe
    let all = read_slowly(reader);
    let finished = running.finish();
    let all = all.join().expect("the pipe was read");
    finished.assert_code(0);
    assert!(all.len() > 4096, "it would have fitted into the pipe: {finished}");
    serde_json::from_slice::<Record>(&all).unwrap_or_else(|error| panic!("{error}: {finished}"));
}

#[test]
fn a_runs_directory_that_was_there_gets_no_gitignore() {
    let scratch = Scratch::new("gitignore");
    for (name, existed) in [("there", true), ("new", false)] {
        let runs = scratch.path(name);
        if existed {
            std::fs::create_dir(&runs).expect("scratch can be written");
        }
        finish(coldtrace("run").arg("--runs").arg(&runs).args(["--", "true"])).assert_code(0);
        assert_eq!(runs.join(".gitignore").exists(), !existed, "{name}");
    }
}

// ---- stops ----

#[test]
fn a_command_run_untraced_that_stops_and_goes_on_costs_no_time() {
    if children_are_unknown() {
        return skip("no /proc/PID/task/TID/children");
    }
    let scratch = Scratch::new("stops");
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs"));
    let running = start(command.args(["--no-trace", "--", "sh", "-c", "kill -STOP $$; exit 5"]));
    let root = child_running(running.pid(), "sh");
    reach_state(root, 'T');
    let used = || -> u64 {
        let fields = stat(running.pid()).unwrap_or_default();
        fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    };
    let before = used();
    sleep(Duration::from_millis(500));
    let ticks = used() - before;
    assert!(ticks < 10, "{ticks} ticks of CPU time while the command was stopped");
    kill(root, libc::SIGCONT);
    running.finish().assert_code(5);
}

/// A shell script that stops itself and is continued by a child of its own, however late the stop
/// comes; then it does `after`.
fn stopped_and_continued(scratch: &Scratch, stop: &str, after: &str) -> String {
    let on = scratch.path(stop);
    let on = on.display();
    format!(
        "(until [ -e {on} ]; do kill -CONT $$; sleep 0.05; done) & kill -{stop} $$; : > {on}; wait; \
         {after}"
    )
}

#[test]
fn a_command_run_untraced_may_be_continued_from_inside() {
    let scratch = Scratch::new("continues");
    for stop in ["STOP", "TSTP"] {
        let script = stopped_and_continued(&scratch, stop, "exit 5");
        let mut command = coldtrace("run");
        command.arg("--runs").arg(scratch.path("runs"));
        finish(command.args(["--no-trace", "--", "sh", "-c", &script])).assert_code(5);
    }
}

#[test]
fn a_stop_of_the_command_alone_does_not_stop_the_tracer() {
    let scratch = Scratch::new("stop-of-the-command");
    for stop in ["TSTP", "TTIN", "TTOU", "STOP"] {
        let script = stopped_and_continued(&scratch, stop, "echo resumed; exit 3");
        let mut command = coldtrace("count");
        command.args(["-o", "/dev/null", "--", "sh", "-c", &script]);
        let finished = finish(&mut command);
        finished.assert_code(3);
        assert_eq!(finished.out(), "resumed\n", "{stop}: {finished}");
    }
}

// ---- signals ----

/// One byte, or a panic where none comes in time.
#[track_caller]
fn next_byte(reader: &mut PipeReader) -> u8 {
    let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives until poll returns.
    let polled = unsafe { libc::poll(&raw mut poll, 1, LIMIT.as_millis() as i32) };
    let mut byte = [0];
    assert!(polled == 1 && matches!(reader.read(&mut byte), Ok(1)), "nothing came");
    byte[0]
}

/// Sends a signal `times` times, each when the one before has come, and panics unless the command
/// gets each once.
#[track_caller]
fn comes_once_each(mode: &[&str], signal: i32, how: &str, times: i32, send: impl Fn(&Running)) {
    let Some(program) = built("counts-signals") else {
        return;
    };
    let scratch = Scratch::new("signals");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(coldtrace_path());
    command.args(mode).arg("--").arg(&program.path).arg(signal.to_string()).arg(how);
    command.env("COLDTRACE_RUNS", scratch.path("runs")).stdout(writer);
    let running = start_with_own_stdout(&mut command);
    drop(command); // and with it our end of the pipe
    assert_eq!(next_byte(&mut reader), b'r');
    for _ in 0..times {
        send(&running);
        assert_eq!(next_byte(&mut reader), b's');
        // More than two deliveries of one sending are apart.
        sleep(Duration::from_millis(120));
    }
    let finished = running.finish();
    assert_eq!(finished.code(), Some(times), "{mode:?} signal {signal} to {how}: {finished}");
}

const COUNT: &[&str] = &["count", "-o", "/dev/null"];
const UNTRACED: &[&str] = &["run", "--no-trace", "--output", "pass"];

#[test]
fn a_signal_to_the_group_reaches_a_handler_once() {
    for how in ["handler", "thread"] {
        comes_once_each(COUNT, libc::SIGTERM, how, 1, |r| r.kill_group(libc::SIGTERM));
    }
}

#[test]
fn a_signal_to_the_group_reaches_one_who_waits_for_it_once() {
    comes_once_each(COUNT, libc::SIGTERM, "wait", 1, |r| r.kill_group(libc::SIGTERM));
}

#[test]
fn three_signals_to_the_group_reach_the_command_three_times() {
    for how in ["handler", "wait"] {
        comes_once_each(COUNT, libc::SIGINT, how, 3, |r| r.kill_group(libc::SIGINT));
    }
}

#[test]
fn a_signal_to_coldtrace_alone_is_passed_on() {
    let signals =
        [libc::SIGTERM, libc::SIGUSR1, libc::SIGWINCH, libc::SIGALRM, libc::SIGRTMIN() + 2];
    for signal in signals {
        for mode in [COUNT, UNTRACED] {
            comes_once_each(mode, signal, "handler", 1, |r| r.kill(signal));
        }
        comes_once_each(COUNT, signal, "wait", 1, |r| r.kill(signal));
    }
}

#[test]
fn a_signal_to_coldtrace_alone_is_passed_on_each_time() {
    for signal in [libc::SIGTERM, libc::SIGUSR1] {
        for how in ["handler", "wait", "thread"] {
            comes_once_each(COUNT, signal, how, 3, |r| r.kill(signal));
        }
    }
}

// ---- which calls are counted ----

#[test]
fn numbers_without_a_name_can_be_asked_for() {
    holds("unnamed-numbers", &[], &[]);
    holds("unnamed-numbers", &[], &["-e", "trace=473,1000"]);
    let Some(program) = built("unnamed-numbers") else {
        return;
    };
    let (finished, record) = recorded(&["-e", "trace=1000"], &program, &[]);
    if finished.code() == Some(SKIPPED) {
        return;
    }
    let rows: Vec<_> = table::rows(&record).iter().map(|row| (row.number, row.calls)).collect();
    assert_eq!(rows, [(1000, 7)], "{}", table::render(&record));
    assert_eq!(record.measurement.filter, "installed", "{finished}");
}

/// Counts some calls of the fixture `processes-threads` below a filter that `under-filter` installs.
fn counted_under_filter(which: &str) -> Option<(Fixture, Record, Finished)> {
    let outer = built("under-filter")?;
    let fixture = Fixture::read("processes-threads");
    let program = built("processes-threads")?;
    let set = format!("trace={}", fixture.countable()?.join(","));
    let scratch = Scratch::new("under-filter");
    let report = scratch.path("report.json");
    let mut inner = count_json(&report);
    inner.args(["-e", &set, "--"]).arg(&program.path).args(&program.arguments);
    let finished = finish(Command::new(&outer.path).arg(which).args(words(&inner)));
    if finished.code() == Some(SKIPPED) {
        skip("no seccomp filter here");
        return None;
    }
    let record = read_record(&report, &finished);
    Some((fixture, record, finished))
}

#[test]
fn below_a_filter_of_somebody_elses_counts_are_exact_without_one_of_our_own() {
    for (which, why) in [
        ("plain", "coldtrace itself runs under a seccomp filter"),
        ("hidden", "the kernel refused it: Invalid argument"),
    ] {
        let Some((fixture, record, finished)) = counted_under_filter(which) else {
            return;
        };
        assert_eq!(finished.code(), fixture.exit, "{finished}");
        let mut wrong = table::differences(&fixture, &record);
        wrong.extend(table::contradictions(&record));
        assert!(
            wrong.is_empty(),
            "{which}:\n  {}\n\n{}\n{finished}",
            wrong.join("\n  "),
            table::render(&record)
        );
        assert_eq!(record.measurement.filter, "refused", "{which}");
        let reason = record.measurement.filter_reason.unwrap_or_default();
        assert!(reason.contains(why), "{which}: {reason}");
    }
}

// ---- what cannot run, and limits ----

/// Writes an executable file.
fn executable(path: &Path, text: &str) {
    std::fs::write(path, text).expect("scratch can be written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .expect("scratch can be changed");
}

#[test]
fn a_name_that_is_only_in_the_working_directory_is_not_found() {
    let scratch = Scratch::new("only-here");
    executable(&scratch.path("only-here"), "#!/bin/sh\nexit 4\n");
    let run = |path: &str| {
        let mut command = coldtrace("count");
        command.args(["-o", "/dev/null", "only-here"]);
        finish(command.env("PATH", path).current_dir(scratch.root()))
    };
    let finished = run("/nonexistent:/usr/bin:/bin");
    finished.assert_code(127);
    assert_eq!(finished.err(), "coldtrace: cannot run only-here: not found\n");
    run(&scratch.root().to_string_lossy()).assert_code(4);
}

#[test]
fn a_script_in_path_whose_interpreter_is_not_there_cannot_run() {
    let scratch = Scratch::new("interpreter");
    executable(&scratch.path("no-interpreter"), "#!/nonexistent/interpreter\n");
    for mode in [&["count", "-o", "/dev/null"][..], &["run", "--no-trace"], &["run"]] {
        let mut command = Command::new(coldtrace_path());
        command.args(mode).arg("no-interpreter").env("COLDTRACE_RUNS", scratch.path("runs"));
        command.env("PATH", format!("{}:/usr/bin:/bin", scratch.root().display()));
        let finished = finish(&mut command);
        finished.assert_code(126);
        let text = finished.err();
        assert!(
            text.contains("no-interpreter") && text.contains("interpreter or loader"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{mode:?}: {finished}");
    }
}

#[test]
fn a_part_of_path_that_is_too_long_is_passed_over() {
    let long = format!("/{}:/{}:/usr/bin:/bin", "x".repeat(300), "y/".repeat(4000));
    let run = |name: &str| {
        let mut command = coldtrace("count");
        finish(command.args(["-o", "/dev/null", name]).env("PATH", &long))
    };
    run("true").assert_code(0);
    run("no-such-command-here").assert_code(127);
}

#[test]
fn a_limit_on_file_sizes_is_reported_and_loses_no_output() {
    let scratch = Scratch::new("file-size");
    let runs = scratch.path("runs");
    for bytes in [1024u64, 16 * 1024, 20 * 1024, 64 * 1024] {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let mut command = coldtrace("run");
        command.arg("--runs").arg(&runs).args(["--", "head", "-c", "100000", "/dev/zero"]);
        command.stdout(writer);
        // SAFETY: setrlimit is async-signal-safe, and all that is called between fork and exec.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let running = start_with_own_stdout(&mut command);
        drop(command); // and with it our end of the pipe
        let all = read_all(reader);
        let finished = running.finish();
        finished.assert_code(125);
        assert!(finished.err().contains("File too large"), "{bytes}: {finished}");
        let shown = all.join().expect("the pipe was read").len();
        let ran = finished.err().contains("exited 0");
        assert_eq!(shown, if ran { 100_000 } else { 0 }, "{bytes}: {finished}");
        assert!(ran || bytes < 20 * 1024, "{bytes} are enough for a start: {finished}");
    }
}

#[test]
fn with_few_descriptors_it_works_or_says_why_not_in_one_line() {
    let scratch = Scratch::new("descriptors");
    let runs = scratch.path("runs");
    for limit in 3..=20u64 {
        for mode in [&["count", "-o", "/dev/null"][..], &["run"], &["run", "--no-trace"]] {
            // By a shell: the harness needs descriptors until it executes.
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {limit}; exec \"$@\""), "sh"]);
            command.arg(coldtrace_path()).args(mode).args(["--", "sh", "-c", "exit 6"]);
            command.env("COLDTRACE_RUNS", &runs);
            let finished = finish(&mut command);
            if finished.code() == Some(6) {
                continue;
            }
            // A shell that cannot be loaded says so itself.
            let text = finished.err();
            let says_why = text.contains("Too many open files");
            assert!(says_why && text.lines().count() == 1, "{mode:?} with {limit}: {finished}");
            assert!(limit < 16, "{limit} are enough: {finished}");
        }
    }
}
