//! What explains a difference: programs, addresses, paths; the most telling first.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::facts::{Expected, Facts, PathFact};
use crate::check::families::plain;
use crate::check::report::{Cause, CauseKind, Change, Changed};
use crate::check::shape::{NetUse, PathUse, Shape, base_name};
use crate::observe::Paths;

use super::compare::compare;

/// So many in one directory are said together.
const CROWD: usize = 4;

/// What a run did otherwise than the recorded ones.
pub fn causes(facts: &Facts, shape: &Shape) -> Vec<Cause> {
    let mut causes = programs(facts, shape);
    causes.extend(processes(facts, shape));
    causes.extend(addresses(facts, shape));
    causes.extend(threads(facts, shape));
    let mut paths = paths(facts, shape);
    // That it was executed has been said.
    paths.retain(|cause| {
        let only = shape.paths.get(&cause.what).is_some_and(|p| p.uses.keys().eq(["exec"]));
        !only || !causes.iter().any(|c| c.kind == CauseKind::Program && c.what == cause.what)
    });
    // A search that ended elsewhere says less than what it found.
    let opened: BTreeSet<String> = paths
        .iter()
        .filter(|c| c.kind != CauseKind::Missed && c.change == Changed::Added)
        .map(|c| directory(&c.what).to_owned())
        .collect();
    let searched = |cause: &Cause| {
        let directory = directory(&cause.what);
        let known = facts.paths.contains_key(directory.trim_end_matches('/'));
        !opened.is_empty() && (known || opened.contains(directory))
    };
    let (sought, told): (Vec<Cause>, Vec<Cause>) =
        paths.into_iter().partition(|cause| cause.kind == CauseKind::Missed && searched(cause));
    causes.extend(crowds(told));
    causes.sort_by_key(|cause| (cause.kind, cause.change));
    causes.extend(crowds(sought));
    causes
}

/// Whether something is not as recorded that facts hold: new paths are none, since
/// their names may be made up.
pub fn is_other(cause: &Cause) -> bool {
    match cause.kind {
        CauseKind::Program | CauseKind::Process | CauseKind::Thread | CauseKind::Address => true,
        CauseKind::Library | CauseKind::Missed | CauseKind::Path => cause.change != Changed::Added,
        CauseKind::Calls | CauseKind::Many => false,
    }
}

/// Calls that paths cannot explain come before what explains little.
pub fn rank(causes: &mut Vec<Cause>, changes: &[Change]) {
    let all: u64 =
        changes.iter().filter(|c| c.errno.is_none()).map(|c| c.delta().unsigned_abs()).sum();
    let nameless = |change: &&Change| {
        let kind = crate::syscall::Abi::ALL.into_iter().find_map(|abi| {
            crate::syscall::Sys::from_name(abi, plain(&change.call))?.info().map(|info| info.kind)
        });
        change.errno.is_none() && !kind.is_some_and(|kind| Paths::kinds().any(|k| k == kind))
    };
    let Some(largest) = changes.iter().find(nameless) else { return };
    if largest.delta().unsigned_abs().saturating_mul(3) < all {
        return;
    }
    let is_it = |c: &Cause| c.kind == CauseKind::Calls && c.what == largest.call;
    if let Some(at) = causes.iter().position(is_it) {
        let cause = causes.remove(at);
        let first =
            causes.iter().position(|c| c.kind >= CauseKind::Library).unwrap_or(causes.len());
        causes.insert(first, Cause { kind: CauseKind::Many, ..cause });
    }
}

/// A thread more or less.
fn threads(facts: &Facts, shape: &Shape) -> Option<Cause> {
    let total = facts.total?;
    let change = changed(total.threads, shape.threads)?;
    // One of each process: these are said already.
    let (before, processes) =
        (total.threads.nearest(shape.threads), total.processes.nearest(shape.processes));
    if before.abs_diff(shape.threads) == processes.abs_diff(shape.processes) {
        return None;
    }
    let how = format!("{} -> {}", total.threads, shape.threads);
    let (kind, what) = (CauseKind::Thread, "threads".to_owned());
    Some(Cause { change, kind, what, how, by: Vec::new() })
}

/// All before a path's last part.
fn directory(what: &str) -> &str {
    what.strip_suffix(base_name(what)).unwrap_or("")
}

fn listed(names: &BTreeSet<String>) -> Vec<String> {
    names.iter().cloned().collect()
}

fn programs(facts: &Facts, shape: &Shape) -> Vec<Cause> {
    let files: BTreeSet<&String> = facts.executed.keys().chain(shape.executed.keys()).collect();
    let cause = |file: &String| {
        // Recorded without paths: nothing is known of programs either.
        let before = facts.executed.get(file).copied().unwrap_or(Expected::Exact(0));
        let executed = shape.executed.get(file);
        let now = executed.map_or(0, |executed| executed.times);
        let change = changed(before, now)?;
        let how = match change {
            Changed::Added if now == 1 => "executed".to_owned(),
            Changed::Added => format!("executed {now} times"),
            Changed::Removed => "not executed any more".to_owned(),
            Changed::Changed => format!("executed {now} times, was {before}"),
        };
        let by = executed.map(|executed| listed(&executed.by)).unwrap_or_default();
        Some(Cause { change, kind: CauseKind::Program, what: file.clone(), how, by })
    };
    if facts.executed.is_empty() {
        return Vec::new();
    }
    files.into_iter().filter_map(cause).collect()
}

