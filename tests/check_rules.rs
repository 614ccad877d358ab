//! Rules of `coldtrace check` against programs that really do what these forbid.

mod support;

use std::fs;
use std::path::PathBuf;

use support::process::{Finished, finish};
use support::{Scratch, coldtrace, find_program};

/// A directory with a baseline, which is home and working directory in one.
struct Place(Scratch);

impl Place {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Judges a shell's commands by these rules.
    fn judges(&self, script: &str, rules: &str) -> Finished {
        self.judges_command(&["/bin/sh", "-c", script], rules)
    }

    fn judges_command(&self, command: &[&str], rules: &str) -> Finished {
        let text =
            format!("schema = 1\n[[case]]\nname = \"c\"\ncommand = {command:?}\nexit = 0\n{rules}");
        fs::write(self.path("coldtrace.toml"), text).expect("a file that can be written");
        let mut command = coldtrace("check");
        command.current_dir(self.0.root()).env("HOME", self.0.root());
        finish(&mut command)
    }

    /// Whether the rule fails, and what is said of it.
    fn fails(&self, script: &str, rule: &str) -> bool {
        let finished = self.judges(script, &format!("[[rule]]\nid = \"r\"\n{rule}\n"));
        match finished.code() {
            Some(0) => false,
            Some(1) if finished.out().contains("FAIL") => true,
            _ => panic!("{rule}\n{finished}"),
        }
    }
}

#[test]
fn a_secret_is_found_by_each_of_its_names() {
    let place = Place::new("rules-secret");
    let secret = place.path(".secret");
    fs::write(&secret, "s").expect("a file that can be written");
    let script = "read -r line < .secret || :";
    for path in [secret.to_str().expect("text"), "{home}/.s*", "{cwd}/.s*", "/**/.secret"] {
        assert!(place.fails(script, &format!("path = \"{path}\"")), "{path}");
    }
    assert!(!place.fails(script, "path = \"{home}/secret\""));
}

#[test]
fn a_directory_that_is_removed_is_written() {
    let place = Place::new("rules-rmdir");
    fs::create_dir(place.path("d")).expect("a directory");
    let Some(rmdir) = find_program("rmdir") else { return };
    let script = format!("test -d d && {} d; mkdir d; :", rmdir.display());
    assert!(place.fails(&script, "path = \"{cwd}/d\"\naccess = \"write\"\nmax = 1"));
    assert!(!place.fails(&script, "path = \"{cwd}/d\"\naccess = \"write\"\nmax = 2"));
}

#[test]
fn each_write_counts() {
    let place = Place::new("rules-appends");
    let script = "for i in 1 2 3 4 5; do echo x >> f; done";
    // An open, and a write, each.
    assert!(place.fails(script, "path = \"{cwd}/f\"\naccess = \"write\"\nmax = 9"));
    assert!(!place.fails(script, "path = \"{cwd}/f\"\naccess = \"write\"\nmax = 10"));
}

#[test]
fn a_link_to_a_program_is_a_name_of_it() {
    let place = Place::new("rules-link");
    let Some(program) = find_program("env").and_then(|path| path.canonicalize().ok()) else {
        return;
    };
    std::os::unix::fs::symlink(&program, place.path("tool")).expect("a link");
    let real = program.file_name().and_then(|name| name.to_str()).expect("text").to_owned();
    for (allowed, held) in [("tool", true), (real.as_str(), true), ("other", false)] {
        let rule = format!("exec = [\"sh\", \"{allowed}\"]");
        assert_eq!(!place.fails("./tool > /dev/null; :", &rule), held, "{allowed}");
    }
}

#[test]
fn addresses_are_excepted_as_they_are_shown() {
    let place = Place::new("rules-addresses");
    let Some(bash) = find_program("bash") else { return };
    let script = "exec 3<>/dev/udp/127.0.0.1/8125";
    let bash = bash.to_str().expect("text");
    let code = |except: &str| {
        let rule = format!("syscall = \"connect\"\nfamily = \"inet\"\nexcept = \"{except}\"");
        let rules = format!("[[rule]]\nid = \"r\"\n{rule}\n");
        place.judges_command(&[bash, "-c", script], &rules)
    };
    for except in ["127.0.0.1:*", "127.0.0.1:8125/udp"] {
        code(except).assert_code(0);
    }
    let finished = code("127.0.0.2:*");
    finished.assert_code(1);
    assert!(finished.out().contains("connect 127.0.0.1:8125/udp"), "{finished}");
}

#[test]
fn a_rule_that_could_never_fail_is_refused_in_one_line() {
    let place = Place::new("rules-refused");
    for (rule, why) in [
        ("path = \"{hmoe}/**\"", "{hmoe} stands for nothing"),
        ("syscall = \"connect\"\nfamily = \"ipv4\"", "family \"ipv4\""),
        ("metric = \"ENOENTT\"\nmax = 0", "did you mean ENOENT?"),
        ("path = \"/x\"\naccess = \"write\"\nexe = \"sh\"", "leave out access"),
    ] {
        let finished = place.judges(":", &format!("[[rule]]\nid = \"r\"\n{rule}\n"));
        finished.assert_code(2);
        assert!(finished.err().contains(why), "{finished}");
        assert_eq!(finished.err().lines().count(), 1, "{finished}");
    }
}

#[test]
fn a_marker_that_is_deleted_fails_the_rule_of_its_region() {
    let place = Place::new("rules-marker");
    let rules = "[[rule]]\nid = \"scan\"\nregion = \"scan\"\nsyscall = \"openat\"\nmax = 9\n";
    let marked = "test -e /coldtrace/begin/scan; test -e /etc; test -e /coldtrace/end/scan; :";
    let unmarked = "test -e /etc; :";
    place.judges(marked, rules);
    let update = || {
        let mut command = coldtrace("check");
        command.arg("--update").current_dir(place.0.root()).env("HOME", place.0.root());
        finish(&mut command).assert_code(0);
    };
    update();
    let path = place.path("coldtrace.toml");
    let recorded = fs::read_to_string(&path).expect("a baseline");
    assert!(recorded.contains("region.scan"), "{recorded}");
    fs::write(&path, recorded.replace(marked, unmarked)).expect("a file that can be written");
    let mut command = coldtrace("check");
    let finished = finish(command.current_dir(place.0.root()).env("HOME", place.0.root()));
    finished.assert_code(1);
    assert!(finished.out().contains("region scan never began"), "{finished}");
}
