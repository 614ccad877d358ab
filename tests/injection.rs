//! Every request of the loop fails once, with every error that a kernel could give, at its first
//! stops and later: coldtrace ends, says what happened, leaves nobody stopped or behind, and passes
//! on how the command ended where the command could run.
//!
//! The seam is `src/tracer/inject.rs`, which is there in debug builds only. ESRCH comes with the
//! task's death, as it does in reality, and not for PTRACE_CONT at an exit stop: a SIGKILL does not
//! wake a task from that one.

#![cfg(debug_assertions)]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use coldtrace::record::Record;
use support::fixture::built;
use support::process::{Finished, finish};
use support::{Scratch, coldtrace_path, count_json, table};

/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(30);

/// What came of a command during which one request failed.
struct Seen {
    what: String,
    finished: Finished,
    /// None where coldtrace gave up.
    record: Option<Record>,
    /// The command has run.
    ran: bool,
}

impl Seen {
    #[track_caller]
    fn record(&self) -> &Record {
        self.record
            .as_ref()
            .unwrap_or_else(|| panic!("{}: no record: {}", self.what, self.finished))
    }

    /// Panics unless coldtrace gave up with one line.
    #[track_caller]
    fn gave_up_in_one_line(&self) {
        let text = self.finished.err();
        let one_line = text.starts_with("coldtrace: ") && text.lines().count() == 1;
        assert!(
            one_line && self.finished.code() == Some(125),
            "{}: not one line and 125: {}",
            self.what,
            self.finished
        );
    }

    /// Panics unless the command did not run, and coldtrace gave up with one line or, where the
    /// process that was to be the command was killed, died by SIGKILL as that did.
    #[track_caller]
    fn never_ran(&self) {
        assert!(!self.ran, "{}: the command ran: {}", self.what, self.finished);
        if self.finished.signal() != Some(libc::SIGKILL) {
            self.gave_up_in_one_line();
        }
    }

    /// Panics unless the exit status is 5, the command's own.
    #[track_caller]
    fn exited_5(&self) -> &Self {
        assert_eq!(self.finished.code(), Some(5), "{}: {}", self.what, self.finished);
        self
    }

    /// Panics unless the counts are those of an undisturbed run, and nothing is said.
    #[track_caller]
    fn is_undisturbed(&self, right: &Seen) {
        self.exited_5();
        let (record, right) = (self.record(), right.record());
        let calls = |record: &Record| {
            let rows = table::rows(record).iter().map(|row| (row.name.clone(), row.calls));
            rows.collect::<std::collections::BTreeMap<_, _>>()
        };
        assert_eq!(calls(record), calls(right), "{}", self.what);
        assert_eq!(record.measurement.events_lost, 0, "{}", self.what);
        assert_eq!(record.measurement.notes, Vec::<String>::new(), "{}", self.what);
    }
}

/// What the usual command does: it opens a file, starts a program, and exits 5.
const SCRIPT: &str = "ls / >/dev/null; exit 5";

/// The same, and a signal stops it on the way and another lets it go on, however late the first is.
const STOPS: &str = "(while sleep 0.1; kill -CONT $$ 2>/dev/null; do :; done) & \
    kill -STOP $$; kill $!; wait; exit 5";

/// Counts `sh -c SCRIPT` with one failure: `REQUEST:NTH:ERRNO[:kill]`, or none if it is empty.
fn injected(failure: &str, options: &[&str], script: &str) -> Seen {
    let scratch = Scratch::new("injection");
    let ran = scratch.path("ran");
    let script = format!(": > {}; {script}", ran.display());
    let words = ["/bin/sh".into(), "-c".into(), script];
    injected_into(failure, options, &words, &scratch.path("report.json"), &ran)
}

