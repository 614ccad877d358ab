//! What stays in a file, and what is changed in it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::check::shape::{Count, Counts, Executed, NetUse, PathUse};
use crate::check::{Baseline, Shape, learn};

const PLATFORM: &str = "x86_64 linux glibc";

fn counts(calls: &[(&str, u64)]) -> Counts {
    let mut counts = Counts::new();
    for (name, n) in calls {
        match name.split_once(' ') {
            Some((name, errno)) => {
                counts.entry(name.into()).or_default().errors.insert(errno.into(), *n);
            }
            None => counts.entry((*name).into()).or_default().calls = *n,
        }
    }
    counts
}

fn run(calls: &[(&str, u64)]) -> Shape {
    Shape {
        platform: Some(PLATFORM.into()),
        calls: counts(calls),
        processes: 1,
        threads: 1,
        ..Shape::default()
    }
}

fn path(shape: &mut Shape, path: &str, uses: &[(&str, u64)]) {
    let uses = uses.iter().map(|(kind, n)| ((*kind).into(), *n)).collect();
    shape.paths.insert(path.into(), PathUse { uses, ..PathUse::default() });
}

/// One of everything, with two programs.
fn whole() -> Shape {
    let mut shape = run(&[("close", 5), ("openat", 4), ("openat ENOENT", 1)]);
    shape.programs.insert("sh".into(), counts(&[("close", 2)]));
    shape.programs.insert("app".into(), counts(&[("close", 3), ("openat", 4)]));
    let region = BTreeMap::from([("app".to_owned(), counts(&[("close", 1)]))]);
    shape.regions.insert("load".into(), region);
    for file in ["/bin/sh", "{cwd}/app"] {
        shape.executed.insert(file.into(), Executed { times: 1, ..Executed::default() });
    }
    let network = NetUse { call: "connect".into(), calls: 1, ..NetUse::default() };
    shape.network.insert("connect 127.0.0.1:53/udp".into(), network);
    path(&mut shape, "/etc/a", &[("open", 1)]);
    path(&mut shape, "{home}/.b", &[("open", 1), ("missed", 1)]);
    shape
}

fn updated(text: &str, runs: &[Shape]) -> (String, Vec<String>) {
    let mut editor = Editor::of(text).unwrap();
    let (facts, seen) = learn(runs, true);
    editor.facts("app", PLATFORM, &facts, &seen);
    let text = editor.to_string();
    Baseline::parse(&text, "x").unwrap_or_else(|e| panic!("{e}\n{text}"));
    (text, editor.notes)
}

fn recorded(runs: &[Shape]) -> String {
    let mut editor = Editor::new().unwrap();
    editor.add_case(&Case::new("app".into(), vec!["./app".into()]));
    updated(&editor.to_string(), runs).0
}

/// A file with a case in it whose facts are these lines.
fn written(facts: &str) -> String {
    format!(
        "schema = 1\n[[case]]\nname = \"app\"\ncommand = [\"./app\"]\n\n\
         [case.facts.\"{PLATFORM}\"]\nrecorded = {{ runs = 1 }}\n\
         total = {{ calls = 5, errors = 0, processes = 1, threads = 1 }}\n{facts}\n\
         [[rule]]\nid = \"counts\"\nfacts = true\n"
    )
}

/// What the lines of `facts` are after a run with these calls.
fn after(facts: &str, calls: &[(&str, u64)]) -> String {
    let (text, _) = updated(&written(facts), &[run(calls)]);
    let from = text.find("threads = 1 }\n").unwrap() + "threads = 1 }\n".len();
    text[from..text.find("\n[[rule]]").unwrap()].to_owned()
}

/// Lines of `b` that `a` does not have.
fn new_lines<'b>(a: &str, b: &'b str) -> Vec<&'b str> {
    b.lines().filter(|line| !a.lines().any(|other| other == *line)).collect()
}

