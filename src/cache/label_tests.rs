//! Tests of the label: cases by hand, and runs of made-up machines whose truth is known.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

/// 60 MiB measured of 60, MiB before and read.
fn run(before: u64, input: u64) -> Signals {
    Signals {
        before_bytes: Some(before * MIB),
        after_bytes: Some(60 * MIB),
        set_bytes: Some(60 * MIB),
        size_bytes: 60 * MIB,
        accounting: Accounting::Whole,
        block_input_bytes: Some(input * MIB),
        major_faults: Some(0),
        ..Signals::default()
    }
}

/// The same, but nothing could be measured.
fn unmeasured(input: u64) -> Signals {
    Signals { before_bytes: None, after_bytes: None, unmeasured_bytes: 60 * MIB, ..run(0, input) }
}

#[track_caller]
fn is(signals: Signals, label: Label) {
    let verdict = signals.label();
    assert_eq!(verdict.label, label, "{signals:?}: {}", verdict.evidence);
    assert_eq!(verdict.basis.is_none(), label == Label::Unknown);
    assert!(!verdict.evidence.is_empty() && !verdict.evidence.contains('\n'));
}

#[test]
fn by_residency() {
    is(run(0, 60), Label::Cold);
    is(run(3, 57), Label::Cold);
    is(run(4, 56), Label::Lukewarm);
    is(run(30, 30), Label::Lukewarm);
    is(run(56, 4), Label::Lukewarm);
    is(run(57, 0), Label::Warm);
    is(run(60, 0), Label::Warm);
    // Files beside the set were read too.
    is(run(0, 200), Label::Cold);
    // A tenth may be holes, or have come otherwise.
    is(run(0, 54), Label::Cold);
    assert_eq!(run(0, 60).label().basis, Some(Basis::Residency));
}

#[test]
fn where_signals_disagree_nothing_is_said() {
    // Nothing was there, and nothing read: another process read it meanwhile.
    is(run(0, 0), Label::Unknown);
    is(run(0, 53), Label::Unknown);
    is(run(30, 26), Label::Unknown);
    is(run(30, 0), Label::Unknown);
    // All was there, and much read: it went before the run came to it.
    is(run(60, 60), Label::Unknown);
    is(run(60, 2), Label::Unknown);
    // The 5 % that may be missing were: warm by one signal, not by the other.
    is(run(57, 3), Label::Unknown);
    is(run(30, 60), Label::Unknown);
    is(Signals { major_faults: Some(2000), ..run(60, 0) }, Label::Unknown);
    is(Signals { major_faults: Some(2), ..run(60, 0) }, Label::Warm);
    // A large set on disk of which the run reads little: all that it reads was missing.
    let partly = Signals {
        before_bytes: Some(990 * MIB),
        after_bytes: Some(1000 * MIB),
        set_bytes: Some(10 * MIB),
        size_bytes: 1000 * MIB,
        ..run(0, 10)
    };
    assert_ne!(partly.label().label, Label::Warm);
}

#[test]
fn what_cannot_be_evicted_is_in_no_ratio() {
    is(Signals { pinned_bytes: 20 * MIB, ..run(0, 60) }, Label::Cold);
    is(Signals { pinned_bytes: 20 * MIB, ..run(60, 0) }, Label::Warm);
    // But cold is not said where most of it was in memory all along.
    is(Signals { pinned_bytes: 61 * MIB, ..run(0, 60) }, Label::Lukewarm);
}

#[test]
fn what_stayed_after_an_eviction_was_in_memory() {
    let stayed = Signals { stayed_bytes: 25 * MIB, ..run(25, 35) };
    is(stayed, Label::Lukewarm);
    assert_eq!(
        stayed.label().evidence,
        "25.0 MiB of 60.0 MiB were in memory, 25.0 MiB stayed after the eviction, 35.0 MiB read"
    );
}

/// 3 MiB needed of a file of 400 MiB that is mapped: a fault for each page.
fn mapped(input: u64) -> Signals {
    Signals {
        set_bytes: Some(400 * MIB),
        size_bytes: 400 * MIB,
        unmeasured_bytes: 400 * MIB,
        minor_faults: Some(100),
        major_faults: Some(input * MIB / 4096),
        ..unmeasured(input)
    }
}

