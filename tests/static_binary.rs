//! The program is one file that needs nothing else: it runs in a root directory where only it and
//! a static command are.

mod support;

use std::process::Command;

use support::{Scratch, coldtrace_path, find_program, fixture, is_root, process, skip};

/// `e_type` of what can be loaded anywhere.
const ET_DYN: u16 = 3;
/// `p_type` of the header that names a loader.
const PT_INTERP: u32 = 3;

#[test]
fn it_is_static_and_position_independent() {
    let file = std::fs::read(coldtrace_path()).expect("the program can be read");
    let u16_at = |at: usize| u16::from_le_bytes([file[at], file[at + 1]]);
    assert_eq!(&file[..6], b"\x7fELF\x02\x01", "64-bit little-endian ELF");
    assert_eq!(u16_at(16), ET_DYN, "e_type");
    let headers_at = u64::from_le_bytes(file[32..40].try_into().expect("eight bytes")) as usize;
    let (size, number) = (u16_at(54) as usize, u16_at(56) as usize);
    for header in file[headers_at..].chunks(size).take(number) {
        let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        assert_ne!(kind, PT_INTERP, "it asks for a loader");
    }
}

#[test]
fn it_runs_where_nothing_else_is() {
    let Some(program) = fixture::built("processes-threads") else {
        return;
    };
    if find_program("chroot").is_none() {
        return skip("no chroot");
    }
    let root = Scratch::new("root");
    // Links, not copies: a file just written may still be open for writing in a child that another
    // test is starting, and then cannot be executed.
    std::fs::hard_link(coldtrace_path(), root.path("coldtrace")).expect("a link");
    std::fs::hard_link(&program.path, root.path("program")).expect("a link");
    let mut command = if is_root() {
        Command::new("chroot")
    } else {
        let mut command = Command::new("unshare");
        command.args(["-r", "chroot"]);
        command
    };
    command.arg(root.root()).args([
        "/coldtrace",
        "count",
        "-U",
        "name,calls,errors",
        "-o",
        "-",
        "/program",
    ]);
    let finished = process::finish(&mut command);
    if !is_root() && finished.err().starts_with("unshare:") {
        return skip("no user namespaces");
    }
    finished.assert_code(0);
    let has = |row: [&str; 3]| finished.out().lines().any(|line| line.split_whitespace().eq(row));
    assert!(has(["getppid", "3200", "0"]) && has(["close", "1024", "1024"]), "{finished}");
}
