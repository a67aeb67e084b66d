//! The future of one operation on a socket. It watches; the core's table owns.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::readiness::GoesOn;
use super::{Backend, Core, Token};
use crate::driver::finish::contain;
use crate::op::{Resume, SocketOp};
use crate::sys::errno::{EAGAIN, ECANCELED, ESHUTDOWN};

/// An operation on a socket, on its way; await it for the answer.
///
/// Nothing is asked of the kernel before the first poll. Dropping it at any point is sound: what the
/// kernel may still touch stays with the core until the kernel lets go of it. It stays on its thread.
#[must_use = "an operation does nothing until it is awaited"]
pub struct SocketOperation<T: SocketOp> {
    core: Rc<Core>,
    state: State<T>,
}

enum State<T> {
    Fresh(T),
    /// Without a ring: it has been tried, and goes on when its socket is ready.
    Tried(T),
    Out(Token),
    Over,
}

impl<T: SocketOp> Unpin for SocketOperation<T> {}

impl<T: SocketOp> SocketOperation<T> {
    pub(crate) fn new(core: Rc<Core>, op: T) -> SocketOperation<T> {
        SocketOperation {
            core,
            state: State::Fresh(op),
        }
    }

    /// Asks, without waiting: for one that nobody is going to await.
    pub(crate) fn poll_once(mut self) {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = Pin::new(&mut self).poll(&mut context);
    }

    fn start(&mut self, op: T, context: &mut Context<'_>) -> Poll<T::Output> {
        if self.core.is_ending() {
            return Poll::Ready(op.complete(-ESHUTDOWN));
        }
        match &self.core.backend {
            Backend::Rings(rings) => {
                let token = rings.start(op, context.waker().clone());
                self.state = State::Out(token);
                Poll::Pending
            }
            Backend::Readiness(_) => self.attempt(op, context),
        }
    }

    fn attempt(&mut self, mut op: T, context: &Context<'_>) -> Poll<T::Output> {
        match attempt(&self.core, &mut op, context.waker()) {
            Poll::Ready(res) => Poll::Ready(op.complete(res)),
            Poll::Pending => {
                self.state = State::Tried(op);
                Poll::Pending
            }
        }
    }
}

/// Without a ring: the system call, as often as the socket is ready for it.
fn attempt<T: SocketOp>(core: &Core, op: &mut T, waker: &Waker) -> Poll<i32> {
    loop {
        if core.may_be_ready(op.socket(), T::INTEREST) {
            let res = op.attempt();
            if res != -EAGAIN {
                match op.resume(res) {
                    Resume::Done(res) => return Poll::Ready(res),
                    Resume::Again => continue,
                }
            }
            core.not_ready(op.socket(), T::INTEREST);
        }
        match core.watch(op.socket(), T::INTEREST, waker) {
            Err(error) => return Poll::Ready(-error.raw_os_error().unwrap_or(ECANCELED)),
            // It has just been added, and may have been ready before.
            Ok(()) if core.may_be_ready(op.socket(), T::INTEREST) => {}
            Ok(()) => return Poll::Pending,
        }
    }
}

/// An operation that goes on although nobody waits for it any more, on a core without a ring.
struct Unwatched<T: SocketOp>(Option<T>);

impl<T: SocketOp> GoesOn for Unwatched<T> {
    fn go_on(&mut self, core: &Core) -> bool {
        let Some(op) = &mut self.0 else { return true };
        let Poll::Ready(res) = attempt(core, op, Waker::noop()) else {
            return false;
        };
        // The op's buffer is foreign code.
        contain(|| self.0.take().into_iter().for_each(|op| op.abandoned(res)));
        true
    }
}

impl<T: SocketOp> Future for SocketOperation<T> {
    type Output = T::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T::Output> {
        let this = self.get_mut();
        match std::mem::replace(&mut this.state, State::Over) {
            State::Fresh(op) => {
                if !this.core.spend(context) {
                    this.state = State::Fresh(op);
                    return Poll::Pending;
                }
                this.start(op, context)
            }
            State::Tried(op) => {
                if !this.core.spend(context) {
                    this.state = State::Tried(op);
                    return Poll::Pending;
                }
                this.attempt(op, context)
            }
            State::Out(token) => {
                let Backend::Rings(rings) = &this.core.backend else {
                    unreachable!("without a ring nothing is in flight")
                };
                match rings.poll::<T>(token, context) {
                    Some((op, res)) => Poll::Ready(op.complete(res)),
                    None => {
                        this.state = State::Out(token);
                        Poll::Pending
                    }
                }
            }
            State::Over => panic!("an operation was polled after it had been answered"),
        }
    }
}

impl<T: SocketOp> Drop for SocketOperation<T> {
    fn drop(&mut self) {
        match (std::mem::replace(&mut self.state, State::Over), &self.core.backend) {
            (State::Out(token), Backend::Rings(rings)) => rings.abandon(token, !T::GOES_ON),
            (State::Tried(op), Backend::Readiness(readiness)) if T::GOES_ON => {
                readiness.keep(Box::new(Unwatched(Some(op))));
            }
            _ => {}
        }
    }
}

impl<T: SocketOp> fmt::Debug for SocketOperation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketOperation({})", T::INFO.name)
    }
}
