//! SARIF 2.1.0, as code scanning reads it: what is wrong, at a line of the baseline.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::words;
use crate::check::{CaseReport, Report, State, Verdict, Warning, WarningKind};

/// The report as SARIF 2.1.0. Each rule of the baseline is a rule, each failure a
/// result at its line. What could not be judged is a notification of the invocation.
pub fn sarif(report: &Report) -> String {
    let mut rules = Rules::default();
    let mut results = Vec::new();
    let mut notifications = Vec::new();
    for case in &report.cases {
        for verdict in &case.verdicts {
            let index = rules.of(verdict);
            match verdict.state {
                State::Passed => {}
                State::Failed => results.push(failed(report, case, verdict, index)),
                State::Unjudged => notifications.push(json!({
                    "level": "warning",
                    "message": { "text": text(&[format!("{}: rule {} is not judged: no facts for this platform", words::line(&case.case), words::line(&verdict.rule))]) },
                    "locations": [location(report, verdict.line.or(case.line))],
                })),
            }
        }
        for warning in &case.warnings {
            let index = rules.of_warning(warning.kind);
            results.push(warned(report, case, warning, index));
        }
        if let Some(problem) = &case.problem {
            let mut lines =
                vec![format!("{}: {}", words::line(&case.case), words::line(&problem.text))];
            lines.extend(words::hints(case));
            notifications.push(json!({
                "level": "error",
                "message": { "text": text(&lines) },
                "locations": [location(report, case.line)],
            }));
        }
    }
    let status = report.status();
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "coldtrace",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules.all,
            }},
            "invocations": [{
                // It has done its work, also where rules failed.
                "executionSuccessful": status <= 1,
                "exitCode": status,
                "exitCodeDescription": format!("{}: {}", words::result(report), words::cases(report)),
                "toolExecutionNotifications": notifications,
            }],
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    format!("{log:#}\n")
}

/// Descriptions of rules, in the order in which they were first met.
#[derive(Default)]
struct Rules {
    all: Vec<Value>,
    ids: Vec<String>,
}

impl Rules {
    fn of(&mut self, verdict: &Verdict) -> usize {
        let id = words::line(&verdict.rule);
        let short = match &verdict.reason {
            Some(reason) => words::line(reason),
            None => format!("Rule {id} of the baseline"),
        };
        let level = match verdict.level {
            crate::check::Level::Error => "error",
            crate::check::Level::Warning => "warning",
        };
        let help = "A rule of the baseline does not hold for the system calls of a run. Where \
                    the change is wanted, record the case again (coldtrace check --update), or \
                    change the rule.";
        self.put(id, &short, help, level)
    }

    fn of_warning(&mut self, kind: WarningKind) -> usize {
        let (short, level) = match kind {
            WarningKind::Unused => ("Something in the baseline is not used", "warning"),
            WarningKind::Improved => ("A rule could allow less", "warning"),
            WarningKind::Once => ("A rule failed once, and not again", "warning"),
            WarningKind::Place => ("The place is another than the recorded one", "note"),
        };
        let help = "It fails with --strict only; that the place is another never does.";
        self.put(warning_id(kind), short, help, level)
    }

    fn put(&mut self, id: String, short: &str, help: &str, level: &str) -> usize {
        if let Some(index) = self.ids.iter().position(|known| *known == id) {
            return index;
        }
        self.all.push(json!({
            "id": id,
            "shortDescription": { "text": text(&[short.to_owned()]) },
            "help": { "text": help },
            "defaultConfiguration": { "level": level },
        }));
        self.ids.push(id);
        self.ids.len() - 1
    }
}

/// No rule of a baseline can be called so by accident.
fn warning_id(kind: WarningKind) -> String {
    let word = match kind {
        WarningKind::Unused => "unused",
        WarningKind::Improved => "improved",
        WarningKind::Once => "once",
        WarningKind::Place => "place",
    };
    format!("coldtrace/{word}")
}

fn failed(report: &Report, case: &CaseReport, verdict: &Verdict, index: usize) -> Value {
    let rule = words::line(&verdict.rule);
    let mut lines =
        vec![format!("{}: {}", words::line(&case.case), words::line(&verdict.headline))];
    lines.extend(words::explained(case, verdict));
    let level = if words::fails(verdict, report.strict) { "error" } else { "warning" };
    result(report, (&rule, index), (level, &lines), verdict.line.or(case.line), &[&case.case])
}

fn warned(report: &Report, case: &CaseReport, warning: &Warning, index: usize) -> Value {
    let level = match warning.kind {
        WarningKind::Place => "note",
        _ if words::warning_fails(warning, report.strict) => "error",
        _ => "warning",
    };
    let lines = [format!("{}: {}", words::line(&case.case), words::warning(warning))];
    let id = warning_id(warning.kind);
    let about = [case.case.as_str(), warning.rule.as_deref().unwrap_or("")];
    result(report, (&id, index), (level, &lines), case.line, &about)
}

/// `about` is what makes it the same finding as in the last check, with the rule.
fn result(
    report: &Report,
    (rule, index): (&str, usize),
    (level, lines): (&str, &[String]),
    line: Option<usize>,
    about: &[&str],
) -> Value {
    let mut hash = Sha256::new();
    for part in [rule].iter().chain(about) {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let mut short = String::new();
    for byte in hash.finalize().iter().take(8) {
        let _ = write!(short, "{byte:02x}");
    }
    let mut prints = Map::new();
    // The only one that GitHub looks at; else it takes one of the line's text,
    // which is the same for all cases of a rule.
    prints.insert("primaryLocationLineHash".into(), format!("{short}:1").into());
    prints.insert("ruleAndCase/v1".into(), short.into());
    json!({
        "ruleId": rule,
        "ruleIndex": index,
        "level": level,
        "message": { "text": text(lines) },
        "locations": [location(report, line)],
        "partialFingerprints": prints,
    })
}

fn location(report: &Report, line: Option<usize>) -> Value {
    let mut physical = Map::new();
    physical.insert("artifactLocation".into(), json!({ "uri": uri(&report.baseline) }));
    // Code scanning shows nothing that has no line.
    physical.insert("region".into(), json!({ "startLine": line.unwrap_or(1).max(1) }));
    json!({ "physicalLocation": physical })
}

/// The path as a URI, or as a reference to one from the repository's root.
fn uri(path: &str) -> String {
    let mut uri = String::from(if path.starts_with('/') { "file://" } else { "" });
    for byte in path.strip_prefix("./").unwrap_or(path).bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                uri.push(byte.into());
            }
            _ => drop(write!(uri, "%{byte:02X}")),
        }
    }
    uri
}

/// Lines as a message: single braces would stand for arguments (SARIF 2.1.0,
/// 3.11.5), and `[text](target)` would be a link (3.11.6).
fn text(lines: &[String]) -> String {
    lines.join("\n").replace('{', "{{").replace('}', "}}").replace("](", "] (")
}
