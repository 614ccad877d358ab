//! Regions of a run: between two calls by which the program marks them, or between
//! two moments that were asked for.
//!
//! A call that marks is harmless and needs no library: it names the path
//! /coldtrace/begin/NAME, /coldtrace/end/NAME or /coldtrace/mark/NAME, by stat as a
//! rule. It is taken away from the collectors, as if it had not been made. (`count`
//! and `files` know of no regions: to them it is a call as any other.)

mod marker;
mod timeline;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::syscall::{Abi, CallSet, Sys};
use crate::tracer::{Call, Event, Nanos, Observer, Outcome, ThreadId};

use super::moments::{Moment, UnknownMoment, What};
use super::paths::{Memory, forget_path, makes_careful, opened, opening};

pub use marker::naming;
pub use timeline::{OpenRegions, RegionTimes, Timeline};

use marker::{Mark, marked};
use timeline::Doubt;

/// What writes and reads it in turn.
pub type SharedTimeline = Rc<RefCell<Timeline>>;

/// A region between two moments: from the first `from`, to the first `until` after
/// that; once a run.
///
/// It has the call in it that it begins with, and not the one that it ends with:
/// see [`Moment`] for where each lies. If the program marks the same name too, the
/// region is open while one of the two is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RegionSpec {
    /// What it is called.
    pub name: String,
    /// When it begins.
    pub from: Moment,
    /// When it ends; `None`: with the run.
    pub until: Option<Moment>,
}

/// A text that defines no region, as one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnknownRegion {
    /// Not a name and an event.
    #[error("a region is written NAME=FROM or NAME=FROM..UNTIL, as in startup=exec..stdout")]
    Form,
    /// One of the events is none.
    #[error("{event}: {source}")]
    Moment {
        /// As it was written.
        event: String,
        /// Why not.
        source: UnknownMoment,
    },
}

impl RegionSpec {
    /// From one moment to another, or to the end.
    pub fn new(name: impl Into<String>, from: Moment, until: Option<Moment>) -> Self {
        Self { name: name.into(), from, until }
    }

    /// Reads `NAME=FROM` or `NAME=FROM..UNTIL`, the events as [`Moment::parse`] does.
    ///
    /// # Errors
    /// Where it has another form, or an event is none.
    pub fn parse(text: &str) -> Result<Self, UnknownRegion> {
        let (name, events) = text.split_once('=').ok_or(UnknownRegion::Form)?;
        let (from, until) = match events.split_once("..") {
            Some((from, until)) => (from, Some(until)),
            None => (events, None),
        };
        if name.is_empty() || from.is_empty() || until.is_some_and(str::is_empty) {
            return Err(UnknownRegion::Form);
        }
        let moment = |event: &str| {
            let unknown = |source| UnknownRegion::Moment { event: event.to_owned(), source };
            Moment::parse(event).map_err(unknown)
        };
        Ok(Self::new(name, moment(from)?, until.map(moment).transpose()?))
    }
}

/// How far a region that was asked for has come.
#[derive(Debug)]
enum State {
    Awaited,
    Open,
    Over,
}

/// A call that may open what a region begins or ends with.
#[derive(Debug)]
struct Opening {
    tid: i32,
    sys: Sys,
    args: [u64; 6],
    doubt: Doubt,
}

/// Takes marking calls away from other collectors, and keeps the timeline.
pub struct Regions<'a> {
    timeline: SharedTimeline,
    /// The others, and which entries each is told of.
    others: Vec<(&'a mut dyn Observer, CallSet)>,
    /// The calls that may mark.
    marking: CallSet,
    specs: Vec<(RegionSpec, State)>,
    /// Marking calls that threads are in.
    inside: HashMap<ThreadId, Vec<(Sys, [u64; 6])>>,
    /// By the thread that is in it.
    opening: HashMap<ThreadId, Opening>,
    opens: CallSet,
    /// The program has begun or ended regions of its own.
    has_marked: bool,
    /// A traced process may serve what others fault on.
    careful: bool,
    started: Option<Nanos>,
    last: Nanos,
}

