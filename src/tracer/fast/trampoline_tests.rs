//! A thread is stopped before each instruction of the trampoline, from the stub on,
//! for each way through it: stepped back, it has its program's registers and flags,
//! and its slot has the call once or not at all.

use std::collections::BTreeSet;

use crate::syscall::{Abi, CallSet, Sys};

use super::super::super::arch::{Native, Registers};
use super::super::super::kernel;
use super::super::arena::{Chunk, Place};
use super::super::layout::*;
use super::super::space::Space;
use super::super::{Fast, FastOptions, Thread, clock, pages, remote};
use super::*;

/// Where the program makes its call: nothing is there, and nothing is executed there.
const SITE: u64 = 0x6666_7777_1000;
/// No way through is as long.
const MOST_STEPS: usize = 200;
/// Flags that a program may find changed: carry, parity, adjust, zero, sign, overflow.
const CHANGED: u64 = 0x8d5;
/// Those, and the direction flag.
const KEPT: u64 = CHANGED | 0x400;

/// A process that is stepped; killed at the end, or with its tracer.
struct Stepped {
    pid: i32,
    fast: Fast,
    stub: u64,
    slot: u64,
    /// Of its stubs and of its slots.
    segments: [u64; 2],
}

impl Drop for Stepped {
    fn drop(&mut self) {
        // SAFETY: the process is our child, and has not been waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL);
        }
    }
}

/// What a process does until it is stopped to be stepped. Only system calls: other
/// threads of the tests may have held any lock.
fn child(maps: &[Call]) -> ! {
    // SAFETY: new mappings where nothing else is; the other calls take numbers.
    unsafe {
        let mapped = maps.iter().all(|map| {
            let [id, at, flags, ..] = map.arguments;
            libc::shmat(id as i32, at as *const _, flags as i32).addr() as u64 == at
        });
        libc::alarm(60);
        if mapped {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
        }
        libc::_exit(1)
    }
}

impl Stepped {
    fn new() -> Self {
        Self::with(3)
    }

    /// One that has only the first `mapped` of code pages, stubs and slots.
    fn with(mapped: usize) -> Self {
        let mut fast = Fast::new(&FastOptions::default(), &CallSet::none()).expect("a clock");
        let base = fast.pages.base;
        let (stubs, slots) = fast.segments(std::process::id() as i32).expect("room");
        let segments = [stubs.segment().id(), slots.segment().id()];
        let [own_stubs, own_slots] = segments;
        let maps = [
            fast.pages.map(),
            pages::map_stubs(base, own_stubs),
            pages::map_slots(base, 0, own_slots),
        ];
        // SAFETY: the child makes only system calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            child(maps.get(..mapped).unwrap_or_default());
        }
        assert!(pid > 0);
        fast.rows = vec![0; ROWS];
        let mut space = Space::new(stubs, Chunk::of(slots));
        space.users = 1;
        let (place, _) = Place::take(&space.chunks).expect("a slot");
        let slot = base + ARENA + place.offset();
        let mut this = Self { pid, fast, stub: 0, slot, segments };
        assert_eq!(this.wait(), libc::SIGSTOP);
        // SAFETY: an option by value.
        let set = unsafe {
            libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_EXITKILL as usize)
        };
        assert_eq!(set, 0);
        let site = *space.site(base, SITE).expect("a stub");
        this.stub = Space::stub_slow(base, &site);
        this.fast.spaces.insert(0, space);
        let thread = Thread { gated: true, space: Some(0), slot: Some(place), ..Thread::default() };
        this.fast.threads.insert(pid, thread);
        this
    }

    /// What the code pages say of a number.
    fn count(&mut self, number: usize, byte: u8) {
        self.fast.pages.set_byte(number, byte);
    }

    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the process is our child.
        let got = unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
        assert_eq!(got, self.pid);
        assert!(libc::WIFSTOPPED(status), "status {status:#x}");
        libc::WSTOPSIG(status)
    }

    fn registers(&self) -> Native {
        remote::native(self.pid).expect("stopped")
    }

    fn set(&self, r: &Native) {
        kernel::set_registers(self.pid, &Registers::Native(*r)).expect("stopped");
    }

    fn step(&self) {
        // SAFETY: no arguments.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) }, 0);
        assert_eq!(self.wait(), libc::SIGTRAP);
    }

    fn place(&self) -> &Place {
        self.fast.threads[&self.pid].slot.as_ref().expect("a slot")
    }

    fn at(&self, rip: u64) -> u64 {
        rip.wrapping_sub(self.fast.pages.base)
    }
}

