//! The `cpu` part of a record: where CPU time went, by samples.

use std::collections::HashMap;

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::{CpuSampling, Processes, Profile, Sampled, ThreadSamples};
use crate::tracer::{Nanos, ProcessId};

/// On-CPU samples of every process of the tree, from the command's exec on. All
/// but `[kernel]` is time outside of calls. Numbers are null where nothing was
/// sampled; then `reason` says why.
///
/// A sample is one stroke of a clock that each thread has to itself, which runs
/// while the thread is on a processor: estimates are good to some strokes for
/// each thread, and a process that lives for less than one is not seen; nor is a
/// program that its user may not read (set-user-id ones too). What the kernel
/// does for the tracer when a thread stops is in `[kernel]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuSamples {
    /// Why there are none.
    pub reason: Option<String>,
    /// `cpu-clock`: the software clock of perf_event_open(2).
    pub clock: String,
    /// Samples a second of CPU time that were asked for.
    pub frequency_hz: u64,
    /// CPU time that one sample stands for.
    pub period_ns: Option<u64>,
    /// Whether those in the kernel are among them.
    pub kernel: Option<bool>,
    /// Why they are not.
    pub kernel_reason: Option<String>,
    /// Samples taken.
    pub samples: Option<u64>,
    /// Records for which the kernel had no room: samples, and what was mapped.
    pub lost: Option<u64>,
    /// What was hit, most first.
    pub objects: Option<Vec<CpuObject>>,
    /// Threads that were hit, most first.
    pub threads: Option<Vec<CpuThread>>,
}

/// Samples of one mapped object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuObject {
    /// A file's path as the process had it mapped, symbolic links followed;
    /// invalid UTF-8 replaced. `[kernel]`; `[vdso]`; `[anonymous]`: memory of no
    /// file, such as a compiler at run time writes; `[guest]`: below a hypervisor;
    /// `[unknown]`: its mapping was not told.
    pub object: String,
    /// Samples in it.
    pub samples: u64,
    /// CPU time in it: `samples` times `period_ns`.
    pub estimated_ns: u64,
}

/// Samples of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CpuThread {
    /// Its process: an id of `processes`; null where that is not known.
    pub process: Option<u64>,
    /// Thread id, as the tracer saw it then: a thread that executes a program
    /// takes its leader's.
    pub tid: i32,
    /// Samples of it.
    pub samples: u64,
    /// Those in the kernel; null where the kernel's are not taken.
    pub kernel_samples: Option<u64>,
    /// CPU time: `samples` times `period_ns`.
    pub estimated_ns: u64,
    /// What was hit, most first.
    pub objects: Vec<CpuObject>,
}

impl CpuSamples {
    /// None were taken, for this reason.
    pub fn none(hz: u32, reason: impl Into<String>) -> Self {
        Self {
            reason: Some(reason.into()),
            clock: "cpu-clock".into(),
            frequency_hz: hz.into(),
            ..Self::default()
        }
    }

    /// What was sampled of these processes.
    pub fn of(sampling: CpuSampling, processes: &Processes) -> Self {
        let hz = sampling.hz();
        let sampled = match sampling.finish() {
            Ok(sampled) => sampled,
            Err(reason) => return Self::none(hz, reason),
        };
        let Sampled { period, kernel_refused, profile } = sampled;
        let kernel = kernel_refused.is_none();
        let threads = threads(&profile, processes, period, kernel);
        let mut all = Tally::default();
        for object in threads.iter().flat_map(|thread| &thread.objects) {
            all.add(object.object.clone(), object.samples);
        }
        Self {
            reason: None,
            period_ns: Some(period),
            kernel: Some(kernel),
            kernel_reason: kernel_refused,
            samples: Some(all.sum()),
            lost: Some(profile.lost),
            objects: Some(all.objects(period)),
            threads: Some(threads),
            ..Self::none(hz, "")
        }
    }
}

/// Samples by object.
#[derive(Debug, Default)]
struct Tally(IndexMap<String, u64>);

impl Tally {
    fn add(&mut self, object: String, samples: u64) {
        *self.0.entry(object).or_default() += samples;
    }

    fn sum(&self) -> u64 {
        self.0.values().sum()
    }

    /// Most first, then by name: the order is always the same.
    fn objects(self, period: Nanos) -> Vec<CpuObject> {
        let object = |(object, samples): (String, u64)| CpuObject {
            object,
            samples,
            estimated_ns: samples.saturating_mul(period),
        };
        let mut objects: Vec<CpuObject> = self.0.into_iter().map(object).collect();
        objects.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.object.cmp(&b.object)));
        objects
    }
}

