//! Words for sockets and their addresses. Pure; what a program hands to the kernel
//! may be anything.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The most that an address has (`sockaddr_storage`, socket(7)), bytes.
pub const MOST: usize = 128;

/// `AF_` names (bits/socket.h) in small letters.
const FAMILIES: [(u16, &str); 24] = [
    (0, "unspec"),
    (1, "unix"),
    (2, "inet"),
    (3, "ax25"),
    (4, "ipx"),
    (5, "appletalk"),
    (9, "x25"),
    (10, "inet6"),
    (15, "key"),
    (16, "netlink"),
    (17, "packet"),
    (21, "rds"),
    (24, "pppox"),
    (29, "can"),
    (30, "tipc"),
    (31, "bluetooth"),
    (38, "alg"),
    (39, "nfc"),
    (40, "vsock"),
    (41, "kcm"),
    (42, "qipcrtr"),
    (43, "smc"),
    (44, "xdp"),
    (45, "mctp"),
];

const INET: u16 = 2;
const INET6: u16 = 10;
const UNIX: u16 = 1;
const NETLINK: u16 = 16;
const VSOCK: u16 = 40;

/// What socket(2) was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Kind {
    /// `AF_`.
    pub family: u16,
    /// `SOCK_`, without flags.
    pub socket_type: u8,
    /// A number of the family's own.
    pub protocol: u32,
}

/// A number's word, or the number.
fn word<N: Copy + PartialEq + ToString>(words: &[(N, &str)], number: N) -> String {
    let found = words.iter().find(|(n, _)| *n == number);
    found.map_or_else(|| number.to_string(), |(_, word)| (*word).to_owned())
}

/// `inet`, `unix`, ..., or the number.
pub fn family(number: u16) -> String {
    word(&FAMILIES, number)
}

/// Whether [`family`] can give this: a word, or a number (`AF_`).
pub fn is_family(word: &str) -> bool {
    FAMILIES.iter().any(|(_, known)| *known == word) || word.parse::<u16>().is_ok()
}

impl Kind {
    /// Of the arguments of socket(2) and socketpair(2); where no protocol was named,
    /// with the one that the kernel takes (ip(7)).
    pub fn asked(args: &[u64; 6]) -> Self {
        const TYPE: u64 = 0xf; // SOCK_TYPE_MASK (linux/net.h)
        const TCP: u32 = 6;
        const UDP: u32 = 17;
        let family = u16::try_from(args[0] as u32).unwrap_or(u16::MAX);
        let socket_type = (args[1] & TYPE) as u8;
        let protocol = match (family, socket_type, args[2] as u32) {
            (INET | INET6, 1, 0) => TCP,
            (INET | INET6, 2, 0) => UDP,
            (.., named) => named,
        };
        Self { family, socket_type, protocol }
    }

    /// `stream`, `dgram`, ..., or the number.
    pub fn type_word(self) -> String {
        let words = [
            (1, "stream"),
            (2, "dgram"),
            (3, "raw"),
            (4, "rdm"),
            (5, "seqpacket"),
            (6, "dccp"),
            (10, "packet"),
        ];
        word(&words, self.socket_type)
    }

    /// `tcp`, `udp`, ..., or the number.
    pub fn protocol_word(self) -> String {
        match (self.family, self.protocol) {
            (INET | INET6, number) => {
                let words = [
                    (1, "icmp"),
                    (2, "igmp"),
                    (6, "tcp"),
                    (17, "udp"),
                    (33, "dccp"),
                    (58, "ipv6-icmp"),
                    (132, "sctp"),
                    (136, "udplite"),
                    (255, "raw"),
                    (262, "mptcp"),
                ];
                word(&words, number)
            }
            (NETLINK, number) => {
                let words = [
                    (0, "route"),
                    (4, "sock-diag"),
                    (5, "nflog"),
                    (6, "xfrm"),
                    (7, "selinux"),
                    (9, "audit"),
                    (11, "connector"),
                    (12, "netfilter"),
                    (15, "kobject-uevent"),
                    (16, "generic"),
                ];
                word(&words, number)
            }
            (_, number) => number.to_string(),
        }
    }
}

/// The first two bytes of an address.
pub fn family_of(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.first_chunk()?))
}

/// An address as text; `<short>` where it has not the bytes that its family needs.
/// `None` of families whose addresses are not shown.
pub fn text(bytes: &[u8]) -> Option<String> {
    let short = || Some("<short>".to_owned());
    let Some(family) = family_of(bytes) else { return short() };
    let read = match family {
        INET => inet(bytes),
        INET6 => inet6(bytes),
        UNIX => Some(unix(bytes.get(2..).unwrap_or_default())),
        VSOCK => vsock(bytes),
        _ => return None,
    };
    read.or_else(short)
}

fn port(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?))
}

