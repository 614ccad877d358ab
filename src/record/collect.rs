//! A whole record of one session: all collectors, and what they make together.

use crate::observe::{
    By, Counts, CpuSampling, FirstOutput, Paths, Processes, Snapshot, Snapshots, Statuses, Waits,
    Which,
};
use crate::tracer::{Cost, Observer, Traced};

use super::build::Observed;
use super::cpu::CpuSamples;
use super::files::{Files, MappedFile};
use super::proc::ProcSnapshot;
use super::types::{Record, Run};

/// What a record is to hold, beside what every record does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Collect {
    /// Which calls count, by outcome.
    pub statuses: Statuses,
    /// Operations of one syscall apart.
    pub split: bool,
    /// All calls are watched: only then is a listing of paths one.
    pub paths: bool,
    /// Of each opened path where it led.
    pub resolve: bool,
    /// Whose /proc is read at the end.
    pub snapshots: Which,
    /// Samples a second of CPU time, 1 to 10000; `None`: none are taken.
    pub cpu_samples: Option<u32>,
}

impl Default for Collect {
    fn default() -> Self {
        Self {
            statuses: Statuses::ALL,
            split: false,
            paths: true,
            resolve: false,
            snapshots: Which::Root,
            cpu_samples: Some(CpuSampling::USUAL_HZ),
        }
    }
}

/// A session, and what was collected of it.
#[derive(Debug)]
pub struct Collected {
    /// The record.
    pub record: Record,
    /// The session.
    pub traced: Traced,
    /// What /proc said of the root at its end, as it was read.
    pub root: Option<Snapshot>,
}

impl Collect {
    /// Lets `trace` feed the collectors, and makes the record of `run`.
    ///
    /// # Errors
    /// Those of `trace`.
    pub fn from<E>(
        &self,
        run: Run,
        trace: impl FnOnce(&mut [&mut dyn Observer]) -> Result<(Traced, Option<Cost>), E>,
    ) -> Result<Collected, E> {
        let mut counts = Counts::new(By::Process, self.split, self.statuses);
        let mut processes = Processes::full();
        let mut paths = Paths::new(self.resolve);
        let mut snapshots = Snapshots::new(self.snapshots);
        let mut output = FirstOutput::default();
        let mut waits = Waits::default();
        let mut observers: Vec<&mut dyn Observer> =
            vec![&mut waits, &mut counts, &mut processes, &mut snapshots, &mut output];
        if self.paths {
            observers.push(&mut paths);
        }
        // Of a process that runs already what is mapped would not be told.
        let attached = !run.attached.is_empty();
        let mut cpu = self.cpu_samples.filter(|_| !attached).map(CpuSampling::new);
        if let Some(cpu) = &mut cpu {
            observers.push(cpu);
        }
        let (traced, cost) = trace(&mut observers)?;
        let waits = Some(&waits);
        let seen =
            Observed { traced: &traced, counts: &counts, processes: &processes, waits, cost };
        let mut record = Record::of_traced(run, &seen);
        record.processes = Some(seen.process_list());
        // The command did not need that time, and where it ended last, neither did the tree.
        let stretched = record.outcome.wall_ns;
        record.outcome.wall_ns = stretched.saturating_sub(snapshots.spent);
        if let Some(tree) = &mut record.tree
            && tree.wall_ns.is_some_and(|wall| wall <= stretched)
        {
            tree.wall_ns = Some(record.outcome.wall_ns);
        }
        record.outcome.first_output_ns = output.at.map(|at| at.saturating_sub(traced.started));
        record.cpu = match (cpu, self.cpu_samples) {
            (Some(cpu), _) => Some(CpuSamples::of(cpu, &processes)),
            (None, Some(hz)) => Some(CpuSamples::none(
                hz,
                "processes that were attached to are not sampled, only commands that are started",
            )),
            (None, None) => None,
        };
        if self.snapshots != Which::Off {
            let parse = |snapshot| ProcSnapshot::of(snapshot, traced.started);
            record.proc = Some(snapshots.taken.iter().map(parse).collect());
        }
        if self.paths {
            paths.finish();
            record.mapped = Some(MappedFile::all(&paths, traced.started));
            record.files = Some(Files::of(&paths, traced.started));
        }
        Ok(Collected { record, traced, root: snapshots.into_root() })
    }
}
