//! # Safety
//!
//! Handlers of completions: received bytes, partial sends, polls. The bytes of a send stay in the arena until all
//! completions have been handled (Lent). A buffer that a completion names has a reader from then on (Once).
#![allow(unsafe_code)]

use annulus::preload::Completion;

use crate::connection::Conn;
use crate::counters;
use crate::epoll_set::{Inner, RingContext};
use crate::events::{EDGE_TRIGGERED, ERR, HUP, IN, OUT, RDHUP};
use crate::hand_back;
use crate::inbound::{Inbound, NextReceive};
use crate::member::Member;
use crate::outbound::{Outbound, Queue};
use crate::output;
use crate::poll_cycle;
use crate::send_errors;
use crate::sys;
use crate::token::{self, TokenKind, token};

/// A receive of this size, bytes, switches the connection to reads by the program's own calls, with the ring only
/// polling: a copy would cost more than a call.
const BULK_BYTES: u32 = 8 << 10;
/// Buffered bytes of one connection at which its receive is stopped.
const BUFFERED_MAX: usize = 64 << 10;

/// The event of which a completion informs.
enum Event {
    /// A receive took bytes or ended. `None`: the connection was closed.
    Receive(Option<Conn>),
    /// A send took less than all bytes; the completion of others is suppressed.
    PartialSend(Conn),
    Poll(Conn),
    /// The poll of the kernel's set ended.
    Members,
    Wake,
    /// The poll of the listener with this place in the list ended.
    Listener(usize),
    Switch,
    /// A cancellation ended, or a request for a connection or a listener that was closed.
    Nothing,
}

impl Inner {
    /// Reaps completions and handles them. Returns their number.
    pub(crate) fn reap(&mut self) -> usize {
        let Some(mut context) = self.ring.take() else {
            return 0;
        };
        let mut count = 0;
        loop {
            while let Some(completion) = context.ring.next_completion() {
                self.handle_completion(&mut context, &completion);
                count += 1;
            }
            // Completions that overflowed the queue arrive now. A failed send must be handled in the cycle that
            // submitted it.
            if !context.ring.bring_overflow() {
                break;
            }
        }
        (context.counters).count(counters::Event::Completions, count as u64);
        self.ring = Some(context);
        self.accept_burst.round(count);
        count
    }

    /// Forgets sent and deferred bytes. `is_whole`: all gathered entries of the cycle were pushed.
    #[inline]
    pub(crate) fn forget_sent(&mut self, is_whole: bool) {
        let mut queued = std::mem::take(&mut self.queued);
        queued.retain(|&fd| {
            let Some(connection) = self.connection(fd) else {
                return false;
            };
            if self[connection].out_bytes > 0 && self[connection].queue != Queue::Pushed {
                return true;
            }
            self[connection].clear_queued();
            self[connection].queue = Queue::Unlisted;
            false
        });
        self.queued = queued;
        if is_whole {
            self.pushed = false;
        }
        if self.queued.is_empty()
            && let Some(context) = &mut self.ring
        {
            context.arena.reset();
            self.set_queued_since(0);
        }
    }

    /// Returns the event of which a completion with this token informs. Of the code for completions, only this compares
    /// generations.
    #[inline(always)]
    fn event(&self, token: u64) -> Event {
        let (kind, generation, fd) = token::parts(token);
        let connection = || {
            let candidate = self.connection(fd)?;
            (self[candidate].generation == generation).then_some(candidate)
        };
        match kind {
            TokenKind::Receive => Event::Receive(connection()),
            TokenKind::Send => connection().map_or(Event::Nothing, Event::PartialSend),
            TokenKind::Poll => connection().map_or(Event::Nothing, Event::Poll),
            TokenKind::Members => Event::Members,
            TokenKind::Wake => Event::Wake,
            TokenKind::Listener => (self.listeners.iter())
                .position(|listener| poll_cycle::listener_token(listener) == token)
                .map_or(Event::Nothing, Event::Listener),
            TokenKind::Switch => Event::Switch,
            TokenKind::Ignored => Event::Nothing,
        }
    }

