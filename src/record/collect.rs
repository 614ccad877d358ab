//! A whole record of one session: all collectors, and what they make together.

use std::path::Path;

use crate::observe::{
    By, Counts, CpuSampling, FirstOutput, Moment, Network, Paths, Processes, Reaped, RegionSpec,
    Regions, Setting, SharedTimeline, Snapshot, Snapshots, Statuses, Waits, Which,
};
use crate::syscall::CallSet;
use crate::tracer::{Cost, Observer, ProcessId, Traced};

use super::build::Observed;
use super::cpu::CpuSamples;
use super::files::{Files, MappedFile};
use super::network::NetworkRow;
use super::proc::ProcSnapshot;
use super::regions::Region;
use super::types::{MemorySample, Platform, Process, Record, Run, Stdio};

/// What a record is to hold, beside what every record does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Collect {
    /// Which calls count, by outcome.
    pub statuses: Statuses,
    /// Operations of one syscall apart.
    pub split: bool,
    /// Which calls are watched. Of some only, a listing of paths would not be one.
    pub calls: CallSet,
    /// Of each opened path where it led.
    pub resolve: bool,
    /// Whose /proc is read at the end.
    pub snapshots: Which,
    /// At what else.
    pub moments: Vec<Moment>,
    /// Regions between two moments, beside those that the program marks.
    pub regions: Vec<RegionSpec>,
    /// Samples a second of CPU time, 1 to 10000; `None`: none are taken.
    pub cpu_samples: Option<u32>,
}

