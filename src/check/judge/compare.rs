//! Numbers against what is expected of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::facts::{CallFact, CallFacts, Expected};
use crate::check::families::Families;
use crate::check::report::Change;
use crate::check::shape::{Count, Counts};

/// Every number that is not as expected, the largest difference first.
pub fn compare(facts: &CallFacts, counts: &Counts) -> Vec<Change> {
    let names: BTreeSet<&String> = facts.keys().chain(counts.keys()).collect();
    let (none, unknown) = (Count::default(), CallFact::NONE);
    let mut changes = Vec::new();
    for name in names {
        let fact = facts.get(name).unwrap_or(&unknown);
        let count = counts.get(name).unwrap_or(&none);
        let mut hold = |errno: Option<&String>, before: Expected, now: u64| {
            if !before.holds(now) {
                let (call, errno) = (name.clone(), errno.cloned());
                changes.push(Change { call, errno, program: None, region: None, before, now });
            }
        };
        hold(None, fact.calls, count.calls);
        let errnos: BTreeSet<&String> = fact.errors.keys().chain(count.errors.keys()).collect();
        for errno in errnos {
            hold(Some(errno), fact.error(errno), count.errors.get(errno).copied().unwrap_or(0));
        }
    }
    sort(&mut changes);
    changes
}

/// The largest difference first; of equal ones calls before their errors.
pub fn sort(changes: &mut [Change]) {
    changes.sort_by(|a, b| {
        let key = |c: &Change| (std::cmp::Reverse(c.delta().unsigned_abs()), c.errno.is_some());
        key(a).cmp(&key(b)).then_with(|| (&a.call, &a.errno).cmp(&(&b.call, &b.errno)))
    });
}

/// Facts by family.
pub fn fold_facts(facts: &CallFacts, families: Families) -> CallFacts {
    let mut folded = CallFacts::new();
    for (name, fact) in facts {
        let family = families.of(name).to_owned();
        let sum = folded.get(&family).map_or_else(|| fact.clone(), |sum| sum.plus(fact));
        folded.insert(family, sum);
    }
    folded
}

/// Counts by family.
pub fn fold_counts(counts: &Counts, families: Families) -> Counts {
    let mut folded: BTreeMap<String, Count> = BTreeMap::new();
    for (name, count) in counts {
        let sum = folded.entry(families.of(name).to_owned()).or_default();
        sum.calls = sum.calls.saturating_add(count.calls);
        for (errno, n) in &count.errors {
            let times = sum.errors.entry(errno.clone()).or_default();
            *times = times.saturating_add(*n);
        }
    }
    folded
}

/// The most telling changes in one line: `openat 52 -> 56, read 3 -> 5, 5 more (+23)`.
pub fn in_words(changes: &[Change]) -> String {
    const SHOWN: usize = 2;
    let one = |change: &Change| {
        let errno = change.errno.as_ref().map_or_else(String::new, |errno| format!(" {errno}"));
        let part = match (&change.program, &change.region) {
            (Some(program), _) => format!(" by {program}"),
            (_, Some(region)) => format!(" in {region}"),
            (None, None) => String::new(),
        };
        format!("{}{errno}{part} {} -> {}", change.call, change.before, change.now)
    };
    // One more is as long as to say that there is one more.
    let shown = if changes.len() <= SHOWN + 1 { changes.len() } else { SHOWN };
    let mut words: Vec<String> = changes.iter().take(shown).map(one).collect();
    let rest = changes.get(shown..).unwrap_or_default();
    if !rest.is_empty() {
        // Errors are calls that were counted already.
        let calls = rest.iter().filter(|c| c.errno.is_none());
        let delta = calls.fold(0i64, |sum, change| sum.saturating_add(change.delta()));
        words.push(format!("{} more ({delta:+})", rest.len()));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(calls: u64, errors: &[(&str, u64)]) -> CallFact {
        let error = |(name, n): &(&str, u64)| ((*name).to_owned(), Expected::Exact(*n));
        CallFact { calls: Expected::Exact(calls), errors: errors.iter().map(error).collect() }
    }

    fn count(calls: u64, errors: &[(&str, u64)]) -> Count {
        Count { calls, errors: errors.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect() }
    }

    #[test]
    fn more_fewer_new_and_gone_are_all_changes() {
        let facts: CallFacts = [
            ("brk".to_owned(), fact(3, &[])),
            ("close".to_owned(), fact(4, &[])),
            ("futex".to_owned(), CallFact::VARIES),
            ("openat".to_owned(), fact(9, &[("ENOENT", 2)])),
        ]
        .into();
        let counts: Counts = [
            ("close".to_owned(), count(3, &[])),
            ("futex".to_owned(), count(99, &[("EAGAIN", 7)])),
            ("openat".to_owned(), count(9, &[("ENOENT", 3)])),
            ("socket".to_owned(), count(1, &[])),
        ]
        .into();
        let changes = compare(&facts, &counts);
        let shown: Vec<_> = changes.iter().map(|c| in_words(std::slice::from_ref(c))).collect();
        assert_eq!(shown, ["brk 3 -> 0", "close 4 -> 3", "socket 0 -> 1", "openat ENOENT 2 -> 3"]);
        assert_eq!(in_words(&changes), "brk 3 -> 0, close 4 -> 3, 2 more (+1)");
        assert_eq!(compare(&facts, &Counts::new()).len(), 4);
    }

    #[test]
    fn families_make_another_library_the_same() {
        let facts: CallFacts =
            [("fstat".to_owned(), fact(3, &[])), ("stat".to_owned(), fact(2, &[("ENOENT", 1)]))]
                .into();
        let counts: Counts = [("newfstatat".to_owned(), count(5, &[("ENOENT", 1)]))].into();
        assert_eq!(compare(&facts, &counts).len(), 5);
        let family = Families::Default;
        assert_eq!(compare(&fold_facts(&facts, family), &fold_counts(&counts, family)), []);
    }
}
