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
}

impl Segment {
    /// A new one of `length` bytes, all zero, for processes that `mode` permits (shmget(2)).
    pub fn new(length: usize, mode: i32) -> io::Result<Self> {
        // SAFETY: shmget takes its arguments by value.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, length, libc::IPC_CREAT | mode) };
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
        Ok(Self { id, memory, length })
    }

    /// Its number, for shmat(2). None is 0 but the first of a machine.
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

    /// Whether nobody but the tracer has it mapped.
    pub fn is_alone(&self) -> bool {
        self.state().is_ok_and(|state| state.shm_nattch == 1)
    }

    /// Makes a user its owner, as `mode` has it. Only root can, and it need not be said
    /// of the tracer's own.
    pub fn give_to(&self, user: u32) -> io::Result<()> {
        let mut state = self.state()?;
        if state.shm_perm.uid == user {
            return Ok(());
        }
        state.shm_perm.uid = user;
        // SAFETY: the kernel reads one shmid_ds.
        match unsafe { libc::shmctl(self.id, libc::IPC_SET, &raw mut state) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
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
    fn a_segment_is_the_tracers_alone_until_somebody_maps_it() {
        let segment = Segment::new(0x3000, 0o600).expect("room");
        assert!(segment.is_alone());
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
        assert!(!segment.is_alone());
        // SAFETY: the mapping was just made.
        assert_eq!(unsafe { libc::shmdt(second) }, 0);
        assert!(segment.is_alone());
    }
}
