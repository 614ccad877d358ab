//! What a baseline demands. Only rules fail; facts are what they hold.

use globset::{GlobBuilder, GlobMatcher};
use serde::{Deserialize, Deserializer, Serialize};

use crate::observe::{family, is_family};
use crate::syscall::errno::{errno_label, errno_name};
use crate::syscall::{Abi, CallSet};

use super::families::{Families, plain};

/// `[[rule]]`.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its name.
    pub id: String,
    /// Of these cases only, by name; empty: of all.
    pub cases: Vec<String>,
    /// Of programs only whose file, or its name, matches.
    pub exe: Option<Pattern>,
    /// Of one region only.
    pub region: Option<String>,
    /// Whether a failure fails the check.
    pub level: Level,
    /// Why it is there: shown where it fails.
    pub reason: Option<String>,
    /// What it demands.
    pub demand: Demand,
}

/// What a failure of a rule is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// It fails the check.
    #[default]
    Error,
    /// It is said.
    Warning,
}

/// What a rule demands.
#[derive(Debug, Clone)]
pub enum Demand {
    /// `facts = true`: every number is as recorded.
    Facts,
    /// `deny = "unlisted"`: no call that was not recorded.
    Unlisted,
    /// `metric` with `max`.
    Most(Metric, u64),
    /// `metric` with `max_ratio`, `min_delta` or both: not more than so many times
    /// what was recorded, and so many more.
    Ratio {
        /// Of what.
        metric: Metric,
        /// So many times.
        max_ratio: f64,
        /// And more than so many more.
        min_delta: u64,
    },
    /// `metric = "misses"`, `"paths"`, ... with `max_new_paths`: so many that were
    /// not recorded.
    NewPaths(Metric, u64),
    /// `path`: so many calls at most that name such a path.
    Paths {
        /// Which.
        paths: Vec<Pattern>,
        /// But not these.
        except: Vec<Pattern>,
        /// Which calls.
        access: Access,
        /// So many.
        max: u64,
    },
    /// `syscall`: so many at most.
    Calls {
        /// Which, as for `-e trace=`.
        calls: Calls,
        /// Of sockets of these families only.
        families: Vec<String>,
        /// But not with these addresses.
        except: Vec<Pattern>,
        /// So many.
        max: u64,
    },
    /// `exec`: no other program is executed.
    Programs(Vec<Pattern>),
}

impl Demand {
    /// Whether it says what is never to be done: to have seen it once is enough.
    /// Numbers may be larger in a first run, which finds no caches.
    pub fn is_forbidding(&self) -> bool {
        matches!(self, Self::Paths { max: 0, .. } | Self::Calls { max: 0, .. } | Self::Programs(_))
    }

    /// Whether it says what is allowed without looking at what was recorded.
    pub fn is_absolute(&self) -> bool {
        matches!(self, Self::Most(..) | Self::Paths { .. } | Self::Calls { .. } | Self::Programs(_))
    }
}

/// What is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// Calls.
    Calls,
    /// Calls that failed.
    Errors,
    /// Calls that failed so: `ENOENT`.
    Errno(String),
    /// Paths, each once.
    Paths,
    /// Paths that were missed (ENOENT, ENOTDIR), each once; as calls for `max`.
    Misses,
    /// Successful opens.
    Opens,
    /// Processes.
    Processes,
    /// Threads.
    Threads,
    /// Programs executed.
    Execs,
}

impl Metric {
    const WORDS: &str = "calls, errors, paths, misses, opens, processes, threads, execs and the \
                         names of errnos (ENOENT)";

    fn parse(word: &str) -> Result<Self, String> {
        Ok(match word {
            "calls" => Self::Calls,
            "errors" => Self::Errors,
            "paths" => Self::Paths,
            "misses" => Self::Misses,
            "opens" => Self::Opens,
            "processes" => Self::Processes,
            "threads" => Self::Threads,
            "execs" => Self::Execs,
            errno if is_errno(errno) => Self::Errno(errno.to_owned()),
            errno if errno.starts_with('E') => {
                return Err(format!("metric \"{errno}\": there is no such errno{}", near(errno)));
            }
            _ => return Err(format!("metric \"{word}\": known are {}", Self::WORDS)),
        })
    }

    /// Its word.
    pub fn word(&self) -> &str {
        match self {
            Self::Calls => "calls",
            Self::Errors => "errors",
            Self::Errno(name) => name,
            Self::Paths => "paths",
            Self::Misses => "misses",
            Self::Opens => "opens",
            Self::Processes => "processes",
            Self::Threads => "threads",
            Self::Execs => "execs",
        }
    }
}

