//! Who brought each mapped file, and what of it was resident: libraries made for it, linked, opened
//! while running, needed by one of those, preloaded, gone.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use coldtrace::record::{MappedFile, Record};
use support::board::{field, until};
use support::process::{finish, start};
use support::{Scratch, coldtrace, find_program, is_root, read_record, skip};

/// 1 MiB that is written to, and 1 MiB that is only read.
const BIG: &str = "
#include <stddef.h>
char written[1 << 20] = {1};
const char constant[1 << 20] = {1};
int big(void)
{
    int sum = 0;
    for (size_t at = 0; at < sizeof written; at += 4096) {
        ((volatile char *)written)[at] = 2;
        sum += ((const volatile char *)constant)[at];
    }
    return sum;
}
";

/// Does what its arguments say: `open PATH` (dlopen), `map PATH` (mmap), `unlink PATH`, `held PATH`
/// (unlink, then dlopen through a descriptor), `big` (see above), `wait` (for ever).
const TOOL: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef LINKED
int big(void);
#else
static int big(void) { return 1; }
#endif
static void load(const char *path)
{
    if (!dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
}
int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *path = argv[i + 1];
        if (strcmp(argv[i], "big") == 0) {
            if (big() != 1)
                return 3;
            continue;
        } else if (strcmp(argv[i], "wait") == 0) {
            for (;;)
                pause();
        }
        i++;
        if (strcmp(argv[i - 1], "open") == 0) {
            load(path);
        } else if (strcmp(argv[i - 1], "map") == 0) {
            int fd = open(path, O_RDONLY);
            if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
                return 4;
            close(fd);
        } else if (strcmp(argv[i - 1], "unlink") == 0) {
            unlink(path);
        } else if (strcmp(argv[i - 1], "held") == 0) {
            char name[64];
            snprintf(name, sizeof name, "/proc/self/fd/%d", open(path, O_RDONLY));
            unlink(path);
            load(name);
        } else {
            return 5;
        }
    }
    return 0;
}
"#;

/// A directory with programs and libraries.
struct Set {
    dir: PathBuf,
    scratch: Scratch,
}

