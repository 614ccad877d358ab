//! `coldtrace check`: the place in which a case runs is what the case says, the same elsewhere, and
//! known of a saved run.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::board::until;
use support::fixture::built;
use support::process::{Finished, finish, start};
use support::{Scratch, coldtrace, coldtrace_path, find_program, nobody, skip};

#[cfg(target_arch = "x86_64")]
const ARCH: &str = "x86_64";
#[cfg(target_arch = "aarch64")]
const ARCH: &str = "aarch64";

/// Nothing of it can fail.
const ANY: &str = "[[rule]]\nid = \"any\"\nmetric = \"calls\"\nmax = 1000000\n";

fn put(path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
    fs::write(path, text).expect("a file that can be written");
}

fn text_of(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).expect("a file that can be read")
}

/// `[[case]]` of a shell script, with more keys.
fn case(name: &str, script: &str, more: &str) -> String {
    assert!(!script.contains('\''), "{script}");
    format!("[[case]]\nname = \"{name}\"\ncommand = [\"sh\", \"-c\", '{script}']\n{more}\n")
}

/// A directory with a baseline, directories for temporary files and a home.
struct Place(Scratch);

impl Place {
    fn new(name: &str, baseline: &str) -> Self {
        let place = Self(Scratch::new(name));
        for name in ["tmp", "home"] {
            fs::create_dir(place.path(name)).expect("scratch can be written");
        }
        place.write(baseline);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    fn write(&self, baseline: &str) {
        put(self.path("coldtrace.toml"), format!("schema = 1\n{baseline}"));
    }

    fn baseline(&self) -> String {
        text_of(self.path("coldtrace.toml"))
    }

    fn command(&self, subcommand: &str, arguments: &[&str]) -> Command {
        let mut command = coldtrace(subcommand);
        command.args(arguments).current_dir(self.0.root());
        command.env("HOME", self.path("home")).env("TMPDIR", self.path("tmp"));
        command
    }

    fn check(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.command("check", arguments))
    }

    /// What is left in the directory for temporary files.
    fn left(&self) -> usize {
        fs::read_dir(self.path("tmp")).expect("it is there").count()
    }

    /// What the command wrote when it was checked, which ends so.
    fn output(&self, baseline: &str, status: i32) -> String {
        self.write(&format!("{baseline}{ANY}"));
        self.check(&["--keep", "kept"]).assert_code(status);
        text_of(self.path("kept/latest/stdout.log"))
    }
}

// ---- saved runs ----

const RULES: &str = r#"
[[rule]]
id = "counts"
facts = true
[[rule]]
id = "writes"
path = "**"
access = "write"
except = ["{tmp}/**", "{output}/**"]
[[rule]]
id = "home"
path = "{home}/**"
max = 1
[[rule]]
id = "misses"
metric = "misses"
max_new_paths = 0
"#;

#[test]
fn a_saved_run_has_the_same_verdict_elsewhere() {
    let script = "echo out; echo err >&2; echo x > $TMPDIR/f; read x < $HOME/rc || exit 0";
    let place = Place::new("saved-paths", &format!("{}{RULES}", case("sh", script, "")));
    // As a new case is recorded.
    let words = ["--update", "--", "sh", "-c", script];
    fs::remove_file(place.path("coldtrace.toml")).expect("it was there");
    place.check(&words).assert_code(0);
    let rules = RULES.replace("[[rule]]\nid = \"counts\"\nfacts = true\n", "");
    put(place.path("coldtrace.toml"), place.baseline() + &rules);
    place.check(&["--strict", "--keep", "kept"]).assert_code(0);
    finish(&mut place.command("run", &["--fixed", "--", "sh", "-c", script])).assert_code(0);
    assert_eq!(place.left(), 0);
    // Somebody else judges them, whose directories are others.
    let elsewhere = |run: &str| {
        let mut command = place.command("check", &["-r", run]);
        finish(command.env("HOME", "/nowhere").env_remove("TMPDIR"))
    };
    for run in ["kept/latest", "latest"] {
        elsewhere(run).assert_code(0);
    }
    // And what is forbidden is forbidden in both.
    put(place.path("coldtrace.toml"), place.baseline().replace("{tmp}/**", "/nowhere/**"));
    for run in ["kept/latest", "latest"] {
        let finished = elsewhere(run);
        finished.assert_code(1);
        assert!(finished.out().contains("writes {tmp}/f: "), "{finished}");
    }
}

