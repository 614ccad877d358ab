//! Where the tracer runs: as PID 1 of a container, without root among set-user-id programs, with core
//! dumps on.

mod support;

use std::ffi::CString;
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use support::board::{child_running, state, until};
use support::fixture::{Fixture, built};
use support::process::{Finished, finish, start};
use support::{Scratch, coldtrace, coldtrace_path, find_program, is_root, nobody, read_record};
use support::{skip, table};

// ---- PID 1 ----

/// coldtrace as PID 1 of a PID namespace of its own; its words are to follow.
fn as_pid_1() -> Option<Command> {
    if !is_root() || find_program("unshare").is_none() {
        skip("a PID namespace needs root and unshare");
        return None;
    }
    let namespace = || {
        let mut command = Command::new("unshare");
        command.args(["-pf", "--mount-proc"]);
        command
    };
    if finish(namespace().arg("true")).code() != Some(0) {
        skip("no PID namespace here");
        return None;
    }
    let mut command = namespace();
    command.arg(coldtrace_path());
    Some(command)
}

#[test]
fn as_pid_1_it_ends_with_the_commands_status_or_128_and_its_signal() {
    for (script, code) in
        [("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143), ("kill -SEGV $$", 139)]
    {
        let Some(mut command) = as_pid_1() else { return };
        let scratch = Scratch::new("pid1-end");
        let report = scratch.path("report");
        command.args(["count", "-o"]).arg(&report).args(["--", "sh", "-c", script]);
        let finished = finish(&mut command);
        finished.assert_code(code);
        let table = std::fs::read_to_string(&report).unwrap_or_default();
        assert!(table.contains("execve"), "{script}: no table: {finished}");
    }
}

#[test]
fn as_pid_1_it_reaps_orphans_and_passes_signals_on() {
    let Some(mut command) = as_pid_1() else { return };
    let scratch = Scratch::new("pid1-signal");
    let (report, ready) = (scratch.path("report.json"), scratch.path("ready"));
    // The subshell's child is an orphan: it comes to PID 1, which counts it to its end.
    let script = format!(
        "(sh -c 'exit 5' & exit 0); trap 'exit 9' USR1; : > {}; while :; do sleep 0.05; done",
        ready.display()
    );
    command.args(["count", "--json", "-o"]).arg(&report).args(["--", "sh", "-c", &script]);
    let running = start(&mut command);
    until("the command to be ready", || ready.exists().then_some(()));
    let pid_1 = child_running(running.pid(), "coldtrace");
    // SAFETY: kill takes two numbers; the process is there until its parent reaps it.
    unsafe { libc::kill(pid_1, libc::SIGUSR1) };
    let finished = running.finish();
    finished.assert_code(9);
    let record = read_record(&report, &finished);
    assert_eq!(table::contradictions(&record), Vec::<String>::new(), "{finished}");
    assert!(record.tree.is_some_and(|tree| tree.processes >= 3), "{finished}");
}

#[test]
fn stale_orphans_do_not_disturb_the_counts_of_pid_1() {
    let Some(mut command) = as_pid_1() else { return };
    if find_program("nsenter").is_none() {
        return skip("no nsenter");
    }
    if !Path::new("/proc/sys/kernel/ns_last_pid").exists() {
        return skip("no CONFIG_CHECKPOINT_RESTORE: pids cannot be made to come again");
    }
    let scratch = Scratch::new("pid1");
    let (report, ready, go) =
        (scratch.path("report.json"), scratch.path("ready"), scratch.path("go"));
    // Orphans get pids from 2000 on, and so do the command's processes after them.
    let script = format!(
        "echo 1999 > /proc/sys/kernel/ns_last_pid; : > {}
         while ! [ -e {} ]; do sleep 0.05; done
         echo 1990 > /proc/sys/kernel/ns_last_pid
         for i in $(seq 300); do /bin/true; done
         echo pids to $(sh -c 'echo $$'); exit 7",
        ready.display(),
        go.display()
    );
    command.args(["count", "--json", "-o"]).arg(&report).args(["--", "sh", "-c", &script]);
    let running = start(&mut command);
    until("the command in the namespace", || {
        let there = ready.exists() || state(running.pid()) == 'Z';
        there.then_some(())
    });
    if !ready.exists() {
        return skip(&format!("no PID namespace here: {}", running.finish()));
    }
    let pid_1 = child_running(running.pid(), "coldtrace").to_string();
    let orphans = "for i in $(seq 120); do (/bin/true &); done";
    finish(Command::new("nsenter").args(["-t", &pid_1, "-p", "-m", "sh", "-c", orphans]))
        .assert_code(0);
    // What is not older might be a process's own end: time has to pass, whatever happens in it.
    sleep(Duration::from_millis(1200));
    std::fs::write(&go, "").expect("scratch can be written");
    let finished = running.finish();
    finished.assert_code(7);
    let record = read_record(&report, &finished);
    assert_eq!(table::contradictions(&record), Vec::<String>::new(), "{finished}");
    // Each makes its processes by these; a shell that waits sleeps in more of them.
    let made: u64 = ["clone", "clone3", "fork", "vfork"]
        .iter()
        .filter_map(|name| table::row(&record, name))
        .map(|row| row.calls - row.error_count())
        .sum();
    let processes = record.tree.as_ref().map_or(0, |tree| tree.processes);
    assert!(made >= 300, "{}", table::render(&record));
    assert_eq!(processes, made + 1, "{}\n{finished}", table::render(&record));
}

// ---- privileges ----

#[test]
fn a_privileged_program_runs_without_its_privilege_and_the_record_says_so() {
    for (mode, words) in [(0o4755, "is set-user-id"), (0o2755, "is set-group-id")] {
        says_what_was_taken(mode, words);
    }
}

fn says_what_was_taken(mode: u32, words: &str) {
    let Some(mut nobody) = nobody() else { return };
    let Some(id) = find_program("id") else { return skip("no id") };
    let scratch = Scratch::new("set-id");
    let (copy, report) = (scratch.path("id"), scratch.path("report.json"));
    // Not by this process, which may fork in another thread while it has the copy open.
    finish(Command::new("cp").arg(id).arg(&copy)).assert_code(0);
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(mode)).expect("it is ours");
    writable(&report);
    nobody.arg(coldtrace_path()).args(["count", "--json", "-o"]).arg(&report);
    let finished =
        finish(nobody.arg("--").arg(&copy).arg(if mode == 0o4755 { "-u" } else { "-g" }));
    finished.assert_code(0);
    assert_eq!(finished.out(), "65534\n", "{finished}");
    let notes = read_record(&report, &finished).measurement.notes;
    let copy = copy.display().to_string();
    let said = |note: &String| note.contains(&copy) && note.contains(words);
    assert!(notes.iter().any(said), "{notes:?}");
}

/// A file that an ordinary user may write, for its report.
fn writable(path: &Path) {
    std::fs::write(path, "").expect("scratch can be written");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o666)).expect("it is ours");
}