/// Numbers from a seed (xorshift64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Where a way through the trampoline ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Behind the site.
    Back,
    /// At the stub's call.
    Slow,
    /// Where the tracer makes room.
    Drained,
    /// Where the tracer looks why a call was interrupted.
    Asked,
}

/// One way through the trampoline.
#[derive(Debug, Clone)]
struct Case {
    name: &'static str,
    number: u64,
    args: [u64; 3],
    /// What the table says of the number.
    byte: u8,
    mode: u32,
    end: End,
    /// What the call returns, or is made to.
    result: i64,
    made_to: bool,
    /// Of the row before: complement of the shortest, longest, errors.
    not_min: u64,
    max: u64,
    errors: [(u64, u64); ERRORS],
    /// How long ago the call began, cycles, as it returns.
    ago: Option<i64>,
}

/// What a slot says of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counts {
    calls: u64,
    total: u64,
    not_min: u64,
    max: u64,
    errors: Vec<(u64, u64)>,
    histogram: Vec<(usize, u64)>,
}

impl Case {
    fn row(&self) -> usize {
        usize::from(self.byte & !BY_ARGUMENT).saturating_sub(1)
    }

    /// All of the slot as it is before the call.
    fn fill(&self, slot: &Place) {
        let row = |field| Place::row(self.row(), field);
        for at in (0..SLOT).step_by(8).filter(|at| slot.get(*at) != 0) {
            slot.set(at, 0);
        }
        slot.set_mode(self.mode);
        slot.set(row(offset_of!(Row, not_min)), self.not_min);
        slot.set(row(offset_of!(Row, max)), self.max);
        for (i, (errno, calls)) in self.errors.iter().enumerate() {
            let entry = row(offset_of!(Row, errors)) + i * 16;
            slot.set(entry, *errno);
            slot.set(entry + 8, *calls);
        }
    }

    fn counts(&self, slot: &Place) -> Counts {
        let row = |field| slot.get(Place::row(self.row(), field));
        let errors = (0..ERRORS).map(|i| offset_of!(Row, errors) + i * 16);
        let histogram = (0..BUCKETS).map(|i| (i, row(offset_of!(Row, histogram) + i * 8)));
        Counts {
            calls: slot.get(call_offset(self.row()) as usize),
            total: row(offset_of!(Row, total)),
            not_min: row(offset_of!(Row, not_min)),
            max: row(offset_of!(Row, max)),
            errors: errors.map(|at| (row(at), row(at + 8))).collect(),
            histogram: histogram.filter(|(_, n)| *n > 0).collect(),
        }
    }

    fn errno(&self) -> Option<u64> {
        (-4095..0).contains(&self.result).then_some(self.result.unsigned_abs())
    }

    /// Whether a row has no room for the error.
    fn is_full(&self) -> bool {
        let taken = |errno| self.errors.iter().all(|e| e.0 != 0 && e.0 != errno);
        self.errno().is_some_and(taken)
    }

    /// What is counted in the end, by what the clock said.
    fn expected(&self, made: bool, elapsed: u64) -> Counts {
        let mut errors = self.errors.to_vec();
        let errno = self.errno().filter(|_| made);
        if let Some(errno) = errno
            && let Some(entry) = errors.iter_mut().find(|e| e.0 == 0 || e.0 == errno)
        {
            *entry = (errno, entry.1 + 1);
        }
        Counts {
            calls: u64::from(made),
            total: elapsed,
            not_min: if made { self.not_min.max(!elapsed) } else { self.not_min },
            max: self.max.max(elapsed),
            errors,
            histogram: made.then(|| (bucket(elapsed), 1)).into_iter().collect(),
        }
    }
}

/// Random registers, as they are when a call is made.
fn program(stepped: &Stepped, case: &Case, numbers: &mut Numbers) -> Native {
    let mut r = stepped.registers();
    for register in [
        &mut r.rbx, &mut r.rbp, &mut r.rsp, &mut r.rdi, &mut r.rsi, &mut r.rdx, &mut r.r8,
        &mut r.r9, &mut r.r10, &mut r.r11, &mut r.r12, &mut r.r13, &mut r.r14, &mut r.r15,
        &mut r.rcx,
    ] {
        *register = numbers.next();
    }
    [r.rdi, r.rsi, r.rdx] = case.args;
    if case.args[2] == 0 {
        r.rdx = numbers.next();
    }
    r.rax = case.number;
    r.orig_rax = u64::MAX;
    r.rip = stepped.stub - STUB_SLOW + STUB_CODE;
    r.eflags = 0x202 | (numbers.next() & KEPT);
    r.gs_base = stepped.slot;
    r
}