    #[inline]
    fn handle_completion(&mut self, context: &mut RingContext, completion: &Completion) {
        if !completion.more() && token::is_persistent(completion.user_data) {
            context.ring.lasting = context.ring.lasting.saturating_sub(1);
        }
        match self.event(completion.user_data) {
            Event::Receive(Some(connection)) if completion.more() && completion.res > 0 => {
                self.on_received_more(context, connection, completion);
            }
            event => self.handle_event(context, event, completion),
        }
    }

    /// Handles the bytes of a receive that goes on.
    #[inline]
    fn on_received_more(
        &mut self,
        context: &mut RingContext,
        connection: Conn,
        completion: &Completion,
    ) {
        let bytes = completion.res.cast_unsigned();
        let keeps_buffer = completion.keeps_buffer();
        let location = (completion.buffer_id())
            .and_then(|id| Some((context.pool.received(id, bytes, keeps_buffer)?, bytes, id)));
        match location {
            Some(location) => self.deliver(context, connection, location),
            None => self.fail(connection, libc::EIO),
        }
        hand_back::finish_hand_back(self, connection);
    }

    #[inline(never)]
    fn handle_event(&mut self, context: &mut RingContext, event: Event, completion: &Completion) {
        let res = completion.res;
        match event {
            Event::Receive(connection) => self.on_received(context, connection, completion),
            Event::PartialSend(connection) => {
                self.on_partial_send(context, connection, res);
            }
            Event::Poll(connection) => {
                if !completion.more() {
                    self[connection].polled = 0;
                }
                self.on_polled(connection, res);
            }
            Event::Members => (self.kernel_polled, self.kernel_ready) = (false, res > 0),
            Event::Wake => {
                let wake = token(TokenKind::Wake, 0, 0);
                while !context.ring.arm_wake(wake) && poll_cycle::submit_once(context) {}
            }
            Event::Listener(nth) => {
                self.accept_burst.connection();
                let listener = &mut self.listeners[nth];
                listener.polled = false;
                let events = u32::try_from(res).unwrap_or(0);
                // An error is what woke the poll, and not the state that the kernel's set reports.
                listener.ready_events = match events & (ERR | HUP) {
                    0 => events,
                    _ => sys::poll_now(listener.fd, listener.events),
                };
            }
            Event::Switch => poll_cycle::on_switch_change(context, res),
            Event::Nothing => {}
        }
    }

    /// Handles the end of a receive, and the bytes of one whose connection was closed.
    fn on_received(
        &mut self,
        context: &mut RingContext,
        connection: Option<Conn>,
        completion: &Completion,
    ) {
        let bytes = u32::try_from(completion.res).unwrap_or(0);
        let location = match completion.buffer_id() {
            // A receive without data leaves the buffer unchanged, even if its completion names it.
            Some(id) if bytes > 0 || !context.ring.is_incremental() => context
                .pool
                .received(id, bytes, completion.keeps_buffer())
                .map(|at| (at, id)),
            _ => None,
        };
        let Some(connection) = connection else {
            // The connection was closed, so its received bytes are dropped.
            if let Some((_, id)) = location {
                self.release(context, id);
            }
            return;
        };
        if !completion.more() {
            self[connection].inbound.complete();
            if self[connection].outbound == Outbound::Dead {
                // A poll reported the end first, while the receive was being cancelled. No other receive follows.
                self.leave_to_application(connection);
            }
        }
        match (location, completion.res) {
            (Some((at, id)), 1..) => self.deliver(context, connection, (at, bytes, id)),
            (Some((_, id)), _) => self.release(context, id),
            (None, 1..) => self.fail(connection, libc::EIO),
            _ => {}
        }
        match completion.res {
            1.. => {}
            0 => {
                self[connection].ended = true;
                // The kernel has no more data, and a poll for it would end at once and hide a later error.
                self[connection].inbound.leave_direct();
                self.to_poll.push(connection.fd);
                self.notify(connection, 0);
            }
            errno => match -errno {
                libc::ENOBUFS => {
                    context.counters.count(counters::Event::NoBuffers, 1);
                    self[connection].next_receive = NextReceive::PollFirst;
                    if context.pool.run_short(&mut context.ring) {
                        self.arm(connection);
                    } else {
                        self.starved.push(connection.fd);
                    }
                    return;
                }
                libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::ENOMEM => {}
                errno => self.fail(connection, errno),
            },
        }
        if !completion.more() {
            self.arm(connection);
            // Data that follows immediately is reported with this data.
            self.recheck |= completion.leaves_more() && completion.res > 0;
        }
        hand_back::finish_hand_back(self, connection);
    }

