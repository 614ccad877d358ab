//! Collectors: each takes events of the tracer and keeps one part of what the
//! record will hold.

mod counts;
mod cpu;
mod duration;
mod first_output;
mod histogram;
pub mod imports;
mod moments;
mod network;
pub mod paths;
mod processes;
mod reaped;
mod regions;
mod setting;
mod snapshots;
mod waits;

pub use counts::{By, Counts, Key, Statuses, Tally};
pub use cpu::{CpuSampling, Profile, Sampled, ThreadSamples};
pub use duration::duration;
pub use first_output::FirstOutput;
pub use histogram::Histogram;
pub use imports::Imports;
pub use moments::{Moment, UnknownMoment};
pub use network::{Kind, Network, NetworkKey, NetworkTally, family, is_family};
pub use paths::Paths;
pub use processes::{ProcessEntry, Processes, ThreadEntry, arguments};
pub use reaped::Reaped;
pub use regions::{
    OpenRegions, RegionSpec, RegionTimes, Regions, SharedTimeline, Timeline, UnknownRegion,
};
pub use setting::Setting;
pub use snapshots::{DETACH, EXIT, Snapshot, Snapshots, Which};
pub use waits::{Blocked, ThreadTime, Waits};
