//! The file of cases and rules: `coldtrace.toml`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::syscall::errno::{signal_name, signal_number};

use super::facts::Facts;
use super::normalise::{Normalise, OUTPUT, names_in};
use super::rule::{Demand, Metric, Rule};

/// The version of the file's format.
pub const SCHEMA: i64 = 1;

/// A baseline.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// Always [`SCHEMA`].
    pub schema: i64,
    /// How paths are written.
    #[serde(default)]
    pub normalise: Normalise,
    /// What is run.
    #[serde(default, rename = "case")]
    pub cases: Vec<Case>,
    /// What is demanded of it.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
}

/// `[[case]]`: a command, and the place in which it runs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Its name.
    pub name: String,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// How it is to end.
    #[serde(default)]
    pub exit: Exit,
    /// A shell command that is run, untraced, before each run.
    pub prepare: Option<String>,
    /// The working directory, from that of the baseline; else coldtrace's own.
    pub cwd: Option<String>,
    /// Its environment.
    #[serde(default)]
    pub env: Env,
    /// What it reads from standard input, from the directory of the baseline; else
    /// nothing (/dev/null).
    pub stdin: Option<String>,
    /// Whether its addresses are randomised.
    #[serde(default)]
    pub aslr: Switch,
    /// Whether what it draws at random is left random.
    #[serde(default)]
    pub random: Switch,
    /// How many processors it may use.
    #[serde(default)]
    pub cpus: Cpus,
    /// After this it is ended, and has failed.
    #[serde(default, deserialize_with = "duration")]
    pub timeout: Option<Duration>,
    /// Whether the paths are recorded, which name the causes of changes.
    #[serde(default = "yes")]
    pub paths: bool,
    /// Regions by events; those that the program marks need none.
    #[serde(default)]
    pub regions: BTreeMap<String, Region>,
    /// By platform: `x86_64 linux glibc`.
    #[serde(default)]
    pub facts: BTreeMap<String, Facts>,
}

/// What a new case sets, and `run --fixed`: the same locale everywhere; glibc's
/// malloc makes no arena when a thread finds another in it, and asks for memory by
/// 64 MiB (so that some bytes more, of a longer PATH, are no call more); Python's
/// tables have the same order.
pub const USUAL_VARIABLES: [(&str, &str); 4] = [
    ("LC_ALL", "C.UTF-8"),
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_TOP_PAD_", "67108864"),
    ("PYTHONHASHSEED", "0"),
];

/// What a new case passes on, and `run --fixed`: what leads to programs and to its
/// user's files.
pub const PASSED_VARIABLES: [&str; 2] = ["HOME", "PATH"];

impl Case {
    /// A case of a command, in the usual place: [`PASSED_VARIABLES`] and
    /// [`USUAL_VARIABLES`].
    pub fn new(name: String, command: Vec<String>) -> Self {
        let set = USUAL_VARIABLES.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        Self {
            name,
            command,
            exit: Exit::default(),
            prepare: None,
            cwd: None,
            env: Env { set, ..Env::default() },
            stdin: None,
            aslr: Switch::default(),
            random: Switch::default(),
            cpus: Cpus::default(),
            timeout: None,
            paths: true,
            regions: BTreeMap::new(),
            facts: BTreeMap::new(),
        }
    }
}

fn yes() -> bool {
    true
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    crate::observe::duration(&text)
        .map(Some)
        .map_err(|e| D::Error::custom(format_args!("\"{text}\": {e}")))
}

/// How a command is to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Status(i32),
    /// Killed by this signal: `SIGTERM`.
    Signal(String),
}

impl Default for Exit {
    fn default() -> Self {
        Self::Status(0)
    }
}

impl<'de> Deserialize<'de> for Exit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected an exit status, or a signal's name: \"SIGTERM\"")]
        enum Written {
            Status(u8),
            Signal(String),
        }
        match Written::deserialize(from)? {
            Written::Status(status) => Ok(Self::Status(status.into())),
            Written::Signal(name) if name.starts_with("SIG") => match signal_number(&name) {
                // As a record has it.
                Some(number) => Ok(Self::Signal(signal_name(number).into_owned())),
                None => Err(D::Error::custom(format_args!("exit = \"{name}\": no such signal"))),
            },
            Written::Signal(name) => Err(D::Error::custom(format_args!(
                "exit = \"{name}\": expected an exit status, or a signal's name: \"SIGTERM\""
            ))),
        }
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exit {status}"),
            Self::Signal(name) => write!(f, "end by {name}"),
        }
    }
}

