//! How cold a run was, of what was measured. Pure.

use std::fmt;

use crate::render::bytes;
use crate::tracer::page_cache::page_bytes;

/// How cold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Label {
    /// At most 5 % of what can be evicted was in memory.
    Cold,
    /// Between.
    Lukewarm,
    /// 95 % or more was, and at most 1 % of the set was read.
    Warm,
    /// The signals disagree, or there is none.
    Unknown,
}

impl Label {
    /// `cold`, `lukewarm`, `warm` or `unknown`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Lukewarm => "lukewarm",
            Self::Warm => "warm",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// What a label was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// The residency of the set, before and after.
    Residency,
    /// What the run had read from block devices.
    BlockInput,
}

impl Basis {
    /// `residency` or `block input`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Residency => "residency",
            Self::BlockInput => "block input",
        }
    }
}

/// What a process's block input says of the files that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accounting {
    /// What was not in memory is read byte for byte, and counted.
    Whole,
    /// Something is read and counted, but less: the filesystem compresses, or the
    /// files have holes.
    Part,
    /// It is not known that anything is counted: network, 9p, FUSE.
    None,
    /// It is counted, but nobody waited for who read it.
    Unwaited,
}

impl Accounting {
    /// Why block input says nothing of what was read; `None` where it does.
    fn silence(self) -> Option<&'static str> {
        match self {
            Self::Whole | Self::Part => None,
            Self::None => Some("block input is not accounted here"),
            Self::Unwaited => Some("not all who read them were waited for"),
        }
    }
}

/// What was measured of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signals {
    /// Of the files measured before and after: what can be evicted and was in memory
    /// before, bytes. `None`: nothing could be measured.
    pub before_bytes: Option<u64>,
    /// The same, after.
    pub after_bytes: Option<u64>,
    /// What of them cannot be evicted and was there all along, bytes.
    pub pinned_bytes: u64,
    /// What of `before_bytes` an eviction left, bytes.
    pub stayed_bytes: u64,
    /// The most that the command reads of its set, bytes; `None`: the set is not known.
    pub set_bytes: Option<u64>,
    /// The part of `set_bytes` that it reads by calls, bytes: the rest is mapped, and it
    /// may need little of that.
    pub read_bytes: u64,
    /// The part of `set_bytes` that is in files that could not be measured, bytes.
    pub unmeasured_bytes: u64,
    /// Sizes of the set's files: more than the most that a read of it can bring.
    pub size_bytes: u64,
    /// What block input says of them.
    pub accounting: Accounting,
    /// Block input of the run, bytes.
    pub block_input_bytes: Option<u64>,
    /// Page faults of the run that needed no I/O.
    pub minor_faults: Option<u64>,
    /// Page faults of the run that needed I/O.
    pub major_faults: Option<u64>,
    /// Block input of runs of the same command that are known to have been cold, bytes:
    /// what it reads when nothing is there.
    pub cold_bytes: Option<u64>,
}

impl Default for Signals {
    /// Nothing is known.
    fn default() -> Self {
        Self {
            before_bytes: None,
            after_bytes: None,
            pinned_bytes: 0,
            stayed_bytes: 0,
            set_bytes: None,
            read_bytes: 0,
            unmeasured_bytes: 0,
            size_bytes: 0,
            accounting: Accounting::None,
            block_input_bytes: None,
            minor_faults: None,
            major_faults: None,
            cold_bytes: None,
        }
    }
}

/// A label, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The label.
    pub label: Label,
    /// What it was made of; `None` of `Unknown`.
    pub basis: Option<Basis>,
    /// The numbers that it was made of, in words; one line.
    pub evidence: String,
}

/// So much of a whole, bytes.
fn percent(whole: u64, percent: u64) -> u64 {
    (u128::from(whole) * u128::from(percent) / 100) as u64
}

/// The most that is read of files of this size: their directories and inodes too.
fn most_with_metadata(size: u64) -> u64 {
    percent(size, 110).saturating_add(1 << 20)
}

/// What was in memory of what was measured.
#[derive(Clone, Copy)]
struct Measured {
    before: u64,
    after: u64,
}

impl Measured {
    /// What the run brought.
    fn brought(self) -> u64 {
        self.after.saturating_sub(self.before)
    }

    /// 95 % or more of it was there.
    fn was_there(self) -> bool {
        self.before >= self.after - percent(self.after, 5)
    }

    fn was_not_there(self) -> bool {
        self.before <= percent(self.after, 5)
    }
}

impl Signals {
    /// The label that these give.
    pub fn label(&self) -> Verdict {
        let measured = self.measured();
        let (label, why) = match measured {
            Some(measured) => self.by_residency(measured),
            None => self.by_block_input(),
        };
        let basis = if measured.is_some() { Basis::Residency } else { Basis::BlockInput };
        let mut evidence = self.numbers(measured);
        if !why.is_empty() {
            evidence = format!("{evidence}: {why}");
        }
        if label == Label::Cold {
            evidence.push_str("; metadata and a host's cache may be warm");
        }
        Verdict { label, basis: (label != Label::Unknown).then_some(basis), evidence }
    }

    /// Where what was measured is at least half of the set, and something of it is in
    /// memory after the run.
    fn measured(&self) -> Option<Measured> {
        let (before, after) = (self.before_bytes?, self.after_bytes.filter(|&after| after > 0)?);
        let most = self.set_bytes.is_none_or(|set| self.unmeasured_bytes <= set / 2);
        most.then_some(Measured { before, after })
    }

