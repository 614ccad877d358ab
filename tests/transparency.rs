//! What a program can see of itself is the same traced and untraced, but for TracerPid: descriptors,
//! environment, signals, process group, session, terminal, limits, and all else that the fixture
//! `self-view` writes down. However it was launched.

mod support;

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use support::fixture::{Program, built};
use support::process::{LIMIT, finish, start};
use support::{Scratch, coldtrace_path, find_program, is_root, skip};

/// The tracers that are held against an untraced run; `{file}` and `{runs}` are replaced.
const TRACERS: &[&[&str]] = &[
    &["count", "--engine", "ptrace", "-o", "{file}"],
    &["count", "--tier-up-after", "5", "-o", "{file}"],
    &["run", "--runs", "{runs}", "--output", "pass"],
];

/// What a process that counts by itself is seen to have: a filter (docs/fast.md).
const OF_FAST: [&str; 3] = ["Seccomp:", "Seccomp_filters:", "NoNewPrivs:"];

/// Others, which launch in the same way and differ later.
const MORE_TRACERS: &[&[&str]] = &[
    &["count", "--engine", "ptrace", "--no-syscall-info", "-o", "{file}"],
    &["count", "--engine", "ptrace", "--by", "thread", "--json", "-o", "{file}"],
    &["count", "--detach-on-exit", "-o", "{file}"],
    &["count", "--timeout", "60s", "-o", "{file}"],
    &["run", "--runs", "{runs}", "--output", "pass", "--no-trace"],
];

/// The two programs.
struct Programs {
    view: Program,
    launcher: Program,
}

fn programs() -> Option<Programs> {
    Some(Programs { view: built("self-view")?, launcher: built("launch-with")? })
}

/// What `self-view` sees below `tracer` (none: untraced), launched with `settings`, each of which is
/// one run of the launcher.
fn view(programs: &Programs, settings: &[&[&str]], tracer: Option<&[&str]>) -> String {
    let scratch = Scratch::new("view");
    let file = scratch.path("view");
    let mut words: Vec<String> = Vec::new();
    for settings in settings {
        words.push(programs.launcher.path.display().to_string());
        words.extend(settings.iter().map(|&word| word.to_owned()));
        words.push("--".to_owned());
    }
    if let Some(options) = tracer {
        words.push(coldtrace_path().display().to_string());
        words.extend(options.iter().map(|word| {
            word.replace("{file}", &scratch.path("report").display().to_string())
                .replace("{runs}", &scratch.path("runs").display().to_string())
        }));
        words.push("--".to_owned());
    }
    let (first, rest) = words.split_first().expect("there is always a launcher");
    let finished = finish(Command::new(first).args(rest).arg(&programs.view.path).arg(&file));
    finished.assert_code(0);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}: {finished}"))
}

/// Lines that only one of them has.
fn differences(untraced: &str, traced: &str) -> Vec<String> {
    let only = |mark: &str, a: &str, b: &str| -> Vec<String> {
        let there: Vec<&str> = b.lines().collect();
        a.lines()
            .filter(|line| !there.contains(line))
            .map(|line| format!("{mark} {line}"))
            .collect()
    };
    let mut all = only("untraced:", untraced, traced);
    all.extend(only("traced:  ", traced, untraced));
    if all.is_empty() && untraced != traced {
        all.push("the same lines in another order, or another number of them".to_owned());
    }
    all
}

#[track_caller]
fn looks_the_same(programs: &Programs, settings: &[&[&str]], tracers: &[&[&str]]) {
    let untraced = view(programs, settings, None);
    assert!(untraced.contains("signal 64: "), "an empty view proves nothing:\n{untraced}");
    for tracer in tracers {
        let traced = view(programs, settings, Some(tracer));
        let mut found = differences(&untraced, &traced);
        if !tracer.contains(&"ptrace") {
            found.retain(|line| !OF_FAST.iter().any(|name| line.contains(name)));
        }
        assert!(
            found.is_empty(),
            "launched with {settings:?} under {tracer:?}:\n  {}",
            found.join("\n  ")
        );
    }
}

/// Each of these settings alone.
#[track_caller]
fn each_looks_the_same(settings: &[&[&str]]) {
    let Some(programs) = programs() else { return };
    for settings in settings {
        looks_the_same(&programs, &[settings], TRACERS);
    }
}

