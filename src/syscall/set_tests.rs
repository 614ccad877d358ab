//! Tests of call sets and of the grammar of their expressions.

use super::*;

const ABIS: [Abi; 4] = [Abi::X86_64, Abi::I386, Abi::X32, Abi::Aarch64];

fn parse(expr: &str) -> CallSet {
    CallSet::parse(expr, Abi::X86_64).unwrap()
}

fn error(expr: &str) -> String {
    let text = CallSet::parse(expr, Abi::X86_64).unwrap_err().to_string();
    assert!(!text.contains('\n'));
    text
}

fn has(set: &CallSet, abi: Abi, name: &str) -> bool {
    set.contains(Sys::from_name(abi, name).unwrap())
}

#[test]
fn everything_and_nothing() {
    let all = CallSet::all();
    let none = CallSet::none();
    for abi in Abi::ALL {
        for number in [i64::MIN, -1, 0, 59, 800, 1023, 1024, i64::MAX] {
            assert!(all.contains(Sys::new(abi, number)));
            assert!(!none.contains(Sys::new(abi, number)));
        }
    }
    assert!(all.is_all() && !all.is_none());
    assert!(none.is_none() && !none.is_all());
    assert!(parse("all").is_all() && parse("!none").is_all());
    assert!(parse("none").is_none() && parse("!all").is_none());
    assert!(parse("openat,all").is_all());
    assert_eq!(all.numbers(Abi::X86_64).count(), 385);
    assert_eq!(all.numbers(Abi::X86_64).last(), Some(471));
    assert_eq!(none.numbers(Abi::X86_64).count(), 0);
}

#[test]
fn a_name_is_the_call_in_every_abi() {
    let set = parse("execve,openat");
    for abi in ABIS {
        assert!(has(&set, abi, "execve") && has(&set, abi, "openat"));
        assert!(!has(&set, abi, "read"));
        assert_eq!(set.numbers(abi).count(), 2);
    }
    let set = parse("socketcall");
    assert!(has(&set, Abi::I386, "socketcall"));
    assert_eq!(set.numbers(Abi::X86_64).count(), 0);
}

#[test]
fn personalities() {
    let set = parse("openat@32,read@64,rt_sigaction@x32");
    assert!(has(&set, Abi::I386, "openat") && !has(&set, Abi::X86_64, "openat"));
    assert!(has(&set, Abi::X86_64, "read") && !has(&set, Abi::I386, "read"));
    assert!(has(&set, Abi::X32, "rt_sigaction") && !has(&set, Abi::X86_64, "rt_sigaction"));
    let arm = CallSet::parse("openat@64", Abi::Aarch64).unwrap();
    assert!(has(&arm, Abi::Aarch64, "openat") && !has(&arm, Abi::X86_64, "openat"));
    let set = parse("%file@32");
    assert!(has(&set, Abi::I386, "open") && !has(&set, Abi::X86_64, "open"));
    let set = parse("all@32");
    assert!(has(&set, Abi::I386, "read") && set.numbers(Abi::X86_64).next().is_none());
    assert!(error("socketcall@64").contains("'socketcall@64'"));
    assert!(error("read@16").contains("'read@16'"));
}

#[test]
fn classes() {
    let set = parse("%file");
    assert!(has(&set, Abi::X86_64, "openat") && has(&set, Abi::I386, "stat64"));
    assert!(!has(&set, Abi::X86_64, "read"));
    for name in ["file", "process", "network", "signal", "ipc", "desc", "memory"] {
        assert_eq!(parse(name), parse(&format!("%{name}")), "{name}");
    }
    assert_eq!(parse("%net"), parse("%network"));
    assert_eq!(parse("%%stat"), parse("%stat,%lstat,%fstat"), "the sum of its parts");
    for class in ["creds", "clock", "pure", "statfs", "fstatfs", "%statfs"] {
        assert!(!parse(&format!("%{class}")).is_none(), "{class}");
    }
    // Newer classes need their sign: without it the word is a call, or nothing.
    assert!(CallSet::parse("creds", Abi::X86_64).is_err());
    assert!(has(&parse("stat"), Abi::I386, "stat") && !has(&parse("stat"), Abi::I386, "stat64"));
    assert!(has(&parse("%%statfs"), Abi::X86_64, "ustat"));
}

