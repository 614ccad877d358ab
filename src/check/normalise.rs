//! Paths without what differs from run to run and from machine to machine: where
//! home is, pids, hashes, names that mkstemp(3) made up.

use std::collections::{BTreeMap, BTreeSet};

use regex_lite::Regex;
use serde::{Deserialize, Deserializer, Serialize};

use super::families::Families;

/// `[normalise]` of a baseline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Normalise {
    /// What stands for a directory: the name, and its path or a `$VARIABLE`.
    pub prefixes: BTreeMap<String, String>,
    /// What is replaced in the rest.
    pub patterns: Vec<Pattern>,
    /// Which calls stand for each other where the platform is another.
    pub families: Families,
}

impl Default for Normalise {
    fn default() -> Self {
        let prefix = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let prefixes = [("{cwd}", "$PWD"), ("{home}", "$HOME"), ("{tmp}", "$TMPDIR")];
        Self {
            prefixes: prefixes.map(prefix).into(),
            patterns: vec![Pattern::Pid, Pattern::Hex, Pattern::Mkstemp],
            families: Families::Default,
        }
    }
}

/// What is replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Pattern {
    /// `pid`: a part of a path that is the pid or tid of a task of the run.
    Pid,
    /// `hex8+`: eight or more hexadecimal digits, at least one of them 0 to 9.
    Hex,
    /// `mkstemp`: the end of a name right in a directory for temporary files that
    /// is six or more letters and digits and no word, a suffix like `.c` apart.
    Mkstemp,
    /// `{ regex = "...", to = "{x}" }`: what matches.
    Regex {
        /// The regular expression.
        regex: String,
        /// What is put in its place.
        to: String,
    },
}

impl Normalise {
    /// A name in braces of a text that stands for nothing: no directory, and nothing
    /// that is put in a path's place.
    pub fn unknown_name<'a>(&self, text: &'a str) -> Option<&'a str> {
        let made = |name: &str| {
            self.patterns.iter().any(|pattern| match pattern {
                Pattern::Pid => name == "{pid}",
                Pattern::Hex => name == "{hex}",
                Pattern::Mkstemp => name == "{random}",
                Pattern::Regex { to, .. } => to.contains(name),
            })
        };
        let known = |name: &str| name == OUTPUT || self.prefixes.contains_key(name) || made(name);
        names_in(text).find(|name| !known(name))
    }
}

/// The directory of standard output and error.
pub const OUTPUT: &str = "{output}";

/// Names in braces: `{home}`.
pub fn names_in(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices('{').filter_map(|(at, _)| {
        let rest = text.get(at..)?;
        let end = rest.find('}')?;
        rest.get(..=end)
    })
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "expected \"pid\", \"hex8+\", \"mkstemp\" or { regex = \"...\", to = \"...\" }"
        )]
        enum Written {
            Word(String),
            Regex { regex: String, to: String },
        }
        match Written::deserialize(from)? {
            Written::Word(word) => match word.as_str() {
                "pid" => Ok(Self::Pid),
                "hex8+" => Ok(Self::Hex),
                "mkstemp" => Ok(Self::Mkstemp),
                _ => Err(serde::de::Error::custom(format_args!(
                    "\"{word}\" is no pattern: known are \"pid\", \"hex8+\", \"mkstemp\" and \
                     {{ regex = \"...\", to = \"...\" }}"
                ))),
            },
            Written::Regex { regex, to } => match Regex::new(&regex) {
                Ok(_) => Ok(Self::Regex { regex, to }),
                Err(e) => Err(serde::de::Error::custom(format_args!("regex \"{regex}\": {e}"))),
            },
        }
    }
}

/// Directories for temporary files, beside `$TMPDIR`.
const TEMPORARY: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run/shm"];

/// A normaliser, for one run.
#[derive(Debug)]
pub struct Normaliser {
    /// Name and path, the longest first.
    prefixes: Vec<(String, String)>,
    patterns: Vec<Compiled>,
    /// Pids and tids of the run.
    tasks: BTreeSet<String>,
    temporary: Vec<String>,
}

#[derive(Debug)]
enum Compiled {
    Pid,
    Hex,
    Mkstemp,
    Regex(Regex, String),
}

