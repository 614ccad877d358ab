//! Starting the command: fork, a pipe as gate, exec. The gate opens when the
//! tracer has seized the child, so that the exec is the first call that counts.
//!
//! Own fork and exec instead of std's: the child must find descriptors, signal
//! mask and dispositions as the tracer found them.

mod spawn;

pub use spawn::launch_untraced;

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::error::{Error, os};
use super::inherited;
use super::place::{self, Place, Unfixed};
use super::seccomp::Filter;
use super::user::User;

/// What to run.
#[derive(Debug, Default)]
pub struct Command {
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// Changes to the environment: `None` removes.
    pub env: Vec<(OsString, Option<OsString>)>,
    /// Whether the environment is empty before these changes, and not the tracer's
    /// own. It is sorted by name then, since its order is seen on the stack.
    pub env_clear: bool,
    /// Its working directory, if not the tracer's.
    pub cwd: Option<PathBuf>,
    /// A fixed place for it, instead of the one that the tracer was started in.
    pub place: Option<Place>,
    /// Whom to run it as.
    pub user: Option<User>,
    /// What its standard input is to be, if not the tracer's.
    pub stdin: Option<OwnedFd>,
    /// What its standard output is to be, if not the tracer's.
    pub stdout: Option<OwnedFd>,
    /// What its standard error is to be, if not the tracer's.
    pub stderr: Option<OwnedFd>,
}

impl Command {
    /// A command with its arguments, in the tracer's own environment.
    pub fn new(argv: Vec<OsString>) -> Self {
        Self { argv, ..Self::default() }
    }

    /// The same once more, with nothing to read and nobody to hear it: its
    /// standard streams are /dev/null.
    ///
    /// # Errors
    /// When that cannot be opened.
    pub fn unheard(&self) -> Result<Self, Error> {
        let null = || {
            let file = File::options().read(true).write(true).open("/dev/null");
            high(&file.map_err(|e| os("cannot open /dev/null", e))?).map(Some)
        };
        Ok(Self {
            argv: self.argv.clone(),
            env: self.env.clone(),
            env_clear: self.env_clear,
            cwd: self.cwd.clone(),
            place: self.place.clone(),
            user: self.user.clone(),
            stdin: null()?,
            stdout: null()?,
            stderr: null()?,
        })
    }

    /// Gives it nothing to read (/dev/null) and these files to write to.
    ///
    /// # Errors
    /// When /dev/null cannot be opened, or no descriptor is left.
    pub fn write_to(&mut self, stdout: &File, stderr: &File) -> Result<(), Error> {
        let null = File::open("/dev/null").map_err(|e| os("cannot open /dev/null", e))?;
        self.stdin = Some(high(&null)?);
        self.stdout = Some(high(stdout)?);
        self.stderr = Some(high(stderr)?);
        Ok(())
    }

    /// Whether there is a file to run. That it can be run is seen when it is.
    ///
    /// # Errors
    /// When there is none.
    pub fn look_up(&self) -> Result<(), Error> {
        let name = self.argv.first().ok_or(Error::NoCommand)?;
        let exists = |file: OsString| match &self.cwd {
            Some(cwd) => cwd.join(file).exists(),
            None => Path::new(&file).exists(),
        };
        if candidates(name, path_of(&self.environment())).into_iter().any(exists) {
            return Ok(());
        }
        let source = io::Error::from_raw_os_error(libc::ENOENT);
        Err(Reports { failure: Some((Stage::Exec, source)), ..Reports::default() }.failure(self))
    }

    /// The environment that it is to find, entry by entry (`NAME=VALUE`; others'
    /// entries may be anything).
    pub fn environment(&self) -> Vec<OsString> {
        // As it was found, entries without a name or a value too.
        let mut entries = if self.env_clear { Vec::new() } else { found_environment() };
        for (name, value) in &self.env {
            let name = name.as_bytes();
            entries.retain(|entry| {
                let rest = entry.as_bytes().strip_prefix(name);
                rest.is_none_or(|rest| rest.first() != Some(&b'='))
            });
            if let Some(value) = value {
                entries.push(OsString::from_vec([name, b"=", value.as_bytes()].concat()));
            }
        }
        if self.env_clear {
            entries.sort();
        }
        entries
    }
}

