//! Options that `count` and `run` share: what to trace, and how to start it.
//! strace's words where strace has them, so that an existing line can be edited.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use coldtrace::observe::{Statuses, duration};
use coldtrace::record::{Measurement, Run};
use coldtrace::render::{counted, time};
use coldtrace::syscall::{Abi, CallSet};
use coldtrace::tracer::{Command, Cost, Error, Observer, Options, Traced, User, attach, trace};

use super::end::{End, Failure};
use super::engine::EngineArgs;
use super::output::say;

/// What to count, and how to start the command.
#[derive(Debug, clap::Args)]
pub struct Tracing {
    /// Follow children and threads (always on)
    #[arg(short = 'f', long = "follow-forks", hide_short_help = true)]
    follow: bool,
    /// Nothing is printed about attaching and exits anyway
    #[arg(short = 'q', long = "quiet", hide = true)]
    quiet: bool,
    /// A filter is used anyway with -e trace=
    #[arg(long, hide = true)]
    seccomp_bpf: bool,
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
    /// End the command and all it started after this long (5s, 2m); the exit
    /// status is then 124
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "pids")]
    timeout: Option<Duration>,
    /// When the command ends, let what it started go on untraced
    #[arg(long, conflicts_with = "pids")]
    detach_on_exit: bool,
    /// Trace running processes, with all their threads, instead of a command;
    /// Ctrl-C ends it. May be given more than once, or as a list
    #[arg(short = 'p', long = "attach", value_name = "PID", conflicts_with = "command")]
    pids: Vec<String>,
    /// With -p: let go after this long
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s",
        requires = "pids")]
    duration: Duration,
    /// With -p: trace in bursts, so that the processes take at most this many
    /// times as long; `off` traces everything
    #[arg(long, value_name = "TIMES", value_parser = slowdown, default_value = "2x",
        requires = "pids")]
    max_slowdown: Slowdown,
    #[command(flatten)]
    engine: EngineArgs,
    /// Do as on kernels before 5.3, without PTRACE_GET_SYSCALL_INFO
    #[arg(long, hide = true)]
    no_syscall_info: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// `--max-slowdown`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Slowdown {
    Off,
    Times(f64),
}

/// What to trace.
#[derive(Debug)]
pub enum Target {
    /// A command.
    Command(Command),
    /// Processes that run already.
    Processes(Vec<i32>),
}

impl Target {
    /// What is being run, for the record.
    pub fn run(&self, label: Option<String>) -> Run {
        match self {
            Self::Command(command) => {
                Run::now(&command.argv, label).in_directory(command.cwd.as_deref())
            }
            Self::Processes(pids) => Run::attached(pids, label),
        }
    }

