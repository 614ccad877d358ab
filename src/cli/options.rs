//! Options that `count` and `run` share: what to trace, and how to start it.
//! strace's words where strace has them, so that an existing line can be edited.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use coldtrace::observe::Statuses;
use coldtrace::syscall::{Abi, CallSet};
use coldtrace::tracer::{Command, Options, User};

use super::end::Failure;

/// What to count, and how to start the command.
#[derive(Debug, clap::Args)]
pub struct Tracing {
    /// Follow children and threads (always on)
    #[arg(short = 'f', hide_short_help = true)]
    follow: bool,
    /// What to count: trace=SET or just SET (names, %class, /regex, !SET,
    /// ?name), status=SET (successful, failed, unfinished)
    #[arg(short = 'e', value_name = "EXPR")]
    expressions: Vec<String>,
    /// The same as -e trace=SET: all other calls run at full speed
    #[arg(long = "trace", value_name = "SET")]
    trace: Option<String>,
    /// The same as -e status=SET
    #[arg(long = "status", value_name = "SET", hide_short_help = true)]
    status: Option<String>,
    /// Count successful calls only
    #[arg(short = 'z', long = "successful-only", conflicts_with = "failed_only")]
    successful_only: bool,
    /// Count failed calls only
    #[arg(short = 'Z', long = "failed-only")]
    failed_only: bool,
    /// Set VAR for the command; without a value, remove it
    #[arg(short = 'E', long = "env", value_name = "VAR[=VAL]")]
    env: Vec<OsString>,
    /// Run the command as this user (needs root)
    #[arg(short = 'u', long = "user", value_name = "USER")]
    user: Option<String>,
    /// Do as on kernels before 5.3, without PTRACE_GET_SYSCALL_INFO
    #[arg(long, hide = true)]
    no_syscall_info: bool,
}

impl Tracing {
    /// What the tracer is to do.
    pub fn options(&self) -> Result<Options, Failure> {
        let trace = self.last("trace").or(self.trace.as_deref());
        let calls = match trace {
            Some(set) => CallSet::parse(set, Abi::native())
                .map_err(|e| Failure::own(format_args!("-e trace={set}: {e}")))?,
            None => CallSet::all(),
        };
        Ok(Options { calls, filter: trace.is_some(), syscall_info: !self.no_syscall_info })
    }

    /// Which outcomes are counted.
    pub fn statuses(&self) -> Result<Statuses, Failure> {
        for expression in &self.expressions {
            let qualifier = expression.split_once('=').map_or("trace", |(q, _)| q);
            if !matches!(qualifier, "trace" | "t" | "status") {
                return Err(Failure::own(format_args!(
                    "-e {expression}: unknown qualifier {qualifier}; trace= and status= are known"
                )));
            }
        }
        let status = self.last("status").or(self.status.as_deref());
        match (status, self.successful_only, self.failed_only) {
            (None, true, _) => Ok(Statuses { failed: false, unfinished: false, ..Statuses::ALL }),
            (None, _, true) => {
                Ok(Statuses { successful: false, unfinished: false, ..Statuses::ALL })
            }
            (None, ..) => Ok(Statuses::ALL),
            (Some(set), ..) => statuses(set),
        }
    }

    /// The command, with what was said about its environment and user.
    pub fn command(&self, argv: Vec<OsString>) -> Result<Command, Failure> {
        let user = self.user.as_deref().map(User::find).transpose().map_err(Failure::own)?;
        let env: Vec<_> = self.env.iter().map(|setting| split_setting(setting)).collect();
        if env.iter().any(|(name, _)| name.is_empty()) {
            return Err(Failure::own("-E: a variable needs a name: -E VAR=VAL, or -E VAR"));
        }
        Ok(Command { env, user, ..Command::new(argv) })
    }

    /// The value of the last `-e QUALIFIER=`: as with strace it is the one that holds.
    fn last(&self, qualifier: &str) -> Option<&str> {
        self.expressions.iter().rev().find_map(|expression| match expression.split_once('=') {
            None => (qualifier == "trace").then_some(expression.as_str()),
            Some(("t", value)) => (qualifier == "trace").then_some(value),
            Some((q, value)) => (q == qualifier).then_some(value),
        })
    }
}

fn split_setting(setting: &OsStr) -> (OsString, Option<OsString>) {
    let bytes = setting.as_bytes();
    match bytes.iter().position(|&b| b == b'=') {
        Some(at) => {
            let (name, value) = bytes.split_at(at);
            let value = value.get(1..).unwrap_or_default();
            (OsString::from_vec(name.to_vec()), Some(OsString::from_vec(value.to_vec())))
        }
        None => (setting.to_owned(), None),
    }
}

fn statuses(set: &str) -> Result<Statuses, Failure> {
    let (inverted, list) = match set.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, set),
    };
    let mut found = Statuses { successful: false, failed: false, unfinished: false };
    for word in list.split(',') {
        match word {
            "successful" => found.successful = true,
            "failed" => found.failed = true,
            // strace tells these apart by how its own output was cut off.
            "unfinished" | "unavailable" | "detached" => found.unfinished = true,
            "all" => found = Statuses::ALL,
            "none" => {}
            _ => {
                return Err(Failure::own(format_args!(
                    "-e status={set}: unknown status {word}; known are successful, failed, \
                     unfinished, unavailable, detached, all, none"
                )));
            }
        }
    }
    if inverted {
        found = Statuses {
            successful: !found.successful,
            failed: !found.failed,
            unfinished: !found.unfinished,
        };
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_without_a_value_removes() {
        assert_eq!(split_setting(OsStr::new("A=b=c")), ("A".into(), Some("b=c".into())));
        assert_eq!(split_setting(OsStr::new("A=")), ("A".into(), Some("".into())));
        assert_eq!(split_setting(OsStr::new("A")), ("A".into(), None));
    }

    #[test]
    fn statuses_are_straces_words() {
        let failed = statuses("failed").unwrap();
        assert_eq!(failed, Statuses { successful: false, failed: true, unfinished: false });
        assert!(!statuses("!failed").unwrap().failed);
        assert_eq!(statuses("all").unwrap(), Statuses::ALL);
        assert!(statuses("bad").unwrap_err().message.contains("bad"));
    }
}
