//! Where CPU time goes: samples of the command and of all that it starts, from
//! its exec on. A thread of its own takes them, since the command may make no
//! call for minutes; it makes no ptrace calls.

mod profile;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use crate::syscall::CallSet;
use crate::tracer::perf::{Sampler, Told};
use crate::tracer::{Event, Nanos, Observer, ProcessId, block_all, reason};

pub use profile::{Profile, ThreadSamples};

/// How often the kernel's buffers are emptied: they hold some seconds of samples,
/// and the mappings of a hundred programs.
const ROUND: Duration = Duration::from_millis(50);

/// What was sampled.
#[derive(Debug)]
pub struct Sampled {
    /// CPU time that one sample stands for.
    pub period: Nanos,
    /// Why the kernel's own are not among them.
    pub kernel_refused: Option<String>,
    /// The samples.
    pub profile: Profile,
}

/// The collector.
#[derive(Debug)]
pub struct CpuSampling {
    hz: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    /// There is no command yet.
    Waiting,
    /// Why nothing is sampled.
    Refused(String),
    /// What is dropped to end it, and the thread.
    Running(mpsc::Sender<()>, thread::JoinHandle<Sampled>),
}

impl CpuSampling {
    /// Samples a second where nothing else is asked for: some hundred of a start
    /// that is slow. The kernel sets its timer each time that a thread goes on,
    /// which is dear in a virtual machine if the next sample comes before the next
    /// tick: five times as many cost three times as much (`benches/cpu`).
    pub const USUAL_HZ: u32 = 199;

    /// A collector of so many samples a second of CPU time.
    pub fn new(hz: u32) -> Self {
        Self { hz, state: State::Waiting }
    }

    /// Samples a second that were asked for.
    pub fn hz(&self) -> u32 {
        self.hz
    }

    /// Ends it.
    ///
    /// # Errors
    /// Why there are no samples.
    pub fn finish(self) -> Result<Sampled, String> {
        match self.state {
            State::Waiting => Err("no command was started".into()),
            State::Refused(why) => Err(why),
            State::Running(end, thread) => {
                drop(end);
                thread.join().map_err(|_| "the thread that took them ended early".into())
            }
        }
    }

    /// The child of the launcher is there, and waits to execute the command.
    fn start(&mut self, pid: i32) -> Result<State, String> {
        let sampler = Sampler::open(pid, self.hz)?;
        let (end, ended) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("samples".into())
            .spawn(move || {
                block_all(); // They are the loop's.
                take(sampler, &ended)
            })
            .map_err(|e| format!("no thread to take samples: {}", reason(&e)))?;
        Ok(State::Running(end, thread))
    }
}

impl Observer for CpuSampling {
    fn each(&self) -> CallSet {
        CallSet::none()
    }

    fn event(&mut self, event: &Event) {
        if let Event::ProcessStarted { process: ProcessId(0), pid, .. } = *event {
            self.state = self.start(pid).unwrap_or_else(State::Refused);
        }
    }
}

/// Takes samples until `ended` is closed.
fn take(mut sampler: Sampler, ended: &mpsc::Receiver<()>) -> Sampled {
    let mut profile = Profile::default();
    let mut told: Vec<Told> = Vec::new();
    let mut before = 0;
    loop {
        let over = ended.recv_timeout(ROUND) != Err(RecvTimeoutError::Timeout);
        let begun = sampler.take(&mut told);
        // Each processor has a buffer: only what is older than the last round is
        // certain to be there of all, and can be put in order.
        let until = if over { Nanos::MAX } else { std::mem::replace(&mut before, begun) };
        told.sort_by_key(|told| told.at);
        let settled = told.partition_point(|told| told.at < until);
        for told in told.drain(..settled) {
            profile.tell(told);
        }
        if over {
            let Sampler { period, kernel_refused, .. } = sampler;
            return Sampled { period, kernel_refused, profile };
        }
    }
}
