//! How cold a run was: labels are held against fixtures/page-cache.c, which asks the kernel in a
//! way of its own, for what was evicted, half evicted and left alone; as root and as an ordinary
//! user, of files of one's own and of others'.
//!
//! What the ordinary user does is in tests that are ignored: others start them, in a process that
//! is his.

mod support;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use coldtrace::cache::{
    Accounting, Bytecode, Method, Observation, Residency, WorkingSet, Written, drop_caches,
};
use coldtrace::record::{CacheState, Record};
use support::board::{Board, Word};
use support::page_cache::{Data, FILES, PYTHON, SIZE, give};
use support::process::{finish, start};
use support::{SCRATCH, Scratch, coldtrace_path, find_program, is_root, nobody, read_record, skip};

/// Tells a test that another has started where the files are.
const DIRECTORY: &str = "COLDTRACE_TEST_CACHE";

/// Where the files are that a command reads.
struct Place(Data);

impl std::ops::Deref for Place {
    type Target = Data;

    fn deref(&self) -> &Data {
        &self.0
    }
}

impl Place {
    fn new() -> Option<Self> {
        Data::new().map(Self)
    }

    fn package() -> Option<Self> {
        Data::package().map(Self)
    }

    /// The one that who started this test has made.
    fn given() -> Option<Self> {
        Data::within(PathBuf::from(std::env::var_os(DIRECTORY)?)).map(Self)
    }

    /// The command.
    fn command(&self, before: &[PathBuf]) -> Command {
        let words: Vec<PathBuf> = before.iter().cloned().chain(self.words()).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("PYTHONPATH", self.module_path());
        command
    }

    /// The record of the command.
    fn record(&self) -> Record {
        let runs = self.directory.join("runs");
        let tracer = [coldtrace_path(), Path::new("run"), Path::new("--runs"), &runs];
        let tracer: Vec<PathBuf> =
            tracer.into_iter().chain([Path::new("--")]).map(Path::to_owned).collect();
        let finished = finish(&mut self.command(&tracer));
        finished.assert_code(0);
        read_record(&runs.join("latest/record.json"), &finished)
    }

    /// Those of a set whose residency this user is told.
    fn told(set: &WorkingSet) -> Vec<PathBuf> {
        // SAFETY: geteuid takes nothing and cannot fail.
        let own = unsafe { libc::geteuid() };
        let is_told = |path: &PathBuf| {
            own == 0 || std::fs::metadata(path).is_ok_and(|metadata| metadata.uid() == own)
        };
        set.files().iter().map(|file| file.path.clone()).filter(is_told).collect()
    }
}

/// Of a run that `command` is.
#[derive(Debug, Clone, Copy)]
struct Ran {
    input: u64,
    minor: u64,
    major: u64,
}

impl Ran {
    /// With what it used.
    fn observed<'a>(self, set: &'a WorkingSet, after: &'a Residency) -> Observation<'a> {
        Observation {
            set: Some(set),
            after: Some(after),
            block_input_bytes: Some(self.input),
            minor_faults: Some(self.minor),
            major_faults: Some(self.major),
            ..Observation::default()
        }
    }
}

#[allow(clippy::zombie_processes)] // wait4 reaps it
fn run(command: &mut Command) -> Ran {
    let child = command.spawn().expect("the fixture can be started");
    let mut status = 0;
    // SAFETY: rusage is numbers alone.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both live until the call returns; the child is ours, and nobody else waits for it.
    let waited = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, &raw mut usage) };
    assert_eq!((waited, status), (child.id() as i32, 0));
    let input = usage.ru_inblock as u64 * 512;
    Ran { input, minor: usage.ru_minflt as u64, major: usage.ru_majflt as u64 }
}

/// What the files are brought to before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Evicted,
    Half,
    Untouched,
}

impl State {
    const ALL: [Self; 3] = [Self::Evicted, Self::Half, Self::Untouched];

    /// Brings files to it.
    fn reach(self, place: &Place, files: &[PathBuf]) {
        finish(&mut place.fixture("read", files)).assert_code(0);
        let data = place.files();
        let evicted = match self {
            Self::Evicted => files,
            Self::Half => &data[FILES / 2..],
            Self::Untouched => return,
        };
        finish(&mut place.fixture("evict", evicted)).assert_code(0);
    }

