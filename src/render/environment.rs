//! Where a run took place, a line a fact.

use crate::record::Environment;

use super::text::{Clause, escape, fold};
use super::units::{bytes, time};

/// All that is known of it.
pub fn environment(of: &Environment, width: usize) -> String {
    let text = |value: &Option<String>| value.as_deref().map(|v| escape(v).into_owned());
    let number = |value: Option<u64>| value.map(|n| n.to_string());
    let size = |value: Option<u64>| value.map(bytes);
    let cpus = of.cpus_online.map(|online| match of.cpus_allowed {
        Some(allowed) if allowed != online => format!("{allowed} of {online}"),
        _ => online.to_string(),
    });
    let load = of.load.map(|[one, five, fifteen]| format!("{one:.2}, {five:.2}, {fifteen:.2}"));
    let facts = [
        ("kernel", text(&of.kernel_release)),
        ("version", text(&of.kernel_version)),
        ("machine", text(&of.machine)),
        ("runs on", text(&of.virtual_machine)),
        ("container", text(&of.container)),
        ("cgroup", text(&of.cgroup)),
        ("its memory", size(of.cgroup_memory_max_bytes).map(|max| format!("at most {max}"))),
        ("its CPUs", of.cgroup_cpus.map(|cpus| format!("{cpus:.2}"))),
        ("boot", text(&of.boot_id)),
        ("up for", of.uptime_ns.map(time)),
        ("CPU", text(&of.cpu_model)),
        ("CPUs", cpus),
        ("governor", text(&of.cpu_governor)),
        ("load", load),
        ("memory", size(of.memory_total_bytes)),
        ("available", size(of.memory_available_bytes)),
        ("page cache", size(of.page_cache_bytes)),
        ("huge pages", text(&of.transparent_huge_pages)),
        ("read-ahead", size(of.read_ahead_bytes)),
        ("ASLR", number(of.randomize_va_space)),
        ("libc", text(&of.libc)),
        (
            "interpreter",
            of.interpreter.as_ref().map(|i| {
                let version = i.version.as_deref().unwrap_or(&i.name);
                format!("{} ({})", escape(version), escape(&i.path))
            }),
        ),
    ];
    let mut out = String::new();
    let mut line = |name: &str, clause: Clause| {
        out.push_str(&fold(&format!("{name:<12}"), &" ".repeat(12), &[clause], width));
    };
    for (name, value) in facts {
        line(name, Clause::one(value.unwrap_or_else(|| "-".into())));
    }
    for (name, value) in &of.values {
        line("variable", Clause::one(format!("{}={}", escape(name), escape(value))));
    }
    let names = of.variables.iter().map(|name| escape(name).into_owned()).collect();
    line("variables", Clause::list(names));
    out
}
