//! What the command line promises: exit statuses, where output goes, which calls are counted, what
//! the command sees of the tracer (nothing), and signals.

mod support;

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use support::fixture::{SKIPPED, built};
use support::process::{Finished, finish, start_with_own_stdout};
use support::{Scratch, coldtrace, counted, find_program, is_root, skip, table};

/// `coldtrace count WORDS`.
fn count(words: &[&str]) -> Finished {
    finish(coldtrace("count").args(words))
}

/// Panics unless all that was said is one message of coldtrace's own: what is wrong, and perhaps a
/// line on what to do. Returns it.
#[track_caller]
fn one_message(finished: &Finished) -> String {
    let text = finished.err();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        (1..=2).contains(&lines.len()) && lines.iter().all(|line| line.starts_with("coldtrace: ")),
        "not one message: {finished}"
    );
    text
}

/// The rows of a text table as (last column, all columns), without rules, header and total.
fn text_rows(text: &str) -> Vec<(String, Vec<String>)> {
    text.lines()
        .skip_while(|line| !line.starts_with("---"))
        .skip(1)
        .take_while(|line| !line.starts_with("---"))
        .map(|line| {
            let fields: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            (fields.last().cloned().unwrap_or_default(), fields)
        })
        .collect()
}

// ---- exit status ----

#[test]
fn the_exit_status_is_the_commands_own() {
    count(&["true"]).assert_code(0);
    count(&["sh", "-c", "exit 7"]).assert_code(7);
    count(&["--", "sh", "-c", "exit 255"]).assert_code(255);
}

#[test]
fn a_death_by_signal_is_died_again() {
    for (name, number) in
        [("TERM", libc::SIGTERM), ("KILL", libc::SIGKILL), ("SEGV", libc::SIGSEGV)]
    {
        count(&["sh", "-c", &format!("kill -{name} $$")]).assert_signal(number);
    }
}

#[test]
fn a_command_that_is_not_there_is_127_in_one_line() {
    for name in ["no-such-command-here", "/nonexistent/command"] {
        // Where a directory of PATH cannot be searched it may be there: that is 126, as for env(1).
        let mut command = coldtrace("count");
        command.args(["-o", "/dev/null", "--", name]).env("PATH", "/usr/bin:/bin");
        let finished = finish(&mut command);
        finished.assert_code(127);
        assert!(one_message(&finished).contains(name), "{finished}");
    }
}

#[test]
fn a_command_that_cannot_run_is_126_in_one_line() {
    let scratch = Scratch::new("cannot-run");
    let file = scratch.path("file");
    std::fs::write(&file, "text\n").expect("scratch can be written");
    for path in [file.as_path(), scratch.root()] {
        let finished = count(&[&path.to_string_lossy()]);
        finished.assert_code(126);
        let message = one_message(&finished);
        assert!(message.contains("ermission denied"), "the system's words: {message}");
    }
}

#[test]
fn wrong_usage_is_125_in_one_line() {
    for words in [
        &[][..],
        &["-S", "no-such-key", "true"],
        &["-U", "no-such-column", "true"],
        &["--by", "no-such-thing", "true"],
        &["--top", "many", "true"],
        &["-e", "trace=no_such_call", "true"],
        &["-e", "status=no-such-status", "true"],
        &["-e", "trace=/(", "true"],
        &["-e", "trace=%no-such-class", "true"],
    ] {
        let finished = count(words);
        finished.assert_code(125);
        one_message(&finished);
        assert!(finished.stdout.is_empty(), "{finished}");
    }
}

#[test]
fn an_unknown_option_is_not_taken_for_the_command() {
    for option in ["--no-such-option", "--jsn", "-y"] {
        let finished = count(&[option, "true"]);
        finished.assert_code(125);
        assert!(one_message(&finished).contains(option), "{finished}");
    }
}

#[test]
fn an_unknown_call_is_named_unless_it_may_be_missing() {
    let finished = count(&["-e", "trace=openat,no_such_call", "true"]);
    finished.assert_code(125);
    assert!(one_message(&finished).contains("no_such_call"), "{finished}");
    count(&["-e", "trace=openat,?no_such_call", "true"]).assert_code(0);
}

#[test]
fn a_report_that_cannot_be_written_is_known_before_the_command_runs() {
    let scratch = Scratch::new("unwritable");
    let ran = scratch.path("ran");
    let finished = count(&["-o", "/nonexistent/x", "touch", &ran.to_string_lossy()]);
    finished.assert_code(125);
    assert!(!ran.exists(), "the command ran: {finished}");
}