    fn label(self) -> &'static str {
        match self {
            Self::Evicted => "cold",
            Self::Half => "lukewarm",
            Self::Untouched => "warm",
        }
    }
}

/// One run between two measurements.
fn observe(place: &Place, set: &WorkingSet) -> CacheState {
    observe_from(place, set, &set.measure())
}

fn observe_from(place: &Place, set: &WorkingSet, before: &Residency) -> CacheState {
    let mapped = set.mapped();
    let ran = run(&mut place.command(&[]));
    let after = set.measure();
    let observed = ran.observed(set, &after);
    Observation { mapped: Some(&mapped), before: Some(before), ..observed }.state()
}

/// One run after an eviction.
fn observe_evicted(place: &Place, set: &WorkingSet) -> CacheState {
    let mapped = set.mapped();
    let eviction = set.evict(&mapped);
    let ran = run(&mut place.command(&[]));
    let after = set.measure();
    let observed = ran.observed(set, &after);
    Observation { mapped: Some(&mapped), eviction: Some(&eviction), ..observed }.state()
}

/// The same, and what part of the files told was in memory before it, by the fixture: asked before
/// and after coldtrace asks, since what is everybody's (libc, Python) comes and goes. What is said
/// to be mapped by others is taken off, which only everybody's files can be.
fn observe_told(place: &Place, set: &WorkingSet) -> (CacheState, [f64; 2]) {
    let files = Place::told(set);
    let resident = || place.resident(&files).expect("these are told");
    let first = resident();
    let before = set.measure();
    let second = resident();
    let state = observe_from(place, set, &before);
    let after = resident();
    let pinned = state.pinned_bytes.expect("it was measured");
    let shared = set.files().iter().filter(|file| !file.path.starts_with(&place.directory));
    let shared: u64 = shared.map(|file| file.size_bytes.next_multiple_of(4096)).sum();
    assert!(pinned <= shared, "{pinned} of {shared}: {state:#?}");
    let share = |was: u64| was.saturating_sub(pinned) as f64 / after.saturating_sub(pinned) as f64;
    (state, [share(first), share(second)])
}

/// A label that is not `unknown` is that of what the fixture saw.
#[track_caller]
fn is_true(state: &CacheState, shares: [f64; 2]) {
    let is = |share: &f64| match state.label.as_str() {
        "cold" => *share <= 0.055,
        "warm" => *share >= 0.945,
        "lukewarm" => (0.045..=0.955).contains(share),
        other => other == "unknown",
    };
    assert!(shares.iter().any(is), "{shares:?}: {state:#?}");
}

/// Files whose residency is told: each state is named, in at least nine of ten runs.
fn own_files(place: &Place) {
    let set = WorkingSet::of(&place.record()).expect("it was traced");
    assert!(set.files().len() >= FILES && set.touched_bytes() >= (FILES * SIZE) as u64);
    if set.accounting() != Accounting::Whole {
        skip("this filesystem accounts no block input");
        return;
    }
    for wanted in State::ALL {
        let (mut labelled, mut as_wanted) = (0, 0);
        for _ in 0..10 {
            wanted.reach(place, &Place::told(&set));
            let (state, share) = observe_told(place, &set);
            is_true(&state, share);
            if state.label != "unknown" {
                labelled += 1;
                assert_eq!(state.basis.as_deref(), Some("residency"));
            }
            if state.label == wanted.label() {
                as_wanted += 1;
            } else {
                eprintln!("{wanted:?}: {}: {}", state.label, state.evidence);
            }
        }
        assert!(labelled >= 9, "{wanted:?}: {labelled} of 10");
        // Of Python's own files, a tenth of that set, others on this machine may read some again:
        // then lukewarm is what it is. What the fixture reads nobody else does.
        assert!(place.python || as_wanted >= 9, "{wanted:?}: {as_wanted} of 10");
    }
}

#[test]
fn labels_are_what_another_program_measures() {
    let Some(place) = Place::new() else { return };
    own_files(&place);
}

#[test]
fn labels_of_an_import_are_what_another_program_measures() {
    let Some(place) = Place::package() else { return };
    own_files(&place);
}

