//! From what a thread counted to what collectors are told.

use std::mem::offset_of;

use super::super::event::{CallTimes, Nanos};
use super::arena::Place;
use super::clock::Clock;
use super::layout::{
    BUCKETS, ERRORS, ErrorCount, Head, ROWS, Row, bucket, call_offset, middle, row_at,
};
use super::trampoline::Counted;

/// Takes what was counted out of a slot whose thread is stopped or gone: (row, what
/// is known of it). What cannot be, because the program wrote there, is left out; the
/// second part says whether that was so.
pub fn take(slot: &Place, clock: &Clock) -> (Vec<(usize, CallTimes)>, bool) {
    let mut wrong = false;
    let mut taken = Vec::new();
    for row in 0..ROWS {
        let calls = slot.get(call_offset(row) as usize);
        if calls == 0 {
            continue;
        }
        slot.set(call_offset(row) as usize, 0);
        let (times, can_be) = take_row(slot, row, calls, clock);
        if can_be {
            taken.push((row, times));
        } else {
            wrong = true;
            // Nor for who has the slot next.
            for i in 0..BUCKETS {
                slot.set(Place::row(row, offset_of!(Row, histogram)) + i * 8, 0);
            }
        }
    }
    (taken, wrong)
}

fn take_row(slot: &Place, row: usize, calls: u64, clock: &Clock) -> (CallTimes, bool) {
    let at = |field: usize| Place::row(row, field);
    let take = |offset: usize| {
        let value = slot.get(offset);
        if value != 0 {
            slot.set(offset, 0);
        }
        value
    };
    let total = take(at(offset_of!(Row, total)));
    let min = !take(at(offset_of!(Row, not_min)));
    let max = take(at(offset_of!(Row, max)));
    let mut errors = Vec::new();
    let mut failed = 0u64;
    let mut are_errnos = true;
    for i in 0..ERRORS {
        let entry = at(offset_of!(Row, errors)) + i * size_of::<ErrorCount>();
        let errno = take(entry + offset_of!(ErrorCount, errno));
        let count = take(entry + offset_of!(ErrorCount, calls));
        if count > 0 {
            errors.push((errno as i32, count));
            failed = failed.saturating_add(count);
            are_errnos &= (1..4096).contains(&errno);
        }
    }
    let mut histogram = Vec::new();
    let mut timed = 0u64;
    // Nothing lies outside of what the shortest and the longest fell into.
    for i in bucket(min.min(max))..=bucket(max).min(BUCKETS - 1) {
        let count = take(at(offset_of!(Row, histogram)) + i * 8);
        if count > 0 {
            timed = timed.wrapping_add(count);
            histogram.push((clock.duration(middle(i).clamp(min.min(max), max)), count));
        }
    }
    // A thread that was killed in the middle of counting may leave a time behind. No
    // thread has more calls than there were cycles, nor longer ones.
    let can_be = timed.wrapping_sub(calls) <= 1
        && failed <= calls
        && are_errnos
        && min <= max
        && max <= total
        && total.max(calls) <= clock.since_begin();
    let counted = CallTimes {
        calls,
        errors,
        total: clock.duration(total),
        min: clock.duration(min),
        max: clock.duration(max),
        histogram,
    };
    (counted, can_be)
}

/// A call that was in flight, by its row, and when it began, where a slot's thread
/// has gone without having stopped.
pub fn in_flight(slot: &Place, clock: &Clock) -> Option<(usize, Nanos)> {
    let row = row_at(slot.get(offset_of!(Head, call)))?;
    slot.set(offset_of!(Head, call), 0);
    if slot.get(call_offset(row) as usize) == 0 {
        // Its first: what is counted of it already is not for who has the slot next.
        let _ = take_row(slot, row, 0, clock);
    }
    Some((row, clock.time(slot.get(offset_of!(Head, clock)))))
}

/// Counts what the trampoline has not counted yet of a call that has ended with
/// `result`. False where there is no room for its error.
pub fn finish(slot: &Place, counted: Counted, now: u64, result: u64) -> bool {
    let head = slot.head();
    let Some(row) = row_at(head.call) else { return true };
    let at = |field: usize| Place::row(row, field);
    let elapsed =
        if counted == Counted::Nothing { now.saturating_sub(head.clock) } else { head.clock };
    if counted < Counted::Total {
        slot.add(at(offset_of!(Row, total)), elapsed);
    }
    if counted < Counted::Time {
        let least = at(offset_of!(Row, not_min));
        slot.set(least, slot.get(least).max(!elapsed));
        let most = at(offset_of!(Row, max));
        slot.set(most, slot.get(most).max(elapsed));
        slot.add(at(offset_of!(Row, histogram)) + bucket(elapsed) * 8, 1);
    }
    let errno = (-4095..0).contains(&(result as i64)).then(|| (result as i64).unsigned_abs());
    let room = counted >= Counted::Error || errno.is_none_or(|errno| add_error(slot, row, errno));
    slot.add(call_offset(row) as usize, 1);
    slot.set(offset_of!(Head, call), 0);
    room
}

fn add_error(slot: &Place, row: usize, errno: u64) -> bool {
    for i in 0..ERRORS {
        let entry = Place::row(row, offset_of!(Row, errors)) + i * size_of::<ErrorCount>();
        let known = slot.get(entry);
        if known == errno || known == 0 {
            slot.set(entry, errno);
            slot.add(entry + offset_of!(ErrorCount, calls), 1);
            return true;
        }
    }
    false
}