    /// How coldtrace is to end after it.
    pub fn end(&self, traced: &Traced) -> End {
        match self {
            _ if traced.timed_out => End::Status(124),
            Self::Command(_) => traced.ending.into(),
            Self::Processes(_) => End::Status(0),
        }
    }
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
        let attached = !self.pids.is_empty();
        Ok(Options {
            calls,
            only_makers: false,
            syscall_info: !self.no_syscall_info,
            timeout: self.timeout,
            detach_on_exit: self.detach_on_exit,
            linger: None,
            duration: attached.then_some(self.duration),
            max_slowdown: None,
            engine: self.engine.engines()?,
        })
    }

    /// Traces the target to the end of the session; the second part of the
    /// answer is what a traced call costs here, if that is `wanted`.
    pub fn trace(
        &self,
        target: &Target,
        options: &Options,
        wanted: bool,
        observers: &mut [&mut dyn Observer],
    ) -> Result<(Traced, Option<Cost>), Failure> {
        match target {
            Target::Command(command) => {
                let traced = trace(command, options, observers)?;
                // Only now: the command does not wait for it.
                Ok((traced, if wanted { Cost::measure() } else { None }))
            }
            Target::Processes(pids) => {
                let cost = Cost::measure();
                let mut options = options.clone();
                if let (Slowdown::Times(times), Some(cost)) = (self.max_slowdown, cost) {
                    options.max_slowdown = Some((times, cost));
                }
                say(&self.announce(pids, cost));
                let mut refuse = |error: &Error| say(&error.to_string());
                let traced = attach(pids, &options, observers, &mut refuse)?;
                Ok((traced, cost))
            }
        }
    }

    /// What attaching is going to do to the processes.
    fn announce(&self, pids: &[i32], cost: Option<Cost>) -> String {
        let mut line = String::from("tracing ");
        for (i, &pid) in pids.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            let _ = write!(line, "{comma}{pid}");
            if let Some((name, threads)) = process_name(pid) {
                let _ = write!(line, " ({name}, {})", counted(threads, "thread"));
            }
        }
        let _ = write!(line, " for {}", time(self.duration.as_nanos() as u64));
        if let Some(cost) = cost {
            let _ = write!(line, ": a call takes {}", time(cost.near));
            if cost.far > cost.near + cost.near / 4 {
                let _ = write!(line, " to {}", time(cost.far));
            }
            line.push_str(" longer");
        }
        match self.max_slowdown {
            Slowdown::Off => line + ", all the time",
            Slowdown::Times(times) => {
                format!("{line}; in bursts, to be at most {times} times slower")
            }
        }
    }

    /// Notes in the record what was counted, where it was not everything.
    pub fn note_selection(&self, measurement: &mut Measurement) {
        measurement.trace = self.last("trace").or(self.trace.as_deref()).map(str::to_owned);
        let status = self.last("status").or(self.status.as_deref());
        measurement.status = match (status, self.successful_only, self.failed_only) {
            (Some(status), ..) => Some(status.to_owned()),
            (None, true, _) => Some("successful".into()),
            (None, _, true) => Some("failed".into()),
            (None, ..) => None,
        };
    }

    /// Which outcomes are counted.
    pub fn statuses(&self) -> Result<Statuses, Failure> {
        for expression in &self.expressions {
            let qualifier = expression.split_once('=').map_or("trace", |(q, _)| q);
            // Signals are never printed, and nothing is said about attaching.
            let harmless = matches!(
                expression.as_str(),
                "signal=none" | "signals=none" | "quiet=all" | "q=all" | "s=none"
            );
            if !harmless && !matches!(qualifier, "trace" | "t" | "status") {
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

    /// What to trace: the processes, or the command with what was said about
    /// its environment and user.
    pub fn target(&self) -> Result<Target, Failure> {
        if !self.pids.is_empty() {
            return Ok(Target::Processes(pids(&self.pids)?));
        }
        if self.command.is_empty() {
            return Err(Failure::own("no command to run was given"));
        }
        let user = self.user.as_deref().map(User::find).transpose().map_err(Failure::own)?;
        let env = settings(&self.env)?;
        Ok(Target::Command(Command { env, user, ..Command::new(self.command.clone()) }))
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

/// Lists as pidof(1) gives them are taken too.
fn pids(lists: &[String]) -> Result<Vec<i32>, Failure> {
    let words = lists.iter().flat_map(|list| list.split([',', ' ', '\n', '\t']));
    let pids: Result<Vec<i32>, Failure> = words
        .filter(|word| !word.is_empty())
        .map(|word| match word.parse() {
            Ok(pid) if pid > 0 => Ok(pid),
            _ => Err(Failure::own(format_args!("-p {word}: a process id is a number above 0"))),
        })
        .collect();
    match pids {
        Ok(pids) if pids.is_empty() => Err(Failure::own("-p: no process id was given")),
        other => other,
    }
}

fn slowdown(text: &str) -> Result<Slowdown, String> {
    if text == "off" {
        return Ok(Slowdown::Off);
    }
    match text.trim_end_matches(['x', 'X']).parse() {
        Ok(times) if times > 1.0 && times < 1e6 => Ok(Slowdown::Times(times)),
        _ => Err("a number above 1 such as 2x, or off".into()),
    }
}

/// Name and number of threads of a process.
fn process_name(pid: i32) -> Option<(String, u64)> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.count();
    Some((name.trim_end().to_owned(), threads as u64))
}

/// What `-E` says: variables, and their values; `None` removes.
pub fn settings(words: &[OsString]) -> Result<Vec<(OsString, Option<OsString>)>, Failure> {
    let env: Vec<_> = words.iter().map(|setting| split_setting(setting)).collect();
    if env.iter().any(|(name, _)| name.is_empty()) {
        return Err(Failure::own("-E: a variable needs a name: -E VAR=VAL, or -E VAR"));
    }
    Ok(env)
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
    fn times_are_written_as_people_write_them() {
        assert_eq!(duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("2m"), Ok(Duration::from_mins(2)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["", "0", "-1s", "5 parsecs", "nan", "inf"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(slowdown("2x"), Ok(Slowdown::Times(2.0)));
        assert_eq!(slowdown("off"), Ok(Slowdown::Off));
        assert!(slowdown("1").is_err() && slowdown("NaN").is_err());
    }

    #[test]
    fn pids_come_one_by_one_or_as_lists() {
        let lists = ["1".to_owned(), "22,333 4444\n".to_owned()];
        assert_eq!(pids(&lists).unwrap(), [1, 22, 333, 4444]);
        assert!(pids(&["x".into()]).is_err() && pids(&[" ".into()]).is_err());
        assert!(pids(&["-3".into()]).is_err());
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
