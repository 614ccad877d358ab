//! Attaching to processes that run already: every thread of each, whatever it
//! is doing, while it goes on making more.

use std::collections::BTreeSet;
use std::fs;
use std::io;

use super::error::{Error, cannot_attach};
use super::kernel;

/// Seizes every thread of process `pid`. Threads that a seized one makes are
/// traced by themselves; those made by one that was not seized yet are found by
/// looking again until there is no new one.
///
/// # Errors
/// When the process cannot be traced, or is not there. Threads that were seized
/// before that are let go.
pub fn seize_all(pid: i32, options: i32) -> Result<Vec<i32>, Error> {
    if is_self_or_ancestor(pid) {
        return Err(Error::CannotAttach {
            pid,
            cause: "it is coldtrace itself, or one of its ancestors".into(),
        });
    }
    let mut seized = BTreeSet::new();
    loop {
        let mut new = false;
        for tid in threads(pid)? {
            if seized.contains(&tid) {
                continue;
            }
            match kernel::seize(tid, options) {
                Ok(()) => {
                    new = true;
                    seized.insert(tid);
                }
                // It has ended since it was listed.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                // A seized thread has made it: it is traced already, or it is a
                // leader that has ended before its threads.
                Err(_) if !seized.is_empty() => {}
                Err(e) => {
                    if is_zombie(tid) {
                        continue;
                    }
                    return Err(cannot_attach(pid, &e));
                }
            }
        }
        if !new {
            break;
        }
    }
    if seized.is_empty() {
        return Err(Error::CannotAttach { pid, cause: "it has ended".into() });
    }
    Ok(seized.into_iter().collect())
}

fn threads(pid: i32) -> Result<Vec<i32>, Error> {
    let listed = fs::read_dir(format!("/proc/{pid}/task"));
    let listed = match listed {
        Ok(listed) => listed,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let cause = if std::path::Path::new("/proc/self").exists() {
                "there is no such process"
            } else {
                "/proc is not mounted, and without it its threads cannot be found"
            };
            return Err(Error::CannotAttach { pid, cause: cause.into() });
        }
        Err(e) => return Err(cannot_attach(pid, &e)),
    };
    Ok(listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

fn is_zombie(tid: i32) -> bool {
    fs::read_to_string(format!("/proc/{tid}/status"))
        .is_ok_and(|status| status.lines().any(|l| l.starts_with("State:\tZ")))
}

/// A tracer that stops its own ancestor waits for itself.
fn is_self_or_ancestor(pid: i32) -> bool {
    let mut at = std::process::id() as i32;
    while at > 1 {
        if at == pid {
            return true;
        }
        match kernel::parent(at) {
            Some(parent) => at = parent,
            None => return false,
        }
    }
    at == pid
}
