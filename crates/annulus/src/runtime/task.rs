//! What a task leaves behind: a value, or why there is none.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::driver::contain;

/// Awaits a task's end. Dropping it lets the task go on; [`abort`](JoinHandle::abort) ends it.
pub struct JoinHandle<T> {
    end: Arc<End<T>>,
}

/// Why a task has no value.
pub struct JoinError(Why);

enum Why {
    Aborted,
    NotRun(io::Error),
    Panicked(Box<dyn Any + Send>),
}

enum Outcome<T> {
    Running,
    Over(Result<T, JoinError>),
    Taken,
}

/// Counts the tasks of the process that have been aborted, from 1 on. A task looks at what it shares with its
/// handle only when this has changed: that is memory which a task that nobody waits for never needs.
static ABORTS: AtomicU64 = AtomicU64::new(1);

/// What a task and its handle share.
pub(super) struct End<T> {
    aborted: AtomicBool,
    state: Mutex<State<T>>,
}

struct State<T> {
    outcome: Outcome<T>,
    /// The waker of the awaiting task.
    waiting: Option<Waker>,
    /// Of the task, from its first poll on.
    task: Option<Waker>,
}

impl<T> End<T> {
    pub(super) fn new() -> Arc<End<T>> {
        Arc::new(End {
            aborted: AtomicBool::new(false),
            state: Mutex::new(State {
                outcome: Outcome::Running,
                waiting: None,
                task: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the outcome and wakes who waits for it. The task's own waker goes with it.
    fn tell(&self, outcome: Result<T, JoinError>) {
        let mut state = self.lock();
        state.outcome = Outcome::Over(outcome);
        let (waiting, task) = (state.waiting.take(), state.task.take());
        drop(state);
        drop(task);
        // Foreign code, and a task may be told of in its drop.
        waiting
            .into_iter()
            .for_each(|waker| contain(|| waker.wake()));
    }
}

pin_project_lite::pin_project! {
    /// A task's future: its panic ends here, and its end is told.
    pub(super) struct ReportedTask<F: Future> {
        // `None` when it is over.
        #[pin]
        future: Option<F>,
        end: Arc<End<F::Output>>,
        // `ABORTS` as it was when this one looked last; 0 before its first poll.
        aborts: u64,
    }

    /// The runtime has ended under it.
    impl<F: Future> PinnedDrop for ReportedTask<F> {
        fn drop(this: Pin<&mut Self>) {
            if this.future.is_some() {
                this.tell(Err(JoinError(Why::Aborted)));
            }
        }
    }
}

impl<F: Future> ReportedTask<F> {
    pub(super) fn new(future: F, end: Arc<End<F::Output>>) -> ReportedTask<F> {
        ReportedTask {
            future: Some(future),
            end,
            aborts: 0,
        }
    }

    fn tell(self: Pin<&mut Self>, outcome: Result<F::Output, JoinError>) {
        let mut this = self.project();
        // Before anybody is told: what the task held is gone by then.
        let dropped = catch_unwind(AssertUnwindSafe(|| this.future.set(None)));
        let outcome = match (dropped, outcome) {
            (Err(panic), Ok(_)) => Err(JoinError(Why::Panicked(panic))),
            (_, outcome) => outcome,
        };
        this.end.tell(outcome);
    }
}

impl<F: Future> Future for ReportedTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.as_mut().project();
        let aborts = ABORTS.load(Ordering::Acquire);
        if *this.aborts != aborts {
            if *this.aborts == 0 {
                this.end.lock().task = Some(context.waker().clone());
            }
            *this.aborts = aborts;
            // After the waker has been left: the aborting thread sets the flag first, and then wakes the task.
            if this.end.aborted.load(Ordering::Acquire) {
                self.tell(Err(JoinError(Why::Aborted)));
                return Poll::Ready(());
            }
        }
        let Some(future) = this.future.as_pin_mut() else {
            return Poll::Ready(());
        };
        match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => self.tell(Ok(value)),
            Err(panic) => self.tell(Err(JoinError::of(panic))),
        }
        Poll::Ready(())
    }
}

/// The other end of a handle, on its way to a core that may have gone.
pub(super) struct Promise<T>(pub(super) Option<Arc<End<T>>>);

impl<T> Promise<T> {
    pub(super) fn keep(mut self) -> Option<Arc<End<T>>> {
        self.0.take()
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end.tell(Err(JoinError(Why::Aborted)));
        }
    }
}

impl<T> JoinHandle<T> {
    /// What has become of it, now that the task has ended.
    pub(super) fn take(&mut self) -> Result<T, JoinError> {
        match std::mem::replace(&mut self.end.lock().outcome, Outcome::Taken) {
            Outcome::Over(outcome) => outcome,
            Outcome::Running | Outcome::Taken => Err(JoinError(Why::Aborted)),
        }
    }

    pub(super) fn new(end: Arc<End<T>>) -> JoinHandle<T> {
        JoinHandle { end }
    }

    /// Ends the task at its next poll: its future is dropped. One that has just ended keeps its value.
    pub fn abort(&self) {
        self.end.aborted.store(true, Ordering::Release);
        ABORTS.fetch_add(1, Ordering::Release);
        let task = self.end.lock().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        !matches!(self.end.lock().outcome, Outcome::Running)
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = context.waker().clone();
        let mut end = self.end.lock();
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

/// Unwinds a task whose work could not be run, which is no panic.
pub(super) struct NotRun(pub(super) io::Error);

impl JoinError {
    /// What has unwound a task.
    fn of(panic: Box<dyn Any + Send>) -> JoinError {
        match panic.downcast::<NotRun>() {
            Ok(not_run) => JoinError(Why::NotRun(not_run.0)),
            Err(panic) => JoinError(Why::Panicked(panic)),
        }
    }

    /// The task was aborted, or its runtime ended.
    pub fn is_aborted(&self) -> bool {
        matches!(self.0, Why::Aborted)
    }

    /// The panic that ended the task, to be resumed or looked at.
    ///
    /// # Errors
    ///
    /// The error itself, if the task did not panic.
    pub fn into_panic(self) -> Result<Box<dyn Any + Send>, JoinError> {
        match self.0 {
            Why::Panicked(panic) => Ok(panic),
            Why::Aborted | Why::NotRun(_) => Err(self),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let panic = match &self.0 {
            Why::Panicked(panic) => panic,
            Why::Aborted => return f.write_str("the task was aborted, or its runtime ended"),
            Why::NotRun(error) => {
                return write!(f, "the work was not run: {error}");
            }
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
