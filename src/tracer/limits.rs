//! How long to trace, and how much. Pure: given the time and what was counted
//! so far, it says what is to be done.

use std::time::Duration;

use super::calibrate::Cost;
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
    /// times as long. It had used `cpu` ns of CPU time at `start`.
    pub fn slow_at_most(&mut self, start: Nanos, slowdown: f64, cost: Cost, cpu: Nanos) {
        if slowdown > 1.0 {
            self.bursts = Some(Bursts {
                slowdown,
                cost,
                watching: true,
                since: start,
                until: start.saturating_add(BURST),
                before: Spent { calls: 0, cpu },
                alone: None,
                watched: 0,
            });
        }
    }

    /// When everything is to be let go; the end of time where it is not.
    pub fn end_of_watch(&self) -> Nanos {
        self.let_go.unwrap_or(Nanos::MAX)
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

    /// What is due now; `spent` is asked where a burst or a pause ends.
    pub fn due(&mut self, now: Nanos, spent: impl FnOnce() -> Spent) -> Option<Due> {
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
        self.bursts.as_mut()?.due(now, spent)
    }

    /// Time in which calls were watched until `now`; `None`: all the time.
    pub fn watched(&self, now: Nanos) -> Option<Nanos> {
        let b = self.bursts.as_ref()?;
        Some(b.watched + if b.watching { now.saturating_sub(b.since) } else { 0 })
    }
}

/// What the program has made and used so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// Calls that were watched.
    pub calls: u64,
    /// CPU time of all its processes, ns.
    pub cpu: Nanos,
}

/// Watching and pausing in turn.
#[derive(Debug, Clone)]
struct Bursts {
    slowdown: f64,
    cost: Cost,
    watching: bool,
    /// When the burst or the pause began.
    since: Nanos,
    /// When it is to end.
    until: Nanos,
    /// What was spent when it began.
    before: Spent,
    /// CPU time and wall time of the pauses so far, the later ones weighing
    /// more: how fast the program is when it is left alone.
    alone: Option<(f64, f64)>,
    /// Time watched in bursts that have ended.
    watched: Nanos,
}

impl Bursts {
    fn due(&mut self, now: Nanos, spent: impl FnOnce() -> Spent) -> Option<Due> {
        if now < self.until {
            return None;
        }
        let length = now.saturating_sub(self.since);
        let before = spent();
        if !self.watching {
            let (cpu, time) = self.alone.unwrap_or_default();
            let used = before.cpu.saturating_sub(self.before.cpu);
            self.alone = Some((cpu / 2.0 + used as f64, time / 2.0 + length as f64));
            *self = Self { watching: true, since: now, until: now + BURST, before, ..self.clone() };
            return Some(Due::Watch);
        }
        // Progress made in a burst is its length less what tracing took. Over a
        // burst and a pause, slowdown = time / progress, so
        // pause = lost / (1 - 1 / slowdown) - burst.
        let pause = self.lost(length as f64, before) / (1.0 - 1.0 / self.slowdown) - length as f64;
        if pause < (BURST / 10) as f64 {
            // Nothing worth pausing for: go on, and judge the longer burst.
            self.until = now + BURST;
            return None;
        }
        self.watched += length;
        let until = now + pause as u64;
        *self = Self { watching: false, since: now, until, before, ..self.clone() };
        Some(Due::Pause)
    }

    /// How much of a burst of this length tracing took, ns: by how much less of
    /// its own CPU time the program got than in the pauses. That tells what a
    /// woken thread waited for a processor, too, but nothing of a program that
    /// hardly runs; so it holds within what so many calls can cost.
    fn lost(&self, length: f64, now: Spent) -> f64 {
        let calls = now.calls.saturating_sub(self.before.calls) as f64;
        // Calls of several threads are served one after the other: each thread
        // waits for the others' too, so the sum is what any of them loses.
        let least = (calls * self.cost.near as f64).min(length);
        let most = (calls * self.cost.far as f64 * 1.5).min(length);
        let used = now.cpu.saturating_sub(self.before.cpu) as f64;
        // A program with more to keep in its caches pays more than calibration.
        let own = (used - calls * self.cost.cpu as f64 * 1.25).max(0.0);
        match self.alone {
            Some((cpu, time)) if cpu > 0.0 && time > 0.0 => {
                (length - own * time / cpu).clamp(least, most)
            }
            Some(_) => least,
            None => most,
        }
    }
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const COST: Cost = Cost { near: 13_000, far: 30_000, cpu: 5_000 };