/// `sockaddr_in`, ip(7).
fn inet(bytes: &[u8]) -> Option<String> {
    let address: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
    Some(format!("{}:{}", Ipv4Addr::from(address), port(bytes)?))
}

/// `sockaddr_in6`, ipv6(7); older ones have no scope.
fn inet6(bytes: &[u8]) -> Option<String> {
    let address: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
    let mut text = format!("[{}", Ipv6Addr::from(address));
    let scope = bytes.get(24..).and_then(|rest| rest.first_chunk()).map(|b| u32::from_ne_bytes(*b));
    if let Some(scope) = scope.filter(|&scope| scope != 0) {
        let _ = write!(text, "%{scope}"); // A string takes all.
    }
    Some(format!("{text}]:{}", port(bytes)?))
}

/// The path of a `sockaddr_un`, unix(7).
fn unix(path: &[u8]) -> String {
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match path {
        [] => "<unnamed>".into(),
        // An abstract name is as long as the address, whatever bytes it has.
        [0, name @ ..] => format!("@{}", lossy(name)),
        path => lossy(path.split(|&byte| byte == 0).next().unwrap_or_default()),
    }
}

/// `sockaddr_vm`, vsock(7): `CID:PORT`.
fn vsock(bytes: &[u8]) -> Option<String> {
    let number = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    Some(format!("{}:{}", number(8)?, number(4)?))
}

#[cfg(test)]
mod tests {
    use libc::{AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_UNIX, AF_VSOCK};

    use super::*;

    fn of(family: u16, rest: &[u8]) -> Option<String> {
        text(&[&family.to_ne_bytes()[..], rest].concat())
    }

    #[test]
    fn addresses_are_written_as_people_write_them() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of(INET, &[0x1f, 0xbd, 127, 0, 0, 1]), some("127.0.0.1:8125"));
        let mut v6 = vec![0, 80, 9, 9, 9, 9];
        v6.extend(Ipv6Addr::LOCALHOST.octets());
        assert_eq!(of(INET6, &v6), some("[::1]:80"));
        v6.extend(7u32.to_ne_bytes());
        assert_eq!(of(INET6, &v6), some("[::1%7]:80"));
        assert_eq!(of(UNIX, b""), some("<unnamed>"));
        assert_eq!(of(UNIX, b"/run/s\0garbage"), some("/run/s"));
        assert_eq!(of(UNIX, b"relative"), some("relative"));
        assert_eq!(of(UNIX, b"\0a\0b"), some("@a\0b"));
        assert_eq!(of(UNIX, b"/\xff"), some("/\u{fffd}"));
        let vm: Vec<u8> = [0u32, 1024, 3].iter().flat_map(|n| n.to_ne_bytes()).skip(2).collect();
        assert_eq!(of(VSOCK, &vm), some("3:1024"));
        assert_eq!(of(NETLINK, &[0; 10]), None);
    }

    #[test]
    fn no_length_is_too_odd() {
        for family in 0..60u16 {
            for length in 0..=MOST {
                let bytes: Vec<u8> = family.to_ne_bytes().into_iter().chain([0xff; MOST]).collect();
                let text = text(&bytes[..length]);
                if length < 2 {
                    assert_eq!(text.as_deref(), Some("<short>"));
                }
            }
        }
        assert_eq!(of(INET, &[1, 2, 3, 4, 5]).as_deref(), Some("<short>"));
        assert_eq!(of(INET6, &[0; 21]).as_deref(), Some("<short>"));
    }

    #[test]
    fn what_was_asked_for_has_words() {
        let words = |family: i32, socket_type: i32, protocol: u64| {
            let kind = Kind::asked(&[family as u64, socket_type as u64, protocol, 0, 0, 0]);
            let (family, protocol) = (super::family(kind.family), kind.protocol_word());
            format!("{family} {} {protocol}", kind.type_word())
        };
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        assert_eq!(words(AF_INET, libc::SOCK_STREAM | flags, 0), "inet stream tcp");
        assert_eq!(words(AF_INET6, libc::SOCK_DGRAM, 0), "inet6 dgram udp");
        assert_eq!(words(AF_INET, libc::SOCK_RAW, 1), "inet raw icmp");
        assert_eq!(words(AF_INET, libc::SOCK_STREAM, 262), "inet stream mptcp");
        assert_eq!(words(AF_UNIX, libc::SOCK_SEQPACKET, 0), "unix seqpacket 0");
        assert_eq!(words(AF_NETLINK, libc::SOCK_RAW, 16), "netlink raw generic");
        assert_eq!(words(AF_PACKET, libc::SOCK_DGRAM, 3), "packet dgram 3");
        assert_eq!(words(AF_VSOCK, libc::SOCK_STREAM, 0), "vsock stream 0");
        assert_eq!(words(77, 9, 0), "77 9 0");
        assert_eq!(words(-1, 1, 0), "65535 stream 0");
    }
}