#[test]
fn tables_have_one_order_from_the_first_write_on() {
    let text = recorded(&[whole(), whole()]);
    let headers: Vec<_> = text.lines().filter(|line| line.starts_with('[')).collect();
    let sub = |name: &str| format!("[case.facts.\"{PLATFORM}\"{name}]");
    assert_eq!(
        headers,
        [
            "[normalise]",
            "[[case]]",
            &sub(""),
            &sub(".program.app"),
            &sub(".program.sh"),
            &sub(".region.load"),
            &sub(".executed"),
            &sub(".network"),
            &sub(".path"),
            "[[rule]]",
        ]
    );
    assert_eq!(updated(&text, &[whole(), whole()]).0, text);
    let mut more = whole();
    path(&mut more, "/etc/c", &[("stat", 1)]);
    more.calls.get_mut("close").unwrap().calls = 6;
    let (new, _) = updated(&text, &[more.clone(), more]);
    let added = new_lines(&text, &new);
    assert_eq!(added[1..], ["close = { calls = 6 }", "\"/etc/c\" = { stat = 1 }"], "{added:#?}");
    assert!(added[0].starts_with("total = "));
    assert_eq!(new_lines(&new, &text).len(), 2);
    // A table that comes later comes to its place.
    let mut single = whole();
    single.programs.clear();
    let first = recorded(&[single.clone(), single]);
    assert_eq!(updated(&first, &[whole(), whole()]).0, text);
}

#[test]
fn comments_of_a_person_are_never_lost() {
    let old = "brk = { calls = 3 } # APP-12\n# why it reads\nread = { calls = 1 }\n\
               write = { calls = 1 }\n";
    // What varies from now on says so behind what stands there.
    let seen = [run(&[("brk", 3), ("read", 1)]), run(&[("brk", 5), ("read", 1)])];
    let (text, _) = updated(&written(old), &seen);
    assert!(text.contains("brk = \"varies\" # APP-12 # seen 3..5 in 2 runs\n"), "{text}");
    // What goes away, and somebody spoke of, is known not to be there.
    assert_eq!(
        after(old, &[]),
        "brk = { calls = 0 } # APP-12\n# why it reads\nread = { calls = 0 }\n"
    );
    let gone = after(old, &[]);
    assert_eq!(after(&gone, &[]), gone);
    // Our own comment keeps nothing, unless somebody went on writing.
    let ours = "read = { calls = 1 } # seen 1..2 in 5 runs\n";
    assert_eq!(after(ours, &[]), "");
    let theirs = "read = { calls = 1 } # seen 1..2 in 5 runs, APP-3\n";
    assert_eq!(after(theirs, &[]), theirs.replace('1', "0").replacen("0..2", "1..2", 1));
}

#[test]
fn comments_on_tables_and_paths_stay() {
    let mut shape = whole();
    let text = recorded(&[shape.clone()])
        .replace(
            "[case.facts.\"x86_64 linux glibc\"]",
            "# facts\n[case.facts] # all\n# here\n[case.facts.\"x86_64 linux glibc\"]",
        )
        .replace(
            "[case.facts.\"x86_64 linux glibc\".network]",
            "# the network\n[case.facts.\"x86_64 linux glibc\".network]",
        )
        .replace("\"/etc/a\"", "# read by libfoo\n\"/etc/a\"");
    assert_eq!(updated(&text, &[shape.clone()]).0, text);
    shape.network.clear();
    shape.paths.clear();
    let (new, _) = updated(&text, &[shape.clone()]);
    for comment in [
        "# facts\n[case.facts] # all\n# here\n",
        "# the network\n",
        "# read by libfoo\n\"/etc/a\" = { open = 0 }\n",
    ] {
        assert!(new.contains(comment), "{comment}\n{new}");
    }
    assert_eq!(updated(&new, &[shape]).0, new);
    // A path that is used no more is none.
    let baseline = Baseline::parse(&new, "x").unwrap();
    assert!(baseline.cases[0].facts[PLATFORM].paths.is_empty());
}

#[test]
fn a_path_that_was_only_mapped_is_there_until_it_is_gone() {
    let mut shape = run(&[]);
    path(&mut shape, "/lib/ld.so", &[]);
    path(&mut shape, "/lib/other.so", &[]);
    path(&mut shape, "/etc/a", &[("open", 1)]);
    let text = recorded(std::slice::from_ref(&shape))
        .replace("\"/lib/other.so\"", "# why\n\"/lib/other.so\"");
    let known = |text: &str| -> Vec<String> {
        let baseline = Baseline::parse(text, "x").unwrap();
        baseline.cases[0].facts[PLATFORM].paths.keys().cloned().collect()
    };
    assert_eq!(known(&text), ["/etc/a", "/lib/ld.so", "/lib/other.so"]);
    shape.paths.retain(|path, _| path == "/etc/a");
    let (new, _) = updated(&text, &[shape]);
    assert!(new.contains("# why\n\"/lib/other.so\" = { missed = 0 }"), "{new}");
    assert!(!new.contains("/lib/ld.so"), "{new}");
    assert_eq!(known(&new), ["/etc/a"]);
}

