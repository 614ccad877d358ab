//! Looking at a file system by name may wait for whoever serves it. Where that
//! is a process that stands still for us (a FUSE server in the tree), it would
//! wait for ever.

use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use super::signals::block_all;

type Job = Box<dyn FnOnce() + Send>;

/// The thread that looks.
enum Worker {
    None,
    Ready(mpsc::Sender<Job>),
    /// It waits for an answer that did not come in time: no other is asked for.
    Stuck,
}

static WORKER: Mutex<Worker> = Mutex::new(Worker::None);

/// The answer of a look, done by another thread; `None` when it takes longer
/// than half a second, and ever after.
pub fn patiently<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    const PATIENCE: Duration = Duration::from_millis(500);
    let mut worker = WORKER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Worker::None = *worker {
        *worker = start()?;
    }
    let Worker::Ready(jobs) = &*worker else { return None };
    let (tell, told) = mpsc::channel();
    let job = move || {
        let _ = tell.send(look()); // Nobody waits any more.
    };
    jobs.send(Box::new(job)).ok()?;
    let answer = told.recv_timeout(PATIENCE).ok();
    if answer.is_none() {
        *worker = Worker::Stuck;
    }
    answer
}

fn start() -> Option<Worker> {
    let (jobs, to_do) = mpsc::channel::<Job>();
    let looking = thread::Builder::new().name("look".into()).spawn(move || {
        block_all(); // They are the loop's.
        for job in to_do {
            job();
        }
    });
    looking.ok().map(|_| Worker::Ready(jobs))
}