    /// Ends the connection with an error, which the next call returns.
    fn fail(&mut self, connection: Conn, errno: i32) {
        self[connection].error = errno;
        if matches!(
            errno,
            libc::ECONNRESET | libc::ETIMEDOUT | libc::EPIPE | libc::ECONNABORTED
        ) {
            self[connection].outbound = Outbound::Dead;
            self[connection].backlog.clear();
        }
        self.notify(connection, 0);
    }

    #[inline]
    fn deliver(
        &mut self,
        context: &mut RingContext,
        connection: Conn,
        (at, bytes, id): (*mut u8, u32, u16),
    ) {
        let round = self.round;
        let one = &mut self[connection];
        (one.next_receive, one.round) = (NextReceive::Multishot, round);
        let keep = one.member != Member::Out && one.events & IN != 0;
        if one.buffered() == 0 && keep {
            (one.at, one.bytes, one.buffer) = (at, bytes, id);
        } else {
            self.deliver_behind(context, connection, (at, bytes, id));
        }
        if bytes >= BULK_BYTES || self[connection].buffered() >= BUFFERED_MAX {
            self.stop_receive(connection);
        }
        self.notify(connection, IN);
    }

    /// Appends received bytes to those that the program has not read.
    #[inline(never)]
    fn deliver_behind(
        &mut self,
        context: &mut RingContext,
        connection: Conn,
        (at, bytes, id): (*mut u8, u32, u16),
    ) {
        let one = &mut self[connection];
        let follows = one.bytes > 0 && one.at.wrapping_add(one.bytes as usize) == at;
        if one.copied_out.is_empty() && one.buffer == id && follows {
            one.bytes += bytes;
        } else {
            // SAFETY: Owned: the kernel has just put them there, and the buffer has a reader for them.
            let received = unsafe { std::slice::from_raw_parts(at, bytes as usize) };
            one.copied_out.append(received);
        }
        self.release(context, id);
    }

    /// Stops the receive of a connection that gets many bytes.
    #[inline(never)]
    fn stop_receive(&mut self, connection: Conn) {
        // A poll that is armed again cannot distinguish a new edge from earlier data.
        let edge = self[connection].events & EDGE_TRIGGERED != 0;
        if edge && self[connection].buffered() < BUFFERED_MAX {
            return;
        }
        let is_cancelled = match edge {
            true => self[connection].inbound.stop(),
            false => self[connection].inbound.stop_for_direct(),
        };
        if is_cancelled {
            self.cancel(TokenKind::Receive, connection);
        }
        self.to_poll.push(connection.fd);
    }

    /// Releases a reader of a buffer.
    pub(crate) fn release(&mut self, context: &mut RingContext, id: u16) {
        if context.pool.release(id, &mut context.ring) && !self.starved.is_empty() {
            self.arm_starved();
        }
    }

    /// Arms the receives that found no free buffer.
    pub(crate) fn arm_starved(&mut self) {
        for fd in std::mem::take(&mut self.starved) {
            if let Some(connection) = self.connection(fd) {
                self.arm(connection);
            }
        }
    }

