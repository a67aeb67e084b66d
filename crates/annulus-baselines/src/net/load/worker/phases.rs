//! The phases of a run, and the requests that are still owed or due in each.

use super::*;

/// CPU time, clock and counters at the start or the end of the measured time.
#[derive(Clone, Copy, Default)]
pub(super) struct Mark {
    pub(super) at_ns: u64,
    pub(super) cpu_ns: u64,
    pub(super) responses: u64,
    pub(super) errors: u64,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

impl<P: Protocol> Worker<'_, '_, P> {
    /// Enters each phase up to this one. A slow thread may have missed some.
    pub(super) fn go_to(&mut self, phase: Phase) -> io::Result<()> {
        for next in Phase::ALL {
            if next <= self.phase || next > phase {
                continue;
            }
            match next {
                Phase::Connecting => {}
                Phase::WarmUp => self.begin_requests()?,
                Phase::Measured => {
                    self.begin = self.mark();
                    self.requests.recording = true;
                    self.requests.due_from_ns = self.now_ns;
                    let runtime_ns = self.plan.runtime.as_nanos() as u64;
                    self.requests.recorder.begin(self.now_ns, runtime_ns);
                }
                Phase::After => {
                    self.end = self.mark();
                    self.requests.recording = false;
                    self.requests.due_until_ns = self.now_ns;
                    self.open_at_end = self.open;
                }
                Phase::Draining => {
                    let patience = self.shared.patience(self.plan.timeout);
                    self.drain_until_ns = self.now_ns + patience.as_nanos() as u64;
                    // The rest is for the responses to the last of them.
                    self.send_until_ns = self.now_ns + patience.as_nanos() as u64 / 2;
                }
            }
            self.phase = next;
        }
        Ok(())
    }

    fn begin_requests(&mut self) -> io::Result<()> {
        self.phase = Phase::WarmUp;
        if let Pace::Rate(rate) = self.plan.pace {
            let start_ns = self.shared.start_ns();
            self.schedule = Some(Schedule::new(
                start_ns,
                rate,
                self.thread,
                self.plan.threads,
            ));
        }
        for conn_index in 0..self.conns.len() as u32 {
            if self.plan.reconnect {
                self.reuse(conn_index);
            } else if self.conns[conn_index as usize].state == State::Open {
                self.queue_requests(conn_index, self.plan.pipeline as u32)?;
            }
        }
        Ok(())
    }

    fn mark(&self) -> Mark {
        Mark {
            at_ns: self.now_ns,
            cpu_ns: os::thread_cpu_ns(),
            responses: self.requests.responses,
            errors: self.requests.errors.total(),
            sent_bytes: self.sent_bytes,
            received_bytes: self.received_bytes,
        }
    }

    pub(super) fn owed(&self) -> u64 {
        self.requests.made - self.requests.responses - self.requests.dropped
    }

    /// Returns the due time of the next request that may still be sent.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let next_ns = self.schedule.as_ref()?.next_ns();
        // Requests due after the measured time are not needed once it is over.
        let is_needed = self.phase != Phase::Draining || next_ns < self.requests.due_until_ns;
        is_needed.then_some(next_ns)
    }

    /// Returns the due time of the next request to send. A server that is too slow for the rate gets no more requests
    /// than it may respond to in time.
    pub(super) fn next_to_send_ns(&self) -> Option<u64> {
        let may_send = self.now_ns < self.send_until_ns;
        self.next_due_ns().filter(|_| may_send)
    }

    pub(super) fn is_drained(&self) -> bool {
        let nothing_left = self.owed() == 0 && self.next_to_send_ns().is_none();
        nothing_left || self.now_ns >= self.drain_until_ns
    }
}