#[test]
fn of_what_is_mapped_only_what_faults_is_sure_to_be_needed() {
    is(mapped(3), Label::Unknown);
    is(mapped(0), Label::Warm);
    // Fewer faults, since more is read at each: it is needed, or was read ahead.
    is(Signals { major_faults: Some(24), ..mapped(3) }, Label::Unknown);
    // The same by residency, where most of the file was there, but not what was needed.
    let measured =
        |before| Signals { before_bytes: Some(before), after_bytes: Some(400 * MIB), ..mapped(3) };
    is(Signals { unmeasured_bytes: 0, ..measured(397 * MIB) }, Label::Unknown);
    let whole = Signals { unmeasured_bytes: 0, block_input_bytes: Some(0), ..measured(400 * MIB) };
    is(Signals { major_faults: Some(0), ..whole }, Label::Warm);
    // What is read by calls is needed.
    let read = Signals { read_bytes: 400 * MIB, block_input_bytes: Some(3 * MIB), ..mapped(0) };
    is(read, Label::Warm);
}

#[test]
fn cold_runs_are_the_scale_of_one_that_nobody_measured() {
    // A program of 100 MiB, of which 69 are needed.
    let of = |input: u64| Signals {
        set_bytes: Some(100 * MIB),
        size_bytes: 100 * MIB,
        cold_bytes: Some(69 * MIB),
        ..unmeasured(input)
    };
    is(Signals { cold_bytes: None, ..of(66) }, Label::Unknown);
    is(of(66), Label::Cold);
    is(of(69), Label::Cold);
    is(of(75), Label::Cold);
    is(of(78), Label::Unknown);
    is(of(64), Label::Unknown);
    is(of(62), Label::Lukewarm);
    is(of(7), Label::Lukewarm);
    is(of(6), Label::Unknown);
    is(of(1), Label::Unknown);
    is(of(0), Label::Warm);
    is(Signals { major_faults: Some(2000), ..of(0) }, Label::Unknown);
    assert_eq!(of(66).label().basis, Some(Basis::BlockInput));
    let said = |signals: Signals| signals.label().evidence;
    assert_eq!(said(of(34)), "34.0 MiB read, 69.0 MiB by cold runs");
    assert_eq!(
        said(Signals { cold_bytes: None, ..of(66) }),
        "66.0 MiB of at most 100.0 MiB read: how much it needs is not known"
    );
    // Compressed or not: so were they. But who read must be known, and have been waited for.
    is(Signals { accounting: Accounting::Part, ..of(66) }, Label::Cold);
    is(Signals { accounting: Accounting::None, ..of(66) }, Label::Unknown);
    is(Signals { accounting: Accounting::Unwaited, ..of(0) }, Label::Unknown);
    // So little may have been directories alone.
    is(Signals { cold_bytes: Some(MIB / 2), ..of(1) }, Label::Unknown);
    is(Signals { cold_bytes: Some(0), ..of(1) }, Label::Unknown);
    // What was measured is measured.
    is(Signals { cold_bytes: Some(69 * MIB), ..run(30, 30) }, Label::Lukewarm);
}

#[test]
fn by_block_input() {
    is(unmeasured(0), Label::Warm);
    is(unmeasured(1), Label::Unknown);
    is(unmeasured(30), Label::Unknown);
    is(unmeasured(57), Label::Cold);
    is(unmeasured(66), Label::Cold);
    is(unmeasured(68), Label::Unknown);
    assert_eq!(unmeasured(0).label().basis, Some(Basis::BlockInput));
    // Read in part: all of what was read may have been missing.
    let in_part = Signals { size_bytes: 600 * MIB, ..unmeasured(60) };
    is(in_part, Label::Unknown);
    is(Signals { major_faults: Some(2000), ..unmeasured(0) }, Label::Unknown);
    is(Signals { set_bytes: None, ..unmeasured(0) }, Label::Unknown);
    is(Signals { set_bytes: Some(0), size_bytes: 0, ..unmeasured(0) }, Label::Unknown);
    is(Signals { block_input_bytes: None, ..unmeasured(0) }, Label::Unknown);
    // More than half of the set is others'.
    is(Signals { unmeasured_bytes: 31 * MIB, ..run(0, 0) }, Label::Warm);
    assert_eq!(
        Signals { unmeasured_bytes: 31 * MIB, ..run(0, 0) }.label().basis,
        Some(Basis::BlockInput)
    );
    // It left nothing in memory.
    is(Signals { after_bytes: Some(0), before_bytes: Some(0), ..run(0, 60) }, Label::Cold);
}