#[test]
fn each_form_is_kept_and_the_number_in_it_changed() {
    for (old, calls, new) in [
        ("close.calls = [1, 9] # a\n", 5, "close.calls = [1, 9] # a\n"),
        ("close.calls = [1, 9]\n", 12, "close.calls = [1, 12]\n"),
        ("close.calls = 4 # a\n", 5, "close.calls = 5 # a\n"),
        ("close = 4\n", 5, "close = 5\n"),
        ("close = [1, 4]\n", 5, "close = [1, 5]\n"),
        ("close = {calls=4}\n", 5, "close = {calls=5}\n"),
        ("close = { calls = \"varies\" }\n", 5, "close = { calls = \"varies\" }\n"),
        ("close = { calls = [1, 9] }\n", 5, "close = { calls = [1, 9] }\n"),
    ] {
        assert_eq!(after(old, &[("close", calls)]), new);
    }
    let table = format!("[case.facts.\"{PLATFORM}\".close]\n# b\ncalls = [1, 9] # a\n");
    assert_eq!(after(&table, &[("close", 5)]), table);
    assert_eq!(after(&table, &[("close", 12)]), table.replace('9', "12"));
    assert_eq!(after(&table, &[]), table.replace("[1", "[0"));
    let errors = after("close = { calls = 4 } # a\n", &[("close", 4), ("close EBADF", 1)]);
    assert_eq!(errors, "close = { calls = 4, EBADF = 1 } # a\n");
    assert_eq!(after(&errors, &[("close", 4)]), "close = { calls = 4 } # a\n");
    let dotted = after("close.calls = 4\n", &[("close", 4), ("close EBADF", 1)]);
    assert_eq!(dotted, "close.calls = 4\nclose.EBADF = 1\n");
}

#[test]
fn words_of_a_person_hold_in_all_tables() {
    let (_, notes) = updated(&written("close = { calls = 1 }\n"), &[run(&[("close", 9)])]);
    assert!(notes.is_empty(), "{notes:?}");
    let text = recorded(&[whole()])
        .replace(
            "total = { calls = 9, errors = 1,",
            "total = { calls = [1, 90], errors = \"varies\",",
        )
        .replace("\"/bin/sh\" = 1", "\"/bin/sh\" = [2, 3]")
        .replace("\"connect 127.0.0.1:53/udp\" = 1", "\"connect 127.0.0.1:53/udp\" = \"varies\"")
        .replace("\"/etc/a\" = { open = 1 }", "\"/etc/a\" = \"varies\"")
        .replace("close = { calls = 2 }", "close = { calls = [5, 9] }");
    let mut other = whole();
    other.programs.get_mut("sh").unwrap().get_mut("close").unwrap().calls = 4;
    other.network.clear();
    other.paths.remove("/etc/a");
    let (new, notes) = updated(&text, &[whole(), other]);
    for kept in [
        "total = { calls = [1, 90], errors = \"varies\",",
        "\"connect 127.0.0.1:53/udp\" = \"varies\"\n",
        "\"/etc/a\" = \"varies\"",
        "\"/bin/sh\" = [1, 3]\n",
        "close = { calls = [2, 9] }\n",
    ] {
        assert!(new.contains(kept), "{kept}\n{new}");
    }
    assert_eq!(
        notes,
        [
            "program sh: close: 2..4 is outside 5..9: now 2..9",
            "executed /bin/sh: 1 is outside 2..3: now 1..3",
        ]
    );
}

#[test]
fn what_varies_in_a_program_says_what_was_seen() {
    let mut other = whole();
    other.programs.get_mut("sh").unwrap().get_mut("close").unwrap().calls = 4;
    let text = recorded(&[whole(), other]);
    assert!(text.contains("close = \"varies\" # seen 2..4 in 2 runs\n"), "{text}");
}

#[test]
fn zero_is_a_word_of_a_person() {
    for never in ["socket = { calls = 0 } # never\n", "socket = { calls = 0 }\n", "socket = 0\n"] {
        assert_eq!(after(never, &[]), never);
    }
    assert_eq!(after("socket = { calls = 0 }\n", &[("socket", 1)]), "socket = { calls = 1 }\n");
    let errno = "openat = { calls = 1, ENOENT = 0 }\n";
    assert_eq!(after(errno, &[("openat", 1)]), errno);
}

