//! The code that counts a call inside the tracee, and what the tracer makes of a
//! thread that stops in it.
//!
//! It has no stack: it may run on a freed one, or below a red zone. `syscall`
//! destroys rcx and r11, so these are free; the flags, rdx and rax are kept. rcx
//! comes in as the address of the stub's own `syscall`, where every doubt leads:
//! that one stops. Memory is touched through GS only, once the word there has said
//! that it is a slot; if GS leads nowhere, the fault is put right by the tracer.

use std::mem::offset_of;

use super::super::arch::Native;
use super::ARCH_SET_FS;
use super::layout::{
    self, BUCKETS, BY_ARGUMENT, ERRORS, FAST, Head, NUMBERS, OCTAVES, Row, STUB_RETURN, STUB_SLOW,
    Slot,
};
use super::pages::MAP_CODE;

std::arch::global_asm!(
    ".pushsection .rodata.coldtrace_trampoline, \"a\"",
    ".balign 16",
    "coldtrace_t_begin:",
    // rax: number, rcx: the stub, all else the program's.
    "mov r11, rax",
    "coldtrace_t_number:",
    "lahf",
    "seto al",
    "cmp dword ptr gs:[{mode}], {fast}",
    "coldtrace_t_flags:",
    "jne 20f",
    "mov word ptr gs:[{flags}], ax",
    "coldtrace_t_saved:",
    "cmp r11, {numbers}",
    "jae 19f",
    "movzx eax, byte ptr [r11 + 0x11111111]",
    "coldtrace_t_table:",
    "test al, al",
    "jle 17f",
    "mov qword ptr gs:[{rdx}], rdx",
    "coldtrace_t_rdx:",
    "11:",
    "mov qword ptr gs:[{stub}], rcx",
    "imul edx, eax, {row_size}",
    "add edx, {rows} - {row_size}",
    "mov qword ptr gs:[{row}], rdx",
    "lea eax, [rax*8 + {calls} - 8]",
    "mov qword ptr gs:[{call}], rax",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "mov qword ptr gs:[{clock}], rax",
    "mov rdx, qword ptr gs:[{rdx}]",
    "mov rax, r11",
    "coldtrace_t_call:",
    "syscall",
    "coldtrace_t_returned:",
    "mov r11, rax",
    "coldtrace_t_result:",
    "mov qword ptr gs:[{rdx}], rdx",
    "coldtrace_t_rdx_again:",
    "cmp r11, -{eintr}",
    "je 26f",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "sub rax, qword ptr gs:[{clock}]",
    "jb 18f",
    "12:",
    "mov qword ptr gs:[{clock}], rax",
    "coldtrace_t_elapsed:",
    "mov rdx, qword ptr gs:[{row}]",
    "add qword ptr gs:[rdx + {total}], rax",
    "coldtrace_t_total:",
    "mov rcx, rax",
    "not rcx",
    "cmp rcx, qword ptr gs:[rdx + {not_min}]",
    "jbe 13f",
    "mov qword ptr gs:[rdx + {not_min}], rcx",
    "13:",
    "cmp rax, qword ptr gs:[rdx + {max}]",
    "jbe 14f",
    "mov qword ptr gs:[rdx + {max}], rax",
    "14:",
    "cmp rax, 8",
    "jae 16f",
    "mov eax, 8",
    "16:",
    "bsr rcx, rax",
    "cmp ecx, {top}",
    "ja 21f",
    "sub ecx, 3",
    "shr rax, cl",
    // 8 to 15 by now: its bucket is 8 * rcx + rax - 8.
    "lea eax, [rax + rcx*8 - 8]",
    "15:",
    "add qword ptr gs:[rdx + rax*8 + {histogram}], 1",
    "coldtrace_t_timed:",
    "cmp r11, -4095",
    "jae 22f",
    "coldtrace_t_count:",
    "mov rdx, qword ptr gs:[{call}]",
    "inc qword ptr gs:[rdx]",
    "coldtrace_t_counted:",
    "mov qword ptr gs:[{call}], 0",
    "movzx eax, word ptr gs:[{flags}]",
    "add al, 0x7f",
    "sahf",
    "mov rax, r11",
    "mov rdx, qword ptr gs:[{rdx}]",
    "mov rcx, qword ptr gs:[{stub}]",
    "coldtrace_t_leave:",
    "jmp qword ptr [rcx - {to_return}]",
    // The call never stops, or only where it could reach our pages.
    "17:",
    "coldtrace_t_odd:",
    "jz 19f",
    "and eax, 0x7f",
    "mov qword ptr gs:[{rdx}], rdx",
    "coldtrace_t_odd_rdx:",
    "cmp r11d, {arch_prctl}",
    "jne 29f",
    "cmp rdi, {set_fs}",
    "je 11b",
    "jmp 19f",
    "29:",
    "lea rdx, [rdi - 1]",
    "cmp rdx, 0x7fffffff",
    "mov rdx, qword ptr gs:[{rdx}]",
    "jae 11b",
    "coldtrace_t_slow:",
    "19:",
    "movzx eax, word ptr gs:[{flags}]",
    "coldtrace_t_slow_flags:",
    "20:",
    "add al, 0x7f",
    "coldtrace_t_slow_added:",
    "sahf",
    "coldtrace_t_slow_live:",
    "mov rax, r11",
    "coldtrace_t_slow_rax:",
    "jmp rcx",
    "coldtrace_t_late:",
    // The clock ran backwards.
    "18:",
    "inc qword ptr gs:[{negative}]",
    "xor eax, eax",
    "jmp 12b",
    "coldtrace_t_long:",
    "21:",
    "mov eax, {last_bucket}",
    "jmp 15b",
    "coldtrace_t_error:",
    "22:",
    "mov ecx, r11d",
    "neg ecx",
    "lea rax, [rdx + {errors}]",
    "lea rdx, [rdx + {errors} + {errors_size}]",
    "23:",
    "cmp qword ptr gs:[rax], rcx",
    "je 25f",
    "cmp qword ptr gs:[rax], 0",
    "je 24f",
    "add rax, 16",
    "cmp rax, rdx",
    "jne 23b",
    "mov qword ptr gs:[{result}], r11",
    "coldtrace_t_full:",
    // No room: the tracer takes it. No such call, and not where calls are let through.
    "mov eax, -1",
    "syscall",
    "coldtrace_t_drained:",
    "ud2",
    "24:",
    "coldtrace_t_new_error:",
    "mov qword ptr gs:[rax], rcx",
    "25:",
    "inc qword ptr gs:[rax + 8]",
    "coldtrace_t_error_done:",
    "jmp coldtrace_t_count",
    // EINTR, and no signal that the tracer was told of: only tracing may have caused it.
    // The tracer looks.
    "coldtrace_t_eintr:",
    "26:",
    "mov qword ptr gs:[{result}], r11",
    "mov eax, -1",
    "syscall",
    "coldtrace_t_asked:",
    "ud2",
    // Calls that are made for the tracer, with one stop behind the last. rbx: those that
    // follow the first, each a number and six arguments, and -1. r12 to r14: the last
    // results, latest first.
    "coldtrace_t_remote:",
    "syscall",
    "coldtrace_t_remote_made:",
    "mov r14, r13",
    "mov r13, r12",
    "mov r12, rax",
    "mov rax, qword ptr [rbx]",
    "mov rdi, qword ptr [rbx + 8]",
    "mov rsi, qword ptr [rbx + 16]",
    "mov rdx, qword ptr [rbx + 24]",
    "mov r10, qword ptr [rbx + 32]",
    "mov r8, qword ptr [rbx + 40]",
    "mov r9, qword ptr [rbx + 48]",
    "cmp rdi, -1",
    "cmove rdi, rbp",
    "add rbx, {one_call}",
    "test eax, eax",
    "jns coldtrace_t_remote",
    "cmp eax, {go_on}",
    "je 27f",
    "syscall",
    "ud2",
    // A program begins, with a system call that has just mapped this. r15: where its
    // stubs are to be, and behind them its slots; r12 and rbp: their segments. The listed
    // calls follow.
    "coldtrace_t_begin_program:",
    "mov rdi, r12",
    "mov rsi, r15",
    "mov edx, {map_code}",
    "mov ebx, 0x11111111",
    "coldtrace_t_begin_calls:",
    "mov eax, {shmat}",
    "jmp coldtrace_t_remote",
    "27:",
    "cmp r14, r15",
    "jne 28f",
    "add r15, {stubs_length}",
    "cmp r13, r15",
    "jne 28f",
    // All is there: registers as exec leaves them, which is zero.
    "mov ah, 2",
    "sahf",
    "mov eax, 0",
    "mov ebx, 0",
    "mov ecx, 0",
    "mov edx, 0",
    "mov esi, 0",
    "mov edi, 0",
    "mov ebp, 0",
    "mov r8d, 0",
    "mov r9d, 0",
    "mov r10d, 0",
    "mov r11d, 0",
    "mov r12d, 0",
    "mov r13d, 0",
    "mov r14d, 0",
    "mov r15d, 0",
    "jmp qword ptr gs:[{result}]",
    "28:",
    "mov eax, -1",
    "syscall",
    "coldtrace_t_not_begun:",
    "ud2",
    "coldtrace_t_end:",
    ".popsection",
    mode = const offset_of!(Head, mode),
    fast = const FAST as i32,
    eintr = const libc::EINTR,
    flags = const offset_of!(Head, flags),
    rdx = const offset_of!(Head, rdx),
    stub = const offset_of!(Head, stub),
    row = const offset_of!(Head, row),
    call = const offset_of!(Head, call),
    clock = const offset_of!(Head, clock),
    result = const offset_of!(Head, result),
    negative = const offset_of!(Head, negative),
    calls = const offset_of!(Slot, calls),
    rows = const offset_of!(Slot, rows),
    row_size = const size_of::<Row>(),
    total = const offset_of!(Row, total),
    not_min = const offset_of!(Row, not_min),
    max = const offset_of!(Row, max),
    errors = const offset_of!(Row, errors),
    errors_size = const ERRORS * 16,
    histogram = const offset_of!(Row, histogram),
    numbers = const NUMBERS,
    top = const OCTAVES + 2,
    last_bucket = const BUCKETS - 1,
    to_return = const STUB_SLOW - STUB_RETURN,
    one_call = const size_of::<layout::Call>(),
    arch_prctl = const libc::SYS_arch_prctl as i32,
    set_fs = const ARCH_SET_FS as i32,
    go_on = const layout::Call::GO_ON.number as i32,
    shmat = const libc::SYS_shmat as i32,
    map_code = const MAP_CODE as i32,
    stubs_length = const layout::STUBS_LENGTH as i32,
);