    /// A program that would make a call every `every` ns untraced, and computes
    /// for a `share` of the time between; tracing takes `real` ns more a call,
    /// of which `cpu` are CPU time of its own.
    #[derive(Debug, Clone, Copy)]
    struct Program {
        every: u64,
        share: f64,
        real: u64,
        cpu: u64,
    }

    /// Runs it for two seconds; gives (slowdown, share of time watched).
    fn simulate(slowdown: f64, program: Program) -> (f64, f64) {
        let mut limits = Limits::default();
        limits.slow_at_most(0, slowdown, COST, 0);
        let (mut now, mut calls, mut cpu, mut progress, mut watching) = (0, 0, 0, 0, true);
        while now < 2_000 * MS {
            let own = (program.every as f64 * program.share) as u64;
            now += program.every + if watching { program.real } else { 0 };
            cpu += own + if watching { program.cpu } else { 0 };
            calls += u64::from(watching);
            progress += program.every;
            match limits.due(now, || Spent { calls, cpu }) {
                Some(Due::Pause) => watching = false,
                Some(Due::Watch) => watching = true,
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
        (now as f64 / progress as f64, limits.watched(now).unwrap() as f64 / now as f64)
    }

    #[test]
    fn bursts_keep_to_the_slowdown_whatever_a_call_really_costs() {
        for slowdown in [1.1, 1.5, 2.0, 5.0] {
            for every in [300, 5_000, 40_000, 1_000_000] {
                for real in [13_000, 20_000, 30_000, 40_000] {
                    let program = Program { every, share: 1.0, real, cpu: 6_000 };
                    let (seen, share) = simulate(slowdown, program);
                    assert!(seen <= slowdown * 1.1, "{seen} > {slowdown}: {program:?}");
                    assert!(share > 0.05, "only {share} was watched: {program:?}");
                }
            }
        }
    }

    #[test]
    fn a_program_that_waits_is_not_taken_for_one_that_is_slowed() {
        // It sleeps for most of the time between calls that are far apart.
        for cpu in [3_000, 6_000, 9_000] {
            let program = Program { every: 2 * MS, share: 0.01, real: 25_000, cpu };
            let (seen, share) = simulate(2.0, program);
            assert!(seen < 1.1 && share > 0.9, "{seen}, {share} was watched");
        }
    }

    #[test]
    fn a_program_that_hardly_calls_is_always_watched() {
        let program = Program { every: 10 * MS, share: 1.0, real: 40_000, cpu: 6_000 };
        let (_, share) = simulate(2.0, program);
        assert!(share > 0.999);
    }

    fn nothing() -> Spent {
        Spent { calls: 0, cpu: 0 }
    }

    #[test]
    fn without_a_limit_nothing_is_due() {
        let mut limits = Limits::default();
        assert!(!limits.is_set());
        assert_eq!(limits.due(u64::MAX, nothing), None);
        assert_eq!(limits.watched(9), None);
    }

    #[test]
    fn time_over_is_said_once_and_then_by_force() {
        let mut limits = Limits::default();
        limits.end_after(0, Duration::from_secs(1));
        assert_eq!(limits.due(999 * MS, nothing), None);
        assert_eq!(limits.due(1000 * MS, nothing), Some(Due::Terminate));
        assert!(limits.timed_out());
        assert_eq!(limits.due(1001 * MS, nothing), None);
        assert_eq!(limits.due(3000 * MS, nothing), Some(Due::Kill));
        assert_eq!(limits.due(9000 * MS, nothing), None);
    }
}
