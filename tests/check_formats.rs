//! What `check` writes for others: short reports as they are to look, long and hostile ones held
//! against the schemas and limits of those who read them.

mod support;

use std::path::PathBuf;

use coldtrace::check::{
    CaseReport, Cause, CauseKind, Change, Changed, Expected, Level, Problem, ProblemKind,
    REPORT_SCHEMA, Report, State, Verdict, Warning, WarningKind,
};
use coldtrace::render::check::{github, json, junit, markdown, sarif};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use serde_json::Value;
use support::process::finish;
use support::{Scratch, find_program, skip};

/// What a program may call a file, to be more than a name in some format.
const HOSTILE: &str = "a|b\\|c `d` ``e <img src=x onerror=alert(1)> @octocat https://evil.example \
    [x](javascript:alert(1)) *f* _g_ &amp; ]]> --> </details> {0} %0A::error::h ##[error]i, j: \
    \u{1b}[31mk\r\n\n::error::l\n##[set-env name=m]n\u{202e}o\u{0}p\u{ffff}q\u{7f}";

/// The same as every format shows it: one line, nothing that drives a terminal.
const SHOWN: &str = "a|b\\|c `d` ``e <img src=x onerror=alert(1)> @octocat https://evil.example \
    [x](javascript:alert(1)) *f* _g_ &amp; ]]> --> </details> {0} %0A::error::h ##[error]i, j: \
    \\x1b[31mk\\r\\n\\n::error::l\\n##[set-env name=m]n\\u{202e}o\\x00p\u{ffff}q\\x7f";

fn verdict(rule: &str, state: State) -> Verdict {
    Verdict {
        rule: rule.into(),
        line: None,
        level: Level::Error,
        state,
        reason: None,
        headline: String::new(),
        causes: Vec::new(),
        changes: Vec::new(),
    }
}

fn case(name: &str, verdicts: Vec<Verdict>) -> CaseReport {
    CaseReport {
        case: name.into(),
        command: vec!["app".into()],
        line: None,
        platform: Some("x86_64 linux glibc".into()),
        calls_before: Some(Expected::Exact(200)),
        calls: Some(200),
        wall_ns: Some(1_234_567_890),
        runs: 1,
        record: None,
        verdicts,
        warnings: Vec::new(),
        problem: None,
        accept: "coldtrace check --update".into(),
    }
}

fn report(cases: Vec<CaseReport>) -> Report {
    Report { schema: REPORT_SCHEMA, baseline: "ci/app.toml".into(), strict: false, cases }
}

fn missed(path: &str) -> Cause {
    Cause {
        change: Changed::Added,
        kind: CauseKind::Missed,
        what: path.into(),
        how: "1 open, ENOENT".into(),
        by: vec!["app".into()],
    }
}

fn change(call: &str, before: u64, now: u64) -> Change {
    Change {
        call: call.into(),
        errno: None,
        program: None,
        region: None,
        before: Expected::Exact(before),
        now,
    }
}

/// One case, one rule of which failed.
fn failed() -> Report {
    let mut counts = verdict("counts", State::Failed);
    counts.line = Some(12);
    counts.headline = "openat 3 -> 5".into();
    counts.reason = Some("APP-12".into());
    counts.causes = vec![missed("{home}/.rc")];
    counts.changes = vec![change("openat", 3, 5)];
    counts.changes.push(Change { errno: Some("ENOENT".into()), ..change("openat", 0, 2) });
    let mut version = case("version", vec![counts, verdict("new", State::Passed)]);
    version.line = Some(4);
    version.calls = Some(202);
    report(vec![version])
}

