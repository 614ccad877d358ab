//! `coldtrace check`: a change of the program fails and its cause is named; everything else passes.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::board::child_running;
use support::fixture::{Program, built};
use support::process::{Finished, finish, start};
use support::{Scratch, coldtrace, find_program, nobody};

fn put(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    fs::write(path, text).expect("a file that can be written");
}

fn text_of(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("a file that can be read")
}

/// A directory with a baseline and a program that does as `mode` in it says.
struct Place {
    scratch: Scratch,
    program: Program,
}

impl Place {
    fn new(name: &str) -> Option<Self> {
        let place = Self { program: built("check-app")?, scratch: Scratch::new(name) };
        place.mode("");
        Some(place)
    }

    /// What the program is to do from now on; as many bytes each time.
    fn mode(&self, word: &str) {
        put(self.path("mode"), format!("{word:<12}"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    fn check(&self, arguments: &[&str]) -> Command {
        let mut command = coldtrace("check");
        command.args(arguments).current_dir(self.scratch.root());
        command.env("HOME", self.path("home"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.check(arguments))
    }

    /// Records the program; `more` is added to the baseline.
    fn record(&self, more: &str) {
        let mut command = self.check(&["--update", "--"]);
        finish(command.arg(&self.program.path)).assert_code(0);
        let path = self.path("coldtrace.toml");
        let text = text_of(&path);
        put(path, format!("{text}\n{more}"));
    }

    fn baseline(&self) -> String {
        text_of(self.path("coldtrace.toml"))
    }
}

/// What is recorded and not changed passes, and then the change is caught, and
/// its cause named in the first five lines.
#[test]
fn changes_are_caught_and_their_cause_is_named() {
    let Some(place) = Place::new("check-seeded") else { return };
    place.record("");
    place.run(&[]).assert_code(0);
    let program = "check-app";
    for (mode, cause) in [
        ("stat", "{cwd}/extra: 1 stat, ENOENT".to_owned()),
        ("library", "/libm.so.6".to_owned()),
        ("home", "{home}/.apprc: 1 open, ENOENT".to_owned()),
        ("socket", format!("connect 127.0.0.1:8125/udp by {program}")),
        ("fork", format!("+ process that executes nothing (1 -> 2) by {program}")),
        ("exec", "executed by ".to_owned()),
        ("drop", "getppid 1 -> 0".to_owned()),
        ("more", "getppid 1 -> 37".to_owned()),
        ("storm", "{cwd}/storm/*: 120 paths, ENOENT".to_owned()),
        ("twice", "~ {cwd}/mode: 1 stat, was 0".to_owned()),
        ("loop", "getuid 100 -> 101".to_owned()),
    ] {
        place.mode(mode);
        let finished = place.run(&[]);
        finished.assert_code(1);
        let out = finished.out();
        let first: Vec<&str> = out.lines().take(5).collect();
        assert!(first[0].starts_with("coldtrace: FAIL coldtrace.toml: 1 of 1 rule"), "{finished}");
        assert!(first.iter().any(|line| line.contains(&cause)), "{mode}: {cause}\n{finished}");
        assert!(out.contains("accept with: coldtrace check --update"), "{finished}");
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{finished}");
    }
    place.mode("");
    place.run(&[]).assert_code(0);
}

#[test]
fn what_was_accepted_passes_and_the_diff_is_small() {
    let Some(place) = Place::new("check-accept") else { return };
    place.record("# the last line\n");
    let before = place.baseline();
    place.mode("stat");
    place.run(&[]).assert_code(1);
    place.run(&["--update"]).assert_code(0);
    place.run(&[]).assert_code(0);
    let after = place.baseline();
    let only = |a: &str, b: &str| -> Vec<String> {
        let b: Vec<&str> = b.lines().collect();
        a.lines().filter(|line| !b.contains(line)).map(str::to_owned).collect()
    };
    let (gone, new) = (only(&before, &after), only(&after, &before));
    assert_eq!(gone.len(), 2, "{gone:#?}");
    assert!(gone[0].starts_with("total = ") && gone[1].starts_with("newfstatat = "), "{gone:#?}");
    assert_eq!(new.len(), 3, "{new:#?}");
    assert_eq!(new[2], "\"{cwd}/extra\" = { missed = 1, stat = 1 }");
    assert!(after.ends_with("# the last line\n"));
    // And once more: nothing has changed.
    let again = place.run(&["--update"]);
    again.assert_code(0);
    assert!(again.err().contains("nothing has changed"), "{again}");
    assert_eq!(place.baseline(), after);
}

#[test]
fn each_rule_says_what_it_holds() {
    let Some(place) = Place::new("check-rules") else { return };
    place.record(
        r#"
[[rule]]
id = "no-home"
path = "{home}/**"
reason = "APP-12"
[[rule]]
id = "offline"
syscall = ["socket", "connect"]
family = ["inet", "inet6"]
[[rule]]
id = "misses"
metric = "ENOENT"
max_new_paths = 0
[[rule]]
id = "total"
metric = "calls"
max_ratio = 1.05
min_delta = 20
[[rule]]
id = "new"
deny = "unlisted"
[[rule]]
id = "programs"
exec = "check-app*"
[[rule]]
id = "loop"
region = "loop"
facts = true
"#,
    );
    place.run(&[]).assert_code(0);
    for (mode, rules) in [
        ("home", &["no-home", "misses", "counts"][..]),
        ("socket", &["offline", "new", "counts"]),
        ("storm", &["misses", "total", "counts"]),
        ("exec", &["programs", "new", "counts"]),
        ("more", &["total", "counts"]),
        ("loop", &["counts", "loop"]),
        ("drop", &["counts"]),
    ] {
        place.mode(mode);
        let finished = place.run(&[]);
        finished.assert_code(1);
        let out = finished.out();
        let failed: Vec<&str> = out
            .lines()
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
            .filter_map(|line| line.split_whitespace().next())
            .filter(|word| !matches!(*word, "passed:" | "accept" | "warning:"))
            .collect();
        let total: Vec<&str> = rules.to_vec();
        let found: Vec<&str> =
            failed.iter().copied().filter(|id| mode != "exec" || *id != "total").collect();
        assert_eq!(found, total, "{mode}: {finished}");
    }
}

#[test]
fn a_first_run_that_leaves_something_behind_is_no_change() {
    let Some(place) = Place::new("check-first") else { return };
    place.mode("write");
    let mut command = place.check(&["--update", "--"]);
    let recorded = finish(command.arg(&place.program.path));
    recorded.assert_code(0);
    assert!(recorded.err().contains("it wrote {cwd}/cache"), "{recorded}");
    // A fresh machine: what the first run makes is not there.
    fs::remove_file(place.path("cache")).expect("it was there");
    let finished = place.run(&[]);
    finished.assert_code(0);
    assert!(finished.out().contains("the first wrote"), "{finished}");
    // With --strict too: it is no property of the program.
    fs::remove_file(place.path("cache")).expect("it was there");
    place.run(&["--strict"]).assert_code(0);
    // Removed each time, it is made each time.
    let text = place.baseline().replace("env = ", "prepare = \"rm -f cache\"\nenv = ");
    put(place.path("coldtrace.toml"), text);
    place.run(&[]).assert_code(1);
    place.run(&["--update"]).assert_code(0);
    let finished = place.run(&["--strict"]);
    finished.assert_code(0);
}

#[test]
fn what_is_forbidden_is_caught_though_only_the_first_run_does_it() {
    let Some(place) = Place::new("check-once") else { return };
    place.mode("write");
    place.record("[[rule]]\nid = \"no-cache\"\npath = \"{cwd}/cache\"\naccess = \"write\"\n");
    place.run(&[]).assert_code(0);
    fs::remove_file(place.path("cache")).expect("it was there");
    let finished = place.run(&[]);
    finished.assert_code(1);
    assert!(finished.out().contains("no-cache {cwd}/cache: "), "{finished}");
}

#[test]
fn each_way_to_be_broken_has_its_status_and_one_line_that_helps() {
    let Some(place) = Place::new("check-broken") else { return };
    let told = |arguments: &[&str], status: i32, what: &str, help: &str| {
        let finished = place.run(arguments);
        finished.assert_code(status);
        let text = finished.out() + &finished.err();
        assert!(text.contains(what), "{arguments:?}: {what}\n{finished}");
        assert!(text.contains(help), "{arguments:?}: {help}\n{finished}");
    };
    let file = place.path("coldtrace.toml");
    told(&[], 4, "no baseline coldtrace.toml", "coldtrace check --update -- COMMAND...");
    told(&["--", "true"], 4, "no baseline", "coldtrace check --update -- true");
    told(&["--update"], 4, "no baseline", "record one");
    told(&["--baseline", "/"], 2, "cannot read /", "directory");
    put(&file, "schema = 1\n[[cases]]\n");
    told(&[], 2, "coldtrace.toml:2: unknown field `cases`", "expected one of");
    put(&file, "schema = ");
    told(&[], 2, "coldtrace.toml:1: ", "");
    put(&file, "schema = 9\n");
    told(&[], 2, "schema = 9", "this coldtrace reads 1");
    put(&file, "schema = 1\n");
    told(&[], 4, "has no case", "--update -- COMMAND...");
    let case = "schema = 1\n[[case]]\nname = \"a\"\ncommand = [\"/nonexistent/app\"]\n";
    put(&file, case);
    told(&[], 5, "cannot run /nonexistent/app: not found", "check its command");
    told(&["--update"], 5, "cannot run /nonexistent/app: not found", "");
    assert_eq!(text_of(&file), case);
    told(&["--case", "b"], 2, "--case b: coldtrace.toml has no such case; it has a", "");
    told(&["--", "true"], 4, "has no case with this command", "--update -- true");
    told(&["--nonsense"], 2, "--nonsense", "");
    fs::remove_file(&file).expect("it was there");
    place.record("");
    place.mode("exit");
    told(&[], 5, "it exited 3, and was to exit 0", "write exit = ...");
    told(&["--update"], 5, "it exited 3", "");
    place.mode("");
    let text = place.baseline().replace("x86_64 linux glibc", "riscv64 linux glibc");
    put(&file, text);
    told(&[], 4, "no facts for x86_64 linux glibc: recorded are riscv64 linux glibc", "--update");
    // Rules that need none are judged all the same.
    let text = place.baseline() + "[[rule]]\nid = \"few\"\nmetric = \"calls\"\nmax = 10\n";
    put(&file, text);
    told(&[], 1, "few", "calls: more than 10");
    // And what was recorded here stands beside the other.
    told(&["--update"], 0, "", "");
    let text = place.baseline();
    assert!(text.contains("riscv64 linux glibc") && text.contains("x86_64 linux glibc"), "{text}");
}

#[test]
fn a_saved_run_is_judged_if_it_ran_in_such_a_place() {
    let Some(place) = Place::new("check-saved") else { return };
    place.record("");
    let run = |options: &[&str]| {
        let mut command = coldtrace("run");
        command.args(options).current_dir(place.scratch.root()).env("HOME", place.path("home"));
        command.env("TMPDIR", place.scratch.root());
        finish(command.arg("--").arg(&place.program.path)).assert_code(0);
    };
    run(&["--fixed"]);
    place.run(&["-r", "latest"]).assert_code(0);
    place.mode("drop");
    run(&["--fixed"]);
    let finished = place.run(&["-r", "latest"]);
    finished.assert_code(1);
    assert!(finished.out().contains("getppid 1 -> 0"), "{finished}");
    run(&[]);
    let finished = place.run(&["-r", "latest"]);
    finished.assert_code(4);
    assert!(finished.out().contains("coldtrace run --fixed"), "{finished}");
    place.run(&["-r", "/nonexistent"]).assert_code(2);
    // What check keeps can be judged again.
    place.run(&["--keep", "kept"]).assert_code(1);
    place.run(&["-r", "kept/latest"]).assert_code(1);
    let log = text_of(place.path("kept/latest/stdout.log"));
    assert_eq!(log, "done\n");
}

#[test]
fn one_call_more_fails_at_every_exact_entry() {
    let Some(place) = Place::new("check-self") else { return };
    place.record("");
    let finished = place.run(&["--self-test"]);
    finished.assert_code(0);
    assert!(
        finished.out().starts_with("check-app: one call more would not fail at 0 of "),
        "{finished}"
    );
    let text =
        place.baseline().replace("getuid = { calls = 100 }", "getuid = { calls = [90, 110] }");
    let text = text.replace("getppid = { calls = 1 }", "getppid = \"varies\"");
    put(place.path("coldtrace.toml"), text);
    let finished = place.run(&["--self-test"]);
    let missed: Vec<String> =
        finished.out().lines().skip(1).map(|line| line.trim().to_owned()).collect();
    assert_eq!(missed, ["getppid", "getuid"], "{finished}");
    let explained = place.run(&["--explain"]).out();
    let why = |name: &str| {
        let line = explained.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}: {explained}")).to_owned()
    };
    assert!(why("getuid").contains("90..110  a range that somebody wrote"));
    assert!(why("getppid").contains("ignored: "));
    assert!(why("openat").contains("exact: the same in all of 5 runs"));
}

#[test]
fn an_ordinary_user_checks_too() {
    let Some(place) = Place::new("check-nobody") else { return };
    let Some(mut nobody) = nobody() else { return };
    place.record("");
    let own = place.check(&[]);
    nobody.arg(own.get_program()).args(own.get_args()).current_dir(place.scratch.root());
    nobody.env("HOME", place.path("home"));
    finish(&mut nobody).assert_code(0);
}

#[test]
fn several_programs_are_told_apart() {
    let Some(place) = Place::new("check-tree") else { return };
    if find_program("sh").is_none() {
        return;
    }
    let script = "ls . > /dev/null; cat list | sort | head -n 1";
    put(place.path("list"), "b\na\n");
    place.run(&["--update", "--", "sh", "-c", script]).assert_code(0);
    for _ in 0..3 {
        place.run(&[]).assert_code(0);
    }
    // One program reads more: it is that one which is named.
    put(place.path("list"), "b\na\n".repeat(40_000));
    let finished = place.run(&[]);
    finished.assert_code(1);
    assert!(finished.out().contains("by cat"), "{finished}");
}

#[test]
fn ctrl_c_ends_a_check_and_leaves_nothing_behind() {
    let Some(place) = Place::new("check-interrupt") else { return };
    let temporary = place.path("tmp");
    fs::create_dir(&temporary).expect("a directory");
    for update in [true, false] {
        let case = "schema = 1\n[[case]]\nname = \"a\"\ncommand = [\"sleep\", \"60\"]\n\
                    [[case]]\nname = \"b\"\ncommand = [\"touch\", \"b\"]\n";
        put(place.path("coldtrace.toml"), case);
        let mut command = place.check(if update { &["--update"] } else { &[] });
        let running = start(command.env("TMPDIR", &temporary));
        child_running(running.pid(), "sleep");
        running.kill(libc::SIGINT);
        running.finish().assert_signal(libc::SIGINT);
        assert_eq!(place.baseline(), case);
        assert!(!place.path("b").exists(), "the next case ran");
        assert_eq!(fs::read_dir(&temporary).expect("a directory").count(), 0);
    }
}

#[test]
fn each_case_has_its_rules_and_its_result() {
    let Some(place) = Place::new("check-cases") else { return };
    let program = place.program.path.display();
    let text = format!(
        "schema = 1\n\
         [[case]]\nname = \"app\"\ncommand = [\"{program}\"]\n\
         regions = {{ early = {{ from = \"exec\", until = \"syscall:getppid\" }} }}\n\
         [[case]]\nname = \"true\"\ncommand = [\"/bin/true\"]\n\
         [[rule]]\nid = \"counts\"\nfacts = true\n\
         [[rule]]\nid = \"early\"\ncase = \"app\"\nregion = \"early\"\nfacts = true\n\
         [[rule]]\nid = \"late\"\ncase = \"app\"\nregion = \"early\"\nsyscall = \"getppid\"\n\
         [[rule]]\nid = \"quiet\"\ncase = \"true\"\nsyscall = \"connect\"\nexcept = \"10.0.0.1:*\"\n"
    );
    put(place.path("coldtrace.toml"), text);
    place.run(&["--update"]).assert_code(0);
    let finished = place.run(&[]);
    finished.assert_code(0);
    assert!(finished.out().ends_with("coldtrace: 2 cases, all passed\n"), "{finished}");
    // An exception that nothing uses is said, and a failure where that is asked for.
    assert!(finished.out().contains("quiet: \"10.0.0.1:*\" matches nothing"), "{finished}");
    place.run(&["--strict"]).assert_code(1);
    place.run(&["--strict", "--case", "app"]).assert_code(0);
    place.mode("loop");
    let finished = place.run(&[]);
    finished.assert_code(1);
    let out = finished.out();
    assert!(out.contains("coldtrace: FAIL coldtrace.toml: app: 2 of 3 rules"), "{finished}");
    assert!(out.contains("  early  getuid in early 100 -> 101"), "{finished}");
    assert!(out.contains("coldtrace: ok coldtrace.toml: true: 2 rules"), "{finished}");
    assert!(out.ends_with("coldtrace: 2 cases, 1 failed\n"), "{finished}");
    assert!(out.contains("accept with: coldtrace check --update --case app"), "{finished}");
    // What happens after the region is no business of its rules.
    place.mode("more");
    let finished = place.run(&["--case", "app"]);
    finished.assert_code(1);
    assert!(finished.out().contains("passed: late early"), "{finished}");
}
