//! `-p`: attaching to processes that run already, watching them, and letting them go as they were.
//!
//! Target and test talk through a board (fixtures/board.h): nothing here sleeps to win a race.

mod support;

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use coldtrace::record::Record;
use support::board::{
    Board, Word, assert_untraced, child_of, field, is_traced, reach_state, state, tids, until,
};
use support::fixture::built;
use support::process::{Finished, Running, finish, start};
use support::{Scratch, coldtrace, coldtrace_path, count_json, find_program, is_root, nobody};
use support::{read_record, skip, table};

// ---- target and tracer ----

/// A process to attach to.
struct Target {
    board: Board,
    running: Running,
    pid: i32,
}

impl Target {
    /// Runs `target BOARD WORDS` until `ready` of its tasks are where they wait for GO.
    fn start(words: &[&str], ready: i64) -> Option<Self> {
        let program = built("target")?;
        let board = Board::new();
        let running = start(program.untraced().arg(&board.path).args(words));
        let pid = running.pid();
        until("the target to be ready", || {
            assert!(!running.has_ended(), "the target ended before it was ready: {words:?}");
            (board.get(Word::Ready) >= ready).then_some(())
        });
        Some(Self { board, running, pid })
    }

    /// As [`Target::start`], with itself asleep inside the call that it is about.
    fn inside(call: &str) -> Option<Self> {
        let target = Self::start(&["call", call], 1)?;
        reach_state(target.pid, 'S');
        Some(target)
    }

    fn kill(&self, signal: i32) {
        self.running.kill(signal);
    }

    /// Lets it end, which it does as if nothing had been.
    #[track_caller]
    fn ends_well(self) -> Board {
        self.board.set(Word::Go, 1);
        self.board.set(Word::Stop, 1);
        self.running.finish().assert_code(0);
        self.board
    }
}

/// coldtrace, attached.
struct Tracer {
    running: Running,
    report: PathBuf,
    scratch: Scratch,
}

impl Tracer {
    /// `coldtrace count --json -p PIDS OPTIONS`.
    fn start(pids: &[i32], options: &[&str]) -> Self {
        let scratch = Scratch::new("attach");
        let report = scratch.path("report.json");
        let mut command = count_json(&report);
        for pid in pids {
            command.arg("-p").arg(pid.to_string());
        }
        Self { running: start(command.args(options)), report, scratch }
    }

    /// All the time, and longer than a test takes.
    fn exact(pids: &[i32]) -> Self {
        Self::start(pids, &["--max-slowdown", "off", "--duration", "600s"])
    }

    fn finish(self) -> (Record, Finished) {
        let finished = self.running.finish();
        let record = read_record(&self.report, &finished);
        drop(self.scratch);
        finished.assert_code(0);
        let wrong = contradictions(&record);
        assert!(wrong.is_empty(), "{}\n{}\n{finished}", wrong.join("\n"), table::render(&record));
        (record, finished)
    }

    /// SIGINT, as by Ctrl-C, and the record.
    fn interrupt(self) -> (Record, Finished) {
        self.running.kill(libc::SIGINT);
        self.finish()
    }
}

/// What no record may say. A call that had entered before is counted and not timed: at most one a
/// thread.
fn contradictions(record: &Record) -> Vec<String> {
    let threads = record.tree.as_ref().map_or(0, |tree| tree.threads);
    let mut wrong = table::contradictions(record);
    wrong.retain(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [.., timed, "calls", "timed,", returned, "returned"] => {
                let number = |word: &str| word.parse::<u64>().unwrap_or(u64::MAX);
                number(returned).saturating_sub(number(timed)) > threads
            }
            _ => true,
        }
    });
    wrong
}

/// How often threads have stopped of themselves: a tracer's stop is one of these, and a thread that
/// spins, or sleeps in one call, has no others.
struct Switches(Vec<(String, u64)>);

impl Switches {
    fn of(pids: &[i32]) -> Self {
        let paths = pids
            .iter()
            .flat_map(|pid| tids(*pid).into_iter().map(move |tid| format!("{pid}/task/{tid}")));
        Self(paths.map(|path| (path.clone(), switches(&path))).collect())
    }

    /// Waits until each thread has been stopped by its tracer since: from then on no call escapes.
    #[track_caller]
    fn pass_a_stop(&self) {
        for (path, before) in &self.0 {
            until(&format!("a stop of {path}"), || {
                (is_traced(path) && switches(path) > *before).then_some(())
            });
        }
    }

    /// As [`Switches::pass_a_stop`], for one thread that sleeps in a call and does so again.
    #[track_caller]
    fn pass_a_stop_and_sleep(&self) {
        self.pass_a_stop();
        for (path, before) in &self.0 {
            until(&format!("sleep of {path} after a stop"), || {
                // Asked in this order: the switch to sleep is the one after the stops'.
                let asleep = field(path, "State").starts_with('S');
                (switches(path) > before + 1 && asleep).then_some(())
            });
        }
    }
}

fn switches(path: &str) -> u64 {
    field(path, "voluntary_ctxt_switches").parse().unwrap_or(0)
}

/// The lines in which coldtrace says that it cannot attach.
fn refusals(finished: &Finished) -> Vec<String> {
    let text = finished.err();
    text.lines().filter(|line| line.contains("cannot attach")).map(str::to_owned).collect()
}

// ---- counts ----

