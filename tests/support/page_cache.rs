//! Files whose place in memory a test decides, with fixtures/page-cache.c, and commands that read
//! them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::fixture::{Program, SKIPPED, built};
use super::process::finish;
use super::{Scratch, skip};

/// Files of a set, and their size: 60 MiB.
pub const FILES: usize = 60;
/// Bytes of each.
pub const SIZE: usize = 1 << 20;

/// A Python that every user can execute.
pub const PYTHON: &str = "/usr/bin/python3";

/// Reads what lies beside it, as packages do that load libraries and data.
const PACKAGE: &str = "
import os
here = os.path.dirname(__file__)
for name in sorted(os.listdir(here)):
    if name.startswith('part-'):
        with open(os.path.join(here, name), 'rb') as file:
            data = file.read()
    elif name.endswith('.py') and name != '__init__.py':
        __import__('package.' + name[:-3])
";

/// Modules of the package, beside its data.
const MODULES: usize = 20;

/// Who evicts files, or judges how warm they are: what is evicted are everybody's libraries too.
/// One at a time, also of several test programs.
pub struct Alone {
    _lock: File,
    _guard: MutexGuard<'static, ()>,
}

/// Waits until nobody else is [`Alone`].
pub fn alone() -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-cache.lock");
    let lock = File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    lock.lock().expect("it can be locked");
    Alone { _lock: lock, _guard: guard }
}

/// Fills a file with so many bytes, no two blocks alike and none of zeros: nothing that could be
/// kept smaller.
pub fn fill(path: &Path, size: usize, state: &mut u64) {
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend_from_slice(&state.to_ne_bytes());
    }
    std::fs::write(path, bytes).expect("scratch can be written");
}

/// Gives something to the user that `nobody` is.
pub fn give(path: &Path) {
    std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("root may");
}

/// Where the files are that a command reads, and the command.
pub struct Data {
    pub directory: PathBuf,
    pub program: Program,
    /// The command is an import of a package that has them; else it is the fixture.
    pub python: bool,
    _scratch: Option<Scratch>,
    _alone: Option<Alone>,
}

impl Data {
    /// Made anew, and alone; none after saying why not.
    pub fn new() -> Option<Self> {
        let program = built("page-cache")?;
        let scratch = Scratch::new("cache");
        let directory = scratch.path("package");
        std::fs::create_dir(&directory).expect("scratch can be written");
        let (alone, scratch) = (Some(alone()), Some(scratch));
        let data = Self { directory, program, python: false, _scratch: scratch, _alone: alone };
        let mut state = 1;
        data.files().iter().for_each(|file| fill(file, SIZE, &mut state));
        Some(data)
    }

    /// Those that another has made, who is alone.
    pub fn within(directory: PathBuf) -> Option<Self> {
        let python = directory.join("__init__.py").exists();
        let program = built("page-cache")?;
        Some(Self { directory, program, python, _scratch: None, _alone: None })
    }

    /// Made anew, and it is a package; none after saying why not.
    pub fn package() -> Option<Self> {
        if !Path::new(PYTHON).is_file() {
            skip("no python3");
            return None;
        }
        let data = Self { python: true, ..Self::new()? };
        let module = |name: &str, text: &str| {
            std::fs::write(data.directory.join(name), text).expect("as the files were");
        };
        module("__init__.py", PACKAGE);
        for n in 0..MODULES {
            module(&format!("module_{n}.py"), &"def f(x):\n    return x + 1\n\n\n".repeat(200));
        }
        Some(data)
    }

    /// The files that nobody else reads.
    pub fn files(&self) -> Vec<PathBuf> {
        (0..FILES).map(|n| self.directory.join(format!("part-{n:02}"))).collect()
    }

    /// The fixture, told to do this with files.
    pub fn fixture(&self, what: &str, files: &[PathBuf]) -> Command {
        let mut command = Command::new(&self.program.path);
        command.arg(what).args(files);
        command
    }

    /// The command, as words: it reads all files.
    pub fn words(&self) -> Vec<PathBuf> {
        if self.python {
            return [PYTHON, "-c", "import package"].map(PathBuf::from).to_vec();
        }
        [self.program.path.clone(), "read".into()].into_iter().chain(self.files()).collect()
    }

    /// What its environment is to have, as `PYTHONPATH` has it.
    pub fn module_path(&self) -> &Path {
        self.directory.parent().expect("it has one")
    }

    /// What is in memory of files, and what they are in pages, by the fixture; `None` where it is
    /// not told.
    pub fn resident(&self, files: &[PathBuf]) -> Option<u64> {
        let finished = finish(&mut self.fixture("resident", files));
        if finished.code() == Some(SKIPPED) {
            return None;
        }
        finished.assert_code(0);
        let (resident, all) = two_numbers(&finished.out());
        assert!(resident <= all && all >= files.len() as u64, "{finished}");
        Some(resident)
    }
}

/// What the fixture prints of files: bytes in memory, all bytes.
pub fn two_numbers(line: &str) -> (u64, u64) {
    let (resident, all) = line.trim().split_once(' ').expect("two numbers");
    (resident.parse().expect("a number"), all.parse().expect("a number"))
}