#[test]
fn a_program_with_file_capabilities_runs_without_and_the_record_says_so() {
    let Some(mut nobody) = nobody() else { return };
    let Some(grep) = find_program("grep") else { return skip("no grep") };
    let scratch = Scratch::new("file-caps");
    let (copy, report) = (scratch.path("grep"), scratch.path("report.json"));
    finish(Command::new("cp").arg(grep).arg(&copy)).assert_code(0);
    // Version 2, effective; permitted: CAP_NET_RAW alone (capabilities(7), linux/capability.h).
    let value: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    let bytes: Vec<u8> = value.iter().flat_map(|word| word.to_le_bytes()).collect();
    let path = CString::new(copy.as_os_str().as_bytes()).expect("no NUL in it");
    let name = c"security.capability";
    // SAFETY: strings that end in NUL, and a value with its length.
    let set = unsafe {
        libc::setxattr(path.as_ptr(), name.as_ptr(), bytes.as_ptr().cast(), bytes.len(), 0)
    };
    if set != 0 {
        return skip(&format!("no file capabilities here: {}", Error::last_os_error()));
    }
    writable(&report);
    nobody.arg(coldtrace_path()).args(["count", "--json", "-o"]).arg(&report);
    let finished = finish(nobody.arg("--").arg(&copy).args(["CapEff", "/proc/self/status"]));
    finished.assert_code(0);
    assert_eq!(finished.out(), "CapEff:\t0000000000000000\n", "{finished}");
    let notes = read_record(&report, &finished).measurement.notes;
    let copy = copy.display().to_string();
    let said = |note: &String| note.contains(&copy) && note.contains("file capabilities");
    assert!(notes.iter().any(said), "{notes:?}");
}

