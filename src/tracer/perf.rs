//! On-CPU samples by perf_event_open(2): opening it on a process that is about
//! to be executed, and taking what the kernel has told. A software clock needs
//! no counter of the processor, so that virtual machines have it too.
//!
//! One event a processor and a ring of its own: an event that children inherit
//! may not have one for all of them.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::bindings as sys;

use super::error::reason;
use super::event::Nanos;
use super::kernel::now;

/// Samples a second that can be asked for.
const FREQUENCIES: std::ops::RangeInclusive<u32> = 1..=10_000;
/// Bytes of a ring, and of all together where there are many processors. An
/// ordinary user has 512 KiB a processor for all that he samples at a time
/// (kernel.perf_event_mlock_kb).
const RING: usize = 256 * 1024;
const RINGS: usize = 16 * 1024 * 1024;
/// A smaller ring would lose too much to be worth it.
const LEAST: usize = 16 * 1024;

/// Something that the kernel told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// When it happened.
    pub at: Nanos,
    /// What.
    pub what: What,
}

/// What happened. Pids and tids are as the tracer sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The clock struck.
    Sample {
        /// The process that was on the processor.
        pid: i32,
        /// Its thread.
        tid: i32,
        /// Where it was.
        place: Place,
    },
    /// Memory became executable: it was mapped so, or its protection changed.
    Mapped {
        /// The process.
        pid: i32,
        /// First address.
        start: u64,
        /// First address behind it.
        end: u64,
        /// The file, or the kernel's name for it (`[vdso]`, `//anon`).
        name: Vec<u8>,
    },
    /// A thread was created, or with it a process.
    Forked {
        /// The new thread's process.
        pid: i32,
        /// The process that made the call.
        parent: i32,
        /// Whether it is a thread of a process that was there.
        thread: bool,
    },
    /// A process has a new image, and nothing of the old one.
    Execed {
        /// The process.
        pid: i32,
    },
    /// A thread ended.
    Exited {
        /// Its process.
        pid: i32,
    },
    /// So many records found no room.
    Lost(u64),
}

/// Where a sample hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At this address of the program.
    User(u64),
    /// In the kernel.
    Kernel,
    /// In a guest of the program, which is a hypervisor.
    Guest,
}

/// Samples of a process and of all that it starts, from its next exec on, as
/// long as this lives.
#[derive(Debug)]
pub struct Sampler {
    rings: Vec<Ring>,
    /// Bytes taken of a ring.
    bytes: Vec<u8>,
    /// CPU time between two samples.
    pub period: Nanos,
    /// Why the kernel's own are not among them.
    pub kernel_refused: Option<String>,
}

impl Sampler {
    /// Prepares to sample process `pid` so many times a second of CPU time.
    ///
    /// # Errors
    /// Why that cannot be done, in words for the record.
    pub fn open(pid: i32, hz: u32) -> Result<Self, String> {
        if !FREQUENCIES.contains(&hz) {
            return Err(format!(
                "{hz} samples a second cannot be taken: {} to {} can",
                FREQUENCIES.start(),
                FREQUENCIES.end()
            ));
        }
        // As the kernel divides.
        let period = Nanos::from(1_000_000_000 / hz);
        let (events, kernel_refused) = match events(pid, hz, true) {
            Err(e) if is_refusal(&e) => {
                let events = events(pid, hz, false).map_err(|e| refusal(&e, hz))?;
                (events, Some(format!("the kernel's own are for root only{}", paranoid())))
            }
            events => (events.map_err(|e| refusal(&e, hz))?, None),
        };
        // The mappings keep the events; many processors would be many descriptors.
        let rings = rings(&events).map_err(|e| no_memory(&e))?;
        Ok(Self { rings, bytes: Vec::new(), period, kernel_refused })
    }

    /// Takes all that was told; what was told before the moment that it returns
    /// is all there, but for what a processor is in the middle of telling.
    pub fn take(&mut self, told: &mut Vec<Told>) -> Nanos {
        let begun = now();
        for ring in &mut self.rings {
            self.bytes.clear();
            ring.take(&mut self.bytes);
            parse(&self.bytes, told);
        }
        begun
    }
}

