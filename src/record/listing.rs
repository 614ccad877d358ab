//! How the `files` and `mapped` parts are made of what was observed.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use indexmap::IndexMap;

use crate::observe::Paths;
use crate::observe::paths::Searched;
use crate::syscall::errno::errno_label;
use crate::tracer::Nanos;

use super::files::{FileRow, Files, MappedFile, Search};
use super::proc::ObjectMemory;

impl Files {
    /// All of it; the collector has [finished](Paths::finish).
    pub fn of(paths: &Paths, start: Nanos) -> Self {
        let rows = (0..paths.len()).filter_map(|i| FileRow::of(paths, i, start)).collect();
        Self { paths: rows, ..Self::without_paths(paths, start) }
    }

    /// All but the rows, of which there may be a million.
    pub fn without_paths(paths: &Paths, start: Nanos) -> Self {
        let (stats_by_path, stats_by_descriptor) = paths.stats;
        let unreadable = paths.unreadable;
        let searches = paths.searches().iter().map(|search| Search::of(search, start)).collect();
        Self { paths: Vec::new(), searches, stats_by_path, stats_by_descriptor, unreadable }
    }
}

impl FileRow {
    /// Row `i`, in order of first use.
    pub fn of(paths: &Paths, i: usize, start: Nanos) -> Option<Self> {
        let (path, marks, row) = paths.row(i)?;
        let (path, path_bytes) = text(path);
        let mut file = Self {
            path,
            path_bytes,
            marks: marks.words(),
            stats: row.stats.into(),
            misses: row.misses.into(),
            wall_ns: row.wall,
            first_ns: row.first.saturating_sub(start),
            last_ns: row.last.saturating_sub(start),
            processes: row.processes().iter().map(|process| process.0.into()).collect(),
            ..Self::default()
        };
        if let Some(more) = row.more() {
            file.target = more.target.as_ref().map(|t| String::from_utf8_lossy(t).into_owned());
            file.opens_read = more.opens_read;
            file.opens_write = more.opens_write;
            file.read_bytes = more.read;
            file.written_bytes = more.written;
            file.mapped_bytes = more.mapped;
            file.other = more.other.iter().map(|(kind, n)| ((*kind).to_owned(), *n)).collect();
            let mut errors: IndexMap<String, u64> =
                more.errors.iter().map(|(e, n)| (errno_label(*e).into(), *n)).collect();
            errors.sort_keys();
            file.errors = errors;
            file.regions = paths.names_of(&more.regions);
        }
        Some(file)
    }
}

impl Search {
    fn of(search: &Searched, start: Nanos) -> Self {
        let lossy = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        Self {
            stem: lossy(&search.stem),
            suffixes: search.suffixes.iter().map(lossy).collect(),
            directories: search.directories.iter().map(lossy).collect(),
            found: search.found.as_ref().map(lossy),
            times: search.times,
            misses: search.misses,
            probes: search.probes,
            wall_ns: search.wall,
            start_ns: search.start.saturating_sub(start),
            process: search.process.into(),
        }
    }
}

impl MappedFile {
    /// All of a run, in order of first use; the collector has
    /// [finished](Paths::finish).
    pub fn all(paths: &Paths, start: Nanos) -> Vec<Self> {
        let mapped = &paths.mapped;
        let files = mapped.files.iter().enumerate().map(|(i, (path, entry))| {
            let (path, path_bytes) = text(path);
            let mut file = Self {
                cuda: cuda(&path),
                path,
                path_bytes,
                size_bytes: entry.size,
                first_ns: entry.first.saturating_sub(start),
                processes: entry.processes.iter().map(|process| process.0.into()).collect(),
                at_exit: entry.at_exit,
                ..Self::default()
            };
            if let Some(brought) = mapped.brought.get(i) {
                let words = || brought.by.iter().map(|by| by.word().to_owned()).collect();
                file.came_by = (!brought.by.is_empty()).then(words);
                let known = !brought.needed_by.is_empty() || !brought.maybe_more;
                let needers = || {
                    let path = |i: &usize| Some(text(mapped.files.get_index(*i)?.0).0);
                    brought.needed_by.iter().filter_map(path).collect()
                };
                file.needed_by = known.then(needers);
            }
            file
        });
        files.collect()
    }

    /// Adds what a snapshot of the root at its end says of their memory.
    pub fn add_memory(files: &mut [Self], objects: &[ObjectMemory]) {
        let path = |object: &str| {
            // The kernel writes newlines so, and adds to names that are gone.
            object.strip_suffix(" (deleted)").unwrap_or(object).replace("\\012", "\n")
        };
        let mut resident: HashMap<String, (u64, u64)> = HashMap::new();
        for object in objects {
            let (anon, file) = resident.entry(path(&object.object)).or_default();
            *anon = anon.saturating_add(object.anon_bytes);
            *file = file.saturating_add(object.file_bytes);
        }
        for file in files {
            let (anon, backed) = resident.get(&file.path).copied().unzip();
            (file.resident_anon_bytes, file.resident_file_bytes) = (anon, backed);
        }
    }
}

/// As text, and exactly where that is not the same.
fn text(path: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(path) {
        Ok(path) => (path.to_owned(), None),
        Err(_) => (
            String::from_utf8_lossy(path).into_owned(),
            Some(base64::engine::general_purpose::STANDARD.encode(path)),
        ),
    }
}

/// The libraries of CUDA, by the names that they have before `.so`. (libicudata
/// is Unicode's.)
const CUDA: [&str; 21] = [
    "libcuda",
    "libcudart",
    "libcudadevrt",
    "libcublas",
    "libcublasLt",
    "libcudnn",
    "libcufft",
    "libcufftw",
    "libcufile",
    "libcupti",
    "libcurand",
    "libcusolver",
    "libcusolverMg",
    "libcusparse",
    "libcusparseLt",
    "libnccl",
    "libnvJitLink",
    "libnvToolsExt",
    "libnvrtc",
    "libnvrtc-builtins",
    "libnvidia-ml",
];

/// Which library of CUDA a file is: `libcudart.so.12`, `libcudnn_ops_infer.so.8`,
/// and wheels' `libcudart-d0da41ae.so.11.0`.
fn cuda(path: &str) -> Option<String> {
    let name = Path::new(path).file_name()?.to_str()?;
    let (stem, _) = name.split_once(".so")?;
    let known = |name: &str| CUDA.contains(&name).then(|| name.to_owned());
    let parts = |by: char| stem.split_once(by).and_then(|(first, _)| known(first));
    known(stem).or_else(|| parts('_')).or_else(|| parts('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_is_told_by_names() {
        for (path, name) in [
            ("/usr/lib/libcudart.so.12", Some("libcudart")),
            ("/x/libcudnn_ops_infer.so.8", Some("libcudnn")),
            ("/x/libcudart-d0da41ae.so.11.0", Some("libcudart")),
            ("/x/libnvrtc-builtins.so", Some("libnvrtc-builtins")),
            ("/usr/lib/libicudata.so.72", None),
            ("/usr/lib/libcudata.so", None),
            ("/usr/lib/libcuda", None),
        ] {
            assert_eq!(cuda(path).as_deref(), name, "{path}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        assert_eq!(text(b"/a"), ("/a".into(), None));
        assert_eq!(text(b"/\xff"), ("/\u{fffd}".into(), Some("L/8=".into())));
    }
}
