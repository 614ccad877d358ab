//! The fast engine under torture: what a program counted by itself is what the record says, whatever
//! it does to signals, threads, children, GS and memory that is not its own.
//!
//! `COLDTRACE_TORTURE=SECONDS` repeats the long test for so long.

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use coldtrace::record::{FastMeasurement, Record};
use support::fixture::built;
use support::process::{finish, start};
use support::{Scratch, count_json, read_record, skip, table};

const FAST: &[&str] = &["--engine", "fast", "--tier-up-after", "2"];

/// Calls, and those of them that ended in each errno.
type Counts = BTreeMap<String, (u64, BTreeMap<String, u64>)>;

/// What a fixture printed: `name calls`, and `name errno calls`.
fn printed(text: &str) -> Counts {
    let number = |word: &str| word.parse::<u64>().unwrap_or_else(|_| panic!("{word}: {text}"));
    let mut counts = Counts::new();
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, calls] => counts.entry(name.to_owned()).or_default().0 = number(calls),
            [name, errno, calls] => {
                let errors = &mut counts.entry(name.to_owned()).or_default().1;
                let errno =
                    coldtrace::syscall::errno::errno_label(number(errno) as i32).into_owned();
                errors.insert(errno, number(calls));
            }
            _ => panic!("{line}"),
        }
    }
    counts
}

/// The same calls as a record has them.
fn recorded(record: &Record, like: &Counts) -> Counts {
    let counts = like.keys().filter_map(|name| {
        let row = table::row(record, name)?;
        let errors = row.errors.iter().map(|(errno, n)| (errno.clone(), *n)).collect();
        Some((name.clone(), (row.calls, errors)))
    });
    counts.collect()
}

fn fast(record: &Record) -> &FastMeasurement {
    record.measurement.fast.as_ref().expect("what the fast engine did")
}

/// Runs a fixture; its record and what it printed. None where it cannot be had here.
#[track_caller]
fn run(name: &str, arguments: &[&str]) -> Option<(Record, String)> {
    let program = built(name)?;
    let scratch = Scratch::new(name);
    let report = scratch.path("report.json");
    let mut command = count_json(&report);
    let finished = finish(command.args(FAST).arg("--").arg(&program.path).args(arguments));
    if finished.code() == Some(support::fixture::SKIPPED) {
        skip(&format!("{name}: this machine lacks what it is about"));
        return None;
    }
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    assert_eq!(record.measurement.events_lost, 0, "{finished}");
    if let Some(why) = &fast(&record).refused {
        skip(why);
        return None;
    }
    Some((record, finished.out()))
}

/// Every count is what the program printed, and `part` in a hundred of all calls did not stop.
#[track_caller]
fn holds(record: &Record, out: &str, part: u64) {
    let printed = printed(out);
    assert!(!printed.is_empty(), "nothing printed");
    assert_eq!(recorded(record, &printed), printed, "{:?}", record.measurement);
    let all: u64 = table::rows(record).iter().map(|row| row.calls).sum();
    let without = fast(record).calls_without_stop;
    assert!(without * 100 >= all * part, "{without} of {all} without a stop: {:?}", fast(record));
}

