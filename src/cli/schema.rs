//! `coldtrace schema`: what a record looks like, for other programs.

use coldtrace::record::schema;

use super::end::{End, Failure};
use super::output::Output;

/// Prints the schema.
pub fn main() -> Result<End, Failure> {
    let mut text = serde_json::to_string_pretty(&schema()).map_err(Failure::own)?;
    text.push('\n');
    Output::Stdout.write(&text)?;
    Ok(End::Status(0))
}
