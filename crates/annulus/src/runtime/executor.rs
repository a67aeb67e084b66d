//! The tasks of one core: those that are ready run first, then the core's ring is polled once.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use async_task::Runnable;
use slab::Slab;

use super::handle::Handle;
use super::task::{End, JoinHandle, ReportedTask};
use crate::driver::core::{Core, Notifier};
use crate::driver::mailbox::Mailbox;
use crate::driver::{Submitter, contain};
use crate::metrics::CoreMetrics;

/// The maximum number of task polls before the ring is polled.
const POLLS_MAX: u64 = 256;

/// Between two looks for a task that another thread is waking while its core ends.
const WOKEN_ELSEWHERE: Duration = Duration::from_micros(50);

/// What other threads have for a core.
pub(super) struct Inbox {
    /// Names the core in the cells of threads; never 0.
    number: u64,
    /// Which of its runtime's cores it is.
    index: usize,
    notifier: Arc<Notifier>,
    mailbox: Mailbox<Message>,
}

/// Something for a core to do.
pub(super) enum Message {
    /// A task that was woken elsewhere.
    Run(Runnable),
    /// Starts a task.
    Start(Box<dyn FnOnce() + Send>),
    /// Drops the value of a [`CoreBound`](super::CoreBound) at this index.
    Forget(usize),
    /// The runtime is to end.
    Stop,
}

/// What this thread's core has ready.
struct CoreContext {
    number: Cell<u64>,
    ready: RefCell<VecDeque<Runnable>>,
    executor: RefCell<Option<Rc<Executor>>>,
}

thread_local! {
    static CONTEXT: CoreContext = const {
        CoreContext {
            number: Cell::new(0),
            ready: RefCell::new(VecDeque::new()),
            executor: RefCell::new(None),
        }
    };
}

impl Inbox {
    pub(super) fn new(index: usize) -> std::io::Result<Arc<Inbox>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Ok(Arc::new(Inbox {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            index,
            notifier: Notifier::new()?,
            mailbox: Mailbox::new(),
        }))
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Whether nothing that is sent arrives any more.
    pub(super) fn has_ended(&self) -> bool {
        self.mailbox.is_closed()
    }

    pub(super) fn notifier(&self) -> Arc<Notifier> {
        Arc::clone(&self.notifier)
    }

    /// What its core has done so far.
    pub(super) fn metrics(&self) -> CoreMetrics {
        self.notifier.counters.core()
    }

    /// Says whose core it is, and which of them.
    pub(super) fn belong(&self, owner: u64, index: usize) {
        self.notifier.counters.belong(owner, index);
    }

    /// Says what waits for its sockets, and why that is not what would be best.
    pub(super) fn describe(&self, backend: &str, fallback: Option<&str>) {
        self.notifier.counters.describe(backend, fallback);
    }

    /// Leaves a message, and wakes the core if it sleeps. One for a core that has ended is dropped: it is
    /// never a task that was woken, for a core ends after the last of its tasks.
    /// In a child of a fork it is dropped as well; a task is its core's to drop, and stays as it is.
    pub(super) fn send(&self, message: Message) {
        if self.notifier.is_elsewhere() {
            return match message {
                Message::Run(runnable) => std::mem::forget(runnable),
                other => drop(other),
            };
        }
        match self.mailbox.put(message) {
            Ok(()) => self.notifier.notify(),
            Err(message) => drop(message),
        }
    }

    /// The core has ended: whatever is sent from now on is dropped, as is what has been sent. Anybody's
    /// to call, again and again.
    pub(super) fn close(&self) {
        drop(self.mailbox.close());
    }

    #[inline]
    fn schedule(&self, runnable: Runnable) {
        let mut runnable = Some(runnable);
        let _ = CONTEXT.try_with(|context| {
            if context.number.get() == self.number {
                context.ready.borrow_mut().extend(runnable.take());
            }
        });
        if let Some(runnable) = runnable {
            self.send(Message::Run(runnable));
        }
    }

    fn is_called(&self) -> bool {
        self.mailbox.is_called()
    }
}

/// A core's tasks.
pub(super) struct Executor {
    core: Rc<Core>,
    inbox: Arc<Inbox>,
    /// A waker of each task that has not ended.
    tasks: RefCell<Slab<Waker>>,
    /// Where the core's files are submitted.
    files: OnceCell<Arc<Submitter>>,
    /// The way to all cores.
    handle: OnceCell<Handle>,
    stopping: Cell<bool>,
    /// Who is to know that the runtime is to end.
    stop_wakers: RefCell<Slab<Waker>>,
    /// What is bound to the core; `None` from its end on.
    kept: RefCell<Option<Slab<Rc<dyn Any>>>>,
}

