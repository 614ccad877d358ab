//! The file of a baseline, changed where facts changed and nowhere else: what a
//! person wrote in it stays, comments too.

use std::collections::BTreeMap;

use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Key, Table, Value};

use super::baseline::Case;
use super::facts::{CallFact, CallFacts, Expected, Facts, PathFact, Totals};
use super::learn::Seen;

/// What a new file begins with.
const HEAD: &str = "\
# What these commands ask of the kernel. `coldtrace check` holds them to it;
# `coldtrace check --update` writes what changed here, to be reviewed in a diff.
schema = 1

[normalise]
prefixes = { \"{cwd}\" = \"$PWD\", \"{home}\" = \"$HOME\", \"{tmp}\" = \"$TMPDIR\" }
patterns = [\"pid\", \"hex8+\", \"mkstemp\"]
families = \"default\"

[[rule]]
id = \"counts\"
facts = true
";

/// Keys of a table of facts that are no calls.
const OURS: [&str; 7] = ["recorded", "total", "program", "region", "path", "executed", "network"];

/// A baseline's text that is being changed.
#[derive(Debug)]
pub struct Editor {
    document: DocumentMut,
    /// What a person may want to know: bounds that were moved.
    pub notes: Vec<String>,
}

impl Editor {
    /// Of a text that was read as a baseline.
    ///
    /// # Errors
    /// Where it is no TOML.
    pub fn of(text: &str) -> Result<Self, toml_edit::TomlError> {
        Ok(Self { document: text.parse()?, notes: Vec::new() })
    }

    /// A new file, with the one rule that holds the facts.
    ///
    /// # Errors
    /// None, as long as what it begins with is TOML.
    pub fn new() -> Result<Self, toml_edit::TomlError> {
        Self::of(HEAD)
    }

    /// Adds a case, before the rules. What fixes its place is written out.
    pub fn add_case(&mut self, case: &Case) {
        let mut table = Table::new();
        table.insert("name", value(&case.name));
        table.insert("command", Item::Value(strings(&case.command)));
        if case.exit != super::Exit::default() {
            table.insert(
                "exit",
                match &case.exit {
                    super::Exit::Status(status) => value(i64::from(*status)),
                    super::Exit::Signal(name) => value(name),
                },
            );
        }
        let mut env = InlineTable::new();
        env.insert("clear", case.env.clear.into());
        env.insert("pass", strings(&case.env.pass));
        if !case.env.set.is_empty() {
            let set = case.env.set.iter();
            env.insert("set", Value::InlineTable(set.collect()));
        }
        table.insert("env", Item::Value(Value::InlineTable(env)));
        let cases =
            self.document.entry("case").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
        if let Some(cases) = cases.as_array_of_tables_mut() {
            cases.push(table);
        }
        self.order();
    }

    /// Numbers tables so that cases stand where the first did, or before the rules.
    fn order(&mut self) {
        let mut positions = Vec::new();
        let mut next = 0isize;
        for name in ["normalise", "case", "rule"] {
            positions.push((name, next));
            next += 1_000_000;
        }
        for (name, from) in positions {
            match self.document.get_mut(name) {
                Some(Item::Table(table)) => table.set_position(Some(from)),
                Some(Item::ArrayOfTables(tables)) => {
                    let mut at = from;
                    for table in tables.iter_mut() {
                        place(table, &mut at);
                    }
                }
                _ => {}
            }
        }
    }

    /// Writes the facts of a case on a platform; `seen` is what varied.
    pub fn facts(&mut self, case: &str, platform: &str, facts: &Facts, seen: &Seen) {
        let mut notes = Vec::new();
        let Some(table) = self.facts_table(case, platform) else { return };
        put(table, "recorded", recorded(facts));
        match &facts.total {
            Some(total) => put(table, "total", totals(total)),
            None => drop(table.remove("total")),
        }
        let mut writer = Writer { seen, runs: facts.recorded.runs, notes: &mut notes };
        writer.calls(table, &facts.calls);
        let none = Seen::new();
        let mut writer = Writer { seen: &none, ..writer };
        writer.tables(table, "program", &facts.programs);
        writer.tables(table, "region", &facts.regions);
        let numbers = |map: &BTreeMap<String, Expected>| -> Vec<(String, Value)> {
            map.iter().map(|(key, n)| (key.clone(), number(*n))).collect()
        };
        plain(table, "executed", numbers(&facts.executed));
        plain(table, "network", numbers(&facts.network));
        let paths = facts.paths.iter().map(|(path, fact)| (path.clone(), uses(fact)));
        plain(table, "path", paths.collect());
        self.notes.extend(notes);
        self.order();
    }

    fn facts_table(&mut self, case: &str, platform: &str) -> Option<&mut Table> {
        let cases = self.document.get_mut("case")?.as_array_of_tables_mut()?;
        let named = |table: &&mut Table| table.get("name").and_then(Item::as_str) == Some(case);
        let case = cases.iter_mut().find(named)?;
        let platforms = case.entry("facts").or_insert_with(implicit).as_table_mut()?;
        platforms.set_implicit(true);
        platforms.entry(platform).or_insert_with(|| Item::Table(Table::new())).as_table_mut()
    }
}

impl std::fmt::Display for Editor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.document.fmt(f)
    }
}

