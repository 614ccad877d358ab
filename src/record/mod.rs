//! The record: its types, how it is made from what was observed, and the
//! directory that it lives in.

mod artifacts;
mod build;
mod cache;
mod collect;
mod cpu;
mod environment;
mod files;
mod imports;
mod interpreter;
mod listing;
mod network;
mod proc;
mod regions;
mod regular;
mod rundir;
mod time;
mod types;

/// The JSON Schema (draft 2020-12) of a [`Record`], made from its types.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Record).to_value()
}

pub use artifacts::Artifact;
pub use build::{Observed, syscall_rows};
pub use cache::CacheState;
pub use collect::{Collect, Collected};
pub use cpu::*;
pub use environment::Environment;
pub(crate) use environment::boot_id;
pub use files::*;
pub use imports::*;
pub use interpreter::{Interpreter, ran_python};
pub use network::NetworkRow;
pub use proc::*;
pub use regions::{Region, RegionProcess};
pub(crate) use regular::{LARGEST_KEPT, read_regular};
pub use rundir::{ReadError, RunDir, RunDirError, read};
pub use time::*;
pub use types::*;
