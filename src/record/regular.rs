//! Files that are kept for later and read again: what was put in their place may be
//! anything.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Most that is read of a record or of what a bench wrote, bytes: far more than they have.
pub const LARGEST_KEPT: u64 = 1 << 30;

/// Reads a regular file of at most so many bytes. A pipe in its place is not waited for.
///
/// # Errors
/// Those of opening and reading it; and where it is no regular file, or larger.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_regular_files_are_read_and_only_so_much() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("file");
        fs::write(&file, "four").unwrap();
        assert_eq!(read_regular(&file, 4).unwrap(), b"four");
        assert_eq!(read_regular(&file, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        // Nobody writes to it: to wait for that has no end.
        let pipe = scratch.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for no_file in [pipe.as_path(), scratch.path(), Path::new("/dev/null")] {
            let error = read_regular(no_file, 4).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{}", no_file.display());
        }
        let gone = read_regular(&scratch.path().join("gone"), 4).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
