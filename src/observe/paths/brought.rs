//! How each mapped file came in: as the program, because another one needs it,
//! or by the program's own will. Told from what the files say of themselves and
//! the order in which they were mapped, program by program.

use std::collections::{BTreeSet, HashMap};

use super::linkage::Linkage;

/// How a file came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// It is the program: the kernel mapped it at exec.
    Exec,
    /// It is the program's loader (PT_INTERP): the kernel mapped it at exec.
    Loader,
    /// LD_PRELOAD names it.
    Preload,
    /// One that was mapped before needs it (DT_NEEDED).
    Needed,
    /// Nobody mapped before it needs it: dlopen(3) as a rule.
    Dlopen,
    /// It is no ELF file that can be loaded: the program mapped it itself.
    Mmap,
}

impl By {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Loader => "loader",
            Self::Preload => "preload",
            Self::Needed => "needed",
            Self::Dlopen => "dlopen",
            Self::Mmap => "mmap",
        }
    }
}

/// Who mapped a file, as far as that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapper {
    /// The kernel at exec: the program itself.
    Exec,
    /// The kernel at exec: the other file that it maps then.
    Loader,
    /// A call.
    Call,
    /// It was mapped before the process was attached to.
    Unseen,
}

/// A file that one program had mapped.
#[derive(Debug)]
pub struct Member<'a> {
    /// Its number among all files.
    pub file: usize,
    /// When it was mapped first: later is more.
    pub order: u32,
    /// By whom.
    pub mapper: Mapper,
    /// The names that others may need it by.
    pub names: Vec<&'a [u8]>,
    /// What it says; `None` where it could not be read.
    pub linkage: Option<&'a Linkage>,
}

/// What was found of a file, over all programs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Brought {
    /// How it came in; empty where that is not known.
    pub by: BTreeSet<By>,
    /// Files that need it.
    pub needed_by: BTreeSet<usize>,
    /// There may be more of those: some file could not be read, or nobody saw by
    /// which name this one was opened.
    pub maybe_more: bool,
}

/// Judges what one program had mapped, and adds it to what is known of each file.
/// `members` are in the order that they were mapped in, `preloaded` are the names
/// in LD_PRELOAD.
pub fn judge(members: &[Member], preloaded: &[Vec<u8>], brought: &mut [Brought]) {
    // As ld.so(8) does it: of several that have a name, the first is taken.
    let mut by_name: HashMap<&[u8], usize> = HashMap::new();
    for (i, member) in members.iter().enumerate() {
        for name in &member.names {
            by_name.entry(*name).or_insert(i);
        }
    }
    let mut needed = vec![false; members.len()];
    let mut somebody_is_missing = false;
    for needer in members {
        for name in needer.linkage.iter().flat_map(|linkage| &linkage.needed) {
            let Some(&i) = by_name.get(base_name(name)) else {
                somebody_is_missing = true;
                continue;
            };
            let Some(member) = members.get(i).filter(|member| member.file != needer.file) else {
                continue;
            };
            if let Some(brought) = brought.get_mut(member.file) {
                brought.needed_by.insert(needer.file);
            }
            let unseen = needer.mapper == Mapper::Unseen && member.mapper == Mapper::Unseen;
            if let Some(needed) = needed.get_mut(i) {
                *needed |= needer.order < member.order || unseen;
            }
        }
    }
    let unread: Vec<&Member> = members.iter().filter(|m| m.linkage.is_none()).collect();
    let first_unread = unread.iter().map(|member| member.order).min();
    let interpreter = members
        .iter()
        .find(|member| member.mapper == Mapper::Exec)
        .and_then(|program| program.linkage?.interpreter.as_deref())
        .map(base_name);
    let bears = |member: &Member, name: &[u8]| member.names.contains(&base_name(name));
    for (member, needed) in members.iter().zip(needed) {
        // It may have been opened, unseen, by a link of the name that is missing.
        let nameless = somebody_is_missing
            && member.mapper == Mapper::Unseen
            && member.linkage.is_none_or(|linkage| linkage.soname.is_none());
        let by = match (member.mapper, member.linkage) {
            (Mapper::Exec, _) => Some(By::Exec),
            (Mapper::Loader, _) => Some(By::Loader),
            (Mapper::Unseen, _) if interpreter.is_some_and(|name| bears(member, name)) => {
                Some(By::Loader)
            }
            _ if preloaded.iter().any(|name| bears(member, name)) => Some(By::Preload),
            _ if needed => Some(By::Needed),
            (_, Some(linkage)) if !linkage.loadable => Some(By::Mmap),
            // What could not be read may need it, or may itself be anything.
            _ if nameless => None,
            _ if first_unread.is_some_and(|order| order <= member.order) => None,
            _ => Some(By::Dlopen),
        };
        let Some(brought) = brought.get_mut(member.file) else { continue };
        brought.by.extend(by);
        brought.maybe_more |= nameless && by.is_none();
        brought.maybe_more |= unread.iter().any(|other| other.file != member.file);
    }
}

