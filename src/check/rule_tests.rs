//! Rules against records that were made by hand: what a rule says of a program that
//! does what it forbids, and of one that does not.

use crate::record::{
    Exec, FileRow, Files, NetworkRow, Platform, Process, ProcessSyscall, Record, Region,
    RegionProcess,
};
use crate::render::tests::record as made;

use super::*;

const HERE: &str = "x86_64 linux glibc";
const THERE: &str = "aarch64 linux glibc";

fn platform(name: &str) -> Platform {
    let mut words = name.split(' ').map(str::to_owned);
    let (arch, os) = (words.next(), words.next().unwrap());
    Platform { arch, os, libc: words.next(), libc_version: Some("2.36".into()) }
}

fn call(name: &str, calls: u64) -> ProcessSyscall {
    let (name, abi) = name.split_once('@').unwrap_or((name, "x86_64"));
    ProcessSyscall { name: name.into(), abi: abi.into(), calls, ..ProcessSyscall::default() }
}

fn process(id: u64, exe: &str, calls: &[(&str, u64)]) -> Process {
    let execs = vec![Exec { at_ns: 0, exe: Some(exe.into()), argv: vec![exe.into()] }];
    let syscalls = calls.iter().map(|(name, n)| call(name, *n)).collect();
    let parent = id.checked_sub(1).map(|_| 0);
    Process { id, pid: 100 + id as i32, parent, execs, syscalls, ..Process::default() }
}

fn file(path: &str, kinds: &[(&str, u64)], by: &[u64]) -> FileRow {
    let mut row = FileRow { path: path.into(), processes: by.to_vec(), ..FileRow::default() };
    for (kind, n) in kinds {
        match *kind {
            "read" => row.opens_read = *n,
            "write" => row.opens_write = *n,
            "missed" => row.misses = *n,
            "mapped" => row.mapped_bytes = *n,
            kind => drop(row.other.insert(kind.into(), *n)),
        }
    }
    row
}

fn address(call: &str, family: &str, kind: (&str, &str), address: Option<&str>) -> NetworkRow {
    NetworkRow {
        name: call.into(),
        abi: "x86_64".into(),
        family: Some(family.into()),
        socket_type: Some(kind.0.into()),
        protocol: Some(kind.1.into()),
        address: address.map(Into::into),
        calls: 1,
        ..NetworkRow::default()
    }
}

fn run(processes: Vec<Process>, files: Vec<FileRow>, network: Vec<NetworkRow>) -> Record {
    let mut record = made(&["app"], None);
    record.platform = Some(platform(HERE));
    record.processes = Some(processes);
    record.files = Some(Files { paths: files, ..Files::default() });
    record.network = Some(network);
    record
}

fn app(files: Vec<FileRow>) -> Record {
    run(vec![process(0, "/x/app", &[("getpid", 1)])], files, Vec::new())
}

/// As a checker sees it whose user is ann and who is at home.
fn shape(record: &Record) -> Shape {
    let variable = |name: &str| match name {
        "HOME" | "PWD" => Some("/home/ann".to_owned()),
        "TMPDIR" => Some("/scratch/tmp".to_owned()),
        _ => None,
    };
    let normaliser = Normaliser::new(&Normalise::default(), variable);
    Shape::of(record, normaliser.with_prefix(OUTPUT, "/scratch"))
}

const CASE: &str = "schema = 1\n[[case]]\nname = \"app\"\ncommand = [\"app\"]\n";

/// What one rule says of a run, with these lines of facts about calls.
fn judged_with(facts: &str, rule: &str, record: &Record) -> Judged {
    let text = format!("{CASE}{facts}\n[[rule]]\nid = \"r\"\n{rule}\n");
    let baseline = Baseline::parse(&text, "x").unwrap_or_else(|e| panic!("{e}\n{text}"));
    judge(&baseline, &baseline.cases[0], &shape(record))
}

fn facts_of(platform: &str, lines: &str) -> String {
    format!("[case.facts.\"{platform}\"]\nrecorded = {{ runs = 5, libc = \"2.36\" }}\n{lines}\n")
}

