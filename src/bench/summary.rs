//! From the runs of a bench to what they say together. Pure.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use crate::record::{Environment, Outcome, Record, Rusage};
use crate::render::counted;

use super::outliers::far_from_others;
use super::schedule::{RunKind, Slot};
use super::stats::{Ratio, Summary};
use super::types::{
    CommandBench, Comparison, Count, Difference, KindBench, Metrics, RunCalls, RunEntry,
    SyscallCounts,
};

/// The unit of `ru_inblock` and `ru_oublock`, bytes.
const BLOCK: u64 = 512;

impl RunEntry {
    /// Of the record of a run.
    pub fn of(run: &str, slot: Slot, record: &Record) -> Self {
        let cache = record.cache.as_ref();
        let rows = record.syscalls.iter().flatten();
        let calls = rows.map(|row| RunCalls {
            name: row.name.clone(),
            abi: row.abi.clone(),
            calls: row.calls,
            errors: row.error_count(),
        });
        let environment = record.environment.as_ref();
        Self {
            run: run.to_owned(),
            kind: slot.kind,
            number: slot.number,
            start: record.run.start.clone(),
            failed: failure(&record.outcome),
            label: cache.map(|cache| cache.label.clone()),
            basis: cache.and_then(|cache| cache.basis.clone()),
            evidence: cache.map(|cache| cache.evidence.clone()),
            evicted_by: cache.and_then(|cache| cache.evicted_by.clone()),
            files: cache.and_then(|cache| cache.files_total),
            files_evicted: cache.and_then(|cache| cache.files_evicted),
            stderr_bytes: record.outcome.stderr_bytes,
            interpreter: environment
                .filter(|_| slot.kind == RunKind::Traced)
                .and_then(|environment| environment.interpreter.clone()),
            bytecode_written: cache.and_then(|cache| cache.bytecode_written),
            caches_written: cache.and_then(|c| c.caches_written.clone()).unwrap_or_default(),
            first_since_boot: cache.and_then(|cache| cache.first_since_boot),
            boot_id: environment.and_then(|environment| environment.boot_id.clone()),
            load: environment.and_then(|environment| Some(environment.load?[0])),
            metrics: Metrics::of(record),
            calls: calls.collect(),
        }
    }
}

/// How it failed, if it did.
pub fn failure(outcome: &Outcome) -> Option<String> {
    match (outcome.exit_code, &outcome.signal) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exited {code}")),
        (None, Some(signal)) => Some(format!("killed by {signal}")),
        (None, None) => Some("ended unseen".into()),
    }
}

impl Metrics {
    /// Of the record of a run.
    pub fn of(record: &Record) -> Self {
        let wall = record.outcome.wall_ns;
        let usage = record.rusage.as_ref();
        let of = |field: fn(&Rusage) -> u64| usage.map(field);
        let cpu = of(|usage| usage.user_ns.saturating_add(usage.sys_ns));
        let resident = record.cache.as_ref().and_then(|cache| {
            let after = cache.resident_after_bytes.filter(|&after| after > 0)?;
            Some((cache.resident_before_bytes? as f64 / after as f64).min(1.0))
        });
        Self {
            wall_ns: Some(wall),
            user_ns: of(|usage| usage.user_ns),
            sys_ns: of(|usage| usage.sys_ns),
            off_cpu_ns: cpu.map(|cpu| wall.saturating_sub(cpu)),
            run_queue_ns: usage.and_then(|usage| usage.first_thread_run_queue_ns),
            peak_rss_bytes: usage.and_then(Rusage::peak_bytes),
            minor_faults: of(|usage| usage.minor_faults),
            major_faults: of(|usage| usage.major_faults),
            block_in_bytes: of(|usage| usage.block_in.saturating_mul(BLOCK)),
            block_out_bytes: of(|usage| usage.block_out.saturating_mul(BLOCK)),
            voluntary_switches: of(|usage| usage.voluntary_switches),
            involuntary_switches: of(|usage| usage.involuntary_switches),
            resident_ratio: resident,
        }
    }
}

