//! Where the time went: of each thread and of all together.

mod support;

use std::ffi::OsStr;

use coldtrace::record::{Process, Record, TimeShare};
use support::fixture::built;
use support::process::finish;
use support::{Scratch, coldtrace, find_program, read_record, skip, table};

const MS: u64 = 1_000_000;

/// The record of `coldtrace run OPTIONS -- WORDS`.
fn run<S: AsRef<OsStr>>(options: &[&str], words: &[S]) -> Record {
    let scratch = Scratch::new("times");
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["--output", "pass"]).args(options);
    let finished = finish(command.arg("--").args(words));
    finished.assert_code(0);
    read_record(&scratch.path("runs/latest/record.json"), &finished)
}

fn threads(record: &Record) -> Vec<&TimeShare> {
    let processes = record.processes.iter().flatten();
    processes.flat_map(|p| &p.threads).filter_map(|t| t.time.as_ref()).collect()
}

fn blocked_ms(share: &TimeShare, call: &str) -> u64 {
    let rows = share.blocked.iter().filter(|row| row.name == call);
    rows.map(|row| row.blocked_ns).sum::<u64>() / MS
}

/// What is not so, of a thread whose every part is known by itself.
fn wrong(share: &TimeShare, cpu_ms: u64, calls: &[(&str, u64)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let sum = share.cpu_ns + share.run_queue_ns + share.blocked_ns;
    if sum.abs_diff(share.lifetime_ns) > share.lifetime_ns / 50 {
        wrong.push(format!("{sum} of {} ns", share.lifetime_ns));
    }
    if share.cpu_ns / MS < cpu_ms || share.cpu_ns / MS > cpu_ms + 50 {
        wrong.push(format!("{} ms on a CPU, {cpu_ms} expected", share.cpu_ns / MS));
    }
    for &(call, least) in calls {
        let ms = blocked_ms(share, call);
        // More only by as much as it waited for others, which sleep too long themselves.
        if ms < least || ms > least + 100 {
            wrong.push(format!("{ms} ms in {call}, {least} expected"));
        }
    }
    wrong
}

#[test]
fn on_a_cpu_runnable_and_blocked_are_all_of_a_threads_life() {
    let Some(program) = built("waits-known") else { return };
    // Each part is the kernel's own number, so their sum says something. A machine with other work
    // may keep the tracer waiting, and the thread in its stops with it: then again.
    let mut tries = Vec::new();
    for _ in 0..20 {
        let before = stolen();
        let record = run(&[], &[&program.path]);
        let all = threads(&record);
        let [first, second] = all[..] else { panic!("two threads: {}", table::render(&record)) };
        let mut found = wrong(first, 400, &[("nanosleep", 600), ("read", 500), ("futex", 300)]);
        found.extend(wrong(second, 0, &[("nanosleep", 800)]));
        if found.is_empty() {
            let tree = record.time.as_ref().expect("the tree's, too");
            assert_eq!(tree.threads, 2);
            assert_eq!(tree.lifetime_ns, first.lifetime_ns + second.lifetime_ns);
            assert_eq!(tree.cpu_ns, first.cpu_ns + second.cpu_ns);
            assert_eq!(tree.run_queue_ns, first.run_queue_ns + second.run_queue_ns);
            assert_eq!(tree.blocked_ns, first.blocked_ns + second.blocked_ns);
            let calls: Vec<&str> = tree.blocked.iter().map(|row| row.name.as_str()).collect();
            assert_eq!(calls[..3], ["nanosleep", "read", "futex"], "longest first");
            return;
        }
        // What a hypervisor takes from the tracer lengthens each stop, and is nobody's.
        if stolen() == before {
            tries.push(found);
        }
        if tries.len() == 5 {
            break;
        }
    }
    if tries.is_empty() {
        return skip("a hypervisor took time from every run");
    }
    panic!("{tries:#?}");
}

/// Time that a hypervisor has taken, in ticks (`steal` of proc_stat(5)).
fn stolen() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    text.lines().next()?.split_ascii_whitespace().nth(8)?.parse().ok()
}