#[test]
fn an_error_that_is_named_is_held_where_calls_vary() {
    let old = "openat = { calls = \"varies\", ENOENT = 3 }\n";
    assert_eq!(after(old, &[("openat", 9), ("openat ENOENT", 3)]), old);
    let five = after(old, &[("openat", 9), ("openat ENOENT", 5), ("openat EACCES", 1)]);
    assert_eq!(five, old.replace('3', "5"));
    let runs =
        [run(&[("openat", 9), ("openat ENOENT", 3)]), run(&[("openat", 8), ("openat ENOENT", 7)])];
    let old = "openat = { calls = [1, 20], ENOENT = [3, 4] }\n";
    let (text, notes) = updated(&written(old), &runs);
    assert!(text.contains("openat = { calls = [1, 20], ENOENT = [3, 7] }\n"), "{text}");
    assert_eq!(notes, ["openat ENOENT: 3..7 is outside 3..4: now 3..7"]);
}

#[test]
fn a_sum_keeps_the_range_that_holds_it() {
    let text = recorded(&[run(&[("futex", 9)]), run(&[("futex", 20)])]);
    assert!(text.contains("total = { calls = [9, 20], "), "{text}");
    assert_eq!(updated(&text, &[run(&[("futex", 12)]), run(&[("futex", 15)])]).0, text);
}

#[test]
fn nothing_moves_in_a_file_of_another_order() {
    let mixed = format!(
        "schema = 1\n# rules first\n[[rule]]\nid = \"counts\"\nfacts = true\n\n\
         # a\n[[case]]\nname = \"a\"\ncommand = [\"a\"]\n\n\
         [[rule]]\nid = \"new\"\ndeny = \"unlisted\"\n\n\
         # b\n[[case]]\nname = \"app\"\ncommand = [\"./app\"]\n\
         [case.facts.\"{PLATFORM}\".path]\n\"/etc/a\" = {{ open = 1 }}\n\
         [case.facts.\"{PLATFORM}\".executed]\n\"/bin/sh\" = 1\n\
         [normalise]\nfamilies = \"none\"\n# the end\n"
    );
    let (new, _) = updated(&mixed, &[whole()]);
    let full = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let stayed: Vec<_> = full(&new).into_iter().filter(|line| mixed.contains(line)).collect();
    assert_eq!(stayed, full(&mixed));
    assert_eq!(new_lines(&new, &mixed), Vec::<&str>::new());
    assert_eq!(updated(&new, &[whole()]).0, new);
    // Another platform, and another case, take nothing from those that were there.
    let mut editor = Editor::of(&new).unwrap();
    editor.add_case(&Case::new("other".into(), vec!["x".into()]));
    let (facts, seen) = learn(&[whole()], true);
    for (case, platform) in [("app", "aarch64 linux glibc"), ("other", PLATFORM), ("a", PLATFORM)] {
        editor.facts(case, platform, &facts, &seen);
    }
    let text = editor.to_string();
    let before = Baseline::parse(&new, "x").unwrap();
    let after = Baseline::parse(&text, "x").unwrap_or_else(|e| panic!("{e}\n{text}"));
    let of = |baseline: &Baseline, case: usize| baseline.cases[case].facts[PLATFORM].clone();
    assert_eq!(of(&after, 1), of(&before, 1));
    assert_eq!(after.cases[1].facts["aarch64 linux glibc"], of(&after, 1));
    assert_eq!(of(&after, 2), of(&after, 1));
    assert_eq!(of(&after, 0), of(&after, 1));
    assert_eq!(new_lines(&text, &new), Vec::<&str>::new());
}

