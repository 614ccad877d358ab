//! `coldtrace files` lists every path that a command opened, asked about or looked for in vain, under
//! the name that the kernel took it by, with what was done with it; none is missing, none invented.
//!
//! The fixtures say in their heads which rows they give (tests/support/paths.rs).

mod support;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use coldtrace::record::{FileRow, Record, Search};
use support::board::{Board, Word, field, is_traced, state, tids, until};
use support::fixture::built;
use support::paths::{Expected, Walk, compare, contradictions, files, listing, row, the_row};
use support::process::{Finished, finish, start};
use support::{
    ENGINES, STOP_INFOS, Scratch, coldtrace, engine_options, find_program, is_root, nobody,
    read_record, skip,
};

// ---- which path, which file ----

/// The rows of the head, on each engine and whichever way stops are read.
fn holds(name: &str) {
    let Some(walk) = Walk::new(name) else { return };
    if !walk.works() {
        return;
    }
    for engine in ENGINES {
        for &info in STOP_INFOS {
            let options = engine_options(engine, info);
            let (record, _) = walk.traced(&options);
            walk.assert_rows(&record, &format!("{options:?}"));
        }
    }
}

#[test]
fn a_name_becomes_the_path_that_the_kernel_looks_up() {
    holds("paths-rules");
}

#[test]
fn a_descriptor_stands_for_its_file_wherever_it_came_from() {
    holds("paths-descriptors");
}

#[test]
fn every_kind_of_call_counts_with_its_bytes_and_failures() {
    holds("paths-calls");
}

#[test]
fn descriptors_without_a_path_count_by_kind() {
    holds("paths-kinds");
}

#[test]
fn what_is_deleted_is_marked() {
    holds("paths-deleted");
}

#[test]
fn what_lies_below_another_root_is_named_from_ours_and_marked() {
    if !is_root() {
        return skip("only root may chroot");
    }
    holds("paths-chroot");
}

#[test]
fn calls_by_the_i386_table_name_paths_too() {
    holds("paths-int80");
}

#[test]
fn rows_name_the_processes_that_used_them() {
    let Some(walk) = Walk::new("paths-descriptors") else { return };
    if !walk.works() {
        return;
    }
    let (record, _) = walk.traced(&[]);
    let users = |name: &str| the_row(&record, walk.path(name)).processes.clone();
    assert_eq!(users("first"), [0]);
    assert_eq!(users("after-exec"), [1]);
    assert_eq!(users("inherited"), [0, 2]);
    assert_eq!(users("sub/forked"), [2]);
    assert_eq!(users("forked"), [0]);
    assert_eq!(users("threads"), [0], "a thread is no process");
}

#[test]
fn a_path_that_may_not_be_opened_is_no_miss() {
    let Some(mut command) = nobody() else { return };
    let scratch = Scratch::new("eacces");
    let root = scratch.root().canonicalize().expect("it was just made");
    let (shut, report) = (root.join("shut"), root.join("report/json"));
    std::fs::create_dir(root.join("report")).expect("scratch can be written");
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(root.join("report"), everybody).expect("it is ours");
    std::fs::write(&shut, "x").expect("scratch can be written");
    std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0)).expect("it is ours");
    command.arg(support::coldtrace_path()).args(["files", "--json", "-o"]).arg(&report);
    let finished = finish(command.arg("cat").arg(&shut));
    finished.assert_code(1);
    let record = read_record(&report, &finished);
    let row = the_row(&record, &shut);
    assert_eq!((row.opens(), row.misses, row.errors.get("EACCES")), (0, 0, Some(&1)));
}

#[test]
fn standard_output_is_what_the_command_was_started_with() {
    let scratch = Scratch::new("stdout");
    let report = scratch.path("report.json");
    let mut command = coldtrace("files");
    command.args(["--json", "-o"]).arg(&report).args(["--", "sh", "-c", "echo four"]);
    let finished = finish(&mut command);
    finished.assert_code(0);
    assert_eq!(finished.out(), "four\n");
    let record = read_record(&report, &finished);
    let written: Vec<&FileRow> =
        files(&record).paths.iter().filter(|row| row.written_bytes > 0).collect();
    let [row] = written[..] else { panic!("one file was written: {written:#?}") };
    assert!(row.path.ends_with("/stdout"), "{row:?}");
    assert_eq!(row.written_bytes, 5);
}