// ---- where output goes ----

#[test]
fn the_commands_output_is_untouched_and_the_table_goes_to_stderr() {
    let script = r"printf 'a\000b\377\n'; echo to-stderr >&2";
    let finished = count(&["sh", "-c", script]);
    finished.assert_code(0);
    assert_eq!(finished.stdout, b"a\0b\xff\n");
    assert!(finished.err().starts_with("to-stderr\n"), "{finished}");
    assert!(text_rows(&finished.err()).iter().any(|(name, _)| name == "execve"), "{finished}");
}

#[test]
fn o_file_holds_the_table_and_stderr_nothing() {
    let scratch = Scratch::new("o-file");
    let report = scratch.path("report");
    let finished = count(&["-o", &report.to_string_lossy(), "echo", "out"]);
    finished.assert_code(0);
    assert_eq!(finished.out(), "out\n");
    assert_eq!(finished.err(), "", "{finished}");
    let text = std::fs::read_to_string(&report).expect("the report is there");
    assert!(text_rows(&text).iter().any(|(name, _)| name == "write"), "{text}");
}

#[test]
fn o_dash_prints_the_table_and_sends_the_commands_output_to_stderr() {
    let finished = count(&["-o", "-", "echo", "from-the-command"]);
    finished.assert_code(0);
    assert!(text_rows(&finished.out()).iter().any(|(name, _)| name == "write"), "{finished}");
    assert_eq!(finished.err(), "from-the-command\n", "{finished}");
}

#[test]
fn o_dash_json_is_one_record() {
    let finished = count(&["--json", "-o", "-", "true"]);
    finished.assert_code(0);
    let record: coldtrace::record::Record =
        serde_json::from_slice(&finished.stdout).unwrap_or_else(|e| panic!("{e}: {finished}"));
    assert_eq!(table::calls(&record, "execve"), 1);
}

#[test]
fn a_closed_pipe_is_a_quiet_success() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let finished =
        start_with_own_stdout(coldtrace("count").args(["-o", "-", "true"]).stdout(writer)).finish();
    finished.assert_code(0);
    assert_eq!(finished.err(), "", "{finished}");
}

// ---- which calls are counted ----

#[test]
fn e_trace_counts_the_same_and_only_that() {
    let scratch = Scratch::new("e-trace");
    for directory in ["a", "b", "c"] {
        std::fs::create_dir_all(scratch.path(directory)).expect("scratch can be written");
    }
    let Some(ls) = find_program("ls") else {
        return skip("no ls");
    };
    let arguments = ["-lR".into(), scratch.root().to_owned()];
    let all = counted(&[], &ls, &arguments);
    let expected = table::row(&all, "openat").expect("ls opens files");
    for options in [&["-e", "trace=openat"][..], &["-e", "openat"], &["--trace=openat"]] {
        let record = counted(options, &ls, &arguments);
        let [row] = table::rows(&record) else {
            panic!("{options:?}: one row is wanted\n{}", table::render(&record));
        };
        assert_eq!(
            (&row.name, row.calls, &row.errors),
            (&expected.name, expected.calls, &expected.errors),
            "{options:?}"
        );
    }
}

#[test]
fn e_trace_is_exact_over_processes_and_threads() {
    let Some(program) = built("processes-threads") else {
        return;
    };
    let record = counted(&["-e", "trace=getppid,close"], &program.path, &program.arguments);
    let got: BTreeMap<&str, (u64, u64)> = table::rows(&record)
        .iter()
        .map(|row| (row.name.as_str(), (row.calls, row.error_count())))
        .collect();
    let expected = BTreeMap::from([("getppid", (3200, 0)), ("close", (1024, 1024))]);
    assert_eq!(got, expected);
    let measurement = &record.measurement;
    assert!(
        measurement.filter == "installed" || measurement.filter_reason.is_some(),
        "{measurement:?}"
    );
    let tree = record.tree.expect("there is a tree");
    assert_eq!((tree.processes, tree.threads), (9, 33), "all are followed all the same");
}

#[test]
fn a_negated_set_counts_all_the_rest() {
    let Some(program) = built("processes-threads") else {
        return;
    };
    let record = counted(&["-e", "trace=!getppid,close"], &program.path, &program.arguments);
    assert_eq!(table::row(&record, "getppid"), None);
    assert_eq!(table::row(&record, "close"), None);
    assert_eq!(table::calls(&record, "clone"), 24);
    assert_eq!(table::calls(&record, "exit_group"), 9);
}

