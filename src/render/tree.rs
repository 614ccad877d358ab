//! The process tree, with what repeats folded.

use std::collections::{BTreeMap, HashMap};

use crate::record::Process;

use super::grid::{Grid, Head};
use super::text::{command_line, display_width, escape, shorten_middle};
use super::units::{Scale, counted};

/// Rows that are shown before the rest is folded.
const LINES: usize = 30;
/// Where less than this is left for the names, the starts give way.
const NAMES: usize = 30;
/// Levels that are indented; deeper ones would leave no room for names.
const DEPTH: usize = 12;

/// What is shown of one process.
struct Face {
    /// Its program.
    name: String,
    /// Its command line.
    command: String,
    /// How it ended, when not with 0.
    end: Option<String>,
}

/// One line: processes that look the same, below the same parent.
struct Row {
    members: Vec<usize>,
    depth: usize,
}

/// The columns of numbers.
struct Shown {
    traced: bool,
    starts: bool,
    scale: Scale,
}

/// A process tree, by index into the processes.
struct Forest<'a> {
    processes: &'a [Process],
    faces: Vec<Face>,
    children: Vec<Vec<usize>>,
    roots: Vec<usize>,
}

impl<'a> Forest<'a> {
    fn new(processes: &'a [Process], attached: bool) -> Self {
        let by_id: HashMap<u64, usize> =
            processes.iter().enumerate().map(|(index, process)| (process.id, index)).collect();
        let mut order: Vec<usize> = (0..processes.len()).collect();
        order.sort_by_key(|index| {
            processes.get(*index).map(|process| (process.start_ns, process.id))
        });
        let mut children = vec![Vec::new(); processes.len()];
        let mut roots = Vec::new();
        let mut parents = vec![None; processes.len()];
        for index in order {
            let Some(process) = processes.get(index) else { continue };
            // Ids grow, so that a parent with a larger one is a damaged record
            // and could be a circle.
            let parent = process.parent.filter(|id| *id < process.id).and_then(|id| by_id.get(&id));
            match parent.and_then(|parent| children.get_mut(*parent)) {
                Some(siblings) => siblings.push(index),
                None => roots.push(index),
            }
            if let Some(slot) = parents.get_mut(index) {
                *slot = parent.copied();
            }
        }
        let mut forest = Self { processes, faces: Vec::new(), children, roots };
        forest.faces = forest.faces(&parents, attached);
        forest
    }

