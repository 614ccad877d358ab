//! How coldtrace itself ends: as the command did, or with its own status.

use std::process::ExitCode;

use coldtrace::render::quote;
use coldtrace::tracer::{Ending, Error};

/// coldtrace itself failed or was used wrongly, as env(1) has it.
pub const OWN_FAILURE: u8 = 125;

/// A failure: one line, and the exit status it gives.
#[derive(Debug)]
pub struct Failure {
    /// What, which and why.
    pub message: String,
    /// Exit status.
    pub status: u8,
}

impl Failure {
    /// A failure of coldtrace itself.
    pub fn own(message: impl std::fmt::Display) -> Self {
        Self { message: message.to_string(), status: OWN_FAILURE }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let mut message = error.to_string();
        // Few programs have a space in their names; whole command lines do, and some tools
        // take them.
        if let Error::NotFound { name } = &error
            && name.contains(char::is_whitespace)
        {
            message = format!("{message} (for a command line: sh -c {})", quote(name));
        }
        Self { status: error.exit_status(), message }
    }
}

/// How to end.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// With this exit status.
    Status(u8),
    /// By this signal, as the command did.
    Signal(i32),
}

impl From<Ending> for End {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Exited(code) => Self::Status(code as u8),
            Ending::Killed { signal, .. } => Self::Signal(signal),
            Ending::Detached => Self::Status(OWN_FAILURE),
        }
    }
}

impl End {
    /// Ends so. A signal is raised anew, so that the shell sees what it would
    /// have seen; PID 1 of a container cannot be killed by itself and exits
    /// with 128 + n instead.
    pub fn finish(self) -> ExitCode {
        match self {
            Self::Status(status) => ExitCode::from(status),
            Self::Signal(signal) => {
                coldtrace::tracer::die_by(signal);
                ExitCode::from(128u8.saturating_add(signal as u8))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_a_command_line_as_a_word_is_told_how() {
        let not_found = |name: &str| {
            let failure = Failure::from(Error::NotFound { name: name.into() });
            (failure.status, failure.message)
        };
        let advice = "cannot run sleep 0.1: not found (for a command line: sh -c 'sleep 0.1')";
        assert_eq!(not_found("sleep 0.1"), (127, advice.to_owned()));
        assert_eq!(not_found("sleeep"), (127, "cannot run sleeep: not found".to_owned()));
    }
}