impl Normaliser {
    /// One that knows the value of variables from `variable`.
    pub fn new(rules: &Normalise, variable: impl Fn(&str) -> Option<String>) -> Self {
        let value = |path: &str| match path.strip_prefix('$') {
            Some(name) => variable(name),
            None => Some(path.to_owned()),
        };
        let mut prefixes: Vec<(String, String)> = Vec::new();
        let mut temporary: Vec<String> = TEMPORARY.map(str::to_owned).into();
        for (name, path) in &rules.prefixes {
            // A prefix of everything would say nothing.
            let Some(value) = value(path).filter(|value| value.len() > 1 && value.starts_with('/'))
            else {
                continue;
            };
            let value = value.trim_end_matches('/').to_owned();
            if path == "$TMPDIR" {
                temporary.push(name.clone());
            }
            prefixes.push((name.clone(), value));
        }
        prefixes.sort_by(longest_first);
        let compile = |pattern: &Pattern| match pattern {
            Pattern::Pid => Some(Compiled::Pid),
            Pattern::Hex => Some(Compiled::Hex),
            Pattern::Mkstemp => Some(Compiled::Mkstemp),
            Pattern::Regex { regex, to } => {
                Some(Compiled::Regex(Regex::new(regex).ok()?, to.clone()))
            }
        };
        let patterns = rules.patterns.iter().filter_map(compile).collect();
        Self { prefixes, patterns, tasks: BTreeSet::new(), temporary }
    }

    /// The same, with one directory more that a name stands for.
    #[must_use]
    pub fn with_prefix(mut self, name: &str, directory: &str) -> Self {
        self.prefixes.push((name.to_owned(), directory.to_owned()));
        self.prefixes.sort_by(longest_first);
        self
    }

    /// The same, which knows the tasks of a run.
    #[must_use]
    pub fn with_tasks(self, tasks: impl IntoIterator<Item = i32>) -> Self {
        Self { tasks: tasks.into_iter().map(|tid| tid.to_string()).collect(), ..self }
    }

    /// The path as a baseline has it.
    pub fn path(&self, path: &str) -> String {
        // What a program gives as a socket's address is as it wrote it.
        let mut short = path.to_owned();
        while short.contains("/./") {
            short = short.replace("/./", "/");
        }
        let path = short.as_str();
        let found = self.prefixes.iter().find_map(|(name, dir)| Some((name, below(path, dir)?)));
        match found {
            Some((name, rest)) => self.replaced(name, rest),
            None => self.replaced("", path),
        }
    }

    /// All names by which a rule may mean the path: as the program gave it, as a
    /// baseline has it, and below each directory that has a name and contains it.
    /// (Where home is the working directory too, a file in it is in both.)
    pub fn names(&self, path: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::from([path.to_owned(), self.replaced("", path)]);
        for (name, dir) in &self.prefixes {
            if let Some(rest) = below(path, dir) {
                names.insert(format!("{name}{rest}"));
                names.insert(self.replaced(name, rest));
            }
        }
        names
    }

    /// What follows a directory's name, without what no two runs have in common.
    fn replaced(&self, start: &str, rest: &str) -> String {
        let mut parts: Vec<String> = rest.split('/').map(str::to_owned).collect();
        for pattern in &self.patterns {
            match pattern {
                Compiled::Pid => {
                    let task = |part: &&mut String| self.tasks.contains(*part);
                    parts.iter_mut().filter(task).for_each(|part| *part = "{pid}".into());
                }
                Compiled::Hex => parts.iter_mut().for_each(|part| *part = hex(part)),
                Compiled::Mkstemp => self.made_up(start, &mut parts),
                Compiled::Regex(regex, to) => {
                    let joined = parts.join("/");
                    let replaced = regex.replace_all(&joined, regex_lite::NoExpand(to));
                    parts = replaced.split('/').map(str::to_owned).collect();
                }
            }
        }
        format!("{start}{}", parts.join("/"))
    }