#[test]
fn where_block_input_is_not_accounted() {
    let none = |signals| Signals { accounting: Accounting::None, ..signals };
    is(none(unmeasured(0)), Label::Unknown);
    is(none(unmeasured(60)), Label::Unknown);
    is(none(run(60, 0)), Label::Unknown);
    is(none(run(30, 0)), Label::Unknown);
    is(none(run(0, 0)), Label::Cold);
    // Nor where who read was not waited for.
    let unwaited = |signals| Signals { accounting: Accounting::Unwaited, ..signals };
    is(unwaited(unmeasured(0)), Label::Unknown);
    is(unwaited(run(60, 0)), Label::Unknown);
    is(unwaited(run(30, 30)), Label::Unknown);
    is(unwaited(run(0, 0)), Label::Cold);
    let why = "0 B of at most 60.0 MiB read: not all who read them were waited for";
    assert_eq!(unwaited(unmeasured(0)).label().evidence, why);
    is(Signals::default(), Label::Unknown);
    // Compressed: less is read than comes into memory.
    let part = |signals| Signals { accounting: Accounting::Part, ..signals };
    is(part(run(0, 10)), Label::Cold);
    is(part(run(0, 0)), Label::Unknown);
    is(part(run(60, 0)), Label::Warm);
    is(part(unmeasured(0)), Label::Warm);
    is(part(unmeasured(60)), Label::Unknown);
}

#[test]
fn the_evidence_is_the_numbers() {
    let said = |signals: Signals| signals.label().evidence;
    assert_eq!(
        said(Signals { pinned_bytes: MIB, major_faults: Some(3), ..run(0, 60) }),
        "0 B of 60.0 MiB were in memory, 1.0 MiB cannot be evicted, 60.0 MiB read, 3 major \
         faults; metadata and a host's cache may be warm"
    );
    assert_eq!(said(run(60, 0)), "60.0 MiB of 60.0 MiB were in memory, 0 B read");
    assert_eq!(said(unmeasured(0)), "0 B of at most 60.0 MiB read");
    assert_eq!(
        said(run(0, 0)),
        "0 B of 60.0 MiB were in memory, 0 B read: somebody else read it, or it was there after all"
    );
    assert_eq!(said(Signals::default()), "nothing measured: which files it reads is not known");
}

/// A machine with a set of pages: which are in memory, which are mapped by others, which
/// the command reads; and what happens between the measurements.
#[derive(Debug, Clone)]
struct Machine {
    resident: Vec<bool>,
    pinned: Vec<bool>,
    /// Files that can be measured come first.
    measurable: usize,
    /// Pages that go between the measurement and the run.
    go: Vec<bool>,
    /// Pages that another process brings in between.
    come: Vec<bool>,
    accounting: Accounting,
    compression: u64,
    /// What is read beside the set.
    beside: u64,
}

impl Machine {
    /// What is measured of a run that reads all, and the part of what can be evicted
    /// that was in memory when the run began.
    fn run(&self) -> (Signals, f64) {
        let page = page_bytes();
        let n = self.resident.len();
        let held = |i: usize| self.pinned[i];
        let first: Vec<bool> = (0..n).map(|i| self.resident[i] || held(i)).collect();
        let begun: Vec<bool> =
            (0..n).map(|i| held(i) || ((first[i] && !self.go[i]) || self.come[i])).collect();
        let missing = begun.iter().filter(|there| !**there).count() as u64;
        let count =
            |is: &dyn Fn(usize) -> bool, to: usize| (0..to).filter(|&i| is(i)).count() as u64;
        let free = |i: usize| !held(i);
        let measured = self.measurable > 0;
        let input = match self.accounting {
            Accounting::Whole => missing * page,
            Accounting::Part => missing * page / self.compression,
            Accounting::None | Accounting::Unwaited => 0,
        };
        let signals = Signals {
            before_bytes: measured.then(|| count(&|i| first[i] && free(i), self.measurable) * page),
            after_bytes: measured.then(|| count(&free, self.measurable) * page),
            pinned_bytes: count(&held, self.measurable) * page,
            set_bytes: Some(n as u64 * page),
            unmeasured_bytes: (n - self.measurable) as u64 * page,
            size_bytes: n as u64 * page,
            accounting: self.accounting,
            block_input_bytes: Some(input + self.beside * page),
            major_faults: Some(0),
            ..Signals::default()
        };
        let to = if measured { self.measurable } else { n };
        let all = count(&free, to).max(1) as f64;
        (signals, count(&|i| begun[i] && free(i), to) as f64 / all)
    }
}

fn flags(n: usize, share: f64) -> impl Strategy<Value = Vec<bool>> {
    proptest::collection::vec(proptest::bool::weighted(share), n)
}

