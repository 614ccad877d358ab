//! How long to trace, and how much. Pure: given the time and what was counted
//! so far, it says what is to be done.

use std::time::Duration;

use super::event::Nanos;

/// How long one burst of watching lasts, at least.
const BURST: Nanos = 50_000_000;

/// From the polite signal of `--timeout` to the one that cannot be refused.
const MERCY: Nanos = 2_000_000_000;

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The time is over: ask the whole tree to end.
    Terminate,
    /// It did not: kill it.
    Kill,
    /// Observed for long enough: let go of everything.
    LetGo,
    /// Stop watching for now.
    Pause,
    /// Watch again.
    Watch,
}

/// The limits of a session.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    terminate: Option<Nanos>,
    kill: Option<Nanos>,
    let_go: Option<Nanos>,
    bursts: Option<Bursts>,
    timed_out: bool,
}

impl Limits {
    /// Ends the tree `after` this long.
    pub fn end_after(&mut self, start: Nanos, after: Duration) {
        self.terminate = Some(start.saturating_add(nanos(after)));
    }

    /// Lets go `after` this long.
    pub fn let_go_after(&mut self, start: Nanos, after: Duration) {
        self.let_go = Some(start.saturating_add(nanos(after)));
    }

    /// Watches in bursts, so that the program takes at most `slowdown` (above 1)
    /// times as long; a traced call costs it `cost` ns.
    pub fn slow_at_most(&mut self, start: Nanos, slowdown: f64, cost: u64) {
        if slowdown > 1.0 {
            self.bursts = Some(Bursts {
                slowdown,
                cost,
                watching: true,
                since: start,
                until: start.saturating_add(BURST),
                calls: 0,
                watched: 0,
            });
        }
    }

    /// Whether there is anything to look at the clock for.
    pub fn is_set(&self) -> bool {
        self.terminate.is_some()
            || self.kill.is_some()
            || self.let_go.is_some()
            || self.bursts.is_some()
    }

    /// Whether the time of [`Limits::end_after`] came.
    pub fn timed_out(&self) -> bool {
        self.timed_out
    }

    /// What is due now; `calls` are those watched so far.
    pub fn due(&mut self, now: Nanos, calls: u64) -> Option<Due> {
        if self.terminate.take_if(|at| now >= *at).is_some() {
            self.timed_out = true;
            self.kill = Some(now.saturating_add(MERCY));
            return Some(Due::Terminate);
        }
        if self.kill.take_if(|at| now >= *at).is_some() {
            return Some(Due::Kill);
        }
        if self.let_go.take_if(|at| now >= *at).is_some() {
            return Some(Due::LetGo);
        }
        self.bursts.as_mut()?.due(now, calls)
    }

    /// Time in which calls were watched until `now`; `None`: all the time.
    pub fn watched(&self, now: Nanos) -> Option<Nanos> {
        let b = self.bursts.as_ref()?;
        Some(b.watched + if b.watching { now.saturating_sub(b.since) } else { 0 })
    }
}

/// Watching and pausing in turn.
#[derive(Debug, Clone)]
struct Bursts {
    slowdown: f64,
    cost: u64,
    watching: bool,
    /// When the burst or the pause began.
    since: Nanos,
    /// When it is to end.
    until: Nanos,
    /// Calls watched when the burst began.
    calls: u64,
    /// Time watched in bursts that have ended.
    watched: Nanos,
}

impl Bursts {
    fn due(&mut self, now: Nanos, calls: u64) -> Option<Due> {
        if now < self.until {
            return None;
        }
        let length = now.saturating_sub(self.since);
        if !self.watching {
            *self = Self { watching: true, since: now, until: now + BURST, calls, ..self.clone() };
            return Some(Due::Watch);
        }
        // Progress made in a burst is its length less what tracing took. Over a
        // burst and a pause, slowdown = time / progress, so
        // pause = lost / (1 - 1 / slowdown) - burst.
        // Calls of several threads are served one after the other: each thread
        // waits for the others' too, so the sum is what any of them loses.
        let lost = calls.saturating_sub(self.calls).saturating_mul(self.cost).min(length);
        let pause = lost as f64 / (1.0 - 1.0 / self.slowdown) - length as f64;
        if pause < (BURST / 10) as f64 {
            // Nothing worth pausing for: go on, and judge the longer burst.
            self.until = now + BURST;
            return None;
        }
        self.watched += length;
        *self = Self { watching: false, since: now, until: now + pause as u64, ..self.clone() };
        Some(Due::Pause)
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Runs a program that would make a call every `every` ns untraced, for a
    /// second; gives (slowdown, share of time watched).
    fn simulate(slowdown: f64, cost: u64, every: u64) -> (f64, f64) {
        let mut limits = Limits::default();
        limits.slow_at_most(0, slowdown, cost);
        let (mut now, mut calls, mut progress, mut watching) = (0, 0, 0, true);
        while now < 5_000 * MS {
            now += every + if watching { cost } else { 0 };
            calls += u64::from(watching);
            progress += every;
            match limits.due(now, calls) {
                Some(Due::Pause) => watching = false,
                Some(Due::Watch) => watching = true,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        (now as f64 / progress as f64, limits.watched(now).unwrap() as f64 / now as f64)
    }

    #[test]
    fn bursts_keep_to_the_slowdown() {
        for slowdown in [1.1, 1.5, 2.0, 5.0] {
            for every in [300, 5_000, 40_000, 1_000_000] {
                let (seen, share) = simulate(slowdown, 20_000, every);
                assert!(seen <= slowdown * 1.05, "{seen} > {slowdown} at a call in {every} ns");
                assert!(share > 0.05, "only {share} was watched");
            }
        }
    }

    #[test]
    fn a_program_that_hardly_calls_is_always_watched() {
        let (_, share) = simulate(2.0, 20_000, 10 * MS);
        assert!(share > 0.999);
    }

    #[test]
    fn without_a_limit_nothing_is_due() {
        let mut limits = Limits::default();
        assert!(!limits.is_set());
        assert_eq!(limits.due(u64::MAX, u64::MAX), None);
        assert_eq!(limits.watched(9), None);
    }

    #[test]
    fn time_over_is_said_once_and_then_by_force() {
        let mut limits = Limits::default();
        limits.end_after(0, Duration::from_secs(1));
        assert_eq!(limits.due(999 * MS, 0), None);
        assert_eq!(limits.due(1000 * MS, 0), Some(Due::Terminate));
        assert!(limits.timed_out());
        assert_eq!(limits.due(1001 * MS, 0), None);
        assert_eq!(limits.due(3000 * MS, 0), Some(Due::Kill));
        assert_eq!(limits.due(9000 * MS, 0), None);
    }
}