/// Whether the rule fails, and how it says so.
fn fails(rule: &str, record: &Record) -> Option<String> {
    let judged = judged_with("", rule, record);
    let verdict = &judged.verdicts[0];
    assert_ne!(verdict.state, State::Unjudged, "{rule}");
    (verdict.state == State::Failed).then(|| verdict.headline.clone())
}

fn warnings(judged: &Judged) -> Vec<&str> {
    judged.warnings.iter().map(|warning| warning.text.as_str()).collect()
}

#[test]
fn a_forbidden_path_may_be_written_in_each_way() {
    let secret = app(vec![file("/home/ann/.secret", &[("read", 1)], &[0])]);
    for path in ["/home/ann/.secret", "{home}/**", "{cwd}/**", "/home/**", "{home}/.secret", "**"] {
        let rule = format!("path = \"{path}\"");
        assert!(fails(&rule, &secret).is_some(), "{path}");
        assert_eq!(fails(&format!("path = \"**\"\nexcept = \"{path}\""), &secret), None, "{path}");
    }
    assert_eq!(fails("path = \"{tmp}/**\"", &secret), None);
    // One name of a baseline, several files.
    let files = vec![
        file("/tmp/Secret1", &[("read", 1)], &[0]),
        file("/tmp/Harmless2", &[("read", 1)], &[0]),
        file("/tmp/{random}", &[("read", 1)], &[0]),
    ];
    let random = app(files);
    for path in ["/tmp/Secret1", "/tmp/{random}"] {
        assert!(fails(&format!("path = \"{path}\""), &random).is_some(), "{path}");
    }
    assert_eq!(fails("path = \"/tmp/Secret1\"\nmax = 1", &random), None);
    let but = "path = \"/tmp/[SH]*\"\nexcept = \"/tmp/Harmless2\"";
    assert!(fails(but, &random).is_some(), "the exception is of another file");
    assert_eq!(fails(&format!("{but}\nmax = 1"), &random), None);
}

#[test]
fn a_write_is_each_call_that_changes_something() {
    for kind in ["rmdir", "setxattr", "bind", "mount", "pivot_root", "fallocate", "acct", "swap"] {
        let changed = app(vec![file("/x/f", &[(kind, 1)], &[0])]);
        assert!(fails("path = \"/x/*\"\naccess = \"write\"", &changed).is_some(), "{kind}");
    }
    for kind in ["read", "stat", "xattr", "exec", "missed"] {
        let looked = app(vec![file("/x/f", &[(kind, 1)], &[0])]);
        assert_eq!(fails("path = \"/x/*\"\naccess = \"write\"", &looked), None, "{kind}");
    }
    // Not paths are counted, but calls.
    let five = app(vec![file("/x/f", &[("write", 5)], &[0])]);
    assert!(fails("path = \"/x/*\"\naccess = \"write\"\nmax = 4", &five).is_some());
    assert_eq!(fails("path = \"/x/*\"\naccess = \"write\"\nmax = 5", &five), None);
}

