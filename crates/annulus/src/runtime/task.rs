//! The result of a task: a value, or the reason why there is none.

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

/// Waits for a task, and returns its value. Dropping the handle does not end the task; [`abort`](JoinHandle::abort)
/// does.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::runtime;
///
/// let task = runtime::spawn(async { 2 + 3 });
/// assert_eq!(task.await?, 5);
/// drop(runtime::spawn(async { println!("still runs") })); // dropping the handle detaches the task
/// # Ok(()) })? }
/// ```
pub struct JoinHandle<T> {
    end: Arc<End<T>>,
}

/// The reason why a task has no value.
///
/// It is a separate type because it may hold the payload of a panic, which the awaiting task can pass on. `?`
/// converts it into an `io::Error` with the same text; the payload is lost then.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # std::panic::set_hook(Box::new(|_| ())); // the test's output stays clean
/// use annulus::runtime;
///
/// // A panic ends the task only, not the core.
/// let error = runtime::spawn(async { panic!("no luck") }).await.unwrap_err();
/// assert_eq!(error.to_string(), "the task panicked: no luck");
/// let error = std::io::Error::from(error); // `?` does this in a function that returns `io::Result`
/// assert_eq!(error.kind(), std::io::ErrorKind::Other);
/// # Ok(()) })? }
/// ```
pub struct JoinError(Reason);

enum Reason {
    Aborted,
    NotRun(io::Error),
    Panicked(Box<dyn Any + Send>),
}

enum Outcome<T> {
    Running,
    Over(Result<T, JoinError>),
    Taken,
}

/// Counts the aborted tasks of the process, starting at 1. A task reads the state that it shares with its handle only
/// when this count has changed. That avoids touching this memory for tasks that are never awaited.
static ABORTS: AtomicU64 = AtomicU64::new(1);

/// The state that a task and its handle share.
pub(super) struct End<T> {
    aborted: AtomicBool,
    state: Mutex<TaskState<T>>,
}

struct TaskState<T> {
    outcome: Outcome<T>,
    /// The waker of the awaiting task.
    waiting: Option<Waker>,
    /// The waker of the task itself, after its first poll.
    task: Option<Waker>,
}

