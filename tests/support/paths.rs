//! The fixtures of `coldtrace files`: the directory that each runs in, and the rows that its head
//! promises (fixtures/paths.h has the words).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use coldtrace::record::{FileRow, Files, Record};

use super::fixture::{SKIPPED, built, directory};
use super::process::{Finished, finish};
use super::{Scratch, coldtrace, read_record, skip};

/// A fixture in a directory of its own.
pub struct Walk {
    /// Name of the fixture.
    pub name: String,
    /// {dir}: the current directory and the first argument.
    pub dir: PathBuf,
    /// Where reports go.
    pub scratch: Scratch,
    /// Rows that must come out.
    pub rows: Vec<Expected>,
    given: Vec<Given>,
}

/// One `path` line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// The exact bytes.
    pub path: Vec<u8>,
    /// Numbers by their names, those that are 0 left out; `other.read`, `ENOENT`, `mark.deleted`
    /// among them.
    pub numbers: BTreeMap<String, u64>,
}

impl Expected {
    /// A row, from the words of a line.
    pub fn new(path: impl Into<Vec<u8>>, words: &str) -> Self {
        let numbers = words.split_whitespace().map(|word| {
            let (name, number) = word.split_once('=').unwrap_or((word, "1"));
            let number = number.parse().unwrap_or_else(|_| panic!("{word}: a number is wanted"));
            (name.to_owned(), number)
        });
        Self { path: path.into(), numbers: numbers.collect() }
    }

    /// What a row of a record says.
    pub fn of(row: &FileRow) -> Self {
        let mut numbers: BTreeMap<String, u64> = [
            ("opens_read", row.opens_read),
            ("opens_write", row.opens_write),
            ("stats", row.stats),
            ("misses", row.misses),
            ("read_bytes", row.read_bytes),
            ("written_bytes", row.written_bytes),
        ]
        .map(|(name, number)| (name.to_owned(), number))
        .into();
        numbers.extend(row.other.iter().map(|(kind, n)| (format!("other.{kind}"), *n)));
        numbers.extend(row.errors.iter().map(|(errno, n)| (errno.clone(), *n)));
        numbers.extend(row.marks.iter().map(|mark| (format!("mark.{mark}"), 1)));
        numbers.retain(|_, number| *number != 0);
        Self { path: row.bytes(), numbers }
    }

    /// Rows of one path with different marks are different rows.
    fn key(&self) -> (Vec<u8>, Vec<String>) {
        let marks = self.numbers.keys().filter(|name| name.starts_with("mark."));
        (self.path.clone(), marks.cloned().collect())
    }

    fn text(&self) -> String {
        let numbers: Vec<String> = self.numbers.iter().map(|(k, n)| format!("{k}={n}")).collect();
        format!("{} {}", self.path.escape_ascii(), numbers.join(" "))
    }
}

enum Given {
    Directory(PathBuf),
    File(PathBuf, u64),
    Link(PathBuf, OsString),
}

impl Walk {
    /// Compiles a fixture and makes what its head wants; none after saying why this cannot be.
    pub fn new(name: &str) -> Option<Self> {
        let program = built(name)?;
        let scratch = Scratch::new(name);
        let root = scratch.root().canonicalize().expect("it was just made");
        let dir = root.join("dir");
        std::fs::create_dir(&dir).expect("scratch can be written");
        // By another process: while this one has a program open to write it, a test that forks in
        // another thread keeps it so, and it cannot be executed (ETXTBSY).
        let copied = Command::new("cp").arg(&program.path).arg(dir.join("tool")).status();
        assert!(copied.is_ok_and(|status| status.success()), "scratch can be written");
        let (given, rows) = head(name, &dir);
        let walk = Self { name: name.to_owned(), dir, scratch, rows, given };
        walk.restore();
        Some(walk)
    }

