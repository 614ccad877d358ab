//! Job control on a real terminal: what a user types reaches the command as it would without
//! coldtrace, the shell sees what it would see, and the table is printed.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;

use support::board::{child_of, field, state, until};
use support::fixture::{Program, built};
use support::process::{Finished, Running, start};
use support::{Scratch, coldtrace_path, find_program, read_record, skip};

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";
const CTRL_BACKSLASH: &str = "\x1c";

/// A session on a pseudo-terminal, and the keyboard and screen of it.
struct Session {
    running: Running,
    master: Option<File>,
    /// Held, so that its settings can be asked for when the session has ended.
    slave: File,
    /// All that was shown.
    screen: String,
    /// How much of it was waited for.
    seen: usize,
    scratch: Scratch,
}

impl Session {
    /// Runs `words` as the leader of a session on a new terminal. `{c}` is `coldtrace`, `{file}` a
    /// file for a report, `{runs}` a directory, `{program}` the given fixture.
    fn start(program: &Program, words: &[&str]) -> Option<Self> {
        Self::start_with(program, &[], words)
    }

    fn start_with(program: &Program, settings: &[&str], words: &[&str]) -> Option<Self> {
        let launcher = built("launch-with")?;
        let (master, slave, path) = open_terminal();
        let scratch = Scratch::new("session");
        let mut command = Command::new(&launcher.path);
        command.arg(format!("tty={}", path.display())).args(settings).arg("--");
        command.args(words.iter().map(|word| {
            word.replace("{c}", &coldtrace_path().display().to_string())
                .replace("{file}", &scratch.path("report").display().to_string())
                .replace("{runs}", &scratch.path("runs").display().to_string())
                .replace("{stop}", &scratch.path("stop").display().to_string())
                .replace("{program}", &program.path.display().to_string())
        }));
        let running = start(&mut command);
        Some(Self { running, master: Some(master), slave, screen: String::new(), seen: 0, scratch })
    }

    /// Pid of the session's leader.
    fn leader(&self) -> i32 {
        until("the session's leader", || child_of(self.running.pid()))
    }

    fn kill_leader(&self, signal: i32) {
        // SAFETY: kill takes two numbers; the leader is there until its parent reaps it.
        unsafe { libc::kill(self.leader(), signal) };
    }

    /// Types keys.
    fn keys(&mut self, keys: &str) {
        let mut master = self.master.as_ref().expect("it was not hung up");
        master.write_all(keys.as_bytes()).expect("a terminal takes a few bytes");
    }

    fn look(&mut self) {
        let mut buffer = [0; 4096];
        if let Some(mut master) = self.master.as_ref() {
            while let Ok(n @ 1..) = master.read(&mut buffer) {
                self.screen.push_str(&String::from_utf8_lossy(&buffer[..n]));
            }
        }
    }

    /// Waits until `text` is shown after what was waited for last.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        let running = self.running.pid();
        let at = until(text, || {
            let ended = state(running) == 'Z'; // asked first
            self.look();
            let at = self.screen[self.seen..].find(text);
            assert!(at.is_some() || !ended, "it ended without {text:?}:\n{}", self.screen);
            at
        });
        self.seen += at + text.len();
    }

    /// Waits for the end of the session; the terminal is read all the while.
    #[track_caller]
    fn finish(mut self) -> Ended {
        let pid = self.running.pid();
        until(&format!("the end; shown so far: {}", self.screen), || {
            self.look();
            (state(pid) == 'Z').then_some(())
        });
        self.look();
        let finished = self.running.finish();
        Ended { finished, screen: self.screen, scratch: self.scratch }
    }
}

/// A session that has ended.
struct Ended {
    finished: Finished,
    screen: String,
    scratch: Scratch,
}

impl Ended {
    #[track_caller]
    fn has_the_table(&self) -> &Self {
        let report = std::fs::read_to_string(self.scratch.path("report")).unwrap_or_default();
        assert!(
            self.screen.contains("execve") || report.contains("execve"),
            "no table\n{}\n{}",
            self.screen,
            self.finished
        );
        self
    }

    #[track_caller]
    fn code(&self, code: i32) -> &Self {
        assert_eq!(self.finished.code(), Some(code), "{}\n{}", self.finished, self.screen);
        self
    }

