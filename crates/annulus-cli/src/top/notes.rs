//! Hints about problems, with remedies.

use annulus::metrics::Snapshot;

use super::preload;
use super::report::{ProcessFacts, Report, SourceReport};
use super::units::count;

/// Returns the report of an interval, with its hints.
pub(super) fn report(process: ProcessFacts, earlier: &Snapshot, now: &Snapshot) -> Report {
    let mut report = Report::between(process, earlier, now);
    report.notes = notes(&report);
    report
}

fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((times, most)) = most(report, "cq_overflows") {
        notes.push(format!(
            "the completion queue overflowed {times} times/s, mostly {most}; keep fewer operations in flight"
        ));
    }
    if let Some((times, most)) = most(report, "no_buffers") {
        let hint = match report.total.preload {
            None => "give each core more receive buffers, or larger ones",
            // The buffers of the preload library grow on demand.
            Some(_) => "the program reads received data too slowly",
        };
        notes.push(format!(
            "receives found no free buffer (ENOBUFS) {times} times/s, mostly {most}; {hint}"
        ));
    }
    if let Some((times, most)) = most(report, "pool_waits") {
        notes.push(format!(
            "loads of a page pool waited for a frame {times} times/s, mostly {most}; give it more memory, or drop pages earlier"
        ));
    }
    let waiting = report.sources.iter().filter(|source| is_stuck(source));
    notes.extend(waiting.map(|source| {
        let (name, in_flight) = (source.name(), source.done.in_flight);
        format!("{name}: {in_flight} operations in flight, and none completed within the interval")
    }));
    notes.extend(preload::notes(report));
    let leaked = report.total.since_start("leaked");
    if leaked > 0 {
        notes.push(format!(
            "{leaked} operations did not end within a drain; their memory was leaked intentionally"
        ));
    }
    notes
}

/// Returns the growth of a counter per second and the source with the largest growth, if the counter grew.
fn most(report: &Report, counter: &str) -> Option<(String, String)> {
    let rate = report.total.rate(counter);
    let rates = report.sources.iter();
    let most = rates.max_by(|one, other| {
        let (one, other) = (one.done.rate(counter), other.done.rate(counter));
        one.total_cmp(&other)
    })?;
    (rate > 0.0).then(|| (count(rate), most.name()))
}

/// Returns whether a source has operations in flight and no completions. Cores do not count: their receives and accepts
/// wait for clients.
fn is_stuck(source: &SourceReport) -> bool {
    let is_for_files =
        ["driver", "own_ring", "threads", "core_files"].contains(&source.kind.as_str());
    is_for_files && source.done.in_flight > 0 && source.done.rate("completed") == 0.0
}
