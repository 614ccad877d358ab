//! Writes facts into the table of a platform.

use std::collections::{BTreeMap, BTreeSet};

use toml_edit::{Item, Table, TableLike, Value};

use super::entry::{
    call, expected, inline, is_commented, number, path, put, say_seen, set_call, set_parts, sort,
};
use super::keep::Keeper;
use crate::check::facts::{CallFact, CallFacts, Expected, Facts, PathFact, Totals};

/// Keys of a table of facts that are no calls.
const OURS: [&str; 7] = ["recorded", "total", "program", "region", "path", "executed", "network"];

/// Writes all facts of a platform into its table.
pub fn facts(item: &mut Item, facts: &Facts, keeper: &mut Keeper) {
    let Some(table) = item.as_table_like_mut() else { return };
    let before = keys(table);
    set_parts(table, "recorded", &recorded(facts));
    match &facts.total {
        Some(new) => total(table, new, keeper),
        None => drop(table.remove("total")),
    }
    for (key, of, all) in
        [("program", "program", &facts.programs), ("region", "region", &facts.regions)]
    {
        tables(table, (key, of), all, keeper);
    }
    numbers(table, "executed", &facts.executed, keeper);
    numbers(table, "network", &facts.network, keeper);
    paths(table, &facts.paths);
    let added = keys(table).difference(&before).next().is_some();
    calls(item, "", &facts.calls, keeper);
    if added {
        sort(item);
    }
}

fn keys(table: &dyn TableLike) -> BTreeSet<String> {
    table.iter().map(|(key, _)| key.to_owned()).collect()
}

fn recorded(facts: &Facts) -> Vec<(String, Value)> {
    let recorded = &facts.recorded;
    let texts = [("kernel", &recorded.kernel), ("libc", &recorded.libc)];
    let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text.as_ref()?.into())));
    let runs = [("runs", i64::from(recorded.runs).into())];
    texts.chain(runs).map(|(key, value)| (key.to_owned(), value)).collect()
}

fn total(table: &mut dyn TableLike, new: &Totals, keeper: &mut Keeper) {
    let old = table.get("total").and_then(Item::as_table_like);
    let old = |key: &str| old.and_then(|old| old.get(key)).and_then(expected);
    let parts = [
        ("calls", new.calls),
        ("errors", new.errors),
        ("processes", new.processes),
        ("threads", new.threads),
    ];
    let parts = parts.map(|(key, new)| {
        let kept = keeper.number(&format!("total {key}"), old(key), new);
        (key.to_owned(), number(kept))
    });
    set_parts(table, "total", &parts);
}

/// Calls, in a table in which other keys may stand too; `of` is what notes call it.
fn calls(item: &mut Item, of: &str, facts: &CallFacts, keeper: &mut Keeper) {
    // What comes behind an entry in one line is part of that line.
    let lines = item.is_table();
    let Some(table) = item.as_table_like_mut() else { return };
    let ours = |key: &str| OURS.contains(&key);
    let old: CallFacts = table
        .iter()
        .filter(|(key, _)| !ours(key))
        .filter_map(|(key, item)| Some((key.to_owned(), call(item)?)))
        .collect();
    let none = CallFact::NONE;
    let mut added = false;
    for key in old.keys().chain(facts.keys()).collect::<BTreeSet<_>>() {
        let (before, new) = (old.get(key), facts.get(key).unwrap_or(&none));
        let name = format!("{of}{key}");
        let fact = keeper.call(&name, before, new);
        let never = fact.calls == Expected::Exact(0) && fact.errors.is_empty();
        if never && gone(table, key, before.map(|before| before.calls)) {
            continue;
        }
        added |= before.is_none();
        set_call(table, key, &fact);
        let newly = before.is_none_or(|before| before.calls != Expected::Varies);
        if newly && fact.calls == Expected::Varies && lines {
            seen(table, key, &name, keeper);
        }
    }
    if added {
        sort(item);
    }
}

/// Removes what is not there any more, unless a person said that it is not, or said
/// something else about it: then it is written as 0.
fn gone(table: &mut dyn TableLike, key: &str, before: Option<Expected>) -> bool {
    if before == Some(Expected::Exact(0)) || is_commented(table, key) {
        return false;
    }
    table.remove(key);
    true
}

fn seen(table: &mut dyn TableLike, key: &str, name: &str, keeper: &Keeper) {
    if let (Some(ends), Some(item)) = (keeper.seen.get(name), table.get_mut(key)) {
        say_seen(item, *ends, keeper.runs);
    }
}

/// The table at `key`, made where there is none.
fn part<'a>(table: &'a mut dyn TableLike, key: &str, implicit: bool) -> Option<&'a mut Item> {
    if !table.contains_key(key) {
        let mut new = Table::new();
        new.set_implicit(implicit);
        table.insert(key, Item::Table(new));
    }
    table.get_mut(key)
}