impl<T> End<T> {
    pub(super) fn new() -> Arc<End<T>> {
        Arc::new(End {
            aborted: AtomicBool::new(false),
            state: Mutex::new(TaskState {
                outcome: Outcome::Running,
                waiting: None,
                task: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, TaskState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the outcome, and wakes the awaiting task. Drops the task's waker.
    fn report(&self, outcome: Result<T, JoinError>) {
        let mut state = self.lock();
        state.outcome = Outcome::Over(outcome);
        let (waiting, task) = (state.waiting.take(), state.task.take());
        drop(state);
        drop(task);
        // Wakers are code of the user, and this may run during a drop.
        waiting
            .into_iter()
            .for_each(|waker| contain(|| waker.wake()));
    }
}

pin_project_lite::pin_project! {
    /// A task's future, which catches its panic and reports its outcome.
    pub(super) struct ReportedTask<F: Future> {
        // `None` after completion.
        #[pin]
        future: Option<F>,
        // `None` after completion.
        end: Option<Arc<End<F::Output>>>,
        // The value of `ABORTS` at the last check; 0 before the first poll.
        aborts: u64,
    }

    /// Reports the abort if the runtime ends before the task.
    impl<F: Future> PinnedDrop for ReportedTask<F> {
        fn drop(this: Pin<&mut Self>) {
            if this.future.is_some() {
                this.report(Err(JoinError(Reason::Aborted)));
            }
        }
    }
}

impl<F: Future> ReportedTask<F> {
    pub(super) fn new(future: F, end: Arc<End<F::Output>>) -> ReportedTask<F> {
        ReportedTask {
            future: Some(future),
            end: Some(end),
            aborts: 0,
        }
    }

    fn report(self: Pin<&mut Self>, outcome: Result<F::Output, JoinError>) {
        let mut this = self.project();
        // Drop the future before the outcome is reported, so that its resources are free by then.
        let dropped = catch_unwind(AssertUnwindSafe(|| this.future.set(None)));
        let outcome = match (dropped, outcome) {
            (Err(panic), Ok(_)) => Err(JoinError(Reason::Panicked(panic))),
            (_, outcome) => outcome,
        };
        if let Some(end) = this.end.take() {
            // Without a handle, this drops the value. A panic outside of a poll would end the process.
            contain(move || end.report(outcome));
        }
    }
}

impl<F: Future> Future for ReportedTask<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.as_mut().project();
        let Some(end) = this.end else {
            return Poll::Ready(());
        };
        let aborts = ABORTS.load(Ordering::Acquire);
        if *this.aborts != aborts {
            if *this.aborts == 0 {
                end.lock().task = Some(context.waker().clone());
            }
            *this.aborts = aborts;
            // Check after storing the waker: the aborting thread sets the flag first, and then wakes the task.
            if end.aborted.load(Ordering::Acquire) {
                self.report(Err(JoinError(Reason::Aborted)));
                return Poll::Ready(());
            }
        }
        let Some(future) = this.future.as_pin_mut() else {
            return Poll::Ready(());
        };
        match catch_unwind(AssertUnwindSafe(|| future.poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => self.report(Ok(value)),
            Err(panic) => self.report(Err(JoinError::of(panic))),
        }
        Poll::Ready(())
    }
}

/// The reporting side of a handle, sent to a core that may have ended.
pub(super) struct Promise<T>(pub(super) Option<Arc<End<T>>>);

impl<T> Promise<T> {
    pub(super) fn keep(mut self) -> Option<Arc<End<T>>> {
        self.0.take()
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end.report(Err(JoinError(Reason::Aborted)));
        }
    }
}

impl<T> JoinHandle<T> {
    /// Takes the outcome of a task that has ended.
    pub(super) fn take(&mut self) -> Result<T, JoinError> {
        match std::mem::replace(&mut self.end.lock().outcome, Outcome::Taken) {
            Outcome::Over(outcome) => outcome,
            Outcome::Running | Outcome::Taken => Err(JoinError(Reason::Aborted)),
        }
    }

    pub(super) fn new(end: Arc<End<T>>) -> JoinHandle<T> {
        JoinHandle { end }
    }

    /// Drops the task's future at its next poll. A task that has already ended keeps its value.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::runtime;
    ///
    /// let task = runtime::spawn(std::future::pending::<()>());
    /// task.abort();
    /// assert!(task.await.unwrap_err().is_aborted());
    ///
    /// let done = runtime::spawn(async { 7 });
    /// while !done.is_finished() {
    ///     runtime::yield_now().await;
    /// }
    /// done.abort(); // too late: the value stays
    /// assert_eq!(done.await?, 7);
    /// # Ok(()) })? }
    /// ```
    pub fn abort(&self) {
        self.end.aborted.store(true, Ordering::Release);
        ABORTS.fetch_add(1, Ordering::Release);
        let task = self.end.lock().task.take();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Returns whether the task has ended.
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
            Outcome::Taken => panic!("a JoinHandle was polled after it had completed"),
        }
    }
}

/// The payload that unwinds a task whose work could not be run. It is not a panic.
pub(super) struct NotRun(pub(super) io::Error);

impl JoinError {
    /// Makes the error of a payload that has unwound a task.
    fn of(panic: Box<dyn Any + Send>) -> JoinError {
        match panic.downcast::<NotRun>() {
            Ok(not_run) => JoinError(Reason::NotRun(not_run.0)),
            Err(panic) => JoinError(Reason::Panicked(panic)),
        }
    }

    /// Returns whether the task was aborted, or its runtime ended.
    ///
    /// A task that was dropped with its runtime is reported in the same way as one that was aborted:
    ///
    /// ```
    /// use annulus::runtime::Runtime;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let runtime = Runtime::builder().start()?;
    /// let task = runtime.handle().spawn_on(0, || std::future::pending::<()>());
    /// runtime.shutdown()?;
    /// assert!(pollster::block_on(task).unwrap_err().is_aborted());
    /// # Ok(()) }
    /// ```
    pub fn is_aborted(&self) -> bool {
        matches!(self.0, Reason::Aborted)
    }

    /// Returns the payload of the panic that ended the task.
    ///
    /// A program that wants the panic of a task to be its own:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # std::panic::set_hook(Box::new(|_| ()));
    /// use annulus::runtime;
    ///
    /// let error = runtime::spawn(async { std::panic::panic_any(7) }).await.unwrap_err();
    /// match error.into_panic() {
    ///     Ok(payload) => assert_eq!(payload.downcast_ref(), Some(&7)), // or `resume_unwind(payload)`
    ///     Err(error) => unreachable!("it was aborted: {error}"),
    /// }
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error itself if the task did not panic.
    pub fn into_panic(self) -> Result<Box<dyn Any + Send>, JoinError> {
        match self.0 {
            Reason::Panicked(panic) => Ok(panic),
            Reason::Aborted | Reason::NotRun(_) => Err(self),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let panic = match &self.0 {
            Reason::Panicked(panic) => panic,
            Reason::Aborted => return f.write_str("the task was aborted, or its runtime ended"),
            Reason::NotRun(error) => {
                return write!(f, "the blocking work was not run: {error}");
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