#[test]
fn a_plain_launch() {
    let Some(programs) = programs() else { return };
    looks_the_same(&programs, &[&[]], &[TRACERS, MORE_TRACERS].concat());
}

#[test]
fn closed_standard_streams_stay_closed() {
    each_looks_the_same(&[
        &["close=0"],
        &["close=1"],
        &["close=2"],
        &["close=0", "close=1"],
        &["close=0", "close=2"],
        &["close=1", "close=2"],
        &["close=0", "close=1", "close=2"],
    ]);
}

#[test]
fn closed_standard_streams_stay_closed_without_tracing_too() {
    let Some(programs) = programs() else { return };
    for settings in [&["close=0"][..], &["close=1"], &["close=0", "close=1", "close=2"]] {
        looks_the_same(&programs, &[settings], MORE_TRACERS);
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    let Some(programs) = programs() else { return };
    for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
        looks_the_same(&programs, &[&[&format!("ignore={signal}")]], TRACERS);
    }
    // All that can be, also those that the C library and the tracer keep for themselves.
    let all: Vec<String> = (1..=64)
        .filter(|n| ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(n))
        .map(|n| format!("ignore={n}"))
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    looks_the_same(&programs, &[&all], &[TRACERS, MORE_TRACERS].concat());
}

#[test]
fn blocked_signals_stay_blocked() {
    let Some(programs) = programs() else { return };
    for signal in [libc::SIGCHLD, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
        looks_the_same(&programs, &[&[&format!("block={signal}")]], TRACERS);
    }
    let all: Vec<String> = (1..=64)
        .filter(|n| ![libc::SIGKILL, libc::SIGSTOP, 32, 33].contains(n))
        .map(|n| format!("block={n}"))
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    looks_the_same(&programs, &[&all], &[TRACERS, MORE_TRACERS].concat());
}

#[test]
fn a_session_of_its_own() {
    let Some(programs) = programs() else { return };
    looks_the_same(&programs, &[&["setsid"], &[]], TRACERS);
}

#[test]
fn an_inherited_descriptor_keeps_its_number_and_no_other_appears() {
    each_looks_the_same(&[
        &["open=3"],
        &["open=9"],
        &["open=10"],
        &["open=63"],
        &["open=10", "open=11", "open=12", "open=13", "open=14", "open=15", "open=16"],
        &["open=1000"],
        &["open=3", "close=0"],
    ]);
}

#[test]
fn a_low_limit_of_descriptors() {
    // 99 is open already: the harness holds it.
    each_looks_the_same(&[&["nofile=24"], &["nofile=10"], &["open=9", "nofile=12"]]);
}

#[test]
fn what_else_a_launcher_may_set() {
    each_looks_the_same(&[
        &["nice=5"],
        &["batch"],
        &["cpu=0"],
        &["umask=077"],
        &["core=0"],
        &["alarm=1000"],
        &["no-new-privs"],
        &["cd=/"],
        &["env=A=B=C", "env=EMPTY="],
    ]);
}

#[test]
fn a_terminal_of_its_own() {
    let Some(programs) = programs() else { return };
    let terminal = Terminal::open();
    let tty = format!("tty={}", terminal.path.display());
    let tracers = [TRACERS, MORE_TRACERS].concat();
    for extra in [None, Some("close=0"), Some("close=2"), Some("ignore=1")] {
        let inner: Vec<&str> = extra.into_iter().collect();
        looks_the_same(&programs, &[&[&tty], &inner], &tracers);
        terminal.discard_output();
    }
    let untraced = view(&programs, &[&[&tty], &[]], None);
    for line in ["controlling terminal: there", "foreground group: own"] {
        assert!(untraced.contains(line), "not on a terminal at all: {untraced}");
    }
}

