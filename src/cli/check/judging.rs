//! Runs cases and judges them.

use std::fmt::Write;

use coldtrace::check::{
    Baseline, Case, CaseReport, Judged, Problem, ProblemKind, REPORT_SCHEMA, Report, Shape, State,
    Warning, WarningKind, judge, locate, self_test as missed_by, spare_rules,
};
use coldtrace::record::read;
use coldtrace::render::counted;
use coldtrace::tracer::Held;
use coldtrace::{CaseRun, Checker};

use super::{Args, COMMAND, End, Failure, NO_FACTS, Opened, Output, USAGE, failure};

/// Runs and judges.
struct Judging<'a> {
    args: &'a Args,
    held: &'a Held,
    opened: &'a Opened,
    checker: Checker,
    /// What was seen in each run.
    shapes: Vec<Shape>,
}

/// Judges all cases; gives what their runs looked like, too.
pub fn judge_all(
    args: &Args,
    held: &Held,
    opened: &Opened,
    cases: &[Case],
) -> Result<(Report, Vec<Shape>), Failure> {
    let mut judging = Judging::new(args, held, opened)?;
    let mut report = Report {
        schema: REPORT_SCHEMA,
        baseline: opened.name.clone(),
        strict: args.strict,
        cases: Vec::new(),
    };
    for case in cases_of(args, cases)? {
        report.cases.push(judging.case(case)?);
    }
    spare_rules(&mut report, &opened.baseline);
    locate(&mut report, &opened.text);
    Ok((report, judging.shapes))
}

/// Of a saved run one case only can be judged.
fn cases_of<'a>(args: &Args, cases: &'a [Case]) -> Result<&'a [Case], Failure> {
    if args.saved.is_some() && cases.len() != 1 {
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        let what = format!("-r: whose run is it? --case is one of {}", names.join(", "));
        return Err(failure(USAGE, what));
    }
    Ok(cases)
}

impl<'a> Judging<'a> {
    fn new(args: &'a Args, held: &'a Held, opened: &'a Opened) -> Result<Self, Failure> {
        Ok(Self { args, held, opened, checker: super::checker(opened)?, shapes: Vec::new() })
    }

    /// Runs a case, or takes the saved run; says what kept it from being run.
    fn ran(
        &self,
        case: &Case,
        kept: &mut Option<String>,
    ) -> Result<Result<CaseRun, Problem>, Failure> {
        let Some(run) = &self.args.saved else {
            return match super::run_case(&self.checker, case, None, self.held)? {
                Ok(mut run) => {
                    if let Some(runs) = &self.args.keep {
                        let path =
                            self.checker.keep(&mut run, runs).map_err(|e| failure(USAGE, e))?;
                        *kept = Some(path.display().to_string());
                    }
                    Ok(Ok(run))
                }
                Err(error) => {
                    let (text, stderr) = (super::not_run(case, &error)?, Vec::new());
                    let hint = Some("check its command and its env in the baseline".into());
                    Ok(Err(Problem { kind: ProblemKind::Command, text, hint, stderr }))
                }
            };
        };
        let saved = read(run, &self.args.runs).map_err(|e| failure(USAGE, e))?;
        if saved.syscalls.is_none() || saved.measurement.trace.is_some() || saved.files.is_none() {
            let what = format!("{run} was taken without tracing, or of some calls only");
            return Err(failure(USAGE, what));
        }
        let saved = self.checker.judge_saved(saved, &case.exit);
        Ok(match other_place(case, &saved) {
            Some(text) => Err(Problem {
                kind: ProblemKind::Facts,
                text,
                hint: Some(
                    "take it with `coldtrace run --fixed`, or let check run the command".into(),
                ),
                stderr: Vec::new(),
            }),
            None => Ok(saved),
        })
    }

