//! Moments of a run at which /proc is read, beside the end: `--snapshot-at`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::GlobMatcher;

use crate::syscall::{Abi, CallSet, ExprError};

use super::paths::opening;

/// A moment. Each process has it once, but for execs.
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
}

/// A word that stands for no moment, as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownMoment {
    /// The end, which has an option of its own.
    #[error("exit is when --snapshot takes one; here are exec, call:NAME and open:GLOB")]
    Exit,
    /// Something else.
    #[error("no such event; known are exec, call:NAME and open:GLOB")]
    Unknown,
    /// Not a call, or a set of calls.
    #[error(transparent)]
    Call(#[from] ExprError),
    /// Not a glob.
    #[error(transparent)]
    Glob(#[from] globset::Error),
}

impl Moment {
    /// Reads `exec`, `call:SET` (a set of calls as for `-e trace=`) or `open:GLOB`:
    /// `*` does not cross a slash, `**` does; without a slash it is the file's name
    /// that has to match.
    ///
    /// # Errors
    /// Where it is none of these.
    pub fn parse(text: &str) -> Result<Self, UnknownMoment> {
        let what = match text.split_once(':') {
            Some(("call", set)) => What::Call(Box::new(CallSet::parse(set, Abi::native())?)),
            Some(("open", glob)) if !glob.is_empty() => {
                let built = globset::GlobBuilder::new(glob).literal_separator(true).build()?;
                What::Open { glob: built.compile_matcher(), by_name: !glob.contains('/') }
            }
            None if text == "exec" => What::Exec,
            None if text == "exit" => return Err(UnknownMoment::Exit),
            _ => return Err(UnknownMoment::Unknown),
        };
        Ok(Self { text: text.to_owned(), what })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The calls that have to be seen for it.
    pub(super) fn calls(&self) -> CallSet {
        match &self.what {
            What::Exec => CallSet::none(),
            What::Call(calls) => CallSet::clone(calls),
            What::Open { .. } => opening(),
        }
    }
}

impl What {
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
        for text in ["exec", "call:futex", "call:%file", "open:*.so", "open:/etc/**"] {
            assert_eq!(refusal(text), "understood", "{text}");
        }
        for text in ["", "exex", "exec:", "open:", "open", "call", "read:futex"] {
            assert_eq!(
                refusal(text),
                "no such event; known are exec, call:NAME and open:GLOB",
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
