//! What is worth a second look, and what to do about it.

use super::preload;
use super::report::{Report, SourceReport};
use super::units::count;

pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((times, most)) = most(report, "cq_overflows") {
        notes.push(format!(
            "completions did not fit into the completion queue {times} times/s, most of {most}; \
             have fewer operations in flight"
        ));
    }
    if let Some((times, most)) = most(report, "no_buffers") {
        let hint = match report.total.preload {
            None => "give each core more receive buffers, or larger ones",
            // Its own grow by themselves.
            Some(_) => "the program is slow to read what has come",
        };
        notes.push(format!(
            "receives found no buffer free (ENOBUFS) {times} times/s, most of {most}; {hint}"
        ));
    }
    let waiting = report.sources.iter().filter(|source| is_stuck(source));
    notes.extend(waiting.map(|source| {
        let (name, in_flight) = (source.name(), source.done.in_flight);
        format!("{name}: {in_flight} in flight, and none was answered within the interval")
    }));
    notes.extend(preload::notes(report));
    let leaked = report.total.since_start("leaked");
    if leaked > 0 {
        notes.push(format!(
            "{leaked} operations were given up at the end of a drain, their memory leaked on purpose"
        ));
    }
    notes
}

/// How often that counter grew per second, if it did, and of which source the most.
fn most(report: &Report, counter: &str) -> Option<(String, String)> {
    let rate = report.total.rate(counter);
    let rates = report.sources.iter();
    let most = rates.max_by(|one, other| {
        let (one, other) = (one.done.rate(counter), other.done.rate(counter));
        one.total_cmp(&other)
    })?;
    (rate > 0.0).then(|| (count(rate), most.name()))
}

/// A core's receives and accepts wait for clients: that they are not answered says nothing.
fn is_stuck(source: &SourceReport) -> bool {
    let of_files = ["driver", "own_ring", "threads", "core_files"].contains(&source.kind.as_str());
    of_files && source.done.in_flight > 0 && source.done.rate("completed") == 0.0
}