    /// Indices, parents before their children.
    fn by_id(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.processes.len()).collect();
        order.sort_by_key(|index| self.processes.get(*index).map(|process| process.id));
        order
    }

    fn faces(&self, parents: &[Option<usize>], attached: bool) -> Vec<Face> {
        let mut names: HashMap<usize, String> = HashMap::new();
        for index in self.by_id() {
            let process = self.processes.get(index);
            let own = process.and_then(|process| program(process).or_else(|| image(process)));
            let inherited = || names.get(parents.get(index)?.as_ref()?).cloned();
            let name = own.or_else(inherited).unwrap_or_else(|| "?".to_owned());
            names.insert(index, name);
        }
        let face = |(index, process): (usize, &Process)| {
            let name = names.remove(&index).unwrap_or_default();
            // Processes that were attached to are let go in the end.
            let end = end(process).or_else(|| (!attached).then(|| unseen(process)).flatten());
            Face { command: command(process, &name), name, end }
        };
        self.processes.iter().enumerate().map(face).collect()
    }

    /// A number for every process, the same for those that look the same: with
    /// their arguments and all that is below them, or by program only.
    fn keys(&self, by_program: bool) -> Vec<usize> {
        let mut known = HashMap::new();
        let mut keys = vec![0; self.processes.len()];
        for index in self.by_id().into_iter().rev() {
            let Some(face) = self.faces.get(index) else { continue };
            let mut below: BTreeMap<usize, usize> = BTreeMap::new();
            if !by_program {
                for child in self.children.get(index).into_iter().flatten() {
                    *below.entry(keys.get(*child).copied().unwrap_or(0)).or_default() += 1;
                }
            }
            let text = if by_program { &face.name } else { &face.command };
            let next = known.len() + 1;
            let key = *known.entry((text, &face.end, below)).or_insert(next);
            if let Some(slot) = keys.get_mut(index) {
                *slot = key;
            }
        }
        keys
    }

    /// The lines of the tree. A list of what is still to do instead of
    /// recursion: a chain of forks can be longer than the stack is deep.
    fn rows(&self, keys: &[usize]) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut open: Vec<Row> = alike(&self.roots, keys, 0);
        open.reverse();
        while let Some(row) = open.pop() {
            let mut below: Vec<usize> = row
                .members
                .iter()
                .filter_map(|member| self.children.get(*member))
                .flatten()
                .copied()
                .collect();
            below.sort_by_key(|index| {
                self.processes.get(*index).map(|process| (process.start_ns, process.id))
            });
            open.extend(alike(&below, keys, row.depth + 1).into_iter().rev());
            rows.push(row);
        }
        rows
    }

    fn sum(&self, members: &[usize], of: impl Fn(&Process) -> Option<u64>) -> Option<u64> {
        members
            .iter()
            .filter_map(|member| self.processes.get(*member))
            .try_fold(0_u64, |sum, process| Some(sum.saturating_add(of(process)?)))
    }

    /// The numbers of a line.
    fn cells(&self, members: &[usize], shown: &Shown) -> Vec<String> {
        let Shown { traced, starts, scale } = *shown;
        let unknown_or = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| scale.format(ns));
        let pid = match members {
            [only] => self.processes.get(*only).map(|process| process.pid.to_string()),
            _ => None,
        };
        let mut cells = vec![pid.unwrap_or_else(|| "-".to_owned())];
        if traced {
            cells.push(self.sum(members, |process| Some(calls(process))).unwrap_or(0).to_string());
        }
        cells.push(unknown_or(
            self.sum(members, |process| Some(process.user_ns?.saturating_add(process.sys_ns?))),
        ));
        if starts {
            let all = members.iter().filter_map(|member| self.processes.get(*member));
            cells.push(unknown_or(all.map(|process| process.start_ns).min()));
        }
        cells.push(unknown_or(self.sum(members, wall)));
        cells
    }

    /// What a line is about, in `room` columns.
    fn label(&self, row: &Row, by_program: bool, room: usize) -> String {
        let first = row.members.first().copied();
        let Some((face, process)) =
            first.and_then(|index| self.faces.get(index).zip(self.processes.get(index)))
        else {
            return "?".to_owned();
        };
        let times = match row.members.len() {
            1 => String::new(),
            many => format!("{many} x "),
        };
        let mut remarks: Vec<String> = Vec::new();
        if row.members.len() == 1 && process.threads.len() > 1 {
            remarks.push(counted(process.threads.len() as u64, "thread"));
        }
        remarks.extend(face.end.clone());
        let remarks =
            if remarks.is_empty() { String::new() } else { format!(" [{}]", remarks.join(", ")) };
        let command = if by_program && row.members.len() > 1 { &face.name } else { &face.command };
        let lead = format!("{}{times}", "  ".repeat(row.depth.min(DEPTH)));
        let beside = display_width(&lead) + display_width(&remarks);
        let command = shorten_middle(command, room.saturating_sub(beside).max(8));
        // In a very narrow terminal the remarks have to give way too.
        shorten_middle(&format!("{lead}{command}{remarks}"), room.max(8)).into_owned()
    }
}

/// Siblings put together by key, each line where its first one was.
fn alike(siblings: &[usize], keys: &[usize], depth: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut seen: HashMap<usize, usize> = HashMap::new();
    for sibling in siblings {
        let key = keys.get(*sibling).copied().unwrap_or(0);
        let at = *seen.entry(key).or_insert(rows.len());
        match rows.get_mut(at) {
            Some(row) => row.members.push(*sibling),
            None => rows.push(Row { members: vec![*sibling], depth }),
        }
    }
    rows
}

