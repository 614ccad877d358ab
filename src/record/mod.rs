//! The record: its types, how it is made from what was observed, and the
//! directory that it lives in.

mod build;
mod files;
mod listing;
mod rundir;
mod types;

pub use build::{Observed, syscall_rows};
pub use files::*;
pub use rundir::{ReadError, RunDir, RunDirError, read};
pub use types::*;
