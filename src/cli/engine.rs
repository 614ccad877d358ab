//! Options that say how calls are counted.

use coldtrace::tracer::{Engines, FastOptions};

use super::end::Failure;

/// How calls are counted.
#[derive(Debug, clap::Args)]
pub struct EngineArgs {
    /// How calls are counted: `fast` has processes count by themselves once they have
    /// made some; `ptrace` stops each call; `auto` is fast where that can be
    #[arg(long, value_name = "ENGINE", default_value = "auto", hide_possible_values = true)]
    engine: EngineName,
    /// Where processes count by themselves: leave the code of files alone whose path matches this;
    /// may be given more than once
    #[arg(long, value_name = "GLOB", hide_short_help = true)]
    no_patch: Vec<String>,
    /// Calls that a program makes before it counts by itself
    #[arg(long, value_name = "N", hide = true)]
    tier_up_after: Option<u32>,
}

/// `--engine`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineName {
    /// Fast where that can be
    Auto,
    /// Every call stops
    Ptrace,
    /// Processes count by themselves
    Fast,
}

impl EngineArgs {
    /// What the tracer is to do.
    pub fn engines(&self) -> Result<Engines, Failure> {
        if self.engine == EngineName::Ptrace {
            return Ok(Engines::Ptrace);
        }
        let mut fast = FastOptions::default();
        if let Some(after) = self.tier_up_after {
            fast.after = after;
        }
        let mut patterns = globset::GlobSetBuilder::new();
        for pattern in &self.no_patch {
            let glob = globset::Glob::new(pattern);
            patterns
                .add(glob.map_err(|e| Failure::own(format_args!("--no-patch {pattern}: {e}")))?);
        }
        fast.not_patched = patterns.build().map_err(Failure::own)?;
        Ok(if self.engine == EngineName::Auto { Engines::Auto(fast) } else { Engines::Fast(fast) })
    }
}