fn implicit() -> Item {
    let mut table = Table::new();
    table.set_implicit(true);
    Item::Table(table)
}

/// Gives a table and those in it places one after the other.
fn place(table: &mut Table, at: &mut isize) {
    table.set_position(Some(*at));
    *at += 1;
    for (_, item) in table.iter_mut() {
        if let Item::Table(table) = item {
            place(table, at);
        }
    }
}

fn value(of: impl Into<Value>) -> Item {
    Item::Value(of.into())
}

fn strings(words: &[String]) -> Value {
    Value::Array(words.iter().map(String::as_str).collect())
}

fn recorded(facts: &Facts) -> Value {
    let mut table = InlineTable::new();
    let recorded = &facts.recorded;
    for (key, text) in [("kernel", &recorded.kernel), ("libc", &recorded.libc)] {
        if let Some(text) = text {
            table.insert(key, text.into());
        }
    }
    table.insert("runs", i64::from(recorded.runs).into());
    Value::InlineTable(table)
}

fn totals(total: &Totals) -> Value {
    let parts = [
        ("calls", total.calls),
        ("errors", total.errors),
        ("processes", total.processes),
        ("threads", total.threads),
    ];
    Value::InlineTable(parts.map(|(key, n)| (key, number(n))).into_iter().collect())
}

fn number(n: Expected) -> Value {
    let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    match n {
        Expected::Exact(n) => int(n).into(),
        Expected::Range(a, b) => Value::Array([int(a), int(b)].into_iter().collect::<Array>()),
        Expected::Varies => "varies".into(),
    }
}

fn uses(fact: &PathFact) -> Value {
    match fact {
        PathFact::Varies(_) => "varies".into(),
        PathFact::Uses(uses) => {
            let parts = uses.iter().map(|(kind, n)| (kind.as_str(), number(Expected::Exact(*n))));
            Value::InlineTable(parts.collect())
        }
    }
}

fn call(fact: &CallFact) -> Value {
    if fact.calls == Expected::Varies && fact.errors.is_empty() {
        return "varies".into();
    }
    let errors = fact.errors.iter().map(|(errno, n)| (errno.as_str(), *n));
    let parts = [("calls", fact.calls)].into_iter().chain(errors);
    Value::InlineTable(parts.map(|(key, n)| (key, number(n))).collect())
}

/// Sets a value where it is another; what stands around it stays.
fn put(table: &mut Table, key: &str, mut new: Value) {
    match table.get_mut(key) {
        Some(Item::Value(old)) if same(old, &new) => {}
        Some(Item::Value(old)) => {
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        _ => drop(table.insert(key, Item::Value(new))),
    }
}

/// Whether two values mean the same, however they are written.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.value() == b.value(),
        (Value::String(a), Value::String(b)) => a.value() == b.value(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
        }
        (Value::InlineTable(a), Value::InlineTable(b)) => {
            let is = |(key, a): (&str, &Value)| b.get(key).is_some_and(|b| same(a, b));
            a.len() == b.len() && a.iter().all(is)
        }
        _ => false,
    }
}

/// Reads what is expected of a call.
fn read(item: &Item) -> Option<CallFact> {
    let errors = match item {
        Item::Value(Value::InlineTable(table)) => table
            .iter()
            .map(|(key, value)| Some((key.to_owned(), expected(value)?)))
            .collect::<Option<BTreeMap<_, _>>>()?,
        Item::Value(value) => [("calls".to_owned(), expected(value)?)].into(),
        _ => return None,
    };
    let mut errors = errors;
    Some(CallFact { calls: errors.remove("calls")?, errors })
}

fn expected(value: &Value) -> Option<Expected> {
    let int = |value: &Value| u64::try_from(value.as_integer()?).ok();
    match value {
        Value::Integer(_) => Some(Expected::Exact(int(value)?)),
        Value::Array(ends) => Some(Expected::Range(int(ends.get(0)?)?, int(ends.get(1)?)?)),
        Value::String(_) => Some(Expected::Varies),
        _ => None,
    }
}

/// Writes tables of calls and keeps what a person decided.
struct Writer<'a> {
    seen: &'a Seen,
    runs: u32,
    notes: &'a mut Vec<String>,
}

