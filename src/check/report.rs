//! What a check found.

use serde::Serialize;

use super::baseline::Baseline;
use super::facts::Expected;
use super::rule::Level;

/// The schema of the JSON.
pub const REPORT_SCHEMA: &str = "coldtrace.check/1";

/// All cases of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Always [`REPORT_SCHEMA`].
    pub schema: &'static str,
    /// The file.
    pub baseline: String,
    /// Whether warnings about facts and rules fail too.
    pub strict: bool,
    /// In the order of the file.
    pub cases: Vec<CaseReport>,
}

/// One case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaseReport {
    /// Its name.
    pub case: String,
    /// Its command.
    pub command: Vec<String>,
    /// The line of its `[[case]]` in the baseline, from 1.
    pub line: Option<usize>,
    /// `x86_64 linux glibc`; null where nothing ran, or it could not be told.
    pub platform: Option<String>,
    /// Calls that were recorded; null without facts.
    pub calls_before: Option<Expected>,
    /// Calls of the judged run; null where nothing ran.
    pub calls: Option<u64>,
    /// Wall time of the judged run.
    pub wall_ns: Option<u64>,
    /// Runs that it took: more than one where a failure was looked at again.
    pub runs: u32,
    /// The run directory of the judged run, where it was kept.
    pub record: Option<String>,
    /// By rule: those that failed first, causes before counts.
    pub verdicts: Vec<Verdict>,
    /// What is worth a look and fails only with `--strict`.
    pub warnings: Vec<Warning>,
    /// Why it could not be judged, or not by all of its rules.
    pub problem: Option<Problem>,
    /// The command line that records it as it is now.
    pub accept: String,
}

/// What became of a rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The rule's id.
    pub rule: String,
    /// The line of its `[[rule]]` in the baseline, from 1.
    pub line: Option<usize>,
    /// Whether its failure fails the check.
    pub level: Level,
    /// Whether it held.
    pub state: State,
    /// The rule's own reason.
    pub reason: Option<String>,
    /// In one line, what is wrong; empty where nothing is.
    pub headline: String,
    /// What explains it, the most telling first.
    pub causes: Vec<Cause>,
    /// Numbers that are not as expected.
    pub changes: Vec<Change>,
}

/// Whether a rule held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It held.
    Passed,
    /// It did not.
    Failed,
    /// It needs facts, and there are none for this platform.
    Unjudged,
}

/// Something that the run did and the recorded ones did not, or the reverse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// What became of it.
    pub change: Changed,
    /// What it is.
    pub kind: CauseKind,
    /// The path, program, or address, as a baseline has it.
    pub what: String,
    /// What was done with it: `1 stat, ENOENT`.
    pub how: String,
    /// Programs that did it.
    pub by: Vec<String>,
}

/// What became of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Changed {
    /// It was not there before.
    Added,
    /// It is not there any more.
    Removed,
    /// Its numbers are others.
    Changed,
}

impl Changed {
    /// `+`, `-` or `~`.
    pub fn sign(self) -> char {
        match self {
            Self::Added => '+',
            Self::Removed => '-',
            Self::Changed => '~',
        }
    }
}

/// What a cause is; the most telling first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CauseKind {
    /// A program that was executed.
    Program,
    /// A process that executed nothing.
    Process,
    /// Threads.
    Thread,
    /// An address, or a socket.
    Address,
    /// Calls that name nothing, and are most of the difference.
    Many,
    /// A file that was mapped executable.
    Library,
    /// A path that was only missed.
    Missed,
    /// Another path.
    Path,
    /// Calls that name nothing, by program.
    Calls,
}

/// A number that is not as expected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The call, or its family where these are compared.
    pub call: String,
    /// Failures of it by this errno; null for all calls of it.
    pub errno: Option<String>,
    /// In this program only.
    pub program: Option<String>,
    /// In this region only.
    pub region: Option<String>,
    /// As recorded.
    pub before: Expected,
    /// As it is.
    pub now: u64,
}

impl Change {
    /// How many more; negative where they are fewer.
    pub fn delta(&self) -> i64 {
        let before = self.before.nearest(self.now);
        i64::try_from(self.now)
            .unwrap_or(i64::MAX)
            .saturating_sub(i64::try_from(before).unwrap_or(i64::MAX))
    }
}

/// Something that is worth a look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// What it is about.
    pub kind: WarningKind,
    /// The rule that it is about.
    pub rule: Option<String>,
    /// In one line.
    pub text: String,
}