    fn case(&mut self, case: &Case) -> Result<CaseReport, Failure> {
        let mut found = CaseReport {
            case: case.name.clone(),
            command: case.command.clone(),
            line: None,
            platform: None,
            calls_before: None,
            calls: None,
            wall_ns: None,
            runs: 0,
            record: None,
            verdicts: Vec::new(),
            warnings: Vec::new(),
            problem: None,
            accept: super::accept(self.args, self.opened, case),
        };
        let baseline = &self.opened.baseline;
        let run = match self.ran(case, &mut found.record)? {
            Ok(run) => run,
            Err(problem) => {
                found.problem = Some(problem);
                return Ok(found);
            }
        };
        describe(case, &run, &mut found);
        if found.problem.is_some() {
            return Ok(found);
        }
        let mut judged = judge(baseline, case, &run.shape);
        // What a first run leaves behind is no change of the program, and recording
        // does not use it either: what fails must fail again. Of threads that wait
        // for each other counts may hang on who came first: twice again.
        let most = if run.shape.threads > run.shape.processes { 3 } else { 2 };
        let mut last = run;
        while self.args.saved.is_none()
            && found.runs < most
            && judged.verdicts.iter().any(|verdict| is_relative(baseline, verdict))
        {
            let Ok(again) = self.ran(case, &mut found.record)? else { break };
            if again.ended.is_some() {
                break;
            }
            describe(case, &again, &mut found);
            let next = judge(baseline, case, &again.shape);
            judged = confirmed(baseline, judged, next, &last, &again, found.runs);
            self.shapes.push(std::mem::replace(&mut last, again).shape);
        }
        self.shapes.push(last.shape);
        finish(&mut found, judged, case);
        Ok(found)
    }
}

/// Why the place of a saved run is not that of the recorded ones.
fn other_place(case: &Case, saved: &CaseRun) -> Option<String> {
    let stdio = saved.record.run.stdio.as_ref()?;
    let input = if case.stdin.is_some() { "file" } else { "null" };
    let streams = [
        ("standard input", &stdio.stdin, input),
        ("standard output", &stdio.stdout, "file"),
        ("standard error", &stdio.stderr, "file"),
    ];
    let other = streams
        .into_iter()
        .find(|(_, found, wanted)| found.as_deref().is_some_and(|found| found != *wanted));
    let (name, found, wanted) = other?;
    let found = found.as_deref().unwrap_or("unknown");
    Some(format!(
        "{name} was another kind ({found}) than recorded ({wanted}): its calls are others"
    ))
}

/// Whether a rule failed that compares with what was recorded.
fn is_relative(baseline: &Baseline, verdict: &coldtrace::check::Verdict) -> bool {
    let rule = baseline.rules.iter().find(|rule| rule.id == verdict.rule);
    verdict.state == State::Failed && rule.is_some_and(|rule| !rule.demand.is_absolute())
}

/// What two runs say together: what is forbidden was done in one of them, what
/// has changed has changed in both.
fn confirmed(
    baseline: &Baseline,
    first: Judged,
    mut second: Judged,
    run: &CaseRun,
    again: &CaseRun,
    number: u32,
) -> Judged {
    second.warnings.extend(first.warnings.into_iter().filter(|w| w.kind == WarningKind::Once));
    for verdict in first.verdicts.into_iter().filter(|v| v.state == State::Failed) {
        let Some(later) = second.verdicts.iter_mut().find(|v| v.rule == verdict.rule) else {
            continue;
        };
        if later.state == State::Failed {
            continue;
        }
        if is_relative(baseline, &verdict) {
            let wrote: Vec<&str> = wrote_first(run, again);
            let why = match wrote.first() {
                Some(path) if wrote.len() == 1 => format!("; that one wrote {path}"),
                Some(path) => format!("; that one wrote {path} and {} more", wrote.len() - 1),
                None => String::new(),
            };
            let (then, headline) = (number - 1, &verdict.headline);
            let text = format!("failed in run {then} and not in run {number}{why}: {headline}");
            second.warnings.push(Warning {
                kind: WarningKind::Once,
                rule: Some(verdict.rule),
                text,
            });
        } else {
            *later = verdict;
        }
    }
    second.verdicts.sort_by_key(|verdict| verdict.state != State::Failed);
    second
}

