//! Writes a baseline, so that nothing is lost that somebody else wrote.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use coldtrace::tracer::reason;

use super::super::{Failure, USAGE, directory, failure};

fn failed(path: &Path) -> impl Fn(io::Error) -> Failure {
    move |e| failure(USAGE, format_args!("cannot write {}: {}", path.display(), reason(&e)))
}

/// Where the file is, or is to be: a link stays one.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = path.canonicalize() {
        return real;
    }
    // It leads to what is not there yet.
    match fs::read_link(path) {
        Ok(to) => directory(path).join(to),
        Err(_) => path.to_owned(),
    }
}

/// Whether it can be written, before anything is run for it.
pub fn writable(path: &Path) -> Result<(), Failure> {
    let real = real(path);
    match File::options().append(true).open(&real) {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            tempfile::tempfile_in(directory(&real)).map(drop).map_err(failed(path))
        }
        Err(e) => Err(failed(path)(e)),
    }
}

/// Replaces the file whole, if it still is as it was read (`None`: not there at
/// all); what it was is there until then.
pub fn write(path: &Path, was: Option<&str>, text: &str) -> Result<(), Failure> {
    let failed = failed(path);
    let other = || {
        let file = path.display();
        let what =
            format!("{file} was changed while it was recorded: nothing was written; run it again");
        failure(USAGE, what)
    };
    let real = real(path);
    // Another that records waits for nothing: it is told.
    let locked = match was {
        Some(_) => Some(File::open(&real).map_err(&failed)?),
        None => None,
    };
    if let Some(file) = &locked {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(other()),
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
    }
    match (was, fs::read_to_string(&real)) {
        (Some(was), Ok(now)) if now == was => {}
        (None, Err(e)) if e.kind() == ErrorKind::NotFound => {}
        _ => return Err(other()),
    }
    let mut new = match tempfile::NamedTempFile::new_in(directory(&real)) {
        Ok(new) => new,
        // The directory cannot be changed, but the file in it can.
        Err(e) if e.kind() == ErrorKind::PermissionDenied && was.is_some() => {
            return fs::write(&real, text).map_err(failed);
        }
        Err(e) => return Err(failed(e)),
    };
    let mode = fs::metadata(&real).map(|meta| meta.permissions());
    new.write_all(text.as_bytes()).map_err(&failed)?;
    let mode = mode.unwrap_or_else(|_| std::os::unix::fs::PermissionsExt::from_mode(0o644));
    new.as_file().set_permissions(mode).map_err(&failed)?;
    new.as_file().sync_all().map_err(&failed)?;
    if was.is_none() {
        return match new.persist_noclobber(&real) {
            Ok(_) => Ok(()),
            Err(e) if e.error.kind() == ErrorKind::AlreadyExists => Err(other()),
            Err(e) => Err(failed(e.error)),
        };
    }
    match new.persist(&real) {
        Ok(_) => Ok(()),
        // A file that is mounted by itself cannot be replaced.
        Err(e) if e.error.kind() == ErrorKind::ResourceBusy => {
            fs::write(&real, text).map_err(failed)
        }
        Err(e) => Err(failed(e.error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_somebody_else_wrote_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.toml");
        write(&path, None, "one").unwrap();
        // It is there now, and another than was read.
        for was in [None, Some("zero")] {
            let failure = write(&path, was, "two").unwrap_err();
            assert_eq!(failure.status, USAGE);
            assert_eq!(failure.message.lines().count(), 1);
            assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        }
        // Somebody else is writing it.
        let held = File::open(&path).unwrap();
        held.lock().unwrap();
        write(&path, Some("one"), "two").unwrap_err();
        drop(held);
        write(&path, Some("one"), "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        // It was removed.
        fs::remove_file(&path).unwrap();
        write(&path, Some("two"), "three").unwrap_err();
        assert!(!path.exists());
    }

    #[test]
    fn a_link_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let (link, file) = (dir.path().join("link"), dir.path().join("file"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        writable(&link).unwrap();
        for (was, text) in [(None, "one"), (Some("one"), "two")] {
            write(&link, was, text).unwrap();
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        writable(&dir.path().join("not/there")).unwrap_err();
    }
}
