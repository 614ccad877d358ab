//! What `bench` prints, and where: the table in a file, benches shown again and joined, what is
//! said when nothing could be repeated.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use coldtrace::bench::Bench;
use support::process::{Finished, finish};
use support::{Scratch, coldtrace, coldtrace_path};

/// A place for benches of its own.
struct Place(Scratch);

impl Place {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn file(&self, name: &str) -> String {
        self.0.path(name).display().to_string()
    }

    fn runs(&self) -> PathBuf {
        self.0.path("runs")
    }

    fn prepared(&self, mut command: Command) -> Command {
        command.env("XDG_STATE_HOME", self.0.path("state"));
        command.env("COLDTRACE_RUNS", self.runs());
        command
    }

    fn run(&self, subcommand: &str, words: &[&str]) -> Finished {
        finish(self.prepared(coldtrace(subcommand)).args(words))
    }

    /// Through a shell, in which `$C` is coldtrace.
    fn shell(&self, script: &str) -> Finished {
        let mut shell = self.prepared(Command::new("sh"));
        finish(shell.args(["-c", script]).env("C", coldtrace_path()))
    }

    /// The name of the last bench.
    fn latest(&self) -> String {
        let link = fs::read_link(self.runs().join("latest")).expect("there was a bench");
        link.display().to_string()
    }
}

fn text(path: &str) -> String {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    String::from_utf8(bytes).expect("it is text")
}

/// A quick bench of a few runs.
const QUICK: [&str; 4] = ["-n", "2", "--warmup", "0"];

fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&QUICK[..], more].concat()
}

#[test]
fn a_file_holds_the_table_and_where_the_runs_are() {
    let place = Place::new("bench-o");
    let table = place.file("table.txt");
    // More than the table: nothing of it stays.
    fs::write(&table, "x".repeat(1 << 16)).expect("scratch can be written");
    let finished = place.run("bench", &quick(&["-o", &table, "--", "true"]));
    assert_eq!((finished.assert_code(0).out(), finished.err()), (String::new(), String::new()));
    let written = text(&table);
    let shown = place.run("show", &["latest"]).assert_code(0).out();
    let runs = place.runs().join(place.latest());
    assert_eq!(written, format!("{shown}runs: {}\n", runs.display()));
    assert!(written.contains("wall ") && !written.contains('\0'), "{written:?}");
}

#[test]
fn the_table_makes_room_for_the_commands_output() {
    let place = Place::new("bench-pass");
    let words = quick(&["--output", "pass", "--traced", "0", "--", "echo", "said"]);
    let finished = place.run("bench", &words);
    assert_eq!(finished.assert_code(0).out(), "said\n".repeat(3));
    assert!(finished.err().contains("wall "), "{finished}");
    let table = place.file("table.txt");
    let finished = place.run("bench", &[&["-o", &table, "--json"], &words[..]].concat());
    assert_eq!(finished.assert_code(0).out(), "said\n".repeat(3));
    assert_eq!(finished.err(), "");
    let json: Bench = serde_json::from_str(&text(&table)).expect("nothing else is in it");
    assert_eq!(json.commands[0].runs.len(), 3);
}

#[test]
fn a_saved_bench_is_one_whatever_its_name() {
    let place = Place::new("bench-saved");
    let json = place.file("j.json");
    place.run("bench", &quick(&["--json", "-o", &json, "--", "true"])).assert_code(0);
    let name = place.latest();
    let shown = place.run("show", &[&name]).assert_code(0).out();
    assert!(shown.contains("wall "), "{shown}");
    let same = |finished: &Finished| assert_eq!(finished.assert_code(0).out(), shown);
    same(&place.run("show", &[&json]));
    same(&place.shell(&format!("$C show - < {json}")));
    same(&place.shell(&format!("cat {json} | $C show /dev/stdin")));
    let record = place.runs().join(&name).join("warm-1/record.json");
    let of_run = place.run("show", &[&format!("{name}/warm-1")]).assert_code(0).out();
    let record = record.display();
    for script in [format!("$C show - < {record}"), format!("cat {record} | $C show /dev/stdin")] {
        assert_eq!(place.shell(&script).assert_code(0).out(), of_run, "{script}");
    }
    // Joined by any of its names, or by several of them, it counts once.
    let joined = place.run("bench", &["--join", &name]).assert_code(0).out();
    assert!(joined.contains("warm, n=2"), "{joined}");
    let again = place.run("bench", &["--join", &name, &json]).assert_code(0).out();
    assert!(again.contains("warm, n=2"), "{again}");
    let twice = format!("warning: {name} was given twice, counted once");
    assert!(again.contains(&twice), "{again}");
    let refused = place.run("bench", &["--join", &record.to_string()]);
    refused.assert_code(2);
    assert!(refused.err().ends_with("record.json holds no bench\n"), "{refused}");
}

