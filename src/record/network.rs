//! The `network` part of a record: sockets and their addresses.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::observe::{Kind, Network, NetworkKey, NetworkTally, OpenRegions, Timeline, family};
use crate::syscall::errno::errno_label;

/// What one process did by one call with one address, in the same regions. The
/// calls are socket, socketpair, connect, bind, and those of sendto, sendmsg and
/// sendmmsg that give an address; a sendmmsg counts once for each different one.
/// Those by socketcall(2) are here under their own names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NetworkRow {
    /// The process: an id of `processes`.
    pub process: u64,
    /// The call.
    pub name: String,
    /// As in `syscalls`.
    pub abi: String,
    /// `inet`, `inet6`, `unix`, `netlink`, `packet`, `vsock`, ..., or the number: the
    /// address's, or else the socket's. Null where neither is known.
    pub family: Option<String>,
    /// `stream`, `dgram`, `raw`, `seqpacket`, ..., or the number. Null of a socket that
    /// nobody was seen to make: inherited, or got from outside.
    #[serde(rename = "type")]
    pub socket_type: Option<String>,
    /// `tcp`, `udp`, `icmp`, ..., also where it was left to the kernel; of netlink
    /// `route`, `generic`, ...; of other families the number. Null as the type is.
    pub protocol: Option<String>,
    /// As the program gave it, when the call entered: `127.0.0.1:8125`, `[::1]:80`, a
    /// unix socket's path (as it was given), `@` and an abstract name, `<unnamed>`;
    /// of vsock `CID:PORT`. `<short>`: it has not the bytes of its family.
    /// `<unreadable>`: it could not be read. Invalid UTF-8 replaced. Absent of socket
    /// and socketpair, and of families that are not read (netlink, packet, ...).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Calls.
    pub calls: u64,
    /// Errors by errno name.
    pub errors: IndexMap<String, u64>,
    /// The regions in which these calls entered: names of `regions`, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
}

impl NetworkRow {
    /// All of a run.
    pub(super) fn all(network: &Network, timeline: &Timeline) -> Vec<Self> {
        let mut rows: Vec<Self> = Vec::new();
        let mut known: IndexMap<(NetworkKey, Vec<String>), usize> = IndexMap::new();
        for (key, tally) in &network.rows {
            let row = Self::of(key, tally, timeline.names_of([key.regions]));
            // What was open may have come to the same.
            let same = NetworkKey { regions: OpenRegions::NONE, ..key.clone() };
            let at = *known.entry((same, row.regions.clone())).or_insert(rows.len());
            match rows.get_mut(at) {
                Some(old) => old.add(row),
                None => rows.push(row),
            }
        }
        for row in &mut rows {
            row.errors.sort_keys();
        }
        rows
    }

    fn of(key: &NetworkKey, tally: &NetworkTally, regions: Vec<String>) -> Self {
        Self {
            process: key.process.0.into(),
            name: key.name.into(),
            abi: key.abi.name().into(),
            family: key.family.map(family),
            socket_type: key.kind.map(Kind::type_word),
            protocol: key.kind.map(Kind::protocol_word),
            address: key.address.clone(),
            calls: tally.calls,
            errors: tally.errors.iter().map(|(e, n)| (errno_label(*e).into(), *n)).collect(),
            regions,
        }
    }

    fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        for (errno, calls) in other.errors {
            let sum = self.errors.entry(errno).or_default();
            *sum = sum.saturating_add(calls);
        }
    }

    /// Calls that returned an error.
    pub fn error_count(&self) -> u64 {
        self.errors.values().fold(0, |sum, n| sum.saturating_add(*n))
    }
}