/// Runs an ignored test of this program by `command`, which may be another user.
fn elsewhere(mut command: Command, test: &str, place: &Place) {
    let own = std::env::current_exe().expect("it has a path");
    command.arg(own).args(["--exact", test, "--ignored", "--nocapture"]);
    command.env(DIRECTORY, &place.directory).env(SCRATCH, &place.directory);
    let finished = finish(&mut command);
    finished.assert_code(0);
    assert!(finished.out().contains("1 passed"), "{finished}");
    eprint!("{}", finished.err());
}

#[test]
fn an_ordinary_user_has_labels_of_his_files() {
    for make in [Place::new, Place::package] {
        let (Some(user), Some(place)) = (nobody(), make()) else { return };
        give(&place.directory);
        place.files().iter().for_each(|file| give(file));
        elsewhere(user, "as_their_owner", &place);
    }
}

#[test]
#[ignore = "an_ordinary_user_has_labels_of_his_files starts it"]
fn as_their_owner() {
    let Some(place) = Place::given() else { return };
    own_files(&place);
}

#[test]
fn an_ordinary_user_has_labels_of_others_files_by_block_input() {
    let (Some(user), Some(place)) = (nobody(), Place::new()) else { return };
    give(&place.directory);
    elsewhere(user, "as_another", &place);
}

#[test]
#[ignore = "an_ordinary_user_has_labels_of_others_files_by_block_input starts it"]
fn as_another() {
    let Some(place) = Place::given() else { return };
    let set = WorkingSet::of(&place.record()).expect("it was traced");
    assert_eq!(place.resident(&place.files()), None, "the fixture is told nothing");
    let measured = set.measure();
    assert!(measured.files_measured < FILES as u64 / 10, "{measured:?}");
    assert!(measured.reasons.iter().any(|why| why.contains("own it or may write")), "{measured:?}");
    if set.accounting() != Accounting::Whole {
        skip("this filesystem accounts no block input");
        return;
    }
    let files = place.files();
    for (evict, expected) in [(FILES, "cold"), (FILES / 2, "unknown"), (0, "warm")] {
        let mut named = 0;
        for _ in 0..10 {
            finish(&mut place.fixture("read", &files)).assert_code(0);
            // To evict is allowed to whoever may read; nobody tells him that it worked.
            let evicted =
                WorkingSet::of_files(files[..evict].iter().map(|f| (f.clone(), u64::MAX)));
            assert_eq!(evicted.evict(&evicted.mapped()).files_evicted, evict as u64);
            let state = observe(&place, &set);
            assert!([expected, "unknown"].contains(&state.label.as_str()), "{evict}: {state:#?}");
            assert_ne!(state.basis.as_deref(), Some("residency"), "{state:#?}");
            named += u32::from(state.label == expected);
        }
        // On a busy machine pages may go.
        assert!(named >= 9, "{expected}: {named} of 10");
    }
    let refused = drop_caches().expect_err("only root may").to_string();
    assert!(refused.starts_with("cannot drop the machine's caches") && !refused.contains('\n'));
}

#[test]
fn back_to_back_runs_are_warm() {
    let Some(place) = Place::new() else { return };
    let set = WorkingSet::of(&place.record()).expect("it was traced");
    if set.accounting() == Accounting::None {
        skip("this filesystem accounts no block input");
        return;
    }
    let states: Vec<CacheState> = (0..20).map(|_| observe(&place, &set)).collect();
    let warm = states.iter().filter(|state| state.label == "warm").count();
    assert!(warm >= 18, "{warm} of 20: {states:#?}");
}

#[test]
fn what_is_dirty_is_written_out_and_evicted() {
    let Some(place) = Place::new() else { return };
    let set = WorkingSet::of_files(place.files().into_iter().map(|file| (file, u64::MAX)));
    if set.files().is_empty() {
        skip("scratch is memory");
        return;
    }
    let eviction = set.evict(&set.mapped());
    assert_eq!((eviction.by, eviction.files_evicted), ("posix_fadvise", FILES as u64));
    assert_eq!(eviction.remained.resident_bytes, Some(0), "{eviction:#?}");
    assert_eq!(place.resident(&place.files()), Some(0));
    assert!(eviction.failed.is_empty(), "{eviction:#?}");
}