impl<'a> Regions<'a> {
    /// In front of these observers. Of the calls in `watched` those may mark that
    /// name a path; of others only if a region waits for a marker.
    pub fn around(
        others: Vec<&'a mut dyn Observer>,
        watched: &CallSet,
        specs: &[RegionSpec],
        timeline: SharedTimeline,
    ) -> Self {
        let awaits_marker =
            specs.iter().flat_map(moments).any(|moment| matches!(moment.what, What::Marker(_)));
        let marking = if awaits_marker { naming() } else { naming().intersection(watched) };
        for spec in specs {
            timeline.borrow_mut().expect(&spec.name);
        }
        Self {
            timeline,
            others: others
                .into_iter()
                .map(|other| {
                    let needs = other.needs();
                    (other, needs)
                })
                .collect(),
            marking,
            specs: specs.iter().map(|spec| (spec.clone(), State::Awaited)).collect(),
            inside: HashMap::new(),
            opening: HashMap::new(),
            opens: opening(),
            has_marked: false,
            careful: false,
            started: None,
            last: 0,
        }
    }

    /// The run is over, at this time at the earliest.
    pub fn finish(mut self, ended: Nanos) {
        let end = self.last.max(ended);
        self.pass(end);
        self.timeline.borrow_mut().finish(end);
    }

    /// Something happened: it may be what regions wait for.
    fn moment(&mut self, at: Nanos, is: impl Fn(&What) -> bool) {
        let mut timeline = self.timeline.borrow_mut();
        for (spec, state) in &mut self.specs {
            match (&state, &spec.until) {
                (State::Awaited, _) if is(&spec.from.what) => {
                    *state = State::Open;
                    timeline.begin(&spec.name, at);
                }
                (State::Open, Some(until)) if is(&until.what) => {
                    *state = State::Over;
                    timeline.end(&spec.name, at);
                }
                _ => {}
            }
        }
    }

    /// The same of an open that has succeeded: it was one when it entered.
    fn opened(&mut self, doubt: Doubt, paths: &[Vec<u8>]) {
        let mut timeline = self.timeline.borrow_mut();
        let is = |moment: &Moment| paths.iter().any(|path| moment.what.is_open_of(path));
        for (spec, state) in &mut self.specs {
            match (&state, &spec.until) {
                (State::Awaited, _) if is(&spec.from) => {
                    *state = State::Open;
                    timeline.begin_since(doubt, &spec.name);
                }
                (State::Open, Some(until)) if is(until) => {
                    *state = State::Over;
                    timeline.end_since(doubt, &spec.name);
                }
                _ => {}
            }
        }
    }

    /// Whether some region waits for a file to be opened.
    fn awaits_open(&self) -> bool {
        self.specs.iter().any(|(spec, state)| {
            let awaited = match state {
                State::Awaited => Some(&spec.from),
                State::Open => spec.until.as_ref(),
                State::Over => None,
            };
            awaited.is_some_and(|moment| matches!(moment.what, What::Open { .. }))
        })
    }

    /// It is so late: times have come that regions wait for.
    fn pass(&mut self, now: Nanos) {
        self.last = self.last.max(now);
        let Some(started) = self.started else { return };
        let due = |moment: &Moment| match moment.what {
            What::After(after) => {
                let at =
                    started.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
                (at <= now).then_some(at)
            }
            _ => None,
        };
        let mut timeline = self.timeline.borrow_mut();
        for (spec, state) in &mut self.specs {
            if matches!(state, State::Awaited)
                && let Some(at) = due(&spec.from)
            {
                *state = State::Open;
                timeline.begin(&spec.name, at);
            } else if matches!(state, State::Open)
                && let Some(at) = spec.until.as_ref().and_then(due)
            {
                *state = State::Over;
                timeline.end(&spec.name, at);
            }
        }
    }

