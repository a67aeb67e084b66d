//! # Safety
//!
//! One poll cycle of a set's ring: push the gathered entries, enter the kernel, reap the completions. Entries point
//! into the arena, which is reset when the kernel has completed all of them (Lent). Their descriptors are open: entries
//! are pushed and submitted in one cycle, and no descriptor is closed in between (Open).
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use annulus::metrics::layout::switch;
use annulus::preload::{ServerRing, Sqe, Wait, request};

use crate::buffers::{Arena, Pool, RING_SLOTS};
use crate::connection::Connection;
use crate::counters::{self, Event, RingCounters, Why};
use crate::epoll_set::{Inner, RingContext, Set, SetGuard};
use crate::events::{EDGE_TRIGGERED, ERR, HUP, IN, OUT, RDHUP};
use crate::fd_table::{self, Kind};
use crate::inbound::{Inbound, NextReceive};
use crate::log;
use crate::member::Member;
use crate::outbound::{Outbound, Queue};
use crate::publish;
use crate::reports::EventBuffer;
use crate::reserved_fds;
use crate::ring_policy;
use crate::set_members::Listener;
use crate::token::{TokenKind, is_persistent, token};

/// Entries of the submission queue.
const ENTRIES: u32 = 256;

/// The maximum number of rounds that cancel all requests before a ring is closed; usually one is enough.
const CANCEL_ROUNDS_MAX: u32 = 16;

/// The token of a listener's poll.
pub(crate) fn listener_token(listener: &Listener) -> u64 {
    token(TokenKind::Listener, listener.generation, listener.fd)
}

/// Creates a set's ring, for the calling thread.
pub(crate) fn make() -> Result<Box<RingContext>, String> {
    ring_policy::check_inherited_filter()?;
    let polled = ring_policy::may_use_sqpoll().then(annulus::engine::SqPoll::new);
    let made = reserved_fds::make_high(|| ServerRing::new(ENTRIES, RING_SLOTS, polled.as_ref()));
    let mut ring = made.map_err(|error| error.to_string())?;
    let failed = |error: std::io::Error| format!("cannot allocate a ring's buffers: {error}");
    let pool = Pool::new(&mut ring).map_err(failed)?;
    let arena = Arena::new().map_err(failed)?;
    ring.arm_wake(token(TokenKind::Wake, 0, 0));
    publish::begin();
    let backend = match (ring.is_polled(), ring.is_incremental()) {
        (true, _) => "io_uring, polled by the kernel (SQPOLL), under an epoll set",
        (false, true) => "io_uring (deferred task work, incremental buffers), under an epoll set",
        (false, false) => "io_uring (deferred task work), under an epoll set",
    };
    let counters = RingCounters::begin(backend);
    log::has_ring(backend);
    let mut context = Box::new(RingContext {
        ring,
        pool,
        arena,
        counters,
    });
    // The counters have been shared, and with them the operator's switch.
    watch_switch(&mut context);
    Ok(context)
}

/// Queues an entry, after submitting others if the queue is full. An entry for a lost ring is dropped.
#[inline]
fn push(context: &mut RingContext, sqe: Sqe) {
    // SAFETY: Lent, Open: entries point into the arena, and their descriptors are open until they are submitted (module
    // header).
    while !unsafe { context.ring.push(sqe) } {
        if !submit_once(context) {
            return;
        }
    }
    context.counters.count(Event::Entries, 1);
    context.ring.lasting += u64::from(is_persistent(sqe.user_data));
}

/// Submits pushed entries. Returns `false` if the ring is lost, and accepts no more entries.
pub(crate) fn submit_once(context: &mut RingContext) -> bool {
    context.counters.count(Event::Enters, 1);
    let ret = errno_of(context.ring.submit());
    if ret.is_err() {
        std::thread::yield_now();
    }
    !is_lost(ret)
}

