//! Bringing our code into an address space.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;

use super::super::error::reason;
use super::super::inside::{AFTER, Program};
use super::super::kernel::Waited;
use super::super::memory;
use super::super::proc::Status;
use super::arena::{Chunk, Pooled};
use super::begin::Begin;
use super::layout::{self, ARENA, CHUNK, Call, STUBS};
use super::remote::{Failure, Remote};
use super::segment::own_user;
use super::space::Space;
use super::{Fast, Thread, pages, trampoline};

/// Calls after which a program counts that is under the gate already, and begins in a file
/// of which nothing is known. Bringing in our code takes four stops and as much again; a
/// program that does nothing makes thirty calls, mostly from different places, and had
/// better not be asked.
const AFTER_EXEC: u32 = 32;

/// Why a process goes on as before.
#[derive(Debug)]
pub enum Refusal {
    /// For this reason.
    Because(String),
    /// It is ending; what wait said of that, if it was taken.
    Dying(Option<Box<Waited>>),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Os(error) => Self::Because(reason(&error)),
            Failure::Dying(waited) => Self::Dying(waited),
        }
    }
}

const ELSEWHERE: &str = "it is in another IPC namespace";
const NO_ROOM: &str = "the limit of its address space is near";

/// Whether a process may have so much more mapped, and would hardly notice: what is
/// ours counts for its RLIMIT_AS.
pub fn has_room(tid: i32, bytes: u64) -> bool {
    /// For what the program maps itself.
    const LEFT: u64 = 16 << 20;
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit, or nothing.
    unsafe { libc::prlimit(tid, libc::RLIMIT_AS, std::ptr::null(), &raw mut limit) };
    limit.rlim_cur == libc::RLIM_INFINITY
        || Status::read(tid)
            .and_then(|status| status.number::<u64>("VmSize:"))
            .is_some_and(|kib| (kib << 10).saturating_add(bytes + LEFT) <= limit.rlim_cur)
}

/// The user of a process, who is to own its segments. Under an ordinary user's tracer
/// all are his own.
fn user_of(tid: i32) -> io::Result<u32> {
    match own_user() {
        0 => std::fs::metadata(format!("/proc/{tid}")).map(|process| process.uid()),
        own => Ok(own),
    }
}

/// Whether a process does not see the tracer's segments, but maybe others by their numbers.
pub fn is_elsewhere(tid: i32) -> bool {
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/ipc")).ok();
    of(&tid.to_string()) != of("self")
}

fn because(why: impl Into<String>) -> Refusal {
    Refusal::Because(why.into())
}

impl Fast {
    /// Counts a call that stopped, of a program that does not count by itself. True
    /// when it is time that it did.
    pub fn is_due(&mut self, tid: i32, program: Program) -> bool {
        let thread = self.threads.get(&tid);
        let without = |t: &Thread| t.space.is_some() || matches!(t.begin, Some(Begin::Without));
        if self.off || thread.is_some_and(without) {
            return false;
        }
        let gated = thread.is_some_and(|t| t.gated);
        let after = if gated { self.after.min(AFTER_EXEC) } else { self.after };
        let calls = self.stopped.entry(program).or_default();
        *calls += 1;
        *calls >= after && !self.refused.contains(&program) && !self.shared.contains(&program)
    }

    /// A program has made a process: by the second one it is time, since these and their
    /// programs count from their first call then.
    pub fn has_made_process(&mut self, program: Program) {
        let calls = self.stopped.entry(program).or_default();
        *calls = calls.saturating_add(AFTER.div_ceil(2));
    }