#[test]
fn a_saved_run_is_that_of_the_case_with_its_name_or_command() {
    let cases =
        [("one", "exit 0"), ("two", "umask"), ("three", "umask; umask"), ("third", "umask; umask")];
    let cases = cases.map(|(name, script)| case(name, script, "")).concat();
    let place = Place::new("saved-case", &(cases + ANY));
    let run = |label: &[&str], words: &[&str]| {
        let mut command = place.command("run", &["--fixed"]);
        finish(command.args(label).arg("--").args(words)).assert_code(0);
        place.check(&["-r", "latest", "--format", "json"])
    };
    for (label, script, name) in [
        // By its command; by both; by its name.
        (&[][..], "umask", "two"),
        (&["--label", "one"], "umask", "two"),
        (&["--label", "third"], "umask; umask", "third"),
        (&["--label", "one"], "umask; umask; umask", "one"),
    ] {
        let finished = run(label, &["sh", "-c", script]);
        finished.assert_code(0);
        let report: Value = serde_json::from_str(&finished.out()).expect("a report");
        assert_eq!(report["cases"][0]["case"], name, "{finished}");
        assert_eq!(report["cases"].as_array().map(Vec::len), Some(1), "{finished}");
    }
    let wanted = "-r needs --case NAME: one of one, two, three, third";
    for words in [&["true"][..], &["sh", "-c", "umask; umask"]] {
        let finished = run(&[], words);
        finished.assert_code(2);
        assert!(finished.err().contains(wanted), "{finished}");
    }
    place.check(&["-r", "latest", "--case", "three"]).assert_code(0);
}

// ---- what comes before a run ----

#[test]
fn what_prepare_leaves_running_is_not_waited_for() {
    // The case itself ends it.
    let prepare = "prepare = 'sleep 300 & echo $! > pid'";
    let script = "kill $(cat pid)";
    let place = Place::new("prepare-leaves", &(case("a", script, prepare) + ANY));
    place.check(&[]).assert_code(0);
}

#[test]
fn prepare_ends_with_the_time_of_its_case_or_a_signal() {
    let prepare = "prepare = 'echo some words; echo; sleep 300; true'\ntimeout = '300ms'";
    let place = Place::new("prepare-ends", &(case("a", "exit 0", prepare) + ANY));
    let finished = place.check(&[]);
    finished.assert_code(5);
    let wanted = "did not end within 300ms (some words)";
    assert!(finished.out().contains(wanted), "{finished}");
    place.write(&(case("a", "exit 0", "prepare = ': > ready; sleep 300; true'") + ANY));
    let running = start(&mut place.command("check", &[]));
    until("what comes before", || place.path("ready").exists().then_some(()));
    running.kill(libc::SIGTERM);
    running.finish().assert_signal(libc::SIGTERM);
    assert_eq!(place.left(), 0);
}

#[test]
fn the_last_line_of_a_prepare_that_fails_is_shown() {
    for to in ["", " >&2"] {
        let prepare = format!("prepare = 'echo first; echo the last one{to}; exit 3'");
        let place = Place::new("prepare-fails", &(case("a", "exit 0", &prepare) + ANY));
        for arguments in [&[][..], &["--update"]] {
            let finished = place.check(arguments);
            finished.assert_code(5);
            let text = finished.out() + &finished.err();
            assert!(text.contains("failed: exit status: 3 (the last one)"), "{finished}");
        }
    }
}

// ---- what a run leaves behind ----

#[test]
fn read_only_directories_of_an_ordinary_user_are_removed() {
    let script = "mkdir -p $TMPDIR/a/b; : > $TMPDIR/a/b/f; chmod 555 $TMPDIR/a $TMPDIR/a/b";
    let place = Place::new("read-only", &(case("a", script, "") + ANY));
    let open = |name: &str| {
        let everybodys = fs::Permissions::from_mode(0o777);
        fs::set_permissions(place.path(name), everybodys).expect("it is ours");
    };
    ["tmp", ".", "coldtrace.toml"].into_iter().for_each(open);
    let Some(mut nobody) = nobody() else { return };
    let own = place.command("check", &["--update", "-n", "2"]);
    nobody.arg(own.get_program()).args(own.get_args()).current_dir(place.0.root());
    let finished = finish(nobody.env("TMPDIR", place.path("tmp")));
    finished.assert_code(0);
    assert!(!finished.err().contains("cannot remove"), "{finished}");
    assert_eq!(place.left(), 0);
}

