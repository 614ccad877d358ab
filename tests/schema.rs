//! What a record looks like is said by the schema, and every record holds to it: those that are
//! kept from earlier versions, and one that is made now.

mod support;

use std::io::Read;
use std::path::Path;

use coldtrace::record::Record;
use serde_json::Value;
use support::process::finish;
use support::{Scratch, coldtrace};

/// The schema as the command prints it.
fn validator() -> jsonschema::Validator {
    let finished = finish(&mut coldtrace("schema"));
    finished.assert_code(0);
    let schema: Value = serde_json::from_str(&finished.out()).expect("it is JSON");
    jsonschema::draft202012::new(&schema).expect("it is a schema")
}

#[track_caller]
fn holds(validator: &jsonschema::Validator, name: &str, record: &Value) {
    let errors: Vec<String> = validator
        .iter_errors(record)
        .map(|error| format!("{}: {error}", error.instance_path()).chars().take(300).collect())
        .collect();
    assert!(errors.is_empty(), "{name}:\n{}", errors.join("\n"));
}

/// The records in fixtures/records/, by name.
fn kept() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/records");
    let entries = std::fs::read_dir(&dir).expect("fixtures/ can be read").flatten();
    let mut records: Vec<(String, String)> = entries
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "gz"))
        .map(|entry| {
            let bytes = std::fs::read(entry.path()).expect("a record can be read");
            let mut text = String::new();
            let read = flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text);
            read.expect("it is compressed text");
            (entry.file_name().to_string_lossy().into_owned(), text)
        })
        .collect();
    records.sort();
    assert!(records.len() >= 5, "{records:?}");
    records
}

#[test]
fn kept_records_hold_to_the_schema_and_are_shown() {
    let validator = validator();
    for (name, text) in kept() {
        let value: Value = serde_json::from_str(&text).expect("a record is JSON");
        holds(&validator, &name, &value);
        let record: Record = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        // Nothing of it is lost by reading and writing it.
        assert_eq!(serde_json::to_value(&record).expect("it can be written"), value, "{name}");
        let scratch = Scratch::new("kept-record");
        let path = scratch.path("record.json");
        std::fs::write(&path, &text).expect("scratch can be written");
        let shown = finish(coldtrace("show").arg(&path));
        shown.assert_code(0);
        let wide: Vec<String> = shown
            .out()
            .lines()
            .filter(|line| line.chars().count() > 80)
            .map(str::to_owned)
            .collect();
        assert!(wide.is_empty(), "{name}: {wide:?}");
    }
}

#[test]
fn a_new_record_holds_to_the_schema() {
    let validator = validator();
    let scratch = Scratch::new("new-record");
    let script = "ls / | wc -l >/dev/null; (sleep 0.01 & exit 0); cat /nonexistent; exit 3";
    let mut command = coldtrace("run");
    command.arg("--runs").arg(scratch.path("runs")).args(["--snapshot", "all", "--tag", "a=b"]);
    finish(command.args(["--", "sh", "-c", script])).assert_code(3);
    let text = std::fs::read_to_string(scratch.path("runs/latest/record.json")).expect("a record");
    holds(&validator, "run", &serde_json::from_str(&text).expect("a record is JSON"));
    let report = scratch.path("report.json");
    let words = ["--by", "process", "--json", "-o"];
    finish(coldtrace("count").args(words).arg(&report).args(["--", "sh", "-c", script]));
    let text = std::fs::read_to_string(&report).expect("a report");
    holds(&validator, "count", &serde_json::from_str(&text).expect("a report is JSON"));
    finish(coldtrace("files").args(["--json", "-o"]).arg(&report).args(["--", "sh", "-c", script]));
    let text = std::fs::read_to_string(&report).expect("a report");
    holds(&validator, "files", &serde_json::from_str(&text).expect("a report is JSON"));
}

#[test]
fn a_record_that_is_none_does_not_hold() {
    let validator = validator();
    for wrong in ["{}", "[]", r#"{"schema": 1}"#] {
        assert!(!validator.is_valid(&serde_json::from_str(wrong).expect("JSON")), "{wrong}");
    }
}

#[test]
fn unknown_fields_and_newer_minors_are_read_and_other_majors_refused() {
    let (_, text) = kept().into_iter().find(|(name, _)| name.starts_with("pipeline")).expect("it");
    let scratch = Scratch::new("versions");
    let path = scratch.path("record.json");
    let mut record: Value = serde_json::from_str(&text).expect("a record is JSON");
    record["something_new"] = serde_json::json!({ "deep": [1, 2] });
    record["outcome"]["something_new"] = Value::Null;
    for (schema, code) in [
        ("coldtrace.record/1", 0),
        ("coldtrace.record/1.7", 0),
        ("coldtrace.record/2", 2),
        ("coldtrace.record/10", 2),
        ("somebody.else/1", 2),
    ] {
        record["schema"] = schema.into();
        std::fs::write(&path, record.to_string()).expect("scratch can be written");
        let shown = finish(coldtrace("show").arg(&path));
        shown.assert_code(code);
        if code != 0 {
            assert_eq!(shown.err().lines().count(), 1, "{shown}");
            assert!(shown.err().contains(schema), "{shown}");
        }
    }
}