/// Submits all entries that were pushed. Returns `false` if the ring is lost.
fn submit_all(context: &mut RingContext) -> bool {
    while context.ring.unsubmitted() > 0 {
        if !submit_once(context) {
            return false;
        }
    }
    true
}

impl Inner {
    /// Pushes all gathered entries for an enter, which sleeps if `waits`.
    pub(crate) fn push_all(&mut self, waits: bool) {
        let Some(mut context) = self.ring.take() else {
            return;
        };
        context.counters.count(Event::Enters, 1);
        context.counters.count(Event::Waits, u64::from(waits));
        for target in self.cancels.drain(..) {
            push(&mut context, cancel(target));
        }
        self.push_sends(&mut context);
        self.push_listed(&mut context, |inner| &mut inner.to_arm, push_receive);
        self.push_listed(&mut context, |inner| &mut inner.to_poll, push_poll);
        for listener in &mut self.listeners {
            if !listener.polled && listener.ready_events == 0 {
                listener.polled = true;
                push(
                    &mut context,
                    poll(listener.fd, listener.events, listener_token(listener)),
                );
            }
        }
        if self.must_poll_kernel() {
            self.kernel_polled = true;
            let token = token(TokenKind::Members, 0, self.fd);
            push(&mut context, poll(self.fd, libc::POLLIN as u32, token));
        }
        self.ring = Some(context);
        self.pushed = true;
        // The flush thread need not send these bytes: the kernel gets them now, and this thread may sleep for long.
        self.set_queued_since(0);
        self.update_gauges();
    }

    /// Pushes an entry for each connection in a list, which is empty then.
    #[inline]
    fn push_listed(
        &mut self,
        context: &mut RingContext,
        list: impl Fn(&mut Inner) -> &mut Vec<i32>,
        push_one: fn(&mut RingContext, i32, &mut Connection),
    ) {
        if list(self).is_empty() {
            return;
        }
        let mut fds = std::mem::take(list(self));
        for fd in fds.drain(..) {
            if let Some(connection) = self.connection(fd) {
                push_one(context, fd, &mut self[connection]);
            }
        }
        *list(self) = fds;
    }

    /// Updates the published gauges before the kernel is entered, where they stay valid for a while.
    fn update_gauges(&mut self) {
        let connections = u64::from(self.served);
        if let Some(context) = &mut self.ring {
            let (buffers, free) = context.pool.occupancy();
            let in_flight = context.ring.lasting;
            let has_first = (context.counters).update([in_flight, connections, buffers, free]);
            if has_first {
                log::serves_connection();
            }
        }
    }

    fn push_sends(&mut self, context: &mut RingContext) {
        for nth in 0..self.queued.len() {
            let fd = self.queued[nth];
            let Some(connection) = self.connection(fd) else {
                continue;
            };
            if self[connection].out_bytes == 0 || self[connection].queue == Queue::Pushed {
                continue;
            }
            debug_assert!(
                self[connection].backlog.is_empty(),
                "deferred output comes first"
            );
            self[connection].queue = Queue::Pushed;
            let sqe = send_entry(fd, &context.arena, &self[connection]);
            push(context, sqe);
        }
    }

    /// Finishes an interrupted poll cycle: submits the pushed entries and reaps their completions.
    pub(crate) fn recover(&mut self) {
        if !self.pushed {
            return;
        }
        let all = (self.ring.as_mut()).is_none_or(|context| submit_all(context));
        self.reap();
        if all {
            self.forget_sent(true);
        } else {
            self.unpush();
        }
    }

    /// Restores the queue after the ring was lost and took none of the pushed entries. They are sent, and their
    /// descriptors closed, by other means. (A ring is lost in the middle of a cycle only if a thread closes its
    /// number.)
    fn unpush(&mut self) {
        for nth in 0..self.queued.len() {
            if let Some(connection) = self.connection(self.queued[nth]) {
                self[connection].queue = Queue::Listed;
            }
        }
        self.pushed = false;
    }

