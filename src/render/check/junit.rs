//! JUnit's XML, as GitLab, Jenkins and others read it.

use std::io;

use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, BytesText, Event};

use super::words;
use crate::check::{CaseReport, ProblemKind, Report, State, Verdict};

type Xml = Writer<Vec<u8>>;

/// What came of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Error,
    Skipped,
}

struct Test {
    name: String,
    outcome: Outcome,
    /// What kind of failure, for those that sort by it.
    kind: &'static str,
    message: String,
    text: String,
}

/// The report as JUnit's XML: a case is a suite, a rule is a test. Failures of
/// level warning are no failures and stand in the test's output; a rule that was
/// not judged is skipped; a case that could not be is a test `run` with an error.
pub fn junit(report: &Report) -> String {
    // Writing to memory does not fail.
    let xml = document(report).unwrap_or_default();
    // Not allowed in XML, and not among what is escaped everywhere.
    String::from_utf8_lossy(&xml).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

fn document(report: &Report) -> io::Result<Vec<u8>> {
    let suites: Vec<(&CaseReport, Vec<Test>)> =
        report.cases.iter().map(|case| (case, tests(case, report.strict))).collect();
    let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
    xml.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let all = || suites.iter().flat_map(|(_, tests)| tests);
    let wall = report.cases.iter().filter_map(|case| case.wall_ns);
    let mut root = BytesStart::new("testsuites");
    root.push_attribute(("name", "coldtrace"));
    numbers(&mut root, all(), wall.fold(0, u64::saturating_add));
    xml.write_event(Event::Start(root))?;
    for (case, tests) in &suites {
        let mut suite = BytesStart::new("testsuite");
        suite.push_attribute(("name", words::line(&case.case).as_str()));
        suite.push_attribute(("file", words::line(&report.baseline).as_str()));
        numbers(&mut suite, tests.iter(), case.wall_ns.unwrap_or(0));
        let skipped = tests.iter().filter(|t| t.outcome == Outcome::Skipped).count();
        suite.push_attribute(("skipped", skipped.to_string().as_str()));
        xml.write_event(Event::Start(suite))?;
        for test in tests {
            write(&mut xml, case, test)?;
        }
        xml.write_event(Event::End(BytesEnd::new("testsuite")))?;
    }
    xml.write_event(Event::End(BytesEnd::new("testsuites")))?;
    let mut bytes = xml.into_inner();
    bytes.push(b'\n');
    Ok(bytes)
}

fn numbers<'a>(tag: &mut BytesStart, tests: impl Iterator<Item = &'a Test>, wall_ns: u64) {
    let (mut all, mut failed, mut errors) = (0, 0, 0);
    for test in tests {
        all += 1;
        failed += usize::from(test.outcome == Outcome::Failed);
        errors += usize::from(test.outcome == Outcome::Error);
    }
    for (key, n) in [("tests", all), ("failures", failed), ("errors", errors)] {
        tag.push_attribute((key, n.to_string().as_str()));
    }
    tag.push_attribute(("time", seconds(wall_ns).as_str()));
}

/// With three digits: what some of its schemas allow.
fn seconds(ns: u64) -> String {
    let ms = ns.saturating_add(500_000) / 1_000_000;
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

/// The tests of a case.
fn tests(case: &CaseReport, strict: bool) -> Vec<Test> {
    let mut tests: Vec<Test> =
        case.verdicts.iter().map(|verdict| rule(case, verdict, strict)).collect();
    if let Some(problem) = &case.problem {
        tests.push(Test {
            name: "run".into(),
            outcome: Outcome::Error,
            kind: match problem.kind {
                ProblemKind::Facts => "facts",
                ProblemKind::Command => "command",
            },
            message: words::line(&problem.text),
            text: words::hints(case).join("\n"),
        });
    }
    if !case.warnings.is_empty() {
        let failed = case.warnings.iter().any(|w| words::warning_fails(w, strict));
        let lines: Vec<String> = case.warnings.iter().map(words::warning).collect();
        tests.push(Test {
            name: "warnings".into(),
            outcome: if failed { Outcome::Failed } else { Outcome::Passed },
            kind: "strict",
            message: "warnings, and --strict".into(),
            text: lines.join("\n"),
        });
    }
    tests
}

fn rule(case: &CaseReport, verdict: &Verdict, strict: bool) -> Test {
    let name = words::line(&verdict.rule);
    let headline = words::line(&verdict.headline);
    let explained = || words::explained(case, verdict).join("\n");
    match verdict.state {
        State::Passed => Test {
            name,
            outcome: Outcome::Passed,
            kind: "",
            message: String::new(),
            text: String::new(),
        },
        State::Unjudged => Test {
            name,
            outcome: Outcome::Skipped,
            kind: "facts",
            message: format!(
                "no facts for {}",
                words::line(case.platform.as_deref().unwrap_or("this platform"))
            ),
            text: String::new(),
        },
        State::Failed if words::fails(verdict, strict) => {
            let text = explained();
            Test { name, outcome: Outcome::Failed, kind: "rule", message: headline, text }
        }
        State::Failed => Test {
            name,
            outcome: Outcome::Passed,
            kind: "",
            message: String::new(),
            text: format!("warning: {headline}\n{}", explained()),
        },
    }
}

fn write(xml: &mut Xml, case: &CaseReport, test: &Test) -> io::Result<()> {
    let mut tag = BytesStart::new("testcase");
    tag.push_attribute(("name", test.name.as_str()));
    tag.push_attribute(("classname", format!("coldtrace.{}", words::line(&case.case)).as_str()));
    // The run is judged as a whole: only that it was run took time.
    let wall_ns = if test.name == "run" { case.wall_ns.unwrap_or(0) } else { 0 };
    tag.push_attribute(("time", seconds(wall_ns).as_str()));
    let element = match test.outcome {
        Outcome::Passed if test.text.is_empty() => return xml.write_event(Event::Empty(tag)),
        Outcome::Passed => "system-out",
        Outcome::Failed => "failure",
        Outcome::Error => "error",
        Outcome::Skipped => "skipped",
    };
    xml.write_event(Event::Start(tag))?;
    let mut inner = BytesStart::new(element);
    if test.outcome != Outcome::Passed {
        inner.push_attribute(("message", test.message.as_str()));
        inner.push_attribute(("type", test.kind));
    }
    xml.write_event(Event::Start(inner))?;
    xml.write_event(Event::Text(BytesText::new(&test.text)))?;
    xml.write_event(Event::End(BytesEnd::new(element)))?;
    xml.write_event(Event::End(BytesEnd::new("testcase")))
}
