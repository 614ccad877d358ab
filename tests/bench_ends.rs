//! What `bench` keeps and says when something does not go its way: commands that leave others
//! behind, that are stopped, that are other programs when traced; ends before the end.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use coldtrace::bench::Bench;
use support::process::{Finished, LIMIT, finish, start};
use support::{Scratch, coldtrace, coldtrace_path, find_program, is_root, nobody, skip};

/// `coldtrace bench OPTIONS -- WORDS` with nothing known of other runs.
fn bench(scratch: &Scratch, options: &[&str], words: &[&str]) -> Command {
    let mut command = coldtrace("bench");
    command.env("XDG_STATE_HOME", scratch.path("state")).arg("--runs").arg(scratch.path("runs"));
    command.args(options).arg("--").args(words);
    command
}

fn run(scratch: &Scratch, options: &[&str], words: &[&str]) -> Finished {
    finish(&mut bench(scratch, options, words))
}

/// The only bench that was made.
fn directory(scratch: &Scratch) -> PathBuf {
    let entries = fs::read_dir(scratch.path("runs")).expect("there are runs");
    let made = |path: &PathBuf| path.is_dir() && !path.is_symlink();
    let mut found = entries.flatten().map(|entry| entry.path()).filter(made);
    let directory = found.next().expect("one bench");
    assert_eq!(found.next(), None);
    directory
}

fn read(directory: &Path) -> Bench {
    let path = directory.join("bench.json");
    let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).expect("it is a bench")
}

fn names(bench: &Bench) -> Vec<&str> {
    bench.commands[0].runs.iter().map(|run| run.run.as_str()).collect()
}

/// Until there is such a file.
fn wait_for(path: &Path) {
    let since = Instant::now();
    while !path.exists() {
        assert!(since.elapsed() < LIMIT, "no {}", path.display());
        std::thread::yield_now();
    }
}

#[test]
fn what_a_command_leaves_behind_does_not_hold_up_its_bench() {
    let scratch = Scratch::new("bench-daemon");
    // Longer than it is waited for, and no longer than the end of this test is.
    let script = "sleep 6 >/dev/null 2>&1 & exit 0";
    let finished = run(&scratch, &["-n", "1", "--warmup", "0"], &["sh", "-c", script]);
    finished.assert_code(0);
    let bench = read(&directory(&scratch));
    assert_eq!(names(&bench), ["first", "traced-1", "warm-1"]);
    assert!(bench.commands[0].runs.iter().all(|run| run.failed.is_none()), "{finished}");
    let said = bench.warnings.iter().filter(|warning| warning.contains("went on untraced"));
    assert_eq!(said.count(), 1, "{:?}", bench.warnings);
}

#[test]
fn what_was_measured_outlives_a_kill() {
    let scratch = Scratch::new("bench-killed");
    // Runs take so long that several of them are written down in between.
    let script = "sleep 0.3";
    let running = start(&mut bench(&scratch, &["-n", "1000"], &["sh", "-c", script]));
    let runs = scratch.path("runs");
    let file = || directory(&scratch).join("bench.json");
    wait_for(&runs);
    let since = Instant::now();
    while !(fs::read_dir(&runs)
        .is_ok_and(|mut all| all.any(|e| e.is_ok_and(|e| e.path().is_dir())))
        && file().exists())
    {
        assert!(since.elapsed() < LIMIT, "nothing was written down");
        std::thread::sleep(Duration::from_millis(5));
    }
    running.kill(libc::SIGKILL);
    running.finish().assert_signal(libc::SIGKILL);
    let bench = read(&directory(&scratch));
    assert!(bench.unfinished);
    assert_eq!(names(&bench)[..2], ["first", "traced-1"]);
    let shown = finish(coldtrace("show").arg(directory(&scratch)));
    shown.assert_code(0);
    assert!(shown.out().contains("it did not come to its end"), "{shown}");
}

#[test]
fn a_command_that_does_not_exist_is_found_out_before_anything_is_run() {
    let scratch = Scratch::new("bench-nowhere");
    let ran = scratch.path("ran");
    let touch = format!("echo >{}", ran.display());
    let words = ["sh", "-c", &touch, ":::", "./no-such-program"];
    let finished = run(&scratch, &["-n", "1"], &words);
    finished.assert_code(127);
    assert!(!ran.exists(), "the first command was run: {finished}");
    // What --prepare makes is there when it is needed.
    let made = scratch.path("made");
    let prepare = format!("ln -sf /bin/true {}", made.display());
    let options = ["-n", "1", "--prepare", &prepare];
    run(&scratch, &options, &[made.to_str().expect("UTF-8")]).assert_code(0);
}

