//! What the integration tests share: fixtures with known counts (`fixture`), running a program
//! without ever hanging or leaving one behind (`process`), and holding a record against what is
//! expected of it (`table`).
//!
//! Knows the command line and the record's types, nothing of the tracer.

#![allow(dead_code)] // each test binary uses its part

pub mod bench;
pub mod board;
pub mod fixture;
pub mod page_cache;
pub mod paths;
pub mod process;
pub mod stops;
pub mod table;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use coldtrace::record::Record;

/// The engines that every fixture runs on.
pub const ENGINES: &[&str] = &["ptrace", "fast"];

/// How the tracer learns what a syscall stop is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopInfo {
    /// `PTRACE_GET_SYSCALL_INFO`, Linux 5.3 and later.
    Kernel,
    /// The registers, as on older kernels.
    Registers,
}

/// Both ways.
pub const STOP_INFOS: &[StopInfo] = &[StopInfo::Kernel, StopInfo::Registers];

/// The program under test, as cargo built it for this test.
pub fn coldtrace_path() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_coldtrace"))
}

/// The program under test, with a subcommand.
pub fn coldtrace(subcommand: &str) -> Command {
    let mut command = Command::new(coldtrace_path());
    command.arg(subcommand);
    command
}

/// `coldtrace count --json -o REPORT` on the first engine.
pub fn count_json(report: &Path) -> Command {
    let mut command = coldtrace("count");
    command.arg("--json").arg("-o").arg(report);
    command
}

/// Options that choose an engine and the way stops are read.
pub fn engine_options(engine: &str, info: StopInfo) -> Vec<&'static str> {
    let mut options = match engine {
        "ptrace" => vec!["--engine", "ptrace"],
        // From the third call on, so that fixtures of a few calls count by themselves.
        "fast" => vec!["--engine", "fast", "--tier-up-after", "2"],
        other => panic!("no options known for engine {other}"),
    };
    if info == StopInfo::Registers {
        options.push("--no-syscall-info");
    }
    options
}

/// Counts `program arguments` and returns its record; panics with what it said when there is none.
pub fn counted<S: AsRef<OsStr>>(options: &[&str], program: &Path, arguments: &[S]) -> Record {
    let scratch = Scratch::new("counted");
    let report = scratch.path("report.json");
    let mut command = count_json(&report);
    command.args(options).arg("--").arg(program).args(arguments);
    let finished = process::finish(&mut command);
    read_record(&report, &finished)
}

/// The record in `path`, or a panic that shows how the program that should have written it ended.
pub fn read_record(path: &Path, finished: &process::Finished) -> Record {
    let text = std::fs::read(path)
        .unwrap_or_else(|error| panic!("no record in {}: {error}\n{finished}", path.display()));
    serde_json::from_slice(&text)
        .unwrap_or_else(|error| panic!("{error} in {}\n{finished}", String::from_utf8_lossy(&text)))
}

/// Prints why a test proves nothing on this machine. The line shows with `--nocapture`.
pub fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

/// Where `name` is in PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|path| path.is_file())
}

/// Whether the test runs as root.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A number that no other caller in this process gets.
fn unique() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The variable by which a test that another user runs is told where it may write.
pub const SCRATCH: &str = "COLDTRACE_TEST_SCRATCH";

/// A directory of its own, removed at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Under cargo's directory for test data, or that which [`SCRATCH`] names; `name` is for whoever
    /// finds it there.
    pub fn new(name: &str) -> Self {
        let parent = std::env::var_os(SCRATCH).map(PathBuf::from);
        let parent = parent.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
        let path = parent.join(format!("{name}.{}.{}", std::process::id(), unique()));
        std::fs::create_dir_all(&path)
            .unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
        Self(path)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Kept where it cannot be removed: a test's verdict does not hang on it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `setpriv` to an ordinary user, or none after saying why not.
pub fn nobody() -> Option<Command> {
    if !is_root() {
        skip("only root can become somebody else");
        return None;
    }
    if find_program("setpriv").is_none() {
        skip("no setpriv");
        return None;
    }
    let command = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
        command
    };
    let finished = process::finish(command().arg("test").arg("-x").arg(coldtrace_path()));
    if finished.code() != Some(0) {
        skip("an ordinary user cannot get at the program under test");
        return None;
    }
    Some(command())
}
