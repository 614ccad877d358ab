//! Where CPU time went: what `burns` says that it used, by its threads' own clocks, is what the samples
//! say, by object and by thread; and where nothing can be sampled the record says why.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use coldtrace::observe::CpuSampling;
use coldtrace::record::{CpuObject, CpuSamples, Record};
use support::fixture::built;
use support::process::{Finished, finish, start};
use support::{
    Scratch, coldtrace, coldtrace_path, find_program, is_root, nobody, read_record, skip,
};

/// Often enough for some hundred milliseconds.
const OFTEN: &[&str] = &["--cpu-samples", "997"];

/// One line of `burns`.
#[derive(Debug)]
struct Burnt {
    place: String,
    pid: i32,
    tid: i32,
    ns: u64,
}

/// What `burns` said on its standard output.
fn burnt(finished: &Finished) -> Vec<Burnt> {
    let out = finished.out();
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [place, pid, tid, ns] = words[..] else { panic!("not understood: {line}\n{finished}") };
        let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{word} in {line}"));
        Burnt {
            place: place.to_owned(),
            pid: number(pid) as i32,
            tid: number(tid) as i32,
            ns: number(ns),
        }
    };
    out.lines().map(line).collect()
}

/// A run that has ended: its scratch directory, how it ended, its record.
struct Ran {
    scratch: Scratch,
    finished: Finished,
    record: Record,
}

impl Ran {
    fn cpu(&self) -> &CpuSamples {
        self.record.cpu.as_ref().unwrap_or_else(|| panic!("no part cpu: {}", self.finished))
    }

    /// What `coldtrace show` prints.
    fn show(&self, options: &[&str]) -> String {
        let mut command = coldtrace("show");
        command.arg("--runs").arg(self.scratch.path("runs")).args(options);
        let finished = finish(&mut command);
        finished.assert_code(0);
        finished.out()
    }
}

/// `LAUNCHER coldtrace run OPTIONS -- WORDS`
fn run_by(mut launcher: Command, options: &[&str], words: &[PathBuf]) -> Ran {
    let scratch = Scratch::new("cpu");
    std::fs::set_permissions(scratch.root(), PermissionsExt::from_mode(0o777)).expect("it is ours");
    launcher.arg("run").arg("--runs").arg(scratch.path("runs"));
    launcher.args(["--output", "pass"]).args(options).arg("--").args(words);
    let finished = finish(&mut launcher);
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    Ran { scratch, finished, record }
}

fn run(options: &[&str], words: &[PathBuf]) -> Ran {
    run_by(Command::new(coldtrace_path()), options, words)
}

/// `burns` with these steps.
fn burns(steps: &[&str]) -> Option<Vec<PathBuf>> {
    let program = built("burns")?;
    let mut words = vec![program.path];
    words.extend(program.arguments);
    words.extend(steps.iter().map(PathBuf::from));
    Some(words)
}

/// Whether this machine lets its user sample anything; root is refused by a container only.
fn sampled(ran: &Ran) -> bool {
    let reason = ran.cpu().reason.as_deref();
    if let Some(reason) = reason {
        skip(reason);
    }
    reason.is_none()
}

/// The CPU time that samples stand for, of one object.
fn time_in(objects: &[CpuObject], path: &str) -> u64 {
    objects.iter().find(|o| o.object == path).map_or(0, |o| o.estimated_ns)
}

/// Panics unless it is near: to a quarter, and to what two processors may lose at the ends.
#[track_caller]
fn near(what: &str, sampled: u64, used: u64, ran: &Ran) {
    let off = sampled.abs_diff(used);
    assert!(
        off <= used / 4 + 5_000_000,
        "{what}: {sampled} ns by samples, {used} by its own clock: {}\n{:#?}",
        ran.finished,
        ran.cpu()
    );
}

/// The time of one thread in one object.
#[track_caller]
fn thread_in(ran: &Ran, pid: i32, tid: i32, path: &str) -> u64 {
    let processes = ran.record.processes.as_deref().unwrap_or_default();
    let process = processes.iter().find(|p| p.pid == pid).map(|p| p.id);
    assert!(process.is_some(), "{pid} is no process of {processes:?}");
    let threads = ran.cpu().threads.as_deref().unwrap_or_default();
    let thread = threads.iter().find(|t| t.process == process && t.tid == tid);
    time_in(thread.map_or(&[], |t| &t.objects), path)
}

