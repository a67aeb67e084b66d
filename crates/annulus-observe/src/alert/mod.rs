//! Thresholds on what is measured, and what to do when one is crossed.
//!
//! A [`Rule`] is written as it would be said:
//!
//! ```text
//! [OP.][queue.|device.]p50|p90|p99|p99.9|p99.99|mean|max  COMPARISON  TIME      [for TIME]
//! [OP.]errors                                             COMPARISON  PERCENT   [for TIME]
//! [OP.]error_rate | [OP.]rate                             COMPARISON  N/s       [for TIME]
//! in_flight                                               COMPARISON  N         [for TIME]
//! ```
//!
//! `OP` is an operation of docs/reference/kernels.md or a family of them (`read`, `write`, `sync`, `send`, `recv`, `all`); a
//! comparison is `>`, `>=`, `<` or `<=`; a time `100ns`, `500us`, `1.5ms` or `2s`. `errors` is the share of the answers
//! that are errors, `error_rate` errors and `rate` answers a second.
//!
//! [`Alerts::look`] reports the rules that were crossed between two snapshots;
//! [`Alerts::run`] does so on a thread:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use annulus_observe::alert::Alerts;
//!
//! let rules = ["read.p99 > 500us for 5s".parse()?, "errors > 0.1%".parse()?];
//! let running = Alerts::new(rules).run(Duration::from_secs(1), |event| eprintln!("{event}"))?;
//! # drop(running); // until then
//! # Ok(()) }
//! ```
//!
//! # When an alert is raised, and when it is cleared
//!
//! Each interval between two snapshots is judged by itself: `p99` is that of the answers within it. An alert is raised
//! when its condition has held in every interval for as long as its rule says, and cleared when it has not held in any
//! for as long. So one with `for 5s` neither comes nor goes with a single odd second.
//!
//! - Nothing was answered, but operations are in flight: a stall. Latencies and the share of errors are not known, and
//!   the interval counts neither for nor against the rule: an alert that was raised stays. To have a stall itself
//!   reported, use `rate < 1/s`.
//! - Nothing was answered and nothing is in flight: nobody waits for anything, and such a condition does not hold.
//! - The counters went back, or they are another process's: it has started anew. The next interval is the first.
//!
//! Latencies are those of a sample of the operations, and known to a sixteenth of themselves, rounded up.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use annulus::metrics::{self, Counts, Every, Histogram, Snapshot};

mod parse;
mod rule;
#[cfg(test)]
mod tests;

pub use parse::RuleError;
pub use rule::Rule;
use rule::{Measure, Part};

/// What happened to an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The condition has held for as long as the rule says.
    Raised,
    /// It has not held any more for as long.
    Cleared,
}

/// An alert was raised or cleared.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// Which of the two.
    pub change: Change,
    /// The rule.
    pub rule: Rule,
    /// What was measured in the last interval: ns, percent, a number per second, a number. `None` if nothing was
    /// there to be measured.
    pub value: Option<f64>,
    /// Since when the condition holds, or does not any more: ns of the monotonic clock.
    pub since_ns: u64,
    /// When this was found out.
    pub at_ns: u64,
}

impl Event {
    /// The value with its unit, rounded; `nothing measured` if there is none.
    pub fn value_text(&self) -> String {
        match self.value {
            Some(value) => self.rule.measure.unit().rounded(value),
            None => "nothing measured".to_owned(),
        }
    }
}

/// A line for a log: `alert raised: read.p99 > 500us for 5s: 1.34ms, for 5.0 s now`.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = match self.change {
            Change::Raised => "raised",
            Change::Cleared => "cleared",
        };
        let lasts = Duration::from_nanos(self.at_ns.saturating_sub(self.since_ns)).as_secs_f64();
        let (rule, value) = (&self.rule, self.value_text());
        write!(f, "alert {change}: {rule}: {value}, for {lasts:.1} s now")
    }
}

/// Rules, and what is known of each.
#[derive(Debug)]
pub struct Alerts {
    watched: Vec<Watched>,
    before: Option<Snapshot>,
    board: Arc<Board>,
}

