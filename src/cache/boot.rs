//! Which commands were run since the machine was booted: the first run of one finds
//! nothing in memory that nobody else has read.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::record::{boot_id, read_regular};

/// Most that is read of what is known of a boot, bytes: a quarter of a million commands.
const MOST: u64 = 16 << 20;

/// `$XDG_STATE_HOME/coldtrace`, or `~/.local/state/coldtrace` (XDG Base Directory
/// Specification); `None` where neither variable is an absolute path.
pub fn state_directory() -> Option<PathBuf> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("coldtrace"))
}

/// The commands that were run since boot: a file with the boot's id in its first line,
/// and a hash of each command's arguments and directory in one of its own.
#[derive(Debug, Clone)]
pub struct BootRuns {
    file: PathBuf,
    boot: String,
    /// Where commands are run: the same words are another command elsewhere.
    here: PathBuf,
}

impl BootRuns {
    /// Kept in this directory, which need not be there. `None` where the boot has no id.
    pub fn within(directory: &Path) -> Option<Self> {
        Some(Self::of_boot(directory, boot_id()?))
    }

    fn of_boot(directory: &Path, boot: String) -> Self {
        let here = std::env::current_dir().unwrap_or_default();
        Self { file: directory.join("boot-runs"), boot, here }
    }

    /// Whether a command was not noted, of this directory, since the machine was booted.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn is_first(&self, argv: &[OsString]) -> io::Result<bool> {
        Ok(!self.known()?.is_some_and(|known| known.contains(&self.hash(argv))))
    }

    /// Notes that a command was run.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn note(&self, argv: &[OsString]) -> io::Result<()> {
        let hash = self.hash(argv);
        let mut options = OpenOptions::new();
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        match self.known()? {
            Some(known) if known.contains(&hash) => Ok(()),
            // A line is appended at once: those of others who do the same stay whole.
            Some(_) => {
                let mut file = options.append(true).open(&self.file)?;
                file.write_all(format!("{hash}\n").as_bytes())
            }
            None => {
                if let Some(directory) = self.file.parent() {
                    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
                }
                let new = self.file.with_extension(std::process::id().to_string());
                let mut file = options.write(true).create(true).truncate(true).open(&new)?;
                file.write_all(format!("{}\n{hash}\n", self.boot).as_bytes())?;
                fs::rename(&new, &self.file)
            }
        }
    }

    /// Hashes of this boot; `None` where there is no file of it.
    fn known(&self) -> io::Result<Option<HashSet<String>>> {
        let text = match read_regular(&self.file, MOST) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut lines = text.lines().map(str::to_owned);
        let same = lines.next().is_some_and(|boot| boot == self.boot);
        Ok(same.then(|| lines.collect()))
    }

    /// Of the directory and the arguments, each with its end.
    fn hash(&self, argv: &[OsString]) -> String {
        let words = [self.here.as_os_str()].into_iter().chain(argv.iter().map(OsString::as_os_str));
        hash_of(words.map(OsStr::as_bytes))
    }
}

/// SHA-256 of words, each with its end, in hexadecimal.
pub(crate) fn hash_of<'w>(words: impl IntoIterator<Item = &'w [u8]>) -> String {
    let mut sha = Sha256::new();
    for word in words {
        sha.update(word);
        sha.update([0]);
    }
    let mut text = String::new();
    for byte in sha.finalize() {
        let _ = write!(text, "{byte:02x}"); // A string takes all.
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_first_once_a_boot() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("state/coldtrace");
        let argv = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let runs = BootRuns::of_boot(&directory, "one".into());
        assert!(runs.is_first(&argv(&["a", "b"])).unwrap());
        runs.note(&argv(&["a", "b"])).unwrap();
        runs.note(&argv(&["c"])).unwrap();
        runs.note(&argv(&["c"])).unwrap();
        assert!(!runs.is_first(&argv(&["a", "b"])).unwrap());
        assert!(!runs.is_first(&argv(&["c"])).unwrap());
        // Where one argument ends is part of it.
        assert!(runs.is_first(&argv(&["ab"])).unwrap());
        assert!(runs.is_first(&argv(&["a", "b", ""])).unwrap());
        let text = fs::read_to_string(directory.join("boot-runs")).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");

        let runs = BootRuns::of_boot(&directory, "two".into());
        assert!(runs.is_first(&argv(&["c"])).unwrap());
        runs.note(&argv(&["c"])).unwrap();
        assert!(
            !runs.is_first(&argv(&["c"])).unwrap() && runs.is_first(&argv(&["a", "b"])).unwrap()
        );
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        // The same words are another command in another directory.
        let elsewhere = BootRuns { here: scratch.path().to_owned(), ..runs };
        assert!(elsewhere.is_first(&argv(&["c"])).unwrap());
    }

    #[test]
    fn where_nothing_can_be_written_that_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("file");
        fs::write(&file, "").unwrap();
        let runs = BootRuns::of_boot(&file, "one".into());
        assert!(runs.note(&["a".into()]).is_err());
        // Nor is a pipe waited for.
        let pipe = scratch.path().join("boot-runs");
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
        let runs = BootRuns::of_boot(scratch.path(), "one".into());
        assert!(runs.is_first(&["a".into()]).is_err() && runs.note(&["a".into()]).is_err());
    }
}
