//! Alerts: thresholds on metrics, and a callback when one is crossed.
//!
//! A [`Rule`] is parsed from a text of one of these forms:
//!
//! ```text
//! [OP.][queue.|device.]p50|p90|p99|p99.9|p99.99|mean|max  COMPARISON  TIME      [for TIME]
//! [OP.]errors                                             COMPARISON  PERCENT   [for TIME]
//! [OP.]error_rate | [OP.]rate                             COMPARISON  N/s       [for TIME]
//! in_flight                                               COMPARISON  N         [for TIME]
//! ```
//!
//! - `OP` is an operation in docs/reference/kernels.md or a family: `read`, `write`, `sync`, `send`, `recv`, `all`.
//! - `COMPARISON` is `>`, `>=`, `<` or `<=`.
//! - `TIME` is, for example, `100ns`, `500us`, `1.5ms` or `2s`.
//! - `errors` is the share of completions that are errors.
//! - `error_rate` is errors per second, and `rate` completions per second.
//!
//! [`Alerts::run`] checks rules on a thread. [`Alerts::look`] returns the alerts that changed between two snapshots.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use annulus_observe::alert::Alerts;
//!
//! let rules = ["read.p99 > 500us for 5s".parse()?, "errors > 0.1%".parse()?];
//! let running = Alerts::new(rules).run(Duration::from_secs(1), |event| eprintln!("{event}"))?;
//! # drop(running);
//! # Ok(()) }
//! ```
//!
//! # When an alert is raised and cleared
//!
//! Each interval between two snapshots is evaluated separately: `p99` is that of the completions within the interval.
//! An alert is raised once its condition has held in every interval for the time of its rule. It is cleared once the
//! condition has failed in every interval for the same time. With `for 5s`, a single unusual second changes nothing.
//!
//! - Operations are in flight but none completed: a stall. Latencies and the share of errors are unknown, so the
//!   interval is ignored and a raised alert stays. To be alerted of stalls, use `rate < 1/s`.
//! - None completed and none are in flight: the process is idle. A condition on latencies or errors does not hold.
//! - The counters decreased, or belong to another process: the process was restarted. The next interval is the first.
//!
//! Latencies are those of a sample of the operations. They are rounded up, by at most a sixteenth.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use annulus::metrics::layout::GAUGES;
use annulus::metrics::{self, Counts, Every, Histogram, OperationCounts, Snapshot};

mod parse;
mod rule;
#[cfg(test)]
mod tests;

pub use parse::RuleError;
pub use rule::Rule;
use rule::{Measure, Part};

/// The direction of an alert's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// The condition has held for the time of the rule.
    Raised,
    /// The condition has not held for the time of the rule.
    Cleared,
}

/// An alert was raised or cleared.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// The direction of the change.
    pub change: Change,
    /// The rule.
    pub rule: Rule,
    /// The value in the last interval: ns, percent, a number per second, or a count. `None` if there was nothing to
    /// measure.
    pub value: Option<f64>,
    /// The start of the period in which the condition has held, or has not: ns of the monotonic clock.
    pub since_ns: u64,
    /// The time of the change: ns of the monotonic clock.
    pub at_ns: u64,
}

impl Event {
    /// Returns the value with its unit, rounded, or `no measurement`.
    pub fn value_text(&self) -> String {
        match self.value {
            Some(value) => self.rule.measure.unit().rounded(value),
            None => "no measurement".to_owned(),
        }
    }
}

/// Writes a log line: `alert raised: read.p99 > 500us for 5s: 1.34ms, for the last 5.0 s`.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = match self.change {
            Change::Raised => "raised",
            Change::Cleared => "cleared",
        };
        let lasts = Duration::from_nanos(self.at_ns.saturating_sub(self.since_ns)).as_secs_f64();
        let (rule, value) = (&self.rule, self.value_text());
        write!(
            f,
            "alert {change}: {rule}: {value}, for the last {lasts:.1} s"
        )
    }
}

/// A set of rules and the state of their alerts.
#[derive(Debug)]
pub struct Alerts {
    watched: Vec<Watched>,
    before: Option<Snapshot>,
    board: Arc<Board>,
}

/// The state of one alert.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AlertState {
    /// The rule.
    pub rule: Rule,
    /// `true` if the alert is raised.
    pub is_raised: bool,
}

#[derive(Debug)]
struct Watched {
    rule: Rule,
    raised: bool,
    /// The start of the period in which the condition differs from `raised`, ns.
    differs_since: Option<u64>,
}

/// The part of [`Alerts`] that [`states`] reads: whether each alert is raised.
#[derive(Debug)]
struct Board {
    indices: Vec<(Rule, AtomicBool)>,
}

