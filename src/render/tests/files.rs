use std::borrow::Cow;
use std::path::PathBuf;

use globset::Glob;
use indexmap::IndexMap;
use proptest::prelude::*;

use crate::record::{FileRow, Files, MappedFile, Search};

use super::super::{FileSort, FileSource, Selection, files, mapped, show};
use super::{assert_tidy, record};

pub const WIDTHS: [usize; 4] = [45, 80, 120, usize::MAX];

pub fn text(
    view: impl Fn(&mut dyn std::io::Write) -> std::io::Result<()>,
) -> Result<String, std::string::FromUtf8Error> {
    let mut out = Vec::new();
    view(&mut out).unwrap();
    String::from_utf8(out)
}

fn counts(counts: &[(&str, u64)]) -> IndexMap<String, u64> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

/// Asked about and opened once, read to its end.
pub fn opened(path: &str, bytes: u64) -> FileRow {
    FileRow {
        path: path.to_owned(),
        opens_read: 1,
        stats: 2,
        other: counts(&[("read", 2), ("close", 1)]),
        read_bytes: bytes,
        wall_ns: 123_400,
        processes: vec![0],
        ..FileRow::default()
    }
}

/// Asked about, and not there.
pub fn missed(path: &str, times: u64) -> FileRow {
    FileRow {
        path: path.to_owned(),
        stats: times,
        misses: times,
        wall_ns: times.saturating_mul(17_000),
        processes: vec![0],
        ..FileRow::default()
    }
}

/// What a start of Python looks like, in small.
pub fn sample() -> Files {
    let library = "/usr/lib/python3.11";
    let mut paths = vec![
        FileRow {
            other: counts(&[("exec", 1)]),
            opens_read: 0,
            stats: 0,
            read_bytes: 0,
            mapped_bytes: 6_831_736,
            ..opened("/usr/bin/python3.11", 0)
        },
        missed("/etc/ld.so.preload", 1),
        FileRow {
            mapped_bytes: 1_926_256,
            other: counts(&[("mmap", 5), ("read", 1), ("close", 1)]),
            ..opened("/lib/x86_64-linux-gnu/libc.so.6", 832)
        },
        missed(&format!("{library}/encodings.so"), 2),
    ];
    for name in ["os", "stat", "codecs", "io", "abc", "site"] {
        paths.push(FileRow { stats: 3, ..missed(&format!("{library}/{name}.so"), 3) });
        paths.push(opened(&format!("{library}/__pycache__/{name}.cpython-311.pyc"), 12_345));
    }
    paths.push(FileRow {
        opens_write: 1,
        written_bytes: 1 << 20,
        errors: counts(&[("EACCES", 2)]),
        processes: vec![0, 2],
        ..opened("/tmp/out", 0)
    });
    paths.push(FileRow { written_bytes: 77, ..opened("<pipe>", 3) });
    for (at, row) in paths.iter_mut().enumerate() {
        row.first_ns = at as u64 * 1_000;
        row.last_ns = 1_000_000 - row.first_ns;
    }
    Files { paths, searches: Vec::new(), stats_by_path: 40, stats_by_descriptor: 12, unreadable: 0 }
}

/// Names that try to be something else, each the only row of its kind.
pub fn hostile() -> Files {
    let long = format!("/{}", "d/".repeat(2047));
    assert_eq!(long.len(), 4095);
    let names = [
        "/a\nb",
        "/esc\x1b]0;x\x07\u{202e}",
        "/quote\"'`$(x)",
        "/comma,semi;tab\t",
        "/日本語/のファイル名.txt",
        "/e\u{301}\u{301}/👩‍👩‍👧 photo",
        "/trailing blank ",
        "\n",
        "",
        long.as_str(),
    ];
    let mut paths: Vec<FileRow> = names.iter().map(|name| opened(name, 1)).collect();
    paths[7].marks = vec!["relative".to_owned()];
    let bytes =
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, b"/bad\xff\xfe\n");
    paths.push(FileRow {
        path_bytes: Some(bytes),
        target: Some("/to\n\x1b[31m".repeat(20)),
        marks: vec!["deleted".to_owned(), "\x1b[2J".to_owned()],
        other: counts(&[("a\n,\"b", 1)]),
        errors: counts(&[("\x1b,\"", 1)]),
        ..missed("/bad\u{fffd}\u{fffd}\n", u64::MAX)
    });
    let search = |stem: &str, directory: &str| Search {
        stem: stem.to_owned(),
        suffixes: vec!["\n,".to_owned(), "\x1b".to_owned()],
        directories: vec![directory.to_owned(), String::new(), "/".to_owned()],
        misses: u64::MAX,
        ..Search::default()
    };
    let searches = names
        .iter()
        .flat_map(|a| names.iter().map(|b| search(a, b)))
        .chain([Search::default()])
        .collect();
    Files { paths, searches, stats_by_path: u64::MAX, stats_by_descriptor: 1, unreadable: 2 }
}

