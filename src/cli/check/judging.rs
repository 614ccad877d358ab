//! Runs cases and judges them.

use std::fmt::Write;
use std::path::Path;

use coldtrace::check::{
    Baseline, Case, CaseReport, Judged, Problem, ProblemKind, REPORT_SCHEMA, Report, Shape, State,
    Verdict, Warning, WarningKind, agree, judge, locate, self_test as missed_by, spare_rules,
};
use coldtrace::record::{Record, read};
use coldtrace::render::{command_line, counted};
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
    /// What is judged instead of a run.
    saved: Option<Record>,
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
    for case in cases_of(judging.saved.as_ref(), cases)? {
        report.cases.push(judging.case(case)?);
    }
    spare_rules(&mut report, &opened.baseline);
    locate(&mut report, &opened.text);
    Ok((report, judging.shapes))
}

/// Of a saved run one case only can be judged: that of its name and command; else
/// of its command, or of its name.
fn cases_of<'a>(saved: Option<&Record>, cases: &'a [Case]) -> Result<&'a [Case], Failure> {
    let Some(Record { run, .. }) = saved.filter(|_| cases.len() > 1) else { return Ok(cases) };
    let name = |case: &Case| case.name == run.label;
    let command = |case: &Case| case.command == run.argv;
    let only = |of: &dyn Fn(&Case) -> bool| {
        let mut found = cases.iter().enumerate().filter(|(_, case)| of(case)).map(|(i, _)| i);
        found.next().filter(|_| found.next().is_none()).and_then(|i| cases.get(i..=i))
    };
    let found = only(&|case| name(case) && command(case)).or_else(|| only(&command));
    found.or_else(|| only(&name)).ok_or_else(|| {
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        failure(USAGE, format_args!("-r needs --case NAME: one of {}", names.join(", ")))
    })
}

impl<'a> Judging<'a> {
    fn new(args: &'a Args, held: &'a Held, opened: &'a Opened) -> Result<Self, Failure> {
        let saved = args.saved.as_ref().map(|run| saved(run, &args.runs)).transpose()?;
        let checker = super::checker(opened, args)?;
        Ok(Self { args, held, opened, checker, shapes: Vec::new(), saved })
    }

    /// Runs a case, or takes the saved run; says what kept it from being run.
    fn ran(
        &self,
        case: &Case,
        kept: &mut Option<String>,
    ) -> Result<Result<CaseRun, Problem>, Failure> {
        let Some(saved) = &self.saved else {
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
                    let hint = Some(error.hint().into());
                    Ok(Err(Problem { kind: ProblemKind::Command, text, hint, stderr }))
                }
            };
        };
        // A label is a person's word; another name is the command's.
        if saved.run.argv != case.command && saved.run.label != case.name {
            let (ran, wanted) = (command_line(&saved.run.argv), command_line(&case.command));
            let what = format!("the run is of `{ran}`, and case {} of `{wanted}`", case.name);
            return Err(failure(USAGE, what));
        }
        let saved = self.checker.judge_saved(saved.clone(), &case.exit);
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

    /// Judges a run. What a first run leaves behind is no change of the program, and
    /// recording does not use it either: what differs must differ again, the same way.
    fn confirmed(
        &mut self,
        case: &Case,
        run: &CaseRun,
        found: &mut CaseReport,
    ) -> Result<Judged, Failure> {
        let baseline = &self.opened.baseline;
        let facts = run.shape.platform.as_ref().and_then(|platform| case.facts.get(platform));
        let first = judge(baseline, case, &run.shape);
        let mut forbidden = forbidden(baseline, &first);
        let mut judged = first.clone();
        // Of threads that wait for each other: once more.
        let most = if run.shape.threads > run.shape.processes { 3 } else { 2 };
        let mut agreed = run.shape.clone();
        self.shapes.push(run.shape.clone());
        let mut wrote = Vec::new();
        while self.args.saved.is_none()
            && found.runs < most
            && judged
                .verdicts
                .iter()
                .any(|v| v.state == State::Failed && !is_forbidden(baseline, v))
        {
            let again = match self.ran(case, &mut found.record)? {
                Ok(again) => again,
                Err(problem) => {
                    found.problem = Some(problem);
                    break;
                }
            };
            describe(case, &again, found);
            if found.problem.is_some() {
                break;
            }
            if found.runs == 2 {
                wrote = wrote_first(run, &again).into_iter().map(str::to_owned).collect();
            }
            agreed = agree(&agreed, &again.shape, facts);
            forbidden.extend(self::forbidden(baseline, &judge(baseline, case, &again.shape)));
            judged = judge(baseline, case, &agreed);
            self.shapes.push(again.shape);
        }
        if found.problem.is_some() {
            // It was not seen twice.
            let open = |v: &&mut Verdict| v.state == State::Failed;
            judged.verdicts.iter_mut().filter(open).for_each(|v| v.state = State::Unjudged);
        }
        for verdict in &mut judged.verdicts {
            if let Some(done) = forbidden.iter().find(|done| done.rule == verdict.rule) {
                verdict.clone_from(done);
            }
        }
        judged.warnings.extend(once(&first, &judged, found.runs, &wrote));
        Ok(judged)
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
        let judged = self.confirmed(case, &run, &mut found)?;
        finish(&mut found, judged, case);
        // What no facts hold, no new facts change.
        let relative = |verdict: &&Verdict| {
            let rule = baseline.rules.iter().find(|rule| rule.id == verdict.rule);
            rule.is_some_and(|rule| !rule.demand.is_absolute())
        };
        if !found.verdicts.iter().filter(relative).any(|v| v.state != State::Passed) {
            found.accept.clear();
        }
        Ok(found)
    }
}