/// What a number says that is not as expected.
fn changed(before: Expected, now: u64) -> Option<Changed> {
    if before.holds(now) {
        return None;
    }
    Some(match (before, now) {
        (Expected::Exact(0), _) => Changed::Added,
        (_, 0) => Changed::Removed,
        _ => Changed::Changed,
    })
}

/// Processes that executed nothing: nobody else speaks of them.
fn processes(facts: &Facts, shape: &Shape) -> Option<Cause> {
    let before = facts.total?.processes;
    let change = changed(before, shape.processes)?;
    let executed = |times: u64, e: &crate::check::shape::Executed| times.saturating_add(e.times);
    let now = shape.executed.values().fold(0, executed);
    let then = facts.executed.values().try_fold(0u64, |sum, n| Some(sum.saturating_add(n.most()?)));
    // As many more programs were executed: these are said already.
    if then.is_some_and(|then| {
        then.abs_diff(now) >= before.nearest(shape.processes).abs_diff(shape.processes)
    }) {
        return None;
    }
    let forks: Vec<String> = shape.forks.keys().cloned().collect();
    let more = shape.processes > before.nearest(shape.processes);
    let what = if more { "process that executes nothing" } else { "process" };
    Some(Cause {
        change: if more { Changed::Added } else { change },
        kind: CauseKind::Process,
        what: what.into(),
        how: format!("({before} -> {})", shape.processes),
        by: if more { forks } else { Vec::new() },
    })
}

fn addresses(facts: &Facts, shape: &Shape) -> Vec<Cause> {
    let keys: BTreeSet<&String> = facts.network.keys().chain(shape.network.keys()).collect();
    let cause = |key: &String| {
        let before = facts.network.get(key).copied().unwrap_or(Expected::Exact(0));
        let used = shape.network.get(key);
        let now = used.map_or(0, |used| used.calls);
        let change = changed(before, now)?;
        let how = match change {
            Changed::Added if now == 1 => String::new(),
            Changed::Added => format!("{now} times"),
            Changed::Removed => "not any more".to_owned(),
            Changed::Changed => format!("{now} times, was {before}"),
        };
        let by = used.map(|used| listed(&used.by)).unwrap_or_default();
        Some(Cause { change, kind: CauseKind::Address, what: key.clone(), how, by })
    };
    // Recorded without paths: see above.
    if facts.executed.is_empty() {
        return Vec::new();
    }
    keys.into_iter().filter_map(cause).collect()
}

/// Where a socket or connection goes, as a cause.
pub fn address(key: &str, used: &NetUse) -> Cause {
    let how = if used.calls == 1 { String::new() } else { format!("{} times", used.calls) };
    let (kind, change) = (CauseKind::Address, Changed::Added);
    Cause { change, kind, what: key.to_owned(), how, by: listed(&used.by) }
}

/// A path that was used, as a cause.
pub fn path(path: &str, used: &PathUse) -> Cause {
    let kind = match used {
        _ if used.is_only_missed() => CauseKind::Missed,
        _ if used.library => CauseKind::Library,
        _ => CauseKind::Path,
    };
    let (what, how) = (path.to_owned(), used.words());
    Cause { change: Changed::Added, kind, what, how, by: listed(&used.by) }
}

fn paths(facts: &Facts, shape: &Shape) -> Vec<Cause> {
    if facts.paths.is_empty() {
        return Vec::new();
    }
    let mut causes = Vec::new();
    for (name, used) in &shape.paths {
        match facts.paths.get(name) {
            None => causes.push(path(name, used)),
            Some(PathFact::Uses(before)) if *before != used.uses => {
                let cause = path(name, used);
                let how = difference(before, &used.uses);
                causes.push(Cause { change: Changed::Changed, how, ..cause });
            }
            Some(_) => {}
        }
    }
    for (name, before) in &facts.paths {
        if matches!(before, PathFact::Uses(_)) && !shape.paths.contains_key(name) {
            let kind = if is_only_missed(before) { CauseKind::Missed } else { CauseKind::Path };
            causes.push(Cause {
                change: Changed::Removed,
                kind,
                what: name.clone(),
                how: "not used any more".into(),
                by: Vec::new(),
            });
        }
    }
    causes
}

fn is_only_missed(fact: &PathFact) -> bool {
    let PathFact::Uses(uses) = fact else { return false };
    let missed = fact.missed().unwrap_or(0);
    let calls = uses.iter().filter(|(kind, _)| *kind != "missed");
    let calls = calls.fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
    missed > 0 && missed >= calls
}