    /// As before the first run.
    pub fn restore(&self) {
        for entry in std::fs::read_dir(&self.dir).expect("it is there").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                std::fs::remove_dir_all(path).expect("it can be removed");
            } else if entry.file_name() != "tool" {
                std::fs::remove_file(path).expect("it can be removed");
            }
        }
        let parent = |path: &Path| {
            let parent = path.parent().expect("it is below {dir}");
            std::fs::create_dir_all(parent).expect("scratch can be written");
        };
        for given in &self.given {
            match given {
                Given::Directory(path) => std::fs::create_dir_all(path),
                Given::File(path, size) => {
                    parent(path);
                    std::fs::write(path, vec![b'x'; *size as usize])
                }
                Given::Link(path, to) => {
                    parent(path);
                    std::os::unix::fs::symlink(to, path)
                }
            }
            .expect("scratch can be written");
        }
    }

    /// A path in {dir}.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The program with its arguments behind those of `command`, in {dir}.
    pub fn arguments(&self, command: &mut Command) {
        command.arg(self.path("tool")).arg(&self.dir).current_dir(&self.dir);
    }

    /// Untraced it ends well; false where this kernel lacks what it is about.
    pub fn works(&self) -> bool {
        let mut command = Command::new(self.path("tool"));
        command.arg(&self.dir).current_dir(&self.dir);
        let finished = finish(&mut command);
        self.restore();
        if finished.code() == Some(SKIPPED) {
            skip(&format!("{}: this kernel lacks what it is about", self.name));
            return false;
        }
        finished.assert_code(0);
        true
    }

    /// `coldtrace files --json OPTIONS`; the directory is as before again after it.
    pub fn traced(&self, options: &[&str]) -> (Record, Finished) {
        let report = self.scratch.path("report.json");
        let mut command = coldtrace("files");
        command.args(["--json", "-o"]).arg(&report).args(options).arg("--");
        self.arguments(&mut command);
        let finished = finish(&mut command);
        let record = read_record(&report, &finished);
        finished.assert_code(0);
        self.restore();
        (record, finished)
    }

    /// A run of it that `coldtrace run` keeps: its directory. The fixture's own is as before again.
    pub fn saved(&self) -> PathBuf {
        let runs = self.scratch.path("runs");
        let mut command = coldtrace("run");
        command.arg("--runs").arg(&runs).args(["--output", "pass", "--"]);
        self.arguments(&mut command);
        finish(&mut command).assert_code(0);
        self.restore();
        runs.join("latest")
    }

    /// All that differs from the head, one line each.
    pub fn differences(&self, record: &Record) -> Vec<String> {
        let files = files(record);
        let kinds = self.rows.iter().any(|row| row.path.starts_with(b"<"));
        let dir = self.dir.as_os_str().as_bytes();
        let ours = |row: &&FileRow| {
            let path = row.bytes();
            let rest = path.strip_prefix(dir);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
                || kinds && path.starts_with(b"<")
        };
        let mut found = compare(&self.rows, files.paths.iter().filter(ours));
        found.extend(contradictions(record));
        found
    }

    /// Panics where something differs from the head.
    #[track_caller]
    pub fn assert_rows(&self, record: &Record, what: &str) {
        let wrong = self.differences(record);
        assert!(wrong.is_empty(), "{} {what}:\n  {}", self.name, wrong.join("\n  "));
    }
}

/// The record of a run directory.
pub fn saved_record(run: &Path) -> Record {
    let path = run.join("record.json");
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The `files` part.
#[track_caller]
pub fn files(record: &Record) -> &Files {
    record.files.as_ref().expect("the record has files")
}

/// The row of a path.
pub fn row(record: &Record, path: impl AsRef<OsStr>) -> Option<&FileRow> {
    let path = path.as_ref().as_bytes();
    files(record).paths.iter().find(|row| row.bytes() == path)
}

/// The row of a path; panics where there is none.
#[track_caller]
pub fn the_row(record: &Record, path: impl AsRef<OsStr>) -> &FileRow {
    let path = path.as_ref();
    row(record, path).unwrap_or_else(|| panic!("no row of {}: {}", path.display(), listing(record)))
}

/// All rows as text, for messages of failed tests.
pub fn listing(record: &Record) -> String {
    let rows = files(record).paths.iter().map(|row| Expected::of(row).text());
    rows.collect::<Vec<_>>().join("\n")
}

/// All that differs between rows that were promised and those that came.
pub fn compare<'a>(
    expected: &[Expected],
    rows: impl IntoIterator<Item = &'a FileRow>,
) -> Vec<String> {
    let mut actual: BTreeMap<_, BTreeMap<String, u64>> = BTreeMap::new();
    let mut found = Vec::new();
    for row in rows.into_iter().map(Expected::of) {
        let text = row.text();
        if actual.insert(row.key(), row.numbers).is_some() {
            found.push(format!("twice: {text}"));
        }
    }
    for row in expected {
        match actual.remove(&row.key()) {
            None => found.push(format!("missing: {}", row.text())),
            Some(numbers) if numbers != row.numbers => {
                let path = row.path.escape_ascii();
                let names = numbers.keys().chain(row.numbers.keys());
                let mut differ: Vec<String> = names
                    .map(|name| (name, numbers.get(name).unwrap_or(&0), row.numbers.get(name)))
                    .map(|(name, is, wanted)| (name, is, wanted.unwrap_or(&0)))
                    .filter(|(_, is, wanted)| is != wanted)
                    .map(|(name, is, wanted)| format!("{name} is {is}, not {wanted}"))
                    .collect();
                differ.sort();
                differ.dedup();
                found.push(format!("{path}: {}", differ.join("; ")));
            }
            Some(_) => {}
        }
    }
    let invented = actual.into_iter().map(|((path, _), numbers)| Expected { path, numbers });
    found.extend(invented.map(|row| format!("not expected: {}", row.text())));
    found
}