/// The boards of all [`Alerts`] of the process.
static BOARDS: Mutex<Vec<Weak<Board>>> = Mutex::new(Vec::new());

/// Returns the state of each alert of this process: of all [`Alerts`] that have not been dropped.
///
/// A rule that is in several [`Alerts`] is returned once, as raised if it is raised in any of them.
pub fn states() -> Vec<AlertState> {
    let mut states: Vec<AlertState> = Vec::new();
    let mut boards = BOARDS.lock().unwrap_or_else(PoisonError::into_inner);
    boards.retain(|board| board.strong_count() > 0);
    for board in boards.iter().filter_map(Weak::upgrade) {
        for (rule, raised) in &board.indices {
            let is_raised = raised.load(Relaxed);
            match states.iter_mut().find(|state| state.rule == *rule) {
                Some(state) => state.is_raised |= is_raised,
                None => states.push(AlertState {
                    rule: rule.clone(),
                    is_raised,
                }),
            }
        }
    }
    states
}

impl Alerts {
    /// Returns a set of alerts, none of them raised.
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

    /// Evaluates the interval since the last snapshot and returns the alerts that changed. The first snapshot only
    /// starts the first interval.
    pub fn look(&mut self, now: &Snapshot) -> Vec<Event> {
        let before = match &self.before {
            Some(before) if goes_on(before, now) => before,
            // No time has passed.
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

    /// Returns the state of each alert, in the order of the rules.
    pub fn states(&self) -> impl Iterator<Item = AlertState> {
        (self.watched.iter()).map(|watched| AlertState {
            rule: watched.rule.clone(),
            is_raised: watched.raised,
        })
    }

    /// Checks the rules at intervals of `every` on a new thread, and calls `callback` for each change.
    ///
    /// It stops when the guard is dropped. Until then latencies are recorded ([`metrics::watch`]). A callback that
    /// panics is called again for the next event.
    ///
    /// # Errors
    ///
    /// Fails like [`metrics::every`].
    pub fn run(
        mut self,
        every: Duration,
        mut callback: impl FnMut(&Event) + Send + 'static,
    ) -> io::Result<Every> {
        metrics::every(every, move |snapshot| {
            for event in self.look(snapshot) {
                // The panic hook has already reported the panic.
                let _ = catch_unwind(AssertUnwindSafe(|| callback(&event)));
            }
        })
    }
}

/// Returns whether `now` is a later snapshot of the same process run as `before`.
fn goes_on(before: &Snapshot, now: &Snapshot) -> bool {
    let counted = |snapshot: &Snapshot| {
        let counters = snapshot.sources.iter().map(|source| source.counters);
        counters.fold(Counts::default(), |sum, counters| sum.plus(&counters))
    };
    let both = counted(before).fields().zip(counted(now).fields());
    let grows = |((name, before), (_, now)): ((&str, u64), (&str, u64))| {
        GAUGES.contains(&name) || now >= before
    };
    before.process == now.process && now.at_ns > before.at_ns && both.into_iter().all(grows)
}

/// The difference between two snapshots.
struct Interval {
    from_ns: u64,
    to_ns: u64,
    between: Snapshot,
}

/// The result of evaluating a rule in an interval.
enum Finding {
    Measured(f64),
    /// Operations were in flight but none completed, or no completion was timed.
    Unknown,
    /// No operation was in flight.
    Idle,
}

impl Interval {
    fn find(&self, rule: &Rule) -> Finding {
        let sources = &self.between.sources;
        let in_flight = || {
            let in_flight = sources.iter().map(|source| source.counters.in_flight);
            in_flight.fold(0, u64::saturating_add)
        };
        if rule.measure == Measure::InFlight {
            return Finding::Measured(in_flight() as f64);
        }
        let operations = || {
            let all = sources.iter().flat_map(|source| &source.operations);
            all.filter(|operation| rule.concerns(operation.name))
        };
        // Another process may have written any numbers.
        let sum =
            |of: fn(&OperationCounts) -> u64| operations().map(of).fold(0, u64::saturating_add);
        let completed = sum(|operation| operation.completed);
        let failed = sum(|operation| operation.failed);
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
        // Only sources that have completed such an operation before count.
        let can = (sources.iter()).filter(|source| {
            let mut operations = source.operations.iter();
            operations.any(|operation| rule.concerns(operation.name))
        });
        let in_flight = can.map(|source| source.counters.in_flight);
        match in_flight.fold(0, u64::saturating_add) {
            // Completions that were not sampled count as well; only their latency is unknown.
            0 if completed == 0 => Finding::Idle,
            _ => Finding::Unknown,
        }
    }
}

/// Returns a latency in ns, or `None` if none was recorded.
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
