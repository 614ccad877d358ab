//! Descriptor tables: which path, or which kind of thing, a number stands for.
//!
//! Entries come from calls that open. What was never seen to be opened
//! (inherited, passed over a socket, got from another process) is asked of
//! /proc/TID/fd when it is first used. An entry that a close took away, or an
//! exec, may stay: a number that is not open makes its call fail, and the ways to
//! make it open again are seen, or take the entry out; all but rare ones (ioctls
//! of drivers, SECCOMP_IOCTL_NOTIF_ADDFD by a supervisor).

use std::collections::HashMap;

use crate::tracer::{Link, Nanos};

use super::place::Base;

/// What a descriptor stands for: a row, and when it was opened.
#[derive(Debug, Clone, Copy)]
struct Entry {
    row: u32,
    since: Nanos,
}

/// A table; shared by threads made with CLONE_FILES.
#[derive(Debug, Clone, Default)]
pub struct Table(HashMap<i32, Entry>);

impl Table {
    /// What a number stands for.
    pub fn get(&self, fd: i32) -> Option<u32> {
        self.0.get(&fd).map(|entry| entry.row)
    }

    /// It was opened.
    pub fn set(&mut self, fd: i32, row: u32, at: Nanos) {
        self.0.insert(fd, Entry { row, since: at });
    }

    /// It was opened by a call that does not say what it is.
    pub fn forget(&mut self, fd: i32) {
        self.0.remove(&fd);
    }

    /// It was closed by a call that began at `at`: what was opened since then
    /// under its number, by another thread, stays.
    pub fn close(&mut self, fd: i32, at: Nanos) {
        if self.0.get(&fd).is_some_and(|entry| entry.since <= at) {
            self.0.remove(&fd);
        }
    }

    /// The same for a range of numbers.
    pub fn close_range(&mut self, first: u32, last: u32, at: Nanos) {
        self.0.retain(|&fd, entry| !(first..=last).contains(&(fd as u32)) || entry.since > at);
    }

    /// Nothing is known of any.
    pub fn forget_all(&mut self) {
        self.0.clear();
    }
}

/// What /proc says that a descriptor is.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// A file.
    File(Base),
    /// Something without a path: its kind, in angle brackets.
    Kind(String),
}

/// Asks what descriptor `fd` of a thread is; `None` when it is not open.
pub fn ask(tid: i32, fd: i32) -> Option<Asked> {
    let link = Link::read(tid, &format!("fd/{fd}"))?;
    if link.path.first() == Some(&b'/') && !link.path.starts_with(b"/memfd:") {
        return Some(Asked::File(Base::of(link)));
    }
    Some(Asked::Kind(kind(&String::from_utf8_lossy(&link.path))))
}

/// `pipe:[1]`, `anon_inode:[eventfd]`, `/memfd:name (deleted)`, ... as a kind.
fn kind(link: &str) -> String {
    let word = match link.split_once(':') {
        Some(("anon_inode", name)) => name.trim_matches(['[', ']', '/']),
        Some(("/memfd", _)) => "memfd",
        Some((kind, _)) => kind,
        None => link,
    };
    // inotify and fanotify come without brackets.
    format!("<{}>", word.split_whitespace().next().unwrap_or("descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_named_as_proc_names_them() {
        for (link, name) in [
            ("pipe:[4026]", "<pipe>"),
            ("socket:[7]", "<socket>"),
            ("anon_inode:[eventpoll]", "<eventpoll>"),
            ("anon_inode:inotify", "<inotify>"),
            ("/memfd:name with blanks (deleted)", "<memfd>"),
            ("net:[4026531840]", "<net>"),
            ("anon_inode:", "<descriptor>"),
        ] {
            assert_eq!(kind(link), name);
        }
    }

    #[test]
    fn a_close_takes_away_only_what_was_open_when_it_began() {
        let mut table = Table::default();
        table.set(3, 1, 10);
        table.close(3, 9); // The open was seen first, and came after.
        assert_eq!(table.get(3), Some(1));
        table.close(3, 11);
        assert_eq!(table.get(3), None);
        for fd in 0..5 {
            table.set(fd, 1, 10);
        }
        table.close_range(1, u32::MAX, 20);
        assert_eq!((table.get(0), table.get(1), table.get(4)), (Some(1), None, None));
    }
}