#[test]
fn one_thread_is_counted_exactly() {
    let Some(target) = Target::start(&["counts", "1", "500"], 1) else { return };
    let before = Switches::of(&[target.pid]);
    let tracer = Tracer::exact(&[target.pid]);
    before.pass_a_stop();
    target.board.set(Word::Go, 1);
    let (record, finished) = tracer.finish();
    target.ends_well();
    assert_eq!(table::calls(&record, "getppid"), 500, "{}", table::render(&record));
    assert_eq!(table::calls(&record, "exit_group"), 1, "{}", table::render(&record));
    assert_eq!(table::rows(&record).len(), 2, "{}", table::render(&record));
    assert_eq!(record.measurement.watched_ns, None, "all the time was asked for: {finished}");
}

#[test]
fn eight_threads_are_counted_exactly() {
    let Some(target) = Target::start(&["counts", "8", "200"], 8) else { return };
    let before = Switches::of(&[target.pid]);
    assert_eq!(before.0.len(), 8);
    let tracer = Tracer::exact(&[target.pid]);
    before.pass_a_stop();
    target.board.set(Word::Go, 1);
    let (record, _) = tracer.finish();
    target.ends_well();
    assert_eq!(table::calls(&record, "getppid"), 1600, "{}", table::render(&record));
    assert_eq!(table::calls(&record, "exit"), 7, "{}", table::render(&record));
    let tree = record.tree.expect("a traced run has a tree");
    assert_eq!((tree.processes, tree.threads), (1, 8));
}

#[test]
fn several_processes_are_counted_together_and_a_pid_given_twice_once() {
    let counts = [100, 200, 300];
    let mut targets = Vec::new();
    for count in counts {
        let Some(target) = Target::start(&["counts", "2", &count.to_string()], 2) else { return };
        targets.push(target);
    }
    let pids: Vec<i32> = targets.iter().map(|t| t.pid).collect();
    let before = Switches::of(&pids);
    let list = format!("{},{} {}\n{}", pids[0], pids[1], pids[2], pids[0]);
    let tracer = Tracer::start(&[pids[0]], &["-p", &list, "--max-slowdown=off", "--duration=600s"]);
    before.pass_a_stop();
    for target in &targets {
        target.board.set(Word::Go, 1);
    }
    let (record, _) = tracer.finish();
    for target in targets {
        target.ends_well();
    }
    assert_eq!(table::calls(&record, "getppid"), 2 * 600, "{}", table::render(&record));
    let tree = record.tree.expect("a traced run has a tree");
    assert_eq!((tree.processes, tree.threads), (3, 6));
}

#[test]
fn run_keeps_a_record_that_says_what_was_attached() {
    let Some(target) = Target::start(&["counts", "3", "100"], 3) else { return };
    let scratch = Scratch::new("run");
    let before = Switches::of(&[target.pid]);
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["-p", &target.pid.to_string()]);
    let running = start(command.args(["--max-slowdown", "off", "--duration", "600s"]));
    before.pass_a_stop();
    target.board.set(Word::Go, 1);
    let finished = running.finish();
    let pid = target.pid;
    target.ends_well();
    finished.assert_code(0);
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    assert_eq!(record.run.attached, [pid]);
    assert_eq!(record.run.label, "target");
    assert_eq!(table::calls(&record, "getppid"), 300, "{}", table::render(&record));
    let processes = record.processes.expect("run keeps the processes");
    assert_eq!((processes.len(), processes[0].pid, processes[0].exit_code), (1, pid, Some(0)));
    assert_eq!(processes[0].threads.len(), 3);
    let mut calls: Vec<u64> = processes[0].threads.iter().map(|t| t.calls).collect();
    calls.sort_unstable();
    assert_eq!(calls, [101, 101, 101], "each thread's own, with its exit");
}

#[test]
fn run_says_what_a_process_held_when_it_was_let_go_and_where_its_time_went() {
    let Some(target) = Target::inside("read") else { return };
    let scratch = Scratch::new("let-go");
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["-p", &target.pid.to_string()]);
    let finished = finish(command.args(["--max-slowdown", "off", "--duration", "500ms"]));
    finished.assert_code(0);
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    let proc = record.proc.as_deref().unwrap_or_default();
    let events: Vec<&str> = proc.iter().map(|snapshot| snapshot.event.as_str()).collect();
    assert_eq!(events, ["detach"], "{finished}");
    let memory = proc[0].memory.as_ref().and_then(|memory| memory.file_bytes);
    assert!(memory > Some(0), "{:?}", proc[0]);
    assert!(proc[0].descriptors.as_ref().is_some_and(|open| open.iter().any(|d| d.fd == 2)));
    // In its read, all the while.
    let time = record.time.expect("where its time went");
    let rows: Vec<&str> = time.blocked.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(rows, ["read"], "{time:?}");
    assert!(time.blocked_ns > 400_000_000, "{time:?}");
    target.ends_well();
}

#[test]
fn each_thread_that_is_let_go_has_its_time() {
    let Some(target) = Target::start(&["counts", "6", "100"], 6) else { return };
    for _ in 0..5 {
        let scratch = Scratch::new("shares");
        let mut command = coldtrace("run");
        command.arg("--runs").arg(scratch.path("runs")).args(["-p", &target.pid.to_string()]);
        let finished = finish(command.args(["--max-slowdown", "off", "--duration", "100ms"]));
        finished.assert_code(0);
        let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
        assert_eq!(record.time.as_ref().map(|time| time.threads), Some(6), "{finished}");
        let threads = record.processes.iter().flatten().flat_map(|process| &process.threads);
        assert!(threads.clone().all(|thread| thread.time.is_some()), "{finished}");
        assert!(record.tree.is_some_and(|tree| tree.run_queue_ns.is_some()), "{finished}");
    }
    target.ends_well();
}

