//! Which regions were open when. Pure.

use std::collections::HashMap;

use indexmap::{IndexMap, IndexSet};

use crate::tracer::Nanos;

/// Regions that are told apart: a program that makes a name of each request has
/// none of the others.
const MOST: usize = 1000;

/// What was open at some time: [`Timeline::regions_of`] says which. Which these are
/// is certain when the run is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenRegions(u32);

impl OpenRegions {
    /// No region was.
    pub const NONE: Self = Self(0);
}

/// One region.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionTimes {
    /// Beginnings that have not ended.
    depth: u64,
    /// When it was opened last.
    since: Nanos,
    /// How often it was opened.
    pub times: u64,
    /// How long it was open, ns.
    pub wall: Nanos,
    /// Whether it was open when the run ended.
    pub open_ended: bool,
    /// Ends for which there was no beginning.
    pub stray_ends: u64,
}

/// Regions that were open together.
#[derive(Debug, Default)]
struct Set {
    /// By number.
    regions: Vec<u32>,
    /// Somebody was told that it is what was open.
    is_used: bool,
}

/// From when on what was open.
#[derive(Debug, Clone, Copy)]
struct Change {
    at: Nanos,
    set: u32,
}

/// A time at which a region may turn out to have begun or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubt(usize);

/// All regions of a run.
#[derive(Debug)]
pub struct Timeline {
    regions: IndexMap<String, RegionTimes>,
    sets: Vec<Set>,
    /// Sets by what they hold, but for those that may still change.
    known: HashMap<Vec<u32>, u32>,
    /// In order of time.
    changes: Vec<Change>,
    doubts: u32,
    /// Names that were too many.
    left_out: IndexSet<String>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            regions: IndexMap::new(),
            // The first is what is open before anything is.
            sets: vec![Set::default()],
            known: HashMap::from([(Vec::new(), 0)]),
            changes: Vec::new(),
            doubts: 0,
            left_out: IndexSet::new(),
        }
    }
}

impl Timeline {
    /// A region that is to be there, if it is never opened too.
    pub fn expect(&mut self, name: &str) {
        self.number(name);
    }

    /// Opens a region once more. Times may be told a little out of order: what is
    /// past then stays as it was.
    pub fn begin(&mut self, name: &str, at: Nanos) {
        if let Some(region) = self.opened(name, at) {
            self.change(at, |set| insert(set, region));
        }
    }

    /// Closes it once.
    pub fn end(&mut self, name: &str, at: Nanos) {
        if let Some(region) = self.closed(name, at) {
            self.change(at, |set| set.retain(|r| *r != region));
        }
    }

    /// Something may have been a moment at this time; it is told later whether.
    pub fn doubt(&mut self, at: Nanos) -> Doubt {
        self.doubts += 1;
        self.change(at, |_| ());
        Doubt(self.changes.len().saturating_sub(1))
    }

    /// It was none, or it has been told what it was.
    pub fn settle(&mut self, doubt: Doubt) {
        self.doubts = self.doubts.saturating_sub(1);
        let (Some(last), Some(set)) = (self.changes.last(), self.sets.last()) else { return };
        // Nothing has come of it: as if it had not been there.
        let is_last = self.changes.len() == doubt.0 + 1 && last.set as usize + 1 == self.sets.len();
        if is_last && !set.is_used && self.is_as_before() {
            self.changes.pop();
            self.sets.pop();
        }
    }

    /// Whether the last change is none.
    fn is_as_before(&self) -> bool {
        let regions = |change: Option<&Change>| {
            self.sets.get(change.map_or(0, |change| change.set as usize)).map(|set| &set.regions)
        };
        let before = self.changes.len().checked_sub(2).and_then(|i| self.changes.get(i));
        regions(self.changes.last()) == regions(before)
    }

    /// Opens a region as of then.
    pub fn begin_since(&mut self, doubt: Doubt, name: &str) {
        let at = self.changes.get(doubt.0).map_or(0, |change| change.at);
        if let Some(region) = self.opened(name, at) {
            self.change_since(doubt, |set| insert(set, region));
        }
    }

