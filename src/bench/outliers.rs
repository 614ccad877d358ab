//! Runs that are far from the others of their kind, and why, where that shows. Pure.

use std::collections::HashSet;

use crate::render::{bytes, counted, time};

use super::schedule::RunKind;
use super::stats::{Summary, outliers};
use super::types::{Metrics, Outlier, RunEntry};

/// A run is named as far from the others when it is so by this part of the median wall
/// time: of a hundredth more nobody asks why.
const WORTH_NAMING: f64 = 0.05;

/// User and sys together. The kernel knows their sum, and shares it by the ticks that it
/// saw: how much of it is which is rough.
const CPU: &str = "cpu_ns";

fn value(of: &Metrics, metric: &str) -> Option<f64> {
    match metric {
        CPU => Some(of.get("user_ns")? + of.get("sys_ns")?),
        _ => of.get(metric),
    }
}

/// Runs of a kind that are far from the others; each once, by what says most.
pub(super) fn far_from_others(runs: &[RunEntry], kind: RunKind) -> Vec<Outlier> {
    let runs = runs.iter().filter(|run| run.kind == kind && run.failed.is_none());
    let runs = Runs(runs.collect());
    let mut named = HashSet::new();
    let mut found = Vec::new();
    for metric in ["off_cpu_ns", CPU, "wall_ns"] {
        let (Some(median), Some(least)) = (runs.median(metric), runs.worth_naming()) else {
            continue;
        };
        let sample = runs.sample(metric);
        for at in outliers(&sample) {
            let (Some(&run), Some(&value)) = (runs.0.get(at), sample.get(at)) else { continue };
            if (value - median).abs() >= least && named.insert(&run.run) {
                found.push(Outlier {
                    run: run.run.clone(),
                    kind,
                    number: run.number,
                    metric: metric.to_owned(),
                    value,
                    median,
                    cause: runs.cause(run, metric, value - median),
                });
            }
        }
    }
    found
}

/// The runs of a kind that did not fail.
struct Runs<'a>(Vec<&'a RunEntry>);

impl Runs<'_> {
    /// Nothing where it is not known of each run.
    fn sample(&self, metric: &str) -> Vec<f64> {
        let all: Option<Vec<f64>> = self.0.iter().map(|run| value(&run.metrics, metric)).collect();
        all.unwrap_or_default()
    }

    fn median(&self, metric: &str) -> Option<f64> {
        Summary::of(&self.sample(metric)).map(|all| all.median)
    }

    fn worth_naming(&self) -> Option<f64> {
        Some(self.median("wall_ns")? * WORTH_NAMING)
    }

    /// Why a run took so much more than the median, ns, where that shows: by what it had
    /// more of than the others.
    fn cause(&self, run: &RunEntry, metric: &str, more: f64) -> Option<String> {
        if more <= 0.0 {
            return None;
        }
        let above = |metric: &str| Some(value(&run.metrics, metric)? - self.median(metric)?);
        // Neither the wait for a disk nor that for a processor is CPU time.
        let waits = metric != CPU;
        // And who computes more waits more, without anybody else.
        let computed = above(CPU).zip(self.worth_naming()).is_none_or(|(cpu, least)| cpu >= least);
        let queued = above("run_queue_ns").filter(|&queued| queued >= more / 2.0);
        if let (true, Some(_), Some(queued)) =
            (waits && !computed, queued, run.metrics.run_queue_ns)
        {
            return Some(format!("{} waiting for a CPU: {}", time(queued), self.load()));
        }
        let read = above("block_in_bytes").filter(|&read| read >= (1 << 20) as f64);
        if let (true, Some(_), Some(read)) = (waits, read, run.metrics.block_in_bytes) {
            return Some(format!("{} read", bytes(read)));
        }
        if let Some(written) = run.bytecode_written.filter(|&n| n as f64 > self.bytecode()) {
            return Some(format!("{} of bytecode written", counted(written, "file")));
        }
        // A slice of a busy processor is a few ms.
        let switches = above("involuntary_switches").filter(|&switches| switches * 1e7 >= more);
        let switches = switches.and(run.metrics.involuntary_switches)?;
        let switches = (waits && !computed).then_some(switches)?;
        Some(format!("{}: {}", counted(switches, "involuntary switch"), self.load()))
    }

    /// Who took the processors: where more than one of them worked for the command, its
    /// own processes may have.
    fn load(&self) -> &'static str {
        match self.median(CPU).zip(self.median("wall_ns")) {
            Some((cpu, wall)) if cpu <= wall => "other load",
            _ => "other load, or its own processes",
        }
    }

    /// How many files of bytecode a run of them writes.
    fn bytecode(&self) -> f64 {
        let known = self.0.iter().filter_map(|run| run.bytecode_written);
        let sample: Vec<f64> = known.map(|n| n as f64).collect();
        Summary::of(&sample).map_or(0.0, |all| all.median)
    }
}