    /// Replaces what was made up in a name right in a temporary directory.
    fn made_up(&self, start: &str, parts: &mut [String]) {
        for dir in &self.temporary {
            // Parts of the directory; the path begins with a slash, or the prefix.
            let deep = match dir.strip_prefix(start) {
                Some("") if !start.is_empty() => 1,
                Some(rest) if start.is_empty() && rest.starts_with('/') => {
                    let above: Vec<&str> = rest.split('/').collect();
                    if !parts.iter().map(String::as_str).take(above.len()).eq(above.iter().copied())
                    {
                        continue;
                    }
                    above.len()
                }
                _ => continue,
            };
            if let Some(part) = parts.get_mut(deep) {
                *part = random_end(part);
            }
        }
    }
}

/// What of the path follows the directory, if it is in it, or is it.
fn below<'a>(path: &'a str, dir: &str) -> Option<&'a str> {
    path.strip_prefix(dir).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn longest_first(a: &(String, String), b: &(String, String)) -> std::cmp::Ordering {
    b.1.len().cmp(&a.1.len()).then_with(|| a.0.cmp(&b.0))
}

/// Runs of eight and more hexadecimal digits, where a digit is among them: `deadbeef`
/// and `facade` are words.
fn hex(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    let mut run = String::new();
    let end = |run: &mut String, out: &mut String| {
        if run.len() >= 8 && run.bytes().any(|b| b.is_ascii_digit()) {
            out.push_str("{hex}");
        } else {
            out.push_str(run);
        }
        run.clear();
    };
    for c in part.chars() {
        if c.is_ascii_hexdigit() {
            run.push(c);
        } else {
            end(&mut run, &mut out);
            out.push(c);
        }
    }
    end(&mut run, &mut out);
    out
}

