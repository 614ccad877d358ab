//! What one call has opened, for who wants to know of that call only.

use crate::syscall::{Abi, CallSet, ReturnRole};
use crate::tracer::{Call, Link, Outcome, follow};

use super::named::{Entered, Name};
use super::place::{Base, Place, join};

/// The calls that open a file by its name.
pub fn opening() -> CallSet {
    let mut calls = CallSet::none();
    for sys in Abi::ALL.into_iter().flat_map(Abi::calls) {
        if sys.info().is_some_and(|i| i.kind == "open" && i.returns == ReturnRole::Fd) {
            calls.insert(sys);
        }
    }
    calls
}

/// The paths of what a call of thread `tid` has opened, while that stands at the
/// call's end: as it was named, made absolute, and where that led. None where the
/// call failed.
pub fn opened(call: &Call, tid: i32) -> Vec<Vec<u8>> {
    let Outcome::Returned(fd @ 0..) = call.outcome else { return Vec::new() };
    let led = Link::read(tid, &format!("fd/{fd}")).map(|link| link.path);
    let mut paths: Vec<Vec<u8>> = named(call, tid).into_iter().chain(led).collect();
    paths.retain(|path| path.first() == Some(&b'/'));
    paths.dedup();
    paths
}

fn named(call: &Call, tid: i32) -> Option<Vec<u8>> {
    // Nothing is known of the tree: some page may be another tracee's to fetch.
    let careful = true;
    let at = call.entered.unwrap_or(0);
    let entered = Entered::read(call.sys, call.args, (call.thread, tid), at, careful);
    let name = entered.names.into_iter().find_map(|(_, name)| match name {
        Name::Path { from, name, rooted } => Some((from, name, rooted)),
        _ => None,
    });
    let (from, name, rooted) = name?;
    let mut place = Place::default();
    let root = place.root(tid).path.clone();
    let base = match from {
        _ if name.first() == Some(&b'/') && !rooted => root.clone(),
        Some(fd) => Base::of(Link::read(tid, &format!("fd/{fd}"))?).path,
        None => place.cwd(tid).path.clone(),
    };
    let floor = if rooted { base.len() } else { root.len() };
    Some(join(&base, &name, floor, &|link| {
        follow(tid, link.strip_prefix(root.as_slice()).filter(|_| !rooted)?)
    }))
}