fn threads(
    profile: &Profile,
    processes: &Processes,
    period: Nanos,
    kernel: bool,
) -> Vec<CpuThread> {
    let ids = Ids::of(processes);
    let mut tallies: HashMap<(Option<u64>, i32), Tally> = HashMap::new();
    for thread in profile.threads() {
        let tally = tallies.entry((ids.get(thread), thread.tid)).or_default();
        for (object, samples) in profile.objects(thread) {
            tally.add(String::from_utf8_lossy(object).into_owned(), samples);
        }
    }
    let in_kernel = String::from_utf8_lossy(Profile::KERNEL);
    let thread = |((process, tid), tally): ((Option<u64>, i32), Tally)| {
        let samples = tally.sum();
        CpuThread {
            process,
            tid,
            samples,
            kernel_samples: kernel.then(|| tally.0.get(&*in_kernel).copied().unwrap_or(0)),
            estimated_ns: samples.saturating_mul(period),
            objects: tally.objects(period),
        }
    };
    let mut threads: Vec<CpuThread> = tallies.into_iter().map(thread).collect();
    threads.sort_by_key(|t| (std::cmp::Reverse(t.samples), t.process, t.tid));
    threads
}

/// Which processes had a pid, and when they ended.
struct Ids(HashMap<i32, Vec<(Nanos, ProcessId)>>);

impl Ids {
    fn of(processes: &Processes) -> Self {
        let mut ids: HashMap<i32, Vec<(Nanos, ProcessId)>> = HashMap::new();
        for (id, process) in &processes.processes {
            ids.entry(process.pid).or_default().push((process.end.unwrap_or(Nanos::MAX), *id));
        }
        for same in ids.values_mut() {
            same.sort();
        }
        Self(ids)
    }

    /// Whose thread it was. A pid comes again only after the tracer was told of
    /// the end, so that it was the first process with this pid which had not
    /// ended; one that was let go runs on after what is noted as its end.
    fn get(&self, thread: &ThreadSamples) -> Option<u64> {
        let same = self.0.get(&thread.pid)?;
        let alive = same.iter().find(|(end, _)| *end >= thread.first);
        alive.or(same.last()).map(|(_, id)| id.0.into())
    }
}

#[cfg(test)]
mod tests {
    use crate::tracer::perf::{Place, Told, What};
    use crate::tracer::{Ending, Event, ImageId, Observer, ThreadId};

    use super::*;

    fn started(id: u32, pid: i32, at: Nanos) -> Event {
        Event::ProcessStarted {
            process: ProcessId(id),
            thread: ThreadId(id),
            pid,
            parent: None,
            by: None,
            image: ImageId(0),
            vfork: false,
            at,
        }
    }

    fn ended(id: u32, ending: Ending, at: Nanos) -> Event {
        let process = ProcessId(id);
        Event::ProcessEnded { process, ending, own: None, with_children: None, at }
    }

    #[test]
    fn a_pid_is_the_process_that_had_it_then() {
        let mut processes = Processes::names();
        for event in [
            started(0, 7, 10),
            // The samples of a process begin before the tracer is told of it.
            started(1, 8, 20),
            ended(1, Ending::Exited(0), 30),
            started(2, 8, 40),
            ended(2, Ending::Exited(0), 50),
            ended(0, Ending::Detached, 60),
        ] {
            processes.event(&event);
        }
        let mut profile = Profile::default();
        for (pid, at) in [(7, 12), (8, 19), (8, 39), (7, 70), (9, 70)] {
            if pid == 8 {
                let what = What::Forked { pid, parent: 7, thread: false };
                profile.tell(Told { at: at - 1, what });
            }
            let what = What::Sample { pid, tid: pid, place: Place::Kernel };
            profile.tell(Told { at, what });
        }
        let threads = threads(&profile, &processes, 1000, true);
        let found: Vec<_> = threads.iter().map(|t| (t.process, t.tid, t.samples)).collect();
        assert_eq!(found, [(Some(0), 7, 2), (None, 9, 1), (Some(1), 8, 1), (Some(2), 8, 1)]);
        assert_eq!(threads[0].estimated_ns, 2000);
        assert_eq!(threads[0].kernel_samples, Some(2));
        let without = super::threads(&profile, &processes, 1000, false);
        assert!(without.iter().all(|t| t.kernel_samples.is_none()), "{without:?}");
    }
}