/// Steps so many instructions; `None` where the way is shorter. Whether the call was made.
fn steps(stepped: &Stepped, case: &Case, count: usize) -> Option<bool> {
    let marks = Marks::get();
    let mut made = false;
    for _ in 0..count {
        let rip = stepped.registers().rip;
        if end(stepped, rip).is_some() {
            return None;
        }
        stepped.step();
        if stepped.at(rip) == marks.call {
            made = true;
            if case.made_to {
                let mut r = stepped.registers();
                r.rax = case.result as u64;
                stepped.set(&r);
            }
            if let Some(ago) = case.ago {
                let began = clock::cycles().wrapping_add_signed(-ago);
                stepped.place().set(offset_of!(Head, clock), began);
            }
        }
    }
    Some(made)
}

fn end(stepped: &Stepped, rip: u64) -> Option<End> {
    match rip {
        _ if rip == SITE + 2 => Some(End::Back),
        _ if rip == stepped.stub => Some(End::Slow),
        _ if rip == drained(stepped.fast.pages.base) => Some(End::Drained),
        _ if rip == asked(stepped.fast.pages.base) => Some(End::Asked),
        _ => None,
    }
}

/// All that a program can see: registers and flags.
fn seen(r: &Native) -> [u64; 19] {
    [
        r.rbx,
        r.rbp,
        r.rsp,
        r.rdi,
        r.rsi,
        r.rdx,
        r.r8,
        r.r9,
        r.r10,
        r.r12,
        r.r13,
        r.r14,
        r.r15,
        r.eflags & KEPT,
        r.fs_base,
        r.gs_base,
        r.cs,
        r.ss,
        r.gs,
    ]
}

/// Stops everywhere on this way. Gives the places.
fn stop_everywhere(stepped: &mut Stepped, case: &Case, random: &mut Numbers) -> BTreeSet<u64> {
    let mut places = BTreeSet::new();
    let in_table = usize::try_from(case.number).ok().filter(|n| *n < NUMBERS);
    if let Some(number) = in_table {
        stepped.fast.rows[case.row()] = number as u16;
        stepped.count(number, case.byte);
    }
    for count in 0..MOST_STEPS {
        case.fill(stepped.place());
        let before = program(stepped, case, random);
        stepped.set(&before);
        let Some(made) = steps(stepped, case, count) else {
            assert!(count > 5);
            return places;
        };
        let rip = stepped.registers().rip;
        let at = stepped.at(rip);
        let what = format!("{} after {count} steps, at {at:#x}", case.name);
        if let Some(end) = end(stepped, rip) {
            assert_eq!(end, case.end, "{what}");
        }
        places.insert(at);
        assert_eq!(stepped.fast.step_back(stepped.pid, false), None, "{what}");
        let after = stepped.registers();
        assert_eq!(seen(&after), seen(&before), "{what}");
        let (ip, rax) = if made { (SITE + 2, case.result as u64) } else { (SITE, case.number) };
        assert_eq!((after.rip, after.rax), (ip, rax), "{what}");
        check_slot(stepped, case, made, &what);
    }
    panic!("{}: no end", case.name);
}

