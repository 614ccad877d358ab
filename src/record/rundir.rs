//! The directory of a run: made before the command starts, so that a place
//! where nothing can be written is an error before anything has happened.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::types::{Record, SCHEMA};

/// What went wrong with a run directory, as one line.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {}", path.display(), crate::tracer::reason(source))]
pub struct RunDirError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RunDirError {
    let path = path.to_owned();
    move |source| RunDirError { what, path, source }
}

/// A run directory.
#[derive(Debug)]
pub struct RunDir {
    runs: PathBuf,
    id: String,
    /// A place held for the record, so that a disk that was full all along is
    /// noticed before the command starts.
    partial: PathBuf,
    /// Whether `latest` is to point to it.
    is_latest: bool,
}

impl RunDir {
    /// Makes `runs/START-LABEL`, and `runs` itself (private, ignored by git)
    /// where it is not there. A clash gets `-2`, `-3`, ...
    ///
    /// # Errors
    /// When something cannot be made or written.
    pub fn create(runs: &Path, start: jiff::Timestamp, label: &str) -> Result<Self, RunDirError> {
        let existed = runs.is_dir();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(runs)
            .map_err(failed("make the directory", runs))?;
        if !existed {
            // A directory that was there is somebody's, and may hold more.
            let ignore = runs.join(".gitignore");
            fs::write(&ignore, "*\n").map_err(failed("write", &ignore))?;
        }
        let base = format!("{}-{}", start.strftime("%Y%m%dT%H%M%S.%3fZ"), safe(label));
        let mut id = base.clone();
        let mut next = 2u32;
        loop {
            let dir = runs.join(&id);
            match DirBuilder::new().mode(0o700).create(&dir) {
                Ok(()) => break,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    id = format!("{base}-{next}");
                    next += 1;
                }
                Err(e) => return Err(failed("make the directory", &dir)(e)),
            }
        }
        Self { is_latest: true, ..Self::named(runs, id) }.probed()
    }

    /// Makes the directory of one of several runs that belong together, in theirs.
    ///
    /// # Errors
    /// When it cannot be made or written.
    pub fn within(&self, name: &str) -> Result<Self, RunDirError> {
        let id = self.directory(name)?;
        Self::named(&self.path(), id).probed()
    }

    fn named(runs: &Path, id: String) -> Self {
        let partial = runs.join(&id).join("record.json.partial");
        Self { runs: runs.to_owned(), id, partial, is_latest: false }
    }

    /// Holds the place for the record.
    fn probed(self) -> Result<Self, RunDirError> {
        // As much as a small record takes.
        let probe = create(&self.partial)
            .and_then(|mut f| f.write_all(&[b' '; 16 * 1024]).and_then(|()| f.sync_all()));
        if let Err(e) = probe {
            let error = failed("write", &self.partial)(e);
            let _ = fs::remove_dir_all(self.path());
            return Err(error);
        }
        Ok(self)
    }

    /// The run's id: the directory's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.runs.join(&self.id)
    }

    /// Creates a file in it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn file(&self, name: &str) -> Result<File, RunDirError> {
        let path = self.path().join(name);
        create(&path).map_err(failed("write", &path))
    }

    /// Makes a directory in it, for files of such names; gives its name.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn directory(&self, name: &str) -> Result<String, RunDirError> {
        let name = safe(name);
        let path = self.path().join(&name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(failed("make the directory", &path))?;
        Ok(name)
    }

    /// Bytes of a file in it.
    pub fn size(&self, name: &str) -> Option<u64> {
        fs::metadata(self.path().join(name)).ok().map(|m| m.len())
    }

    /// Writes the record whole (temporary name, fsync, rename), then points
    /// `latest` to the run.
    ///
    /// # Errors
    /// When it cannot be written; then there is no record.json.
    pub fn write(&self, record: &Record) -> Result<(), RunDirError> {
        self.write_as("record.json", record)
    }

    /// The same of something that is no record.
    ///
    /// # Errors
    /// When it cannot be written; then there is no such file.
    pub fn write_as(&self, name: &str, what: &impl Serialize) -> Result<(), RunDirError> {
        let path = self.path().join(name);
        let written = create(&self.partial).and_then(|file| {
            let mut out = io::BufWriter::new(file);
            serde_json::to_writer_pretty(&mut out, what)?;
            out.write_all(b"\n")?;
            out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            fs::rename(&self.partial, &path)
        });
        written.map_err(failed("write", &path))?;
        if !self.is_latest {
            return Ok(());
        }
        let latest = self.runs.join("latest");
        let new = self.runs.join(format!(".latest-{}", std::process::id()));
        let _ = fs::remove_file(&new);
        std::os::unix::fs::symlink(&self.id, &new).and_then(|()| fs::rename(&new, &latest)).map_err(
            |e| {
                let _ = fs::remove_file(&new);
                failed("point to the run from", &latest)(e)
            },
        )
    }

    /// Removes the files of /proc, which are in the record too; whether there were
    /// any.
    pub fn make_room(&self) -> bool {
        let mut any = false;
        for entry in fs::read_dir(self.path()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("at-") {
                any |= fs::remove_dir_all(entry.path()).is_ok();
            } else if Path::new(&name).extension().is_some_and(|ending| ending == "txt") {
                any |= fs::remove_file(entry.path()).is_ok();
            }
        }
        any
    }

    /// There will be no record: only what else it holds is kept.
    pub fn give_up(self) {
        let _ = fs::remove_file(&self.partial);
    }

    /// Removes it: the command never ran. What holds output is kept.
    pub fn discard(self) {
        let logs = ["stdout.log", "stderr.log"];
        if logs.iter().all(|log| self.size(log).unwrap_or(0) == 0) {
            let _ = fs::remove_dir_all(self.path());
        }
    }
}

