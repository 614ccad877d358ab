//! What an unprivileged tracer takes from the programs it traces: the kernel
//! ignores their set-user-id and set-group-id bits and file capabilities
//! (execve(2)), so they run, with less than they would have.

use super::patience::patiently;
use super::proc::{Link, Status};

/// Bit of CAP_SYS_PTRACE in a capability set (capabilities(7)).
const SYS_PTRACE: u64 = 1 << 19;

const SET_USER_ID: u32 = 0o4000;
/// Without the group's x it means something else.
const SET_GROUP_ID: u32 = 0o2010;

/// Whether programs that this process traces keep their privileges, or would
/// not get any without it either.
pub fn is_harmless() -> bool {
    let own = Status::read(std::process::id() as i32);
    own.is_none_or(|own| {
        own.signals("CapEff:").is_none_or(|set| set & SYS_PTRACE != 0)
            || own.number("NoNewPrivs:") == Some(1)
    })
}

/// What the program that `pid` has just executed would have got, in words.
pub fn taken_from(pid: i32) -> Option<String> {
    let file = Link::read(pid, "exe")?;
    // SAFETY: both only ask.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let kind = if file.mode & SET_USER_ID != 0 && file.owner.0 != uid {
        "set-user-id"
    } else if file.mode & SET_GROUP_ID == SET_GROUP_ID && file.owner.1 != gid {
        "set-group-id"
    } else if patiently(move || has_capabilities(pid)) == Some(true) {
        "a program with file capabilities"
    } else {
        return None;
    };
    if is_nosuid(pid, file.mount) {
        return None; // Nobody gets any there.
    }
    Some(format!(
        "{} is {kind} and ran without that privilege, as under every tracer that has none itself; \
         run coldtrace as root, with -u USER",
        String::from_utf8_lossy(&file.path)
    ))
}

fn has_capabilities(pid: i32) -> bool {
    let Ok(path) = std::ffi::CString::new(format!("/proc/{pid}/exe")) else { return false };
    let name = c"security.capability";
    // SAFETY: both strings end in NUL and live through the call; a size of 0 asks
    // for the length only.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Whether a mount is `nosuid` (proc_pid_mountinfo(5)).
fn is_nosuid(pid: i32, mount: u64) -> bool {
    let mounts = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    String::from_utf8_lossy(&mounts).lines().any(|line| {
        let mut words = line.split(' ');
        words.next().and_then(|id| id.parse().ok()) == Some(mount)
            && words.nth(4).is_some_and(|options| options.split(',').any(|o| o == "nosuid"))
    })
}