macro_rules! marks {
    ($($name:ident = $symbol:ident),* $(,)?) => {
        unsafe extern "C" {
            static coldtrace_t_begin: u8;
            $(static $symbol: u8;)*
        }
        /// Places in the trampoline, bytes from its begin.
        #[derive(Debug, Clone, Copy)]
        struct Marks { $($name: u64),* }
        impl Marks {
            fn get() -> Self {
                let begin = (&raw const coldtrace_t_begin).addr();
                Self { $($name: ((&raw const $symbol).addr() - begin) as u64),* }
            }
        }
    };
}

marks! {
    number = coldtrace_t_number,
    flags = coldtrace_t_flags,
    saved = coldtrace_t_saved,
    table = coldtrace_t_table,
    rdx = coldtrace_t_rdx,
    call = coldtrace_t_call,
    returned = coldtrace_t_returned,
    result = coldtrace_t_result,
    rdx_again = coldtrace_t_rdx_again,
    elapsed = coldtrace_t_elapsed,
    total = coldtrace_t_total,
    timed = coldtrace_t_timed,
    count = coldtrace_t_count,
    counted = coldtrace_t_counted,
    odd = coldtrace_t_odd,
    odd_rdx = coldtrace_t_odd_rdx,
    slow = coldtrace_t_slow,
    slow_flags = coldtrace_t_slow_flags,
    slow_added = coldtrace_t_slow_added,
    slow_live = coldtrace_t_slow_live,
    slow_rax = coldtrace_t_slow_rax,
    late = coldtrace_t_late,
    long = coldtrace_t_long,
    error = coldtrace_t_error,
    drained = coldtrace_t_drained,
    error_done = coldtrace_t_error_done,
    eintr = coldtrace_t_eintr,
    asked = coldtrace_t_asked,
    remote = coldtrace_t_remote,
    remote_made = coldtrace_t_remote_made,
    begin_program = coldtrace_t_begin_program,
    begin_calls = coldtrace_t_begin_calls,
    not_begun = coldtrace_t_not_begun,
    end = coldtrace_t_end,
}