/// Numbers of errnos, also of those that only a tracer sees (errno-base.h, errno.h of
/// the kernel).
const ERRNOS: std::ops::Range<i32> = 1..4096;

/// Whether a record can have it: a name, or `errno_4095` of a number without one.
fn is_errno(word: &str) -> bool {
    let mut all = ERRNOS;
    all.any(|errno| errno_label(errno) == word)
}

/// The errno whose name begins or ends the same, where there is one: what was meant.
fn near(word: &str) -> String {
    let mut names = ERRNOS.filter_map(errno_name);
    let alike = |name: &&str| {
        let same = name.bytes().zip(word.bytes()).take_while(|(a, b)| a == b).count();
        let (a, b) = (name.bytes().rev(), word.bytes().rev());
        let same = same + a.zip(b).take_while(|(a, b)| a == b).count();
        same + 1 >= word.len().max(name.len())
    };
    names.find(alike).map_or_else(String::new, |name| format!(": did you mean {name}?"))
}

/// How a path is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Any call that names it.
    #[default]
    Any,
    /// A call that opens it.
    Open,
    /// A call that opens it for writing, or changes, makes or removes it.
    Write,
    /// A call that misses it.
    Miss,
    /// A call that executes it.
    Exec,
}

/// A glob as it was written. `*` does not cross a slash, `**` does.
#[derive(Debug, Clone)]
pub struct Pattern {
    /// The text.
    pub text: String,
    glob: GlobMatcher,
}

impl Pattern {
    /// Reads a glob; `{` and `}` stand for themselves: `{home}/**`.
    ///
    /// # Errors
    /// Where it is none.
    pub fn new(text: &str) -> Result<Self, String> {
        let escaped = text.replace('{', "[{]").replace('}', "[}]");
        let glob = GlobBuilder::new(&escaped).literal_separator(true).build();
        let glob = glob.map_err(|e| format!("\"{text}\" is no pattern: {}", e.kind()))?;
        Ok(Self { text: text.to_owned(), glob: glob.compile_matcher() })
    }

    /// The same for addresses, in which `[` and `]` stand for themselves: `[::1]:*`.
    ///
    /// # Errors
    /// Where it is none.
    pub fn address(text: &str) -> Result<Self, String> {
        let mut escaped = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '[' | ']' => escaped.extend(['[', c, ']']),
                c => escaped.push(c),
            }
        }
        Ok(Self { text: text.to_owned(), ..Self::new(&escaped)? })
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &str) -> bool {
        self.glob.is_match(text)
    }

    /// Whether the path does, or, where the pattern has no slash, its last part.
    pub fn matches_file(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        self.matches(path) || !self.text.contains('/') && self.matches(name)
    }
}

/// A set of calls as a person wrote it.
#[derive(Debug, Clone)]
pub struct Calls {
    /// The text.
    pub text: String,
    sets: Vec<(Abi, CallSet)>,
}

impl Calls {
    fn new(words: &[String]) -> Result<Self, String> {
        let mut sets = Vec::new();
        let mut refused = None;
        for abi in [Abi::native()]
            .into_iter()
            .chain(Abi::ALL.into_iter().filter(|&abi| abi != Abi::native()))
        {
            let mut all = CallSet::none();
            for word in words {
                match CallSet::parse(word, abi) {
                    Ok(set) => {
                        abi.calls()
                            .filter(|&sys| set.contains(sys))
                            .for_each(|sys| all.insert(sys));
                    }
                    // That one table has no such call says nothing.
                    Err(_) if Abi::ALL.into_iter().any(|abi| CallSet::parse(word, abi).is_ok()) => {
                    }
                    Err(e) => refused = refused.or(Some(e.to_string())),
                }
            }
            sets.push((abi, all));
        }
        match refused {
            Some(why) => Err(why),
            None if words.is_empty() => Err("it names no call".into()),
            None => Ok(Self { text: words.join(" "), sets }),
        }
    }

    /// One of them that a record has no address or family of.
    fn without_address(&self) -> Option<&'static str> {
        let all =
            self.sets.iter().flat_map(|(abi, set)| abi.calls().filter(|sys| set.contains(*sys)));
        all.filter_map(crate::syscall::Sys::name).find(|name| !ADDRESSED.contains(name))
    }

    /// Whether the call, or one of its family, is among them.
    pub fn contain(&self, name: &str, families: Families) -> bool {
        let has = |name: &str| {
            self.sets.iter().any(|(abi, set)| {
                crate::syscall::Sys::from_name(*abi, name).is_some_and(|sys| set.contains(sys))
            })
        };
        families.members(plain(name)).into_iter().any(has)
    }
}