#[test]
fn how_cold_a_run_was_is_shown_of_it() {
    let place = Place::new("bench-cache-line");
    place.run("bench", &quick(&["--", "true"])).assert_code(0);
    let shown = place.run("show", &["latest/warm-1"]).assert_code(0).out();
    let line = shown.lines().find(|line| line.starts_with("cache ")).unwrap_or_default();
    let record = fs::read(place.runs().join("latest/warm-1/record.json")).expect("it is kept");
    let record: serde_json::Value = serde_json::from_slice(&record).expect("it is JSON");
    let label = record["cache"]["label"].as_str().expect("it is labelled");
    assert!(line.starts_with(&format!("cache    {label} (")), "{shown}");
    assert!(shown.contains("run      warm-1; started ") && !shown.contains("label"), "{shown}");
}

#[test]
fn what_cannot_be_joined_is_refused_in_one_line() {
    let place = Place::new("bench-refused");
    place.run("bench", &quick(&["--label", "monday", "--", "true"])).assert_code(0);
    let refused = |words: &[&str], why: &str| {
        let finished = place.run("bench", words);
        assert_eq!(finished.assert_code(2).err().lines().count(), 1, "{finished}");
        assert!(finished.err().contains(why), "{finished}");
    };
    refused(&["--join", "monday"], "no such bench: monday; ");
    let empty = place.file("empty");
    fs::create_dir(&empty).expect("scratch can be written");
    refused(&["--join", &empty], "holds no bench.json");
    refused(&["--join", "latest", "--json"], "--json: options stand before the benches");
    // Nothing is run, so nothing is said of how.
    for option in [["-n", "5"], ["--cold", "1"], ["--traced", "2"], ["--warmup", "1"]] {
        let words = [&option[..], &["--join", "latest"]].concat();
        refused(&words, "cannot be used with '--join'");
    }
    refused(&["--output", "pass", "--join", "latest"], "cannot be used with");
    place.run("bench", &["--join", "latest"]).assert_code(0);
}

#[test]
fn what_a_first_run_said_that_failed_is_found() {
    let place = Place::new("bench-first-said");
    let words = ["--", "sh", "-c", "echo broken >&2; exit 1", ":::", "true"];
    let finished = place.run("bench", &words);
    let out = finished.assert_code(1).out();
    let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
    let log = words.split_once("nothing was repeated what it said is in ");
    let log = log.and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
    let log = place.runs().join(log);
    assert_eq!(fs::read_to_string(log).ok().as_deref(), Some("broken\n"), "{out}");
    assert!(!out.contains("2: true"), "{out}");
}

#[test]
fn a_command_line_in_one_word_is_explained() {
    let place = Place::new("bench-one-word");
    let said =
        "coldtrace: cannot run sleep 0.1: not found (for a command line: sh -c 'sleep 0.1')\n";
    for (subcommand, words) in
        [("bench", &["-n", "1"][..]), ("run", &[]), ("count", &[]), ("files", &[])]
    {
        let finished = place.run(subcommand, &[words, &["--", "sleep 0.1"]].concat());
        assert_eq!(finished.assert_code(127).err(), said, "{subcommand}");
    }
}
