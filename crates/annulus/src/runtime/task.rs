//! What a task leaves behind: a value, or why there is none.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Awaits a task's end. Dropping it lets the task go on; [`abort`](JoinHandle::abort) ends it.
pub struct JoinHandle<T> {
    end: Arc<Mutex<End<T>>>,
}

/// Why a task has no value.
pub struct JoinError(Why);

enum Why {
    Aborted,
    Panicked(Box<dyn Any + Send>),
}

enum Outcome<T> {
    Running,
    Over(Result<T, JoinError>),
    Taken,
}

pub(super) struct End<T> {
    outcome: Outcome<T>,
    /// Of whoever awaits it.
    waiting: Option<Waker>,
    /// Of the task, from its first poll on.
    task: Option<Waker>,
    aborted: bool,
}

impl<T> End<T> {
    pub(super) fn new() -> Arc<Mutex<End<T>>> {
        Arc::new(Mutex::new(End {
            outcome: Outcome::Running,
            waiting: None,
            task: None,
            aborted: false,
        }))
    }
}

fn lock<T>(end: &Mutex<End<T>>) -> MutexGuard<'_, End<T>> {
    end.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A task's future: its panic ends here, and its end is told.
pub(super) struct Told<F: Future> {
    /// `None` when it is over.
    future: Option<Pin<Box<F>>>,
    end: Arc<Mutex<End<F::Output>>>,
    begun: bool,
}

impl<F: Future> Told<F> {
    pub(super) fn new(future: F, end: Arc<Mutex<End<F::Output>>>) -> Told<F> {
        Told {
            future: Some(Box::pin(future)),
            end,
            begun: false,
        }
    }

    fn tell(&mut self, outcome: Result<F::Output, JoinError>) {
        let future = self.future.take();
        // Before anybody is told: what the task held is gone by then.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(future)));
        let outcome = match (dropped, outcome) {
            (Err(panic), Ok(_)) => Err(JoinError(Why::Panicked(panic))),
            (_, outcome) => outcome,
        };
        let mut end = lock(&self.end);
        end.outcome = Outcome::Over(outcome);
        let wakers = (end.waiting.take(), end.task.take());
        drop(end);
        if let (Some(waiting), _) = wakers {
            waiting.wake();
        }
    }
}

impl<F: Future> Unpin for Told<F> {}

impl<F: Future> Future for Told<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let Some(future) = &mut this.future else {
            return Poll::Ready(());
        };
        let aborted = if this.begun {
            // The one who awaits may abort at any moment, and wakes the task for it.
            Arc::strong_count(&this.end) > 1 && lock(&this.end).aborted
        } else {
            this.begun = true;
            let mut end = lock(&this.end);
            end.task = Some(context.waker().clone());
            end.aborted
        };
        if aborted {
            this.tell(Err(JoinError(Why::Aborted)));
            return Poll::Ready(());
        }
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => {
                this.tell(Ok(value));
                Poll::Ready(())
            }
            Err(panic) => {
                this.tell(Err(JoinError(Why::Panicked(panic))));
                Poll::Ready(())
            }
        }
    }
}

/// The runtime has ended under it.
impl<F: Future> Drop for Told<F> {
    fn drop(&mut self) {
        if self.future.is_some() {
            self.tell(Err(JoinError(Why::Aborted)));
        }
    }
}

/// The other end of a handle, on its way to a core that may have gone.
pub(super) struct Promise<T>(pub(super) Option<Arc<Mutex<End<T>>>>);

impl<T> Promise<T> {
    pub(super) fn keep(mut self) -> Option<Arc<Mutex<End<T>>>> {
        self.0.take()
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            let mut end = lock(&end);
            end.outcome = Outcome::Over(Err(JoinError(Why::Aborted)));
            let waiting = end.waiting.take();
            drop(end);
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl<T> JoinHandle<T> {
    /// What has become of it, now that the task has ended.
    pub(super) fn take(&mut self) -> Result<T, JoinError> {
        match std::mem::replace(&mut lock(&self.end).outcome, Outcome::Taken) {
            Outcome::Over(outcome) => outcome,
            Outcome::Running | Outcome::Taken => Err(JoinError(Why::Aborted)),
        }
    }

    pub(super) fn new(end: Arc<Mutex<End<T>>>) -> JoinHandle<T> {
        JoinHandle { end }
    }

    /// Ends the task at its next turn: its future is dropped. One that has just ended keeps its value.
    pub fn abort(&self) {
        let mut end = lock(&self.end);
        end.aborted = true;
        let task = end.task.take();
        drop(end);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        !matches!(lock(&self.end).outcome, Outcome::Running)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = context.waker().clone();
        let mut end = lock(&self.end);
        match std::mem::replace(&mut end.outcome, Outcome::Taken) {
            Outcome::Running => {
                end.outcome = Outcome::Running;
                let before = end.waiting.replace(waker);
                drop(end);
                drop(before);
                Poll::Pending
            }
            Outcome::Over(outcome) => Poll::Ready(outcome),
            Outcome::Taken => panic!("a JoinHandle was polled after it had given its value"),
        }
    }
}

impl JoinError {
    /// The task was aborted, or its runtime ended.
    pub fn is_aborted(&self) -> bool {
        matches!(self.0, Why::Aborted)
    }

    /// The panic that ended the task, to be resumed or looked at.
    ///
    /// # Errors
    ///
    /// The error itself, if the task was aborted.
    pub fn into_panic(self) -> Result<Box<dyn Any + Send>, JoinError> {
        match self.0 {
            Why::Panicked(panic) => Ok(panic),
            Why::Aborted => Err(self),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Why::Panicked(panic) = &self.0 else {
            return f.write_str("the task was aborted, or its runtime ended");
        };
        let text = panic.downcast_ref::<String>().map(String::as_str);
        match text.or_else(|| panic.downcast_ref::<&str>().copied()) {
            Some(text) => write!(f, "the task panicked: {text}"),
            None => f.write_str("the task panicked"),
        }
    }
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinError({self})")
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> io::Error {
        io::Error::other(error.to_string())
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("finished", &self.is_finished())
            .finish()
    }
}
