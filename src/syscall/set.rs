//! Sets of system calls, and the expressions that name them: the grammar of strace's
//! `-e trace=`.

use super::table::{self, CallInfo, Classes, LIMIT};
use super::{Abi, Sys};

const WORDS: usize = LIMIT as usize / 64;

/// A set of calls, over all ABIs. 640 bytes and a flag; asking is one load.
///
/// Numbers that no kernel defines are in it only if it came about by "everything" or
/// "everything but".
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct CallSet {
    /// A bit for each number below [`LIMIT`], by ABI.
    bits: [[u64; WORDS]; Abi::ALL.len()],
    /// Whether every other number is in the set, negative ones too.
    others: bool,
}

/// Why an expression is no set of calls. Each is one line, and names the word.
#[derive(Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum ExprError {
    /// A word that is no call.
    #[error("no system call is called '{word}'{}", hint(.close.as_deref()))]
    UnknownCall {
        /// The word.
        word: String,
        /// The known name closest to it, if one is close.
        close: Option<String>,
    },
    /// A word after `%` that is no class.
    #[error("no class of system calls is called '{word}'{}", hint(.close.as_deref()))]
    UnknownClass {
        /// The word, with its `%`.
        word: String,
        /// The known class closest to it, if one is close.
        close: Option<String>,
    },
    /// A number beyond any table.
    #[error("system call number '{word}' is out of range: numbers end at {}", LIMIT - 1)]
    Number {
        /// The word.
        word: String,
    },
    /// A regular expression that is not valid.
    #[error("'{word}' is no regular expression: {reason}")]
    Regex {
        /// The word, with its `/`.
        word: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A regular expression that is found in no call's name.
    #[error("'{word}' matches no system call")]
    NoMatch {
        /// The word.
        word: String,
    },
    /// Nothing where a name should be.
    #[error("a system call's name is missing in '{expr}'")]
    Empty {
        /// The whole expression.
        expr: String,
    },
}

fn hint(close: Option<&str>) -> String {
    close.map_or_else(String::new, |close| format!(": did you mean '{close}'?"))
}

impl CallSet {
    /// Every call, also those without a name.
    pub const fn all() -> Self {
        Self { bits: [[u64::MAX; WORDS]; Abi::ALL.len()], others: true }
    }

    /// No call.
    pub const fn none() -> Self {
        Self { bits: [[0; WORDS]; Abi::ALL.len()], others: false }
    }

    /// These calls.
    pub fn of(calls: impl IntoIterator<Item = Sys>) -> Self {
        let mut set = Self::none();
        calls.into_iter().for_each(|sys| set.insert(sys));
        set
    }

    /// Whether the call is in the set.
    pub fn contains(&self, sys: Sys) -> bool {
        let Some((word, bit)) = place(sys.number) else {
            return self.others;
        };
        self.bits
            .get(sys.abi as usize)
            .and_then(|words| words.get(word))
            .is_some_and(|bits| bits & bit != 0)
    }

    /// Whether every call is in the set.
    pub fn is_all(&self) -> bool {
        *self == Self::all()
    }

    /// Whether no call is in the set.
    pub fn is_none(&self) -> bool {
        *self == Self::none()
    }

    /// Adds a call. A number beyond every table (1024 and up, or negative) is not kept.
    pub fn insert(&mut self, sys: Sys) {
        if let Some((word, bit)) = place(sys.number)
            && let Some(words) = self.bits.get_mut(sys.abi as usize)
            && let Some(bits) = words.get_mut(word)
        {
            *bits |= bit;
        }
    }

    /// The calls that are in one of the two.
    #[must_use]
    pub fn union(mut self, other: &Self) -> Self {
        let theirs = other.bits.as_flattened();
        for (mine, theirs) in self.bits.as_flattened_mut().iter_mut().zip(theirs) {
            *mine |= theirs;
        }
        self.others |= other.others;
        self
    }

    /// The calls that are in both.
    #[must_use]
    pub fn intersection(mut self, other: &Self) -> Self {
        let theirs = other.bits.as_flattened();
        for (mine, theirs) in self.bits.as_flattened_mut().iter_mut().zip(theirs) {
            *mine &= theirs;
        }
        self.others &= other.others;
        self
    }

    /// The calls that are not in it.
    #[must_use]
    pub fn inverted(mut self) -> Self {
        for bits in self.bits.as_flattened_mut() {
            *bits = !*bits;
        }
        self.others = !self.others;
        self
    }

    /// The numbers of that ABI in the set for which there is a name, in rising order.
    pub fn numbers(&self, abi: Abi) -> impl Iterator<Item = i64> {
        table::known(abi)
            .map(|(number, _)| number)
            .filter(move |number| self.contains(Sys::new(abi, *number)))
    }

    /// Reads an expression: names of calls separated by commas.
    ///
    /// A name stands for the call in every ABI that has it. Instead of a name there may
    /// be `%class` (file, process, network or net, signal, ipc, desc, memory also
    /// without the `%`), `/regex` found anywhere in the name, a number, `all` or
    /// `none`. `name@64`, `@32` and `@x32` keep to one ABI of the machine, whose family
    /// `hint` tells; a plain number is of the ABI `hint`. `?` before a name makes it
    /// no error that there is no such call. `!` before it all inverts the set.
    pub fn parse(expr: &str, hint: Abi) -> Result<Self, ExprError> {
        let (list, inverted) = match expr.strip_prefix('!') {
            Some(rest) => (rest, true),
            None => (expr, false),
        };
        let mut set = Self::none();
        for word in list.split(',') {
            let item = word.trim();
            let (item, optional) = match item.strip_prefix('?') {
                Some(rest) => (rest, true),
                None => (item, false),
            };
            if item.is_empty() {
                return Err(ExprError::Empty { expr: expr.into() });
            }
            match set.add_item(item, hint) {
                // What is not well formed stays an error.
                Err(error @ ExprError::Regex { .. }) => return Err(error),
                Err(error) if !optional => return Err(error),
                _ => {}
            }
        }
        Ok(if inverted { set.inverted() } else { set })
    }

