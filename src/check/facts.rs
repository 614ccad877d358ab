//! What a baseline knows of a case on one platform: how often each call was made
//! and how it failed, and beside that the paths, programs and addresses that
//! explain these numbers.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::families;

/// What a number is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Expected {
    /// This: every recorded run had it.
    Exact(u64),
    /// From the first to the second: a person wrote it.
    Range(u64, u64),
    /// It is known to vary, and nothing is said of it.
    Varies,
}

impl Expected {
    /// Whether the number is as expected.
    pub fn holds(self, n: u64) -> bool {
        match self {
            Self::Exact(exact) => n == exact,
            Self::Range(least, most) => (least..=most).contains(&n),
            Self::Varies => true,
        }
    }

    /// What the numbers of several runs have in common.
    pub fn of(seen: &[u64]) -> Self {
        match seen {
            [] => Self::Exact(0),
            [first, rest @ ..] if rest.iter().all(|n| n == first) => Self::Exact(*first),
            _ => Self::Varies,
        }
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Varies, _) | (_, Self::Varies) => Self::Varies,
            (Self::Exact(a), Self::Exact(b)) => Self::Exact(a.saturating_add(b)),
            (a, b) => {
                let ((a, b), (c, d)) = (a.ends(), b.ends());
                Self::Range(a.saturating_add(c), b.saturating_add(d))
            }
        }
    }

    fn ends(self) -> (u64, u64) {
        match self {
            Self::Exact(n) => (n, n),
            Self::Range(a, b) => (a, b),
            Self::Varies => (0, u64::MAX),
        }
    }

    /// The number next to `n` that is expected: what it is compared with.
    pub fn nearest(self, n: u64) -> u64 {
        let (a, b) = self.ends();
        n.clamp(a.min(b), b)
    }

    /// The largest number that is expected; `None` where that is not known.
    pub fn most(self) -> Option<u64> {
        (self != Self::Varies).then(|| self.ends().1)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(n) => write!(f, "{n}"),
            Self::Range(a, b) => write!(f, "{a}..{b}"),
            Self::Varies => f.write_str("varies"),
        }
    }
}

impl<'de> Deserialize<'de> for Expected {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number, [least, most] or \"varies\"")]
        enum Written {
            Number(u64),
            Range([u64; 2]),
            Word(String),
        }
        match Written::deserialize(from)? {
            Written::Number(n) => Ok(Self::Exact(n)),
            Written::Range([a, b]) if a <= b => Ok(Self::Range(a, b)),
            Written::Range([a, b]) => {
                Err(D::Error::custom(format_args!("the range [{a}, {b}] ends before it begins")))
            }
            Written::Word(word) if word == "varies" => Ok(Self::Varies),
            Written::Word(word) => Err(D::Error::custom(format_args!(
                "\"{word}\" is no expectation: a number, [least, most] or \"varies\""
            ))),
        }
    }
}

/// What is expected of one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CallFact {
    /// How often it is made.
    pub calls: Expected,
    /// How often it fails, by errno name; one that is not here never does, but
    /// where `calls` vary.
    pub errors: BTreeMap<String, Expected>,
}

impl CallFact {
    /// Of a call of which nothing is said.
    pub const VARIES: Self = Self { calls: Expected::Varies, errors: BTreeMap::new() };
    /// Of a call that is not made.
    pub const NONE: Self = Self { calls: Expected::Exact(0), errors: BTreeMap::new() };

    /// How often it is to fail so.
    pub fn error(&self, name: &str) -> Expected {
        let unsaid = match self.calls {
            Expected::Varies => Expected::Varies,
            _ => Expected::Exact(0),
        };
        self.errors.get(name).copied().unwrap_or(unsaid)
    }

    /// The sum of two.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let names = self.errors.keys().chain(other.errors.keys());
        let sum = |name: &String| (name.clone(), self.error(name).plus(other.error(name)));
        Self { calls: self.calls.plus(other.calls), errors: names.map(sum).collect() }
    }
}

impl<'de> Deserialize<'de> for CallFact {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected { calls = N, ERRNO = N, ... } or \"varies\", where N is a number, \
                         [least, most] or \"varies\""
        )]
        enum Written {
            All(Expected),
            Each(BTreeMap<String, Expected>),
        }
        match Written::deserialize(from)? {
            Written::All(calls) => Ok(Self { calls, errors: BTreeMap::new() }),
            Written::Each(mut errors) => {
                let calls = errors.remove("calls").ok_or_else(|| {
                    D::Error::custom("how often it is made is missing: calls = N")
                })?;
                if let Some(name) = errors.keys().find(|name| !is_errno(name)) {
                    return Err(D::Error::custom(format_args!(
                        "\"{name}\" is neither calls nor the name of an errno"
                    )));
                }
                Ok(Self { calls, errors })
            }
        }
    }
}