impl Writer<'_> {
    /// Calls, in a table in which other keys may stand too.
    fn calls(&mut self, table: &mut Table, facts: &CallFacts) {
        let old: CallFacts =
            table.iter().filter_map(|(key, item)| Some((key.to_owned(), read(item)?))).collect();
        for (key, old) in &old {
            if OURS.contains(&key.as_str()) || facts.contains_key(key) {
                continue;
            }
            match self.kept(key, old, &CallFact::NONE) {
                // Nobody said that it may be missing.
                fact if fact == CallFact::NONE => drop(table.remove(key)),
                fact => put(table, key, call(&fact)),
            }
        }
        for (key, new) in facts {
            let before = old.get(key);
            let fact = before.map_or_else(|| new.clone(), |before| self.kept(key, before, new));
            put(table, key, call(&fact));
            let newly = before.is_none_or(|before| before.calls != Expected::Varies);
            if let (Some((least, most)), true, Expected::Varies) =
                (self.seen.get(key), newly, fact.calls)
                && let Some(Item::Value(value)) = table.get_mut(key)
            {
                let comment = format!(" # seen {least}..{most} in {} runs", self.runs);
                value.decor_mut().set_suffix(comment);
            }
        }
        table.sort_values_by(order);
    }

    /// Tables of calls by program or region.
    fn tables(&mut self, table: &mut Table, key: &str, all: &BTreeMap<String, CallFacts>) {
        if all.is_empty() {
            table.remove(key);
            return;
        }
        let Some(parts) = table.entry(key).or_insert_with(implicit).as_table_mut() else { return };
        parts.set_implicit(true);
        let gone: Vec<String> = parts.iter().map(|(key, _)| key.to_owned()).collect();
        for name in gone.iter().filter(|name| !all.contains_key(*name)) {
            parts.remove(name);
        }
        for (name, facts) in all {
            let part = parts.entry(name).or_insert_with(|| Item::Table(Table::new()));
            if let Some(part) = part.as_table_mut() {
                self.calls(part, facts);
            }
        }
        parts.sort_values();
    }

    /// What is expected, where something else was expected before: that a call
    /// varies, or a range, are a person's words, or known from other runs.
    fn kept(&mut self, name: &str, old: &CallFact, new: &CallFact) -> CallFact {
        if old.calls == Expected::Varies {
            return old.clone();
        }
        let ends = self.seen.get(name).copied();
        let calls = self.number(name, old.calls, new.calls, ends);
        let names = old.errors.keys().chain(new.errors.keys());
        let mut errors = BTreeMap::new();
        for errno in names {
            let (old, new) = (old.error(errno), new.error(errno));
            let both = format!("{name} {errno}");
            errors.insert(errno.clone(), self.number(&both, old, new, None));
        }
        if calls == Expected::Varies {
            errors.clear();
        }
        errors.retain(|_, n| *n != Expected::Exact(0));
        CallFact { calls, errors }
    }

    fn number(
        &mut self,
        name: &str,
        old: Expected,
        new: Expected,
        seen: Option<(u64, u64)>,
    ) -> Expected {
        let Expected::Range(a, b) = old else {
            return if old == Expected::Varies { old } else { new };
        };
        let (least, most) = match (new, seen) {
            (Expected::Exact(n), _) => (n, n),
            (_, Some(seen)) => seen,
            _ => return old,
        };
        let wider = Expected::Range(a.min(least), b.max(most));
        if wider != old {
            let seen = if least == most { least.to_string() } else { format!("{least}..{most}") };
            self.notes.push(format!("{name}: {seen} is outside {old}: now {wider}"));
        }
        wider
    }
}

/// Numbers and words, by key, in a table of their own.
fn plain(table: &mut Table, key: &str, values: Vec<(String, Value)>) {
    if values.is_empty() {
        table.remove(key);
        return;
    }
    let Some(part) = table.entry(key).or_insert_with(|| Item::Table(Table::new())).as_table_mut()
    else {
        return;
    };
    let gone: Vec<String> = part.iter().map(|(key, _)| key.to_owned()).collect();
    for name in gone.iter().filter(|name| !values.iter().any(|(key, _)| key == *name)) {
        part.remove(name);
    }
    for (name, new) in values {
        put(part, &name, new);
    }
    part.sort_values();
}

/// Where and how first, then the sums, then calls by name.
fn order(a: &Key, _: &Item, b: &Key, _: &Item) -> std::cmp::Ordering {
    let rank = |key: &Key| match key.get() {
        "recorded" => 0,
        "total" => 1,
        _ => 2,
    };
    (rank(a), a.get()).cmp(&(rank(b), b.get()))
}