    #[track_caller]
    fn signal(&self, signal: i32) -> &Self {
        assert_eq!(self.finished.signal(), Some(signal), "{}\n{}", self.finished, self.screen);
        self
    }
}

/// Both ends of a new pseudo-terminal, and its path. The master does not block.
fn open_terminal() -> (File, File, PathBuf) {
    let (mut master, mut slave) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: the kernel writes two descriptors; no name and no settings are asked for.
    let done =
        unsafe { libc::openpty(&raw mut master, &raw mut slave, null, null.cast(), null.cast()) };
    assert_eq!(done, 0, "openpty: {}", std::io::Error::last_os_error());
    // SAFETY: sets flags of descriptors that were just opened.
    unsafe {
        libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(slave, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(master, libc::F_SETFL, libc::O_NONBLOCK);
    }
    // SAFETY: both were just opened and belong to nobody else.
    let [master, slave] = [master, slave].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let path = std::fs::read_link(format!("/proc/self/fd/{}", slave.as_raw_fd()));
    (File::from(master), File::from(slave), path.expect("/proc names the terminal"))
}

/// The terminal's settings.
fn settings(terminal: &File) -> [libc::tcflag_t; 4] {
    // SAFETY: all-zero bytes are a valid termios, and the kernel fills it in.
    unsafe {
        let mut t: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(terminal.as_raw_fd(), &raw mut t), 0);
        [t.c_iflag, t.c_oflag, t.c_cflag, t.c_lflag]
    }
}

/// A shell function that says whether the job was stopped, by whichever signal.
const STOPPED: &str =
    "stopped() { [ $? -gt 146 ] && [ \"$(jobs -s)\" ] && echo \"is\" \"stopped\"; };";

/// `bash` with job control, as an interactive one has it.
fn bash(program: &Program, script: &str) -> Option<Session> {
    if find_program("bash").is_none() {
        skip("no bash");
        return None;
    }
    let script = format!("{STOPPED} {script}");
    Session::start(program, &["bash", "-m", "-c", &script, "bash", "{c}", "{file}", "{program}"])
}

// ---- Ctrl-C ----

#[test]
fn ctrl_c_ends_the_command_and_prints_the_table() {
    let Some(program) = built("waits") else { return };
    for words in [
        &["{c}", "count", "{program}"][..],
        &["{c}", "count", "-o", "{file}", "{program}"],
        &["{c}", "count", "--detach-on-exit", "{program}"],
        &["{c}", "count", "--timeout", "80s", "{program}"],
        &["{c}", "count", "-e", "trace=execve,ppoll", "{program}"],
    ] {
        let Some(mut session) = Session::start(&program, words) else { return };
        session.shows("r");
        session.keys(CTRL_C);
        session.finish().signal(libc::SIGINT).has_the_table();
    }
}

#[test]
fn ctrl_c_ends_a_sleep() {
    let Some(program) = built("waits") else { return };
    let Some(mut session) = Session::start(&program, &["{c}", "count", "sleep", "1000"]) else {
        return;
    };
    let leader = session.leader();
    until("sleep to sleep", || {
        let child = child_of(leader)?;
        let name = field(&child.to_string(), "Name");
        let stops = field(&child.to_string(), "voluntary_ctxt_switches").parse::<u64>().ok()?;
        (name == "sleep" && stops > 0 && state(child) == 'S').then_some(())
    });
    session.keys(CTRL_C);
    session.finish().signal(libc::SIGINT).has_the_table();
}

#[test]
fn ctrl_c_ends_a_run_and_keeps_its_record() {
    let Some(program) = built("waits") else { return };
    for output in ["tee", "log", "pass"] {
        let words = ["{c}", "run", "--runs", "{runs}", "--output", output, "{program}"];
        let Some(mut session) = Session::start(&program, &words) else { return };
        if output == "log" {
            let log = until("the log", || {
                let run = std::fs::read_dir(session.scratch.path("runs")).ok()?.flatten();
                let logs = run.map(|entry| entry.path().join("stdout.log"));
                logs.into_iter().find(|log| std::fs::read(log).is_ok_and(|text| text == b"r"))
            });
            assert!(log.exists());
        } else {
            session.shows("r");
        }
        session.keys(CTRL_C);
        let ended = session.finish();
        ended.signal(libc::SIGINT);
        let record = ended.scratch.path("runs/latest/record.json");
        let record = read_record(&record, &ended.finished);
        assert_eq!(record.outcome.signal.as_deref(), Some("SIGINT"), "{output}");
    }
}

