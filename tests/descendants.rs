//! What a command leaves behind when it ends: counted and waited for, let go, or ended in time.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use coldtrace::record::Record;
use support::board::{Board, Word, assert_untraced, is_traced, reach_state, state, until};
use support::fixture::built;
use support::process::{Finished, Running, finish, start};
use support::{Scratch, coldtrace, count_json, read_record, table};

/// Every way to be left behind that the fixture knows, and how many processes that makes.
const KINDS: &[(&str, u64)] = &[
    ("child", 2),
    ("orphan", 3),
    ("daemon", 3),
    ("session", 2),
    ("group", 2),
    ("sibling", 3),
    ("uncle", 2),
];

/// coldtrace, counting the fixture `tree`.
struct Traced {
    board: Board,
    running: Running,
    report: PathBuf,
    scratch: Scratch,
}

impl Traced {
    fn start(options: &[&str], words: &[&str], go: bool) -> Option<Self> {
        let program = built("tree")?;
        let board = Board::new();
        board.set(Word::Go, go.into());
        let scratch = Scratch::new("descendants");
        let report = scratch.path("report.json");
        let mut command = count_json(&report);
        command.args(options).arg("--").arg(&program.path).arg(&board.path).args(words);
        Some(Self { running: start(&mut command), board, report, scratch })
    }

    /// Waits until the command has ended and its descendant knows.
    fn root_has_ended(&self) {
        self.board.reach(Word::Ready, 1);
        let root = self.board.get(Word::Root) as i32;
        reach_state(root, '-'); // reaped: coldtrace has seen it
    }

    /// Waits for the end of coldtrace, which the harness does not reap yet.
    fn tracer_has_ended(&self) {
        reach_state(self.running.pid(), 'Z');
    }

    /// The descendant runs, untraced.
    #[track_caller]
    fn descendant_is_free(&self) {
        let pid = self.board.get(Word::Pid) as i32;
        assert_untraced(pid);
        assert!(matches!(state(pid), 'R' | 'S'), "{pid} is {}", state(pid));
        assert_eq!(self.board.get(Word::Finished), 0);
    }

    /// Lets the descendant end, as if nothing had been.
    #[track_caller]
    fn descendant_ends_well(&self, calls: i64) {
        self.board.set(Word::Go, 1);
        self.board.reach(Word::Finished, 1);
        assert_eq!(self.board.get(Word::Count), calls);
    }

    /// Panics, too, when anything is left behind.
    fn finish(self) -> (Record, Finished) {
        let finished = self.running.finish();
        let record = read_record(&self.report, &finished);
        let wrong = table::contradictions(&record);
        assert!(wrong.is_empty(), "{}\n{}\n{finished}", wrong.join("\n"), table::render(&record));
        drop(self.scratch);
        (record, finished)
    }
}

#[test]
fn by_default_all_are_counted_and_waited_for() {
    for (kind, processes) in KINDS {
        let words = ["leaves", kind, "100", "5"];
        let Some(traced) = Traced::start(&[], &words, true) else { return };
        let (record, finished) = traced.finish();
        finished.assert_code(5);
        assert_eq!(table::calls(&record, "getppid"), 100, "{kind}: {}", table::render(&record));
        let tree = record.tree.as_ref().expect("a traced run has a tree");
        assert_eq!(tree.processes, *processes, "{kind}: {}", table::render(&record));
        assert_eq!(table::calls(&record, "exit_group"), *processes, "{kind}");
    }
}

#[test]
fn they_are_waited_for_however_long_they_take() {
    for (kind, _) in KINDS {
        let words = ["leaves", kind, "10", "5"];
        let Some(traced) = Traced::start(&[], &words, false) else { return };
        traced.root_has_ended();
        let pid = traced.board.get(Word::Pid) as i32;
        assert!(is_traced(&pid.to_string()), "{kind}");
        assert_ne!(state(traced.running.pid()), 'Z', "{kind}");
        traced.descendant_ends_well(10);
        let (record, finished) = traced.finish();
        finished.assert_code(5);
        assert_eq!(table::calls(&record, "getppid"), 10, "{kind}: {}", table::render(&record));
        let whole = record.tree.expect("a tree").wall_ns.expect("its end was seen");
        assert!(whole > record.outcome.wall_ns, "{kind}: the tree outlives the command");
    }
}

#[test]
fn detach_on_exit_ends_with_the_command_and_lets_the_rest_go_on() {
    for (kind, _) in KINDS {
        let words = ["leaves", kind, "100", "6"];
        let Some(traced) = Traced::start(&["--detach-on-exit"], &words, false) else { return };
        traced.tracer_has_ended();
        traced.board.reach(Word::Ready, 1);
        traced.descendant_is_free();
        traced.descendant_ends_well(100);
        let (record, finished) = traced.finish();
        finished.assert_code(6);
        assert_eq!(table::calls(&record, "getppid"), 0, "{kind}: {}", table::render(&record));
    }
}