/// A child that waits at its gate.
#[derive(Debug)]
pub struct Launched {
    /// Its pid.
    pub pid: i32,
    gate: File,
    reports: File,
    /// The files that were tried.
    paths: Vec<PathBuf>,
}

/// What the child has to say before its exec, one message each: this, or what it
/// could not fix ([`Unfixed`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Filter = 1,
    User = 2,
    Exec = 3,
    Directory = 7,
    Fork = 8,
}

/// What became of the child before the command ran.
#[derive(Debug, Default)]
pub struct Reports {
    /// Why the filter could not be installed.
    pub filter: Option<io::Error>,
    /// What of the command's place could not be fixed, a line each.
    pub unfixed: Vec<String>,
    /// Why the command could not be run.
    failure: Option<(Stage, io::Error)>,
    /// One of the files that were tried exists.
    exists: bool,
}

impl Launched {
    /// Opens the gate.
    pub fn open(&mut self) -> Result<(), Error> {
        self.gate.write_all(b"g").map_err(|e| os("cannot start the command", e))
    }

    /// What the child said; to be asked for once it has exec'd or ended, when
    /// the pipe is closed on its side.
    pub fn reports(&mut self) -> Reports {
        let mut bytes = Vec::new();
        let exists = self.paths.iter().any(|path| path.exists());
        let mut reports = Reports { exists, ..Reports::default() };
        if self.reports.read_to_end(&mut bytes).is_err() {
            return reports;
        }
        for message in bytes.chunks_exact(5) {
            let [stage, number @ ..] = message else { continue };
            let Ok(number) = number.try_into().map(i32::from_ne_bytes) else { continue };
            let error = io::Error::from_raw_os_error(number);
            match stage {
                1 => reports.filter = Some(error),
                2 => reports.failure = Some((Stage::User, error)),
                7 => reports.failure = Some((Stage::Directory, error)),
                8 => reports.failure = Some((Stage::Fork, error)),
                number if let Some(unfixed) = Unfixed::from_number(*number) => {
                    reports.unfixed.push(unfixed.note(&error));
                }
                _ => reports.failure = Some((Stage::Exec, error)),
            }
        }
        reports
    }
}

impl Reports {
    /// Whether the command did not run.
    pub fn failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The error that kept the command from running.
    pub fn failure(self, command: &Command) -> Error {
        let name = command.argv.first().cloned().unwrap_or_default();
        let name = match name.to_string_lossy() {
            name if name.is_empty() => "''".into(),
            name => name.into_owned(),
        };
        match self.failure {
            Some((Stage::Exec, e)) if e.raw_os_error() == Some(libc::ENOENT) => {
                if self.exists {
                    Error::NoInterpreter { name }
                } else {
                    Error::NotFound { name }
                }
            }
            Some((Stage::Exec, source)) => Error::CannotRun { name, source },
            Some((Stage::User, source)) => {
                let user = command.user.as_ref().map_or("", |u| u.name.as_str());
                os(format!("cannot become user {user} to run {name}"), source)
            }
            Some((Stage::Directory, source)) => {
                let cwd = command.cwd.as_deref().unwrap_or(Path::new("?")).display();
                os(format!("cannot run {name} in {cwd}"), source)
            }
            Some((Stage::Filter, source)) => os("cannot install the filter", source),
            Some((Stage::Fork, source)) => os("cannot fork", source),
            None => Error::DiedBeforeExec { name },
        }
    }
}