impl Set {
    /// None after saying why there is none.
    ///
    /// | file | DT_SONAME | DT_NEEDED |
    /// |---|---|---|
    /// | libbig-1.0.so, by the link libbig.so.1 | libbig.so.1 | |
    /// | tool | | libbig.so.1 |
    /// | plain | | |
    /// | plugin.so | plugin.so | libdeep.so, libshared.so |
    /// | deep-real.so, by the link libdeep.so | | |
    /// | libshared.so, libpre.so, other.so | | |
    fn new() -> Option<Self> {
        if find_program("gcc").is_none() {
            skip("no gcc");
            return None;
        }
        let scratch = Scratch::new("mapped");
        let dir = scratch.root().canonicalize().expect("it was just made");
        let set = Self { dir, scratch };
        let write = |name: &str, text: &str| {
            std::fs::write(set.path(name), text).expect("scratch can be written");
        };
        write("big.c", BIG);
        write("tool.c", TOOL);
        for name in ["deep", "shared", "pre", "plugin", "other"] {
            write(
                &format!("{name}.c"),
                &format!("int {name}_;\nvoid {name}(void) {{ {name}_++; }}\n"),
            );
        }
        set.gcc(&["-shared", "-o", "libbig-1.0.so", "big.c", "-Wl,-soname,libbig.so.1"]);
        set.gcc(&["-shared", "-o", "deep-real.so", "deep.c"]);
        for (name, target) in [("libbig.so.1", "libbig-1.0.so"), ("libdeep.so", "deep-real.so")] {
            std::os::unix::fs::symlink(target, set.path(name)).expect("scratch can be written");
        }
        set.gcc(&["-shared", "-o", "libshared.so", "shared.c"]);
        set.gcc(&["-shared", "-o", "libpre.so", "pre.c"]);
        set.gcc(&["-shared", "-o", "other.so", "other.c"]);
        set.gcc(&[
            "-shared",
            "-o",
            "plugin.so",
            "plugin.c",
            "-l:libdeep.so",
            "-l:libshared.so",
            "-Wl,-soname,plugin.so",
        ]);
        set.gcc(&["-o", "tool", "-DLINKED", "tool.c", "-l:libbig.so.1", "-ldl"]);
        set.gcc(&["-o", "plain", "tool.c", "-ldl"]);
        Some(set)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn gcc(&self, words: &[&str]) {
        let mut command = Command::new("gcc");
        command.args(["-O1", "-fPIC", "-L.", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]);
        finish(command.args(words).current_dir(&self.dir)).assert_code(0);
    }

    /// The record of `coldtrace run OPTIONS -- WORDS` in the directory.
    fn run(&self, options: &[&str], words: &[&str]) -> Record {
        let mut command = coldtrace("run");
        command.arg("--runs").arg(self.scratch.path("runs")).args(["--output", "pass"]);
        command.args(options).arg("--").args(words);
        let finished = finish(command.current_dir(&self.dir));
        finished.assert_code(0);
        read_record(&self.scratch.path("runs/latest/record.json"), &finished)
    }

    /// By name: how it came in, and who needs it, by names.
    fn came(&self, record: &Record) -> Vec<(String, Option<String>, Option<String>)> {
        let below = format!("{}/", self.dir.display());
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let mut found: Vec<_> = mapped(record)
            .iter()
            .filter(|file| file.path.starts_with(&below))
            .map(|file| {
                let needed_by = file
                    .needed_by
                    .as_ref()
                    .map(|paths| paths.iter().map(|path| name(path)).collect::<Vec<_>>().join(" "));
                (name(&file.path), file.came_by.as_ref().map(|by| by.join(" ")), needed_by)
            })
            .collect();
        found.sort();
        found
    }
}

fn mapped(record: &Record) -> &[MappedFile] {
    record.mapped.as_deref().expect("the record has mapped")
}

#[track_caller]
fn the_file<'r>(record: &'r Record, name: &str) -> &'r MappedFile {
    let named = |file: &&MappedFile| Path::new(&file.path).file_name().is_some_and(|n| n == name);
    mapped(record).iter().find(named).unwrap_or_else(|| panic!("{name}: {:?}", record.mapped))
}

/// As `came` gives it; `-` where it is not known.
fn expected(lines: &[(&str, &str, &str)]) -> Vec<(String, Option<String>, Option<String>)> {
    let known = |text: &str| (text != "-").then(|| text.to_owned());
    lines.iter().map(|(name, by, who)| ((*name).to_owned(), known(by), known(who))).collect()
}

#[test]
fn each_file_says_who_brought_it() {
    let Some(set) = Set::new() else { return };
    std::fs::write(set.path("garbage"), b"\x7fELF, but not really".repeat(300)).expect("scratch");
    let whole = std::fs::read(set.path("libbig-1.0.so")).expect("it is there");
    std::fs::write(set.path("truncated"), &whole[..100]).expect("scratch can be written");
    let plugin = "plugin.so";
    let words = [
        "./tool",
        "open",
        "./plugin.so",
        "map",
        "garbage",
        "map",
        "truncated",
        "open",
        "./other.so",
    ];
    let record = set.run(&["-E", "LD_PRELOAD=./libpre.so"], &words);
    assert_eq!(
        set.came(&record),
        expected(&[
            ("deep-real.so", "needed", plugin),
            ("garbage", "mmap", ""),
            ("libbig-1.0.so", "needed", "tool"),
            ("libpre.so", "preload", ""),
            ("libshared.so", "needed", plugin),
            ("other.so", "dlopen", ""),
            (plugin, "dlopen", ""),
            ("tool", "exec", ""),
            ("truncated", "mmap", ""),
        ])
    );
    // The loader is what the program asks for, wherever that link leads.
    let loaders: Vec<&str> = mapped(&record)
        .iter()
        .filter(|file| file.came_by.as_ref().is_some_and(|by| *by == ["loader"]))
        .map(|file| file.path.as_str())
        .collect();
    let asked = Path::new("/lib64/ld-linux-x86-64.so.2").canonicalize();
    let Ok(asked) = asked else { return skip("another loader") };
    assert_eq!(loaders, [asked.to_string_lossy()]);
    let libc = the_file(&record, "libc.so.6").needed_by.as_deref().unwrap_or_default();
    assert!(libc.len() >= 7, "all of ours but the data need libc: {libc:?}");
}