/// Everything that a report may hold, and all its words hostile.
fn hostile() -> Report {
    let mut bad = verdict(HOSTILE, State::Failed);
    bad.headline = HOSTILE.into();
    bad.reason = Some(HOSTILE.into());
    bad.causes = [CauseKind::Program, CauseKind::Address, CauseKind::Path, CauseKind::Calls]
        .map(|kind| Cause {
            kind,
            how: HOSTILE.into(),
            by: vec![HOSTILE.into()],
            ..missed(HOSTILE)
        })
        .into();
    bad.changes = vec![Change {
        errno: Some("ENOENT".into()),
        program: Some(HOSTILE.into()),
        region: Some(HOSTILE.into()),
        before: Expected::Range(2, 4),
        ..change("openat", 0, 7)
    }];
    let advice = Verdict { rule: "advice".into(), level: Level::Warning, ..bad.clone() };
    let mut first = case(HOSTILE, vec![bad, advice, verdict("ok", State::Passed)]);
    first.verdicts.push(verdict("open", State::Unjudged));
    first.platform = Some(HOSTILE.into());
    first.record = Some(HOSTILE.into());
    first.accept = format!("coldtrace check --update -- {HOSTILE}");
    first.warnings = [WarningKind::Unused, WarningKind::Improved, WarningKind::Once]
        .into_iter()
        .chain([WarningKind::Place])
        .map(|kind| Warning { kind, rule: Some(HOSTILE.into()), text: HOSTILE.into() })
        .collect();
    let mut broken = case("broken", Vec::new());
    (broken.calls, broken.calls_before, broken.wall_ns, broken.platform) = (None, None, None, None);
    broken.problem = Some(Problem {
        kind: ProblemKind::Command,
        text: HOSTILE.into(),
        hint: Some(HOSTILE.into()),
        stderr: vec![HOSTILE.into(), String::new()],
    });
    let mut report = report(vec![first, broken, case("fine", vec![verdict("ok", State::Passed)])]);
    report.baseline = HOSTILE.into();
    report
}

/// A report of `cases` cases with `rules` failed rules each.
fn many(cases: usize, rules: usize) -> Report {
    let of = |i: usize| {
        let rule = |j: usize| Verdict {
            headline: "openat 3 -> 5".into(),
            causes: (0..50).map(|k| missed(&format!("/path/{k}"))).collect(),
            ..verdict(&format!("rule-{j}"), State::Failed)
        };
        case(&format!("case-{i}"), (0..rules).map(rule).collect())
    };
    report((0..cases).map(of).collect())
}

/// A report of each kind.
fn all() -> Vec<Report> {
    let strict = |report: Report| Report { strict: true, ..report };
    let none = report(vec![case("a", Vec::new())]);
    vec![
        failed(),
        strict(failed()),
        hostile(),
        strict(hostile()),
        many(3, 20),
        none,
        report(vec![]),
    ]
}

#[test]
fn no_format_hands_on_what_drives_a_terminal() {
    for report in all() {
        // JSON is for programs, and has them as it must.
        for write in [github, junit, markdown, sarif] {
            let text = write(&report);
            let bad = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
            let bad: Vec<char> = text.chars().filter(bad).collect();
            assert!(bad.is_empty(), "{bad:?} in {text}");
            assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{text:?}");
        }
    }
}

#[test]
fn json_is_all_of_the_report() {
    let value: Value = serde_json::from_str(&json(&failed())).expect("it is JSON");
    assert_eq!(value["schema"], "coldtrace.check/1");
    let rule = &value["cases"][0]["verdicts"][0];
    assert_eq!((&rule["state"], &rule["line"]), (&"failed".into(), &12.into()));
    assert_eq!(rule["causes"][0]["kind"], "missed");
    assert_eq!(rule["changes"][0]["before"]["exact"], 3);
}

#[test]
fn annotations_stand_at_the_line_of_their_rule() {
    let expected = "::error file=ci/app.toml,line=12,title=version%3A counts::openat 3 -> 5%0A\
        reason: APP-12%0A+ {home}/.rc: 1 open, ENOENT by app%0Aopenat: 3 -> 5 (+2)%0A\
        openat ENOENT: 0 -> 2 (+2)%0Aaccept with: coldtrace check --update\n\
        coldtrace: FAIL: 1 of 1 case failed\n";
    assert_eq!(github(&failed()), expected);
    assert_eq!(github(&report(vec![case("a", vec![])])), "coldtrace: pass: 1 case passed\n");
}

/// The commands of each kind, as @actions/core reads them.
fn commands(text: &str, kind: &str) -> Vec<(String, String)> {
    let lead = format!("::{kind} ");
    let decode = |text: &str| {
        let text = text.replace("%0A", "\n").replace("%0D", "\r");
        text.replace("%3A", ":").replace("%2C", ",").replace("%25", "%")
    };
    text.lines()
        .filter_map(|line| line.strip_prefix(&lead)?.split_once("::"))
        .map(|(properties, message)| (decode(properties), decode(message)))
        .collect()
}