#[test]
fn what_cannot_be_removed_is_said_in_one_line() {
    let place = Place::new("unremovable", &(case("a", "chmod 555 $TMPDIR/../..", "") + ANY));
    let Some(mut nobody) = nobody() else { return };
    std::os::unix::fs::chown(place.path("tmp"), Some(65534), Some(65534)).expect("root may");
    let own = place.command("check", &[]);
    nobody.arg(own.get_program()).args(own.get_args()).current_dir(place.0.root());
    let finished = finish(nobody.env("TMPDIR", place.path("tmp")));
    finished.assert_code(0);
    let said = finished.err();
    assert!(said.starts_with("coldtrace: cannot remove /"), "{finished}");
    assert!(said.ends_with(": Permission denied\n"), "{finished}");
    assert_eq!(said.lines().count(), 1, "{finished}");
    assert_eq!(place.left(), 1);
}

// ---- reports and profiles ----

/// Names that a profile allows because they were seen.
fn allowed(profile: &Path) -> Vec<String> {
    let profile: Value = serde_json::from_str(&text_of(profile)).expect("a profile");
    let names = profile["syscalls"][0]["names"].as_array().expect("names").clone();
    names.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_profile_is_of_what_was_recorded_and_of_this_run_and_changes_no_verdict() {
    let place = Place::new("profile", &(case("a", "read x < mode; eval $x", "") + ANY));
    put(place.path("mode"), "umask\n");
    place.check(&["--update", "-n", "2"]).assert_code(0);
    put(place.path("mode"), "ulimit -t\n");
    for (rule, status) in [("", 0), ("[[rule]]\nid = \"c\"\nfacts = true\n", 1)] {
        put(place.path("coldtrace.toml"), place.baseline() + rule);
        let finished = place.check(&["--seccomp-profile", "p.json"]);
        finished.assert_code(status);
        let names = allowed(&place.path("p.json"));
        // One that only the recorded runs made, one of this run only, and none of neither.
        for (name, there) in [("umask", true), ("prlimit64", true), ("socket", false)] {
            assert_eq!(names.iter().any(|n| n == name), there, "{name}: {names:?}");
        }
        assert!(finished.err().contains("p.json: "), "{finished}");
        assert!(finished.out().starts_with("coldtrace: "), "{finished}");
        fs::remove_file(place.path("p.json")).expect("it was written");
    }
}

#[test]
fn what_cannot_be_written_takes_no_report_with_it() {
    let place = Place::new("reports", &(case("a", "exit 3", "") + ANY));
    let finished =
        place.check(&["--seccomp-profile", "p.json", "--report", "json=r.json", "--case", "a"]);
    finished.assert_code(5);
    assert!(finished.out().contains("it exited 3, and was to exit 0"), "{finished}");
    assert!(finished.err().contains("no profile was written: nothing ran"), "{finished}");
    assert!(text_of(place.path("r.json")).contains("it exited 3"), "{finished}");
    assert!(!place.path("p.json").exists());
    // Nor does another one that is full.
    fs::remove_file(place.path("r.json")).expect("it was there");
    let finished = place.check(&["-o", "/dev/full", "--report", "json=r.json"]);
    finished.assert_code(2);
    assert!(finished.err().contains("cannot write /dev/full"), "{finished}");
    assert!(text_of(place.path("r.json")).contains("it exited 3"), "{finished}");
}

// ---- the environment ----

#[test]
fn a_longer_path_or_home_is_no_change() {
    let Some(program) = built("check-heap") else { return };
    let place = Place::new("longer", "");
    fs::remove_file(place.path("coldtrace.toml")).expect("it was there");
    let program = program.path.display().to_string();
    place.check(&["--update", "--", &program]).assert_code(0);
    let path = std::env::var("PATH").expect("tests have a PATH");
    for more in [0, 1, 1000, 3000] {
        let mut command = place.command("check", &[]);
        command.env("PATH", format!("{path}:/{}", "x".repeat(more)));
        finish(command.env("HOME", format!("/{}", "x".repeat(more)))).assert_code(0);
    }
    // It is what new cases set that makes it so.
    let text = place.baseline();
    assert!(text.contains("MALLOC_TOP_PAD_ = \"67108864\""), "{text}");
    assert!(text.contains("brk = { calls = "), "{text}");
}

#[test]
fn what_hangs_on_how_long_path_or_home_is_is_seen_to_vary() {
    // As many calls as there are bytes: of umask by PATH, of prlimit64 by HOME.
    let script = "i=${#PATH}; while [ $i -gt 0 ]; do umask; i=$((i-1)); done >/dev/null; \
        i=${#HOME}; while [ $i -gt 0 ]; do ulimit -t; i=$((i-1)); done >/dev/null; \
        cat $HOME/nowhere; nowhere; umask 022; ulimit -n; exit 0";
    let place = Place::new("vary", &case("a", script, "cwd = 'home'"));
    place.check(&["--update"]).assert_code(0);
    let text = place.baseline();
    for name in ["umask", "prlimit64"] {
        assert!(text.contains(&format!("\n{name} = \"varies\"")), "{text}");
    }
    // They mean the same.
    assert!(text.contains("\n\"{cwd}/nowhere\" = { missed = 1, open = 1 }"), "{text}");
    assert!(!text.contains("/./"), "{text}");
}

// ---- hints ----

#[test]
fn each_failure_says_where_it_can_be_mended() {
    let place = Place::new("hints", "");
    let sh = |more: &str| case("a", "exit 0", more);
    let of = |command: &str| format!("[[case]]\nname = \"a\"\ncommand = [\"{command}\"]\n");
    let directory = place.0.root().canonicalize().expect("it is there");
    let not_found = format!("cannot run ./nowhere: not found in {}", directory.display());
    for (baseline, what, hint) in [
        (sh("stdin = 'nowhere'"), "stdin: cannot read ./nowhere: No such file", "`stdin` in"),
        (sh("cwd = 'nowhere'"), "cwd: cannot go to ./nowhere: No such file", "`cwd` in"),
        (sh("cwd = 'coldtrace.toml'"), "cwd: cannot go to ./coldtrace.toml: not a", "`cwd` in"),
        (sh("prepare = 'exit 1'"), "prepare: `exit 1` failed", "`prepare` in"),
        (of("./nowhere"), not_found.as_str(), "`cwd` in"),
        (of("nowhere"), "cannot run nowhere: not found", "PATH of its env"),
        (of("/"), "cannot run /: Permission denied", "its command in"),
    ] {
        place.write(&(baseline + ANY));
        let finished = place.check(&[]);
        finished.assert_code(5);
        let out = finished.out();
        // Lines may be broken.
        let words = out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(what), "{what}\n{finished}");
        assert!(words.contains(hint), "{hint}\n{finished}");
        assert!(out.contains(what.split(": ").next().unwrap_or(what)), "{finished}");
    }
}