#[test]
fn children_and_execs_of_an_attached_process_are_followed() {
    let Some(program) = built("target") else { return };
    let path = program.path.to_string_lossy();
    let Some(target) = Target::start(&["grows", &path], 1) else { return };
    let before = Switches::of(&[target.pid]);
    let tracer = Tracer::exact(&[target.pid]);
    before.pass_a_stop();
    target.board.set(Word::Go, 1);
    let (record, _) = tracer.finish();
    let board = target.ends_well();
    assert_eq!(board.get(Word::Count), 400);
    assert_eq!(table::calls(&record, "getppid"), 400, "{}", table::render(&record));
    assert_eq!(table::calls(&record, "execve"), 1, "{}", table::render(&record));
    assert_eq!(record.tree.expect("a traced run has a tree").processes, 3);
}

// ---- inside a call ----

/// Calls that wait until the target's own child ends their wait, and what they then return.
const WAITS: &[(&str, i64)] = &[
    ("read", 1),
    ("recvfrom", 1),
    ("epoll_wait", 1),
    ("epoll_pwait", 1),
    ("futex", 0),
    ("pause", -(libc::EINTR as i64)), // its handler ran
    ("poll", 1),
    ("ppoll", 1),
    ("pselect6", 1),
    ("semop", 0),
    ("rt_sigtimedwait", libc::SIGUSR1 as i64),
    ("wait4", 1),
];

#[track_caller]
fn assert_inside(record: &Record, call: &str, unfinished: u64) {
    let row = table::row(record, call);
    let row = row.unwrap_or_else(|| panic!("{call}: no row\n{}", table::render(record)));
    assert_eq!((row.calls, row.unfinished), (1, unfinished), "{call}: {}", table::render(record));
    assert_eq!(row.wall_ns, None, "{call}: nobody saw it enter");
}

#[test]
fn a_call_it_is_inside_is_named_and_goes_on_after_detach() {
    for (call, result) in WAITS {
        let Some(target) = Target::inside(call) else { return };
        let tracer = Tracer::start(&[target.pid], &["--duration", "200ms"]);
        let (record, _) = tracer.finish();
        assert_inside(&record, call, 1);
        assert_eq!(table::rows(&record).len(), 1, "{call}: {}", table::render(&record));
        assert_untraced(target.pid);
        assert_eq!(target.board.get(Word::Finished), 0, "{call} was ended by detach");
        reach_state(target.pid, 'S');
        let board = target.ends_well();
        assert_eq!(board.get(Word::Result), *result, "{call}");
    }
}

#[test]
fn a_call_it_is_inside_may_return_while_watched() {
    for (call, result) in WAITS {
        let Some(target) = Target::inside(call) else { return };
        let before = Switches::of(&[target.pid]);
        let tracer = Tracer::exact(&[target.pid]);
        before.pass_a_stop_and_sleep();
        target.board.set(Word::Go, 1);
        let (record, _) = tracer.finish();
        let board = target.ends_well();
        assert_eq!(board.get(Word::Result), *result, "{call}");
        if *call == "wait4" {
            assert_inside(&record, call, 0);
        } else {
            let row = table::row(&record, call);
            let row = row.unwrap_or_else(|| panic!("{call}: {}", table::render(&record)));
            assert_eq!((row.calls, row.unfinished), (1, 0), "{call}: {}", table::render(&record));
            assert_eq!(row.wall_ns, None, "{call}: nobody saw it enter");
            let failed = u64::from(*result < 0);
            assert_eq!(row.error_count(), failed, "{call}: {}", table::render(&record));
        }
    }
}

#[test]
fn a_sleep_is_named_and_ends_by_itself() {
    for call in ["nanosleep", "clock_nanosleep"] {
        // Where the machine is so slow that the sleep is over before attaching: a longer one.
        let named = ["3", "10", "30"].iter().any(|seconds| {
            let Some(target) = Target::start(&["call", call, seconds], 1) else { return true };
            reach_state(target.pid, 'S');
            let tracer = Tracer::start(&[target.pid], &["--duration", "200ms"]);
            let finished = tracer.running.finish();
            if target.board.get(Word::Finished) != 0 {
                return false;
            }
            let record = read_record(&tracer.report, &finished);
            assert_inside(&record, call, 1);
            assert_untraced(target.pid);
            target.running.finish().assert_code(0);
            assert_eq!(target.board.get(Word::Result), 0, "{call}");
            true
        });
        assert!(named, "{call} was never attached to in time");
    }
}

#[test]
fn glibcs_sleep_is_clock_nanosleep() {
    let sleep = start(Command::new("sleep").arg("1000"));
    until("sleep to sleep", || {
        let exe = std::fs::read_to_string(format!("/proc/{}/comm", sleep.pid())).ok()?;
        (exe.trim() == "sleep" && state(sleep.pid()) == 'S').then_some(())
    });
    let (record, _) = Tracer::start(&[sleep.pid()], &["--duration", "200ms"]).finish();
    assert_inside(&record, "clock_nanosleep", 1);
    assert_untraced(sleep.pid());
    reach_state(sleep.pid(), 'S');
}

// ---- as they were ----

#[test]
fn a_running_process_goes_on_running() {
    let Some(target) = Target::start(&["hot"], 1) else { return };
    Tracer::start(&[target.pid], &["--duration", "200ms"]).finish();
    assert_untraced(target.pid);
    let then = target.board.get(Word::Count);
    target.board.reach(Word::Count, then + 1000);
    target.ends_well();
}