/// The record of a run of which all calls were traced.
fn saved(run: &str, runs: &Path) -> Result<Record, Failure> {
    let saved = read(run, runs).map_err(|e| failure(USAGE, e))?;
    let whole = saved.processes.is_some() && saved.files.is_some() && saved.network.is_some();
    if saved.measurement.trace.is_some() || !whole {
        let what = "was taken without tracing, of some calls only, or by an older coldtrace";
        return Err(failure(USAGE, format_args!("{run} {what}")));
    }
    Ok(saved)
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

/// Whether the rule says that something is never to be done: once is enough.
fn is_forbidden(baseline: &Baseline, verdict: &Verdict) -> bool {
    let rule = baseline.rules.iter().find(|rule| rule.id == verdict.rule);
    rule.is_some_and(|rule| rule.demand.is_forbidding())
}

/// What was done that is never to be done.
fn forbidden(baseline: &Baseline, judged: &Judged) -> Vec<Verdict> {
    let failed = judged.verdicts.iter().filter(|verdict| verdict.state == State::Failed);
    failed.filter(|verdict| is_forbidden(baseline, verdict)).cloned().collect()
}

/// What failed in the first run and not in all.
fn once(first: &Judged, last: &Judged, runs: u32, wrote: &[String]) -> Vec<Warning> {
    let why = match wrote {
        [] => String::new(),
        [path] => format!("; the first wrote {path}"),
        [path, more @ ..] => format!("; the first wrote {path} and {} more", more.len()),
    };
    let held =
        |rule: &String| last.verdicts.iter().any(|v| v.rule == *rule && v.state == State::Passed);
    let failed = first.verdicts.iter().filter(|v| v.state == State::Failed && held(&v.rule));
    let warning = |v: &Verdict| Warning {
        kind: WarningKind::Once,
        rule: Some(v.rule.clone()),
        text: format!("failed in one of {runs} runs and not in all{why}: {}", v.headline),
    };
    failed.map(warning).collect()
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
        found.problem = Some(Problem {
            kind: ProblemKind::Command,
            text: format!(
                "{} of the tracer were lost: its counts are too low",
                counted(lost, "event")
            ),
            hint: None,
            stderr: Vec::new(),
        });
    }
    if let Some(how) = &run.ended {
        found.problem = Some(Problem {
            kind: ProblemKind::Command,
            text: format!("`{}`: {how}", command_line(&case.command)),
            hint: Some("if it is to end so, write exit = ... into the case".into()),
            stderr: run.stderr.clone(),
        });
    }
}

fn finish(found: &mut CaseReport, judged: Judged, case: &Case) {
    let unjudged = judged.verdicts.iter().any(|v| v.state == State::Unjudged);
    if unjudged && found.problem.is_none() {
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
    for case in cases_of(judging.saved.as_ref(), cases)? {
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