#[test]
fn cold_runs_of_unknown_files_are_refused_before_anything_is_run() {
    let scratch = Scratch::new("bench-no-set");
    let ran = scratch.path("ran");
    let touch = format!("echo >{}", ran.display());
    let finished = run(&scratch, &["--cold", "1", "--traced", "0"], &["sh", "-c", &touch]);
    finished.assert_code(125);
    assert!(finished.err().contains("--traced 1"), "{finished}");
    assert!(!ran.exists(), "{finished}");
}

#[test]
fn a_run_whose_record_cannot_be_written_is_kept() {
    let scratch = Scratch::new("bench-unwritable");
    let runs = scratch.path("runs");
    let script = format!(
        "echo said; for d in {}/2*/warm-1; do mkdir $d/record.json 2>&-; done; true",
        runs.display()
    );
    let finished = run(&scratch, &["-n", "2"], &["sh", "-c", &script]);
    finished.assert_code(125);
    assert!(finished.err().contains("warm-1/record.json"), "{finished}");
    let directory = directory(&scratch);
    let said = fs::read_to_string(directory.join("warm-1/stdout.log"));
    assert_eq!(said.ok().as_deref(), Some("said\n"));
    assert_eq!(names(&read(&directory)), ["first", "traced-1", "warmup-1"]);
}

#[test]
fn an_end_before_the_first_run_leaves_nothing() {
    let scratch = Scratch::new("bench-setup-cut");
    let ready = scratch.path("ready");
    let setup = format!("echo >{}; exec sleep 60", ready.display());
    let running = start(&mut bench(&scratch, &["--setup", &setup], &["true"]));
    wait_for(&ready);
    running.kill_group(libc::SIGINT);
    running.finish().assert_signal(libc::SIGINT);
    let left: Vec<_> = fs::read_dir(scratch.path("runs")).expect("it was made").flatten().collect();
    assert!(left.iter().all(|entry| !entry.path().is_dir()), "{left:?}");
    // What a setup that failed had to say is kept, and no more.
    let finished = run(&scratch, &["--setup", "echo why; exit 3"], &["true"]);
    finished.assert_code(125);
    let kept: Vec<String> = fs::read_dir(directory(&scratch))
        .expect("it is kept")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(kept, ["setup.log"]);
}

#[test]
fn a_run_that_was_stopped_says_so() {
    let scratch = Scratch::new("bench-stopped");
    // It stops itself in its last run; somebody that it has started has it go on.
    let seen = scratch.path("seen");
    let script = format!(
        "if [ -e {0} ]; then (sleep 0.2; kill -CONT $$) & kill -STOP $$; wait; fi; true",
        seen.display()
    );
    let options = ["-n", "1", "--warmup", "0", "--traced", "0"];
    run(&scratch, &options, &["sh", "-c", &script]).assert_code(0);
    let before = directory(&scratch);
    assert_eq!(read(&before).warnings.iter().filter(|w| w.contains("stopped")).count(), 0);
    fs::remove_dir_all(before).expect("it is ours");
    fs::write(&seen, "").expect("it can be written");
    let finished = run(&scratch, &options, &["sh", "-c", &script]);
    finished.assert_code(0);
    let bench = read(&directory(&scratch));
    let said: Vec<&String> = bench.warnings.iter().filter(|w| w.contains("stopped")).collect();
    assert_eq!(
        said,
        ["first: it was stopped for a while, which is in its wall time"],
        "{finished}"
    );
}

#[test]
fn a_program_that_is_another_when_traced_is_named() {
    let (Some(mut nobody), Some(id)) = (nobody().filter(|_| is_root()), find_program("id")) else {
        skip("only root can make a set-user-id program for somebody else");
        return;
    };
    let scratch = Scratch::new("bench-setuid");
    let copy = scratch.path("id");
    fs::copy(id, &copy).expect("it can be copied");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("it is ours");
    assert_eq!(fs::metadata(&copy).expect("it is there").uid(), 0);
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o777)).expect("it is ours");
    nobody.arg(coldtrace_path()).arg("bench").env("XDG_STATE_HOME", scratch.path("state"));
    nobody.arg("--runs").arg(scratch.path("runs")).args(["-n", "1", "--"]).arg(&copy).arg("-u");
    let finished = finish(&mut nobody);
    finished.assert_code(0);
    let bench = read(&directory(&scratch));
    let said: Vec<&String> =
        bench.warnings.iter().filter(|w| w.contains("without that privilege")).collect();
    assert!(said.len() == 1 && said[0].starts_with("traced-1: "), "{finished}");
}