/// Rounds of some seconds, for none to come near the harness's limit on a busy machine.
#[test]
fn all_that_is_hard_at_once_is_counted_exactly() {
    let seconds = std::env::var("COLDTRACE_TORTURE").ok().and_then(|s| s.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    loop {
        let Some((record, out)) = run("torture", &["5", "6000"]) else { return };
        holds(&record, &out, 70);
        if Instant::now() >= until {
            break;
        }
    }
}

#[test]
fn a_signal_at_any_instruction_sees_the_program_only() {
    for name in ["fast-registers", "fast-front"] {
        let Some((record, out)) = run(name, &["3"]) else { return };
        holds(&record, &out, 50);
    }
}

#[test]
fn a_program_that_steps_through_itself_does_not_step_through_coldtrace() {
    for name in ["fast-registers", "fast-front"] {
        let Some((record, out)) = run(name, &["0.2", "step"]) else { return };
        holds(&record, &out, 0);
    }
}

/// Of six programs the first is watched, and the others count from their first call on.
#[test]
fn a_program_that_begins_under_the_filter_counts_at_once() {
    for how in ["plain", "mdwe"] {
        let Some((record, out)) = run("fast-begin", &[how]) else { continue };
        holds(&record, &out, 70);
        let fast = fast(&record);
        assert!(fast.reasons.is_empty(), "{how}: {:?}", fast.reasons);
        assert!(record.measurement.stops < 300, "{how}: {:?}", record.measurement);
    }
}

/// It begins with what it had: signals that it blocks or ignores too.
#[test]
fn a_program_that_cannot_have_coldtraces_pages_begins_without() {
    const WHY: &str = "coldtrace's pages could not be mapped where a program begins";
    let Some(low) = built("fast-low") else { return };
    let low = low.path.to_string_lossy();
    for how in ["plain", "blocked"] {
        let Some((record, out)) = run("fast-begin", &[how, &low]) else { return };
        holds(&record, &out, 0);
        let reasons = &fast(&record).reasons;
        assert_eq!(reasons.contains_key(WHY), how == "plain", "{how}: {reasons:?}");
    }
}

/// What is shared among relatives is not wrong where they have other code in one place.
#[test]
fn relatives_with_other_code_in_one_place_make_their_own_calls() {
    let (Some(one), Some(two)) = (built("relative-one"), built("relative-two")) else { return };
    let (one, two) = (one.path.to_string_lossy(), two.path.to_string_lossy());
    let Some((record, out)) = run("fast-relatives", &[&one, &two]) else { return };
    holds(&record, &out, 50);
}

/// Its numbers may name other segments there.
#[test]
fn a_program_in_another_namespace_begins_without() {
    let Some((record, out)) = run("fast-begin", &["namespace"]) else { return };
    holds(&record, &out, 0);
    let reasons = &fast(&record).reasons;
    assert!(reasons.contains_key("it is in another IPC namespace"), "{reasons:?}");
}

/// GS is the program's from then on, and a word says so.
#[test]
fn a_program_may_use_gs_itself() {
    for how in ["wrgsbase", "arch_prctl", "zero"] {
        let Some((record, _)) = run("fast-gs", &[how]) else { return };
        assert_eq!(table::calls(&record, "getppid"), 80_000, "{how}");
        let reasons = &fast(&record).reasons;
        assert!(reasons.keys().any(|why| why.starts_with("GS ")), "{how}: {reasons:?}");
    }
}

#[test]
fn a_program_may_do_away_with_coldtraces_pages() {
    for what in ["counters", "code"] {
        for how in ["unmap", "cover", "forbid"] {
            let Some((record, _)) = run("fast-pages", &[how, what]) else { return };
            assert_eq!(table::calls(&record, "getppid"), 80_000, "{how} {what}");
            assert!(!fast(&record).reasons.is_empty(), "{how} {what}");
        }
    }
}

/// The kernel says of each of our mappings that no core has it (proc_pid_smaps(5)).
#[test]
fn coldtraces_pages_are_in_no_core() {
    let cat = support::find_program("cat").expect("cat");
    let scratch = Scratch::new("fast-smaps");
    let report = scratch.path("report.json");
    let mut command = count_json(&report);
    let finished = finish(command.args(FAST).arg("--").arg(cat).arg("/proc/self/smaps"));
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    if fast(&record).address_spaces == 0 {
        return skip("nothing was counted inside");
    }
    let smaps = finished.out();
    let mut ours = 0;
    let mut inside = false;
    for line in smaps.lines() {
        if let Some((from, _)) = line.split_whitespace().next().and_then(|w| w.split_once('-')) {
            let from = u64::from_str_radix(from, 16);
            inside = from.is_ok_and(|from| (0x5000_0000..0x7000_0000).contains(&from));
            ours += usize::from(inside);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
            assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}\n{smaps}");
        }
    }
    assert!(ours >= 2, "{smaps}");
}

/// And it has not. Without patches: where a page of a file's code was changed, the kernel dumps all
/// of that.
#[test]
fn a_core_is_as_large_as_without_coldtrace() {
    let script = "ulimit -c unlimited; cd \"$1\"; for i in 1 2 3 4; do echo $i >/dev/null; done; \
                  kill -SEGV $$";
    let shell = support::find_program("sh").expect("a shell");
    let size = |name: &str, command: &mut std::process::Command| {
        let scratch = Scratch::new(name);
        let ended = finish(command.arg(&shell).args(["-c", script, "sh"]).arg(scratch.root()));
        let mut files = std::fs::read_dir(scratch.root()).expect("a directory").flatten();
        let core = files.find(|file| file.file_name().as_encoded_bytes().starts_with(b"core"));
        (core.and_then(|file| file.metadata().ok()).map(|found| found.len()), ended)
    };
    let (Some(untraced), _) = size("fast-core-none", std::process::Command::new("env").arg("--"))
    else {
        return skip("cores go elsewhere here");
    };
    let scratch = Scratch::new("fast-core-report");
    let report = scratch.path("report.json");
    let (traced, ended) =
        size("fast-core", count_json(&report).args(FAST).args(["--no-patch", "*", "--"]));
    ended.assert_signal(libc::SIGSEGV);
    assert!(fast(&read_record(&report, &ended)).address_spaces > 0, "{ended}");
    let traced = traced.expect("a core");
    // A page or two of stack and heap; ours are four hundred.
    assert!(traced.abs_diff(untraced) < 256 << 10, "{traced} bytes, {untraced} untraced");
}

