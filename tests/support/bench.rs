//! Benches of the program under test, in a place of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use coldtrace::bench::{Bench, CommandBench, RunEntry, RunKind};
use coldtrace::record::Record;

use super::process::{Finished, finish};
use super::{Scratch, coldtrace};

/// A place for benches of its own: nothing of other tests is known there.
pub struct Place(Scratch);

impl Place {
    pub fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    pub fn runs(&self) -> PathBuf {
        self.path("runs")
    }

    pub fn prepared(&self, mut command: Command) -> Command {
        command.env("XDG_STATE_HOME", self.path("state"));
        command.arg("--runs").arg(self.runs());
        command
    }

    /// `coldtrace bench OPTIONS -- WORDS`
    pub fn command(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = self.prepared(coldtrace("bench"));
        command.args(options).arg("--").args(words);
        command
    }

    pub fn run(&self, options: &[&str], words: &[&str]) -> Finished {
        finish(&mut self.command(options, words))
    }

    /// The last bench.
    pub fn bench(&self) -> Bench {
        read(&self.runs().join("latest"))
    }

    pub fn record(&self, run: &str) -> Record {
        let path = self.runs().join("latest").join(run).join("record.json");
        let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_slice(&text).expect("it is a record")
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

pub fn read(dir: &Path) -> Bench {
    let path = dir.join("bench.json");
    let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).expect("it is a bench")
}

/// Those of a kind.
pub fn of_kind(of: &CommandBench, kind: RunKind) -> impl Iterator<Item = &RunEntry> {
    of.runs.iter().filter(move |run| run.kind == kind)
}

/// Nothing is wider than a terminal, but for the path that is to be copied.
#[track_caller]
pub fn fits(text: &str) {
    let lines = text.lines().filter(|line| !line.starts_with("runs: "));
    let wide: Vec<&str> = lines.filter(|line| line.chars().count() > 80).collect();
    assert!(wide.is_empty(), "{wide:#?}");
}