#[test]
fn a_stopped_process_stays_stopped() {
    for threads in ["1", "4"] {
        let Some(target) =
            Target::start(&["counts", threads, "100"], threads.parse().expect("a number"))
        else {
            return;
        };
        target.kill(libc::SIGSTOP);
        let all = |wanted: char| {
            until(&format!("all threads in {wanted}"), || {
                let in_it = |tid: &i32| {
                    field(&format!("{}/task/{tid}", target.pid), "State").starts_with(wanted)
                };
                tids(target.pid).iter().all(in_it).then_some(())
            });
        };
        all('T');
        let (record, _) = Tracer::start(&[target.pid], &["--duration", "200ms"]).finish();
        assert_eq!(record.tree.expect("a tree").calls, 0);
        assert_untraced(target.pid);
        all('T');
        target.kill(libc::SIGCONT);
        all('R');
        let board = target.ends_well();
        assert_eq!(board.get(Word::Count), 100 * threads.parse::<i64>().expect("a number"));
    }
}

#[test]
fn a_process_stopped_inside_a_call_stays_so_and_the_call_goes_on() {
    for (call, result) in [("read", 1), ("futex", 0), ("nanosleep", 0)] {
        let words: &[&str] =
            if call == "nanosleep" { &["call", call, "1"] } else { &["call", call] };
        let Some(target) = Target::start(words, 1) else { return };
        reach_state(target.pid, 'S');
        target.kill(libc::SIGSTOP);
        reach_state(target.pid, 'T');
        Tracer::start(&[target.pid], &["--duration", "200ms"]).finish();
        assert_untraced(target.pid);
        // Let go, it goes back into its stop by itself.
        reach_state(target.pid, 'T');
        target.kill(libc::SIGCONT);
        reach_state(target.pid, 'S');
        let board = target.ends_well();
        assert_eq!(board.get(Word::Result), result, "{call}");
    }
}

#[test]
fn a_process_that_is_stopped_while_attached_stays_stopped() {
    let Some(target) = Target::start(&["hot"], 1) else { return };
    let before = Switches::of(&[target.pid]);
    let tracer = Tracer::exact(&[target.pid]);
    before.pass_a_stop();
    target.kill(libc::SIGSTOP);
    // Below a tracer a stopped process is shown as t; its count stands still.
    until("the stop", || {
        let then = target.board.get(Word::Count);
        let stands = (0..50).all(|_| {
            std::thread::sleep(Duration::from_millis(1));
            target.board.get(Word::Count) == then
        });
        (stands && field(&target.pid.to_string(), "ShdPnd").ends_with("00000")).then_some(())
    });
    tracer.interrupt();
    assert_untraced(target.pid);
    reach_state(target.pid, 'T');
    target.kill(libc::SIGCONT);
    let then = target.board.get(Word::Count);
    target.board.reach(Word::Count, then + 100);
    target.ends_well();
}

#[test]
fn a_process_that_is_stopped_and_continued_while_attached_runs() {
    let Some(target) = Target::start(&["hot"], 1) else { return };
    let before = Switches::of(&[target.pid]);
    let tracer = Tracer::exact(&[target.pid]);
    before.pass_a_stop();
    for _ in 0..20 {
        target.kill(libc::SIGSTOP);
        target.kill(libc::SIGCONT);
        let then = target.board.get(Word::Count);
        target.board.reach(Word::Count, then + 10);
    }
    tracer.interrupt();
    assert_untraced(target.pid);
    target.ends_well();
}

#[test]
fn signals_are_neither_lost_nor_doubled_by_attaching_again_and_again() {
    let Some(target) = Target::start(&["self-signals"], 1) else { return };
    for _ in 0..10 {
        let before = Switches::of(&[target.pid]);
        let tracer = Tracer::exact(&[target.pid]);
        before.pass_a_stop();
        let then = target.board.get(Word::Count);
        target.board.reach(Word::Count, then + 50);
        let (record, _) = tracer.interrupt();
        assert!(table::calls(&record, "kill") >= 50, "{}", table::render(&record));
        assert_untraced(target.pid);
    }
    let board = target.ends_well();
    assert_eq!(board.get(Word::Handled), board.get(Word::Sent));
    assert!(board.get(Word::Handled) >= 500);
}

// ---- ends ----

#[test]
fn ctrl_c_lets_go_prints_the_table_and_exits_0() {
    let Some(target) = Target::start(&["hot"], 1) else { return };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let before = Switches::of(&[target.pid]);
        let words = ["-p", &target.pid.to_string(), "--max-slowdown", "off", "--duration", "600s"];
        let running = start(coldtrace("count").args(words));
        before.pass_a_stop();
        let then = target.board.get(Word::Count);
        target.board.reach(Word::Count, then + 20);
        running.kill(signal);
        let finished = running.finish();
        finished.assert_code(0);
        assert!(finished.err().contains("getppid"), "no table: {finished}");
        assert_untraced(target.pid);
    }
    target.ends_well();
}

#[test]
fn a_target_that_exits_or_is_killed_ends_the_session() {
    for signal in [None, Some(libc::SIGKILL), Some(libc::SIGTERM)] {
        let Some(target) = Target::start(&["counts", "4", "50"], 4) else { return };
        let before = Switches::of(&[target.pid]);
        let tracer = Tracer::exact(&[target.pid]);
        before.pass_a_stop();
        match signal {
            None => target.board.set(Word::Go, 1),
            Some(signal) => target.kill(signal),
        }
        let (record, _) = tracer.finish();
        let expected = if signal.is_none() { 200 } else { 0 };
        assert_eq!(table::calls(&record, "getppid"), expected, "{}", table::render(&record));
        let finished = target.running.finish();
        match signal {
            None => finished.assert_code(0),
            Some(signal) => finished.assert_signal(signal),
        };
    }
}

#[test]
fn one_of_several_may_end_and_the_others_are_watched_on() {
    let Some(first) = Target::start(&["counts", "1", "10"], 1) else { return };
    let Some(second) = Target::start(&["counts", "1", "20"], 1) else { return };
    let before = Switches::of(&[first.pid, second.pid]);
    let tracer = Tracer::exact(&[first.pid, second.pid]);
    before.pass_a_stop();
    first.ends_well();
    second.board.set(Word::Go, 1);
    let (record, _) = tracer.finish();
    second.ends_well();
    assert_eq!(table::calls(&record, "getppid"), 30, "{}", table::render(&record));
}

