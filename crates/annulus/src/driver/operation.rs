//! # Safety
//!
//! The future of one operation, and the choice of its driver. The slot owns the operation; the future only has a
//! pointer to it. If the future is dropped early, the operation stays with the driver, which asks the kernel to cancel
//! it and disposes of it at its final CQE. Invariants: Lent, Once.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use super::coop_budget;
use super::finish::dispose;
use super::handle::DriverHandle;
use super::lifecycle::{Abandon, PollResult};
use super::slot::Slot;
use super::submitter::Submitter;
use super::thread_rings;
use crate::narrow::to_ns;
use crate::op::{Failure, FileOp, Returns};
use crate::sys::engine_error::{EngineError, error_of};
use crate::sys::errno::{ECANCELED, ETIMEDOUT};

/// An operation in progress; await it for the result.
///
/// Nothing is submitted to the kernel before the first poll. Dropping the future at any point is sound: memory that the
/// kernel may still use stays with the engine until the kernel has released it, a cancel is requested, and resources in
/// the result (a descriptor, for example) are released.
///
/// ```
/// # fn main() -> std::io::Result<()> { pollster::block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let engine = annulus::Engine::new()?;
/// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
/// let file = engine.open(&path).await?;
/// let read = file.read_at(vec![0; 4], 0); // nothing happens yet
/// drop(read); // and so nothing is read
/// let before = engine.metrics();
/// let write = file.sync_all();
/// assert_eq!(engine.metrics().submitted, before.submitted);
/// write.await?; // submitted and completed
/// # Ok(()) }) }
/// ```
#[must_use = "an operation does nothing until it is awaited"]
pub struct Operation<'a, T: Returns, A = <T as Returns>::Output> {
    submitter: &'a Submitter,
    state: OperationState<'a, T>,
    time: Time,
    /// The time at which the task yielded instead of starting the operation, ns; 0 if it did not.
    yielded_ns: u64,
    map: fn(T::Output, &'a Submitter) -> A,
}

/// The time limit of an operation.
#[derive(Clone, Copy)]
enum Time {
    Unlimited,
    /// A duration, starting with the first poll.
    Within(Duration),
    /// The deadline after the first poll, ns on the engine's clock.
    Until(u64),
}

enum OperationState<'a, T: Returns> {
    /// Completed without being submitted.
    Ready(T::Output),
    Fresh(T),
    /// Submitted to this driver.
    InFlight(NonNull<Slot>, &'a DriverHandle),
    Over,
}

// Not `T: FileOp`: whether a future that holds an `Operation` is `Send` is decided without its lifetimes, and a
// `&'static str` is a buffer in one lifetime only.
// SAFETY: Lent: the pointer is to a slot in flight for this future; the op moves with it, and so does its result.
unsafe impl<T: Returns<Output: Send> + Send, A> Send for Operation<'_, T, A> {}
// SAFETY: Held: a shared reference gives no access.
unsafe impl<T: Returns, A> Sync for Operation<'_, T, A> {}

impl<T: Returns, A> Unpin for Operation<'_, T, A> {}

impl<'a, T: FileOp> Operation<'a, T> {
    pub(crate) fn new(submitter: &'a Submitter, op: T) -> Operation<'a, T> {
        Operation::with_state(submitter, OperationState::Fresh(op))
    }

    /// Creates an operation whose result is already known.
    pub(crate) fn ready(submitter: &'a Submitter, output: T::Output) -> Operation<'a, T> {
        Operation::with_state(submitter, OperationState::Ready(output))
    }

    #[inline]
    fn with_state(submitter: &'a Submitter, state: OperationState<'a, T>) -> Operation<'a, T> {
        Operation {
            submitter,
            state,
            time: Time::Unlimited,
            yielded_ns: 0,
            map: |output, _| output,
        }
    }

    /// Returns the operation with its result converted by `map`.
    pub(crate) fn map<A>(self, map: fn(T::Output, &'a Submitter) -> A) -> Operation<'a, T, A> {
        let mut this = self;
        let state = std::mem::replace(&mut this.state, OperationState::Over);
        Operation {
            submitter: this.submitter,
            state,
            time: this.time,
            yielded_ns: 0,
            map,
        }
    }
}

impl<'a, T: FileOp, A> Operation<'a, T, A> {
    /// Limits the operation to `timeout` from its first poll on.
    ///
    /// When the time is up, the kernel is asked to cancel the operation. If it does, the result is `TimedOut` with the
    /// buffer. If it cannot (a disk request that is already at the device), the result is `TimedOut` immediately,
    /// without the buffer; the engine frees the buffer when the kernel has released it.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { pollster::block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let engine = annulus::Engine::new()?;
    /// # let path = dir.path().join("data"); std::fs::write(&path, "0123")?;
    /// use std::{io::ErrorKind, time::Duration};
    ///
    /// let file = engine.open(&path).await?;
    /// match file.read_at(vec![0; 4], 0).timeout(Duration::from_secs(30)).await {
    ///     Ok((bytes, _)) => assert_eq!(bytes, 4),
    ///     Err(error) if error.error().kind() == ErrorKind::TimedOut => {
    ///         let buf = error.into_buf(); // `None` if the device still writes to it
    ///         println!("timed out; the buffer is {}back", if buf.is_some() { "" } else { "not " });
    ///     }
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(()) }) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.time = Time::Within(match &mut self.state {
            OperationState::Fresh(op) => op.limit(timeout),
            _ => timeout,
        });
        self
    }