// ---- what a case says ----

#[test]
fn addresses_and_random_bytes_are_what_the_case_says() {
    // ADDR_NO_RANDOMIZE (linux/personality.h).
    for (more, personality) in [("", "00040000\n"), ("aslr = 'on'", "00000000\n")] {
        let place = Place::new("aslr", "");
        let found = place.output(&case("a", "cat /proc/self/personality", more), 0);
        assert_eq!(found, personality, "{more}");
    }
    if find_program("mktemp").is_none() {
        return skip("no mktemp");
    }
    let place = Place::new("random", "");
    let twice = |more: &str| {
        let case = case("a", "mktemp -u XXXXXXXXXXXX", more);
        [place.output(&case, 0), place.output(&case, 0)]
    };
    let [one, another] = twice("");
    assert_eq!(one, another);
    let [one, another] = twice("random = 'on'");
    assert_ne!(one, another);
}

#[test]
fn processors_are_as_many_as_the_case_says() {
    let here = std::thread::available_parallelism().map_or(1, usize::from);
    let place = Place::new("cpus", "");
    for (more, n) in [("", 1), ("cpus = 2", here.min(2)), ("cpus = 'all'", here)] {
        let found = place.output(&case("a", "nproc", more), 0);
        assert_eq!(found, format!("{n}\n"), "{more}");
    }
    if here == 1 {
        skip("there is one processor only");
    }
}

#[test]
fn input_and_directory_are_what_the_case_says() {
    let place = Place::new("stdin", "");
    put(place.path("input"), "some input\n");
    let baseline = case("a", "cat; pwd -P", "stdin = 'input'\ncwd = 'home'");
    // From where the baseline is, whoever starts it where.
    place.write(&(baseline + ANY));
    let mut command = coldtrace("check");
    command.args(["--keep"]).arg(place.path("kept")).arg("--baseline");
    finish(command.arg(place.path("coldtrace.toml")).current_dir("/")).assert_code(0);
    let home = place.path("home").canonicalize().expect("it is there");
    let found = text_of(place.path("kept/latest/stdout.log"));
    assert_eq!(found, format!("some input\n{}\n", home.display()));
}

