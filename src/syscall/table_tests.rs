//! Tests of the call table: that the data is whole, and that its paths are where the
//! manual says.

use std::collections::BTreeSet;

use super::*;
use crate::syscall::Sys;

/// Every (number, name) of the `syscalls` crate. Its `Sysno::iter()` leaves out the
/// last call, and the names of Rust keywords come as raw identifiers.
fn crate_names() -> Vec<(Abi, i64, &'static str)> {
    let mut all = Vec::new();
    for abi in [Abi::X86_64, Abi::I386, Abi::Aarch64] {
        for number in 0..10_000 {
            if let Some(name) = crate_name(abi, number) {
                all.push((abi, number as i64, name.trim_start_matches("r#")));
            }
        }
    }
    all
}

/// Every line of the data.
fn lines() -> impl Iterator<Item = &'static CallInfo> {
    let variants = CALLS.variants.iter().map(|(_, info)| info);
    CALLS.plain.values().chain(variants)
}

#[test]
fn every_call_of_the_crate_is_in_the_data() {
    let all = crate_names();
    assert!(all.len() > 1100);
    for call in syscalls::x86_64::Sysno::iter() {
        assert!(info(call.name()).is_some(), "{call}");
    }
    for (abi, number, name) in all {
        assert!(info(name).is_some(), "{abi} {number} {name}");
        // Numbers that the crate has wrongly are taken out by a line of their own.
        let gap = format!("{} {number} -", abi.name());
        let named = Sys::new(abi, number).name().is_some();
        assert_ne!(named, data_lines(NUMBERS_TEXT).any(|line| line == gap), "{gap}");
    }
}

#[test]
fn every_line_is_understood_and_belongs_to_a_call() {
    let numbered: BTreeSet<&str> =
        Abi::ALL.into_iter().flat_map(|abi| known(abi).map(|(_, info)| info.name)).collect();
    let mut seen = BTreeSet::new();
    for text in data_lines(CALLS_TEXT) {
        let (abi, call) = parse_line(text).unwrap_or_else(|| panic!("not understood: {text}"));
        let name = call.name;
        assert!(seen.insert((name, abi)), "twice: {text}");
        if let Some(abi) = abi {
            let plain = info(name).unwrap();
            assert_eq!(plain.classes, call.classes, "{text}");
            assert_eq!(plain.returns, call.returns, "{text}");
            assert_ne!(plain.args, call.args, "{text}");
            assert_eq!(Sys::from_name(abi, name).unwrap().info(), Some(&call));
        } else {
            // The one name of the crate that no table here uses.
            assert!(numbered.contains(name) || name == "fstatat", "{text}");
        }
    }
    assert_eq!(lines().count(), seen.len());
}

#[test]
fn kinds_name_calls_that_are_there_once_each() {
    let words = || data_lines(KINDS_TEXT).flat_map(|line| line.split_ascii_whitespace().skip(1));
    for word in words() {
        let name = word.split(':').next().unwrap();
        assert!(info(name).is_some(), "{name} is no call");
        let times = words().filter(|other| other.split(':').next() == Some(name)).count();
        assert_eq!(times, 1, "{name} has two kinds");
    }
    // Whoever moves bytes moves them between descriptors.
    for call in lines().filter(|call| call.kind == "move") {
        let (from, to) = call.moves.unwrap();
        assert_eq!((call.args[from], call.args[to]), (Role::Fd, Role::Fd), "{}", call.name);
        assert_eq!(call.returns, ReturnRole::Bytes, "{}", call.name);
    }
    for call in lines().filter(|call| matches!(call.kind, "read" | "write")) {
        assert_eq!(call.args[0], Role::Fd, "{}", call.name);
    }
}

#[test]
fn what_changes_a_file_is_marked_and_what_reads_it_is_not() {
    // By what section 2 of the manual says of each.
    for name in [
        "rmdir",
        "unlinkat",
        "mkdirat",
        "mknod",
        "rename",
        "renameat2",
        "link",
        "symlink",
        "setxattr",
        "removexattrat",
        "fchmodat2",
        "chown32",
        "utimensat",
        "truncate",
        "ftruncate64",
        "fallocate",
        "mount",
        "umount2",
        "pivot_root",
        "acct",
        "swapon",
        "swapoff",
        "bind",
        "write",
        "pwritev2",
        "file_setattr",
        "move_mount",
    ] {
        assert!(changes(info(name).unwrap().kind), "{name}");
    }
    for name in [
        "open",
        "stat",
        "statx",
        "access",
        "readlink",
        "getxattr",
        "listxattrat",
        "file_getattr",
        "execve",
        "chdir",
        "chroot",
        "read",
        "getdents64",
        "inotify_add_watch",
        "connect",
        "mmap",
        "fsync",
        "statfs",
        "sendfile",
    ] {
        assert!(!changes(info(name).unwrap().kind), "{name}");
    }
    assert!(lines().all(|call| !call.kind.ends_with('!')));
}