/// The calls that a record's network has: see [`crate::record::NetworkRow`].
const ADDRESSED: [&str; 7] =
    ["socket", "socketpair", "connect", "bind", "sendto", "sendmsg", "sendmmsg"];

/// A string, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl From<OneOrMore> for Vec<String> {
    fn from(words: OneOrMore) -> Self {
        match words {
            OneOrMore::One(word) => vec![word],
            OneOrMore::More(words) => words,
        }
    }
}

/// A rule as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    case: Option<OneOrMore>,
    exe: Option<String>,
    region: Option<String>,
    #[serde(default)]
    level: Level,
    reason: Option<String>,
    facts: Option<bool>,
    deny: Option<String>,
    metric: Option<String>,
    max: Option<u64>,
    max_ratio: Option<f64>,
    min_delta: Option<u64>,
    max_new_paths: Option<u64>,
    path: Option<OneOrMore>,
    access: Option<Access>,
    except: Option<OneOrMore>,
    syscall: Option<OneOrMore>,
    family: Option<OneOrMore>,
    exec: Option<OneOrMore>,
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(from)?;
        let id = written.id.clone();
        let failed = |why| serde::de::Error::custom(format_args!("rule \"{id}\": {why}"));
        Self::of(written).map_err(failed)
    }
}

fn strings(words: Option<OneOrMore>) -> Vec<String> {
    words.map(Into::into).unwrap_or_default()
}

fn patterns(words: Option<OneOrMore>) -> Result<Vec<Pattern>, String> {
    strings(words).iter().map(|word| Pattern::new(word)).collect()
}

/// What is possible of one program or region only.
fn of_a_part(w: &Written, demand: &Demand) -> Result<(), String> {
    if w.exe.is_some() && w.region.is_some() && !demand.is_absolute() {
        return Err("what is recorded is of a program or of a region, not of both".into());
    }
    if w.region.is_some() && matches!(demand, Demand::Programs(_)) {
        return Err("in which region a program was executed is not known".into());
    }
    if w.exe.is_none() && w.region.is_none() {
        return Ok(());
    }
    match demand {
        // Rows of paths say who used them, not how often each did, nor how.
        Demand::Paths { max: 1.., .. } | Demand::NewPaths(_, 1..) => {
            Err("of one program or region only max = 0 can be held for paths".into())
        }
        Demand::Paths { access, .. } if *access != Access::Any => Err(
            "of a path it is known which programs and regions used it, not how: leave out access"
                .into(),
        ),
        Demand::NewPaths(Metric::Misses | Metric::Opens, _) => Err(
            "of a path it is known which programs and regions used it, not how: take metric = \"paths\""
                .into(),
        ),
        Demand::Most(Metric::Opens | Metric::Paths | Metric::Misses, _)
        | Demand::Ratio { metric: Metric::Opens | Metric::Paths | Metric::Misses, .. } => {
            Err("paths are not counted by program or region; see path".into())
        }
        Demand::Most(Metric::Processes | Metric::Threads | Metric::Execs, _)
        | Demand::Ratio { metric: Metric::Processes | Metric::Threads | Metric::Execs, .. } => {
            Err("it is known of the whole case only".into())
        }
        _ => Ok(()),
    }
}

impl Rule {
    fn of(mut w: Written) -> Result<Self, String> {
        let demand = demand(&mut w)?;
        // A key that says nothing here is a mistake.
        let left = [
            ("max", w.max.is_some()),
            ("max_ratio", w.max_ratio.is_some()),
            ("min_delta", w.min_delta.is_some()),
            ("max_new_paths", w.max_new_paths.is_some()),
            ("access", w.access.is_some()),
            ("except", w.except.is_some()),
            ("family", w.family.is_some()),
        ];
        if let Some((key, _)) = left.iter().find(|(_, there)| *there) {
            return Err(format!("{key} says nothing here"));
        }
        of_a_part(&w, &demand)?;
        Ok(Self {
            cases: w.case.map(Into::into).unwrap_or_default(),
            exe: w.exe.as_deref().map(Pattern::new).transpose()?,
            region: w.region,
            level: w.level,
            reason: w.reason,
            id: w.id,
            demand,
        })
    }

    /// Whether it is for this case.
    pub fn is_for(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|name| name == case)
    }
}

