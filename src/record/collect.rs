//! A whole record of one session: all collectors, and what they make together.

use crate::observe::{
    By, Counts, FirstOutput, Paths, Processes, Snapshot, Snapshots, Statuses, Which,
};
use crate::tracer::{Cost, Observer, Traced};

use super::build::Observed;
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
}

impl Default for Collect {
    fn default() -> Self {
        Self {
            statuses: Statuses::ALL,
            split: false,
            paths: true,
            resolve: false,
            snapshots: Which::Root,
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
        let mut observers: Vec<&mut dyn Observer> =
            vec![&mut counts, &mut processes, &mut snapshots, &mut output];
        if self.paths {
            observers.push(&mut paths);
        }
        let (traced, cost) = trace(&mut observers)?;
        let seen = Observed { traced: &traced, counts: &counts, processes: &processes, cost };
        let mut record = Record::of_traced(run, &seen);
        record.processes = Some(seen.process_list());
        record.outcome.wall_ns = record.outcome.wall_ns.saturating_sub(snapshots.spent);
        record.outcome.first_output_ns = output.at.map(|at| at.saturating_sub(traced.started));
        if self.snapshots != Which::Off {
            let parse = |snapshot| ProcSnapshot::of(snapshot, traced.started);
            record.proc = Some(snapshots.taken.iter().map(parse).collect());
        }
        if self.paths {
            record.outcome.wall_ns = record.outcome.wall_ns.saturating_sub(paths.spent);
            paths.finish();
            let mut mapped = MappedFile::all(&paths, traced.started);
            let root = record.proc.iter().flatten().find(|snapshot| snapshot.process == 0);
            if let Some(objects) = root.and_then(|root| root.objects.as_deref()) {
                MappedFile::add_memory(&mut mapped, objects);
            }
            record.mapped = Some(mapped);
            record.files = Some(Files::of(&paths, traced.started));
        }
        Ok(Collected { record, traced, root: snapshots.into_root() })
    }
}
