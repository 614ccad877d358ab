//! Stop sequences of one thread, as kernels give them, and what must come out.

use super::*;
use crate::syscall::Abi;

const READ: i64 = 0;
const NANOSLEEP: i64 = 35;
const GETPPID: i64 = 110;
const EPOLL_WAIT: i64 = 232;
const SIGRETURN: i64 = 15;
const RESTART: i64 = 219;
const EXECVE: i64 = 59;
const EXIT_GROUP: i64 = 231;

fn entry(number: i64, ip: u64, sp: u64) -> Stop {
    Stop::Entry(Entry { sys: Sys::new(Abi::X86_64, number), args: [7; 6], ip, sp })
}

fn exit(value: i64, ip: u64, sp: u64) -> Stop {
    Stop::Exit { value, ip, sp, spurious: false }
}

fn signal(signal: i32, disposition: Disposition) -> Stop {
    Stop::Signal { signal, disposition }
}

/// Number, outcome, restarts, wall.
type Seen = (i64, Outcome, u32, Option<u64>);

/// Steps through the stops, one a nanosecond; gives what was settled and the actions.
fn replay(stops: &[Stop]) -> (Vec<Seen>, Vec<Action>) {
    let mut task = Task::new(Follow::Every);
    let (mut settled, mut actions) = (Vec::new(), Vec::new());
    for (at, stop) in stops.iter().enumerate() {
        let action = task.step(stop, at as u64, &mut |s: Settled| {
            let wall = s.left.zip(s.call.entered).map(|(left, entered)| left - entered);
            settled.push((s.call.entry.sys.number, s.outcome, s.call.restarts, wall));
        });
        actions.push(action);
    }
    (settled, actions)
}

#[test]
fn a_call_is_its_entry_and_its_exit() {
    let (settled, actions) = replay(&[entry(READ, 10, 90), exit(5, 10, 90)]);
    assert_eq!(settled, [(READ, Outcome::Returned(5), 0, Some(1))]);
    assert_eq!(actions, [Action::Syscall(0), Action::Syscall(0)]);
}

#[test]
fn errors_are_minus_4095_to_minus_1() {
    for (value, outcome) in [
        (-1, Outcome::Failed(1)),
        (-4095, Outcome::Failed(4095)),
        (-4096, Outcome::Returned(-4096)),
        (i64::MIN, Outcome::Returned(i64::MIN)),
    ] {
        let (settled, _) = replay(&[entry(READ, 10, 90), exit(value, 10, 90)]);
        assert_eq!(settled, [(READ, outcome, 0, Some(1))]);
    }
}

#[test]
fn a_restart_without_a_handler_is_the_same_call() {
    for code in [-512, -513, -514, -516] {
        let again = if code == -516 { RESTART } else { NANOSLEEP };
        let (settled, _) = replay(&[
            entry(NANOSLEEP, 10, 90),
            exit(code, 10, 90),
            signal(libc::SIGCHLD, Disposition::Ignored),
            entry(again, 10, 90),
            exit(0, 10, 90),
        ]);
        assert_eq!(settled, [(NANOSLEEP, Outcome::Returned(0), 1, Some(4))], "{code}");
    }
}

/// Of a thread that the tracer made stop, with what came between its call's two entries.
fn asked(between: &[Stop]) -> Vec<Seen> {
    let mut task = Task::new(Follow::Every);
    task.ask_to_stop();
    let mut settled = Vec::new();
    let begin = [entry(READ, 10, 90), exit(-512, 10, 90)];
    let end = [entry(READ, 10, 90), exit(3, 10, 90)];
    for (at, stop) in begin.iter().chain(between).chain(&end).enumerate() {
        task.step(stop, at as u64, &mut |s: Settled| {
            settled.push((s.call.entry.sys.number, s.outcome, s.call.restarts, None));
        });
    }
    settled
}

#[test]
fn a_restart_that_only_the_tracer_caused_is_none() {
    let read = |restarts| [(READ, Outcome::Returned(3), restarts, None)];
    for between in [&[][..], &[Stop::Trap]] {
        assert_eq!(asked(between), read(0));
        // A signal would have done so too.
        for disposition in [Disposition::Ignored, Disposition::Default] {
            let came = signal(libc::SIGWINCH, disposition);
            assert_eq!(asked(&[between, &[came]].concat()), read(1));
        }
    }
}