#[test]
fn what_was_opened_before_somebody_needed_it_was_not_brought_by_that() {
    let Some(set) = Set::new() else { return };
    let record = set.run(&[], &["./plain", "open", "./libshared.so", "open", "./plugin.so"]);
    assert_eq!(
        set.came(&record),
        expected(&[
            ("deep-real.so", "needed", "plugin.so"),
            ("libshared.so", "dlopen", "plugin.so"),
            ("plain", "exec", ""),
            ("plugin.so", "dlopen", ""),
        ])
    );
}

#[test]
fn programs_are_judged_apart_and_their_words_merged() {
    let Some(set) = Set::new() else { return };
    // The same library: linked to one, opened by the other; an exec in between.
    let script = "./tool; exec ./plain open ./libbig.so.1";
    let record = set.run(&[], &["sh", "-c", script]);
    assert_eq!(
        set.came(&record),
        expected(&[
            ("libbig-1.0.so", "needed dlopen", "tool"),
            ("plain", "exec", ""),
            ("tool", "exec", ""),
        ])
    );
}

#[test]
fn what_has_no_name_any_more_is_known_only_if_it_was_gone_before() {
    let Some(set) = Set::new() else { return };
    std::fs::copy(set.path("other.so"), set.path("gone.so")).expect("scratch can be written");
    let record = set.run(&[], &["./plain", "held", "gone.so", "open", "./other.so"]);
    assert_eq!(
        set.came(&record),
        expected(&[("gone.so", "dlopen", ""), ("other.so", "dlopen", ""), ("plain", "exec", "")])
    );
    std::fs::copy(set.path("other.so"), set.path("gone.so")).expect("scratch can be written");
    let words = ["./plain", "open", "./gone.so", "unlink", "gone.so", "open", "./other.so"];
    let record = set.run(&[], &words);
    // It may have needed what came after it, and anything may.
    assert_eq!(
        set.came(&record),
        expected(&[("gone.so", "-", ""), ("other.so", "-", "-"), ("plain", "exec", "-")])
    );
}

#[test]
fn what_was_mapped_before_anybody_watched_is_judged_too() {
    let Some(set) = Set::new() else { return };
    let mut command = Command::new(set.path("tool"));
    command.env("LD_PRELOAD", set.path("libpre.so")).args(["open", "./plugin.so", "wait"]);
    let running = start(command.current_dir(&set.dir));
    let maps = || std::fs::read_to_string(format!("/proc/{}/maps", running.pid()));
    let asleep = || field(&running.pid().to_string(), "State").starts_with('S');
    until("the plugin to be there", || {
        (asleep() && maps().is_ok_and(|maps| maps.contains("plugin.so"))).then_some(())
    });
    let report = set.scratch.path("report.json");
    let mut command = coldtrace("files");
    command.args(["--json", "--duration", "100ms", "-p", &running.pid().to_string(), "-o"]);
    let finished = finish(command.arg(&report));
    running.kill(libc::SIGKILL);
    let record = read_record(&report, &finished);
    assert_eq!(
        set.came(&record),
        expected(&[
            // By which link it was opened, nobody has seen.
            ("deep-real.so", "-", "-"),
            ("libbig-1.0.so", "needed", "tool"),
            ("libpre.so", "preload", ""),
            ("libshared.so", "needed", "plugin.so"),
            ("plugin.so", "dlopen", ""),
            ("tool", "exec", ""),
        ])
    );
    let loader = mapped(&record).iter().find(|file| file.path.contains("/ld-"));
    let by = loader.and_then(|file| file.came_by.clone()).unwrap_or_default();
    assert_eq!(by, ["loader"], "{loader:?}");
}

