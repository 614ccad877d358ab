//! What calls change: descriptors, directories, mappings; and what new threads
//! share.

use std::cell::RefCell;
use std::rc::Rc;

use crate::syscall::{CallInfo, ReturnRole, Role};
use crate::tracer::{Link, ProcessId, ThreadId};

use super::named::{self, Entered, Memory};
use super::{End, Paths, Resolved, Thread, is_move};

impl Paths {
    /// What the call changed: descriptors, directories, mappings.
    pub(super) fn change(
        &mut self,
        id: ThreadId,
        info: &'static CallInfo,
        entered: &Entered,
        end: &End,
    ) {
        let Some(thread) = self.threads.get_mut(&id) else { return };
        let (tid, args) = (thread.tid, &entered.args);
        let memory = Memory { tid, careful: self.careful };
        if is_move(info.name) {
            let mut place = thread.place.borrow_mut();
            place.changing = place.changing.saturating_sub(1);
            if end.succeeded() {
                place.forget();
            }
        }
        if !end.succeeded() {
            return;
        }
        match info.name {
            "close_range" => {
                let (first, last, flags) = (args[0] as u32, args[1] as u32, args[2]);
                if flags & u64::from(libc::CLOSE_RANGE_UNSHARE) != 0 {
                    thread.own_table();
                }
                if flags & u64::from(libc::CLOSE_RANGE_CLOEXEC) == 0 {
                    thread.table.borrow_mut().close_range(first, last, entered.at);
                }
            }
            "dup" | "dup2" | "dup3" | "fcntl" | "fcntl64" => thread.copy_descriptor(end),
            "recvmsg" => match named::received(memory, entered.sys.abi, args[1]) {
                Some(came) => came.iter().for_each(|fd| thread.table.borrow_mut().forget(*fd)),
                None => thread.table.borrow_mut().forget_all(),
            },
            "recvmmsg" | "recvmmsg_time64" | "io_uring_enter" | "socketcall" => {
                thread.table.borrow_mut().forget_all();
            }
            "seccomp" | "bpf" | "ioctl" => thread.table.borrow_mut().forget(end.value as i32),
            "clone" | "clone3" if entered.flags & libc::CLONE_PIDFD as u64 != 0 => {
                let at = if info.name == "clone" {
                    args[2]
                } else {
                    memory.word(args[0].wrapping_add(8))
                };
                thread.table.borrow_mut().forget(named::pair(memory, at)[0]);
            }
            "unshare" => {
                let flags = args[0] as i32;
                if flags & (libc::CLONE_FS | libc::CLONE_NEWNS | libc::CLONE_NEWUSER) != 0 {
                    let own = thread.place.borrow().clone();
                    thread.place = Rc::new(RefCell::new(own));
                    thread.place.borrow_mut().forget();
                }
                if flags & libc::CLONE_FILES != 0 {
                    thread.own_table();
                }
            }
            _ => {}
        }
        if matches!(info.kind, "rename" | "rmdir" | "unlink" | "mount") {
            self.moved(id, info.kind);
            return;
        }
        if info.returns == ReturnRole::Fd && info.kind != "dup" {
            self.opened(id, info, entered, end);
        } else if let Some(at) = info.args.iter().position(|role| *role == Role::FdOut) {
            let pair = named::pair(memory, args.get(at).copied().unwrap_or(0));
            let Some(thread) = self.threads.get(&id) else { return };
            for fd in pair {
                thread.table.borrow_mut().forget(fd);
            }
        } else if info.kind == "mmap" && args[2] & libc::PROT_EXEC as u64 != 0 {
            self.mapped(id, args[4] as i32, end);
        }
    }

    /// What lay below a name lies elsewhere now, or nowhere: working directories
    /// there are asked for anew.
    pub(super) fn moved(&mut self, by: ThreadId, kind: &str) {
        let Some(thread) = self.threads.get(&by) else { return };
        let first = thread.resolved.iter().find_map(|resolved| match resolved {
            Resolved::Path { path, .. } => Some(path.clone()),
            Resolved::Descriptor { .. } => None,
        });
        let Some(from) = first else { return };
        for state in self.threads.values() {
            state.place.borrow_mut().forget_below(&from);
        }
        self.renamed |= matches!(kind, "rename" | "mount");
    }

