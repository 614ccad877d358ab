//! Moments of a run: at which /proc is read beside the end (`--snapshot-at`), and
//! at which regions begin and end (`--region`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use globset::GlobMatcher;
use jiff::SignedDuration;

use crate::syscall::{Abi, CallSet, ExprError, Sys};

use super::paths::opening;
use super::regions::naming;

/// A moment. For snapshots each process has it once, but for execs.
///
/// A call's moment is its entry: a region that it begins has the call in it, one
/// that it ends has not. The moment of an exec lies before the first call of the
/// new image. That of an open is the entry of the call that opened the file; one
/// that failed is none.
#[derive(Debug, Clone)]
pub struct Moment {
    text: String,
    pub(super) what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// A new image is there.
    Exec,
    /// One of these calls enters for the first time.
    Call(Box<CallSet>),
    /// A file was opened for the first time whose path, or name, matches.
    Open { glob: GlobMatcher, by_name: bool },
    /// Somebody writes to descriptor 1 for the first time.
    Stdout,
    /// The program marks it for the first time.
    Marker(String),
    /// So long after the run's start.
    After(Duration),
}

const KNOWN: &str = "exec, call:NAME, open:GLOB, stdout, marker:NAME, and times such as 500ms";

/// A word that stands for no moment, as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownMoment {
    /// The end, which has an option of its own.
    #[error("exit is when --snapshot takes one, and where regions end that nothing else ends")]
    Exit,
    /// Something else.
    #[error("no such event; known are {KNOWN}")]
    Unknown,
    /// None at which a process stands still.
    #[error("no snapshot can be taken at that, only at exec, call:NAME, open:GLOB and stdout")]
    NoSnapshot,
    /// Not a call, or a set of calls.
    #[error(transparent)]
    Call(#[from] ExprError),
    /// Not a glob.
    #[error(transparent)]
    Glob(#[from] globset::Error),
}

impl Moment {
    /// Reads an event:
    ///
    /// - `exec`
    /// - `call:SET` or `syscall:SET`: a set of calls as for `-e trace=`
    /// - `open:GLOB`: `*` does not cross a slash, `**` does; without a slash it is
    ///   the file's name that has to match
    /// - `stdout`: the first write to descriptor 1, by any process
    /// - `marker:NAME`: the first call that names `/coldtrace/begin/NAME`,
    ///   `/coldtrace/end/NAME` or `/coldtrace/mark/NAME`
    /// - `500ms`, `2s`: so long after the run's start
    ///
    /// # Errors
    /// Where it is none of these.
    pub fn parse(text: &str) -> Result<Self, UnknownMoment> {
        let what = match text.split_once(':') {
            Some(("call" | "syscall", set)) => {
                What::Call(Box::new(CallSet::parse(set, Abi::native())?))
            }
            Some(("open", glob)) if !glob.is_empty() => {
                let built = globset::GlobBuilder::new(glob).literal_separator(true).build()?;
                What::Open { glob: built.compile_matcher(), by_name: !glob.contains('/') }
            }
            Some(("marker", name)) if !name.is_empty() => What::Marker(name.to_owned()),
            None if text == "exec" => What::Exec,
            None if text == "stdout" => What::Stdout,
            None if text == "exit" => return Err(UnknownMoment::Exit),
            None => What::After(after(text).ok_or(UnknownMoment::Unknown)?),
            _ => return Err(UnknownMoment::Unknown),
        };
        Ok(Self { text: text.to_owned(), what })
    }

    /// The same for a snapshot, which is taken of a process that stands still: not
    /// at markers and times.
    ///
    /// # Errors
    /// Where it is none, or one of these.
    pub fn for_snapshot(text: &str) -> Result<Self, UnknownMoment> {
        match Self::parse(text) {
            Ok(Self { what: What::Marker(_) | What::After(_), .. })
            | Err(UnknownMoment::Unknown) => Err(UnknownMoment::NoSnapshot),
            parsed => parsed,
        }
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The calls that have to be seen for it.
    pub(super) fn calls(&self) -> CallSet {
        match &self.what {
            What::Exec | What::After(_) => CallSet::none(),
            What::Call(calls) => CallSet::clone(calls),
            What::Open { .. } => opening(),
            What::Stdout => writing(),
            What::Marker(_) => naming(),
        }
    }
}

/// A time as people write it; a number needs a unit.
fn after(text: &str) -> Option<Duration> {
    let starts = text.starts_with(|first: char| first.is_ascii_digit());
    Duration::try_from(text.parse::<SignedDuration>().ok().filter(|_| starts)?).ok()
}

/// The argument that is the descriptor a call writes to.
fn written(sys: Sys) -> Option<usize> {
    let info = sys.info()?;
    match (info.kind, info.moves) {
        ("write" | "send", _) => Some(0),
        (_, moves) => moves.map(|(_, to)| to),
    }
}

/// The calls that write.
fn writing() -> CallSet {
    let mut calls = CallSet::none();
    for sys in Abi::ALL.into_iter().flat_map(Abi::calls).filter(|sys| written(*sys).is_some()) {
        calls.insert(sys);
    }
    calls
}

impl What {
    /// Whether the entry of this call is it.
    pub fn is_entry_of(&self, sys: Sys, args: &[u64; 6]) -> bool {
        match self {
            Self::Call(calls) => calls.contains(sys),
            Self::Stdout => {
                written(sys).and_then(|at| args.get(at)).is_some_and(|&fd| fd as i32 == 1)
            }
            _ => false,
        }
    }

    /// Whether opening this path is it.
    pub fn is_open_of(&self, path: &[u8]) -> bool {
        let Self::Open { glob, by_name } = self else { return false };
        let path = Path::new(OsStr::from_bytes(path));
        match path.file_name() {
            Some(name) if *by_name => glob.is_match(name),
            _ => glob.is_match(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Moment::parse(text).map_or_else(|e| e.to_string(), |_| "understood".into())
    }

    #[test]
    fn what_is_no_moment_is_refused_in_one_line() {
        for text in ["exec", "call:futex", "syscall:%file", "open:*.so", "open:/etc/**"] {
            assert_eq!(refusal(text), "understood", "{text}");
        }
        for text in ["stdout", "marker:a b", "marker:a/b:c", "500ms", "2s", "1m 30s", "0s"] {
            assert_eq!(refusal(text), "understood", "{text}");
        }
        for text in [
            "",
            "exex",
            "exec:",
            "open:",
            "open",
            "call",
            "read:futex",
            "stdout:",
            "marker:",
            "5",
            "-5s",
            "5 parsecs",
            "PT5S",
        ] {
            assert_eq!(
                refusal(text),
                "no such event; known are exec, call:NAME, open:GLOB, stdout, marker:NAME, and \
                 times such as 500ms",
                "{text}"
            );
        }
        assert!(refusal("exit").contains("--snapshot"));
        assert!(refusal("call:futx").contains("futx"), "{}", refusal("call:futx"));
        for text in ["call:futx", "call:", "open:[", "open:{a"] {
            assert_eq!(refusal(text).lines().count(), 1, "{text}");
            assert_ne!(refusal(text), "understood", "{text}");
        }
    }

    #[test]
    fn what_a_snapshot_cannot_be_taken_at_is_refused() {
        for text in ["marker:a", "500ms", "exex"] {
            let refused =
                Moment::for_snapshot(text).map_or_else(|e| e.to_string(), |_| String::new());
            assert!(refused.starts_with("no snapshot can be taken at that"), "{text}: {refused}");
        }
        assert!(Moment::for_snapshot("stdout").is_ok());
    }

    #[test]
    fn stdout_is_what_is_written_to_descriptor_1() {
        let stdout = Moment::parse("stdout").unwrap();
        let is = |abi, name: &str, args: [u64; 6]| {
            let sys = Sys::from_name(abi, name).unwrap();
            assert!(stdout.calls().contains(sys) || name == "read", "{name}");
            stdout.what.is_entry_of(sys, &args)
        };
        assert!(is(Abi::X86_64, "write", [1, 0, 0, 0, 0, 0]));
        assert!(is(Abi::I386, "writev", [1, 0, 0, 0, 0, 0]));
        assert!(is(Abi::X86_64, "sendfile", [1, 5, 0, 0, 0, 0]));
        assert!(is(Abi::X86_64, "splice", [5, 0, 1, 0, 0, 0]));
        assert!(!is(Abi::X86_64, "write", [2, 0, 0, 0, 0, 0]));
        assert!(!is(Abi::X86_64, "sendfile", [5, 1, 0, 0, 0, 0]));
        assert!(!is(Abi::X86_64, "read", [1, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn paths_match_as_those_of_files_do_and_names_by_themselves() {
        let matches = |glob: &str, path: &str| {
            Moment::parse(&format!("open:{glob}")).unwrap().what.is_open_of(path.as_bytes())
        };
        assert!(matches("*torch*", "/opt/lib/libtorch_cpu.so"));
        assert!(!matches("*torch*", "/opt/torch/lib.so"));
        assert!(matches("/opt/**/*.so", "/opt/torch/lib.so"));
        assert!(!matches("/opt/*.so", "/opt/torch/lib.so"));
        assert!(matches("/etc/hosts", "/etc/hosts"));
    }
}