fn injected_into(
    failure: &str,
    options: &[&str],
    words: &[String],
    report: &Path,
    ran: &Path,
) -> Seen {
    let mut count = count_json(report);
    count.args(options).arg("--").args(words);
    // The limit of the harness is long: a hang is to be seen soon.
    let mut command = Command::new("timeout");
    command
        .args(["-s", "KILL", &LIMIT.as_secs().to_string()])
        .arg(coldtrace_path())
        .args(count.get_args());
    // What cargo sets makes the shell and `ls` search in more places, and the stops more.
    command.env("COLDTRACE_INJECT", failure).env("PATH", "/usr/bin:/bin");
    command.env_remove("LD_LIBRARY_PATH");
    let what = format!("{failure} {options:?}");
    let begun = Instant::now();
    let finished = finish(&mut command);
    let text = std::fs::read(report).unwrap_or_default();
    let record = (!text.is_empty()).then(|| {
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{what}: {error}: {finished}"))
    });
    // `timeout` ends itself by SIGKILL too, as does coldtrace after its command.
    assert!(begun.elapsed() < LIMIT, "{what}: it did not end in time: {finished}");
    Seen { what, finished, record, ran: ran.exists() }
}

/// Each `REQUEST:NTH:ERRNO` of these.
fn failures(requests: &[(&str, &[u32])], errors: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for (request, numbers) in requests {
        for number in *numbers {
            all.extend(errors.iter().map(|errno| format!("{request}:{number}:{errno}")));
        }
    }
    all
}

/// Stops of the launcher, of the shell, of `ls`, and of the shell again.
const EARLY_AND_LATE: &[u32] = &[1, 2, 3, 10, 60, 61, 150, 151, 250, 251];

/// The same without the launcher's.
const AFTER_THE_EXEC: &[u32] = &[60, 61, 100, 101, 150, 151, 200, 201, 250, 251];

// ---- errors that change nothing ----

#[test]
fn a_request_that_was_interrupted_is_made_again() {
    let right = injected("", &[], SCRIPT);
    let requests: &[(&str, &[u32])] = &[
        ("seize", &[1, 2]),
        ("interrupt", &[1, 2]),
        ("syscall", EARLY_AND_LATE),
        ("cont", &[1, 2]),
        ("message", &[1, 2, 3, 4, 5]),
        ("siginfo", &[1, 2, 3, 4, 5, 6]),
        ("info", EARLY_AND_LATE),
        ("wait", EARLY_AND_LATE),
    ];
    for failure in failures(requests, &["EINTR"]) {
        injected(&failure, &[], SCRIPT).is_undisturbed(&right);
    }
    for failure in failures(&[("getregs", EARLY_AND_LATE)], &["EINTR"]) {
        injected(&failure, &["--no-syscall-info"], SCRIPT).is_undisturbed(&right);
    }
    let filter = &["-e", "trace=openat"];
    let right = injected("", filter, SCRIPT);
    for failure in failures(&[("cont", &[1, 2, 3, 10, 20]), ("info", &[1, 10, 20])], &["EINTR"]) {
        injected(&failure, filter, SCRIPT).is_undisturbed(&right);
    }
    let seen = injected("listen:1:EINTR", &[], STOPS);
    seen.exited_5();
    assert_eq!(seen.record().measurement.notes, Vec::<String>::new());
}

#[test]
fn a_kernel_that_does_not_know_syscall_info_is_met_in_the_middle() {
    let right = injected("", &[], SCRIPT);
    for failure in failures(&[("info", EARLY_AND_LATE)], &["ENOSYS", "EIO"]) {
        injected(&failure, &[], SCRIPT).is_undisturbed(&right);
    }
    // Below a filter it shows at the launcher's first stops; a filter's own stop is none of them.
    let filter = &["-e", "trace=openat"];
    let right = injected("", filter, SCRIPT);
    for failure in failures(&[("info", &[1, 2, 3])], &["ENOSYS", "EIO"]) {
        injected(&failure, filter, SCRIPT).is_undisturbed(&right);
    }
}