#[test]
fn annotations_stay_within_the_limits_and_say_what_they_leave_out() {
    let mut report = many(5, 5);
    for case in &mut report.cases {
        let text = "x".repeat(9000);
        let kinds = [WarningKind::Unused, WarningKind::Place];
        let of = |kind| Warning { kind, rule: None, text: text.clone() };
        case.warnings = kinds.into_iter().cycle().take(6).map(of).collect();
        case.verdicts[0].headline = "\u{1f600}".repeat(9000);
    }
    let text = github(&report);
    // 25 rules; 3 of each kind of warning a case.
    for (kind, all) in [("error", 25), ("warning", 15), ("notice", 15)] {
        let commands = commands(&text, kind);
        assert_eq!(commands.len(), 10, "{kind}");
        let (_, last) = &commands[9];
        assert!(last.starts_with(&format!("and {} more:\n", all - 9)), "{last}");
        for (properties, message) in &commands {
            assert!(message.chars().count() <= 4096 && properties.chars().count() <= 500);
        }
    }
    assert!(commands(&text, "error")[9].1.contains("case-4: rule-4"));
    assert_eq!(text.lines().count(), 31);
    // What is just as many is not parted.
    assert!(!github(&many(2, 5)).contains("more:"));
}

#[test]
fn hostile_names_make_no_commands_of_their_own() {
    let text = github(&hostile());
    for line in text.lines() {
        let ours = ["::error file=", "::warning file=", "::notice file=", "coldtrace: FAIL: "];
        assert!(ours.iter().any(|lead| line.starts_with(lead)), "{line}");
        // What is no command may hold none: runners look for this one amid a line.
        assert!(line.starts_with("::") || !line.contains("##["), "{line}");
    }
    let errors = commands(&text, "error");
    assert_eq!(errors.len(), 2, "{text}");
    assert!(errors[0].0.starts_with(&format!("file={SHOWN},title=a|b")), "{}", errors[0].0);
    assert!(errors[0].1.starts_with(&format!("{SHOWN}\nreason: {SHOWN}\n+ ")), "{}", errors[0].1);
    assert_eq!(commands(&text, "warning").len(), 4);
    assert_eq!(commands(&text, "notice").len(), 1);
    let strict = github(&Report { strict: true, ..hostile() });
    assert_eq!((commands(&strict, "error").len(), commands(&strict, "warning").len()), (6, 0));
}

#[test]
fn markdown_has_causes_before_counts_and_then_how_to_accept() {
    let expected = "\
## coldtrace: FAIL `ci/app.toml`

1 of 1 case failed.

| case | result | rules | calls | runs |
|---|---|---|---|---:|
| `version` | **FAIL** | 1 of 2 failed | 200 -> 202 (+2, +1.0 %) | 1 |

### `version`

| rule | level | what is wrong |
|---|---|---|
| `counts` | **error** | `openat 3 -> 5`<br>reason: `APP-12` |

Causes:

- `+ {home}/.rc: 1 open, ENOENT by app`

<details><summary>2 numbers are not as recorded</summary>

| call | recorded | now | change |
|---|---:|---:|---:|
| `openat` | 3 | 5 | +2 |
| `openat ENOENT` | 0 | 2 | +2 |

</details>

To accept it:

```sh
coldtrace check --update
```
";
    assert_eq!(markdown(&failed()), expected);
}

