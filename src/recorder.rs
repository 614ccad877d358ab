//! One call from a command to its record.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::importtime::{importtime, why_not_again};
use crate::observe::{Moment, RegionSpec, Which};
use crate::record::{Collect, Environment, Imports, Interpreter, Record, Run};
use crate::tracer::{Command, Cost, Engines, Error, Options, Place, trace};

/// Runs a command under the tracer and makes a record of it, as `coldtrace run`
/// does, without writing anything.
///
/// ```standalone_crate
/// use coldtrace::Tracer;
///
/// let record = Tracer::command(["sh", "-c", "cat /nonexistent; exit 3"]).run()?;
/// assert_eq!(record.outcome.exit_code, Some(3));
/// let calls = record.syscalls.unwrap_or_default();
/// let execs = calls.iter().find(|row| row.name == "execve").map(|row| row.calls);
/// assert!(execs >= Some(2));
/// let files = record.files.unwrap_or_default();
/// assert!(files.paths.iter().any(|row| row.path == "/nonexistent" && row.misses == 1));
/// # Ok::<(), coldtrace::tracer::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is traced before run()"]
pub struct Tracer {
    command: Command,
    options: Options,
    collect: Collect,
    label: Option<String>,
    shown: Vec<String>,
    importtime: bool,
}