impl KindBench {
    /// Of the runs of one kind; `None` where all failed, or there is none.
    fn of(runs: &[&RunEntry]) -> Option<Self> {
        let good: Vec<&&RunEntry> = runs.iter().filter(|run| run.failed.is_none()).collect();
        let first = good.first()?;
        let mut labels: IndexMap<String, usize> = IndexMap::new();
        for label in good.iter().filter_map(|run| run.label.clone()) {
            *labels.entry(label).or_default() += 1;
        }
        let metrics = first.metrics.each().into_iter().filter_map(|(name, _)| {
            let sample: Vec<f64> = good.iter().filter_map(|run| run.metrics.get(name)).collect();
            Some((name.to_owned(), Summary::of(&sample)?))
        });
        Some(Self {
            n: good.len(),
            failed: runs.len() - good.len(),
            labels,
            metrics: metrics.collect(),
        })
    }

    /// The median of a metric; `None` also where it is not known of each run: what is
    /// not known is seldom like the rest.
    pub fn median(&self, metric: &str) -> Option<f64> {
        self.metrics.get(metric).filter(|summary| summary.n == self.n).map(|all| all.median)
    }

    /// Whether one of them is labelled so.
    pub fn any_is(&self, label: &str) -> bool {
        self.labels.get(label).is_some_and(|&n| n > 0)
    }
}

impl CommandBench {
    /// Of all runs of a command, in order.
    pub fn of(argv: Vec<String>, runs: Vec<RunEntry>) -> Self {
        let of = |kind: RunKind| {
            let runs: Vec<&RunEntry> = runs.iter().filter(|run| run.kind == kind).collect();
            KindBench::of(&runs)
        };
        let (cold, warm, traced) = (of(RunKind::Cold), of(RunKind::Warm), of(RunKind::Traced));
        let wall = |of: &Option<KindBench>| of.as_ref()?.median("wall_ns");
        Self {
            first: of(RunKind::First),
            syscalls: syscalls(&runs),
            traced_times_warm: wall(&traced)
                .zip(wall(&warm))
                .filter(|(_, warm)| *warm > 0.0)
                .map(|(traced, warm)| traced / warm),
            cold_vs_warm: cold.as_ref().zip(warm.as_ref()).and_then(|(c, w)| Difference::of(c, w)),
            outliers: [RunKind::Cold, RunKind::Warm]
                .into_iter()
                .flat_map(|kind| far_from_others(&runs, kind))
                .collect(),
            argv,
            runs,
            cold,
            warm,
            traced,
        }
    }

    /// The kinds that there are runs of which did not fail.
    pub fn kinds(&self) -> Vec<(RunKind, &KindBench)> {
        let kinds = [
            (RunKind::First, &self.first),
            (RunKind::Cold, &self.cold),
            (RunKind::Warm, &self.warm),
            (RunKind::Traced, &self.traced),
        ];
        kinds.into_iter().filter_map(|(kind, runs)| Some((kind, runs.as_ref()?))).collect()
    }

    /// Wall times of the runs of a kind that did not fail.
    fn walls(&self, kind: RunKind) -> Vec<f64> {
        let of_kind = self.runs.iter().filter(|run| run.kind == kind && run.failed.is_none());
        of_kind.filter_map(|run| run.metrics.get("wall_ns")).collect()
    }
}

impl Difference {
    fn of(cold: &KindBench, warm: &KindBench) -> Option<Self> {
        if !cold.any_is("cold") || !warm.any_is("warm") {
            return None;
        }
        let less = |metric| Some(cold.median(metric)? - warm.median(metric)?);
        let wall_ns = less("wall_ns")?;
        Some(Self {
            wall_ns,
            wall_share: warm.median("wall_ns").filter(|&w| w > 0.0).map(|warm| wall_ns / warm),
            user_ns: less("user_ns"),
            sys_ns: less("sys_ns"),
            off_cpu_ns: less("off_cpu_ns"),
        })
    }
}

/// Each further command against the first, cold and warm.
pub fn comparisons(commands: &[CommandBench]) -> Vec<Comparison> {
    let Some((first, others)) = commands.split_first() else { return Vec::new() };
    let mut all = Vec::new();
    for kind in [RunKind::Cold, RunKind::Warm] {
        for (command, other) in (1..).zip(others) {
            let (one, two) = (first.walls(kind), other.walls(kind));
            if one.is_empty() || two.is_empty() {
                continue;
            }
            let ratio = Ratio::of(&one, &two);
            let differs = ratio.map(|ratio| !ratio.spans_one());
            all.push(Comparison { command, kind, ratio, differs });
        }
    }
    all
}