#[test]
fn a_program_may_be_executed_by_the_name_that_leads_to_it() {
    let of = |argv: &[&str], rows: &[(&str, bool)]| {
        let argv = argv.iter().map(|word| (*word).to_owned()).collect();
        let exec = Exec { at_ns: 0, exe: Some("/usr/bin/dash".into()), argv };
        let child = Process { execs: vec![exec], ..process(1, "", &[]) };
        let mapped = |is: bool| u64::from(is);
        let row =
            |(path, is): &(&str, bool)| file(path, &[("exec", 1), ("mapped", mapped(*is))], &[1]);
        let app = process(0, "/x/app", &[]);
        run(vec![app, child], rows.iter().map(row).collect(), Vec::new())
    };
    let link = of(&["sh", "-c", "true"], &[("/bin/sh", true)]);
    for (allowed, held) in
        [("sh", true), ("/bin/sh", true), ("dash", true), ("bash", false), ("/usr/bin/sh", false)]
    {
        let rule = format!("exec = [\"app\", \"{allowed}\"]");
        assert_eq!(fails(&rule, &link).is_none(), held, "{allowed}");
    }
    // A program may be told any name.
    let told = of(&["sh"], &[("/usr/bin/dash", true)]);
    assert!(fails("exec = [\"app\", \"sh\"]", &told).is_some());
    let mut script = of(&["/bin/sh", "/x/script"], &[("/x/script", false)]);
    let elsewhere = file("/y/script", &[("exec", 1), ("missed", 1)], &[1]);
    script.files.as_mut().unwrap().paths.insert(0, elsewhere);
    assert!(fails("exec = [\"app\", \"/y/script\"]", &script).is_some());
    for (allowed, held) in [("sh", true), ("script", true), ("dash", true), ("other", false)] {
        let rule = format!("exec = [\"app\", \"{allowed}\"]");
        assert_eq!(fails(&rule, &script).is_none(), held, "{allowed}");
    }
    // That it was executed as sh once allows it as nothing else.
    let mut both = link.clone();
    let other = Process { pid: 300, ..process(2, "/usr/bin/dash", &[]) };
    both.processes.as_mut().unwrap().push(other);
    both.files.as_mut().unwrap().paths.push(file("/usr/bin/dash", &[("exec", 1)], &[2]));
    assert!(fails("exec = [\"app\", \"sh\"]", &both).is_some());
}

#[test]
fn an_exception_is_written_as_the_address_is_shown() {
    let udp = ("dgram", "udp");
    let rows =
        |rows: &[NetworkRow]| run(vec![process(0, "/x/app", &[])], Vec::new(), rows.to_vec());
    let v6 = rows(&[address("connect", "inet6", udp, Some("[::1]:8125"))]);
    let v4 = rows(&[address("connect", "inet", udp, Some("127.0.0.1:8125"))]);
    let unix = rows(&[address("connect", "unix", ("stream", "0"), Some("/scratch/tmp/s"))]);
    let socket = rows(&[address("socket", "inet", udp, None)]);
    for (record, except) in [
        (&v6, &["[::1]:8125", "[::1]:*", "[::1]:8125/udp", "[::1]:*/udp", "[*]:8125"][..]),
        (&v4, &["127.0.0.1:*", "127.0.0.1:8125/udp", "connect 127.0.0.1:8125/udp"]),
        (&unix, &["/scratch/tmp/s", "{tmp}/s", "{tmp}/s unix/stream", "/scratch/**"]),
        (&socket, &["inet/dgram"]),
    ] {
        for text in except {
            let rule = format!("syscall = [\"socket\", \"connect\"]\nexcept = \"{text}\"");
            assert_eq!(fails(&rule, record), None, "{text}");
        }
        for text in ["[::2]:*", "127.0.0.1", "127.0.0.2:*", "/run/*", "inet/stream"] {
            let rule = format!("syscall = [\"socket\", \"connect\"]\nexcept = \"{text}\"");
            assert!(fails(&rule, record).is_some(), "{text}");
        }
    }
    // Two addresses that are one to a baseline.
    let two = rows(&[
        address("connect", "unix", ("stream", "0"), Some("/scratch/tmp/Socket1")),
        address("connect", "unix", ("stream", "0"), Some("/scratch/tmp/Socket2")),
    ]);
    let but = |text: &str| fails(&format!("syscall = \"connect\"\nexcept = {text}"), &two);
    assert!(but("\"/scratch/tmp/Socket1\"").is_some());
    assert!(but("\"/scratch/tmp/Socket2\"").is_some());
    assert_eq!(but("[\"/scratch/tmp/Socket1\", \"/scratch/tmp/Socket2\"]"), None);
    assert_eq!(but("\"{tmp}/{random}\""), None);
}

