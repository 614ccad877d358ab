//! What was seen around one run, and the part of a record that is made of it.

use crate::record::{CacheState, boot_id, uptime_ns};

use super::evict::Eviction;
use super::label::{Accounting, Signals};
use super::residency::{Method, Pages, Residency};
use super::set::WorkingSet;
use super::written::Written;

/// What was seen around one run; what is `None` was not looked at or is not known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observation<'a> {
    /// The working set.
    pub set: Option<&'a WorkingSet>,
    /// What evicted it just before.
    pub eviction: Option<&'a Eviction>,
    /// Its residency just before the run, after the eviction.
    pub before: Option<&'a Residency>,
    /// Its residency just after the run.
    pub after: Option<&'a Residency>,
    /// Block input of the command and the children it waited for, bytes (`ru_inblock`
    /// times 512).
    pub block_input_bytes: Option<u64>,
    /// Their page faults that needed I/O.
    pub major_faults: Option<u64>,
    /// Caches that the run wrote.
    pub written: Option<&'a Written>,
    /// Whether it is the first run since the machine was booted.
    pub first_since_boot: Option<bool>,
}

/// Sums over the files that were measured both times, bytes.
#[derive(Default)]
struct Sums {
    files: u64,
    before: u64,
    after: u64,
    pinned: u64,
    touched: u64,
}

impl Observation<'_> {
    /// What the label is made of.
    pub fn signals(&self) -> Signals {
        let sums = self.sums();
        let measured = sums.files > 0;
        let set_bytes = self.set.map(WorkingSet::touched_bytes);
        Signals {
            before_bytes: measured.then_some(sums.before),
            after_bytes: measured.then_some(sums.after),
            pinned_bytes: sums.pinned,
            set_bytes,
            unmeasured_bytes: set_bytes.unwrap_or(0).saturating_sub(sums.touched),
            size_bytes: self.set.map_or(0, WorkingSet::size_bytes),
            accounting: self.set.map_or(Accounting::None, WorkingSet::accounting),
            block_input_bytes: self.block_input_bytes,
            major_faults: self.major_faults,
        }
    }

    /// The record's part, with the label.
    pub fn state(&self) -> CacheState {
        let signals = self.signals();
        let verdict = signals.label();
        let measured = signals.before_bytes.is_some();
        let method = self.after.map_or(Method::None, |after| after.method);
        let residency = self.after.or(self.before);
        let mut reasons = residency.map(|r| r.reasons.clone()).unwrap_or_default();
        reasons.extend(self.eviction.iter().flat_map(|eviction| eviction.failed.clone()));
        CacheState {
            label: verdict.label.word().into(),
            basis: verdict.basis.map(|basis| basis.word().into()),
            evidence: verdict.evidence,
            resident_before_bytes: signals.before_bytes,
            resident_after_bytes: signals.after_bytes,
            pinned_bytes: measured.then_some(signals.pinned_bytes),
            set_bytes: signals.set_bytes,
            files_measured: self.set.map(|_| self.sums().files),
            files_total: self.set.map(|set| set.files().len() as u64),
            method: (measured && method != Method::None).then(|| method.word().into()),
            reasons,
            major_faults: self.major_faults,
            block_input_bytes: self.block_input_bytes,
            evicted_by: self.eviction.map(|eviction| eviction.by.into()),
            files_evicted: self.eviction.map(|eviction| eviction.files_evicted),
            bytecode_written: self.written.and_then(|written| written.bytecode),
            caches_written: self.written.and_then(|written| written.others.clone()),
            boot_id: boot_id(),
            uptime_ns: uptime_ns(),
            first_since_boot: self.first_since_boot,
        }
    }

    /// Of each file what cannot be evicted is in neither sum: what was mapped before,
    /// or what the eviction left.
    fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        let (Some(set), Some(before), Some(after)) = (self.set, self.before, self.after) else {
            return sums;
        };
        for (at, file) in set.files().iter().enumerate() {
            let of = |residency: &Residency| -> Option<Pages> { *residency.files.get(at)? };
            let (Some(before), Some(after)) = (of(before), of(after)) else { continue };
            let remained = self.eviction.and_then(|eviction| of(&eviction.remained));
            let pinned = remained.map_or(0, |pages| pages.resident).max(before.pinned);
            let pinned = pinned.min(before.resident).min(after.resident);
            sums.files += 1;
            sums.before = sums.before.saturating_add(before.resident - pinned);
            sums.after = sums.after.saturating_add(after.resident - pinned);
            sums.pinned = sums.pinned.saturating_add(pinned);
            sums.touched = sums.touched.saturating_add(file.touched_bytes);
        }
        sums
    }
}
