//! Every program in fixtures/ gives exactly the table that its first lines promise: on each
//! engine, with the kernel's description of a stop as well as from the registers alone, and where a
//! filter leaves the other calls out.
//! Untraced it ends as it does traced.

mod support;

use std::collections::BTreeSet;

use support::fixture::{self, Fixture, Program, SKIPPED};
use support::{
    ENGINES, STOP_INFOS, Scratch, engine_options, process, read_record, skip, stops, table,
};

/// One test a fixture; the name of the test is the sentence that it proves.
macro_rules! fixtures {
    ($($sentence:ident: $name:literal;)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(
            #[test]
            fn $sentence() {
                holds($name);
            }
        )*
    };
}

fixtures! {
    a_child_has_what_was_put_into_its_parent_or_not: "code-while-forking";
    padding_that_is_run_through_is_not_used: "runs-through-padding";
    the_gs_base_is_the_programs: "uses-gs";
    a_trap_in_the_place_of_a_call_is_the_programs: "rewrites-code";
    calls_are_made_where_the_program_may_make_them: "dispatches-calls";
    a_filter_ends_no_call_of_another_thread: "filter-while-waiting";
    numbers_that_a_program_invents_do_no_harm: "writes-counters";
    eight_processes_of_four_threads_lose_no_call: "processes-threads";
    two_hundred_short_programs_are_seen_from_first_call_to_last: "vfork-exec";
    a_vfork_childs_calls_are_its_own: "vfork-counts";
    exec_by_a_thread_is_one_execve_and_ends_the_others_calls: "exec-from-thread";
    unknown_numbers_and_x32_numbers_are_kept_apart: "unknown-numbers";
    int_0x80_is_counted_by_the_i386_table: "int80";
    i386_calls_restart_under_their_own_numbers: "int80-restart";
    a_32_bit_program_between_64_bit_ones_has_its_own_names: "exec-i386";
    a_call_cut_off_by_sigkill_is_unfinished: "killed-in-call";
    a_killed_command_still_has_its_table: "root-killed";
    exit_group_cuts_off_the_calls_of_other_threads: "exit-group";
    a_process_outlives_its_leader: "leader-exits-first";
    every_realtime_signal_is_delivered_once: "realtime-signals";
    a_realtime_signal_that_kills_the_command_is_named: "root-killed-by-realtime";
    a_restarted_read_is_one_call: "restart";
    other_calls_restart_as_read_does: "restart-others";
    calls_through_the_vsyscall_page_are_not_counted: "vsyscall";
    a_restart_inside_a_handler_is_told_from_the_one_outside: "restart-nested";
    a_handler_that_ends_a_call_gives_one_eintr: "eintr";
    a_call_stopped_and_continued_stays_one_call: "stop-continue";
    a_call_whose_handler_jumps_away_is_abandoned: "abandoned";
    a_programs_own_filter_keeps_working_and_its_refusals_count: "own-seccomp";
    a_call_that_a_filter_kills_is_unfinished: "killed-by-filter";
    strict_mode_keeps_working: "strict-seccomp";
    five_hundred_threads_in_sequence_are_all_seen: "thread-sequence";
    a_dynamically_linked_program_with_pthreads_is_exact: "libc-threads";
    every_way_to_make_a_process_is_followed: "clone-variants";
    failed_execs_are_calls_of_the_process_that_made_them: "exec-fails";
    a_daemon_is_counted_after_the_command_has_ended: "double-fork";
    a_path_that_cannot_be_read_is_counted: "bad-pointers";
    a_process_that_may_not_be_looked_into_is_counted: "unreadable";
    ignored_signals_end_no_call: "ignored-signals";
    an_ignored_signal_that_another_thread_takes_ends_no_call: "ignored-signal-stolen";
    ignored_signals_do_not_prolong_a_timeout: "ignored-signal-timeouts";
    two_thousand_signals_in_four_threads_arrive_once_each: "signal-storm";
    queued_signals_between_threads_all_arrive: "realtime-storm";
    sigtrap_reaches_the_program: "sigtrap";
    death_at_any_moment_loses_no_process: "killed-anywhere";
    exec_while_other_threads_are_busy_loses_nothing: "exec-while-busy";
    ptrace_by_the_program_is_refused_and_counted: "ptrace-refused";
    clone_untraced_does_not_escape: "clone-untraced";
    clone3_untraced_does_not_escape: "clone3-untraced";
}

#[test]
fn every_fixture_is_tested() {
    let tested: BTreeSet<String> = TESTED.iter().map(|&name| name.to_owned()).collect();
    let there: BTreeSet<String> =
        fixture::names().into_iter().filter(|name| !Fixture::read(name).helper).collect();
    assert_eq!(tested, there, "tests on the left, fixtures/*.c on the right");
}