fn check_slot(stepped: &mut Stepped, case: &Case, made: bool, what: &str) {
    let slot = stepped.place();
    assert_eq!(slot.get(offset_of!(Head, call)), 0, "{what}");
    let counts = case.counts(slot);
    assert_eq!(counts, case.expected(made, counts.total), "{what}");
    assert!(counts.total < 1 << 41, "{what}");
    match case.ago {
        Some(..0) => assert_eq!(counts.total, 0, "{what}"),
        Some(ago) if made => assert!(counts.total >= ago as u64, "{what}"),
        _ => {}
    }
    let row = case.row();
    for other in (0..ROWS).filter(|other| *other != row) {
        assert_eq!(slot.get(call_offset(other) as usize), 0, "{what}");
    }
    let thread = stepped.fast.threads.get_mut(&stepped.pid).expect("the thread");
    let more = std::mem::take(&mut thread.more_errors);
    let errno = case.errno().filter(|_| made && case.is_full());
    assert_eq!(more, errno.map(|e| (row, e as i32)).into_iter().collect::<Vec<_>>(), "{what}");
    // Longer than the session a call cannot have taken: that is left out.
    let can_be = case.ago.is_none_or(|ago| ago < 1 << 30);
    if can_be && case.errors == [(0, 0); ERRORS] && case.not_min == 0 && case.max == 0 {
        let harvest = stepped.fast.harvest(stepped.pid);
        assert_eq!(harvest.len(), usize::from(made), "{what}");
        for (sys, times) in harvest {
            assert_eq!(sys, Sys::new(Abi::X86_64, case.number as i64), "{what}");
            assert_eq!(times.calls, 1, "{what}");
            assert_eq!(times.histogram.iter().map(|(_, n)| n).sum::<u64>(), 1, "{what}");
            assert_eq!(times.errors.len(), usize::from(case.errno().is_some()), "{what}");
        }
        assert_eq!(stepped.fast.summary.reasons, [], "{what}");
    }
}

const PLAIN: Case = Case {
    name: "",
    number: libc::SYS_getppid as u64,
    args: [0; 3],
    byte: 1,
    mode: FAST,
    end: End::Back,
    result: 0,
    made_to: false,
    not_min: 0,
    max: 0,
    errors: [(0, 0); ERRORS],
    ago: None,
};

fn cases() -> Vec<Case> {
    const EBADF: i64 = -(libc::EBADF as i64);
    const EINVAL: i64 = -(libc::EINVAL as i64);
    let parent = i64::from(std::process::id());
    let plain = Case { result: parent, ..PLAIN };
    let close = Case {
        number: libc::SYS_close as u64,
        args: [u64::MAX, 0, 0],
        byte: 6,
        result: EBADF,
        ..PLAIN
    };
    let unmap =
        Case { number: libc::SYS_munmap as u64, byte: BY_ARGUMENT | 63, result: EINVAL, ..PLAIN };
    let process = |name, what, end| Case {
        name,
        number: libc::SYS_arch_prctl as u64,
        args: [what, u64::MAX, 0],
        byte: BY_ARGUMENT | 2,
        result: -i64::from(libc::EPERM),
        end,
        ..PLAIN
    };
    let at = |name, first, end| Case { name, args: [first, 0, 7], end, ..unmap.clone() };
    let slow = |name, number, byte, mode| Case { number, byte, mode, ..ends_slow(name) };
    let others = [(1, 3), (2, 4), (3, 5), (4, 6)];
    let with = |name, errors, end| Case { name, end, errors, ..close.clone() };
    let known = [(1, 3), (2, 4), (3, 5), (libc::EBADF as u64, 6)];
    vec![
        Case { name: "succeeds", ..plain.clone() },
        Case { name: "last row", byte: 64, ..plain.clone() },
        Case {
            name: "shortest and longest are known",
            not_min: u64::MAX,
            max: u64::MAX,
            ..plain.clone()
        },
        Case { name: "clock ran backwards", ago: Some(-(1 << 40)), ..plain.clone() },
        Case { name: "takes long", ago: Some(1 << 40), ..plain.clone() },
        Case { name: "takes long and fails", ago: Some(1 << 40), ..close.clone() },
        Case { name: "fails", ..close.clone() },
        Case {
            name: "is interrupted",
            result: -i64::from(libc::EINTR),
            made_to: true,
            end: End::Asked,
            ..plain.clone()
        },
        with("fails as before", [(libc::EBADF as u64, 3), (0, 0), (0, 0), (0, 0)], End::Back),
        with("fails otherwise", [(1, 3), (2, 2), (0, 0), (0, 0)], End::Back),
        with("fails as known last", known, End::Back),
        with("no room for errors", others, End::Drained),
        at("no address", 0, End::Back),
        at("address below 2 GiB", 0x7fff_ffff, End::Slow),
        at("address 1", 1, End::Slow),
        at("address of 2 GiB", 0x8000_0000, End::Back),
        at("high address", 0x7f12_3456_7000, End::Back),
        at("highest address", u64::MAX, End::Back),
        process("sets FS", ARCH_SET_FS, End::Back),
        process("sets GS", 0x1001, End::Slow),
        process("sets GS by its lower half", 0x1_0000_1001, End::Slow),
        slow("told to stop", libc::SYS_getppid as u64, 1, SLOW),
        slow("slot that is none", libc::SYS_getppid as u64, 1, 0),
        slow("number that stops", libc::SYS_getppid as u64, 0, FAST),
        slow("number beyond the table", NUMBERS as u64, 1, FAST),
        slow("last number of the table", NUMBERS as u64 - 1, 0, FAST),
        slow("no number", u64::MAX, 1, FAST),
        slow("number of x32", 0x4000_006e, 1, FAST),
    ]
}