/// An event on each processor that is online.
fn events(pid: i32, hz: u32, kernel: bool) -> io::Result<Vec<OwnedFd>> {
    let mut events = Vec::new();
    let mut gone = None;
    for cpu in online() {
        match event(pid, cpu, hz, kernel) {
            Ok(event) => events.push(event),
            // It went offline just now.
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => gone = Some(e),
            Err(e) => return Err(e),
        }
    }
    match gone {
        Some(e) if events.is_empty() => Err(e),
        _ => Ok(events),
    }
}

fn event(pid: i32, cpu: i32, hz: u32, kernel: bool) -> io::Result<OwnedFd> {
    let mut attr = sys::perf_event_attr {
        type_: sys::PERF_TYPE_SOFTWARE,
        size: size_of::<sys::perf_event_attr>() as u32,
        config: sys::PERF_COUNT_SW_CPU_CLOCK.into(),
        sample_type: (sys::PERF_SAMPLE_IP | sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME).into(),
        // That of the tracer's events.
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_freq = hz.into();
    attr.set_freq(1);
    attr.set_use_clockid(1);
    attr.set_inherit(1);
    attr.set_disabled(1);
    attr.set_enable_on_exec(1);
    attr.set_exclude_kernel((!kernel).into());
    attr.set_mmap(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    attr.set_task(1);
    attr.set_sample_id_all(1);
    let flags = sys::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: `attr` is valid and says its size; the rest goes by value.
    let fd = unsafe { perf_event_open_sys::perf_event_open(&raw mut attr, pid, cpu, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A ring for each, as large as the machine allows.
fn rings(events: &[OwnedFd]) -> io::Result<Vec<Ring>> {
    let mut bytes = 1 << (RINGS / events.len().max(1)).clamp(LEAST, RING).ilog2();
    loop {
        match events.iter().map(|event| Ring::map(event, bytes)).collect() {
            Err(_) if bytes > LEAST => bytes /= 2,
            rings => return rings,
        }
    }
}

/// The numbers of the processors that are online.
fn online() -> Vec<i32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let mut cpus: Vec<i32> = text.trim().split(',').filter_map(range).flatten().collect();
    if cpus.is_empty() {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        cpus = (0..count as i32).collect();
    }
    cpus
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// A setting of the kernel's.
fn setting(name: &str) -> Option<i64> {
    fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok()
}

/// ` (kernel.perf_event_paranoid is 2)`
fn paranoid() -> String {
    let level = setting("perf_event_paranoid");
    level.map_or(String::new(), |level| format!(" (kernel.perf_event_paranoid is {level})"))
}

/// Why an event was not opened.
fn refusal(error: &io::Error, hz: u32) -> String {
    let why = reason(error);
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) if setting("perf_event_paranoid") > Some(2) => format!(
            "perf_event_open was refused{}: run as root, or allow it: sysctl \
             kernel.perf_event_paranoid=2",
            paranoid()
        ),
        Some(libc::EACCES | libc::EPERM) => format!(
            "perf_event_open was refused ({why}): by a seccomp filter or a security module; in a \
             container, start it with --cap-add=PERFMON"
        ),
        Some(libc::EINVAL)
            if setting("perf_event_max_sample_rate").is_some_and(|most| most < hz.into()) =>
        {
            format!(
                "the machine allows fewer than {hz} samples a second \
                 (kernel.perf_event_max_sample_rate)"
            )
        }
        Some(libc::ENOSYS | libc::ENOENT) => {
            format!("perf_event_open is not there ({why}): an emulator or a small kernel")
        }
        _ => format!("perf_event_open failed: {why}"),
    }
}

/// Why a ring was not mapped.
fn no_memory(error: &io::Error) -> String {
    let limit = setting("perf_event_mlock_kb").map_or(String::new(), |kib| {
        format!(": other samplers of this user may hold it (kernel.perf_event_mlock_kb is {kib})")
    });
    format!("no memory for the kernel's samples ({}){limit}", reason(error))
}

/// The memory that the kernel writes to: a page that says how far, then the data.
#[derive(Debug)]
struct Ring {
    page: NonNull<sys::perf_event_mmap_page>,
    /// Bytes before the data.
    ahead: usize,
    /// Bytes of data, a power of two.
    size: usize,
}

// SAFETY: the mapping is this value's own, whichever thread has it.
unsafe impl Send for Ring {}

impl Ring {
    fn map(event: &OwnedFd, size: usize) -> io::Result<Self> {
        // SAFETY: sysconf takes and gives a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let ahead = usize::try_from(page).unwrap_or(4096);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                ahead + size,
                protection,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast()) {
            Some(page) if base != libc::MAP_FAILED => Ok(Self { page, ahead, size }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Moves what was written since the last time behind `bytes`.
    fn take(&mut self, bytes: &mut Vec<u8>) {
        let page = self.page.as_ptr();
        // SAFETY: both lie in the page, aligned; the kernel writes the head and
        // reads the tail, as atomics (perf_event_open(2)).
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*page).data_head),
                AtomicU64::from_ptr(&raw mut (*page).data_tail),
            )
        };
        let end = head.load(Ordering::Acquire);
        let begin = tail.load(Ordering::Relaxed);
        let length = (end.wrapping_sub(begin) as usize).min(self.size);
        let at = begin as usize & (self.size - 1);
        let first = length.min(self.size - at);
        // SAFETY: the data follows `ahead` bytes behind the page; `at + first` and
        // `length - first` are at most `size`. The kernel does not write there
        // before the tail has moved on.
        unsafe {
            let data = page.cast::<u8>().add(self.ahead);
            bytes.extend_from_slice(std::slice::from_raw_parts(data.add(at), first));
            bytes.extend_from_slice(std::slice::from_raw_parts(data, length - first));
        }
        tail.store(end, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: unmaps what `map` has mapped, to which nobody else has a pointer.
        unsafe { libc::munmap(self.page.as_ptr().cast(), self.ahead + self.size) };
    }
}

/// Type, flags and size.
const HEADER: usize = 8;
/// What `sample_id_all` puts behind each record: pid, tid and time.
const TRAILER: usize = 16;

/// The records in `bytes`.
fn parse(mut bytes: &[u8], told: &mut Vec<Told>) {
    while let (Some(kind), Some(misc), Some(size)) =
        (u32_at(bytes, 0), u16_at(bytes, 4), u16_at(bytes, 6))
    {
        let size = usize::from(size);
        let Some(record) = bytes.get(HEADER..size) else { return };
        told.extend(record_of(kind, misc, record));
        bytes = bytes.get(size..).unwrap_or_default();
    }
}

/// One record, of those that are looked at (perf_event_open(2) has their layout).
fn record_of(kind: u32, misc: u16, record: &[u8]) -> Option<Told> {
    let pid = || u32_at(record, 0).map(|pid| pid as i32);
    let trailer = record.len().checked_sub(TRAILER)?;
    let at = u64_at(record, trailer + 8)?;
    let what = match kind {
        // The address, then the same as behind the others.
        sys::PERF_RECORD_SAMPLE => What::Sample {
            pid: u32_at(record, 8)? as i32,
            tid: u32_at(record, 12)? as i32,
            place: match u32::from(misc) & sys::PERF_RECORD_MISC_CPUMODE_MASK {
                sys::PERF_RECORD_MISC_USER => Place::User(u64_at(record, 0)?),
                sys::PERF_RECORD_MISC_GUEST_KERNEL | sys::PERF_RECORD_MISC_GUEST_USER => {
                    Place::Guest
                }
                _ => Place::Kernel,
            },
        },
        sys::PERF_RECORD_MMAP => {
            let (start, length) = (u64_at(record, 8)?, u64_at(record, 16)?);
            let name = record.get(32..trailer)?.split(|&byte| byte == 0).next()?.to_vec();
            What::Mapped { pid: pid()?, start, end: start.saturating_add(length), name }
        }
        sys::PERF_RECORD_COMM if u32::from(misc) & sys::PERF_RECORD_MISC_COMM_EXEC != 0 => {
            What::Execed { pid: pid()? }
        }
        sys::PERF_RECORD_FORK => What::Forked {
            pid: pid()?,
            parent: u32_at(record, 4)? as i32,
            thread: u32_at(record, 8)? as i32 != pid()?,
        },
        sys::PERF_RECORD_EXIT => What::Exited { pid: pid()? },
        sys::PERF_RECORD_LOST => What::Lost(u64_at(record, 8)?),
        sys::PERF_RECORD_LOST_SAMPLES => What::Lost(u64_at(record, 0)?),
        _ => return None,
    };
    Some(Told { at, what })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A record as perf_event_open(2) lays it out.
    fn record(kind: u32, misc: u32, body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        let size = (HEADER + body.len()) as u16;
        let head = [&kind.to_ne_bytes()[..], &(misc as u16).to_ne_bytes(), &size.to_ne_bytes()];
        [head.concat(), body].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn longs(longs: &[u64]) -> Vec<u8> {
        longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
    }

    #[test]
    fn records_are_read_as_the_manual_has_them() {
        // pid 1, tid 2 at 99 ns.
        let trailer = [words(&[1, 2]), longs(&[99])].concat();
        let bytes = [
            record(
                sys::PERF_RECORD_SAMPLE,
                sys::PERF_RECORD_MISC_USER,
                &[&longs(&[0x55]), &trailer],
            ),
            record(
                sys::PERF_RECORD_SAMPLE,
                sys::PERF_RECORD_MISC_KERNEL,
                &[&longs(&[7]), &trailer],
            ),
            record(
                sys::PERF_RECORD_MMAP,
                sys::PERF_RECORD_MISC_USER,
                &[&words(&[3, 4]), &longs(&[0x1000, 0x200, 0]), b"/bin/a\0\0", &trailer],
            ),
            // A name alone is no exec.
            record(sys::PERF_RECORD_COMM, 0, &[&words(&[3, 4]), b"name\0\0\0\0", &trailer]),
            record(
                sys::PERF_RECORD_COMM,
                sys::PERF_RECORD_MISC_COMM_EXEC,
                &[&words(&[3, 3]), b"name\0\0\0\0", &trailer],
            ),
            record(sys::PERF_RECORD_FORK, 0, &[&words(&[5, 3, 5, 4]), &longs(&[98]), &trailer]),
            record(sys::PERF_RECORD_FORK, 0, &[&words(&[3, 3, 6, 4]), &longs(&[98]), &trailer]),
            record(sys::PERF_RECORD_EXIT, 0, &[&words(&[5, 3, 5, 3]), &longs(&[98]), &trailer]),
            record(sys::PERF_RECORD_LOST, 0, &[&longs(&[1, 12]), &trailer]),
        ]
        .concat();
        let mut told = Vec::new();
        parse(&bytes, &mut told);
        assert!(told.iter().all(|told| told.at == 99), "{told:?}");
        let what: Vec<What> = told.into_iter().map(|told| told.what).collect();
        assert_eq!(
            what,
            [
                What::Sample { pid: 1, tid: 2, place: Place::User(0x55) },
                What::Sample { pid: 1, tid: 2, place: Place::Kernel },
                What::Mapped { pid: 3, start: 0x1000, end: 0x1200, name: b"/bin/a".to_vec() },
                What::Execed { pid: 3 },
                What::Forked { pid: 5, parent: 3, thread: false },
                What::Forked { pid: 3, parent: 3, thread: true },
                What::Exited { pid: 5 },
                What::Lost(12),
            ]
        );
    }

    #[test]
    fn a_frequency_that_cannot_be_is_a_reason() {
        for hz in [0, 10_001, u32::MAX] {
            let why = Sampler::open(1, hz).err().unwrap_or_default();
            assert!(why.contains("1 to 10000"), "{why}");
        }
    }

    #[test]
    fn this_machine_has_a_processor() {
        let cpus = online();
        assert!(!cpus.is_empty() && cpus.iter().all(|cpu| *cpu >= 0), "{cpus:?}");
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            parse(&bytes, &mut Vec::new());
        }

        #[test]
        fn records_of_any_size_are_survived(kind in 0..20u32, misc in any::<u16>(), size in 0..80usize) {
            let bytes = record(kind, misc.into(), &[&vec![0xff; size]]);
            let mut told = Vec::new();
            parse(&bytes, &mut told);
            prop_assert!(told.len() <= 1);
        }
    }
}
