//! Collectors: each takes events of the tracer and keeps one part of what the
//! record will hold.

mod counts;
mod cpu;
mod first_output;
mod histogram;
pub mod imports;
mod moments;
mod network;
pub mod paths;
mod processes;
mod regions;
mod snapshots;
mod waits;

pub use counts::{By, Counts, Key, Statuses, Tally};
pub use cpu::{CpuSampling, Profile, Sampled, ThreadSamples};
pub use first_output::FirstOutput;
pub use histogram::Histogram;
pub use imports::Imports;
pub use moments::{Moment, UnknownMoment};
pub use network::{Kind, Network, NetworkKey, NetworkTally, family};
pub use paths::Paths;
pub use processes::{ProcessEntry, Processes, ThreadEntry, arguments};
pub use regions::{
    OpenRegions, RegionSpec, RegionTimes, Regions, SharedTimeline, Timeline, UnknownRegion,
};
pub use snapshots::{DETACH, EXIT, Snapshot, Snapshots, Which};
pub use waits::{Blocked, ThreadTime, Waits};
