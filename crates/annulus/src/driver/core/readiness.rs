//! A core without a ring: tasks try their calls, and epoll says when to try again.
//!
//! Edge-triggered, so that a socket is added once and each change is told once; what is known of each is
//! kept here, so that a call which would only say EAGAIN is not made.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use super::{Alarm, table};
use crate::driver::finish::contain;
use crate::fd::Socket;
use crate::op::{Interest, Resume, SocketOp};
use crate::sys::call;
use crate::sys::errno::{EAGAIN, ECANCELED};
use crate::sys::poller::{Poller, borrowed};

/// The alarm's name among what is polled.
const ALARM: u64 = u64::MAX;

pub(super) struct Readiness {
    poller: RefCell<Poller>,
    sources: RefCell<Slab<Source>>,
    generation: std::cell::Cell<u32>,
    alarm: Arc<Alarm>,
}

/// What is known of a socket.
struct Source {
    generation: u32,
    read: Side,
    write: Side,
    /// An operation that nobody waits for, to be gone on with when the socket is writable.
    rest: Option<Box<dyn Unfinished>>,
    /// The end has come, and has been told with the last data: it will not be told again.
    ended: bool,
}

/// An operation that goes on by itself.
trait Unfinished {
    /// As far as the socket allows. True: that was the end of it.
    fn go_on(&mut self) -> bool;
}

/// `None` when it is over.
struct Rest<T>(Option<T>);

impl<T: SocketOp> Unfinished for Rest<T> {
    fn go_on(&mut self) -> bool {
        let Some(op) = &mut self.0 else { return true };
        loop {
            let res = op.attempt();
            if res == -EAGAIN {
                return false;
            }
            if let Resume::Done(res) = op.resume(res) {
                self.0.take().into_iter().for_each(|op| op.abandoned(res));
                return true;
            }
        }
    }
}

/// The core has ended under it.
impl<T> Drop for Rest<T> {
    fn drop(&mut self) {
        let op = self.0.take();
        contain(|| drop(op));
    }
}

#[derive(Debug)]
struct Side {
    /// Nothing is known against it.
    ready: bool,
    /// Somebody waits.
    waits: bool,
    /// The waker of whoever waits, or waited last: kept, for it is most often the same again.
    waker: Option<Waker>,
}

impl Side {
    const NEW: Side = Side {
        ready: true,
        waits: false,
        waker: None,
    };

    /// It has become ready: who waits is to be woken.
    fn change(&mut self) -> Option<Waker> {
        self.ready = true;
        if std::mem::take(&mut self.waits) {
            self.waker.take()
        } else {
            None
        }
    }
}

impl Source {
    fn side(&mut self, interest: Interest) -> &mut Side {
        match interest {
            Interest::Read => &mut self.read,
            Interest::Write => &mut self.write,
        }
    }
}

impl Readiness {
    pub(super) fn new(alarm: Arc<Alarm>) -> io::Result<Readiness> {
        let poller = Poller::new()?;
        poller.add_level(borrowed(alarm.eventfd().raw()), ALARM)?;
        Ok(Readiness {
            poller: RefCell::new(poller),
            sources: RefCell::default(),
            generation: std::cell::Cell::new(0),
            alarm,
        })
    }

    #[inline]
    fn with_side<T>(
        &self,
        socket: &Socket,
        interest: Interest,
        act: impl FnOnce(&mut Side) -> T,
    ) -> Option<T> {
        let place = socket.watched()? as usize;
        let mut sources = self.sources.borrow_mut();
        sources
            .get_mut(place)
            .map(|source| act(source.side(interest)))
    }

    /// Whether an attempt is worth it.
    #[inline]
    pub(super) fn may_be_ready(&self, socket: &Socket, interest: Interest) -> bool {
        self.with_side(socket, interest, |side| side.ready)
            .unwrap_or(true)
    }

    /// The last attempt took all there was. Without effect on a socket that is not polled yet.
    #[inline]
    pub(super) fn not_ready(&self, socket: &Socket, interest: Interest) {
        self.with_side(socket, interest, |side| side.ready = false);
    }

    /// The last attempt found less than it had room for: that was all, unless it was the last of all.
    #[inline]
    pub(super) fn emptied(&self, socket: &Socket) {
        if let Some(place) = socket.watched()
            && let Some(source) = self.sources.borrow_mut().get_mut(place as usize)
        {
            source.read.ready = source.ended;
        }
    }

    /// Has `waker` woken when the socket becomes ready. After the first call for a socket it may be ready:
    /// what happened before it was added has been missed.
    pub(super) fn watch(
        &self,
        socket: &Socket,
        interest: Interest,
        waker: &Waker,
    ) -> io::Result<()> {
        if socket.watched().is_none() {
            self.add(socket)?;
        }
        let known = self.with_side(socket, interest, |side| {
            side.waits = true;
            (side.waker.as_ref()).is_some_and(|known| known.will_wake(waker))
        });
        if known != Some(true) {
            let waker = waker.clone();
            let before = self.with_side(socket, interest, |side| side.waker.replace(waker));
            drop(before);
        }
        Ok(())
    }

