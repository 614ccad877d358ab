//! Where a path leads from: working directories, roots, and the path that a
//! name stands for from there.
//!
//! What the kernel did to get there is not derived but asked of it: a change of
//! directory is rare, and /proc/TID/cwd tells where it went.

use std::fs;

use crate::tracer::Link;

use super::search::is_within;

/// What a path is not to be taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct Marks(u8);

impl Marks {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Its directory, or itself, was gone.
    pub const DELETED: Self = Self(1);
    /// It lies below another root than the tracer's.
    pub const CHROOT: Self = Self(2);
    /// It lies in another mount namespace.
    pub const NAMESPACE: Self = Self(4);
    /// It is relative to a directory that is not known.
    pub const RELATIVE: Self = Self(8);

    /// As a number.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From that number.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// All but this one.
    #[must_use]
    pub const fn without(self, mark: Self) -> Self {
        Self(self.0 & !mark.0)
    }

    /// Whether it has this mark.
    pub const fn has(self, mark: Self) -> bool {
        self.0 & mark.0 != 0
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Their words.
    pub fn words(self) -> Vec<String> {
        let all = [
            (Self::DELETED, "deleted"),
            (Self::CHROOT, "chroot"),
            (Self::NAMESPACE, "namespace"),
            (Self::RELATIVE, "relative"),
        ];
        let has = |(mark, _): &&(Self, &str)| self.has(*mark);
        all.iter().filter(has).map(|(_, word)| (*word).to_owned()).collect()
    }
}

/// What a thread resolves paths from; shared by those made with CLONE_FS.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// The working directory, once it was asked for.
    cwd: Option<Base>,
    /// The root, once it was asked for.
    root: Option<Base>,
    /// Working directories that it had lately, the last one first.
    past: Vec<Base>,
    /// Changes that have begun and not ended.
    pub changing: u32,
}

/// A directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Base {
    /// Its path.
    pub path: Vec<u8>,
    /// What it is not to be taken for.
    pub marks: Marks,
}

impl Place {
    /// Something may have changed: ask again.
    pub fn forget(&mut self) {
        const KEPT: usize = 4;
        if let Some(cwd) = self.cwd.take()
            && self.past.first() != Some(&cwd)
        {
            self.past.insert(0, cwd);
            self.past.truncate(KEPT);
        }
        self.root = None;
    }

    /// The working directory may be another if it was `path` or below.
    pub fn forget_below(&mut self, path: &[u8]) {
        if self.cwd.as_ref().is_some_and(|cwd| is_within(&cwd.path, path)) {
            self.cwd = None;
        }
    }

    /// The working directory that it has, and those that it had lately.
    pub fn lately(&mut self, tid: i32) -> impl Iterator<Item = &Base> {
        if self.changing > 0 {
            self.forget();
        }
        self.cwd(tid);
        self.cwd.iter().chain(&self.past)
    }

    /// The working directory.
    pub fn cwd(&mut self, tid: i32) -> &Base {
        let root = self.root(tid).marks;
        self.cwd.get_or_insert_with(|| {
            let base = Base::ask(tid, "cwd");
            Base { marks: base.marks.and(root), ..base }
        })
    }

    /// The root: `/`, unless it is another.
    pub fn root(&mut self, tid: i32) -> &Base {
        self.root.get_or_insert_with(|| {
            let mut base = Base::ask(tid, "root");
            if base.path == b"/" {
                base.path.clear();
            } else {
                base.marks = base.marks.and(Marks::CHROOT);
            }
            let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
            let (own, its) = (namespace("self"), namespace(&tid.to_string()));
            if its.is_some() && own != its {
                base.marks = base.marks.and(Marks::NAMESPACE);
            }
            base
        })
    }
}

impl Base {
    /// What a link of /proc/TID says.
    pub fn ask(tid: i32, link: &str) -> Self {
        match Link::read(tid, link) {
            Some(link) => Self::of(link),
            None => Self { path: b"?".to_vec(), marks: Marks::RELATIVE },
        }
    }

    /// The directory or file that a link leads to.
    pub fn of(link: Link) -> Self {
        let marks = match link.path.first() {
            _ if link.gone => Marks::DELETED,
            Some(b'/') => Marks::NONE,
            _ => Marks::RELATIVE, // (unreachable)...
        };
        Self { path: link.path, marks }
    }
}

/// The path that `name` stands for from `base`: absolute, without `.`, `..` and
/// doubled slashes. It stays within the first `floor` bytes of the base. Links
/// are not followed, but for those that `..` leads out of: what is above them is
/// not what is above their name, and `follow` says where they lead.
pub fn join(
    base: &[u8],
    name: &[u8],
    floor: usize,
    follow: &dyn Fn(&[u8]) -> Option<Vec<u8>>,
) -> Vec<u8> {
    let mut path = base.to_vec();
    while path.last() == Some(&b'/') {
        path.pop();
    }
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                if path.len() > floor
                    && let Some(real) = follow(&path)
                {
                    path = real;
                }
                let slash = path.iter().rposition(|&byte| byte == b'/');
                path.truncate(slash.unwrap_or(0).max(floor.min(path.len())));
            }
            _ => {
                path.push(b'/');
                path.extend_from_slice(part);
            }
        }
    }
    // A slash at the end asks for a directory: a file is missed there, and the
    // name is the same.
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(base: &str, name: &str, floor: usize) -> String {
        // `/deep/er` has the name `/link`.
        let follow = |path: &[u8]| (path == b"/link").then(|| b"/deep/er".to_vec());
        String::from_utf8(join(base.as_bytes(), name.as_bytes(), floor, &follow)).unwrap()
    }

    #[test]
    fn names_become_absolute() {
        for (base, name, path) in [
            ("/a", "b", "/a/b"),
            ("/a", "./b//c/", "/a/b/c"),
            ("/a/b", "../c", "/a/c"),
            ("/", "b", "/b"),
            ("/", "../..", "/"),
            ("/a", "../../..", "/"),
            ("", "/", "/"),
            ("", "/x/../y", "/y"),
            ("/a", ".", "/a"),
            ("/jail", "/x", "/jail/x"),
        ] {
            assert_eq!(joined(base, name, 0), path, "{base} {name}");
        }
    }

    #[test]
    fn nobody_leaves_his_root() {
        assert_eq!(joined("/jail", "/../../x", 5), "/jail/x");
        assert_eq!(joined("/jail/a", "../../../x", 5), "/jail/x");
    }

    #[test]
    fn the_way_up_from_a_link_is_from_where_it_leads() {
        assert_eq!(joined("/", "link/../x", 0), "/deep/x");
        assert_eq!(joined("/", "link/x", 0), "/link/x");
        assert_eq!(joined("/none", "../x", 0), "/x");
    }

    #[test]
    fn what_proc_says_of_the_gone() {
        let base = |gone| Base::of(Link { path: b"/a".to_vec(), gone, ..Link::default() });
        assert_eq!((base(true).marks, base(false).marks), (Marks::DELETED, Marks::NONE));
    }
}
