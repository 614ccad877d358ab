//! `check --update`: runs cases and writes down what their runs have in common.

mod write;

use std::path::Path;

use coldtrace::check::{
    Baseline, Case, Editor, Expected, Facts, PathUse, Seen, Shape, Tally, learn, passing,
};
use coldtrace::render::{command_line, counted};
use coldtrace::tracer::Held;
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
        refused(&editor, &opened.name, &case)?;
        editor.add_case(&case);
        cases.push(case);
    }
    for case in &cases {
        refused(&editor, &opened.name, case)?;
    }
    write::writable(path)?;
    let checker = super::checker(&opened, args)?;
    let mut not_run = None;
    let mut platforms = Vec::new();
    for case in &mut cases {
        case.timeout = args.timeout.or(case.timeout);
        match record(args, &opened, (&checker, held), case) {
            Ok(Recorded { platform, facts, seen }) => {
                editor.facts(&case.name, &platform, &facts, &seen);
                platforms.push((case.name.clone(), platform));
            }
            // The others are recorded all the same.
            Err(failure) if failure.status == COMMAND => {
                super::say(&failure.message);
                not_run = Some(End::Status(COMMAND));
            }
            Err(failure) => return Err(failure),
        }
    }
    cases.retain(|case| platforms.iter().any(|(name, _)| *name == case.name));
    if cases.is_empty() && not_run.is_some() {
        return Ok(End::Status(COMMAND));
    }
    let text = editor.to_string();
    // What cannot be read again is not written.
    let written = Baseline::parse(&text, &opened.name).map_err(|e| failure(USAGE, e))?;
    let has = |(name, platform): &(String, String)| {
        let case = written.cases.iter().find(|case| case.name == *name);
        case.is_some_and(|case| case.facts.contains_key(platform))
    };
    if let Some((name, platform)) = platforms.iter().find(|platform| !has(platform)) {
        let what = format!("{}: {name}: facts of {platform} cannot be written there", opened.name);
        return Err(failure(USAGE, what));
    }
    let changed = !existing || text != opened.text;
    if changed {
        write::write(path, existing.then_some(opened.text.as_str()), &text)?;
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
    let derived = name_of(&args.command);
    let base = args.cases.first().unwrap_or(&derived);
    let taken = |name: &str| opened.baseline.cases.iter().any(|case| case.name == name);
    let mut name = base.clone();
    let mut next = 2;
    while taken(&name) {
        name = format!("{base}-{next}");
        next += 1;
    }
    Case::new(name, args.command.clone())
}

/// Whether a case can be written into the file.
fn refused(editor: &Editor, file: &str, case: &Case) -> Result<(), Failure> {
    match editor.refusal(&case.name) {
        Some(why) => Err(failure(USAGE, format_args!("{file}: {}: {why}", case.name))),
        None => Ok(()),
    }
}

/// Programs whose first argument says what they do.
const INTERPRETERS: [&str; 14] = [
    "python", "pypy", "node", "deno", "bun", "ruby", "perl", "php", "lua", "Rscript", "sh", "bash",
    "dash", "zsh",
];

/// What a case of a command is called: as its program, or as the script that an
/// interpreter runs.
fn name_of(command: &[String]) -> String {
    let mut words = command.iter().map(String::as_str);
    let first = words.next().unwrap_or_default();
    let base = first.rsplit('/').next().unwrap_or(first);
    let program = base.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let script = words.next().filter(|word| !word.starts_with('-') && word.contains(['/', '.']));
    match script.map(|script| Path::new(script).file_stem()) {
        Some(Some(stem)) if INTERPRETERS.contains(&program) => stem.to_string_lossy().into_owned(),
        _ => base.to_owned(),
    }
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
        let disturb = (i > 0).then_some(i);
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
    match fault(case, &run) {
        Some(what) => Err(failure(COMMAND, what)),
        None => Ok(run),
    }
}

/// Why nothing can be learned from a run.
fn fault(case: &Case, run: &CaseRun) -> Option<String> {
    let lost = run.record.measurement.events_lost;
    if lost > 0 {
        let lost = counted(lost, "event");
        return Some(format!("{}: {lost} lost: the counts are too low; run it again", case.name));
    }
    let how = run.ended.as_ref()?;
    let mut what = format!("{}: `{}`: {how}", case.name, command_line(&case.command));
    for line in &run.stderr {
        what.push_str("\n  | ");
        what.push_str(line);
    }
    Some(what)
}