/// The environment of a case.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Env {
    /// Whether it begins empty.
    #[serde(default = "yes")]
    pub clear: bool,
    /// What is passed on where it begins empty.
    #[serde(default = "passed")]
    pub pass: Vec<String>,
    /// What is set.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
    /// What is taken out.
    #[serde(default)]
    pub unset: Vec<String>,
}

impl Default for Env {
    fn default() -> Self {
        Self { clear: true, pass: passed(), set: BTreeMap::new(), unset: Vec::new() }
    }
}

fn passed() -> Vec<String> {
    PASSED_VARIABLES.map(str::to_owned).into()
}

/// `"on"` or `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// It is off.
    #[default]
    Off,
    /// It is on.
    On,
}

/// How many processors a case may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cpus {
    /// So many.
    Some(usize),
    /// Those that coldtrace may use.
    All,
}

impl Default for Cpus {
    /// One: the same everywhere.
    fn default() -> Self {
        Self::Some(1)
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number of processors, or \"all\"")]
        enum Written {
            Number(usize),
            Word(String),
        }
        match Written::deserialize(from)? {
            Written::Number(n @ 1..) => Ok(Self::Some(n)),
            Written::Word(word) if word == "all" => Ok(Self::All),
            _ => Err(D::Error::custom("expected a number of processors, or \"all\"")),
        }
    }
}

/// A region by events.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// The event with which it begins.
    pub from: String,
    /// The event with which it ends; else the end of the run.
    pub until: Option<String>,
}

/// Why a baseline cannot be used, as one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {what}", line.map_or_else(String::new, |n| format!(":{n}")))]
pub struct BaselineError {
    /// The file.
    pub file: String,
    /// The line, where it is known.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl Baseline {
    /// Reads the text of `file`.
    ///
    /// # Errors
    /// Where it is no baseline.
    pub fn parse(text: &str, file: &str) -> Result<Self, BaselineError> {
        let failed = |line, what: String| BaselineError { file: file.into(), line, what };
        let at = |offset: usize| {
            let before = text.as_bytes().get(..offset).unwrap_or_default();
            before.split(|&b| b == b'\n').count()
        };
        let baseline: Self = toml_edit::de::from_str(text).map_err(|e| {
            let line = e.span().map(|span| at(span.start));
            failed(line, one_line(e.message()))
        })?;
        if baseline.schema != SCHEMA {
            let what = format!("schema = {}: this coldtrace reads {SCHEMA}", baseline.schema);
            return Err(failed(None, what));
        }
        baseline.validate().map_err(|what| failed(None, what))?;
        Ok(baseline)
    }

    /// What no single part can know.
    fn validate(&self) -> Result<(), String> {
        for (i, case) in self.cases.iter().enumerate() {
            let name = &case.name;
            if name.is_empty() {
                return Err(format!("case {} has no name", i + 1));
            }
            if case.command.is_empty() {
                return Err(format!("case \"{name}\" has no command"));
            }
            if self.cases.iter().take(i).any(|other| other.name == *name) {
                return Err(format!("there are two cases \"{name}\""));
            }
            for (region, events) in &case.regions {
                for event in [Some(&events.from), events.until.as_ref()].into_iter().flatten() {
                    let failed = |why: String| {
                        format!("case \"{name}\": region \"{region}\": {event}: {why}")
                    };
                    crate::observe::Moment::parse(event).map_err(|e| failed(e.to_string()))?;
                    // Events know paths as they are; alternatives have a comma.
                    if let Some(name) = names_in(event).find(|name| !name.contains(',')) {
                        return Err(failed(format!("{name} is no path here: write it out")));
                    }
                }
            }
            for platform in case.facts.keys() {
                if platform.split(' ').filter(|word| !word.is_empty()).count() != 3 {
                    return Err(format!(
                        "case \"{name}\": \"{platform}\" is no platform, such as \"x86_64 linux glibc\""
                    ));
                }
            }
        }
        for (i, rule) in self.rules.iter().enumerate() {
            if self.rules.iter().take(i).any(|other| other.id == rule.id) {
                return Err(format!("there are two rules \"{}\"", rule.id));
            }
            let known = |name: &&String| self.cases.iter().any(|case| case.name == **name);
            if let Some(name) = rule.cases.iter().find(|name| !known(name)) {
                return Err(format!("rule \"{}\": there is no case \"{name}\"", rule.id));
            }
            self.validate_rule(rule).map_err(|why| format!("rule \"{}\": {why}", rule.id))?;
        }
        Ok(())
    }

