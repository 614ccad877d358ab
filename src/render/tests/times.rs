use super::super::{memory, times};
use super::{assert_tidy, process, record};
use crate::record::{BlockedCall, MemorySample, ObjectMemory, ProcSnapshot, Record, TimeShare};

const MS: u64 = 1_000_000;

fn share(lived: u64, cpu: u64, call: &str, blocked: u64) -> TimeShare {
    TimeShare {
        threads: 1,
        lifetime_ns: lived * MS,
        cpu_ns: cpu * MS,
        run_queue_ns: 2 * MS,
        blocked_ns: blocked * MS,
        other_ns: (lived - cpu - 2 - blocked) * MS,
        blocked: vec![BlockedCall {
            name: call.to_owned(),
            abi: "x86_64".to_owned(),
            calls: 3,
            blocked_ns: blocked * MS,
        }],
    }
}

/// Two processes of one thread each.
fn two() -> Record {
    let mut record = record(&["x"], None);
    let mut all = vec![process(0, None, &["sh"]), process(1, Some(0), &["sleep"])];
    for (process, time) in
        all.iter_mut().zip([share(100, 20, "wait4", 70), share(800, 5, "clock_nanosleep", 790)])
    {
        process.threads[0].tid = process.pid;
        process.threads[0].time = Some(time);
    }
    record.processes = Some(all);
    record.time = Some(TimeShare { threads: 2, ..share(900, 25, "clock_nanosleep", 860) });
    record
}

#[test]
fn threads_stand_by_their_lives_and_calls_by_the_time_blocked() {
    let text = times(&two(), 80);
    assert_tidy(&text, 80);
    let expected = " lived  on CPU runnable blocked   other thread: blocked in
800 ms 5.00 ms  2.00 ms  790 ms 3.00 ms 1201 sleep: clock_nanosleep 790 ms
100 ms 20.0 ms  2.00 ms 70.0 ms 8.00 ms 1200 sh: wait4 70.0 ms
900 ms 25.0 ms  2.00 ms  860 ms 13.0 ms all: clock_nanosleep 860 ms

blocked calls in
 860 ms     3 clock_nanosleep
";
    assert_eq!(text, expected);
}

#[test]
fn many_threads_are_cut_and_hostile_names_stay_within_the_width() {
    let mut record = two();
    let all = record.processes.as_mut().unwrap();
    let mut thread = all[0].threads[0].clone();
    thread.name = Some("\u{1b}[31m".repeat(20));
    all[0].threads = vec![thread; 60];
    let text = times(&record, 64);
    assert_tidy(&text, 64);
    assert!(text.contains("... 21 more\n"), "{text}");
}

#[test]
fn memory_stands_by_object_and_by_moment() {
    let mut record = two();
    let object = |object: &str, anon_bytes, file_bytes| ObjectMemory {
        object: object.to_owned(),
        size_bytes: 9 << 20,
        anon_bytes,
        file_bytes,
    };
    record.proc = Some(vec![ProcSnapshot {
        event: "exit".to_owned(),
        objects: Some(vec![
            object("[heap]", 4 << 20, 0),
            object("/usr/lib/libc.so.6", 1 << 20, 2 << 20),
            object("/usr/lib/unused.so", 0, 0),
        ]),
        ..ProcSnapshot::default()
    }]);
    record.processes.as_mut().unwrap()[1].memory = vec![MemorySample {
        at_ns: 5 * MS,
        event: "exit".to_owned(),
        anon_bytes: Some(4096),
        file_bytes: Some(1 << 20),
        shmem_bytes: None,
    }];
    let text = memory(&record, 80);
    assert_tidy(&text, 80);
    let expected = "anonymous of files  mapped object, at exit
  4.0 MiB      0 B 9.0 MiB [heap]
  1.0 MiB  2.0 MiB 9.0 MiB /usr/lib/libc.so.6

     at anonymous of files shared process, and when
5.00 ms   4.0 KiB  1.0 MiB      - 1201 sleep, exit
";
    assert_eq!(text, expected);
}