#[test]
fn the_duration_is_10_s_unless_told_otherwise_and_ends_it() {
    let Some(target) = Target::start(&["counts", "1", "0"], 1) else { return };
    let begin = Instant::now();
    let (record, finished) = Tracer::start(&[target.pid], &["--duration", "300ms"]).finish();
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert!(record.outcome.wall_ns >= 300_000_000, "{finished}");
    assert!(finished.err().contains("for 300 ms"), "{finished}");
    let tracer = Tracer::start(&[target.pid], &[]);
    until("the announcement and the stop", || is_traced(&target.pid.to_string()).then_some(()));
    let (_, finished) = tracer.interrupt();
    assert!(finished.err().contains("for 10.0 s"), "{finished}");
    assert_untraced(target.pid);
    target.ends_well();
}

#[test]
fn a_thread_that_cannot_stop_is_let_go_when_coldtrace_ends() {
    // It waits for its vfork child, where no signal reaches it; so it does not for ever.
    let Some(target) = Target::start(&["vforked"], 1) else { return };
    reach_state(target.pid, 'D');
    let (record, _) = Tracer::start(&[target.pid], &["--duration", "100ms"]).finish();
    let notes = &record.measurement.notes;
    assert!(notes.iter().any(|note| note.contains("did not stop to be let go: 1")), "{notes:?}");
    assert_untraced(target.pid);
    let board = target.ends_well();
    assert_eq!(board.get(Word::Finished), 1);
}

// ---- bursts ----

#[test]
fn a_hot_loop_is_watched_in_bursts_and_the_share_is_said() {
    let Some(target) = Target::start(&["hot"], 1) else { return };
    // Whoever loads this machine besides: a slowdown that is exceeded at once.
    let (record, finished) =
        Tracer::start(&[target.pid], &["--max-slowdown", "1.1x", "--duration", "1500ms"]).finish();
    let watched = record.measurement.watched_ns;
    let watched = watched.unwrap_or_else(|| panic!("{}\n{finished}", table::render(&record)));
    let wall = record.outcome.wall_ns;
    assert!(watched > 0 && watched < wall, "{watched} of {wall} ns");
    assert!(table::calls(&record, "getppid") > 0, "{}", table::render(&record));
    assert_untraced(target.pid);
    // The text says it too.
    let pid = target.pid.to_string();
    let words = ["count", "-p", &pid, "--max-slowdown", "1.1x", "--duration", "1500ms"];
    let finished = finish(Command::new(coldtrace_path()).args(words));
    let text = finished.err();
    assert!(text.contains("watched") && text.contains('%'), "which share was watched: {finished}");
    target.ends_well();
}

#[test]
fn bursts_neither_end_calls_nor_count_one_twice() {
    for (call, result) in [("read", 1), ("epoll_wait", 1), ("futex", 0), ("poll", 1)] {
        // The hot process makes the bursts, the other one is inside its call all the while.
        let Some(hot) = Target::start(&["hot"], 1) else { return };
        let Some(target) = Target::inside(call) else { return };
        let options = ["--max-slowdown", "2x", "--duration", "600ms"];
        let (record, _) = Tracer::start(&[hot.pid, target.pid], &options).finish();
        assert_inside(&record, call, 1);
        assert_eq!(target.board.get(Word::Finished), 0, "{call} was ended");
        assert_untraced(target.pid);
        reach_state(target.pid, 'S');
        let board = target.ends_well();
        assert_eq!(board.get(Word::Result), result, "{call}");
        hot.ends_well();
    }
}

// ---- what is said ----

