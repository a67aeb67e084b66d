//! A core without a ring: tasks try their system calls, and epoll reports when to retry.
//!
//! Sockets are added edge-triggered, so each is added once and each change is reported once. The known readiness of
//! each socket is kept here, so that no call is made that would only fail with EAGAIN.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use super::core_driver::{Core, count_call};
use super::notifier::Notifier;
use super::waiters::{Waiters, Woken};
use crate::driver::contain::contain;
use crate::fd::{Socket, close_now};
use crate::metrics::Counters;
use crate::narrow::{low_half, to_u32};
use crate::op::{Interest, Refusals, Resume, SocketOp};
use crate::sys::call::{self, borrow_fd};
use crate::sys::engine_error::EngineError;
use crate::sys::errno::{EAGAIN, ECANCELED};
use crate::sys::net;
use crate::sys::poller::Poller;

/// The notifier's token among the polled descriptors.
const NOTIFIER: u64 = u64::MAX;
/// The token of another runtime's reactor.
const REACTOR: u64 = u64::MAX - 1;

pub(super) struct Readiness {
    poller: RefCell<Poller>,
    sources: RefCell<Slab<ReadySource>>,
    generation: Cell<u32>,
    /// True if detached operations have ended.
    over: Cell<bool>,
    notifier: Arc<Notifier>,
    /// The reactor that is polled has had an event.
    reactor_ready: Cell<bool>,
}

/// The known readiness of a socket.
struct ReadySource {
    generation: u32,
    read: Side,
    write: Side,
    /// Detached operations to be continued in order when the socket is writable. A stream has at most one, because its
    /// sends are serialised; datagram sends are independent.
    rest: VecDeque<Box<dyn Unfinished>>,
    /// True if a short receive may leave something that is not reported again: the end of the stream, data behind
    /// urgent data, or data behind a message of a Unix stream that had descriptors (trap 71).
    may_have_rest: bool,
}

/// A detached operation that has not completed.
trait Unfinished {
    /// Continues as far as the socket allows. Returns whether the operation has completed.
    fn go_on(&mut self, counters: &Counters) -> bool;
}

/// `None` when it has completed.
struct Rest<T: SocketOp>(Option<T>);

impl<T: SocketOp> Unfinished for Rest<T> {
    fn go_on(&mut self, counters: &Counters) -> bool {
        let Some(op) = &mut self.0 else { return true };
        let mut refusals = Refusals::default();
        loop {
            let res = op.attempt();
            if res == -EAGAIN {
                return false;
            }
            if let Resume::Done(res) = refusals.judge(res, op.resume(res)) {
                count_call(counters, const { T::INFO.number() }, res);
                self.0.take().into_iter().for_each(|op| op.on_drop(res));
                return true;
            }
        }
    }
}

/// Abandons the operation if the core has ended.
impl<T: SocketOp> Drop for Rest<T> {
    fn drop(&mut self) {
        let op = self.0.take();
        contain(|| op.into_iter().for_each(|op| op.on_drop(-ECANCELED)));
    }
}

#[derive(Debug)]
struct Side {
    /// True if an attempt may succeed.
    ready: bool,
    waiters: Waiters,
}

impl Side {
    const NEW: Side = Side {
        ready: true,
        waiters: Waiters::NEW,
    };

    /// Marks the side as ready and takes its waiters out to be woken.
    fn change(&mut self) -> Option<Woken> {
        self.ready = true;
        self.waiters.take()
    }
}

impl ReadySource {
    fn side(&mut self, interest: Interest) -> &mut Side {
        match interest {
            Interest::Read => &mut self.read,
            Interest::Write => &mut self.write,
        }
    }
}

impl Readiness {
    pub(super) fn new(notifier: Arc<Notifier>) -> io::Result<Readiness> {
        let poller = Poller::new()?;
        poller.add_level(borrow_fd(notifier.eventfd().raw()), NOTIFIER)?;
        Ok(Readiness {
            poller: RefCell::new(poller),
            sources: RefCell::default(),
            generation: Cell::new(0),
            over: Cell::new(false),
            notifier,
            reactor_ready: Cell::new(false),
        })
    }