#[test]
fn the_environment_is_what_the_case_says() {
    let place = Place::new("env", "");
    let variables = |env: &str| {
        let env = format!("env = {{ {env} }}");
        place.write(&(case("a", "tr \"\\\\0\" \"\\\\n\" < /proc/$$/environ", &env) + ANY));
        let mut command = place.command("check", &["--keep", "kept"]);
        command.env("SOME", "some").env("OTHER", "other").env("PATH", "/usr/bin:/bin");
        finish(&mut command).assert_code(0);
        let text = text_of(place.path("kept/latest/stdout.log"));
        let wanted = ["HOME", "OTHER", "PATH", "SET", "SOME"];
        let found =
            text.lines().filter(|line| wanted.contains(&line.split('=').next().unwrap_or("")));
        found.map(str::to_owned).collect::<Vec<_>>()
    };
    let (home, path) = (format!("HOME={}", place.path("home").display()), "PATH=/usr/bin:/bin");
    assert_eq!(variables(""), [&home, path]);
    assert_eq!(variables("pass = ['PATH', 'SOME', 'NONE']"), [path, "SOME=some"]);
    let set = "set = { SET = 'x y', SOME = 'mine' }, pass = ['PATH', 'SOME']";
    assert_eq!(variables(set), [path, "SET=x y", "SOME=mine"]);
    assert_eq!(variables("unset = ['HOME']"), [path]);
    let mut all = variables("clear = false, unset = ['OTHER']");
    all.sort();
    assert_eq!(all, [&home, path, "SOME=some"]);
}

#[test]
fn a_case_ends_in_time_and_as_it_is_to() {
    let place = Place::new("ends", "");
    for (script, more, status, what) in [
        ("sleep 300", "timeout = '200ms'", 5, "it did not end in time, and was to exit 0"),
        ("kill -TERM $$", "exit = 'SIGTERM'", 0, "ok coldtrace.toml"),
        (
            "kill -TERM $$",
            "exit = 'SIGINT'",
            5,
            "it was killed by SIGTERM, and was to end by SIGINT",
        ),
        ("exit 7", "exit = 7", 0, "ok coldtrace.toml"),
        ("exit 7", "exit = 'SIGTERM'", 5, "it exited 7, and was to end by SIGTERM"),
    ] {
        place.write(&(case("a", script, more) + ANY));
        let finished = place.check(&[]);
        finished.assert_code(status);
        let words = finished.out().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(what), "{what}\n{finished}");
    }
}

// ---- where nothing can be traced ----

#[test]
fn below_another_tracer_nothing_can_be_checked() {
    let place = Place::new("traced", &(case("a", "exit 0", "") + ANY));
    for arguments in [&[][..], &["--update"]] {
        let mut command = place.command("count", &["-o", "report", "--"]);
        let finished = finish(command.arg(coldtrace_path()).arg("check").args(arguments));
        finished.assert_code(3);
        assert!(finished.err().contains("coldtrace: cannot trace: "), "{finished}");
        assert_eq!(place.left(), 0);
    }
}

// ---- platforms ----

#[test]
fn a_static_program_has_a_platform_of_its_own() {
    let place = Place::new("static", "");
    put(place.path("app.c"), "#include <stdio.h>\nint main(void) { return puts(\"x\") < 0; }\n");
    for compiler in ["cc", "musl-gcc"] {
        let mut compile = Command::new(compiler);
        compile.args(["-static", "-o", "app", "app.c"]).current_dir(place.0.root());
        if find_program(compiler).is_none() || finish(&mut compile).code() != Some(0) {
            skip(&format!("no {compiler} -static"));
            continue;
        }
        let _ = fs::remove_file(place.path("coldtrace.toml"));
        place.check(&["--update", "--", "./app"]).assert_code(0);
        let text = place.baseline();
        let wanted = format!("[case.facts.\"{ARCH} linux static\"]");
        assert!(text.contains(&wanted), "{compiler}: {text}");
        assert!(!text.contains("glibc") && !text.contains("musl"), "{compiler}: {text}");
        place.check(&[]).assert_code(0);
    }
}
