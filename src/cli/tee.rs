//! The command's output, kept and shown: a thread a stream.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coldtrace::record::Record;
use coldtrace::tracer::{Held, block_all, high, reason};

use super::end::Failure;
use super::output::{reader_has_gone, write_all};

/// How long an empty pipe is waited for when the command has ended: somebody
/// outside its tree may hold it open. A slow reader has all the time it takes.
const PATIENCE: Duration = Duration::from_millis(500);

/// Both streams.
#[derive(Debug)]
pub struct Tee {
    streams: [Stream; 2],
}

#[derive(Debug)]
struct Stream {
    name: &'static str,
    thread: JoinHandle<()>,
    bytes: Arc<AtomicU64>,
    /// It waits for the command to write.
    idle: Arc<AtomicBool>,
    /// What went wrong with the log.
    failure: Arc<Mutex<Option<io::Error>>>,
}

impl Tee {
    /// Starts both; the descriptors are what the command is to write to.
    pub fn start(stdout: File, stderr: File) -> Result<(Self, OwnedFd, OwnedFd), Failure> {
        let (out, out_end) = Stream::start("stdout.log", stdout, io::stdout())?;
        let (err, err_end) = Stream::start("stderr.log", stderr, io::stderr())?;
        Ok((Self { streams: [out, err] }, out_end, err_end))
    }

    /// Waits for the rest of the output and notes how much there was. What went
    /// wrong comes back, a line each.
    pub fn finish(self, record: &mut Record, held: &Held) -> Vec<String> {
        let mut failures = Vec::new();
        let begun = Instant::now();
        for stream in &self.streams {
            // Only the time counts in which nothing came and nothing was shown.
            let mut idle_since = Instant::now();
            let mut last = stream.bytes.load(Relaxed);
            while !stream.thread.is_finished() && idle_since.elapsed() < PATIENCE {
                // A descendant that was let go may write for ever.
                let caught_up = stream.idle.load(Relaxed);
                if held.is_end_asked() || (caught_up && begun.elapsed() > 2 * PATIENCE) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
                let bytes = stream.bytes.load(Relaxed);
                if bytes != last || !stream.idle.load(Relaxed) {
                    (idle_since, last) = (Instant::now(), bytes);
                }
            }
            if !stream.thread.is_finished() {
                record.measurement.notes.push(format!(
                    "{}: somebody still holds the stream open, what came later is not kept",
                    stream.name
                ));
            }
            let failure = stream.failure.lock().ok().and_then(|mut f| f.take());
            if let Some(e) = failure {
                failures.push(format!(
                    "{}, or what was shown of it, is not complete: {}",
                    stream.name,
                    reason(&e)
                ));
            }
        }
        let [out, err] = self.streams.map(|s| Some(s.bytes.load(Relaxed)));
        (record.outcome.stdout_bytes, record.outcome.stderr_bytes) = (out, err);
        failures
    }
}

impl Stream {
    fn start(
        name: &'static str,
        log: File,
        show: impl Write + Send + 'static,
    ) -> Result<(Self, OwnedFd), Failure> {
        let fail = |e: io::Error| Failure::own(format_args!("cannot make a pipe: {}", reason(&e)));
        let (read, write) = io::pipe().map_err(fail)?;
        let (read, write) = (high(&read)?, high(&write)?);
        let bytes = Arc::new(AtomicU64::new(0));
        let failure = Arc::new(Mutex::new(None));
        let idle = Arc::new(AtomicBool::new(false));
        let (count, failed) = (Arc::clone(&bytes), Arc::clone(&failure));
        let waits = Arc::clone(&idle);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                block_all();
                if let Some(e) = copy(File::from(read), log, show, &count, &waits)
                    && let Ok(mut slot) = failed.lock()
                {
                    *slot = Some(e);
                }
            })
            .map_err(fail)?;
        Ok((Self { name, thread, bytes, idle, failure }, write))
    }
}

/// Copies until the end. When nobody reads what is shown, the pipe is closed,
/// so that the command learns of it as it would have without us. A full disk
/// ends the log, not the output.
fn copy(
    mut from: File,
    log: File,
    mut show: impl Write,
    count: &AtomicU64,
    idle: &AtomicBool,
) -> Option<io::Error> {
    let mut log = Some(log);
    let mut failure = None;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        idle.store(true, Relaxed);
        let read = from.read(&mut buffer);
        idle.store(false, Relaxed);
        let n = match read {
            Ok(0) => return failure,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Some(e),
        };
        let data = buffer.get(..n).unwrap_or_default();
        count.fetch_add(n as u64, Relaxed);
        if let Some(Err(e)) = log.as_mut().map(|log| log.write_all(data)) {
            log = None;
            failure = Some(e);
        }
        match write_all(&mut show, data) {
            Err(e) if !reader_has_gone(&e) => return failure.or(Some(e)),
            Err(_) => return failure,
            Ok(()) => {}
        }
    }
}