/// What the first run wrote and the next did not.
pub fn wrote_first<'a>(run: &'a CaseRun, again: &CaseRun) -> Vec<&'a str> {
    let wrote =
        |shape: &Shape, path: &String| shape.paths.get(path).is_some_and(|used| used.writes > 0);
    let all = run.shape.paths.iter().filter(|(_, used)| used.writes > 0);
    all.map(|(path, _)| path)
        .filter(|path| !wrote(&again.shape, path))
        .map(String::as_str)
        .collect()
}

/// What is to be said of a run, whatever is judged.
fn describe(case: &Case, run: &CaseRun, found: &mut CaseReport) {
    found.runs += 1;
    found.platform.clone_from(&run.shape.platform);
    found.calls = Some(run.shape.call_count());
    found.wall_ns = Some(run.record.outcome.wall_ns);
    let facts = run.shape.platform.as_ref().and_then(|platform| case.facts.get(platform));
    found.calls_before = facts.and_then(|facts| facts.total).map(|total| total.calls);
    found.warnings.retain(|warning| warning.kind != WarningKind::Place);
    let lost = run.record.measurement.events_lost;
    let notes = run.record.measurement.notes.iter();
    let place =
        notes.map(|text| Warning { kind: WarningKind::Place, rule: None, text: text.clone() });
    found.warnings.extend(place);
    if lost > 0 {
        let text = format!("{} lost: counts are too low", counted(lost, "event"));
        found.warnings.push(Warning { kind: WarningKind::Place, rule: None, text });
    }
    if let Some(how) = &run.ended {
        found.problem = Some(Problem {
            kind: ProblemKind::Command,
            text: format!("`{}`: {how}", coldtrace::render::command_line(&case.command)),
            hint: Some("if it is to end so, write exit = ... into the case".into()),
            stderr: run.stderr.clone(),
        });
    }
}

fn finish(found: &mut CaseReport, judged: Judged, case: &Case) {
    let unjudged = judged.verdicts.iter().any(|v| v.state == State::Unjudged);
    if unjudged {
        let platform = found.platform.as_deref().unwrap_or("an unknown platform");
        let known: Vec<&str> = case.facts.keys().map(String::as_str).collect();
        let known = match known.len() {
            0 => "none were recorded yet".to_owned(),
            _ => format!("recorded are {}", known.join(", ")),
        };
        found.problem = Some(Problem {
            kind: ProblemKind::Facts,
            text: format!("no facts for {platform}: {known}"),
            hint: Some(format!("record them here: {}", found.accept)),
            stderr: Vec::new(),
        });
    }
    found.verdicts = judged.verdicts;
    found.warnings.extend(judged.warnings);
}

/// `--self-test`.
pub fn self_test(
    args: &Args,
    held: &Held,
    opened: &Opened,
    cases: &[Case],
    output: &mut Output,
) -> Result<End, Failure> {
    let judging = Judging::new(args, held, opened)?;
    let mut out = String::new();
    for case in cases_of(args, cases)? {
        let run = match judging.ran(case, &mut None)? {
            Ok(run) => run,
            Err(problem) => {
                let status = match problem.kind {
                    ProblemKind::Facts => NO_FACTS,
                    ProblemKind::Command => COMMAND,
                };
                return Err(failure(status, format_args!("{}: {}", case.name, problem.text)));
            }
        };
        if let Some(how) = &run.ended {
            return Err(failure(COMMAND, format_args!("{}: {how}", case.name)));
        }
        let missed = missed_by(&opened.baseline, case, &run.shape);
        let (n, all) = (missed.entries.len(), missed.tried);
        let _ =
            writeln!(out, "{}: one call more would not fail at {n} of {all} entries", case.name);
        for entry in &missed.entries {
            let _ = writeln!(out, "  {entry}");
        }
    }
    output.write(&out)?;
    Ok(End::Status(0))
}
