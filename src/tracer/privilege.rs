//! What an unprivileged tracer takes from the programs it traces: the kernel
//! ignores their set-user-id and set-group-id bits and file capabilities
//! (execve(2)), so they run, with less than they would have.

use std::os::unix::fs::MetadataExt;

use super::proc::Status;

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
    let exe = format!("/proc/{pid}/exe");
    let file = std::fs::metadata(&exe).ok()?;
    // SAFETY: both only ask.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let kind = if file.mode() & SET_USER_ID != 0 && file.uid() != uid {
        "set-user-id"
    } else if file.mode() & SET_GROUP_ID == SET_GROUP_ID && file.gid() != gid {
        "set-group-id"
    } else if has_capabilities(&exe) {
        "a program with file capabilities"
    } else {
        return None;
    };
    let path = std::fs::read_link(&exe).ok()?;
    Some(format!(
        "{} is {kind} and ran without that privilege, as under every tracer that has none itself; \
         run coldtrace as root, with -u USER",
        path.display()
    ))
}

fn has_capabilities(path: &str) -> bool {
    let Ok(path) = std::ffi::CString::new(path) else { return false };
    let name = c"security.capability";
    // SAFETY: both strings end in NUL and live through the call; a size of 0 asks
    // for the length only.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}