    /// What a rule says of the rest of the file.
    fn validate_rule(&self, rule: &Rule) -> Result<(), String> {
        let patterns: Vec<_> = match &rule.demand {
            Demand::Paths { paths, except, .. } => paths.iter().chain(except).collect(),
            Demand::Calls { except, .. } => except.iter().collect(),
            Demand::Programs(allowed) => allowed.iter().collect(),
            _ => Vec::new(),
        };
        for pattern in patterns.into_iter().chain(&rule.exe) {
            if let Some(name) = self.normalise.unknown_name(&pattern.text) {
                let known: Vec<&str> = self.normalise.prefixes.keys().map(String::as_str).collect();
                return Err(format!(
                    "\"{}\": {name} stands for nothing: known are {} and what patterns make",
                    pattern.text,
                    [&known[..], &[OUTPUT]].concat().join(", ")
                ));
            }
        }
        let needs_paths = match &rule.demand {
            Demand::NewPaths(..) => true,
            Demand::Ratio { metric, .. } => {
                matches!(metric, Metric::Paths | Metric::Misses | Metric::Opens | Metric::Execs)
            }
            _ => false,
        };
        let without = |case: &&Case| needs_paths && !case.paths && rule.is_for(&case.name);
        match self.cases.iter().find(without) {
            Some(case) => Err(format!(
                "case \"{}\" has paths = false: no paths are recorded to compare with",
                case.name
            )),
            None => Ok(()),
        }
    }
}

