//! The results of a thread of the load generator, and the end of its ring.
//!
//! # Safety
//!
//! As in `worker.rs`.

#![allow(unsafe_code)]

use super::*;

impl<P: Protocol> Worker<'_, '_, P> {
    /// Returns the counts of this thread. An outstanding request is recorded with its latency so far, which is a lower
    /// bound.
    pub(super) fn outcome(&mut self) -> Outcome {
        let unanswered = self.owed();
        for conn_index in 0..self.conns.len() as u32 {
            self.requests.drop_outstanding(
                conn_index,
                &mut self.conns[conn_index as usize],
                self.now_ns,
            );
        }
        let mut never_sent = 0;
        while let Some(due_ns) = self.next_due_ns() {
            if due_ns >= self.requests.due_until_ns.min(self.now_ns) {
                break;
            }
            never_sent += u64::from(due_ns >= self.requests.due_from_ns);
            self.requests.record_due(due_ns, self.now_ns);
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
        }
        let measured = Duration::from_nanos(self.end.at_ns - self.begin.at_ns);
        let responses = self.end.responses - self.begin.responses;
        let seconds = measured.as_secs_f64();
        let per = |value: f64| if seconds > 0.0 { value / seconds } else { 0.0 };
        Outcome {
            responses,
            measured,
            per_second: per(responses as f64),
            client_cpu: vec![per((self.end.cpu_ns - self.begin.cpu_ns) as f64 / 1e9)],
            sent_bytes: self.end.sent_bytes - self.begin.sent_bytes,
            received_bytes: self.end.received_bytes - self.begin.received_bytes,
            all_received_bytes: self.received_bytes,
            latency: self.requests.latency.clone(),
            due_latency: self.requests.due_latency.clone(),
            recorder: std::mem::take(&mut self.requests.recorder),
            requests: self.requests.made,
            all_responses: self.requests.responses,
            dropped: self.requests.dropped,
            unanswered,
            never_sent,
            nils: self.requests.nils,
            open_at_end: self.open_at_end,
            reopened: self.reopened,
            out_of_buffers: self.out_of_buffers,
            enters: self.channel.enters,
            errors: self.requests.errors.clone(),
            faults: Vec::new(),
        }
    }
}

impl<P: Protocol> Drop for Worker<'_, '_, P> {
    fn drop(&mut self) {
        for socket in self.conns.iter().filter_map(|conn| conn.socket.as_ref()) {
            os::shutdown(socket);
        }
        if self.channel.end().is_ok() {
            // SAFETY: nothing is in flight any more, and neither is used after this.
            unsafe {
                ManuallyDrop::drop(&mut self.received);
                ManuallyDrop::drop(&mut self.sends);
            }
        }
    }
}