impl Default for Collect {
    fn default() -> Self {
        Self {
            statuses: Statuses::ALL,
            split: false,
            calls: CallSet::all(),
            resolve: false,
            snapshots: Which::Root,
            cpu_samples: Some(CpuSampling::USUAL_HZ),
            moments: Vec::new(),
            regions: Vec::new(),
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
    /// What /proc said, as it was read: those of the record's `proc`, in its order.
    pub snapshots: Vec<Snapshot>,
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
        let timeline = SharedTimeline::default();
        let counts = Counts::new(By::Process, self.split, self.statuses);
        let mut counts = counts.within(timeline.clone());
        let mut processes = Processes::full();
        let mut paths = Paths::new(self.resolve).within(timeline.clone());
        let mut snapshots = Snapshots::new(self.snapshots, &self.moments);
        let mut output = FirstOutput::default();
        let mut setting = Setting::default();
        let mut waits = Waits::new(self.calls.clone());
        let mut observers: Vec<&mut dyn Observer> =
            vec![&mut waits, &mut counts, &mut processes, &mut snapshots, &mut output];
        if self.calls.is_all() {
            observers.push(&mut paths);
        }
        let mut reaped = Reaped::default();
        // Of a process that runs already who waited before is not known.
        let sees_waits = self.calls.is_all() && run.attached.is_empty();
        if sees_waits {
            observers.push(&mut reaped);
        }
        let mut network = Network::new(timeline.clone());
        let sees_network = Network::calls().intersection(&self.calls) == Network::calls();
        if sees_network {
            observers.push(&mut network);
        }
        // Of a process that runs already what is mapped would not be told.
        let attached = !run.attached.is_empty();
        if !attached {
            observers.push(&mut setting);
        }
        let mut cpu = self.cpu_samples.filter(|_| !attached).map(CpuSampling::new);
        if let Some(cpu) = &mut cpu {
            observers.push(cpu);
        }
        let mut regions = Regions::around(observers, &self.calls, &self.regions, timeline.clone());
        let (traced, cost) = trace(&mut [&mut regions])?;
        regions.finish(traced.ended);
        let waits = Some(&waits);
        let seen =
            Observed { traced: &traced, counts: &counts, processes: &processes, waits, cost };
        let mut record = Record::of_traced(run, &seen);
        record.processes = Some(seen.process_list());
        for process in record.processes.iter_mut().flatten().filter(|_| sees_waits) {
            process.unwaited = !reaped.is_counted(ProcessId(process.id as u32));
        }
        let spent = snapshots.spent.saturating_add(paths.spent).saturating_add(setting.spent);
        record.take_off(spent);
        record.end_with_the_run();
        let wall = record.tree.as_ref().and_then(|tree| tree.wall_ns);
        record.regions = Region::all(&timeline.borrow(), &counts, wall);
        record.measurement.notes.extend(Region::notes(&timeline.borrow()));
        record.network = sees_network.then(|| NetworkRow::all(&network, &timeline.borrow()));
        record.measurement.notes.extend(out_of_reach(&record));
        // The end has more taken off than what was looked at before.
        let wall = record.outcome.wall_ns;
        let since =
            |at: u64| at.saturating_sub(traced.started).saturating_sub(snapshots.spent_before(at));
        record.outcome.first_output_ns = output.at.map(|at| since(at).min(wall));
        record.describe(&setting);
        record.cpu = match (cpu, self.cpu_samples) {
            (Some(cpu), _) => Some(CpuSamples::of(cpu, &processes)),
            (None, Some(hz)) => Some(CpuSamples::none(
                hz,
                "processes that were attached to are not sampled, only commands that are started",
            )),
            (None, None) => None,
        };
        let has_proc = Path::new("/proc/self").exists();
        if !has_proc {
            let why =
                "/proc is not mounted: memory, mappings and whose files they were are not known";
            record.measurement.notes.push(why.into());
        }
        if self.snapshots != Which::Off || !self.moments.is_empty() {
            let parse = |snapshot| ProcSnapshot::of(snapshot, traced.started);
            let proc: Vec<ProcSnapshot> = snapshots.taken.iter().map(parse).collect();
            add_samples(record.processes.as_deref_mut().unwrap_or_default(), &proc);
            record.measurement.notes.extend(not_taken(&snapshots));
            record.proc = Some(proc);
        }
        if self.calls.is_all() {
            paths.finish();
            let mut mapped = MappedFile::all(&paths, traced.started);
            let mut all = record.proc.iter().flatten();
            let root = all.find(|snapshot| snapshot.process == 0 && snapshot.is_of_end());
            if let Some(objects) = root.and_then(|root| root.objects.as_deref()) {
                MappedFile::add_memory(&mut mapped, objects);
            }
            record.mapped = has_proc.then_some(mapped);
            record.files = Some(Files::of(&paths, traced.started));
        }
        Ok(Collected { record, traced, snapshots: snapshots.taken })
    }
}

impl Record {
    /// Adds what the command was started with and runs on.
    fn describe(&mut self, setting: &Setting) {
        if !setting.started {
            return;
        }
        let [stdin, stdout, stderr] = setting.streams.map(|kind| kind.map(str::to_owned));
        self.run.stdio = Some(Stdio { stdin, stdout, stderr });
        self.run.aslr = setting.aslr;
        self.platform = Some(Platform {
            arch: setting.abi.map(|abi| abi.name().to_owned()),
            os: "linux".into(),
            libc: setting.libc.map(str::to_owned),
            libc_version: setting.libc_version.clone(),
        });
    }
}

/// What nobody sees who watches calls.
fn out_of_reach(record: &Record) -> Option<String> {
    let mut enters = record.syscalls.iter().flatten().filter(|row| row.name == "io_uring_enter");
    let used = enters.any(|row| row.calls > row.error_count());
    used.then(|| "io_uring was used: what it did is not in files, network and calls".to_owned())
}

/// Memory at each snapshot that was asked for, among what is known of it already.
fn add_samples(processes: &mut [Process], proc: &[ProcSnapshot]) {
    for snapshot in proc.iter().filter(|snapshot| !snapshot.is_of_end()) {
        let Some(process) = processes.iter_mut().find(|p| p.id == snapshot.process) else {
            continue;
        };
        let memory = snapshot.memory.clone().unwrap_or_default();
        process.memory.push(MemorySample {
            at_ns: snapshot.at_ns,
            event: format!("snapshot:{}", snapshot.event),
            anon_bytes: memory.anon_bytes,
            file_bytes: memory.file_bytes,
            shmem_bytes: memory.shmem_bytes,
        });
    }
    for process in processes {
        process.memory.sort_by_key(|sample| sample.at_ns);
    }
}

/// Why there are fewer snapshots than were asked for.
fn not_taken(snapshots: &Snapshots) -> Vec<String> {
    let missed =
        snapshots.missed().map(|moment| format!("no snapshot at {}: it never came", moment.text()));
    let refused = Some(snapshots.refused)
        .filter(|&n| n > 0)
        .map(|n| format!("{n} more snapshots were not taken: those before hold more than 64 MiB"));
    missed.chain(refused).collect()
}
