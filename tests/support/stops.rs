//! Saved stop sequences: what the kernel said in a run whose counts were right, kept in
//! fixtures/stops/ for the replay in src/tracer/saved.rs. They are saved anew by
//! `COLDTRACE_SAVE_STOPS=1 cargo test --test fixtures`.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use coldtrace::record::Record;
use flate2::Compression;
use flate2::write::GzEncoder;

/// Whether sequences are to be saved.
pub fn wanted() -> bool {
    std::env::var_os("COLDTRACE_SAVE_STOPS").is_some() && cfg!(debug_assertions)
}

/// Where the sequence of a fixture is kept.
pub fn saved(fixture: &str) -> PathBuf {
    super::fixture::directory().join("stops").join(format!("{fixture}.jsonl.gz"))
}

/// Keeps a sequence with the counts of its run.
pub fn save(fixture: &str, sequence: &Path, record: &Record) {
    let rows: Vec<_> = record.syscalls.iter().flatten().collect();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            serde_json::json!({
                "name": row.name, "abi": row.abi, "calls": row.calls, "errors": row.errors,
                "restarts": row.restarts, "unfinished": row.unfinished,
                "abandoned": row.abandoned,
            })
        })
        .collect();
    let tree = record.tree.as_ref().expect("a traced record has a tree");
    let head =
        serde_json::json!({ "rows": rows, "processes": tree.processes, "threads": tree.threads });
    let path = saved(fixture);
    std::fs::create_dir_all(path.parent().expect("it has one")).expect("fixtures/ can be written");
    let file = File::create(&path).expect("fixtures/stops can be written");
    let mut out = GzEncoder::new(file, Compression::best());
    writeln!(out, "{head}").expect("it can be written");
    let lines = std::fs::read(sequence).expect("the sequence was recorded");
    out.write_all(&lines).expect("it can be written");
    out.finish().expect("it can be written");
}
