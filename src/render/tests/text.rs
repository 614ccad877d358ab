use super::super::text::{Clause, fold, own_words, shorten_path};
use super::super::units::{Scale, Split, seconds};
use super::super::{
    bytes, command_line, counted, display_width, escape, quote, shorten_middle, time,
};

#[test]
fn nothing_that_drives_a_terminal_survives() {
    assert_eq!(escape("plain …/päth\\d"), "plain …/päth\\d");
    assert_eq!(escape("a\nb\tc\r\x1b[31m\x07\x7f"), "a\\nb\\tc\\r\\x1b[31m\\x07\\x7f");
    assert_eq!(escape("\u{9b}2J\u{202e}gnp.exe"), "\\u{9b}2J\\u{202e}gnp.exe");
    for code in (0..0x3100).chain(0xfe00..0x1_0000).chain(0xe_0000..0xe_0200) {
        let Some(c) = char::from_u32(code) else { continue };
        let shown =
            [escape(&c.to_string()).into_owned(), quote(&c.to_string()).into_owned()].concat();
        assert!(!shown.contains(char::is_control), "{code:x}");
        assert!(!shown.contains(['\u{202e}', '\u{2066}', '\u{200f}', '\u{2028}', '\u{feff}']));
    }
}

#[test]
fn arguments_are_quoted_for_a_shell() {
    assert_eq!(command_line(&["python3", "-c", "import torch"]), "python3 -c 'import torch'");
    assert_eq!(command_line(&["a", "", "it's", "~", "$x", "a*"]), "a '' 'it'\\''s' '~' '$x' 'a*'");
    assert_eq!(quote("a\n'\\\x1b"), "$'a\\n\\'\\\\\\x1b'");
    assert_eq!(quote("\u{202e}\u{e0001}"), "$'\\u202e\\U000e0001'");
    assert_eq!(quote("größe/日本"), "größe/日本");
}

#[test]
fn shortening_keeps_both_ends_and_the_width() {
    assert_eq!(shorten_middle("abcdefghij", 10), "abcdefghij");
    assert_eq!(shorten_middle("abcdefghij", 5), "ab…ij");
    assert_eq!(shorten_middle("abcdefghij", 6), "ab…hij");
    assert_eq!(shorten_middle("abcdefghij", 1), "…");
    assert_eq!(shorten_middle("abcdefghij", 0), "");
    assert_eq!(shorten_path("/usr/lib/name.so", 13), "/us…b/name.so");
    for text in [
        "日本語のファイル名.txt",
        "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}",
        "👩‍👩‍👧 family photo.png",
    ] {
        for width in 0..20 {
            let short = shorten_middle(text, width);
            assert!(display_width(&short) <= width, "{short:?} in {width}");
            assert!(!short.contains("…\u{301}"));
        }
    }
}

#[test]
fn times_have_three_digits() {
    for (ns, text) in [
        (0, "0 ns"),
        (85, "85 ns"),
        (999, "999 ns"),
        (1_000, "1.00 us"),
        (9_994, "9.99 us"),
        (9_996, "10.0 us"),
        (310_000, "310 us"),
        (999_499, "999 us"),
        (999_600, "1.00 ms"),
        (12_400_000, "12.4 ms"),
        (999_700_000, "1.00 s"),
        (2_830_000_000, "2.83 s"),
        (7_200_000_000_000, "7200 s"),
        (u64::MAX, "18446744074 s"),
    ] {
        assert_eq!(time(ns), text);
    }
}

#[test]
fn sizes_and_counts() {
    assert_eq!(bytes(0), "0 B");
    assert_eq!(bytes(1023), "1023 B");
    assert_eq!(bytes(15 * 1024 * 1024), "15.0 MiB");
    assert_eq!(bytes(1024 * 1024 - 1), "1.0 MiB");
    assert_eq!(bytes(u64::MAX), "16.0 EiB");
    assert_eq!(counted(1, "call"), "1 call");
    assert_eq!(counted(0, "process"), "0 processes");
    assert_eq!(seconds(78_870_500), "0.078871");
    assert_eq!(seconds(u64::MAX), "18446744073.709552");
}

#[test]
fn the_parts_of_the_wall_time_add_up_as_printed() {
    let split = Split::new(1_840_000, 410_000, 1_200_000);
    assert_eq!((split.wall.as_str(), split.scale.name), ("1.84", "ms"));
    assert_eq!((split.user.as_str(), split.sys.as_str()), ("0.41", "1.20"));
    assert_eq!(split.off_cpu, Ok("0.23".to_owned()));
    // Both halves round up: 0.005 + 0.005 = 0.01.
    let split = Split::new(2_010_000_000, 1_005_000_000, 1_005_000_000);
    assert_eq!((split.user.as_str(), split.sys.as_str()), ("1.01", "1.00"));
    assert_eq!(split.off_cpu, Ok("0.00".to_owned()));
    assert_eq!(Split::new(1_200, 2_200, 300).off_cpu, Err("2.1".to_owned()));
    assert!(Split::new(0, u64::MAX, u64::MAX).off_cpu.is_err());
    assert_eq!(Split::new(0, 0, 0).off_cpu, Ok("0.00".to_owned()));
    assert_eq!(Scale::of(999_999).name, "us");
}

#[test]
fn lines_fold_at_clauses_then_at_parts_then_at_words() {
    let list = |items: &[&str]| Clause::list(items.iter().map(|item| (*item).to_owned()).collect());
    let clauses = [list(&["1 AA", "2 B"]), list(&[]), Clause::one("cc dd")];
    for (width, text) in [
        (19, "x 1 AA, 2 B; cc dd\n"),
        (18, "x 1 AA, 2 B; cc dd\n"),
        (17, "x 1 AA, 2 B\n| cc dd\n"),
        (11, "x 1 AA, 2 B\n| cc dd\n"),
        (10, "x 1 AA,\n|   2 B\n| cc dd\n"),
    ] {
        assert_eq!(fold("x ", "| ", &clauses, width), text, "{width}");
    }
    assert_eq!(fold("a ", "  ", &[], 7), "");
    assert_eq!(own_words(&[Clause::one("0123456789abcdef")], 21), "coldtrace: 0123…bcdef\n");
    // A number is not parted from its unit.
    let held = [Clause::one("held 12.34 ms (4 us a call), 12 % of it")];
    assert_eq!(fold("", "", &held, 12), "held\n  12.34 ms\n  (4 us a\n  call),\n  12 % of it\n");
    let sum = Clause::parted("w = 1 + 2 s".to_owned(), vec!["w".to_owned(), "= 1 s".to_owned()]);
    assert_eq!(fold("", "", &[sum], 8), "w = 1 s\n");
}