/// Panics unless all sums of the part agree.
#[track_caller]
fn adds_up(cpu: &CpuSamples) {
    let objects = cpu.objects.as_deref().expect("there are objects");
    let threads = cpu.threads.as_deref().expect("there are threads");
    let period = cpu.period_ns.expect("there is a period");
    let sum = |objects: &[CpuObject]| objects.iter().map(|o| o.samples).sum::<u64>();
    assert_eq!(cpu.samples, Some(sum(objects)), "{cpu:#?}");
    assert_eq!(cpu.samples, Some(threads.iter().map(|t| t.samples).sum()), "{cpu:#?}");
    for thread in threads {
        assert_eq!(thread.samples, sum(&thread.objects), "{thread:?}");
        assert_eq!(thread.estimated_ns, thread.samples * period, "{thread:?}");
        let kernel =
            thread.objects.iter().find(|o| o.object == "[kernel]").map_or(0, |o| o.samples);
        assert_eq!(thread.kernel_samples, cpu.kernel.unwrap_or(false).then_some(kernel));
    }
    for object in objects {
        let same = threads.iter().flat_map(|t| &t.objects).filter(|o| o.object == object.object);
        assert_eq!(object.samples, same.map(|o| o.samples).sum::<u64>(), "{object:?}");
        assert_eq!(object.estimated_ns, object.samples * period, "{object:?}");
    }
    assert!(objects.is_sorted_by_key(|o| std::cmp::Reverse(o.samples)), "{objects:?}");
    assert!(threads.is_sorted_by_key(|t| std::cmp::Reverse(t.samples)), "{threads:?}");
    assert_eq!(cpu.lost, Some(0), "{cpu:#?}");
}

fn real(path: &Path) -> String {
    path.canonicalize().expect("it is there").display().to_string()
}

#[test]
fn each_threads_time_is_where_it_was_used() {
    let steps = ["own=200", "library=300", "anonymous=150", "thread=250", "fork=400"];
    let Some(words) = burns(&steps) else { return };
    let ran = run(OFTEN, &words);
    ran.finished.assert_code(0);
    if !sampled(&ran) {
        return;
    }
    adds_up(ran.cpu());
    assert_eq!(ran.cpu().frequency_hz, 997);
    let (own, library) = (real(&words[0]), real(&words[1]));
    let mut by_object = [0; 3];
    let all = burnt(&ran.finished);
    assert_eq!(all.len(), steps.len(), "{all:?}");
    for burnt in &all {
        let (object, which) = match burnt.place.as_str() {
            "own" | "thread" => (own.as_str(), 0),
            "library" | "fork" => (library.as_str(), 1),
            _ => ("[anonymous]", 2),
        };
        let time = thread_in(&ran, burnt.pid, burnt.tid, object);
        near(&burnt.place, time, burnt.ns, &ran);
        by_object[which] += burnt.ns;
    }
    let objects = ran.cpu().objects.as_deref().unwrap_or_default();
    for (object, used) in [own.as_str(), &library, "[anonymous]"].iter().zip(by_object) {
        near(object, time_in(objects, object), used, &ran);
    }
    // The kernel's own account of the whole tree.
    let tree = ran.record.tree.as_ref().expect("it was traced");
    let used = tree.user_ns.zip(tree.sys_ns).map(|(user, sys)| user + sys);
    let period = ran.cpu().period_ns.unwrap_or(0);
    let all = ran.cpu().samples.unwrap_or(0) * period;
    if ran.cpu().kernel == Some(true) {
        near("the tree", all, used.expect("it is known"), &ran);
    }
}

#[test]
fn an_exec_leaves_nothing_of_the_old_image() {
    let Some(mut words) = burns(&["own=150"]) else { return };
    let scratch = Scratch::new("images");
    let copies = ["one", "two"].map(|name| scratch.path(name));
    for copy in &copies {
        // Not by this process, which may fork in another thread while it has the copy open.
        finish(Command::new("cp").arg(&words[0]).arg(copy)).assert_code(0);
    }
    words[0].clone_from(&copies[0]);
    words.push(PathBuf::from(format!("exec={}", copies[1].display())));
    words.push(PathBuf::from("own=300"));
    let ran = run(OFTEN, &words);
    ran.finished.assert_code(0);
    if !sampled(&ran) {
        return;
    }
    adds_up(ran.cpu());
    let all = burnt(&ran.finished);
    assert_eq!(all.len(), 2, "{all:?}");
    for (burnt, copy) in all.iter().zip(&copies) {
        let time = thread_in(&ran, burnt.pid, burnt.tid, &real(copy));
        near(&copy.display().to_string(), time, burnt.ns, &ran);
    }
}