    /// Closes it as of then.
    pub fn end_since(&mut self, doubt: Doubt, name: &str) {
        let at = self.changes.get(doubt.0).map_or(0, |change| change.at);
        if let Some(region) = self.closed(name, at) {
            self.change_since(doubt, |set| set.retain(|r| *r != region));
        }
    }

    /// The run is over: what is open has lasted until then.
    pub fn finish(&mut self, at: Nanos) {
        for region in self.regions.values_mut().filter(|region| region.depth > 0) {
            region.open_ended = true;
            region.wall += at.saturating_sub(region.since);
        }
    }

    /// What was open for a call that entered then.
    pub fn open_at(&mut self, entered: Nanos) -> OpenRegions {
        let after = self.changes.partition_point(|change| change.at <= entered);
        let Some(change) = after.checked_sub(1).and_then(|last| self.changes.get(last)) else {
            return OpenRegions::NONE;
        };
        if let Some(set) = self.sets.get_mut(change.set as usize) {
            set.is_used = true;
        }
        OpenRegions(change.set)
    }

    /// Their numbers.
    pub fn regions_of(&self, open: OpenRegions) -> &[u32] {
        self.sets.get(open.0 as usize).map_or(&[], |set| &set.regions)
    }

    /// Their names, by number, each once.
    pub fn names_of(&self, open: impl IntoIterator<Item = OpenRegions>) -> Vec<String> {
        let numbers = open.into_iter().flat_map(|open| self.regions_of(open)).copied();
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        let name = |n: u32| Some(self.regions.get_index(n as usize)?.0.clone());
        numbers.into_iter().filter_map(name).collect()
    }

    /// All of them by number: those that were expected, then as they came.
    pub fn regions(&self) -> impl ExactSizeIterator<Item = (&str, &RegionTimes)> {
        self.regions.iter().map(|(name, region)| (name.as_str(), region))
    }

    /// Names that were too many to be told apart.
    pub fn left_out(&self) -> usize {
        self.left_out.len()
    }

    fn number(&mut self, name: &str) -> Option<usize> {
        if let Some(number) = self.regions.get_index_of(name) {
            return Some(number);
        }
        if self.regions.len() >= MOST {
            if self.left_out.len() < MOST {
                self.left_out.insert(name.to_owned());
            }
            return None;
        }
        Some(self.regions.insert_full(name.to_owned(), RegionTimes::default()).0)
    }

    /// One more beginning; the number of the region where that opens it.
    fn opened(&mut self, name: &str, at: Nanos) -> Option<u32> {
        let number = self.number(name)?;
        let (_, region) = self.regions.get_index_mut(number)?;
        region.depth += 1;
        if region.depth > 1 {
            return None;
        }
        region.times += 1;
        region.since = at;
        Some(number as u32)
    }

    /// One more end; the number of the region where that closes it.
    fn closed(&mut self, name: &str, at: Nanos) -> Option<u32> {
        let number = self.number(name)?;
        let (_, region) = self.regions.get_index_mut(number)?;
        match region.depth {
            0 => region.stray_ends += 1,
            1 => region.wall += at.saturating_sub(region.since),
            _ => {}
        }
        let closes = region.depth == 1;
        region.depth = region.depth.saturating_sub(1);
        closes.then_some(number as u32)
    }

    fn change(&mut self, at: Nanos, make: impl Fn(&mut Vec<u32>)) {
        let last = self.changes.last().copied().unwrap_or(Change { at: 0, set: 0 });
        let mut regions =
            self.sets.get(last.set as usize).map_or(Vec::new(), |s| s.regions.clone());
        make(&mut regions);
        let new = self.sets.len() as u32;
        let set = match self.known.get(&regions) {
            Some(&set) if self.doubts == 0 => set,
            _ => {
                // What may still change is nobody else's.
                if self.doubts == 0 {
                    self.known.insert(regions.clone(), new);
                }
                self.sets.push(Set { regions, is_used: false });
                new
            }
        };
        self.changes.push(Change { at: at.max(last.at), set });
    }