#[test]
fn ctrl_c_ends_a_command_in_a_session_of_its_own() {
    let Some(program) = built("waits") else { return };
    for options in [&["--output", "pass"][..], &["--output", "pass", "--no-trace"]] {
        let words = [&["{c}", "run", "--fixed", "--runs", "{runs}"], options, &["{program}"]];
        let Some(mut session) = Session::start(&program, &words.concat()) else { return };
        session.shows("r");
        session.keys(CTRL_C);
        let ended = session.finish();
        ended.signal(libc::SIGINT);
        let record = ended.scratch.path("runs/latest/record.json");
        let record = read_record(&record, &ended.finished);
        assert_eq!(record.outcome.signal.as_deref(), Some("SIGINT"));
    }
}

#[test]
fn a_signal_ends_all_of_a_tree_in_a_session_of_its_own() {
    let Some(program) = built("waits") else { return };
    if find_program("setsid").is_none() {
        return skip("no setsid");
    }
    // The other process has a session of its own again, where no group's signal comes to it.
    let script = "setsid \"$0\" & exec \"$0\"";
    let words = [
        &["{c}", "run", "--fixed", "--runs", "{runs}", "--output", "pass"][..],
        &["--", "sh", "-c", script, "{program}"],
    ]
    .concat();
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let Some(mut session) = Session::start(&program, &words) else { return };
        session.shows("r");
        session.shows("r");
        session.kill_leader(signal);
        let ended = session.finish();
        ended.signal(signal);
        let record = ended.scratch.path("runs/latest/record.json");
        let processes = read_record(&record, &ended.finished).processes.expect("two of them");
        assert_eq!(processes.len(), 2);
        for process in processes {
            let name = if signal == libc::SIGTERM { "SIGTERM" } else { "SIGHUP" };
            assert_eq!(process.signal.as_deref(), Some(name));
        }
    }
}

#[test]
fn a_second_ctrl_c_kills_what_is_left_of_a_tree_in_a_session_of_its_own() {
    let Some(program) = built("waits") else { return };
    // Who is in the background of such a shell ignores SIGINT.
    let words = [
        &["{c}", "run", "--fixed", "--runs", "{runs}", "--output", "pass"][..],
        &["--", "sh", "-c", "\"$0\" & exec \"$0\"", "{program}"],
    ]
    .concat();
    let Some(mut session) = Session::start(&program, &words) else { return };
    session.shows("r");
    session.shows("r");
    let leader = session.leader();
    let command = until("the command", || child_of(leader));
    session.keys(CTRL_C);
    until("its end", || {
        (!std::path::Path::new(&format!("/proc/{command}")).exists()).then_some(())
    });
    session.keys(CTRL_C);
    let ended = session.finish();
    ended.signal(libc::SIGINT);
    let record = ended.scratch.path("runs/latest/record.json");
    let processes = read_record(&record, &ended.finished).processes.expect("two of them");
    let signals: Vec<_> = processes.iter().filter_map(|p| p.signal.as_deref()).collect();
    assert_eq!(signals, ["SIGINT", "SIGKILL"]);
}

#[test]
fn a_second_ctrl_c_reaches_a_command_that_survived_the_first() {
    let Some(program) = built("tty-program") else { return };
    for subcommand in [&["count"][..], &["run", "--runs", "{runs}"]] {
        let words = [&["{c}"], subcommand, &["{program}", "twice"]].concat();
        let Some(mut session) = Session::start(&program, &words) else { return };
        session.shows("ready");
        session.keys(CTRL_C);
        session.shows("int 1");
        session.keys(CTRL_C);
        let ended = session.finish();
        ended.code(43);
        assert_eq!(ended.screen.matches("int 1").count(), 1, "once each: {}", ended.screen);
    }
}

#[test]
fn ctrl_backslash_ends_the_command_and_prints_the_table() {
    let Some(program) = built("waits") else { return };
    let words = ["{c}", "count", "{program}"];
    let Some(mut session) = Session::start_with(&program, &["core=0"], &words) else { return };
    session.shows("r");
    session.keys(CTRL_BACKSLASH);
    session.finish().signal(libc::SIGQUIT).has_the_table();
}