/// What the first run did otherwise, which is never used.
fn first_run(name: &str, case: &Case, first: &CaseRun, next: &CaseRun) {
    if first.shape.calls == next.shape.calls {
        return;
    }
    let wrote = super::judging::wrote_first(first, next);
    let (then, now) = (first.shape.call_count(), next.shape.call_count());
    let why = match wrote.as_slice() {
        [] => otherwise(&first.shape, &next.shape),
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

/// What two runs did not do alike, where the first wrote nothing that the second
/// did not write: paths, or else calls.
fn otherwise(first: &Shape, next: &Shape) -> String {
    let none = PathUse::default();
    let differ = |path: &&String| {
        let of = |shape: &Shape| shape.paths.get(*path).unwrap_or(&none).words();
        of(first) != of(next)
    };
    let mut paths: Vec<&String> = first.paths.keys().filter(differ).collect();
    // What it wrote explains more than what it read; on a device nothing is left.
    let wrote = |path: &str| first.paths.get(path).is_some_and(|used| used.writes > 0);
    paths.sort_by_key(|path| path.starts_with("/dev/") || !wrote(path));
    let Some(path) = paths.first() else {
        let differ = |name: &&String| first.calls.get(*name) != next.calls.get(*name);
        let names = first.calls.keys().chain(next.calls.keys());
        let mut names: Vec<&str> = names.filter(differ).map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        return format!("it used no path otherwise, but made other calls: {}", names.join(" "));
    };
    let words = |shape: &Shape| match shape.paths.get(*path) {
        Some(used) => used.words(),
        None => "not at all".to_owned(),
    };
    let more = match paths.len() - 1 {
        0 => String::new(),
        n => format!(", and {} otherwise too", counted(n as u64, "more path")),
    };
    format!("it used {path} otherwise ({}; then {}){more}", words(first), words(next))
}

fn summary(opened: &Opened, written: &Baseline, case: &Case) {
    let Some(now) = written.cases.iter().find(|other| other.name == case.name) else { return };
    for (platform, facts) in &now.facts {
        let before = case.facts.get(platform);
        if before == Some(facts) && now.facts.len() > 1 {
            continue;
        }
        let tally = Tally::of(facts);
        let names = |of: fn(Expected) -> bool, word: &str| match inexact(facts, of) {
            names if names.is_empty() => String::new(),
            names => format!("; {word}: {}", names.join(", ")),
        };
        let varies = names(|n| n == Expected::Varies, "vary");
        let ranged = names(|n| matches!(n, Expected::Range(..)), "ranged");
        let (runs, all, exact) = (facts.recorded.runs, tally.all(), tally.exact);
        let runs = counted(u64::from(runs), "run");
        note(
            &opened.name,
            case,
            format_args!("{platform}: {runs}, {exact} of {all} entries exact{varies}{ranged}"),
        );
    }
}

/// Calls, and errors of calls, of which this is expected.
fn inexact(facts: &Facts, of: fn(Expected) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    for (call, fact) in &facts.calls {
        if of(fact.calls) {
            names.push(call.clone());
        }
        let errors = fact.errors.iter().filter(|(_, n)| of(**n));
        names.extend(errors.map(|(errno, _)| format!("{call} {errno}")));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_called_as_its_program_or_script() {
        for (command, name) in [
            ("./app --version", "app"),
            ("/usr/bin/git status", "git"),
            ("python3 app.py", "app"),
            ("/usr/bin/python3.11 tools/build.v2.py -v", "build.v2"),
            ("bash ./configure", "configure"),
            ("python3 -m http.server", "python3"),
            ("bash -c ./x", "bash"),
            ("cat notes.txt", "cat"),
            ("node .", "node"),
            ("python3 ..", "python3"),
        ] {
            let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(name_of(&words), name, "{command}");
        }
    }

    #[test]
    fn nothing_is_learned_where_events_were_lost() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/records/calls.json.gz");
        let packed = std::fs::File::open(file).unwrap();
        let record = serde_json::from_reader(flate2::read::GzDecoder::new(packed)).unwrap();
        let case = Case::new("app".into(), vec!["./app".into()]);
        let mut run = CaseRun { record, shape: Shape::default(), ended: None, stderr: vec![] };
        assert_eq!(fault(&case, &run), None);
        run.record.measurement.events_lost = 2;
        assert!(fault(&case, &run).is_some_and(|what| what.starts_with("app: 2 events lost")));
    }

    fn shape(calls: &[(&str, u64)], paths: &[(&str, u64, bool)]) -> Shape {
        let mut shape = Shape::default();
        for (name, n) in calls {
            shape.calls.entry((*name).into()).or_default().calls = *n;
        }
        for (path, opens, written) in paths {
            let opened = [("open".to_owned(), *opens)].into();
            let used = PathUse { uses: opened, writes: u64::from(*written), ..PathUse::default() };
            shape.paths.insert((*path).into(), used);
        }
        shape
    }

    #[test]
    fn what_the_first_run_did_otherwise_is_named() {
        let first = shape(&[], &[("/a", 1, false), ("/b", 2, true), ("/c", 1, false)]);
        let next = shape(&[], &[("/b", 1, true), ("/c", 1, false)]);
        assert_eq!(
            otherwise(&first, &next),
            "it used /b otherwise (2 open; then 1 open), and 1 more path otherwise too"
        );
        let (first, next) = (shape(&[("brk", 3), ("read", 1)], &[]), shape(&[("read", 1)], &[]));
        assert_eq!(
            otherwise(&first, &next),
            "it used no path otherwise, but made other calls: brk"
        );
    }

    #[test]
    fn entries_that_are_not_exact_are_named_with_their_errors() {
        let mut facts = Facts::default();
        let fact = |text: &str| -> coldtrace::check::CallFact {
            serde_json::from_str(text).expect("a fact")
        };
        facts.calls.insert("futex".into(), fact("\"varies\""));
        facts.calls.insert("openat".into(), fact(r#"{"calls": 3, "EAGAIN": "varies"}"#));
        facts.calls.insert("read".into(), fact(r#"{"calls": [1, 2]}"#));
        assert_eq!(inexact(&facts, |n| n == Expected::Varies), ["futex", "openat EAGAIN"]);
        assert_eq!(inexact(&facts, |n| matches!(n, Expected::Range(..))), ["read"]);
    }
}