#[test]
fn what_makes_no_call_for_long_is_sampled_all_the_time() {
    // More than a buffer holds: it has to be emptied meanwhile.
    let Some(words) = burns(&["silent=3000"]) else { return };
    let most = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate");
    if most.ok().and_then(|most| most.trim().parse().ok()) < Some(10_000) {
        return skip("this machine does not allow so many samples");
    }
    let ran = run(&["--cpu-samples", "10000"], &words);
    ran.finished.assert_code(0);
    if !sampled(&ran) {
        return;
    }
    adds_up(ran.cpu());
    assert_eq!(ran.cpu().period_ns, Some(100_000));
    let [burnt] = &burnt(&ran.finished)[..] else { panic!("{}", ran.finished) };
    let time = thread_in(&ran, burnt.pid, burnt.tid, &real(&words[0]));
    near("silent", time, burnt.ns, &ran);
    // On two processors, of 32 bytes each.
    let samples = time / 100_000;
    assert!(samples >= 2 * 8192, "a buffer of 256 KiB was never full: {samples}");
}

#[test]
fn a_pid_that_comes_again_is_another_process() {
    let last = "/proc/sys/kernel/ns_last_pid";
    if !is_root() || find_program("unshare").is_none() || !Path::new(last).exists() {
        return skip("pids cannot be made to come again");
    }
    let Some(words) = burns(&["own=100"]) else { return };
    let command = |ms: u32| {
        let word = |word: &PathBuf| format!("'{}'", word.display());
        let [program, library] = [&words[0], &words[1]].map(word);
        format!("echo 1999 > {last}; {program} {library} own={ms}")
    };
    let script = format!("{}; {}; exit 0", command(100), command(300));
    let scratch = Scratch::new("pids");
    let mut namespace = Command::new("unshare");
    namespace.args(["-pf", "--mount-proc"]);
    if finish(Command::new("unshare").args(["-pf", "--mount-proc", "true"])).code() != Some(0) {
        return skip("no PID namespace here");
    }
    namespace.arg(coldtrace_path());
    let words = ["sh", "-c", &script].map(PathBuf::from);
    let ran = run_by(namespace, OFTEN, &words);
    ran.finished.assert_code(0);
    if !sampled(&ran) {
        return;
    }
    adds_up(ran.cpu());
    let all = burnt(&ran.finished);
    let pids: Vec<i32> = all.iter().map(|burnt| burnt.pid).collect();
    if pids[0] != pids[1] {
        return skip("another process had taken the pid");
    }
    let processes = ran.record.processes.as_deref().unwrap_or_default();
    let same: Vec<u64> = processes.iter().filter(|p| p.pid == pids[0]).map(|p| p.id).collect();
    assert_eq!(same.len(), 2, "{processes:?}");
    let threads = ran.cpu().threads.as_deref().unwrap_or_default();
    for (id, burnt) in same.iter().zip(&all) {
        let thread = threads.iter().find(|t| t.process == Some(*id));
        let time = thread.map_or(0, |t| t.estimated_ns);
        near(&format!("process {id}"), time, burnt.ns, &ran);
    }
    drop(scratch);
}

#[test]
fn refused_it_says_why_and_the_command_runs() {
    let (Some(helper), Some(words)) = (built("no-ptrace"), burns(&["own=20"])) else { return };
    for (errno, words_of_it) in [("EPERM-perf", "was refused"), ("ENOSYS-perf", "is not there")] {
        let mut launcher = Command::new(&helper.path);
        launcher.arg(errno).arg(coldtrace_path());
        let ran = run_by(launcher, &[], &words);
        ran.finished.assert_code(0);
        let cpu = ran.cpu();
        let reason = cpu.reason.as_deref().unwrap_or_default();
        assert!(reason.starts_with("perf_event_open ") && reason.contains(words_of_it), "{cpu:?}");
        assert_eq!((cpu.samples, cpu.lost, &cpu.objects, &cpu.threads), (None, None, &None, &None));
        // Unknown is null, and not left out.
        let json: serde_json::Value =
            serde_json::from_str(&ran.show(&["--cpu", "--json"])).unwrap();
        for name in ["samples", "lost", "objects", "threads", "kernel", "kernel_reason"] {
            assert_eq!(json.get(name), Some(&serde_json::Value::Null), "{name}");
        }
        let shown = ran.show(&["--cpu"]);
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(&format!("CPU not sampled: {reason}")), "{shown}");
        assert!(ran.record.syscalls.is_some_and(|rows| !rows.is_empty()));
    }
}