#[test]
fn a_shell_with_a_trap_below_it_keeps_running() {
    let Some(program) = built("waits") else { return };
    let script = "trap 'echo trap''ped' INT; echo ready; \
        while [ ! -e {stop} ]; do sleep 0.05; done; exit 5";
    let words = ["{c}", "count", "sh", "-c", script];
    let Some(mut session) = Session::start(&program, &words) else { return };
    session.shows("ready");
    for _ in 0..3 {
        session.keys(CTRL_C);
        session.shows("trapped");
    }
    File::create(session.scratch.path("stop")).expect("scratch can be written");
    session.finish().code(5).has_the_table();
}

#[test]
fn a_shell_with_a_trap_above_it_sees_the_command_die() {
    let Some(program) = built("waits") else { return };
    let script = "trap 'echo trap''ped' INT; \"$0\" count -o \"$1\" \"$2\"; echo \"status=$?\"; \
        \"$0\" count -o \"$1\" \"$2\"; echo \"status=$?\"; exit 6";
    let words = ["sh", "-c", script, "{c}", "{file}", "{program}"];
    let Some(mut session) = Session::start(&program, &words) else { return };
    for _ in 0..2 {
        session.shows("r");
        session.keys(CTRL_C);
        session.shows("trapped");
        session.shows("status=130");
    }
    session.finish().code(6).has_the_table();
}

// ---- Ctrl-Z ----

#[test]
fn ctrl_z_stops_the_job_and_fg_goes_on() {
    let Some(program) = built("tty-program") else { return };
    let script = "\"$1\" count -o \"$2\" \"$3\" line; stopped; fg >/dev/null; \
        stopped; fg >/dev/null; echo \"ended=$?\"";
    let Some(mut session) = bash(&program, script) else { return };
    session.shows("ready");
    session.keys(CTRL_Z);
    session.shows("is stopped");
    session.shows("continued");
    session.keys(CTRL_Z);
    session.shows("is stopped");
    session.shows("continued");
    session.keys("hello\n");
    session.shows("got hello");
    session.shows("ended=7");
    session.finish().code(0).has_the_table();
}

#[test]
fn ctrl_z_then_fg_of_run_with_and_without_tracing() {
    let Some(program) = built("tty-program") else { return };
    for options in ["--no-trace", "--no-trace --output pass", "", "--output pass"] {
        let script = format!(
            "\"$1\" run --runs \"$2.runs\" {options} \"$3\" line; stopped; \
             fg >/dev/null; echo \"ended=$?\""
        );
        let Some(mut session) = bash(&program, &script) else { return };
        session.shows("ready");
        session.keys(CTRL_Z);
        session.shows("is stopped");
        session.shows("continued");
        session.keys("hello\n");
        session.shows("got hello");
        session.shows("ended=7");
        session.finish().code(0);
    }
}

#[test]
fn ctrl_z_then_ctrl_c_after_fg() {
    let Some(program) = built("tty-program") else { return };
    // bash ends where its foreground job was killed by SIGINT.
    let script = "trap 'echo \"ended=$?\"' EXIT; \"$1\" count -o \"$2\" \"$3\" line; stopped; \
        fg >/dev/null; echo not here";
    let Some(mut session) = bash(&program, script) else { return };
    session.shows("ready");
    session.keys(CTRL_Z);
    session.shows("is stopped");
    session.shows("continued");
    session.keys(CTRL_C);
    session.shows("ended=130");
    session.finish().has_the_table();
}

#[test]
fn ctrl_z_stops_a_job_whose_command_is_in_a_session_of_its_own() {
    let Some(program) = built("waits") else { return };
    let script = "\"$1\" run --fixed --runs \"$2.runs\" --output pass \"$3\" handle; stopped; \
        fg >/dev/null; echo \"status=$?\"";
    let Some(mut session) = bash(&program, script) else { return };
    session.shows("r");
    session.keys(CTRL_Z);
    session.shows("is stopped");
    // The terminal is its own again before it goes on.
    let job = child_of(session.leader()).expect("the job is there");
    until("it to go on", || (state(job) != 'T').then_some(()));
    session.keys(CTRL_C);
    session.shows("status=42");
    session.finish();
}