#[test]
fn inversion_is_of_the_whole_list() {
    let set = parse("!openat,%memory");
    assert!(!has(&set, Abi::X86_64, "openat") && !has(&set, Abi::X86_64, "mmap"));
    assert!(has(&set, Abi::X86_64, "read"));
    // Numbers without a name are in what is left out of nothing.
    for number in [-1, 900, 5000] {
        assert!(set.contains(Sys::new(Abi::X86_64, number)));
        assert!(!parse("openat,%memory").contains(Sys::new(Abi::X86_64, number)));
    }
    assert!(!set.is_all());
    assert_eq!(set.inverted(), parse("openat,%memory"));
}

#[test]
fn regular_expressions() {
    let set = parse("/^open");
    assert!(has(&set, Abi::X86_64, "openat2") && has(&set, Abi::X86_64, "open_tree"));
    assert!(!has(&set, Abi::X86_64, "mq_open"));
    assert!(has(&parse("/open"), Abi::X86_64, "mq_open"));
    assert!(has(&parse("/^(fork|clone3?)$"), Abi::X86_64, "clone3"));
    assert!(error("/(").contains("'/('"));
    assert!(error("/nothing_like_it").contains("matches no system call"));
    assert!(parse("?/nothing_like_it").is_none());
    assert!(CallSet::parse("?/(", Abi::X86_64).is_err());
}

#[test]
fn numbers_are_of_the_hinted_abi() {
    let set = parse("59,900");
    assert!(set.contains(Sys::new(Abi::X86_64, 59)));
    assert!(set.contains(Sys::new(Abi::X86_64, 900)));
    assert!(!set.contains(Sys::new(Abi::I386, 59)));
    assert_eq!(set.numbers(Abi::X86_64).collect::<Vec<_>>(), [59]);
    assert!(parse("11@32").contains(Sys::new(Abi::I386, 11)));
    for far in ["1024", "99999999999", "18446744073709551615"] {
        assert!(error(far).contains("out of range"), "{far}");
    }
    assert!(error("18446744073709551616").contains("no system call"));
    assert!(error("-1").contains("'-1'"));
}

#[test]
fn optional_names() {
    assert!(parse("?no_such_call").is_none());
    assert_eq!(parse("?no_such_call,read"), parse("read"));
    assert_eq!(parse("?read"), parse("read"));
}

#[test]
fn errors_name_the_word_and_what_is_close() {
    assert_eq!(error("read,opneat"), "no system call is called 'opneat': did you mean 'openat'?");
    assert_eq!(error("%fiel"), "no class of system calls is called '%fiel': did you mean '%file'?");
    assert_eq!(error("quite_unlike_anything"), "no system call is called 'quite_unlike_anything'");
    assert!(error("statz").contains("'stat"));
    for empty in ["", "!", "read,", ",read", "?", "read,,write"] {
        assert_eq!(error(empty), format!("a system call's name is missing in '{empty}'"));
    }
    for odd in ["%", "@64", "%@64", "!!read", "é", "%é", "r#break"] {
        assert!(CallSet::parse(odd, Abi::X86_64).is_err(), "{odd}");
    }
}

#[test]
fn union_keeps_both() {
    let both = parse("read").union(&parse("write@64"));
    assert_eq!(both, parse("read,write@64"));
    assert!(parse("read").union(&parse("!read")).is_all());
    assert!(CallSet::none().union(&CallSet::none()).is_none());
}

#[test]
fn distances() {
    assert_eq!(distance("", ""), 0);
    assert_eq!(distance("", "abc"), 3);
    assert_eq!(distance("abc", ""), 3);
    assert_eq!(distance("kitten", "sitting"), 3);
    assert_eq!(distance("opneat", "openat"), 1);
    assert_eq!(distance("read", "read"), 0);
}
