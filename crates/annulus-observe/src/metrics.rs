//! Publishes metrics to the recorder of the `metrics` facade.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! let publishing = annulus_observe::metrics::publish(std::time::Duration::from_secs(10))?;
//! # drop(publishing);
//! # Ok(()) }
//! ```
//!
//! Names, labels and units are those of docs/reference/metrics.md. Counters are set to their totals. The facade's
//! histograms take single values, so each latency is recorded as the upper bound of its bucket.

use std::io;
use std::time::Duration;

use annulus::metrics::layout::GAUGES;
use annulus::metrics::{Every, Histogram, PreloadCounts, Snapshot, every};
use metrics::{Label, counter, gauge, histogram};

use crate::alert;
use crate::exported::{self, Totals};

/// Publishes this process's metrics now and at each `interval`, on a new thread.
///
/// It stops when the guard is dropped. Until then latencies are recorded.
///
/// # Errors
///
/// Fails like [`annulus::metrics::every`].
pub fn publish(interval: Duration) -> io::Result<Every> {
    let mut publisher = Publisher::default();
    every(interval, move |snapshot| publisher.publish(snapshot))
}

/// Publishes snapshots of this process, for a program that schedules them itself.
#[derive(Debug, Default)]
pub struct Publisher {
    totals: Totals,
}

impl Publisher {
    /// Publishes a snapshot. It must be newer than the previous one.
    pub fn publish(&mut self, now: &Snapshot) {
        let new = self.totals.advance(now).total();
        for kind in self.totals.kinds() {
            let source = [Label::new("source", kind.kind.name())];
            for (field, value) in kind.counters.fields() {
                let known = exported::field(field);
                match GAUGES.contains(&field) {
                    true => gauge!(named(known, ""), source.iter()).set(value as f64),
                    false => counter!(named(known, "_total"), source.iter()).absolute(value),
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
        self.publish_preload();
        for operation in &new.operations {
            let op = operation.name;
            record(exported::LATENCY, op, &operation.latency);
            record(exported::QUEUE, op, &operation.queue);
            record(exported::DEVICE, op, &operation.device);
        }
        for source in now
            .sources
            .iter()
            .filter(|source| !source.backend.is_empty())
        {
            let labels = [
                Label::new("source", source.kind.name()),
                Label::new("backend", source.backend.clone()),
                Label::new("fallback", source.fallback.clone().unwrap_or_default()),
            ];
            gauge!(named(exported::BACKEND, ""), labels.iter()).set(1.0);
        }
        gauge!(named(exported::KERNEL_WORKERS, "")).set(now.kernel_workers as f64);
        for state in alert::states() {
            gauge!(named(exported::ALERT, ""), "rule" => state.rule.to_string())
                .set(f64::from(u8::from(state.is_raised)));
        }
    }
}

impl Publisher {
    /// Publishes nothing if the preload library is not in use.
    fn publish_preload(&self) {
        let kinds = self.totals.kinds().iter();
        let kinds: Vec<_> = kinds
            .filter(|kind| kind.preload != PreloadCounts::default())
            .collect();
        for kind in &kinds {
            for (name, reasons) in [
                (exported::PASSED, &kind.preload.passed),
                (exported::HANDED_BACK, &kind.preload.handed_back),
            ] {
                for one in reasons {
                    let labels = [
                        Label::new("reason", one.reason),
                        Label::new("source", kind.kind.name()),
                    ];
                    counter!(named(name, "_total"), labels.iter()).absolute(one.count);
                }
            }
        }
        for (name, help, value) in exported::PRELOAD {
            if !kinds.is_empty() {
                let sum: u64 = kinds.iter().map(|kind| value(&kind.preload)).sum();
                gauge!(named((name, help), "")).set(sum as f64);
            }
        }
    }
}

fn named((name, _): (&str, &str), suffix: &str) -> String {
    format!("annulus_{name}{suffix}")
}

fn record(name: (&str, &str), op: &'static str, new: &Histogram) {
    for bucket in new.buckets() {
        let (last, count) = (bucket.last_ns, bucket.count);
        let seconds = last as f64 / 1e9;
        histogram!(named(name, "_seconds"), "op" => op).record_many(seconds, count as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use annulus::metrics::{OperationCounts, Source, SourceKind};
    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, HistogramFn, Key, KeyName, Metadata, Recorder,
        SharedString, Unit, with_local_recorder,
    };

    use super::*;

    /// Keeps the last value of each series, and the number of values of each histogram.
    #[derive(Default)]
    struct Sheet(Arc<Mutex<BTreeMap<String, f64>>>);

    struct Cell {
        key: String,
        sheet: Arc<Mutex<BTreeMap<String, f64>>>,
    }

    impl Cell {
        fn set_to(&self, value: f64) {
            self.sheet.lock().unwrap().insert(self.key.clone(), value);
        }

        fn add(&self, value: f64) {
            *self
                .sheet
                .lock()
                .unwrap()
                .entry(self.key.clone())
                .or_default() += value;
        }
    }

    impl CounterFn for Cell {
        fn increment(&self, value: u64) {
            self.add(value as f64);
        }

        fn absolute(&self, value: u64) {
            self.set_to(value as f64);
        }
    }

    impl GaugeFn for Cell {
        fn increment(&self, value: f64) {
            self.add(value);
        }

        fn decrement(&self, value: f64) {
            self.add(-value);
        }

        fn set(&self, value: f64) {
            self.set_to(value);
        }
    }

    impl HistogramFn for Cell {
        fn record(&self, _: f64) {
            self.add(1.0);
        }
    }

    impl Sheet {
        fn cell(&self, key: &Key) -> Arc<Cell> {
            let labels = key
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()));
            let labels: Vec<String> = labels.collect();
            Arc::new(Cell {
                key: format!("{} {}", key.name(), labels.join(" ")),
                sheet: Arc::clone(&self.0),
            })
        }
    }

    impl Recorder for Sheet {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.cell(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.cell(key))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> metrics::Histogram {
            metrics::Histogram::from_arc(self.cell(key))
        }
    }

    fn planted(completed: u64) -> Snapshot {
        let mut operation = OperationCounts::default();
        (operation.name, operation.completed, operation.failed) = ("read_at", completed, 1);
        operation.latency.record_many(1_000, completed);
        let mut source = Source::default();
        (source.kind, source.owner) = (SourceKind::Driver, 1);
        source.backend = "io_uring".to_owned();
        (source.counters.enters, source.counters.in_flight) = (7, 5);
        source.operations.push(operation);
        let mut snapshot = Snapshot::default();
        snapshot.sources.push(source);
        snapshot
    }

    #[test]
    fn counters_are_totals_and_each_latency_is_recorded_once() {
        let sheet = Sheet::default();
        let mut publisher = Publisher::default();
        with_local_recorder(&sheet, || {
            publisher.publish(&planted(100));
            publisher.publish(&planted(130));
        });
        let sheet = sheet.0.lock().unwrap();
        for (series, value) in [
            ("annulus_operations_total op=read_at source=driver", 130.0),
            (
                "annulus_operation_failures_total op=read_at source=driver",
                1.0,
            ),
            ("annulus_operation_duration_seconds op=read_at", 130.0),
            ("annulus_enters_total source=driver", 7.0),
            ("annulus_in_flight source=driver", 5.0),
            (
                "annulus_backend_info source=driver backend=io_uring fallback=",
                1.0,
            ),
            ("annulus_kernel_workers ", 0.0),
        ] {
            assert_eq!(sheet.get(series), Some(&value), "{series}: {sheet:#?}");
        }
    }
}