/// What a run holds may be private: only its owner reads it.
fn create(path: &Path) -> io::Result<File> {
    // What the command may have put there: neither followed nor waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags).open(path)
}

/// A label as part of a file name.
fn safe(label: &str) -> String {
    let name: String = label
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-+".contains(c) { c } else { '_' })
        .take(48)
        .collect();
    let name = name.trim_start_matches(['.', '-']);
    if name.is_empty() { "run".into() } else { name.to_owned() }
}

/// Why a record could not be read, as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No such run, or not readable.
    #[error("cannot read {path}: {}", crate::tracer::reason(source))]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The run has not ended, or was cut off.
    #[error("{path} holds no record.json: the run has not ended, or coldtrace was killed")]
    Unfinished {
        /// The directory.
        path: String,
    },
    /// Not a record.
    #[error("{path} is no record: {source}")]
    Json {
        /// The file.
        path: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A record of another major version.
    #[error("{path} has schema {found}, this coldtrace reads {SCHEMA}")]
    Schema {
        /// The file.
        path: String,
        /// What it says.
        found: String,
    },
}

/// The one field that every record of any version has.
#[derive(serde::Deserialize)]
struct Head {
    schema: String,
}

/// Reads a record: `RUN` is a run directory, a record.json, `-` for standard
/// input, `latest`, or the id of a run in `runs`.
///
/// # Errors
/// When there is none, or it is of another major version.
pub fn read(run: &str, runs: &Path) -> Result<Record, ReadError> {
    let (path, text) = if run == "-" {
        let mut text = String::new();
        let read = io::stdin().read_to_string(&mut text);
        ("standard input".to_owned(), read.map(|_| text))
    } else {
        let given = PathBuf::from(run);
        let mut path = if given.exists() { given } else { runs.join(run) };
        if path.is_dir() {
            let dir = path.display().to_string();
            path.push("record.json");
            if !path.exists() {
                return Err(ReadError::Unfinished { path: dir });
            }
        }
        (path.display().to_string(), fs::read_to_string(&path))
    };
    let text = match text {
        Ok(text) => text,
        Err(source) => return Err(ReadError::Io { path, source }),
    };
    Record::from_json(path, &text)
}

impl Record {
    /// What a file holds, that was read already; `path` is for the errors.
    ///
    /// # Errors
    /// When it is no record, or of another major version.
    pub fn from_json(path: String, text: &str) -> Result<Self, ReadError> {
        let json = |source| ReadError::Json { path: path.clone(), source };
        let head: Head = serde_json::from_str(text).map_err(json)?;
        let major = |schema: &str| schema.split('.').take(2).collect::<Vec<_>>().join(".");
        if major(&head.schema) != major(SCHEMA) {
            return Err(ReadError::Schema { path, found: head.schema });
        }
        serde_json::from_str(text).map_err(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_leave_its_directory() {
        assert_eq!(safe("../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(safe("..."), "run");
        assert_eq!(safe(""), "run");
        assert_eq!(safe("torch import"), "torch_import");
        assert_eq!(safe("-rf"), "rf");
        assert_eq!(safe(&"x".repeat(300)).len(), 48);
    }
}