/// Calls of the traced runs that did not fail; a syscall that one of them has not made
/// counts 0 there.
fn syscalls(runs: &[RunEntry]) -> Vec<SyscallCounts> {
    let traced: Vec<&RunEntry> =
        runs.iter().filter(|run| run.kind == RunKind::Traced && run.failed.is_none()).collect();
    let all = traced.iter().flat_map(|run| &run.calls);
    let names: BTreeSet<(&str, &str)> =
        all.map(|row| (row.name.as_str(), row.abi.as_str())).collect();
    let rows = names.into_iter().filter_map(|(name, abi)| {
        let each = |count: fn(&RunCalls) -> u64| -> Vec<u64> {
            let of_run = |run: &&RunEntry| {
                run.calls.iter().find(|row| row.name == name && row.abi == abi).map_or(0, count)
            };
            traced.iter().map(of_run).collect()
        };
        let (calls, errors) = (each(|row| row.calls), each(|row| row.errors));
        let counts = SyscallCounts {
            name: name.to_owned(),
            abi: abi.to_owned(),
            calls: Count::of(&calls)?,
            errors: Count::of(&errors)?,
        };
        Some((calls.iter().copied().max().unwrap_or(0), counts))
    });
    let mut rows: Vec<(u64, SyscallCounts)> = rows.collect();
    rows.sort_by_key(|(most, _)| std::cmp::Reverse(*most));
    rows.into_iter().map(|(_, row)| row).collect()
}

impl Count {
    fn of(counts: &[u64]) -> Option<Self> {
        let first = *counts.first()?;
        if counts.iter().all(|&count| count == first) {
            return Some(Self::Same(first));
        }
        let sample: Vec<f64> = counts.iter().map(|&count| count as f64).collect();
        Summary::of(&sample).map(Self::Varies)
    }
}

/// What is to be the same in all runs, and where it is found.
type Fact = (&'static str, fn(&Environment) -> Option<String>);

/// What is the same until the machine is booted anew.
const BOOT: Fact = ("boot id", |e| e.boot_id.clone());

const FACTS: [Fact; 5] = [
    ("kernel", |e| e.kernel_release.clone()),
    ("governor", |e| e.cpu_governor.clone()),
    ("transparent huge pages", |e| e.transparent_huge_pages.clone()),
    ("ASLR", |e| e.randomize_va_space.map(|n| n.to_string())),
    ("interpreter", |e| {
        let found = e.interpreter.as_ref()?;
        Some(format!("{} {}", found.path, found.version.clone().unwrap_or_default()))
    }),
];

/// How each warning about load begins.
pub(super) const LOAD: &str = "load ";

/// What was not the same in all runs, and what makes all of them doubtful.
pub fn warnings(runs: &[(String, Environment)]) -> Vec<String> {
    let mut warnings: Vec<String> = load(runs).into_iter().collect();
    warnings.extend(changed(runs, &BOOT));
    warnings.extend(changes(runs));
    warnings
}

/// What was not the same in all of them, or in all benches, but for the boot.
pub(super) fn changes(runs: &[(String, Environment)]) -> Vec<String> {
    FACTS.iter().filter_map(|fact| changed(runs, fact)).collect()
}

fn changed(runs: &[(String, Environment)], (name, fact): &Fact) -> Option<String> {
    // Of an interpreter nothing is known before a run was traced.
    let mut known = runs.iter().filter_map(|(run, e)| Some((run, fact(e)?)));
    let (_, before) = known.next()?;
    let (run, after) = known.find(|(_, after)| *after != before)?;
    Some(format!("{name} changed before {run}: {before}, then {after}"))
}

fn load(runs: &[(String, Environment)]) -> Option<String> {
    let (_, first) = runs.first()?;
    let cpus = first.cpus_allowed.or(first.cpus_online).unwrap_or(1) as f64;
    let load = |environment: &Environment| environment.load.map_or(0.0, |load| load[0]);
    let processors = counted(cpus as u64, "processor");
    if load(first) > cpus / 2.0 {
        return Some(format!(
            "{LOAD}was {:.1} on {processors} before the first run: other work makes times longer \
             and uneven",
            load(first)
        ));
    }
    let (name, busy) = runs.iter().find(|(_, at)| load(at) > cpus * 1.5)?;
    Some(format!(
        "{LOAD}rose to {:.1} on {processors} before {name}: other work, or the command's own",
        load(busy)
    ))
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
