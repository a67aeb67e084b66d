//! The executor of a simulated run, on one thread. It polls the ready tasks in random order. It does not know the
//! driver; the run loop (`run.rs`) alternates between both.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::sys::sim::Dice;

thread_local! {
    /// The executor of the current run on this thread.
    static CURRENT: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The tasks of a run. Number 0 is the future that `Sim::run` received, which is stored elsewhere.
#[derive(Default)]
pub(super) struct Executor {
    tasks: RefCell<Vec<TaskEntry>>,
    ready: Arc<Ready>,
}

/// The entry of a task. Empty while the task is polled, and after it has ended.
struct TaskEntry {
    task: Option<Task>,
    waker: Arc<TaskWaker>,
}

/// The numbers of the tasks that have been woken, each at most once.
#[derive(Default)]
struct Ready(Mutex<Vec<usize>>);

struct TaskWaker {
    number: usize,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.ready
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self.number);
        }
    }
}

impl Executor {
    /// Creates an executor with its main future ready. `spawn` uses it until `leave`.
    pub(super) fn enter() -> Rc<Executor> {
        let executor = Rc::new(Executor::default());
        executor.add(None);
        let nested = CURRENT.replace(Some(Rc::clone(&executor)));
        assert!(
            nested.is_none(),
            "Sim::run was called within another Sim::run on this thread"
        );
        executor
    }

    /// Drops the remaining tasks.
    pub(super) fn leave(&self) {
        CURRENT.set(None);
        // The drop of a task may access this list.
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
    }

    /// Adds a task, ready to be polled.
    fn add(&self, task: Option<Task>) {
        let mut tasks = self.tasks.borrow_mut();
        let (number, ready) = (tasks.len(), Arc::clone(&self.ready));
        let waker = Arc::new(TaskWaker {
            number,
            queued: AtomicBool::new(false),
            ready,
        });
        waker.wake_by_ref();
        tasks.push(TaskEntry { task, waker });
    }

    /// Returns whether no task is ready.
    pub(super) fn is_idle(&self) -> bool {
        self.ready
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Removes a random ready task from the list.
    fn choose(&self, dice: &mut Dice) -> Option<usize> {
        let mut ready = self.ready.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.is_empty() {
            return None;
        }
        let chosen = dice.index(ready.len());
        Some(ready.remove(chosen))
    }

    /// Polls a random ready task. Returns `None` if no task is ready, and `Some(Some(_))` once the main future has
    /// returned.
    pub(super) fn poll_one<T>(
        &self,
        main: Pin<&mut impl Future<Output = T>>,
        dice: &mut Dice,
    ) -> Option<Option<T>> {
        let number = self.choose(dice)?;
        // Not borrowed during the poll, because a task may spawn.
        let (task, waker) = {
            let mut tasks = self.tasks.borrow_mut();
            let index = tasks.get_mut(number)?;
            (index.task.take(), Arc::clone(&index.waker))
        };
        waker.queued.store(false, Ordering::Release);
        let waker = Waker::from(waker);
        let mut context = Context::from_waker(&waker);
        if number == 0 {
            return match main.poll(&mut context) {
                Poll::Ready(output) => Some(Some(output)),
                Poll::Pending => Some(None),
            };
        }
        if let Some(mut task) = task
            && task.as_mut().poll(&mut context).is_pending()
            && let Some(index) = self.tasks.borrow_mut().get_mut(number)
        {
            index.task = Some(task);
        }
        Some(None)
    }
}

/// Runs a future concurrently with the others of the current run. If it has not ended when the main future returns, it
/// is dropped.
///
/// ```
/// use annulus::sim::{self, Sim, SimConfig};
///
/// let sim = Sim::new(SimConfig::new(1));
/// sim.run(async |engine| {
///     let other = engine.clone();
///     let task = sim::spawn(async move { other.write("/one", "1").await });
///     engine.write("/two", "2").await?; // the seed decides which write is first
///     task.await
/// })?;
/// assert_eq!(sim.names("/")?, ["one", "two"]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
///
/// Panics outside of [`Sim::run`](super::Sim::run).
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
{
    let current = CURRENT.try_with(|current| current.borrow().clone());
    let Some(executor) = current.ok().flatten() else {
        panic!("sim::spawn was called outside of Sim::run")
    };
    let state = Rc::new(RefCell::new(Joined {
        output: None,
        taken: false,
        waker: None,
    }));
    let task_state = Rc::clone(&state);
    let task = async move {
        let output = future.await;
        let waker = {
            let mut state = task_state.borrow_mut();
            state.output = Some(output);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    executor.add(Some(Box::pin(task)));
    JoinHandle(state)
}

struct Joined<T> {
    output: Option<T>,
    /// True once the handle has returned the output.
    taken: bool,
    waker: Option<Waker>,
}

/// Awaits the output of a spawned future. Dropping the handle does not stop the future.
///
/// Polling it again after it has returned the output panics, as with the handles of Tokio and of the library's runtime.
///
/// ```
/// use annulus::sim::{self, Sim, SimConfig};
///
/// let sim = Sim::new(SimConfig::new(1));
/// let sum = sim.run(async |_engine| {
///     let tasks: Vec<_> = (1..=3).map(|i| sim::spawn(async move { i })).collect();
///     let mut sum = 0;
///     for task in tasks {
///         sum += task.await; // the output itself: a panic of a task is a panic of the run
///     }
///     sum
/// });
/// assert_eq!(sum, 6);
/// ```
pub struct JoinHandle<T>(Rc<RefCell<Joined<T>>>);

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        assert!(
            !state.taken,
            "a JoinHandle was polled after it had completed"
        );
        match state.output.take() {
            Some(output) => {
                state.taken = true;
                Poll::Ready(output)
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.borrow();
        f.debug_struct("JoinHandle")
            .field("ended", &(state.taken || state.output.is_some()))
            .finish()
    }
}