#[test]
fn a_regular_expression_and_a_class_choose_calls() {
    let Some(program) = built("processes-threads") else {
        return;
    };
    let named = counted(&["-e", "trace=/^get"], &program.path, &program.arguments);
    assert_eq!(table::calls(&named, "getppid"), 3200);
    assert_eq!(table::rows(&named).len(), 1, "{}", table::render(&named));
    let class = counted(&["-e", "trace=%process"], &program.path, &program.arguments);
    assert_eq!(table::calls(&class, "fork"), 8);
    assert_eq!(table::calls(&class, "getppid"), 0);
}

#[test]
fn status_chooses_failed_or_successful_calls() {
    let Some(program) = built("processes-threads") else {
        return;
    };
    for options in [&["-Z"][..], &["-e", "status=failed"]] {
        let record = counted(options, &program.path, &program.arguments);
        assert_eq!(table::rows(&record).len(), 1, "{options:?}\n{}", table::render(&record));
        assert_eq!(table::calls(&record, "close"), 1024, "{options:?}");
    }
    for options in [&["-z"][..], &["-e", "status=successful"]] {
        let record = counted(options, &program.path, &program.arguments);
        assert_eq!(table::row(&record, "close"), None, "{options:?}");
        assert_eq!(table::calls(&record, "getppid"), 3200, "{options:?}");
    }
}

// ---- what the table shows ----

/// The table of `processes-threads` as text.
fn shown(options: &[&str]) -> Option<String> {
    let program = built("processes-threads")?;
    let scratch = Scratch::new("shown");
    let report = scratch.path("report");
    let finished = finish(
        coldtrace("count").args(options).arg("-o").arg(&report).arg("--").arg(&program.path),
    );
    finished.assert_code(0);
    Some(std::fs::read_to_string(&report).unwrap_or_else(|error| panic!("{error}: {finished}")))
}

#[test]
fn capital_s_sorts_the_rows() {
    let Some(text) = shown(&["-S", "calls", "-U", "calls,name"]) else {
        return;
    };
    let calls: Vec<u64> = text_rows(&text)
        .iter()
        .map(|(_, fields)| fields[0].parse().unwrap_or_else(|_| panic!("no number: {text}")))
        .collect();
    assert_eq!(calls.first(), Some(&3200), "{text}");
    assert!(calls.is_sorted_by(|a, b| a >= b), "{text}");
    let Some(text) = shown(&["-S", "name"]) else {
        return;
    };
    let names: Vec<String> = text_rows(&text).into_iter().map(|(name, _)| name).collect();
    assert!(names.len() > 5 && names.is_sorted(), "{text}");
}

#[test]
fn capital_u_chooses_columns_and_leaves_no_cell_blank() {
    let Some(text) = shown(&["-U", "name,calls,errors"]) else {
        return;
    };
    let rows = text_rows(&text);
    assert!(rows.iter().all(|(_, fields)| fields.len() == 3), "{text}");
    assert!(rows.iter().any(|(_, fields)| fields[..] == ["close", "1024", "1024"]), "{text}");
    assert!(rows.iter().any(|(_, fields)| fields[..] == ["getppid", "3200", "0"]), "{text}");
    let Some(text) = shown(&[]) else { return };
    let rows = text_rows(&text);
    let width = rows[0].1.len();
    assert!(rows.iter().all(|(_, fields)| fields.len() == width), "no blank cells: {text}");
}

#[test]
fn top_folds_the_rest_into_one_line() {
    let Some(text) = shown(&["--top", "3", "-S", "calls"]) else {
        return;
    };
    let rows = text_rows(&text);
    assert_eq!(rows.len(), 4, "{text}");
    assert_eq!(rows[0].0, "getppid", "{text}");
    assert!(text.contains("more)"), "{text}");
}

#[test]
fn every_line_fits_80_columns_where_output_is_no_terminal() {
    let Some(text) = shown(&[]) else { return };
    let too_long: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(too_long.is_empty(), "{too_long:#?}");
}

