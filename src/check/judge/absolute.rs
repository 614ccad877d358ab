//! Rules that say what is allowed, whatever was recorded.

use std::collections::BTreeSet;

use crate::check::facts::Expected;
use crate::check::families::plain;
use crate::check::report::{Cause, CauseKind, Change, Changed, State, Verdict, WarningKind};
use crate::check::rule::{Access, Calls, Metric, Pattern, Rule};
use crate::check::shape::{Counts, NetUse, PathUse};

use super::{Judge, causes};

impl Judge<'_> {
    /// `metric` with `max`.
    pub(super) fn most(
        &mut self,
        rule: &Rule,
        metric: &Metric,
        max: u64,
        mut v: Verdict,
    ) -> Verdict {
        let now = self.measure(rule, metric);
        if now > max {
            v.state = State::Failed;
            v.headline = format!("{now} {}: more than {max}", metric.word());
            v.causes =
                self.facts.map(|facts| causes::causes(facts, self.shape)).unwrap_or_default();
        } else if now < max {
            let text = format!("{now} {}: max = {max} could be lower", metric.word());
            self.warn(WarningKind::Improved, rule, text);
        }
        v
    }

    /// What a metric is in the run.
    pub(super) fn measure(&self, rule: &Rule, metric: &Metric) -> u64 {
        let errors = |counts: &Counts, wanted: Option<&str>| -> u64 {
            let all = counts.values().flat_map(|count| &count.errors);
            all.filter(|(name, _)| wanted.is_none_or(|w| w == *name)).map(|(_, n)| n).sum()
        };
        let paths = self.shape.paths.values();
        match metric {
            Metric::Calls => self.counts(rule).values().map(|count| count.calls).sum(),
            Metric::Errors => errors(&self.counts(rule), None),
            Metric::Errno(name) => errors(&self.counts(rule), Some(name)),
            Metric::Paths => self.shape.paths.len() as u64,
            Metric::Misses => paths.map(PathUse::missed).sum(),
            Metric::Opens => paths.map(|used| used.opens).sum(),
            Metric::Processes => self.shape.processes,
            Metric::Threads => self.shape.threads,
            Metric::Execs => self.shape.executed.values().map(|executed| executed.times).sum(),
        }
    }

    /// `path`.
    pub(super) fn paths(
        &mut self,
        rule: &Rule,
        (paths, except, access, max): (&[Pattern], &[Pattern], Access, u64),
        mut v: Verdict,
    ) -> Verdict {
        let mut used_exceptions = BTreeSet::new();
        let mut calls = 0u64;
        let mut found = Vec::new();
        for (path, used) in &self.shape.paths {
            let n = accesses(used, access);
            if n == 0 || !self.is_for(rule, &used.by, &used.regions) {
                continue;
            }
            if !paths.iter().any(|pattern| pattern.matches(path)) {
                continue;
            }
            if let Some(exception) = except.iter().find(|pattern| pattern.matches(path)) {
                used_exceptions.insert(exception.text.as_str());
                continue;
            }
            calls = calls.saturating_add(n);
            found.push(causes::path(path, used));
        }
        self.unused_exceptions(rule, except, &used_exceptions);
        if calls > max {
            v.state = State::Failed;
            v.headline = summary(&found, calls, max);
            v.causes = found;
        } else if calls < max {
            let text = format!("{calls} calls: max = {max} could be lower");
            self.warn(WarningKind::Improved, rule, text);
        }
        v
    }

    /// `syscall`.
    pub(super) fn calls(
        &mut self,
        rule: &Rule,
        (calls, families, except, max): (&Calls, &[String], &[Pattern], u64),
        mut v: Verdict,
    ) -> Verdict {
        let all = self.baseline.normalise.families;
        let mut used_exceptions = BTreeSet::new();
        let mut found = Vec::new();
        let mut number = 0u64;
        let by_address = !families.is_empty() || !except.is_empty();
        for (key, used) in &self.shape.network {
            if !calls.contain(&used.call, all)
                || !self.is_for(rule, &used.by, &used.regions)
                || !families.is_empty() && !families.iter().any(|f| used.family.as_ref() == Some(f))
            {
                continue;
            }
            let address = used.address.as_deref().unwrap_or("");
            if let Some(exception) = except.iter().find(|pattern| pattern.matches(address)) {
                used_exceptions.insert(exception.text.as_str());
                continue;
            }
            number = number.saturating_add(used.calls);
            found.push((specific(used), causes::address(key, used)));
        }
        // An address says more than the socket that was made for it.
        found.sort_by_key(|(specific, _)| std::cmp::Reverse(*specific));
        let mut found: Vec<Cause> = found.into_iter().map(|(_, cause)| cause).collect();
        if !by_address {
            number = 0;
            for (name, count) in &self.counts(rule) {
                if !calls.contain(name, all) || count.calls == 0 {
                    continue;
                }
                number = number.saturating_add(count.calls);
                let (before, now) = (Expected::Exact(0), count.calls);
                let (call, errno, program) = (name.clone(), None, None);
                v.changes.push(Change {
                    call,
                    errno,
                    program,
                    region: rule.region.clone(),
                    before,
                    now,
                });
                if !found.iter().any(|cause| cause.what.split(' ').next() == Some(plain(name))) {
                    found.push(self.callers(rule, name, count.calls));
                }
            }
        }
        self.unused_exceptions(rule, except, &used_exceptions);
        if number > max {
            v.state = State::Failed;
            v.headline = summary(&found, number, max);
            v.causes = found;
        } else {
            v.changes.clear();
            if number < max {
                let text = format!("{number} calls: max = {max} could be lower");
                self.warn(WarningKind::Improved, rule, text);
            }
        }
        v
    }

    /// Who makes a call.
    pub(super) fn callers(&self, rule: &Rule, name: &str, calls: u64) -> Cause {
        let names = self.names(rule);
        let makes = |program: &&&String| {
            let counts = self.shape.programs.get(**program);
            counts.and_then(|counts| counts.get(name)).is_some_and(|count| count.calls > 0)
        };
        let by = names.iter().filter(makes).map(|name| (*name).clone()).collect();
        let how = if calls == 1 { String::new() } else { format!("{calls} times") };
        let (kind, change) = (CauseKind::Calls, Changed::Added);
        Cause { change, kind, what: name.to_owned(), how, by }
    }

    /// `exec`.
    pub(super) fn programs(&mut self, rule: &Rule, allowed: &[Pattern], mut v: Verdict) -> Verdict {
        let mut used = BTreeSet::new();
        let names = self.names(rule);
        let mut found = Vec::new();
        for (file, executed) in &self.shape.executed {
            if let Some(pattern) = allowed.iter().find(|pattern| pattern.matches_file(file)) {
                used.insert(pattern.text.as_str());
                continue;
            }
            // What started the command is coldtrace.
            if rule.exe.is_some() && !executed.by.iter().any(|name| names.contains(&name)) {
                continue;
            }
            let how = match executed.times {
                1 => "executed".to_owned(),
                n => format!("executed {n} times"),
            };
            let by = executed.by.iter().cloned().collect();
            let (kind, change) = (CauseKind::Program, Changed::Added);
            found.push(Cause { change, kind, what: file.clone(), how, by });
        }
        self.unused_exceptions(rule, allowed, &used);
        if !found.is_empty() {
            v.state = State::Failed;
            v.headline = summary(&found, found.len() as u64, 0);
            v.causes = found;
        }
        v
    }

    fn unused_exceptions(&mut self, rule: &Rule, all: &[Pattern], used: &BTreeSet<&str>) {
        for pattern in all.iter().filter(|pattern| !used.contains(pattern.text.as_str())) {
            self.warn(WarningKind::Unused, rule, format!("\"{}\" matches nothing", pattern.text));
        }
    }
}

/// Whether it names an address, and not only a family.
fn specific(used: &NetUse) -> bool {
    used.address.is_some()
}

/// Calls of a kind to a path.
fn accesses(used: &PathUse, access: Access) -> u64 {
    let of = |kinds: &[&str]| kinds.iter().filter_map(|kind| used.uses.get(*kind)).sum();
    match access {
        Access::Any => used.calls(),
        Access::Open => of(&["open"]),
        Access::Miss => used.missed(),
        Access::Exec => of(&["exec"]),
        Access::Write => u64::from(used.written),
    }
}

/// The first of what was found, and how many more.
fn summary(found: &[Cause], n: u64, max: u64) -> String {
    let more = match found.len().saturating_sub(1) {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    let bound = if max > 0 { format!(": {n} calls, more than {max}") } else { String::new() };
    let first = found.first().map_or_else(|| format!("{n} calls"), Cause::in_words);
    format!("{first}{more}{bound}")
}