#[test]
fn an_ordinary_users_view() {
    let Some(programs) = programs() else { return };
    if !is_root() {
        return skip("all the other tests are an ordinary user's here");
    }
    if find_program("setpriv").is_none() {
        return skip("no setpriv");
    }
    let scratch = Scratch::new("ordinary");
    let nobody: &[&str] = &["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    let view = |tracer: &[&str]| {
        let file = scratch.path("view");
        File::create(&file).expect("scratch can be written");
        std::os::unix::fs::chown(&file, Some(65534), Some(65534)).expect("root may");
        let mut command = Command::new("setpriv");
        command.args(nobody).arg(&programs.launcher.path).arg("--");
        command.args(tracer).arg(&programs.view.path).arg(&file);
        let finished = finish(&mut command);
        (finished.code() == Some(0))
            .then(|| std::fs::read_to_string(&file).expect("a view was written"))
            .ok_or_else(|| finished.to_string())
    };
    let untraced = match view(&[]) {
        Ok(untraced) => untraced,
        Err(why) => return skip(&format!("nobody cannot run the fixture here: {why}")),
    };
    for engine in ["ptrace", "auto"] {
        let program = coldtrace_path().to_string_lossy();
        let traced = view(&[&program, "count", "--engine", engine, "-o", "/dev/null", "--"]);
        let traced = traced.unwrap_or_else(|why| panic!("{why}"));
        let mut found = differences(&untraced, &traced);
        if engine == "auto" {
            found.retain(|line| !OF_FAST.iter().any(|name| line.contains(name)));
        }
        assert!(found.is_empty(), "{engine}: {}", found.join("\n"));
    }
}

#[test]
fn an_attached_process_sees_only_its_tracer() {
    let Some(programs) = programs() else { return };
    let scratch = Scratch::new("attached");
    let untraced = view(&programs, &[&[]], None);
    let file = scratch.path("view");
    let mut command = Command::new(&programs.launcher.path);
    command.arg("--").arg(&programs.view.path).arg(&file).arg("traced");
    let target = start(&mut command);
    let child = until("the launcher's child", || {
        let path = format!("/proc/{0}/task/{0}/children", target.pid());
        let child = std::fs::read_to_string(path).ok()?;
        let child = child.trim().to_owned();
        let exe = std::fs::read_link(format!("/proc/{child}/exe")).ok()?;
        (exe == programs.view.path).then_some(child)
    });
    let mut command = Command::new(coldtrace_path());
    command.args(["count", "-p", &child, "--max-slowdown", "off", "--duration", "60s"]);
    finish(command.args(["-o", "/dev/null"])).assert_code(0);
    target.finish().assert_code(0);
    let traced = std::fs::read_to_string(&file).expect("a view was written");
    let mut found = differences(&untraced, &traced);
    found.retain(|line| !line.ends_with("arguments: 2") && !line.ends_with("arguments: 3"));
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Asks until there is an answer; panics at the limit.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begin.elapsed() < LIMIT, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A pseudo-terminal; nobody reads it but [`Terminal::discard_output`].
struct Terminal {
    master: OwnedFd,
    /// Held, so that the terminal stays when a session on it ends.
    _slave: OwnedFd,
    path: PathBuf,
}

impl Terminal {
    fn open() -> Self {
        let (mut master, mut slave) = (-1, -1);
        let null = std::ptr::null_mut();
        // SAFETY: the kernel writes two descriptors; no name and no settings are asked for.
        let done = unsafe {
            libc::openpty(&raw mut master, &raw mut slave, null, null.cast(), null.cast())
        };
        assert_eq!(done, 0, "openpty: {}", std::io::Error::last_os_error());
        for fd in [master, slave] {
            // SAFETY: sets flags of descriptors that were just opened.
            unsafe {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
                libc::fcntl(master, libc::F_SETFL, libc::O_NONBLOCK);
            }
        }
        // SAFETY: both were just opened and belong to nobody else.
        let [master, slave] = [master, slave].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let path = std::fs::read_link(format!("/proc/self/fd/{}", slave.as_raw_fd()));
        Self { master, _slave: slave, path: path.expect("/proc names the terminal") }
    }

    fn discard_output(&self) {
        use std::io::Read;
        let mut file = File::from(self.master.try_clone().expect("a descriptor"));
        let mut buffer = [0; 4096];
        while matches!(file.read(&mut buffer), Ok(n) if n > 0) {}
    }
}

#[test]
fn the_view_shows_what_a_tracer_could_leave_behind() {
    // The comparison is worth nothing if the view does not notice.
    let Some(programs) = programs() else { return };
    let plain = view(&programs, &[&[]], None);
    for setting in ["ignore=2", "block=2", "close=0", "open=10", "nofile=30", "nice=1", "setsid"] {
        let other = view(&programs, &[&[setting]], None);
        assert!(!differences(&plain, &other).is_empty(), "{setting} is not seen");
    }
}
