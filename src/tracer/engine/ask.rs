//! Asking the kernel what a wait status does not say.

use std::io;

use super::super::arch::VSYSCALL;
use super::super::error::reason;
use super::super::inside::STRICT_DATA;
use super::super::kernel::{self, Side};
use super::super::seccomp::TRACE_DATA;
use super::super::stop::{Disposition, Report, Stop, report};
use super::Engine;

impl Engine<'_, '_> {
    /// Asks the kernel what a status does not say.
    pub(super) fn classify(&mut self, tid: i32, status: i32) -> Stop {
        match report(status) {
            Report::Plain(stop @ (Stop::Trap | Stop::GroupStop { .. }))
                if self.tasks.is_arriving(tid) =>
            {
                self.arrival(tid, stop)
            }
            Report::Plain(stop) => stop,
            Report::Syscall => match self.side(tid) {
                Ok(Side::Entry(entry)) => Stop::Entry(entry),
                Ok(Side::Exit { value, ip, sp }) => {
                    if self.guard.is_busy() && self.tasks.took_signal(tid, value) {
                        self.guard.command_took(value as i32);
                    }
                    let spurious = value == -i64::from(libc::EINTR)
                        && self
                            .tasks
                            .may_repair(tid)
                            .is_some_and(|evidence| kernel::is_undisturbed(tid, evidence));
                    Stop::Exit { value, ip, sp, spurious }
                }
                Ok(Side::Foreign) => Stop::Unknown { status },
                Ok(Side::Gone) => Stop::Dying,
                Err(e) => match self.failed("ask for the call of", tid, &e) {
                    Stop::Unknown { .. } => Stop::Lost,
                    stop => stop,
                },
            },
            Report::Seccomp => match self.seccomp_stop(tid) {
                Ok(stop) => stop,
                Err(e) => self.failed("ask for the call of", tid, &e),
            },
            Report::Child(birth) => match kernel::event_message(tid, status >> 16) {
                Ok(child) => {
                    let child = child as i32;
                    let group = self.tasks.process_of(tid).unwrap_or(tid);
                    Stop::Child { birth, child, thread: kernel::is_thread_of(group, child) }
                }
                Err(e) => self.failed("ask for the child of", tid, &e),
            },
            Report::Exec => match kernel::event_message(tid, status >> 16) {
                Ok(former) => Stop::Exec { former: former as i32 },
                // It has executed all the same, most likely as the leader.
                Err(e) => match self.failed("ask who executed in", tid, &e) {
                    Stop::Unknown { .. } => Stop::Exec { former: tid },
                    stop => stop,
                },
            },
            Report::Exiting => match kernel::event_message(tid, status >> 16) {
                Ok(status) => Stop::Exiting { status: status as i32 },
                Err(_) => Stop::Exiting { status: 0 },
            },
            Report::Signal(signal) => {
                if self.root.is_some()
                    && self.tasks.process_of(tid) == self.root
                    && let Ok((code, sender)) = kernel::signal_sender(tid)
                {
                    self.guard.command_reports(signal, code, sender);
                }
                // A stopping signal stops only where it is not handled.
                let stopping = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
                let disturbed = if self.tasks.is_unwatched(tid)
                    && let Ok(Some((entry, value))) = kernel::call_in_flight(tid)
                    && value == -i64::from(libc::EINTR)
                    && entry.sys.is_repairable()
                {
                    Some(entry)
                } else {
                    None
                };
                let asked = stopping || disturbed.is_some() || self.tasks.wants_disposition(tid);
                let disposition =
                    if asked { kernel::disposition(tid, signal) } else { Disposition::Unknown };
                if disposition == Disposition::Ignored
                    && let Some(entry) = disturbed
                {
                    return Stop::Disturbed { entry };
                }
                Stop::Signal { signal, disposition }
            }
        }
    }

    /// The first stop of a thread that ran before it was watched: is it inside
    /// a call?
    fn arrival(&mut self, tid: i32, stop: Stop) -> Stop {
        let stopped = matches!(stop, Stop::GroupStop { .. });
        let inside = match kernel::call_in_flight(tid) {
            Ok(inside) => inside,
            Err(e) => return self.failed("look into", tid, &e),
        };
        let spurious = !stopped
            && matches!(inside, Some((_, value)) if value == -i64::from(libc::EINTR))
            && kernel::is_undisturbed(tid, false);
        Stop::Arrived { inside, spurious, stopped, since: self.asleep.remove(&tid) }
    }

    fn side(&mut self, tid: i32) -> io::Result<Side> {
        if self.syscall_info {
            match kernel::syscall_info(tid) {
                // Before 5.3 the request is unknown.
                Err(e)
                    if matches!(
                        e.raw_os_error(),
                        Some(libc::EIO | libc::EINVAL | libc::ENOSYS)
                    ) =>
                {
                    self.syscall_info = false;
                }
                other => return other,
            }
        }
        kernel::syscall_registers(tid, self.tasks.in_call(tid))
    }

    fn seccomp_stop(&mut self, tid: i32) -> io::Result<Stop> {
        let (side, known) = if self.syscall_info {
            kernel::seccomp_info(tid)?
        } else {
            (kernel::syscall_registers(tid, false)?, None)
        };
        let Side::Entry(entry) = side else {
            return Ok(Stop::Dying);
        };
        if VSYSCALL.contains(&entry.ip) {
            return Ok(Stop::Vsyscall);
        }
        let data = match known {
            Some(data) => data,
            None => kernel::event_message(tid, libc::PTRACE_EVENT_SECCOMP)? as u16,
        };
        if data == STRICT_DATA && self.fast.is_some() {
            self.kill_for_strict_mode(tid);
        } else if data != TRACE_DATA {
            // The program's own RET_TRACE: without a tracer it is ENOSYS.
            kernel::skip_call(tid, -i64::from(libc::ENOSYS))?;
        }
        Ok(Stop::Seccomp(entry))
    }

    /// A ptrace request failed. ESRCH is normal: the task was killed, and its
    /// end will be reported. Anything else is noted, and the task goes on.
    fn failed(&mut self, what: &str, tid: i32, error: &io::Error) -> Stop {
        if error.raw_os_error() == Some(libc::ESRCH) {
            return Stop::Dying;
        }
        self.lost += 1;
        self.note(format!("cannot {what} {tid}: {}", reason(error)));
        Stop::Unknown { status: 0 }
    }
}