#[derive(Debug)]
struct Watched {
    rule: Rule,
    raised: bool,
    /// Since when the condition is not as `raised` says, ns.
    differs_since: Option<u64>,
}

/// What others can see of the alerts: whether each is raised.
#[derive(Debug)]
struct Board {
    indices: Vec<(Rule, AtomicBool)>,
}

/// Those of all [`Alerts`] there are.
static BOARDS: Mutex<Vec<Weak<Board>>> = Mutex::new(Vec::new());

/// The alerts of this process, and whether each is raised: of all [`Alerts`] that have not been dropped. One that two
/// of them watch is there once, raised if it is with either.
pub fn states() -> Vec<(Rule, bool)> {
    let mut states: Vec<(Rule, bool)> = Vec::new();
    let mut boards = BOARDS.lock().unwrap_or_else(PoisonError::into_inner);
    boards.retain(|board| board.strong_count() > 0);
    for board in boards.iter().filter_map(Weak::upgrade) {
        for (rule, raised) in &board.indices {
            let raised = raised.load(Relaxed);
            match states.iter_mut().find(|(known, _)| known == rule) {
                Some((_, already)) => *already |= raised,
                None => states.push((rule.clone(), raised)),
            }
        }
    }
    states
}

impl Alerts {
    /// None of them is raised yet.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Alerts {
        let watched = |rule| Watched {
            rule,
            raised: false,
            differs_since: None,
        };
        let watched: Vec<Watched> = rules.into_iter().map(watched).collect();
        let indices = (watched.iter()).map(|one| (one.rule.clone(), AtomicBool::new(false)));
        let board = Arc::new(Board {
            indices: indices.collect(),
        });
        let mut boards = BOARDS.lock().unwrap_or_else(PoisonError::into_inner);
        boards.retain(|board| board.strong_count() > 0);
        boards.push(Arc::downgrade(&board));
        Alerts {
            watched,
            before: None,
            board,
        }
    }

    /// Judges what happened between the last snapshot and this one; the first is what the next is compared with.
    pub fn look(&mut self, now: &Snapshot) -> Vec<Event> {
        let before = match &self.before {
            Some(before) if goes_on(before, now) => before,
            // Time that stands still says nothing.
            Some(before) if before.process == now.process && before.at_ns == now.at_ns => {
                return Vec::new();
            }
            _ => {
                for watched in &mut self.watched {
                    watched.differs_since = None;
                }
                self.before = Some(now.clone());
                return Vec::new();
            }
        };
        let interval = Interval {
            from_ns: before.at_ns,
            to_ns: now.at_ns,
            between: now.since(before),
        };
        let events: Vec<Event> = (self.watched.iter_mut())
            .filter_map(|watched| watched.look(&interval))
            .collect();
        for (watched, (_, raised)) in self.watched.iter().zip(&self.board.indices) {
            raised.store(watched.raised, Relaxed);
        }
        self.before = Some(now.clone());
        events
    }

    /// The rules, and whether the alert of each is raised.
    pub fn states(&self) -> impl Iterator<Item = (&Rule, bool)> {
        (self.watched.iter()).map(|watched| (&watched.rule, watched.raised))
    }

    /// Looks at this process `every` so often, on a thread of its own that [watches](metrics::watch), until the guard is
    /// dropped. A callback that panics is called again for the next event.
    ///
    /// # Errors
    ///
    /// As [`metrics::every`].
    pub fn run(
        mut self,
        every: Duration,
        mut callback: impl FnMut(&Event) + Send + 'static,
    ) -> io::Result<Every> {
        metrics::every(every, move |snapshot| {
            for event in self.look(snapshot) {
                // The panic has been reported where it happened.
                let _ = catch_unwind(AssertUnwindSafe(|| callback(&event)));
            }
        })
    }
}

