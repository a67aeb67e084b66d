//! A core without a ring: tasks try their calls, and epoll says when to try again.
//!
//! Edge-triggered, so that a socket is added once and each change is told once; what is known of each is
//! kept here, so that a call which would only say EAGAIN is not made.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use super::{Alarm, table};
use crate::driver::finish::contain;
use crate::fd::Socket;
use crate::op::Interest;
use crate::sys::call;
use crate::sys::poller::{Poller, borrowed};

/// The alarm's name among what is polled.
const ALARM: u64 = u64::MAX;

pub(super) struct Readiness {
    poller: RefCell<Poller>,
    sources: RefCell<Slab<Source>>,
    generation: std::cell::Cell<u32>,
    /// Taken out of the sources, to be woken with nothing borrowed.
    woken: RefCell<Vec<Waker>>,
    alarm: Arc<Alarm>,
}

/// What is known of a socket.
#[derive(Debug)]
struct Source {
    generation: u32,
    read: Side,
    write: Side,
}

#[derive(Debug)]
struct Side {
    /// Nothing is known against it.
    ready: bool,
    waker: Option<Waker>,
}

impl Side {
    const NEW: Side = Side {
        ready: true,
        waker: None,
    };
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
            woken: RefCell::default(),
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
        let waker = waker.clone();
        let before = self.with_side(socket, interest, |side| side.waker.replace(waker));
        drop(before);
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
        // An error here is one of arguments, which are the same each time.
        let _ = self.poller.borrow_mut().wait(timeout_ns);
        self.alarm.unset();
        let mut woken = self.woken.take();
        for ready in self.poller.borrow().found() {
            if ready.token == ALARM {
                let _ = self.alarm.eventfd().sleep(Some(0));
                continue;
            }
            let mut sources = self.sources.borrow_mut();
            let Some(source) = sources.get_mut(ready.token as u32 as usize) else {
                continue;
            };
            if source.generation != (ready.token >> 32) as u32 {
                continue;
            }
            if ready.readable {
                source.read.ready = true;
                woken.extend(source.read.waker.take());
            }
            if ready.writable {
                source.write.ready = true;
                woken.extend(source.write.waker.take());
            }
        }
        woken.drain(..).for_each(|waker| contain(|| waker.wake()));
        self.woken.replace(woken);
    }
}