#[test]
fn a_handler_that_returns_to_the_instruction_restarts_the_call() {
    let (settled, _) = replay(&[
        entry(READ, 10, 90),
        exit(-512, 10, 90),
        signal(libc::SIGUSR1, Disposition::Handled),
        entry(GETPPID, 30, 50),
        exit(1, 30, 50),
        entry(SIGRETURN, 40, 60),
        exit(READ, 8, 90), // Two bytes back: SA_RESTART.
        entry(READ, 10, 90),
        exit(3, 10, 90),
    ]);
    assert_eq!(
        settled,
        [
            (GETPPID, Outcome::Returned(1), 0, Some(1)),
            (SIGRETURN, Outcome::Returned(READ), 0, Some(1)),
            (READ, Outcome::Returned(3), 1, Some(8)),
        ]
    );
}

#[test]
fn a_handler_that_returns_behind_it_ends_the_call_in_eintr() {
    for code in [-512, -514, -516] {
        let (settled, _) = replay(&[
            entry(NANOSLEEP, 10, 90),
            exit(code, 10, 90),
            signal(libc::SIGUSR1, Disposition::Handled),
            entry(SIGRETURN, 40, 60),
            exit(-4, 10, 90),
        ]);
        assert_eq!(
            settled,
            [
                (SIGRETURN, Outcome::Returned(-4), 0, Some(1)),
                (NANOSLEEP, Outcome::Failed(libc::EINTR), 0, Some(4)),
            ],
            "rt_sigreturn has no error of its own"
        );
    }
}

#[test]
fn nested_handlers_settle_the_call_that_each_interrupted() {
    let (settled, _) = replay(&[
        entry(READ, 10, 90),
        exit(-512, 10, 90),
        signal(libc::SIGUSR1, Disposition::Handled),
        entry(NANOSLEEP, 20, 50),
        exit(-516, 20, 50),
        signal(libc::SIGUSR2, Disposition::Handled),
        entry(SIGRETURN, 40, 30),
        exit(-4, 20, 50),
        entry(SIGRETURN, 40, 60),
        exit(READ, 8, 90),
        entry(READ, 10, 90),
        exit(0, 10, 90),
        entry(GETPPID, 10, 90),
    ]);
    let calls: Vec<_> = settled.iter().map(|(n, o, r, _)| (*n, *o, *r)).collect();
    assert_eq!(
        calls,
        [
            (SIGRETURN, Outcome::Returned(-4), 0),
            (NANOSLEEP, Outcome::Failed(libc::EINTR), 0),
            (SIGRETURN, Outcome::Returned(READ), 0),
            (READ, Outcome::Returned(0), 1),
        ]
    );
}

#[test]
fn a_jump_out_of_the_handler_abandons_the_call_even_if_it_is_made_again() {
    let (settled, _) = replay(&[
        entry(READ, 10, 90),
        exit(-512, 10, 90),
        signal(libc::SIGUSR1, Disposition::Handled),
        // siglongjmp, and the loop calls read at the same place.
        entry(READ, 10, 90),
        exit(1, 10, 90),
    ]);
    let calls: Vec<_> = settled.iter().map(|(n, o, r, _)| (*n, *o, *r)).collect();
    assert_eq!(calls, [(READ, Outcome::Abandoned, 0), (READ, Outcome::Returned(1), 0)]);
}

#[test]
fn endless_jumps_out_of_handlers_do_not_grow_the_tracer() {
    let mut task = Task::new(Follow::Every);
    let mut abandoned = 0;
    for i in 0..1000 {
        let (ip, sp) = (10 + i * 8, 1_000_000 - i * 64);
        let mut settle = |s: Settled| abandoned += u32::from(s.outcome == Outcome::Abandoned);
        task.step(&entry(READ, ip, sp), 0, &mut settle);
        task.step(&exit(-512, ip, sp), 0, &mut settle);
        task.step(&signal(libc::SIGUSR1, Disposition::Handled), 0, &mut settle);
    }
    assert!(task.interrupted.len() <= MOST_INTERRUPTED);
    assert_eq!(abandoned as usize + task.interrupted.len(), 1000);
}

#[test]
fn eintr_that_only_tracing_made_is_issued_again_and_counted_as_repaired() {
    let mut task = Task::new(Follow::Every);
    let mut settled = Vec::new();
    let mut step = |stop: Stop, at| task.step(&stop, at, &mut |s| settled.push(s));
    step(entry(EPOLL_WAIT, 10, 90), 100);
    let spurious = Stop::Exit { value: -4, ip: 10, sp: 90, spurious: true };
    let Action::Reissue { elapsed: 50, entry: again } = step(spurious, 150) else {
        panic!("not issued again");
    };
    assert_eq!(again.ip, 10);
    step(signal(libc::SIGCHLD, Disposition::Ignored), 151);
    step(entry(EPOLL_WAIT, 10, 90), 152);
    step(exit(1, 10, 90), 160);
    let [call] = settled[..] else { panic!("{settled:?}") };
    assert_eq!(
        (call.outcome, call.call.repaired, call.call.restarts),
        (Outcome::Returned(1), 1, 0)
    );
    assert_eq!((call.call.entered, call.left), (Some(100), Some(160)));
}

