//! The command line: parse, dispatch, and turn an error into one line and an
//! exit status.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