#[test]
fn what_an_ordinary_user_may_not_read_is_counted_all_the_same() {
    let Some(program) = built("unreadable") else { return };
    let scratch = Scratch::new("unreadable");
    let (copy, report) = (scratch.path("exec-only"), scratch.path("report.json"));
    finish(Command::new("cp").arg(&program.path).arg(&copy)).assert_code(0);
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o711)).expect("it is ours");
    writable(&report);
    // Of the whole program, or after it has said so itself.
    for (path, unreadable) in [(&program.path, 5), (&copy, 7)] {
        let Some(mut nobody) = nobody() else { return };
        nobody.arg(coldtrace_path()).args(["count", "--json", "-o"]).arg(&report);
        let finished = finish(nobody.arg("--").arg(path));
        let record = read_record(&report, &finished);
        let wrong = table::differences(&Fixture::read("unreadable"), &record);
        assert_eq!(wrong, Vec::<String>::new(), "{}\n{finished}", table::render(&record));

        let Some(mut nobody) = support::nobody() else { return };
        nobody.arg(coldtrace_path()).args(["files", "--json", "-o"]).arg(&report);
        let finished = finish(nobody.arg("--").arg(path));
        finished.assert_code(0);
        let text = std::fs::read(&report).expect("it was written");
        let listing: serde_json::Value =
            serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{error}: {finished}"));
        assert_eq!(listing["files"]["unreadable"], unreadable, "{listing} {finished}");
    }
}

// ---- filters ----

/// The command sees whether it may gain privileges; the filter says whether it was there.
fn assert_filtered(finished: &Finished, report: &Path, no_new_privs: &str) {
    finished.assert_code(0);
    let out = finished.out();
    assert!(out.contains(&format!("NoNewPrivs:\t{no_new_privs}\n")), "{finished}");
    assert!(out.contains("Seccomp:\t2\n"), "{finished}");
    let record = read_record(report, finished);
    assert_eq!(table::contradictions(&record), Vec::<String>::new(), "{finished}");
    let names: Vec<_> = table::rows(&record).iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["openat"], "{}", table::render(&record));
}

#[test]
fn root_without_sys_admin_gets_its_filter_by_no_new_privs() {
    if !is_root() || find_program("setpriv").is_none() {
        return skip("only root can put CAP_SYS_ADMIN down, by setpriv");
    }
    let scratch = Scratch::new("no-sys-admin");
    let report = scratch.path("report.json");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", "--"]);
    command.arg(coldtrace_path()).args(["count", "--json", "-e", "trace=openat", "-o"]);
    let finished = finish(command.arg(&report).args(["--", "cat", "/proc/self/status"]));
    assert_filtered(&finished, &report, "1");
}

#[test]
fn the_filter_is_there_before_the_command_becomes_another_user() {
    if !is_root() {
        return skip("only root can become somebody else");
    }
    let scratch = Scratch::new("filter-user");
    let report = scratch.path("report.json");
    let mut command = coldtrace("count");
    command.args(["--json", "-u", "nobody", "-e", "trace=openat", "-o"]).arg(&report);
    let finished = finish(command.args(["--", "cat", "/proc/self/status"]));
    // It did not have to give up what its files would give it.
    assert_filtered(&finished, &report, "0");
    let uid = finished.out().lines().find(|line| line.starts_with("Uid:")).map(str::to_owned);
    assert!(uid.is_some_and(|uid| !uid.contains("\t0")), "{finished}");
}

// ---- who traces ----

#[test]
fn a_command_that_would_trace_is_refused_and_the_summary_says_why() {
    let Some(program) = built("ptrace-refused") else { return };
    let finished = finish(coldtrace("count").arg("--").arg(&program.path));
    finished.assert_code(0);
    let said = "the command tried to trace";
    assert!(finished.err().contains(said) && finished.err().contains("4 times"), "{finished}");
}