fn by_path(rows: &Files, selection: &Selection, width: usize) -> String {
    let text = text(|out| files(rows, selection, width, out)).unwrap();
    assert_tidy(&text, width);
    text
}

fn shown(rows: &Files, selection: &Selection) -> Vec<String> {
    let text = by_path(rows, selection, usize::MAX);
    let lines = text.lines().skip(1).take_while(|line| !line.starts_with("coldtrace: "));
    lines.map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn a_row_a_path_and_totals() {
    let mut rows = sample();
    rows.paths.drain(5..15);
    assert_eq!(
        by_path(&rows, &Selection::default(), 80).lines().collect::<Vec<_>>(),
        [
            "opens stats misses errors read B written B    ms path",
            "    0     0      0      0      0         0 0.123 /usr/bin/python3.11",
            "    0     1      1      0      0         0 0.017 /etc/ld.so.preload",
            "    1     2      0      0    832         0 0.123 /lib/x86_64-linux-gnu/libc.so.6",
            "    0     2      2      0      0         0 0.034 /usr/li…python3.11/encodings.so",
            "    0     3      3      0      0         0 0.051 /usr/lib/python3.11/os.so",
            "    1     2      0      0  12345         0 0.123 /usr/li…__/site.cpython-311.pyc",
            "    2     2      0      2      0   1048576 0.123 /tmp/out",
            "    1     2      0      0      3        77 0.123 <pipe>",
            "coldtrace: 7 paths: 3 opened, 3 only missed, read 12.9 KiB, written 1.0 MiB",
            "coldtrace: of it through pipes and the like: read 3 B, written 77 B",
            "coldtrace: stats 40 by path + 12 by descriptor; times include tracing",
        ]
    );
}

#[test]
fn columns_give_way_to_paths() {
    let head = |width| {
        let text = by_path(&sample(), &Selection::default(), width);
        text.lines().next().map(str::to_owned)
    };
    let all = "opens stats other misses errors read B written B    ms path";
    assert_eq!(head(200).as_deref(), Some(all));
    assert_eq!(head(80), Some(all.replace(" other", "")));
    assert_eq!(head(45).as_deref(), Some("opens stats misses    ms path"));
}

#[test]
fn no_line_is_wider_than_asked() {
    let mut rows = sample();
    rows.paths.extend(hostile().paths);
    for width in WIDTHS {
        for top in [None, Some(0), Some(1)] {
            by_path(&rows, &Selection { top, ..Selection::default() }, width);
        }
        by_path(&rows, &Selection { missing: true, ..Selection::default() }, width);
    }
    for width in 0..45 {
        let _ = text(|out| files(&rows, &Selection::default(), width, out));
    }
}

#[test]
fn a_hostile_path_is_one_row() {
    let rows = hostile();
    let text = by_path(&rows, &Selection::default(), usize::MAX);
    let table = text.lines().filter(|line| !line.starts_with("coldtrace: ")).count();
    assert_eq!(table, 1 + rows.paths.len());
    for name in ["/a\\nb", "/esc\\x1b]0;x\\x07\\u{202e}", "/quote\"'`$(x)", "(deleted, \\x1b[2J)"] {
        assert!(text.lines().any(|line| line.ends_with(name)), "{name} in\n{text}");
    }
    assert!(text.contains("; 2 paths could not be read\n"));
}

#[test]
fn a_target_and_marks_keep_their_place_in_a_short_line() {
    let row = FileRow {
        target: Some("/usr/lib/x86_64-linux-gnu/libsomething.so.1.2.3".to_owned()),
        marks: vec!["deleted".to_owned()],
        ..opened("/usr/lib/x86_64-linux-gnu/a/rather/long/path/libsomething.so", 1)
    };
    let rows = Files { paths: vec![row], ..Files::default() };
    for width in [100, 120] {
        let text = by_path(&rows, &Selection::default(), width);
        let line = text.lines().nth(1).unwrap();
        assert!(line.contains(".so -> /usr"), "{line}");
        assert!(line.ends_with(".so.1.2.3 (deleted)"), "{line}");
    }
    let text = by_path(&rows, &Selection::default(), 200);
    assert!(text.contains(" /usr/lib/x86_64-linux-gnu/a/rather/long/path/libsomething.so -> /usr/lib/x86_64-linux-gnu/libsomething.so.1.2.3 (deleted)\n"));
}

#[test]
fn sorting_by_every_key() {
    let row = |path: &str, n: [u64; 9]| FileRow {
        path: path.to_owned(),
        opens_read: n[0],
        stats: n[1],
        other: counts(&[("read", n[2])]),
        misses: n[3],
        errors: counts(&[("EIO", n[4])]),
        read_bytes: n[5],
        written_bytes: n[6],
        mapped_bytes: n[7],
        wall_ns: n[8],
        last_ns: 100 - n[0],
        ..FileRow::default()
    };
    let rows = Files {
        paths: vec![
            row("/b", [1, 2, 9, 3, 1, 3, 1, 2, 3]),
            row("/a-b", [2, 3, 1, 1, 2, 1, 3, 1, 2]),
            row("/a/b", [3, 1, 0, 2, 3, 2, 2, 3, 1]),
            row("/a", [0, 0, 0, 0, 0, 0, 0, 0, 3]),
        ],
        ..Files::default()
    };
    for (word, order) in [
        ("first", ["/b", "/a-b", "/a/b", "/a"]),
        ("path", ["/a", "/a/b", "/a-b", "/b"]),
        ("opens", ["/a/b", "/a-b", "/b", "/a"]),
        ("stats", ["/a-b", "/b", "/a/b", "/a"]),
        ("calls", ["/b", "/a-b", "/a/b", "/a"]),
        ("misses", ["/b", "/a/b", "/a-b", "/a"]),
        ("errors", ["/a/b", "/a-b", "/b", "/a"]),
        ("read", ["/b", "/a/b", "/a-b", "/a"]),
        ("written", ["/a-b", "/a/b", "/b", "/a"]),
        ("mapped", ["/a/b", "/b", "/a-b", "/a"]),
        ("time", ["/b", "/a", "/a-b", "/a/b"]),
        ("last", ["/a", "/b", "/a-b", "/a/b"]),
    ] {
        let sort = FileSort::parse(word).unwrap();
        assert_eq!(shown(&rows, &Selection { sort, ..Selection::default() }), order, "{word}");
    }
    let error = FileSort::parse("si\x1bze").unwrap_err().to_string();
    assert!(error.starts_with("cannot sort by 'si\\x1bze': expected first, path, opens, "));
}

#[test]
fn rows_beyond_the_top_are_one_with_their_sums() {
    let selection = Selection { top: Some(2), sort: FileSort::Read, ..Selection::default() };
    let text = by_path(&sample(), &selection, 80);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1 + 2 + 1 + 3, "{text}");
    assert!(lines[1].ends_with("os.cpython-311.pyc"), "{text}");
    assert!(lines[3].ends_with(" (16 more)"), "{text}");
    // 4 of the 6 that were compiled, the C library and the pipe.
    assert!(lines[3].contains(&format!(" {} ", 4 * 12_345 + 832 + 3)), "{text}");
    assert!(lines[4].starts_with("coldtrace: 17 paths: 8 opened"), "{text}");
}

