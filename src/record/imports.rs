//! The `imports` part: what Python imported, how long that took, and what each
//! import asked of the kernel.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::imports::{Module, Program, Sums};
use crate::syscall::errno::signal_name;
use crate::tracer::{Ending, Traced};

/// Imports of all Pythons of a run, by a run of its own with
/// PYTHONPROFILEIMPORTTIME. Times include tracing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Imports {
    /// Why nothing is known, or not all; null where there is nothing to say.
    pub reason: Option<String>,
    /// What says which calls an import made.
    pub basis: String,
    /// Where that is uncertain, a sentence each.
    pub uncertain: Vec<String>,
    /// From the exec that started the command again to its end; null where it
    /// was not run again.
    pub wall_ns: Option<u64>,
    /// Calls that wrote the log, and are counted nowhere else; null where it was
    /// not run again.
    pub log_calls: Option<u64>,
    /// One entry a Python that imported something; null where nothing is known.
    pub processes: Option<Vec<ImportProcess>>,
    /// Calls of all other programs of that run, and of forks that imported
    /// nothing; null where it was not run again.
    pub elsewhere: Option<ImportCalls>,
}

/// A Python of that run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ImportProcess {
    /// Process id in that run: no process of `processes`.
    pub pid: i32,
    /// Its arguments (invalid UTF-8 replaced).
    pub argv: Vec<String>,
    /// Its imports in the order in which they ended, as in the log: those that
    /// happened in another stand before it.
    pub modules: Vec<ImportedModule>,
    /// Calls outside of any import: start, the program itself, end.
    pub outside: ImportCalls,
}

/// An import. One that failed is one too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ImportedModule {
    /// The module.
    pub name: String,
    /// Time without the imports in it, microseconds, as Python says: of imports
    /// in several threads at once it may be negative.
    pub self_us: i64,
    /// Time with the imports in it, microseconds, as Python says.
    pub cumulative_us: u64,
    /// Imports that it happened in, as Python says.
    pub depth: u64,
    /// The import that it happened in: an index of `modules`. Null at depth 0,
    /// and where that had begun before a fork.
    pub parent: Option<u64>,
    /// The file of the module's name that it opened first: bytecode, source or
    /// an extension; invalid UTF-8 replaced. Null of what is built in or frozen.
    pub file: Option<String>,
    /// Its calls, without those of the imports in it.
    #[serde(flatten)]
    pub calls: ImportCalls,
}

/// Sums of calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct ImportCalls {
    /// Calls of any kind.
    pub calls: u64,
    /// Successful opens, of directories too.
    pub opens: u64,
    /// Paths that were not there (ENOENT, ENOTDIR), each time.
    pub misses: u64,
    /// Bytes read through descriptors.
    pub read_bytes: u64,
    /// Wall time inside the calls, tracing included.
    pub wall_ns: u64,
}

const BASIS: &str = "\
a call belongs to the innermost import that goes on in its thread. An import ends where its line of \
the log is written. It begins so long before as it took by that line (cumulative), but not before \
the line of the import that came before it; or, if that is earlier, where the module's directory is \
asked about (stat) just before the first of the module's files is named.";

const UNCERTAIN: [&str; 4] = [
    "where an import begins: its line is written some microseconds after its time was taken, more \
     on a busy machine; calls just after the beginning may be counted for the import around it, \
     mostly questions about directories of sys.path",
    "importlib.import_module writes no line before Python 3.14: what it imports counts for the \
     import around it",
    "times are in whole microseconds, rounded up, and include tracing, which slows imports with \
     many calls most",
    "a line that the program itself writes to standard error exactly as Python does is taken for \
     one",
];

impl Imports {
    /// Nothing is known, for this reason.
    pub fn unknown(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), basis: BASIS.into(), ..Self::default() }
    }

    /// Of a run that has ended: its programs, their log's calls, other programs.
    pub fn of(traced: &Traced, programs: &[Program], log_calls: u64, elsewhere: Sums) -> Self {
        let ended = match traced.ending {
            _ if traced.timed_out => Some("was ended by --timeout".to_owned()),
            Ending::Exited(0) => None,
            Ending::Exited(status) => Some(format!("exited {status}")),
            Ending::Killed { signal, .. } => Some(format!("was killed by {}", signal_name(signal))),
            Ending::Detached => Some("was let go".to_owned()),
        };
        let reason = match (ended, programs.is_empty()) {
            (Some(ended), true) => Some(format!("the second run {ended} before an import ended")),
            (Some(ended), false) => Some(format!("the second run {ended}: imports until then")),
            (None, true) => Some(
                "no Python said what it imports: it is older than 3.7, or runs with -E or -I, \
                 which have it ignore PYTHONPROFILEIMPORTTIME"
                    .to_owned(),
            ),
            (None, false) => None,
        };
        let several = programs.iter().filter(|program| program.threads.len() > 1);
        let several = several.map(|program| {
            format!(
                "process {} imported in {} threads: Python counts depth and self time over all of \
                 them, so parents may be wrong",
                program.pid,
                program.threads.len()
            )
        });
        let given_up = programs.iter().filter(|program| program.given_up > 0).map(|program| {
            format!(
                "process {}: {} calls came so long before the next import that they count as \
                 outside",
                program.pid, program.given_up
            )
        });
        Self {
            reason,
            basis: BASIS.into(),
            uncertain: UNCERTAIN
                .map(str::to_owned)
                .into_iter()
                .chain(several)
                .chain(given_up)
                .collect(),
            wall_ns: Some(traced.ended.saturating_sub(traced.started)),
            log_calls: Some(log_calls),
            processes: (!programs.is_empty())
                .then(|| programs.iter().map(ImportProcess::of).collect()),
            elsewhere: Some(elsewhere.into()),
        }
    }

    /// Every import, with the process that made it.
    pub fn modules(&self) -> impl Iterator<Item = (&ImportProcess, &ImportedModule)> {
        let processes = self.processes.iter().flatten();
        processes.flat_map(|process| process.modules.iter().map(move |module| (process, module)))
    }
}

impl ImportProcess {
    fn of(program: &Program) -> Self {
        Self {
            pid: program.pid,
            argv: program.argv.clone(),
            modules: program.modules.iter().map(ImportedModule::of).collect(),
            outside: program.outside.into(),
        }
    }
}

impl ImportedModule {
    fn of(module: &Module) -> Self {
        let file = module.file.as_ref().map(|path| String::from_utf8_lossy(path).into_owned());
        Self {
            name: module.name.clone(),
            self_us: module.own,
            cumulative_us: module.cumulative,
            depth: module.depth as u64,
            parent: module.parent.map(|parent| parent as u64),
            file,
            calls: module.sums.into(),
        }
    }
}

impl From<Sums> for ImportCalls {
    fn from(sums: Sums) -> Self {
        Self {
            calls: sums.calls,
            opens: sums.opens,
            misses: sums.misses,
            read_bytes: sums.read,
            wall_ns: sums.wall,
        }
    }
}