    fn change_since(&mut self, doubt: Doubt, make: impl Fn(&mut Vec<u32>)) {
        for change in self.changes.iter().skip(doubt.0) {
            if let Some(set) = self.sets.get_mut(change.set as usize) {
                make(&mut set.regions);
            }
        }
    }
}

/// Puts a region in its place among others.
fn insert(set: &mut Vec<u32>, region: u32) {
    if let Err(at) = set.binary_search(&region) {
        set.insert(at, region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(timeline: &mut Timeline, at: Nanos) -> Vec<String> {
        let open = timeline.open_at(at);
        timeline.names_of([open])
    }

    fn times(timeline: &Timeline, name: &str) -> (u64, Nanos, bool, u64) {
        let region = timeline.regions[name];
        (region.times, region.wall, region.open_ended, region.stray_ends)
    }

    #[test]
    fn a_region_is_open_while_begins_exceed_ends() {
        let mut timeline = Timeline::default();
        assert_eq!(timeline.open_at(5), OpenRegions::NONE);
        timeline.begin("a", 10);
        timeline.begin("a", 20);
        timeline.begin("b", 25);
        timeline.end("a", 30);
        timeline.end("a", 40);
        timeline.end("b", 50);
        timeline.end("b", 60);
        timeline.begin("a", 70);
        timeline.finish(100);
        for (at, names) in [
            (9, &[][..]),
            (10, &["a"]),
            (24, &["a"]),
            (25, &["a", "b"]),
            (39, &["a", "b"]),
            (40, &["b"]),
            (50, &[]),
            (70, &["a"]),
            (1000, &["a"]),
        ] {
            assert_eq!(open(&mut timeline, at), names, "{at}");
        }
        assert_eq!(times(&timeline, "a"), (2, 60, true, 0));
        assert_eq!(times(&timeline, "b"), (1, 25, false, 1));
        // The same again is the same set.
        assert_eq!(timeline.open_at(10), timeline.open_at(70));
        assert_eq!(timeline.open_at(50), OpenRegions::NONE);
    }

    #[test]
    fn what_was_told_stays_right_when_a_doubt_is_settled() {
        let mut timeline = Timeline::default();
        timeline.begin("a", 10);
        let (before, first) = (timeline.open_at(15), timeline.doubt(20));
        let inside = timeline.open_at(25);
        timeline.end("a", 30);
        let later = timeline.open_at(35);
        timeline.begin_since(first, "b");
        timeline.settle(first);
        assert_eq!(timeline.names_of([before]), ["a"]);
        assert_eq!(timeline.names_of([inside]), ["a", "b"]);
        assert_eq!(timeline.names_of([later]), ["b"]);
        let second = timeline.doubt(40);
        let inside = timeline.open_at(45);
        timeline.end_since(second, "b");
        timeline.settle(second);
        assert_eq!(timeline.names_of([inside]), Vec::<String>::new());
        assert_eq!(timeline.names_of([later]), ["b"]);
        assert_eq!(times(&timeline, "b"), (1, 20, false, 0));
    }

    #[test]
    fn doubts_that_come_to_nothing_leave_nothing() {
        let mut timeline = Timeline::default();
        for at in 0..100 {
            let doubt = timeline.doubt(at);
            timeline.settle(doubt);
        }
        assert_eq!((timeline.changes.len(), timeline.sets.len()), (0, 1));
        // Two at once, settled in the other order.
        let (one, other) = (timeline.doubt(100), timeline.doubt(101));
        timeline.begin_since(one, "a");
        timeline.settle(one);
        timeline.settle(other);
        assert_eq!(open(&mut timeline, 99), Vec::<String>::new());
        assert_eq!(open(&mut timeline, 100), ["a"]);
        assert_eq!(open(&mut timeline, 101), ["a"]);
    }

    #[test]
    fn names_without_end_are_counted_and_no_more() {
        let mut timeline = Timeline::default();
        for i in 0..3 * MOST {
            timeline.begin(&format!("{i}"), i as Nanos);
            timeline.end(&format!("{i}"), i as Nanos);
        }
        assert_eq!((timeline.regions().len(), timeline.left_out()), (MOST, MOST));
    }
}
