//! What all formats say in the same words. Each is one line without control
//! characters; what else must be escaped is the format's business.

use crate::check::{CaseReport, Change, Report, State, Verdict, Warning, WarningKind};
use crate::render::text::{escape, shorten_middle};

/// Columns of a name, a headline or a cause; longer ones lose their middle.
const WIDTH: usize = 300;

/// Causes, and changed numbers, that explain a failure.
const SHOWN: usize = 20;

/// Text from elsewhere as one harmless line, not too long.
pub fn line(text: &str) -> String {
    shorten_middle(&escape(text), WIDTH).into_owned()
}

/// What came of the check.
pub fn result(report: &Report) -> &'static str {
    match report.status() {
        0 => "pass",
        1 => "FAIL",
        _ => "not judged",
    }
}

/// What came of a case.
pub fn case_result(case: &CaseReport, strict: bool) -> &'static str {
    match &case.problem {
        _ if case.fails(strict) => "FAIL",
        Some(_) => "not judged",
        None => "pass",
    }
}

/// How many cases came to what: `1 of 3 cases failed, 1 not judged`.
pub fn cases(report: &Report) -> String {
    let of = |result| {
        report.cases.iter().filter(|case| case_result(case, report.strict) == result).count()
    };
    let all = report.cases.len();
    let cases = if all == 1 { "case" } else { "cases" };
    match (of("FAIL"), of("not judged")) {
        (0, 0) => format!("{all} {cases} passed"),
        (0, open) => format!("{open} of {all} {cases} not judged"),
        (failed, 0) => format!("{failed} of {all} {cases} failed"),
        (failed, open) => format!("{failed} of {all} {cases} failed, {open} not judged"),
    }
}

/// How many rules came to what: `2 of 6 failed, 1 not judged`.
pub fn rules(case: &CaseReport) -> String {
    let of = |state| case.verdicts.iter().filter(|v| v.state == state).count();
    let all = case.verdicts.len();
    match (of(State::Failed), of(State::Unjudged)) {
        (0, 0) if all == 0 => "none".into(),
        (0, 0) => format!("{all} passed"),
        (0, open) => format!("{open} of {all} not judged"),
        (failed, 0) => format!("{failed} of {all} failed"),
        (failed, open) => format!("{failed} of {all} failed, {open} not judged"),
    }
}

/// Calls before and now: `616 -> 670 (+54, +8.8 %)`.
pub fn calls(case: &CaseReport) -> Option<String> {
    Some(super::human::change(case.calls_before, case.calls?))
}

/// What changed: `openat ENOENT`, `read in region startup`, `write of sh`.
pub fn call(change: &Change) -> String {
    let mut text = change.call.clone();
    for (lead, part) in
        [(" ", &change.errno), (" of ", &change.program), (" in region ", &change.region)]
    {
        if let Some(part) = part {
            text.push_str(lead);
            text.push_str(part);
        }
    }
    line(&text)
}

/// Whether a rule's failure fails the check.
pub fn fails(verdict: &Verdict, strict: bool) -> bool {
    verdict.state == State::Failed && (strict || verdict.fails())
}

/// Whether a warning fails the check.
pub fn warning_fails(warning: &Warning, strict: bool) -> bool {
    strict && warning.kind != WarningKind::Place
}

/// A warning, with the rule that it is about.
pub fn warning(warning: &Warning) -> String {
    match &warning.rule {
        Some(rule) => line(&format!("{rule}: {}", warning.text)),
        None => line(&warning.text),
    }
}

/// Why a rule failed, in lines: its reason, causes, numbers, the run, how to accept.
pub fn explained(case: &CaseReport, verdict: &Verdict) -> Vec<String> {
    let mut lines: Vec<String> =
        verdict.reason.iter().map(|reason| line(&format!("reason: {reason}"))).collect();
    let causes = verdict.causes.iter();
    some(causes, &mut lines, "causes", |cause| {
        line(&format!("{} {}", cause.change.sign(), cause.in_words()))
    });
    some(verdict.changes.iter(), &mut lines, "numbers", |change| {
        format!("{}: {} -> {} ({:+})", call(change), change.before, change.now, change.delta())
    });
    lines.extend(case.record.iter().map(|record| line(&format!("record: {record}"))));
    if !case.accept.is_empty() {
        lines.push(format!("accept with: {}", escape(&case.accept)));
    }
    lines
}

/// The first of many as lines; the last says how many more there are.
fn some<T>(
    all: impl ExactSizeIterator<Item = T>,
    lines: &mut Vec<String>,
    what: &str,
    text: impl Fn(T) -> String,
) {
    let more = all.len().saturating_sub(SHOWN);
    lines.extend(all.take(SHOWN).map(text));
    if more > 0 {
        lines.push(format!("... {more} more {what}"));
    }
}

/// Why a case was not judged, in lines: what to do, what the command said.
pub fn hints(case: &CaseReport) -> Vec<String> {
    let Some(problem) = &case.problem else { return Vec::new() };
    let mut lines: Vec<String> = problem.hint.iter().map(|hint| line(hint)).collect();
    if !problem.stderr.is_empty() {
        lines.push("its standard error ended with:".into());
        lines.extend(problem.stderr.iter().map(|said| format!("  {}", line(said))));
    }
    lines
}
