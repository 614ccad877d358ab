//! Collectors: each takes events of the tracer and keeps one part of what the
//! record will hold.

mod counts;
mod first_output;
mod histogram;
pub mod imports;
pub mod paths;
mod processes;
mod snapshots;

pub use counts::{By, Counts, Key, Statuses, Tally};
pub use first_output::FirstOutput;
pub use histogram::Histogram;
pub use imports::Imports;
pub use paths::Paths;
pub use processes::{ProcessEntry, Processes, ThreadEntry, arguments};
pub use snapshots::{Snapshot, Snapshots, Which};