#[test]
fn a_handler_after_all_takes_the_repair_back() {
    let (settled, actions) = replay(&[
        entry(EPOLL_WAIT, 10, 90),
        Stop::Exit { value: -4, ip: 10, sp: 90, spurious: true },
        signal(libc::SIGUSR1, Disposition::Handled),
        entry(GETPPID, 30, 50),
    ]);
    assert_eq!(settled, [(EPOLL_WAIT, Outcome::Failed(libc::EINTR), 0, Some(2))]);
    assert!(matches!(actions[2], Action::EndInEintr { signal: libc::SIGUSR1, .. }));
}

#[test]
fn a_filters_trap_gives_what_the_handler_leaves() {
    let (settled, _) = replay(&[
        entry(GETPPID, 10, 90),
        exit(GETPPID, 10, 90), // The kernel puts the number back.
        signal(libc::SIGSYS, Disposition::Handled),
        entry(SIGRETURN, 40, 60),
        exit(-1, 10, 90),
    ]);
    assert_eq!(settled[1], (GETPPID, Outcome::Failed(1), 0, Some(4)));
    // The same value without a trap is an answer like any other.
    let (settled, _) =
        replay(&[entry(GETPPID, 10, 90), exit(GETPPID, 10, 90), entry(READ, 10, 90)]);
    assert_eq!(settled, [(GETPPID, Outcome::Returned(GETPPID), 0, Some(1))]);
}

#[test]
fn what_never_returns_is_unfinished_but_for_exit() {
    let (settled, actions) = replay(&[entry(READ, 10, 90), Stop::Exiting { status: 9 }]);
    assert_eq!(settled, [(READ, Outcome::Unfinished, 0, None)]);
    assert_eq!(actions[1], Action::Continue(0));
    let (settled, _) = replay(&[entry(EXIT_GROUP, 10, 90), Stop::Exiting { status: 0 }]);
    assert_eq!(settled, [(EXIT_GROUP, Outcome::NoReturn, 0, None)]);
    let (settled, actions) =
        replay(&[entry(READ, 10, 90), exit(-512, 10, 90), Stop::Killed { signal: 9, core: false }]);
    assert_eq!(settled, [(READ, Outcome::Unfinished, 0, None)]);
    assert_eq!(actions[2], Action::Wait);
}

#[test]
fn a_launcher_counts_only_the_exec_that_succeeds() {
    let mut task = Task::launching(Follow::Every);
    let mut settled = Vec::new();
    for stop in [
        entry(READ, 1, 1),
        exit(1, 1, 1),
        entry(EXECVE, 2, 2),
        exit(-2, 2, 2),
        entry(EXECVE, 2, 2),
        Stop::Exec { former: 1 },
        exit(0, 3, 3),
    ] {
        task.step(&stop, 0, &mut |s: Settled| settled.push((s.call.entry.sys.number, s.outcome)));
    }
    assert_eq!(settled, [(EXECVE, Outcome::Returned(0))]);
}

#[test]
fn signals_are_passed_on_and_group_stops_listened_to() {
    let (_, actions) = replay(&[
        signal(libc::SIGTRAP, Disposition::Unknown),
        signal(64, Disposition::Unknown),
        Stop::GroupStop { signal: libc::SIGSTOP },
        Stop::Trap,
        Stop::Unknown { status: 0x7f },
        Stop::Dying,
    ]);
    let expected = [
        Action::Syscall(libc::SIGTRAP),
        Action::Syscall(64),
        Action::Listen,
        Action::Syscall(0),
        Action::Syscall(0),
        Action::Wait,
    ];
    assert_eq!(actions, expected);
}

#[test]
fn under_a_filter_only_wanted_calls_are_followed_to_their_exit() {
    let mut task = Task::new(Follow::Filter);
    let mut settle = |_| {};
    let Stop::Entry(read) = entry(READ, 10, 90) else { panic!() };
    assert_eq!(task.step(&Stop::Trap, 0, &mut settle), Action::Continue(0));
    assert_eq!(task.step(&Stop::Seccomp(read), 0, &mut settle), Action::Syscall(0));
    // Interrupted: the handler's return must be seen, whatever the filter says.
    assert_eq!(task.step(&exit(-512, 10, 90), 0, &mut settle), Action::Syscall(0));
    let handled = signal(libc::SIGUSR1, Disposition::Handled);
    assert_eq!(task.step(&handled, 0, &mut settle), Action::Syscall(libc::SIGUSR1));
    task.step(&entry(SIGRETURN, 40, 60), 0, &mut settle);
    assert_eq!(task.step(&exit(-4, 10, 90), 0, &mut settle), Action::Continue(0));
}