/// What no listing may say, whatever was run.
pub fn contradictions(record: &Record) -> Vec<String> {
    let files = files(record);
    let processes = record.processes.as_deref().unwrap_or_default();
    let mut found = Vec::new();
    for row in &files.paths {
        let mut says = |what: &str| found.push(format!("{}: {what}", Expected::of(row).text()));
        if row.first_ns > row.last_ns {
            says("last used before it was first");
        }
        if row.processes.is_empty() || !row.processes.is_sorted_by(|a, b| a < b) {
            says("processes not ascending, or none");
        }
        if !row.processes.iter().all(|id| processes.iter().any(|process| process.id == *id)) {
            says("a process that is not in the tree");
        }
        let bytes = row.bytes();
        if String::from_utf8_lossy(&bytes) != row.path {
            says("path is not what path_bytes says");
        }
        if row.path_bytes.is_some() && std::str::from_utf8(&bytes).is_ok() {
            says("path_bytes where path says it all");
        }
        if row.path.starts_with('/') && normal(&bytes) != bytes {
            says("not normalised");
        }
        if !row.path.starts_with('/') && !row.path.starts_with('<') && row.marks.is_empty() {
            says("neither absolute nor marked");
        }
    }
    for pair in files.paths.windows(2).filter(|pair| pair[0].first_ns > pair[1].first_ns) {
        found.push(format!("not in order of first use: {pair:?}"));
    }
    let stats: u64 = files.paths.iter().map(|row| row.stats).sum();
    // A descriptor that is not open has no row, nor has a path that cannot be read.
    if stats > files.stats_by_path + files.stats_by_descriptor {
        found.push(format!("rows have {stats} stats, {files:?} fewer"));
    }
    let mapped = record.mapped.as_deref().unwrap_or_default();
    if mapped.iter().any(|file| file.processes.is_empty() || !file.path.starts_with('/')) {
        found.push(format!("nobody's mapping, or not a path: {mapped:?}"));
    }
    found
}

fn normal(path: &[u8]) -> Vec<u8> {
    let parts = path.split(|&byte| byte == b'/');
    let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b"." | b"..")).collect();
    [b"/", parts.join(&b'/').as_slice()].concat()
}

// ---- heads ----

fn head(name: &str, dir: &Path) -> (Vec<Given>, Vec<Expected>) {
    let source = directory().join(format!("{name}.c"));
    let text = std::fs::read_to_string(&source)
        .unwrap_or_else(|error| panic!("{}: {error}", source.display()));
    let head = text.split("*/").next().unwrap_or_default();
    let mut given = Vec::new();
    let mut rows: Vec<Expected> = Vec::new();
    for line in head.lines().filter_map(|line| line.strip_prefix(" * ")) {
        if let Some(line) = line.strip_prefix("given ") {
            let words: Vec<&str> = line.split_whitespace().collect();
            let path = |word: &str| PathBuf::from(OsString::from_vec(bytes(word, dir)));
            given.push(match words[..] {
                [path_word, "->", to] => Given::Link(path(path_word), path(to).into()),
                [word] if word.ends_with('/') => Given::Directory(path(word)),
                [word, size] => Given::File(path(word), size.parse().expect("a size")),
                _ => panic!("{name}: not understood: {line}"),
            });
        } else if let Some(line) = line.strip_prefix("path ") {
            let (path, words) = line.split_once(' ').unwrap_or((line, ""));
            rows.push(Expected::new(bytes(path, dir), words));
        }
    }
    (given, rows)
}

/// The bytes of a word, escapes as in Rust's byte strings; {dir} is the directory.
fn bytes(word: &str, dir: &Path) -> Vec<u8> {
    let (mut bytes, word) = match word.strip_prefix("{dir}") {
        Some(rest) => (dir.as_os_str().as_bytes().to_vec(), rest),
        None => (Vec::new(), word),
    };
    let mut rest = word.replace("{dir}", &dir.to_string_lossy()).into_bytes().into_iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'n') => b'\n',
                Some(b't') => b'\t',
                Some(b'r') => b'\r',
                Some(b'x') => {
                    let digits: String = rest.by_ref().take(2).map(char::from).collect();
                    u8::from_str_radix(&digits, 16).expect("two digits")
                }
                Some(byte) => byte,
                None => panic!("{word}: ends with a backslash"),
            },
            byte => byte,
        });
    }
    bytes
}