    /// Takes note of a call's entry; whether it marks.
    fn entered(
        &mut self,
        (thread, tid): (ThreadId, i32),
        sys: Sys,
        args: &[u64; 6],
        at: Nanos,
    ) -> bool {
        if self.marking.contains(sys) {
            let tracee = Memory { tid, careful: self.careful };
            if let Some((mark, name)) = marked(tracee, sys, args) {
                let inside = self.inside.entry(thread).or_default();
                // Told again after an interruption, it has marked already.
                if !inside.contains(&(sys, *args)) {
                    inside.push((sys, *args));
                    self.mark(mark, &name, at);
                }
                return true;
            }
        }
        self.moment(at, |what| what.is_entry_of(sys, args));
        if self.opens.contains(sys) && self.awaits_open() && !self.opening.contains_key(&thread) {
            let doubt = self.timeline.borrow_mut().doubt(at);
            self.opening.insert(thread, Opening { tid, sys, args: *args, doubt });
        }
        false
    }

    fn mark(&mut self, mark: Mark, name: &str, at: Nanos) {
        self.has_marked = true;
        match mark {
            Mark::Begin => self.timeline.borrow_mut().begin(name, at),
            Mark::End => self.timeline.borrow_mut().end(name, at),
            Mark::Moment => {}
        }
        self.moment(at, |what| matches!(what, What::Marker(marker) if marker == name));
    }

    /// Takes note of a call's end; whether it has marked.
    fn left(&mut self, call: &Call) -> bool {
        if let Some(inside) = self.inside.get_mut(&call.thread)
            && let Some(depth) =
                inside.iter().rposition(|(sys, args)| *sys == call.sys && *args == call.args)
        {
            inside.truncate(depth);
            // One that found something there has done something: it is told of, though
            // its entry was not.
            return !matches!(call.outcome, Outcome::Returned(_));
        }
        self.careful |= call.sys.info().is_some_and(makes_careful);
        let ours = |o: &Opening| o.sys == call.sys && o.args == call.args;
        if self.opening.get(&call.thread).is_some_and(ours)
            && let Some(Opening { tid, doubt, .. }) = self.opening.remove(&call.thread)
        {
            self.opened(doubt, &opened(call, tid));
            self.timeline.borrow_mut().settle(doubt);
        }
        false
    }

    /// Whether the others are not to be told.
    fn takes(&mut self, event: &Event) -> bool {
        match *event {
            Event::Entered { thread, tid, sys, ref args, at, .. } => {
                self.pass(at);
                return self.entered((thread, tid), sys, args, at);
            }
            Event::Call(ref call) | Event::Needed(ref call) => {
                // Of many calls the entry is not told.
                self.pass(call.entry.unwrap_or(0));
                return self.left(call);
            }
            Event::Attached { at, .. } => {
                self.careful = true;
                self.started.get_or_insert(at);
                self.pass(at);
            }
            Event::Execed { at, .. } => {
                self.started.get_or_insert(at);
                self.pass(at);
                self.moment(at, |what| matches!(what, What::Exec));
            }
            Event::ThreadEnded { thread, .. } => {
                self.inside.remove(&thread);
                if let Some(opening) = self.opening.remove(&thread) {
                    self.timeline.borrow_mut().settle(opening.doubt);
                }
            }
            Event::ProcessEnded { at, .. } => self.pass(at),
            // Ends of calls are not told of that nobody watched.
            Event::Watched { .. } => {
                self.inside.clear();
                for (_, opening) in self.opening.drain() {
                    self.timeline.borrow_mut().settle(opening.doubt);
                }
            }
            _ => {}
        }
        false
    }
}

/// The moments of a region.
fn moments(spec: &RegionSpec) -> impl Iterator<Item = &Moment> {
    [&spec.from].into_iter().chain(&spec.until)
}

