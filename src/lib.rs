//! coldtrace: what a command asks of the kernel. Exact counts of its calls over
//! its whole tree, and one record of the run.
//!
//! The parts, each knowing only those before it: [`syscall`] names calls,
//! [`tracer`] runs a command and says what happens, [`observe`] collects,
//! [`record`] is what is kept, [`render`] makes text of it.
//!
//! [`Tracer`] does all of it:
//!
//! ```standalone_crate
//! let record = coldtrace::Tracer::command(["true"]).run()?;
//! assert_eq!(record.outcome.exit_code, Some(0));
//! println!("{}", coldtrace::render::show(&record, 80));
//! # Ok::<(), coldtrace::tracer::Error>(())
//! ```
//!
//! With a collector of one's own:
//!
//! ```no_run
//! use coldtrace::observe::{By, Counts, Statuses};
//! use coldtrace::tracer::{Command, Options, trace};
//!
//! let command = Command::new(vec!["ls".into(), "-l".into()]);
//! let options = Options::default();
//! let mut counts = Counts::new(By::All, false, Statuses::ALL);
//! let traced = trace(&command, &options, &mut [&mut counts])?;
//! for (key, tally) in counts.tallies() {
//!     println!("{} {}", tally.calls, key.sys);
//! }
//! println!("ended: {:?}", traced.ending);
//! # Ok::<(), coldtrace::tracer::Error>(())
//! ```

pub mod bench;
pub mod cache;
pub mod check;
mod checker;
mod importtime;
pub mod observe;
pub mod record;
mod recorder;
pub mod render;
mod scratch;
pub mod syscall;
pub mod tracer;

pub use checker::{CaseError, CaseRun, Checker};
pub use importtime::{importtime, why_not_again};
pub use recorder::Tracer;
pub use scratch::Scratch;
