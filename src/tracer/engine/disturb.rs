//! Threads that others wait for take their time, by chance: what a count owes to
//! who came first shows in one run then, which otherwise takes dozens.

use std::collections::HashMap;

use super::super::event::Nanos;
use super::super::kernel::Waited;

/// Longest that one stop is held back: long enough for what others do meanwhile
/// to be whole processes' lives.
const LONGEST: Nanos = 1 << 24;
/// How many powers of two shorter it may be, each as likely: the shortest is as
/// long as a call of another thread.
const MAGNITUDES: u64 = 9;
/// What a short run may take longer, beside.
const GRANTED: Nanos = 200_000_000;
/// One of so many stops is: of those at calls, of those after a wait, at signals,
/// and at ends. All but the first are few, and what is merged hangs on them (two
/// SIGCHLD are one).
const CALLS: u64 = 24;
const WAITS: u64 = 2;
const SIGNALS: u64 = 2;
const ENDS: u64 = 4;
/// From which time between two stops on a thread waited, or was not let run.
const WAITED: Nanos = 400_000;

/// Which stops are held back, and until when.
#[derive(Debug, Default)]
pub struct Disturb {
    /// The generator's state; 0: nothing is held back.
    state: u64,
    later: Vec<(Nanos, Waited)>,
    /// When each thread stopped last.
    stops: HashMap<i32, Nanos>,
    since: Nanos,
    /// Sum of what was held back, ns.
    held: Nanos,
}

impl Disturb {
    /// From now on, other ones for each seed.
    pub fn begin(&mut self, seed: u32, now: Nanos) {
        self.state = (u64::from(seed) << 1 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.since = now;
    }

    /// Whether anything is held back.
    pub fn holds_any(&self) -> bool {
        !self.later.is_empty()
    }

    /// For how long to hold this one back; `None`: not at all. Births and execs
    /// never are, nor is who has ended.
    pub fn choose(&mut self, tid: i32, status: i32, now: Nanos) -> Option<Nanos> {
        if self.state == 0 {
            return None;
        }
        if status & 0xff != 0x7f {
            self.stops.remove(&tid);
            return None;
        }
        let before = self.stops.insert(tid, now).unwrap_or(now);
        // A wait status as ptrace(2) has it: the event, and the signal.
        let one_in = match (status >> 16, status >> 8 & 0xff) {
            (0, signal) if signal == libc::SIGTRAP | 0x80 => {
                if now.saturating_sub(before) > WAITED { WAITS } else { CALLS }
            }
            (0, _) => SIGNALS,
            (libc::PTRACE_EVENT_EXIT, _) => ENDS,
            _ => return None,
        };
        let number = self.next();
        // A long run takes half as long again.
        let spent = self.held > now.saturating_sub(self.since) / 2 + GRANTED;
        if spent || !number.is_multiple_of(one_in) {
            return None;
        }
        Some((LONGEST >> (self.next() % MAGNITUDES)) + self.next() % (LONGEST >> MAGNITUDES))
    }

    /// Holds a report back for so long.
    pub fn hold(&mut self, waited: Waited, time: Nanos, now: Nanos) {
        self.held = self.held.saturating_add(time);
        self.later.push((now.saturating_add(time), waited));
    }

    /// Takes what is due, or that of this thread.
    pub fn take(&mut self, now: Nanos, tid: Option<i32>) -> Option<Waited> {
        let due = |(at, waited): &(Nanos, Waited)| *at <= now || Some(waited.tid) == tid;
        let at = self.later.iter().position(due)?;
        Some(self.later.swap_remove(at).1)
    }

    /// xorshift64 (Marsaglia 2003), less its lowest bits.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: i32 = (libc::SIGTRAP | 0x80) << 8 | 0x7f;
    const SIGNAL: i32 = libc::SIGCHLD << 8 | 0x7f;
    const FORK: i32 = libc::PTRACE_EVENT_FORK << 16 | libc::SIGTRAP << 8 | 0x7f;
    const EXITED: i32 = 3 << 8;

    fn chosen(seed: u32, status: i32) -> Vec<Option<Nanos>> {
        let mut disturb = Disturb::default();
        disturb.begin(seed, 0);
        (0..1000).map(|_| disturb.choose(1, status, 0)).collect()
    }

    #[test]
    fn a_seed_chooses_the_same_stops_each_time_and_another_chooses_others() {
        let (some, others) = (chosen(7, CALL), chosen(8, CALL));
        assert_eq!(some, chosen(7, CALL));
        assert_ne!(some, others);
        let held: Vec<Nanos> = some.into_iter().flatten().collect();
        // One in 24 of 1000, give or take five standard deviations.
        assert!((10..75).contains(&held.len()), "{}", held.len());
        assert!(held.iter().all(|time| (LONGEST >> MAGNITUDES..2 * LONGEST).contains(time)));
        assert!(chosen(7, SIGNAL).into_iter().flatten().count() > 400);
    }

    #[test]
    fn who_has_waited_is_held_more_often() {
        let mut disturb = Disturb::default();
        disturb.begin(7, 0);
        let held = (1..=300).filter(|i| disturb.choose(1, CALL, i * 2 * WAITED).is_some()).count();
        // One in two, give or take five standard deviations.
        assert!((107..193).contains(&held), "{held}");
    }

    #[test]
    fn births_and_deaths_are_never_held_and_nothing_without_a_seed() {
        assert!(chosen(7, FORK).into_iter().chain(chosen(7, EXITED)).all(|time| time.is_none()));
        let mut disturb = Disturb::default();
        assert!((0..1000).all(|_| disturb.choose(1, SIGNAL, 0).is_none()));
    }

    #[test]
    fn a_run_is_not_held_for_more_than_it_takes() {
        let waited =
            Waited { tid: 1, status: CALL, taken: true, at: 0, own: None, with_children: None };
        let mut disturb = Disturb::default();
        disturb.begin(1, 0);
        let mut now = 0;
        let mut last = 0;
        for _ in 0..10_000 {
            now += 1000;
            if let Some(time) = disturb.choose(1, CALL, now) {
                disturb.hold(waited, time, now);
                last = time;
            }
        }
        assert!(disturb.held <= now / 2 + GRANTED + 2 * LONGEST + last, "{}", disturb.held);
        assert!(disturb.holds_any());
        while disturb.take(Nanos::MAX, None).is_some() {}
        assert!(!disturb.holds_any());
    }

    #[test]
    fn what_is_held_comes_when_it_is_due_or_asked_for_by_thread() {
        let waited =
            |tid| Waited { tid, status: CALL, taken: true, at: 0, own: None, with_children: None };
        let mut disturb = Disturb::default();
        disturb.hold(waited(1), 50, 100);
        disturb.hold(waited(2), 10, 100);
        assert!(disturb.take(100, None).is_none());
        assert_eq!(disturb.take(110, None).map(|w| w.tid), Some(2));
        assert_eq!(disturb.take(0, Some(1)).map(|w| w.tid), Some(1));
        assert!(!disturb.holds_any());
    }
}