    fn finish(&mut self, output: T::Output) -> Poll<A> {
        self.state = OperationState::Over;
        Poll::Ready((self.map)(output, self.submitter))
    }

    fn start(&mut self, mut op: T, context: &mut Context<'_>) -> Poll<A> {
        let submitted_ns = self.submitter.sample();
        let has_yielded = self.yielded_ns != 0;
        if has_yielded {
            coop_budget::resume(self.yielded_ns, self.submitter.now_ns());
        }
        if has_yielded || coop_budget::may_go_on() {
            if let Some(total) = self.submitter.try_sync(&mut op, submitted_ns) {
                return self.finish(op.complete(total));
            }
        } else if op.has_sync_path() {
            coop_budget::reset();
            self.yielded_ns = self.submitter.now_ns();
            self.state = OperationState::Fresh(op);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        coop_budget::reset();
        if let Time::Within(timeout) = self.time {
            let timeout_ns = to_ns(timeout);
            let until_ns = self.submitter.now_ns().saturating_add(timeout_ns);
            self.time = Time::Until(until_ns.max(1));
        }
        let handle = self.submitter.handle_for(&op);
        self.submit(op, submitted_ns, handle, context)
    }

    /// Submits `op` to `handle`, or to another driver if that one has ended.
    fn submit(
        &mut self,
        mut op: T,
        submitted_ns: u64,
        mut handle: &'a DriverHandle,
        context: &mut Context<'_>,
    ) -> Poll<A> {
        let deadline_ns = match self.time {
            Time::Until(until_ns) => until_ns,
            Time::Unlimited | Time::Within(_) => 0,
        };
        loop {
            let waker = context.waker().clone();
            let refusal;
            (op, refusal) = match handle.start(op, waker, deadline_ns, submitted_ns) {
                Ok(slot) => {
                    self.state = OperationState::InFlight(slot, handle);
                    return Poll::Pending;
                }
                Err(refused) => refused,
            };
            // The driver has ended. If it was the driver of this thread only, there are others.
            let is_full = refusal == EngineError::TooMany.code();
            match self.submitter.other_handle(handle, op.opcode()) {
                Some(other) if !is_full => handle = other,
                _ => return self.finish(op.complete(-refusal)),
            }
        }
    }

    fn watch(
        &mut self,
        slot: NonNull<Slot>,
        handle: &'a DriverHandle,
        context: &mut Context<'_>,
    ) -> Poll<A> {
        // SAFETY: Lent: in flight for this future, so not freed.
        let slot = unsafe { slot.as_ref() };
        let completion = match slot.lifecycle.poll_result(context.waker()) {
            PollResult::Pending if handle.is_elsewhere() => {
                // It completes in the parent. The slot stays as it is, like the other memory of the driver.
                self.state = OperationState::Over;
                return self.finish(T::Output::failure(EngineError::Forked.into()));
            }
            PollResult::Pending => return Poll::Pending,
            // SAFETY: Once: done, so the payload belongs to this future, and `Over` prevents a second time.
            PollResult::Done => Some(unsafe { slot.take::<T>() }),
            PollResult::Expired => None,
        };
        self.state = OperationState::Over;
        if slot.lifecycle.take() {
            // SAFETY: Once: the driver has released it, and this future will not touch it again.
            unsafe { handle.table.free(slot) };
        }
        // Last: a buffer is foreign code and may panic. By now the op is on this stack, and nowhere else.
        let output = match completion {
            Some((op, res)) => {
                if let Some(other) = self.submitter.handle_after(handle, res, op.opcode()) {
                    return self.submit(op, self.submitter.sample(), other, context);
                }
                // The driver has cancelled it because its timeout has passed.
                let is_late = res == -ETIMEDOUT && !matches!(self.time, Time::Unlimited);
                op.complete(if is_late {
                    -EngineError::TimedOut.code()
                } else {
                    res
                })
            }
            None => T::Output::failure(error_of(handle.expiry())),
        };
        self.finish(output)
    }
}

impl<T: FileOp, A> Future for Operation<'_, T, A> {
    type Output = A;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<A> {
        match std::mem::replace(&mut self.state, OperationState::Over) {
            OperationState::Ready(output) => self.finish(output),
            OperationState::Fresh(op) => self.start(op, context),
            OperationState::InFlight(slot, handle) => {
                self.state = OperationState::InFlight(slot, handle);
                self.watch(slot, handle, context)
            }
            OperationState::Over => panic!("an Operation was polled after it had completed"),
        }
    }
}