#[test]
fn where_only_the_calibration_fails_the_cost_is_unknown() {
    let right = injected("", &[], SCRIPT);
    assert!(right.record().measurement.cost_per_call_ns.is_some());
    let requests: &[(&str, &[u32])] = &[("seize", &[2]), ("interrupt", &[2])];
    for failure in failures(requests, &["EPERM", "ENOSYS", "ESRCH:kill"]) {
        let seen = injected(&failure, &[], SCRIPT);
        seen.is_undisturbed(&right);
        assert_eq!(seen.record().measurement.cost_per_call_ns, None, "{failure}");
    }
}

// ---- before the command ----

#[test]
fn a_command_that_cannot_be_seized_or_stopped_does_not_run() {
    let requests: &[(&str, &[u32])] = &[("seize", &[1]), ("interrupt", &[1])];
    for failure in failures(requests, &["EPERM", "ENOSYS", "EIO", "ESRCH:kill"]) {
        let seen = injected(&failure, &[], SCRIPT);
        seen.gave_up_in_one_line();
        assert!(!seen.ran, "{failure}: the command ran: {}", seen.finished);
    }
}

#[test]
fn a_command_let_go_before_its_exec_gives_its_status_all_the_same() {
    for failure in failures(&[("syscall", &[1, 2, 3, 5, 10, 20])], &["EPERM", "ENOSYS"]) {
        let seen = injected(&failure, &[], SCRIPT);
        if seen.ran {
            seen.exited_5();
        } else {
            seen.gave_up_in_one_line();
        }
    }
}

#[test]
fn a_command_let_go_before_its_exec_does_not_run_under_a_filter_without_a_tracer() {
    for failure in failures(&[("syscall", &[1, 2, 3, 5, 10])], &["EPERM", "ENOSYS"]) {
        let seen = injected(&failure, &["-e", "trace=openat"], SCRIPT);
        if seen.ran {
            seen.exited_5();
        } else {
            seen.never_ran();
        }
    }
}

// ---- stops that cannot be understood ----

/// Exit status 5, something lost and said, and at most one call and no process fewer.
#[track_caller]
fn lost_and_said(failure: &str, options: &[&str], right: &Seen) {
    let seen = injected(failure, options, SCRIPT);
    seen.exited_5();
    let (record, right) = (seen.record(), right.record());
    let shown = table::render(record);
    assert_ne!(record.measurement.events_lost, 0, "{}: {shown}", seen.what);
    assert_ne!(record.measurement.notes, Vec::<String>::new(), "{}: {shown}", seen.what);
    let tree = |record: &Record| record.tree.clone().unwrap_or_default();
    let (calls, all) = (tree(record).calls, tree(right).calls);
    assert!((all - 1..=all).contains(&calls), "{}: {calls} of {all}: {shown}", seen.what);
    assert_eq!(tree(record).processes, tree(right).processes, "{}: {shown}", seen.what);
}

#[test]
fn a_call_that_cannot_be_asked_for_is_lost_and_said() {
    let right = injected("", &[], SCRIPT);
    for failure in failures(&[("info", EARLY_AND_LATE)], &["EPERM"]) {
        lost_and_said(&failure, &[], &right);
    }
    for failure in failures(&[("getregs", EARLY_AND_LATE)], &["EPERM", "ENOSYS", "EIO"]) {
        lost_and_said(&failure, &["--no-syscall-info"], &right);
    }
    let filter = &["-e", "trace=openat"];
    let right = injected("", filter, SCRIPT);
    for failure in failures(&[("info", &[1, 2, 20, 21])], &["EPERM"]) {
        lost_and_said(&failure, filter, &right);
    }
}

#[test]
fn a_child_or_an_exec_that_cannot_be_asked_for_is_lost_and_said() {
    // Two execs and the fork between them; what follows are exit stops, which say enough as they
    // are.
    let requests: &[(&str, &[u32])] = &[("message", &[1, 2, 3]), ("siginfo", &[1, 2, 3])];
    for options in [&[][..], &["-e", "trace=wait4,execve"]] {
        let right = injected("", options, SCRIPT);
        for failure in failures(requests, &["EPERM", "ENOSYS", "EIO"]) {
            lost_and_said(&failure, options, &right);
        }
    }
}