#[test]
fn what_socketcall_stands_for_is_seen() {
    let mut connect = address("connect", "inet", ("stream", "tcp"), Some("10.0.0.1:80"));
    connect.abi = "i386".into();
    let calls = [("socketcall@i386", 2)];
    let record = run(vec![process(0, "/x/app", &calls)], Vec::new(), vec![connect.clone()]);
    let says = fails("syscall = \"connect\"", &record).unwrap();
    assert_eq!(says, "connect 10.0.0.1:80/tcp by app");
    assert_eq!(fails("syscall = \"connect\"\nmax = 1", &record), None);
    // What is counted under its own name counts once.
    let calls = [("connect@i386", 1)];
    let record = run(vec![process(0, "/x/app", &calls)], Vec::new(), vec![connect]);
    assert_eq!(fails("syscall = \"connect\"\nmax = 1", &record), None);
    assert!(fails("syscall = \"connect\"", &record).is_some());
}

#[test]
fn a_region_whose_marker_is_gone_fails() {
    let mut record = app(Vec::new());
    let facts = facts_of(HERE, "getpid = { calls = 1 }\n")
        + &format!("[case.facts.\"{HERE}\".region.scan]\ngetpid = {{ calls = 1 }}\n");
    for rule in ["syscall = \"getpid\"\nmax = 9", "facts = true", "deny = \"unlisted\""] {
        let rule = format!("region = \"scan\"\n{rule}");
        let judged = judged_with(&facts, &rule, &record);
        assert_eq!(judged.verdicts[0].state, State::Failed, "{rule}");
        assert_eq!(judged.verdicts[0].headline, "region scan never began");
        // Never recorded either: that is said, and nothing else.
        let judged = judged_with(&facts_of(HERE, "getpid = { calls = 1 }"), &rule, &record);
        assert_eq!(judged.verdicts[0].state, State::Passed, "{rule}");
        let about: Vec<_> = judged.warnings.iter().filter(|w| w.rule.is_some()).collect();
        assert_eq!(about.len(), 1, "{about:?}");
        assert_eq!(about[0].kind, WarningKind::Unused);
        assert!(about[0].text.starts_with("region scan never began"), "{about:?}");
    }
    let processes = vec![RegionProcess { id: 0, syscalls: vec![call("getpid", 1)] }];
    let region = Region { name: "scan".into(), times: 1, processes, ..Region::default() };
    record.regions = Some(vec![region]);
    let judged = judged_with(&facts, "region = \"scan\"\nfacts = true", &record);
    assert_eq!(judged.verdicts[0].state, State::Passed);
}

#[test]
fn recorded_as_never_made_is_not_listed() {
    let record = app(Vec::new());
    let state = |line: &str| {
        judged_with(&facts_of(HERE, line), "deny = \"unlisted\"", &record).verdicts[0].state
    };
    assert_eq!(state("getpid = { calls = 0 }"), State::Failed);
    assert_eq!(state("getpid = { calls = [0, 0] }"), State::Failed);
    assert_eq!(state("getpid = { calls = [0, 1] }"), State::Passed);
    assert_eq!(state("getpid = \"varies\""), State::Passed);
}

#[test]
fn what_own_facts_cannot_tell_is_said_and_is_no_lack_of_facts() {
    let record = app(Vec::new());
    let varies = facts_of(HERE, "getpid = { calls = 1 }\nopenat = \"varies\"");
    for rule in ["metric = \"ENOENT\"\nmax_ratio = 2.0", "metric = \"paths\"\nmax_new_paths = 0"] {
        let judged = judged_with(&varies, rule, &record);
        assert_eq!(judged.verdicts[0].state, State::Passed, "{rule}");
        let said = warnings(&judged);
        assert!(said.iter().any(|text| text.ends_with("the rule says nothing")), "{said:?}");
    }
}

#[test]
fn a_case_without_rules_holds_nothing() {
    let text = format!(
        "{CASE}[[case]]\nname = \"b\"\ncommand = [\"b\"]\n[[rule]]\nid = \"r\"\ncase = \"b\"\n\
         exec = \"app\"\n"
    );
    let baseline = Baseline::parse(&text, "x").unwrap();
    let of = |i: usize| judge(&baseline, &baseline.cases[i], &shape(&app(Vec::new())));
    assert_eq!(warnings(&of(0)), ["nothing is held: no rule is for this case"]);
    assert_eq!(of(0).warnings[0].kind, WarningKind::Unused);
    assert_eq!(warnings(&of(1)), Vec::<&str>::new());
}

