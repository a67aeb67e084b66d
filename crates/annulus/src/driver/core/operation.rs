//! The future of one operation on a socket. The core's table owns the operation; the future only has its token.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::core_driver::{Backend, Core};
use super::token::Token;
use crate::driver::contain::contain;
use crate::metrics::{self, Times};
use crate::op::{Refusals, Resume, SocketOp};
use crate::sys::engine_error::code_of;
use crate::sys::errno::ECANCELED;
use crate::sys::on_core::OnCore;

/// An operation on a socket, in progress; await it for the result.
///
/// Nothing is submitted to the kernel before the first poll. Dropping the future at any point is sound: memory that the
/// kernel may still use stays with the core until the kernel has released it. The future stays on its thread.
#[must_use = "an operation does nothing until it is awaited"]
pub(crate) struct SocketOperation<T: SocketOp> {
    core: OnCore<Rc<Core>>,
    state: OnCore<SocketOperationState<T>>,
}

enum SocketOperationState<T> {
    Fresh(T),
    /// Without a ring: the socket was not ready, or the budget of the task was used up. The time of the first attempt,
    /// ns, if the operation is timed.
    Attempted(T, u64),
    InFlight(Token),
    Over,
}

impl<T: SocketOp> Unpin for SocketOperation<T> {}

impl<T: SocketOp> SocketOperation<T> {
    pub(crate) fn new(core: Rc<Core>, op: T) -> SocketOperation<T> {
        SocketOperation {
            core: core.into(),
            state: SocketOperationState::Fresh(op).into(),
        }
    }

    /// Returns whether the operation has been submitted. If so, a drop continues or cancels it, according to its kind.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(*self.state, SocketOperationState::Fresh(_))
    }

    fn start(&mut self, op: T, context: &mut Context<'_>) -> Poll<T::Output> {
        if self.core.is_ending() {
            return Poll::Ready(op.complete(-self.core.refusal().code()));
        }
        match &self.core.backend {
            Backend::Rings(rings) => {
                let token = rings.start(op, Some(context.waker().clone()));
                *self.state = SocketOperationState::InFlight(token);
                Poll::Pending
            }
            Backend::Readiness(_) => self.attempt(op, metrics::sample(), context),
        }
    }

    /// Without a ring: makes the system call whenever the socket is ready.
    fn attempt(
        &mut self,
        mut op: T,
        submitted_ns: u64,
        context: &mut Context<'_>,
    ) -> Poll<T::Output> {
        // In a ring every operation waits, so it takes nothing from the budget.
        if !self.core.spend(context) {
            *self.state = SocketOperationState::Attempted(op, submitted_ns);
            return Poll::Pending;
        }
        let mut refusals = Refusals::default();
        loop {
            if self.core.may_be_ready(op.socket(), op.interest()) {
                let res = op.attempt();
                // Bytes, except that the descriptor of an accept counts as so few that it does not matter.
                self.core.charge(usize::try_from(res).unwrap_or(0));
                if !op.is_unready(res) {
                    match refusals.judge(res, op.resume(res)) {
                        Resume::Done(res) => {
                            self.count(res, submitted_ns);
                            return Poll::Ready(op.complete(res));
                        }
                        Resume::Again | Resume::Next => continue,
                    }
                }
                self.core.not_ready(op.socket(), op.interest());
            }
            match (self.core).watch(op.socket(), op.interest(), context.waker()) {
                Err(error) => {
                    let code = code_of(&error).unwrap_or(ECANCELED);
                    return Poll::Ready(op.complete(-code));
                }
                // The socket has just been added, and may have been ready before.
                Ok(()) if self.core.may_be_ready(op.socket(), op.interest()) => {}
                Ok(()) => {
                    *self.state = SocketOperationState::Attempted(op, submitted_ns);
                    return Poll::Pending;
                }
            }
        }
    }

    fn count(&self, res: i32, submitted_ns: u64) {
        let operation = const { T::INFO.number() };
        self.core.count_call(operation, res);
        if submitted_ns > 0 {
            let times = Times {
                submitted: submitted_ns,
                begun: submitted_ns,
                completed: self.core.now_ns(),
            };
            self.core.notifier.counters.time(operation, times);
        }
    }
}

impl<T: SocketOp> Future for SocketOperation<T> {
    type Output = T::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T::Output> {
        let this = self.get_mut();
        match std::mem::replace(&mut *this.state, SocketOperationState::Over) {
            SocketOperationState::Fresh(op) => this.start(op, context),
            SocketOperationState::Attempted(op, _) if this.core.is_ending() => {
                Poll::Ready(op.complete(-this.core.refusal().code()))
            }
            SocketOperationState::Attempted(op, submitted_ns) => {
                this.attempt(op, submitted_ns, context)
            }
            SocketOperationState::InFlight(token) => {
                let Backend::Rings(rings) = &this.core.backend else {
                    unreachable!("without a ring no operation is in flight")
                };
                match rings.poll::<T>(token, context) {
                    Some((op, res)) => Poll::Ready(op.complete(res)),
                    None => {
                        *this.state = SocketOperationState::InFlight(token);
                        Poll::Pending
                    }
                }
            }
            SocketOperationState::Over => panic!("an operation was polled after it had completed"),
        }
    }
}

impl<T: SocketOp> Drop for SocketOperation<T> {
    fn drop(&mut self) {
        match (
            std::mem::replace(&mut *self.state, SocketOperationState::Over),
            &self.core.backend,
        ) {
            (SocketOperationState::InFlight(token), Backend::Rings(rings)) => {
                rings.abandon(token, !T::CONTINUES_AFTER_DROP)
            }
            (SocketOperationState::Attempted(op, _), Backend::Readiness(readiness))
                if T::CONTINUES_AFTER_DROP =>
            {
                contain(|| readiness.go_on_later(op));
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
