//! What the command was started with (its streams, whether its addresses are
//! randomised), and what it runs on: the ABI and the C library of the program
//! that its process executed last.

use std::fs;
use std::time::Instant;

use crate::syscall::Abi;
use crate::syscall::CallSet;
use crate::tracer::{Event, Link, Nanos, Observer, ProcessId, open_file, patiently, personality};

use super::paths::executable;
use super::paths::linkage::{Linkage, defined_versions};

/// What a C library's version names begin with.
const GLIBC: &str = "GLIBC_";

/// The collector.
#[derive(Debug, Default)]
pub struct Setting {
    /// What descriptors 0, 1 and 2 were at the command's first exec: the words of `Stdio`.
    pub streams: [Option<&'static str>; 3],
    /// Whether addresses of what it executed first are randomised.
    pub aslr: Option<bool>,
    /// The ABI of its last program.
    pub abi: Option<Abi>,
    /// The C library of its last program: `glibc`, `musl`, or `static` where no
    /// loader was asked for; `None` where that is another.
    pub libc: Option<&'static str>,
    /// Of glibc the version: the highest that its libc.so.6 defines symbols for.
    pub libc_version: Option<String>,
    /// Time that looking took, ns.
    pub spent: Nanos,
    /// The command has been executed.
    pub started: bool,
}

impl Setting {
    fn start(&mut self, pid: i32) {
        let streams = [0, 1, 2].map(|fd| {
            let link = Link::read(pid, &format!("fd/{fd}"));
            // Where nothing can be seen, nothing is closed either.
            match link {
                Some(link) => kind(&link),
                None => fs::exists(format!("/proc/{pid}/fd")).ok()?.then_some("closed"),
            }
        });
        self.streams = streams;
        let random = fs::read_to_string("/proc/sys/kernel/randomize_va_space").ok();
        let random = random.and_then(|text| text.trim().parse::<u32>().ok());
        self.aslr = match (random, personality(pid)) {
            (Some(0), _) => Some(false),
            (_, Some(bits)) if bits & libc::ADDR_NO_RANDOMIZE as u32 != 0 => Some(false),
            (Some(_), Some(_)) => Some(true),
            _ => None,
        };
    }

    /// A program has begun: nothing but itself and its loader is mapped.
    fn program(&mut self, pid: i32) {
        (self.abi, self.libc, self.libc_version) = (None, None, None);
        let file = patiently(move || fs::File::open(format!("/proc/{pid}/exe")).ok()).flatten();
        let linkage = file.and_then(|file| patiently(move || Linkage::read(&file).ok()).flatten());
        let Some(linkage) = linkage.filter(|linkage| linkage.loadable) else { return };
        self.abi = linkage.abi;
        let exe = Link::read(pid, "exe").map(|link| link.path).unwrap_or_default();
        self.libc = match linkage.interpreter {
            Some(loader) => library_of(&loader),
            // A loader that was executed itself has none, and loads the program.
            None => library_of(&exe).or(Some("static")),
        };
    }

    /// The last program ends, and has all mapped that it needed.
    fn end(&mut self, tid: i32) {
        if self.libc != Some("glibc") {
            return;
        }
        let maps = fs::read(format!("/proc/{tid}/maps")).unwrap_or_default();
        let is_libc = |path: &[u8]| {
            let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
            // libc.so.6, or what it was a link to before 2.34.
            name == b"libc.so.6" || (name.starts_with(b"libc-2.") && name.ends_with(b".so"))
        };
        let libc = executable(&maps).find(|(path, gone)| is_libc(path) && !gone);
        let Some((path, _)) = libc else { return };
        // The kernel names it as we would; open_file goes from the task's root.
        let root = Link::read(tid, "root").map(|link| link.path).unwrap_or_default();
        let root = if root == b"/" { Vec::new() } else { root };
        let inside = path.strip_prefix(root.as_slice()).unwrap_or(&path).to_vec();
        let versions =
            patiently(move || defined_versions(&open_file(tid, &inside)?).ok()).flatten();
        self.libc_version = highest(&versions.unwrap_or_default());
    }
}

/// What a stream is: `file`, `pipe`, `null` (/dev/null), `terminal`, `socket`,
/// `device` (any other), `other` (a directory, or what has no type).
fn kind(link: &Link) -> Option<&'static str> {
    Some(match link.mode & libc::S_IFMT {
        0 if link.mode == 0 && link.path.starts_with(b"/") => return None, // It could not be asked.
        libc::S_IFREG => "file",
        libc::S_IFIFO => "pipe",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => match link.device {
            (1, 3) => "null",
            // Consoles and serial lines, /dev/tty, pseudo-terminals (devices.txt of Linux).
            (4 | 5 | 136..=143 | 166 | 188 | 204 | 229, _) => "terminal",
            _ => "device",
        },
        libc::S_IFBLK => "device",
        _ => "other",
    })
}

