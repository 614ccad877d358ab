//! Calls that do the same for a program: which of them it makes depends on the
//! architecture and the C library.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::syscall::{Abi, Sys};

/// The families, one a line: its name, then its calls.
const TABLE: &str = include_str!("../../syscall-tables/families.txt");

/// `families` of a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Families {
    /// Those of `syscall-tables/families.txt`.
    #[default]
    Default,
    /// Every call stands for itself.
    None,
}

static MEMBERS: LazyLock<BTreeMap<&str, &str>> = LazyLock::new(|| {
    lines().flat_map(|(name, calls)| calls.map(move |call| (call, name))).collect()
});

fn lines() -> impl Iterator<Item = (&'static str, impl Iterator<Item = &'static str>)> {
    TABLE.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        Some((words.next()?, words))
    })
}

impl Families {
    /// The family of a call, else its own name. A call of another table than the
    /// platform's belongs to the same family (`open@i386` is an open).
    pub fn of(self, name: &str) -> &str {
        let plain = plain(name);
        match self {
            Self::Default => MEMBERS.get(plain).copied().unwrap_or(plain),
            Self::None => name,
        }
    }

    /// All calls of the family of a call.
    pub fn members(self, name: &str) -> Vec<&str> {
        let family = match self {
            Self::Default => MEMBERS.get(name),
            Self::None => None,
        };
        let members = |family: &&str| {
            MEMBERS.iter().filter(|(_, f)| *f == family).map(|(call, _)| *call).collect()
        };
        family.map_or_else(|| vec![name], members)
    }
}

/// The name without its table's.
pub fn plain(name: &str) -> &str {
    name.split_once('@').map_or(name, |(plain, _)| plain)
}

/// Whether there is such a call: `openat`, `open@i386`, `syscall_0x1d9`.
///
/// # Errors
/// Why there is none, as one line.
pub fn known(name: &str) -> Result<(), String> {
    let plain = plain(name);
    let named = |abi: Abi| Sys::from_name(abi, plain).is_some();
    if plain.starts_with("syscall_") || Abi::ALL.into_iter().any(named) {
        Ok(())
    } else {
        Err(format!("\"{name}\" is no system call"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_is_a_call_and_in_one_family_only() {
        let mut seen = BTreeMap::new();
        for (family, calls) in lines() {
            for call in calls {
                known(call).unwrap();
                assert_eq!(seen.insert(call, family), None, "{call}");
            }
        }
        assert!(seen.len() > 50);
    }

    #[test]
    fn what_differs_by_library_is_the_same() {
        let family = Families::Default;
        assert_eq!(family.of("open"), family.of("openat"));
        assert_eq!(family.of("fstat"), family.of("newfstatat"));
        assert_eq!(family.of("open@i386"), family.of("openat2"));
        assert_eq!(family.of("vfork"), family.of("clone3"));
        assert_ne!(family.of("read"), family.of("pread64"));
        assert_eq!(Families::None.of("open"), "open");
        assert!(family.members("fork").contains(&"clone"));
        assert_eq!(family.members("brk"), ["brk"]);
    }
}
