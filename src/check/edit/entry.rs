//! Entries of a table, in whatever form TOML has for them: read, and changed where
//! they are others. What stands around them stays.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use toml_edit::{Array, Decor, InlineTable, Item, Key, RawString, TableLike, Value};

use crate::check::facts::{CallFact, Expected, PathFact};

/// A number as it is written.
pub fn number(n: Expected) -> Value {
    let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    match n {
        Expected::Exact(n) => int(n).into(),
        Expected::Range(a, b) => Value::Array([int(a), int(b)].into_iter().collect::<Array>()),
        Expected::Varies => "varies".into(),
    }
}

/// What is expected of a number.
pub fn expected(item: &Item) -> Option<Expected> {
    let int = |value: &Value| u64::try_from(value.as_integer()?).ok();
    match item.as_value()? {
        value @ Value::Integer(_) => Some(Expected::Exact(int(value)?)),
        Value::Array(ends) => Some(Expected::Range(int(ends.get(0)?)?, int(ends.get(1)?)?)),
        Value::String(_) => Some(Expected::Varies),
        _ => None,
    }
}

/// What is expected of a call.
pub fn call(item: &Item) -> Option<CallFact> {
    let Some(table) = item.as_table_like() else {
        return Some(CallFact { calls: expected(item)?, errors: BTreeMap::new() });
    };
    let parts = table.iter().map(|(key, item)| Some((key.to_owned(), expected(item)?)));
    let mut errors = parts.collect::<Option<BTreeMap<_, _>>>()?;
    Some(CallFact { calls: errors.remove("calls")?, errors })
}

/// What is expected of a path.
pub fn path(item: &Item) -> Option<PathFact> {
    let Some(table) = item.as_table_like() else {
        return item.as_str().map(|_| PathFact::VARIES);
    };
    let int = |item: &Item| u64::try_from(item.as_integer()?).ok();
    let parts = table.iter().map(|(key, item)| Some((key.to_owned(), int(item)?)));
    parts.collect::<Option<BTreeMap<_, _>>>().map(PathFact::Uses)
}

/// A table's numbers in one line.
pub fn inline(parts: &[(String, Value)]) -> Value {
    Value::InlineTable(parts.iter().map(|(key, value)| (key, value.clone())).collect())
}

/// Sets what is expected of a call, in the form that it has.
pub fn set_call(table: &mut dyn TableLike, key: &str, fact: &CallFact) {
    let old = table.get(key);
    if old.and_then(call).as_ref() == Some(fact) {
        return;
    }
    let in_lines = old.is_some_and(|old| matches!(old, Item::Table(_)) || speaks(&inside(old)));
    let short = old.is_none_or(|old| old.as_table_like().is_none());
    let word = fact.errors.is_empty() && (short && old.is_some() || fact.calls == Expected::Varies);
    if word && !in_lines {
        return put(table, key, number(fact.calls));
    }
    let errors = fact.errors.iter().map(|(errno, n)| (errno.clone(), number(*n)));
    let parts: Vec<_> =
        [("calls".to_owned(), number(fact.calls))].into_iter().chain(errors).collect();
    set_parts(table, key, &parts);
}

/// Sets the numbers of an entry that is a table; else it becomes one.
pub fn set_parts(table: &mut dyn TableLike, key: &str, parts: &[(String, Value)]) {
    match table.get_mut(key) {
        Some(item) if item.is_table_like() => fill(item, parts),
        _ => put(table, key, inline(parts)),
    }
}

/// Sets what is in a table, and nothing else is in it then; but of what a person
/// said something, that stays, as 0.
fn fill(item: &mut Item, parts: &[(String, Value)]) {
    let Some(table) = item.as_table_like_mut() else { return };
    let is_there = |key: &str| parts.iter().any(|(part, _)| part == key);
    let gone: Vec<String> =
        table.iter().map(|(key, _)| key.to_owned()).filter(|key| !is_there(key)).collect();
    let mut moved = false;
    for key in gone {
        if is_commented(table, &key) && table.get(&key).and_then(expected).is_some() {
            put(table, &key, 0.into());
        } else {
            table.remove(&key);
            moved = true;
        }
    }
    for (key, value) in parts {
        moved |= !table.contains_key(key);
        put(table, key, value.clone());
    }
    if moved {
        sort(item);
    }
}

