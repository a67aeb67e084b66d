//! A line of tasks in front of something that one of them at a time may use: a stream's sending side, a datagram
//! socket's receiving side. Permits are given in the order in which the tasks came.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The line.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// A task has the permit, or is about to take it.
    busy: Cell<bool>,
    /// Counts the tasks that had to wait.
    tickets: Cell<u64>,
    /// The ticket that has the permit; 0 is no ticket.
    called: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
}

/// What a line is in front of.
pub(crate) trait Queued {
    fn line(&self) -> &Line;

    /// The last permit was returned, and nothing waits.
    fn idle(&self) {}
}

/// The right to use it, which keeps it alive. Dropped, it goes to the next in the line.
pub(crate) struct Permit<T: Queued>(Rc<T>);

/// A task in the queue. Dropping it leaves the queue.
pub(crate) struct QueuedTask<T: Queued> {
    owner: Rc<T>,
    ticket: u64,
}

impl Line {
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.get()
    }

    /// Calls the next ticket. False: nothing waits.
    #[inline]
    fn call_next(&self) -> bool {
        let next = self.waiting.borrow_mut().pop_front();
        match next {
            Some((ticket, waker)) => {
                self.called.set(ticket);
                waker.wake();
                true
            }
            None => {
                self.busy.set(false);
                false
            }
        }
    }
}

impl<T: Queued> Permit<T> {
    /// The permit, if no task has it or waits for it.
    #[inline]
    pub(crate) fn take(owner: &Rc<T>) -> Option<Permit<T>> {
        if owner.line().busy.replace(true) {
            return None;
        }
        Some(Permit(Rc::clone(owner)))
    }

    /// Waits for the permit, behind all tasks that came before.
    #[inline]
    pub(crate) async fn wait(owner: &Rc<T>) -> Permit<T> {
        if let Some(permit) = Permit::take(owner) {
            return permit;
        }
        let mut task = QueuedTask::queue(owner);
        std::future::poll_fn(|context| task.poll(context)).await
    }

    #[inline]
    pub(crate) fn owner(&self) -> &Rc<T> {
        &self.0
    }
}

impl<T: Queued> Drop for Permit<T> {
    #[inline]
    fn drop(&mut self) {
        if !self.0.line().call_next() {
            self.0.idle();
        }
    }
}

impl<T: Queued> fmt::Debug for Permit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(self.0.line()).finish()
    }
}

impl<T: Queued> QueuedTask<T> {
    /// Joins the end of the queue; some task has the permit.
    pub(crate) fn queue(owner: &Rc<T>) -> QueuedTask<T> {
        let line = owner.line();
        let ticket = line.tickets.get() + 1;
        line.tickets.set(ticket);
        let waker = Waker::noop().clone();
        line.waiting.borrow_mut().push_back((ticket, waker));
        QueuedTask {
            owner: Rc::clone(owner),
            ticket,
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Permit<T>> {
        let line = self.owner.line();
        if line.called.get() == self.ticket {
            line.called.set(0);
            self.ticket = 0;
            return Poll::Ready(Permit(Rc::clone(&self.owner)));
        }
        let waker = context.waker().clone();
        let mut waiting = line.waiting.borrow_mut();
        let entry = waiting
            .iter_mut()
            .find(|(ticket, _)| *ticket == self.ticket);
        let before = entry.map(|(_, old)| std::mem::replace(old, waker));
        drop(waiting);
        drop(before);
        Poll::Pending
    }
}

impl<T: Queued> Drop for QueuedTask<T> {
    fn drop(&mut self) {
        if self.ticket == 0 {
            return;
        }
        let line = self.owner.line();
        if line.called.get() == self.ticket {
            line.called.set(0);
            // As if it had been had.
            drop(Permit(Rc::clone(&self.owner)));
            return;
        }
        let mut waiting = line.waiting.borrow_mut();
        let entry = waiting
            .iter()
            .position(|(ticket, _)| *ticket == self.ticket);
        let gone = entry.and_then(|entry| waiting.remove(entry));
        drop(waiting);
        drop(gone);
    }
}

impl<T: Queued> fmt::Debug for QueuedTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueuedTask").field(&self.ticket).finish()
    }
}