// ---- hostile names ----

/// What `paths-hostile` names besides what its head says.
fn hostile_rows(walk: &mut Walk) {
    let mut longest = walk.dir.as_os_str().as_bytes().to_vec();
    longest.push(b'/');
    longest.extend(b"long/".iter().cycle().take(4094));
    longest.push(b'g');
    walk.rows.push(Expected::new(longest, "misses=1"));
}

#[test]
fn names_are_kept_to_the_byte_and_read_wherever_they_stand() {
    let Some(mut walk) = Walk::new("paths-hostile") else { return };
    hostile_rows(&mut walk);
    assert!(walk.works());
    for &info in STOP_INFOS {
        let options = engine_options(ENGINES[0], info);
        let (record, _) = walk.traced(&options);
        walk.assert_rows(&record, &format!("{options:?}"));
        let invalid = walk.path("").join(OsStr::from_bytes(b"\xff\xfe\x80"));
        let row = the_row(&record, invalid);
        assert!(row.path.ends_with("/\u{fffd}\u{fffd}\u{fffd}"), "{row:?}");
        assert_eq!(files(&record).unreadable, 7, "{}", listing(&record));
    }
}

/// Bytes that a terminal acts on.
fn drives_a_terminal(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    text.chars().any(|c| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c))
}

#[test]
fn no_name_drives_a_terminal_or_adds_a_row() {
    let Some(walk) = Walk::new("paths-hostile") else { return };
    let runs = walk.saved();
    for view in [
        &[][..],
        &["--missing"],
        &["--tree"],
        &["--tree", "--depth", "99"],
        &["--search"],
        &["--opened"],
        &["-S", "name"],
    ] {
        let finished = shown(&runs, view);
        let text = finished.stdout;
        assert!(!drives_a_terminal(&text), "{view:?}: {}", String::from_utf8_lossy(&text));
    }
    let text = shown(&runs, &["--missing"]).out();
    // The name of a line begins in the same way in each; a name's newline begins none.
    let lines = text.lines().filter(|line| line.starts_with("line") || line.starts_with("31m"));
    assert_eq!(lines.count(), 0, "{text}");
}

#[test]
fn csv_keeps_every_name_in_its_cell() {
    let Some(mut walk) = Walk::new("paths-hostile") else { return };
    hostile_rows(&mut walk);
    let runs = walk.saved();
    let finished = shown(&runs, &["--csv"]);
    assert!(!drives_a_terminal(&finished.stdout), "{finished}");
    let record = walk.record(&runs);
    let mut reader = csv::Reader::from_reader(finished.stdout.as_slice());
    let head = reader.headers().expect("a head").clone();
    let rows: Vec<csv::StringRecord> =
        reader.records().map(|row| row.expect("as many cells as the head has")).collect();
    assert_eq!(rows.len(), files(&record).paths.len(), "one line a path, no more\n{finished}");
    for name in ["path", "opens_read", "stats", "misses"] {
        assert!(head.iter().any(|cell| cell == name), "{name} is not in {head:?}");
    }
    let column = |name: &str| head.iter().position(|cell| cell == name).unwrap_or_default();
    let misses: u64 = rows.iter().filter_map(|r| r[column("misses")].parse::<u64>().ok()).sum();
    assert_eq!(misses, files(&record).paths.iter().map(|row| row.misses).sum::<u64>());
}

/// `--null | xargs -0` gets every name as it is.
#[test]
fn names_make_the_round_trip_through_null() {
    let Some(mut walk) = Walk::new("paths-hostile") else { return };
    hostile_rows(&mut walk);
    let runs = walk.saved();
    let under = walk.dir.to_str().expect("no odd name");
    let finished = shown(&runs, &["--null", "--missing", "--under", under]);
    assert_eq!(finished.stdout.last(), Some(&0), "each name ends with NUL\n{finished}");
    let names = finished.stdout[..finished.stdout.len() - 1].split(|byte| *byte == 0);
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.sort();
    let missed = |row: &&Expected| row.numbers.contains_key("misses");
    let mut wanted: Vec<Vec<u8>> = walk.rows.iter().filter(missed).map(|r| r.path.clone()).collect();
    wanted.sort();
    assert_eq!(names, wanted);

    let list = walk.scratch.path("list");
    std::fs::write(&list, &finished.stdout).expect("scratch can be written");
    let script = r#"xargs -0 -n 1 printf '%s\0' < "$1""#;
    let back = finish(Command::new("sh").args(["-c", script, "sh"]).arg(&list));
    assert_eq!(back.stdout, finished.stdout, "xargs -0 prints what it was given");
}