    /// Cancels requests immediately. Called by the ring's owner. Returns `false` if the ring is lost.
    pub(crate) fn submit_cancels(&mut self) -> bool {
        let mut ret = Ok(());
        if let Some(context) = &mut self.ring {
            for target in self.cancels.drain(..) {
                push(context, cancel(target));
            }
            context.counters.count(Event::Enters, 1);
            // If it is refused, the next cycle does it.
            ret = errno_of(context.ring.enter_without_wait());
        }
        self.reap();
        !is_lost(ret)
    }

    /// Cancels all requests of the ring. Called by its owner. Returns whether the kernel has completed all of them, and
    /// so writes to no memory any more.
    ///
    /// Requests of connections are cancelled by their tokens, which the kernel looks up in a table. A cancellation of
    /// all requests searches them from the start for each one, and took 15 s for 10,000. An enter that does not wait
    /// completes some of them only, 20 from Linux 6.14 on.
    pub(crate) fn cancel_all_requests(&mut self) -> bool {
        for connection in self.connections() {
            self.cancel_requests(connection);
        }
        if !self.complete_cancels() {
            return false;
        }
        for _ in 0..CANCEL_ROUNDS_MAX {
            match &mut self.ring {
                Some(context) if context.ring.lasting > 0 => push(context, cancel_all()),
                _ => return true,
            }
            if !self.submit_cancels() {
                return false;
            }
        }
        false
    }

    /// Submits the cancellations until they complete nothing more. Returns `false` if the ring is lost.
    pub(crate) fn complete_cancels(&mut self) -> bool {
        let lasting = |inner: &Inner| {
            inner
                .ring
                .as_ref()
                .map_or(0, |context| context.ring.lasting)
        };
        let mut before = u64::MAX;
        while (1..before).contains(&lasting(self)) {
            before = lasting(self);
            if !self.submit_cancels() {
                return false;
            }
        }
        true
    }

    /// Submits queued sends and nothing else, so that they are not late.
    pub(crate) fn submit_sends(&mut self) {
        let Some(mut context) = self.ring.take() else {
            return;
        };
        self.push_sends(&mut context);
        let all = submit_all(&mut context);
        self.ring = Some(context);
        self.reap();
        if all {
            self.forget_sent(false);
        } else {
            self.unpush();
        }
    }
}

fn cancel(target: u64) -> Sqe {
    Sqe {
        addr: target,
        user_data: token(TokenKind::Ignored, 0, 0),
        ..Sqe::new(request::ASYNC_CANCEL, -1)
    }
}

fn cancel_all() -> Sqe {
    Sqe {
        op_flags: request::CANCEL_ALL | request::CANCEL_ANY,
        ..cancel(0)
    }
}

fn poll(fd: i32, events: u32, user_data: u64) -> Sqe {
    Sqe {
        op_flags: events,
        user_data,
        ..Sqe::new(request::POLL_ADD, fd)
    }
}

/// Returns a send that never blocks: bytes that do not fit into the send buffer are returned, in the order in which
/// they were written (trap 34).
fn send_entry(fd: i32, arena: &Arena, connection: &Connection) -> Sqe {
    // All of it, or a completion with the number of bytes sent.
    let flags = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
    Sqe {
        flags: request::SKIP_SUCCESS,
        addr: arena
            .bytes(connection.out_from, connection.out_bytes)
            .as_ptr()
            .expose_provenance() as u64,
        len: connection.out_bytes,
        op_flags: (flags | connection.more()) as u32,
        user_data: connection.token(TokenKind::Send, fd),
        ..Sqe::new(request::SEND, fd)
    }
}

