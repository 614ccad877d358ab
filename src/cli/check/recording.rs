//! `check --update`: runs cases and writes down what their runs have in common.

use std::io::Write;
use std::path::Path;

use coldtrace::check::{
    Baseline, Case, Editor, Expected, Facts, Seen, Shape, Tally, learn, passing,
};
use coldtrace::render::{command_line, counted};
use coldtrace::tracer::{Held, reason};
use coldtrace::{CaseRun, Checker};

use super::{Args, COMMAND, End, Failure, Opened, USAGE, failure, note};

/// Records the cases that are meant; the command's, where there is none of it yet.
pub fn main(args: &Args, held: &Held) -> Result<End, Failure> {
    let path = &args.baseline;
    let opened = super::open(path)?;
    let existing = opened.is_some();
    let bad = |e: toml_edit::TomlError| failure(USAGE, format_args!("{}: {e}", path.display()));
    let mut editor = match &opened {
        Some(opened) => Editor::of(&opened.text).map_err(bad)?,
        None if args.command.is_empty() => return Err(super::no_baseline(args)),
        None => Editor::new().map_err(bad)?,
    };
    let opened = match opened {
        Some(opened) => opened,
        None => of_text(path, editor.to_string())?,
    };
    let mut cases = super::chosen(args, &opened)?;
    if cases.is_empty() {
        if args.command.is_empty() {
            return Err(failure(USAGE, format_args!("{} has no case: say a command", opened.name)));
        }
        let case = new_case(args, &opened);
        editor.add_case(&case);
        cases.push(case);
    }
    let checker = super::checker(&opened)?;
    let mut not_run = None;
    for case in &mut cases {
        case.timeout = args.timeout.or(case.timeout);
        match record(args, &opened, (&checker, held), case) {
            Ok(Recorded { platform, facts, seen }) => {
                editor.facts(&case.name, &platform, &facts, &seen);
            }
            // The others are recorded all the same.
            Err(failure) if failure.status == COMMAND => {
                super::say(&failure.message);
                case.command.clear();
                not_run = Some(End::Status(COMMAND));
            }
            Err(failure) => return Err(failure),
        }
    }
    cases.retain(|case| !case.command.is_empty());
    if cases.is_empty() && not_run.is_some() {
        return Ok(End::Status(COMMAND));
    }
    let text = editor.to_string();
    // What cannot be read again is not written.
    let written = Baseline::parse(&text, &opened.name).map_err(|e| failure(USAGE, e))?;
    let changed = !existing || text != opened.text;
    if changed {
        write(path, &text)?;
    }
    for text in &editor.notes {
        coldtrace_says(&opened.name, text);
    }
    for case in &cases {
        summary(&opened, &written, case);
    }
    if !changed {
        coldtrace_says(&opened.name, "nothing has changed");
    }
    Ok(not_run.unwrap_or(End::Status(0)))
}

fn coldtrace_says(name: &str, text: &str) {
    super::say(&format!("{name}: {text}"));
}

fn of_text(path: &Path, text: String) -> Result<Opened, Failure> {
    let name = path.display().to_string();
    let baseline = Baseline::parse(&text, &name).map_err(|e| failure(USAGE, e))?;
    Ok(Opened { directory: super::directory(path), name, text, baseline })
}

/// A case of the command, in a place that is written out.
fn new_case(args: &Args, opened: &Opened) -> Case {
    let first = args.command.first().map_or("", String::as_str);
    let base = args
        .cases
        .first()
        .map_or_else(|| first.rsplit('/').next().unwrap_or(first), String::as_str);
    let taken = |name: &str| opened.baseline.cases.iter().any(|case| case.name == name);
    let mut name = base.to_owned();
    let mut next = 2;
    while taken(&name) {
        name = format!("{base}-{next}");
        next += 1;
    }
    Case::new(name, args.command.clone())
}

struct Recorded {
    platform: String,
    facts: Facts,
    seen: Seen,
}