#[test]
fn every_number_line_is_used() {
    for line in data_lines(NUMBERS_TEXT) {
        let words: Vec<&str> = line.split(' ').collect();
        let [abi, number, name] = words[..] else { panic!("not three words: {line}") };
        let sys = Sys::new(Abi::from_name(abi).unwrap(), number.parse().unwrap());
        assert!(sys.number < LIMIT);
        assert_eq!(sys.name(), (name != "-").then_some(name), "{line}");
    }
}

#[test]
fn names_are_unique_in_an_abi() {
    for abi in Abi::ALL {
        let mut names = BTreeSet::new();
        for (number, info) in known(abi) {
            assert!(names.insert(info.name), "{abi} {number} {}", info.name);
            assert_eq!(super::number(abi, info.name), Some(number));
        }
    }
}

#[test]
fn the_second_half_of_a_pair_follows_the_first() {
    for call in lines() {
        let args = call.args;
        for (role, next) in args.iter().zip(args.iter().skip(1)) {
            let name = call.name;
            match role {
                Role::Dirfd => assert_eq!(*next, Role::Path, "{name}"),
                Role::Sockaddr => assert_eq!(*next, Role::SockaddrLen, "{name}"),
                Role::SockaddrOut => assert_eq!(*next, Role::SockaddrLenPtr, "{name}"),
                Role::Absent => assert_eq!(*next, Role::Absent, "{name}"),
                _ => {}
            }
        }
        assert_ne!(args[5], Role::Dirfd, "{}", call.name);
    }
}

/// Where the paths are, from the manual pages: call, places of its paths.
const PATHS: &[(&str, &[usize])] = &[
    ("open", &[0]),
    ("creat", &[0]),
    ("openat", &[1]),
    ("openat2", &[1]),
    ("name_to_handle_at", &[1]),
    ("access", &[0]),
    ("faccessat", &[1]),
    ("faccessat2", &[1]),
    ("stat", &[0]),
    ("lstat", &[0]),
    ("stat64", &[0]),
    ("lstat64", &[0]),
    ("oldstat", &[0]),
    ("oldlstat", &[0]),
    ("newfstatat", &[1]),
    ("fstatat", &[1]),
    ("fstatat64", &[1]),
    ("statx", &[1]),
    ("file_getattr", &[1]),
    ("file_setattr", &[1]),
    ("statfs", &[0]),
    ("statfs64", &[0]),
    ("readlink", &[0]),
    ("readlinkat", &[1]),
    ("link", &[0, 1]),
    ("linkat", &[1, 3]),
    ("symlink", &[1]),
    ("symlinkat", &[2]),
    ("unlink", &[0]),
    ("unlinkat", &[1]),
    ("rename", &[0, 1]),
    ("renameat", &[1, 3]),
    ("renameat2", &[1, 3]),
    ("mkdir", &[0]),
    ("mkdirat", &[1]),
    ("rmdir", &[0]),
    ("mknod", &[0]),
    ("mknodat", &[1]),
    ("chmod", &[0]),
    ("fchmodat", &[1]),
    ("fchmodat2", &[1]),
    ("chown", &[0]),
    ("chown32", &[0]),
    ("lchown", &[0]),
    ("lchown32", &[0]),
    ("fchownat", &[1]),
    ("utime", &[0]),
    ("utimes", &[0]),
    ("futimesat", &[1]),
    ("utimensat", &[1]),
    ("utimensat_time64", &[1]),
    ("truncate", &[0]),
    ("truncate64", &[0]),
    ("chdir", &[0]),
    ("chroot", &[0]),
    ("setxattr", &[0]),
    ("lsetxattr", &[0]),
    ("getxattr", &[0]),
    ("lgetxattr", &[0]),
    ("listxattr", &[0]),
    ("llistxattr", &[0]),
    ("removexattr", &[0]),
    ("lremovexattr", &[0]),
    ("setxattrat", &[1]),
    ("getxattrat", &[1]),
    ("listxattrat", &[1]),
    ("removexattrat", &[1]),
    ("inotify_add_watch", &[1]),
    ("fanotify_mark", &[4]),
    ("execve", &[0]),
    ("execveat", &[1]),
    ("uselib", &[0]),
    ("acct", &[0]),
    ("swapon", &[0]),
    ("swapoff", &[0]),
    ("quotactl", &[1]),
    ("mount", &[1]),
    ("umount", &[0]),
    ("umount2", &[0]),
    ("pivot_root", &[0, 1]),
    ("open_tree", &[1]),
    ("open_tree_attr", &[1]),
    ("move_mount", &[1, 3]),
    ("mount_setattr", &[1]),
    ("fspick", &[1]),
];