#[test]
fn bg_goes_on_too() {
    let Some(program) = built("waits") else { return };
    let script = "\"$1\" count -o \"$2\" \"$3\" handle; stopped; bg >/dev/null; \
        kill -TERM %1; wait %1; echo \"ended=$?\"";
    let Some(mut session) = bash(&program, script) else { return };
    session.shows("r");
    session.keys(CTRL_Z);
    session.shows("is stopped");
    session.shows("ended=42");
    session.finish().code(0).has_the_table();
}

#[test]
fn a_background_job_that_reads_is_stopped_and_fg_gives_it_the_terminal() {
    let Some(program) = built("tty-program") else { return };
    let script = "\"$1\" count -o \"$2\" \"$3\" line & \
        until jobs -s | grep -q Stopped; do :; done; echo \"is\" \"stopped\"; \
        fg >/dev/null; echo \"ended=$?\"";
    let Some(mut session) = bash(&program, script) else { return };
    session.shows("is stopped");
    session.shows("continued");
    session.keys("hello\n");
    session.shows("got hello");
    session.shows("ended=7");
    session.finish().code(0).has_the_table();
}

#[test]
fn the_shell_is_told_the_signal_that_stopped_the_command() {
    let Some(program) = built("tty-program") else { return };
    for options in ["count -o /dev/null", "run --no-trace --output pass --runs \"$2.runs\""] {
        let script = format!(
            "\"$3\" line; echo \"untraced=$?\"; fg >/dev/null; \
             \"$1\" {options} \"$3\" line; echo \"traced=$?\"; fg >/dev/null; echo \"ended=$?\""
        );
        let Some(mut session) = bash(&program, &script) else { return };
        for _ in 0..2 {
            session.shows("ready");
            session.keys(CTRL_Z);
            session.shows("continued");
            session.keys("hello\n");
            session.shows("got hello");
        }
        session.shows("ended=7");
        let ended = session.finish();
        assert!(ended.screen.contains("untraced=148"), "{}", ended.screen);
        assert!(ended.screen.contains("\ntraced=148"), "{}", ended.screen);
    }
}

// ---- pipelines ----

#[test]
fn a_pipeline_with_coldtrace_in_the_middle() {
    let Some(program) = built("waits") else { return };
    let script = "echo pass''ed | \"$1\" count -o \"$2\" cat | tr a-z A-Z; \
        echo \"status=${PIPESTATUS[*]}\"; \
        yes | \"$1\" count -o /dev/null cat | head -n 1 >/dev/null; echo \"then=${PIPESTATUS[*]}\"";
    let Some(mut session) = bash(&program, script) else { return };
    session.shows("PASSED");
    session.shows("status=0 0 0");
    session.shows("then=141 141 0");
    session.finish().has_the_table();
}

#[test]
fn ctrl_c_in_a_pipeline_ends_all_of_it() {
    let Some(program) = built("waits") else { return };
    // Whether bash takes it for its own Ctrl-C too depends on whom it hears of first: it ends here in
    // either case. That nobody is left is what every test looks at.
    let script = "trap 'echo \"ended=$?\"' EXIT; \
        sleep 1000 | \"$1\" count -o \"$2\" \"$3\" | cat";
    let Some(mut session) = bash(&program, script) else { return };
    session.shows("r");
    session.keys(CTRL_C);
    session.shows("ended=130");
    session.finish().has_the_table();
}

#[test]
fn ctrl_z_in_a_pipeline_stops_all_of_it() {
    let Some(program) = built("tty-program") else { return };
    let script = "\"$1\" count -o \"$2\" \"$3\" line | cat; stopped; fg >/dev/null; \
        echo \"ended=${PIPESTATUS[*]}\"";
    let Some(mut session) = bash(&program, script) else { return };
    session.shows("ready");
    session.keys(CTRL_Z);
    session.shows("is stopped");
    session.shows("continued");
    session.keys("hello\n");
    session.shows("got hello");
    session.shows("ended=");
    session.finish().code(0).has_the_table();
}

// ---- full screen ----

