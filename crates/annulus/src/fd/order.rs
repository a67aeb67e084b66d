//! Who may send on a stream next: one at a time, in the order they came (trap 34).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

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
}

/// The right to send. Dropped, it passes on.
#[derive(Debug)]
pub(crate) struct SendTurn(Rc<SendOrder>);

/// A place in the line. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct SendPlace {
    order: Rc<SendOrder>,
    ticket: u64,
}

impl SendOrder {
    /// The turn, if nobody sends or waits.
    #[inline]
    pub(crate) fn take(self: &Rc<Self>) -> Option<SendTurn> {
        if self.busy.replace(true) {
            return None;
        }
        Some(SendTurn(Rc::clone(self)))
    }

    /// A place at the end of the line.
    pub(crate) fn queue(self: &Rc<Self>) -> SendPlace {
        let ticket = self.tickets.get() + 1;
        self.tickets.set(ticket);
        let waker = Waker::noop().clone();
        self.waiting.borrow_mut().push_back((ticket, waker));
        SendPlace {
            order: Rc::clone(self),
            ticket,
        }
    }

    /// What has become of sends whose futures were dropped: 0, or the errno of the first that failed. What
    /// was to follow them can't be sent either.
    #[inline]
    pub(crate) fn failed(&self) -> i32 {
        self.failed.get()
    }

    fn pass_on(&self) {
        let next = self.waiting.borrow_mut().pop_front();
        match next {
            Some((ticket, waker)) => {
                self.called.set(ticket);
                waker.wake();
            }
            None => self.busy.set(false),
        }
    }
}

impl SendTurn {
    /// A send that nobody waits for has failed.
    pub(crate) fn fail(&self, errno: i32) {
        if self.0.failed.get() == 0 {
            self.0.failed.set(errno);
        }
    }
}

impl Drop for SendTurn {
    #[inline]
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

impl SendPlace {
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<SendTurn> {
        if self.order.called.get() == self.ticket {
            self.order.called.set(0);
            self.ticket = 0;
            return Poll::Ready(SendTurn(Rc::clone(&self.order)));
        }
        let waker = context.waker().clone();
        let mut waiting = self.order.waiting.borrow_mut();
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
        if self.order.called.get() == self.ticket {
            self.order.called.set(0);
            self.order.pass_on();
            return;
        }
        let mut waiting = self.order.waiting.borrow_mut();
        let place = waiting
            .iter()
            .position(|(ticket, _)| *ticket == self.ticket);
        let gone = place.and_then(|place| waiting.remove(place));
        drop(waiting);
        drop(gone);
    }
}
