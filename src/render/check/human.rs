//! What a person reads: causes first, then counts, then how to accept.

use std::fmt::Write;

use crate::check::{CaseReport, Cause, CauseKind, Changed, Expected, Report, State, Verdict};
use crate::render::text::{Clause, fold, shorten_end, shorten_middle};
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
        let rules = match failed {
            0 => format!("{}, --strict", counted(case.warnings.len() as u64, "warning")),
            _ => format!("{failed} of {}", counted(all as u64, "rule")),
        };
        let text = format!("{head}{rules}{calls}");
        say(out, width, &format!("coldtrace: {word} "), &text);
    } else if case.problem.is_none() {
        let text = format!("{head}{}{calls}", counted(all as u64, "rule"));
        say(out, width, "coldtrace: ok ", &text);
    }
    if let Some(problem) = &case.problem {
        // Whole, so that it can be searched for.
        let _ = writeln!(out, "coldtrace: {head}{}", escape(&problem.text));
        for said in &problem.stderr {
            let _ = writeln!(out, "{}", shorten_end(&format!("  | {}", escape(said)), width));
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
        say(out, width, "  passed: ", &names(State::Passed));
    }
    if count(State::Unjudged) > 0 {
        say(out, width, "  not judged: ", &names(State::Unjudged));
    }
    for warning in &case.warnings {
        let rule = warning.rule.as_deref().map(|rule| format!("{}: ", escape(rule)));
        say(out, width, "  warning: ", &format!("{}{}", rule.unwrap_or_default(), warning.text));
    }
    if let Some(record) = &case.record {
        let _ = writeln!(out, "  record: {}", escape(record));
    }
    if failed > 0 && !case.accept.is_empty() {
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
        say(out, width, &format!("  {label}{space} "), &verdict.headline);
        if let Some(reason) = &verdict.reason {
            say(out, width, "     reason: ", reason);
        }
        // What the headline or a rule above has said already is not said again.
        let new = |cause: &&Cause| {
            !told.contains(cause)
                && !verdict.headline.starts_with(&cause.in_words())
                && !repeats(verdict, cause)
        };
        let new = verdict.causes.iter().filter(new);
        let causes: Vec<Cause> = new.map(|cause| without_the_only(case, cause)).collect();
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

/// A path is used by the one program that there is: that need not be said.
fn without_the_only(report: &CaseReport, cause: &Cause) -> Cause {
    let others = |other: &Cause| other.by.iter().any(|name| !cause.by.contains(name));
    let alone = !report.verdicts.iter().flat_map(|v| &v.causes).any(others);
    let is_path = matches!(cause.kind, CauseKind::Missed | CauseKind::Path | CauseKind::Library);
    let by = if alone && is_path { Vec::new() } else { cause.by.clone() };
    Cause { by, ..cause.clone() }
}

/// Whether a cause only says what the headline says: which call it is.
fn repeats(verdict: &Verdict, cause: &Cause) -> bool {
    let named = cause.how.is_empty() && verdict.headline.split(' ').any(|w| w == cause.what);
    cause.kind == CauseKind::Calls
        && cause.by.len() <= 1
        && (named || verdict.causes.iter().any(|other| other.kind != CauseKind::Calls))
        && verdict.changes.iter().all(|change| change.program.is_none())
}

/// A cause in one line: where that is too long, how a path was used is said in
/// fewer words, then its name is cut.
fn fit(cause: &Cause, width: usize) -> String {
    let whole = escape(&cause.in_words()).into_owned();
    if display_width(&whole) <= width {
        return whole;
    }
    let used = matches!(cause.kind, CauseKind::Path | CauseKind::Library);
    let how = if used && cause.change == Changed::Added { "" } else { &cause.how };
    let less = Cause { how: how.into(), ..cause.clone() };
    let whole = escape(&less.in_words()).into_owned();
    let over = display_width(&whole).saturating_sub(width);
    let what = escape(&less.what);
    let room = display_width(&what).saturating_sub(over).max(20);
    let short = Cause { what: shorten_middle(&what, room).into_owned(), ..less.clone() };
    shorten_end(&escape(&short.in_words()), width).into_owned()
}

/// A sentence, on as many lines as it takes: the first begins with `first`.
fn say(out: &mut String, width: usize, first: &str, text: &str) {
    let next = " ".repeat(first.len() - first.trim_start().len() + 2);
    out.push_str(&fold(first, &next, &[Clause::words(text)], width));
}

/// `616 -> 670 (+54, +8.8 %)`.
pub(super) fn change(before: Option<Expected>, now: u64) -> String {
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