fn base(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

/// What a process ran when it was created.
fn image(process: &Process) -> Option<String> {
    let path = process.image.as_ref()?;
    Some(escape(base(path.trim_end_matches(" (deleted)"))).into_owned())
}

/// What the last image was called: by its caller, else by its file.
fn program(process: &Process) -> Option<String> {
    let exec = process.execs.last()?;
    let path = exec.argv.first().filter(|word| !word.is_empty()).or(exec.exe.as_ref())?;
    Some(escape(base(path)).into_owned())
}

/// The programs that a process ran through, and the arguments of the last.
fn command(process: &Process, name: &str) -> String {
    let Some((last, earlier)) = process.execs.split_last() else {
        return format!("{name} (forked)");
    };
    let mut out = String::new();
    for exec in earlier {
        let path = exec.argv.first().or(exec.exe.as_ref()).map_or("?", |path| base(path));
        out.push_str(&escape(path));
        out.push_str(" > ");
    }
    match last.argv.split_first() {
        Some((word, rest)) if !word.is_empty() => {
            let argv: Vec<&str> =
                [base(word)].into_iter().chain(rest.iter().map(String::as_str)).collect();
            out.push_str(&command_line(&argv));
        }
        _ => out.push_str(name),
    }
    out
}

fn end(process: &Process) -> Option<String> {
    match (process.exit_code, &process.signal) {
        (Some(0), _) | (None, None) => None,
        (Some(status), _) => Some(format!("exited {status}")),
        (None, Some(signal)) => Some(format!("killed by {}", escape(signal))),
    }
}

fn unseen(process: &Process) -> Option<String> {
    let seen = process.exit_code.is_some() || process.signal.is_some();
    (!seen).then(|| "end not seen".to_owned())
}

fn calls(process: &Process) -> u64 {
    process.syscalls.iter().fold(0, |sum, row| sum.saturating_add(row.calls))
}

fn wall(process: &Process) -> Option<u64> {
    process.end_ns.map(|end| end.saturating_sub(process.start_ns))
}

/// A table of the processes, each below its parent: pid, calls, CPU time, start
/// and wall time, and the command. Siblings that look the same share a line,
/// with the start of the first, and so do those of the same program when the
/// tree is large.
pub(super) fn process_tree(
    processes: &[Process],
    traced: bool,
    attached: bool,
    width: usize,
) -> String {
    let forest = Forest::new(processes, attached);
    let mut by_program = false;
    let mut rows = forest.rows(&forest.keys(false));
    if rows.len() > LINES {
        by_program = true;
        rows = forest.rows(&forest.keys(true));
    }
    let rest = if rows.len() > LINES { rows.split_off(LINES - 1) } else { Vec::new() };
    let rest: Vec<usize> = rest.into_iter().flat_map(|row| row.members).collect();
    let more = (!rest.is_empty()).then(|| format!("({} more processes)", rest.len()));
    let labels = |room: usize| {
        let shown = rows.iter().map(|row| forest.label(row, by_program, room));
        shown.chain(more.clone()).collect::<Vec<_>>()
    };

    let scale = Scale::of(processes.iter().filter_map(wall).max().unwrap_or(0));
    let numbers = |starts: bool| {
        let shown = Shown { traced, starts, scale };
        let mut grid = Grid::new(heads(&shown));
        for row in &rows {
            grid.row(forest.cells(&row.members, &shown));
        }
        if !rest.is_empty() {
            grid.row(forest.cells(&rest, &shown));
        }
        grid
    };
    let mut grid = numbers(true);
    let room = grid.room(width);
    let whole = || labels(usize::MAX).iter().map(|label| display_width(label)).max();
    if room < NAMES && whole().is_some_and(|longest| longest > room) {
        grid = numbers(false);
    }
    let room = grid.room(width);
    grid.complete(labels(room));
    grid.render()
}

fn heads(shown: &Shown) -> Vec<Head> {
    let unit = shown.scale.name;
    let number = |title: String, min: usize| Head { title, min, right: true };
    let mut heads = vec![number("pid".to_owned(), 6)];
    if shown.traced {
        heads.push(number("calls".to_owned(), 7));
    }
    heads.push(number(format!("cpu {unit}"), 7));
    if shown.starts {
        heads.push(number(format!("start {unit}"), 7));
    }
    heads.push(number(format!("wall {unit}"), 7));
    heads.push(Head { title: "process".to_owned(), min: 0, right: false });
    heads
}
