//! From runs to a file, back, and to a verdict.

use std::collections::BTreeMap;

use super::*;

/// A run that opens some files and makes some calls that name nothing.
fn run(calls: &[(&str, u64)], paths: &[(&str, &[(&str, u64)])]) -> Shape {
    let mut shape = Shape {
        platform: Some("x86_64 linux glibc".into()),
        libc: Some("2.36".into()),
        kernel: Some("6.1".into()),
        processes: 1,
        threads: 1,
        ..Shape::default()
    };
    for (name, n) in calls {
        let (name, errno) = name.split_once(' ').map_or((*name, None), |(a, b)| (a, Some(b)));
        let count = shape.calls.entry(name.into()).or_default();
        match errno {
            Some(errno) => drop(count.errors.insert(errno.into(), *n)),
            None => count.calls = *n,
        }
    }
    for (path, uses) in paths {
        let uses: BTreeMap<_, _> = uses.iter().map(|(kind, n)| ((*kind).into(), *n)).collect();
        let opens = uses.get("open").copied().unwrap_or(0);
        let path_use = PathUse { uses, opens, by: ["app".into()].into(), ..PathUse::default() };
        shape.paths.insert((*path).into(), path_use);
    }
    shape.executed.insert("{cwd}/app".into(), Executed { times: 1, ..Executed::default() });
    shape.files.insert("app".into(), "{cwd}/app".into());
    shape.programs.insert("app".into(), shape.calls.clone());
    shape
}

fn usual() -> Shape {
    run(
        &[("openat", 4), ("openat ENOENT", 1), ("close", 3), ("futex", 9)],
        &[("/etc/a", &[("open", 1)]), ("{home}/.b", &[("open", 1), ("missed", 1)])],
    )
}

fn case() -> Case {
    toml_edit::de::from_str("name = \"app\"\ncommand = [\"./app\"]").unwrap()
}

/// A file that was recorded from these runs, changed from `text`.
fn updated(text: &str, runs: &[Shape]) -> (String, Vec<String>) {
    let mut editor = Editor::of(text).unwrap();
    let (facts, seen) = learn(runs, true);
    editor.facts("app", "x86_64 linux glibc", &facts, &seen);
    (editor.to_string(), editor.notes)
}

fn recorded(runs: &[Shape]) -> String {
    let mut editor = Editor::new().unwrap();
    editor.add_case(&case());
    updated(&editor.to_string(), runs).0
}

fn judged(text: &str, shape: &Shape) -> Judged {
    let baseline = Baseline::parse(text, "x.toml").unwrap_or_else(|e| panic!("{e}\n{text}"));
    judge(&baseline, &baseline.cases[0], shape)
}

fn failed(text: &str, shape: &Shape) -> Vec<String> {
    let judged = judged(text, shape);
    let failed = judged.verdicts.iter().filter(|v| v.state == State::Failed);
    failed.map(|v| format!("{} {}", v.rule, v.headline)).collect()
}

#[test]
fn what_was_recorded_passes() {
    let text = recorded(&[usual(), usual(), usual()]);
    assert_eq!(failed(&text, &usual()), Vec::<String>::new());
    assert!(judged(&text, &usual()).warnings.is_empty());
}

#[test]
fn recording_the_same_again_changes_nothing() {
    let text = recorded(&[usual(), usual()]);
    assert_eq!(updated(&text, &[usual(), usual()]).0, text);
}

#[test]
fn a_small_change_is_a_small_diff_and_comments_stay() {
    let text = recorded(&[usual(), usual()]);
    let text = text
        .replace("close = { calls = 3 }", "# APP-7\nclose = {calls=3} # why")
        .replace("[[rule]]", "# the rules\n[[rule]]");
    let mut more = usual();
    more.calls.get_mut("openat").unwrap().calls = 5;
    more.programs.insert("app".into(), more.calls.clone());
    let (new, _) = updated(&text, &[more.clone(), more]);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (old, new) = (lines(&text), lines(&new));
    let differ: Vec<_> = old.iter().zip(&new).filter(|(a, b)| a != b).collect();
    assert_eq!(old.len(), new.len(), "{new:#?}");
    let shown: Vec<_> = differ.iter().map(|(a, b)| format!("{a} | {b}")).collect();
    let errors = |n| format!("openat = {{ calls = {n}, ENOENT = 1 }}");
    assert_eq!(shown.len(), 2, "{shown:#?}");
    assert!(shown[1].starts_with(&errors(4)) && shown[1].ends_with(&errors(5)), "{shown:#?}");
}