/// The trampoline as it lies at the begin of code pages at `base`.
pub fn code(base: u64) -> Vec<u8> {
    const _: () = assert!(BY_ARGUMENT == 0x80, "the assembly tests the sign");
    let marks = Marks::get();
    // SAFETY: the symbols bound one piece of read-only data of this program.
    let mut bytes =
        unsafe { std::slice::from_raw_parts(&raw const coldtrace_t_begin, marks.end as usize) }
            .to_vec();
    for (at, address) in [(marks.table, layout::TABLE), (marks.begin_calls, layout::BEGIN_CALLS)] {
        let at = at as usize;
        if let Some(place) = bytes.get_mut(at - 4..at) {
            place.copy_from_slice(&((base + address) as u32).to_le_bytes());
        }
    }
    bytes
}

/// Where calls return to that the gate lets through, in code pages at `base`: the
/// trampoline's own, and those that are made for the tracer.
pub fn let_through(base: u64) -> [u64; 2] {
    let marks = Marks::get();
    [base + marks.returned, base + marks.remote_made]
}

/// The `syscall` by which calls are made for the tracer, and where it stops behind them,
/// with the last three results in r12 to r14: in code pages at `base`, under the gate.
pub fn remote(base: u64) -> u64 {
    base + Marks::get().remote
}

