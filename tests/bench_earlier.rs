//! What a bench knows of earlier ones: which files its commands read, and which of them were run
//! since boot. And what is in the place of that.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use coldtrace::bench::RunEntry;
use coldtrace::cache::WorkingSet;
use support::bench::Place;
use support::page_cache::{alone, fill};
use support::process::finish;
use support::{coldtrace, skip};

/// Two files to be read; none where scratch is memory.
fn two_files(place: &Place) -> Option<[String; 2]> {
    let mut state = 1;
    let names = ["big", "small"].map(|name| {
        fill(&place.path(name), 1 << 20, &mut state);
        place.path(name).display().to_string()
    });
    if WorkingSet::of_files([(place.path("big"), 1)]).files().is_empty() {
        skip("scratch is memory");
        return None;
    }
    Some(names)
}

/// The first run of the last bench.
fn first(place: &Place) -> RunEntry {
    place.bench().commands.remove(0).runs.remove(0)
}

/// Whether its files were known before it.
fn was_known(place: &Place) -> bool {
    first(place).metrics.resident_ratio.is_some()
}

#[test]
fn what_another_command_read_is_not_what_this_one_reads() {
    let _alone = alone();
    let place = Place::new("bench-known");
    let Some([big, small]) = two_files(&place) else { return };
    let words = ["sh", "-c", "cat \"$FILE\""];
    let big = format!("FILE={big}");
    let small = format!("FILE={small}");
    place.run(&["-n", "1", "-E", &big], &words).assert_code(0);
    assert!(!was_known(&place));
    let untraced = ["-n", "1", "--traced", "0"];
    let bench = |more: &[&str]| place.run(&[&untraced[..], more].concat(), &words);
    bench(&["-E", &big]).assert_code(0);
    assert!(was_known(&place));
    bench(&["-E", &small]).assert_code(0);
    assert!(!was_known(&place));
    // Of an inherited variable as well.
    let mut inherited = place.command(&untraced, &words);
    finish(inherited.env("FILE", big.strip_prefix("FILE=").expect("it begins so"))).assert_code(0);
    assert!(!was_known(&place));
    // So the files of the other one are not evicted for it.
    let refused = bench(&["--cold", "1", "-E", &small]);
    refused.assert_code(125);
    assert!(refused.err().contains("--traced 1 traces one"), "{refused}");
}

#[test]
fn when_other_files_were_read_the_first_run_is_labelled_by_block_input() {
    let _alone = alone();
    let place = Place::new("bench-differs");
    let Some([big, small]) = two_files(&place) else { return };
    let list = place.path("list");
    let words = ["sh".to_owned(), "-c".to_owned(), format!("cat $(cat {})", list.display())];
    let words = words.each_ref().map(String::as_str);
    let bench = |file: &str| {
        fs::write(&list, file).expect("scratch can be written");
        place.run(&["-n", "1"], &words).assert_code(0);
        let cache = place.record("first").cache.expect("it is labelled");
        let traced = place.record("traced-1").cache.expect("it is labelled");
        assert_eq!(cache.files_total, traced.files_total);
        (was_known(&place), cache.resident_before_bytes.is_some())
    };
    assert_eq!(bench(&big), (false, false));
    assert_eq!(bench(&big), (true, true));
    // It was measured, but not of the files that it read.
    assert_eq!(bench(&small), (false, false));
}

#[test]
fn the_first_since_boot_is_asked_for_just_before_it() {
    let place = Place::new("bench-since-boot");
    let options = ["-n", "1", "--warmup", "0", "--traced", "0"];
    place.run(&options, &["true", ":::", "true"]).assert_code(0);
    let firsts = |place: &Place| -> Vec<Option<bool>> {
        let commands = place.bench().commands;
        commands.iter().map(|command| command.runs[0].first_since_boot).collect()
    };
    assert_eq!(firsts(&place), [Some(true), Some(false)]);
    // In another directory it is another command.
    let mut elsewhere = place.command(&options, &["true"]);
    finish(elsewhere.current_dir(place.path(""))).assert_code(0);
    assert_eq!(firsts(&place), [Some(true)]);
}

fn make_pipe(path: &Path) {
    let directory = path.parent().expect("it has one");
    fs::create_dir_all(directory).expect("scratch can be written");
    let made = Command::new("mkfifo").arg(path).status().expect("it can be run");
    assert!(made.success(), "{}", path.display());
}

#[test]
fn pipes_in_the_place_of_files_are_not_waited_for() {
    let place = Place::new("bench-pipes");
    let options = ["-n", "1", "--warmup", "0", "--traced", "0"];
    make_pipe(&place.path("state/coldtrace/boot-runs"));
    // Newer than all others.
    let newest = place.runs().join("29991231T000000.000Z-x");
    make_pipe(&newest.join("traced-1/record.json"));
    make_pipe(&place.runs().join("29991231T000000.000Z-y/record.json"));
    let finished = place.run(&options, &["true"]);
    finished.assert_code(0);
    assert_eq!(first(&place).first_since_boot, None);
    let warned = "cannot note that it was run since boot";
    assert!(place.bench().warnings.iter().any(|it| it.contains(warned)), "{finished}");
    make_pipe(&newest.join("bench.json"));
    let mut join = place.prepared(coldtrace("bench"));
    let refused = finish(join.arg("--join").arg(&newest));
    refused.assert_code(2);
    assert!(refused.err().contains("no regular file"), "{refused}");
}
