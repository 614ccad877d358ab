//! What Python writes with PYTHONPROFILEIMPORTTIME (Python/import.c): a header,
//! and at the end of each import a line, children before their parent.

/// The first line.
const HEADER: &[u8] = b"import time: self [us] | cumulative | imported package";
/// How every line begins.
const LEAD: &[u8] = b"import time: ";
/// A line that gets longer than this is none.
const LONGEST: usize = 4096;

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// What comes first.
    Header,
    /// An import has ended.
    Import(Import),
}

/// An import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Without the imports in it, microseconds; imports in several threads can
    /// make it negative.
    pub own: i64,
    /// With them.
    pub cumulative: u64,
    /// Imports that it happened in.
    pub depth: usize,
    /// The module, invalid UTF-8 replaced.
    pub name: String,
}

impl Line {
    /// From `import time: %9ld | %10ld | %*s%s`; `None` for any other line.
    pub fn parse(line: &[u8]) -> Option<Self> {
        if line == HEADER {
            return Some(Self::Header);
        }
        let text = String::from_utf8_lossy(line.strip_prefix(LEAD)?);
        let mut fields = text.splitn(3, " | ");
        let own = number(fields.next()?, 9)?;
        let cumulative = number(fields.next()?, 10)?.try_into().ok()?;
        let indented = fields.next()?;
        let name = indented.trim_start_matches(' ');
        let blanks = indented.len() - name.len();
        let is_name = !name.is_empty() && blanks.is_multiple_of(2);
        let import = || Import { own, cumulative, depth: blanks / 2, name: name.to_owned() };
        is_name.then(|| Self::Import(import()))
    }
}

/// A number on the right of a field that is no wider than it has to be.
fn number(field: &str, width: usize) -> Option<i64> {
    let digits = field.trim_start_matches(' ');
    let fits = field.len() == width || field.len() > width && digits.len() == field.len();
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    if fits && plain { digits.parse().ok() } else { None }
}

/// Puts together what one thread writes.
#[derive(Debug, Default)]
pub struct Stream {
    rest: Vec<u8>,
}

impl Stream {
    /// The lines that end with these bytes, without their ends, and whether the
    /// bytes are nothing but whole lines.
    pub fn take(&mut self, bytes: &[u8]) -> (Vec<Vec<u8>>, bool) {
        // Python writes a line of the log in one go: what stood there before is
        // half a line of somebody else.
        if bytes.starts_with(LEAD) {
            self.rest.clear();
        }
        let whole = self.rest.is_empty() && bytes.ends_with(b"\n");
        let mut parts: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
        let last = parts.pop().unwrap_or_default();
        let mut lines = Vec::new();
        for part in parts {
            let mut line = std::mem::take(&mut self.rest);
            line.extend_from_slice(part);
            lines.push(line);
        }
        self.rest.extend_from_slice(last);
        self.rest.truncate(LONGEST);
        (lines, whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(own: i64, cumulative: u64, depth: usize, name: &str) -> Line {
        Line::Import(Import { own, cumulative, depth, name: name.into() })
    }

    /// Lines as CPython's format string makes them.
    #[test]
    fn lines_are_read_as_python_writes_them() {
        let cases: [(&[u8], Option<Line>); 12] = [
            (HEADER, Some(Line::Header)),
            (
                b"import time:       121 |        787 | encodings",
                Some(import(121, 787, 0, "encodings")),
            ),
            (b"import time:        24 |         24 |     a.b", Some(import(24, 24, 2, "a.b"))),
            (
                b"import time: 123456789 | 1234567890 | x",
                Some(import(123_456_789, 1_234_567_890, 0, "x")),
            ),
            (
                b"import time: 1234567890 | 12345678901 | x",
                Some(import(1_234_567_890, 12_345_678_901, 0, "x")),
            ),
            (b"import time:       -12 |          7 | x", Some(import(-12, 7, 0, "x"))),
            (b"import time: 1 | 2 | fake", None),
            (b"import time:       121 |        787 | ", None),
            (b"import time:       121 |        787 |  odd", None),
            (b"import time:       1x1 |        787 | x", None),
            (b"import time:       121 |         -7 | x", None),
            (b" import time:       121 |        787 | x", None),
        ];
        for (line, expected) in cases {
            assert_eq!(Line::parse(line), expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn lines_are_put_together_and_told_from_halves_of_others() {
        let mut stream = Stream::default();
        let mut take = |bytes: &str| {
            let (lines, whole) = stream.take(bytes.as_bytes());
            let text = |line: Vec<u8>| String::from_utf8(line).unwrap();
            (lines.into_iter().map(text).collect::<Vec<_>>(), whole)
        };
        let lines = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        assert_eq!(take("one\ntwo\n"), (lines(&["one", "two"]), true));
        assert_eq!(take("import time:  "), (lines(&[]), false));
        assert_eq!(take("7 |"), (lines(&[]), false));
        assert_eq!(take("\nx"), (lines(&["import time:  7 |"]), false));
        assert_eq!(take("import time: whole\n"), (lines(&["import time: whole"]), true));
        assert_eq!(take(""), (lines(&[]), false));
    }
}
