//! The programs in fixtures/: compiled once, and what the first lines of each promise.
//!
//! The head comment says in prose what the fixture proves, and in lines of their own:
//!
//! | line | meaning |
//! |---|---|
//! | `cflags FLAGS` | after the ones that every fixture has |
//! | `args WORDS` | arguments; `{name}` is the path of another fixture |
//! | `helper` | no test of its own |
//! | `traced-only` | untraced it ends in another way |
//! | `unfiltered-only` | it cannot work below a filter, whoever installs it |
//! | `expect NAME calls=N ...` | the row of that call; `abi:NAME` where it is not x86_64's, `#N` by number |
//! | `expect NAME absent` | there is no such row |
//! | `expect-only` | there is no row that is not listed |
//! | `expect-process ID NAME ...` | the same for one process, by its id in the record |
//! | `expect-processes N`, `expect-threads N` | of the tree |
//! | `expect-exit N`, `expect-signal NAME` | how it ends |
//! | `expect-repaired-min N` | calls that the tracer had to re-issue |
//!
//! After `calls=N`, each errno stands with its count (`EBADF=3`), and `restarts`, `unfinished` and
//! `abandoned`; what is not mentioned is 0. `any` is every number; `calls=any` leaves the whole row
//! open, and lets it be missing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex};
use std::time::SystemTime;

use super::{find_program, skip, unique};

/// Exit status by which a fixture says that this kernel lacks what it is about.
pub const SKIPPED: i32 = 77;

/// A program of fixtures/, and what it promises.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // each is one line of the head comment
pub struct Fixture {
    /// File name without `.c`.
    pub name: String,
    /// Whether it only serves other fixtures and tests.
    pub helper: bool,
    /// Whether it ends differently when nobody traces it.
    pub traced_only: bool,
    unfiltered_only: bool,
    cflags: Vec<String>,
    args: Vec<String>,
    /// Rows of the whole table.
    pub rows: Vec<ExpectedRow>,
    /// Whether there may be no other row.
    pub only: bool,
    /// Rows of single processes.
    pub process_rows: Vec<(u64, ExpectedRow)>,
    /// Processes of the tree.
    pub processes: Option<u64>,
    /// Threads of the tree.
    pub threads: Option<u64>,
    /// Exit status.
    pub exit: Option<i32>,
    /// Name of the signal that ends it.
    pub signal: Option<String>,
    /// At least so many calls are re-issued by the tracer.
    pub repaired_min: u64,
}

/// A number, or any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Exactly this.
    Exactly(u64),
    /// Not said.
    Any,
}

impl Expected {
    /// Whether `actual` is what was expected.
    pub fn allows(self, actual: u64) -> bool {
        self == Self::Any || self == Self::Exactly(actual)
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(n) => n.fmt(f),
            Self::Any => f.write_str("any"),
        }
    }
}

/// One `expect` line.
#[derive(Debug)]
pub struct ExpectedRow {
    /// Table that the name is from.
    pub abi: String,
    /// Name, or `#` and the number.
    pub name: String,
    /// No such row may be there.
    pub absent: bool,
    /// Calls.
    pub calls: Expected,
    /// Errors by name, all of them; none: not said.
    pub errors: Option<BTreeMap<String, u64>>,
    /// Sum of the errors, where the line says it.
    pub error_sum: Expected,
    /// Restarts.
    pub restarts: Expected,
    /// Unfinished calls.
    pub unfinished: Expected,
    /// Abandoned calls.
    pub abandoned: Expected,
}

/// Where the fixtures are.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// Names of all of them, helpers too.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory())
        .expect("fixtures/ can be read")
        .flatten()
        .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".c")?.to_owned()))
        .collect();
    names.sort();
    names
}

