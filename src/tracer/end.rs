//! Ending as the command did, and limits and memory of this process.

/// Ends this process by `signal`, without a core dump of its own. Returns when
/// that is not possible: as PID 1, or for a signal that does not kill.
pub fn die_by(signal: i32) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: values are passed by copy or point to locals that outlive the
    // calls; raise acts on this thread.
    unsafe {
        // A core pattern that is a pipe ignores the limit, but not this.
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Descriptors that this process may have (`RLIMIT_NOFILE`).
pub fn descriptor_limit() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit for the kernel to fill.
    let asked = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (asked == 0).then(|| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

/// Kills a process group, by the id of its leader that has not been waited for.
pub fn end_group(leader: u32) {
    let Some(group) = i32::try_from(leader).ok().filter(|&id| id > 1) else { return };
    // SAFETY: kill takes two numbers; the leader is there until it is waited for,
    // so the group is its own.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}

/// Gives memory that is not used any more back to the kernel. A child begins as a copy
/// of this process, and its peak is never less than that.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim may be called at any time, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
