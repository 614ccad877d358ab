//! Where a run took place: kernel, machine, load, memory, container. What cannot
//! be known is null.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::interpreter::Interpreter;

/// The machine and its state just before a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Environment {
    /// `uname -r`.
    pub kernel_release: Option<String>,
    /// `uname -v`.
    pub kernel_version: Option<String>,
    /// `uname -m`.
    pub machine: Option<String>,
    /// Different after each boot.
    pub boot_id: Option<String>,
    /// Since the machine was booted.
    pub uptime_ns: Option<u64>,
    /// As /proc/cpuinfo has it.
    pub cpu_model: Option<String>,
    /// Processors that are online.
    pub cpus_online: Option<u64>,
    /// Processors that coldtrace, and so the command, may use.
    pub cpus_allowed: Option<u64>,
    /// Runnable tasks, averaged over 1, 5 and 15 minutes.
    pub load: Option<[f64; 3]>,
    /// Main memory.
    pub memory_total_bytes: Option<u64>,
    /// What programs could get without swapping.
    pub memory_available_bytes: Option<u64>,
    /// The page cache.
    pub page_cache_bytes: Option<u64>,
    /// The control group of coldtrace (version 2; else that of the memory
    /// controller).
    pub cgroup: Option<String>,
    /// Its limit of memory; null for none.
    pub cgroup_memory_max_bytes: Option<u64>,
    /// Its limit of processors; null for none.
    pub cgroup_cpus: Option<f64>,
    /// `docker`, `podman`, `lxc`, `kubernetes`, `systemd-nspawn`, `container`; null
    /// where nothing says that it is one.
    pub container: Option<String>,
    /// What the machine runs on, where it is a virtual one and says so.
    pub virtual_machine: Option<String>,
    /// `glibc 2.36`, `musl`: the C library of the system.
    pub libc: Option<String>,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`: the word that holds.
    pub transparent_huge_pages: Option<String>,
    /// Of the first processor.
    pub cpu_governor: Option<String>,
    /// Of the device that holds the working directory.
    pub read_ahead_bytes: Option<u64>,
    /// Whether addresses are randomised: 0, 1 or 2 (randomize_va_space).
    pub randomize_va_space: Option<u64>,
    /// What interpreted the command, where something did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<Interpreter>,
    /// Names of the command's environment variables, sorted.
    pub variables: Vec<String>,
    /// Values of those that `--env-values` named, and in a fixed place (`run --fixed`,
    /// `check`) of HOME and TMPDIR: what was done there is judged by them.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub values: IndexMap<String, String>,
}

impl Environment {
    /// The state of this machine now; `shown` are the variables whose values are
    /// kept.
    pub fn now(shown: &[String]) -> Self {
        let cgroup = cgroup();
        let limit = |file: &str| {
            let dir = cgroup.as_ref()?.1.as_deref()?;
            fs::read_to_string(dir.join(file)).ok()
        };
        let cpu_max = limit("cpu.max").and_then(|text| {
            let mut words = text.split_ascii_whitespace();
            let (quota, period) = (words.next()?.parse::<f64>().ok()?, words.next()?);
            Some(quota / period.parse::<f64>().ok()?)
        });
        let memory_max = limit("memory.max").or_else(|| limit("memory.limit_in_bytes"));
        // Version 1 has a very large number for none.
        let memory_max = memory_max.and_then(|text| text.trim().parse().ok());
        let memory_max = memory_max.filter(|max: &u64| *max < 1 << 60);
        let meminfo = text("/proc/meminfo");
        let kib = |name: &str| {
            let meminfo = meminfo.as_deref()?;
            let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
            line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
        };
        let own = std::env::vars_os().map(|(name, value)| [name, value].join(OsStr::new("=")));
        let here = Self {
            kernel_release: line("/proc/sys/kernel/osrelease"),
            kernel_version: line("/proc/sys/kernel/version"),
            machine: line("/proc/sys/kernel/arch").or_else(|| Some(std::env::consts::ARCH.into())),
            boot_id: boot_id(),
            uptime_ns: uptime_ns(),
            cpu_model: cpu_model(),
            cpus_online: line("/sys/devices/system/cpu/online").and_then(|list| count(&list)),
            cpus_allowed: std::thread::available_parallelism().ok().map(|n| n.get() as u64),
            load: line("/proc/loadavg").and_then(|text| {
                let mut numbers = text.split(' ').map_while(|n| n.parse().ok());
                Some([numbers.next()?, numbers.next()?, numbers.next()?])
            }),
            memory_total_bytes: kib("MemTotal"),
            memory_available_bytes: kib("MemAvailable"),
            page_cache_bytes: kib("Cached"),
            cgroup_memory_max_bytes: memory_max,
            cgroup_cpus: cpu_max,
            container: container(),
            virtual_machine: line("/sys/class/dmi/id/sys_vendor").filter(|vendor| {
                let text = text("/proc/cpuinfo").unwrap_or_default();
                !vendor.is_empty() && text.split_ascii_whitespace().any(|w| w == "hypervisor")
            }),
            cgroup: cgroup.map(|(name, _)| name),
            libc: libc_name(),
            transparent_huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())),
            cpu_governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            read_ahead_bytes: read_ahead(),
            randomize_va_space: line("/proc/sys/kernel/randomize_va_space")
                .and_then(|text| text.parse().ok()),
            ..Self::default()
        };
        here.with_variables(&own.collect::<Vec<_>>(), shown)
    }

    /// With these variables (`NAME=VALUE`) instead of coldtrace's own: those that the
    /// command is to find.
    #[must_use]
    pub fn with_variables(mut self, entries: &[OsString], shown: &[String]) -> Self {
        let entries = entries.iter().map(|entry| entry.to_string_lossy());
        let entries: Vec<(String, String)> = entries
            .filter_map(|entry| {
                let (name, value) = entry.split_once('=')?;
                (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
            })
            .collect();
        let value = |name: &String| entries.iter().find(|(n, _)| n == name).cloned();
        self.values = shown.iter().filter_map(value).collect();
        self.variables = entries.into_iter().map(|(name, _)| name).collect();
        self.variables.sort();
        self
    }
}

/// Different after each boot.
pub(crate) fn boot_id() -> Option<String> {
    line("/proc/sys/kernel/random/boot_id")
}

/// Since the machine was booted.
fn uptime_ns() -> Option<u64> {
    let seconds: f64 = line("/proc/uptime")?.split(' ').next()?.parse().ok()?;
    Some((seconds * 1e9) as u64)
}

fn text(path: &str) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn line(path: &str) -> Option<String> {
    Some(text(path)?.lines().next()?.trim().to_owned()).filter(|line| !line.is_empty())
}

fn cpu_model() -> Option<String> {
    let text = text("/proc/cpuinfo")?;
    let model = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        matches!(name.trim(), "model name" | "Processor").then(|| value.trim().to_owned())
    });
    model.filter(|model| !model.is_empty())
}

/// How many processors a list as `0-3,8` names.
fn count(list: &str) -> Option<u64> {
    list.split(',')
        .map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to): (u64, u64) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
            to.checked_sub(from)?.checked_add(1)
        })
        .sum()
}

/// Our control group, and its directory where that can be seen.
fn cgroup() -> Option<(String, Option<PathBuf>)> {
    let groups = text("/proc/self/cgroup")?;
    let of = |wanted: &dyn Fn(&str) -> bool| {
        groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            wanted(controllers).then(|| path.to_owned())
        })
    };
    let memory = of(&|controllers| controllers.split(',').any(|c| c == "memory"));
    let (path, root) = match memory {
        Some(path) => (path, "/sys/fs/cgroup/memory"),
        None => (of(&str::is_empty)?, "/sys/fs/cgroup"),
    };
    let dir = Path::new(root).join(path.trim_start_matches('/'));
    let dir = dir.is_dir().then_some(dir);
    Some((path, dir))
}

fn container() -> Option<String> {
    // systemd's, podman's and lxc's own word for it (systemd-detect-virt(1)).
    if let Some(kind) = line("/run/systemd/container") {
        return Some(kind);
    }
    if Path::new("/run/.containerenv").exists() {
        return Some("podman".into());
    }
    if Path::new("/.dockerenv").exists() {
        return Some("docker".into());
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("kubernetes".into());
    }
    let own = std::env::var("container").ok().filter(|kind| !kind.is_empty());
    own.or_else(|| {
        let groups = text("/proc/1/cgroup")?;
        let known = ["docker", "kubepods", "lxc", "libpod"];
        let found = known.into_iter().find(|kind| groups.contains(kind))?;
        Some(match found {
            "kubepods" => "kubernetes".into(),
            "libpod" => "podman".into(),
            kind => kind.into(),
        })
    })
}

/// The C library by its files: coldtrace itself carries its own.
fn libc_name() -> Option<String> {
    let musl = fs::read_dir("/lib").ok().is_some_and(|dir| {
        dir.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("ld-musl-"))
    });
    if musl {
        return Some("musl".into());
    }
    let arch = std::env::consts::ARCH;
    let places = [
        format!("/lib/{arch}-linux-gnu/libc.so.6"),
        "/lib64/libc.so.6".into(),
        "/usr/lib/libc.so.6".into(),
    ];
    let library = places.iter().find_map(|place| fs::read(place).ok())?;
    // The words that it prints when it is run.
    let mark = b"GNU C Library ";
    let at = library.windows(mark.len()).position(|bytes| bytes == mark)?;
    let rest = library.get(at..at + 200)?;
    let words = String::from_utf8_lossy(rest.split(|&b| b == b'\n').next()?).into_owned();
    let version = words.split("version ").nth(1)?;
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    Some(format!("glibc {}", version.get(..end)?.trim_end_matches('.')))
}

/// Read-ahead of the device of the working directory.
fn read_ahead() -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(".").ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let kib: u64 = line(&format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"))?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, n) in
            [("0", Some(1)), ("0-3", Some(4)), ("0-1,4,6-7", Some(5)), ("", None), ("3-1", None)]
        {
            assert_eq!(count(list), n, "{list}");
        }
    }

    #[test]
    fn variables_are_those_that_were_given() {
        let entries = ["B=x=y", "A=1", "NOEQUALS", "=x", "C="].map(OsString::from);
        let here = Environment::default().with_variables(&entries, &["B".into(), "D".into()]);
        assert_eq!(here.variables, ["A", "B", "C"]);
        assert_eq!(here.values.iter().collect::<Vec<_>>(), [(&"B".into(), &"x=y".into())]);
    }

    #[test]
    fn this_machine_is_described() {
        let here = Environment::now(&["PATH".into(), "NO_SUCH_VARIABLE".into()]);
        assert!(here.kernel_release.is_some() && here.boot_id.is_some(), "{here:?}");
        assert!(here.memory_total_bytes > here.memory_available_bytes, "{here:?}");
        assert!(here.cpus_online >= Some(1) && here.cpus_allowed >= Some(1), "{here:?}");
        assert!(here.variables.is_sorted() && here.variables.contains(&"PATH".into()), "{here:?}");
        assert_eq!(here.values.keys().collect::<Vec<_>>(), ["PATH"]);
    }
}