/// Where a program goes on that begins with the call that maps the code pages: r12 is the
/// number of its stubs' segment, rbp that of its slots', r15 where the stubs are to be.
pub fn begin_program(base: u64) -> u64 {
    base + Marks::get().begin_program
}

/// Whether that is `at`, bytes from the begin, or what it does until it begins.
pub fn is_beginning(at: u64) -> bool {
    let marks = Marks::get();
    (marks.remote..marks.end).contains(&at)
}

/// Where it stands if that cannot be.
pub fn not_begun(base: u64) -> u64 {
    base + Marks::get().not_begun
}

/// Where a thread stands that asks for room.
pub fn drained(base: u64) -> u64 {
    base + Marks::get().drained
}

/// Where a thread stands whose call ended in EINTR without a signal.
pub fn asked(base: u64) -> u64 {
    base + Marks::get().asked
}

/// The flags that `lahf` takes, and the overflow flag, in eflags.
const CARRY_TO_SIGN: u64 = 0xd5;
const OVERFLOW: u64 = 1 << 11;

/// What a stop in the trampoline means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The call has not been made.
    Before,
    /// It has been made, and ended or was interrupted just now.
    Returned,
    /// It has ended, and some of it is counted.
    Counting(Counted),
    /// All is counted.
    Done,
}

/// What is counted of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// Nothing, nor is its time taken.
    Nothing,
    /// Its time is taken.
    Elapsed,
    /// In the sum.
    Total,
    /// In the histogram: all of its time.
    Time,
    /// Its error.
    Error,
}

