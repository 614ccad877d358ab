//! Facts of several runs of the same thing: what all of them have is exact, and
//! no bound is made up for the rest.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{CallFact, CallFacts, Expected, Facts, PathFact, Recorded, Totals};
use super::shape::{Count, Counts, Shape};

/// What a number was in several runs, where it varied, by what it is called:
/// `futex`, `openat EAGAIN`, `program sh: read`, `executed {cwd}/app`.
pub type Seen = BTreeMap<String, (u64, u64)>;

/// How often threads wait for each other, and how many signals come before the
/// first is taken (two SIGCHLD are one), is not the program's choice.
const WAITING: [&str; 5] = ["futex", "futex_time64", "rt_sigreturn", "sched_yield", "sigreturn"];

/// Facts of these runs; `paths` says whether those are kept. Where calls vary their
/// errors are there all the same: a person may have named them.
pub fn learn(runs: &[Shape], paths: bool) -> (Facts, Seen) {
    let mut seen = Seen::new();
    let every: Vec<&Counts> = runs.iter().map(|run| &run.calls).collect();
    let mut calls = of_calls(&every, "", &mut seen);
    let first = runs.first();
    let recorded = Recorded {
        kernel: first.and_then(|run| run.kernel.clone()),
        libc: first.and_then(|run| run.libc.clone()),
        runs: runs.len() as u32,
    };
    let contended = runs.iter().any(|run| run.threads > 1);
    let unheld = |facts: &mut CallFacts| {
        for name in WAITING.iter().filter(|_| contended) {
            facts.entry((*name).to_owned()).and_modify(|fact| *fact = CallFact::VARIES);
        }
    };
    unheld(&mut calls);
    let programs: BTreeSet<&String> = runs.iter().flat_map(|run| run.programs.keys()).collect();
    let mut facts = Facts { recorded, total: Some(totals(runs)), calls, ..Facts::default() };
    let none = Counts::new();
    if programs.len() > 1 {
        for program in programs {
            let each: Vec<&Counts> =
                runs.iter().map(|run| run.programs.get(program).unwrap_or(&none)).collect();
            let mut calls = of_calls(&each, &format!("program {program}: "), &mut seen);
            unheld(&mut calls);
            facts.programs.insert(program.clone(), calls);
        }
    }
    let regions: BTreeSet<&String> = runs.iter().flat_map(|run| run.regions.keys()).collect();
    for region in regions {
        let each: Vec<Counts> = runs.iter().map(|run| run.region(region)).collect();
        let each: Vec<&Counts> = each.iter().collect();
        let mut calls = of_calls(&each, &format!("region {region}: "), &mut seen);
        unheld(&mut calls);
        facts.regions.insert(region.clone(), calls);
    }
    if paths {
        facts.paths = of_paths(runs);
        let times = |run: &Shape, file: &String| run.executed.get(file).map_or(0, |e| e.times);
        facts.executed = each(runs, |run| run.executed.keys(), times, ("executed", &mut seen));
        let calls = |run: &Shape, key: &String| run.network.get(key).map_or(0, |n| n.calls);
        facts.network = each(runs, |run| run.network.keys(), calls, ("network", &mut seen));
    }
    (facts, seen)
}

/// What is expected of each of the keys of all runs.
fn each<'a, K: Iterator<Item = &'a String>>(
    runs: &'a [Shape],
    keys: impl Fn(&'a Shape) -> K,
    times: impl Fn(&Shape, &String) -> u64,
    (word, seen): (&str, &mut Seen),
) -> BTreeMap<String, Expected> {
    let all: BTreeSet<&String> = runs.iter().flat_map(keys).collect();
    let mut expected = BTreeMap::new();
    for key in all {
        let numbers: Vec<u64> = runs.iter().map(|run| times(run, key)).collect();
        expected.insert(key.clone(), of_numbers(&numbers, format!("{word} {key}"), seen));
    }
    expected
}

fn of_calls(runs: &[&Counts], place: &str, seen: &mut Seen) -> CallFacts {
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.keys()).collect();
    let none = Count::default();
    let mut facts = CallFacts::new();
    for name in names {
        let counts: Vec<&Count> = runs.iter().map(|run| run.get(name).unwrap_or(&none)).collect();
        let numbers: Vec<u64> = counts.iter().map(|count| count.calls).collect();
        let called = format!("{place}{name}");
        let errors = errors(&counts, &called, seen);
        let calls = of_numbers(&numbers, called, seen);
        facts.insert(name.clone(), CallFact { calls, errors });
    }
    facts
}

fn errors(counts: &[&Count], call: &str, seen: &mut Seen) -> BTreeMap<String, Expected> {
    let names: BTreeSet<&String> = counts.iter().flat_map(|count| count.errors.keys()).collect();
    let mut errors = BTreeMap::new();
    for name in names {
        let times = |count: &&Count| count.errors.get(name).copied().unwrap_or(0);
        let numbers: Vec<u64> = counts.iter().map(times).collect();
        errors.insert(name.clone(), of_numbers(&numbers, format!("{call} {name}"), seen));
    }
    errors
}

/// What is expected of a number; where it varied, that is noted by its name.
fn of_numbers(numbers: &[u64], name: String, seen: &mut Seen) -> Expected {
    let expected = Expected::of(numbers);
    if expected == Expected::Varies {
        seen.insert(name, ends(numbers));
    }
    expected
}

/// Smallest and largest.
fn ends(numbers: &[u64]) -> (u64, u64) {
    (numbers.iter().copied().min().unwrap_or(0), numbers.iter().copied().max().unwrap_or(0))
}

fn totals(runs: &[Shape]) -> Totals {
    let of = |field: fn(&Shape) -> u64| {
        let numbers: Vec<u64> = runs.iter().map(field).collect();
        match ends(&numbers) {
            (least, most) if least == most => Expected::Exact(most),
            (least, most) => Expected::Range(least, most),
        }
    };
    Totals {
        calls: of(Shape::call_count),
        errors: of(Shape::error_count),
        processes: of(|run| run.processes),
        threads: of(|run| run.threads),
    }
}

/// Paths of all runs. Those that only some of them used have made-up names, or
/// depend on the moment: what could be said of them would be wrong the next time.
fn of_paths(runs: &[Shape]) -> BTreeMap<String, PathFact> {
    let Some((first, rest)) = runs.split_first() else { return BTreeMap::new() };
    let mut facts = BTreeMap::new();
    for (path, row) in &first.paths {
        let others: Option<Vec<_>> = rest.iter().map(|run| run.paths.get(path)).collect();
        let Some(others) = others else { continue };
        let same = others.iter().all(|other| other.uses == row.uses);
        let fact = if same { PathFact::Uses(row.uses.clone()) } else { PathFact::VARIES };
        facts.insert(path.clone(), fact);
    }
    facts
}

/// Paths that not all runs used.
pub fn passing(runs: &[Shape]) -> BTreeSet<String> {
    let all = runs.iter().flat_map(|run| run.paths.keys());
    let everywhere = |path: &&String| runs.iter().all(|run| run.paths.contains_key(*path));
    all.filter(|path| !everywhere(path)).cloned().collect()
}