    #[inline]
    fn with_side<T>(
        &self,
        socket: &Socket,
        interest: Interest,
        act: impl FnOnce(&mut Side) -> T,
    ) -> Option<T> {
        let index = socket.watched()? as usize;
        let mut sources = self.sources.borrow_mut();
        sources
            .get_mut(index)
            .map(|source| act(source.side(interest)))
    }

    /// Returns whether an attempt may succeed.
    #[inline]
    pub(super) fn may_be_ready(&self, socket: &Socket, interest: Interest) -> bool {
        self.with_side(socket, interest, |side| side.ready)
            .unwrap_or(true)
    }

    /// Notes that the last attempt exhausted the socket. Has no effect on a socket that is not polled yet.
    #[inline]
    pub(super) fn not_ready(&self, socket: &Socket, interest: Interest) {
        self.with_side(socket, interest, |side| side.ready = false);
    }

    /// Notes that the last receive got less than its buffer holds. The socket is then empty, except where
    /// `may_have_rest` is set.
    #[inline]
    pub(super) fn emptied(&self, socket: &Socket) {
        if let Some(index) = socket.watched()
            && let Some(source) = self.sources.borrow_mut().get_mut(index as usize)
        {
            source.read.ready = source.may_have_rest;
        }
    }

    /// Registers `waker` to be woken when the socket becomes ready. After the first call for a socket the caller must
    /// try once more: events from before it was added are not reported.
    pub(super) fn watch(
        &self,
        socket: &Socket,
        interest: Interest,
        waker: &Waker,
    ) -> io::Result<()> {
        if socket.watched().is_none() {
            self.add(socket)?;
        }
        let known = self.with_side(socket, interest, |side| side.waiters.wait_again(waker));
        if known != Some(true) {
            let waker = waker.clone();
            let displaced =
                self.with_side(socket, interest, |side| side.waiters.wait_besides(waker));
            // Foreign code runs with nothing borrowed.
            let checked = displaced.unwrap_or_default().judge();
            let gone = self.with_side(socket, interest, |side| side.waiters.readmit(checked));
            drop(gone);
        }
        Ok(())
    }

    #[cold]
    fn add(&self, socket: &Socket) -> io::Result<()> {
        if self.notifier.is_elsewhere() {
            return Err(EngineError::Forked.into());
        }
        let generation = self.generation.get().wrapping_add(1);
        self.generation.set(generation);
        let index = self.sources.borrow_mut().insert(ReadySource {
            generation,
            read: Side::NEW,
            write: Side::NEW,
            rest: VecDeque::new(),
            may_have_rest: net::is_unix(socket.raw()),
        });
        let token = u64::from(generation) << 32 | index as u64;
        let added = self.poller.borrow().add(borrow_fd(socket.raw()), token);
        if added.is_err() {
            self.sources.borrow_mut().remove(index);
            return added;
        }
        socket.set_watched(to_u32(index));
        Ok(())
    }

    /// Handles the drop of a socket's last user.
    pub(super) fn close(&self, raw: i32, watched: Option<u32>) {
        // The epoll instance is shared with the parent: a child of a fork would remove the parent's socket from it.
        if let Some(index) = watched
            && !self.notifier.is_elsewhere()
        {
            self.poller.borrow().remove(borrow_fd(raw));
            let source = self.sources.borrow_mut().try_remove(index as usize);
            drop(source);
        }
        close_now(raw);
    }

    pub(super) fn drive(&self, core: &Core, next_ns: Option<u64>, busy: impl Fn() -> bool) {
        let timeout_ns = match core.may_sleep(busy) {
            true => next_ns.map(|at| at.saturating_sub(call::now_ns())),
            false => Some(0),
        };
        self.notifier.counters.enters().add(1);
        self.notifier
            .counters
            .waits()
            .add(u64::from(timeout_ns != Some(0)));
        // An error can only concern the arguments, which are always the same.
        let _ = self.poller.borrow_mut().wait(timeout_ns);
        core.stay_awake();
        for nth in 0.. {
            let Some(ready) = self.poller.borrow().event(nth) else {
                return;
            };
            if ready.token == NOTIFIER {
                let _ = self.notifier.eventfd().sleep(Some(0));
                continue;
            }
            if ready.token == REACTOR {
                self.reactor_ready.set(true);
                continue;
            }
            if ready.may_have_rest {
                self.with_source(ready.token, |source| source.may_have_rest = true);
            }
            if ready.readable {
                self.change(ready.token, Interest::Read);
            }
            if ready.writable {
                self.change(ready.token, Interest::Write);
                self.go_on(ready.token);
            }
        }
    }

