//! What a call's names stand for: at its entry, and by what came of it where
//! that leaves a doubt.

use std::rc::Rc;

use crate::tracer::{Link, Nanos, ProcessId, ThreadId, follow, is_there};

use super::named::{Entered, Name};
use super::place::{Base, Marks, join};
use super::table::{self, Asked};
use super::{End, Paths, Resolved};

impl Paths {
    /// What a call's names stand for now.
    pub(super) fn resolve_names(&mut self, entered: &Entered, process: ProcessId) {
        let Some(thread) = self.threads.get_mut(&entered.thread) else { return };
        let mut resolved = std::mem::take(&mut thread.resolved);
        resolved.clear();
        for (argument, name) in &entered.names {
            let argument = *argument;
            match name {
                Name::Path { from, name, rooted } => {
                    resolved.push(self.lead(entered, *from, name, *rooted));
                }
                Name::Descriptor(fd) => {
                    if let Some(row) = self.descriptor(entered.thread, *fd, entered.at, process) {
                        resolved.push(Resolved::Descriptor { row, argument });
                    }
                }
                Name::Cwd => {
                    let (base, _) = self.base(entered.thread, None, b"", entered.at);
                    let (path, marks) = (base.path, base.marks);
                    resolved.push(Resolved::Path { path, marks, doubtful: None, given: None });
                }
                Name::Empty => resolved.push(Resolved::Path {
                    path: b"<empty>".to_vec(),
                    marks: Marks::NONE,
                    doubtful: None,
                    given: None,
                }),
                Name::Unreadable => {}
            }
        }
        if let Some(thread) = self.threads.get_mut(&entered.thread) {
            thread.resolved = resolved;
        }
    }

    /// The directory that a name leads from, and whether it may be another by
    /// the time that the kernel looks.
    pub(super) fn base(
        &mut self,
        id: ThreadId,
        from: Option<i32>,
        name: &[u8],
        at: Nanos,
    ) -> (Base, bool) {
        let Some(thread) = self.threads.get(&id) else { return (Base::default(), false) };
        let (tid, process) = (thread.tid, thread.process);
        let place = Rc::clone(&thread.place);
        let mut place = place.borrow_mut();
        if name.first() == Some(&b'/') {
            return (place.root(tid).clone(), false);
        }
        if let Some(fd) = from {
            drop(place);
            if self.renamed
                && let Some(link) = Link::read(tid, &format!("fd/{fd}"))
            {
                let base = Base::of(link);
                let root = thread.place.borrow_mut().root(tid).marks;
                return (Base { marks: base.marks.and(root), ..base }, false);
            }
            let row = self.descriptor(id, fd, at, process);
            let base = row
                .and_then(|row| self.rows.get(row))
                .map(|(path, marks, _)| Base { path: path.to_vec(), marks });
            // A descriptor that is no directory, or not open: the call fails.
            let unknown = || Base { path: b"?".to_vec(), marks: Marks::RELATIVE };
            return (base.filter(|b| b.path.first() == Some(&b'/')).unwrap_or_else(unknown), false);
        }
        let shared = Rc::strong_count(&thread.place) > 2; // ours, and the one above
        if place.changing > 0 {
            place.forget();
        }
        (place.cwd(tid).clone(), shared)
    }

    /// Where a name leads.
    pub(super) fn lead(
        &mut self,
        call: &Entered,
        from: Option<i32>,
        name: &[u8],
        rooted: bool,
    ) -> Resolved {
        let start = if rooted { b"" } else { name };
        let (base, doubtful) = self.base(call.thread, from, start, call.at);
        let mut marks = base.marks;
        let mut path = base.path.clone();
        if let Some(thread) = self.threads.get(&call.thread) {
            let tid = thread.tid;
            let root = thread.place.borrow_mut().root(tid).path.clone();
            let floor = match rooted {
                true => base.path.len(),
                false if base.path.starts_with(&root) => root.len(),
                false => 0,
            };
            path = join(&base.path, name, floor, &|link| {
                let inside = link.strip_prefix(root.as_slice()).filter(|_| !rooted)?;
                follow(tid, inside)
            });
            // The way up from a directory that is gone leads to one that is not.
            if !path.starts_with(&base.path) {
                marks = marks.without(Marks::DELETED);
            }
        }
        let doubtful = doubtful.then(|| name.to_vec());
        let up = name.split(|&byte| byte == b'/').any(|part| part == b"..");
        let given = up.then(|| {
            let base = base.path.strip_suffix(b"/").unwrap_or(&base.path);
            let name = name.strip_prefix(b"/").unwrap_or(name);
            [base, b"/", name].concat()
        });
        Resolved::Path { path, marks, doubtful, given }
    }

    /// The row of a descriptor; asks what it is where that was not seen.
    pub(super) fn descriptor(
        &mut self,
        id: ThreadId,
        fd: i32,
        at: Nanos,
        process: ProcessId,
    ) -> Option<u32> {
        let thread = self.threads.get(&id)?;
        if let Some(row) = thread.table.borrow().get(fd) {
            return Some(row);
        }
        let row = match table::ask(thread.tid, fd)? {
            Asked::File(base) => {
                let root = thread.place.borrow_mut().root(thread.tid).marks;
                self.rows.of(&base.path, base.marks.and(root), process)
            }
            Asked::Kind(kind) => self.rows.of(kind.as_bytes(), Marks::NONE, process),
        };
        self.threads.get(&id)?.table.borrow_mut().set(fd, row, at);
        Some(row)
    }

    /// Several threads share a working directory, and one of them changed it
    /// while this call was under way: what came of the call tells from where the
    /// kernel looked.
    pub(super) fn doubts(&mut self, id: ThreadId, end: &End) {
        let Some(thread) = self.threads.get_mut(&id) else { return };
        let tid = thread.tid;
        let mut place = thread.place.borrow_mut();
        let root = place.root(tid).path.clone();
        let there = |path: &[u8]| is_there(tid, path.strip_prefix(root.as_slice()).unwrap_or(path));
        for resolved in &mut thread.resolved {
            // What is missed in `nosuch/../there` is not what lies there.
            if let Resolved::Path { path, given: Some(given), .. } = resolved
                && end.missed()
                && let Some(up) = given.windows(3).position(|part| part == b"/..")
                && !there(&[given.get(..up).unwrap_or_default(), b"/."].concat())
            {
                path.clone_from(given);
                continue;
            }
            let Resolved::Path { path, doubtful: Some(name), .. } = resolved else { continue };
            let candidates: Vec<Vec<u8>> = std::iter::once(path.clone())
                .chain(place.lately(tid).map(|base| join(&base.path, name, 0, &|_| None)))
                .collect();
            if candidates.iter().all(|candidate| candidate == path) {
                continue;
            }
            let opened = end.succeeded().then(|| Link::read(tid, &format!("fd/{}", end.value)));
            let opened = opened.flatten().map(|link| link.path);
            let fits = |candidate: &&Vec<u8>| match &opened {
                Some(opened) if candidates.contains(opened) => *candidate == opened,
                _ => there(candidate) != end.missed(),
            };
            if let Some(candidate) = candidates.iter().find(fits) {
                path.clone_from(candidate);
            }
        }
    }
}