/// The calling thread's executor.
pub(super) fn current() -> Option<Rc<Executor>> {
    // None, too, while the thread's cells are being dropped.
    let existing = CONTEXT.try_with(|context| context.executor.borrow().clone());
    existing.ok().flatten()
}

/// Whether the calling thread can be a core: not while its thread-locals are being dropped.
pub(super) fn is_possible() -> bool {
    CONTEXT.try_with(|_| ()).is_ok() && Core::can_be_current()
}

/// What the core `home` has at `position`, if this is its thread.
#[inline]
pub(super) fn kept_on_this_core(home: &Inbox, position: usize) -> Option<Rc<dyn Any>> {
    let existing = CONTEXT.try_with(|context| {
        if context.number.get() != home.number {
            return None;
        }
        let executor = context.executor.borrow();
        let kept = executor.as_ref()?.kept.borrow();
        kept.as_ref()?.get(position).map(Rc::clone)
    });
    existing.ok().flatten()
}

/// Drops what the core `home` has at `position`. False: this is not its thread.
pub(super) fn forget_on_this_core(home: &Inbox, position: usize) -> bool {
    let executor = current().filter(|executor| executor.inbox.number == home.number);
    let Some(executor) = executor else {
        return false;
    };
    executor.forget(position);
    true
}

/// Whether the calling thread's runtime is to end.
#[inline]
pub(super) fn is_stopping() -> bool {
    let of = |executor: &Option<Rc<Executor>>| executor.as_ref().is_some_and(|e| e.is_stopping());
    CONTEXT
        .try_with(|context| of(&context.executor.borrow()))
        .unwrap_or(false)
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
    executor.start(ReportedTask::new(future, end));
    handle
}

