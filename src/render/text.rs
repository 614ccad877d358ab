//! Text that came from elsewhere: made harmless, quoted, shortened, folded.

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar;

/// What leads every line of the tool's own words.
pub(super) const LEAD: &str = "coldtrace: ";

/// Whether a character could drive a terminal, reorder a line or hide in it.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' // soft hyphen: shown by some terminals only
            | '\u{61c}' | '\u{200e}' | '\u{200f}' // bidi marks
            | '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' // invisible
            | '\u{2028}' | '\u{2029}' // line ends for some readers
            | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}' // bidi overrides, isolates
            | '\u{fff9}'..='\u{fffb}' // annotations
            | '\u{e0000}'..='\u{e007f}') // tags
}

/// The text with control and bidi characters written out: `\n`, `\t`,
/// `\x1b`, `\u{202e}`. What it returns is one line and cannot drive a terminal.
/// A backslash stays as it is: regular expressions and Windows paths are
/// commoner than newlines in names, and the result is for people.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if is_unsafe(c) && c.is_ascii() => drop(write!(out, "\\x{:02x}", c as u32)),
            c if is_unsafe(c) => drop(write!(out, "\\u{{{:x}}}", c as u32)),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// One argument as a shell would have to read it: bare, in single quotes, or
/// as `$'…'` where it holds what [`escape`] would write out. Harmless as it is.
pub fn quote(argument: &str) -> Cow<'_, str> {
    let bare = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    if argument.contains(is_unsafe) {
        let mut out = String::from("$'");
        for c in argument.chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                '\\' | '\'' => out.extend(['\\', c]),
                c if is_unsafe(c) && c.is_ascii() => drop(write!(out, "\\x{:02x}", c as u32)),
                c if is_unsafe(c) && c <= '\u{ffff}' => drop(write!(out, "\\u{:04x}", c as u32)),
                c if is_unsafe(c) => drop(write!(out, "\\U{:08x}", c as u32)),
                c => out.push(c),
            }
        }
        out.push('\'');
        Cow::Owned(out)
    } else if !argument.is_empty() && argument.chars().all(bare) {
        Cow::Borrowed(argument)
    } else {
        Cow::Owned(format!("'{}'", argument.replace('\'', "'\\''")))
    }
}

/// A command and its arguments, each [quoted](quote).
pub fn command_line<S: AsRef<str>>(argv: &[S]) -> String {
    let quoted: Vec<_> = argv.iter().map(|word| quote(word.as_ref())).collect();
    quoted.join(" ")
}

/// Columns that the text takes, as wcwidth(3) and with it most terminals see it.
pub fn display_width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// The text in at most `width` columns, its middle replaced by `…` when it is
/// longer: both ends of a path or a command line say more than the middle.
pub fn shorten_middle(text: &str, width: usize) -> Cow<'_, str> {
    if display_width(text) <= width {
        return Cow::Borrowed(text);
    }
    let Some(room) = width.checked_sub(1) else {
        return Cow::Borrowed("");
    };
    // An odd column goes to the end: the file's name is there.
    let head = prefix(text.char_indices(), room / 2);
    let tail = prefix(text.char_indices().rev(), room - room / 2);
    let mut out = String::with_capacity(text.len().min(width.saturating_mul(4)));
    out.extend(text.chars().take(head));
    out.push('…');
    let skipped = text.chars().count().saturating_sub(tail);
    // A combining mark must not end up on the dots.
    let rest = text.chars().skip(skipped).skip_while(|c| char_width(*c) == 0);
    out.extend(rest);
    Cow::Owned(out)
}

/// How many of the characters fit into `room` columns.
fn prefix(chars: impl Iterator<Item = (usize, char)>, room: usize) -> usize {
    let mut used = 0;
    chars
        .take_while(|(_, c)| {
            used += char_width(*c);
            used <= room
        })
        .count()
}

/// Atoms joined by blanks into lines of at most `width` columns, each ended by
/// a newline. The first line begins with `first`, the others with `next`. An
/// atom is never parted; one that is too long for a line is shortened.
pub(super) fn fold(first: &str, next: &str, atoms: &[String], width: usize) -> String {
    let mut out = String::new();
    let mut line = String::from(first);
    let mut fresh = true;
    for atom in atoms {
        let lead = display_width(if out.is_empty() { first } else { next });
        let used = display_width(&line);
        if !fresh && used + 1 + display_width(atom) > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = String::from(next);
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        // Even in a very narrow terminal something has to be said.
        line.push_str(&shorten_middle(atom, width.saturating_sub(lead).max(8)));
        fresh = false;
    }
    if !fresh {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Lines of the tool's own words; see [`fold`].
pub(super) fn own_words(atoms: &[String], width: usize) -> String {
    fold(LEAD, LEAD, atoms, width)
}

/// A sentence from a record as atoms, one a word, escaped.
pub(super) fn words(sentence: &str) -> Vec<String> {
    sentence.split_whitespace().map(|word| escape(word).into_owned()).collect()
}

/// Appends `mark` to the last atom, when there is one.
pub(super) fn punctuate(atoms: &mut [String], mark: &str) {
    if let Some(last) = atoms.last_mut() {
        last.push_str(mark);
    }
}

/// Several lists of atoms as one, `, ` within a list and `; ` between two.
pub(super) fn clauses(parts: Vec<Vec<String>>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        punctuate(&mut out, ";");
        let start = out.len();
        for atom in part {
            if out.len() > start {
                punctuate(&mut out, ",");
            }
            out.push(atom);
        }
    }
    out
}
