//! The same command many times: in which order ([`Plan`]), how it is run ([`Bencher`]),
//! and what the runs say together ([`Bench`], [`Summary`], [`Ratio`]).

mod earlier;
mod join;
mod outliers;
mod run;
mod schedule;
mod stats;
mod summary;
mod types;

pub use join::{JoinError, Kept, join, read};
pub use run::{BenchError, Benched, Bencher, Progress};
pub use schedule::{Plan, RunKind, Slot};
pub use stats::{Ratio, Summary};
pub use types::*;

/// The JSON Schema of `bench.json`.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Bench).to_value()
}