#[test]
fn a_full_screen_program_has_all_keys_and_leaves_the_terminal_as_it_was() {
    let Some(program) = built("tty-program") else { return };
    for subcommand in [
        &["count", "-o", "{file}"][..],
        &["run", "--runs", "{runs}", "--output", "pass"],
        &["run", "--runs", "{runs}", "--output", "pass", "--no-trace"],
    ] {
        // The shell keeps the terminal alive, so that it can be looked at.
        let shell = ["sh", "-c", "\"$@\"; echo \"ended=$?\"; read line", "sh", "{c}"];
        let words = [&shell[..], subcommand, &["{program}", "screen"]].concat();
        let Some(mut session) = Session::start(&program, &words) else { return };
        let before = settings(&session.slave);
        session.shows("ready");
        assert_ne!(settings(&session.slave), before, "it is raw");
        for (key, number) in [(CTRL_C, 3), (CTRL_Z, 26), (CTRL_BACKSLASH, 28), ("\r", 13)] {
            session.keys(key);
            session.shows(&format!("key {number};"));
        }
        session.keys("q");
        session.shows("ended=0");
        assert_eq!(settings(&session.slave), before);
        session.keys("\n");
        let ended = session.finish();
        let (begin, end) = ("\x1b[?1049h", "\x1b[?1049l");
        let shown = (ended.screen.matches(begin).count(), ended.screen.matches(end).count());
        assert_eq!(shown, (1, 1), "{:?}", ended.screen);
    }
}

#[test]
fn a_full_screen_program_suspends_its_job_itself() {
    let Some(program) = built("tty-program") else { return };
    for key in ["z", "s"] {
        for subcommand in ["count -o /dev/null", "run --output pass --no-trace --runs \"$2.runs\""]
        {
            let script = format!(
                "\"$1\" {subcommand} \"$3\" screen; stopped; fg >/dev/null; \
                 echo \"ended=$?\""
            );
            let Some(mut session) = bash(&program, &script) else { return };
            session.shows("ready");
            session.keys(key);
            session.shows("is stopped");
            session.shows("back;");
            session.keys("q");
            session.shows("ended=0");
            session.finish().code(0);
        }
    }
}

// ---- other signals ----

#[test]
fn sigterm_and_sighup_to_the_tracer_reach_the_command() {
    let Some(program) = built("waits") else { return };
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGUSR1] {
        let words = ["{c}", "count", "{program}"];
        let Some(mut session) = Session::start(&program, &words) else { return };
        session.shows("r");
        session.kill_leader(signal);
        session.finish().signal(signal).has_the_table();
    }
    let words = ["{c}", "count", "{program}", "handle"];
    let Some(mut session) = Session::start(&program, &words) else { return };
    session.shows("r");
    session.kill_leader(libc::SIGTERM);
    session.finish().code(42).has_the_table();
}

#[test]
fn a_hangup_of_the_terminal_ends_all() {
    let Some(program) = built("waits") else { return };
    for output in [&["count", "-o", "{file}"][..], &["run", "--runs", "{runs}"]] {
        let words = [&["{c}"], output, &["{program}"]].concat();
        let Some(mut session) = Session::start(&program, &words) else { return };
        session.shows("r");
        session.master = None;
        let ended = session.finish();
        let run = ended.scratch.path("runs/latest/record.json");
        assert!(ended.scratch.path("report").exists() || run.exists(), "{}", ended.finished);
        // The terminal is gone: a summary cannot be shown, which is no reason to end otherwise.
        ended.signal(libc::SIGHUP);
    }
}

#[test]
fn an_ignored_hangup_ends_nothing() {
    let Some(program) = built("waits") else { return };
    let words = ["{c}", "count", "-o", "{file}", "{program}", "handle"];
    let Some(mut session) = Session::start_with(&program, &["ignore=1"], &words) else { return };
    session.shows("r");
    session.kill_leader(libc::SIGHUP);
    session.master = None;
    // It is there still: the second signal is what ends it.
    session.kill_leader(libc::SIGTERM);
    session.finish().code(42).has_the_table();
}

#[test]
fn end_of_input_ends_a_command_that_reads() {
    let Some(program) = built("waits") else { return };
    let words = ["{c}", "count", "-o", "{file}", "cat"];
    let Some(mut session) = Session::start(&program, &words) else { return };
    session.keys("hel");
    session.keys("lo\n");
    session.shows("hello\r\nhello");
    session.keys(CTRL_D);
    session.finish().code(0).has_the_table();
}