/// What is demanded; the keys that say so are taken out.
fn demand(w: &mut Written) -> Result<Demand, String> {
    let kinds = [
        ("facts", w.facts.is_some()),
        ("deny", w.deny.is_some()),
        ("metric", w.metric.is_some()),
        ("path", w.path.is_some()),
        ("syscall", w.syscall.is_some()),
        ("exec", w.exec.is_some()),
    ];
    let said: Vec<&str> = kinds.iter().filter(|(_, said)| *said).map(|(key, _)| *key).collect();
    let [kind] = said[..] else {
        return Err(if said.is_empty() {
            "it demands nothing: facts, deny, metric, path, syscall or exec is missing".into()
        } else {
            format!("{} are different demands: one rule each", said.join(" and "))
        });
    };
    match kind {
        "facts" if w.facts == Some(true) => Ok(Demand::Facts),
        "facts" => Err("facts = false demands nothing: remove the rule".into()),
        "deny" => match w.deny.as_deref() {
            Some("unlisted") => Ok(Demand::Unlisted),
            other => {
                Err(format!("deny = \"{}\": known is \"unlisted\"", other.unwrap_or_default()))
            }
        },
        "path" => Ok(Demand::Paths {
            paths: patterns(w.path.take())?,
            except: patterns(w.except.take())?,
            access: w.access.take().unwrap_or_default(),
            max: w.max.take().unwrap_or(0),
        }),
        "syscall" => syscall(w),
        "exec" => Ok(Demand::Programs(patterns(w.exec.take())?)),
        _ => metric(w),
    }
}

fn syscall(w: &mut Written) -> Result<Demand, String> {
    let calls = Calls::new(&strings(w.syscall.take()))?;
    let mut families = strings(w.family.take());
    for word in &mut families {
        if !is_family(word) {
            return Err(format!(
                "family \"{word}\": known are inet, inet6, unix, netlink, packet, vsock, ... and numbers"
            ));
        }
        // A record has the word, where there is one.
        if let Ok(number) = word.parse() {
            *word = family(number);
        }
    }
    let except = strings(w.except.take());
    let except: Vec<Pattern> =
        except.iter().map(|word| Pattern::address(word)).collect::<Result<_, _>>()?;
    if !(families.is_empty() && except.is_empty())
        && let Some(name) = calls.without_address()
    {
        return Err(format!(
            "of {name} no address is known: family and except go with {}",
            ADDRESSED.join(", ")
        ));
    }
    Ok(Demand::Calls { calls, families, except, max: w.max.take().unwrap_or(0) })
}