    /// Whether the run read so little that nothing of a set of this size was missing. A
    /// file that is mapped is in the set with its size: at least a page for each fault is
    /// needed of it, and no more than that is sure.
    fn read_nothing(&self, set: u64) -> bool {
        let needed = self.minor_faults.map_or(set, |minor| {
            let faults = minor.saturating_add(self.major_faults.unwrap_or(0));
            self.read_bytes.saturating_add(faults.saturating_mul(page_bytes()))
        });
        let most = percent(set.min(needed), 1);
        let faults = self.major_faults.unwrap_or(0).saturating_mul(page_bytes());
        faults <= most && self.block_input_bytes.is_some_and(|input| input <= most)
    }

    fn by_residency(&self, measured: Measured) -> (Label, &'static str) {
        let Measured { before, after } = measured;
        let brought = measured.brought();
        // Both are more than what the run read: the smaller is nearer.
        let present = after.saturating_add(self.pinned_bytes).saturating_add(self.unmeasured_bytes);
        let set = self.set_bytes.map_or(present, |set| set.min(present));
        let silence = self.accounting.silence();
        let Some(input) = self.block_input_bytes.filter(|_| silence.is_none()) else {
            // What such a filesystem drops when a file is opened nobody sees.
            let why = silence.unwrap_or("block input is not known");
            return if measured.was_not_there() {
                self.cold(why, after)
            } else {
                (Label::Unknown, why)
            };
        };
        // Whether what came into memory is what the run read.
        let read_it = match self.accounting {
            Accounting::Whole => input >= percent(brought, 90),
            _ => input > percent(set, 1),
        };
        if measured.was_not_there() {
            return if read_it {
                self.cold("", after)
            } else {
                (Label::Unknown, "somebody else read it, or it was there after all")
            };
        }
        if measured.was_there() {
            return if self.read_nothing(set) {
                (Label::Warm, "")
            } else {
                (Label::Unknown, "more was read than was missing")
            };
        }
        // More than that was missing too: it went between the measurement and the run.
        let most = brought
            .saturating_add(self.unmeasured_bytes)
            .saturating_add(before / 2)
            .saturating_add(percent(after, 5));
        match () {
            () if !read_it => (Label::Unknown, "somebody else read the rest"),
            () if input > most => (Label::Unknown, "more was read than was missing"),
            () => (Label::Lukewarm, ""),
        }
    }

    /// Cold, unless most of it never left.
    fn cold(&self, why: &'static str, after: u64) -> (Label, &'static str) {
        if self.pinned_bytes > after {
            return (Label::Lukewarm, "most of it cannot be evicted, the rest was cold");
        }
        (Label::Cold, why)
    }

    fn by_block_input(&self) -> (Label, &'static str) {
        let unknown = |why| (Label::Unknown, why);
        let Some(set) = self.set_bytes else { return unknown("which files it reads is not known") };
        let Some(input) = self.block_input_bytes else {
            return unknown("block input is not known");
        };
        if let Some(why) = self.accounting.silence() {
            return unknown(why);
        }
        if set == 0 {
            return unknown("it reads no files");
        }
        if let Some(cold) = self.scale_bytes() {
            return self.beside(set, cold, input);
        }
        let whole = self.accounting == Accounting::Whole;
        let set = self.cold_bytes.map_or(set, |cold| set.min(cold));
        if self.read_nothing(set) && (whole || input == 0) {
            return (Label::Warm, "");
        }
        if input < percent(self.size_bytes, 95) || !whole {
            return unknown("how much it needs is not known");
        }
        if input > most_with_metadata(self.size_bytes) {
            return unknown("other files were read too");
        }
        (Label::Cold, "")
    }

    /// What cold runs read, where that is more than their directories alone could be.
    fn scale_bytes(&self) -> Option<u64> {
        self.cold_bytes.filter(|&cold| cold >= 1 << 20)
    }

    /// By what runs read that were cold. What lies near a limit is not labelled: how much
    /// is read ahead differs from run to run.
    fn beside(&self, set: u64, cold: u64, input: u64) -> (Label, &'static str) {
        match () {
            () if self.read_nothing(set.min(cold)) => (Label::Warm, ""),
            () if input > most_with_metadata(cold) => (Label::Unknown, "other files were read too"),
            () if input >= percent(cold, 95) => (Label::Cold, ""),
            () if (percent(cold, 10)..=percent(cold, 90)).contains(&input) => (Label::Lukewarm, ""),
            () => (Label::Unknown, "that is near a limit"),
        }
    }

    fn numbers(&self, measured: Option<Measured>) -> String {
        let mut words = Vec::new();
        if let Some(Measured { before, after }) = measured {
            words.push(format!("{} of {} were in memory", bytes(before), bytes(after)));
            if self.pinned_bytes > 0 {
                words.push(format!("{} cannot be evicted", bytes(self.pinned_bytes)));
            }
            if self.stayed_bytes > 0 {
                words.push(format!("{} stayed after the eviction", bytes(self.stayed_bytes)));
            }
            if self.unmeasured_bytes > 0 {
                words.push(format!("{} could not be measured", bytes(self.unmeasured_bytes)));
            }
        }
        let cold = self.scale_bytes().filter(|_| measured.is_none());
        let set = self.set_bytes.filter(|_| measured.is_none());
        match (self.block_input_bytes, cold, set) {
            (Some(input), Some(cold), _) => {
                words.push(format!("{} read, {} by cold runs", bytes(input), bytes(cold)));
            }
            (Some(input), None, Some(set)) => {
                words.push(format!("{} of at most {} read", bytes(input), bytes(set)));
            }
            (Some(input), None, None) => words.push(format!("{} read", bytes(input))),
            (None, ..) if measured.is_none() => words.push("nothing measured".into()),
            (None, ..) => {}
        }
        if let Some(faults) = self.major_faults.filter(|&faults| faults > 0) {
            words.push(crate::render::counted(faults, "major fault"));
        }
        words.join(", ")
    }
}

#[cfg(test)]
#[path = "label_tests.rs"]
mod tests;
