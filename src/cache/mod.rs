//! How cold a run was: which files a command reads ([`WorkingSet`]), how much of
//! them is in memory ([`Residency`]), getting them out of it ([`Eviction`]), and the
//! label that this gives a run ([`Signals::label`]).
//!
//! ```no_run
//! use coldtrace::cache::{Observation, WorkingSet};
//!
//! # let record = coldtrace::Tracer::command(["true"]).run()?;
//! let Some(set) = WorkingSet::of(&record) else { return Ok(()) };
//! let mapped = set.mapped();
//! let eviction = set.evict(&mapped);
//! // ... the command runs, and wait4(2) says what it used ...
//! let after = set.measure();
//! let state = Observation {
//!     set: Some(&set),
//!     mapped: Some(&mapped),
//!     eviction: Some(&eviction),
//!     after: Some(&after),
//!     block_input_bytes: Some(62_914_560),
//!     major_faults: Some(12),
//!     ..Observation::default()
//! }
//! .state();
//! println!("{}: {}", state.label, state.evidence);
//! # Ok::<(), coldtrace::tracer::Error>(())
//! ```

mod boot;
mod evict;
mod filesystem;
mod label;
mod observation;
mod pinned;
mod residency;
mod set;
mod written;

pub(crate) use boot::hash_of;
pub use boot::{BootRuns, state_directory};
pub use evict::{DropError, Eviction, drop_caches, may_drop_caches};
pub use label::{Accounting, Basis, Label, Signals, Verdict};
pub use observation::Observation;
pub use pinned::Mapped;
pub use residency::{Method, Residency};
pub use set::{SetFile, WorkingSet};
pub use written::{Bytecode, Written};