/// Whether it looks like an errno's name; those without one are `errno_NUMBER`.
fn is_errno(name: &str) -> bool {
    name.starts_with("errno_")
        || name.starts_with('E')
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Expectations by name of the call.
pub type CallFacts = BTreeMap<String, CallFact>;

/// Where and how facts were recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// Version of the kernel: `6.18`.
    pub kernel: Option<String>,
    /// Version of the C library: `2.36`.
    pub libc: Option<String>,
    /// Runs that were compared.
    pub runs: u32,
}

/// Sums over the tree. Only ratios are held against them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Calls.
    pub calls: Expected,
    /// Calls that failed.
    pub errors: Expected,
    /// Processes.
    pub processes: Expected,
    /// Threads, the first of each process included.
    pub threads: Expected,
}

/// How a path is used: times by kind (`open`, `stat`, `read`, ...), and `missed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected { open = N, missed = N, ... } or \"varies\"")]
pub enum PathFact {
    /// `"varies"`.
    Varies(Word),
    /// So often.
    Uses(BTreeMap<String, u64>),
}

impl PathFact {
    /// One of which nothing is said.
    pub const VARIES: Self = Self::Varies(Word::Varies);

    /// How often it is missed; `None` where that varies.
    pub fn missed(&self) -> Option<u64> {
        match self {
            Self::Varies(_) => None,
            Self::Uses(uses) => Some(uses.get("missed").copied().unwrap_or(0)),
        }
    }
}

/// The one word that stands for an expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Word {
    /// It varies.
    Varies,
}

/// Facts of a case on a platform.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Where and how they were recorded.
    pub recorded: Recorded,
    /// Sums.
    pub total: Option<Totals>,
    /// By call; those of another table than the platform's are called `open@i386`.
    pub calls: CallFacts,
    /// The same by program, where there is more than one.
    pub programs: BTreeMap<String, CallFacts>,
    /// The same by region.
    pub regions: BTreeMap<String, CallFacts>,
    /// By path, normalised.
    pub paths: BTreeMap<String, PathFact>,
    /// Executed files, normalised, and how often.
    pub executed: BTreeMap<String, Expected>,
    /// By call and address.
    pub network: BTreeMap<String, Expected>,
}

impl<'de> Deserialize<'de> for Facts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Table)
    }
}

/// Reads the table by hand: its keys are ours, and calls.
struct Table;

impl<'de> Visitor<'de> for Table {
    type Value = Facts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of facts")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Facts, A::Error> {
        let mut facts = Facts::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "recorded" => facts.recorded = map.next_value()?,
                "total" => facts.total = Some(map.next_value()?),
                "program" => facts.programs = map.next_value()?,
                "region" => facts.regions = map.next_value()?,
                "path" => {
                    facts.paths = map.next_value()?;
                    // Of one that somebody wrote about `--update` leaves that much. One
                    // that was only mapped has no numbers at all, and was there.
                    let is_zero = |uses: &BTreeMap<String, u64>| {
                        !uses.is_empty() && uses.values().all(|n| *n == 0)
                    };
                    facts
                        .paths
                        .retain(|_, fact| !matches!(fact, PathFact::Uses(uses) if is_zero(uses)));
                }
                "executed" => facts.executed = map.next_value()?,
                "network" => facts.network = map.next_value()?,
                _ => {
                    families::known(&key).map_err(A::Error::custom)?;
                    facts.calls.insert(key, map.next_value()?);
                }
            }
        }
        let tables = facts.programs.values().chain(facts.regions.values());
        for name in tables.flat_map(BTreeMap::keys) {
            families::known(name).map_err(A::Error::custom)?;
        }
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_have_in_common_is_exact_or_nothing() {
        assert_eq!(Expected::of(&[5, 5, 5]), Expected::Exact(5));
        assert_eq!(Expected::of(&[403, 1635, 700]), Expected::Varies);
        assert_eq!(Expected::of(&[]), Expected::Exact(0));
    }

    #[test]
    fn a_range_holds_its_ends() {
        let range = Expected::Range(40, 60);
        assert!(range.holds(40) && range.holds(60));
        assert!(!range.holds(39) && !range.holds(61));
        assert!(Expected::Varies.holds(0) && Expected::Varies.holds(u64::MAX));
        assert_eq!((range.nearest(10), range.nearest(50), range.nearest(99)), (40, 50, 60));
    }

    #[test]
    fn sums_know_no_more_than_their_parts() {
        assert_eq!(Expected::Exact(2).plus(Expected::Exact(3)), Expected::Exact(5));
        assert_eq!(Expected::Exact(2).plus(Expected::Range(1, 4)), Expected::Range(3, 6));
        assert_eq!(Expected::Exact(2).plus(Expected::Varies), Expected::Varies);
    }

    #[test]
    fn an_errno_that_is_not_named_never_comes_unless_all_varies() {
        let fact = CallFact { calls: Expected::Exact(3), errors: BTreeMap::new() };
        assert_eq!(fact.error("ENOENT"), Expected::Exact(0));
        assert_eq!(CallFact::VARIES.error("ENOENT"), Expected::Varies);
    }
}