    /// Starts a detached operation.
    #[inline]
    pub(super) fn start_detached<T: SocketOp>(&self, op: T) {
        let mut rest = Rest(Some(op));
        if !rest.go_on(&self.notifier.counters) {
            rest.0
                .take()
                .into_iter()
                .for_each(|op| self.go_on_later(op));
        }
    }

    /// Continues the detached `op` later, because its socket is not ready for it.
    #[cold]
    pub(super) fn go_on_later<T: SocketOp>(&self, op: T) {
        let socket = Rc::clone(op.socket());
        // When the core is ending, no later event would continue it.
        if self.over.get()
            || self.notifier.is_elsewhere()
            || socket.watched().is_none() && self.add(&socket).is_err()
        {
            return op.on_drop(-ECANCELED);
        }
        let Some(index) = socket.watched().map(|index| index as usize) else {
            return op.on_drop(-ECANCELED);
        };
        let mut rest: Box<dyn Unfinished> = Box::new(Rest(Some(op)));
        let queues = |source: &ReadySource| !source.rest.is_empty();
        let is_first = !(self.sources.borrow().get(index)).is_some_and(queues);
        // The socket may have become ready before it was added.
        if is_first && rest.go_on(&self.notifier.counters) {
            return;
        }
        let mut sources = self.sources.borrow_mut();
        if let Some(source) = sources.get_mut(index) {
            source.write.ready = false;
            source.rest.push_back(rest);
        }
    }

    fn go_on(&self, token: u64) {
        let next = || self.with_source(token, |source| source.rest.pop_front());
        while let Some(Some(mut rest)) = next() {
            // The buffer and the wakers are foreign code, which runs with nothing borrowed.
            let mut over = true;
            contain(|| over = rest.go_on(&self.notifier.counters));
            if !over {
                self.with_source(token, |source| {
                    source.write.ready = false;
                    source.rest.push_front(rest);
                });
                return;
            }
        }
    }

    pub(super) fn is_sending(&self) -> bool {
        let sends = |source: &ReadySource| !source.rest.is_empty();
        (self.sources.borrow().iter()).any(|(_, source)| sends(source))
    }

    /// Ends all detached operations.
    pub(super) fn end(&self) {
        self.over.set(true);
        let rests: Vec<_> = (self.sources.borrow_mut().iter_mut())
            .flat_map(|(_, source)| std::mem::take(&mut source.rest))
            .collect();
        drop(rests);
    }

    fn change(&self, token: u64, interest: Interest) {
        let woken = self.with_source(token, |source| source.side(interest).change());
        let Some(Some(woken)) = woken else { return };
        // Foreign code runs with nothing borrowed.
        let waker = woken.wake();
        let another = self.with_source(token, |source| source.side(interest).waiters.keep(waker));
        drop(another);
    }

    /// Calls `act` with the socket that was added under `token`, if it is still the same.
    fn with_source<T>(&self, token: u64, act: impl FnOnce(&mut ReadySource) -> T) -> Option<T> {
        let mut sources = self.sources.borrow_mut();
        let source = sources.get_mut(low_half(token) as usize)?;
        (source.generation == (token >> 32) as u32).then(|| act(source))
    }
}

/// Sleeps in another runtime.
#[cfg(feature = "tokio")]
impl Readiness {
    /// Polls the reactor of another runtime: reports each change.
    pub(super) fn poll_reactor(&self, reactor: std::os::fd::RawFd) -> io::Result<()> {
        self.poller.borrow().add(borrow_fd(reactor), REACTOR)
    }

    pub(super) fn forget_reactor(&self, reactor: Option<std::os::fd::BorrowedFd<'_>>) {
        (reactor.into_iter()).for_each(|reactor| self.poller.borrow().remove(reactor));
    }

    pub(super) fn is_reactor_ready(&self) -> bool {
        self.reactor_ready.get()
    }

    /// Returns whether there may be events that a sleep outside of the poller does not report: an edge of the poller is
    /// only reported for new events.
    pub(super) fn may_have_more(&self) -> bool {
        self.poller.borrow().may_have_more()
    }

    pub(super) fn poller_fd(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.poller.borrow().try_clone_fd()
    }
}