#[test]
fn children_that_nobody_waits_for_are_in_the_total_once() {
    let Some(program) = built("burns-unwaited") else { return };
    let record = run(&[], &[&program.path]);
    let processes = record.processes.as_deref().unwrap_or_default();
    let own = |p: &Process| p.user_ns.zip(p.sys_ns).map(|(user, sys)| user + sys);
    let used: Vec<u64> = processes.iter().filter_map(own).collect();
    let [root, ignored, orphan] = used[..] else { panic!("three processes: {processes:#?}") };
    assert!(root < 100 * MS, "the root's own: {root} ns");
    assert!((200 * MS..300 * MS).contains(&ignored), "SIGCHLD ignored: {ignored} ns");
    assert!((300 * MS..400 * MS).contains(&orphan), "not waited for: {orphan} ns");
    let tree = record.tree.as_ref().expect("a traced run has it");
    let total = tree.user_ns.zip(tree.sys_ns).map(|(user, sys)| user + sys);
    assert_eq!(total, Some(root + ignored + orphan));
}

#[test]
fn a_small_program_that_a_large_one_runs_is_small() {
    if find_program("python3").is_none() {
        return skip("no python3");
    }
    let script = "import os; kept = b'x' * (64 << 20); pid = os.fork(); \
        pid or os.execv('/bin/true', ['true']); os.waitpid(pid, 0); \
        os.posix_spawn('/bin/true', ['true'], {}); os.wait()";
    let record = run(&["--snapshot", "off"], &["/usr/bin/python3", "-c", script]);
    let processes = record.processes.as_deref().unwrap_or_default();
    let peaks: Vec<u64> = processes.iter().filter_map(|p| p.peak_rss_bytes).collect();
    let [large, forked, spawned] = peaks[..] else { panic!("three processes: {processes:#?}") };
    assert!(large > 64 << 20, "{large}");
    assert!(forked < 16 << 20, "what fork copied is not its own: {forked}");
    assert!(spawned < 16 << 20, "{spawned}");
}

#[test]
fn calls_that_do_not_block_are_not_blocked_in() {
    // 200 getppid a thread, by 32 threads; clone and fork stop once more than others.
    let Some(program) = built("processes-threads") else { return };
    let mut tries = Vec::new();
    for _ in 0..5 {
        let record = run(&[], &[&program.path]);
        assert_eq!(table::contradictions(&record), Vec::<String>::new());
        let tree = record.time.as_ref().expect("a traced run has it");
        assert_eq!(Some(tree.threads), record.tree.as_ref().map(|tree| tree.threads));
        // One that lost its CPU to others was not blocked: what is left is the way to the tracer.
        let names = ["getppid", "clone", "fork", "execve"];
        let rows = tree.blocked.iter().filter(|row| names.contains(&row.name.as_str()));
        let blocked: u64 = rows.map(|row| row.blocked_ns).sum();
        if blocked < tree.lifetime_ns / 50 {
            return;
        }
        tries.push(format!("{blocked} of {} ns: {:?}", tree.lifetime_ns, tree.blocked));
    }
    panic!("{tries:#?}");
}

#[test]
fn what_is_not_watched_is_not_said_to_be_blocked_in() {
    let Some(program) = built("waits-known") else { return };
    let record = run(&["-e", "trace=read"], &[&program.path]);
    let tree = record.time.as_ref().expect("a traced run has it");
    assert_eq!(blocked_ms(tree, "nanosleep") + blocked_ms(tree, "futex"), 0, "{tree:?}");
    assert!(blocked_ms(tree, "read") >= 500, "{tree:?}");
    // It is the rest: 600 ms of one thread, 800 of the other, and with the read 800 of the first,
    // less what it took to get there.
    assert!(tree.other_ns + tree.blocked_ns >= 2000 * MS, "{tree:?}");
}