/// Whether `now` is a later state of what `before` is a state of.
fn goes_on(before: &Snapshot, now: &Snapshot) -> bool {
    let counted = |snapshot: &Snapshot| {
        let counters = snapshot.sources.iter().map(|source| source.counters);
        counters.fold(Counts::default(), |sum, counters| sum.plus(&counters))
    };
    let both = counted(before).fields().zip(counted(now).fields());
    let grows = |((name, before), (_, now)): ((&str, u64), (&str, u64))| {
        name == "in_flight" || now >= before
    };
    before.process == now.process && now.at_ns > before.at_ns && both.into_iter().all(grows)
}

/// What happened between two snapshots.
struct Interval {
    from_ns: u64,
    to_ns: u64,
    between: Snapshot,
}

/// What an interval says about a rule.
enum Finding {
    Measured(f64),
    /// Nothing was answered that could have been, or no answer was timed.
    Unknown,
    /// Nothing was there to be answered.
    Idle,
}

impl Interval {
    fn find(&self, rule: &Rule) -> Finding {
        let sources = &self.between.sources;
        let in_flight = || {
            sources
                .iter()
                .map(|source| source.counters.in_flight)
                .sum::<u64>()
        };
        if rule.measure == Measure::InFlight {
            return Finding::Measured(in_flight() as f64);
        }
        let operations = || {
            let all = sources.iter().flat_map(|source| &source.operations);
            all.filter(|operation| rule.concerns(operation.name))
        };
        let (completed, failed) = operations().fold((0, 0), |(completed, failed), operation| {
            (completed + operation.completed, failed + operation.failed)
        });
        let per_second = |count: u64| {
            let seconds = (self.to_ns - self.from_ns) as f64 / 1e9;
            Finding::Measured(count as f64 / seconds)
        };
        match rule.measure {
            Measure::Rate => return per_second(completed),
            Measure::ErrorRate => return per_second(failed),
            Measure::Errors if completed > 0 => {
                return Finding::Measured(100.0 * failed as f64 / completed as f64);
            }
            Measure::Errors => {}
            _ => {
                let mut latency = Histogram::new();
                for operation in operations() {
                    latency.add(match rule.part {
                        Part::Whole => &operation.latency,
                        Part::Queue => &operation.queue,
                        Part::Device => &operation.device,
                    });
                }
                if let Some(value) = measured(rule.measure, &latency) {
                    return Finding::Measured(value);
                }
            }
        }
        // Only those count that can answer such an operation: they have done so before.
        let can = (sources.iter()).filter(|source| {
            let mut operations = source.operations.iter();
            operations.any(|operation| rule.concerns(operation.name))
        });
        match can.map(|source| source.counters.in_flight).sum::<u64>() {
            // Answers that were not sampled are answers: their latency is not known.
            0 if completed == 0 => Finding::Idle,
            _ => Finding::Unknown,
        }
    }
}

/// A latency in ns, if one was recorded.
fn measured(measure: Measure, latency: &Histogram) -> Option<f64> {
    let quantile = match measure {
        Measure::P50 => 0.5,
        Measure::P90 => 0.9,
        Measure::P99 => 0.99,
        Measure::P999 => 0.999,
        Measure::P9999 => 0.9999,
        Measure::Max => 1.0,
        _ => return (latency.count() > 0).then(|| latency.mean_ns()),
    };
    latency.quantile(quantile).map(|ns| ns as f64)
}

impl Watched {
    fn look(&mut self, interval: &Interval) -> Option<Event> {
        let (holds, value) = match interval.find(&self.rule) {
            Finding::Measured(value) => (self.rule.holds(value), Some(value)),
            Finding::Idle => (false, None),
            Finding::Unknown => return None,
        };
        if holds == self.raised {
            self.differs_since = None;
            return None;
        }
        let since_ns = *self.differs_since.get_or_insert(interval.from_ns);
        if Duration::from_nanos(interval.to_ns - since_ns) < self.rule.lasting {
            return None;
        }
        self.raised = holds;
        self.differs_since = None;
        Some(Event {
            change: match holds {
                true => Change::Raised,
                false => Change::Cleared,
            },
            rule: self.rule.clone(),
            value,
            since_ns,
            at_ns: interval.to_ns,
        })
    }
}
