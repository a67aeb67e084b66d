//! The requests of one thread: their numbers, times and results.

use hdrhistogram::Histogram;

use super::conn::Conn;
use super::protocol::{Completed, Protocol, Step};
use super::tally::{Errors, Kind, histogram};
use crate::slices::Recorder;

/// The due time and the send time of a request. They differ only at a fixed rate.
#[derive(Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) due_ns: u64,
    pub(super) sent_ns: u64,
}

/// The result of parsing received bytes.
pub(super) enum Parsed {
    /// The number of requests that completed.
    Responses(u32),
    /// The connection must be closed, for this reason.
    Wrong(String),
}

/// The requests of one thread.
pub(super) struct Requests<P> {
    pub(super) protocol: P,
    pub(super) errors: Errors,
    pub(super) latency: Histogram<u64>,
    pub(super) due_latency: Option<Histogram<u64>>,
    /// Latencies over time, placed at the response, or at the due time at a fixed rate.
    pub(super) recorder: Recorder,
    /// The range of due times whose requests are recorded, whenever their responses arrive.
    pub(super) due_from_ns: u64,
    pub(super) due_until_ns: u64,
    /// `true` while responses are recorded with their time since the send.
    pub(super) recording: bool,
    pub(super) made: u64,
    pub(super) responses: u64,
    pub(super) dropped: u64,
    pub(super) nils: u64,
    times: Vec<Times>,
    pipeline: u32,
}

impl<P: Protocol> Requests<P> {
    pub(super) fn new(
        protocol: P,
        connections: usize,
        pipeline: usize,
        paced: bool,
    ) -> Requests<P> {
        Requests {
            protocol,
            errors: Errors::default(),
            latency: histogram(),
            due_latency: paced.then(histogram),
            recorder: Recorder::default(),
            due_from_ns: u64::MAX,
            due_until_ns: u64::MAX,
            recording: false,
            made: 0,
            responses: 0,
            dropped: 0,
            nils: 0,
            times: vec![Times::default(); connections * pipeline],
            pipeline: pipeline as u32,
        }
    }

    /// Returns the slot of a connection's request `nth`, counted from the oldest.
    fn slot(&self, conn_index: u32, head: u32, nth: u32) -> usize {
        let mut at = head + nth;
        if at >= self.pipeline {
            at -= self.pipeline;
        }
        conn_index as usize * self.pipeline as usize + at as usize
    }

    /// Queues a request on a connection that has room for it.
    #[inline]
    pub(super) fn due(&mut self, conn_index: u32, conn: &mut Conn<P::Reader>, due_ns: u64) {
        let slot = self.slot(conn_index, conn.head, conn.in_flight + conn.to_send);
        self.times[slot] = Times {
            due_ns,
            sent_ns: due_ns,
        };
        conn.to_send += 1;
        self.made += 1;
    }

    /// Writes all due requests into `memory`, counts them as in flight, and returns their length in bytes.
    #[inline]
    pub(super) fn stamp_due(
        &mut self,
        conn_index: u32,
        conn: &mut Conn<P::Reader>,
        memory: &mut [u8],
        request_bytes: usize,
        sent_ns: Option<u64>,
    ) -> usize {
        let count = conn.to_send;
        let requests = memory.chunks_exact_mut(request_bytes).take(count as usize);
        for (nth, request) in (conn.in_flight..).zip(requests) {
            self.protocol.stamp(conn_index, conn.sent, request);
            conn.sent += 1;
            if let Some(sent_ns) = sent_ns {
                let slot = self.slot(conn_index, conn.head, nth);
                self.times[slot].sent_ns = sent_ns;
            }
        }
        conn.in_flight += count;
        conn.to_send = 0;
        count as usize * request_bytes
    }

    /// Parses bytes received on a connection.
    #[inline]
    pub(super) fn parse(
        &mut self,
        conn_index: u32,
        conn: &mut Conn<P::Reader>,
        bytes: &[u8],
        now_ns: u64,
    ) -> Parsed {
        let (mut at, mut responses) = (0, 0);
        while at < bytes.len() {
            if conn.in_flight == 0 {
                return Parsed::Wrong(format!("{} bytes without a request", bytes.len() - at));
            }
            let step =
                self.protocol
                    .read(&mut conn.reader, conn_index, conn.responses, &bytes[at..]);
            match step {
                Step::More => break,
                Step::Wrong(why) => return Parsed::Wrong(why),
                Step::Done(used, response) => {
                    at += used;
                    responses += 1;
                    self.take(response, now_ns);
                    self.complete_oldest(conn_index, conn, now_ns);
                }
            }
        }
        Parsed::Responses(responses)
    }

    /// Counts an error.
    pub(super) fn err(&mut self, kind: Kind, now_ns: u64, text: impl FnOnce() -> String) {
        self.errors.add(kind, text);
        if self.recording {
            self.recorder.error(now_ns);
        }
    }

    /// Counts the result of a response.
    #[inline]
    fn take(&mut self, response: Completed, now_ns: u64) {
        match response {
            Completed::Correct => {}
            Completed::Nil => self.nils += 1,
            Completed::Status(status) => {
                let text = || format!("the response has status {status}");
                self.err(Kind::HttpStatus, now_ns, text);
            }
            Completed::Error(kind, text) => self.err(kind, now_ns, || text),
        }
    }

    /// Completes the oldest request of a connection.
    #[inline]
    pub(super) fn complete_oldest(
        &mut self,
        conn_index: u32,
        conn: &mut Conn<P::Reader>,
        now_ns: u64,
    ) {
        let times = self.times[self.slot(conn_index, conn.head, 0)];
        conn.head = (conn.head + 1) % self.pipeline;
        conn.in_flight -= 1;
        conn.responses += 1;
        conn.since_ns = now_ns;
        self.responses += 1;
        if self.recording {
            let latency_ns = now_ns.saturating_sub(times.sent_ns);
            self.latency.saturating_record(latency_ns);
            if self.due_latency.is_none() {
                self.recorder.record(now_ns, latency_ns);
            }
        }
        self.record_due(times.due_ns, now_ns);
    }

    /// Records the latency since the due time, at a fixed rate.
    #[inline]
    pub(super) fn record_due(&mut self, due_ns: u64, now_ns: u64) {
        if let Some(latency) = &mut self.due_latency
            && (self.due_from_ns..self.due_until_ns).contains(&due_ns)
        {
            let latency_ns = now_ns.saturating_sub(due_ns);
            latency.saturating_record(latency_ns);
            self.recorder.record(due_ns, latency_ns);
        }
    }

    /// Drops the outstanding requests of a connection. Their waiting time is recorded as the minimum of their latency.
    pub(super) fn drop_outstanding(
        &mut self,
        conn_index: u32,
        conn: &mut Conn<P::Reader>,
        now_ns: u64,
    ) -> u32 {
        let owed = conn.in_flight + conn.to_send;
        for nth in 0..owed {
            let times = self.times[self.slot(conn_index, conn.head, nth)];
            self.record_due(times.due_ns, now_ns);
        }
        (conn.in_flight, conn.to_send, conn.head) = (0, 0, 0);
        owed
    }
}
