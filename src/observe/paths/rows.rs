//! What was done with each path. A run can ask about a million of them, most
//! of them once and in vain: what few rows need is kept apart.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use crate::tracer::{Nanos, ProcessId};

use super::place::Marks;
use crate::observe::OpenRegions;

/// What one call did with one path or descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Touch {
    /// Whose: [`Paths::path`](super::Paths::path) has its name.
    pub row: u32,
    /// Its path was named, not a descriptor of it.
    pub by_path: bool,
    /// It was asked about, by stat or its kin.
    pub looked: bool,
    /// It was opened.
    pub opened: bool,
    /// It was not there.
    pub missed: bool,
    /// Bytes read.
    pub read: u64,
}

/// The rows, by path and marks, in order of first use.
#[derive(Debug, Default)]
pub struct Rows(IndexMap<Box<[u8]>, Row>);

/// One path.
#[derive(Debug, Clone)]
pub struct Row {
    /// Calls of `stat` and its kin.
    pub stats: u32,
    /// Calls that missed.
    pub misses: u32,
    /// Wall time of the calls that named it, ns.
    pub wall: u64,
    /// First use.
    pub first: Nanos,
    /// Last use.
    pub last: Nanos,
    process: ProcessId,
    more: Option<Box<More>>,
}

/// What most paths that are only looked for do not need.
#[derive(Debug, Clone, Default)]
pub struct More {
    /// Opens for reading only.
    pub opens_read: u64,
    /// Opens for writing, or both.
    pub opens_write: u64,
    /// Bytes.
    pub read: u64,
    /// Bytes.
    pub written: u64,
    /// Size of the file, mapped executable.
    pub mapped: u64,
    /// Calls of other kinds.
    pub other: Vec<(&'static str, u64)>,
    /// Failures that are no misses: errno, calls.
    pub errors: Vec<(i32, u64)>,
    /// Where it led, if elsewhere.
    pub target: Option<Vec<u8>>,
    /// What was open when it was used in a region.
    pub regions: BTreeSet<OpenRegions>,
    /// Further processes.
    processes: BTreeSet<ProcessId>,
}

impl Rows {
    /// The row of a path.
    pub fn of(&mut self, path: &[u8], marks: Marks, process: ProcessId) -> u32 {
        let mut key = Vec::with_capacity(path.len() + 1);
        key.extend_from_slice(path);
        key.push(marks.bits());
        if let Some(row) = self.0.get_index_of(key.as_slice()) {
            return row as u32;
        }
        let row =
            Row { stats: 0, misses: 0, wall: 0, first: Nanos::MAX, last: 0, process, more: None };
        self.0.insert_full(key.into_boxed_slice(), row).0 as u32
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A path, its marks, and its row.
    pub fn get(&self, row: u32) -> Option<(&[u8], Marks, &Row)> {
        let (key, row) = self.0.get_index(row as usize)?;
        let (marks, path) = key.split_last()?;
        Some((path, Marks::from_bits(*marks), row))
    }

    /// A row.
    pub fn get_mut(&mut self, row: u32) -> Option<&mut Row> {
        Some(self.0.get_index_mut(row as usize)?.1)
    }
}

impl Row {
    /// What only some rows have.
    pub fn more(&self) -> Option<&More> {
        self.more.as_deref()
    }

    /// The same, to be filled in.
    pub fn more_mut(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// Successful opens.
    pub fn opens(&self) -> u64 {
        self.more().map_or(0, |more| more.opens_read + more.opens_write)
    }

    /// Whether anything was done with it.
    pub fn is_used(&self) -> bool {
        self.first != Nanos::MAX
    }

    /// It was used by this process.
    pub fn used(&mut self, from: Nanos, to: Nanos, process: ProcessId) {
        self.first = self.first.min(from);
        self.last = self.last.max(to);
        if process != self.process {
            self.more_mut().processes.insert(process);
        }
    }

    /// It was used while these were open.
    pub fn was_within(&mut self, open: OpenRegions) {
        if open != OpenRegions::NONE {
            self.more_mut().regions.insert(open);
        }
    }

    /// Who used it.
    pub fn processes(&self) -> BTreeSet<ProcessId> {
        let mut all = self.more().map(|more| more.processes.clone()).unwrap_or_default();
        all.insert(self.process);
        all
    }
}

impl More {
    /// One more call of this kind.
    pub fn count(&mut self, kind: &'static str) {
        match self.other.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, n)) => *n += 1,
            None => self.other.push((kind, 1)),
        }
    }

    /// One more failure.
    pub fn fail(&mut self, errno: i32) {
        match self.errors.iter_mut().find(|(e, _)| *e == errno) {
            Some((_, n)) => *n += 1,
            None => self.errors.push((errno, 1)),
        }
    }
}