/// Everything that the child needs, allocated before the fork: between fork and
/// exec nothing may allocate or lock.
struct Prepared {
    paths: Vec<CString>,
    argv: Vec<CString>,
    envp: Vec<CString>,
    cwd: Option<CString>,
    place: Option<place::Ready>,
    timers: Vec<(Which, libc::itimerval)>,
}

/// What the child needs, and by what it is spoken to.
struct Start<'a> {
    command: &'a Command,
    filter: Option<&'a Filter>,
    prepared: &'a Prepared,
    /// Lists of pointers into `prepared`, each ending in null.
    argv: &'a [*const libc::c_char],
    envp: &'a [*const libc::c_char],
    shell: &'a [Vec<*const libc::c_char>],
    gate: RawFd,
    report: RawFd,
    /// Where a child of this child is to become the command.
    spawner: Option<&'a spawn::Spawner>,
}

/// Forks a child that waits at its gate, then installs `filter` and executes
/// the command.
pub fn launch(command: &Command, filter: Option<&Filter>) -> Result<Launched, Error> {
    fork(command, filter, None, pipe()?)
}

/// Forks a child that waits at its gate (its end and ours) and then becomes the
/// command, or has `spawner` bear what does.
fn fork(
    command: &Command,
    filter: Option<&Filter>,
    spawner: Option<&spawn::Spawner>,
    (gate_read, gate_write): (OwnedFd, OwnedFd),
) -> Result<Launched, Error> {
    let prepared = prepare(command)?;
    let argv = pointers(&prepared.argv);
    let envp = pointers(&prepared.envp);
    let shell: Vec<Vec<*const libc::c_char>> =
        prepared.paths.iter().map(|path| shell_pointers(path, &argv)).collect();
    let (report_read, report_write) = pipe()?;
    // SAFETY: the child calls only async-signal-safe functions until it execs
    // or exits; everything it uses was allocated above.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(os("cannot fork", io::Error::last_os_error()));
    }
    if pid == 0 {
        drop(gate_write);
        let start = Start {
            command,
            filter,
            prepared: &prepared,
            argv: &argv,
            envp: &envp,
            shell: &shell,
            gate: gate_read.as_raw_fd(),
            report: report_write.as_raw_fd(),
            spawner,
        };
        // SAFETY: this is the child.
        unsafe { child(&start) }
    }
    // As the child sees them, which may have another working directory.
    let seen = |path: CString| match &command.cwd {
        Some(cwd) => cwd.join(OsStr::from_bytes(path.to_bytes())),
        None => PathBuf::from(OsString::from_vec(path.into_bytes())),
    };
    let paths = prepared.paths.into_iter().map(seen).collect();
    Ok(Launched { pid, gate: gate_write.into(), reports: report_read.into(), paths })
}

/// The child's side. Never returns.
///
/// # Safety
/// Only to be called in a freshly forked child.
unsafe fn child(start: &Start) -> ! {
    // SAFETY: one byte of a local; the descriptor is this child's own.
    unsafe {
        let mut byte = 0u8;
        loop {
            match libc::read(start.gate, (&raw mut byte).cast(), 1) {
                1 => break,
                -1 if errno() == libc::EINTR => {}
                _ => libc::_exit(125), // The tracer is gone.
            }
        }
        match start.spawner {
            Some(spawner) => spawner.spawn(start),
            None => execute(start),
        }
    }
}

impl Start<'_> {
    /// Tells the tracer, with errno as it was left.
    fn say(&self, what: u8) {
        let mut message = [what; 5];
        message[1..].copy_from_slice(&errno().to_ne_bytes());
        // SAFETY: five bytes of a local array; a pipe takes them whole.
        unsafe { libc::write(self.report, message.as_ptr().cast(), 5) };
    }
}