/// A name whose last six or more letters and digits were made up, but for a suffix
/// such as `.c`; what makes them up keeps what stands before (`cc`, `tmp`, `app.`).
///
/// What has neither a digit nor a capital letter is a word: `config.toml`,
/// `.python-version`. Of the names that glibc's mkstemp(3) makes up (six of 62
/// letters and digits) 26^6 / 62^6, less than 1 %, look so too and are not replaced.
/// Python's `tmp` and eight of small letters, digits and `_` are always, so that
/// `tmpsettings` is taken for one of these; and `README` for one of mkstemp's.
fn random_end(name: &str) -> String {
    const PYTHONS: usize = 8;
    let made_up = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (stem, suffix) = match name.rsplit_once('.') {
        Some((stem, suffix)) if suffix.len() < 6 && !suffix.is_empty() => {
            (stem, &name[stem.len()..])
        }
        _ => (name, ""),
    };
    let kept = stem.trim_end_matches(made_up);
    let end = &stem[kept.len()..];
    let word =
        ["tmp", "cc"].into_iter().find(|word| end.starts_with(word) && end.len() - word.len() >= 6);
    let random = end.strip_prefix(word.unwrap_or("")).unwrap_or(end);
    let pythons = word == Some("tmp") && random.len() == PYTHONS;
    let is_word = !random.contains(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase());
    if random.len() < 6 || is_word && !pythons {
        return name.to_owned();
    }
    format!("{kept}{}{{random}}{suffix}", word.unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normaliser() -> Normaliser {
        let variable = |name: &str| match name {
            "HOME" => Some("/home/ann".to_owned()),
            "PWD" => Some("/home/ann/src/app/".to_owned()),
            "TMPDIR" => Some("/scratch/t".to_owned()),
            _ => None,
        };
        Normaliser::new(&Normalise::default(), variable).with_tasks([4711, 12])
    }

    #[test]
    fn the_longest_directory_gives_its_name() {
        let n = normaliser();
        assert_eq!(n.path("/home/ann/.config/app"), "{home}/.config/app");
        assert_eq!(n.path("/home/ann/src/app/x.c"), "{cwd}/x.c");
        assert_eq!(n.path("/home/ann/src/app"), "{cwd}");
        assert_eq!(n.path("/home/anna/x"), "/home/anna/x");
        assert_eq!(n.path("/home"), "/home");
        assert_eq!(n.path("/home/ann/./././.s"), "{home}/.s");
    }

    #[test]
    fn pids_are_those_of_the_run() {
        let n = normaliser();
        assert_eq!(n.path("/proc/4711/task/12/comm"), "/proc/{pid}/task/{pid}/comm");
        assert_eq!(n.path("/proc/47112/comm"), "/proc/47112/comm");
        assert_eq!(n.path("/usr/lib12/12.so"), "/usr/lib12/12.so");
    }

    #[test]
    fn hashes_are_hexadecimal_digits_and_not_words() {
        let n = normaliser();
        assert_eq!(n.path("/var/lib/d41d8cd98f00b204/x"), "/var/lib/{hex}/x");
        assert_eq!(n.path("/var/lib/obj-0123abcd.o"), "/var/lib/obj-{hex}.o");
        assert_eq!(n.path("/srv/facade/defaced/beefed"), "/srv/facade/defaced/beefed");
        assert_eq!(n.path("/srv/deadbeef"), "/srv/deadbeef");
        assert_eq!(n.path("/srv/1234567"), "/srv/1234567");
    }

    #[test]
    fn names_are_made_up_right_in_temporary_directories_only() {
        let n = normaliser();
        assert_eq!(n.path("/tmp/app.Xy12Zq"), "/tmp/app.{random}");
        assert_eq!(n.path("/tmp/ccXy12Zq.s"), "/tmp/cc{random}.s");
        assert_eq!(n.path("/tmp/tmpab1_9xyz/file-abcdef"), "/tmp/tmp{random}/file-abcdef");
        assert_eq!(n.path("/scratch/t/app.Xy12Zq"), "{tmp}/app.{random}");
        assert_eq!(n.path("/tmp/log.txt"), "/tmp/log.txt");
        assert_eq!(n.path("/home/ann/app.Xy12Zq"), "{home}/app.Xy12Zq");
        assert_eq!(n.path("/tmp"), "/tmp");
    }

    #[test]
    fn words_are_not_made_up() {
        let n = normaliser();
        for path in [
            "/tmp/.python-version",
            "/tmp/config.toml",
            "/tmp/secrets",
            "/tmp/log_file",
            "/tmp/ccache",
        ] {
            assert_eq!(n.path(path), path);
        }
        // Eight of Python's letters may be small ones only.
        assert_eq!(n.path("/tmp/tmpqwertzui"), "/tmp/tmp{random}");
        assert_eq!(n.path("/tmp/tmpab_cdefg"), "/tmp/tmp{random}");
        assert_eq!(n.path("/tmp/ccabcdeF.s"), "/tmp/cc{random}.s");
        assert_eq!(n.path("/tmp/app-abcde1"), "/tmp/app-{random}");
    }

    #[test]
    fn a_path_has_all_names_that_a_rule_may_give_it() {
        let here = |_: &str| Some("/home/ann".to_owned());
        let n = Normaliser::new(&Normalise::default(), here).with_tasks([4711]);
        let names = |path: &str| n.names(path).into_iter().collect::<Vec<_>>();
        assert_eq!(
            names("/home/ann/.secret"),
            ["/home/ann/.secret", "{cwd}/.secret", "{home}/.secret", "{tmp}/.secret"]
        );
        assert_eq!(names("/proc/4711/mem"), ["/proc/4711/mem", "/proc/{pid}/mem"]);
        assert_eq!(normaliser().names("/tmp/Secret1").len(), 2);
        assert_eq!(names("/etc/passwd"), ["/etc/passwd"]);
    }

    #[test]
    fn a_persons_expression_is_replaced_as_written() {
        let to = "{run}".to_owned();
        let pattern = Pattern::Regex { regex: "run-[0-9]+".into(), to };
        let rules = Normalise { patterns: vec![pattern], ..Normalise::default() };
        let n = Normaliser::new(&rules, |_| None);
        assert_eq!(n.path("/srv/run-17/run-18.log"), "/srv/{run}/{run}.log");
    }

    #[test]
    fn a_root_for_home_is_no_prefix() {
        let n = Normaliser::new(&Normalise::default(), |_| Some("/".into()));
        assert_eq!(n.path("/etc/passwd"), "/etc/passwd");
        assert_eq!(n.path("<pipe>"), "<pipe>");
    }
}