#[test]
fn each_selection() {
    let rows = sample();
    let paths = |selection: &Selection| shown(&rows, selection);
    let with = |change: &dyn Fn(&mut Selection)| {
        let mut selection = Selection::default();
        change(&mut selection);
        paths(&selection)
    };
    assert_eq!(with(&|_| ()).len(), rows.paths.len());
    let missing = with(&|s| s.missing = true);
    assert_eq!(missing.len(), 8);
    assert!(missing.iter().all(|path| !path.contains(".pyc")));
    assert_eq!(with(&|s| s.opened = true).len(), 9);
    assert_eq!(with(&|s| s.written = true), ["/tmp/out", "<pipe>"]);
    assert_eq!(with(&|s| s.classes = vec!["exec".to_owned()]), ["/usr/bin/python3.11"]);
    assert_eq!(with(&|s| s.classes = vec!["open".to_owned()]).len(), 9);
    assert_eq!(with(&|s| s.classes = vec!["mmap".to_owned(), "exec".to_owned()]).len(), 2);
    assert_eq!(with(&|s| s.classes = vec!["stat".to_owned()]).len(), 17);
    let glob = |glob: &str| Glob::new(glob).unwrap().compile_matcher();
    assert_eq!(with(&|s| s.globs = vec![glob("*.pyc")]).len(), 6);
    assert_eq!(with(&|s| s.globs = vec![glob("/tmp/*"), glob("/etc/**")]).len(), 2);
    assert_eq!(with(&|s| s.under = Some(PathBuf::from("/usr/lib/"))).len(), 13);
    assert_eq!(with(&|s| s.under = Some(PathBuf::from("/tmp/out"))), ["/tmp/out"]);
    assert_eq!(with(&|s| s.under = Some(PathBuf::from("/tmp/o"))).len(), 0);
    assert_eq!(with(&|s| s.processes = Some(vec![1, 2])), ["/tmp/out"]);
    assert_eq!(with(&|s| s.processes = Some(Vec::new())).len(), 0);
    assert_eq!(
        with(&|s| {
            s.missing = true;
            s.under = Some(PathBuf::from("/etc"));
        }),
        ["/etc/ld.so.preload"]
    );
}

