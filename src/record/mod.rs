//! The record: its types, how it is made from what was observed, and the
//! directory that it lives in.

mod build;
mod environment;
mod files;
mod listing;
mod proc;
mod rundir;
mod types;

pub use build::{Observed, syscall_rows};
pub use environment::Environment;
pub use files::*;
pub use proc::*;
pub use rundir::{ReadError, RunDir, RunDirError, read};
pub use types::*;
