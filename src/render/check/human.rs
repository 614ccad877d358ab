//! What a person reads: causes first, then counts, then how to accept.

use std::fmt::Write;

use crate::check::{CaseReport, Cause, CauseKind, Expected, Report, State, Verdict};
use crate::render::text::{shorten_end, shorten_middle};
use crate::render::{counted, display_width, escape};

/// Causes that are shown of one rule.
const SHOWN: usize = 4;
/// A rule's name is padded to no more than this.
const NAME: usize = 16;

/// The report, at most `width` columns wide but for the command that accepts it.
pub fn human(report: &Report, width: usize) -> String {
    let mut out = String::new();
    let file = escape(&report.baseline).into_owned();
    let several = report.cases.len() > 1;
    for case in &report.cases {
        let name = if several { format!("{}: ", escape(&case.case)) } else { String::new() };
        let head = format!("{file}: {name}");
        of_case(case, &head, report.strict, width, &mut out);
    }
    if several {
        let failed = report.cases.iter().filter(|case| case.fails(report.strict)).count();
        let broken = report.cases.iter().filter(|case| case.problem.is_some()).count();
        let mut line = format!("coldtrace: {}", counted(report.cases.len() as u64, "case"));
        let parts = [(failed, "failed"), (broken, "not judged")];
        for (n, what) in parts.iter().filter(|(n, _)| *n > 0) {
            let _ = write!(line, ", {n} {what}");
        }
        if failed == 0 && broken == 0 {
            line.push_str(", all passed");
        }
        let _ = writeln!(out, "{line}");
    }
    out
}

fn of_case(case: &CaseReport, head: &str, strict: bool, width: usize, out: &mut String) {
    let count = |state: State| case.verdicts.iter().filter(|v| v.state == state).count();
    let (failed, all) = (count(State::Failed), case.verdicts.len());
    let calls = case.calls.map(|now| format!("; calls {}", change(case.calls_before, now)));
    let calls = calls.unwrap_or_default();
    let fails = case.fails(strict);
    if fails || failed > 0 {
        let word = if fails { "FAIL" } else { "ok" };
        line(
            out,
            width,
            &format!("coldtrace: {word} {head}{failed} of {}{calls}", counted(all as u64, "rule")),
        );
    } else if case.problem.is_none() {
        line(out, width, &format!("coldtrace: ok {head}{}{calls}", counted(all as u64, "rule")));
    }
    if let Some(problem) = &case.problem {
        let _ = writeln!(out, "coldtrace: {head}{}", escape(&problem.text));
        for said in &problem.stderr {
            line(out, width, &format!("  | {}", escape(said)));
        }
        if let Some(hint) = &problem.hint {
            let _ = writeln!(out, "  {}", escape(hint));
        }
    }
    verdicts(case, width, out);
    let names = |state: State| {
        let of = case.verdicts.iter().filter(move |v| v.state == state);
        of.map(|v| escape(&v.rule).into_owned()).collect::<Vec<_>>().join(" ")
    };
    if failed > 0 && count(State::Passed) > 0 {
        line(out, width, &format!("  passed: {}", names(State::Passed)));
    }
    if count(State::Unjudged) > 0 {
        line(out, width, &format!("  not judged: {}", names(State::Unjudged)));
    }
    for warning in &case.warnings {
        let rule = warning.rule.as_deref().map(|rule| format!("{}: ", escape(rule)));
        let text = format!("  warning: {}{}", rule.unwrap_or_default(), escape(&warning.text));
        line(out, width, &text);
    }
    if failed > 0 {
        let _ = writeln!(out, "  accept with: {}", case.accept);
    }
}

fn verdicts(case: &CaseReport, width: usize, out: &mut String) {
    let failed: Vec<&Verdict> = case.verdicts.iter().filter(|v| v.state == State::Failed).collect();
    let label = |v: &Verdict| {
        let note = if v.level == crate::check::Level::Warning { " (warning)" } else { "" };
        format!("{}{note}", escape(&v.rule))
    };
    let longest = failed.iter().map(|v| display_width(&label(v))).filter(|&w| w <= NAME).max();
    let pad = longest.unwrap_or(0);
    let mut told: Vec<&Cause> = Vec::new();
    for verdict in failed {
        let label = label(verdict);
        let space = " ".repeat(pad.saturating_sub(display_width(&label)));
        line(out, width, &format!("  {label}{space} {}", escape(&verdict.headline)));
        if let Some(reason) = &verdict.reason {
            line(out, width, &format!("     reason: {}", escape(reason)));
        }
        // What the headline or a rule above has said already is not said again.
        let new = |cause: &&Cause| {
            !told.contains(cause)
                && !verdict.headline.starts_with(&cause.in_words())
                && !repeats(verdict, cause)
        };
        let causes: Vec<&Cause> = verdict.causes.iter().filter(new).collect();
        let shown = if causes.len() <= SHOWN + 1 { causes.len() } else { SHOWN };
        for cause in causes.iter().take(shown) {
            let _ = writeln!(
                out,
                "     {} {}",
                cause.change.sign(),
                fit(cause, width.saturating_sub(7))
            );
        }
        if causes.len() > shown {
            let _ = writeln!(out, "     {} more (--format json has all)", causes.len() - shown);
        }
        told.extend(&verdict.causes);
    }
}

/// Whether a cause only says what the headline's numbers say.
fn repeats(verdict: &Verdict, cause: &Cause) -> bool {
    cause.kind == CauseKind::Calls
        && cause.by.len() <= 1
        && verdict.causes.iter().any(|other| other.kind != CauseKind::Calls)
        && verdict.changes.iter().all(|change| change.program.is_none())
}

/// A cause in one line: what is too long of it is cut out of its name.
fn fit(cause: &Cause, width: usize) -> String {
    let whole = escape(&cause.in_words()).into_owned();
    let over = display_width(&whole).saturating_sub(width);
    if over == 0 {
        return whole;
    }
    let what = escape(&cause.what);
    let room = display_width(&what).saturating_sub(over).max(20);
    let short = Cause { what: shorten_middle(&what, room).into_owned(), ..cause.clone() };
    shorten_end(&escape(&short.in_words()), width).into_owned()
}

fn line(out: &mut String, width: usize, text: &str) {
    let _ = writeln!(out, "{}", shorten_end(text, width));
}

/// `616 -> 670 (+54, +8.8 %)`.
fn change(before: Option<Expected>, now: u64) -> String {
    let Some(expected) = before else { return now.to_string() };
    let nearest = expected.nearest(now);
    if nearest == now {
        return now.to_string();
    }
    let delta = i128::from(now) - i128::from(nearest);
    let percent = if nearest > 0 {
        format!(", {:+.1} %", delta as f64 * 100.0 / nearest as f64)
    } else {
        String::new()
    };
    format!("{expected} -> {now} ({delta:+}{percent})")
}