#[test]
fn the_announcement_comes_before_attaching() {
    let Some(target) = Target::start(&["counts", "3", "1"], 3) else { return };
    // Whoever cannot write its announcement does not get to attach: standard error is a full pipe.
    let scratch = Scratch::new("announcement");
    let fifo = scratch.path("fifo");
    let name = std::ffi::CString::new(fifo.as_os_str().as_bytes()).expect("a path");
    // SAFETY: `name` is a string that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let mut pipe = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&fifo)
        .expect("a fifo can be opened for both");
    while pipe.write(&[b'.'; 4096]).is_ok() {}
    while pipe.write(b".").is_ok() {}
    let program = format!(
        "exec {} count -o /dev/null -p {} --duration 600s 2>{}",
        coldtrace_path().display(),
        target.pid,
        fifo.display()
    );
    let running = start(Command::new("sh").args(["-c", &program]));
    let write = format!("{} 0x2 ", libc::SYS_write);
    until("coldtrace to be in its write", || {
        let inside = std::fs::read_to_string(format!("/proc/{}/syscall", running.pid())).ok()?;
        inside.starts_with(&write).then_some(())
    });
    assert!(!is_traced(&target.pid.to_string()), "attached before it was said");
    let mut said = Vec::new();
    until("the announcement", || {
        let mut buffer = [0; 4096];
        while let Ok(n) = std::io::Read::read(&mut pipe, &mut buffer) {
            said.extend_from_slice(&buffer[..n]);
        }
        said.ends_with(b"\n").then_some(())
    });
    let said = String::from_utf8_lossy(&said).trim_start_matches('.').to_owned();
    let expected = format!("coldtrace: tracing {} (target, 3 threads) for 600 s", target.pid);
    assert!(said.starts_with(&expected), "{said}");
    assert!(said.contains("a call takes") && said.contains("2 times slower"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    until("attaching", || is_traced(&target.pid.to_string()).then_some(()));
    running.kill(libc::SIGINT);
    running.finish().assert_code(0);
    target.ends_well();
}

#[test]
fn each_refusal_is_one_line_and_all_refused_is_125() {
    let finished = finish(coldtrace("count").args(["-p", "4194304,4194303"]));
    finished.assert_code(125);
    let lines = refusals(&finished);
    assert_eq!(lines.len(), 2, "{finished}");
    for (line, pid) in lines.iter().zip(["4194304", "4194303"]) {
        assert!(line.contains(pid) && line.contains("no such process"), "{line}");
    }
    assert!(finished.err().lines().all(|line| line.starts_with("coldtrace: ")), "{finished}");
    let scratch = Scratch::new("refused");
    let runs = scratch.path("runs");
    let finished = finish(coldtrace("run").arg("--runs").arg(&runs).args(["-p", "4194304"]));
    finished.assert_code(125);
    let entries = std::fs::read_dir(&runs).map(|e| e.flatten().collect()).unwrap_or_default();
    let left: Vec<std::fs::DirEntry> = entries;
    let kept = left.iter().any(|entry| entry.file_name() != ".gitignore");
    assert!(!kept, "a run directory of nothing: {left:?} {finished}");
}

#[test]
fn some_refused_leaves_the_others_watched() {
    let Some(target) = Target::start(&["counts", "1", "100"], 1) else { return };
    let before = Switches::of(&[target.pid]);
    let tracer = Tracer::exact(&[4_194_304, target.pid]);
    before.pass_a_stop();
    target.board.set(Word::Go, 1);
    let (record, finished) = tracer.finish();
    target.ends_well();
    assert_eq!(table::calls(&record, "getppid"), 100, "{}", table::render(&record));
    assert_eq!(refusals(&finished).len(), 1, "{finished}");
}

#[test]
fn itself_and_its_ancestors_are_refused() {
    let program = "exec \"$0\" count -p $$";
    let finished =
        finish(Command::new("sh").args(["-c", program, &coldtrace_path().to_string_lossy()]));
    finished.assert_code(125);
    assert!(refusals(&finished).concat().contains("itself"), "{finished}");
    let ancestors = [std::process::id().to_string(), "1".to_owned()];
    for pid in ancestors {
        let finished = finish(coldtrace("count").args(["-p", &pid]));
        finished.assert_code(125);
        assert!(refusals(&finished).concat().contains("ancestor"), "{finished}");
    }
    let program = "\"$0\" count -p $$; exit $?";
    let finished =
        finish(Command::new("sh").args(["-c", program, &coldtrace_path().to_string_lossy()]));
    finished.assert_code(125);
    assert!(refusals(&finished).concat().contains("ancestor"), "{finished}");
}

#[test]
fn a_zombie_is_refused() {
    let Some(target) = Target::start(&["counts", "1", "0"], 1) else { return };
    target.board.set(Word::Go, 1);
    reach_state(target.pid, 'Z'); // the harness reaps it later
    let finished = finish(coldtrace("count").args(["-p", &target.pid.to_string()]));
    finished.assert_code(125);
    assert_eq!(refusals(&finished).len(), 1, "{finished}");
    target.ends_well();
}

#[test]
fn who_traces_already_is_named() {
    let Some(target) = Target::start(&["counts", "1", "0"], 1) else { return };
    let pid = target.pid.to_string();
    let before = Switches::of(&[target.pid]);
    let tracer = Tracer::exact(&[target.pid]);
    before.pass_a_stop();
    let finished = finish(coldtrace("count").args(["-p", &pid]));
    finished.assert_code(125);
    let line = refusals(&finished).concat();
    let other = format!("coldtrace (pid {})", tracer.running.pid());
    assert!(line.contains(&other), "{finished}");
    tracer.interrupt();
    if find_program("strace").is_none() {
        skip("no strace");
    } else {
        let before = Switches::of(&[target.pid]);
        let strace = start(Command::new("strace").args(["-f", "-o", "/dev/null", "-p", &pid]));
        before.pass_a_stop();
        let finished = finish(coldtrace("count").args(["-p", &pid]));
        finished.assert_code(125);
        assert!(refusals(&finished).concat().contains("strace"), "{finished}");
        strace.kill(libc::SIGINT);
        strace.finish();
    }
    target.ends_well();
}

// ---- users and namespaces ----

#[test]
fn another_users_process_is_refused_to_an_ordinary_user() {
    let Some(mut nobody) = nobody() else { return };
    let Some(target) = Target::start(&["counts", "1", "0"], 1) else { return };
    let words = ["count", "-p", &target.pid.to_string()];
    let finished = finish(nobody.arg(coldtrace_path()).args(words));
    finished.assert_code(125);
    let line = refusals(&finished).concat();
    assert!(line.contains("belongs to user 0") && line.contains("root"), "{finished}");
    assert_untraced(target.pid);
    target.ends_well();
}

#[test]
fn an_ordinary_user_attaches_to_processes_of_its_own() {
    let Some(mut nobody) = nobody() else { return };
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(scope.trim(), "" | "0") {
        return skip("Yama forbids it");
    }
    let program = "sleep 1000 & \
        while ! grep -q sleep /proc/$!/comm || ! grep -q 'State:.S' /proc/$!/status; do :; done; \
        \"$0\" count --json -o - -p $! --duration 200ms; status=$?; \
        grep TracerPid /proc/$!/status >&2; kill $!; exit $status";
    let finished = finish(nobody.args(["sh", "-c", program]).arg(coldtrace_path()));
    finished.assert_code(0);
    let record: Record = serde_json::from_slice(&finished.stdout)
        .unwrap_or_else(|error| panic!("{error}: {finished}"));
    assert_inside(&record, "clock_nanosleep", 1);
    assert!(finished.err().contains("TracerPid:\t0"), "{finished}");
}

#[test]
fn a_target_in_other_pid_and_mount_namespaces_is_followed() {
    if !is_root() {
        return skip("namespaces need root");
    }
    if find_program("unshare").is_none() {
        return skip("no unshare");
    }
    let Some(program) = built("target") else { return };
    let path = program.path.to_string_lossy().into_owned();
    let board = Board::new();
    let mut command = Command::new("unshare");
    command.args(["-pf", "--kill-child", "--mount-proc"]).arg(&path).arg(&board.path);
    let unshare = start(command.args(["grows", &path]));
    let pid = until("the target, or the end of unshare", || {
        if state(unshare.pid()) == 'Z' {
            return Some(0);
        }
        (board.get(Word::Ready) == 1)
            .then(|| child_of(unshare.pid()).expect("the target is the only child of unshare"))
    });
    if pid == 0 {
        return skip(&format!("no namespaces here: {}", unshare.finish()));
    }
    assert!(field(&pid.to_string(), "NSpid").ends_with("\t1"), "it is PID 1 of its namespace");
    let before = Switches::of(&[pid]);
    let tracer = Tracer::exact(&[pid]);
    before.pass_a_stop();
    board.set(Word::Go, 1);
    let (record, finished) = tracer.finish();
    unshare.finish().assert_code(0);
    assert_eq!(table::calls(&record, "getppid"), 400, "{}\n{finished}", table::render(&record));
    assert_eq!(record.tree.expect("a tree").processes, 3);
    assert_eq!(record.run.attached, [pid]);
}

#[test]
fn a_sleeper_in_other_namespaces_sleeps_on() {
    if !is_root() || find_program("unshare").is_none() {
        return skip("namespaces need root and unshare");
    }
    let mut command = Command::new("unshare");
    let unshare = start(command.args(["-pf", "--kill-child", "--mount-proc", "sleep", "1000"]));
    let sleep = until("the sleep, or the end of unshare", || {
        let child = child_of(unshare.pid())?;
        let name = std::fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
        let there = name.trim() == "sleep" && state(child) == 'S';
        (there || state(unshare.pid()) == 'Z').then_some(child)
    });
    let (record, _) = Tracer::start(&[sleep], &["--duration", "200ms"]).finish();
    assert_inside(&record, "clock_nanosleep", 1);
    assert_untraced(sleep);
    reach_state(sleep, 'S');
}

// ---- storm ----

/// Waits until every thread of a process that makes and ends them is traced.
fn all_traced(target: &Target, tracer: &Tracer) {
    // Threads of a traced thread are traced from birth: once there is no other, there is none
    // any more. A listing may miss threads, so many are taken.
    let reached = |tid: &i32| {
        // Gone since it was listed: no answer.
        !matches!(field(&format!("{}/task/{tid}", target.pid), "TracerPid").as_str(), "0")
    };
    let mut clean = 0;
    until("all threads to be traced", || {
        let tids = tids(target.pid);
        for (who, running) in [("the target", &target.running), ("coldtrace", &tracer.running)] {
            let count = target.board.get(Word::Count);
            assert!(!running.has_ended(), "{who} ended after {count} threads");
        }
        let leader = tids.contains(&target.pid) && is_traced(&target.pid.to_string());
        clean = if leader && tids.iter().all(reached) { clean + 1 } else { 0 };
        (clean >= 50).then_some(())
    });
}

#[test]
fn a_storm_of_threads_leaves_none_untraced_and_loses_none() {
    const LAST: i64 = 1000;
    for round in 0..3 {
        let Some(target) = Target::start(&["storm", &LAST.to_string()], 1) else { return };
        let tracer = Tracer::exact(&[target.pid]);
        all_traced(&target, &tracer);
        let then = target.board.get(Word::Count);
        target.board.set(Word::Go, 1);
        if round == 0 {
            let (record, _) = tracer.finish();
            target.ends_well();
            // Each of the last ones says so by one call.
            let calls = table::calls(&record, "getppid");
            assert_eq!(calls, LAST as u64, "round {round}: {}", table::render(&record));
        } else {
            // Let go in the middle: each goes on.
            target.board.reach(Word::Count, then + 20 * round);
            let (record, _) = tracer.interrupt();
            assert!(record.measurement.notes.is_empty(), "{:?}", record.measurement.notes);
            assert_untraced(target.pid);
            let board = target.ends_well();
            assert!(board.get(Word::Count) >= then + LAST, "all of the last ones came");
        }
    }
}

#[test]
fn a_storm_can_be_attached_to_again_and_again() {
    let Some(target) = Target::start(&["storm", "10"], 1) else { return };
    for _ in 0..10 {
        let (record, finished) = Tracer::start(&[target.pid], &["--duration", "50ms"]).finish();
        assert!(record.measurement.notes.is_empty(), "{:?} {finished}", record.measurement.notes);
        assert_untraced(target.pid);
        let then = target.board.get(Word::Count);
        target.board.reach(Word::Count, then + 100);
    }
    target.ends_well();
}

#[test]
fn a_process_that_executes_again_and_again_is_attached_to() {
    const LAST: u64 = 100;
    let Some(target) = Target::start(&["execs", &LAST.to_string()], 1) else { return };
    for _ in 0..10 {
        let (record, finished) = Tracer::start(&[target.pid], &["--duration", "50ms"]).finish();
        assert!(record.measurement.notes.is_empty(), "{:?} {finished}", record.measurement.notes);
        assert_untraced(target.pid);
        let then = target.board.get(Word::Count);
        target.board.reach(Word::Count, then + 10);
    }
    let tracer = Tracer::exact(&[target.pid]);
    all_traced(&target, &tracer);
    target.board.set(Word::Go, 1);
    let (record, _) = tracer.finish();
    target.ends_well();
    assert_eq!(table::calls(&record, "getppid"), LAST, "{}", table::render(&record));
    let execs = table::calls(&record, "execve");
    assert!(execs >= LAST, "{execs} execs: {}", table::render(&record));
}

// ---- what cannot be reached ----

#[test]
fn a_thread_that_somebody_else_traces_is_said() {
    let Some(target) = Target::start(&["counts", "2", "100"], 2) else { return };
    let other = tids(target.pid).into_iter().find(|&tid| tid != target.pid).expect("two threads");
    let Some(tracing) = Target::start(&["traces", &other.to_string()], 1) else { return };
    let before = Switches(vec![(target.pid.to_string(), switches(&target.pid.to_string()))]);
    let tracer = Tracer::exact(&[target.pid]);
    before.pass_a_stop();
    reach_state(target.pid, 'R'); // It goes on when all threads have been looked at.
    target.board.set(Word::Go, 1);
    target.board.reach(Word::Count, 200);
    let traced_by = tracing.pid;
    tracing.ends_well(); // ... and lets go: one that has ended waits for its tracer
    let finished = tracer.running.finish();
    let record = read_record(&tracer.report, &finished);
    target.ends_well();
    assert_eq!(record.measurement.events_lost, 1, "{finished}");
    let notes = &record.measurement.notes;
    let said = format!("threads of {} are traced by process {traced_by}", before.0[0].0);
    assert!(notes.iter().any(|note| note.contains(&said)), "{notes:?} {finished}");
    assert_eq!(table::calls(&record, "getppid"), 100, "{}", table::render(&record));
}

#[test]
fn without_proc_attach_says_what_it_lacks_and_run_counts() {
    if !is_root() || find_program("unshare").is_none() {
        return skip("a /proc of its own needs root and unshare");
    }
    let Some(target) = Target::start(&["counts", "1", "0"], 1) else { return };
    let script = "mount -t tmpfs none /proc || exit 77; \
        \"$0\" count -p $1; echo attach $?; \"$0\" count -- sh -c 'exit 7'; echo run $?";
    let pid = target.pid.to_string();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(coldtrace_path()).arg(&pid);
    let finished = finish(&mut command);
    if finished.code() == Some(77) || finished.code() == Some(1) {
        return skip(&format!("no mount namespace here: {finished}"));
    }
    assert!(finished.out().ends_with("attach 125\nrun 7\n"), "{finished}");
    assert!(refusals(&finished).concat().contains("/proc is not mounted"), "{finished}");
    assert!(finished.err().contains("exit_group"), "a table: {finished}");
    assert_untraced(target.pid);
    target.ends_well();
}

// ---- frozen ----

/// A cgroup that can be frozen, removed at the end.
struct Freezer {
    directory: PathBuf,
    file: &'static str,
    words: [&'static str; 2],
}

impl Freezer {
    /// Of version 2 (`cgroup.freeze`), or of version 1 (the controller `freezer`).
    fn new(version: u32) -> Option<Self> {
        let wanted = if version == 2 { "cgroup2" } else { "cgroup" };
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let mount = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, at, kind, options, ..] = words[..] else { return None };
            let freezes = version == 2 || options.split(',').any(|option| option == "freezer");
            (kind == wanted && freezes).then_some(at)
        })?;
        let directory = Path::new(mount).join(format!("coldtrace-test.{}", std::process::id()));
        std::fs::create_dir(&directory).ok()?;
        let (file, words) = if version == 2 {
            ("cgroup.freeze", ["1", "0"])
        } else {
            ("freezer.state", ["FROZEN", "THAWED"])
        };
        let freezer = Self { directory, file, words };
        freezer.directory.join(file).exists().then_some(freezer)
    }

    fn holds(&self, pid: i32) -> bool {
        std::fs::write(self.directory.join("cgroup.procs"), pid.to_string()).is_ok()
    }

    fn set(&self, frozen: bool) {
        let word = self.words[usize::from(!frozen)];
        std::fs::write(self.directory.join(self.file), word).expect("the cgroup is ours");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.directory.join(self.file), self.words[1]);
        let _ = std::fs::remove_dir(&self.directory);
    }
}

