//! Results: counted per thread, and merged at the end.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::slices::Recorder;

/// The kinds of error of a request or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// No process listens at the address.
    Refused,
    /// The server reset the connection.
    Reset,
    /// A request or a connect exceeded its time limit.
    Timeout,
    /// The server closed the connection before a response, or although it had to keep it open.
    ClosedEarly,
    /// The response does not match the request.
    WrongResponse,
    /// The HTTP status is not 2xx.
    HttpStatus,
    /// Redis returned an error.
    RedisError,
    /// memcached returned an error.
    MemcachedError,
    /// No local port is free for another connection to the address.
    NoPort,
    /// Any other error from the kernel.
    Other,
}

impl Kind {
    /// All kinds, with their names in reports.
    const NAMES: [(Kind, &str); 10] = [
        (Kind::Refused, "connection refused"),
        (Kind::Reset, "connection reset"),
        (Kind::Timeout, "timeout"),
        (Kind::ClosedEarly, "closed early"),
        (Kind::WrongResponse, "wrong response"),
        (Kind::HttpStatus, "http status"),
        (Kind::RedisError, "redis error"),
        (Kind::MemcachedError, "memcached error"),
        (Kind::NoPort, "no port left"),
        (Kind::Other, "other"),
    ];

    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        Kind::NAMES[self as usize].1
    }

    /// Returns the kind of a socket operation's error.
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

/// Error counts by kind, with the text of the first of each kind.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    counts: [u64; Kind::NAMES.len()],
    first: [Option<String>; Kind::NAMES.len()],
}

impl Errors {
    pub(super) fn add(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        self.counts[kind as usize] += 1;
        self.first[kind as usize].get_or_insert_with(text);
    }

    /// Returns the count of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    /// Returns the count of all kinds.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the kinds that occurred, with their count and the text of the first.
    pub fn list(&self) -> impl Iterator<Item = (Kind, u64, &str)> {
        Kind::NAMES.into_iter().filter_map(|(kind, _)| {
            let first = self.first[kind as usize].as_deref().unwrap_or_default();
            Some((kind, self.count(kind), first)).filter(|(_, count, _)| *count > 0)
        })
    }

    fn merge(&mut self, other: &Errors) {
        for (kind, _) in Kind::NAMES {
            self.counts[kind as usize] += other.count(kind);
            if let Some(text) = &other.first[kind as usize] {
                self.first[kind as usize].get_or_insert_with(|| text.clone());
            }
        }
    }
}

/// The results of a run, or of one of its threads.
#[derive(Clone)]
pub struct Outcome {
    /// Responses in the measured time.
    pub responses: u64,
    /// The measured time; for several threads, the mean.
    pub measured: Duration,
    /// Responses per second.
    pub per_second: f64,
    /// CPU time of each client thread, divided by its measured time.
    pub client_cpu: Vec<f64>,
    /// Bytes sent in the measured time.
    pub sent_bytes: u64,
    /// Bytes received in the measured time.
    pub received_bytes: u64,
    /// Bytes received in the whole run.
    pub all_received_bytes: u64,
    /// Nanoseconds from send to response, of responses in the measured time.
    pub latency: Histogram<u64>,
    /// At a fixed rate: nanoseconds from the due time to the response, of requests due in the measured time.
    pub due_latency: Option<Histogram<u64>>,
    /// Responses over time. At a fixed rate, with `due_latency`, and placed at the due time.
    pub recorder: Recorder,
    /// Requests sent in the whole run.
    pub requests: u64,
    /// Responses in the whole run.
    pub all_responses: u64,
    /// Requests whose connection failed before the response.
    pub dropped: u64,
    /// Requests without a response at the end.
    pub unanswered: u64,
    /// At a fixed rate: requests that were due in the measured time and never sent.
    pub never_sent: u64,
    /// Correct empty responses of Redis (nil).
    pub nils: u64,
    /// Connections open at the end of the measured time.
    pub open_at_end: usize,
    /// Connections reopened after an error.
    pub reopened: u64,
    /// Receives that failed because no buffer was free.
    pub out_of_buffers: u64,
    /// Calls of `io_uring_enter`.
    pub enters: u64,
    /// Errors of the whole run, including the warm-up.
    pub errors: Errors,
    /// The reasons that make the run invalid; empty for a valid run.
    pub faults: Vec<String>,
}

impl Outcome {
    /// Merges the results of all threads.
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
            // Histograms of the same range can always be added.
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

/// Returns a histogram of nanoseconds with three significant digits, up to an hour.
pub(super) fn histogram() -> Histogram<u64> {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let histogram = Histogram::new_with_max(HOUR_NS, 3);
    assert!(
        histogram.is_ok(),
        "the histogram supports three digits up to an hour"
    );
    histogram.unwrap_or_else(|_| unreachable!("asserted above"))
}