    /// Marks a connection for a new receive, unless a receive would be useless.
    pub(crate) fn arm(&mut self, connection: Conn) {
        match self[connection].inbound {
            Inbound::Direct | Inbound::StoppingDirect if self[connection].buffered() == 0 => {
                self.to_poll.push(connection.fd);
            }
            Inbound::Idle
                if !self[connection].has_input_ended()
                    && self[connection].buffered() < BUFFERED_MAX =>
            {
                self[connection].inbound = Inbound::Listed;
                self.to_arm.push(connection.fd);
            }
            _ => {}
        }
    }

    fn on_partial_send(&mut self, context: &RingContext, connection: Conn, res: i32) {
        let sent = usize::try_from(res)
            .unwrap_or(0)
            .min(self[connection].out_bytes as usize);
        // They lie in the arena until `forget_sent`.
        let one = &self[connection];
        let unsent = &context.arena.bytes(one.out_from, one.out_bytes)[sent..];
        if res < 0 && !send_errors::keeps_bytes(-res) {
            return output::on_broken(self, connection, -res);
        }
        // Bytes that a signal handler has written meanwhile follow the unsent bytes.
        let later = self[connection].backlog.move_out();
        output::defer(self, connection, unsent);
        self[connection].backlog.append(later.as_slice());
        output::on_full(self, connection);
    }

    /// Handles a poll: the socket is writable or readable again, or the connection is over.
    fn on_polled(&mut self, connection: Conn, res: i32) {
        if matches!(-res, libc::EBADF | libc::EPERM | libc::EINVAL) {
            // It cannot be polled any more: a call that bypassed the library gave the number another file.
            return hand_back::finish_hand_back(self, connection);
        }
        let events = u32::try_from(res).unwrap_or(0);
        let before = self[connection].report();
        if events & (ERR | HUP) != 0 {
            if events & ERR != 0
                && let Ok(errno @ 1..) =
                    sys::option(connection.fd, libc::SOL_SOCKET, libc::SO_ERROR)
            {
                self[connection].error = errno;
                if errno == libc::EPIPE {
                    // A reset after the end of the stream, which reads return first.
                    self[connection].ended = true;
                }
            }
            match events & HUP {
                0 => self[connection].outbound.drain(),
                _ => self[connection].outbound = Outbound::Dead,
            }
            self[connection].backlog.clear();
            self.leave_to_application(connection);
            self.arm(connection);
            // A condition that the ring has already reported is not reported again.
            if self[connection].report() != before {
                self.notify(connection, 0);
            }
        } else {
            if self[connection].outbound == Outbound::Full && events & OUT != 0 {
                output::send_backlog(self, connection);
            }
            if self[connection].inbound.is_direct() && events & RDHUP != 0 {
                // The ring receives the end, after the remaining data.
                self[connection].inbound.leave_direct();
                self.arm(connection);
            } else if self[connection].inbound.is_direct() && events & IN != 0 {
                self[connection].inbound.set_readable(true);
                self.notify(connection, IN);
                if self[connection].report() & IN == 0 {
                    // The program was not notified, so it will not read, and an error may still follow.
                    self.poll_on(connection);
                }
            } else if events & IN != 0 && self[connection].inbound.is_armed() {
                // The ring receives the data, or polls again once the receive has stopped.
                self.cancel(TokenKind::Poll, connection);
            } else {
                if events & IN != 0 {
                    self.notify(connection, IN);
                }
                self.poll_on(connection);
            }
            if self[connection].outbound == Outbound::Full {
                // Another event came before the socket was writable.
                self.poll_on(connection);
            }
        }
        hand_back::finish_hand_back(self, connection);
    }

    /// Polls for further events, unless the last poll is still pending.
    fn poll_on(&mut self, connection: Conn) {
        if self[connection].polled == 0 {
            self.to_poll.push(connection.fd);
        }
    }

    /// Lets the program read the bytes that the kernel still has after a connection ended, behind the buffered bytes,
    /// unless the ring receives them.
    fn leave_to_application(&mut self, connection: Conn) {
        if !self[connection].inbound.is_armed() && sys::readable(connection.fd) > 0 {
            self[connection].inbound = Inbound::Readable;
        } else {
            self[connection].inbound.leave_direct();
        }
    }
}