impl Fixture {
    /// Reads the head comment. A line that is not understood is an error of the fixture: panics.
    pub fn read(name: &str) -> Self {
        let path = directory().join(format!("{name}.c"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut fixture = Self { name: name.to_owned(), ..Self::default() };
        let head = text.split("*/").next().unwrap_or_default();
        for line in head.lines().filter_map(|line| line.strip_prefix(" * ")) {
            fixture
                .directive(line)
                .unwrap_or_else(|why| panic!("{}: {why}: {line}", path.display()));
        }
        fixture
    }

    fn directive(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace().map(str::to_owned);
        let first = words.next().unwrap_or_default();
        let rest: Vec<String> = words.collect();
        let one = || match rest.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err("one word is wanted".to_owned()),
        };
        match first.as_str() {
            "helper" if rest.is_empty() => self.helper = true,
            "traced-only" if rest.is_empty() => self.traced_only = true,
            "unfiltered-only" if rest.is_empty() => self.unfiltered_only = true,
            "expect-only" if rest.is_empty() => self.only = true,
            "cflags" => self.cflags = rest,
            "args" => self.args = rest,
            "expect" => self.rows.push(ExpectedRow::parse(&rest)?),
            "expect-process" => {
                let (id, row) = rest.split_first().ok_or("a process id is wanted")?;
                self.process_rows.push((number(id)?, ExpectedRow::parse(row)?));
            }
            "expect-processes" => self.processes = Some(number(&one()?)?),
            "expect-threads" => self.threads = Some(number(&one()?)?),
            "expect-exit" => self.exit = Some(number(&one()?)? as i32),
            "expect-signal" => self.signal = Some(one()?),
            "expect-repaired-min" => self.repaired_min = number(&one()?)?,
            word if word.starts_with("expect") => return Err("unknown line".to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// Names of the calls whose number it promises, for `-e trace=`; none where a call is not
    /// x86_64's or has no name, or where the program cannot be filtered.
    pub fn countable(&self) -> Option<Vec<&str>> {
        let nameless = |row: &ExpectedRow| {
            row.abi != "x86_64" || row.name.starts_with('#') || row.name.starts_with("syscall_")
        };
        (!self.unfiltered_only && !self.rows.iter().any(nameless)).then(|| {
            self.rows
                .iter()
                .filter(|row| !row.absent && row.calls != Expected::Any)
                .map(|row| row.name.as_str())
                .collect()
        })
    }

    /// The compiled program with its arguments, or why it cannot be had on this machine.
    pub fn build(&self) -> Result<Program, String> {
        let path = compiled(&self.name, &self.cflags)?;
        let arguments = self
            .args
            .iter()
            .map(|word| match word.strip_prefix('{').and_then(|w| w.strip_suffix('}')) {
                Some(other) => compiled(other, &Self::read(other).cflags),
                None => Ok(PathBuf::from(word)),
            })
            .collect::<Result<_, _>>()?;
        Ok(Program { path, arguments })
    }
}

/// The compiled fixture, or none after saying why this machine cannot have it.
pub fn built(name: &str) -> Option<Program> {
    Fixture::read(name).build().map_err(|why| skip(&format!("{name}: {why}"))).ok()
}

/// A compiled fixture.
#[derive(Debug, Clone)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<PathBuf>,
}

impl Program {
    /// Runs it with nobody tracing.
    pub fn untraced(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command
    }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("{word} is no number"))
}

impl ExpectedRow {
    fn parse(words: &[String]) -> Result<Self, String> {
        let (key, words) = words.split_first().ok_or("a name is wanted")?;
        let (abi, name) = key.split_once(':').unwrap_or(("x86_64", key));
        let mut row = Self {
            abi: abi.to_owned(),
            name: name.to_owned(),
            absent: false,
            calls: Expected::Exactly(0),
            errors: Some(BTreeMap::new()),
            error_sum: Expected::Any,
            restarts: Expected::Exactly(0),
            unfinished: Expected::Exactly(0),
            abandoned: Expected::Exactly(0),
        };
        if words == ["absent"] {
            row.absent = true;
            return Ok(row);
        }
        let mut counted = false;
        for word in words {
            let (what, value) = word.split_once('=').ok_or_else(|| format!("{word}: no ="))?;
            let value = match value {
                "any" => Expected::Any,
                value => Expected::Exactly(number(value)?),
            };
            match (what, value) {
                ("calls", value) => {
                    row.calls = value;
                    counted = true;
                }
                ("errors", value) => row.error_sum = value,
                ("restarts", value) => row.restarts = value,
                ("unfinished", value) => row.unfinished = value,
                ("abandoned", value) => row.abandoned = value,
                (errno, Expected::Exactly(n)) if errno.starts_with('E') => {
                    row.errors.get_or_insert_default().insert(errno.to_owned(), n);
                }
                _ => return Err(format!("{word} is not understood")),
            }
        }
        if !counted {
            return Err("calls= is missing".to_owned());
        }
        if row.calls == Expected::Any {
            row.errors = None;
            row.restarts = Expected::Any;
            row.unfinished = Expected::Any;
            row.abandoned = Expected::Any;
        }
        Ok(row)
    }
}

/// Compiles fixtures/`name`.c, once in this process and only if a source is newer.
fn compiled(name: &str, cflags: &[String]) -> Result<PathBuf, String> {
    static DONE: LazyLock<Mutex<HashMap<String, Result<PathBuf, String>>>> =
        LazyLock::new(Mutex::default);
    let mut done = DONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(known) = done.get(name) {
        return known.clone();
    }
    let result = compile(name, cflags);
    done.insert(name.to_owned(), result.clone());
    result
}

/// When a source, or something that it includes from here, was changed last.
fn newest(source: &Path) -> Option<SystemTime> {
    let text = std::fs::read_to_string(source).unwrap_or_default();
    let included =
        |line: &str| Some(line.strip_prefix("#include \"")?.split('"').next()?.to_owned());
    let included = text.lines().filter_map(included);
    included.map(|name| newest(&directory().join(name))).fold(modified(source), Ord::max)
}

fn compile(name: &str, cflags: &[String]) -> Result<PathBuf, String> {
    let source = directory().join(format!("{name}.c"));
    let target_directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fixtures");
    std::fs::create_dir_all(&target_directory).map_err(|error| error.to_string())?;
    let target = target_directory.join(name);
    let newest = newest(&source);
    if newest.is_some() && modified(&target) > newest {
        return Ok(target);
    }
    if find_program("gcc").is_none() {
        return Err("no gcc".to_owned());
    }
    if cflags.iter().any(|flag| flag == "-m32") && !makes_32_bit_programs() {
        return Err("gcc makes no 32-bit programs here".to_owned());
    }
    // Never written in place: another process may be running it, or compiling it too.
    let partial = target_directory.join(format!("{name}.{}.{}", std::process::id(), unique()));
    let output = Command::new("gcc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-stack-protector", "-o"])
        .arg(&partial)
        .arg(&source)
        .args(cflags)
        .output()
        .map_err(|error| format!("gcc: {error}"))?;
    assert!(
        output.status.success(),
        "{} does not compile:\n{}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(&partial, &target).map_err(|error| error.to_string())?;
    Ok(target)
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

fn makes_32_bit_programs() -> bool {
    let scratch = super::Scratch::new("m32");
    let source = scratch.path("m32.c");
    std::fs::write(&source, "void _start(void) { for (;;); }\n").is_ok()
        && Command::new("gcc")
            .args(["-m32", "-nostdlib", "-static", "-o"])
            .arg(scratch.path("m32"))
            .arg(&source)
            .output()
            .is_ok_and(|output| output.status.success())
}
