//! The tasks of one core: those that are ready run first, then the core's ring turns, once.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use async_task::Runnable;
use slab::Slab;

use super::task::{End, JoinHandle, Told};
use crate::driver::Submitter;
use crate::driver::core::{Alarm, Core};

/// Polls of tasks before the ring has its turn, however many are ready.
const POLLS_MAX: usize = 256;

/// What other threads have for a core.
pub(super) struct Inbox {
    /// Names the core in the cells of threads; never 0.
    number: u64,
    alarm: Arc<Alarm>,
    queue: Mutex<Vec<Message>>,
    /// The queue is not empty.
    called: AtomicBool,
}

/// Something for a core to do.
pub(super) enum Message {
    /// A task that was woken elsewhere.
    Run(Runnable),
    /// Starts a task.
    Start(Box<dyn FnOnce() + Send>),
    /// The runtime is to end.
    Stop,
}

/// What this thread's core has ready.
struct Here {
    number: Cell<u64>,
    ready: RefCell<VecDeque<Runnable>>,
    executor: RefCell<Option<Rc<Executor>>>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            number: Cell::new(0),
            ready: RefCell::new(VecDeque::new()),
            executor: RefCell::new(None),
        }
    };
}

impl Inbox {
    pub(super) fn new() -> std::io::Result<Arc<Inbox>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Ok(Arc::new(Inbox {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            alarm: Alarm::new()?,
            queue: Mutex::default(),
            called: AtomicBool::new(false),
        }))
    }

    pub(super) fn alarm(&self) -> Arc<Alarm> {
        Arc::clone(&self.alarm)
    }

    /// Leaves a message, and wakes the core if it sleeps.
    pub(super) fn send(&self, message: Message) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push(message);
        drop(queue);
        self.called.store(true, Ordering::Release);
        self.alarm.ring();
    }

    #[inline]
    fn schedule(&self, runnable: Runnable) {
        let mut runnable = Some(runnable);
        let _ = HERE.try_with(|here| {
            if here.number.get() == self.number {
                here.ready.borrow_mut().extend(runnable.take());
            }
        });
        if let Some(runnable) = runnable {
            self.send(Message::Run(runnable));
        }
    }

    fn is_called(&self) -> bool {
        self.called.load(Ordering::Acquire)
    }
}

/// A core's tasks.
pub(super) struct Executor {
    core: Rc<Core>,
    inbox: Arc<Inbox>,
    /// A waker of each task that has not ended.
    tasks: RefCell<Slab<Waker>>,
    /// Where the core's files are handed over.
    files: OnceCell<Arc<Submitter>>,
    stopping: Cell<bool>,
    /// Who is to know that the runtime is to end.
    stop_wakers: RefCell<Vec<Waker>>,
}

/// The calling thread's executor.
pub(super) fn current() -> Option<Rc<Executor>> {
    HERE.with(|here| here.executor.borrow().clone())
}

/// Starts a task on the calling core.
pub(super) fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let end = End::new();
    let handle = JoinHandle::new(Arc::clone(&end));
    let Some(executor) = current() else {
        panic!("spawn was called outside a runtime; use Handle::spawn_on from other threads");
    };
    executor.start(Told::new(future, end));
    handle
}

/// Takes a task off the list when it ends or is dropped.
struct Listed {
    executor: Rc<Executor>,
    place: usize,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let waker = self.executor.tasks.borrow_mut().try_remove(self.place);
        drop(waker);
    }
}

pin_project_lite::pin_project! {
    // Not an async block, which would have room for the future twice.
    struct Spawned<F> {
        #[pin]
        future: F,
        listed: Listed,
    }
}

impl<F: Future> Future for Spawned<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(context)
    }
}