fn metric(w: &mut Written) -> Result<Demand, String> {
    let metric = Metric::parse(&w.metric.take().unwrap_or_default())?;
    match (w.max.take(), w.max_ratio.take(), w.min_delta.take(), w.max_new_paths.take()) {
        (Some(max), None, None, None) => Ok(Demand::Most(metric, max)),
        (None, None, None, Some(max)) => match metric {
            Metric::Paths | Metric::Misses | Metric::Opens => Ok(Demand::NewPaths(metric, max)),
            Metric::Errno(name) if name == "ENOENT" => Ok(Demand::NewPaths(Metric::Misses, max)),
            _ => Err("max_new_paths goes with paths, opens, misses and ENOENT".into()),
        },
        (None, None, None, None) => {
            Err("max, max_ratio, min_delta or max_new_paths is missing".into())
        }
        (None, ratio, delta, None) => {
            let max_ratio = ratio.unwrap_or(0.0);
            if !(max_ratio.is_finite() && (ratio.is_none() || max_ratio >= 1.0)) {
                return Err(format!("max_ratio = {max_ratio}: it must be 1 or more"));
            }
            Ok(Demand::Ratio { metric, max_ratio, min_delta: delta.unwrap_or(0) })
        }
        _ => Err("max, max_ratio (with min_delta) and max_new_paths are one rule each".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Result<Rule, String> {
        toml_edit::de::from_str(&format!("id = \"r\"\n{text}")).map_err(|e| e.message().to_owned())
    }

    #[test]
    fn each_kind_of_rule_is_read() {
        for text in [
            "facts = true",
            "deny = \"unlisted\"",
            "metric = \"calls\"\nmax_ratio = 1.05\nmin_delta = 20",
            "metric = \"ENOENT\"\nmax_new_paths = 0",
            "metric = \"EACCES\"\nmax = 3\nexe = \"python*\"",
            "path = \"{home}/**\"\nmax = 0\nexcept = [\"{home}/.cache/app/**\"]\nreason = \"APP-12\"",
            "syscall = [\"socket\", \"connect\"]\nfamily = [\"inet\", \"inet6\"]\nmax = 0",
            "syscall = \"%network\"\nlevel = \"warning\"",
            "exec = [\"/usr/bin/git\", \"git-*\"]",
        ] {
            assert!(rule(text).is_ok(), "{text}: {:?}", rule(text).err());
        }
    }

    #[test]
    fn a_rule_that_cannot_be_meant_is_refused_in_one_line() {
        for (text, why) in [
            ("", "demands nothing"),
            ("facts = false", "remove the rule"),
            ("facts = true\npath = \"/x\"", "one rule each"),
            ("facts = true\nmax = 3", "max says nothing here"),
            ("deny = \"listed\"", "known is \"unlisted\""),
            ("metric = \"speed\"\nmax = 1", "known are calls"),
            ("metric = \"calls\"", "is missing"),
            ("metric = \"calls\"\nmax_ratio = 0.5", "1 or more"),
            ("metric = \"calls\"\nmax_new_paths = 0", "goes with paths"),
            ("metric = \"calls\"\nmax = 1\nmax_ratio = 2.0", "one rule each"),
            ("syscall = \"opennat\"", "opennat"),
            ("syscall = []", "names no call"),
            ("path = \"[\"", "is no pattern"),
            ("path = \"/x\"\nexe = \"a\"\nmax = 2", "only max = 0"),
            ("path = \"/x\"\nexe = \"a\"\naccess = \"write\"", "not how"),
            ("path = \"/x\"\nregion = \"a\"\naccess = \"open\"", "not how"),
            ("metric = \"misses\"\nmax_new_paths = 0\nexe = \"a\"", "not how"),
            ("exec = \"git\"\nregion = \"a\"", "not known"),
            ("syscall = \"execve\"\nexcept = \"zzz\"", "of execve no address"),
            ("syscall = \"%network\"\nfamily = \"inet\"", "no address is known"),
            ("syscall = \"connect\"\nfamily = \"ipv4\"", "known are inet"),
            ("syscall = \"connect\"\nfamily = [\"inet\", \"70000\"]", "known are inet"),
            ("metric = \"ENOENTT\"\nmax = 0", "did you mean ENOENT?"),
            ("metric = \"EWHATEVER\"\nmax = 0", "no such errno"),
            ("metric = \"errno_2\"\nmax = 0", "known are calls"),
            ("facts = true\nexe = \"a\"\nregion = \"b\"", "not of both"),
            ("facts = true\nunheard_of = 1", "unknown field `unheard_of`"),
        ] {
            let refused = rule(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
    }

    #[test]
    fn braces_stand_for_themselves() {
        let pattern = Pattern::new("{home}/**").unwrap();
        assert!(pattern.matches("{home}/.config/app/config.toml"));
        assert!(!pattern.matches("home/x"));
        let name = Pattern::new("python*").unwrap();
        assert!(name.matches_file("/usr/bin/python3.11"));
        assert!(!Pattern::new("/bin/python*").unwrap().matches_file("/usr/bin/python3"));
    }

    #[test]
    fn a_familys_number_is_its_word_and_errnos_may_have_no_name() {
        let Demand::Calls { families, .. } =
            rule("syscall = \"connect\"\nfamily = [\"2\", \"77\"]").unwrap().demand
        else {
            panic!("no rule of calls")
        };
        assert_eq!(families, ["inet", "77"]);
        for errno in ["errno_41", "ERESTARTSYS", "EHWPOISON"] {
            assert!(rule(&format!("metric = \"{errno}\"\nmax = 0")).is_ok(), "{errno}");
        }
    }

    #[test]
    fn brackets_of_addresses_stand_for_themselves() {
        let pattern = Pattern::address("[::1]:*").unwrap();
        assert!(pattern.matches("[::1]:80") && !pattern.matches(":80"));
        assert!(!pattern.matches("1:80") && !pattern.matches("[::1]:80/udp"));
        assert_eq!(pattern.text, "[::1]:*");
        assert!(Pattern::address("{tmp}/s[1]").unwrap().matches("{tmp}/s[1]"));
    }

    #[test]
    fn a_call_stands_for_its_family_and_for_every_table() {
        let calls =
            |words: &[&str]| Calls::new(&words.iter().map(|&w| w.into()).collect::<Vec<_>>());
        let open = calls(&["open"]).unwrap();
        assert!(
            open.contain("openat", Families::Default)
                && open.contain("open@i386", Families::Default)
        );
        assert!(!open.contain("openat", Families::None));
        let socket = calls(&["socketcall"]).unwrap();
        assert!(socket.contain("socketcall@i386", Families::Default));
    }
}