#[test]
fn a_frozen_target_does_not_hold_coldtrace_and_goes_on_when_thawed() {
    let mut tested = 0;
    for version in [1, 2] {
        let Some(freezer) = Freezer::new(version) else { continue };
        let Some(target) = Target::inside("read") else { return };
        if !freezer.holds(target.pid) {
            continue;
        }
        let before = Switches::of(&[target.pid]);
        let tracer = Tracer::exact(&[target.pid]);
        before.pass_a_stop_and_sleep();
        freezer.set(true);
        let (record, _) = tracer.interrupt();
        assert_inside(&record, "read", 1);
        assert_untraced(target.pid);
        assert_eq!(target.board.get(Word::Finished), 0, "it was frozen");
        freezer.set(false);
        let board = target.ends_well();
        assert_eq!(board.get(Word::Result), 1, "what its read gave");
        tested += 1;
    }
    if tested == 0 {
        skip("no cgroup that can be frozen");
    }
}

/// So that nobody is left untested by a typing error.
#[test]
fn the_fixture_knows_all_calls_that_are_tested() {
    let source =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/target.c"));
    let source = source.expect("fixtures/ can be read");
    for (call, _) in WAITS {
        assert!(
            source.contains(&format!("__NR_{call},")) || source.contains(&format!("__NR_{call})")),
            "{call}"
        );
    }
}