/// What was counted there is gone with it, but not without a word.
#[test]
fn a_program_that_clears_coldtraces_pages_goes_on() {
    let Some((record, _)) = run("fast-pages", &["clear", "counters"]) else { return };
    assert!((20_000..=80_000).contains(&table::calls(&record, "getppid")));
    let reasons = &fast(&record).reasons;
    assert!(reasons.keys().any(|why| why.starts_with("the program wrote")), "{reasons:?}");
}

/// A program that writes anything there may die of it, as of other memory that it does not own; the
/// tracer does not, and what is no count is left out.
#[test]
fn a_program_that_scrambles_coldtraces_pages_cannot_harm_the_tracer() {
    let Some(program) = built("fast-pages") else { return };
    for _ in 0..5 {
        let scratch = Scratch::new("fast-scrambled");
        let report = scratch.path("report.json");
        let mut command = count_json(&report);
        let words = ["scramble", "counters"];
        let finished = finish(command.args(FAST).arg("--").arg(&program.path).args(words));
        let record = read_record(&report, &finished);
        let died = finished.signal() == Some(libc::SIGSEGV);
        assert!(died || matches!(finished.code(), Some(0 | 77)), "{finished}");
        assert!(table::calls(&record, "getppid") <= 80_000, "{finished}");
        if finished.code() != Some(77) {
            assert!(!fast(&record).reasons.is_empty(), "{finished}");
        }
    }
}

#[test]
fn more_threads_than_there_is_room_for_at_first_are_counted() {
    let Some((record, out)) = run("fast-many", &["threads"]) else { return };
    holds(&record, &out, 90);
}

#[test]
fn limits_of_memory_and_files_are_the_programs_own() {
    for what in ["locked", "narrow"] {
        let Some((record, out)) = run("fast-many", &[what]) else { continue };
        holds(&record, &out, 0);
    }
}

#[test]
fn exec_that_fails_and_exec_by_a_thread_lose_no_call() {
    let Some((record, out)) = run("fast-many", &["exec"]) else { return };
    holds(&record, &out, 50);
}

#[test]
fn a_filter_of_the_programs_own_answers_as_without() {
    let Some((record, out)) = run("fast-many", &["filter"]) else { return };
    holds(&record, &out, 0);
}

/// At most the one call of each thread that was killed before it had counted it.
#[test]
fn what_a_killed_process_counted_is_not_lost() {
    let Some((record, out)) = run("fast-many", &["killed"]) else { return };
    let calls = printed(&out)["getppid"].0;
    let found = table::calls(&record, "getppid");
    assert!((calls..=calls + 80).contains(&found), "{found}, {calls} expected");
}

/// Their calls would be ENOSYS without it. `finish` demands that nobody is left.
#[test]
fn a_program_that_counts_by_itself_dies_with_its_tracer() {
    let Some(program) = built("fast-many") else { return };
    for moment in [20, 50, 100, 200, 400] {
        let scratch = Scratch::new("fast-dies");
        let mut command = count_json(&scratch.path("report.json"));
        let running = start(command.args(FAST).arg("--").arg(&program.path).arg("forever"));
        std::thread::sleep(Duration::from_millis(moment));
        running.kill(libc::SIGKILL);
        running.finish().assert_signal(libc::SIGKILL);
    }
}

/// From outside; the record is there.
#[test]
fn a_killed_command_that_counts_by_itself_has_its_record() {
    let Some(program) = built("fast-many") else { return };
    let scratch = Scratch::new("fast-killed");
    let report = scratch.path("report.json");
    let mut command = count_json(&report);
    let shell = ["sh", "-c", "\"$0\" forever & sleep 0.3; kill -9 $!; wait $!; test $? = 137"];
    let finished = finish(command.args(FAST).arg("--").args(shell).arg(&program.path));
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    assert!(table::calls(&record, "gettid") > 1000 || fast(&record).refused.is_some());
}

/// Each is cancelled in a read, through which the handler of the C library unwinds.
#[test]
fn threads_are_cancelled_in_calls_that_do_not_stop() {
    let Some((record, out)) = run("fast-cancel", &[]) else { return };
    holds(&record, &out, 50);
}

/// As by a compiler between two runs: what was known of the file is not true any more.
#[test]
fn a_program_that_is_written_anew_is_looked_at_anew() {
    let (Some(one), Some(two)) = (built("rewritten-one"), built("rewritten-two")) else { return };
    let shell = support::find_program("sh").expect("sh");
    let scratch = Scratch::new("fast-rewritten");
    let report = scratch.path("report.json");
    let script = "cat $1 >$0; chmod +x $0; $0 && cat $2 >$0; $0";
    let mut command = count_json(&report);
    command.args(FAST).arg("--").arg(shell).args(["-c", script]).arg(scratch.path("program"));
    let finished = finish(command.arg(&one.path).arg(&two.path));
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    assert!(table::calls(&record, "getpid") >= 600, "{finished}");
    let without = fast(&record).calls_without_stop;
    assert!(fast(&record).refused.is_some() || without >= 290, "{without}: {:?}", fast(&record));
}
