//! An operation on a socket that several tasks may poll. All of them are woken when it completes. The task that polls
//! it first gets the result; the others start another operation.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::core_driver::Core;
use super::operation::SocketOperation;
use super::waiters::Crowd;
use crate::op::SocketOp;

/// A shared operation. It belongs to its socket, not to a task: the futures that poll it may be dropped.
pub(crate) struct SharedOperation<T: SocketOp> {
    operation: SocketOperation<T>,
    /// The waiting task, while there is only one.
    first: Option<Waker>,
    /// All waiting tasks, if there are several.
    crowd: Option<(Arc<Crowd>, Waker)>,
}

impl<T: SocketOp> SharedOperation<T> {
    pub(crate) fn new(core: Rc<Core>, op: T) -> SharedOperation<T> {
        SharedOperation {
            operation: SocketOperation::new(core, op),
            first: None,
            crowd: None,
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<T::Output> {
        let alone = (self.first.as_ref()).is_none_or(|first| first.will_wake(context.waker()));
        if alone && self.crowd.is_none() {
            let polled = Pin::new(&mut self.operation).poll(context);
            if polled.is_pending() && self.first.is_none() {
                self.first = Some(context.waker().clone());
            }
            return polled;
        }
        let (crowd, waker) = self.crowd.get_or_insert_with(|| {
            let crowd = Crowd::new();
            (Arc::clone(&crowd), Waker::from(crowd))
        });
        self.first.take().iter().for_each(|first| crowd.join(first));
        crowd.join(context.waker());
        let polled = Pin::new(&mut self.operation).poll(&mut Context::from_waker(waker));
        if polled.is_ready() {
            // Without a ring the operation may be ready before it is notified.
            crowd.wake_by_ref();
        }
        polled
    }
}

impl<T: SocketOp> fmt::Debug for SharedOperation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operation.fmt(f)
    }
}