/// A message of several lines as one.
fn one_line(message: &str) -> String {
    message
        .split('\n')
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::facts::Expected;

    const WHOLE: &str = r#"
schema = 1
[normalise]
prefixes = { "{home}" = "$HOME" }
patterns = ["pid", { regex = "x+", to = "{x}" }]
families = "none"

[[case]]
name = "version"
command = ["app", "--version"]
exit = 3
prepare = "rm -rf cache"
env = { clear = true, set = { LC_ALL = "C.UTF-8" } }
timeout = "2m"
cpus = "all"
regions = { startup = { from = "exec", until = "open:*.conf" } }

[case.facts."x86_64 linux glibc"]
recorded = { kernel = "6.1", libc = "2.36", runs = 5 }
openat = { calls = 269, ENOENT = 24 }
futex = "varies"
read = { calls = [40, 60] }

[case.facts."x86_64 linux glibc".path]
"{home}/.apprc" = { open = 1, missed = 1 }

[[rule]]
id = "counts"
facts = true
"#;

    #[test]
    fn a_whole_baseline_is_read() {
        let baseline = Baseline::parse(WHOLE, "x.toml").unwrap();
        let case = &baseline.cases[0];
        assert_eq!((&case.exit, case.cpus), (&Exit::Status(3), Cpus::All));
        assert_eq!(case.timeout, Some(Duration::from_mins(2)));
        let facts = &case.facts["x86_64 linux glibc"];
        assert_eq!(facts.calls["openat"].error("ENOENT"), Expected::Exact(24));
        assert_eq!(facts.calls["read"].calls, Expected::Range(40, 60));
        assert_eq!(facts.calls["futex"].calls, Expected::Varies);
        assert_eq!(facts.paths["{home}/.apprc"].missed(), Some(1));
    }

    #[test]
    fn names_in_braces_are_those_that_something_makes() {
        let case = "[[case]]\nname = \"a\"\ncommand = [\"a\"]\n";
        let made = "patterns = [\"pid\", { regex = \"x+\", to = \"{x}\" }]\nprefixes = { \"{me}\" = \"/m\" }";
        let rule = |path: &str| format!("[[rule]]\nid = \"r\"\npath = \"{path}\"\n");
        let read = |normalise: &str, path: &str| {
            Baseline::parse(&format!("schema = 1\n{normalise}\n{case}{}", rule(path)), "x").is_ok()
        };
        for path in ["{home}/x", "{cwd}/{hex}", "{tmp}/{random}", "{output}/**", "/proc/{pid}/mem"]
        {
            assert!(read("", path), "{path}");
        }
        let own = format!("[normalise]\n{made}");
        assert!(read(&own, "{me}/{x}/{pid}") && read(&own, "{output}/x"));
        assert!(!read(&own, "{home}/x") && !read(&own, "{me}/{hex}"));
    }

    #[test]
    fn a_signal_is_called_as_a_record_has_it() {
        let case = |exit: &str| -> Case {
            let text = format!("name = \"a\"\ncommand = [\"a\"]\nexit = \"{exit}\"");
            toml_edit::de::from_str(&text).unwrap()
        };
        assert_eq!(case("SIGKILL").exit, Exit::Signal("SIGKILL".into()));
        assert_eq!(case("SIGIOT").exit, Exit::Signal("SIGABRT".into()));
    }

    #[test]
    fn what_is_wrong_is_one_line_with_its_line() {
        let case = "schema = 1\n[[case]]\nname = \"a\"\ncommand = [\"a\"]\n";
        let facts =
            format!("{case}[case.facts.\"x86_64 linux glibc\"]\nrecorded = {{ runs = 5 }}\n");
        for (text, line, why) in [
            (String::new(), None, "schema"),
            ("schema = 2".to_owned(), None, "this coldtrace reads 1"),
            ("schema = 1\nrules = 3".to_owned(), Some(2), "unknown field `rules`"),
            ("schema = 1\n[[case]]\nname =".to_owned(), Some(3), ""),
            (format!("{case}exec = 3"), Some(5), "unknown field `exec`"),
            (format!("{case}exit = \"TERM\""), Some(5), "signal's name"),
            (format!("{case}exit = \"SIGKIL\""), Some(5), "no such signal"),
            (format!("{case}cpus = 0"), Some(5), "number of processors"),
            (format!("{case}timeout = \"soon\""), Some(5), "soon"),
            (
                format!("{case}{case}").replacen(
                    "schema = 1\n[[case]]\nname = \"a\"\ncommand = [\"a\"]\nschema = 1\n",
                    "schema = 1\n[[case]]\nname = \"a\"\ncommand = [\"a\"]\n",
                    1,
                ),
                None,
                "two cases",
            ),
            (format!("{facts}opennat = {{ calls = 3 }}"), None, "opennat"),
            (format!("{facts}open = {{ call = 3 }}"), None, "calls = N"),
            (format!("{facts}open = {{ calls = 3, enoent = 1 }}"), None, "errno"),
            (format!("{facts}open = {{ calls = [3, 1] }}"), None, ""),
            (format!("{facts}open = {{ calls = \"vary\" }}"), None, ""),
            (format!("{case}[case.facts.linux]\nrecorded = {{ runs = 5 }}"), None, "no platform"),
            (
                format!("{case}[[rule]]\nid = \"r\"\ncase = \"b\"\nfacts = true"),
                None,
                "no case \"b\"",
            ),
            (format!("{case}[[rule]]\nid = \"r\"\nfacts = 1"), Some(7), ""),
            (format!("{case}[[rule]]\nid = \"r\"\npath = \"{{hmoe}}/**\""), None, "{hmoe} stands"),
            (format!("{case}[[rule]]\nid = \"r\"\npath = \"*.{{c,h}}\""), None, "{c,h} stands"),
            (format!("{case}[[rule]]\nid = \"r\"\nexec = \"{{cdw}}/x\""), None, "{cdw} stands"),
            (
                format!(
                    "{case}paths = false\n[[rule]]\nid = \"r\"\nmetric = \"paths\"\nmax_new_paths = 0"
                ),
                None,
                "paths = false",
            ),
            (
                format!("{case}regions = {{ r = {{ from = \"open:{{cwd}}/f\" }} }}"),
                None,
                "{cwd} is no path here",
            ),
        ] {
            let error = Baseline::parse(&text, "x.toml").expect_err(&text);
            let shown = error.to_string();
            assert!(shown.contains(why), "{text}\n{shown}");
            assert_eq!(shown.lines().count(), 1, "{shown}");
            if line.is_some() {
                assert_eq!(error.line, line, "{text}\n{shown}");
            }
        }
    }
}