/// What the program's registers are, as far as the trampoline has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// What the stop means.
    pub place: Place,
    /// The call's number where it has not been made, else its result.
    pub rax: u64,
    /// rdx.
    pub rdx: u64,
    /// Flags: `lahf`'s byte above the overflow flag.
    pub flags: u64,
    /// The stub, by the address of its `syscall`.
    pub stub: u64,
}

/// Looks at registers of a thread that stands `at` bytes from the trampoline's
/// begin. `slot` is its slot as the tracer has it.
#[allow(clippy::too_many_lines)] // One table.
pub fn look(at: u64, r: &Native, slot: &Head) -> Found {
    let m = Marks::get();
    let live = ((r.eflags & CARRY_TO_SIGN) << 8) | u64::from(r.eflags & OVERFLOW != 0);
    let saved = u64::from(slot.flags & 0xffff);
    let before = |rax, rdx, flags, stub| Found { place: Place::Before, rax, rdx, flags, stub };
    let after = |place, rax, rdx| Found { place, rax, rdx, flags: saved, stub: slot.stub };
    let counting = |counted| after(Place::Counting(counted), r.r11, slot.rdx);
    match at {
        _ if at < m.number => before(r.rax, r.rdx, live, r.rcx),
        _ if at < m.flags => before(r.r11, r.rdx, live, r.rcx),
        _ if at < m.saved => before(r.r11, r.rdx, r.rax & 0xffff, r.rcx),
        _ if at < m.rdx => before(r.r11, r.rdx, saved, r.rcx),
        _ if at < m.call => before(r.r11, slot.rdx, saved, r.rcx),
        // The kernel may have stepped back here, to issue the call again.
        _ if at == m.call => before(r.rax, r.rdx, saved, slot.stub),
        _ if at < m.result => after(Place::Returned, r.rax, r.rdx),
        _ if at < m.rdx_again => after(Place::Counting(Counted::Nothing), r.r11, r.rdx),
        _ if at < m.elapsed => counting(Counted::Nothing),
        _ if at < m.total => counting(Counted::Elapsed),
        _ if at < m.timed => counting(Counted::Total),
        _ if at < m.count => counting(Counted::Time),
        _ if at < m.counted => counting(Counted::Error),
        _ if at < m.odd => after(Place::Done, r.r11, slot.rdx),
        _ if at < m.odd_rdx => before(r.r11, r.rdx, saved, r.rcx),
        _ if at < m.slow => before(r.r11, slot.rdx, saved, r.rcx),
        _ if at < m.slow_flags => before(r.r11, r.rdx, saved, r.rcx),
        _ if at < m.slow_added => before(r.r11, r.rdx, r.rax & 0xffff, r.rcx),
        // The overflow flag is back in its place, the others in ah.
        _ if at < m.slow_live => before(r.r11, r.rdx, (r.rax & 0xff00) | (live & 1), r.rcx),
        _ if at < m.slow_rax => before(r.r11, r.rdx, live, r.rcx),
        _ if at < m.late => before(r.rax, r.rdx, live, r.rcx),
        _ if at < m.long => counting(Counted::Nothing),
        _ if at < m.error => counting(Counted::Total),
        _ if at == m.drained => after(Place::Counting(Counted::Time), slot.result, slot.rdx),
        _ if at < m.error_done => counting(Counted::Time),
        _ if at < m.eintr => counting(Counted::Error),
        _ if at == m.asked => after(Place::Counting(Counted::Nothing), slot.result, slot.rdx),
        _ => counting(Counted::Nothing),
    }
}

/// Puts what was found into the registers, to go on at `ip`.
pub fn restore(found: &Found, ip: u64, r: &mut Native) {
    r.rip = ip;
    r.rax = found.rax;
    r.rdx = found.rdx;
    r.eflags &= !(CARRY_TO_SIGN | OVERFLOW);
    r.eflags |= (found.flags >> 8) & CARRY_TO_SIGN;
    if found.flags & 1 != 0 {
        r.eflags |= OVERFLOW;
    }
}

#[cfg(test)]
#[path = "trampoline_tests.rs"]
mod tests;