#[test]
fn an_exit_or_a_senders_name_that_cannot_be_asked_for_changes_no_count() {
    let right = injected("", &[], SCRIPT);
    let requests: &[(&str, &[u32])] = &[("message", &[4, 5]), ("siginfo", &[4, 5, 6])];
    for failure in failures(requests, &["EPERM", "ENOSYS"]) {
        injected(&failure, &[], SCRIPT).is_undisturbed(&right);
    }
}

/// Errors of all calls, by name.
fn errors(seen: &Seen) -> std::collections::BTreeMap<String, u64> {
    let mut errors = std::collections::BTreeMap::new();
    for (name, n) in table::rows(seen.record()).iter().flat_map(|row| &row.errors) {
        *errors.entry(name.clone()).or_insert(0) += n;
    }
    errors
}

#[test]
fn a_stop_that_was_lost_spoils_one_call_at_most() {
    for (request, options) in [("info", &[][..]), ("getregs", &["--no-syscall-info"])] {
        let right = errors(&injected("", options, SCRIPT));
        for failure in failures(&[(request, AFTER_THE_EXEC)], &["EPERM"]) {
            let seen = injected(&failure, options, SCRIPT);
            let found = errors(&seen);
            let names = right.keys().chain(found.keys());
            let get = |errors: &std::collections::BTreeMap<String, u64>, name: &String| {
                errors.get(name).copied().unwrap_or(0)
            };
            let most = names.map(|name| get(&right, name).abs_diff(get(&found, name))).max();
            assert!(most.unwrap_or(0) <= 1, "{}: {found:?}, right is {right:?}", seen.what);
        }
    }
}

// ---- tasks that cannot be resumed ----

#[test]
fn a_task_that_cannot_be_resumed_is_let_go_and_the_command_ends_as_it_does() {
    let requests: &[(&str, &[u32])] = &[("syscall", AFTER_THE_EXEC), ("cont", &[1, 2])];
    for failure in failures(requests, &["EPERM", "ENOSYS", "EIO"]) {
        let seen = injected(&failure, &[], SCRIPT);
        let notes = &seen.exited_5().record().measurement.notes;
        assert!(notes.iter().any(|note| note.contains("was let go")), "{}: {notes:?}", seen.what);
    }
}

#[test]
fn a_task_that_cannot_be_resumed_below_a_filter_does_not_go_on_with_calls_that_fail() {
    let filter = &["-e", "trace=openat"];
    for failure in failures(&[("cont", &[1, 2, 3, 10])], &["EPERM"]) {
        let seen = injected(&failure, filter, SCRIPT);
        let notes = &seen.record().measurement.notes;
        assert_ne!(*notes, Vec::<String>::new(), "{}: {}", seen.what, seen.finished);
        let text = seen.finished.err();
        let failed = text.contains("Function not implemented") || text.contains("Error 38");
        assert!(!failed, "{}: a call was refused for want of a tracer: {text}", seen.what);
    }
}

#[test]
fn a_stopped_task_that_cannot_be_listened_to_is_let_go_and_goes_on() {
    for failure in failures(&[("listen", &[1])], &["EPERM", "ENOSYS"]) {
        let seen = injected(&failure, &[], STOPS);
        let notes = &seen.exited_5().record().measurement.notes;
        assert!(notes.iter().any(|note| note.contains("was let go")), "{}: {notes:?}", seen.what);
    }
    // The kernel's own error for one that has left its stop.
    injected("listen:1:EIO", &[], SCRIPT).exited_5();
}