#[test]
fn an_ordinary_user_gets_what_the_machine_allows_and_is_told() {
    let Some(launcher) = nobody() else { return };
    let Some(words) = burns(&["own=200"]) else { return };
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let level: i32 = level.ok().and_then(|l| l.trim().parse().ok()).unwrap_or(0);
    let mut launcher = launcher;
    launcher.arg(coldtrace_path());
    let ran = run_by(launcher, OFTEN, &words);
    ran.finished.assert_code(0);
    let cpu = ran.cpu();
    if level > 2 {
        let reason = cpu.reason.as_deref().unwrap_or_default();
        assert!(reason.contains("kernel.perf_event_paranoid=2"), "{cpu:?}");
        return;
    }
    if !sampled(&ran) {
        return;
    }
    adds_up(cpu);
    assert_eq!(cpu.kernel, Some(level < 2), "{cpu:?}");
    assert_eq!(cpu.kernel_reason.is_some(), level == 2, "{cpu:?}");
    let objects = cpu.objects.as_deref().unwrap_or_default();
    assert!(level < 2 || objects.iter().all(|o| o.object != "[kernel]"), "{objects:?}");
    let [burnt] = &burnt(&ran.finished)[..] else { panic!("{}", ran.finished) };
    near("own", thread_in(&ran, burnt.pid, burnt.tid, &real(&words[0])), burnt.ns, &ran);
}

#[test]
fn off_is_absent_and_other_ways_to_run_say_why_there_is_none() {
    let words = [PathBuf::from("true")];
    let ran = run(&["--cpu-samples", "off"], &words);
    assert_eq!(ran.record.cpu, None);
    let mut show = coldtrace("show");
    let finished = finish(show.arg("--cpu").arg("--runs").arg(ran.scratch.path("runs")));
    finished.assert_code(2);
    assert!(finished.err().contains("holds no part cpu"), "{finished}");

    let ran = run(&["--no-trace"], &words);
    let reason = ran.cpu().reason.as_deref().unwrap_or_default();
    assert!(reason.contains("--no-trace"), "{reason}");
    assert_eq!(ran.cpu().samples, None);
    assert!(ran.show(&[]).contains("CPU not sampled: "));
    assert_eq!(run(&["--no-trace", "--cpu-samples", "off"], &words).record.cpu, None);

    let scratch = Scratch::new("attached");
    let asleep = start(Command::new("sleep").arg("60"));
    let mut attach = coldtrace("run");
    attach.arg("--runs").arg(scratch.path("runs")).args(["--duration", "0.2s", "-p"]);
    let finished = finish(attach.arg(asleep.pid().to_string()));
    finished.assert_code(0);
    let record = read_record(&scratch.path("runs/latest/record.json"), &finished);
    let cpu = record.cpu.expect("it says why not");
    assert!(cpu.reason.as_deref().is_some_and(|why| why.contains("attached")), "{cpu:?}");
    assert_eq!((cpu.samples, cpu.objects), (None, None));
}

#[test]
fn nonsense_is_refused_in_one_line() {
    for nonsense in ["0", "-1", "10001", "often", ""] {
        let option = format!("--cpu-samples={nonsense}");
        let finished = finish(coldtrace("run").args([&option, "--", "true"]));
        finished.assert_code(125);
        let err = finished.err();
        assert!(err.lines().count() == 1 && err.contains("--cpu-samples"), "{finished}");
        assert!(err.contains("1 to 10000") || nonsense.is_empty(), "{finished}");
    }
}

#[test]
fn show_has_it_before_the_calls_within_80_columns() {
    let Some(words) = burns(&["own=100", "library=60"]) else { return };
    let ran = run(&[], &words);
    assert_eq!(ran.cpu().frequency_hz, u64::from(CpuSampling::USUAL_HZ));
    let shown = ran.show(&[]);
    let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("no {text} in\n{shown}"));
    assert!(at("calls held ") < at("% time"), "{shown}");
    assert!(at(" of wall ") < at("% time"), "{shown}");
    for text in [&shown, &ran.show(&["--cpu"])] {
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }
    if sampled(&ran) {
        assert!(at("% CPU") < at("% time"), "{shown}");
        let rows: Vec<&str> = shown.lines().filter(|line| line.ends_with("/burns")).collect();
        assert_eq!(rows.len(), 1, "{shown}");
    }
}