    /// A call gave a new descriptor.
    pub(super) fn opened(
        &mut self,
        id: ThreadId,
        info: &'static CallInfo,
        entered: &Entered,
        end: &End,
    ) {
        let Some(thread) = self.threads.get(&id) else { return };
        let (tid, fd) = (thread.tid, end.value as i32);
        // An unnamed file in the directory that was named.
        let unnamed = entered.flags & libc::O_TMPFILE as u64 == libc::O_TMPFILE as u64;
        let path = thread.resolved.iter().find_map(|resolved| match resolved {
            Resolved::Path { path, marks, .. } if !unnamed => Some((path, *marks)),
            _ => None,
        });
        let Some((path, marks)) = path.filter(|_| matches!(info.kind, "open" | "mount")) else {
            thread.table.borrow_mut().forget(fd);
            return;
        };
        self.careful |= matches!(path.as_slice(), b"/dev/fuse" | b"/dev/userfaultfd");
        let row = self.rows.of(path, marks, end.process);
        thread.table.borrow_mut().set(fd, row, end.at);
        if self.resolve
            && let Some(target) = Link::read(tid, &format!("fd/{fd}"))
            && target.path != *path
            && let Some(row) = self.rows.get_mut(row)
        {
            row.more_mut().target = Some(target.path);
        }
    }

    /// A file was mapped executable.
    pub(super) fn mapped(&mut self, id: ThreadId, fd: i32, end: &End) {
        let Some(thread) = self.threads.get(&id) else { return };
        let row = thread.resolved.iter().find_map(|resolved| match resolved {
            Resolved::Descriptor { row, .. } => Some(*row),
            Resolved::Path { .. } => None,
        });
        let Some(row) = row else { return };
        let Some((path, marks, _)) = self.rows.get(row) else { return };
        let file = (thread.tid, fd);
        let size = self.mapped.by_descriptor(file, (path, marks), thread.process, end.at);
        if let Some(row) = self.rows.get_mut(row) {
            let more = row.more_mut();
            more.mapped = more.mapped.max(size);
        }
    }

    pub(super) fn born(
        &mut self,
        id: ThreadId,
        tid: i32,
        process: ProcessId,
        creator: Option<ThreadId>,
    ) {
        const SHARED: i32 = libc::CLONE_FS | libc::CLONE_FILES;
        let by_call = creator.and_then(|c| self.threads.get(&c));
        // Attached, or its creator could not tell: as threads of a process are.
        let sibling = || self.threads.values().find(|t| t.process == process);
        let (from, flags) = match by_call {
            Some(creator) => {
                let clone = creator.entered.as_ref().filter(|e| is_clone(e));
                // Made while nobody watched: as threads are, and processes.
                let usual = if creator.process == process { SHARED } else { 0 };
                (Some(creator), clone.map_or(usual, |e| e.flags as i32))
            }
            None => (sibling(), SHARED),
        };
        let share = |flag: i32| flags & flag != 0;
        let place = from.map(|from| {
            if share(libc::CLONE_FS) {
                return Rc::clone(&from.place);
            }
            let mut place = from.place.borrow().clone();
            place.changing = 0;
            if share(libc::CLONE_NEWNS) {
                place.forget();
            }
            Rc::new(RefCell::new(place))
        });
        let table = from.map(|from| {
            if share(libc::CLONE_FILES) {
                return Rc::clone(&from.table);
            }
            Rc::new(RefCell::new(from.table.borrow().clone()))
        });
        let (place, table) = (place.unwrap_or_default(), table.unwrap_or_default());
        let thread = Thread {
            tid,
            process,
            place,
            table,
            entered: None,
            resolved: Vec::new(),
            borrowed: false,
        };
        self.threads.insert(id, thread);
    }
}

impl Thread {
    /// Its table is its own from now on.
    pub(super) fn own_table(&mut self) {
        let own = self.table.borrow().clone();
        self.table = Rc::new(RefCell::new(own));
    }

    /// What it returned is another number for the descriptor that it named.
    fn copy_descriptor(&mut self, end: &End) {
        let row = self.resolved.iter().find_map(|resolved| match resolved {
            Resolved::Descriptor { row, .. } => Some(*row),
            Resolved::Path { .. } => None,
        });
        let mut table = self.table.borrow_mut();
        match row {
            Some(row) => table.set(end.value as i32, row, end.at),
            None => table.forget(end.value as i32),
        }
    }
}

fn is_clone(entered: &Entered) -> bool {
    matches!(entered.sys.name(), Some("clone" | "clone3"))
}