/// What stands behind the last slash.
pub fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files as `NAME` or `NAME needs A,B`; `?NAME` could not be read, `!NAME` is no
    /// ELF file. The first is the program, the second its loader.
    fn judged(files: &[&str], preloaded: &[&str]) -> Vec<String> {
        let linkages: Vec<(String, Option<Linkage>)> = files
            .iter()
            .map(|text| {
                let (name, needs) = text.split_once(" needs ").unwrap_or((text, ""));
                let needed = needs.split(',').filter(|name| !name.is_empty());
                let linkage = Linkage {
                    loadable: !name.starts_with('!'),
                    needed: needed.map(|name| name.as_bytes().to_vec()).collect(),
                    ..Linkage::default()
                };
                let read = !name.starts_with('?');
                (name.trim_start_matches(['?', '!']).to_owned(), read.then_some(linkage))
            })
            .collect();
        let member = |(i, (name, linkage)): (usize, &'static (String, Option<Linkage>))| Member {
            file: i,
            order: i as u32,
            mapper: [Mapper::Exec, Mapper::Loader].get(i).copied().unwrap_or(Mapper::Call),
            names: vec![name.as_bytes()],
            linkage: linkage.as_ref(),
        };
        let linkages: &'static [_] = linkages.leak();
        let members: Vec<Member> = linkages.iter().enumerate().map(member).collect();
        let preloaded: Vec<Vec<u8>> = preloaded.iter().map(|p| p.as_bytes().to_vec()).collect();
        let mut brought = vec![Brought::default(); files.len()];
        judge(&members, &preloaded, &mut brought);
        let word = |brought: &Brought| {
            let words: Vec<&str> = brought.by.iter().map(|by| by.word()).collect();
            let more = if brought.maybe_more { "+" } else { "" };
            format!("{} {:?}{more}", words.join(" "), brought.needed_by)
        };
        brought.iter().map(word).collect()
    }

    #[test]
    fn who_needs_whom() {
        assert_eq!(
            judged(
                &[
                    "tool needs libc.so,liba.so",
                    "ld.so",
                    "pre.so needs libc.so",
                    "liba.so needs libc.so",
                    "libc.so needs ld.so",
                    "plugin.so needs libc.so,libp.so",
                    "libp.so",
                    "!jit",
                ],
                &["/opt/pre.so"]
            ),
            [
                "exec {}",
                "loader {4}",
                "preload {}",
                "needed {0}",
                "needed {0, 2, 3, 5}",
                "dlopen {}",
                "needed {5}",
                "mmap {}",
            ]
        );
    }

    #[test]
    fn what_was_there_before_who_needs_it_was_not_brought_by_that() {
        let files = ["tool", "ld.so", "libg.so", "late.so needs libg.so"];
        assert_eq!(judged(&files, &[]), ["exec {}", "loader {}", "dlopen {3}", "dlopen {}"]);
    }

    #[test]
    fn what_follows_an_unread_file_is_not_known() {
        let files = ["tool needs a.so", "ld.so", "b.so", "?odd.so", "a.so", "c.so", "!data"];
        assert_eq!(
            judged(&files, &[]),
            ["exec {}+", "loader {}+", "dlopen {}+", " {}", "needed {0}+", " {}+", "mmap {}+"]
        );
    }

    #[test]
    fn of_two_with_one_name_the_first_is_taken() {
        let files = ["tool needs a.so", "ld.so", "a.so", "a.so"];
        assert_eq!(judged(&files, &[]), ["exec {}", "loader {}", "needed {0}", "dlopen {}"]);
    }
}
