//! What is said about a command line that cannot be used.

use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};

use super::end::OWN_FAILURE;
use super::output::say;

/// strace's options that mean something else here, or nothing.
const STRACE: [(&str, &str); 19] = [
    ("-P", "calls of all paths are counted; strace -P knows single paths"),
    ("-C", "there is no line a call; use -c here, or strace for the lines"),
    ("-t", "there is no line a call; `run` keeps start times in the record"),
    ("-T", "there is no line a call; the table has the times: -U total-time,min,p50,p99,max"),
    ("-r", "there is no line a call; `run` keeps start times in the record"),
    ("-y", "there is no line a call, so no descriptor to name"),
    ("-a", "there is no line a call, so no column to align"),
    ("-i", "there is no line a call, so no instruction pointer to print"),
    ("-n", "there is no line a call; the numbers are in --json"),
    ("-A", "-o writes the table anew; append with -o - and >>"),
    ("-O", "the cost of tracing is measured and shown, not subtracted"),
    ("-D", "coldtrace is always the command's parent"),
    ("-b", "descendants are followed to their end; see --detach-on-exit"),
    ("-I", "Ctrl-C goes to the command, and the table comes when it has ended"),
    ("-X", "no constants are printed"),
    ("-s", "no strings are printed"),
    ("-v", "no structures are printed; `run` keeps the full record"),
    ("-x", "no strings are printed"),
    ("-k", "no stack traces are taken"),
];

/// Prints help, the version, or what is wrong in one line, and says what to
/// exit with: 125 where the status is the command's otherwise, else 2.
pub fn report(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = error.print(); // A reader that has gone away does not matter.
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        say(
            "no command given: count, run, files, bench, check or show; `coldtrace help` says more",
        );
        return ExitCode::from(2);
    }
    let text = error.to_string();
    let mut what = first_part(&text);
    if let Some(values) = error.get(ContextKind::ValidValue) {
        what = format!("{what}; known are {values}");
    }
    say(&what);
    if let Some(option) = error.get(ContextKind::InvalidArg) {
        let option = option.to_string();
        if let Some((_, advice)) = STRACE.iter().find(|(o, _)| option.starts_with(o)) {
            say(advice);
        }
    }
    let second = std::env::args_os().nth(1);
    let second = second.as_deref().and_then(std::ffi::OsStr::to_str);
    if error.kind() == ErrorKind::InvalidSubcommand {
        let command = std::env::args_os().nth(1).unwrap_or_default();
        say(&format!("to trace a command: coldtrace count {} ...", command.to_string_lossy()));
    }
    // Where the status is the command's otherwise, 125 cannot be mistaken for it.
    let as_command = matches!(second, Some("count" | "run" | "files"));
    ExitCode::from(if as_command { OWN_FAILURE } else { 2 })
}

/// What is wrong, as one line: where the first ends with a colon, what it announces
/// stands in the next ones.
fn first_part(text: &str) -> String {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let what = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    if !what.ends_with(':') {
        return what;
    }
    let more: Vec<&str> = lines.map(str::trim).take_while(|line| !line.is_empty()).collect();
    format!("{what} {}", more.join(", "))
}