/// `stat 2, was 1; ENOENT 1, was 0`.
fn difference(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> String {
    let kinds: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let word = |kind: &String| {
        let of = |uses: &BTreeMap<String, u64>| uses.get(kind).copied().unwrap_or(0);
        let (before, now) = (of(before), of(now));
        let name = if kind == "missed" { "ENOENT" } else { kind.as_str() };
        (before != now).then(|| format!("{now} {name}, was {before}"))
    };
    kinds.into_iter().filter_map(word).collect::<Vec<_>>().join("; ")
}

/// Says those of one kind in one directory together: a few by name, many by number.
pub fn crowds(causes: Vec<Cause>) -> Vec<Cause> {
    type Key = (CauseKind, Changed, String);
    let mut groups: BTreeMap<Key, Vec<Cause>> = BTreeMap::new();
    for cause in causes {
        let key = (cause.kind, cause.change, directory(&cause.what).to_owned());
        groups.entry(key).or_default().push(cause);
    }
    let fold = |((kind, change, directory), group): (Key, Vec<Cause>)| {
        if group.len() < 2 || directory.is_empty() {
            return group;
        }
        let by: BTreeSet<String> =
            group.iter().flat_map(|cause| cause.by.iter().cloned()).collect();
        let by = listed(&by);
        let names: Vec<&str> = group.iter().map(|cause| base_name(&cause.what)).collect();
        let same = group.iter().all(|cause| cause.how == group[0].how);
        let state = match (kind, change) {
            (_, Changed::Removed) => "not used any more",
            (CauseKind::Missed, _) => "ENOENT",
            (_, Changed::Added) => "new",
            (_, Changed::Changed) => "used more or less often",
        };
        match braced(&names) {
            Some(names) => {
                let how = match change {
                    Changed::Removed => state.to_owned(),
                    _ if same => format!("{} each", group[0].how),
                    _ => state.to_owned(),
                };
                vec![Cause { change, kind, what: format!("{directory}{names}"), how, by }]
            }
            None if group.len() < CROWD => group,
            None => {
                let how = format!("{} paths, {state}", group.len());
                vec![Cause { change, kind, what: format!("{directory}*"), how, by }]
            }
        }
    };
    let mut folded: Vec<Cause> = groups.into_iter().flat_map(fold).collect();
    folded.sort_by(|a, b| {
        (a.kind, a.change).cmp(&(b.kind, b.change)).then_with(|| a.what.cmp(&b.what))
    });
    folded
}

/// Names as a shell would make them of less: `{socket,selectors}.pyc`; `None` where
/// that is too long.
fn braced(names: &[&str]) -> Option<String> {
    const LONGEST: usize = 44;
    let first = names.first()?;
    // What ends a name says which kind it is, from its first dot on.
    let suffix = first.find('.').filter(|&at| at > 0).map_or("", |at| &first[at..]);
    let suffix = if names.iter().all(|name| name.ends_with(suffix)) { suffix } else { "" };
    let stems: Vec<&str> =
        names.iter().map(|name| name.strip_suffix(suffix).unwrap_or(name)).collect();
    let text = format!("{{{}}}{suffix}", stems.join(","));
    (text.len() <= LONGEST + suffix.len()).then_some(text)
}

/// Calls that changed, by program: where nothing that they name explains them.
pub fn by_program(facts: &Facts, shape: &Shape, changes: &[Change]) -> Vec<Cause> {
    let cause = |change: &Change, program: &str| Cause {
        change: match (change.before, change.now) {
            (Expected::Exact(0), _) => Changed::Added,
            (_, 0) => Changed::Removed,
            _ => Changed::Changed,
        },
        kind: CauseKind::Calls,
        what: match &change.errno {
            Some(errno) => format!("{} {errno}", change.call),
            None => change.call.clone(),
        },
        how: format!("{} -> {} ({:+})", change.before, change.now, change.delta()),
        by: vec![program.to_owned()],
    };
    let changes: Vec<Change> = changes.iter().filter(|c| c.region.is_none()).cloned().collect();
    if facts.programs.is_empty() {
        let Some(program) = shape.programs.keys().next().filter(|_| shape.programs.len() == 1)
        else {
            return Vec::new();
        };
        return changes.iter().map(|change| cause(change, program)).collect();
    }
    let none = BTreeMap::new();
    let mut causes = Vec::new();
    for (program, counts) in &shape.programs {
        let before = facts.programs.get(program);
        for change in compare(before.unwrap_or(&BTreeMap::new()), counts) {
            if changes.iter().any(|c| c.call == change.call && c.errno == change.errno) {
                causes.push((change.delta().unsigned_abs(), cause(&change, program)));
            }
        }
    }
    for program in facts.programs.keys().filter(|program| !shape.programs.contains_key(*program)) {
        for change in compare(&facts.programs[program], &none) {
            causes.push((change.delta().unsigned_abs(), cause(&change, program)));
        }
    }
    causes.sort_by_key(|(delta, _)| std::cmp::Reverse(*delta));
    causes.into_iter().map(|(_, cause)| cause).collect()
}