/// The C library that a loader belongs to, by the loader's name.
fn library_of(loader: &[u8]) -> Option<&'static str> {
    let name = loader.rsplit(|&byte| byte == b'/').next().unwrap_or(loader);
    if name.starts_with(b"ld-musl-") {
        return Some("musl");
    }
    // ld-linux-x86-64.so.2, ld-linux.so.2, ld-2.31.so, ld64.so.2.
    let glibc: [&[u8]; 4] = [b"ld-linux", b"ld-2.", b"ld64.so.", b"ld.so."];
    glibc.iter().any(|start| name.starts_with(start)).then_some("glibc")
}

/// The highest of `GLIBC_2.2.5`, `GLIBC_2.36`, ..., without what it begins with.
fn highest(versions: &[Vec<u8>]) -> Option<String> {
    let numbers = |version: &str| -> Option<Vec<u32>> {
        version.split('.').map(|number| number.parse().ok()).collect()
    };
    let known = versions.iter().filter_map(|version| {
        let version = str::from_utf8(version).ok()?.strip_prefix(GLIBC)?;
        Some((numbers(version)?, version))
    });
    known.max().map(|(_, version)| version.to_owned())
}

impl Observer for Setting {
    fn each(&self) -> CallSet {
        CallSet::none()
    }

    fn event(&mut self, event: &Event) {
        let begun = Instant::now();
        match *event {
            Event::Execed { process: ProcessId(0), pid, .. } => {
                if !self.started {
                    self.started = true;
                    self.start(pid);
                }
                self.program(pid);
            }
            Event::ThreadExiting { process: ProcessId(0), tid, last: true, .. } if self.started => {
                self.end(tid);
            }
            _ => return,
        }
        self.spent = self.spent.saturating_add(begun.elapsed().as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaders_belong_to_a_library() {
        for (loader, library) in [
            ("/lib64/ld-linux-x86-64.so.2", Some("glibc")),
            ("/lib/ld-linux.so.2", Some("glibc")),
            ("/lib/ld-linux-aarch64.so.1", Some("glibc")),
            ("/nix/store/x-glibc-2.38/lib/ld-linux-x86-64.so.2", Some("glibc")),
            ("/lib/x86_64-linux-gnu/ld-2.31.so", Some("glibc")),
            ("/lib/ld-musl-x86_64.so.1", Some("musl")),
            ("/system/bin/linker64", None),
            ("/lib/ld-uClibc.so.0", None),
        ] {
            assert_eq!(library_of(loader.as_bytes()), library, "{loader}");
        }
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let versions = |all: &[&str]| all.iter().map(|v| v.as_bytes().to_vec()).collect::<Vec<_>>();
        let of =
            versions(&["libc.so.6", "GLIBC_2.9", "GLIBC_2.36", "GLIBC_2.2.5", "GLIBC_PRIVATE"]);
        assert_eq!(highest(&of).as_deref(), Some("2.36"));
        assert_eq!(highest(&versions(&["libc.so.6", "GLIBC_PRIVATE"])), None);
    }
}