/// Removes a table that has become empty, if nobody said anything about it.
fn without_empty(table: &mut dyn TableLike, key: &str) {
    let empty = table.get(key).and_then(Item::as_table_like).is_some_and(TableLike::is_empty);
    if empty && !is_commented(table, key) {
        table.remove(key);
    }
}

/// Tables of calls by program or region.
fn tables(
    table: &mut dyn TableLike,
    (key, word): (&str, &str),
    all: &BTreeMap<String, CallFacts>,
    keeper: &mut Keeper,
) {
    if all.is_empty() && !table.contains_key(key) {
        return;
    }
    let Some(item) = part(table, key, true) else { return };
    let Some(parts) = item.as_table_like_mut() else { return };
    let before = keys(parts);
    let none = CallFacts::new();
    for name in before.iter().chain(all.keys()).collect::<BTreeSet<_>>() {
        let Some(one) = part(parts, name, false) else { continue };
        if !all.contains_key(name) {
            unsaid(one);
        }
        calls(one, &format!("{word} {name}: "), all.get(name).unwrap_or(&none), keeper);
        without_empty(parts, name);
    }
    if all.keys().any(|name| !before.contains(name)) {
        sort(item);
    }
    without_empty(table, key);
}

/// Of what is not there at all, that it varies is not worth to be kept.
fn unsaid(item: &mut Item) {
    let Some(table) = item.as_table_like_mut() else { return };
    for key in keys(table) {
        let varies = table.get(&key).and_then(call).is_some_and(|fact| fact == CallFact::VARIES);
        if varies && !is_commented(table, &key) {
            table.remove(&key);
        }
    }
}

/// Numbers by key, in a table of their own.
fn numbers(
    table: &mut dyn TableLike,
    key: &str,
    new: &BTreeMap<String, Expected>,
    keeper: &mut Keeper,
) {
    if new.is_empty() && !table.contains_key(key) {
        return;
    }
    let Some(item) = part(table, key, false) else { return };
    let lines = item.is_table();
    let Some(entries) = item.as_table_like_mut() else { return };
    let before = keys(entries);
    for one in before.iter().chain(new.keys()).collect::<BTreeSet<_>>() {
        let old = entries.get(one).and_then(expected);
        let name = format!("{key} {one}");
        let now = new.get(one).copied().unwrap_or(Expected::Exact(0));
        let kept = keeper.number(&name, old, now);
        if kept == Expected::Exact(0) && gone(entries, one, old) {
            continue;
        }
        put(entries, one, number(kept));
        if kept == Expected::Varies && old != Some(kept) && lines {
            seen(entries, one, &name, keeper);
        }
    }
    if new.keys().any(|one| !before.contains(one)) {
        sort(item);
    }
    without_empty(table, key);
}

/// Paths and how they are used.
fn paths(table: &mut dyn TableLike, new: &BTreeMap<String, PathFact>) {
    if new.is_empty() && !table.contains_key("path") {
        return;
    }
    let Some(item) = part(table, "path", false) else { return };
    let Some(entries) = item.as_table_like_mut() else { return };
    let before = keys(entries);
    for one in before.iter().chain(new.keys()).collect::<BTreeSet<_>>() {
        let old = entries.get(one).and_then(path);
        let uses = |uses: &BTreeMap<String, u64>| -> Vec<(String, Value)> {
            uses.iter().map(|(kind, n)| (kind.clone(), number(Expected::Exact(*n)))).collect()
        };
        match (&old, new.get(one)) {
            (Some(PathFact::Varies(_)), _) | (None, None) => {}
            (Some(PathFact::Uses(old)), None) => {
                let mut none: BTreeMap<_, _> = old.keys().map(|kind| (kind.clone(), 0)).collect();
                // Without any number it would be there.
                if none.is_empty() {
                    none.insert("missed".into(), 0);
                }
                let is_zero = !old.is_empty() && old.values().all(|n| *n == 0);
                if is_zero {
                    continue;
                }
                if is_commented(entries, one) {
                    set_parts(entries, one, &uses(&none));
                } else {
                    entries.remove(one);
                }
            }
            (_, Some(PathFact::Varies(_))) => put(entries, one, "varies".into()),
            (None, Some(PathFact::Uses(new))) => put(entries, one, inline(&uses(new))),
            (Some(PathFact::Uses(_)), Some(PathFact::Uses(new))) => {
                set_parts(entries, one, &uses(new));
            }
        }
    }
    if new.keys().any(|one| !before.contains(one)) {
        sort(item);
    }
    without_empty(table, "path");
}
