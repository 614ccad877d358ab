//! The network part: what sockets were made, and what they were connected, bound and sent to.

mod support;

use std::path::Path;

use coldtrace::record::{NetworkRow, Record};
use support::fixture::{SKIPPED, built};
use support::process::{Finished, finish};
use support::{Scratch, coldtrace, find_program, read_record, skip, table};

fn traced(scratch: &Scratch, options: &[&str], words: &[&str]) -> (Record, Finished) {
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["--output", "pass"]).args(options);
    let finished = finish(command.arg("--").args(words).current_dir(scratch.root()));
    (read_record(&scratch.path("runs/latest/record.json"), &finished), finished)
}

fn rows(record: &Record) -> &[NetworkRow] {
    record.network.as_deref().unwrap_or_else(|| panic!("no network: {:?}", record.measurement))
}

/// As a fixture's head has it.
fn line(row: &NetworkRow) -> String {
    let or_none = |text: &Option<String>| text.as_deref().unwrap_or("-").replace('\n', "\\n");
    let abi = if row.abi == "x86_64" { String::new() } else { format!("{}:", row.abi) };
    let mut line = format!(
        "network {} {abi}{} {} {} {} {} calls={}",
        row.process,
        row.name,
        or_none(&row.family),
        or_none(&row.socket_type),
        or_none(&row.protocol),
        or_none(&row.address),
        row.calls
    );
    let errors = row.errors.iter().map(|(errno, calls)| format!(" {errno}={calls}"));
    let regions = row.regions.iter().map(|region| format!(" in={region}"));
    line.extend(errors.chain(regions));
    line
}

fn keeps(name: &str, options: &[&str]) {
    let Some(program) = built(name) else { return };
    let scratch = Scratch::new(name);
    let (record, finished) = traced(&scratch, options, &[&program.path.to_string_lossy()]);
    if finished.code() == Some(SKIPPED) {
        return skip("the kernel lacks what this is about");
    }
    finished.assert_code(0);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    let source = std::fs::read_to_string(source.with_extension("c")).expect("a fixture has text");
    let promised: Vec<&str> = source
        .lines()
        .filter_map(|line| line.strip_prefix(" * "))
        .filter(|line| line.starts_with("network "))
        .collect();
    let found: Vec<String> = rows(&record).iter().map(line).collect();
    assert_eq!(found, promised, "{finished}");
    assert_eq!(table::contradictions(&record), Vec::<String>::new());
}

#[test]
fn addresses_and_kinds_are_as_the_program_gave_them() {
    keeps("network", &[]);
    keeps("network-inet6", &[]);
}

#[test]
fn calls_by_another_table_and_through_the_multiplexer_are_known() {
    keeps("network-int80", &[]);
}

#[test]
fn network_calls_alone_are_enough() {
    keeps("network-inet6", &["-e", "trace=%network"]);
    let scratch = Scratch::new("others");
    let (record, _) = traced(&scratch, &["-e", "trace=futex,connect"], &["true"]);
    assert_eq!(record.network, None);
}

#[test]
fn a_program_that_makes_no_sockets_has_an_empty_part() {
    let Some(program) = built("regions-moments") else { return };
    let scratch = Scratch::new("none");
    let (record, _) = traced(&scratch, &[], &[&program.path.to_string_lossy()]);
    assert_eq!(rows(&record), []);
    let shown = show(&scratch, "--network");
    assert_eq!(shown.trim_end(), "coldtrace: no sockets were made or used with an address");
}

#[test]
fn an_inherited_socket_is_of_a_kind_that_nobody_knows() {
    let Some(python) = find_program("python3") else { return skip("no python3") };
    let scratch = Scratch::new("inherited");
    let script = "
import os, socket, subprocess, sys
kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
kept.connect(('127.0.0.1', 8125))
made = 'import socket, sys; socket.socket(fileno=int(sys.argv[1])).connect((\"127.0.0.1\", 53))'
run = [sys.argv[1], 'run', '--runs', sys.argv[2], '--output', 'pass', '--', sys.executable, '-S']
run += ['-c', made, str(kept.fileno())]
sys.exit(subprocess.run(run, pass_fds=[kept.fileno()]).returncode)
";
    let runs = scratch.path("runs");
    let words = [&*python.to_string_lossy(), "-S", "-c", script];
    let mut command = std::process::Command::new(words[0]);
    command.args(&words[1..]).arg(support::coldtrace_path()).arg(&runs);
    let finished = finish(&mut command);
    finished.assert_code(0);
    let record = read_record(&runs.join("latest/record.json"), &finished);
    let found: Vec<String> = rows(&record).iter().map(line).collect();
    assert_eq!(found, ["network 0 connect inet - - 127.0.0.1:53 calls=1"]);
}

#[test]
fn what_is_out_of_reach_is_said() {
    let Some(program) = built("network-io-uring") else { return };
    let scratch = Scratch::new("io-uring");
    let (record, finished) = traced(&scratch, &[], &[&program.path.to_string_lossy()]);
    if finished.code() == Some(SKIPPED) {
        return skip("no io_uring here");
    }
    let note = "io_uring was used: what it did is not in files, network and calls";
    assert_eq!(record.measurement.notes, [note]);
}

fn show(scratch: &Scratch, option: &str) -> String {
    let runs = scratch.path("runs");
    let finished = finish(coldtrace("show").arg("--runs").arg(runs).arg(option));
    finished.assert_code(0);
    finished.out()
}

#[test]
fn show_prints_the_network() {
    let Some(program) = built("network") else { return };
    let scratch = Scratch::new("show");
    let (record, _) = traced(&scratch, &[], &[&program.path.to_string_lossy()]);
    let text = show(&scratch, "--network");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // A newline in a name is no line.
    assert_eq!(text.lines().count(), rows(&record).len() + 1, "{text}");
    for expected in [
        "connect 127.0.0.1:1/tcp by ",
        "socket inet/tcp by ",
        "sendto 127.0.0.1:9/udp by ",
        "connect unix/stream /nonexistent/s by ",
        "connect unix/stream @no-such\\n by ",
        "bind netlink/route by ",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let json: Vec<NetworkRow> =
        serde_json::from_str(&show(&scratch, "--json=network")).expect("it is JSON");
    assert_eq!(Some(json), record.network);
}
