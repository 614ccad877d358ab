//! Calls by which a program marks where it is: they name a path below /coldtrace.

use crate::observe::paths::Memory;
use crate::syscall::{Abi, CallSet, Role, Sys};

/// Where no file is looked for in earnest.
const BELOW: &[u8] = b"/coldtrace/";

/// What is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The beginning of a region.
    Begin,
    /// Its end.
    End,
    /// A moment.
    Moment,
}

/// The calls that name a path, and so can mark.
pub fn naming() -> CallSet {
    let names = |sys: &Sys| sys.info().is_some_and(|info| info.args.contains(&Role::Path));
    CallSet::of(Abi::ALL.into_iter().flat_map(Abi::calls).filter(names))
}

/// What the call of a stopped thread marks, and the name.
pub fn marked(tracee: Memory, sys: Sys, args: &[u64; 6]) -> Option<(Mark, String)> {
    let roles = sys.info()?.args.into_iter().zip(args);
    let mut paths = roles.filter(|(role, at)| *role == Role::Path && **at != 0);
    paths.find_map(|(_, &address)| {
        let path = tracee.path_if(address, |path| path.starts_with(BELOW))?;
        let (mark, name) = parse(&path)?;
        Some((mark, String::from_utf8_lossy(&name).into_owned()))
    })
}

fn parse(path: &[u8]) -> Option<(Mark, Vec<u8>)> {
    let rest = path.strip_prefix(BELOW)?;
    let words =
        [(&b"begin/"[..], Mark::Begin), (&b"end/"[..], Mark::End), (&b"mark/"[..], Mark::Moment)];
    let (mark, name) =
        words.into_iter().find_map(|(word, mark)| Some((mark, rest.strip_prefix(word)?)))?;
    // What leads elsewhere (`a/../../../etc/passwd`) is no name.
    (!name.is_empty() && !name.contains(&b'/')).then(|| (mark, name.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads from this process itself, which needs no stop.
    fn of(name: &str, args: [u64; 6]) -> Option<(Mark, String)> {
        let tracee = Memory { tid: std::process::id() as i32, careful: false };
        marked(tracee, Sys::from_name(Abi::native(), name)?, &args)
    }

    #[test]
    fn any_path_of_a_call_may_be_a_marker() {
        let (begin, end) = (c"/coldtrace/begin/a".as_ptr() as u64, c"/coldtrace/end/b c");
        let (end, other) = (end.as_ptr() as u64, c"/tmp".as_ptr() as u64);
        assert_eq!(of("access", [begin, 0, 0, 0, 0, 0]), Some((Mark::Begin, "a".into())));
        assert_eq!(of("openat", [5, end, 0, 0, 0, 0]), Some((Mark::End, "b c".into())));
        assert_eq!(of("rename", [other, begin, 0, 0, 0, 0]), Some((Mark::Begin, "a".into())));
        assert_eq!(of("access", [other, begin, 0, 0, 0, 0]), None);
        assert_eq!(of("read", [0, begin, 0, 0, 0, 0]), None);
        assert_eq!(of("access", [0; 6]), None);
        assert_eq!(of("access", [u64::MAX, 0, 0, 0, 0, 0]), None);
        assert!(naming().contains(Sys::new(Abi::I386, 33)), "access");
    }

    #[test]
    fn what_marks_nothing_is_a_path_as_any_other() {
        assert_eq!(parse(b"/coldtrace/mark/x"), Some((Mark::Moment, b"x".to_vec())));
        for path in [
            &b"/coldtrace/begin/"[..],
            b"/coldtrace/begin",
            b"/coldtrace/begin/a/../../../etc/passwd",
            b"/coldtrace/end/a/",
            b"/coldtrace/",
            b"/coldtrace/start/x",
            b"/coldtrace/beginx",
            b"coldtrace/begin/x",
            b"/x/coldtrace/begin/x",
            b"",
        ] {
            assert_eq!(parse(path), None, "{}", String::from_utf8_lossy(path));
        }
    }
}
