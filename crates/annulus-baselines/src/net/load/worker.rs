//! One thread of the generator: its ring, its connections, and the loop that converts responses into requests.
//!
//! # Safety
//!
//! The kernel reads from `sends`, writes to `received` and reads `address` while entries that point there are in
//! flight. The first two are dropped only after the ring has cancelled everything, and leaked if it cannot; the
//! address is borrowed for longer than the worker lives. A slot's memory in `sends` is written again only when its
//! send has completed, or when the response to its request has arrived. A server that responds before it has received
//! the whole request may receive a mixture of two requests, but still from valid memory.

#![allow(unsafe_code)]

mod ending;
mod opening;
mod phases;

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::{cqueue, opcode, squeue, types};
use memmap2::{MmapMut, MmapRaw};
use socket2::SockAddr;

use self::phases::Mark;
use super::address::Target;
use super::conn::{Conn, State, What, same_generation, token, untoken};
use super::os;
use super::plan::{Pace, Plan};
use super::protocol::Protocol;
use super::requests::{Parsed, Requests};
use super::ring::{Channel, Completion, SUBMISSIONS, build};
use super::run::{Phase, Shared};
use super::schedule::Schedule;
use super::tally::{Kind, Outcome};
use crate::Failure;
use crate::net::provided::{GROUP, Provided};

/// The maximum number of concurrent connects: fewer than the backlog of any server.
const OPENING_MAX: usize = 64;
/// The delay before a failed connection is retried.
const RETRY_NS: u64 = 10_000_000;
/// The interval of checks for requests that exceed the timeout.
const TICK_NS: u64 = 100_000_000;
/// The maximum wait, which bounds the delay until a new phase is noticed.
const WAIT_NS: u64 = 5_000_000;
/// The number of receive buffers: enough for one batch of completions, and fewer if they would exceed the processor's
/// cache.
const BUFFERS: usize = 128;
const BUFFERS_BYTES: usize = 2 << 20;
const BUFFER_BYTES_MIN: usize = 2 << 10;
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// The number of connections per source address, which has about 28,000 ports.
const PORTS_OF_SOURCE: usize = 20_000;
/// The number of source addresses that short connections rotate through, because a closed connection keeps its port.
const SOURCES: u32 = 250;

struct Worker<'r, 'p, P: Protocol> {
    channel: Channel<'r>,
    received: ManuallyDrop<Provided>,
    sends: ManuallyDrop<MmapRaw>,
    address: &'p SockAddr,
    plan: &'p Plan,
    shared: &'p Shared<'p>,
    thread: usize,
    request_bytes: usize,
    slot_bytes: usize,
    requests: Requests<P>,
    conns: Vec<Conn<P::Reader>>,
    to_open: VecDeque<u32>,
    /// Failed slots, and the time of their retry.
    retry: VecDeque<(u64, u32)>,
    /// Slots whose receive found no buffer, and their generation. A kernel that delivers all available bytes in one
    /// round (6.1, not 6.18) runs out of buffers. At most as many as there are buffers are armed together, because
    /// most of the others would fail again.
    starved: VecDeque<(u32, u32)>,
    opening: usize,
    open: usize,
    opening_max: usize,
    /// At a fixed rate: the slot and generation of each connection with room, once per request that fits.
    spare: VecDeque<(u32, u32)>,
    schedule: Option<Schedule>,
    phase: Phase,
    now_ns: u64,
    next_tick_ns: u64,
    /// The ends of the time in which late requests are still sent, and in which responses are awaited.
    send_until_ns: u64,
    drain_until_ns: u64,
    reported_ready: bool,
    next_source: u32,
    sent_bytes: u64,
    received_bytes: u64,
    reopened: u64,
    out_of_buffers: u64,
    open_at_end: usize,
    begin: Mark,
    end: Mark,
}

/// Runs one thread's share of the load.
pub(super) fn work<P: Protocol>(
    plan: &Plan,
    shared: &Shared<'_>,
    thread: usize,
    protocol: P,
) -> Result<Outcome, Failure> {
    if !plan.cpus.is_empty() {
        let cpu = plan.cpus[thread % plan.cpus.len()];
        os::pin(cpu).map_err(|error| {
            Failure::failed(
                &format!("keeping a client thread on processor {cpu}"),
                &error,
            )
        })?;
    }
    os::exact_timers();
    let failed = |doing: &'static str| move |error: io::Error| Failure::failed(doing, &error);
    let address = plan
        .target
        .for_kernel()
        .map_err(failed("writing the address"))?;
    let mut ring = build(SUBMISSIONS).map_err(|error| os::ring_failure(&error))?;
    let made = Worker::new(
        plan,
        shared,
        thread,
        protocol,
        Channel::new(&mut ring),
        &address,
    );
    let mut worker = made.map_err(failed(
        "registering buffers to receive into (Linux 6.1 can)",
    ))?;
    worker.run().map_err(|error| match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Failure::failed(
            "opening a connection (raise the limit of open files, `ulimit -Hn`)",
            &error,
        ),
        _ => Failure::failed("running the load", &error),
    })?;
    Ok(worker.outcome())
}