#[test]
fn nothing_from_a_run_is_markup() {
    let text = markdown(&hostile());
    let (mut spans, mut cells, mut html) = (Vec::new(), 0, Vec::new());
    let mut blocks = String::new();
    let mut in_block = false;
    for event in Parser::new_ext(&text, Options::ENABLE_TABLES | Options::ENABLE_GFM) {
        match event {
            Event::Code(code) => spans.push(code.to_string()),
            Event::Html(tag) | Event::InlineHtml(tag) => html.push(tag.trim().to_owned()),
            Event::Start(Tag::Link { .. } | Tag::Image { .. } | Tag::Emphasis) => {
                panic!("{event:?} in {text}")
            }
            Event::Start(Tag::CodeBlock(_)) => in_block = true,
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Start(Tag::TableCell) => cells += 1,
            Event::Text(words) if in_block => blocks.push_str(&words),
            // Our own words are plain.
            Event::Text(words) => {
                let hostile = ["<img", "octocat", "evil.example", "details>", "\\x1b"];
                assert!(!hostile.iter().any(|part| words.contains(part)), "{words}");
            }
            _ => {}
        }
    }
    // 3 cases and a head, 2 rules and a head, 1 number and a head.
    assert_eq!(cells, 4 * 5 + 3 * 3 + 2 * 4, "{text}");
    let number = "<details><summary>1 number is not as recorded</summary>";
    assert_eq!(html, [vec!["<br>"; 2], vec![number, "</details>"]].concat(), "{text}");
    assert!(spans.contains(&SHOWN.to_owned()), "{spans:#?}");
    // A bar behind a backslash, in a table: Markdowns differ in what that is.
    assert!(spans.contains(&SHOWN.replace("\\|", "\\x5c|")), "{spans:#?}");
    assert!(blocks.contains(&format!("coldtrace check --update -- {SHOWN}\n")), "{blocks}");
}

#[test]
fn markdown_fits_into_a_comment() {
    for (cases, rules) in [(3000, 1), (30, 60), (1, 5000)] {
        let text = markdown(&many(cases, rules));
        assert!(text.len() <= 65536, "{}", text.len());
        let left = text.lines().rfind(|l| l.starts_with("and ")).expect("not all fits");
        assert!(
            left.ends_with("more causes") || left.contains("more cases with details"),
            "{left}"
        );
    }
    assert!(markdown(&many(3000, 1)).contains(" more cases\n"));
}

fn schema(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/schemas").join(name)
}

#[test]
fn junit_is_what_its_schema_says() {
    if find_program("xmllint").is_none() {
        return skip("no xmllint: apt-get install libxml2-utils");
    }
    let scratch = Scratch::new("junit");
    let check = |name: &str, text: &str| {
        let file = scratch.path(name);
        std::fs::write(&file, text).expect("scratch can be written");
        let mut xmllint = std::process::Command::new("xmllint");
        finish(xmllint.args(["--noout", "--schema"]).arg(schema("junit-10.xsd")).arg(file))
    };
    for (i, report) in all().iter().enumerate() {
        check(&format!("{i}.xml"), &junit(report)).assert_code(0);
    }
    // It does look.
    let wrong = junit(&failed()).replace("<testcase name=", "<testcase nome=");
    check("wrong.xml", &wrong).assert_code(3);
}

#[test]
fn a_rule_is_a_test_and_a_case_a_suite() {
    let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="coldtrace" tests="2" failures="1" errors="0" time="1.235">
  <testsuite name="version" file="ci/app.toml" tests="2" failures="1" errors="0" time="1.235" skipped="0">
    <testcase name="counts" classname="coldtrace.version" time="0.000">
      <failure message="openat 3 -&gt; 5" type="rule">reason: APP-12
+ {home}/.rc: 1 open, ENOENT by app
openat: 3 -&gt; 5 (+2)
openat ENOENT: 0 -&gt; 2 (+2)
accept with: coldtrace check --update</failure>
    </testcase>
    <testcase name="new" classname="coldtrace.version" time="0.000"/>
  </testsuite>
</testsuites>
"#;
    assert_eq!(junit(&failed()), expected);
}

/// Names of the tests, each with the element in it, and the texts of these.
fn read_junit(text: &str) -> (Vec<(String, String)>, Vec<String>) {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(text);
    let (mut tests, mut said) = (Vec::new(), Vec::new());
    loop {
        let event = reader.read_event().expect("it is XML");
        let (Event::Start(tag) | Event::Empty(tag)) = &event else {
            match event {
                Event::Eof => return (tests, said),
                _ => continue,
            }
        };
        for attribute in tag.attributes() {
            let attribute = attribute.expect("attributes are in quotes");
            let value = attribute
                .normalized_value(quick_xml::XmlVersion::Explicit1_0)
                .expect("they are escaped")
                .into_owned();
            match (tag.name().as_ref(), attribute.key.as_ref()) {
                ("testcase", "name") => tests.push((value, String::new())),
                (_, "message") => said.push(value),
                _ => {}
            }
        }
        let inner = tag.name().as_ref().to_owned();
        if let Some((_, element)) = tests.last_mut().filter(|_| !inner.starts_with("test")) {
            *element = inner;
        }
    }
}