/// Becomes the command. Never returns.
///
/// # Safety
/// Only to be called in a freshly forked child.
unsafe fn execute(start: &Start) -> ! {
    let &Start { command, filter, prepared, argv, envp, shell, .. } = start;
    let say = |what: u8| start.say(what);
    // SAFETY: plain system calls on descriptors and values owned here; every
    // pointer is to memory allocated before the fork, each list ends in null.
    unsafe {
        if let Some(filter) = filter
            && filter.install() < 0
        {
            say(Stage::Filter as u8);
        }
        for signal in inherited::to_restore() {
            libc::signal(signal, libc::SIG_DFL);
        }
        if let Some(place) = &prepared.place {
            place.enter(|unfixed| say(unfixed as u8));
        }
        for (which, timer) in &prepared.timers {
            libc::syscall(libc::SYS_setitimer, *which, &raw const *timer, 0);
        }
        for (fd, replacement) in
            [&command.stdin, &command.stdout, &command.stderr].iter().enumerate()
        {
            let fd = fd as RawFd;
            if let Some(replacement) = replacement.as_ref() {
                libc::dup2(replacement.as_raw_fd(), fd);
            } else if inherited::was_closed(fd) {
                libc::close(fd);
            }
        }
        if prepared.place.is_some() {
            place::close_at_exec();
        }
        if let Some(user) = &command.user
            && (libc::setgroups(user.groups.len(), user.groups.as_ptr()) < 0
                || libc::setgid(user.gid) < 0
                || libc::setuid(user.uid) < 0)
        {
            say(Stage::User as u8);
            libc::_exit(125);
        }
        // As its user, who may not be allowed to.
        if let Some(cwd) = &prepared.cwd
            && libc::chdir(cwd.as_ptr()) < 0
        {
            say(Stage::Directory as u8);
            libc::_exit(125);
        }
        // As execvp(3): the search goes on past what cannot be used, and a
        // permission error is the one to report.
        let mut worst = libc::ENOENT;
        for (path, shell) in prepared.paths.iter().zip(shell) {
            libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr());
            if errno() == libc::ENOEXEC {
                libc::execve(c"/bin/sh".as_ptr(), shell.as_ptr(), envp.as_ptr());
            }
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::ENAMETOOLONG if prepared.paths.len() > 1 => {}
                libc::EACCES => worst = libc::EACCES,
                other => {
                    worst = other;
                    break;
                }
            }
        }
        *libc::__errno_location() = worst;
        say(Stage::Exec as u8);
        libc::_exit(127)
    }
}

/// Which interval timer, as setitimer(2) numbers them.
type Which = libc::c_int;

/// Takes over the alarms that this process was started with: they were meant
/// for the command (`alarm; exec` of a wrapper). They outlive exec, not fork.
fn take_timers() -> Vec<(Which, libc::itimerval)> {
    let mut timers = Vec::new();
    for which in [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF] {
        let zero = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let off = libc::itimerval { it_interval: zero, it_value: zero };
        let mut old = off;
        // SAFETY: both point to values that live through the call.
        let set =
            unsafe { libc::syscall(libc::SYS_setitimer, which, &raw const off, &raw mut old) };
        if set == 0 && (old.it_value.tv_sec, old.it_value.tv_usec) != (0, 0) {
            timers.push((which, old));
        }
    }
    timers
}

fn errno() -> i32 {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// A pipe whose ends are closed by exec and lie at 10 or above, so that the
/// command's descriptors get the numbers that they would get without a tracer.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(os("cannot make a pipe", io::Error::last_os_error()));
    }
    above(ends)
}

/// The same of a pair of sockets (unix(7)), which are read and written at both ends.
fn sockets() -> Result<(OwnedFd, OwnedFd), Error> {
    let mut ends = [0; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel writes two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
        return Err(os("cannot make a pair of sockets", io::Error::last_os_error()));
    }
    above(ends)
}

fn above(ends: [RawFd; 2]) -> Result<(OwnedFd, OwnedFd), Error> {
    // SAFETY: both were just opened and belong to nobody else.
    let [one, other] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((high(&one)?, high(&other)?))
}