fn ends_slow(name: &'static str) -> Case {
    Case { name, end: End::Slow, ..PLAIN }
}

#[test]
fn a_thread_that_stops_anywhere_is_where_its_program_would_be() {
    let mut stepped = Stepped::new();
    let mut places = BTreeSet::new();
    for (seed, case) in (1u64..).zip(cases()) {
        for round in 0..3 {
            let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + round);
            places.extend(stop_everywhere(&mut stepped, &case, &mut numbers));
        }
    }
    // All of it was met but the traps and what is made for the tracer.
    let marks = Marks::get();
    let bytes = code(stepped.fast.pages.base);
    let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, 0, 0);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let at = instruction.ip();
        let met = places.contains(&at);
        assert_eq!(met, at < marks.remote && !is_trap(&instruction, &marks), "{at:#x}");
    }
}

fn is_trap(instruction: &iced_x86::Instruction, marks: &Marks) -> bool {
    let stands = [marks.drained, marks.asked].contains(&instruction.ip());
    instruction.mnemonic() == iced_x86::Mnemonic::Ud2 && !stands
}

/// Steps to the place `at`, and there changes the registers and steps back.
fn interrupted(
    stepped: &mut Stepped,
    at: u64,
    ending: bool,
    change: impl Fn(&mut Native),
) -> (Native, Native, Option<crate::tracer::inside::Caught>) {
    let case = Case { name: "interrupted", args: [11, 22, 33], ..PLAIN };
    case.fill(stepped.place());
    let before = program(stepped, &case, &mut Numbers(99));
    stepped.set(&before);
    while stepped.at(stepped.registers().rip) != at {
        assert!(end(stepped, stepped.registers().rip).is_none());
        stepped.step();
    }
    let mut r = stepped.registers();
    change(&mut r);
    stepped.set(&r);
    let caught = stepped.fast.step_back(stepped.pid, ending);
    let slot = stepped.place();
    assert_eq!(slot.get(offset_of!(Head, call)), 0);
    let counted = caught.is_none() && r.rip > stepped.fast.pages.base + Marks::get().call;
    assert_eq!(slot.get(call_offset(0) as usize), u64::from(counted));
    let after = stepped.registers();
    assert_eq!(seen(&after), seen(&before));
    (before, after, caught)
}

#[test]
fn a_call_that_is_not_over_is_handed_on() {
    let mut stepped = Stepped::new();
    let marks = Marks::get();
    // One that Linux ends in EINTR whenever its thread stops, by signal(7).
    for (number, value) in [
        (libc::SYS_getppid, -512i64),
        (libc::SYS_getppid, -513),
        (libc::SYS_getppid, -514),
        (libc::SYS_getppid, -516),
        (libc::SYS_epoll_wait, -4),
    ] {
        let sys = Sys::new(Abi::X86_64, number);
        stepped.fast.rows[0] = number as u16;
        stepped.count(libc::SYS_getppid as usize, 1);
        let (before, after, caught) = interrupted(&mut stepped, marks.returned, false, |r| {
            r.rax = value as u64;
            r.orig_rax = number as u64;
        });
        assert_eq!((after.rip, after.rax), (SITE + 2, value as u64));
        let caught = caught.expect("not over");
        assert_eq!((caught.entry.sys, caught.value), (sys, value));
        assert_eq!((caught.entry.ip, caught.entry.sp), (SITE + 2, before.rsp));
        assert_eq!(caught.entry.args, [11, 22, 33, before.r10, before.r8, before.r9]);
        assert!(kernel::now().abs_diff(caught.at) < 1_000_000_000, "{caught:?}");
    }
}

