//! What is counted: per thread while it runs, and of all of them at the end.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::slices::Recorder;

/// What can go wrong with a request or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Nobody listens.
    Refused,
    /// The server broke the connection off.
    Reset,
    /// No answer in time, or no connection.
    Timeout,
    /// The server closed although it owed an answer, or was to keep the connection.
    ClosedEarly,
    /// The answer is not one to what was asked.
    WrongResponse,
    /// HTTP answered with something other than 2xx.
    HttpStatus,
    /// Redis answered with an error.
    RedisError,
    /// Memcached answered with an error.
    MemcachedError,
    /// This machine has no port left for another connection to that address.
    NoPort,
    /// Any other error of the kernel.
    Other,
}

impl Kind {
    /// Each of them.
    pub const ALL: [Kind; 10] = [
        Kind::Refused,
        Kind::Reset,
        Kind::Timeout,
        Kind::ClosedEarly,
        Kind::WrongResponse,
        Kind::HttpStatus,
        Kind::RedisError,
        Kind::MemcachedError,
        Kind::NoPort,
        Kind::Other,
    ];

    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Refused => "connection refused",
            Kind::Reset => "connection reset",
            Kind::Timeout => "timeout",
            Kind::ClosedEarly => "closed early",
            Kind::WrongResponse => "wrong response",
            Kind::HttpStatus => "http status",
            Kind::RedisError => "redis error",
            Kind::MemcachedError => "memcached error",
            Kind::NoPort => "no port left",
            Kind::Other => "other",
        }
    }

    /// The kind of an error that a socket's operation ended with.
    pub(super) fn of(errno: i32) -> Kind {
        match errno {
            libc::ECONNREFUSED | libc::ENOENT => Kind::Refused,
            libc::ECONNRESET | libc::EPIPE | libc::ECONNABORTED => Kind::Reset,
            libc::ETIMEDOUT => Kind::Timeout,
            libc::EADDRNOTAVAIL => Kind::NoPort,
            _ => Kind::Other,
        }
    }
}

/// Errors by kind, with the first of each in words.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    counts: [u64; Kind::ALL.len()],
    first: [Option<String>; Kind::ALL.len()],
}

impl Errors {
    pub(super) fn add(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        self.counts[kind as usize] += 1;
        self.first[kind as usize].get_or_insert_with(text);
    }

    /// How many of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The kinds that occurred: how often, and the first in words.
    pub fn list(&self) -> impl Iterator<Item = (Kind, u64, &str)> {
        Kind::ALL.into_iter().filter_map(|kind| {
            let first = self.first[kind as usize].as_deref().unwrap_or_default();
            Some((kind, self.count(kind), first)).filter(|(_, count, _)| *count > 0)
        })
    }

    fn merge(&mut self, other: &Errors) {
        for kind in Kind::ALL {
            self.counts[kind as usize] += other.count(kind);
            if let Some(text) = &other.first[kind as usize] {
                self.first[kind as usize].get_or_insert_with(|| text.clone());
            }
        }
    }
}

/// What a run, or one thread of it, gave.
#[derive(Clone)]
pub struct Outcome {
    /// Answers within the measured time, and how long that was.
    pub responses: u64,
    /// The measured time; of several threads, the mean.
    pub measured: Duration,
    /// Requests answered a second.
    pub per_second: f64,
    /// Processor time of each client thread over its measured time.
    pub client_cpu: Vec<f64>,
    /// Bytes sent and received within the measured time.
    pub sent_bytes: u64,
    /// As above.
    pub received_bytes: u64,
    /// Received over the whole run.
    pub all_received_bytes: u64,
    /// From sending to answer, in nanoseconds, of answers in the measured time.
    pub latency: Histogram<u64>,
    /// At a fixed rate, from the moment a request was due to its answer, of requests due in the measured time.
    pub due_latency: Option<Histogram<u64>>,
    /// Answers of the measured time over time: with the latter latency if there is one, by when they were due.
    pub recorder: Recorder,
    /// Over the whole run: requests made, answered, lost with their connection, unanswered at the end.
    pub requests: u64,
    /// As above.
    pub all_responses: u64,
    /// As above.
    pub dropped: u64,
    /// As above.
    pub unanswered: u64,
    /// At a fixed rate: requests due in the measured time that were never sent.
    pub never_sent: u64,
    /// Answers that were right and empty (redis).
    pub nils: u64,
    /// Connections open when the measured time ended.
    pub open_at_end: usize,
    /// Connections opened again after an error.
    pub reopened: u64,
    /// How often the kernel had no buffer to receive into.
    pub out_of_buffers: u64,
    /// How often the kernel was entered.
    pub enters: u64,
    /// All errors of the run, the warm-up's included.
    pub errors: Errors,
    /// Why the run is void, in sentences; empty for a good one.
    pub faults: Vec<String>,
}

impl Outcome {
    /// What all threads gave together.
    pub(super) fn merged(parts: Vec<Outcome>) -> Option<Outcome> {
        let threads = parts.len() as u32;
        let mut parts = parts.into_iter();
        let mut sum = parts.next()?;
        for part in parts {
            sum.responses += part.responses;
            sum.measured += part.measured;
            sum.per_second += part.per_second;
            sum.client_cpu.extend(part.client_cpu);
            sum.sent_bytes += part.sent_bytes;
            sum.received_bytes += part.received_bytes;
            // Of one shape: adding cannot fail.
            let _ = sum.latency.add(&part.latency);
            if let (Some(sum), Some(part)) = (&mut sum.due_latency, &part.due_latency) {
                let _ = sum.add(part);
            }
            sum.recorder.add(part.recorder);
            sum.all_received_bytes += part.all_received_bytes;
            sum.requests += part.requests;
            sum.all_responses += part.all_responses;
            sum.dropped += part.dropped;
            sum.unanswered += part.unanswered;
            sum.never_sent += part.never_sent;
            sum.nils += part.nils;
            sum.open_at_end += part.open_at_end;
            sum.reopened += part.reopened;
            sum.out_of_buffers += part.out_of_buffers;
            sum.enters += part.enters;
            sum.errors.merge(&part.errors);
        }
        sum.measured /= threads;
        Some(sum)
    }
}

/// A histogram of nanoseconds with three digits, up to an hour.
pub(super) fn histogram() -> Histogram<u64> {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let made = Histogram::new_with_max(HOUR_NS, 3);
    assert!(
        made.is_ok(),
        "three digits up to an hour are within what a histogram can"
    );
    made.unwrap_or_else(|_| unreachable!("asserted above"))
}
