//! Sockets and their addresses.

use std::collections::HashMap;

use crate::record::{NetworkRow, Process, Record};

use super::grid::Grid;
use super::table::{native_abi, shown_name};
use super::text::{Clause, escape, own_words};
use super::times::{head, program, rendered};

/// Rows that are listed.
const MOST: usize = 200;

/// What was made, connected, bound and sent to, in order of first use; `None` where
/// the record does not hold it.
pub fn network(record: &Record, width: usize) -> Option<String> {
    let all = record.network.as_deref()?;
    if all.is_empty() {
        return Some(own_words(
            &[Clause::one("no sockets were made or used with an address")],
            width,
        ));
    }
    let native = native_abi(record.syscalls.as_deref().unwrap_or_default());
    let processes: HashMap<u64, &Process> =
        record.processes.iter().flatten().map(|process| (process.id, process)).collect();
    let mut grid = Grid::new(vec![head("calls", true), head("errors", true), head("what", false)]);
    let mut names = Vec::new();
    for row in all.iter().take(MOST) {
        let failed = row.error_count();
        let errors = if failed > 0 { failed.to_string() } else { String::new() };
        grid.row(vec![row.calls.to_string(), errors]);
        names.push(what(row, native, processes.get(&row.process).copied()));
    }
    Some(rendered(grid, &names, all.len().saturating_sub(MOST), width))
}

/// `connect 127.0.0.1:8125/udp by python3 4711: ECONNREFUSED (in startup)`
fn what(row: &NetworkRow, native: &str, process: Option<&Process>) -> String {
    let call = shown_name(&row.abi, &row.name, native);
    let by = process.map_or_else(
        || format!("process {}", row.process),
        |process| format!("{} {}", escape(program(process).unwrap_or("?")), process.pid),
    );
    let words = |words: &mut dyn Iterator<Item = &String>| -> Option<String> {
        let words: Vec<_> = words.map(|word| escape(word)).collect();
        (!words.is_empty()).then(|| words.join(", "))
    };
    let errors = words(&mut row.errors.keys()).map_or(String::new(), |e| format!(": {e}"));
    let regions = words(&mut row.regions.iter()).map_or(String::new(), |r| format!(" (in {r})"));
    format!("{call} {} by {by}{errors}{regions}", target(row))
}

/// An address with its protocol, or with its family where that does not say it.
fn target(row: &NetworkRow) -> String {
    let family = row.family.as_deref().unwrap_or("?");
    let has_protocols = matches!(family, "inet" | "inet6" | "netlink");
    let word = if has_protocols && row.protocol.as_deref() != Some("0") {
        row.protocol.as_deref()
    } else {
        row.socket_type.as_deref()
    };
    let word = word.map_or(String::new(), |word| format!("/{}", escape(word)));
    match row.address.as_deref() {
        Some(address) if matches!(family, "inet" | "inet6") => format!("{}{word}", escape(address)),
        Some(address) => format!("{}{word} {}", escape(family), escape(address)),
        None => format!("{}{word}", escape(family)),
    }
}
