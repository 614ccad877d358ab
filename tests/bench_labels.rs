//! How cold `bench` says its runs were, held against what fixtures/page-cache.c sees and against
//! states that it brought about.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use coldtrace::bench::{CommandBench, RunEntry, RunKind};
use coldtrace::cache::{Accounting, WorkingSet};
use coldtrace::record::CacheState;
use support::bench::{Place, fits, of_kind};
use support::fixture::built;
use support::page_cache::{Alone, Data, FILES, PYTHON, SIZE, alone, fill, give, two_numbers};
use support::process::{Finished, finish};
use support::{coldtrace, coldtrace_path, is_root, nobody, skip};

/// Files of a bench, made for it alone.
struct Files {
    place: Place,
    names: Vec<String>,
    page_cache: PathBuf,
    _alone: Alone,
}

impl Files {
    /// So many, of so many MiB; none after saying why not.
    fn new(name: &str, n: usize, mib: usize) -> Option<Self> {
        let page_cache = built("page-cache")?.path;
        let (place, alone) = (Place::new(name), alone());
        let mut state = 1;
        let file = |n: usize| {
            let path = place.path(&format!("data-{n}"));
            fill(&path, mib << 20, &mut state);
            fs::File::open(&path).and_then(|file| file.sync_all()).expect("it was written");
            path.display().to_string()
        };
        let names: Vec<String> = (0..n).map(file).collect();
        if !accounts(&names) {
            return None;
        }
        Some(Self { place, names, page_cache, _alone: alone })
    }

    /// The fixture with these words, as a shell has it.
    fn shell(&self, words: &str) -> String {
        format!("{} {words}", self.page_cache.display())
    }

    fn bytes(&self) -> u64 {
        self.names.iter().map(|name| fs::metadata(name).map_or(0, |it| it.len())).sum()
    }

    fn run(&self, options: &[&str], words: &[&str]) -> CommandBench {
        self.place.run(options, words).assert_code(0);
        self.place.bench().commands.remove(0)
    }
}

/// Whether block input says here what was read.
fn accounts(files: &[String]) -> bool {
    let set = WorkingSet::of_files(files.iter().map(|file| (file.into(), u64::MAX)));
    let whole = !set.files().is_empty() && set.accounting() == Accounting::Whole;
    if !whole {
        skip("scratch is no filesystem whose block input is accounted");
    }
    whole
}

fn label(run: &RunEntry) -> &str {
    run.label.as_deref().expect("each run is labelled")
}

/// What is called cold was read, what is called warm was not.
fn are_true(command: &CommandBench, all: u64) {
    for run in &command.runs {
        let read = run.metrics.block_in_bytes.expect("it was waited for");
        let is = match label(run) {
            "cold" => read >= all / 10 * 9,
            "warm" => read <= all / 50,
            // What is everybody's may come back too, so that there is no most.
            "lukewarm" => read > 0,
            other => other == "unknown",
        };
        assert!(is, "{run:#?}");
    }
}

/// So many runs of a kind are labelled so; of the others the evidence is printed.
fn labelled(command: &CommandBench, kind: RunKind, wanted: &str) -> usize {
    let (is, other): (Vec<&RunEntry>, _) =
        of_kind(command, kind).partition(|run| label(run) == wanted);
    for run in other {
        eprintln!("{}: {:?}: {:?}", run.run, run.label, run.evidence);
    }
    is.len()
}

#[test]
fn evicted_runs_are_cold_and_the_others_warm() {
    let Some(files) = Files::new("bench-labels", 16, 1) else { return };
    let mut words = vec!["cat"];
    words.extend(files.names.iter().map(String::as_str));
    let finished = files.place.run(&["-n", "10", "--cold", "5"], &words);
    finished.assert_code(0);
    let bench = files.place.bench();
    let command = &bench.commands[0];
    are_true(command, files.bytes());
    assert!(labelled(command, RunKind::Cold, "cold") >= 4, "{finished}");
    assert!(labelled(command, RunKind::Warm, "warm") >= 9, "{finished}");
    let cold = of_kind(command, RunKind::Cold).next().expect("five");
    assert_eq!(cold.evicted_by.as_deref(), Some("posix_fadvise"));
    assert!(cold.files.is_some_and(|n| n > 16), "cat and libc too");
    // Which of the two was faster is the machine's to say.
    assert!(command.cold_vs_warm.is_some());
    let out = finished.out();
    assert!(out.contains("cold vs warm: median ") && out.contains("files evicted"), "{out}");
    fits(&out);
    // The first one of a second bench is measured: its files are known by then.
    let again = files.run(&["-n", "1", "--traced", "0"], &words);
    assert!(again.runs[0].metrics.resident_ratio.is_some(), "{again:?}");
    are_true(&again, files.bytes());
}

