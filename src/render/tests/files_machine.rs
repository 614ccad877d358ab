use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::record::{Files, Record};

use super::super::{FileSort, Selection, escape, files_csv, files_json, files_null};
use super::files::{hostile, opened, sample, text};
use super::record;

fn csv_rows(files: &Files, selection: &Selection) -> Vec<csv::StringRecord> {
    let text = text(|out| files_csv(files, selection, out)).unwrap();
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    assert_eq!(
        text.lines().count(),
        1 + files.paths.len().min(selection.top.unwrap_or(usize::MAX))
    );
    csv::Reader::from_reader(text.as_bytes()).records().collect::<Result<_, _>>().unwrap()
}

#[test]
fn csv_has_a_line_a_row_and_comes_back() {
    let rows = sample();
    let text = text(|out| files_csv(&rows, &Selection::default(), out)).unwrap();
    assert!(text.starts_with("path,path_bytes,target,marks,opens_read,opens_write,stats,other,"));
    let line =
        "\n/tmp/out,,,,1,1,2,3,read=2 close=1,0,2,EACCES=2,0,1048576,0,123400,16000,984000,0 2\n";
    assert!(text.contains(line), "{text}");
    assert_eq!(csv_rows(&rows, &Selection::default()).len(), rows.paths.len());
}

#[test]
fn hostile_paths_do_not_break_csv() {
    let files = hostile();
    let rows = csv_rows(&files, &Selection::default());
    assert_eq!(rows.len(), files.paths.len());
    for (row, file) in rows.iter().zip(&files.paths) {
        assert_eq!(row.get(0), Some(&*escape(&file.path)));
        let exact = match row.get(1).unwrap() {
            "" => row.get(0).unwrap().as_bytes().to_vec(),
            bytes => STANDARD.decode(bytes).unwrap(),
        };
        assert_eq!(exact, file.bytes());
    }
}

fn json(files: &Files, selection: &Selection, head: &Record) -> Record {
    let text = text(|out| files_json(files, selection, head, out)).unwrap();
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn json_is_a_record_with_these_files() {
    let mut head = record(&["python3"], None);
    head.mapped = Some(Vec::new());
    for files in [sample(), hostile(), Files::default()] {
        let back = json(&files, &Selection::default(), &head);
        let expected = Record { files: Some(files.clone()), ..head.clone() };
        assert_eq!(back, expected);
        // A head that has them already does not get them twice.
        assert_eq!(json(&files, &Selection::default(), &expected), expected);
    }
}

#[test]
fn machines_get_what_was_selected_in_order() {
    let selection =
        Selection { opened: true, sort: FileSort::Written, top: Some(3), ..Selection::default() };
    let expected = ["/tmp/out", "<pipe>", "/lib/x86_64-linux-gnu/libc.so.6"];
    let rows = csv_rows(&sample(), &selection);
    assert_eq!(rows.iter().filter_map(|row| row.get(0)).collect::<Vec<_>>(), expected);
    let files = json(&sample(), &selection, &record(&["x"], None)).files.unwrap();
    assert_eq!(files.paths.iter().map(|row| row.path.as_str()).collect::<Vec<_>>(), expected);
    // A pipe has no path.
    let paths = text(|out| files_null(&sample(), &selection, out)).unwrap();
    let paths: Vec<&str> = paths.split_terminator('\0').collect();
    assert_eq!(paths[..2], [expected[0], expected[2]]);
    assert_eq!(paths.len(), 3);
}

#[test]
fn null_has_the_exact_bytes() {
    let mut files = hostile();
    // It would be two.
    files.paths.push(opened("/etc\0/passwd", 1));
    let mut out = Vec::new();
    files_null(&files, &Selection::default(), &mut out).unwrap();
    assert_eq!(out.pop(), Some(0));
    let paths: Vec<&[u8]> = out.split(|byte| *byte == 0).collect();
    let expected: Vec<Vec<u8>> = files
        .paths
        .iter()
        .filter(|row| row.is_path() && !row.path.contains('\0'))
        .map(crate::record::FileRow::bytes)
        .collect();
    assert_eq!(paths, expected);
    assert!(paths.contains(&&b"/bad\xff\xfe\n"[..]));
}
