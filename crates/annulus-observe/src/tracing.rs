//! Alerts, and which backend was chosen, as events of `tracing` with the target `annulus`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = ["read.p99 > 500us for 5s".parse()?, "errors > 0.1%".parse()?];
//! let events = annulus_observe::tracing::alert_events(rules, std::time::Duration::from_secs(1))?;
//! # drop(events); // until then
//! # Ok(()) }
//! ```
//!
//! | event | level | fields |
//! |---|---|---|
//! | `alert raised` | WARN | `rule`, `value`, `seconds`: for how long the condition has held |
//! | `alert cleared` | INFO | the same: for how long it has not |
//! | `engine made`, `runtime made` | INFO | `owner`, its number; `backend` |
//! | `falls back` | WARN | the same, and `fallback`: why, and what to change |

use std::io;
use std::time::Duration;

use annulus::metrics::{Every, Snapshot, Source, SourceKind, every};
use tracing::{info, warn};

use crate::alert::{Alerts, Change, Event, Rule};

/// Looks at this process `interval` so often, on a thread of its own, until the guard is dropped: in the meantime
/// latencies are recorded.
///
/// # Errors
///
/// As [`annulus::metrics::every`].
pub fn alert_events(
    rules: impl IntoIterator<Item = Rule>,
    interval: Duration,
) -> io::Result<Every> {
    let mut events = Events::new(rules);
    every(interval, move |snapshot| events.look(snapshot))
}

/// Snapshots of this process, made into events.
#[derive(Debug)]
pub struct Events {
    alerts: Alerts,
    /// Who has been reported.
    known: Vec<(u64, String)>,
}

impl Events {
    /// Nothing has been seen yet.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Events {
        Events {
            alerts: Alerts::new(rules),
            known: Vec::new(),
        }
    }

    /// Reports what a snapshot, newer than the one before, has of news.
    pub fn look(&mut self, now: &Snapshot) {
        for source in now
            .sources
            .iter()
            .filter(|source| source.kind != SourceKind::Ended)
        {
            let who = (source.owner, source.backend.clone());
            if !source.backend.is_empty() && !self.known.contains(&who) {
                made(source);
                self.known.push(who);
            }
        }
        for event in self.alerts.look(now) {
            report(&event);
        }
    }
}

fn made(source: &Source) {
    let (owner, backend) = (source.owner, source.backend.as_str());
    match source.kind {
        SourceKind::Core => info!(target: "annulus", owner, backend, "runtime made"),
        _ => info!(target: "annulus", owner, backend, "engine made"),
    }
    if let Some(fallback) = &source.fallback {
        warn!(target: "annulus", owner, backend, fallback, "falls back");
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

    /// Writes each event down as a line.
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
                "engine made",
                "owner=3",
                "4 blocking threads",
            ],
            [
                "annulus WARN",
                "falls back",
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