#[test]
fn what_was_missed_first_and_found_later_is_not_missing() {
    let only = Selection { missing: true, ..Selection::default() };
    let mut row = missed("/new", 1);
    assert!(only.matches(&row));
    row.other = counts(&[("mkdir", 1)]);
    assert!(!only.matches(&row));
    row.errors = counts(&[("EACCES", 1)]);
    assert!(only.matches(&row));
    // Nobody may look at it: that is another answer.
    row.misses = 0;
    assert!(!only.matches(&row));
}

#[test]
fn a_part_says_of_how_many_and_nothing_says_so() {
    let selection = Selection { missing: true, ..Selection::default() };
    let text = by_path(&sample(), &selection, 80);
    assert!(text.starts_with("stats other misses    ms path\n"), "{text}");
    assert!(text.contains("\ncoldtrace: 8 of 17 paths: 0 opened, 8 only missed, "), "{text}");
    assert!(!text.contains("by descriptor"));
    let text = by_path(&Files::default(), &Selection::default(), 80);
    assert_eq!(
        text,
        "coldtrace: 0 paths: 0 opened, 0 only missed, read 0 B, written 0 B\ncoldtrace: times include tracing\n"
    );
}

/// A source that makes its rows when they are asked for.
struct Made(Files);

impl FileSource for Made {
    fn len(&self) -> usize {
        30_000
    }

    fn row(&self, index: usize) -> Cow<'_, FileRow> {
        Cow::Owned(missed(&format!("/nowhere/{index}"), 1))
    }

    fn searches(&self) -> &[Search] {
        &[]
    }

    fn totals(&self) -> &Files {
        &self.0
    }
}

#[test]
fn rows_that_exist_only_while_they_are_shown() {
    let source = Made(Files::default());
    let text = text(|out| files(&source, &Selection::default(), 80, out)).unwrap();
    assert_tidy(&text, 80);
    assert!(text.contains(" /nowhere/29999\ncoldtrace: 30000 paths: 0 opened, 30000 only missed,"));
}

proptest! {
    #[test]
    fn any_row_fits(
        path in ".*",
        target in proptest::option::of(".*"),
        n in proptest::array::uniform6(any::<u64>()),
        width in 45_usize..130,
    ) {
        let row = FileRow {
            path,
            target,
            opens_read: n[0],
            stats: n[1],
            misses: n[2],
            read_bytes: n[3],
            written_bytes: n[4],
            wall_ns: n[5],
            ..FileRow::default()
        };
        by_path(&Files { paths: vec![row; 2], ..Files::default() }, &Selection::default(), width);
    }
}

fn library(path: &str, size_bytes: Option<u64>, cuda: Option<&str>) -> MappedFile {
    MappedFile {
        path: path.to_owned(),
        size_bytes,
        at_exit: !path.contains("gone"),
        cuda: cuda.map(str::to_owned),
        ..MappedFile::default()
    }
}