#[test]
fn another_architecture_is_compared_by_what_both_have() {
    let on = |platform_name: &str, calls: &[(&str, u64)]| {
        let mut record = run(vec![process(0, "/x/app", calls)], Vec::new(), Vec::new());
        record.platform = Some(platform(platform_name));
        for row in &mut record.processes.as_mut().unwrap()[0].syscalls {
            row.abi = platform_name.split(' ').next().unwrap().into();
        }
        record
    };
    let x86 = [("open", 3), ("stat", 2), ("arch_prctl", 5), ("dup2", 1)];
    let arm = [("openat", 3), ("newfstatat", 2), ("dup3", 1)];
    let lines = |calls: &[(&str, u64)]| {
        let line = |(name, n): &(&str, u64)| format!("{name} = {{ calls = {n} }}\n");
        let sum: u64 = calls.iter().map(|(_, n)| n).sum();
        let total = "errors = 0, processes = 1, threads = 0";
        let total = format!("total = {{ calls = {sum}, {total} }}\n");
        total + &calls.iter().map(line).collect::<String>()
    };
    let state = |facts: &str, rule: &str, record: &Record| {
        judged_with(facts, rule, record).verdicts[0].state
    };
    let unlisted = "deny = \"unlisted\"";
    let ratio = "metric = \"calls\"\nmax_ratio = 1.0";
    for (from, calls, to, same) in [(HERE, &x86[..], THERE, &arm[..]), (THERE, &arm, HERE, &x86)] {
        let facts = facts_of(from, &lines(calls));
        let record = on(to, same);
        assert_eq!(state(&facts, unlisted, &record), State::Passed, "{from}");
        assert_eq!(state(&facts, ratio, &record), State::Passed, "{from}");
        let more: Vec<_> = same.iter().copied().chain([("socket", 1)]).collect();
        assert_eq!(state(&facts, unlisted, &on(to, &more)), State::Failed, "{from}");
        assert_eq!(state(&facts, ratio, &on(to, &more)), State::Failed, "{from}");
        for rule in [
            "metric = \"paths\"\nmax_new_paths = 0",
            "metric = \"paths\"\nmax_ratio = 1.0",
            "metric = \"opens\"\nmax_ratio = 1.0",
            "metric = \"misses\"\nmax_ratio = 1.0",
            "metric = \"processes\"\nmax_ratio = 1.0",
            "facts = true",
        ] {
            assert_eq!(state(&facts, rule, &record), State::Unjudged, "{rule}");
        }
    }
    // Another version of the library on the same platform.
    let facts = facts_of(HERE, &lines(&[("fstat", 3), ("open", 2)]));
    let mut newer = on(HERE, &[("newfstatat", 3), ("openat", 2)]);
    assert_eq!(state(&facts, unlisted, &newer), State::Failed);
    newer.platform.as_mut().unwrap().libc_version = Some("2.41".into());
    for rule in [unlisted, ratio, "facts = true"] {
        assert_eq!(state(&facts, rule, &newer), State::Passed, "{rule}");
    }
}

#[test]
fn programs_of_one_name_are_told_apart() {
    let processes = vec![
        process(0, "/x/app", &[]),
        process(1, "/a/x", &[]),
        process(2, "/b/x", &[("mount", 1)]),
    ];
    let files = vec![file("/etc/f", &[("read", 1)], &[2])];
    let record = run(processes, files, Vec::new());
    for demand in ["syscall = \"mount\"", "path = \"/etc/f\""] {
        assert_eq!(fails(&format!("exe = \"/a/x\"\n{demand}"), &record), None, "{demand}");
        assert!(fails(&format!("exe = \"/b/x\"\n{demand}"), &record).is_some(), "{demand}");
        assert!(fails(&format!("exe = \"x\"\n{demand}"), &record).is_some(), "{demand}");
    }
}

