//! Baselines: what a program asked of the kernel when it was as it should be, and
//! the rules that say what may change. It judges records and runs nothing.

mod agree;
mod baseline;
mod edit;
mod explain;
mod facts;
mod families;
mod judge;
mod learn;
mod lines;
mod normalise;
mod profile;
mod report;
mod rule;
#[cfg(test)]
mod rule_tests;
mod shape;
#[cfg(test)]
mod tests;

pub use agree::agree;
pub use baseline::{
    Baseline, BaselineError, Case, Cpus, Env, Exit, PASSED_VARIABLES, Region, SCHEMA, Switch,
    USUAL_VARIABLES,
};
pub use edit::Editor;
pub use explain::{Missed, Tally, explain, self_test};
pub use facts::{CallFact, CallFacts, Expected, Facts, PathFact, Recorded, Totals};
pub use families::Families;
pub use judge::{Judged, judge};
pub use learn::{Seen, learn, passing};
pub use lines::locate;
pub use normalise::{Normalise, Normaliser, OUTPUT};
pub use profile::{NOTE as SECCOMP_NOTE, seccomp_profile};
pub use report::*;
pub use rule::{Access, Calls, Demand, Level, Metric, Pattern, Rule};
pub use shape::{Count, Counts, Executed, NetUse, PathUse, Shape};