// ---- core dumps ----

/// One at a time: where cores go is the machine's.
static CORES: Mutex<()> = Mutex::new(());

/// Where cores go, until this is dropped.
struct CorePattern(String);

impl CorePattern {
    const PATH: &str = "/proc/sys/kernel/core_pattern";

    fn set(pattern: &str) -> Option<Self> {
        let before = std::fs::read_to_string(Self::PATH).ok()?;
        std::fs::write(Self::PATH, pattern).ok()?;
        Some(Self(before))
    }
}

impl Drop for CorePattern {
    fn drop(&mut self) {
        let _ = std::fs::write(Self::PATH, &self.0);
    }
}

#[test]
fn a_core_handler_is_run_for_the_command_and_not_for_coldtrace() {
    if !is_root() || std::env::var_os("COLDTRACE_TEST_CORE_PATTERN").is_none() {
        return skip("it sets the machine's core_pattern: root, COLDTRACE_TEST_CORE_PATTERN=1");
    }
    let _one = CORES.lock();
    let scratch = Scratch::new("piped");
    let (handler, heard) = (scratch.path("h"), scratch.path("heard"));
    let script = format!("#!/bin/sh\necho \"$1\" >> {}\ncat > /dev/null\n", heard.display());
    std::fs::write(&handler, script).expect("scratch can be written");
    std::fs::set_permissions(&handler, PermissionsExt::from_mode(0o755)).expect("it is ours");
    let pattern = format!("|{} %e", handler.display());
    if pattern.len() > 120 {
        return skip("the path of the handler is too long for the kernel");
    }
    let Some(_restored) = CorePattern::set(&pattern) else {
        return skip("core_pattern cannot be written");
    };
    // The pipe ignores the limit that coldtrace sets itself.
    let dumps = scratch.path("dumps");
    finish(Command::new("cp").arg(find_program("sh").expect("a shell")).arg(&dumps)).assert_code(0);
    let script = format!(
        "{} count -o {} -- {} -c 'kill -SEGV $$'; echo $?",
        coldtrace_path().display(),
        scratch.path("report").display(),
        dumps.display()
    );
    let finished = finish(Command::new("sh").args(["-c", &script]));
    assert!(finished.out().ends_with("139\n"), "{finished}");
    // The kernel waits for a handler before the process is reaped: all has been heard by now.
    let heard = std::fs::read_to_string(&heard).unwrap_or_default();
    let heard: Vec<&str> =
        heard.lines().filter(|name| ["dumps", "coldtrace"].contains(name)).collect();
    assert_eq!(heard, ["dumps"], "{finished}");
}

#[test]
fn a_command_that_dumps_core_leaves_one_core_and_coldtrace_none() {
    let _one = CORES.lock();
    let pattern = std::fs::read_to_string(CorePattern::PATH).unwrap_or_default();
    if pattern.contains(['|', '/']) {
        return skip("cores go elsewhere here");
    }
    let scratch = Scratch::new("core");
    let report = scratch.path("report");
    let script = format!(
        "ulimit -c unlimited; cd {}; {} count -o {} -- sh -c 'kill -SEGV $$'; echo $?",
        scratch.path(".").display(),
        coldtrace_path().display(),
        report.display()
    );
    let finished = finish(Command::new("sh").args(["-c", &script]));
    assert!(finished.out().ends_with("139\n"), "{finished}");
    let entries = std::fs::read_dir(scratch.path(".")).expect("scratch is there").flatten();
    let cores: Vec<_> =
        entries.filter(|e| e.file_name().to_string_lossy().starts_with("core")).collect();
    if cores.is_empty() {
        return skip("no core was written here");
    }
    assert_eq!(cores.len(), 1, "{cores:?}");
    // A core begins with notes that name the process and its arguments.
    let core = std::fs::read(cores[0].path()).expect("it is ours");
    let notes = String::from_utf8_lossy(&core[..core.len().min(4096)]).into_owned();
    assert!(notes.contains("sh\0") && notes.contains("kill -SEGV"), "{notes}");
    assert!(!notes.contains("coldtrace"), "a core of coldtrace");
}
