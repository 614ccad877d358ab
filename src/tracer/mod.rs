//! The tracer: launches a command, follows all it creates, and tells
//! collectors what happened. It knows nothing of records, tables or options.
//!
//! `stop`, `task` and `tasks` decide and are pure; `engine` is the loop that
//! does what they say; `kernel`, `memory` and `arch` are its hands.

mod arch;
mod attach;
mod calibrate;
mod end;
mod engine;
mod error;
mod event;
#[cfg(target_arch = "x86_64")]
mod fast;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_fast.rs"]
mod fast;
mod inherited;
#[cfg(debug_assertions)]
mod inject;
mod inside;
mod kernel;
mod launch;
mod limits;
pub mod memory;
pub mod page_cache;
mod patience;
pub mod perf;
mod place;
mod privilege;
mod proc;
mod randomness;
mod repair;
#[cfg(debug_assertions)]
mod saved;
mod seccomp;
mod session;
mod signals;
mod stop;
mod task;
mod tasks;
mod untraced;
mod user;

pub use calibrate::Cost;
#[doc(hidden)] // The command line's own: no part of the tracer.
pub use end::{descriptor_limit, die_by, end_group, give_back};
pub use error::Error;
#[doc(hidden)]
pub use error::reason;
pub use event::{
    Call, CallTimes, Ending, Event, ImageId, Nanos, Observer, Outcome, ProcessId, ThreadId, Usage,
};
#[doc(hidden)]
pub use inherited::{ignore_failed_writes, was_closed};
pub use inside::{FastOptions, FastSummary};
pub use kernel::Schedule;
pub use launch::Command;
#[doc(hidden)]
pub use launch::high;
#[doc(hidden)]
pub use patience::patiently;
pub use place::Place;
pub use proc::{Link, Status, follow, is_there, open_descriptor, open_file, personality, real};
pub use seccomp::MAKING_IOCTLS;
pub use session::{Engines, FastState, FilterState, Options, Traced, attach, trace};
#[doc(hidden)]
pub use signals::{Held, block_all};
pub use untraced::{Ran, run_untraced};
pub use user::User;
