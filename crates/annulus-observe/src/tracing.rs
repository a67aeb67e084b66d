//! Emits alerts and backend choices as `tracing` events with the target `annulus`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = ["read.p99 > 500us for 5s".parse()?, "errors > 0.1%".parse()?];
//! let events = annulus_observe::tracing::alert_events(rules, std::time::Duration::from_secs(1))?;
//! # drop(events);
//! # Ok(()) }
//! ```
//!
//! | event | level | fields |
//! |---|---|---|
//! | `alert raised` | WARN | `rule`, `value`, `seconds`: the time for which the condition has held |
//! | `alert cleared` | INFO | `rule`, `value`, `seconds`: the time for which the condition has not held |
//! | `engine created`, `runtime created` | INFO | `owner`: its number; `backend` |
//! | `fallback in use` | WARN | `owner`, `backend`, `fallback`: the reason, and what to change |

use std::io;
use std::time::Duration;

use annulus::metrics::{Every, Snapshot, Source, SourceKind, every};
use tracing::{info, warn};

use crate::alert::{Alerts, Change, Event, Rule};

/// Checks the rules at each `interval` on a new thread, and emits the events.
///
/// It stops when the guard is dropped. Until then latencies are recorded.
///
/// # Errors
///
/// Fails like [`annulus::metrics::every`].
pub fn alert_events(
    rules: impl IntoIterator<Item = Rule>,
    interval: Duration,
) -> io::Result<Every> {
    let mut events = Events::new(rules);
    every(interval, move |snapshot| events.look(snapshot))
}

/// Turns snapshots of this process into events.
#[derive(Debug)]
pub struct Events {
    alerts: Alerts,
    /// The owners and backends that were reported.
    known: Vec<(u64, String)>,
}

impl Events {
    /// Returns a state in which nothing was reported.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Events {
        Events {
            alerts: Alerts::new(rules),
            known: Vec::new(),
        }
    }

    /// Emits the events since the last snapshot. `now` must be newer than that one.
    pub fn look(&mut self, now: &Snapshot) {
        for source in now
            .sources
            .iter()
            .filter(|source| source.kind != SourceKind::Ended)
        {
            let reported = (source.owner, source.backend.clone());
            if !source.backend.is_empty() && !self.known.contains(&reported) {
                report_creation(source);
                self.known.push(reported);
            }
        }
        for event in self.alerts.look(now) {
            report(&event);
        }
    }
}

fn report_creation(source: &Source) {
    let (owner, backend) = (source.owner, source.backend.as_str());
    match source.kind {
        SourceKind::Core => info!(target: "annulus", owner, backend, "runtime created"),
        _ => info!(target: "annulus", owner, backend, "engine created"),
    }
    if let Some(fallback) = &source.fallback {
        warn!(target: "annulus", owner, backend, fallback, "fallback in use");
    }
}

fn report(event: &Event) {
    let (rule, value) = (&event.rule, event.value_text());
    let seconds = Duration::from_nanos(event.at_ns.saturating_sub(event.since_ns)).as_secs_f64();
    match event.change {
        Change::Raised => warn!(target: "annulus", %rule, value, seconds, "alert raised"),
        Change::Cleared => info!(target: "annulus", %rule, value, seconds, "alert cleared"),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Metadata, Subscriber};

    use super::*;

    /// Keeps each event as a line.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            let _ = write!(self.0, " {}={value:?}", field.name());
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &tracing::Event<'_>) {
            let metadata = event.metadata();
            let mut line = Line(format!("{} {}", metadata.target(), metadata.level()));
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn engines_and_alerts_are_reported_once_each() {
        let lines = Lines::default();
        let mut events = Events::new(["in_flight > 2".parse().unwrap()]);
        let mut now = Snapshot::default();
        let mut source = Source::default();
        (source.kind, source.owner) = (SourceKind::Driver, 3);
        source.backend = "4 blocking threads".to_owned();
        source.fallback = Some("io_uring is forbidden".to_owned());
        now.sources.push(source);
        tracing::subscriber::with_default(lines.clone(), || {
            for in_flight in [0, 5, 5, 1] {
                now.at_ns += 1_000_000_000;
                now.sources[0].counters.in_flight = in_flight;
                events.look(&now);
            }
        });
        let lines = lines.0.lock().unwrap();
        assert_eq!(lines.len(), 4, "{lines:#?}");
        for (line, parts) in lines.iter().zip([
            [
                "annulus INFO",
                "engine created",
                "owner=3",
                "4 blocking threads",
            ],
            [
                "annulus WARN",
                "fallback in use",
                "owner=3",
                "io_uring is forbidden",
            ],
            [
                "annulus WARN",
                "alert raised",
                "rule=in_flight > 2",
                "value=\"5\"",
            ],
            [
                "annulus INFO",
                "alert cleared",
                "rule=in_flight > 2",
                "value=\"1\"",
            ],
        ]) {
            for part in parts {
                assert!(line.contains(part), "{part}: {line}");
            }
        }
    }
}