impl Observer for Regions<'_> {
    /// What is counted inside is in no region, which is known while there is none.
    fn each(&self) -> CallSet {
        if !self.specs.is_empty() {
            return CallSet::all();
        }
        let careful = |sys: &Sys| sys.info().is_some_and(makes_careful);
        let own = CallSet::of(Abi::ALL.into_iter().flat_map(Abi::calls).filter(careful));
        self.others.iter().fold(own.union(&self.needs()), |calls, (o, _)| calls.union(&o.each()))
    }

    fn wants_each(&self) -> bool {
        self.has_marked || self.others.iter().any(|(other, _)| other.wants_each())
    }

    fn needs(&self) -> CallSet {
        let moments = self.specs.iter().flat_map(|(spec, _)| moments(spec));
        let own = moments.fold(self.marking.clone(), |calls, m| calls.union(&m.calls()));
        self.others.iter().fold(own, |calls, (_, needs)| calls.union(needs))
    }

    fn event(&mut self, event: &Event) {
        if self.takes(event) {
            return;
        }
        for (other, needs) in &mut self.others {
            if !matches!(event, Event::Entered { sys, .. } if !needs.contains(*sys)) {
                other.event(event);
            }
        }
        if matches!(event, Event::Entered { .. }) {
            forget_path();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::syscall::Abi;
    use crate::tracer::{ImageId, ProcessId};

    use super::*;

    /// Takes note of the calls that it is told of.
    #[derive(Default)]
    struct Told(Vec<Call>);

    impl Observer for Told {
        fn event(&mut self, event: &Event) {
            if let Event::Call(call) = event {
                self.0.push(*call);
            }
        }
    }

    /// Whether others are told of a call that names this path and ends so. The memory
    /// is that of this process itself, which needs no stop.
    fn is_told(path: &std::ffi::CStr, outcome: Outcome) -> bool {
        let sys = Sys::from_name(Abi::native(), "access").unwrap();
        let (process, thread, tid) = (ProcessId(0), ThreadId(0), std::process::id() as i32);
        let args = [path.as_ptr() as u64, 0, 0, 0, 0, 0];
        let mut told = Told::default();
        let timeline = SharedTimeline::default();
        let mut regions = Regions::around(vec![&mut told], &naming(), &[], timeline.clone());
        regions.event(&Event::Entered { process, thread, tid, sys, args, at: 1 });
        let call = Call {
            process,
            thread,
            image: ImageId(0),
            sys,
            args,
            entry: Some(1),
            entered: Some(1),
            left: Some(2),
            cut: None,
            outcome,
            restarts: 0,
            repaired: 0,
        };
        regions.event(&Event::Call(call));
        assert_eq!(
            timeline.borrow_mut().open_at(1) != OpenRegions::NONE,
            path == c"/coldtrace/begin/a"
        );
        !told.0.is_empty()
    }

    #[test]
    fn what_hides_behind_a_marker_is_told() {
        let missed = Outcome::Failed(libc::ENOENT);
        assert!(!is_told(c"/coldtrace/begin/a", missed));
        assert!(is_told(c"/coldtrace/begin/a/../../../etc/passwd", missed));
        // Something is there.
        assert!(is_told(c"/coldtrace/begin/a", Outcome::Returned(0)));
        assert!(!is_told(c"/coldtrace/begin/a", Outcome::Failed(libc::EACCES)));
    }

    #[test]
    fn a_region_is_written_as_a_name_and_two_events() {
        let parsed = |text: &str| match RegionSpec::parse(text) {
            Ok(spec) => {
                let until = spec.until.as_ref().map_or("-", Moment::text);
                format!("{} {} {until}", spec.name, spec.from.text())
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(parsed("startup=exec..stdout"), "startup exec stdout");
        assert_eq!(parsed("late=2s"), "late 2s -");
        assert_eq!(parsed("a=open:*.so..marker:x=y"), "a open:*.so marker:x=y");
        for text in ["", "a", "=exec", "a=", "a=..stdout", "a=exec.."] {
            assert!(parsed(text).starts_with("a region is written NAME=FROM"), "{text}");
        }
        assert!(parsed("a=exec..sdtout").starts_with("sdtout: no such event"));
        assert!(parsed("a=call:futx").starts_with("call:futx: "));
    }
}
