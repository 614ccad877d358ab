//! What a check found, for those who read it: one function a format, each from
//! a report to the whole text.
//!
//! Names of paths, programs and addresses are the program's choice, and whoever
//! sends a change chooses what the program does. So each format escapes them as
//! its readers need it, and none but JSON hands on what could drive a terminal.

mod github;
mod human;
mod junit;
mod markdown;
mod sarif;
mod words;

pub use github::github;
pub use human::human;
pub use junit::junit;
pub use markdown::markdown;
pub use sarif::sarif;

use crate::check::Report;

/// The report as JSON, to its schema: [`crate::check::REPORT_SCHEMA`].
pub fn json(report: &Report) -> String {
    // Its maps have strings as keys and its numbers are finite: nothing in it fails.
    let mut text = serde_json::to_string_pretty(report).unwrap_or_default();
    text.push('\n');
    text
}
