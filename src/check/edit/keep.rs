//! What is expected, where something else was expected before: that a number
//! varies, or a range, or that it is 0, are a person's words, or known from other
//! runs.

use std::collections::BTreeSet;

use crate::check::facts::{CallFact, Expected};
use crate::check::learn::Seen;

/// Holds what is new against what is written.
pub struct Keeper<'a> {
    /// What varied.
    pub seen: &'a Seen,
    /// Runs in which it did.
    pub runs: u32,
    /// Bounds that were moved.
    pub notes: &'a mut Vec<String>,
}

impl Keeper<'_> {
    /// What is to be written of a number that is called `name` in notes.
    pub fn number(&mut self, name: &str, old: Option<Expected>, new: Expected) -> Expected {
        let (a, b) = match old {
            None | Some(Expected::Exact(_)) => return new,
            Some(Expected::Varies) => return Expected::Varies,
            Some(Expected::Range(a, b)) => (a, b),
        };
        let old = Expected::Range(a, b);
        let (least, most) = match (new, self.seen.get(name)) {
            (Expected::Exact(n), _) => (n, n),
            (Expected::Range(least, most), _) => (least, most),
            (Expected::Varies, Some(seen)) => *seen,
            (Expected::Varies, None) => return old,
        };
        let wider = Expected::Range(a.min(least), b.max(most));
        if wider != old {
            let seen = if least == most { least.to_string() } else { format!("{least}..{most}") };
            self.notes.push(format!("{name}: {seen} is outside {old}: now {wider}"));
        }
        wider
    }

    /// The same of a call.
    pub fn call(&mut self, name: &str, old: Option<&CallFact>, new: &CallFact) -> CallFact {
        let calls = self.number(name, old.map(|old| old.calls), new.calls);
        let before = |errno: &String| old.and_then(|old| old.errors.get(errno)).copied();
        let was_varying = old.is_some_and(|old| old.calls == Expected::Varies);
        let names = old.into_iter().chain([new]).flat_map(|fact| fact.errors.keys());
        let mut fact = CallFact { calls, ..CallFact::NONE };
        for errno in names.collect::<BTreeSet<_>>() {
            let before = before(errno);
            // Where calls vary only those errors are held that a person named.
            let held = match before {
                Some(Expected::Exact(_)) => was_varying,
                other => other.is_some(),
            };
            if calls == Expected::Varies && !held {
                continue;
            }
            let now = new.errors.get(errno).copied().unwrap_or(Expected::Exact(0));
            let kept = self.number(&format!("{name} {errno}"), before, now);
            if kept != Expected::Exact(0) || before == Some(kept) {
                fact.errors.insert(errno.clone(), kept);
            }
        }
        fact
    }
}
