//! Where threads' time went, and whose the memory is: tables of their own.

use std::fmt::Write;

use crate::record::{Process, Record, TimeShare};

use super::grid::{Grid, Head};
use super::text::{escape, shorten_end, shorten_path};
use super::units::{bytes, time};

/// Threads, objects and samples that are listed.
const MOST: usize = 40;
/// Calls that are named of a thread.
const CALLS: usize = 3;
/// A name is never cut below this.
const NAME: usize = 12;

pub(super) fn head(title: &str, right: bool) -> Head {
    Head { title: title.to_owned(), min: 0, right }
}

/// Numbers in front, names behind them, as much as fits; then what was left out.
pub(super) fn rendered(mut grid: Grid, names: &[String], left_out: usize, width: usize) -> String {
    let room = grid.room(width).max(NAME);
    grid.complete(names.iter().map(|name| {
        let is_path = name.starts_with('/');
        let short = if is_path { shorten_path(name, room) } else { shorten_end(name, room) };
        short.into_owned()
    }));
    let mut out = grid.render();
    if left_out > 0 {
        let _ = writeln!(out, "... {left_out} more"); // A string takes all.
    }
    out
}

/// Each thread's time, the longest-lived first, and the calls in which all of
/// them were blocked.
pub fn times(record: &Record, width: usize) -> String {
    let processes = record.processes.as_deref().unwrap_or_default();
    let mut rows: Vec<(&TimeShare, String)> = Vec::new();
    for process in processes {
        for thread in &process.threads {
            let Some(share) = &thread.time else { continue };
            let name = thread.name.as_deref().or(program(process)).unwrap_or("?");
            rows.push((share, format!("{} {}", thread.tid, escape(name))));
        }
    }
    rows.sort_by_key(|(share, _)| std::cmp::Reverse(share.lifetime_ns));
    let all = record.time.as_ref().filter(|_| rows.len() > 1);
    let titles = ["lived", "on CPU", "runnable", "blocked", "other"];
    let mut heads: Vec<Head> = titles.iter().map(|title| head(title, true)).collect();
    heads.push(head("thread: blocked in", false));
    let mut grid = Grid::new(heads);
    let mut names = Vec::new();
    let left_out = rows.len().saturating_sub(MOST);
    let total = all.map(|share| (share, "all".to_owned()));
    for (share, name) in rows.into_iter().take(MOST).chain(total) {
        let parts =
            [share.lifetime_ns, share.cpu_ns, share.run_queue_ns, share.blocked_ns, share.other_ns];
        grid.row(parts.iter().map(|&ns| time(ns)).collect());
        let most = share.blocked.iter().take(CALLS);
        let most = most.map(|call| format!("{} {}", escape(&call.name), time(call.blocked_ns)));
        let most: Vec<String> = most.collect();
        names.push(if most.is_empty() { name } else { format!("{name}: {}", most.join(", ")) });
    }
    let mut out = rendered(grid, &names, left_out, width);
    let blocked = record.time.as_ref().map_or(&[][..], |share| &share.blocked);
    if !blocked.is_empty() {
        let heads = vec![head("blocked", true), head("calls", true), head("in", false)];
        let mut grid = Grid::new(heads);
        for call in blocked {
            grid.row(vec![time(call.blocked_ns), call.calls.to_string()]);
        }
        let names: Vec<String> =
            blocked.iter().map(|call| escape(&call.name).into_owned()).collect();
        out.push('\n');
        out.push_str(&rendered(grid, &names, 0, width));
    }
    out
}

/// Resident memory by object when the command ended, and of each process at each
/// exec, snapshot and end.
pub fn memory(record: &Record, width: usize) -> String {
    let mut out = String::new();
    let snapshots = record.proc.iter().flatten();
    for (snapshot, objects) in snapshots.filter_map(|s| Some((s, s.objects.as_ref()?))) {
        let title = format!("object, at {}", escape(&snapshot.event));
        let titles = [("anonymous", true), ("of files", true), ("mapped", true), (&title, false)];
        let mut grid = Grid::new(titles.iter().map(|(title, right)| head(title, *right)).collect());
        let resident = |o: &&crate::record::ObjectMemory| o.anon_bytes > 0 || o.file_bytes > 0;
        let listed: Vec<_> = objects.iter().filter(resident).collect();
        for object in listed.iter().take(MOST) {
            let sizes = [object.anon_bytes, object.file_bytes, object.size_bytes];
            grid.row(sizes.iter().map(|&size| bytes(size)).collect());
        }
        let names: Vec<String> =
            listed.iter().take(MOST).map(|o| escape(&o.object).into_owned()).collect();
        out.push_str(&rendered(grid, &names, listed.len().saturating_sub(MOST), width));
        out.push('\n');
    }
    let titles = ["at", "anonymous", "of files", "shared"];
    let mut heads: Vec<Head> = titles.iter().map(|title| head(title, true)).collect();
    heads.push(head("process, and when", false));
    let mut grid = Grid::new(heads);
    let mut names = Vec::new();
    let processes = record.processes.as_deref().unwrap_or_default();
    let samples = || processes.iter().flat_map(|p| p.memory.iter().map(move |sample| (p, sample)));
    for (process, sample) in samples().take(MOST) {
        let size = |value: Option<u64>| value.map_or(String::new(), bytes);
        grid.row(vec![
            time(sample.at_ns),
            size(sample.anon_bytes),
            size(sample.file_bytes),
            size(sample.shmem_bytes),
        ]);
        let name = program(process).unwrap_or("?");
        names.push(format!("{} {}, {}", process.pid, escape(name), escape(&sample.event)));
    }
    if names.is_empty() {
        return out.trim_end().to_owned() + "\n";
    }
    if names.is_empty() {
        return out.trim_end().to_owned() + "\n";
    }
    out + &rendered(grid, &names, samples().count().saturating_sub(MOST), width)
}

/// The name of what a process ran last.
pub(super) fn program(process: &Process) -> Option<&str> {
    let exec = process.execs.last();
    let file = exec.and_then(|exec| exec.exe.as_deref()).or(process.image.as_deref())?;
    file.rsplit('/').next()
}
