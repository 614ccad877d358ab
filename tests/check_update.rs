//! `coldtrace check --update`: what it writes, what it leaves alone, and what it refuses.

mod support;

use std::fs;
use std::process::Command;

use support::process::{Finished, finish};
use support::{Scratch, coldtrace, nobody};

/// A directory with a baseline in it.
struct Place(Scratch);

impl Place {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn check(&self, arguments: &[&str]) -> Command {
        let mut command = coldtrace("check");
        command.args(arguments).current_dir(self.0.root()).env("HOME", self.0.path("home"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.check(arguments))
    }

    fn baseline(&self) -> String {
        fs::read_to_string(self.0.path("coldtrace.toml")).expect("a baseline")
    }

    fn put(&self, text: &str) {
        fs::write(self.0.path("coldtrace.toml"), text).expect("a file that can be written");
    }
}

fn one_line(finished: &Finished, code: i32, what: &str) {
    finished.assert_code(code);
    let err = finished.err();
    assert_eq!(err.lines().count(), 1, "{finished}");
    assert!(err.contains(what), "{what}\n{finished}");
}

#[test]
fn a_second_update_of_several_programs_changes_nothing() {
    let place = Place::new("update-twice");
    let script = "/bin/true; cat /dev/null; exit 0";
    place.run(&["--update", "-n", "2", "--", "/bin/sh", "-c", script]).assert_code(0);
    let first = place.baseline();
    assert!(first.contains(".program.cat]") && first.contains(".path]"), "{first}");
    let again = place.run(&["--update", "-n", "2"]);
    again.assert_code(0);
    assert!(again.err().contains("nothing has changed"), "{again}");
    assert_eq!(place.baseline(), first);
    place.run(&[]).assert_code(0);
}

#[test]
fn a_case_gets_the_name_that_was_said_or_that_of_its_script() {
    let place = Place::new("update-names");
    fs::write(place.0.path("job.sh"), "exit 0\n").expect("a script");
    place.run(&["--update", "-n", "1", "--case", "new", "--", "/bin/true"]).assert_code(0);
    place.run(&["--update", "-n", "1", "--", "sh", "job.sh"]).assert_code(0);
    // The same command under another name is another case.
    place.run(&["--update", "-n", "1", "--case", "newer", "--", "/bin/true"]).assert_code(0);
    let text = place.baseline();
    let names: Vec<_> = text.lines().filter(|line| line.starts_with("name = ")).collect();
    assert_eq!(names, ["name = \"new\"", "name = \"job\"", "name = \"newer\""]);
    // It is known from now on.
    place.run(&["--update", "-n", "1", "--case", "new", "--", "/bin/true"]).assert_code(0);
    assert_eq!(place.baseline(), text);
    let other = place.run(&["--update", "--case", "new", "--", "/bin/false"]);
    one_line(&other, 2, "--case new: in coldtrace.toml its command is `/bin/true`");
    one_line(&place.run(&["--update", "--case", "x"]), 2, "no such case; it has new, job, newer");
    assert_eq!(place.baseline(), text);
    place.run(&[]).assert_code(0);
}

#[test]
fn options_that_mean_nothing_with_it_are_refused() {
    let place = Place::new("update-options");
    for options in [
        ["--report", "json=x"],
        ["--format", "json"],
        ["-o", "x"],
        ["--keep", "x"],
        ["--seccomp-profile", "x"],
    ] {
        let arguments = [&["--update"], &options[..], &["--", "/bin/true"]].concat();
        one_line(&place.run(&arguments), 2, "--update");
    }
    one_line(&place.run(&["-n", "3"]), 2, "not provided: --update");
    assert_eq!(fs::read_dir(place.0.root()).expect("a directory").count(), 0);
}

#[test]
fn what_is_saved_while_a_recording_runs_is_not_lost() {
    let place = Place::new("update-saved");
    let script = "test -e go && echo '# by hand' >>coldtrace.toml; exit 0";
    place.run(&["--update", "-n", "1", "--", "/bin/sh", "-c", script]).assert_code(0);
    fs::write(place.0.path("go"), "").expect("a file");
    let before = place.baseline();
    let refused = place.run(&["--update", "-n", "1"]);
    refused.assert_code(2);
    let err = refused.err();
    let last = err.lines().last().unwrap_or_default();
    assert!(last.contains("coldtrace.toml was changed while it was recorded"), "{refused}");
    assert_eq!(place.baseline(), before + "# by hand\n# by hand\n");
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_runs() {
    let place = Place::new("update-refused");
    let inline =
        "schema = 1\ncase = [{ name = \"a\", command = [\"/bin/sh\", \"-c\", \"echo >ran\"] }]\n";
    place.put(inline);
    one_line(&place.run(&["--update"]), 2, "`case` is written in one line: write [[case]]");
    one_line(&place.run(&["--update", "--", "/bin/true"]), 2, "write [[case]]");
    assert_eq!(place.baseline(), inline);
    let lines =
        "schema = 1\n[[case]]\nname = \"a\"\ncommand = [\"/bin/sh\", \"-c\", \"echo >ran\"]\n";
    place.put(&format!("{lines}facts = {{}}\n"));
    one_line(&place.run(&["--update"]), 2, "[case.facts.\"x86_64 linux glibc\"]");
    place.put(lines);
    if let Some(mut somebody) = nobody() {
        let command = place.check(&["--update"]);
        somebody.arg(command.get_program()).args(command.get_args());
        somebody.current_dir(place.0.root());
        one_line(&finish(&mut somebody), 2, "cannot write coldtrace.toml: ");
    }
    assert_eq!(place.baseline(), lines);
    assert!(!place.0.path("ran").exists());
}

#[test]
fn what_the_first_run_made_is_named() {
    let place = Place::new("update-first");
    let script = "mkdir made 2>/dev/null || cat /dev/null; exit 0";
    let recorded = place.run(&["--update", "-n", "2", "--", "/bin/sh", "-c", script]);
    recorded.assert_code(0);
    let err = recorded.err();
    let line = err.lines().find(|line| line.contains("the first run, not used"));
    let line = line.unwrap_or_else(|| panic!("{recorded}"));
    assert!(
        line.contains("it used {cwd}/made otherwise (1 mkdir; then 1 mkdir, 1 EEXIST)"),
        "{line}"
    );
}
