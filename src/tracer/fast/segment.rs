//! Memory that the tracer shares with tracees: System V segments, which a tracee maps by
//! a number, without a file or a descriptor of its own. Tracees write there whatever they
//! like: what is read is a number, never a reference.

use std::io;
use std::ptr::NonNull;

/// A segment, as the tracer has it mapped. Nobody finds it but by its number, and it is
/// gone with the last process that has it mapped (shmctl(2), `IPC_RMID`).
#[derive(Debug)]
pub struct Segment {
    id: i32,
    memory: NonNull<u8>,
    length: usize,
    mode: u16,
}

/// The tracer's user.
pub fn own_user() -> u32 {
    // SAFETY: geteuid takes nothing.
    unsafe { libc::geteuid() }
}

impl Segment {
    /// A new one of `length` bytes, all zero, which its owner may map as `mode` says
    /// (shmget(2)).
    pub fn new(length: usize, mode: u16) -> io::Result<Self> {
        // SAFETY: shmget takes its arguments by value.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, length, libc::IPC_CREAT | 0o600) };
        if id < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new mapping, wherever the kernel likes; the second call marks the
        // segment, and reads nothing.
        let memory = unsafe {
            let memory = libc::shmat(id, std::ptr::null(), 0);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            memory
        };
        if memory.addr() == usize::MAX {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let this = Self { id, memory, length, mode };
        this.give_to(own_user())?;
        Ok(this)
    }

    /// Its number, for shmat(2).
    pub fn id(&self) -> u64 {
        self.id as u64
    }

    fn state(&self) -> io::Result<libc::shmid_ds> {
        // SAFETY: all-zero bytes are a valid shmid_ds, which the kernel fills.
        let mut state: libc::shmid_ds = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one shmid_ds.
        match unsafe { libc::shmctl(self.id, libc::IPC_STAT, &raw mut state) } {
            0 => Ok(state),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes a user its owner, and its mode what it was: an owner may change that. Only
    /// root can give it to another user than himself.
    pub fn give_to(&self, user: u32) -> io::Result<()> {
        const PERMISSIONS: u16 = 0o777;
        let mut state = self.state()?;
        if state.shm_perm.uid == user && state.shm_perm.mode & PERMISSIONS == self.mode {
            return Ok(());
        }
        state.shm_perm.uid = user;
        state.shm_perm.mode = self.mode;
        // SAFETY: the kernel reads one shmid_ds.
        match unsafe { libc::shmctl(self.id, libc::IPC_SET, &raw mut state) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes it back from whoever owned it. Whether nobody but the tracer has it mapped.
    pub fn take_back(&self) -> bool {
        self.give_to(own_user()).is_ok() && self.state().is_ok_and(|state| state.shm_nattch == 1)
    }

    /// Where a number of this type is, so many bytes from the begin.
    ///
    /// # Panics
    /// Where that is not in the segment, or not aligned.
    pub fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.length));
        assert!(offset.is_multiple_of(align_of::<T>()));
        // SAFETY: it lies in the mapping, which lives as long as this.
        unsafe { self.memory.as_ptr().add(offset).cast() }
    }

    /// Writes some bytes. Where they end in the segment, what is too much is left out.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let room = self.length.saturating_sub(offset);
        let length = bytes.len().min(room);
        // SAFETY: that many lie in the mapping, and `bytes` is no part of it: references
        // into it are never made.
        unsafe {
            let to = self.memory.as_ptr().add(offset.min(self.length));
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, length);
        }
    }

    /// Makes some bytes zero; as with [`Segment::write`].
    pub fn clear(&self, offset: usize, length: usize) {
        let length = length.min(self.length.saturating_sub(offset));
        // SAFETY: as in `write`.
        unsafe { self.memory.as_ptr().add(offset.min(self.length)).write_bytes(0, length) };
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that was made, and nobody has a pointer into it that
        // outlives this.
        unsafe { libc::shmdt(self.memory.as_ptr().cast()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_is_taken_back_is_nobody_elses() {
        let segment = Segment::new(0x1000, 0o500).expect("room");
        if own_user() == 0 {
            segment.give_to(65534).expect("root may");
            let mut state = segment.state().expect("there");
            assert_eq!(state.shm_perm.uid, 65534);
            // As its owner may.
            state.shm_perm.mode = 0o777;
            // SAFETY: the kernel reads one shmid_ds.
            let set = unsafe { libc::shmctl(segment.id, libc::IPC_SET, &raw mut state) };
            assert_eq!(set, 0);
        }
        assert!(segment.take_back());
        let state = segment.state().expect("there");
        assert_eq!((state.shm_perm.uid, state.shm_perm.mode & 0o777), (own_user(), 0o500));
    }

    #[test]
    fn a_segment_is_the_tracers_alone_until_somebody_maps_it() {
        let segment = Segment::new(0x3000, 0o600).expect("room");
        assert!(segment.take_back());
        segment.write(0x2ffe, &[1, 2, 3]);
        // SAFETY: a number in the mapping.
        let last = unsafe { segment.at::<u16>(0x2ffe).read_volatile() };
        assert_eq!(last, 0x0201);
        segment.clear(0x2fff, 10);
        // SAFETY: as above.
        assert_eq!(unsafe { segment.at::<u16>(0x2ffe).read_volatile() }, 1);
        // SAFETY: a second mapping, which is taken away again.
        let second = unsafe { libc::shmat(segment.id() as i32, std::ptr::null(), 0) };
        assert_ne!(second.addr(), usize::MAX, "marked for removal, and still to be had");
        assert!(!segment.take_back());
        // SAFETY: the mapping was just made.
        assert_eq!(unsafe { libc::shmdt(second) }, 0);
        assert!(segment.take_back());
    }
}
