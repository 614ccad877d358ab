//! What several runs of the same thing agree on: a number that differs from what
//! was recorded in one of them, and not in the next, is no change of the program.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{CallFact, CallFacts, Expected, Facts, PathFact};
use super::shape::{Count, Counts, PathUse, Shape};

/// How two numbers agree.
#[derive(Debug, Clone, Copy)]
struct Agreement {
    /// Threads wait for each other: two numbers that are both wrong, and not the
    /// same, say only that it varies.
    same: bool,
}

impl Agreement {
    /// The number that both runs speak for; without facts the smaller one.
    fn of(self, expected: Option<Expected>, a: u64, b: u64) -> u64 {
        let Some(expected) = expected.filter(|_| a != b) else { return a.min(b) };
        let (before_a, before_b) = (expected.nearest(a), expected.nearest(b));
        let (above, below) = (a > before_a && b > before_b, a < before_a && b < before_b);
        match (expected.holds(a), expected.holds(b)) {
            (true, _) => a,
            (_, true) => b,
            _ if self.same => before_a,
            _ if above => a.min(b),
            _ if below => a.max(b),
            _ => before_a,
        }
    }

    fn counts(self, facts: Option<&CallFacts>, a: &Counts, b: &Counts) -> Counts {
        let (none, unknown) = (Count::default(), CallFact::NONE);
        let mut all = Counts::new();
        for name in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
            let fact = facts.map(|facts| facts.get(name).unwrap_or(&unknown));
            let (a, b) = (a.get(name).unwrap_or(&none), b.get(name).unwrap_or(&none));
            let errnos: BTreeSet<&String> = a.errors.keys().chain(b.errors.keys()).collect();
            let error = |errno: &&String| {
                let of = |count: &Count| count.errors.get(*errno).copied().unwrap_or(0);
                let expected = fact.map(|fact| fact.error(errno));
                ((*errno).clone(), self.of(expected, of(a), of(b)))
            };
            let mut errors: BTreeMap<String, u64> = errnos.iter().map(error).collect();
            errors.retain(|_, n| *n > 0);
            let calls = self.of(fact.map(|fact| fact.calls), a.calls, b.calls);
            if calls > 0 {
                all.insert(name.clone(), Count { calls, errors });
            }
        }
        all
    }

    /// The same of each part; what was recorded of a part that is not there is
    /// that it makes no call.
    fn parts(
        self,
        facts: &BTreeMap<String, CallFacts>,
        known: bool,
        a: &BTreeMap<String, Counts>,
        b: &BTreeMap<String, Counts>,
    ) -> BTreeMap<String, Counts> {
        let none = Counts::new();
        let unknown = CallFacts::new();
        let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let part = |name: &String| {
            let facts = known.then(|| facts.get(name).unwrap_or(&unknown));
            let (a, b) = (a.get(name).unwrap_or(&none), b.get(name).unwrap_or(&none));
            (name.clone(), self.counts(facts, a, b))
        };
        names.into_iter().map(part).filter(|(_, counts)| !counts.is_empty()).collect()
    }
}

