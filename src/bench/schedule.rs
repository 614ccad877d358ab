//! In which order the runs of a bench come. Pure.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a run is for.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum RunKind {
    /// The first of all, untraced, as the machine was found.
    First,
    /// Traced: it gives the shape and the working set, and no time.
    Traced,
    /// Untraced, its files evicted before.
    Cold,
    /// Untraced, not counted.
    Warmup,
    /// Untraced, right after others.
    Warm,
}

impl RunKind {
    /// `first`, `traced`, `cold`, `warmup` or `warm`.
    pub fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Traced => "traced",
            Self::Cold => "cold",
            Self::Warmup => "warmup",
            Self::Warm => "warm",
        }
    }
}

impl fmt::Display for RunKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How many runs of each command, beside the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Traced.
    pub traced: u32,
    /// After an eviction.
    pub cold: u32,
    /// Not counted, before the warm ones.
    pub warmup: u32,
    /// Warm.
    pub warm: u32,
}

impl Default for Plan {
    fn default() -> Self {
        Self { traced: 1, cold: 0, warmup: 1, warm: 10 }
    }
}

/// One run of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Which command, from 0.
    pub command: usize,
    /// What it is for.
    pub kind: RunKind,
    /// Which of its kind and command, from 1.
    pub number: u32,
}

impl Slot {
    /// The name of its run directory: `first`, `cold-3`; with several commands
    /// `2-first`, `2-cold-3`.
    pub fn name(&self, commands: usize) -> String {
        let command = if commands > 1 { format!("{}-", self.command + 1) } else { String::new() };
        match self.kind {
            RunKind::First => format!("{command}first"),
            kind => format!("{command}{kind}-{}", self.number),
        }
    }
}

impl Plan {
    /// The runs of so many commands in order: first, traced, cold, warm-ups, warm; each
    /// time all commands take their turn, so that what changes meanwhile changes for
    /// all.
    pub fn slots(&self, commands: usize) -> Vec<Slot> {
        let kinds = [
            (RunKind::First, 1),
            (RunKind::Traced, self.traced),
            (RunKind::Cold, self.cold),
            (RunKind::Warmup, self.warmup),
            (RunKind::Warm, self.warm),
        ];
        let turns =
            kinds.into_iter().flat_map(|(kind, runs)| (1..=runs).map(move |number| (kind, number)));
        turns
            .flat_map(|(kind, number)| {
                (0..commands).map(move |command| Slot { command, kind, number })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(plan: Plan, commands: usize) -> Vec<String> {
        plan.slots(commands).iter().map(|slot| slot.name(commands)).collect()
    }

    #[test]
    fn kinds_come_one_after_the_other() {
        let plan = Plan { traced: 1, cold: 2, warmup: 1, warm: 3 };
        let expected =
            ["first", "traced-1", "cold-1", "cold-2", "warmup-1", "warm-1", "warm-2", "warm-3"];
        assert_eq!(names(plan, 1), expected);
        let none = Plan { traced: 0, cold: 0, warmup: 0, warm: 0 };
        assert_eq!(names(none, 1), ["first"]);
        assert!(plan.slots(0).is_empty());
    }

    #[test]
    fn several_commands_take_turns() {
        let plan = Plan { traced: 0, cold: 0, warmup: 0, warm: 2 };
        let expected = ["1-first", "2-first", "1-warm-1", "2-warm-1", "1-warm-2", "2-warm-2"];
        assert_eq!(names(plan, 2), expected);
    }
}