impl Executor {
    pub(super) fn new(core: Rc<Core>, inbox: Arc<Inbox>) -> Rc<Executor> {
        Rc::new(Executor {
            core,
            inbox,
            tasks: RefCell::default(),
            files: OnceCell::new(),
            stopping: Cell::new(false),
            stop_wakers: RefCell::default(),
        })
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    pub(super) fn start(self: &Rc<Self>, future: impl Future<Output = ()> + 'static) {
        let place = self.tasks.borrow_mut().insert(Waker::noop().clone());
        let listed = Listed {
            executor: Rc::clone(self),
            place,
        };
        let future = Spawned { future, listed };
        let inbox = Arc::clone(&self.inbox);
        let schedule = move |runnable| inbox.schedule(runnable);
        let (runnable, task) = async_task::spawn_local(future, schedule);
        let noop = std::mem::replace(&mut self.tasks.borrow_mut()[place], runnable.waker());
        drop(noop);
        task.detach();
        runnable.schedule();
    }

    pub(super) fn files(&self) -> Option<&Arc<Submitter>> {
        self.files.get()
    }

    /// Tasks that have not ended.
    pub(super) fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Ready when the runtime is to end.
    pub(super) fn poll_stopping(&self, context: &Context<'_>) -> Poll<()> {
        if self.stopping.get() {
            return Poll::Ready(());
        }
        let waker = context.waker();
        let mut wakers = self.stop_wakers.borrow_mut();
        if !wakers.iter().any(|other| other.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        Poll::Pending
    }

    /// Runs tasks until `is_over` says that it is.
    pub(super) fn run(self: &Rc<Self>, is_over: impl Fn() -> bool) {
        while !is_over() {
            self.read_messages();
            let more = self.run_ready();
            if is_over() {
                return;
            }
            self.core
                .turn(|| more || has_ready() || self.inbox.is_called());
        }
    }

    /// True: there are more.
    fn run_ready(&self) -> bool {
        for _ in 0..POLLS_MAX {
            let Some(runnable) = pop_ready() else {
                return false;
            };
            self.core.refill();
            // A panic of a task is contained in it; this one is of its drop, or of a waker's.
            let ran = catch_unwind(AssertUnwindSafe(|| runnable.run()));
            std::mem::forget(ran.err());
        }
        has_ready()
    }

    fn read_messages(self: &Rc<Self>) {
        if !self.inbox.called.swap(false, Ordering::AcqRel) {
            return;
        }
        let queue = &self.inbox.queue;
        let messages = std::mem::take(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner));
        for message in messages {
            match message {
                Message::Run(runnable) => push_ready(runnable),
                Message::Start(start) => start(),
                Message::Stop => {
                    self.stopping.set(true);
                    let wakers = self.stop_wakers.take();
                    wakers.into_iter().for_each(Waker::wake);
                }
            }
        }
    }

    /// Makes it the calling thread's.
    pub(super) fn enter(self: &Rc<Self>, files: &Arc<Submitter>) {
        let _ = self.files.set(Arc::clone(files));
        Core::set_current(Some(Rc::clone(&self.core)));
        self.core.set_starter(|future| {
            if let Some(executor) = current() {
                executor.start(future);
            }
        });
        HERE.with(|here| {
            here.number.set(self.inbox.number);
            here.executor.replace(Some(Rc::clone(self)));
        });
    }

    /// Drops all tasks, sees out what they had in flight, and takes the thread back. Returns the operations
    /// that the kernel would not give back.
    pub(super) fn leave(self: &Rc<Self>) -> u32 {
        // A task that is dropped may wake or start others.
        loop {
            self.read_messages();
            let wakers: Vec<Waker> = (self.tasks.borrow().iter())
                .map(|(_, waker)| waker.clone())
                .collect();
            wakers.into_iter().for_each(Waker::wake);
            let mut any = false;
            while let Some(runnable) = pop_ready() {
                any = true;
                let dropped = catch_unwind(AssertUnwindSafe(|| drop(runnable)));
                std::mem::forget(dropped.err());
            }
            if !any && !self.inbox.is_called() {
                break;
            }
        }
        let left = self.core.end();
        HERE.with(|here| {
            here.number.set(0);
            here.executor.replace(None)
        });
        Core::set_current(None);
        left
    }
}

#[inline]
fn pop_ready() -> Option<Runnable> {
    HERE.with(|here| here.ready.borrow_mut().pop_front())
}

fn push_ready(runnable: Runnable) {
    HERE.with(|here| here.ready.borrow_mut().push_back(runnable));
}

#[inline]
fn has_ready() -> bool {
    HERE.with(|here| !here.ready.borrow().is_empty())
}
