//! A directory for what is needed during runs.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::tracer::reason;

/// A directory of its own, in that for temporary files. When it is dropped it is
/// removed, with all that is in it; where it cannot be, a line on standard error
/// says so.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes it. Its path is as long each time, and without symbolic links: what
    /// the kernel says of files in it begins with it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> io::Result<Self> {
        let inside = std::env::temp_dir().canonicalize()?;
        let made =
            tempfile::Builder::new().prefix("coldtrace-").rand_bytes(8).tempdir_in(inside)?;
        Ok(Self(made.keep()))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// An empty directory in it, for a command's own temporary files: each time anew.
    ///
    /// # Errors
    /// When it, or what was there before, cannot be made or removed.
    pub fn temporary(&self) -> io::Result<PathBuf> {
        let path = self.0.join("tmp");
        remove(&path)?;
        fs::create_dir(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = remove(&self.0) {
            let path = self.0.display();
            // Nobody reads it: nothing can be done about that.
            let _ = writeln!(io::stderr(), "coldtrace: cannot remove {path}: {}", reason(&e));
        }
    }
}

/// Removes a directory, if it is there; directories in it may be read-only, as a
/// cache of Go's modules.
fn remove(path: &Path) -> io::Result<()> {
    let first = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(meta) if !meta.is_dir() => return fs::remove_file(path),
        _ => fs::remove_dir_all(path),
    };
    if first.is_ok() {
        return Ok(());
    }
    make_writable(path);
    fs::remove_dir_all(path)
}

/// What cannot be changed is left to the removal, which says why it fails.
fn make_writable(path: &Path) {
    let mut directories = vec![path.to_owned()];
    while let Some(path) = directories.pop() {
        // Of a symbolic link it would be another's mode.
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if !meta.is_dir() {
            continue;
        }
        let mode = meta.permissions().mode() | 0o700;
        let _ = fs::set_permissions(&path, Permissions::from_mode(mode));
        directories.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_empty_each_time_and_gone_at_the_end() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        let temporary = scratch.temporary().unwrap();
        fs::create_dir_all(temporary.join("a/b")).unwrap();
        std::os::unix::fs::symlink("/etc", temporary.join("a/etc")).unwrap();
        fs::set_permissions(temporary.join("a"), Permissions::from_mode(0o555)).unwrap();
        assert_eq!(fs::read_dir(scratch.temporary().unwrap()).unwrap().count(), 0);
        // A command may have put anything there.
        fs::remove_dir(&temporary).unwrap();
        std::os::unix::fs::symlink("/etc", &temporary).unwrap();
        assert_eq!(fs::read_dir(scratch.temporary().unwrap()).unwrap().count(), 0);
        drop(scratch);
        assert!(!path.exists() && Path::new("/etc/passwd").exists());
    }

    #[test]
    fn directories_become_writable_and_files_stay_as_they_are() {
        let scratch = Scratch::new().unwrap();
        let (deep, file) = (scratch.path().join("a/b"), scratch.path().join("f"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, deep.join("link")).unwrap();
        for (path, mode) in [(&file, 0o444), (&deep, 0o111)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        make_writable(scratch.path());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&deep), mode(&file)), (0o711, 0o444));
    }
}