    /// Adds what one word of an expression stands for.
    fn add_item(&mut self, item: &str, hint: Abi) -> Result<(), ExprError> {
        let (name, only) = personality(item, hint);
        if let Ok(number) = name.parse::<u64>() {
            let sys = Sys::new(only.unwrap_or(hint), i64::try_from(number).unwrap_or(-1));
            if place(sys.number).is_none() {
                return Err(ExprError::Number { word: item.into() });
            }
            self.insert(sys);
            return Ok(());
        }
        if let Some(pattern) = name.strip_prefix('/') {
            let regex = regex_lite::Regex::new(pattern).map_err(|error| ExprError::Regex {
                word: item.into(),
                reason: error.to_string().replace('\n', " "),
            })?;
            let any = self.add_where(only, |info| regex.is_match(info.name));
            return if any { Ok(()) } else { Err(ExprError::NoMatch { word: item.into() }) };
        }
        if let Some(class) = name.strip_prefix('%') {
            let classes = Classes::from_name(class).ok_or_else(|| ExprError::UnknownClass {
                word: item.into(),
                close: closest(class, Classes::names()).map(|name| format!("%{name}")),
            })?;
            self.add_where(only, |info| info.classes.intersects(classes));
            return Ok(());
        }
        if let Some(classes) = legacy_class(name) {
            self.add_where(only, |info| info.classes.intersects(classes));
            return Ok(());
        }
        match name {
            "all" if only.is_none() => *self = Self::all(),
            "all" => _ = self.add_where(only, |_| true),
            "none" => {}
            _ => {
                if !self.add_where(only, |info| info.name == name) {
                    return Err(unknown_call(item, name, only));
                }
            }
        }
        Ok(())
    }

    /// Adds the known calls, of one ABI or of all, for which `wanted` is true. Whether
    /// there were any.
    fn add_where(&mut self, only: Option<Abi>, wanted: impl Fn(&CallInfo) -> bool) -> bool {
        let mut any = false;
        for abi in Abi::ALL {
            if only.is_some_and(|only| only != abi) {
                continue;
            }
            for (number, info) in table::known(abi) {
                if wanted(info) {
                    self.insert(Sys::new(abi, number));
                    any = true;
                }
            }
        }
        any
    }
}

/// Where the bit of a number is: the word, and the bit in it. `None` beyond the tables.
fn place(number: i64) -> Option<(usize, u64)> {
    (0..LIMIT).contains(&number).then(|| (number as usize / 64, 1 << (number % 64)))
}

/// Takes a suffix `@64`, `@32` or `@x32` off a word. Which ABI it is depends on the
/// machine's family.
fn personality(item: &str, hint: Abi) -> (&str, Option<Abi>) {
    let arm = matches!(hint, Abi::Aarch64 | Abi::Arm);
    let Some((name, suffix)) = item.rsplit_once('@') else {
        return (item, None);
    };
    let abi = match suffix {
        "64" if arm => Abi::Aarch64,
        "64" => Abi::X86_64,
        "32" if arm => Abi::Arm,
        "32" => Abi::I386,
        "x32" => Abi::X32,
        _ => return (item, None),
    };
    (name, Some(abi))
}

/// The classes that are known without their `%`, from before there was one.
fn legacy_class(name: &str) -> Option<Classes> {
    const NAMES: [&str; 7] = ["file", "process", "network", "signal", "ipc", "desc", "memory"];
    NAMES.contains(&name).then(|| Classes::from_name(name))?
}

fn unknown_call(item: &str, name: &str, only: Option<Abi>) -> ExprError {
    let abis = Abi::ALL.into_iter().filter(|abi| only.is_none_or(|only| only == *abi));
    let names = abis.flat_map(|abi| table::known(abi).map(|(_, info)| info.name));
    ExprError::UnknownCall { word: item.into(), close: closest(name, names).map(String::from) }
}

/// The known name with the fewest edits to `word`, if they are few for its length.
fn closest(word: &str, names: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let most = (word.chars().count() / 3).clamp(1, 3);
    names
        .map(|name| (distance(word, name), name))
        .min()
        .filter(|(edits, _)| *edits <= most)
        .map(|(_, name)| name)
}

/// How many letters must be put in, taken out, replaced or swapped with the next to
/// make one word of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    // Rows of the usual table: the one before last, the last, the one being made.
    let mut older: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    let mut before = None;
    for (row, letter) in one.chars().enumerate() {
        let mut next = vec![row + 1];
        for (column, theirs) in other.iter().enumerate() {
            let at = |cells: &[usize], column: usize| cells.get(column).copied();
            let mut best = [
                at(&last, column).map(|cost| cost + usize::from(letter != *theirs)),
                at(&last, column + 1).map(|cost| cost + 1),
                at(&next, column).map(|cost| cost + 1),
            ]
            .into_iter()
            .flatten()
            .min();
            if let Some(left) = column.checked_sub(1)
                && before == Some(*theirs)
                && other.get(left) == Some(&letter)
                && let Some(cost) = at(&older, left)
            {
                best = best.min(Some(cost + 1));
            }
            next.push(best.unwrap_or(row + 1));
        }
        older = std::mem::replace(&mut last, next);
        before = Some(letter);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