#[test]
fn by_process_thread_and_exe_divide_the_same_calls() {
    let Some(program) = built("processes-threads") else {
        return;
    };
    for (by, groups, getppid_in_each) in
        [("process", 9, Some(400)), ("thread", 33, Some(100)), ("exe", 1, None)]
    {
        let record = counted(&["--by", by], &program.path, &program.arguments);
        let found = record.groups.clone().unwrap_or_default();
        assert_eq!(found.len(), groups, "--by {by}: {found:#?}");
        let counts: Vec<u64> = found
            .iter()
            .filter_map(|group| group.syscalls.iter().find(|row| row.name == "getppid"))
            .map(|row| row.calls)
            .collect();
        assert_eq!(counts.iter().sum::<u64>(), 3200, "--by {by}");
        if let Some(each) = getppid_in_each {
            assert!(counts.iter().all(|&calls| calls == each), "--by {by}: {counts:?}");
        }
        let total: u64 = found.iter().flat_map(|group| &group.syscalls).map(|row| row.calls).sum();
        assert_eq!(Some(total), record.tree.map(|tree| tree.calls), "--by {by}");
    }
}

#[test]
fn split_tells_operations_apart() {
    let Some(program) = built("exit-group") else {
        return;
    };
    let record = counted(&["--split"], &program.path, &program.arguments);
    let futex: Vec<(&str, u64, u64)> = table::rows(&record)
        .iter()
        .filter(|row| row.name.starts_with("futex"))
        .map(|row| (row.name.as_str(), row.calls, row.unfinished))
        .collect();
    assert_eq!(futex, [("futex(WAIT)", 1, 1)]);
}

// ---- what the command sees of the tracer ----

#[test]
fn capital_e_sets_and_removes_variables_of_the_command() {
    let script = "echo ${ADDED-unset} ${REMOVED-unset}";
    let finished = finish(
        coldtrace("count")
            .args(["-E", "ADDED=a value", "-E", "REMOVED", "sh", "-c", script])
            .env("REMOVED", "still here"),
    );
    finished.assert_code(0);
    assert_eq!(finished.out(), "a value unset\n");
}

#[test]
fn the_command_runs_as_another_user_where_root_asks_for_it() {
    if !is_root() {
        return skip("not root");
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let Some(uid) = passwd
        .lines()
        .find_map(|line| line.strip_prefix("nobody:"))
        .and_then(|line| line.split(':').nth(1))
    else {
        return skip("no user nobody");
    };
    let finished = count(&["-u", "nobody", "id", "-u"]);
    finished.assert_code(0);
    assert_eq!(finished.out().trim(), uid);
    let finished = count(&["-u", "no-such-user-here", "id", "-u"]);
    finished.assert_code(125);
    assert!(one_message(&finished).contains("no-such-user-here"), "{finished}");
}

#[test]
fn nothing_of_the_tracer_leaks_into_the_command() {
    // A process that counts by itself is under a filter, and can see that: docs/fast.md.
    let status = |more: &str| {
        format!("grep -E '^(Sig(Blk|Ign|Cgt)|NoNewPrivs|Umask{more}):' /proc/self/status")
    };
    let script = status("|Seccomp");
    let untraced = finish(Command::new("sh").args(["-c", &script]));
    let traced = count(&["--engine", "ptrace", "sh", "-c", &script]);
    assert_eq!(untraced.out(), traced.out(), "{script}");
    for script in [
        "ls /proc/self/fd",
        &status(""),
        "env -u COLDTRACE_TEST_MARK | grep -v ^_= | sort",
        "cat /proc/self/limits",
        "ls /proc/self/fd 0<&-",
    ] {
        let untraced = finish(Command::new("sh").args(["-c", script]));
        let traced = count(&["sh", "-c", script]);
        assert_eq!(untraced.out(), traced.out(), "{script}");
    }
}

#[test]
fn closed_descriptors_stay_closed() {
    // The shell closes them before coldtrace starts; what Rust's runtime opens in their place must
    // not reach the command.
    let program = "exec 0<&- 2>&-; exec \"$@\" sh -c 'ls /proc/self/fd'";
    let inside =
        |words: &[&str]| finish(Command::new("sh").args(["-c", program, "sh"]).args(words)).out();
    let path = support::coldtrace_path().to_string_lossy();
    assert_eq!(inside(&["env"]), inside(&[&path, "count", "-o", "/dev/null"]));
}

#[test]
fn an_ignored_sigchld_hinders_nothing_and_stays_ignored() {
    let mut command = coldtrace("count");
    command.args(["-o", "-", "grep", "SigIgn", "/proc/self/status"]);
    // SAFETY: signal is async-signal-safe, and all that is called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            Ok(())
        });
    }
    let finished = finish(&mut command);
    finished.assert_code(0);
    let ignored = finished.err();
    let mask = ignored.split_whitespace().last().unwrap_or_default();
    let mask = u64::from_str_radix(mask, 16).unwrap_or_else(|_| panic!("{finished}"));
    assert_ne!(mask & (1 << (libc::SIGCHLD - 1)), 0, "{finished}");
    assert!(text_rows(&finished.out()).iter().any(|(name, _)| name == "execve"), "{finished}");
}