#[test]
fn a_call_that_cannot_be_repaired_is_said_so() {
    let Some(program) = built("stopping-signal-then-wait") else {
        return;
    };
    let scratch = Scratch::new("setregs");
    let words = [program.path.to_string_lossy().into_owned()];
    let untouched = scratch.path("never");
    for errno in ["EPERM", "ENOSYS", "EIO", "ESRCH:kill", "EINTR"] {
        let failure = format!("setregs:1:{errno}");
        let report = scratch.path(&format!("{errno}.json"));
        let seen = injected_into(&failure, &[], &words, &report, &untouched);
        let measurement = &seen.record().measurement;
        match errno {
            "EINTR" => {
                assert_eq!(seen.finished.code(), Some(0), "{failure}: {}", seen.finished);
                assert_eq!(measurement.notes, Vec::<String>::new(), "{failure}");
            }
            "ESRCH:kill" => _ = seen.finished.assert_signal(libc::SIGKILL),
            _ => {
                // The program got the EINTR, and says so by its status.
                assert!(
                    seen.finished.code().is_some_and(|c| c > 100),
                    "{failure}: {}",
                    seen.finished
                );
                assert_ne!(measurement.notes, Vec::<String>::new(), "{failure}");
            }
        }
    }
}

// ---- death at a request ----

/// Either only `ls` died and the shell went on, or the shell died; each as the record says.
#[track_caller]
fn died_or_went_on(seen: &Seen) {
    let outcome = &seen.record().outcome;
    if seen.finished.code() == Some(5) {
        assert_eq!(outcome.exit_code, Some(5), "{}", seen.what);
    } else {
        seen.finished.assert_signal(libc::SIGKILL);
        assert_eq!(outcome.signal.as_deref(), Some("SIGKILL"), "{}", seen.what);
    }
    assert_eq!(seen.record().measurement.events_lost, 0, "{}: a death is nothing lost", seen.what);
}

#[test]
fn a_task_killed_at_any_request_has_its_end() {
    let requests: &[(&str, &[u32])] = &[
        ("syscall", AFTER_THE_EXEC),
        ("info", AFTER_THE_EXEC),
        ("message", &[2, 3, 4, 5]),
        ("siginfo", &[2, 3, 4, 5, 6]),
    ];
    for failure in failures(requests, &["ESRCH:kill"]) {
        died_or_went_on(&injected(&failure, &[], SCRIPT));
    }
    for failure in failures(&[("getregs", AFTER_THE_EXEC)], &["ESRCH:kill"]) {
        died_or_went_on(&injected(&failure, &["--no-syscall-info"], SCRIPT));
    }
    let filter = &["-e", "trace=openat"];
    let middle = injected("", filter, SCRIPT).record().measurement.stops as u32 / 2;
    let requests: &[(&str, &[u32])] =
        &[("cont", &[1, 2, 3]), ("info", &[middle, middle + 1]), ("message", &[3, 4])];
    for failure in failures(requests, &["ESRCH:kill"]) {
        died_or_went_on(&injected(&failure, filter, SCRIPT));
    }
    died_or_went_on(&injected("listen:1:ESRCH:kill", &[], STOPS));
}

#[test]
fn a_command_killed_before_its_exec_does_not_run() {
    let requests: &[(&str, &[u32])] = &[("syscall", &[1, 2, 3, 4]), ("info", &[1, 2, 3])];
    for failure in failures(requests, &["ESRCH:kill"]) {
        let seen = injected(&failure, &[], SCRIPT);
        seen.never_ran();
    }
}

#[test]
fn a_command_killed_at_its_exec_died_by_sigkill() {
    for failure in failures(&[("message", &[1]), ("siginfo", &[1])], &["ESRCH:kill"]) {
        injected(&failure, &[], SCRIPT).finished.assert_signal(libc::SIGKILL);
    }
}

// ---- waiting ----

#[test]
fn a_wait_that_fails_is_one_line_and_ends_the_command() {
    for failure in failures(&[("wait", &[2, 3, 10, 60, 150, 250])], &["EPERM", "ENOSYS", "ESRCH"]) {
        // The harness panics over whoever is left behind.
        injected(&failure, &[], SCRIPT).gave_up_in_one_line();
    }
    // The first only asks whether there are children of somebody else.
    injected("wait:1:EPERM", &[], SCRIPT).exited_5();
}
