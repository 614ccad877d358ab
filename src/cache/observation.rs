//! What was seen around one run, and the part of a record that is made of it.

use crate::record::{CacheState, boot_id};
use crate::render::counted;

use super::evict::Eviction;
use super::label::{Accounting, Signals};
use super::pinned::Mapped;
use super::residency::{Method, Residency};
use super::set::WorkingSet;
use super::written::Written;

/// What was seen around one run; what is `None` was not looked at or is not known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observation<'a> {
    /// The working set.
    pub set: Option<&'a WorkingSet>,
    /// What processes had mapped of it before that.
    pub mapped: Option<&'a Mapped>,
    /// What evicted it just before.
    pub eviction: Option<&'a Eviction>,
    /// Its residency just before the run; without it what the eviction left.
    pub before: Option<&'a Residency>,
    /// Its residency just after the run.
    pub after: Option<&'a Residency>,
    /// Block input of the command and the children it waited for, bytes (`ru_inblock`
    /// times 512).
    pub block_input_bytes: Option<u64>,
    /// Their page faults that needed no I/O.
    pub minor_faults: Option<u64>,
    /// Their page faults that needed I/O.
    pub major_faults: Option<u64>,
    /// Block input of runs of the same command that are known to have been cold, bytes.
    pub cold_bytes: Option<u64>,
    /// Caches that the run wrote.
    pub written: Option<&'a Written>,
    /// Whether it is the first run since the machine was booted.
    pub first_since_boot: Option<bool>,
    /// Since the machine was booted, before the run.
    pub uptime_ns: Option<u64>,
}

/// Sums over the files that were measured both times, bytes.
#[derive(Default)]
struct Sums {
    files: u64,
    before: u64,
    after: u64,
    pinned: u64,
    stayed: u64,
    touched: u64,
}

impl Observation<'_> {
    /// What the label is made of.
    pub fn signals(&self) -> Signals {
        self.signals_of(&self.sums())
    }

    fn signals_of(&self, sums: &Sums) -> Signals {
        let measured = sums.files > 0;
        let set_bytes = self.set.map(WorkingSet::touched_bytes);
        Signals {
            before_bytes: measured.then_some(sums.before),
            after_bytes: measured.then_some(sums.after),
            pinned_bytes: sums.pinned,
            stayed_bytes: sums.stayed,
            set_bytes,
            read_bytes: self.set.map_or(0, WorkingSet::read_bytes),
            unmeasured_bytes: set_bytes.unwrap_or(0).saturating_sub(sums.touched),
            size_bytes: self.set.map_or(0, WorkingSet::size_bytes),
            accounting: self.set.map_or(Accounting::None, WorkingSet::accounting),
            block_input_bytes: self.block_input_bytes,
            minor_faults: self.minor_faults,
            major_faults: self.major_faults,
            cold_bytes: self.cold_bytes,
        }
    }

    /// The record's part, with the label.
    pub fn state(&self) -> CacheState {
        let sums = self.sums();
        let signals = self.signals_of(&sums);
        let verdict = signals.label();
        let measured = signals.before_bytes.is_some();
        let method = self.after.map_or(Method::None, |after| after.method);
        let residency = self.after.or(self.before);
        let mut reasons = residency.map(|r| r.reasons.clone()).unwrap_or_default();
        let unreadable = self.mapped.map_or(0, |mapped| mapped.unreadable);
        if measured && unreadable > 0 {
            let processes = counted(unreadable, "process");
            reasons.push(format!(
                "what {processes} may have mapped cannot be seen: it counts as evictable"
            ));
        }
        reasons.extend(self.eviction.iter().flat_map(|eviction| eviction.failed.clone()));
        CacheState {
            label: verdict.label.word().into(),
            basis: verdict.basis.map(|basis| basis.word().into()),
            evidence: verdict.evidence,
            resident_before_bytes: signals.before_bytes,
            resident_after_bytes: signals.after_bytes,
            pinned_bytes: measured.then_some(signals.pinned_bytes),
            stayed_bytes: self.eviction.filter(|_| measured).map(|_| signals.stayed_bytes),
            set_bytes: signals.set_bytes,
            files_measured: self.set.map(|_| sums.files),
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
            uptime_ns: self.uptime_ns,
            first_since_boot: self.first_since_boot,
            command_sha256: None,
        }
    }

    /// Of each file what cannot be evicted is in neither sum: what others had mapped, and
    /// what an eviction left for that reason. What it left else was in memory.
    fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        let remained = self.eviction.map(|eviction| &eviction.remained);
        let (Some(set), Some(before), Some(after)) =
            (self.set, self.before.or(remained), self.after)
        else {
            return sums;
        };
        for (at, file) in set.files().iter().enumerate() {
            let of = |residency: &Residency| -> Option<u64> { *residency.files.get(at)? };
            let (Some(before), Some(after)) = (of(before), of(after)) else { continue };
            let there = before.min(after);
            let mapped = self.mapped.map_or(0, |mapped| mapped.bytes(at)).min(there);
            let kept = self.mapped.map_or(0, |mapped| mapped.kept_bytes(at)).min(there);
            let remained = remained.map(|remained| of(remained).unwrap_or(0).min(there));
            let pinned = remained.map_or(mapped, |remained| kept.min(remained));
            sums.files += 1;
            sums.before = sums.before.saturating_add(before - pinned);
            sums.after = sums.after.saturating_add(after - pinned);
            sums.pinned = sums.pinned.saturating_add(pinned);
            sums.stayed = sums.stayed.saturating_add(remained.unwrap_or(0).saturating_sub(pinned));
            sums.touched = sums.touched.saturating_add(file.touched_bytes);
        }
        sums
    }
}