fn push_receive(context: &mut RingContext, fd: i32, connection: &mut Connection) {
    if connection.inbound != Inbound::Listed {
        return;
    }
    connection.inbound = Inbound::Idle;
    // It may have been handed back since it was added to the list.
    if !fd_table::is(fd, Kind::Served)
        || connection.has_input_ended()
        || connection.member == Member::Out
    {
        return;
    }
    connection.inbound = Inbound::Armed;
    let ioprio = match connection.next_receive {
        NextReceive::Single => 0,
        NextReceive::Multishot => request::RECV_MULTISHOT,
        NextReceive::PollFirst => {
            // Not in the same enter as other receives without a buffer, and never as a multishot receive (trap 62).
            connection.next_receive = NextReceive::Single;
            request::POLL_FIRST
        }
    };
    push(
        context,
        Sqe {
            flags: request::BUFFER_SELECT,
            ioprio,
            user_data: connection.token(TokenKind::Receive, fd),
            ..Sqe::new(request::RECV, fd)
        },
    );
}

fn push_poll(context: &mut RingContext, fd: i32, connection: &mut Connection) {
    if !fd_table::is(fd, Kind::Served) {
        // Handed back: a poll would delay its end, and `deferred_output` waits until it is writable.
        return;
    }
    let mut events = 0;
    if connection.outbound == Outbound::Full {
        events |= OUT;
    }
    let member = connection.member != Member::Out && connection.outbound != Outbound::Dead;
    let inbound = connection.inbound;
    let awaits_data = inbound.is_direct() && !inbound.is_readable();
    if member && awaits_data && connection.buffered() == 0 {
        events |= IN | RDHUP;
    }
    // Unread data must not hide an error.
    let is_stopped = inbound != Inbound::Armed;
    let unread = inbound.is_readable() || connection.buffered() > 0 && is_stopped;
    // An edge-triggered member reports data that joins the bytes with which its receive was stopped.
    let is_edge = connection.events & EDGE_TRIGGERED != 0 && connection.events & IN != 0;
    let awaits_edge = member && is_edge && is_stopped && unread && !connection.ended;
    if awaits_edge {
        events |= IN | RDHUP;
    }
    // Errors and the end of both directions are always reported.
    if events == 0 && !(member && (unread || connection.ended)) {
        return;
    }
    let before = connection.polled;
    if before != 0 && events & !before == 0 {
        return;
    }
    connection.polled = events | ERR | HUP;
    if before != 0 {
        // A poll for fewer events is cancelled, and pushed again when its completion arrives.
        return push(context, cancel(connection.token(TokenKind::Poll, fd)));
    }
    let user_data = connection.token(TokenKind::Poll, fd);
    let mut sqe = poll(fd, events, user_data);
    if events & IN == 0 || awaits_edge {
        // The kernel always reports an end that has arrived, and would complete the poll repeatedly.
        sqe.len = request::POLL_EDGES;
    }
    push(context, sqe);
}

/// The result of an enter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnterOutcome {
    Completed,
    /// No completion arrived within the timeout, because a signal was handled.
    Interrupted,
    TimedOut,
    /// The ring can no longer be entered.
    Lost,
}

/// The result of the part of a cycle in the kernel.
pub(crate) struct Entered {
    ret: Result<(), i32>,
    wait_for: Wait,
}

/// Enters the kernel with the pushed entries ([`push_all`](Inner::push_all)), and sleeps there if `wait`. Then
/// [`finish_cycle`] reaps the completions. The caller catches no panic here: the thread may be ended by unwinding.
pub(crate) fn enter(
    guard: SetGuard,
    wait: bool,
    timeout_ns: Option<u64>,
    buffer: &mut EventBuffer<'_>,
) -> (SetGuard, Entered) {
    let mut wait_for = match wait {
        true => guard.accept_burst.next_wait(timeout_ns),
        false => Wait::No,
    };
    let mut ret = Ok(());
    let guard = Set::enter_unlocked(guard, |ring| {
        if wait_for.is_patient() && ring.unsubmitted() > 0 {
            (ret, wait_for) = submit_first(ring, wait_for);
        }
        if !wait || wait_for != Wait::No {
            ret = errno_of(buffer.enter(ring, wait_for, timeout_ns));
        }
        // Entries that were not taken still point into the arena.
        while ring.unsubmitted() > 0 && !is_lost(ret) {
            let submitted = errno_of(ring.submit());
            if is_lost(submitted) {
                ret = submitted;
            }
        }
    });
    (guard, Entered { ret, wait_for })
}

