//! GitHub-flavoured Markdown, for a step summary or a comment.

use std::fmt::Write as _;

use super::words;
use crate::check::{CaseReport, Cause, Report, State, Verdict};
use crate::render::text::escape;

/// Bytes of the whole. A comment on GitHub takes 65536 characters, a summary 1 MiB.
const ROOM: usize = 60_000;

/// Rows of a table of rules, items of a list of causes, rows of a table of numbers.
const RULES: usize = 50;
const CAUSES: usize = 30;
const CHANGES: usize = 100;

/// The report as Markdown: what came of it, the cases, and what is wrong with
/// each, causes before numbers. All that is not our own words stands in code, where
/// nothing is a link, a mention or markup.
pub fn markdown(report: &Report) -> String {
    let mut out = format!(
        "## coldtrace: {} {}\n\n{}.\n",
        words::result(report),
        code(&words::line(&report.baseline)),
        words::cases(report)
    );
    out.push_str("\n| case | result | rules | calls | runs |\n|---|---|---|---|---:|\n");
    let mut left = 0;
    for case in &report.cases {
        let row = format!(
            "| {} | {} | {} | {} | {} |\n",
            cell(&words::line(&case.case)),
            strong(words::case_result(case, report.strict)),
            words::rules(case),
            words::calls(case).unwrap_or_else(|| "-".into()),
            case.runs
        );
        // Half of the room is for what is wrong.
        if out.len() + row.len() > ROOM / 2 { left += 1 } else { out.push_str(&row) }
    }
    more(&mut out, left, "cases");
    let mut left = 0;
    for section in report.cases.iter().filter_map(|case| section(case, report.strict)) {
        if out.len() + section.len() > ROOM { left += 1 } else { out.push_str(&section) }
    }
    more(&mut out, left, "cases with details; see the output of the check");
    out
}

/// What there is to say of a case.
fn section(case: &CaseReport, strict: bool) -> Option<String> {
    let failed: Vec<&Verdict> = case.verdicts.iter().filter(|v| v.state == State::Failed).collect();
    if failed.is_empty() && case.warnings.is_empty() && case.problem.is_none() {
        return None;
    }
    let mut out = format!("\n### {}\n", code(&words::line(&case.case)));
    if let Some(problem) = &case.problem {
        let _ = write!(out, "\n**Not judged:** {}\n", code(&words::line(&problem.text)));
        if let Some(hint) = &problem.hint {
            let _ = write!(out, "\n{}\n", code(&words::line(hint)));
        }
        if !problem.stderr.is_empty() {
            let said: Vec<String> = problem.stderr.iter().map(|line| words::line(line)).collect();
            let _ = write!(out, "\nIts standard error ended with:\n\n{}", block("", &said));
        }
    }
    if let Some(record) = &case.record {
        let _ = write!(out, "\nRecord: {}\n", code(&words::line(record)));
    }
    if !failed.is_empty() {
        rules(&mut out, &failed, strict);
        causes(&mut out, &failed);
        numbers(&mut out, &failed);
        if !case.accept.is_empty() {
            let accept = [escape(&case.accept).into_owned()];
            let _ = write!(out, "\nTo accept it:\n\n{}", block("sh", &accept));
        }
    }
    if !case.warnings.is_empty() {
        out.push_str("\nWorth a look:\n\n");
        for warning in case.warnings.iter().take(CAUSES) {
            let fails = if words::warning_fails(warning, strict) { " (fails: strict)" } else { "" };
            let _ = writeln!(out, "- {}{fails}", code(&words::warning(warning)));
        }
        more(&mut out, case.warnings.len().saturating_sub(CAUSES), "warnings");
    }
    Some(out)
}

fn rules(out: &mut String, failed: &[&Verdict], strict: bool) {
    out.push_str("\n| rule | level | what is wrong |\n|---|---|---|\n");
    for verdict in failed.iter().take(RULES) {
        let level = if words::fails(verdict, strict) { "**error**" } else { "warning" };
        let reason = verdict.reason.as_ref().map(|reason| cell(&words::line(reason)));
        let _ = writeln!(
            out,
            "| {} | {level} | {}{}{} |",
            cell(&words::line(&verdict.rule)),
            cell(&words::line(&verdict.headline)),
            if reason.is_some() { "<br>reason: " } else { "" },
            reason.unwrap_or_default()
        );
    }
    more(out, failed.len().saturating_sub(RULES), "rules");
}

/// Of all rules, each once: several fail by the same.
fn causes(out: &mut String, failed: &[&Verdict]) {
    let mut all: Vec<&Cause> = Vec::new();
    for cause in failed.iter().flat_map(|verdict| &verdict.causes) {
        if !all.contains(&cause) {
            all.push(cause);
        }
    }
    if all.is_empty() {
        return;
    }
    out.push_str("\nCauses:\n\n");
    for cause in all.iter().take(CAUSES) {
        let said = words::line(&format!("{} {}", cause.change.sign(), cause.in_words()));
        let _ = writeln!(out, "- {}", code(&said));
    }
    more(out, all.len().saturating_sub(CAUSES), "causes");
}

fn numbers(out: &mut String, failed: &[&Verdict]) {
    let mut all = Vec::new();
    for change in failed.iter().flat_map(|verdict| &verdict.changes) {
        if !all.contains(&change) {
            all.push(change);
        }
    }
    if all.is_empty() {
        return;
    }
    let are = if all.len() == 1 { "number is" } else { "numbers are" };
    let _ = write!(
        out,
        "\n<details><summary>{} {are} not as recorded</summary>\n\n\
         | call | recorded | now | change |\n|---|---:|---:|---:|\n",
        all.len()
    );
    for change in all.iter().take(CHANGES) {
        let (call, delta) = (cell(&words::call(change)), change.delta());
        let _ = writeln!(out, "| {call} | {} | {} | {delta:+} |", change.before, change.now);
    }
    more(out, all.len().saturating_sub(CHANGES), "numbers");
    out.push_str("\n</details>\n");
}

fn more(out: &mut String, left: usize, what: &str) {
    if left > 0 {
        let _ = write!(out, "\nand {left} more {what}\n");
    }
}

fn strong(result: &str) -> String {
    if result == "pass" { result.to_owned() } else { format!("**{result}**") }
}

/// Backquotes that the text does not have in a row.
fn fence(text: &str, least: usize) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat((longest + 1).max(least))
}

/// One line as a code span: nothing in it means anything.
fn code(line: &str) -> String {
    if line.trim().is_empty() {
        return String::new();
    }
    let fence = fence(line, 1);
    // One space on both sides is taken away, and lets it begin with a backquote.
    let edge = |c: Option<char>| matches!(c, Some('`' | ' '));
    let pad = if edge(line.chars().next()) || edge(line.chars().last()) { " " } else { "" };
    format!("{fence}{pad}{line}{pad}{fence}")
}

/// The same in a table, which is parted before code is looked for: a bar needs a
/// backslash, and Markdowns differ in what two before it are.
fn cell(line: &str) -> String {
    code(&line.replace("\\|", "\\x5c|")).replace('|', "\\|")
}

/// Lines as a block of code.
fn block(language: &str, lines: &[String]) -> String {
    let text = lines.join("\n");
    let fence = fence(&text, 3);
    format!("{fence}{language}\n{text}\n{fence}\n")
}
