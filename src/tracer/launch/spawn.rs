//! Starting the command untraced, such that its times are its own.
//!
//! A fork of this process charges the command with pages copied and page tables
//! torn down before its exec, and one that waits at a gate with being woken: about
//! 100 us. So the forked child does the waiting, and the command is a child that
//! borrows its memory until the exec, as posix_spawn(3) does it. Borrowing ours
//! would be simpler, but wait4's peak of the command would then be no less than
//! ours: exec counts the memory it leaves (Linux, `exec_mmap`).

use std::cell::UnsafeCell;
use std::io::{self, Read};

use super::{Launched, Reports, Stage, Start, execute, fork, sockets};
use crate::tracer::error::{Error, os};
use crate::tracer::event::Nanos;
use crate::tracer::kernel::now;
use crate::tracer::launch::Command;

/// Bytes of the command's stack until its exec.
const STACK: usize = 64 << 10;

/// What the forked child needs to bear the command.
pub(super) struct Spawner {
    /// Touched, so that the command has no page faults for it.
    stack: Vec<UnsafeCell<u128>>,
}

/// A child that waits at its gate, bears the command, and stays: its own end must not
/// take a processor's time while the command runs.
#[derive(Debug)]
pub struct Untraced {
    child: Launched,
    is_reaped: bool,
}

/// The command, born.
#[derive(Debug)]
pub struct Born {
    /// Its pid. It is a child of this process.
    pub pid: i32,
    /// The moment before it was.
    pub at: Nanos,
    /// The memory that it had before its exec, bytes: `ru_maxrss` is never less.
    pub rss_bytes: u64,
}

/// Bytes in which a [`Born`] is told.
const MESSAGE: usize = 20;

impl Born {
    fn message(&self) -> [u8; MESSAGE] {
        let mut message = [0; MESSAGE];
        message[..4].copy_from_slice(&self.pid.to_ne_bytes());
        message[4..12].copy_from_slice(&self.at.to_ne_bytes());
        message[12..].copy_from_slice(&self.rss_bytes.to_ne_bytes());
        message
    }

    fn from_message(message: &[u8; MESSAGE]) -> Self {
        let &[p0, p1, p2, p3, a0, a1, a2, a3, a4, a5, a6, a7, ref rss @ ..] = message;
        Self {
            pid: i32::from_ne_bytes([p0, p1, p2, p3]),
            at: Nanos::from_ne_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rss_bytes: u64::from_ne_bytes(*rss),
        }
    }
}

/// Forks a child that is ready to start `command`, untraced.
pub fn launch_untraced(command: &Command) -> Result<Untraced, Error> {
    let stack = (0..STACK / size_of::<u128>()).map(|_| UnsafeCell::new(u128::MAX)).collect();
    let spawner = Spawner { stack };
    // By the gate it says what it has born, too: descriptors may be few.
    let child = fork(command, None, Some(&spawner), sockets()?)?;
    Ok(Untraced { child, is_reaped: false })
}

impl Untraced {
    /// Starts the command; returns once it has executed, or could not. `interrupted`
    /// is called when a signal came meanwhile. `None`: what [`Self::reports`] says.
    pub fn start(&mut self, mut interrupted: impl FnMut()) -> Result<Option<Born>, Error> {
        self.child.open()?;
        // Written at once, so read at once.
        let mut message = [0; MESSAGE];
        let read = loop {
            match self.child.gate.read(&mut message) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => interrupted(),
                read => break read,
            }
        };
        match read {
            Ok(MESSAGE) => Ok(Some(Born::from_message(&message))),
            Ok(_) => Ok(None),
            Err(e) => Err(os("cannot learn of the command's start", e)),
        }
    }

    /// What was said before the exec; to be asked for once the command has ended.
    pub fn reports(&mut self) -> Reports {
        self.end();
        self.child.reports()
    }

    /// Ends the child, which has nothing to do any more, and may be stopped.
    fn end(&mut self) {
        if !self.is_reaped {
            // SAFETY: it has not been reaped, so the pid is its own.
            unsafe { libc::kill(self.child.pid, libc::SIGKILL) };
        }
        while !self.is_reaped {
            let mut status = 0;
            // SAFETY: the child has not been reaped, so the pid is its own.
            let reaped = unsafe { libc::waitpid(self.child.pid, &raw mut status, 0) };
            self.is_reaped =
                reaped >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted;
        }
    }
}

impl Drop for Untraced {
    fn drop(&mut self) {
        self.end();
    }
}

impl Spawner {
    /// Bears the command, says so, and stays while the gate's other end is open. Never
    /// returns.
    ///
    /// # Safety
    /// Only to be called in a freshly forked child.
    pub(super) unsafe fn spawn(&self, start: &Start) -> ! {
        extern "C" fn command(start: *mut libc::c_void) -> libc::c_int {
            // SAFETY: it is the `Start` below, which outlives this: its owner is
            // suspended until the exec or the end of this process, which is alone in
            // using the memory meanwhile.
            unsafe { execute(&*start.cast::<Start>()) }
        }
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT | libc::SIGCHLD;
        let at = now();
        // SAFETY: the stack grows down from the end of a live, aligned allocation, and
        // nobody else uses it; `command` never returns.
        let pid = unsafe {
            let stack = self.stack.as_ptr_range().end.cast_mut();
            libc::clone(
                command,
                stack.cast::<libc::c_void>(),
                flags,
                std::ptr::from_ref(start).cast_mut().cast(),
            )
        };
        if pid < 0 {
            start.say(Stage::Fork as u8);
        } else {
            let mut byte = 0u8;
            // SAFETY: a valid rusage to fill, a local array, which a pipe takes whole, and
            // room for a byte that never comes.
            unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
                let rss_bytes = u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024;
                let message = Born { pid, at, rss_bytes }.message();
                libc::write(start.gate, message.as_ptr().cast(), message.len());
                while libc::read(start.gate, (&raw mut byte).cast(), 1) < 0
                    && super::errno() == libc::EINTR
                {}
            }
        }
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) }
    }
}