/// Takes a task off the list when it ends or is dropped.
struct Listed {
    executor: Rc<Executor>,
    position: usize,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let waker = self.executor.tasks.borrow_mut().try_remove(self.position);
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
            handle: OnceCell::new(),
            stopping: Cell::new(false),
            stop_wakers: RefCell::default(),
            kept: RefCell::new(Some(Slab::new())),
        })
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        &self.core
    }

    pub(super) fn start(self: &Rc<Self>, future: impl Future<Output = ()> + 'static) {
        let position = self.tasks.borrow_mut().insert(Waker::noop().clone());
        let listed = Listed {
            executor: Rc::clone(self),
            position,
        };
        let future = Spawned { future, listed };
        let inbox = Arc::clone(&self.inbox);
        let schedule = move |runnable| inbox.schedule(runnable);
        let (runnable, task) = async_task::spawn_local(future, schedule);
        let noop = std::mem::replace(&mut self.tasks.borrow_mut()[position], runnable.waker());
        drop(noop);
        task.detach();
        runnable.schedule();
    }

    /// Keeps a value until it is forgotten, or the core ends.
    pub(super) fn keep(&self, value: Rc<dyn Any>) -> Option<(Arc<Inbox>, usize)> {
        let position = self.kept.borrow_mut().as_mut()?.insert(value);
        Some((Arc::clone(&self.inbox), position))
    }

    fn forget(&self, position: usize) {
        let mut kept = self.kept.borrow_mut();
        let value = kept.as_mut().and_then(|kept| kept.try_remove(position));
        // Foreign code, which may come here again.
        drop(kept);
        drop(value);
    }

    pub(super) fn files(&self) -> Option<&Arc<Submitter>> {
        self.files.get()
    }

    pub(super) fn handle(&self) -> Option<&Handle> {
        self.handle.get()
    }

    /// Tasks that have not ended.
    pub(super) fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// The runtime is to end: the tasks that wait for that are woken.
    pub(super) fn stop(&self) {
        self.stopping.set(true);
        let wakers = self.stop_wakers.take();
        (wakers.into_iter()).for_each(|(_, waker)| contain(|| waker.wake()));
    }

    /// Ready when the runtime is to end. `position` is where the caller's waker is, if it is there.
    pub(super) fn poll_stopping(
        &self,
        position: &mut Option<usize>,
        context: &Context<'_>,
    ) -> Poll<()> {
        if self.stopping.get() {
            *position = None;
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let mut wakers = self.stop_wakers.borrow_mut();
        let before = match *position {
            Some(position) => wakers
                .get_mut(position)
                .map(|one| std::mem::replace(one, waker)),
            None => {
                *position = Some(wakers.insert(waker));
                None
            }
        };
        drop(wakers);
        drop(before);
        Poll::Pending
    }

    /// Nobody waits at `position` any more.
    pub(super) fn forget_stopping(&self, position: usize) {
        let waker = self.stop_wakers.borrow_mut().try_remove(position);
        drop(waker);
    }

    /// Runs tasks until `is_over` says that it is, or the ring is of no more use.
    pub(super) fn run(self: &Rc<Self>, is_over: impl Fn() -> bool) {
        while !is_over() && !self.core.has_failed() {
            self.read_messages();
            let more = self.run_ready();
            if is_over() {
                return;
            }
            self.core
                .drive(|| more || has_ready() || self.inbox.is_called());
        }
    }

    /// True: there are more.
    fn run_ready(&self) -> bool {
        let mut polls = 0;
        // A task may fork: in the child no other task runs.
        while polls < POLLS_MAX
            && !self.core.is_elsewhere()
            && let Some(runnable) = pop_ready()
        {
            polls += 1;
            self.core.refill();
            // A panic of a task is contained in it; this one is of its drop, or of a waker's.
            let ran = catch_unwind(AssertUnwindSafe(|| runnable.run()));
            std::mem::forget(ran.err());
        }
        self.inbox.notifier.counters.polls().add(polls);
        has_ready()
    }

    fn read_messages(self: &Rc<Self>) {
        for message in self.inbox.mailbox.take() {
            match message {
                Message::Run(runnable) => push_ready(runnable),
                // Should it be refused, what it was made of is foreign code to drop.
                Message::Start(start) => contain(start),
                Message::Forget(position) => contain(|| self.forget(position)),
                Message::Stop => self.stop(),
            }
        }
    }

    /// Makes it the calling thread's.
    pub(super) fn enter(self: &Rc<Self>, files: &Arc<Submitter>, handle: &Handle) {
        let _ = self.files.set(Arc::clone(files));
        self.core.set_files(files);
        let _ = self.handle.set(handle.clone());
        Core::set_current(Some(Rc::clone(&self.core)));
        self.core.set_starter(|future| {
            if let Some(executor) = current() {
                executor.start(future);
            }
        });
        CONTEXT.with(|context| {
            context.number.set(self.inbox.number);
            context.executor.replace(Some(Rc::clone(self)));
        });
    }

    /// Drops all tasks, sees out what they had in flight, and takes the thread back. Returns the operations
    /// that the kernel would not give back.
    pub(super) fn leave(self: &Rc<Self>) -> u32 {
        // A task that is dropped may wake or start others. One that another thread is waking right now
        // is dropped when that thread has passed it on.
        self.drop_all_tasks();
        // What is bound to the core, and is held by other threads: its sockets are closed with the others.
        let kept = self.kept.take();
        (kept.into_iter().flatten()).for_each(|(_, value)| contain(|| drop(value)));
        self.drop_all_tasks();
        self.inbox.close();
        // Without files it has never run, and has nothing in flight.
        let until_ns = self.files.get().map_or(0, |files| files.begin_end());
        let left = self.core.end(until_ns);
        // What the kernel gave back last was foreign code to drop, and may have started others.
        self.drop_all_tasks();
        CONTEXT.with(|context| {
            context.number.set(0);
            context.executor.replace(None)
        });
        Core::set_current(None);
        left
    }

    fn drop_all_tasks(self: &Rc<Self>) {
        // A child of a fork has no thread that could pass a task on.
        while self.drop_tasks() > 0 && !self.core.is_elsewhere() {
            thread::sleep(WOKEN_ELSEWHERE);
        }
    }

    /// Drops the tasks that can be dropped now. Returns how many are left.
    fn drop_tasks(self: &Rc<Self>) -> usize {
        loop {
            self.read_messages();
            let wakers: Vec<Waker> = (self.tasks.borrow().iter())
                .map(|(_, waker)| waker.clone())
                .collect();
            wakers.into_iter().for_each(Waker::wake);
            let mut any = false;
            while let Some(runnable) = pop_ready() {
                any = true;
                contain(|| drop(runnable));
            }
            if !any && !self.inbox.is_called() {
                return self.tasks();
            }
        }
    }
}

#[inline]
fn pop_ready() -> Option<Runnable> {
    CONTEXT.with(|context| context.ready.borrow_mut().pop_front())
}

fn push_ready(runnable: Runnable) {
    CONTEXT.with(|context| context.ready.borrow_mut().push_back(runnable));
}

#[inline]
fn has_ready() -> bool {
    CONTEXT.with(|context| !context.ready.borrow().is_empty())
}
