//! What interpreted the command, where something did: Python, Node, ...

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::types::Record;

/// An interpreter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interpreter {
    /// `python`, `node`, `ruby`, `perl`, `java`, `bash`.
    pub name: String,
    /// The file that was executed.
    pub path: String,
    /// What it says of itself when it is asked; null when it does not in time.
    pub version: Option<String>,
}

/// Names, what asks for the version, and whether a longer name may go on from it.
const KNOWN: [(&str, &str); 6] = [
    ("python", "--version"),
    ("node", "--version"),
    ("ruby", "--version"),
    ("perl", "-e print $^V"),
    ("java", "-version"),
    ("bash", "--version"),
];

impl Interpreter {
    /// That of the program which the root process executed last. It is asked for
    /// its version by a run of its own, after the command's.
    pub fn of(record: &Record) -> Option<Self> {
        let root = record.processes.as_ref()?.first()?;
        let path = root.execs.last()?.exe.clone()?;
        let (name, ask) = known(&path)?;
        let version = version(&path, ask);
        Some(Self { name: name.into(), path, version })
    }
}

/// What a program's file is, and what asks it for its version.
fn known(path: &str) -> Option<(&'static str, &'static str)> {
    let file = Path::new(path).file_name()?.to_str()?;
    // python3, python3.11, node-20, nodejs: and nothing but versions behind.
    let rest = |name: &str| {
        let rest = file.strip_prefix(name)?;
        let rest = rest.strip_prefix("js").unwrap_or(rest);
        rest.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-')).then_some(())
    };
    KNOWN.into_iter().find(|(name, _)| rest(name).is_some())
}

/// Whether Python ran in some process of a run: by itself, or in a program that
/// has it as a library.
pub fn ran_python(record: &Record) -> bool {
    let processes = record.processes.iter().flatten();
    let mut programs = processes.flat_map(|p| &p.execs).filter_map(|exec| exec.exe.as_deref());
    let mut mapped = record.mapped.iter().flatten().filter_map(|file| file.path.rsplit('/').next());
    programs.any(|path| known(path).is_some_and(|(name, _)| name == "python"))
        || mapped.any(|name| name.starts_with("libpython"))
}

/// The first line of what a program says to this option.
fn version(path: &str, ask: &str) -> Option<String> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut command = Command::new(path);
    let (option, argument) = ask.split_once(' ').unwrap_or((ask, ""));
    command.arg(option).args((!argument.is_empty()).then_some(argument));
    let mut child = command
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let begun = Instant::now();
    while child.try_wait().ok()?.is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // A version is short: it lies in the pipes, and nobody else has their ends.
    let mut said = Vec::new();
    child.stdout.take()?.take(4096).read_to_end(&mut said).ok()?;
    if said.is_empty() {
        child.stderr.take()?.take(4096).read_to_end(&mut said).ok()?;
    }
    let text = String::from_utf8_lossy(&said);
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}
