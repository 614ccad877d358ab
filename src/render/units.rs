//! Numbers with their units, always as in the C locale.

const SCALES: [(&str, u64); 3] = [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// A duration in three digits: `2.83 s`, `12.4 ms`, `310 us`, `85 ns`.
pub fn time(ns: u64) -> String {
    if ns < 1_000 {
        return format!("{ns} ns");
    }
    for (unit, per) in SCALES {
        let value = ns as f64 / per as f64;
        let digits = match value {
            v if v < 9.995 => format!("{v:.2}"),
            v if v < 99.95 => format!("{v:.1}"),
            // 999.6 us is 1.00 ms; seconds have no unit above them.
            v if v < 999.5 || unit == "s" => format!("{v:.0}"),
            _ => continue,
        };
        return format!("{digits} {unit}");
    }
    format!("{ns} ns")
}

/// As [`time`], but `0.27 s` from a tenth of a second on, to be read beside
/// the wall time of a run.
pub(super) fn span(ns: u64) -> String {
    if (100_000_000..1_000_000_000).contains(&ns) {
        format!("{} s", Scale::of(1_000_000_000).format(ns))
    } else {
        time(ns)
    }
}

/// A size: `812 B`, `4.0 KiB`, `15.0 MiB`.
pub fn bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut name = "B";
    for unit in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        value /= 1024.0;
        name = unit;
        if value < 1023.95 {
            break;
        }
    }
    format!("{value:.1} {name}")
}

/// `1 call`, `2 calls`, `2 processes`, `2 switches`.
pub fn counted(count: u64, noun: &str) -> String {
    let ending = match (count, noun.ends_with('s') || noun.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {noun}{ending}")
}

/// Nanoseconds as microseconds, rounded.
pub(super) fn micros(ns: u64) -> u64 {
    ns / 1_000 + u64::from(ns % 1_000 >= 500)
}

/// Nanoseconds as seconds with six digits, as strace has them.
pub(super) fn seconds(ns: u64) -> String {
    let us = micros(ns);
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// The unit in which several durations stand side by side.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    /// Its name.
    pub name: &'static str,
    per: u64,
}

impl Scale {
    /// The unit that suits this duration.
    pub fn of(ns: u64) -> Self {
        match ns {
            0..1_000_000 => Self { name: "us", per: 1_000 },
            1_000_000..1_000_000_000 => Self { name: "ms", per: 1_000_000 },
            _ => Self { name: "s", per: 1_000_000_000 },
        }
    }

    /// Rounded to hundredths of the unit, so that sums can be made of what
    /// is printed.
    pub fn hundredths(self, ns: u64) -> u64 {
        let step = self.per / 100;
        ns / step + u64::from(ns % step >= step / 2)
    }

    /// The duration in this unit, which is not written.
    pub fn format(self, ns: u64) -> String {
        decimal(self.hundredths(ns))
    }
}

/// Hundredths as a decimal number.
pub(super) fn decimal(hundredths: u64) -> String {
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// Where the wall time of a run went, in one unit.
pub(super) struct Split {
    /// The unit, chosen by the wall time.
    pub scale: Scale,
    /// Wall time.
    pub wall: String,
    /// CPU time in user mode.
    pub user: String,
    /// CPU time in the kernel.
    pub sys: String,
    /// What is left; `Err` when there was more CPU time than wall time, with
    /// the number of CPUs in use on average.
    pub off_cpu: Result<String, String>,
}

impl Split {
    /// Splits a wall time. The printed parts add up to the printed whole.
    pub fn new(wall_ns: u64, user_ns: u64, sys_ns: u64) -> Self {
        let scale = Scale::of(wall_ns);
        let wall = scale.hundredths(wall_ns);
        let user = scale.hundredths(user_ns);
        let mut sys = scale.hundredths(sys_ns);
        let cpu = user_ns.saturating_add(sys_ns);
        let off_cpu = if cpu > wall_ns {
            Err(format!("{:.1}", cpu as f64 / wall_ns.max(1) as f64))
        } else {
            // Two halves that were both rounded up would be one too much.
            sys = sys.min(wall.saturating_sub(user));
            Ok(decimal(wall.saturating_sub(user).saturating_sub(sys)))
        };
        Self { scale, wall: decimal(wall), user: decimal(user), sys: decimal(sys), off_cpu }
    }
}
