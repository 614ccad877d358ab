//! The file of a baseline, changed where facts changed and nowhere else: what a
//! person wrote in it stays, comments too.

mod entry;
mod keep;
#[cfg(test)]
mod tests;
mod write;

use toml_edit::{ArrayOfTables, DocumentMut, InlineTable, Item, Table, Value};

use super::baseline::Case;
use super::facts::Facts;
use super::learn::Seen;
use keep::Keeper;

/// What a new file begins with.
const HEAD: &str = "\
# What these commands ask of the kernel. `coldtrace check` holds them to it;
# `coldtrace check --update` writes what changed here, to be reviewed in a diff.
schema = 1

[normalise]
prefixes = { \"{cwd}\" = \"$PWD\", \"{home}\" = \"$HOME\", \"{tmp}\" = \"$TMPDIR\" }
patterns = [\"pid\", \"hex8+\", \"mkstemp\"]
families = \"default\"
";

/// What an editor of Windows writes before the text.
const MARK: char = '\u{feff}';

/// A baseline's text that is being changed.
#[derive(Debug)]
pub struct Editor {
    document: DocumentMut,
    /// The text as it was read.
    text: String,
    /// The same as the document writes it: what is equal to this was not changed.
    before: String,
    /// What a person may want to know: bounds that were moved.
    pub notes: Vec<String>,
}

impl Editor {
    /// Of a text that was read as a baseline.
    ///
    /// # Errors
    /// Where it is no TOML.
    pub fn of(text: &str) -> Result<Self, toml_edit::TomlError> {
        let bare = text.strip_prefix(MARK).unwrap_or(text);
        let bare = if is_crlf(text) { bare.replace("\r\n", "\n") } else { bare.to_owned() };
        let document: DocumentMut = bare.parse()?;
        let before = document.to_string();
        Ok(Self { document, text: text.to_owned(), before, notes: Vec::new() })
    }

    /// A new file. The first facts add the one rule that holds them.
    ///
    /// # Errors
    /// None, as long as what it begins with is TOML.
    pub fn new() -> Result<Self, toml_edit::TomlError> {
        let new = Self::of(HEAD)?;
        Ok(Self { text: String::new(), ..new })
    }

    /// Why facts of a case, or such a case, cannot be written into the file, as one
    /// line: whole cases in one line are not taken apart.
    pub fn refusal(&self, case: &str) -> Option<String> {
        let cases = self.document.get("case")?;
        let Some(cases) = cases.as_array_of_tables() else {
            return Some(
                "`case` is written in one line: write [[case]], then NAME = ... in lines \
                         of their own, and --update can add facts below"
                    .into(),
            );
        };
        let case = cases.iter().find(|table| is_called(table, case))?;
        let facts = case.get("facts")?;
        let header = |table: &Item| table.as_table().is_some_and(|table| !table.is_dotted());
        let one = facts.as_table_like().and_then(|facts| facts.iter().find(|(_, of)| !header(of)));
        let platform = match (header(facts), one) {
            (true, None) => return None,
            (_, Some((platform, _))) => platform,
            (false, None) => "x86_64 linux glibc",
        };
        Some(format!(
            "`facts` of the case is written in one line: write it as a table, \
             [case.facts.\"{platform}\"], or remove it"
        ))
    }

    /// Adds a case, after the last one. What fixes its place is written out.
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
        let last = match self.document.get("case") {
            Some(cases) => last(cases),
            None => last(self.document.as_item()),
        };
        table.set_position(last);
        add(&mut self.document, "case", table);
    }

    /// The rule without which nothing fails, where there is none at all.
    fn add_rule(&mut self) {
        if self.document.contains_key("rule") {
            return;
        }
        let mut table = Table::new();
        table.insert("id", value("counts"));
        table.insert("facts", value(true));
        table.set_position(last(self.document.as_item()));
        add(&mut self.document, "rule", table);
        if !self.text.is_empty() {
            self.notes.push("it had no rule: \"counts\" was added, which holds the facts".into());
        }
    }

    /// Writes the facts of a case on a platform; `seen` is what varied. Where there is
    /// a [`refusal`](Self::refusal), it writes nothing.
    pub fn facts(&mut self, case: &str, platform: &str, facts: &Facts, seen: &Seen) {
        let mut notes = std::mem::take(&mut self.notes);
        if let Some(table) = self.facts_table(case, platform) {
            let mut keeper = Keeper { seen, runs: facts.recorded.runs, notes: &mut notes };
            write::facts(table, facts, &mut keeper);
        }
        self.notes = notes;
        self.add_rule();
    }

    fn facts_table(&mut self, case: &str, platform: &str) -> Option<&mut Item> {
        let cases = self.document.get_mut("case")?.as_array_of_tables_mut()?;
        let case = cases.iter_mut().find(|table| is_called(table, case))?;
        let after = case.iter().filter_map(|(_, item)| last(item)).chain(case.position()).max();
        let platforms = case.entry("facts").or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        Some(platforms.as_table_mut()?.entry(platform).or_insert_with(|| {
            let mut table = Table::new();
            table.set_position(after);
            Item::Table(table)
        }))
    }
}

impl std::fmt::Display for Editor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = self.document.to_string();
        if text == self.before && !self.text.is_empty() {
            return f.write_str(&self.text);
        }
        if !self.text.is_empty() && !self.text.ends_with('\n') && text.ends_with('\n') {
            text.pop();
        }
        if is_crlf(&self.text) {
            text = text.replace('\n', "\r\n");
        }
        if self.text.starts_with(MARK) {
            text.insert(0, MARK);
        }
        f.write_str(&text)
    }
}

/// Whether all lines end as those of Windows do.
fn is_crlf(text: &str) -> bool {
    let ends = text.matches('\n').count();
    ends > 0 && text.matches("\r\n").count() == ends
}

fn is_called(table: &Table, case: &str) -> bool {
    table.get("name").and_then(Item::as_str) == Some(case)
}

fn add(document: &mut DocumentMut, key: &str, table: Table) {
    let tables = document.entry(key).or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
    if let Some(tables) = tables.as_array_of_tables_mut() {
        tables.push(table);
    }
}

/// The place of the last table in the file that belongs to this one.
fn last(item: &Item) -> Option<isize> {
    let of = |table: &Table| {
        table.iter().filter_map(|(_, item)| last(item)).chain(table.position()).max()
    };
    match item {
        Item::Table(table) => of(table),
        Item::ArrayOfTables(tables) => tables.iter().filter_map(of).max(),
        _ => None,
    }
}

fn value(of: impl Into<Value>) -> Item {
    Item::Value(of.into())
}

fn strings(words: &[String]) -> Value {
    Value::Array(words.iter().map(String::as_str).collect())
}