#[test]
fn what_others_have_mapped_stays_and_is_told_apart() {
    let Some(place) = Place::new() else { return };
    let set = WorkingSet::of(&place.record()).expect("it was traced");
    if set.accounting() != Accounting::Whole {
        skip("this filesystem accounts no block input");
        return;
    }
    let board = Board::new();
    let mut hold = place.fixture("hold", &[board.path.clone(), place.files().remove(0)]);
    let holding = start(&mut hold);
    board.reach(Word::Ready, 1);
    let state = observe_evicted(&place, &set);
    board.set(Word::Stop, 1);
    holding.finish().assert_code(0);
    assert_eq!(state.label, "cold", "{state:#?}");
    // Of libc's pages others may have read some again.
    assert!(state.resident_before_bytes < Some(SIZE as u64), "{state:#?}");
    assert!(state.pinned_bytes >= Some(SIZE as u64), "{state:#?}");
    assert_eq!(state.evicted_by.as_deref(), Some("posix_fadvise"));
    // It is what the record holds, under its name.
    let mut record = place.record();
    record.cache = Some(state.clone());
    let json = serde_json::to_value(&record).expect("it is JSON");
    assert_eq!(json["cache"]["label"], "cold");
    let schema = coldtrace::record::schema();
    let validator = jsonschema::draft202012::new(&schema).expect("it is a schema");
    assert!(validator.is_valid(&json), "{json:#}");
    let back: Record = serde_json::from_value(json).expect("it is a record");
    assert_eq!(back.cache, Some(state));
}

#[test]
fn what_stays_and_is_not_mapped_was_in_memory() {
    /// Two fifths of all.
    const HELD: usize = 24;
    let Some(place) = Place::new() else { return };
    let set = WorkingSet::of(&place.record()).expect("it was traced");
    if set.accounting() != Accounting::Whole {
        skip("this filesystem accounts no block input");
        return;
    }
    let board = Board::new();
    let files = [&[board.path.clone()][..], &place.files()[..HELD]].concat();
    let holding = start(&mut place.fixture("splice", &files));
    board.reach(Word::Ready, 1);
    let state = observe_evicted(&place, &set);
    let held = place.resident(&place.files()[..HELD]);
    board.set(Word::Stop, 1);
    holding.finish().assert_code(0);
    assert_eq!(held, Some((HELD * SIZE) as u64));
    assert_eq!(state.label, "lukewarm", "{state:#?}");
    assert!(state.stayed_bytes >= Some((HELD * SIZE) as u64), "{state:#?}");
    assert!(state.evidence.contains("stayed after the eviction"), "{state:#?}");
}

#[test]
fn overlays_are_measured_by_mincore() {
    if !is_root() || find_program("unshare").is_none() {
        skip("only root can mount an overlay, with unshare");
        return;
    }
    let Some(place) = Place::new() else { return };
    let mut command = Command::new("unshare");
    command.args(["--mount", "--"]);
    if finish(Command::new("unshare").args(["--mount", "--", "true"])).code() != Some(0) {
        skip("no mount namespaces");
        return;
    }
    elsewhere(command, "on_an_overlay", &place);
}

#[test]
#[ignore = "overlays_are_measured_by_mincore starts it, in a mount namespace of its own"]
fn on_an_overlay() {
    let Some(given) = Place::given() else { return };
    let at = |name: &str| given.directory.join(name);
    for name in ["upper", "work", "lower", "merged"] {
        std::fs::create_dir(at(name)).expect("scratch can be written");
    }
    for file in given.files() {
        let name = file.file_name().expect("it has a name");
        // Through the overlay what is dirty below it would not be written out.
        let synced = std::fs::File::open(&file).and_then(|file| file.sync_all());
        synced.expect("scratch can be written");
        std::fs::rename(&file, at("lower").join(name)).expect("scratch can be written");
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        at("lower").display(),
        at("upper").display(),
        at("work").display()
    );
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "overlay", "-o", &options]).arg(at("merged"));
    if finish(&mut mount).code() != Some(0) {
        skip("no overlay can be mounted");
        return;
    }
    let merged = at("merged");
    let Some(place) = Data::within(merged).map(Place) else { return };
    let set = WorkingSet::of_files(place.files().into_iter().map(|file| (file, u64::MAX)));
    let measured = set.measure();
    assert_eq!((measured.method, measured.files_measured), (Method::Mincore, FILES as u64));
    if set.accounting() != Accounting::Whole {
        skip("what is below the overlay accounts no block input");
        return;
    }
    let mut named = 0;
    for wanted in State::ALL {
        wanted.reach(&place, &place.files());
        let (state, share) = observe_told(&place, &set);
        is_true(&state, share);
        named += u32::from(state.label == wanted.label());
        eprintln!("{wanted:?}: {}: {}", state.label, state.evidence);
    }
    assert!(named >= 2, "{named} of 3");
}

