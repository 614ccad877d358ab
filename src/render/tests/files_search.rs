use crate::record::{Files, Search};

use super::super::{FileSort, Selection, files_search};
use super::assert_tidy;
use super::files::{WIDTHS, hostile, missed, text};

fn search(stem: &str, suffixes: &[&str], directories: &[&str], found: Option<&str>) -> Search {
    let strings = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let misses = (suffixes.len() * directories.len()) as u64;
    Search {
        stem: stem.to_owned(),
        suffixes: strings(suffixes),
        directories: strings(directories),
        found: found.map(str::to_owned),
        misses,
        probes: 1,
        wall_ns: misses * 21_000,
        ..Search::default()
    }
}

/// `import torch`, a tenth of it.
fn torch() -> Files {
    const PACKAGES: &str = "/usr/lib/python3/dist-packages";
    let suffixes = [".cpython-311-x86_64-linux-gnu.so", ".abi3.so", ".so"];
    let mut directories: Vec<String> =
        (0..10).map(|n| format!("{PACKAGES}/torch/{}/{n}", n % 4)).collect();
    directories.extend((0..3).map(|n| format!("{PACKAGES}/numpy/{n}")));
    directories.push(format!("{PACKAGES}/astunparse"));
    directories.extend(["json", "email"].map(|name| format!("/usr/lib/python3.11/{name}")));
    let mut searches: Vec<Search> = directories
        .iter()
        .map(|directory| {
            let found = format!("{directory}/__init__.py");
            search("__init__", &suffixes, &[directory], Some(&found))
        })
        .collect();
    let libraries =
        ["/usr/lib/python3/dist-packages/torch/lib", "/lib/a", "/lib/b", "/lib/c", "/lib/d"];
    let found = Some("/lib/e/libtorch_python.so.1.13");
    searches.push(search("libtorch_python.so.1.13", &[""], &libraries, found));
    searches.push(search("pyvenv.cfg", &[""], &["/usr/bin", "/usr"], None));
    searches.push(search("Setup", &["", ".local"], &["/usr/lib"], None));
    let misses: u64 = searches.iter().map(|search| search.misses).sum();
    Files { paths: vec![missed("/all", misses), missed("/alone", 3)], searches, ..Files::default() }
}

fn shown(files: &Files, selection: &Selection, width: usize) -> String {
    let text = text(|out| files_search(files, selection, width, out)).unwrap();
    assert_tidy(&text, width);
    text
}

#[test]
fn searches_of_one_shape_are_one_line_and_split_by_prefix() {
    assert_eq!(
        shown(&torch(), &Selection::default(), 80).lines().collect::<Vec<_>>(),
        [
            "misses   us sought                            in                     found",
            "    48 1008 __init__{.cpytho…linux-gnu.so +2} 16 directories         __init__.py",
            "    30  630   /usr/li…/dist-packages/torch/** 10                     -",
            "     9  189   /usr/li…/dist-packages/numpy/** 3                      -",
            "     6  126   /usr/lib/python3.11/**          2                      -",
            "     3   63   /usr/li…ist-packages/astunparse 1                      -",
            "     5  105 libtorch_python.so.1.13           /us…/torch/lib, 4 more /lib/e",
            "     2   42 pyvenv.cfg                        /usr/bin, /usr         no",
            "     2   42 Setup{,.local}                    /usr/lib               no",
            "     3    - (others: --missing)               -                      -",
            "    60 1197 total                             -                      -",
            "coldtrace: 19 searches, 2 in vain, with 19 probes of directories",
            "coldtrace: us: of the searches, tracing included",
        ]
    );
}

#[test]
fn misses_add_up_whatever_is_shown() {
    let files = torch();
    for (top, sort) in
        [(None, FileSort::First), (Some(1), FileSort::Time), (Some(0), FileSort::Path)]
    {
        let text = shown(&files, &Selection { sort, top, ..Selection::default() }, 120);
        let misses = |line: &str| line.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        let table: Vec<&str> =
            text.lines().skip(1).take_while(|line| !line.starts_with("coldtrace: ")).collect();
        let (total, rows) = table.split_last().unwrap();
        // Parts are indented.
        let at = text.find("sought").unwrap();
        let rows = rows.iter().filter(|line| !line[at..].starts_with(' '));
        assert_eq!(rows.map(|line| misses(line)).sum::<u64>(), misses(total), "{text}");
        assert_eq!(misses(total), 48 + 5 + 2 + 2 + 3);
    }
}

#[test]
fn many_small_places_are_others() {
    let directories: Vec<String> = (0..40)
        .map(|n| if n < 20 { format!("/lib/big/{n}") } else { format!("/lib/{n}") })
        .collect();
    let searches = directories.iter().map(|at| search("x", &[".a", ".b", ".c"], &[at], None));
    let files = Files { searches: searches.collect(), ..Files::default() };
    let text = shown(&files, &Selection::default(), 80);
    for line in [
        "   120 2520 x{.a +2}      40 directories no",
        "    60 1260   /lib/big/** 20             -",
        "    60 1260   (others)    20             -",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn selected_by_place_and_process() {
    let mut files = torch();
    files.searches[1].process = 7;
    let one = Selection { processes: Some(vec![7]), ..Selection::default() };
    assert!(shown(&files, &one, 80).contains("coldtrace: 1 search, 0 in vain"));
    let under = Selection { under: Some("/usr/bin".into()), ..Selection::default() };
    let text = shown(&files, &under, 80);
    assert!(
        text.contains("pyvenv.cfg") && text.contains("coldtrace: 1 search, 1 in vain"),
        "{text}"
    );
    let glob = globset::Glob::new("*/json/*.so").unwrap().compile_matcher();
    let text = shown(&files, &Selection { globs: vec![glob], ..Selection::default() }, 80);
    assert!(text.contains("coldtrace: 1 search, 0 in vain"), "{text}");
    assert_eq!(
        shown(&Files::default(), &Selection::default(), 80),
        "coldtrace: nothing was looked for in several places\n"
    );
}

#[test]
fn hostile_searches_stay_within_the_width() {
    let files = hostile();
    for width in WIDTHS {
        for top in [None, Some(3)] {
            shown(&files, &Selection { top, ..Selection::default() }, width);
        }
    }
    for width in 0..45 {
        let _ = text(|out| files_search(&files, &Selection::default(), width, out));
    }
}
