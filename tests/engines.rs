//! Both engines say the same: whole records of deterministic commands, but for what is
//! time, place or number of a process.

mod support;

use serde_json::Value;
use support::process::finish;
use support::{Scratch, coldtrace, find_program, skip};

/// What differs from run to run whatever counts the calls.
const OF_THE_RUN: [&str; 18] = [
    "measurement",
    "outcome",
    "rusage",
    "time",
    "cpu",
    "proc",
    "environment",
    "run",
    "tool",
    "artifacts",
    "histogram",
    "cache",
    "memory",
    "id",
    "pid",
    "tid",
    "start_ns",
    "end_ns",
];

/// A record without times and numbers of this run.
fn shape(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| {
                !OF_THE_RUN.contains(&name.as_str())
                    && !name.ends_with("_ns")
                    && !name.ends_with("_rss_bytes")
                    && !["faults", "switches", "sampled", "resident"]
                        .iter()
                        .any(|w| name.contains(w))
            });
            fields.values_mut().for_each(shape);
        }
        Value::Array(all) => {
            all.iter_mut().for_each(shape);
            // Many are in the order of times.
            if all.iter().all(Value::is_object) {
                all.sort_by_key(|row| [&row["path"], &row["name"]].map(ToString::to_string));
            }
        }
        _ => {}
    }
}

/// The places where two values differ.
fn differences(at: &str, a: &Value, b: &Value) -> Vec<String> {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let names: std::collections::BTreeSet<_> = x.keys().chain(y.keys()).collect();
            let of = |fields: &serde_json::Map<String, Value>, name: &String| {
                fields.get(name).cloned().unwrap_or_default()
            };
            names
                .into_iter()
                .flat_map(|name| differences(&format!("{at}.{name}"), &of(x, name), &of(y, name)))
                .collect()
        }
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => x
            .iter()
            .zip(y)
            .enumerate()
            .flat_map(|(i, (x, y))| differences(&format!("{at}[{i}]"), x, y))
            .collect(),
        _ if a == b => Vec::new(),
        _ => vec![format!("{at}: {a} under ptrace, {b} under fast")],
    }
}

/// The record of a command under `run`, fixed in place, and whether anything counted by itself.
fn record(engine: &[&str], command: &[&str]) -> (Value, u64) {
    let scratch = Scratch::new("engines");
    let mut run = coldtrace("run");
    run.args(["--fixed", "--runs"]).arg(scratch.path("runs")).args(engine);
    let finished = finish(run.arg("--").args(command));
    let text = std::fs::read(scratch.path("runs/latest/record.json"))
        .unwrap_or_else(|error| panic!("no record: {error}\n{finished}"));
    let own = scratch.root().to_string_lossy().into_owned();
    let text = String::from_utf8_lossy(&text).replace(&own, "");
    let mut value: Value = serde_json::from_str(&text).unwrap_or_default();
    let fast = &value["measurement"]["fast"];
    let inside = fast["calls_counted"].as_u64().unwrap_or(0);
    assert_eq!(value["measurement"]["events_lost"], 0, "{finished}");
    shape(&mut value);
    // The run's own directory is named after its time.
    if let Some(paths) = value["files"]["paths"].as_array_mut() {
        paths.retain(|row| !row["path"].as_str().is_some_and(|path| path.starts_with("/runs/")));
    }
    (value, inside)
}

fn say_the_same(command: &[&str]) {
    let Some(program) = find_program(command[0]) else {
        return skip(&format!("no {}", command[0]));
    };
    let program = program.to_string_lossy().into_owned();
    let command: Vec<&str> =
        [program.as_str()].into_iter().chain(command[1..].iter().copied()).collect();
    let (ptrace, _) = record(&["--engine", "ptrace"], &command);
    let (fast, inside) = record(&["--engine", "fast", "--tier-up-after", "5"], &command);
    assert!(inside > 0, "nothing was counted inside {command:?}");
    let differences = differences("record", &ptrace, &fast);
    assert!(differences.is_empty(), "{command:?}:\n{}", differences.join("\n"));
}

#[test]
fn a_listing_has_the_same_record() {
    say_the_same(&["ls", "-l", "/usr/bin"]);
}

#[test]
fn a_shell_script_has_the_same_record() {
    say_the_same(&["sh", "-c", "ls /etc; sort /etc/passwd; (cat /etc/hosts); exec /bin/echo done"]);
}

#[test]
fn a_search_has_the_same_record() {
    say_the_same(&["find", "/etc", "-name", "*.conf"]);
}
