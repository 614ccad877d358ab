//! Where reports go.

use std::fs::File;
use std::io::{self, IsTerminal, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use coldtrace::render::{DEFAULT_WIDTH, escape};
use coldtrace::tracer::{Ending, high, reason};

use super::end::Failure;

/// A line of coldtrace's own on standard error.
pub fn say(message: &str) {
    for line in message.lines() {
        // Nobody reads it: nothing can be done about that.
        let _ = writeln!(io::stderr(), "coldtrace: {}", escape(line));
    }
}

/// Where a report goes.
#[derive(Debug)]
pub enum Output {
    /// Standard error: standard output is the command's.
    Stderr,
    /// Standard output; the command's goes to standard error.
    Stdout,
    /// A file, opened before the command starts.
    File(PathBuf, File),
}

impl Output {
    /// From `-o`.
    pub fn open(path: Option<&PathBuf>) -> Result<Self, Failure> {
        match path {
            None => Ok(Self::Stderr),
            Some(path) if path.as_os_str() == "-" => Ok(Self::Stdout),
            Some(path) if path.as_os_str().as_bytes().starts_with(b"|") => {
                let command = path.to_string_lossy();
                let command = command.trim_start_matches(['|', ' ']);
                Err(Failure::own(format_args!(
                    "-o '|{command}': pipes are the shell's to make: -o >({command})"
                )))
            }
            Some(path) => {
                let fail = |e| {
                    let why = reason(&e);
                    Failure::own(format_args!("cannot write {}: {why}", path.display()))
                };
                // What it holds stays until there is something to replace it.
                let file = File::options().write(true).create(true).truncate(false).open(path);
                let file = file.map_err(fail)?;
                let file = high(&file).map_err(Failure::from)?;
                Ok(Self::File(path.clone(), file.into()))
            }
        }
    }

    /// What the command's standard output is to be, if not our own.
    pub fn command_stdout(&self) -> Result<Option<OwnedFd>, Failure> {
        match self {
            Self::Stdout => Ok(Some(high(&io::stderr()).map_err(Failure::from)?)),
            _ => Ok(None),
        }
    }

    /// A terminal shows `^C` where it was typed: the report begins below.
    pub fn after_ctrl_c(&mut self, ending: Ending) -> Result<(), Failure> {
        let typed = matches!(ending, Ending::Killed { signal: libc::SIGINT | libc::SIGQUIT, .. });
        if typed && matches!(self, Self::Stderr) && io::stderr().is_terminal() {
            self.write("\n")?;
        }
        Ok(())
    }

    /// Columns there: of the terminal, or 80.
    pub fn width(&self) -> usize {
        let width = match self {
            Self::Stderr => terminal_width(&io::stderr()),
            Self::Stdout => terminal_width(&io::stdout()),
            Self::File(..) => None,
        };
        width.unwrap_or(DEFAULT_WIDTH)
    }

    /// Writes the report. A reader that has gone away is a quiet success.
    pub fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.write_with(|out| out.write_all(text.as_bytes()))
    }

    /// The same of a report that is too long to be held.
    pub fn write_with(
        &mut self,
        report: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let (name, written) = match self {
            Self::Stderr => ("standard error".into(), buffered(&mut io::stderr(), report)),
            Self::Stdout => ("standard output".into(), buffered(&mut io::stdout(), report)),
            Self::File(path, file) => {
                // A device or a pipe cannot be cut.
                let regular = file.metadata().is_ok_and(|m| m.is_file());
                let mut cut = || file.set_len(0).and_then(|()| file.rewind());
                let cut = if regular { cut() } else { Ok(()) };
                (path.display().to_string(), cut.and_then(|()| buffered(file, report)))
            }
        };
        match written {
            Err(e) if !reader_has_gone(&e) => {
                Err(Failure::own(format_args!("cannot write {name}: {}", reason(&e))))
            }
            _ => Ok(()),
        }
    }
}

/// Nobody reads any more: the pipe was closed, or the terminal hung up.
pub fn reader_has_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(libc::EIO)
}

/// Collects what is written in small parts.
fn buffered(
    out: &mut dyn Write,
    report: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    const MANY: usize = 1 << 16;
    let mut out = io::BufWriter::with_capacity(MANY, Patient(out));
    report(&mut out)?;
    out.flush()
}

/// Waits where a descriptor that does not block would have it come again.
struct Patient<'a>(&'a mut dyn Write);

impl Write for Patient<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        write_all(&mut self.0, data).map(|()| data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        write_all(&mut self.0, &[])
    }
}

/// Writes all of it, also to a descriptor that somebody has made non-blocking.
pub fn write_all(out: &mut impl Write, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match out.write(data) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => data = data.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(e) => return Err(e),
        }
    }
    loop {
        match out.flush() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

fn terminal_width(stream: &impl AsFd) -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(stream)?;
    Some(usize::from(width.0)).filter(|&w| w > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_again_is_written_from_the_beginning() {
        let path = std::env::temp_dir().join(format!("coldtrace-output-{}", std::process::id()));
        let mut output = Output::open(Some(&path)).unwrap_or_else(|e| panic!("{}", e.message));
        for text in ["a first report\n", "second\n"] {
            output.write(text).unwrap_or_else(|e| panic!("{}", e.message));
        }
        let found = std::fs::read_to_string(&path);
        let _ = std::fs::remove_file(&path);
        assert_eq!(found.ok().as_deref(), Some("second\n"));
    }
}
