//! A first-in, first-out queue of tasks for a resource that one task at a time may use: a stream's sending side, or a
//! datagram socket's receiving side.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// A task has the permit, or is about to take it.
    taken: Cell<bool>,
    /// The number of tasks that had to wait.
    tickets: Cell<u64>,
    /// The ticket that has the permit; 0 is none.
    called: Cell<u64>,
    waiting: RefCell<VecDeque<(u64, Waker)>>,
}

/// A resource with a queue.
pub(crate) trait Queued {
    fn line(&self) -> &Line;

    /// Called when the permit was returned and no task waits.
    fn idle(&self) {}

    /// Wakes the next task. A panic of its waker must not reach the task that has returned the permit.
    fn wake(&self, next: Waker);
}

/// The right to use the resource. It keeps the resource alive. Dropping it passes the right to the next task in the
/// queue.
pub(crate) struct Permit<T: Queued>(Rc<T>);

/// A task in the queue. Dropping it leaves the queue.
pub(crate) struct QueuedTask<T: Queued> {
    owner: Rc<T>,
    ticket: u64,
}

impl Line {
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.get()
    }

    /// Gives the permit to the next ticket. Returns its task, or `None` if no task waits.
    #[inline]
    fn call_next(&self) -> Option<Waker> {
        let next = self.waiting.borrow_mut().pop_front();
        let Some((ticket, waker)) = next else {
            self.taken.set(false);
            return None;
        };
        self.called.set(ticket);
        Some(waker)
    }
}

impl<T: Queued> Permit<T> {
    /// Returns the permit, if no task has it or waits for it.
    #[inline]
    pub(crate) fn take(owner: &Rc<T>) -> Option<Permit<T>> {
        if owner.line().taken.replace(true) {
            return None;
        }
        Some(Permit(Rc::clone(owner)))
    }

    /// Waits for the permit, behind all earlier tasks.
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
        match self.0.line().call_next() {
            Some(next) => self.0.wake(next),
            None => self.0.idle(),
        }
    }
}

impl<T: Queued> fmt::Debug for Permit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(self.0.line()).finish()
    }
}

impl<T: Queued> QueuedTask<T> {
    /// Joins the end of the queue. Another task has the permit.
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
            // Pass the permit on, as if this task had used it.
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