/// Submits separately before a patient wait: an enter that has also taken entries does not report whether a signal
/// ended its wait or it woke without an event (trap 66). Returns the remaining wait: none, if a completion has arrived.
fn submit_first(ring: &mut ServerRing, wait_for: Wait) -> (Result<(), i32>, Wait) {
    counters::count(Event::Enters, 1);
    let ret = errno_of(ring.enter_without_wait());
    if ret.is_err() || ring.unsubmitted() > 0 || ring.is_ready() {
        return (ret, Wait::No);
    }
    (ret, wait_for)
}

/// Reaps the completions of a cycle, and lets other threads take the set.
pub(crate) fn finish_cycle(mut guard: SetGuard, entered: Entered) -> (SetGuard, EnterOutcome) {
    let Entered { ret, wait_for } = entered;
    let count = guard.reap();
    if is_lost(ret) {
        guard.unpush();
    } else {
        guard.forget_sent(true);
    }
    let guard = Set::end_enter(guard);
    let outcome = match ret {
        _ if count > 0 => EnterOutcome::Completed,
        Err(libc::EINTR) => EnterOutcome::Interrupted,
        // Woken without an event: the clock decides whether the timeout has expired (trap 66).
        Err(libc::ETIME) if wait_for.is_patient() => EnterOutcome::Completed,
        Err(libc::ETIME) => EnterOutcome::TimedOut,
        Err(_) if is_lost(ret) => EnterOutcome::Lost,
        // The kernel does not report why a wait ended if the call has also taken entries (trap 5).
        Ok(()) if wait_for != Wait::No => EnterOutcome::Interrupted,
        _ => EnterOutcome::Completed,
    };
    (guard, outcome)
}

/// Reaps completions that have arrived since, without submitting entries.
pub(crate) fn reap_now(guard: SetGuard) -> SetGuard {
    counters::count(Event::Enters, 1);
    let mut guard = Set::enter_unlocked(guard, |ring| {
        // An error shows in the next cycle.
        let _ = ring.enter_without_wait();
    });
    guard.reap();
    Set::end_enter(guard)
}

fn errno_of(ret: std::io::Result<()>) -> Result<(), i32> {
    ret.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
}

/// Returns whether this thread cannot use the ring any more: its number was closed, or another thread owns it.
fn is_lost(ret: Result<(), i32>) -> bool {
    matches!(
        ret,
        Err(libc::EBADF
            | libc::EBADFD
            | libc::EEXIST
            | libc::EOPNOTSUPP
            | libc::EINVAL
            | libc::EPERM
            | libc::ENOSYS
            | libc::EACCES
            // The kernel thread that polled for it has ended.
            | libc::EOWNERDEAD)
    )
}

/// The reason if the ring was lost.
pub(crate) const LOST: Why = Why::Kernel;

/// Makes the ring wake its thread when the switch changes.
fn watch_switch(context: &mut RingContext) {
    let Some(word) = switch::request_word() else {
        return;
    };
    let current = word.load(Ordering::Acquire);
    let token = token(TokenKind::Switch, 0, 0);
    while !context.ring.arm_change(word, current, token) && submit_once(context) {}
}

/// Handles a change of the switch. On a kernel that cannot wait for it, the next wait notices the change.
pub(crate) fn on_switch_change(context: &mut RingContext, res: i32) {
    if matches!(-res, 0 | libc::EAGAIN | libc::EINTR) {
        watch_switch(context);
    }
}