#[test]
fn the_whole_machines_caches_are_dropped_by_root_alone() {
    let Some(files) = Files::new("bench-drop", 16, 1) else { return };
    let mut words = vec!["cat"];
    words.extend(files.names.iter().map(String::as_str));
    if is_root() {
        let command = files.run(&["-n", "1", "--cold", "1", "--drop-caches"], &words);
        are_true(&command, files.bytes());
        let cold = of_kind(&command, RunKind::Cold).next().expect("one");
        assert_eq!((label(cold), cold.evicted_by.as_deref()), ("cold", Some("drop_caches")));
    }
    let Some(mut user) = nobody() else { return };
    give(&files.place.path(""));
    user.arg(coldtrace_path()).arg("bench");
    let mut user = files.place.prepared(user);
    user.args(["-n", "1", "--cold", "1", "--drop-caches", "--"]).args(&words);
    let before = fs::read_dir(files.place.runs()).map_or(0, Iterator::count);
    let refused = finish(&mut user);
    refused.assert_code(125);
    assert!(refused.err().contains("cannot drop the machine's caches"), "{refused}");
    let after = fs::read_dir(files.place.runs()).map_or(0, Iterator::count);
    assert_eq!(before, after, "nothing was run");
}

// ---- who read, and how much ----

#[test]
fn whoever_is_not_waited_for_makes_no_run_warm() {
    let Some(files) = Files::new("bench-unwaited", 24, 1) else { return };
    let evict = files.shell(&format!("evict {}", files.names.join(" ")));
    let cat = format!("cat {} > /dev/null", files.names.join(" "));
    let behind = format!("({cat} &); exec sleep 0.3");
    let python = "import signal, subprocess, sys\n\
                  signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                  subprocess.run(['/bin/sh', '-c', sys.argv[1]])";
    let mut commands = vec![vec!["sh", "-c", &behind]];
    if Path::new(PYTHON).is_file() {
        commands.push(vec![PYTHON, "-c", python, &cat]);
    }
    for words in commands {
        let command = files.run(&["-n", "2", "--prepare", &evict], &words);
        for run in &command.runs {
            assert_ne!(label(run), "warm", "{run:#?}");
        }
        let first = &command.runs[0];
        assert_eq!(label(first), "unknown", "{first:#?}");
        assert!(
            first.evidence.as_deref().is_some_and(|it| it.contains("waited for")),
            "{first:#?}"
        );
    }
    // Who is waited for is counted.
    let waited = format!("{cat}; true");
    let command = files.run(&["-n", "5"], &["sh", "-c", &waited]);
    assert!(labelled(&command, RunKind::Warm, "warm") >= 4);
}

#[test]
fn of_what_is_mapped_little_may_be_needed() {
    let Some(files) = Files::new("bench-mapped", 1, 160) else { return };
    let big = &files.names[0];
    let program = files.page_cache.display().to_string();
    let words = [program.as_str(), "touch", big, "0", "1"];
    // A hundredth of the file is more than what is needed of it.
    let evict = files.shell(&format!("evict {big}"));
    let command = files.run(&["-n", "3", "--warmup", "0", "--prepare", &evict], &words);
    assert!(command.runs.iter().all(|run| label(run) != "warm"), "{command:#?}");
    // The same where all the rest is in memory: it is measured now.
    let read = files.shell(&format!("read {big}"));
    let part = format!("{read}; {}", files.shell(&format!("part {big} 0 1")));
    let known = ["-n", "3", "--warmup", "0", "--traced", "0", "--prepare"];
    let command = files.run(&[&known[..], &[part.as_str()]].concat(), &words);
    for run in &command.runs {
        assert!(run.metrics.resident_ratio.is_some(), "{run:#?}");
        assert_ne!(label(run), "warm", "{run:#?}");
    }
    let command = files.run(&[&known[..], &[read.as_str()]].concat(), &words);
    assert!(labelled(&command, RunKind::Warm, "warm") >= 2);
}