impl Tracer {
    /// Of this command and its arguments; a name without a slash is looked for
    /// in PATH. It has this process's standard streams, environment and working
    /// directory.
    pub fn command(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            command: Command::new(argv.into_iter().map(Into::into).collect()),
            options: Options::default(),
            collect: Collect::default(),
            label: None,
            shown: Vec::new(),
            importtime: false,
        }
    }

    /// Sets a variable of the command's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.command.env.push((name.into(), Some(value.into())));
        self
    }

    /// Takes a variable out of the command's environment.
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.command.env.push((name.into(), None));
        self
    }

    /// Runs it in a fixed place, so that its counts repeat; see [`Place`]. Of the
    /// environment and the streams that is for the caller to say.
    ///
    /// ```standalone_crate
    /// use coldtrace::{Tracer, tracer::Place};
    ///
    /// let script = "test \"$A\" = 1 && test \"$(umask)\" = 0022 && test -z \"$HOME\"";
    /// let fixed = Tracer::command(["/bin/sh", "-c", script]).place(Place::default());
    /// let record = fixed.env_clear().env("A", "1").run()?;
    /// assert_eq!((record.outcome.exit_code, record.run.aslr), (Some(0), Some(false)));
    /// # Ok::<(), coldtrace::tracer::Error>(())
    /// ```
    pub fn place(mut self, place: Place) -> Self {
        self.command.place = Some(place);
        self
    }

    /// Starts from an empty environment, in which is what [`Self::env`] sets.
    pub fn env_clear(mut self) -> Self {
        self.command.env_clear = true;
        self
    }

    /// Runs it in this directory.
    ///
    /// ```standalone_crate
    /// use coldtrace::Tracer;
    ///
    /// let pwd = ["sh", "-c", "exec test \"$(pwd -P)\" = /"];
    /// let record = Tracer::command(pwd).current_dir("/").run()?;
    /// assert_eq!(record.outcome.exit_code, Some(0));
    /// assert_eq!(record.run.cwd.as_deref(), Some("/"));
    /// let error = Tracer::command(["true"]).current_dir("/nowhere").run().unwrap_err();
    /// assert!(error.to_string().starts_with("cannot run true in /nowhere: No such file"));
    /// # Ok::<(), coldtrace::tracer::Error>(())
    /// ```
    pub fn current_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.command.cwd = Some(dir.into());
        self
    }

    /// Ends the command, with all that it started, after this long.
    pub fn timeout(mut self, after: Duration) -> Self {
        self.options.timeout = Some(after);
        self
    }

    /// How calls are counted: by [`Engines::default`] unless said.
    ///
    /// ```standalone_crate
    /// use coldtrace::{Tracer, tracer::{Engines, FastOptions}};
    ///
    /// let fast = Engines::Fast(FastOptions { after: 10, ..FastOptions::default() });
    /// let record = Tracer::command(["ls", "-l", "/usr/bin"]).engine(fast).run()?;
    /// let inside = record.measurement.fast.map(|fast| fast.calls_counted);
    /// assert!(inside > Some(0) || cfg!(not(target_arch = "x86_64")));
    /// # Ok::<(), coldtrace::tracer::Error>(())
    /// ```
    pub fn engine(mut self, engine: Engines) -> Self {
        self.options.engine = engine;
        self
    }

    /// The run's label, instead of the command's name.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Keeps of each opened path where it led, if that is elsewhere.
    pub fn resolve(mut self) -> Self {
        self.collect.resolve = true;
        self
    }

    /// Whose /proc is read at the end: the root process's by default.
    pub fn snapshots(mut self, whose: Which) -> Self {
        self.collect.snapshots = whose;
        self
    }

    /// Samples a second of CPU time, 1 to 10000: 199 by default, as `coldtrace
    /// run` takes; `None` takes none. A thread takes them while the command runs;
    /// where they are refused the record has the reason.
    pub fn cpu_samples(mut self, hz: Option<u32>) -> Self {
        self.collect.cpu_samples = hz;
        self
    }

    /// Reads /proc at this moment too; may be said more than once.
    pub fn snapshot_at(mut self, moment: Moment) -> Self {
        self.collect.moments.push(moment);
        self
    }

    /// Keeps apart what is done in this region; may be said more than once. Those
    /// that the program marks need no word: see [`Region`](crate::record::Region).
    ///
    /// ```standalone_crate
    /// use coldtrace::{Tracer, observe::RegionSpec};
    ///
    /// let startup = RegionSpec::parse("startup=exec..stdout")?;
    /// let record = Tracer::command(["sh", "-c", "echo >/dev/null"]).region(startup).run()?;
    /// let regions = record.regions.unwrap_or_default();
    /// assert_eq!((regions[0].name.as_str(), regions[0].times), ("startup", 1));
    /// assert!(regions[0].syscalls.iter().all(|row| row.name != "write"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn region(mut self, region: RegionSpec) -> Self {
        self.collect.regions.push(region);
        self
    }

    /// Keeps the value of this environment variable in the record.
    pub fn show_env(mut self, name: impl Into<String>) -> Self {
        self.shown.push(name.into());
        self
    }

    /// Runs the command a second time, unheard, for the times of Python's
    /// imports; see [`importtime`]. It is the record's `imports` that says why
    /// there are none:
    ///
    /// ```standalone_crate
    /// let record = coldtrace::Tracer::command(["true"]).importtime().run()?;
    /// let reason = record.imports.and_then(|imports| imports.reason);
    /// assert_eq!(reason.as_deref(), Some("no Python ran, so it was not run a second time"));
    /// # Ok::<(), coldtrace::tracer::Error>(())
    /// ```
    pub fn importtime(mut self) -> Self {
        self.importtime = true;
        self
    }

    /// Runs the command until it and all its descendants have ended. What
    /// [`trace`] says of a process that it has one of (children, signals) holds.
    ///
    /// # Errors
    /// When the command cannot be run or traced; that it fails is no error.
    pub fn run(self) -> Result<Record, Error> {
        let run =
            Run::now(&self.command.argv, self.label).in_directory(self.command.cwd.as_deref());
        let environment = Environment::now(&self.shown);
        let mut environment = environment.with_variables(&self.command.environment(), &self.shown);
        let (command, options) = (self.command, self.options);
        let collected = self.collect.from(run, |observers| {
            let traced = trace(&command, &options, observers)?;
            Ok::<_, Error>((traced, Cost::measure()))
        })?;
        let mut record = collected.record;
        environment.interpreter = Interpreter::of(&record);
        record.environment = Some(environment);
        if self.importtime {
            record.imports = Some(match why_not_again(&record) {
                Some(why) => Imports::unknown(why),
                None => importtime(command.unheard()?, &options).0,
            });
        }
        Ok(record)
    }
}