impl<'r, 'p, P: Protocol> Worker<'r, 'p, P> {
    fn new(
        plan: &'p Plan,
        shared: &'p Shared<'p>,
        thread: usize,
        protocol: P,
        channel: Channel<'r>,
        address: &'p SockAddr,
    ) -> io::Result<Self> {
        let count = (thread..plan.connections).step_by(plan.threads).count();
        let template = protocol.template();
        let slot_bytes = template.len() * plan.pipeline;
        let mut sends = MmapMut::map_anon((slot_bytes * count).max(1))?;
        for request in sends.chunks_exact_mut(template.len()) {
            request.copy_from_slice(&template);
        }
        let responses_bytes = protocol.response_bytes().saturating_mul(plan.pipeline);
        let buffer_bytes = (slot_bytes.max(responses_bytes))
            .clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)
            .next_power_of_two();
        let buffers = BUFFERS.min(BUFFERS_BYTES / buffer_bytes);
        let received = Provided::new(&channel.submitter, buffers as u16, buffer_bytes)?;
        let paced = plan.pace != Pace::Closed;
        Ok(Worker {
            received: ManuallyDrop::new(received),
            sends: ManuallyDrop::new(MmapRaw::from(sends)),
            address,
            plan,
            shared,
            thread,
            request_bytes: template.len(),
            slot_bytes,
            requests: Requests::new(protocol, count, plan.pipeline, paced),
            conns: (0..count).map(|_| Conn::default()).collect(),
            to_open: if plan.reconnect {
                VecDeque::new()
            } else {
                (0..count as u32).collect()
            },
            retry: VecDeque::new(),
            starved: VecDeque::new(),
            opening: 0,
            open: 0,
            opening_max: if plan.reconnect { count } else { OPENING_MAX },
            spare: VecDeque::new(),
            schedule: None,
            phase: Phase::Connecting,
            now_ns: shared.now_ns(),
            next_tick_ns: 0,
            send_until_ns: u64::MAX,
            drain_until_ns: 0,
            reported_ready: false,
            next_source: thread as u32,
            sent_bytes: 0,
            received_bytes: 0,
            reopened: 0,
            out_of_buffers: 0,
            open_at_end: 0,
            begin: Mark::default(),
            end: Mark::default(),
            channel,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut batch = Vec::new();
        loop {
            let phase = self.shared.phase();
            if phase != self.phase {
                self.go_to(phase)?;
            }
            if phase == Phase::Draining && self.is_drained() {
                return Ok(());
            }
            self.open_more()?;
            if self.now_ns >= self.next_tick_ns {
                self.tick()?;
            }
            self.send_what_is_due()?;
            self.arm_starved()?;
            let patience = Duration::from_nanos(self.patience_ns());
            self.channel.enter(patience, &mut batch)?;
            self.now_ns = self.shared.now_ns();
            let before = self.requests.responses;
            for completion in batch.drain(..) {
                self.completed(completion)?;
            }
            self.shared
                .count_responses(self.requests.responses - before);
        }
    }

    fn patience_ns(&self) -> u64 {
        let due_ns = match self.spare.is_empty() {
            true => None,
            false => self.next_to_send_ns(),
        };
        due_ns.map_or(WAIT_NS, |due_ns| {
            due_ns.saturating_sub(self.now_ns).min(WAIT_NS)
        })
    }

    /// Assigns due requests to connections with room, at a fixed rate.
    fn send_what_is_due(&mut self) -> io::Result<()> {
        while let Some(due_ns) = self
            .next_to_send_ns()
            .filter(|&due_ns| due_ns <= self.now_ns)
        {
            let Some((conn_index, generation)) = self.spare.pop_front() else {
                return Ok(());
            };
            let conn = &mut self.conns[conn_index as usize];
            if conn.generation != generation {
                continue;
            }
            self.requests.due(conn_index, conn, due_ns);
            if let Some(schedule) = &mut self.schedule {
                schedule.advance();
            }
            match self.plan.reconnect {
                true => self.open(conn_index)?,
                false => self.flush(conn_index)?,
            }
        }
        Ok(())
    }

    /// Registers room for requests on a connection.
    #[inline]
    fn queue_requests(&mut self, conn_index: u32, free_requests: u32) -> io::Result<()> {
        if self.phase == Phase::Connecting {
            return Ok(());
        }
        if self.schedule.is_some() {
            let generation = self.conns[conn_index as usize].generation;
            self.spare
                .extend((0..free_requests).map(|_| (conn_index, generation)));
            return Ok(());
        }
        if self.phase == Phase::Draining {
            return Ok(());
        }
        for _ in 0..free_requests {
            self.requests.due(
                conn_index,
                &mut self.conns[conn_index as usize],
                self.now_ns,
            );
        }
        self.flush(conn_index)
    }

    /// Queues the next request on a slot without a connection, which opens a new one.
    fn reuse(&mut self, conn_index: u32) {
        if self.schedule.is_some() {
            let generation = self.conns[conn_index as usize].generation;
            self.spare.push_back((conn_index, generation));
        } else if self.phase != Phase::Draining {
            self.to_open.push_back(conn_index);
        }
    }

    /// Sends all due requests of a connection, unless a send is in flight.
    #[inline]
    fn flush(&mut self, conn_index: u32) -> io::Result<()> {
        let conn = &mut self.conns[conn_index as usize];
        if conn.state != State::Open || conn.sending || conn.to_send == 0 {
            return Ok(());
        }
        let start = conn_index as usize * self.slot_bytes;
        // SAFETY: only this reference points to the slot's part of the map, and the kernel has sent its previous
        // content (see the header).
        let memory = unsafe {
            std::slice::from_raw_parts_mut(self.sends.as_mut_ptr().add(start), self.slot_bytes)
        };
        if conn.in_flight == 0 {
            conn.since_ns = self.now_ns;
        }
        // With a connection per request, the request's time starts at the connect.
        let sent_ns = (!self.plan.reconnect).then_some(self.now_ns);
        let bytes = self
            .requests
            .stamp_due(conn_index, conn, memory, self.request_bytes, sent_ns);
        // Without pipelining, the response implies that the request was sent, so the send needs no completion.
        conn.sending = self.plan.pipeline > 1 || self.plan.disconnect;
        (conn.send_from, conn.send_len) = (0, bytes as u32);
        self.sent_bytes += bytes as u64;
        self.push_send(conn_index)
    }

    #[inline]
    fn push_send(&mut self, conn_index: u32) -> io::Result<()> {
        let conn = &self.conns[conn_index as usize];
        let Some(socket) = &conn.socket else {
            return Ok(());
        };
        let start = conn_index as usize * self.slot_bytes + conn.send_from as usize;
        let from = self.sends.as_ptr().wrapping_add(start);
        let len = conn.send_len - conn.send_from;
        let entry = opcode::Send::new(types::Fd(socket.as_raw_fd()), from, len)
            .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
            .build()
            .user_data(token(What::Send, conn_index, conn.generation));
        let entry = match conn.sending {
            true => entry,
            false => entry.flags(squeue::Flags::SKIP_SUCCESS),
        };
        // SAFETY: the range is within the slot's part of `sends`, which outlives the operation (see the header).
        unsafe { self.channel.push(entry) }
    }

    /// Submits a receive on a connection: multishot, or single-shot with a connection per request.
    #[inline]
    fn arm(&mut self, conn_index: u32) -> io::Result<()> {
        let conn = &mut self.conns[conn_index as usize];
        let Some(socket) = &conn.socket else {
            return Ok(());
        };
        conn.armed = true;
        let fd = types::Fd(socket.as_raw_fd());
        let entry = match self.plan.reconnect {
            // A multishot receive would keep the socket open after its descriptor is closed.
            true => opcode::Recv::new(fd, std::ptr::null_mut(), 0)
                .buf_group(GROUP)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
            false => opcode::RecvMulti::new(fd, GROUP).build(),
        };
        let entry = entry.user_data(token(What::Receive, conn_index, conn.generation));
        // SAFETY: the entry points to no memory. It receives into buffers of `received`, which outlive the operation.
        unsafe { self.channel.push(entry) }
    }

    #[inline]
    fn completed(&mut self, completion: Completion) -> io::Result<()> {
        let Some((what, conn_index, generation)) = untoken(completion.token) else {
            return Ok(());
        };
        let conn = &self.conns[conn_index as usize];
        let current = conn.state != State::Closed && same_generation(conn.generation, generation);
        match what {
            What::Receive => self.received(conn_index, current, completion),
            What::Send if current => self.sent(conn_index, completion.result),
            What::Connect if current => self.connected(conn_index, completion.result),
            _ => Ok(()),
        }
    }

    fn sent(&mut self, conn_index: u32, result: i32) -> io::Result<()> {
        let conn = &mut self.conns[conn_index as usize];
        if result < 0 {
            return self.fail_with(conn_index, "sending", -result);
        }
        conn.send_from += result as u32;
        if conn.send_from < conn.send_len {
            return self.push_send(conn_index);
        }
        conn.sending = false;
        if self.plan.disconnect {
            self.requests.complete_oldest(conn_index, conn, self.now_ns);
            return self.after_responses(conn_index, 1);
        }
        self.flush(conn_index)
    }

    #[inline]
    fn received(
        &mut self,
        conn_index: u32,
        current: bool,
        completion: Completion,
    ) -> io::Result<()> {
        let (result, flags) = (completion.result, completion.flags);
        let buffer = cqueue::buffer_select(flags);
        if !current {
            if let Some(buffer) = buffer {
                self.received.give_back(buffer);
            }
            return Ok(());
        }
        let conn = &mut self.conns[conn_index as usize];
        conn.armed = cqueue::more(flags);
        let generation = conn.generation;
        match (result, buffer) {
            (1.., Some(buffer)) => {
                self.received_bytes += result as u64;
                let bytes = self.received.bytes(buffer, result as usize);
                let parsed = self.requests.parse(conn_index, conn, bytes, self.now_ns);
                self.received.give_back(buffer);
                match parsed {
                    Parsed::Responses(0) => {}
                    Parsed::Responses(responses) => self.after_responses(conn_index, responses)?,
                    Parsed::Wrong(why) => self.fail(conn_index, Kind::WrongResponse, || why)?,
                }
            }
            (0, _) => self.ended(conn_index)?,
            _ if -result == libc::ENOBUFS => self.out_of_buffers += 1,
            _ => self.fail_with(conn_index, "receiving", -result)?,
        }
        let conn = &self.conns[conn_index as usize];
        if conn.armed || conn.state != State::Open || conn.generation != generation {
            return Ok(());
        }
        if -result == libc::ENOBUFS {
            self.starved.push_back((conn_index, generation));
            return Ok(());
        }
        self.arm(conn_index)
    }

    /// Arms starved receives between two iterations, when all buffers are free.
    fn arm_starved(&mut self) -> io::Result<()> {
        for _ in 0..self.received.count() {
            let Some((conn_index, generation)) = self.starved.pop_front() else {
                return Ok(());
            };
            let conn = &self.conns[conn_index as usize];
            if conn.state == State::Open && conn.generation == generation {
                self.arm(conn_index)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn after_responses(&mut self, conn_index: u32, responses: u32) -> io::Result<()> {
        if self.plan.reconnect {
            self.close(conn_index);
            self.reuse(conn_index);
            return Ok(());
        }
        self.queue_requests(conn_index, responses)
    }

    /// Handles a connection that the server has closed.
    fn ended(&mut self, conn_index: u32) -> io::Result<()> {
        let conn = &mut self.conns[conn_index as usize];
        if conn.in_flight == 1 && self.requests.protocol.ends_with_connection(&conn.reader) {
            self.requests.complete_oldest(conn_index, conn, self.now_ns);
            if self.plan.reconnect {
                return self.after_responses(conn_index, 1);
            }
        }
        let owed = self.conns[conn_index as usize].in_flight;
        self.fail(conn_index, Kind::ClosedEarly, || {
            format!("the server closed a connection with {owed} outstanding requests")
        })
    }
}

impl<P: Protocol> Worker<'_, '_, P> {
    /// Checks for timeouts.
    fn tick(&mut self) -> io::Result<()> {
        self.next_tick_ns = self.now_ns + TICK_NS;
        if self.phase == Phase::Measured && self.requests.errors.total() > self.begin.errors {
            self.shared.one_has_failed();
        }
        let timeout = self.plan.timeout;
        let before_ns = self.now_ns.saturating_sub(timeout.as_nanos() as u64);
        for conn_index in 0..self.conns.len() as u32 {
            let conn = &self.conns[conn_index as usize];
            if conn.since_ns >= before_ns {
                continue;
            }
            let waits = match conn.state {
                State::Connecting => "a connection",
                State::Open if conn.in_flight > 0 => "a response",
                _ => continue,
            };
            self.fail(conn_index, Kind::Timeout, || {
                format!("waited {} s for {waits}", timeout.as_secs_f64())
            })?;
        }
        Ok(())
    }
}
