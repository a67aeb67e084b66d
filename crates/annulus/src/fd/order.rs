//! Who may send on a stream next: one at a time, in the order they came (trap 34).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::Socket;
use crate::sys::errno::EPIPE;
use crate::sys::net;

/// The line of senders of one stream.
#[derive(Debug, Default)]
pub(crate) struct SendOrder {
    /// Somebody sends.
    busy: Cell<bool>,
    /// Counts those who had to wait.
    tickets: Cell<u64>,
    /// Whose turn it is; 0 is nobody's.
    called: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
    /// The errno of a send that nobody waited for any more.
    failed: Cell<i32>,
    /// Nothing follows what is in the line: the peer is to be told then.
    ends: Cell<bool>,
}

/// The right to send on a socket, which it keeps open. Dropped, it passes on.
#[derive(Debug)]
pub(crate) struct SendTurn(Rc<Socket>);

/// A place in the line. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct SendPlace {
    socket: Rc<Socket>,
    ticket: u64,
}

impl SendOrder {
    #[inline]
    pub(super) fn failed(&self) -> i32 {
        self.failed.get()
    }

    /// Whether somebody sends.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.busy.get()
    }

    #[inline]
    fn pass_on(&self, socket: &Socket) {
        let next = self.waiting.borrow_mut().pop_front();
        match next {
            Some((ticket, waker)) => {
                self.called.set(ticket);
                waker.wake();
            }
            None => {
                self.busy.set(false);
                if self.ends.get() {
                    self.end(socket);
                }
            }
        }
    }

    /// The peer is told that nothing follows, when all who are in the line have sent.
    pub(super) fn finish(&self, socket: &Socket) {
        self.ends.set(true);
        if !self.busy.get() {
            self.end(socket);
        }
    }

    #[cold]
    fn end(&self, socket: &Socket) {
        self.ends.set(false);
        if socket.is_cut() {
            // An end would say that nothing is missing.
            return;
        }
        // Refused (ENOTCONN), the peer has gone, and needs not be told.
        let _ = net::shutdown(socket.raw(), Shutdown::Write);
    }
}

impl SendTurn {
    /// The turn, if nobody sends or waits.
    #[inline]
    pub(crate) fn take(socket: &Rc<Socket>) -> Option<SendTurn> {
        if socket.order().busy.replace(true) {
            return None;
        }
        Some(SendTurn(Rc::clone(socket)))
    }

    #[inline]
    pub(crate) fn socket(&self) -> &Rc<Socket> {
        &self.0
    }

    /// A send that nobody waits for has failed, and was not sent whole.
    pub(crate) fn fail(&self, errno: i32) {
        let failed = &self.0.order().failed;
        if failed.get() == 0 {
            failed.set(errno);
        }
        self.cut(errno);
    }

    /// A send has ended by `errno` when a part of it was sent.
    pub(crate) fn cut(&self, errno: i32) {
        // The direction has ended already: the peer has been told so, or is gone.
        if errno != EPIPE {
            self.0.cut();
        }
    }
}

impl Drop for SendTurn {
    #[inline]
    fn drop(&mut self) {
        self.0.order().pass_on(&self.0);
    }
}

impl SendPlace {
    /// A place at the end of the line; there is one, for somebody has the turn.
    pub(crate) fn queue(socket: &Rc<Socket>) -> SendPlace {
        let order = socket.order();
        let ticket = order.tickets.get() + 1;
        order.tickets.set(ticket);
        let waker = Waker::noop().clone();
        order.waiting.borrow_mut().push_back((ticket, waker));
        SendPlace {
            socket: Rc::clone(socket),
            ticket,
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<SendTurn> {
        let order = self.socket.order();
        if order.called.get() == self.ticket {
            order.called.set(0);
            self.ticket = 0;
            return Poll::Ready(SendTurn(Rc::clone(&self.socket)));
        }
        let waker = context.waker().clone();
        let mut waiting = order.waiting.borrow_mut();
        let place = waiting
            .iter_mut()
            .find(|(ticket, _)| *ticket == self.ticket);
        let before = place.map(|(_, old)| std::mem::replace(old, waker));
        drop(waiting);
        drop(before);
        Poll::Pending
    }
}

impl Drop for SendPlace {
    fn drop(&mut self) {
        if self.ticket == 0 {
            return;
        }
        let order = self.socket.order();
        if order.called.get() == self.ticket {
            order.called.set(0);
            order.pass_on(&self.socket);
            return;
        }
        let mut waiting = order.waiting.borrow_mut();
        let place = waiting
            .iter()
            .position(|(ticket, _)| *ticket == self.ticket);
        let gone = place.and_then(|place| waiting.remove(place));
        drop(waiting);
        drop(gone);
    }
}
