//! SIGKILL to the tracer, at many moments. A launched tree dies with it (PTRACE_O_EXITKILL); with
//! `-p` and `--detach-on-exit` everybody goes on, and nobody stays in a stop that nobody ends.
//!
//! A moment is a count of what the tracees have done, drawn from a sequence that is the same in
//! every run.
//!
//! What no tracer can help: a signal that it has been told of and has not passed on yet is gone with
//! it (wait(2) takes the signal's number out of the stopped thread), and a call that any stop ends
//! with EINTR (signal(7): epoll_wait, semop, ...) ends if the tracer dies in the moment before it is
//! made to go on.

mod support;

use support::board::{
    Board, Word, assert_untraced, field, is_traced, reach_state, state, tids, until,
};
use support::fixture::built;
use support::process::{Running, start};
use support::{Scratch, coldtrace, count_json};

const ROUNDS: usize = 40;

/// Threads of `tree works` that work all the time.
const WORKERS: u64 = 4;

/// Numbers that look random (Knuth's MMIX generator).
struct Moments(u64);

impl Moments {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Waits, without pausing, until so much more has been done than now: then the tracer is anywhere.
fn pass(board: &Board, more: u64) {
    let until_then = board.get(Word::Count) + more as i64;
    until("progress", || (0..1000).any(|_| board.get(Word::Count) >= until_then).then_some(()));
}

/// SIGKILL, and the end; the harness reaps it later.
fn kill(tracer: &Running) {
    tracer.kill(libc::SIGKILL);
    reach_state(tracer.pid(), 'Z');
}

/// Each worker of `tree works` goes on: untraced, and with its work.
#[track_caller]
fn all_go_on(board: &Board) {
    let pids: Vec<i32> = (0..2).map(|n| board.get_nth(Word::Pids, n) as i32).collect();
    for &pid in &pids {
        assert_untraced(pid);
        for tid in tids(pid) {
            let state = field(&format!("{pid}/task/{tid}"), "State");
            assert!(!state.starts_with(['t', 'T']), "thread {tid}: {state}");
        }
    }
    for worker in 0..WORKERS {
        let then = board.get_nth(Word::Progress, worker);
        until(&format!("worker {worker} to go on, {pids:?}"), || {
            (board.get_nth(Word::Progress, worker) > then + 2).then_some(())
        });
    }
}

/// All work is ended, and each worker ends as it was to: it has compared what it wrote, made and
/// waited for with what came of it. No signal came twice, and at each of the tracer's deaths a thread
/// lost one at most.
#[track_caller]
fn all_end_well(board: &Board, deaths: usize) {
    board.set(Word::Stop, 1);
    board.reach(Word::Finished, WORKERS as i64);
    let lost = board.get(Word::Sent) - board.get(Word::Handled);
    assert!((0..=(WORKERS as usize * deaths) as i64).contains(&lost), "{lost} signals lost");
}

/// Starts `coldtrace count OPTIONS -- tree BOARD works`, all of it at work.
fn launched(options: &[&str]) -> Option<(Running, Board)> {
    let program = built("tree")?;
    let board = Board::new();
    let mut command = coldtrace("count");
    command.args(["-o", "/dev/null"]).args(options).arg("--").arg(&program.path);
    let running = start(command.arg(&board.path).arg("works"));
    board.reach(Word::Ready, WORKERS as i64);
    Some((running, board))
}

#[test]
fn a_launched_tree_dies_with_its_tracer() {
    let mut moments = Moments(1);
    for round in 0..ROUNDS {
        // A filter too: its calls would be ENOSYS without a tracer.
        let options = [&[][..], &["-e", "trace=read,clone,wait4"], &["--timeout", "80s"]];
        let Some((running, board)) = launched(options[round % options.len()]) else { return };
        pass(&board, moments.next(200));
        let pids: Vec<i32> = (0..2).map(|n| board.get_nth(Word::Pids, n) as i32).collect();
        kill(&running);
        for pid in pids {
            until("the end of a process of the tree", || {
                matches!(state(pid), '-' | 'Z' | 'X').then_some(())
            });
        }
        running.finish().assert_signal(libc::SIGKILL); // nothing is left behind
    }
}

#[test]
fn a_launched_tree_dies_with_its_tracer_however_early() {
    let Some(program) = built("tree") else { return };
    let mut moments = Moments(2);
    for _ in 0..ROUNDS {
        let board = Board::new();
        let mut command = coldtrace("count");
        command.args(["-o", "/dev/null", "--"]).arg(&program.path);
        let running = start(command.arg(&board.path).arg("works"));
        // The moments are counted in switches of coldtrace itself, of both kinds.
        let pid = running.pid().to_string();
        let moment = moments.next(60);
        until("coldtrace to be so far", || {
            let switches = |kind: &str| field(&pid, kind).parse().unwrap_or(moment);
            let both = switches("voluntary_ctxt_switches") + switches("nonvoluntary_ctxt_switches");
            (both >= moment).then_some(())
        });
        kill(&running);
        running.finish().assert_signal(libc::SIGKILL);
    }
}

#[test]
fn with_detach_on_exit_a_launched_tree_goes_on() {
    let mut moments = Moments(3);
    for _ in 0..ROUNDS {
        let Some((running, board)) = launched(&["--detach-on-exit"]) else { return };
        pass(&board, moments.next(200));
        kill(&running);
        all_go_on(&board);
        all_end_well(&board, 1);
        running.finish().assert_signal(libc::SIGKILL);
    }
}

#[test]
fn attached_processes_go_on() {
    let Some(program) = built("tree") else { return };
    let board = Board::new();
    let target = start(program.untraced().arg(&board.path).arg("works"));
    board.reach(Word::Ready, WORKERS as i64);
    let pids: Vec<String> = (0..2).map(|n| board.get_nth(Word::Pids, n).to_string()).collect();
    let mut moments = Moments(4);
    for round in 0..ROUNDS {
        let scratch = Scratch::new("dies");
        let mut command = count_json(&scratch.path("report.json"));
        command.args(["-p", &pids.join(","), "--duration", "600s"]);
        let bursts = if round % 4 == 3 { "1.5x" } else { "off" };
        let running = start(command.args(["--max-slowdown", bursts]));
        if round % 2 == 0 {
            // In the middle of attaching: so many threads are seized.
            let some = 1 + moments.next(WORKERS) as usize;
            until("some threads to be traced", || {
                let all = pids.iter().flat_map(|pid| {
                    let tids = tids(pid.parse().expect("a pid"));
                    tids.into_iter().map(move |tid| format!("{pid}/task/{tid}"))
                });
                (all.filter(|path| is_traced(path)).count() >= some).then_some(())
            });
        } else {
            until("the processes to be traced", || {
                pids.iter().all(|pid| is_traced(pid)).then_some(())
            });
            pass(&board, moments.next(300));
        }
        kill(&running);
        all_go_on(&board);
        running.finish().assert_signal(libc::SIGKILL);
    }
    all_end_well(&board, ROUNDS);
    target.finish().assert_code(0);
}

#[test]
fn no_signal_is_doubled_and_only_the_one_it_held_is_lost() {
    let Some(program) = built("target") else { return };
    let board = Board::new();
    let target = start(program.untraced().arg(&board.path).arg("self-signals"));
    board.reach(Word::Ready, 1);
    let pid = target.pid().to_string();
    let mut moments = Moments(5);
    for _ in 0..ROUNDS {
        let mut command = coldtrace("count");
        command.args(["-o", "/dev/null", "-p", &pid, "--max-slowdown", "off"]);
        let running = start(command.args(["--duration", "600s"]));
        until("the target to be traced", || is_traced(&pid).then_some(()));
        pass(&board, moments.next(30));
        kill(&running);
        pass(&board, 10);
        assert_untraced(target.pid());
        running.finish().assert_signal(libc::SIGKILL);
    }
    board.set(Word::Stop, 1);
    target.finish().assert_code(0);
    let lost = board.get(Word::Sent) - board.get(Word::Handled);
    assert!((0..=ROUNDS as i64).contains(&lost), "{lost} signals lost");
}

#[test]
fn a_call_that_waits_goes_on_waiting() {
    let Some(program) = built("target") else { return };
    // Whether a stop ends the call, so that only the tracer makes it go on.
    for (call, result, ends) in [
        ("read", 1, false),
        ("poll", 1, false),
        ("futex", 0, false),
        ("pause", -i64::from(libc::EINTR), false), // by its handler
        ("wait4", 1, false),
        ("recvfrom", 1, true),
        ("epoll_wait", 1, true),
        ("semop", 0, true),
        ("rt_sigtimedwait", libc::SIGUSR1 as i64, true),
    ] {
        let board = Board::new();
        let target = start(program.untraced().arg(&board.path).args(["call", call]));
        board.reach(Word::Ready, 1);
        reach_state(target.pid(), 'S');
        let pid = target.pid().to_string();
        let switches = || field(&pid, "voluntary_ctxt_switches").parse::<u64>().unwrap_or(0);
        for moment in 0..8 {
            let before = switches();
            let mut command = coldtrace("count");
            command.args(["-o", "/dev/null", "-p", &pid, "--max-slowdown", "off"]);
            let running = start(command.args(["--duration", "600s"]));
            // Seized; stopped; at its call again; asleep in it.
            let moment = if ends { 3 } else { moment % 4 };
            until("the target to be so far", || {
                let so_far = is_traced(&pid) && switches() >= before + moment;
                (so_far && (!ends || state(target.pid()) == 'S')).then_some(())
            });
            kill(&running);
            reach_state(target.pid(), 'S');
            assert_untraced(target.pid());
            assert_eq!(board.get(Word::Finished), 0, "{call} was ended");
            running.finish().assert_signal(libc::SIGKILL);
        }
        board.set(Word::Go, 1);
        target.finish().assert_code(0);
        assert_eq!(board.get(Word::Result), result, "{call}");
    }
}

#[test]
fn a_stopped_process_stays_stopped_and_can_be_continued() {
    let Some(program) = built("target") else { return };
    let board = Board::new();
    let target = start(program.untraced().arg(&board.path).arg("hot"));
    board.reach(Word::Ready, 1);
    let pid = target.pid().to_string();
    for stopped_first in [true, false] {
        if stopped_first {
            target.kill(libc::SIGSTOP);
            reach_state(target.pid(), 'T');
        }
        let mut command = coldtrace("count");
        command.args(["-o", "/dev/null", "-p", &pid, "--max-slowdown", "off"]);
        let running = start(command.args(["--duration", "600s"]));
        until("the target to be traced", || is_traced(&pid).then_some(()));
        if !stopped_first {
            pass(&board, 20);
            target.kill(libc::SIGSTOP);
        }
        kill(&running);
        reach_state(target.pid(), 'T');
        assert_untraced(target.pid());
        target.kill(libc::SIGCONT);
        pass(&board, 100);
        running.finish().assert_signal(libc::SIGKILL);
    }
    board.set(Word::Stop, 1);
    target.finish().assert_code(0);
}