/// src/tracer/saved.rs replays them.
#[test]
fn every_fixture_has_a_saved_stop_sequence() {
    let missing: Vec<_> = TESTED.iter().filter(|name| !stops::saved(name).exists()).collect();
    assert!(missing.is_empty() || stops::wanted(), "save them anew: {missing:?}");
}

fn holds(name: &str) {
    let fixture = Fixture::read(name);
    let program = match fixture.build() {
        Ok(program) => program,
        Err(why) => return skip(&format!("{name}: {why}")),
    };
    if !fixture.traced_only {
        let finished = process::finish(&mut program.untraced());
        if finished.code() == Some(SKIPPED) {
            return skip(&format!("{name}: this kernel lacks what it is about"));
        }
        assert_eq!(finished.code(), fixture.exit, "untraced, {finished}");
    }
    for engine in ENGINES {
        for &info in STOP_INFOS {
            let options = engine_options(engine, info);
            counts_hold(&fixture, &program, engine, &options);
            if !fixture.process_rows.is_empty() {
                process_counts_hold(&fixture, &program, &options);
            }
        }
        let options = engine_options(engine, STOP_INFOS[0]);
        filtered_counts_hold(&fixture, &program, &options);
    }
    // In the middle of what it is about, and some programs not at all.
    let later = ["--engine", "fast", "--tier-up-after", "6"];
    counts_hold(&fixture, &program, "fast", &later);
}

fn counts_hold(fixture: &Fixture, program: &Program, engine: &str, options: &[&str]) {
    let scratch = Scratch::new(&fixture.name);
    let report = scratch.path("report.json");
    let mut command = support::count_json(&report);
    command.args(options).arg("--").arg(&program.path).args(&program.arguments);
    // Where each call stops.
    let save = stops::wanted() && engine == ENGINES[0] && !options.contains(&"--no-syscall-info");
    if save {
        command.env("COLDTRACE_STOPS", scratch.path("stops"));
    }
    let finished = process::finish(&mut command);
    let record = read_record(&report, &finished);
    let mut wrong = table::differences(fixture, &record);
    wrong.extend(table::contradictions(&record));
    // It may have ended before it would have counted.
    let may_end = options.contains(&"6");
    if record.measurement.engine != engine && !(may_end && record.measurement.engine == "ptrace") {
        wrong.push(format!("engine {}, expected {engine}", record.measurement.engine));
    }
    if finished.code() != fixture.exit {
        wrong.push(format!("exit status {:?}, expected {:?}", finished.code(), fixture.exit));
    }
    assert!(
        wrong.is_empty(),
        "{} {options:?}:\n  {}\n\n{}\n{finished}",
        fixture.name,
        wrong.join("\n  "),
        table::render(&record)
    );
    if save {
        stops::save(&fixture.name, &scratch.path("stops"), &record);
    }
}

/// The same rows, and no others, when only they are asked for.
fn filtered_counts_hold(fixture: &Fixture, program: &Program, options: &[&str]) {
    let Some(names) = fixture.countable() else {
        return;
    };
    let set = format!("trace={}", names.join(","));
    let options = [options, &["-e", &set]].concat();
    let record = support::counted(&options, &program.path, &program.arguments);
    let mut wrong = table::differences(fixture, &record);
    wrong.extend(table::contradictions(&record));
    wrong.extend(
        table::rows(&record)
            .iter()
            .filter(|row| !names.contains(&row.name.as_str()))
            .map(|row| format!("{}: not asked for", row.name)),
    );
    assert!(
        wrong.is_empty(),
        "{} {options:?}:\n  {}\n\n{}",
        fixture.name,
        wrong.join("\n  "),
        table::render(&record)
    );
    // With everything else at full speed the program must not notice either.
    let scratch = Scratch::new(&fixture.name);
    let mut command = support::count_json(&scratch.path("report.json"));
    command.args(["-e", "trace=execve", "--"]).arg(&program.path).args(&program.arguments);
    let finished = process::finish(&mut command);
    assert_eq!(finished.code(), fixture.exit, "{} -e trace=execve: {finished}", fixture.name);
}

/// The rows of single processes, which only the record of `run` has.
fn process_counts_hold(fixture: &Fixture, program: &Program, options: &[&str]) {
    let scratch = Scratch::new(&fixture.name);
    let mut command = support::coldtrace("run");
    command
        .arg("--runs")
        .arg(scratch.path("runs"))
        .args(["--output", "pass"])
        .args(options)
        .arg("--")
        .arg(&program.path)
        .args(&program.arguments);
    let finished = process::finish(&mut command);
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    let processes = record.processes.clone().unwrap_or_default();
    for (id, expected) in &fixture.process_rows {
        let Some(process) = processes.iter().find(|process| process.id == *id) else {
            panic!("{}: no process {id} in {processes:#?}", fixture.name);
        };
        let wrong = table::compare_process(expected, process);
        assert!(
            wrong.is_empty(),
            "{} {options:?}, process {id}: {}\n{processes:#?}",
            fixture.name,
            wrong.join("; ")
        );
    }
}
