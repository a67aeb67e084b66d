//! What is measured, in whatever recorder the facade `metrics` has.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! let publishing = annulus_adapters::metrics::publish(std::time::Duration::from_secs(10))?;
//! # drop(publishing); // until then
//! # Ok(()) }
//! ```
//!
//! The names are those of docs/METRICS.md, labels and units included. Counters are set to their totals. The facade's
//! histograms take single values: each latency is given as the upper end of the bucket that it was counted in.

use std::io;
use std::time::Duration;

use annulus::metrics::{Every, Histogram, Snapshot, alert, every};
use metrics::{Label, counter, gauge, histogram};

use crate::exported::{self, Totals};

/// Publishes this process's metrics now and `every` so often, on a thread of its own, until the guard is dropped. In
/// the meantime latencies are recorded.
///
/// # Errors
///
/// As [`annulus::metrics::every`].
pub fn publish(interval: Duration) -> io::Result<Every> {
    let mut publisher = Publisher::default();
    every(interval, move |snapshot| publisher.publish(snapshot))
}

/// Publishes snapshots of this process.
#[derive(Debug, Default)]
pub struct Publisher {
    totals: Totals,
}

impl Publisher {
    /// Gives a snapshot, newer than the one before, to the recorder.
    pub fn publish(&mut self, now: &Snapshot) {
        let new = self.totals.advance(now).total();
        for kind in self.totals.kinds() {
            let source = [Label::new("source", kind.kind.name())];
            for (field, value) in kind.counters.fields() {
                if field == "in_flight" {
                    gauge!(named(exported::IN_FLIGHT, ""), source.iter()).set(value as f64);
                } else {
                    counter!(named(exported::counter(field), "_total"), source.iter())
                        .absolute(value);
                }
            }
            for operation in &kind.operations {
                let labels = [Label::new("op", operation.name), source[0].clone()];
                counter!(named(exported::OPERATIONS, "_total"), labels.iter())
                    .absolute(operation.completed);
                counter!(named(exported::OPERATION_FAILURES, "_total"), labels.iter())
                    .absolute(operation.failed);
            }
        }
        for operation in &new.operations {
            let op = operation.name;
            record(exported::LATENCY, op, &operation.latency);
            record(exported::QUEUE, op, &operation.queue);
            record(exported::DEVICE, op, &operation.device);
        }
        gauge!(named(exported::KERNEL_WORKERS, "")).set(now.kernel_workers as f64);
        for (rule, raised) in alert::states() {
            gauge!(named(exported::ALERT, ""), "rule" => rule.to_string())
                .set(f64::from(u8::from(raised)));
        }
    }
}

fn named((name, _): (&str, &str), suffix: &str) -> String {
    format!("annulus_{name}{suffix}")
}

fn record(name: (&str, &str), op: &'static str, new: &Histogram) {
    for (_, last, count) in new.buckets() {
        let seconds = last as f64 / 1e9;
        histogram!(named(name, "_seconds"), "op" => op).record_many(seconds, count as usize);
    }
}