fn places(info: &CallInfo, role: Role) -> Vec<usize> {
    (0..6).filter(|at| info.args[*at] == role).collect()
}

#[test]
fn paths_are_where_the_manual_says() {
    let listed: BTreeSet<&str> = PATHS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed.len(), PATHS.len());
    for (name, at) in PATHS {
        assert_eq!(places(info(name).unwrap(), Role::Path), *at, "{name}");
    }
    for call in lines() {
        let paths = places(call, Role::Path);
        assert_eq!(!paths.is_empty(), listed.contains(call.name), "{}", call.name);
    }
}

#[test]
fn path_calls_are_of_class_file() {
    for (name, _) in PATHS {
        assert!(info(name).unwrap().classes.intersects(Classes::FILE), "{name}");
    }
}

#[test]
fn a_call_named_for_a_directory_takes_one() {
    for (name, at) in PATHS {
        let at_call = name.ends_with("at") && !["stat", "lstat", "creat"].contains(name);
        let old = ["oldstat", "oldlstat"].contains(name);
        if at_call && !old {
            let info = info(name).unwrap();
            for place in *at {
                assert_eq!(info.args[place - 1], Role::Dirfd, "{name}");
            }
        }
    }
}

#[test]
fn arguments_by_abi() {
    let mark = |abi| Sys::from_name(abi, "fanotify_mark").unwrap().info().unwrap();
    assert_eq!(places(mark(Abi::X86_64), Role::Path), [4]);
    assert_eq!(places(mark(Abi::Aarch64), Role::Path), [4]);
    assert_eq!(places(mark(Abi::X32), Role::Path), [4]);
    assert_eq!(places(mark(Abi::I386), Role::Path), [5]);
    assert_eq!(places(mark(Abi::I386), Role::Dirfd), [4]);
    let mmap = |abi| Sys::from_name(abi, "mmap").unwrap().info().unwrap();
    assert_eq!(mmap(Abi::X86_64).arg_count(), 6);
    assert_eq!(mmap(Abi::I386).arg_count(), 1);
}

#[test]
fn a_few_calls_in_full() {
    let openat = info("openat").unwrap();
    assert_eq!(openat.returns, ReturnRole::Fd);
    assert_eq!(openat.classes, Classes::FILE | Classes::DESC);
    assert_eq!(
        openat.args,
        [Role::Dirfd, Role::Path, Role::Oflags, Role::Mode, Role::Absent, Role::Absent]
    );
    assert_eq!(info("symlink").unwrap().args[0], Role::Target);
    assert_eq!(info("mount").unwrap().args[0], Role::PathIf);
    assert_eq!(info("exit_group").unwrap().returns, ReturnRole::Never);
    assert_eq!(info("getpid").unwrap().arg_count(), 0);
    assert_eq!(info("connect").unwrap().args[1], Role::Sockaddr);
    assert_eq!(info("pipe2").unwrap().args[0], Role::FdOut);
    assert_eq!(info("no_such_call"), None);
    assert_eq!(Role::FdOut.word(), "fdout");
}

#[test]
fn class_names() {
    assert_eq!(Classes::from_name("net"), Some(Classes::NETWORK));
    assert_eq!(Classes::from_name("%stat"), Some(Classes::STAT_LIKE));
    assert_eq!(Classes::from_name("statlike"), None);
    for call in lines() {
        let classes = call.classes;
        let stat = classes.intersects(Classes::STAT | Classes::LSTAT | Classes::FSTAT);
        assert_eq!(stat, classes.intersects(Classes::STAT_LIKE));
        if classes.intersects(Classes::PURE) {
            assert_eq!(call.arg_count(), 0);
        }
    }
}
