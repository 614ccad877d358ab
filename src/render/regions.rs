//! What was done in the regions of a run.

use crate::record::{ProcessSyscall, Record, Region};

use super::grid::Grid;
use super::table::{native_abi, shown_name};
use super::text::{Clause, escape, own_words};
use super::times::{head, rendered};
use super::units::{counted, time};

/// Regions that are listed.
const MOST: usize = 200;
/// Calls that are listed of each.
const CALLS: usize = 15;
/// Regions that the line of `show` names.
const NAMED: usize = 3;

/// All regions, then the calls made in each, those that took most time first;
/// `None` where the record holds none.
pub fn regions(record: &Record, width: usize) -> Option<String> {
    let all = record.regions.as_deref()?;
    let native = native_abi(record.syscalls.as_deref().unwrap_or_default());
    let titles = ["open for", "times", "calls", "errors"];
    let mut heads: Vec<_> = titles.iter().map(|title| head(title, true)).collect();
    heads.push(head("region", false));
    let mut grid = Grid::new(heads);
    let mut names = Vec::new();
    for region in all.iter().take(MOST) {
        let numbers = [region.times, region.calls, region.errors].map(|n| n.to_string());
        grid.row([time(region.wall_ns)].into_iter().chain(numbers).collect());
        names.push(format!("{}{}", escape(&region.name), ending(region)));
    }
    let mut out = rendered(grid, &names, all.len().saturating_sub(MOST), width);
    for region in all.iter().take(MOST).filter(|region| !region.syscalls.is_empty()) {
        out.push('\n');
        out.push_str(&calls(region, native, width));
    }
    Some(out + &own_words(&[Clause::one("times include tracing")], width))
}

/// What its end was, where it was none as others have.
fn ending(region: &Region) -> &'static str {
    match region {
        Region { times: 0, .. } => ", which never began",
        Region { open_ended: true, .. } => ", to the run's end",
        _ => "",
    }
}

fn calls(region: &Region, native: &str, width: usize) -> String {
    let titles = ["time", "calls", "errors"];
    let mut heads: Vec<_> = titles.iter().map(|title| head(title, true)).collect();
    heads.push(head(&format!("in {}", escape(&region.name)), false));
    let mut grid = Grid::new(heads);
    for row in region.syscalls.iter().take(CALLS) {
        let errors = row.error_count();
        let errors = if errors > 0 { errors.to_string() } else { String::new() };
        grid.row(vec![time(row.wall_ns), row.calls.to_string(), errors]);
    }
    let name = |row: &ProcessSyscall| shown_name(&row.abi, &row.name, native).into_owned();
    let names: Vec<String> = region.syscalls.iter().take(CALLS).map(name).collect();
    rendered(grid, &names, region.syscalls.len().saturating_sub(CALLS), width)
}

/// The line of `show`: how many there are, and the first of them.
pub(super) fn regions_line(all: &[Region]) -> Vec<Clause> {
    let count = Clause::one(counted(all.len() as u64, "region"));
    let named = all.iter().take(NAMED).map(|region| {
        let calls = counted(region.calls, "call");
        let name = escape(&region.name);
        Clause::words(&match region.times {
            0 => format!("{name} never began"),
            _ => format!("{name}: {calls} in {}", time(region.wall_ns)),
        })
    });
    let more = all.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| Clause::one(format!("{more} more")));
    [count].into_iter().chain(named).chain(more).collect()
}