/// Sets a value where it is another; what stands around it stays.
pub fn put(table: &mut dyn TableLike, key: &str, mut new: Value) {
    match table.get_mut(key) {
        Some(Item::Value(old)) if same(old, &new) => {}
        Some(Item::Value(old)) => {
            *new.decor_mut() = old.decor().clone();
            *old = new;
        }
        Some(lines) => {
            let said = comments(&inside(lines));
            *lines = Item::Value(new);
            if let Some(mut key) = table.key_mut(key) {
                above(key.leaf_decor_mut(), &said);
            }
        }
        None => drop(table.insert(key, Item::Value(new))),
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

/// Puts entries in their order, after one has come or gone.
pub fn sort(item: &mut Item) {
    match item {
        Item::Table(table) => table.sort_values_by(|a, _, b, _| order(a, b)),
        Item::Value(Value::InlineTable(table)) => {
            table.sort_values_by(|a, _, b, _| order(a, b));
            // Commas would stand where the last entry ended.
            if !speaks(&within(table)) {
                table.fmt();
            }
        }
        _ => {}
    }
}

/// Where and how first, then the sums, then calls by name, then what explains them.
fn order(a: &Key, b: &Key) -> Ordering {
    let rank = |key: &Key| match key.get() {
        "recorded" => 0,
        "total" | "calls" => 1,
        "program" => 3,
        "region" => 4,
        "executed" => 5,
        "network" => 6,
        "path" => 7,
        _ => 2,
    };
    (rank(a), a.get()).cmp(&(rank(b), b.get()))
}

/// Whether a person said something at an entry.
pub fn is_commented(table: &dyn TableLike, key: &str) -> bool {
    let Some((key, item)) = table.get_key_value(key) else { return false };
    let key = [around(key.leaf_decor()), around(key.dotted_decor())];
    let item = match item {
        Item::Value(value) => value.to_string(),
        other => inside(other),
    };
    key.iter().any(|text| speaks(text)) || speaks(&item)
}

/// Adds what was seen behind an entry, and behind what stands there.
pub fn say_seen(item: &mut Item, (least, most): (u64, u64), runs: u32) {
    let value = match item {
        Item::Value(value) => Some(value),
        Item::Table(table) => table.get_mut("calls").and_then(Item::as_value_mut),
        _ => None,
    };
    let Some(value) = value else { return };
    let there = value.decor().suffix().and_then(RawString::as_str).unwrap_or_default();
    let there = without_seen(there);
    let text = format!("{} # seen {least}..{most} in {runs} runs", there.trim_end());
    value.decor_mut().set_suffix(text);
}

/// What is written in a table or value, without what stands around it.
fn inside(item: &Item) -> String {
    match item {
        Item::Table(table) => format!("{}\n{table}", around(table.decor())),
        Item::Value(Value::InlineTable(table)) => within(table),
        _ => String::new(),
    }
}

fn within(table: &InlineTable) -> String {
    let mut bare = table.clone();
    bare.decor_mut().clear();
    bare.to_string()
}

fn around(decor: &Decor) -> String {
    let texts = [decor.prefix(), decor.suffix()].into_iter().flatten();
    texts.filter_map(RawString::as_str).collect::<Vec<_>>().join("\n")
}

/// Whether a text of decor and numbers has a comment that is not ours. No name or
/// word that stands in it has a `#`.
fn speaks(text: &str) -> bool {
    without_seen(text).contains('#')
}

/// The comments in a text of decor and numbers.
fn comments(text: &str) -> Vec<String> {
    let of = |line: &str| line.find('#').and_then(|at| line.get(at..)).map(str::to_owned);
    without_seen(text).lines().filter_map(of).collect()
}

/// Puts comments above an entry.
fn above(decor: &mut Decor, said: &[String]) {
    if said.is_empty() {
        return;
    }
    let there = decor.prefix().and_then(RawString::as_str).unwrap_or_default();
    let text = format!("{there}{}\n", said.join("\n"));
    decor.set_prefix(text);
}

/// A text without our own comments. One that somebody went on writing is theirs.
fn without_seen(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("# seen ") {
        out.push_str(before);
        rest = after_seen(after).unwrap_or_else(|| {
            out.push_str("# seen ");
            after
        });
    }
    out.push_str(rest);
    out
}

/// What comes after `9..20 in 5 runs`.
fn after_seen(text: &str) -> Option<&str> {
    let digit = |c: char| c.is_ascii_digit();
    let rest = text.trim_start_matches(digit).strip_prefix("..")?.trim_start_matches(digit);
    let rest = rest.strip_prefix(" in ")?.trim_start_matches(digit).strip_prefix(" runs")?;
    let next = rest.trim_start_matches([' ', '\t']);
    (next.is_empty() || next.starts_with(['#', '\n', '\r'])).then_some(rest)
}