#[test]
fn what_varies_gets_no_bound_and_says_what_was_seen() {
    let mut other = usual();
    other.calls.get_mut("futex").unwrap().calls = 20;
    let text = recorded(&[usual(), other.clone()]);
    assert!(text.contains("futex = \"varies\" # seen 9..20 in 2 runs"), "{text}");
    other.calls.get_mut("futex").unwrap().calls = 1000;
    assert_eq!(failed(&text, &other), Vec::<String>::new());
    // It stays so: that it was the same five times proves nothing.
    assert!(updated(&text, &[usual(), usual()]).0.contains("futex = \"varies\" # seen 9..20"));
}

#[test]
fn a_persons_range_is_kept_and_widened_only_by_what_was_seen() {
    let text = recorded(&[usual()]).replace("close = { calls = 3 }", "close = { calls = [2, 5] }");
    assert_eq!(updated(&text, &[usual()]).0, text);
    let mut more = usual();
    more.calls.get_mut("close").unwrap().calls = 7;
    assert_eq!(failed(&text, &more), ["counts close 2..5 -> 7"]);
    let (new, notes) = updated(&text, &[more.clone()]);
    assert!(new.contains("close = { calls = [2, 7] }"), "{new}");
    assert_eq!(notes, ["close: 7 is outside 2..5: now 2..7"]);
    assert_eq!(failed(&new, &more), Vec::<String>::new());
}

#[test]
fn more_fewer_and_other_calls_fail_with_their_cause() {
    let text = recorded(&[usual(), usual()]);
    let mut missing = usual();
    missing.calls.get_mut("close").unwrap().calls = 2;
    assert_eq!(failed(&text, &missing), ["counts close 3 -> 2"]);
    let mut more = run(
        &[("openat", 5), ("openat ENOENT", 2), ("close", 3), ("futex", 9), ("socket", 1)],
        &[
            ("/etc/a", &[("open", 1)]),
            ("{home}/.b", &[("open", 1), ("missed", 1)]),
            ("{home}/.c", &[("open", 1), ("missed", 1)]),
        ],
    );
    let socket =
        NetUse { call: "socket".into(), calls: 1, by: ["app".into()].into(), ..NetUse::default() };
    more.network.insert("socket inet/stream".into(), socket);
    let judged = judged(&text, &more);
    let causes: Vec<_> = judged.verdicts[0].causes.iter().map(Cause::in_words).collect();
    assert_eq!(causes[0], "socket inet/stream by app");
    assert_eq!(causes[1], "{home}/.c: 1 open, ENOENT by app");
}

#[test]
fn other_platforms_have_no_facts_but_rules_that_need_none() {
    let text = recorded(&[usual()]) + "\n[[rule]]\nid = \"new\"\ndeny = \"unlisted\"\n";
    let mut there = usual();
    there.platform = Some("aarch64 linux glibc".into());
    let open = there.calls.remove("openat").unwrap();
    there.calls.insert("openat2".into(), open);
    let judged = judged(&text, &there);
    let states: Vec<_> = judged.verdicts.iter().map(|v| (v.rule.as_str(), v.state)).collect();
    assert_eq!(states, [("new", State::Passed), ("counts", State::Unjudged)]);
    assert_eq!(judged.instead.as_deref(), Some("x86_64 linux glibc"));
    there.platform = Some("x86_64 linux musl".into());
    let states = judge(
        &Baseline::parse(&text, "x").unwrap(),
        &Baseline::parse(&text, "x").unwrap().cases[0],
        &there,
    );
    assert!(states.verdicts.iter().all(|v| v.state == State::Unjudged));
}