/// A duplicate at 10 or above, closed by exec.
pub fn high(fd: &impl AsRawFd) -> Result<OwnedFd, Error> {
    let fd = fd.as_raw_fd();
    // SAFETY: duplicates a descriptor that is open.
    let dup = |from: RawFd| unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, from) };
    // A low limit may leave no number there: then any will have to do.
    let new = match dup(10) {
        -1 => dup(3),
        new => new,
    };
    if new < 0 {
        return Err(os("cannot duplicate a descriptor", io::Error::last_os_error()));
    }
    // SAFETY: it was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}

fn prepare(command: &Command) -> Result<Prepared, Error> {
    let name = command.argv.first().ok_or(Error::NoCommand)?;
    let c = |s: &OsStr| {
        CString::new(s.as_bytes()).map_err(|_| Error::NulByte { word: s.to_string_lossy().into() })
    };
    let env = command.environment();
    let paths = candidates(name, path_of(&env)).iter().map(|p| c(p)).collect::<Result<_, _>>()?;
    let argv = command.argv.iter().map(|a| c(a)).collect::<Result<_, _>>()?;
    let envp = env.iter().map(|e| c(e)).collect::<Result<_, _>>()?;
    let cwd = command.cwd.as_ref().map(|cwd| c(cwd.as_os_str())).transpose()?;
    let place = command.place.as_ref().map(Place::ready);
    // In a fixed place there are none: they go on to be coldtrace's.
    let timers = if place.is_some() { Vec::new() } else { take_timers() };
    Ok(Prepared { paths, argv, envp, cwd, place, timers })
}

/// This process's environment, entry by entry.
fn found_environment() -> Vec<OsString> {
    unsafe extern "C" {
        static environ: *const *const libc::c_char;
    }
    let mut entries = Vec::new();
    // SAFETY: environ(7) is a list of strings that ends in null; nobody changes
    // it while the launcher, in the only thread that could, reads it.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            entries.push(OsStr::from_bytes(CStr::from_ptr(*at).to_bytes()).to_owned());
            at = at.add(1);
        }
    }
    entries
}

/// `PATH` of an environment.
fn path_of(env: &[OsString]) -> Option<&OsStr> {
    env.iter().find_map(|e| e.as_bytes().strip_prefix(b"PATH=")).map(OsStr::from_bytes)
}

/// The files to try, as execvp(3) would.
fn candidates(name: &OsStr, path: Option<&OsStr>) -> Vec<OsString> {
    let bytes = name.as_bytes();
    if bytes.contains(&b'/') || bytes.is_empty() {
        return vec![name.to_owned()];
    }
    let path = path.map_or(&b"/bin:/usr/bin"[..], OsStr::as_bytes);
    path.split(|&b| b == b':')
        .map(|dir| {
            let mut file = dir.to_vec();
            if !file.is_empty() {
                file.push(b'/'); // An empty part means the working directory.
            }
            file.extend_from_slice(bytes);
            OsString::from_vec(file)
        })
        .collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// `/bin/sh FILE ARGS...`, for a script without an interpreter line.
fn shell_pointers(path: &CString, argv: &[*const libc::c_char]) -> Vec<*const libc::c_char> {
    [c"/bin/sh".as_ptr(), path.as_ptr()].into_iter().chain(argv.iter().skip(1).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_slash_is_not_searched() {
        assert_eq!(candidates(OsStr::new("./a"), Some(OsStr::new("/bin"))), ["./a"]);
    }

    #[test]
    fn an_empty_part_of_path_is_the_working_directory() {
        let found = candidates(OsStr::new("a"), Some(OsStr::new("/x::/y/")));
        assert_eq!(found, ["/x/a", "a", "/y//a"]);
        assert_eq!(candidates(OsStr::new("a"), None), ["/bin/a", "/usr/bin/a"]);
    }
}