#[test]
fn files_of_another_mount_namespace_are_read_there() {
    if !is_root() || find_program("unshare").is_none() {
        return skip("a mount namespace needs root and unshare");
    }
    let Some(set) = Set::new() else { return };
    let inner = set.path("inner");
    std::fs::create_dir(&inner).expect("scratch can be written");
    let script = "mount -t tmpfs none inner || exit 77
        cp tool libbig.so.1 inner/ && exec inner/tool big";
    let mut command = coldtrace("run");
    command.arg("--runs").arg(set.scratch.path("runs")).args(["--", "unshare", "-m", "sh", "-c"]);
    let finished = finish(command.arg(script).current_dir(&set.dir));
    if finished.code() != Some(0) {
        return skip("no private tmpfs here");
    }
    assert!(!inner.join("tool").exists(), "it was to be seen from here");
    let record = read_record(&set.scratch.path("runs/latest/record.json"), &finished);
    let library = the_file(&record, "libbig.so.1");
    assert_eq!(library.came_by.as_deref(), Some(&["needed".to_owned()][..]), "{library:?}");
    let tool = inner.join("tool").to_string_lossy().into_owned();
    assert_eq!(library.needed_by.as_deref(), Some(&[tool][..]), "{library:?}");
}

const MIB: u64 = 1 << 20;
/// What is beside the two arrays, and what the kernel maps around what was asked for.
const LEEWAY: u64 = 256 << 10;

#[test]
fn resident_memory_has_its_file() {
    let Some(set) = Set::new() else { return };
    let memory = |record: &Record, name: &str| {
        let file = the_file(record, name);
        file.resident_anon_bytes.zip(file.resident_file_bytes)
    };
    let record = set.run(&[], &["./tool", "big"]);
    let (anon, file) = memory(&record, "libbig-1.0.so").expect("it was mapped at the end");
    assert!((MIB..MIB + LEEWAY).contains(&anon), "{anon} bytes were written to");
    assert!((MIB..MIB + LEEWAY).contains(&file), "{file} bytes were read");
    // Neither is touched.
    let record = set.run(&[], &["./tool"]);
    let (anon, _) = memory(&record, "libbig-1.0.so").expect("it was mapped at the end");
    assert!(anon < LEEWAY, "{anon} bytes were written to");
    // In another process, and in the root no more; and not asked for.
    let record = set.run(&[], &["sh", "-c", "./tool big; exec ./plain"]);
    assert_eq!(memory(&record, "libbig-1.0.so"), None);
    assert!(memory(&record, "plain").is_some_and(|(_, file)| file > 0));
    let record = set.run(&["--snapshot", "off"], &["./tool", "big"]);
    assert_eq!(memory(&record, "libbig-1.0.so"), None);
}

#[test]
fn show_names_who_brought_what() {
    let Some(set) = Set::new() else { return };
    set.run(&[], &["./tool", "big", "open", "./plugin.so"]);
    let mut show = coldtrace("show");
    show.arg("--mapped").arg("--runs").arg(set.scratch.path("runs"));
    let shown = finish(&mut show);
    shown.assert_code(0);
    let text = shown.out();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let line = |name: &str| {
        let line = text.lines().find(|line| line.ends_with(name));
        line.unwrap_or_else(|| panic!("{name} in\n{text}")).to_owned()
    };
    for (name, by) in [
        ("/libbig-1.0.so", " tool "),
        ("/plugin.so", " dlopen "),
        ("/deep-real.so", " plugin "),
        ("/tool", " exec "),
    ] {
        assert!(line(name).contains(by), "{by} in {}", line(name));
    }
}