#[test]
fn the_set_is_what_is_read_and_can_be_out_of_memory() {
    let Some(place) = Place::new() else { return };
    let set = WorkingSet::of(&place.record()).expect("it was traced");
    let paths: Vec<&Path> = set.files().iter().map(|file| file.path.as_path()).collect();
    for file in place.files() {
        assert_eq!(paths.iter().filter(|path| **path == file).count(), 1, "{}", file.display());
    }
    assert!(paths.contains(&place.program.path.as_path()), "the program itself: {paths:?}");
    // Memory, what the kernel makes, what is not there, what is no file; and one file twice.
    let one = place.files().remove(0);
    let link = place.directory.join("link");
    std::os::unix::fs::symlink(&one, &link).expect("scratch can be written");
    let hard = place.directory.join("hard");
    std::fs::hard_link(&one, &hard).expect("scratch can be written");
    let others = ["/proc/self/status", "/proc/version", "/sys/kernel/mm", "/dev/null", "/nowhere"];
    let shm = Path::new("/dev/shm").join(format!("coldtrace-cache-{}", std::process::id()));
    let in_memory = std::fs::write(&shm, "1").is_ok();
    let all = others.iter().map(PathBuf::from).chain([one.clone(), link, hard]);
    let all = all.chain(in_memory.then(|| shm.clone()));
    let set = WorkingSet::of_files(all.map(|path| (path, 4096)));
    let _ = std::fs::remove_file(&shm);
    let is_tmpfs = std::fs::read_to_string("/proc/mounts")
        .is_ok_and(|mounts| mounts.lines().any(|line| line.contains(" /dev/shm tmpfs ")));
    if is_tmpfs {
        assert_eq!(set.files().len(), 1, "{set:?}");
    }
    assert_eq!((set.files()[0].touched_bytes, set.files()[0].size_bytes), (4096, SIZE as u64));
}

#[test]
fn bytecode_that_a_run_writes_is_counted() {
    if !Path::new(PYTHON).is_file() {
        skip("no python3");
        return;
    }
    let scratch = Scratch::new("bytecode");
    std::fs::write(scratch.path("one.py"), "import two\n").expect("scratch can be written");
    std::fs::write(scratch.path("two.py"), "x = 1\n").expect("scratch can be written");
    let python = |command: &mut Command| {
        command.env("PYTHONPATH", scratch.root()).env_remove("PYTHONDONTWRITEBYTECODE");
        command.env_remove("PYTHONPYCACHEPREFIX");
        finish(command.arg(PYTHON).args(["-c", "import one"])).assert_code(0);
    };
    let traced = || {
        let mut command = Command::new(coldtrace_path());
        python(command.args(["run", "--runs"]).arg(scratch.path("runs")).arg("--"));
        let record = std::fs::read(scratch.path("runs/latest/record.json")).expect("it was run");
        serde_json::from_slice::<Record>(&record).expect("it is a record")
    };
    let first = traced();
    assert_eq!(Written::of(&first).bytecode, Some(2));
    let second = traced();
    let written = Written::of(&second);
    assert_eq!((written.bytecode, written.others), (Some(0), Some(Vec::new())));
    // The same of runs that nobody watches.
    let set = WorkingSet::of(&second).expect("it was traced");
    let before = Bytecode::before(&set);
    assert_eq!(Written::of_bytecode(&before).bytecode, Some(0));
    std::fs::write(scratch.path("two.py"), "x = 12345\n").expect("scratch can be written");
    let mut plain = Command::new("env");
    python(&mut plain);
    // Where scratch is memory, no set has it.
    let expected = set.files().iter().any(|file| file.path.starts_with(scratch.root()));
    assert_eq!(Written::of_bytecode(&before).bytecode, Some(u64::from(expected)));
}
