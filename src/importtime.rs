//! The second run of a command, for what its Pythons say of their imports. The
//! log adds calls, so it is never taken in the run that the record is of.

use crate::observe::imports::Program;
use crate::observe::{Imports as Collector, Regions, SharedTimeline};
use crate::record::{Imports, Record, ran_python};
use crate::syscall::CallSet;
use crate::tracer::{Command, Options, trace};

/// The variable; any value that is not empty will do.
const VARIABLE: &str = "PYTHONPROFILEIMPORTTIME";

/// Why a command whose first run gave this record is not to be run again;
/// `None` where it is.
pub fn why_not_again(record: &Record) -> Option<String> {
    let outcome = &record.outcome;
    let why = match (&outcome.signal, outcome.exit_code) {
        (Some(signal), _) => format!("the command was killed by {signal}"),
        (None, Some(0)) if ran_python(record) => return None,
        (None, Some(0)) => "no Python ran".to_owned(),
        (None, Some(status)) => format!("the command exited {status}"),
        (None, None) => "the command's end was not seen".to_owned(),
    };
    Some(format!("{why}, so it was not run a second time"))
}

/// Runs a command that was run before, [unheard](Command::unheard), traced as
/// `options` say. Gives what was imported, and the log as it was written.
pub fn importtime(mut command: Command, options: &Options) -> (Imports, Vec<u8>) {
    command.env.push((VARIABLE.into(), Some("1".into())));
    let options = Options { calls: CallSet::all(), ..options.clone() };
    let mut collector = Collector::default();
    // What marks regions is no part of what an import does.
    let timeline = SharedTimeline::default();
    let mut regions = Regions::around(vec![&mut collector], &options.calls, &[], timeline);
    match trace(&command, &options, &mut [&mut regions]) {
        Ok(traced) => {
            let programs = collector.finish();
            let imports = Imports::of(&traced, &programs, collector.log_calls, collector.elsewhere);
            (imports, log(&programs))
        }
        Err(error) => {
            let reason = format!("the command could not be run a second time: {error}");
            (Imports::unknown(reason), Vec::new())
        }
    }
}

/// All lines, by process; a line says whose they are where there are several.
fn log(programs: &[Program]) -> Vec<u8> {
    let mut text = Vec::new();
    for program in programs {
        if programs.len() > 1 {
            let head = format!("process {} {:?}\n", program.pid, program.argv);
            text.extend_from_slice(head.as_bytes());
        }
        text.extend_from_slice(&program.log);
    }
    text
}
