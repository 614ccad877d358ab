//! By what a command is known again.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::cache::hash_of;
use crate::tracer::Command;

/// Variables that have paths, differ from one terminal or login to the next, and hardly
/// change which files a command reads.
const OF_A_SESSION: [&str; 9] = [
    "_",
    "DBUS_SESSION_BUS_ADDRESS",
    "OLDPWD",
    "PWD",
    "SSH_AUTH_SOCK",
    "SSH_TTY",
    "TMUX",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
];

/// SHA-256 of what decides which files a command reads: arguments, directory, variables
/// (those that `-E` sets, and of the others those that have paths), and its program's file.
/// Of the others all cannot count: there is always one that is new each time.
pub(super) fn identity(command: &Command) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let environment = command.environment();
    let set = command.env.iter().map(|(name, value)| match value {
        Some(value) => [name.as_os_str(), value].join(OsStr::new("=")),
        None => name.clone(),
    });
    let program = command.argv.first().and_then(|name| program(name, &environment));
    let program = program.map_or_else(String::new, |it| {
        let (size, changed) = (it.size(), (it.ctime(), it.ctime_nsec()));
        format!("{} {size} {} {}", it.ino(), changed.0, changed.1)
    });
    let mut words: Vec<OsString> = vec![here.into(), program.into()];
    let parts = [command.argv.clone(), set.collect(), kept(&environment)];
    for part in parts {
        // How many there are: so that none is taken for one of another part.
        words.push(part.len().to_string().into());
        words.extend(part);
    }
    hash_of(words.iter().map(|word| word.as_bytes()))
}

/// What of an environment counts, in an order of its own.
fn kept(environment: &[OsString]) -> Vec<OsString> {
    let is_kept = |entry: &&OsString| {
        entry.as_bytes().contains(&b'/') && !OF_A_SESSION.iter().any(|name| is_named(entry, name))
    };
    let mut kept: Vec<OsString> = environment.iter().filter(is_kept).cloned().collect();
    kept.sort();
    kept
}

fn is_named(entry: &OsStr, name: &str) -> bool {
    let rest = entry.as_bytes().strip_prefix(name.as_bytes());
    rest.is_some_and(|rest| rest.first() == Some(&b'='))
}

/// The file that execvp(3) would run; `None` where there is none.
fn program(name: &OsStr, environment: &[OsString]) -> Option<Metadata> {
    let file = |path: &Path| fs::metadata(path).ok().filter(Metadata::is_file);
    if name.as_bytes().contains(&b'/') {
        return file(Path::new(name));
    }
    let path = environment.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="));
    let directories: Vec<PathBuf> = std::env::split_paths(OsStr::from_bytes(path?)).collect();
    directories.iter().find_map(|directory| file(&directory.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn of(words: &[&[u8]], env: &[(&str, Option<&str>)]) -> String {
        let mut command =
            Command::new(words.iter().map(|word| OsString::from_vec(word.to_vec())).collect());
        command.env =
            env.iter().map(|(name, value)| (name.into(), value.map(OsString::from))).collect();
        identity(&command)
    }

    #[test]
    fn commands_that_read_other_files_are_others() {
        let scratch = tempfile::tempdir().unwrap();
        let program = scratch.path().join("program");
        fs::write(&program, "1").unwrap();
        let word = program.as_os_str().as_bytes();
        let path = scratch.path().to_str().unwrap();
        let same = || of(&[word, b"a"], &[]);
        let mut all = vec![
            same(),
            of(&[word, b"b"], &[]),
            of(&[word, b"a", b""], &[]),
            // Both become the same in a record.
            of(&[word, b"\xff"], &[]),
            of(&[word, b"\xfe"], &[]),
            of(&[word, b"a"], &[("FILE", Some("big"))]),
            of(&[word, b"a"], &[("FILE", Some("small"))]),
            of(&[word, b"a"], &[("TERM", Some("small"))]),
            of(&[word, b"a"], &[("FILE", None)]),
            of(&[word, b"a"], &[("PATH", Some("/nowhere"))]),
            of(&[b"program"], &[("PATH", Some("/nowhere"))]),
            of(&[b"program"], &[("PATH", Some(path))]),
        ];
        assert_eq!(same(), all[0]);
        // Another program of the same name.
        fs::write(scratch.path().join("new"), "1").unwrap();
        fs::rename(scratch.path().join("new"), &program).unwrap();
        all.push(same());
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn what_is_of_a_session_makes_no_other_command() {
        let of = |entries: &[&str]| kept(&entries.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(of(&["PWD2=/c", "PWD=/a", "SHLVL=2", "A=b:/d"]), ["A=b:/d", "PWD2=/c"]);
        assert_eq!(of(&["A=b:/d", "_=/bin/x", "SHLVL=3", "PWD2=/c"]), ["A=b:/d", "PWD2=/c"]);
    }
}