/// What two runs agree on, of those that `facts` expect.
pub fn agree(first: &Shape, second: &Shape, facts: Option<&Facts>) -> Shape {
    let agreement = Agreement { same: first.threads > first.processes };
    let mut shape = second.clone();
    shape.calls = agreement.counts(facts.map(|f| &f.calls), &first.calls, &second.calls);
    let none = BTreeMap::new();
    let programs = facts.map_or(&none, |facts| &facts.programs);
    // Of one program nothing was recorded apart: its numbers are those of all.
    let alone = first.programs.len() == 1 && second.programs.len() == 1;
    shape.programs = if alone && first.programs.keys().eq(second.programs.keys()) {
        second.programs.keys().map(|name| (name.clone(), shape.calls.clone())).collect()
    } else {
        agreement.parts(programs, !programs.is_empty(), &first.programs, &second.programs)
    };
    shape.regions = regions(agreement, facts, first, second);
    let total = facts.and_then(|facts| facts.total);
    let of = |expected: Option<Expected>, a, b| agreement.of(expected, a, b);
    shape.processes = of(total.map(|t| t.processes), first.processes, second.processes);
    shape.threads = of(total.map(|t| t.threads), first.threads, second.threads);
    for (file, executed) in &mut shape.executed {
        let expected = facts.map(|f| f.executed.get(file).copied().unwrap_or(Expected::Exact(0)));
        let before = first.executed.get(file).map_or(0, |executed| executed.times);
        executed.times = of(expected, before, executed.times);
    }
    shape.executed.retain(|_, executed| executed.times > 0);
    for (key, used) in &mut shape.network {
        let expected = facts.map(|f| f.network.get(key).copied().unwrap_or(Expected::Exact(0)));
        let before = first.network.get(key).map_or(0, |used| used.calls);
        used.calls = of(expected, before, used.calls);
    }
    shape.network.retain(|_, used| used.calls > 0);
    shape.paths = paths(facts, first, second);
    shape
}

/// The calls of regions. Facts are of a region whole: of its programs the sums
/// agree where one of the runs is as recorded.
fn regions(
    agreement: Agreement,
    facts: Option<&Facts>,
    first: &Shape,
    second: &Shape,
) -> BTreeMap<String, BTreeMap<String, Counts>> {
    let mut regions = second.regions.clone();
    for (name, parts) in &first.regions {
        let expected = facts.and_then(|facts| facts.regions.get(name));
        let (a, b) = (first.region(name), second.region(name));
        let agreed = agreement.counts(expected, &a, &b);
        if agreed == a {
            regions.insert(name.clone(), parts.clone());
        } else if agreed != b
            && let Some(program) = parts.keys().next()
        {
            regions.insert(name.clone(), [(program.clone(), agreed)].into());
        }
    }
    regions
}

/// Paths that both runs used, and those that were recorded and one of them used.
fn paths(facts: Option<&Facts>, first: &Shape, second: &Shape) -> BTreeMap<String, PathUse> {
    let known = |path: &String| facts.is_some_and(|facts| facts.paths.contains_key(path));
    let recorded = |path: &String, used: &PathUse| {
        let fact = facts.and_then(|facts| facts.paths.get(path));
        matches!(fact, Some(PathFact::Uses(uses)) if *uses == used.uses)
    };
    let mut paths = BTreeMap::new();
    for (path, used) in &second.paths {
        match first.paths.get(path) {
            Some(before) if recorded(path, before) => {
                drop(paths.insert(path.clone(), before.clone()));
            }
            None if !known(path) => {}
            _ => drop(paths.insert(path.clone(), used.clone())),
        }
    }
    for (path, used) in first.paths.iter().filter(|(path, _)| known(path)) {
        paths.entry(path.clone()).or_insert_with(|| used.clone());
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_wrong_only_where_both_are() {
        let agreement = Agreement { same: false };
        let of = |a, b| agreement.of(Some(Expected::Exact(5)), a, b);
        assert_eq!((of(5, 6), of(6, 5), of(6, 6)), (5, 5, 6));
        // Both are too many, or too few: the less of it.
        assert_eq!((of(7, 9), of(1, 3)), (7, 3));
        assert_eq!(of(4, 6), 5);
        let of = |a, b| agreement.of(Some(Expected::Varies), a, b);
        assert_eq!(of(1, 9), 1);
        assert_eq!(agreement.of(None, 3, 2), 2);
    }

    #[test]
    fn where_threads_wait_for_each_other_two_wrong_numbers_only_vary() {
        let agreement = Agreement { same: true };
        let of = |a, b| agreement.of(Some(Expected::Exact(8)), a, b);
        assert_eq!((of(13, 11), of(13, 13)), (8, 13));
    }
}