#[test]
fn mapped_libraries_the_biggest_first() {
    let mut all = vec![
        library("/lib/x86_64-linux-gnu/libicudata.so.72", Some(31 << 20), None),
        library("/opt/torch/lib/libtorch_cpu.so", Some(114 << 20), None),
        library("/tmp/gone.so", None, None),
    ];
    assert_eq!(
        mapped(&all, 80),
        "    MiB at exit path
 114.00     yes /opt/torch/lib/libtorch_cpu.so
  31.00     yes /lib/x86_64-linux-gnu/libicudata.so.72
      -      no /tmp/gone.so
coldtrace: 3 objects, 145.0 MiB, 2 mapped at exit
coldtrace: no CUDA library was mapped
"
    );
    all.push(library("/opt/nv/libcudart.so.12", Some(704_000), Some("libcudart")));
    all.push(library("/opt/nv/lib\n.so", Some(1 << 30), Some("lib\x1b")));
    for width in WIDTHS {
        assert_tidy(&mapped(&all, width), width);
    }
    let text = mapped(&all, 80);
    assert!(
        text.ends_with("\ncoldtrace: CUDA libraries: lib\\x1b 1.0 GiB, libcudart 687.5 KiB\n"),
        "{text}"
    );
    assert_eq!(
        mapped(&[], 80),
        "coldtrace: 0 objects, 0 B, 0 mapped at exit\ncoldtrace: no CUDA library was mapped\n"
    );
}

#[test]
fn mapped_files_say_what_was_resident_and_who_brought_them() {
    let brought = |path: &str, by: &[&str], needed_by: &[&str], resident: Option<[u64; 2]>| {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        MappedFile {
            came_by: (!by.is_empty()).then(|| words(by)),
            needed_by: Some(words(needed_by)),
            resident_anon_bytes: resident.map(|[anon, _]| anon),
            resident_file_bytes: resident.map(|[_, file]| file),
            ..library(path, Some(1 << 20), None)
        }
    };
    let dynload = "/usr/lib/python3.11/lib-dynload";
    let ssl = format!("{dynload}/_ssl.cpython-311-x86_64-linux-gnu.so");
    let mut all = vec![
        brought("/a/python3.11", &["exec"], &[], Some([512 << 10, 256 << 10])),
        brought(&ssl, &["dlopen"], &[], None),
        brought("/b/libssl.so.3", &["needed"], &[&ssl, "/b/x.so", "/b/y.so"], Some([0, 4096])),
        brought("/c/both.so", &["needed", "dlopen"], &["/a/python3.11"], None),
        brought("/d/gone.so", &[], &[], None),
    ];
    assert_eq!(
        mapped(&all, 80),
        "    MiB at exit  anon  file         came by path
   1.00     yes  0.50  0.25            exec /a/python3.11
   1.00     yes  0.00  0.00         _ssl +2 /b/libssl.so.3
   1.00     yes     -     - python3… dlopen /c/both.so
   1.00      no     -     -               - /d/gone.so
   1.00     yes     -     -          dlopen …/_ssl.cpython-311…6_64-linux-gnu.so
coldtrace: 5 objects, 5.0 MiB, 4 mapped at exit
coldtrace: resident in the command at its end: anon 512.0 KiB, file 260.0 KiB
coldtrace: no CUDA library was mapped
"
    );
    let evil = "/\x1b\n日本".repeat(50);
    all.push(brought(&evil, &["needed", &evil], &[&evil, &evil], Some([u64::MAX; 2])));
    for width in WIDTHS {
        assert_tidy(&mapped(&all, width), width);
    }
}

#[test]
fn show_has_a_line_of_each() {
    let mut record = record(&["python3"], None);
    record.files = Some(sample());
    record.mapped = Some(vec![
        library("/lib/libicudata.so.72", Some(31 << 20), None),
        library("/opt/libtorch_cpu.so", Some(114 << 20), None),
        library("/opt/libtorch_python.so.1", Some(3 << 20), None),
        library("/usr/bin/python3.11", Some(1 << 20), None),
    ]);
    let text = show(&record, 80);
    assert_tidy(&text, 80);
    for line in [
        "files    8 opened, 8 only missed, 73.1 KiB read",
        "mapped   4 objects, 149.0 MiB: libtorch_cpu 114.0, libicudata 31.0,",
    ] {
        assert!(text.lines().any(|shown| shown.starts_with(line)), "{line} in\n{text}");
    }
    record.files = Some(hostile());
    let evil = "/\x1b\n日本".repeat(50);
    record.mapped = Some(vec![library(&evil, Some(u64::MAX), Some(&evil)); 5]);
    for width in [50, 80, 120, usize::MAX] {
        assert_tidy(&show(&record, width), width);
    }
}