/// What a warning is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WarningKind {
    /// Something in the baseline that nothing uses any more.
    Unused,
    /// Less than a rule allows, so that it could allow less.
    Improved,
    /// A rule that failed in one run and not in the next. Never a failure.
    Once,
    /// The place is another than the recorded runs had. Never a failure.
    Place,
}

/// Why a case could not be judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What kind.
    pub kind: ProblemKind,
    /// In one line, what.
    pub text: String,
    /// In one line, what to do about it.
    pub hint: Option<String>,
    /// The last lines of the command's standard error.
    pub stderr: Vec<String>,
}

/// Why a case could not be judged; each has an exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ProblemKind {
    /// There are no facts for this platform or this kind of place: 4.
    Facts,
    /// The command could not be run, or did not end as stated: 5.
    Command,
}

impl Verdict {
    /// Whether it fails the check.
    pub fn fails(&self) -> bool {
        self.state == State::Failed && self.level == Level::Error
    }
}

impl CaseReport {
    /// Whether a rule failed, or with `strict` a warning is one.
    pub fn fails(&self, strict: bool) -> bool {
        // What did not fail again, and the place, are no property of the program.
        let counts =
            |warning: &Warning| matches!(warning.kind, WarningKind::Unused | WarningKind::Improved);
        self.verdicts.iter().any(Verdict::fails)
            || strict
                && (self.verdicts.iter().any(|v| v.state == State::Failed)
                    || self.warnings.iter().any(counts))
    }
}

impl Report {
    /// The exit status: 1 a rule failed; else 5 a command did not end as stated;
    /// else 4 facts are missing; else 0. Nothing else is ever 1.
    pub fn status(&self) -> u8 {
        let problem =
            |kind| self.cases.iter().any(|c| c.problem.as_ref().is_some_and(|p| p.kind == kind));
        if self.cases.iter().any(|case| case.fails(self.strict)) {
            1
        } else if problem(ProblemKind::Command) {
            5
        } else if problem(ProblemKind::Facts) {
            4
        } else {
            0
        }
    }
}

/// Takes out the warnings about a rule that another case makes wrong: that one uses
/// the exception, or reaches what the rule allows. What is compared with a case's own
/// facts is a matter of that case.
pub fn spare_rules(report: &mut Report, baseline: &Baseline) {
    let absolute = |rule: &str| {
        let rule = baseline.rules.iter().find(|known| known.id == rule);
        rule.is_some_and(|rule| rule.demand.is_absolute())
    };
    let same = |a: &Warning, b: &Warning| {
        a.kind == b.kind
            && a.rule == b.rule
            && match a.kind {
                WarningKind::Unused => a.text == b.text,
                // How much lower is each case's own.
                WarningKind::Improved => a.rule.as_deref().is_some_and(absolute),
                _ => false,
            }
    };
    let spared = |case: &CaseReport, warning: &Warning| {
        let Some(rule) = &warning.rule else { return false };
        if !same(warning, warning) {
            return false;
        }
        let judged = |other: &&CaseReport| {
            let verdict = other.verdicts.iter().find(|verdict| verdict.rule == *rule);
            verdict.is_some_and(|verdict| verdict.state != State::Unjudged)
        };
        let others = report.cases.iter().filter(|other| other.case != case.case).filter(judged);
        others.into_iter().any(|other| !other.warnings.iter().any(|w| same(w, warning)))
    };
    let kept: Vec<Vec<Warning>> = report
        .cases
        .iter()
        .map(|case| case.warnings.iter().filter(|w| !spared(case, w)).cloned().collect())
        .collect();
    for (case, warnings) in report.cases.iter_mut().zip(kept) {
        case.warnings = warnings;
    }
}

impl Cause {
    /// In one line: `connect 127.0.0.1:8125/udp by python3`.
    pub fn in_words(&self) -> String {
        let mut text = self.what.clone();
        if !self.how.is_empty() {
            // A call or an address is followed by what became of it, a path by a colon.
            let colon =
                matches!(self.kind, CauseKind::Missed | CauseKind::Path | CauseKind::Library);
            text.push_str(if colon { ": " } else { " " });
            text.push_str(&self.how);
        }
        if !self.by.is_empty() {
            text.push_str(" by ");
            text.push_str(&self.by.join(", "));
        }
        text
    }
}
