//! System calls that a stopped thread makes for the tracer.

use std::io;

use super::super::arch::{Native, Registers};
use super::super::kernel::{self, Waited};
use super::super::stop::{Report, Stop, report};
use super::layout::{CALLS, Call};
use super::pages::Pages;
use super::trampoline;

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
pub struct Remote<'a> {
    tid: i32,
    /// Address of a `syscall` instruction.
    site: u64,
    /// Our code pages, once calls are made there, under the gate: one stop for some of
    /// them.
    ours: Option<&'a Pages>,
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

/// What a call returned.
fn result(value: u64) -> Result<u64, Failure> {
    if (-4095..0).contains(&(value as i64)) {
        return Err(Failure::Os(io::Error::from_raw_os_error(-(value as i64) as i32)));
    }
    Ok(value)
}

impl<'a> Remote<'a> {
    /// Begins. The thread must be at an exit stop; `site` is a `syscall` instruction.
    pub fn begin(tid: i32, site: u64) -> Result<Self, Failure> {
        let before = native(tid)?;
        let mask = kernel::signal_mask(tid)?;
        kernel::set_signal_mask(tid, u64::MAX)?;
        let (ours, stopped, dying, last) = (None, false, false, None);
        Ok(Self { tid, site, ours, before, mask, stopped, dying, last })
    }

    /// From now on in our code pages, which are there, under the gate; or no more.
    pub fn set_ours(&mut self, pages: Option<&'a Pages>) {
        self.ours = pages;
    }

    /// Makes one call and gives what it returned.
    pub fn call(&mut self, call: &Call) -> Result<u64, Failure> {
        match self.ours {
            Some(Pages { base, .. }) => result(self.make_in_ours(*base, call, base + CALLS)?.r12),
            None => self.make(call),
        }
    }

    /// Makes three calls, whatever the first ones return, and gives what that was.
    pub fn call_all(&mut self, calls: &[Call; 3]) -> Result<[Result<u64, Failure>; 3], Failure> {
        let [first, second, third] = calls;
        let Some(pages) = self.ours else {
            let mut go_on = |call| match self.make(call) {
                Err(Failure::Dying(waited)) => Err(Failure::Dying(waited)),
                result => Ok(result),
            };
            return Ok([go_on(first)?, go_on(second)?, go_on(third)?]);
        };
        let r = self.make_in_ours(pages.base, first, pages.list(&[*second, *third]))?;
        Ok([r.r14, r.r13, r.r12].map(result))
    }

    /// Makes a call by the site.
    fn make(&mut self, call: &Call) -> Result<u64, Failure> {
        self.set(self.site, call, 0)?;
        self.run(true)?;
        self.run(true)?;
        result(native(self.tid)?.rax)
    }

    /// Makes a call in our code pages, and those that are listed at `list`.
    fn make_in_ours(&mut self, base: u64, call: &Call, list: u64) -> Result<Native, Failure> {
        self.set(trampoline::remote(base), call, list)?;
        self.run(false)?;
        let r = native(self.tid)?;
        // Another filter may have stopped one of them.
        if r.orig_rax as u32 != u32::MAX {
            return Err(Failure::Os(io::Error::from_raw_os_error(libc::EPERM)));
        }
        Ok(r)
    }

    fn set(&self, ip: u64, call: &Call, list: u64) -> Result<(), Failure> {
        if self.dying {
            return Err(Failure::Dying(None));
        }
        let mut r = self.before;
        (r.rip, r.rbx) = (ip, list);
        r.rax = call.number as u64;
        r.orig_rax = u64::MAX; // Not in a call.
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = call.arguments;
        Ok(kernel::set_registers(self.tid, &Registers::Native(r))?)
    }

    /// Lets it run to the next side of a call, or to the filter's stop.
    fn run(&mut self, to_side: bool) -> Result<(), Failure> {
        loop {
            if to_side {
                kernel::resume_to_syscall(self.tid, 0)?;
            } else {
                kernel::resume(self.tid, 0)?;
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
                Report::Syscall if to_side => return Ok(()),
                Report::Seccomp if !to_side => return Ok(()),
                Report::Signal(libc::SIGSTOP) | Report::Plain(Stop::GroupStop { .. }) => {
                    self.stopped = true;
                }
                // A fault, all others are blocked: our pages have just been unmapped by
                // another thread, or are none of ours.
                Report::Signal(_) => {
                    return Err(Failure::Os(io::Error::from_raw_os_error(libc::EFAULT)));
                }
                Report::Syscall | Report::Seccomp | Report::Plain(Stop::Trap) => {}
                _ => {
                    self.dying = true;
                    self.last = waited.taken.then(|| Box::new(waited));
                    return Err(Failure::Dying(None));
                }
            }
        }
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
        // One to go on waits, being blocked, if it came since.
        let stopped = self.stopped && !kernel::is_pending(self.tid, libc::SIGCONT);
        kernel::set_signal_mask(self.tid, self.mask)?;
        if stopped {
            // SAFETY: tgkill takes its arguments by value; the thread is ours, so its
            // number is its own. It stops its process, as it was told to.
            unsafe { libc::syscall(libc::SYS_tkill, self.tid, libc::SIGSTOP) };
        }
        Ok(())
    }
}
