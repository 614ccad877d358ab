//! The filter that lets through what the trampoline calls, and stops the rest.

use super::super::inside::STRICT_DATA;
use super::super::seccomp::TRACE_DATA;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const TRACE: u32 = libc::SECCOMP_RET_TRACE | TRACE_DATA as u32;
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// AUDIT_ARCH_X86_64 of linux/audit.h.
const ARCH: u32 = 0xc000_003e;
/// Offsets in `struct seccomp_data` (linux/seccomp.h).
const ARCH_AT: u32 = 4;
const NUMBER_AT: u32 = 0;
const IP_LOW_AT: u32 = 8;
const IP_HIGH_AT: u32 = 12;
const ARGUMENTS_AT: u32 = 16;

/// The bytes of the filter that lets calls through which return to these addresses
/// below 4 GiB, as `struct sock_filter` of linux/filter.h lays them out, and how many
/// instructions they are. The architecture comes first: what i386 calls there is
/// something else. From anywhere it lets through `shmat(id, base)`, which brings our
/// code in: no program knows these two.
pub fn filter([one, other]: [u64; 2], [id, base]: [u64; 2]) -> (Vec<u8>, u16) {
    let equal = |k: u32, jt: u8, jf: u8| libc::sock_filter { code: EQUAL, jt, jf, k };
    let plain = |code: u16, k: u32| libc::sock_filter { code, jt: 0, jf: 0, k };
    let program = [
        plain(LOAD, ARCH_AT),
        equal(ARCH, 0, 17),
        plain(LOAD, IP_LOW_AT),
        equal(one as u32, 1, 0),
        equal(other as u32, 0, 3),
        plain(LOAD, IP_HIGH_AT),
        equal(0, 0, 1),
        plain(RETURN, ALLOW),
        plain(LOAD, NUMBER_AT),
        equal(libc::SYS_shmat as u32, 0, 9),
        plain(LOAD, ARGUMENTS_AT),
        equal(id as u32, 0, 7),
        plain(LOAD, ARGUMENTS_AT + 4),
        equal(0, 0, 5),
        plain(LOAD, ARGUMENTS_AT + 8),
        equal(base as u32, 0, 3),
        plain(LOAD, ARGUMENTS_AT + 12),
        equal(0, 0, 1),
        plain(RETURN, ALLOW),
        plain(RETURN, TRACE),
    ];
    (bytes(&program), program.len() as u16)
}

/// The filter of strict mode (seccomp(2)): read, write, exit and rt_sigreturn, as
/// the architecture numbers them. All else stops, for the tracer to kill.
pub fn strict() -> (Vec<u8>, u16) {
    let equal = |k: u32, jt: u8, jf: u8| libc::sock_filter { code: EQUAL, jt, jf, k };
    let plain = |code: u16, k: u32| libc::sock_filter { code, jt: 0, jf: 0, k };
    let program = [
        plain(LOAD, ARCH_AT),
        equal(ARCH, 0, 5),
        plain(LOAD, 0),
        equal(libc::SYS_read as u32, 4, 0),
        equal(libc::SYS_write as u32, 3, 0),
        equal(libc::SYS_exit as u32, 2, 0),
        equal(libc::SYS_rt_sigreturn as u32, 1, 0),
        plain(RETURN, libc::SECCOMP_RET_TRACE | u32::from(STRICT_DATA)),
        plain(RETURN, ALLOW),
    ];
    (bytes(&program), program.len() as u16)
}

fn bytes(program: &[libc::sock_filter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(program.len() * 8);
    for i in program {
        bytes.extend(i.code.to_le_bytes());
        bytes.extend([i.jt, i.jf]);
        bytes.extend(i.k.to_le_bytes());
    }
    bytes
}