impl<T: Returns, A> Operation<'_, T, A> {
    /// Leaves an operation in flight to its driver, and drops one that has completed.
    #[cold]
    fn abandon(slot: NonNull<Slot>, handle: &DriverHandle) {
        // SAFETY: Lent: in flight for this future, so not freed.
        let slot_ref = unsafe { slot.as_ref() };
        match slot_ref.lifecycle.abandon() {
            // SAFETY: Once: `QUEUED` was set just now; the submitter keeps the driver handle.
            Abandon::Request => return unsafe { handle.request_cancel(slot) },
            // SAFETY: Once: done, so the payload belongs to this future, and nothing takes it after a drop.
            Abandon::Dispose => unsafe { dispose(slot_ref) },
            Abandon::Leave => {}
        }
        if slot_ref.lifecycle.take() {
            // SAFETY: Once: the driver has released it, and this future is gone.
            unsafe { handle.table.free(slot_ref) };
        }
    }
}

impl<T: Returns, A> Drop for Operation<'_, T, A> {
    #[inline]
    fn drop(&mut self) {
        if let OperationState::InFlight(slot, handle) = self.state {
            Self::abandon(slot, handle);
        }
    }
}

impl<T: FileOp, A> fmt::Debug for Operation<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            OperationState::Fresh(_) => "not submitted",
            OperationState::Ready(_) => "completed, result not taken",
            OperationState::InFlight(..) => "in flight",
            OperationState::Over => "completed",
        };
        write!(f, "Operation({}, {state})", T::INFO.name)
    }
}

/// The number of operations that a thread submits to one driver before it moves to the next: enough for a chunk to stay
/// together.
const DRIVER_RUN: usize = 8;

thread_local! {
    /// The number of operations submitted by this thread, plus its starting point.
    static POSITION: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The choice of the driver for an operation.
impl Submitter {
    /// Returns the driver for this operation of the calling thread.
    #[inline]
    pub(crate) fn handle_for<T: FileOp>(&self, op: &T) -> &DriverHandle {
        match &self.polled {
            Some(polled) if op.is_polled() => polled,
            _ => self.handle(op.opcode()),
        }
    }

    /// Returns the driver of the calling thread's own ring, if it has one.
    #[inline]
    pub(crate) fn own_driver(&self) -> Option<&DriverHandle> {
        thread_rings::handle(self)
    }

    /// Returns the driver for this thread's next operation.
    #[inline]
    pub(crate) fn handle(&self, opcode: u8) -> &DriverHandle {
        if !self.opcodes.has(opcode) {
            return self.helpers();
        }
        match thread_rings::handle(self) {
            Some(own) => own,
            None => self.shared_handle(),
        }
    }

    /// Returns another driver for an operation that `ended` has refused: `ended` was the driver of its thread, whose
    /// executor has ended, or of another core. Returns `None` if the engine has ended.
    #[cold]
    pub(crate) fn other_handle(&self, ended: &DriverHandle, opcode: u8) -> Option<&DriverHandle> {
        // In a child of a fork all drivers refuse.
        if !self.serves() {
            return None;
        }
        if !self.opcodes.has(opcode) {
            return ended.is_threadless().then(|| self.helpers());
        }
        // Some of a runtime's cores may end before the others.
        let mut handles = self.handles.iter().map(|handle| &**handle);
        handles.find(|handle| !handle.stopping() && !std::ptr::eq(*handle, ended))
    }

    /// Returns another driver for an operation that `handle` had taken, but completed with `res` because it ended
    /// before the kernel had the operation. Returns `None` if `res` is the result.
    #[inline]
    pub(crate) fn handle_after(
        &self,
        handle: &DriverHandle,
        res: i32,
        opcode: u8,
    ) -> Option<&DriverHandle> {
        // A driver that ends cancels what is in the kernel. Such an operation has had no effect.
        let undone = res == -ECANCELED || EngineError::of_code(-res).is_some();
        match undone && handle.stopping() {
            true => self.other_handle(handle, opcode),
            false => None,
        }
    }

    /// Returns a driver with its own thread.
    fn shared_handle(&self) -> &DriverHandle {
        let handle = match self.handles.as_slice() {
            [one] => Some(one),
            several => several.get(self.next_position() % several.len().max(1)),
        };
        match handle {
            Some(handle) => handle,
            None => self.helpers(),
        }
    }

    /// Counts this thread's operations; consecutive ones share a position.
    fn next_position(&self) -> usize {
        let mut position = POSITION.get();
        if position == usize::MAX {
            position = self.threads_bound.fetch_add(DRIVER_RUN, Ordering::Relaxed);
        }
        POSITION.set(position.wrapping_add(1));
        position / DRIVER_RUN
    }
}