    #[cold]
    fn add(&self, socket: &Socket) -> io::Result<()> {
        let generation = self.generation.get().wrapping_add(1);
        self.generation.set(generation);
        let place = self.sources.borrow_mut().insert(Source {
            generation,
            read: Side::NEW,
            write: Side::NEW,
            rest: None,
            ended: false,
        });
        let token = u64::from(generation) << 32 | place as u64;
        let added = self.poller.borrow().add(borrowed(socket.raw()), token);
        if added.is_err() {
            self.sources.borrow_mut().remove(place);
            return added;
        }
        socket.set_watched(place as u32);
        Ok(())
    }

    /// The last user of a socket has gone.
    pub(super) fn close(&self, raw: i32, watched: Option<u32>) {
        if let Some(place) = watched {
            self.poller.borrow().remove(borrowed(raw));
            let source = self.sources.borrow_mut().try_remove(place as usize);
            drop(source);
        }
        table::close_now(raw);
    }

    pub(super) fn turn(&self, next_ns: Option<u64>, busy: impl Fn() -> bool) {
        self.alarm.set();
        let timeout_ns = if busy() {
            Some(0)
        } else {
            next_ns.map(|at| at.saturating_sub(call::now_ns()))
        };
        self.alarm.counters.enters.add(1);
        self.alarm
            .counters
            .waits
            .add(u64::from(timeout_ns != Some(0)));
        // An error here is one of arguments, which are the same each time.
        let _ = self.poller.borrow_mut().wait(timeout_ns);
        self.alarm.unset();
        for nth in 0.. {
            let Some(ready) = self.poller.borrow().found(nth) else {
                return;
            };
            if ready.token == ALARM {
                let _ = self.alarm.eventfd().sleep(Some(0));
                continue;
            }
            if ready.ended {
                self.with_source(ready.token, |source| source.ended = true);
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

    /// Begins an operation whose end nobody waits for.
    #[inline]
    pub(super) fn start_detached<T: SocketOp>(&self, op: T) {
        let mut rest = Rest(Some(op));
        if !rest.go_on() {
            rest.0
                .take()
                .into_iter()
                .for_each(|op| self.go_on_later(op));
        }
    }

    /// Nobody waits for `op` any more, and the socket is not ready for it.
    #[cold]
    pub(super) fn go_on_later<T: SocketOp>(&self, op: T) {
        let socket = Rc::clone(op.socket());
        if socket.watched().is_none() && self.add(&socket).is_err() {
            return op.abandoned(-ECANCELED);
        }
        let mut rest: Box<dyn Unfinished> = Box::new(Rest(Some(op)));
        // It may have become ready before it was added.
        if rest.go_on() {
            return;
        }
        let place = socket.watched().map(|place| place as usize);
        let mut sources = self.sources.borrow_mut();
        if let Some(source) = place.and_then(|place| sources.get_mut(place)) {
            debug_assert!(source.rest.is_none(), "one sends at a time");
            source.write.ready = false;
            source.rest = Some(rest);
        }
    }

    fn go_on(&self, token: u64) {
        let rest = self.with_source(token, |source| source.rest.take());
        let Some(Some(mut rest)) = rest else { return };
        // The buffer and the wakers are foreign code: with nothing borrowed.
        let mut over = true;
        contain(|| over = rest.go_on());
        if !over {
            self.with_source(token, |source| {
                source.write.ready = false;
                source.rest = Some(rest);
            });
        }
    }

    /// Nothing goes on any more.
    pub(super) fn end(&self) {
        let rests: Vec<_> = (self.sources.borrow_mut().iter_mut())
            .filter_map(|(_, source)| source.rest.take())
            .collect();
        drop(rests);
    }

    fn change(&self, token: u64, interest: Interest) {
        let waker = self.side(token, interest, Side::change).flatten();
        let Some(waker) = waker else { return };
        // Foreign code: with nothing borrowed.
        contain(|| waker.wake_by_ref());
        self.side(token, interest, |side| {
            if side.waker.is_none() {
                side.waker = Some(waker);
            }
        });
    }

    fn side<T>(
        &self,
        token: u64,
        interest: Interest,
        act: impl FnOnce(&mut Side) -> T,
    ) -> Option<T> {
        self.with_source(token, |source| act(source.side(interest)))
    }

    /// The socket that is still the one which was added under `token`.
    fn with_source<T>(&self, token: u64, act: impl FnOnce(&mut Source) -> T) -> Option<T> {
        let mut sources = self.sources.borrow_mut();
        let source = sources.get_mut(token as u32 as usize)?;
        (source.generation == (token >> 32) as u32).then(|| act(source))
    }
}