#[test]
fn cold_runs_show_how_cold_the_first_was() {
    // 24 MiB are needed of a file of 40 that is mapped: by its size nothing could be said.
    for (evicted, wanted) in [("0 40", "cold"), ("0 12", "lukewarm")] {
        let Some(files) = Files::new("bench-scale", 1, 40) else { return };
        let big = &files.names[0];
        let read = files.shell(&format!("read {big}"));
        let setup = format!("{read}; {}", files.shell(&format!("part {big} {evicted}")));
        let program = files.page_cache.display().to_string();
        let words = [program.as_str(), "touch", big, "0", "24"];
        let options = ["-n", "1", "--cold", "3", "--setup", &setup];
        let command = files.run(&options, &words);
        assert!(labelled(&command, RunKind::Cold, "cold") >= 2);
        let first = &command.runs[0];
        assert_eq!(label(first), wanted, "{first:#?}");
        assert!(
            first.evidence.as_deref().is_some_and(|it| it.contains("by cold runs")),
            "{first:#?}"
        );
        let cache = files.place.record("first").cache.expect("it was labelled");
        assert_eq!((cache.label.as_str(), cache.basis.as_deref()), (wanted, Some("block input")));
        assert_eq!(Some(cache.evidence), first.evidence);
    }
}

#[test]
fn each_file_is_opened_twice_a_run_and_proc_is_read_once() {
    let Some(files) = Files::new("bench-opens", 4, 1) else { return };
    let mut words = vec!["cat"];
    words.extend(files.names.iter().map(String::as_str));
    files.run(&["-n", "1"], &words);
    // Its runs are not traced: so it can be.
    let mut command = coldtrace("run");
    let traces = files.place.path("traces");
    command.arg("--runs").arg(&traces).arg("--").arg(coldtrace_path()).arg("bench");
    command.env("XDG_STATE_HOME", files.place.path("state"));
    command.arg("--runs").arg(files.place.runs()).args(["-n", "1", "--traced", "0"]);
    command.args(["--cold", "1", "--"]).args(&words);
    finish(&mut command).assert_code(0);
    let text = fs::read(traces.join("latest/record.json")).expect("it was traced");
    let record: coldtrace::record::Record = serde_json::from_slice(&text).expect("a record");
    let rows = record.files.expect("all calls were watched").paths;
    let row = |path: &str| rows.iter().find(|row| row.path == path).expect("it was opened");
    // Four runs: the command opens each file once, and coldtrace before it and after.
    for name in &files.names {
        assert_eq!(row(name).opens_read, 4 * 3, "{name}");
    }
    // Whether it may or not: of the first process it may not everywhere.
    let maps = row("/proc/1/maps");
    assert_eq!(maps.opens_read + maps.failed(), 4, "{maps:?}");
}

// ---- what another program measures ----

/// What the files are brought to before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Evicted,
    Half,
    Untouched,
}

impl State {
    const ALL: [Self; 3] = [Self::Evicted, Self::Half, Self::Untouched];

    fn label(self) -> &'static str {
        match self {
            Self::Evicted => "cold",
            Self::Half => "lukewarm",
            Self::Untouched => "warm",
        }
    }
}

/// An import of a package of 60 MiB, and who does it.
struct Import {
    place: Place,
    data: Data,
    user: bool,
    /// He owns them.
    own: bool,
    set: Vec<PathBuf>,
}

impl Import {
    /// It is traced first; none after saying why not.
    fn new(user: bool, own: bool) -> Option<Self> {
        if user {
            nobody()?;
        }
        let data = Data::package()?;
        let place = Place::new("bench-import");
        if user {
            give(&place.path(""));
        }
        if user && own {
            give(&data.directory);
            data.files().iter().for_each(|file| give(file));
        }
        let mut import = Self { place, data, user, own, set: Vec::new() };
        import.bench(&["-n", "1"]).assert_code(0);
        let record = import.place.record("traced-1");
        let mut set = WorkingSet::of(&record).expect("it was traced");
        set.try_overlays();
        assert!(set.touched_bytes() >= (FILES * SIZE) as u64);
        if set.accounting() != Accounting::Whole {
            skip("this filesystem accounts no block input");
            return None;
        }
        import.set = set.files().iter().map(|file| file.path.clone()).collect();
        Some(import)
    }

    fn bench(&self, options: &[&str]) -> Finished {
        let mut command = Command::new("env");
        if self.user {
            command = nobody().expect("it was there before");
        }
        command.arg(coldtrace_path()).arg("bench");
        let mut command = self.place.prepared(command);
        command.args(options).arg("-E");
        command.arg(format!("PYTHONPATH={}", self.data.module_path().display()));
        command.args(["-E", "PYTHONDONTWRITEBYTECODE", "-E", "PYTHONPYCACHEPREFIX", "--"]);
        finish(command.args(self.data.words()))
    }

