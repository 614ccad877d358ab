//! The tables of regions and of the network.

use indexmap::IndexMap;

use super::*;
use crate::record::{NetworkRow, ProcessSyscall, Region};

fn call(name: &str, abi: &str, calls: u64) -> ProcessSyscall {
    ProcessSyscall { name: name.into(), abi: abi.into(), calls, ..ProcessSyscall::default() }
}

#[test]
fn regions_say_how_they_ended_and_escape_their_names() {
    let mut record = record(&["x"], None);
    assert_eq!(crate::render::regions(&record, 80), None);
    record.regions = Some(vec![
        Region {
            name: "a\x1b[2J".into(),
            times: 2,
            wall_ns: 1_500_000,
            calls: 3,
            errors: 1,
            syscalls: vec![
                ProcessSyscall {
                    errors: IndexMap::from([("ENOENT".into(), 1)]),
                    wall_ns: 2_000,
                    ..call("stat", "x86_64", 2)
                },
                call("getpid", "i386", 1),
            ],
            ..Region::default()
        },
        Region { name: "b".into(), times: 1, open_ended: true, ..Region::default() },
        Region { name: "c".into(), ..Region::default() },
    ]);
    let text = crate::render::regions(&record, 80).unwrap_or_default();
    let expected = "\
open for times calls errors region
 1.50 ms     2     3      1 a\\x1b[2J
    0 ns     1     0      0 b, to the run's end
    0 ns     0     0      0 c, which never began

   time calls errors in a\\x1b[2J
2.00 us     2      1 stat
   0 ns     1      - i386:getpid
coldtrace: times include tracing
";
    assert_eq!(text, expected);
    let shown = crate::render::summary(&record, 80);
    let line = "regions  3 regions; a\\x1b[2J: 3 calls in 1.50 ms; b: 0 calls in 0 ns\n         \
                c never began\n";
    assert!(shown.contains(line), "{shown}");
}

#[test]
fn addresses_are_escaped_and_say_what_is_known() {
    let mut record = record(&["x"], None);
    let row = |name: &str, family: &str, address: Option<&str>| NetworkRow {
        name: name.into(),
        abi: "x86_64".into(),
        family: Some(family.into()),
        address: address.map(str::to_owned),
        calls: 1,
        ..NetworkRow::default()
    };
    let typed = |row: NetworkRow, socket_type: &str, protocol: &str| NetworkRow {
        socket_type: Some(socket_type.into()),
        protocol: Some(protocol.into()),
        ..row
    };
    record.network = Some(vec![
        NetworkRow {
            errors: IndexMap::from([("ECONNREFUSED".into(), 1)]),
            regions: vec!["r".into()],
            ..typed(row("connect", "inet", Some("127.0.0.1:8125")), "dgram", "udp")
        },
        row("connect", "inet6", Some("[::1]:80")),
        typed(row("bind", "unix", Some("@a\0\x1b")), "stream", "0"),
        typed(row("socket", "packet", None), "raw", "768"),
        NetworkRow { family: None, ..row("connect", "", Some("<short>")) },
    ]);
    let text = crate::render::network(&record, 80).unwrap_or_default();
    let expected = "\
calls errors what
    1      1 connect 127.0.0.1:8125/udp by process 0: ECONNREFUSED (in r)
    1      - connect [::1]:80 by process 0
    1      - bind unix/stream @a\\x00\\x1b by process 0
    1      - socket packet/raw by process 0
    1      - connect ? <short> by process 0
";
    assert_eq!(text, expected);
}
