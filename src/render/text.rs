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
    shorten(text, width, 2)
}

/// The text in at most `width` columns, cut at its end, where `…` says so.
pub(super) fn shorten_end(text: &str, width: usize) -> Cow<'_, str> {
    shorten(text, width, 1)
}

/// As [`shorten_middle`], for paths that stand below each other: most of what
/// is kept is of the end, since their beginnings are much the same.
pub(super) fn shorten_path(path: &str, width: usize) -> Cow<'_, str> {
    shorten(path, width, 4)
}

/// Of what is kept, the `share`th part is the beginning.
fn shorten(text: &str, width: usize, share: usize) -> Cow<'_, str> {
    if display_width(text) <= width {
        return Cow::Borrowed(text);
    }
    let Some(room) = width.checked_sub(1) else {
        return Cow::Borrowed("");
    };
    // An odd column goes to the end: the file's name is there.
    let head = prefix(text.char_indices(), room / share);
    let tail = prefix(text.char_indices().rev(), room - room / share);
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

/// What is said in one go, and where it may be parted when a line is too short
/// for it.
#[derive(Debug, Clone)]
pub(super) struct Clause {
    whole: String,
    /// Each is said to the end on one line, if a line is long enough.
    parts: Vec<String>,
}

impl Clause {
    /// Words that belong together.
    pub fn one(whole: impl Into<String>) -> Self {
        let whole = whole.into();
        Self { parts: vec![whole.clone()], whole }
    }

    /// Items with `, ` between them.
    pub fn list(mut items: Vec<String>) -> Self {
        let whole = items.join(", ");
        let last = items.len().saturating_sub(1);
        for item in items.iter_mut().take(last) {
            item.push(',');
        }
        Self { whole, parts: items }
    }

    /// Something that is said in other words when it has to be parted.
    pub fn parted(whole: String, parts: Vec<String>) -> Self {
        Self { whole, parts }
    }

    /// Several clauses as one.
    pub fn joined(clauses: &[Self]) -> Self {
        let wholes = clauses.iter().map(|clause| clause.whole.as_str());
        Self::one(wholes.filter(|whole| !whole.is_empty()).collect::<Vec<_>>().join("; "))
    }

    /// Columns that it takes on one line.
    pub fn width(&self) -> usize {
        display_width(&self.whole)
    }

    /// A sentence from a record, escaped.
    pub fn words(sentence: &str) -> Self {
        let words: Vec<_> = sentence.split_whitespace().map(escape).collect();
        Self::one(words.join(" "))
    }
}

/// Clauses as lines of at most `width` columns, each ended by a newline. The
/// first line begins with `first`, the others with `next`. Two clauses on one
/// line have `; ` between them. One that does not fit begins a new line; where
/// that is too short, it is parted, and what follows is indented.
pub(super) fn fold(first: &str, next: &str, clauses: &[Clause], width: usize) -> String {
    let mut lines = Lines { width, ..Lines::begun(first) };
    for clause in clauses.iter().filter(|clause| !clause.whole.is_empty()) {
        if lines.put("; ", &clause.whole) {
            continue;
        }
        lines.end(next);
        if lines.put("", &clause.whole) {
            continue;
        }
        let indented = format!("{next}  ");
        // Nothing else is said on the lines of a clause that was parted.
        for part in &clause.parts {
            if lines.put(" ", part) {
                continue;
            }
            lines.end(&indented);
            if lines.put("", part) {
                continue;
            }
            for word in unbroken(part) {
                if !lines.put(" ", &word) {
                    lines.end(&indented);
                    lines.force(&word);
                }
            }
        }
        lines.end(next);
    }
    lines.end("");
    lines.done
}

/// Lines in the making.
struct Lines {
    done: String,
    line: String,
    /// Columns that the line's beginning takes.
    lead: usize,
    /// Nothing is behind that yet.
    fresh: bool,
    width: usize,
}

impl Lines {
    fn begun(first: &str) -> Self {
        let lead = display_width(first);
        Self { done: String::new(), line: first.to_owned(), lead, fresh: true, width: 0 }
    }

    /// Puts the text on the line, behind the joint when it is not the first
    /// there. False when it does not fit.
    fn put(&mut self, joint: &str, text: &str) -> bool {
        let joint = if self.fresh { "" } else { joint };
        let wide = [self.line.as_str(), joint, text].into_iter().map(display_width);
        let fits = wide.fold(0, usize::saturating_add) <= self.width;
        if fits {
            self.line.extend([joint, text]);
            self.fresh = false;
        }
        fits
    }

    /// Puts as much of a word on an empty line as fits; even in a very narrow
    /// terminal something has to be said.
    fn force(&mut self, word: &str) {
        self.line.push_str(&shorten_middle(word, self.width.saturating_sub(self.lead).max(8)));
        self.fresh = false;
    }

    /// Ends the line, when there is something on it, and begins another.
    fn end(&mut self, next: &str) {
        if !self.fresh {
            self.done.push_str(self.line.trim_end());
            self.done.push('\n');
            next.clone_into(&mut self.line);
            self.lead = display_width(next);
            self.fresh = true;
        }
    }
}

/// The words of a text; a number and its unit are one: `0.27 s`, `12 %`.
fn unbroken(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let unit = word.chars().take_while(|c| c.is_ascii_alphabetic() || *c == '%').count();
        let number = |word: &String| {
            let word = word.trim_start_matches(['(', '+', '-']);
            !word.is_empty() && word.chars().all(|c| c.is_ascii_digit() || c == '.')
        };
        match words.last_mut() {
            Some(last) if (1..=4).contains(&unit) && number(last) => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Lines of the tool's own words; see [`fold`].
pub(super) fn own_words(clauses: &[Clause], width: usize) -> String {
    fold(LEAD, LEAD, clauses, width)
}
