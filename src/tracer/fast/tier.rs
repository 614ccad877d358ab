//! Bringing our code into an address space.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use super::super::error::reason;
use super::super::inside::Program;
use super::super::kernel::Waited;
use super::super::memory::{self, Writer};
use super::super::proc::Status;
use super::arena::Chunk;
use super::layout::{self, ARENA, CHUNK, CODE, Call, DATA, DATA_LENGTH, NUMBERS};
use super::remote::{Failure, Remote};
use super::space::Space;
use super::{Fast, byte_of, trampoline};

/// Where things are in the data part of the code pages.
const NAME: u64 = DATA;
const GATE: u64 = DATA + 0x40;
const GATE_FILTER: u64 = DATA + 0x50;
/// `struct sock_fprog` of the filter in the place of strict mode.
const STRICT: u64 = DATA + 0x140;
const STRICT_FILTER: u64 = DATA + 0x150;

/// Calls after which a program counts that is under the gate already. Bringing in our
/// code takes four stops and as much again; a program that does nothing makes thirty
/// calls, mostly from different places, and had better not be asked.
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

const NO_ROOM: &str = "the limit of its address space is near";

/// Whether a process may have so much more mapped, and would hardly notice: what is
/// ours counts for its RLIMIT_AS.
fn has_room(tid: i32, bytes: u64) -> bool {
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

fn because(why: impl Into<String>) -> Refusal {
    Refusal::Because(why.into())
}

impl Fast {
    /// Counts a call that stopped, of a program that does not count by itself. True
    /// when it is time that it did.
    pub fn is_due(&mut self, tid: i32, program: Program) -> bool {
        let thread = self.threads.get(&tid);
        if self.off || thread.is_some_and(|t| t.space.is_some()) {
            return false;
        }
        let gated = thread.is_some_and(|t| t.gated);
        let after = if gated { self.after.min(AFTER_EXEC) } else { self.after };
        let calls = self.stopped.entry(program).or_default();
        *calls += 1;
        *calls >= after && !self.refused.contains(&program) && !self.shared.contains(&program)
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
        match self.enter(tid, site, is_call) {
            Ok((space, memory)) => {
                let id = self.next_space;
                self.next_space += 1;
                self.memory = memory.map(|memory| (id, memory));
                self.spaces.insert(id, Space { users: siblings.len() as u32, ..space });
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

    fn enter(
        &self,
        tid: i32,
        site: u64,
        is_call: bool,
    ) -> Result<(Space, Option<Writer>), Refusal> {
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
        let mut remote = Remote::begin(tid, site, gated)?;
        let entered = self.map_all(tid, &mut remote, gated);
        let memory = remote.end()?;
        Ok((entered?, memory))
    }

    fn map_all(&self, tid: i32, remote: &mut Remote, gated: bool) -> Result<Space, Refusal> {
        let base = self.base;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let access = libc::PROT_READ | libc::PROT_EXEC;
        let args = [base, CODE, access as u64, flags as u64, u64::MAX, 0];
        let at = remote.call(libc::SYS_mmap, &args)?;
        if at != base {
            let _ = remote.call(libc::SYS_munmap, &[at, CODE]);
            return Err(because("the place for coldtrace's pages is taken"));
        }
        let done = self.fill(tid, remote, gated);
        remote.set_ours(None); // It is unmapped below.
        if matches!(done, Err(Refusal::Because(_))) {
            let _ = remote.call(libc::SYS_munmap, &[base + ARENA, CHUNK as u64]);
            let _ = remote.call(libc::SYS_munmap, &[base, CODE]);
        }
        done
    }

    fn fill(&self, tid: i32, remote: &mut Remote, gated: bool) -> Result<Space, Refusal> {
        let base = self.base;
        let table = self.table();
        let data = [&table[..], &self.data()].concat();
        remote
            .memory()
            .and_then(|memory| {
                memory.write(base + layout::TRAMPOLINE, &trampoline::code(base))?;
                memory.write(base + layout::TABLE, &data)
            })
            .map_err(|e| because(format!("cannot write its memory: {}", reason(&e))))?;
        remote.set_ours(gated.then_some(base));
        // There is a gap between the two, of which the kernel complains at the end.
        let chunk = self.map_chunk(tid, remote, 0, base..base + ARENA + CHUNK as u64)?;
        if !gated {
            self.install_gate(remote)?;
        }
        Ok(Space::new(chunk, table))
    }

    /// Maps one more chunk of slots. `not_dumped`: what a core is not to have.
    fn map_chunk(
        &self,
        tid: i32,
        remote: &mut Remote,
        number: u64,
        not_dumped: Range<u64>,
    ) -> Result<Rc<Chunk>, Failure> {
        const FLAGS: u64 = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as u64;
        let fd = remote.call(libc::SYS_memfd_create, &[self.base + NAME, FLAGS])?;
        let fetched = (|| {
            let path = format!("/proc/{tid}/fd/{fd}");
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            // Another thread may have put a file of its own there.
            let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            if !name.as_os_str().as_encoded_bytes().starts_with(b"/memfd:coldtrace") {
                return Err(Failure::Os(io::Error::from_raw_os_error(libc::EBADF)));
            }
            Ok(Chunk::map(&file)?)
        })();
        let chunk = match fetched {
            Ok(chunk) => chunk,
            Err(failure) => {
                remote.call(libc::SYS_close, &[fd])?;
                return Err(failure);
            }
        };
        let at = self.base + ARENA + number * CHUNK as u64;
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u64;
        let length = not_dumped.end - not_dumped.start;
        let advice = libc::MADV_DONTDUMP as u64;
        let [mapped, closed, _] = remote.call_all(&[
            Call::new(libc::SYS_mmap, &[at, CHUNK as u64, access, flags, fd, 0]),
            Call::new(libc::SYS_close, &[fd]),
            Call::new(libc::SYS_madvise, &[not_dumped.start, length, advice]),
        ])?;
        let mapped = mapped?;
        if mapped != at {
            let _ = remote.call(libc::SYS_munmap, &[mapped, CHUNK as u64]);
            return Err(Failure::Os(io::Error::from(io::ErrorKind::AddrInUse)));
        }
        closed.map(|_| chunk)
    }

    fn install_gate(&self, remote: &mut Remote) -> Result<(), Refusal> {
        const SET_MODE_FILTER: u64 = 1;
        const FLAGS: u64 = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
        let program = self.base + GATE;
        let mut install = || remote.call(libc::SYS_seccomp, &[SET_MODE_FILTER, FLAGS, program]);
        let installed = match install() {
            Err(Failure::Os(e)) if e.raw_os_error() == Some(libc::EACCES) => {
                // Who may not gain privileges by exec may have a filter.
                let no_new_privileges = libc::PR_SET_NO_NEW_PRIVS as u64;
                remote.call(libc::SYS_prctl, &[no_new_privileges, 1])?;
                remote.call(libc::SYS_seccomp, &[SET_MODE_FILTER, FLAGS, program])
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

    /// What the code pages say of each number, as far as these have rows.
    fn table(&self) -> Box<[u8; NUMBERS]> {
        let mut table = Box::new([0; NUMBERS]);
        for (row, number) in self.rows.iter().enumerate() {
            if let Some(byte) = table.get_mut(usize::from(*number)) {
                *byte = byte_of(row, *number);
            }
        }
        table
    }

    /// Names and filters.
    fn data(&self) -> Vec<u8> {
        let mut data = vec![0; DATA_LENGTH];
        let mut put = |at: u64, bytes: &[u8]| {
            let at = (at - DATA) as usize;
            if let Some(place) = data.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(NAME, b"coldtrace");
        put(layout::CALLS, &Call::NONE.bytes());
        let gate = super::gate::filter(trampoline::let_through(self.base));
        let strict = super::gate::strict();
        for (program, filter, (bytes, length)) in
            [(GATE, GATE_FILTER, gate), (STRICT, STRICT_FILTER, strict)]
        {
            put(program, &length.to_le_bytes());
            put(program + 8, &(self.base + filter).to_le_bytes());
            put(filter, &bytes);
        }
        data
    }

    /// Where the filter in the place of strict mode is, of a thread under the gate whose
    /// stack ends at `sp`. Below that and the red zone memory is nobody's.
    pub fn strict_filter(&self, tid: i32, sp: u64) -> Option<u64> {
        const RED_ZONE: u64 = 128;
        const HEADER: usize = 16;
        let thread = self.threads.get(&tid).filter(|thread| thread.gated)?;
        if thread.space.is_some() {
            return Some(self.base + STRICT);
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
        let mapped = (|| {
            let mut remote = Remote::begin(tid, trampoline::remote(self.base), true)?;
            remote.set_ours(Some(self.base));
            let at = self.base + ARENA + number * CHUNK as u64;
            let mapped = self.map_chunk(tid, &mut remote, number, at..at + CHUNK as u64);
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
