//! Where in a baseline's text its cases and rules stand.

use std::collections::BTreeMap;

use toml_edit::{Document, Table};

use super::report::Report;

/// Sets the lines of a report's cases and rules to those of the `[[case]]` and
/// `[[rule]]` tables in `text`, the baseline's. One that is not there gets none.
pub fn locate(report: &mut Report, text: &str) {
    // Tables that are written as arrays have no line of their own.
    let Ok(document) = Document::parse(text) else { return };
    let cases = lines(document.as_table(), text, "case", "name");
    let rules = lines(document.as_table(), text, "rule", "id");
    for case in &mut report.cases {
        case.line = cases.get(case.case.as_str()).copied();
        for verdict in &mut case.verdicts {
            verdict.line = rules.get(verdict.rule.as_str()).copied();
        }
    }
}

/// Lines, from 1, of the tables of an array, by their names.
fn lines<'a>(root: &'a Table, text: &str, array: &str, name: &str) -> BTreeMap<&'a str, usize> {
    let tables = root.get(array).and_then(|item| item.as_array_of_tables());
    let line = |table: &'a Table| {
        let before = text.get(..table.span()?.start)?;
        Some((table.get(name)?.as_str()?, before.matches('\n').count() + 1))
    };
    tables.into_iter().flatten().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::report::{CaseReport, REPORT_SCHEMA, State, Verdict};
    use crate::check::rule::Level;

    const TEXT: &str = "# [[case]]\nschema = 1\n\n[[case]]\nname = \"a\"\ncommand = [\"\"\"\n[[case]]\n\"\"\"]\n\
        [case.facts.\"x86_64 linux glibc\"]\nrecorded = { runs = 5 }\n\n# why\n  [[case]] # b\nname = 'b'\n\
        command = [\"b\"]\n\n[[rule]]\nfacts = true\nid = \"counts\"\n[[rule]]\nid = \"new\"\ndeny = \"unlisted\"\n";

    fn verdict(rule: &str) -> Verdict {
        Verdict {
            rule: rule.into(),
            line: None,
            level: Level::Error,
            state: State::Passed,
            reason: None,
            headline: String::new(),
            causes: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn case(name: &str) -> CaseReport {
        CaseReport {
            case: name.into(),
            command: Vec::new(),
            line: Some(99),
            platform: None,
            calls_before: None,
            calls: None,
            wall_ns: None,
            runs: 1,
            record: None,
            verdicts: vec![verdict("new"), verdict("counts"), verdict("gone")],
            warnings: Vec::new(),
            problem: None,
            accept: String::new(),
        }
    }

    fn located(text: &str) -> Vec<(Option<usize>, Vec<Option<usize>>)> {
        let cases = vec![case("a"), case("b"), case("c")];
        let mut report =
            Report { schema: REPORT_SCHEMA, baseline: "x".into(), strict: false, cases };
        locate(&mut report, text);
        let of = |case: &CaseReport| (case.line, case.verdicts.iter().map(|v| v.line).collect());
        report.cases.iter().map(of).collect()
    }

    #[test]
    fn tables_are_found_by_name_and_not_by_what_looks_like_them() {
        let rules = vec![Some(20), Some(17), None];
        let expected = [Some(4), Some(13), None].map(|line| (line, rules.clone()));
        assert_eq!(located(TEXT), expected);
    }

    #[test]
    fn lines_end_as_they_do_on_windows_too() {
        assert_eq!(located(&TEXT.replace('\n', "\r\n")), located(TEXT));
    }

    #[test]
    fn other_texts_have_no_lines() {
        for text in ["schema = 1", "case = [{ name = 'a' }]\nrule = 3"] {
            let none = (None, vec![None; 3]);
            assert_eq!(located(text), [none.clone(), none.clone(), none], "{text}");
        }
    }
}
