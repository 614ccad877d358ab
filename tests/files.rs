//! `coldtrace files` lists every path that a command opened, asked about or looked for in vain, under
//! the name that the kernel took it by, with what was done with it; none is missing, none invented.
//!
//! The fixtures say in their heads which rows they give (tests/support/paths.rs).

mod support;

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use coldtrace::record::{FileRow, Record, Search};
use support::board::{Board, Word, field, is_traced, state, tids, until};
use support::fixture::{SKIPPED, built};
use support::paths::{
    Expected, Walk, compare, contradictions, files, listing, row, saved_record, the_row,
};
use support::process::{Finished, finish, start};
use support::{
    ENGINES, STOP_INFOS, Scratch, coldtrace, coldtrace_path, engine_options, find_program, is_root,
    nobody, read_record, skip,
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

/// A file system that only the command sees.
#[test]
fn what_lies_in_another_mount_namespace_is_marked() {
    if !is_root() || find_program("unshare").is_none() {
        return skip("only root may unshare, by a program of that name");
    }
    let scratch = Scratch::new("namespace");
    let root = scratch.root().canonicalize().expect("it was just made");
    let report = root.join("report.json");
    let mount = "mount -t tmpfs none \"$1\"";
    std::fs::create_dir(root.join("mnt")).expect("scratch can be written");
    let unshared = |command: &mut Command, script: &str| {
        let words = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"];
        finish(command.args(words).arg(root.join("mnt")).current_dir(&root))
    };
    let can = unshared(&mut Command::new("env"), mount);
    if can.code() != Some(0) {
        return skip(&format!("cannot mount here: {}", can.err()));
    }
    let script = format!(
        "{mount} && mkdir -p mnt/far/deep && ln -s far/deep mnt/link && echo x > mnt/far/file && \
         cat mnt/link/../file"
    );
    let mut command = coldtrace("files");
    command.args(["--json", "-o"]).arg(&report).arg("--");
    let finished = unshared(&mut command, &script);
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    assert_eq!(contradictions(&record), Vec::<String>::new());
    let row = the_row(&record, root.join("mnt/far/file"));
    assert_eq!((row.opens_write, row.opens_read), (1, 1), "{row:?}");
    assert_eq!(row.marks, ["namespace"]);
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
fn every_row_was_used() {
    let Some(walk) = Walk::new("paths-rules") else { return };
    let (record, _) = walk.traced(&[]);
    let unused = |row: &&FileRow| row.mapped_bytes == 0 && Expected::of(row).numbers.is_empty();
    let unused: Vec<_> = files(&record).paths.iter().filter(unused).collect();
    assert!(unused.is_empty(), "{unused:#?}");
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
    std::fs::set_permissions(&shut, std::fs::Permissions::from_mode(0o0)).expect("it is ours");
    command.arg(coldtrace_path()).args(["files", "--json", "-o"]).arg(&report);
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

// ---- saved runs and views ----

/// `coldtrace files -r RUN OPTIONS -o -`.
fn shown(run: &Path, options: &[&str]) -> Finished {
    let mut command = coldtrace("files");
    let finished = finish(command.arg("-r").arg(run).args(options).args(["-o", "-"]));
    finished.assert_code(0);
    assert_eq!(finished.err(), "", "{finished}");
    finished
}

/// A run of a fixture that was kept.
fn saved(name: &str) -> Option<(Walk, PathBuf)> {
    let walk = Walk::new(name)?;
    if !walk.works() {
        return None;
    }
    let run = walk.saved();
    Some((walk, run))
}

/// What options leave of the paths in {dir}, in the order shown, without {dir}.
fn listed(walk: &Walk, run: &Path, options: &[&str]) -> Vec<String> {
    let under = walk.dir.to_str().expect("no odd name");
    let options = [options, &["--null", "--under", under]].concat();
    let text = shown(run, &options).out();
    let names = text.split_terminator('\0').map(|path| {
        let name = path.strip_prefix(under).unwrap_or_else(|| panic!("{path} is not in {under}"));
        name.trim_start_matches('/').to_owned()
    });
    names.collect()
}

#[test]
fn a_kept_run_has_the_same_files() {
    let Some((walk, run)) = saved("paths-calls") else { return };
    let record = saved_record(&run);
    walk.assert_rows(&record, "run");
    let report = walk.scratch.path("again.json");
    let mut command = coldtrace("files");
    let finished = finish(command.arg("-r").arg(&run).args(["--json", "-o"]).arg(&report));
    finished.assert_code(0);
    let again = read_record(&report, &finished);
    assert_eq!(again.files, record.files);
    assert_eq!(again.mapped, record.mapped);
    assert_eq!(again.processes, record.processes);
}

#[test]
fn options_choose_rows() {
    let Some((walk, run)) = saved("paths-searches") else { return };
    let list = |options: &[&str]| listed(&walk, &run, options);
    let looked_for = [
        "s1/libx.so",
        "s2/libx.so",
        "s3/libx.so",
        "package/mod.so",
        "package/mod.abi.so",
        "n1/nowhere.cfg",
        "n2/nowhere.cfg",
        "n3/nowhere.cfg",
        "n1/alone",
        "n2/else",
    ];
    assert_eq!(list(&["--missing"]), looked_for, "in order of first use");
    assert_eq!(list(&["--opened"]), ["s4/libx.so", "between"]);
    assert_eq!(list(&["--written"]), [""; 0]);
    let stats = ["s2", "package", "package/mod.so", "package/mod.abi.so", "package/mod.py"];
    assert_eq!(list(&["--class", "stat"]), [&stats[..], &["n2/nowhere.cfg"]].concat());
    assert_eq!(list(&["--class", "access"]), ["n3/nowhere.cfg"]);
    assert_eq!(list(&["--class", "exec"]), ["tool"]);
    let either = list(&["--class", "access", "--class", "exec"]);
    assert_eq!(either, ["tool", "n3/nowhere.cfg"]);
    assert_eq!(list(&["--class", "access", "--opened"]), [""; 0], "both, not either");
    assert_eq!(list(&["--glob", "**/libx.so", "--missing"]), looked_for[..3]);
    assert_eq!(list(&["--glob", "**/*.py"]), ["package/mod.py"]);
    let sorted = list(&["-S", "path", "--missing"]);
    let mut by_name = looked_for;
    by_name.sort_unstable();
    assert_eq!(sorted, by_name);
    assert_eq!(list(&["-S", "path", "--missing", "--top", "2"]), by_name[..2]);
    assert_eq!(list(&["-S", "opens", "--top", "1"]), ["between"]);
    assert_eq!(list(&["--process", "tool", "--opened"]), ["s4/libx.so", "between"]);
    let pid = saved_record(&run).processes.expect("run keeps them")[0].pid.to_string();
    assert_eq!(list(&["--process", &pid, "--opened"]), ["s4/libx.so", "between"]);
    let under = walk.path("package");
    let under = shown(&run, &["--null", "--under", under.to_str().expect("no odd name")]).out();
    assert_eq!(under.matches('\0').count(), 4, "the directory and what is in it: {under:?}");
}

#[test]
fn written_is_what_was_opened_to_be_written() {
    let Some((walk, run)) = saved("paths-calls") else { return };
    assert_eq!(listed(&walk, &run, &["--written"]), ["out", "made", "both"]);
    let renamed = listed(&walk, &run, &["--class", "rename"]);
    let names = ["old", "new", "old-two", "new-two", "old-three", "new-three", "gone", "never"];
    assert_eq!(renamed, names);
    // An open that failed is one all the same.
    assert!(listed(&walk, &run, &["--class", "open"]).contains(&"loop".to_owned()));
}

#[test]
fn processes_are_told_apart() {
    let Some((walk, run)) = saved("paths-descriptors") else { return };
    let processes = saved_record(&run).processes.expect("run keeps them");
    let child = processes[2].pid.to_string();
    let used = listed(&walk, &run, &["--process", &child, "--opened"]);
    assert_eq!(used, ["inherited", "sub/forked"]);
}

/// The numbers of a row of `--tree`, and its name.
fn tree_row(line: &str) -> Option<(Vec<u64>, &str)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (numbers, name) = words.split_at_checked(7)?;
    let whole = numbers.iter().take(4).map(|n| n.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    Some((whole?, name.first()?))
}

#[test]
fn the_tree_sums_what_is_below() {
    let Some((walk, run)) = saved("paths-searches") else { return };
    let under = walk.dir.to_str().expect("no odd name");
    let text = shown(&run, &["--tree", "--depth", "99", "--under", under]).out();
    let rows: Vec<(Vec<u64>, &str)> = text.lines().filter_map(tree_row).collect();
    assert!(!rows.is_empty(), "{text}");
    let record = saved_record(&run);
    let below: Vec<&FileRow> =
        files(&record).paths.iter().filter(|row| row.path.starts_with(under)).collect();
    let sum = |of: fn(&FileRow) -> u64| below.iter().map(|row| of(row)).sum::<u64>();
    let all =
        [below.len() as u64, sum(FileRow::opens), sum(|row| row.stats), sum(|row| row.misses)];
    assert_eq!(rows[0].0, all, "the first row has all\n{text}");
    assert!(text.contains("package"), "{text}");
}

#[test]
fn the_searches_are_shown_with_what_they_found() {
    let Some((walk, run)) = saved("paths-searches") else { return };
    let under = walk.dir.to_str().expect("no odd name");
    let text = shown(&run, &["--search", "--under", under]).out();
    let line = |name: &str| {
        let line = text.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("no {name} in\n{text}")).trim_start().to_owned()
    };
    assert!(line("libx.so").starts_with("3 "), "{text}");
    assert!(line("mod{").starts_with("2 "), "{text}");
    assert!(line("mod{").ends_with("mod.py"), "{text}");
    assert!(line("nowhere.cfg").ends_with("no"), "{text}");
    assert!(line("total").starts_with("10 "), "two misses were no search\n{text}");
}

#[test]
fn show_names_files_and_what_was_mapped() {
    let Some((_walk, run)) = saved("paths-mapped") else { return };
    let show = |option: &str| {
        let finished = finish(coldtrace("show").arg(&run).arg(option));
        finished.assert_code(0);
        finished.out()
    };
    let text = show("--mapped");
    for name in ["libicudata.so.72", "libcudart.so.12", "later.so", "childs.so", "real.so", "tool"]
    {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    let cuda: Vec<&str> = text.lines().filter(|line| line.contains("CUDA")).collect();
    assert!(cuda.iter().any(|line| line.contains("libcudart")), "{text}");
    assert!(!cuda.iter().any(|line| line.contains("icudata")), "{text}");
    let text = show("--files");
    assert!(text.contains("read-only"), "{text}");
    let whole = finish(coldtrace("show").arg(&run)).out();
    for line in ["files ", "mapped "] {
        assert!(whole.lines().any(|l| l.starts_with(line)), "{line}\n{whole}");
    }
}

#[test]
fn without_cuda_show_says_so() {
    let Some((_walk, run)) = saved("paths-searches") else { return };
    let finished = finish(coldtrace("show").arg(&run).arg("--mapped"));
    assert!(finished.out().contains("no CUDA"), "{finished}");
}

#[test]
fn resolve_says_where_a_path_led() {
    let Some(walk) = Walk::new("paths-mapped") else { return };
    let (record, _) = walk.traced(&["--resolve"]);
    walk.assert_rows(&record, "--resolve");
    let real = walk.path("real.so");
    let target = |name: &str| the_row(&record, walk.path(name)).target.clone();
    assert_eq!(target("linked.so").as_deref(), real.to_str());
    assert_eq!(target("later.so"), None, "it leads nowhere else");
    let (record, _) = walk.traced(&[]);
    assert_eq!(the_row(&record, walk.path("linked.so")).target, None, "not asked for");
}

// ---- how it ends, where reports go ----

#[test]
fn the_exit_status_is_the_commands() {
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("exec /nonexistent/program", 127)] {
        let finished = finish(coldtrace("files").args(["--", "sh", "-c", script]));
        finished.assert_code(code);
    }
    finish(coldtrace("files").args(["--", "sh", "-c", "kill -TERM $$"])).assert_signal(15);
    finish(coldtrace("files").arg("/nonexistent/program")).assert_code(127);
    finish(coldtrace("files").arg("/")).assert_code(126);
    let ended = finish(coldtrace("files").args(["--timeout", "100ms", "--", "sleep", "60"]));
    ended.assert_code(124);
}

#[test]
fn wrong_use_is_said_and_nothing_is_run() {
    let run = ["-r", "latest"];
    for words in [
        &[][..],
        &["--no-such-option", "true"],
        &["-S", "nonsense", "true"],
        &["--class", "no-such-class", "true"],
        &["-e", "trace=openat", "true"],
        &["--json", "--csv", "true"],
        &["--top", "many", "true"],
        &[run[0], run[1], "true"],
        &[run[0], run[1], "-p", "1"],
    ] {
        let finished = finish(coldtrace("files").args(words));
        assert!(matches!(finished.code(), Some(2 | 125)), "{finished}");
        assert!(finished.err().starts_with("coldtrace: "), "{finished}");
        assert_eq!(finished.out(), "", "{finished}");
    }
}

#[test]
fn a_record_without_files_is_one_line() {
    let scratch = Scratch::new("without");
    let report = scratch.path("counted.json");
    finish(support::count_json(&report).arg("true")).assert_code(0);
    let finished = finish(coldtrace("files").arg("-r").arg(&report));
    finished.assert_code(2);
    assert_eq!(finished.out(), "");
    let text = finished.err();
    assert_eq!(text.lines().count(), 1, "{finished}");
    assert!(text.starts_with("coldtrace: ") && text.contains("files"), "{finished}");
    let finished = finish(coldtrace("files").args(["-r", "/nonexistent/run"]));
    finished.assert_code(2);
    assert_eq!(finished.err().lines().count(), 1, "{finished}");
}

#[test]
fn reports_leave_the_commands_output_alone() {
    let finished = finish(coldtrace("files").args(["--", "sh", "-c", "echo out; echo err >&2"]));
    assert_eq!(finished.out(), "out\n");
    assert!(finished.err().starts_with("err\n"), "{finished}");
    assert!(finished.err().contains("path"), "{finished}");
    let finished = finish(coldtrace("files").args(["-o", "-", "--", "sh", "-c", "echo out"]));
    assert!(!finished.out().contains("out\n"), "{finished}");
    assert_eq!(finished.err(), "out\n");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let Some((_walk, run)) = saved("paths-calls") else { return };
    let mut command = coldtrace("files");
    command.arg("-r").arg(&run).args(["--csv", "-o", "-"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    command.stdout(Stdio::from(writer));
    let finished = support::process::start_with_own_stdout(&mut command).finish();
    finished.assert_code(0);
    assert_eq!(finished.err(), "");
}

// ---- hostile names ----

/// What `paths-hostile` names besides what its head says.
fn hostile_rows(walk: &mut Walk) {
    let mut longest = walk.dir.as_os_str().as_bytes().to_vec();
    longest.push(b'/');
    longest.extend(b"long/".iter().cycle().take(4094));
    longest.push(b'g');
    walk.rows.push(Expected::new(longest, "misses=1 other.open=1"));
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
    let Some((_walk, run)) = saved("paths-hostile") else { return };
    for view in [
        &[][..],
        &["--missing"],
        &["--tree"],
        &["--tree", "--depth", "99"],
        &["--search"],
        &["--opened"],
        &["-S", "name"],
    ] {
        let finished = shown(&run, view);
        let text = finished.stdout;
        assert!(!drives_a_terminal(&text), "{view:?}: {}", String::from_utf8_lossy(&text));
    }
    let text = shown(&run, &["--missing"]).out();
    // The name of a line begins in the same way in each; a name's newline begins none.
    let lines = text.lines().filter(|line| line.starts_with("line") || line.starts_with("31m"));
    assert_eq!(lines.count(), 0, "{text}");
}

#[test]
fn csv_keeps_every_name_in_its_cell() {
    let Some((_walk, run)) = saved("paths-hostile") else { return };
    let finished = shown(&run, &["--csv"]);
    assert!(!drives_a_terminal(&finished.stdout), "{finished}");
    let record = saved_record(&run);
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
    let Some((mut walk, run)) = saved("paths-hostile") else { return };
    hostile_rows(&mut walk);
    let under = walk.dir.to_str().expect("no odd name");
    let finished = shown(&run, &["--null", "--missing", "--under", under]);
    assert_eq!(finished.stdout.last(), Some(&0), "each name ends with NUL\n{finished}");
    let names = finished.stdout[..finished.stdout.len() - 1].split(|byte| *byte == 0);
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.sort();
    let missed = |row: &&Expected| row.numbers.contains_key("misses");
    let mut wanted: Vec<Vec<u8>> =
        walk.rows.iter().filter(missed).map(|r| r.path.clone()).collect();
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
    let row = |name: &str, words: String| {
        Expected::new(walk.path(name).into_os_string().into_vec(), &words)
    };
    let opened = |n: u64| format!("opens_read={n}");
    let read = |n: u64| format!("{} other.read={n} read_bytes={n}", opened(n));
    let expected = [
        row("d1", "other.chdir=2000".into()),
        row("d2", "other.chdir=2000".into()),
        row("d1/f", read(d1_f)),
        row("d2/f", read(d2_f)),
        row("d2/g", opened(d2_g)),
        row("d1/g", format!("misses={d1_g} other.open={d1_g}")),
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
    let search =
        |stem: &str, suffixes: &[&str], directories: &[&str], found: Option<&str>| Search {
            stem: stem.to_owned(),
            suffixes: texts(suffixes),
            directories: paths(directories),
            found: found.map(path),
            times: 1,
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
    assert!(mapped.is_sorted_by(|a, b| a.first_ns <= b.first_ns), "{mapped:?}");
    let below = format!("{}/", walk.dir.display());
    let mut found: Vec<_> = mapped
        .iter()
        .filter_map(|file| {
            let name = file.path.strip_prefix(&below)?;
            let cuda = file.cuda.as_deref();
            Some((name, file.size_bytes, file.at_exit, cuda, file.processes.as_slice()))
        })
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("childs.so", Some(200), true, None, &[1][..]),
            ("later.so", Some(100), true, None, &[0, 1]),
            ("libcudart.so.12", Some(9000), true, Some("libcudart"), &[0, 1]),
            ("libicudata.so.72", Some(5000), false, None, &[0]),
            ("real.so", Some(300), true, None, &[0]),
            ("tool", Some(tool), true, None, &[0, 1]),
        ]
    );
    let size = |name: &str| the_row(&record, walk.path(name)).mapped_bytes;
    assert_eq!(
        (size("libicudata.so.72"), size("libcudart.so.12"), size("tool")),
        (5000, 9000, tool)
    );
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

// ---- what nobody sees ----

/// Runs a Python script and gives its `files`.
fn of_python(script: &str, arguments: &[&str]) -> Option<Record> {
    if find_program("python3").is_none() {
        skip("no python3");
        return None;
    }
    let scratch = Scratch::new("python");
    let report = scratch.path("report.json");
    let mut command = coldtrace("files");
    command.args(["--json", "-o"]).arg(&report).args(["--", "python3", "-c", script]);
    let finished = finish(command.args(arguments));
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    assert_eq!(record.measurement.filter, "installed", "other calls run at full speed");
    Some(record)
}

#[test]
fn a_number_that_an_ioctl_opens_again_is_not_the_file_that_it_was() {
    // glibc opens the other side of a terminal by TIOCGPTPEER.
    let script = "import os, sys\n\
        fd = os.open(sys.argv[1], os.O_RDONLY); os.close(fd)\n\
        master, slave = os.openpty(); os.write(slave, b'x' * 1000)";
    let scratch = Scratch::new("reopened");
    let file = scratch.path("file");
    std::fs::write(&file, "1").expect("scratch can be written");
    let Some(record) = of_python(script, &[&file.to_string_lossy()]) else { return };
    let row = the_row(&record, &file);
    assert_eq!((row.opens_read, row.written_bytes), (1, 0), "{row:?}");
    let terminal = |row: &&FileRow| row.path.starts_with("/dev/pts/") && row.written_bytes == 1000;
    assert!(files(&record).paths.iter().any(|row| terminal(&row)), "{}", listing(&record));
}

#[test]
fn what_happens_in_a_pause_of_bursts_makes_no_path_wrong() {
    if find_program("python3").is_none() {
        return skip("no python3");
    }
    let scratch = Scratch::new("bursts");
    for (dir, file) in [("d1", "one"), ("d2", "two")] {
        std::fs::create_dir(scratch.path(dir)).expect("scratch can be written");
        std::fs::write(scratch.path(dir).join(file), "").expect("scratch can be written");
    }
    let script = "import os, sys\n\
        a, b = sys.argv[1] + '/d1', sys.argv[1] + '/d2'\n\
        open(sys.argv[1] + '/ready', 'w').close()\n\
        while True:\n  os.chdir(a); os.stat('one'); os.chdir(b); os.stat('two')";
    let mut command = Command::new("python3");
    let target = start(command.args(["-c", script]).arg(scratch.path("")));
    until("the target to be ready", || scratch.path("ready").exists().then_some(()));
    let report = scratch.path("report.json");
    let mut files_of = coldtrace("files");
    files_of.args(["--json", "--max-slowdown", "1.2x", "--duration", "1500ms", "-o"]).arg(&report);
    let finished = finish(files_of.arg("-p").arg(target.pid().to_string()));
    target.kill(libc::SIGKILL);
    target.finish();
    finished.assert_code(0);
    let record = read_record(&report, &finished);
    assert!(record.measurement.watched_ns.is_some(), "there was no pause: {finished}");
    assert!(the_row(&record, scratch.path("d1").join("one")).stats > 0, "{}", listing(&record));
    for wrong in ["d1/two", "d2/one"] {
        assert!(row(&record, scratch.path(wrong)).is_none(), "{}", listing(&record));
    }
    // And what it had mapped before is known.
    let mapped = record.mapped.as_deref().unwrap_or_default();
    assert!(mapped.iter().any(|file| file.path.contains("python")), "{mapped:?}");
}

#[test]
fn a_path_that_a_stopped_thread_would_have_to_bring_is_read_when_it_was_brought() {
    let Some(program) = built("paths-faults") else { return };
    let scratch = Scratch::new("faults");
    let file = scratch.path("file");
    std::fs::write(&file, "").expect("scratch can be written");
    if finish(Command::new(&program.path).arg(&file)).code() == Some(SKIPPED) {
        return skip("no userfaultfd for this user");
    }
    for subcommand in [&["files", "--json", "-o"][..], &["count", "--json", "-o"]] {
        let report = scratch.path("report.json");
        let mut command = coldtrace(subcommand[0]);
        command.args(&subcommand[1..]).arg(&report).arg("--").arg(&program.path).arg(&file);
        let finished = finish(&mut command);
        finished.assert_code(0);
        if subcommand[0] == "files" {
            let record = read_record(&report, &finished);
            assert_eq!(the_row(&record, &file).opens_read, 1, "{}", listing(&record));
        }
    }
}

#[test]
fn names_are_read_where_process_vm_readv_is_refused() {
    let Some(helper) = built("no-ptrace") else { return };
    let scratch = Scratch::new("refused-read");
    let file = scratch.path("file");
    std::fs::write(&file, "1").expect("scratch can be written");
    for errno in ["EPERM-memory", "ENOSYS-memory"] {
        let report = scratch.path("report.json");
        let mut command = Command::new(&helper.path);
        command.arg(errno).arg(coldtrace_path()).args(["files", "--json", "-o"]).arg(&report);
        let finished = finish(command.args(["--", "cat"]).arg(&file));
        if finished.code() == Some(SKIPPED) {
            return skip("no filters here");
        }
        finished.assert_code(0);
        let record = read_record(&report, &finished);
        let row = the_row(&record, &file);
        assert_eq!((row.opens_read, row.read_bytes), (1, 1), "{errno}: {row:?}");
        assert_eq!(files(&record).unreadable, 0, "{errno}: {}", listing(&record));
    }
}
