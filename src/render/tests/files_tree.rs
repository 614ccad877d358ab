use std::path::PathBuf;

use proptest::prelude::*;

use crate::record::{FileRow, Files};

use super::super::{FileSort, Selection, display_width, files_tree};
use super::assert_tidy;
use super::files::{WIDTHS, hostile, missed, opened, sample, text};

fn tree(files: &Files, selection: &Selection, depth: Option<usize>, width: usize) -> String {
    let text = text(|out| files_tree(files, selection, depth, width, out)).unwrap();
    assert_tidy(&text, width);
    text
}

/// The lines of the table: numbers as printed, in hundredths, level and name.
fn lines(text: &str) -> Vec<(Vec<u128>, usize, String)> {
    let mut lines = text.lines().take_while(|line| !line.starts_with("coldtrace: "));
    let Some(head) = lines.next() else { return Vec::new() };
    let at = display_width(head) - "path".len();
    let number = |word: &str| {
        let (whole, part) = word.split_once('.').unwrap_or((word, ""));
        format!("{whole}{part:0<2}").parse().unwrap()
    };
    lines
        .map(|line| {
            let (numbers, name) = line.split_at(at);
            let level = (name.len() - name.trim_start().len()) / 2;
            (numbers.split_whitespace().map(number).collect(), level, name.trim().to_owned())
        })
        .collect()
}

/// Every line that has lines below it is their sum in every column.
fn assert_sums(text: &str) {
    let lines = lines(text);
    for (index, (sum, level, name)) in lines.iter().enumerate() {
        let below: Vec<_> =
            lines[index + 1..].iter().take_while(|(_, below, _)| below > level).collect();
        let children: Vec<_> = below.iter().filter(|(_, below, _)| *below == level + 1).collect();
        for (column, sum) in sum.iter().enumerate().filter(|_| !children.is_empty()) {
            let parts: u128 = children.iter().map(|(numbers, ..)| numbers[column]).sum();
            assert_eq!(parts, *sum, "{name}, column {column} in\n{text}");
        }
    }
}

#[test]
fn by_directory_with_sums() {
    let text = tree(&sample(), &Selection::default(), None, 80);
    assert_sums(&text);
    assert_eq!(
        text.lines().collect::<Vec<_>>(),
        [
            "paths opens stats misses read MiB mapped MiB  ms path",
            "   17    10    39     21     0.07        8.4 1.6 /",
            "   14     6    32     20     0.07        6.5 1.2   usr/",
            "   13     6    32     20     0.07        0.0 1.1     lib/python3.11/",
            "    6     6    12      0     0.07        0.0 0.8       __pycache__/",
            "    7     0    20     20     0.00        0.0 0.3       (own)",
            "    1     0     0      0     0.00        6.5 0.1     bin/",
            "    1     0     1      1     0.00        0.0 0.0   etc/",
            "    1     1     2      0     0.00        1.9 0.2   lib/x86_64-linux-gnu/",
            "    1     2     2      0     0.00        0.0 0.1   tmp/",
            "    0     1     2      0     0.00        0.0 0.1   (descriptors)",
            "coldtrace: stats 40 by path + 12 by descriptor; times include tracing",
            "coldtrace: rows under 5 % of the paths (and 25 % of the bytes and ms) folded",
        ]
    );
}

#[test]
fn small_directories_are_folded_and_chains_are_one_line() {
    let mut files = Files::default();
    for n in 0..96 {
        files.paths.push(opened(&format!("/opt/app/lib/deep/{n}"), 1));
    }
    files.paths.push(missed("/opt/app/lib/x", 1));
    files.paths.push(missed("/etc/hosts", 1));
    files.paths.push(missed("/run/a/b", 1));
    files.paths.push(missed("/top", 1));
    let text = tree(&files, &Selection::default(), None, 80);
    assert_sums(&text);
    let names: Vec<String> = lines(&text).into_iter().map(|(_, _, name)| name).collect();
    assert_eq!(names, ["/", "opt/app/lib/deep/", "(3 more, own)"]);
    // What is little, but most of the bytes, has its line.
    files.paths[97].read_bytes = 1 << 20;
    let names: Vec<String> = lines(&tree(&files, &Selection::default(), None, 80))
        .into_iter()
        .map(|(_, _, name)| name)
        .collect();
    assert_eq!(names, ["/", "opt/app/lib/deep/", "etc/", "(2 more, own)"]);
    let text = tree(&files, &Selection::default(), Some(2), 80);
    assert!(text.contains(" opt/app/\n"), "{text}");
    let text = tree(&files, &Selection::default(), Some(0), 80);
    assert_eq!(lines(&text).len(), 1, "{text}");
}