/// Runs a case 1 + K times.
fn record(
    args: &Args,
    opened: &Opened,
    checker: (&Checker, &Held),
    case: &Case,
) -> Result<Recorded, Failure> {
    let name = &opened.name;
    let first = run(checker, case, None)?;
    let mut runs: Vec<Shape> = Vec::new();
    for i in 0..args.repeat {
        // What hangs on which thread comes first is to be seen to vary.
        let disturb = (i % 2 == 1).then_some(i);
        let next = run(checker, case, disturb)?;
        if i == 0 {
            first_run(name, case, &first, &next);
            let notes = next.record.measurement.notes.iter();
            notes.for_each(|text| note(name, case, text));
        }
        runs.push(next.shape);
    }
    let platform = runs.first().and_then(|shape| shape.platform.clone()).ok_or_else(|| {
        failure(USAGE, format_args!("{}: it is not known which C library it has", case.name))
    })?;
    if let Some(other) = runs.iter().find(|shape| shape.platform.as_ref() != Some(&platform)) {
        let other = other.platform.as_deref().unwrap_or("an unknown one");
        let what = format!("{}: it ran on {platform}, then on {other}", case.name);
        return Err(failure(COMMAND, what));
    }
    let (facts, seen) = learn(&runs, case.paths);
    let names = passing(&runs);
    if let (Some(path), true) = (names.first(), case.paths) {
        note(
            name,
            case,
            format_args!(
                "{} only some of the runs used, such as {path}: they are not written down; a \
                 pattern in [normalise] can make one name of them",
                counted(names.len() as u64, "path")
            ),
        );
    }
    Ok(Recorded { platform, facts, seen })
}

fn run(
    (checker, held): (&Checker, &Held),
    case: &Case,
    disturb: Option<u32>,
) -> Result<CaseRun, Failure> {
    let run = match super::run_case(checker, case, disturb, held)? {
        Ok(run) => run,
        Err(error) => {
            let what = super::not_run(case, &error)?;
            return Err(failure(COMMAND, format_args!("{}: {what}", case.name)));
        }
    };
    if let Some(how) = &run.ended {
        let mut what = format!("{}: `{}`: {how}", case.name, command_line(&case.command));
        for line in &run.stderr {
            what.push_str("\n  | ");
            what.push_str(line);
        }
        return Err(failure(COMMAND, what));
    }
    Ok(run)
}

/// What the first run did otherwise, which is never used.
fn first_run(name: &str, case: &Case, first: &CaseRun, next: &CaseRun) {
    if first.shape.calls == next.shape.calls {
        return;
    }
    let wrote = super::judging::wrote_first(first, next);
    let (then, now) = (first.shape.call_count(), next.shape.call_count());
    let why = match wrote.as_slice() {
        [] => "it wrote nothing that is left".to_owned(),
        [path] => format!("it wrote {path}"),
        [path, more @ ..] => format!("it wrote {path} and {} more", more.len()),
    };
    let advice = if wrote.is_empty() || case.prepare.is_some() {
        ""
    } else {
        "; `prepare` in the case can remove it before each run, or make it"
    };
    note(
        name,
        case,
        format_args!("the first run, not used, made {then} calls, the next {now}: {why}{advice}"),
    );
}

fn summary(opened: &Opened, written: &Baseline, case: &Case) {
    let Some(now) = written.cases.iter().find(|other| other.name == case.name) else { return };
    for (platform, facts) in &now.facts {
        let before = case.facts.get(platform);
        if before == Some(facts) && now.facts.len() > 1 {
            continue;
        }
        let tally = Tally::of(facts);
        let varies = facts.calls.iter().filter(|(_, fact)| fact.calls == Expected::Varies);
        let names: Vec<&str> = varies.map(|(name, _)| name.as_str()).collect();
        let varies =
            if names.is_empty() { String::new() } else { format!("; vary: {}", names.join(" ")) };
        let (runs, all, exact) = (facts.recorded.runs, tally.all(), tally.exact);
        let runs = counted(u64::from(runs), "run");
        note(
            &opened.name,
            case,
            format_args!("{platform}: {runs}, {exact} of {all} entries exact{varies}"),
        );
    }
}

/// Replaces the file whole, where a link leads too; what it was is there until
/// then.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let failed = |e: std::io::Error| {
        failure(USAGE, format_args!("cannot write {}: {}", path.display(), reason(&e)))
    };
    let mut new = tempfile::NamedTempFile::new_in(super::directory(&real)).map_err(failed)?;
    let mode = std::fs::metadata(&real).map(|meta| meta.permissions());
    new.write_all(text.as_bytes()).map_err(failed)?;
    let mode = mode.unwrap_or_else(|_| std::os::unix::fs::PermissionsExt::from_mode(0o644));
    new.as_file().set_permissions(mode).map_err(failed)?;
    new.as_file().sync_all().map_err(failed)?;
    new.persist(&real).map_err(|e| failed(e.error))?;
    Ok(())
}