#[test]
fn cases_in_one_line_are_refused() {
    let case = "name = \"app\", command = [\"./app\"]";
    let inline = Editor::of(&format!("schema = 1\ncase = [{{ {case} }}]\n")).unwrap();
    assert!(inline.refusal("app").unwrap().contains("write [[case]]"));
    assert!(inline.refusal("another").is_some());
    let lines = format!("schema = 1\n[[case]]\n{}\n", case.replace(", c", "\nc"));
    for (facts, refused) in [
        ("", false),
        ("[case.facts]\n", false),
        ("[case.facts.\"aarch64 linux musl\"]\nrecorded = { runs = 1 }\n", false),
        ("facts = {}\n", true),
        ("[case.facts]\n\"aarch64 linux musl\" = { recorded = { runs = 1 } }\n", true),
        ("facts.\"aarch64 linux musl\".close.calls = 1\n", true),
    ] {
        let text = format!("{lines}{facts}");
        let refusal = Editor::of(&text).unwrap().refusal("app");
        assert_eq!(refusal.is_some(), refused, "{text}\n{refusal:?}");
        assert!(refusal.is_none_or(|text| !text.contains('\n') && text.contains("[case.facts.")));
        if !refused {
            let text = updated(&text, &[whole()]).0;
            let baseline = Baseline::parse(&text, "x").unwrap();
            assert_eq!(baseline.cases[0].facts[PLATFORM].paths.len(), 2, "{text}");
        }
    }
    // Below that each form is edited.
    let text = written(
        "program = { sh = { close = { calls = 1 } } }\npath = { \"/etc/a\" = { open = 2 } }\n",
    );
    let mut other = whole();
    other.programs.get_mut("sh").unwrap().get_mut("close").unwrap().calls = 4;
    let (new, _) = updated(&text, &[whole(), other]);
    let facts = Baseline::parse(&new, "x").unwrap().cases[0].facts[PLATFORM].clone();
    assert_eq!(facts.programs.len(), 2, "{new}");
    assert_eq!(facts.paths.len(), 2, "{new}");
}

#[test]
fn a_file_without_rules_gets_the_one_that_holds_the_facts() {
    let text = written("").replace("[[rule]]\nid = \"counts\"\nfacts = true\n", "");
    let (new, notes) = updated(&text, &[whole()]);
    assert!(new.trim_end().ends_with("\n\n[[rule]]\nid = \"counts\"\nfacts = true"), "{new}");
    assert_eq!(notes.len(), 1);
    let other = written("").replace("facts = true", "deny = \"unlisted\"");
    assert!(!updated(&other, &[whole()]).0.contains("facts = true"));
}

#[test]
fn a_file_keeps_how_its_lines_end_and_what_it_begins_with() {
    let text = recorded(&[whole()]);
    let mut more = whole();
    more.calls.get_mut("close").unwrap().calls = 7;
    let changed = updated(&text, &[more.clone()]).0;
    let forms: [fn(&str) -> String; 4] = [
        |text| text.replace('\n', "\r\n"),
        |text| format!("\u{feff}{text}"),
        |text| text.trim_end().to_owned(),
        |text| format!("\u{feff}{}", text.trim_end().replace('\n', "\r\n")),
    ];
    for form in forms {
        let text = form(&text);
        assert_eq!(updated(&text, &[whole()]).0, text);
        assert_eq!(updated(&text, &[more.clone()]).0, form(&changed));
    }
    // Where some lines end so and some do not, an unchanged file is not written anew.
    let mixed = text.replacen('\n', "\r\n", 3);
    assert_eq!(updated(&mixed, &[whole()]).0, mixed);
}

proptest! {
    /// Whatever is in names of paths and programs is read as it was written.
    #[test]
    fn what_was_written_is_read_again(
        names in prop::collection::btree_set("\\PC{0,8}|[\\x00-\\x7f]{1,6}|.{1,6}", 1..6),
        errors in prop::collection::btree_map("E[A-Z0-9]{1,6}|errno_[0-9]{3}", 1u64..99, 0..4),
        n in 1u64..1_000_000,
    ) {
        let mut shape = run(&[]);
        shape.calls.insert("openat".into(), Count { calls: n, errors });
        shape.programs.insert("x".into(), shape.calls.clone());
        for name in &names {
            path(&mut shape, name, &[("open", n)]);
            shape.programs.insert(name.clone(), counts(&[("close", n)]));
            shape.executed.insert(name.clone(), Executed { times: n, ..Executed::default() });
            let network = NetUse { calls: n, ..NetUse::default() };
            shape.network.insert(name.clone(), network);
        }
        let (facts, _) = learn(std::slice::from_ref(&shape), true);
        let text = recorded(std::slice::from_ref(&shape));
        let read = Baseline::parse(&text, "x").unwrap();
        prop_assert_eq!(&read.cases[0].facts[PLATFORM], &facts, "{}", text);
        prop_assert_eq!(updated(&text, &[shape]).0, text);
    }
}