#[test]
fn another_file_or_address_is_a_change_though_the_counts_are_the_same() {
    let with = |path: &str, address: &str| {
        let mut shape = run(
            &[("openat", 2), ("connect", 1)],
            &[("/etc/a", &[("open", 1)]), (path, &[("open", 1)])],
        );
        let used = NetUse {
            call: "connect".into(),
            calls: 1,
            by: ["app".into()].into(),
            ..NetUse::default()
        };
        shape.network.insert(format!("connect {address}"), used);
        shape
    };
    let text = recorded(&[with("/etc/b", "10.0.0.1:80/tcp"), with("/etc/b", "10.0.0.1:80/tcp")]);
    assert_eq!(failed(&text, &with("/etc/b", "10.0.0.1:80/tcp")), Vec::<String>::new());
    assert_eq!(
        failed(&text, &with("/etc/b", "10.0.0.2:80/tcp")),
        ["counts connect 10.0.0.2:80/tcp by app"]
    );
    assert_eq!(
        failed(&text, &with("/etc/c", "10.0.0.1:80/tcp")),
        ["counts /etc/b: not used any more"]
    );
    // A name that is made up anew each time was not recorded, and is none.
    let text = recorded(&[with("/x/1", "10.0.0.1:80/tcp"), with("/x/2", "10.0.0.1:80/tcp")]);
    assert_eq!(failed(&text, &with("/x/3", "10.0.0.1:80/tcp")), Vec::<String>::new());
}

#[test]
fn calls_that_most_of_the_difference_is_made_of_are_named_before_paths() {
    let before = run(&[("openat", 1), ("getppid", 100)], &[("/etc/a", &[("open", 1)])]);
    let after = run(
        &[("openat", 3), ("getppid", 140)],
        &[("/etc/a", &[("open", 1)]), ("/etc/b", &[("open", 1)]), ("/etc/c", &[("open", 1)])],
    );
    let judged = judged(&recorded(&[before]), &after);
    let causes: Vec<_> = judged.verdicts[0].causes.iter().map(Cause::in_words).collect();
    assert_eq!(causes[0], "getppid 100 -> 140 (+40) by app", "{causes:#?}");
    assert_eq!(causes[1], "/etc/{b,c}: 1 open each by app");
}

#[test]
fn how_often_threads_wait_for_each_other_is_not_held() {
    let mut threads = usual();
    threads.threads = 2;
    let text = recorded(&[threads.clone(), threads.clone()]);
    assert!(text.contains("futex = \"varies\""), "{text}");
    threads.threads = 3;
    assert_eq!(failed(&text, &threads), ["counts threads 2 -> 3"]);
}

#[test]
fn what_two_runs_agree_on_is_judged() {
    let facts = learn(&[usual(), usual()], true).0;
    let with = |name: &str, n: u64| {
        let mut shape = usual();
        shape.calls.entry(name.into()).or_default().calls = n;
        shape.programs.insert("app".into(), shape.calls.clone());
        shape
    };
    // Each run has another flake: neither is a change.
    let agreed = agree(&with("getppid", 1), &with("close", 4), Some(&facts));
    assert_eq!(agreed.calls, usual().calls);
    assert_eq!(agreed.programs, usual().programs);
    // The same in both is.
    let agreed = agree(&with("close", 4), &with("close", 5), Some(&facts));
    assert_eq!(agreed.calls["close"].calls, 4);
    let mut path = usual();
    path.paths.insert("/new".into(), PathUse::default());
    assert!(!agree(&path, &usual(), Some(&facts)).paths.contains_key("/new"));
    assert!(agree(&path, &path, Some(&facts)).paths.contains_key("/new"));
    let mut gone = usual();
    gone.paths.remove("/etc/a");
    assert!(agree(&gone, &usual(), Some(&facts)).paths.contains_key("/etc/a"));
    assert!(!agree(&gone, &gone, Some(&facts)).paths.contains_key("/etc/a"));
}
