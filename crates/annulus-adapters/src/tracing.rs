//! Alerts, and which backend was chosen, as events of `tracing` with the target `annulus`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rules = ["read.p99 > 500us for 5s".parse()?, "errors > 0.1%".parse()?];
//! let events = annulus_adapters::tracing::alert_events(rules, std::time::Duration::from_secs(1))?;
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

use annulus::metrics::alert::{Alerts, Change, Event, Rule};
use annulus::metrics::{Every, Snapshot, Source, SourceKind, every};
use tracing::{info, warn};

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
