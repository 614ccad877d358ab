//! System calls that a stopped thread makes for the tracer.

use std::io;

use super::super::arch::{Native, Registers};
use super::super::kernel::{self, Waited};
use super::super::stop::{Report, Stop, report};

/// Why a call could not be made.
#[derive(Debug)]
pub enum Failure {
    /// The kernel refused to have it made, or the call itself failed.
    Os(io::Error),
    /// The thread is ending; what wait said, where that was taken.
    Dying(Option<Box<Waited>>),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.raw_os_error() == Some(libc::ESRCH) { Self::Dying(None) } else { Self::Os(error) }
    }
}

/// A thread at the exit stop of a call that has ended, which makes others from there.
/// Its signals wait meanwhile.
#[derive(Debug)]
pub struct Remote {
    tid: i32,
    /// Address of a `syscall` instruction.
    site: u64,
    /// The same in our code pages, where a call takes one stop instead of three.
    ours: Option<u64>,
    /// The stop behind a call in our code, which is itself one that is skipped.
    skipped: bool,
    before: Native,
    mask: u64,
    /// It was to stop, and must be told again.
    stopped: bool,
    /// It is ending, and makes no more calls.
    dying: bool,
    /// What wait said of that, where it was taken.
    last: Option<Box<Waited>>,
}

/// The registers of a thread that runs 64-bit code.
pub fn native(tid: i32) -> io::Result<Native> {
    /// The code segment of 64-bit programs (arch/x86/include/asm/segment.h).
    const USER_CS: u64 = 0x33;
    match kernel::registers(tid)? {
        Registers::Native(native) if native.cs == USER_CS => Ok(native),
        _ => Err(io::Error::from(io::ErrorKind::Unsupported)),
    }
}

impl Remote {
    /// Begins. The thread must be at an exit stop; `site` is a `syscall` instruction.
    pub fn begin(tid: i32, site: u64) -> Result<Self, Failure> {
        let before = native(tid)?;
        let mask = kernel::signal_mask(tid)?;
        kernel::set_signal_mask(tid, u64::MAX)?;
        let (ours, skipped, stopped, dying, last) = (None, false, false, false, None);
        Ok(Self { tid, site, ours, skipped, before, mask, stopped, dying, last })
    }

    /// From now on, by this `syscall` of our code pages, under the gate; or no more.
    pub fn set_ours(&mut self, at: Option<u64>) {
        self.ours = at;
    }

    /// Makes one call and gives what it returned.
    pub fn call(&mut self, number: i64, args: &[u64]) -> Result<u64, Failure> {
        if self.dying {
            return Err(Failure::Dying(None));
        }
        let mut r = self.before;
        r.rip = self.ours.unwrap_or(self.site);
        r.rax = number as u64;
        r.orig_rax = u64::MAX; // Not in a call.
        let argument = |i: usize| args.get(i).copied().unwrap_or(0);
        [r.rdi, r.rsi, r.rdx] = [argument(0), argument(1), argument(2)];
        [r.r10, r.r8, r.r9] = [argument(3), argument(4), argument(5)];
        kernel::set_registers(self.tid, &Registers::Native(r))?;
        // The call that was skipped has an exit stop too, where it is asked for.
        let before = u32::from(std::mem::replace(&mut self.skipped, self.ours.is_some()));
        let mut sides = 0;
        loop {
            match self.ours {
                Some(_) => kernel::resume(self.tid, 0)?,
                None => kernel::resume_to_syscall(self.tid, 0)?,
            }
            let waited = loop {
                match kernel::poll_for(self.tid) {
                    Ok(Some(waited)) => break waited,
                    Ok(None) => {}
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e.into()),
                }
            };
            match report(waited.status) {
                Report::Syscall if sides < 1 + before => sides += 1,
                Report::Syscall => break,
                Report::Seccomp if self.ours.is_some() => break,
                // Nothing else can be: all others are blocked.
                Report::Signal(_) | Report::Plain(Stop::GroupStop { .. }) => self.stopped = true,
                Report::Seccomp | Report::Plain(Stop::Trap) => {}
                _ => {
                    self.dying = true;
                    self.last = waited.taken.then(|| Box::new(waited));
                    return Err(Failure::Dying(None));
                }
            }
        }
        let r = native(self.tid)?;
        let value = if self.ours.is_some() { r.rbx } else { r.rax };
        if (-4095..0).contains(&(value as i64)) {
            return Err(Failure::Os(io::Error::from_raw_os_error(-(value as i64) as i32)));
        }
        Ok(value)
    }

    /// Ends: all is as it was.
    ///
    /// # Errors
    /// [`Failure::Dying`] with what is still to be served, whatever a call said of it.
    pub fn end(self) -> Result<(), Failure> {
        if self.dying {
            return Err(Failure::Dying(self.last));
        }
        // Not in a call any more: the one that it came from has ended.
        let before = Native { orig_rax: u64::MAX, ..self.before };
        kernel::set_registers(self.tid, &Registers::Native(before))?;
        kernel::set_signal_mask(self.tid, self.mask)?;
        if self.stopped {
            // SAFETY: tgkill takes its arguments by value; the thread is ours, so its
            // number is its own. It stops its process, as it was told to.
            unsafe { libc::syscall(libc::SYS_tkill, self.tid, libc::SIGSTOP) };
        }
        Ok(())
    }
}