fn machine(disturbed: bool) -> impl Strategy<Value = Machine> {
    let shares = (0.0..=1.0f64, 0.0..0.4f64, prop_oneof![Just(0.0), Just(1.0), 0.0..=1.0f64]);
    let accounting = prop_oneof![
        4 => Just(Accounting::Whole), 1 => Just(Accounting::Part), 1 => Just(Accounting::None),
        1 => Just(Accounting::Unwaited)
    ];
    let rest = (accounting, 2u64..6, prop_oneof![Just(0u64), 0u64..20], 0u8..3, 0.5..=1.0f64);
    (300usize..400, shares, rest, 0.0..=1.0f64, 0.0..=1.0f64).prop_flat_map(
        move |(n, (some, pinned, extreme), rest, go, come)| {
            let (accounting, compression, beside, kind, measurable) = rest;
            let resident = if kind == 0 { some } else { extreme };
            let (go, come) = if disturbed { (go, come) } else { (0.0, 0.0) };
            let all = (flags(n, resident), flags(n, pinned), flags(n, go), flags(n, come));
            all.prop_map(move |(resident, pinned, go, come)| Machine {
                resident,
                pinned,
                measurable: if kind == 2 { 0 } else { (n as f64 * measurable) as usize },
                go,
                come,
                accounting,
                compression,
                beside,
            })
        },
    )
}

proptest! {
    #[test]
    fn a_label_is_true_of_a_machine_that_keeps_still(machine in machine(false)) {
        let (signals, there) = machine.run();
        match signals.label().label {
            Label::Cold => prop_assert!(there <= 0.12, "{there} {signals:?}"),
            Label::Warm => prop_assert!(there >= 0.94, "{there} {signals:?}"),
            // Most of it pinned, and the rest cold.
            Label::Lukewarm => prop_assert!(
                (0.05..=0.95).contains(&there) || signals.pinned_bytes > signals.after_bytes.unwrap(),
                "{there} {signals:?}"
            ),
            Label::Unknown => {}
        }
    }

    #[test]
    fn where_all_is_accounted_and_measured_there_is_a_label(machine in machine(false)) {
        let machine = Machine { accounting: Accounting::Whole, measurable: machine.resident.len(), beside: 0, ..machine };
        let (signals, _) = machine.run();
        let verdict = signals.label();
        // Between 1 and 5 % were missing: warm by one signal, not by the other.
        let missing = signals.after_bytes.unwrap() - signals.before_bytes.unwrap();
        let least = percent(signals.set_bytes.unwrap(), 1);
        let most = percent(signals.after_bytes.unwrap(), 5);
        let between = (least..=most).contains(&missing);
        prop_assert!((verdict.label == Label::Unknown) <= between, "{verdict:?} {signals:?}");
    }

    #[test]
    fn whatever_others_do_warm_and_cold_are_not_mistaken(machine in machine(true)) {
        let (signals, there) = machine.run();
        match signals.label().label {
            // Somebody else may have brought a tenth of what the run then did not read, and
            // more where the run read files that could not be measured.
            Label::Cold if signals.accounting == Accounting::Whole && signals.unmeasured_bytes == 0 => {
                prop_assert!(there <= 0.16, "{there} {signals:?}");
            }
            Label::Warm => prop_assert!(there >= 0.90, "{there} {signals:?}"),
            _ => {}
        }
    }

    #[test]
    fn no_numbers_make_it_fail(
        numbers in proptest::array::uniform5(proptest::option::of(prop_oneof![any::<u64>(), Just(u64::MAX), Just(0)])),
        more in proptest::array::uniform2(proptest::option::of(any::<u64>())),
        others in proptest::array::uniform5(any::<u64>()),
        accounting in prop_oneof![
            Just(Accounting::Whole), Just(Accounting::Part), Just(Accounting::None),
            Just(Accounting::Unwaited),
        ],
    ) {
        let [before_bytes, after_bytes, set_bytes, block_input_bytes, major_faults] = numbers;
        let [minor_faults, cold_bytes] = more;
        let [pinned_bytes, stayed_bytes, unmeasured_bytes, size_bytes, read_bytes] = others;
        let signals = Signals {
            before_bytes, after_bytes, pinned_bytes, stayed_bytes, set_bytes, read_bytes,
            unmeasured_bytes, size_bytes, accounting, block_input_bytes, minor_faults,
            major_faults, cold_bytes,
        };
        let verdict = signals.label();
        prop_assert_eq!(verdict.basis.is_none(), verdict.label == Label::Unknown);
        // Warm is never said of a run that read more than a hundredth of its set.
        if let (Label::Warm, Some(set), Some(input)) = (verdict.label, set_bytes, block_input_bytes) {
            prop_assert!(input <= set / 100);
        }
    }
}