// ---- where ptrace is refused ----

#[test]
fn a_refused_ptrace_is_explained_and_the_command_not_run() {
    let Some(helper) = built("no-ptrace") else {
        return;
    };
    for errno in ["EPERM", "ENOSYS"] {
        let scratch = Scratch::new("refused");
        let ran = scratch.path("ran");
        let finished = finish(
            Command::new(&helper.path)
                .arg(errno)
                .arg(support::coldtrace_path())
                .args(["count", "touch"])
                .arg(&ran),
        );
        if finished.code() == Some(SKIPPED) {
            return skip("no seccomp filter here");
        }
        finished.assert_code(125);
        let message = one_message(&finished);
        assert!(message.contains("ptrace"), "{errno}: {message}");
        assert!(!ran.exists(), "{errno}: the command ran: {finished}");
    }
}

#[test]
fn below_another_tracer_the_cause_and_the_remedy_are_named() {
    if find_program("strace").is_none() {
        return skip("no strace");
    }
    let scratch = Scratch::new("traced");
    let ran = scratch.path("ran");
    let finished = finish(
        Command::new("strace")
            .args(["-f", "-q", "-o", "/dev/null"])
            .arg(support::coldtrace_path())
            .args(["count", "touch"])
            .arg(&ran),
    );
    finished.assert_code(125);
    let message = one_message(&finished);
    assert!(message.contains("strace"), "who traces: {message}");
    assert!(!ran.exists(), "the command ran: {finished}");
}

// ---- signals ----

/// Counts the fixture `waits`, and sends signals once it is ready.
fn signalled(
    argument: Option<&str>,
    send: impl FnOnce(&support::process::Running),
) -> Option<(Finished, String)> {
    let program = built("waits")?;
    let scratch = Scratch::new("signalled");
    let report: PathBuf = scratch.path("report");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let mut command = coldtrace("count");
    command.arg("-o").arg(&report).arg("--").arg(&program.path).args(argument).stdout(writer);
    let running = start_with_own_stdout(&mut command);
    drop(command); // and with it our end of the pipe
    let mut ready = [0];
    let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives until poll returns.
    let polled = unsafe { libc::poll(&raw mut poll, 1, 60_000) };
    let is_ready = polled == 1 && matches!(reader.read(&mut ready), Ok(1));
    assert!(is_ready, "never ready: {}", running.finish());
    send(&running);
    let finished = running.finish();
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    Some((finished, text))
}

fn has_the_table(text: &str) -> bool {
    text_rows(text).iter().any(|(name, _)| name == "ppoll")
        && text_rows(text).iter().any(|(name, _)| name == "execve")
}

#[test]
fn ctrl_c_ends_both_and_the_table_is_there() {
    let Some((finished, text)) = signalled(None, |running| running.kill_group(libc::SIGINT)) else {
        return;
    };
    finished.assert_signal(libc::SIGINT);
    assert!(text_rows(&text).iter().any(|(name, _)| name == "execve"), "{text}\n{finished}");
}

#[test]
fn sigterm_to_the_tracer_alone_reaches_the_command() {
    let Some((finished, text)) = signalled(None, |running| running.kill(libc::SIGTERM)) else {
        return;
    };
    finished.assert_signal(libc::SIGTERM);
    assert!(text_rows(&text).iter().any(|(name, _)| name == "execve"), "{text}\n{finished}");
}

#[test]
fn a_command_that_survives_a_signal_ends_as_it_likes() {
    let Some((finished, text)) =
        signalled(Some("handle"), |running| running.kill_group(libc::SIGINT))
    else {
        return;
    };
    finished.assert_code(42);
    assert!(has_the_table(&text), "{text}\n{finished}");
    let Some((finished, text)) = signalled(Some("handle"), |running| running.kill(libc::SIGTERM))
    else {
        return;
    };
    finished.assert_code(42);
    assert!(has_the_table(&text), "{text}\n{finished}");
}

#[test]
fn a_killed_tracer_leaves_no_command_behind() {
    // `finish` panics over anything that is still there.
    let Some((finished, _)) = signalled(None, |running| running.kill(libc::SIGKILL)) else {
        return;
    };
    finished.assert_signal(libc::SIGKILL);
}