    /// The shell command that brings the files to a state, and prints what is in memory of those
    /// that nobody else reads, where that is told.
    fn prepare(&self, state: State) -> String {
        let files = self.data.files();
        let evicted: &[PathBuf] = match state {
            State::Evicted => &self.set,
            State::Half => &files[FILES / 2..],
            State::Untouched => &[],
        };
        let program = self.data.program.path.display();
        let words = |what: &str, files: &[PathBuf]| {
            let files: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
            if files.is_empty() {
                return "true".to_owned();
            }
            format!("{program} {what} {}", files.join(" "))
        };
        let steps = ["read", "evict", "resident"].into_iter();
        let told = if self.own { files.as_slice() } else { &[] };
        let steps = steps.zip([self.set.as_slice(), evicted, told]);
        steps.map(|(what, files)| words(what, files)).collect::<Vec<_>>().join(" && ")
    }

    /// Eleven runs in a state: what each record says, and what the fixture printed before it.
    fn runs(&self, state: State) -> Vec<(CacheState, String)> {
        let prepare = self.prepare(state);
        let options = ["-n", "10", "--warmup", "0", "--traced", "0", "--prepare", &prepare];
        self.bench(&options).assert_code(0);
        let bench = self.place.bench();
        let of = |run: &RunEntry| {
            let log = self.place.runs().join("latest").join(&run.run).join("prepare.log");
            let log = fs::read_to_string(log).expect("it is kept");
            (self.place.record(&run.run).cache.expect("it is labelled"), log)
        };
        bench.commands[0].runs.iter().map(of).collect()
    }
}

/// A label that is not `unknown` is that of what the fixture saw just before of the files that
/// nobody else reads. Of Python's own files, a tenth of the set, others may have read some since,
/// or keep some mapped: so much more or less is possible.
#[track_caller]
fn is_true(state: &CacheState, log: &str) {
    let Some(after) = state.resident_after_bytes else { panic!("not measured: {state:#?}") };
    let (there, all) = two_numbers(log);
    assert!(all == (FILES * SIZE) as u64 && after >= all, "{log}: {state:#?}");
    let least = there as f64 / after as f64;
    let most = (there + after - all) as f64 / after as f64;
    assert!(most - least < 0.2, "{state:#?}");
    let is = match state.label.as_str() {
        "cold" => least <= 0.05,
        "warm" => most >= 0.95,
        "lukewarm" => most > 0.05 && least < 0.95,
        other => other == "unknown",
    };
    assert!(is, "{least} to {most}: {state:#?}");
}

fn measured(user: bool) {
    let Some(import) = Import::new(user, true) else { return };
    for wanted in State::ALL {
        let runs = import.runs(wanted);
        assert_eq!(runs.len(), 11);
        for (state, log) in &runs {
            is_true(state, log);
        }
        let count = |is: &dyn Fn(&CacheState) -> bool| runs.iter().filter(|(s, _)| is(s)).count();
        let labelled = count(&|state| state.basis.as_deref() == Some("residency"));
        let as_wanted = count(&|state| state.label == wanted.label());
        eprintln!("{wanted:?}: {labelled} labelled, {as_wanted} {}", wanted.label());
        assert!(labelled >= 10, "{wanted:?}: {labelled} of 11: {runs:#?}");
        assert!(as_wanted >= 6, "{wanted:?}: {as_wanted} of 11: {runs:#?}");
    }
}

#[test]
fn roots_labels_are_what_another_program_measures() {
    measured(false);
}

#[test]
fn an_ordinary_users_labels_are_what_another_program_measures() {
    measured(true);
}

#[test]
fn an_ordinary_user_has_labels_of_others_files_by_block_input() {
    let Some(import) = Import::new(true, false) else { return };
    for wanted in State::ALL {
        let runs = import.runs(wanted);
        let mut named = 0;
        for (state, _) in &runs {
            assert!([wanted.label(), "unknown"].contains(&state.label.as_str()), "{state:#?}");
            assert_ne!(state.basis.as_deref(), Some("residency"), "{state:#?}");
            named += usize::from(state.label == wanted.label());
        }
        eprintln!("{wanted:?}: {named} {}", wanted.label());
        // What was read in part may be all that is needed: then nothing is said.
        assert!(wanted != State::Untouched || named >= 10, "{named} of 11: {runs:#?}");
    }
}