#[test]
fn detach_on_exit_leaves_a_stopped_descendant_stopped() {
    let Some(program) = built("tree") else { return };
    let board = Board::new();
    // The shell ends once its descendant has stopped; that one is looked for by its board.
    let script = "\"$0\" \"$1\" leaves daemon 10 0; \
        until [ \"$(od -A n -t d8 -j 64 -N 8 \"$1\" | tr -d ' ')\" != 0 ]; do :; done; \
        pid=$(od -A n -t d8 -j 64 -N 8 \"$1\" | tr -d ' '); kill -STOP $pid; \
        until grep -q 'State:.[Tt]' /proc/$pid/status; do :; done; exit 9";
    let mut command = coldtrace("count");
    command.args(["-o", "/dev/null", "--detach-on-exit", "--", "sh", "-c", script]);
    let running = start(command.arg(&program.path).arg(&board.path));
    reach_state(running.pid(), 'Z');
    let pid = board.get(Word::Pid) as i32;
    assert_untraced(pid);
    reach_state(pid, 'T'); // Let go, it goes back into its stop by itself.
    // SAFETY: kill takes two numbers; the process is there, stopped.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    board.set(Word::Go, 1);
    board.reach(Word::Finished, 1);
    running.finish().assert_code(9);
}

#[test]
fn a_signal_after_the_command_has_ended_lets_the_rest_go_on() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        for kind in ["child", "daemon"] {
            let words = ["leaves", kind, "10", "4"];
            let Some(traced) = Traced::start(&[], &words, false) else { return };
            traced.root_has_ended();
            traced.running.kill(signal);
            traced.tracer_has_ended();
            traced.descendant_is_free();
            traced.descendant_ends_well(10);
            let (_, finished) = traced.finish();
            finished.assert_code(4);
        }
    }
}

#[test]
fn a_signal_at_the_very_end_of_the_command_is_not_lost() {
    // The command's end and the signal come together: neither may leave coldtrace waiting.
    for _ in 0..10 {
        let words = ["leaves", "daemon", "10", "4"];
        let Some(traced) = Traced::start(&[], &words, false) else { return };
        traced.board.reach(Word::Ready, 1); // the end of the pipe comes before the exit's report
        traced.running.kill(libc::SIGTERM);
        traced.tracer_has_ended();
        traced.descendant_is_free();
        traced.descendant_ends_well(10);
        let (_, finished) = traced.finish();
        assert!(
            finished.code() == Some(4) || finished.signal() == Some(libc::SIGTERM),
            "{finished}"
        );
    }
}

#[test]
fn a_timeout_ends_the_whole_tree_with_124() {
    for how in ["", "ignore", "stop"] {
        for options in [&["--timeout", "400ms"][..], &["--timeout", "400ms", "--detach-on-exit"]] {
            let begin = Instant::now();
            let Some(traced) = Traced::start(options, &["stays", how], false) else { return };
            let (record, finished) = traced.finish(); // nothing is left behind
            finished.assert_code(124);
            assert!(begin.elapsed() >= Duration::from_millis(400));
            let signal = record.outcome.signal.clone();
            let expected = if how == "ignore" { "SIGKILL" } else { "SIGTERM" };
            assert_eq!(signal.as_deref(), Some(expected), "{how}: {finished}");
        }
    }
}

#[test]
fn a_timeout_bounds_the_wait_for_what_is_left_behind() {
    for (kind, _) in KINDS {
        let words = ["leaves", kind, "10", "5"];
        let Some(traced) = Traced::start(&["--timeout", "500ms"], &words, false) else { return };
        let (record, finished) = traced.finish();
        finished.assert_code(124);
        assert_eq!(table::calls(&record, "getppid"), 0, "{kind}: {}", table::render(&record));
    }
}

#[test]
fn a_timeout_of_run_keeps_the_record() {
    let Some(program) = built("tree") else { return };
    let board = Board::new();
    let scratch = Scratch::new("timeout");
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["--timeout", "400ms", "--"]);
    let finished = finish(command.arg(&program.path).arg(&board.path).arg("stays"));
    finished.assert_code(124);
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    let processes = record.processes.expect("run keeps the processes");
    assert!(processes.iter().all(|process| process.signal.is_some()), "{processes:#?}");
}

#[test]
fn a_timeout_that_is_not_reached_changes_nothing() {
    let count = |script: &str| {
        finish(coldtrace("count").args(["-o", "/dev/null", "--timeout", "80s", "sh", "-c", script]))
    };
    count("exit 3").assert_code(3);
    count("kill -TERM $$").assert_signal(libc::SIGTERM);
    for (kind, _) in KINDS {
        let words = ["leaves", kind, "10", "5"];
        let Some(traced) = Traced::start(&["--timeout", "80s"], &words, true) else { return };
        let (record, finished) = traced.finish();
        finished.assert_code(5);
        assert_eq!(table::calls(&record, "getppid"), 10, "{kind}: {}", table::render(&record));
    }
}

#[test]
fn children_that_the_tracer_had_before_are_not_its_business() {
    // The shell starts one in the background and becomes coldtrace: it is its child, untraced.
    let Some(program) = built("tree") else { return };
    let board = Board::new();
    let script = "sleep 1000 & echo $! >\"$3\"; exec \"$0\" count -o /dev/null -- \"$1\" \"$2\" \
        leaves child 10 5";
    let scratch = Scratch::new("strangers");
    let pid_file = scratch.path("pid");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(support::coldtrace_path()).arg(&program.path);
    board.set(Word::Go, 1);
    let running = start(command.arg(&board.path).arg(&pid_file));
    reach_state(running.pid(), 'Z');
    let sleep = until("the pid", || std::fs::read_to_string(&pid_file).ok()?.trim().parse().ok());
    assert_eq!(state(sleep), 'S', "it was ended");
    assert_untraced(sleep);
    // SAFETY: kill takes two numbers; the process is there.
    unsafe { libc::kill(sleep, libc::SIGKILL) };
    running.finish().assert_code(5);
}