    /// Makes the program of a thread count by itself. The thread stands at the exit
    /// stop of a call that was made at `site`; `siblings` are all threads of its
    /// process. Whatever goes wrong, it goes on as before. True if it counts; an error
    /// where the thread is ending, which it reports if that has not been taken.
    pub fn tier_up(
        &mut self,
        tid: i32,
        program: Program,
        site: u64,
        siblings: &[i32],
    ) -> Result<bool, Option<Box<Waited>>> {
        /// Tries in which another call than those of a signal's end must come.
        const PATIENCE: u32 = 64;
        let mut instruction = [0; 2];
        let is_call = matches!(memory::read(tid, site, &mut instruction), Ok(2))
            && instruction == [0x0f, 0x05];
        let calls = self.stopped.get(&program).copied().unwrap_or(0);
        if !is_call && calls < self.after.saturating_add(PATIENCE) {
            return Ok(false); // Behind exec and rt_sigreturn anything may be.
        }
        let began = self.learn_from(tid);
        match self.enter(tid, site, is_call) {
            Ok(space) => {
                let id = self.next_space;
                self.next_space += 1;
                self.spaces.insert(id, Space { began, users: siblings.len() as u32, ..space });
                for sibling in siblings {
                    let thread = self.threads.entry(*sibling).or_default();
                    thread.gated = true;
                    thread.space = Some(id);
                }
                self.stopped.remove(&program);
                self.summary.spaces += 1;
                Ok(true)
            }
            Err(Refusal::Because(why)) => {
                self.refused.insert(program);
                self.reason(&why);
                Ok(false)
            }
            Err(Refusal::Dying(waited)) => Err(waited),
        }
    }

    fn enter(&self, tid: i32, site: u64, is_call: bool) -> Result<Space, Refusal> {
        let gated = self.is_gated(tid);
        if !gated {
            let seccomp = Status::read(tid).and_then(|s| s.number::<u32>("Seccomp:"));
            if seccomp != Some(0) {
                return Err(because("it runs under a filter of its own"));
            }
        }
        if !is_call {
            return Err(because("its calls are not made by `syscall`"));
        }
        if !has_room(tid, ARENA + CHUNK as u64) {
            return Err(because(NO_ROOM));
        }
        let mut remote = Remote::begin(tid, site)?;
        let entered = self.map_all(tid, &mut remote, gated);
        remote.end()?;
        entered
    }