// ---- races ----

#[test]
fn two_threads_that_change_their_directory_and_open_are_told_apart() {
    let Some(walk) = Walk::new("paths-chdir-race") else { return };
    for (name, text) in [("d1/f", "1"), ("d2/f", "2"), ("d2/g", "g")] {
        let path = walk.path(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("scratch");
        std::fs::write(path, text).expect("scratch can be written");
    }
    let (record, finished) = walk.traced(&[]);
    let happened: Vec<u64> =
        finished.out().split_whitespace().map(|n| n.parse().expect("a number")).collect();
    let [d1_f, d2_f, d2_g, d1_g] = happened[..] else { panic!("{finished}") };
    let row = |name: &str, words: String| Expected::new(walk.path(name).into_os_string().into_vec(), &words);
    let opened = |n: u64| format!("opens_read={n} other.close={n}");
    let read = |n: u64| format!("{} other.read={n} read_bytes={n}", opened(n));
    let expected = [
        row("d1", "other.chdir=2000".into()),
        row("d2", "other.chdir=2000".into()),
        row("d1/f", read(d1_f)),
        row("d2/f", read(d2_f)),
        row("d2/g", opened(d2_g)),
        row("d1/g", format!("misses={d1_g}")),
        row("tool", "other.exec=1".into()),
    ];
    let below = format!("{}/", walk.dir.display());
    let rows = files(&record).paths.iter().filter(|row| row.path.starts_with(&below));
    let wrong = compare(&expected, rows);
    assert!(wrong.is_empty(), "{}\n{finished}", wrong.join("\n"));
}

// ---- searches and mappings ----

#[test]
fn searches_say_what_was_sought_where_and_what_ended_them() {
    let Some(walk) = Walk::new("paths-searches") else { return };
    assert!(walk.works());
    let (record, _) = walk.traced(&[]);
    walk.assert_rows(&record, "");
    let path = |name: &str| walk.path(name).to_str().expect("no odd name").to_owned();
    let paths = |names: &[&str]| names.iter().map(|name| path(name)).collect::<Vec<_>>();
    let texts = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let search = |stem: &str, suffixes: &[&str], directories: &[&str], found: Option<&str>| Search {
        stem: stem.to_owned(),
        suffixes: texts(suffixes),
        directories: paths(directories),
        found: found.map(path),
        ..Search::default()
    };
    let expected = [
        Search {
            misses: 3,
            probes: 1,
            ..search("libx.so", &[""], &["s1", "s2", "s3"], Some("s4/libx.so"))
        },
        Search {
            misses: 2,
            probes: 1,
            ..search("mod", &[".so", ".abi.so"], &["package"], Some("package/mod.py"))
        },
        Search { misses: 3, ..search("nowhere.cfg", &[""], &["n1", "n2", "n3"], None) },
    ];
    let mut found = files(&record).searches.clone();
    assert!(found.is_sorted_by(|a, b| a.start_ns < b.start_ns), "{found:#?}");
    for search in &mut found {
        assert!(search.wall_ns > 0, "{search:#?}");
        (search.wall_ns, search.start_ns) = (0, 0);
    }
    assert_eq!(found, expected);
}

#[test]
fn what_was_mapped_executable_at_any_time_is_known() {
    let Some(walk) = Walk::new("paths-mapped") else { return };
    assert!(walk.works());
    let (record, _) = walk.traced(&[]);
    walk.assert_rows(&record, "");
    let tool = std::fs::metadata(walk.path("tool")).expect("it is there").len();
    let mapped = record.mapped.as_deref().expect("the record has mapped");
    let below = format!("{}/", walk.dir.display());
    let found: Vec<_> = mapped
        .iter()
        .filter_map(|file| {
            let name = file.path.strip_prefix(&below)?;
            let cuda = file.cuda.as_deref();
            Some((name, file.size_bytes, file.at_exit, cuda, file.processes.as_slice()))
        })
        .collect();
    assert_eq!(
        found,
        [
            ("tool", Some(tool), true, None, &[0, 1][..]),
            ("libicudata.so.72", Some(5000), false, None, &[0]),
            ("libcudart.so.12", Some(9000), true, Some("libcudart"), &[0, 1]),
            ("later.so", Some(100), true, None, &[0, 1]),
            ("childs.so", Some(200), true, None, &[1]),
            ("real.so", Some(300), true, None, &[0]),
        ]
    );
    let size = |name: &str| the_row(&record, walk.path(name)).mapped_bytes;
    assert_eq!((size("libicudata.so.72"), size("libcudart.so.12"), size("tool")), (5000, 9000, tool));
    assert_eq!(size("read-only"), 0);
}

// ---- attach ----

/// The fixture is attached to while it waits, all stops of its threads seen.
fn attached(options: &[&str]) -> Option<(Walk, Record, Finished)> {
    let walk = Walk::new("paths-attached")?;
    let board = Board::new();
    let running = start(Command::new(walk.path("tool")).arg(&board.path).arg(&walk.dir));
    let pid = running.pid();
    until("the target to be ready", || {
        assert_ne!(state(pid), 'Z', "the target ended before it was ready");
        (board.get(Word::Ready) == 2).then_some(())
    });
    let switches = |tid: i32| -> u64 {
        field(&format!("{pid}/task/{tid}"), "voluntary_ctxt_switches").parse().unwrap_or(0)
    };
    let before: Vec<(i32, u64)> = tids(pid).into_iter().map(|tid| (tid, switches(tid))).collect();
    assert_eq!(before.len(), 2);
    let report = walk.scratch.path("report.json");
    let mut command = coldtrace("files");
    command.args(["--json", "-o"]).arg(&report).args(["-p", &pid.to_string()]).args(options);
    let tracer = start(command.args(["--duration", "600s"]));
    for (tid, before) in before {
        // They spin: a stop of the tracer's is the only switch that they have.
        until("a stop of each thread", || {
            (is_traced(&format!("{pid}/task/{tid}")) && switches(tid) > before).then_some(())
        });
    }
    board.set(Word::Go, 1);
    board.reach(Word::Finished, 2);
    board.set(Word::Stop, 1);
    running.finish().assert_code(0);
    let finished = tracer.finish();
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    Some((walk, record, finished))
}

#[test]
fn what_an_attached_process_has_open_is_known() {
    let Some((walk, record, _)) = attached(&["--max-slowdown", "off"]) else { return };
    walk.assert_rows(&record, "attached");
    let tool = walk.path("tool");
    let mapped = record.mapped.as_deref().unwrap_or_default();
    let tool = mapped.iter().find(|file| Path::new(&file.path) == tool);
    assert!(tool.is_some_and(|file| file.at_exit), "{mapped:?}");
}

// ---- many ----

/// What 100,000 distinct paths may take of the tracer's memory: their bytes, and a row for each.
const MANY: u64 = 100_000;
const MOST_KIB: u64 = 96 * 1024;

#[test]
fn a_hundred_thousand_distinct_paths_take_little_memory() {
    let Some(program) = built("paths-many") else { return };
    let scratch = Scratch::new("many");
    let root = scratch.root().canonicalize().expect("it was just made");
    let report = scratch.path("report.json");
    let mut command = coldtrace("files");
    command.args(["--json", "-o"]).arg(&report).arg("--").arg(&program.path);
    let running = start(command.arg(&root).arg(MANY.to_string()));
    let pid = running.pid();
    let mut peak = 0;
    while state(pid) != 'Z' {
        let kib = field(&pid.to_string(), "VmHWM");
        peak = kib.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(peak).max(peak);
        // Not a wait for anything: how often it is looked at.
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let finished = running.finish();
    finished.assert_code(0);
    let size = std::fs::metadata(&report).expect("a report").len();
    eprintln!("files: {MANY} paths, peak {peak} KiB, record {} KiB", size / 1024);
    assert!(peak > 0 && peak < MOST_KIB, "{MANY} paths took {peak} KiB");
    let record = read_record(&report, &finished);
    let root = root.to_str().expect("no odd name");
    let missed = files(&record).paths.iter().filter(|row| row.path.starts_with(root));
    let missed: Vec<&FileRow> = missed.collect();
    assert_eq!(missed.len() as u64, MANY);
    assert!(missed.iter().all(|row| (row.stats, row.misses) == (1, 1)));
    assert_eq!(contradictions(&record), Vec::<String>::new());
}
