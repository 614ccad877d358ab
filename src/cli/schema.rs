//! `coldtrace schema`: what a record looks like, for other programs.

use super::end::{End, Failure};
use super::output::Output;

/// Options of `schema`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Of what
    #[arg(value_name = "WHAT", default_value = "record")]
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    /// record.json
    Record,
    /// bench.json
    Bench,
}

/// Prints the schema.
pub fn main(args: &Args) -> Result<End, Failure> {
    let schema = match args.what {
        What::Record => coldtrace::record::schema(),
        What::Bench => coldtrace::bench::schema(),
    };
    let mut text = serde_json::to_string_pretty(&schema).map_err(Failure::own)?;
    text.push('\n');
    Output::Stdout.write(&text)?;
    Ok(End::Status(0))
}
