//! Annotations of GitHub Actions, by workflow commands in a step's output.

use std::fmt::Write as _;

use super::words;
use crate::check::{CaseReport, Report, State, WarningKind};
use crate::render::text::{escape, shorten_middle};

/// Annotations of each kind that GitHub shows of a step; what comes after them is
/// dropped without a word (actions/toolkit, docs/problem-matchers.md).
const PER_KIND: usize = 10;

/// Characters of a message. The runner cuts at 4096 (actions/runner 2.305).
const MESSAGE: usize = 3500;

/// Columns of each of the two names in a title; the API behind it takes 255
/// characters of both.
const NAME: usize = 100;

/// Of the command line, and in the order of the output.
const KINDS: [&str; 3] = ["error", "warning", "notice"];

struct Annotation {
    kind: &'static str,
    line: Option<usize>,
    title: String,
    /// Of several lines.
    message: String,
}

/// The report as annotations of the baseline's lines: `::error file=...`. At most
/// ten of a kind, the last of which says how many more there are. The last line
/// is no command, and says what came of the check.
pub fn github(report: &Report) -> String {
    let all: Vec<Annotation> =
        report.cases.iter().flat_map(|case| annotations(case, report.strict)).collect();
    let mut out = String::new();
    for kind in KINDS {
        let of: Vec<&Annotation> = all.iter().filter(|a| a.kind == kind).collect();
        let shown = if of.len() > PER_KIND { PER_KIND - 1 } else { of.len() };
        let (first, rest) = of.split_at(shown);
        for annotation in first {
            out.push_str(&command(&report.baseline, annotation));
        }
        if !rest.is_empty() {
            let titles: Vec<&str> = rest.iter().map(|a| a.title.as_str()).collect();
            let last = Annotation {
                kind,
                line: None,
                title: format!("coldtrace: {} more", rest.len()),
                message: format!("and {} more:\n{}", rest.len(), titles.join("\n")),
            };
            out.push_str(&command(&report.baseline, &last));
        }
    }
    // Nothing of the run's own: a runner also looks for commands amid a line.
    let _ = writeln!(out, "coldtrace: {}: {}", words::result(report), words::cases(report));
    out
}

/// What a case is worth, the failures first.
fn annotations(case: &CaseReport, strict: bool) -> Vec<Annotation> {
    let name = shorten_middle(&escape(&case.case), NAME).into_owned();
    let mut all = Vec::new();
    if let Some(problem) = &case.problem {
        let mut message = vec![words::line(&problem.text)];
        message.extend(words::hints(case));
        all.push(Annotation {
            kind: "error",
            line: case.line,
            title: format!("{name}: not judged"),
            message: message.join("\n"),
        });
    }
    for verdict in case.verdicts.iter().filter(|v| v.state == State::Failed) {
        let mut message = vec![words::line(&verdict.headline)];
        message.extend(words::explained(case, verdict));
        all.push(Annotation {
            kind: if words::fails(verdict, strict) { "error" } else { "warning" },
            line: verdict.line.or(case.line),
            title: format!("{name}: {}", shorten_middle(&escape(&verdict.rule), NAME)),
            message: message.join("\n"),
        });
    }
    for warning in &case.warnings {
        all.push(Annotation {
            kind: match warning.kind {
                WarningKind::Place => "notice",
                _ if words::warning_fails(warning, strict) => "error",
                _ => "warning",
            },
            line: case.line,
            title: name.clone(),
            message: words::warning(warning),
        });
    }
    all
}

/// One command, on one line.
fn command(file: &str, annotation: &Annotation) -> String {
    let Annotation { kind, line, title, message } = annotation;
    let line = line.map_or_else(String::new, |line| format!(",line={line}"));
    let file = property(&words::line(file));
    let title = property(title);
    let message: String = match message.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}\n...", message.get(..end).unwrap_or_default()),
        None => message.clone(),
    };
    format!("::{kind} file={file}{line},title={title}::{}\n", data(&message))
}

/// As @actions/core writes a message.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// As @actions/core writes a property.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