    fn map_all<'a>(
        &'a self,
        tid: i32,
        remote: &mut Remote<'a>,
        gated: bool,
    ) -> Result<Space, Refusal> {
        let base = self.pages.base;
        if is_elsewhere(tid) {
            return Err(because(ELSEWHERE));
        }
        match remote.call(&self.pages.map()) {
            Ok(at) if at == base => {}
            Err(Failure::Dying(waited)) => return Err(Refusal::Dying(waited)),
            Err(Failure::Os(e)) if e.raw_os_error() != Some(libc::EINVAL) => {
                return Err(because(format!("coldtrace's pages cannot be mapped: {}", reason(&e))));
            }
            _ => return Err(because("the place for coldtrace's pages is taken")),
        }
        let done = self.fill(tid, remote, gated);
        if matches!(done, Err(Refusal::Because(_))) {
            // By shmdt: what is there may be the program's. Under the gate it is our code
            // that makes the calls, and stays.
            for at in [ARENA, STUBS, layout::TRAMPOLINE].into_iter().take(3 - usize::from(gated)) {
                let _ = remote.call(&Call::new(libc::SYS_shmdt, &[base + at]));
            }
        }
        done
    }

    fn fill<'a>(
        &'a self,
        tid: i32,
        remote: &mut Remote<'a>,
        gated: bool,
    ) -> Result<Space, Refusal> {
        let base = self.pages.base;
        remote.set_ours(gated.then_some(&self.pages));
        let (stubs, slots) = self.segments(tid).map_err(Failure::from)?;
        let [stubs_at, slots_at, _] = remote.call_all(&[
            pages::map_stubs(base, stubs.segment().id()),
            pages::map_slots(base, 0, slots.segment().id()),
            pages::dont_dump(base),
        ])?;
        if (stubs_at?, slots_at?) != (base + STUBS, base + ARENA) {
            return Err(because("the place for coldtrace's pages is taken"));
        }
        if !gated {
            self.install_gate(remote)?;
        }
        Ok(Space::new(stubs, Chunk::of(slots)))
    }

    /// Segments for the stubs and the first slots of a process.
    pub(super) fn segments(&self, tid: i32) -> io::Result<(Pooled, Pooled)> {
        let user = user_of(tid)?;
        Ok((self.stubs.take(user)?, self.chunks.take(user)?))
    }

    /// Maps one more chunk of slots.
    fn map_chunk(
        &self,
        tid: i32,
        remote: &mut Remote<'_>,
        number: u64,
    ) -> Result<Rc<Chunk>, Failure> {
        let slots = self.chunks.take(user_of(tid)?)?;
        let map = pages::map_slots(self.pages.base, number, slots.segment().id());
        let at = remote.call(&map)?;
        let advice = libc::MADV_DONTDUMP as u64;
        let _ = remote.call(&Call::new(libc::SYS_madvise, &[at, CHUNK as u64, advice]));
        Ok(Chunk::of(slots))
    }

    fn install_gate(&self, remote: &mut Remote<'_>) -> Result<(), Refusal> {
        const SET_MODE_FILTER: u64 = 1;
        const FLAGS: u64 = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        let install = Call::new(libc::SYS_seccomp, &[SET_MODE_FILTER, FLAGS, self.pages.gate()]);
        let installed = match remote.call(&install) {
            Err(Failure::Os(e)) if e.raw_os_error() == Some(libc::EACCES) => {
                // Who may not gain privileges by exec may have a filter.
                let no_new_privileges = libc::PR_SET_NO_NEW_PRIVS as u64;
                remote.call(&Call::new(libc::SYS_prctl, &[no_new_privileges, 1]))?;
                remote.call(&install)
            }
            other => other,
        };
        match installed {
            Ok(0) => Ok(()),
            Ok(_) => Err(because("one of its threads has a filter of its own")),
            Err(Failure::Os(e)) => {
                Err(because(format!("the kernel refused the filter: {}", reason(&e))))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Where the filter in the place of strict mode is, of a thread under the gate whose
    /// stack ends at `sp`. Below that and the red zone memory is nobody's.
    pub fn strict_filter(&self, tid: i32, sp: u64) -> Option<u64> {
        const RED_ZONE: u64 = 128;
        const HEADER: usize = 16;
        let thread = self.threads.get(&tid).filter(|thread| thread.gated)?;
        if thread.space.is_some() {
            return Some(self.pages.strict());
        }
        let (filter, length) = super::gate::strict();
        let at = sp.checked_sub(RED_ZONE + (HEADER + filter.len()) as u64)? & !15;
        let mut program = [0; HEADER];
        program[..2].copy_from_slice(&length.to_le_bytes());
        program[8..].copy_from_slice(&(at + HEADER as u64).to_le_bytes());
        memory::write(tid, at, &[&program[..], &filter].concat()).ok().map(|()| at)
    }

    /// Whether a thread, at an exit stop, has no slot for want of room.
    pub fn is_parked(&self, tid: i32) -> bool {
        self.threads.get(&tid).is_some_and(|t| t.parked && !t.foreign)
    }

    /// Gives it one, making room.
    pub fn unpark(&mut self, tid: i32) -> Result<(), Option<Box<Waited>>> {
        let Some(id) = self.threads.get(&tid).and_then(|t| t.space) else { return Ok(()) };
        self.give_slot(tid, id);
        if !self.is_parked(tid) {
            return Ok(());
        }
        let number = self.spaces.get(&id).map_or(0, |s| s.chunks.len() as u64);
        if number >= layout::MOST_CHUNKS {
            return Ok(());
        }
        if !has_room(tid, CHUNK as u64) {
            self.lose(tid, NO_ROOM);
            return Ok(());
        }
        if self.may_be_elsewhere && is_elsewhere(tid) {
            self.lose(tid, ELSEWHERE);
            return Ok(());
        }
        let mapped = (|| {
            let mut remote = Remote::begin(tid, trampoline::remote(self.pages.base))?;
            remote.set_ours(Some(&self.pages));
            let mapped = self.map_chunk(tid, &mut remote, number);
            remote.end()?;
            mapped
        })();
        match mapped {
            Ok(chunk) => {
                if let Some(space) = self.spaces.get_mut(&id) {
                    space.chunks.push(chunk);
                }
                self.give_slot(tid, id);
                Ok(())
            }
            Err(Failure::Os(e)) => {
                self.lose(tid, &format!("no room for its counters: {}", reason(&e)));
                Ok(())
            }
            Err(Failure::Dying(waited)) => Err(waited),
        }
    }
}