#[test]
fn a_call_that_tracing_may_have_ended_is_handed_on() {
    let mut stepped = Stepped::new();
    let marks = Marks::get();
    stepped.count(libc::SYS_getppid as usize, 1);
    for (number, is_caught) in [(libc::SYS_epoll_wait, true), (libc::SYS_getppid, false)] {
        stepped.fast.rows[0] = number as u16;
        let (_, after, caught) = interrupted(&mut stepped, marks.rdx_again, false, |r| {
            r.r11 = -i64::from(libc::EINTR) as u64;
        });
        assert_eq!((after.rip, after.rax as i64), (SITE + 2, -i64::from(libc::EINTR)));
        assert_eq!(caught.map(|c| c.entry.sys.number), is_caught.then_some(number));
    }
}

#[test]
fn a_call_that_the_kernel_starts_again_begins_at_its_site() {
    let mut stepped = Stepped::new();
    let marks = Marks::get();
    stepped.fast.rows[0] = libc::SYS_getppid as u16;
    stepped.count(libc::SYS_getppid as usize, 1);
    // The kernel has gone back: rcx and r11 are what the call left there.
    for again in [libc::SYS_getppid, libc::SYS_restart_syscall] {
        let (_, after, caught) = interrupted(&mut stepped, marks.returned, false, |r| {
            r.rip -= 2;
            r.rax = again as u64;
        });
        assert_eq!((after.rip, after.rax), (SITE, again as u64));
        let block = again == libc::SYS_restart_syscall;
        assert_eq!(caught.map(|c| c.value), block.then_some(-516));
    }
}

#[test]
fn a_call_in_which_a_thread_ends_is_known() {
    let mut stepped = Stepped::new();
    let marks = Marks::get();
    stepped.fast.rows[0] = libc::SYS_getppid as u16;
    stepped.count(libc::SYS_getppid as usize, 1);
    let (_, _, caught) = interrupted(&mut stepped, marks.returned, true, |_| {});
    assert_eq!(caught.map(|c| c.entry.sys.number), Some(libc::SYS_getppid));
    // Behind it, it is over.
    let (_, _, caught) = interrupted(&mut stepped, marks.result, true, |_| {});
    assert_eq!(caught, None);
}

/// Runs a program's begin, for which these are the segments; where it ends, and how.
fn begins(stepped: &Stepped, [stubs, slots]: [u64; 2]) -> (Native, i32) {
    let base = stepped.fast.pages.base;
    let mut r = stepped.registers();
    for register in [&mut r.rax, &mut r.rcx, &mut r.rdx, &mut r.r8, &mut r.r13, &mut r.r14] {
        *register = 0x77;
    }
    (r.rip, r.orig_rax, r.gs_base) = (begin_program(base), u64::MAX, stepped.slot);
    (r.r12, r.rbp, r.r15) = (stubs, slots, base + STUBS);
    stepped.set(&r);
    stepped.place().set(offset_of!(Head, result), SITE);
    // SAFETY: no arguments.
    assert_eq!(unsafe { libc::ptrace(libc::PTRACE_CONT, stepped.pid, 0, 0) }, 0);
    let signal = stepped.wait();
    (stepped.registers(), signal)
}

#[test]
fn a_program_begins_as_exec_leaves_it_with_all_mapped() {
    let stepped = Stepped::with(1);
    let rsp = stepped.registers().rsp;
    let (r, signal) = begins(&stepped, stepped.segments);
    // Nothing is where it goes on.
    assert_eq!((signal, r.rip, r.rsp, r.gs_base), (libc::SIGSEGV, SITE, rsp, stepped.slot));
    let general = [
        r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
        r.r14, r.r15,
    ];
    assert_eq!(general, [0; 15]);
    assert_eq!(r.eflags & KEPT, 0);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", stepped.pid)).expect("maps");
    let base = stepped.fast.pages.base;
    for (at, access) in [(base, "r-xs"), (base + STUBS, "r-xs"), (base + ARENA, "rw-s")] {
        let line = maps.lines().find(|line| line.starts_with(&format!("{at:x}-")));
        assert!(line.is_some_and(|line| line.contains(access)), "{at:x} {access}: {maps}");
    }
}

#[test]
fn a_program_without_stubs_or_slots_stops() {
    for wrong in 0..2 {
        let stepped = Stepped::with(1);
        let mut segments = stepped.segments;
        segments[wrong] = u64::from(u32::MAX >> 1);
        let (r, signal) = begins(&stepped, segments);
        assert_eq!((signal, r.rip), (libc::SIGILL, not_begun(stepped.fast.pages.base)), "{wrong}");
    }
}