#[test]
fn a_directory_that_was_asked_about_is_its_own() {
    let mut files = Files::default();
    files.paths.push(missed("/a", 1));
    files.paths.push(opened("/a/b", 1));
    files.paths.push(opened("/a/c/d", 1));
    files.paths.push(opened("/e/f", 1));
    let text = tree(&files, &Selection::default(), None, 80);
    let found: Vec<(u128, String)> =
        lines(&text).into_iter().map(|(numbers, _, name)| (numbers[0] / 100, name)).collect();
    let expected = [(4, "/"), (3, "a/"), (1, "c/"), (2, "(own)"), (1, "e/")];
    assert_eq!(found, expected.map(|(n, name)| (n, name.to_owned())));
}

#[test]
fn what_is_in_no_directory_has_its_line() {
    let mut files = sample();
    let marked =
        |mark: &str, path: &str| FileRow { marks: vec![mark.to_owned()], ..opened(path, 1) };
    files.paths.push(marked("relative", "x/y"));
    files.paths.push(marked("chroot", "/bin/sh"));
    files.paths.push(marked("deleted", "/tmp/gone"));
    let text = tree(&files, &Selection::default(), None, 80);
    assert_sums(&text);
    for name in ["  (descriptors)\n", "  (relative)\n", "  (other roots)\n"] {
        assert!(text.contains(name), "{name} in\n{text}");
    }
    assert_eq!(lines(&text)[0].0[0], 100 * (files.paths.len() as u128 - 1));
    let only = Files { paths: vec![opened("<pipe>", 1)], ..Files::default() };
    assert_sums(&tree(&only, &Selection::default(), None, 80));
}

#[test]
fn directories_are_sorted_and_selected() {
    let files = sample();
    let first = |sort: FileSort| {
        let selection = Selection { sort, ..Selection::default() };
        lines(&tree(&files, &selection, None, 80))[1].2.clone()
    };
    assert_eq!(first(FileSort::First), "usr/");
    assert_eq!(first(FileSort::Path), "etc/");
    assert_eq!(first(FileSort::Written), "tmp/");
    let selection =
        Selection { under: Some(PathBuf::from("/usr/lib")), top: Some(1), ..Selection::default() };
    let text = tree(&files, &selection, None, 80);
    assert_sums(&text);
    assert_eq!(lines(&text)[0].0[0], 1300);
    assert!(!text.contains("by descriptor"));
    let text = tree(&Files::default(), &Selection::default(), None, 80);
    assert_eq!(text, "coldtrace: times include tracing; no paths\n");
}

#[test]
fn hostile_trees_stay_within_the_width() {
    let mut files = hostile();
    files.paths.extend(sample().paths);
    for width in WIDTHS {
        let text = tree(&files, &Selection::default(), None, width);
        assert!(text.lines().count() < 40);
    }
    for width in 0..45 {
        let _ = text(|out| files_tree(&files, &Selection::default(), None, width, out));
    }
}

proptest! {
    #[test]
    fn every_line_is_the_sum_of_those_below(
        rows in proptest::collection::vec(
            (
                proptest::collection::vec("[a-c]{1}|<pipe>|\u{1b}", 0..6),
                proptest::array::uniform7(0_u64..40_000_000),
                any::<bool>(),
            ),
            1..60,
        ),
        depth in proptest::option::of(0_usize..5),
        width in 90_usize..130,
    ) {
        let row = |(names, n, path): (Vec<String>, [u64; 7], bool)| FileRow {
            path: format!("{}{}", if path { "/" } else { "<" }, names.join("/")),
            opens_read: n[0],
            stats: n[1],
            misses: n[2],
            read_bytes: n[3],
            mapped_bytes: n[4],
            wall_ns: n[5],
            written_bytes: n[6],
            ..FileRow::default()
        };
        let files = Files { paths: rows.into_iter().map(row).collect(), ..Files::default() };
        let text = tree(&files, &Selection::default(), depth, width);
        assert_sums(&text);
        let exact: u64 = files.paths.iter().map(|row| row.stats).sum();
        assert_eq!(lines(&text)[0].0[2], u128::from(exact) * 100);
    }
}
