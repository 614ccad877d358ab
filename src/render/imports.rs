//! What Python imported: the line and the table of `show`, and the whole tree.

use std::cmp::Reverse;

use crate::record::{ImportCalls, ImportProcess, ImportedModule, Imports};

use super::grid::{Grid, Head};
use super::text::{Clause, command_line, escape, own_words, shorten_middle};
use super::units::{counted, time};

/// Imports that its line names.
const NAMED: usize = 3;
/// A name is left at least this.
const NAME: usize = 8;
/// In fewer columns than this, calls and bytes give way to the names.
const WIDE: usize = 66;
/// Levels that are indented; deeper ones would leave no room for names.
const DEPTH: usize = 10;

/// All imports, each above those that happened in it, by process.
pub fn imports(of: &Imports, width: usize) -> String {
    let mut out = String::new();
    let processes = of.processes.as_deref().unwrap_or_default();
    for process in processes {
        if processes.len() > 1 {
            let head = head(process);
            out.push_str(&shorten_middle(&head, width));
            out.push('\n');
        }
        out.push_str(&tree(process, width));
        if processes.len() > 1 {
            out.push('\n');
        }
    }
    let mut words: Vec<Clause> = of.reason.iter().map(|reason| Clause::words(reason)).collect();
    if !processes.is_empty() {
        words.push(Clause::one(format!(
            "{}, of a second run that took {}",
            counted(of.modules().count() as u64, "import"),
            of.wall_ns.map_or("-".into(), time)
        )));
        words.push(Clause::one("times include tracing"));
        words.push(Clause::words(
            "which calls are whose is put together from the log's times: --json says how (basis) \
             and where it is uncertain",
        ));
    }
    out.push_str(&own_words(&words, width));
    out
}

fn head(process: &ImportProcess) -> String {
    format!("process {}: {}", process.pid, command_line(&process.argv))
}

/// A table in the making, whose last column waits for the others.
struct Table {
    grid: Grid,
    width: usize,
    names: Vec<(String, usize)>,
}

impl Table {
    fn new(width: usize) -> Self {
        let number = |title: &str| Head { title: title.to_owned(), min: 0, right: true };
        let titles: &[&str] = if width < WIDE {
            &["self ms", "total ms", "opens", "misses"]
        } else {
            &["self ms", "total ms", "calls", "opens", "misses", "KiB read"]
        };
        let mut heads: Vec<Head> = titles.iter().map(|title| number(title)).collect();
        heads.push(Head { title: "module".to_owned(), min: 0, right: false });
        Self { grid: Grid::new(heads), width, names: Vec::new() }
    }

    /// A row; `None` for times that are not known.
    fn row(&mut self, times: [Option<f64>; 2], calls: &ImportCalls, name: String, depth: usize) {
        let ms = |us: Option<f64>| us.map_or("-".into(), |us| format!("{:.3}", us / 1000.0));
        let mut line: Vec<String> = times.map(ms).into();
        let wide = self.width >= WIDE;
        line.extend(wide.then(|| calls.calls.to_string()));
        line.extend([calls.opens, calls.misses].map(|n| n.to_string()));
        line.extend(wide.then(|| format!("{:.1}", calls.read_bytes as f64 / 1024.0)));
        self.grid.row(line);
        self.names.push((name, depth.min(DEPTH) * 2));
    }

    fn module(&mut self, module: &ImportedModule, name: String, depth: usize) {
        let times = [module.self_us as f64, module.cumulative_us as f64].map(Some);
        self.row(times, &module.calls, name, depth);
    }

    fn render(mut self) -> String {
        let room = self.grid.room(self.width).max(NAME);
        self.grid.complete(self.names.into_iter().map(|(name, indent)| {
            let indent = indent.min(room - NAME);
            format!("{}{}", " ".repeat(indent), shorten_middle(&name, room - indent))
        }));
        self.grid.render()
    }
}

fn tree(process: &ImportProcess, width: usize) -> String {
    let mut table = Table::new(width);
    for (module, depth) in in_order(&process.modules) {
        table.module(module, escape(&module.name).into_owned(), depth);
    }
    table.grid.rule();
    table.row([None; 2], &process.outside, "(outside imports)".into(), 0);
    table.render()
}

/// Each import above those that happened in it, and how deep it is.
fn in_order(modules: &[ImportedModule]) -> Vec<(&ImportedModule, usize)> {
    let mut children = vec![Vec::new(); modules.len()];
    let mut next = Vec::new();
    for (index, module) in modules.iter().enumerate() {
        // One that ended before is no parent: a damaged record could be a circle.
        let parent = module.parent.filter(|parent| *parent > index as u64);
        match parent.and_then(|parent| children.get_mut(parent as usize)) {
            Some(siblings) => siblings.push(index),
            None => next.push((index, 0)),
        }
    }
    next.reverse();
    let mut ordered = Vec::new();
    while let Some((index, depth)) = next.pop() {
        ordered.extend(modules.get(index).map(|module| (module, depth)));
        let below = children.get(index).into_iter().flatten().rev();
        next.extend(below.map(|child| (*child, depth + 1)));
    }
    ordered
}

fn by_self_time(of: &Imports) -> Vec<(&ImportProcess, &ImportedModule)> {
    let mut modules: Vec<_> = of.modules().collect();
    modules.sort_by_key(|(_, module)| Reverse(module.self_us));
    modules
}

/// The so many slowest by the time without the imports in them, or why there are
/// none.
pub fn slowest_imports(of: &Imports, top: usize, width: usize) -> String {
    slowest(of, top, width).unwrap_or_else(|| imports(of, width))
}

/// The slowest by the time without the imports in them.
pub(super) fn slowest(of: &Imports, top: usize, width: usize) -> Option<String> {
    let modules = by_self_time(of);
    let several = of.processes.as_ref().is_some_and(|all| all.len() > 1);
    let mut table = Table::new(width);
    for (process, module) in modules.iter().take(top) {
        let name = escape(&module.name);
        let name = if several { format!("{name} ({})", process.pid) } else { name.into_owned() };
        table.module(module, name, 0);
    }
    (!modules.is_empty()).then(|| table.render())
}

/// How many, the slowest, and why there are none.
pub(super) fn imports_line(of: &Imports) -> Vec<Clause> {
    let modules = by_self_time(of);
    let processes = of.processes.as_ref().map_or(0, Vec::len);
    if modules.is_empty() {
        let why = of.reason.as_deref().map_or(String::new(), |reason| format!(": {reason}"));
        return vec![Clause::words(&format!("none{why}"))];
    }
    let top = modules.iter().filter(|(_, module)| module.parent.is_none());
    let all = top.fold(0u64, |sum, (_, module)| sum.saturating_add(module.cumulative_us));
    let mut head = counted(modules.len() as u64, "module");
    if processes > 1 {
        head = format!("{head} in {}", counted(processes as u64, "process"));
    }
    let mut clauses =
        vec![Clause::one(format!("{head} in {} of a second run", time(all.saturating_mul(1000))))];
    let named = modules.iter().take(NAMED).map(|(_, module)| {
        let own = u64::try_from(module.self_us).unwrap_or(0).saturating_mul(1000);
        format!("{} {}", shorten_middle(&escape(&module.name), 40), time(own))
    });
    let mut named: Vec<String> = named.collect();
    if let Some(first) = named.first_mut() {
        first.insert_str(0, "self: ");
    }
    clauses.push(Clause::list(named));
    clauses.extend(of.reason.iter().map(|reason| Clause::words(reason)));
    clauses
}