#[test]
fn numbers_of_a_forged_record_do_not_overflow() {
    let huge = [("getpid", u64::MAX), ("getppid", u64::MAX)];
    let files = vec![
        file("/a", &[("read", u64::MAX), ("missed", u64::MAX)], &[0]),
        file("/b", &[("read", u64::MAX), ("missed", u64::MAX), ("write", u64::MAX)], &[0]),
    ];
    let record = run(vec![process(0, "/x/app", &huge)], files, Vec::new());
    for metric in ["calls", "opens", "misses", "errors"] {
        let rule = format!("metric = \"{metric}\"\nmax = 1");
        assert_eq!(fails(&rule, &record).is_some(), metric != "errors", "{metric}");
    }
    assert!(fails("path = \"**\"\naccess = \"write\"", &record).is_some());
    let facts = facts_of(HERE, "read = { calls = 1 }");
    assert_eq!(judged_with(&facts, "facts = true", &record).verdicts[0].state, State::Failed);
}

#[test]
fn exceptions_of_a_cases_own_place_are_always_right() {
    let wrote = app(vec![file("/x/f", &[("write", 1)], &[0])]);
    let rule =
        |except: &str| format!("path = \"/**\"\naccess = \"write\"\nexcept = [\"/x/f\", {except}]");
    let judged = judged_with("", &rule("\"{output}/**\", \"{tmp}/**\", \"{cwd}/**\""), &wrote);
    assert_eq!(warnings(&judged), Vec::<&str>::new());
    let judged = judged_with("", &rule("\"{home}/**\", \"/y\""), &wrote);
    assert_eq!(warnings(&judged), ["\"{home}/**\" matches nothing", "\"/y\" matches nothing"]);
}

/// A report of cases that were judged, as the check makes it.
fn report(baseline: &Baseline, records: &[Record]) -> Report {
    let case = |(case, record): (&Case, &Record)| {
        let judged = judge(baseline, case, &shape(record));
        CaseReport {
            case: case.name.clone(),
            command: case.command.clone(),
            line: None,
            platform: None,
            calls_before: None,
            calls: None,
            wall_ns: None,
            runs: 1,
            record: None,
            verdicts: judged.verdicts,
            warnings: judged.warnings,
            problem: None,
            accept: String::new(),
        }
    };
    let cases = baseline.cases.iter().zip(records).map(case).collect();
    let mut report = Report { schema: REPORT_SCHEMA, baseline: "x".into(), strict: true, cases };
    spare_rules(&mut report, baseline);
    report
}

#[test]
fn a_rule_of_several_cases_is_as_strict_as_the_case_that_needs_it() {
    let text = format!(
        "{CASE}[[case]]\nname = \"b\"\ncommand = [\"b\"]\n\
         [[rule]]\nid = \"files\"\npath = \"/x/*\"\nexcept = [\"/x/a\", \"/x/b\"]\nmax = 2\n"
    );
    let baseline = Baseline::parse(&text, "x").unwrap();
    let uses = |path: &str, n: u64| {
        app(vec![file(path, &[("read", 1)], &[0]), file("/x/c", &[("read", n)], &[0])])
    };
    let all = report(&baseline, &[uses("/x/a", 2), uses("/x/b", 1)]);
    assert_eq!(
        all.cases.iter().flat_map(|case| &case.warnings).collect::<Vec<_>>(),
        [] as [&Warning; 0]
    );
    assert_eq!(all.status(), 0);
    // What none of them uses or reaches is said still.
    let none = report(&baseline, &[uses("/x/a", 1), uses("/x/a", 1)]);
    let said: Vec<_> = none.cases[0].warnings.iter().map(|w| w.text.as_str()).collect();
    assert_eq!(said, ["\"/x/b\" matches nothing", "1 calls: max = 2 could be lower"]);
    assert_eq!(none.status(), 1);
    // A case that was not judged is no witness.
    let one = report(&baseline, &[uses("/x/a", 2)]);
    assert_eq!(one.cases[0].warnings.len(), 1);
}