#[test]
fn warnings_are_no_failures_but_with_strict() {
    // U+FFFF is no character of XML.
    let name = SHOWN.replace('\u{ffff}', "\u{fffd}");
    let (tests, messages) = read_junit(&junit(&hostile()));
    let tests: Vec<(&str, &str)> = tests.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let of = |advice, warnings| {
        [
            (name.as_str(), "failure"),
            ("advice", advice),
            ("ok", ""),
            ("open", "skipped"),
            ("warnings", warnings),
            ("run", "error"),
            ("ok", ""),
        ]
    };
    assert_eq!(tests, of("system-out", "system-out"));
    assert_eq!(messages, [name.clone(), format!("no facts for {name}"), name.clone()]);
    let (tests, _) = read_junit(&junit(&Report { strict: true, ..hostile() }));
    let tests: Vec<(&str, &str)> = tests.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(tests, of("failure", "failure"));
}

#[test]
fn sarif_is_what_its_schema_says() {
    let text = std::fs::read_to_string(schema("sarif-schema-2.1.0.json")).expect("the schema");
    // A bracket too many in the pattern of `language`, which JavaScript overlooks.
    let text = text.replace("-[a-zA-Z]{2}]?$", "-[a-zA-Z]{2}$");
    let schema: Value = serde_json::from_str(&text).expect("it is JSON");
    let validator = jsonschema::draft7::options()
        .should_validate_formats(true)
        .build(&schema)
        .expect("it is a schema");
    for report in all() {
        let log: Value = serde_json::from_str(&sarif(&report)).expect("it is JSON");
        let errors: Vec<String> = validator
            .iter_errors(&log)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{}\n{log:#}", errors.join("\n"));
        let run = &log["runs"][0];
        assert_eq!(run["invocations"][0]["exitCode"], report.status());
        // What the schema cannot say: the index is that of the rule.
        let rules = &run["tool"]["driver"]["rules"];
        for result in run["results"].as_array().expect("results") {
            let index = result["ruleIndex"].as_u64().expect("an index") as usize;
            assert_eq!(rules[index]["id"], result["ruleId"]);
        }
    }
    let wrong: Value = serde_json::from_str(&sarif(&failed()).replace("\"error\"", "\"bad\""))
        .expect("it is JSON");
    assert!(!validator.is_valid(&wrong));
}

fn results(report: &Report) -> Vec<Value> {
    let log: Value = serde_json::from_str(&sarif(report)).expect("it is JSON");
    log["runs"][0]["results"].as_array().expect("results").clone()
}

#[test]
fn a_result_is_at_its_line_and_the_same_whatever_the_numbers() {
    let one = &results(&failed())[0];
    assert_eq!((&one["ruleId"], &one["level"]), (&"counts".into(), &"error".into()));
    let place = &one["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "ci/app.toml");
    assert_eq!(place["region"]["startLine"], 12);
    let text = one["message"]["text"].as_str().expect("a text");
    // Braces stand for arguments where they are not doubled.
    let begin = "version: openat 3 -> 5\nreason: APP-12\n+ {{home}}/.rc: 1 open, ENOENT by app\n";
    assert!(text.starts_with(begin), "{text}");
    let mut other = failed();
    other.cases[0].verdicts[0].headline = "openat 3 -> 9".into();
    other.cases[0].verdicts[0].line = Some(99);
    assert_eq!(results(&other)[0]["partialFingerprints"], one["partialFingerprints"]);
    other.cases[0].case = "help".into();
    assert_ne!(results(&other)[0]["partialFingerprints"], one["partialFingerprints"]);
    let hostile = results(&hostile());
    let levels: Vec<&Value> = hostile.iter().map(|result| &result["level"]).collect();
    assert_eq!(levels, ["error", "warning", "warning", "warning", "warning", "note"]);
    let text = hostile[0]["message"]["text"].as_str().expect("a text");
    assert!(text.contains("[x] (javascript:alert(1))") && !text.contains("]("), "{text}");
}
