//! One file a command. No logic that a user of the library would miss.

mod bench;
mod check;
mod count;
mod end;
mod engine;
mod files;
mod options;
mod output;
mod run;
mod schema;
mod show;
mod tee;
mod usage;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use end::End;

/// Traces a command's system calls: exact counts over its whole tree, and one
/// record of the run.
#[derive(Debug, Parser)]
#[command(
    name = "coldtrace",
    version,
    subcommand_required = true,
    max_term_width = 80,
    args_override_self = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The table of `strace -f -c`: calls, errors and times by syscall
    Count(count::Args),
    /// Trace once and keep a record: a run directory with the command's output
    Run(run::Args),
    /// Every path the command opened, asked about or looked for in vain
    // What is refused there is not offered.
    #[command(mut_args(|arg| {
        let refused = ["expressions", "trace", "status", "successful_only", "failed_only"];
        let hidden = arg.is_hide_set() || refused.contains(&arg.get_id().as_str());
        arg.hide(hidden)
    }))]
    Files(files::Args),
    /// The same command many times: first, cold and warm runs apart
    Bench(bench::Args),
    /// Fail when a command's calls, files or addresses are not as recorded
    Check(check::Args),
    /// A record as text
    Show(show::Args),
    /// The JSON Schema of a record, or of a bench
    Schema(schema::Args),
}

/// Runs what the command line says.
pub fn main() -> ExitCode {
    coldtrace::tracer::ignore_failed_writes();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage::report(&error),
    };
    let end = match cli.command {
        Command::Count(args) => count::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Files(args) => files::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Check(args) => check::main(&args),
        Command::Show(args) => show::main(&args),
        Command::Schema(args) => schema::main(&args),
    };
    end.unwrap_or_else(|failure| {
        output::say(&failure.message);
        End::Status(failure.status)
    })
    .finish()
}
