//! The `artifacts` part of a record: the files beside it in the run directory.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// One file of the run directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Artifact {
    /// Its path below the run directory.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of what it holds, in hexadecimal; null where it could not be read.
    pub sha256: Option<String>,
}

impl Artifact {
    /// All files below `dir` but the record itself, by name. Those that are known
    /// already have not changed.
    pub fn all(dir: &Path, known: Option<Vec<Self>>) -> Vec<Self> {
        let mut found = known.unwrap_or_default();
        collect(dir, "", &mut found);
        found.sort_by(|a: &Self, b| a.file.cmp(&b.file));
        found
    }
}

fn collect(dir: &Path, prefix: &str, found: &mut Vec<Artifact>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = format!("{prefix}{name}");
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            collect(&entry.path(), &format!("{file}/"), found);
        } else if kind.is_file()
            && !(prefix.is_empty() && name.starts_with("record.json"))
            && !found.iter().any(|known| known.file == file)
        {
            let hashed = hash(&entry.path()).ok();
            let bytes = hashed.as_ref().map(|(bytes, _)| *bytes);
            let size = || entry.metadata().map_or(0, |m| m.len());
            found.push(Artifact {
                file,
                bytes: bytes.unwrap_or_else(size),
                sha256: hashed.map(|(_, sha256)| sha256),
            });
        }
    }
}

/// Bytes read, and what they hash to.
fn hash(path: &Path) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let mut reader = BufReader::with_capacity(1 << 16, File::open(path)?);
    let mut bytes = 0;
    loop {
        let read = reader.fill_buf()?;
        if read.is_empty() {
            break;
        }
        hasher.update(read);
        let length = read.len();
        bytes += length as u64;
        reader.consume(length);
    }
    let mut sha256 = String::new();
    for byte in hasher.finalize() {
        let _ = write!(sha256, "{byte:02x}"); // A string takes all.
    }
    Ok((bytes, sha256))
}
