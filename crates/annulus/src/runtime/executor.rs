//! The executor of one core. It runs the tasks that are ready, then polls the ring once.

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
use super::surroundings::Local;
use super::task::{End, JoinHandle, ReportedTask};
use crate::driver::contain;
use crate::driver::core::{Core, Notifier};
use crate::driver::mailbox::Mailbox;
use crate::engine::Engine;
use crate::metrics::CoreMetrics;

/// The maximum number of task polls before the ring is polled.
const POLLS_MAX: u64 = 256;

/// Pause between two checks for a task that another thread is waking while the core ends.
const WOKEN_ELSEWHERE: Duration = Duration::from_micros(50);

/// The messages of other threads for a core.
pub(super) struct Inbox {
    /// Identifies the core in thread-locals; never 0.
    number: u64,
    /// The core's index in its runtime.
    index: usize,
    notifier: Arc<Notifier>,
    mailbox: Mailbox<Message>,
}

/// A message for a core.
pub(super) enum Message {
    /// Runs a task that another thread has woken.
    Run(Runnable),
    /// Starts a task.
    Start(Box<dyn FnOnce() + Send>),
    /// Drops the value of a [`CoreBound`](super::CoreBound) at this index.
    Forget(usize),
    /// Shuts down the runtime.
    Stop,
}

/// The state of the core that runs on this thread.
struct CoreContext {
    number: Cell<u64>,
    ready: RefCell<VecDeque<Runnable>>,
    executor: RefCell<Option<Rc<Executor>>>,
    /// Ends the core's sleep in another runtime.
    #[cfg(feature = "tokio")]
    sleep: Cell<Option<Waker>>,
    /// Wakes the task of the other runtime that submits operations during the sleep.
    #[cfg(feature = "tokio")]
    submitter: Cell<Option<Waker>>,
}

thread_local! {
    static CONTEXT: CoreContext = const {
        CoreContext {
            number: Cell::new(0),
            ready: RefCell::new(VecDeque::new()),
            executor: RefCell::new(None),
            #[cfg(feature = "tokio")]
            sleep: Cell::new(None),
            #[cfg(feature = "tokio")]
            submitter: Cell::new(None),
        }
    };
}

/// Sets what [`end_sleep`] wakes. Returns the waker before it.
#[cfg(feature = "tokio")]
pub(super) fn set_sleep(waker: Option<Waker>) -> Option<Waker> {
    CONTEXT.with(|context| context.sleep.replace(waker))
}

/// Ends the sleep of this thread's core in another runtime.
#[cfg(feature = "tokio")]
pub(super) fn end_sleep() {
    CONTEXT.with(|context| context.sleep.take().into_iter().for_each(Waker::wake));
}

/// Sets what [`submit_soon`] wakes. Returns the waker before it.
#[cfg(feature = "tokio")]
pub(super) fn set_submitter(waker: Option<Waker>) -> Option<Waker> {
    CONTEXT.with(|context| context.submitter.replace(waker))
}

/// Wakes the task that submits operations during a sleep of this thread's core.
#[cfg(feature = "tokio")]
pub(super) fn submit_soon() {
    CONTEXT.with(|context| (context.submitter.take().into_iter()).for_each(Waker::wake));
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

    /// Returns whether the core has ended, so that messages are dropped.
    pub(super) fn has_ended(&self) -> bool {
        self.mailbox.is_closed()
    }

    pub(super) fn notifier(&self) -> Arc<Notifier> {
        Arc::clone(&self.notifier)
    }

    /// Returns the counters of its core.
    pub(super) fn metrics(&self) -> CoreMetrics {
        self.notifier.counters.core()
    }

    /// Labels the counters with the runtime and the core's index.
    pub(super) fn set_owner(&self, owner: u64, index: usize) {
        self.notifier.counters.set_owner(owner, index);
    }

    /// Labels the counters with the backend, and with the reason of a fallback.
    pub(super) fn set_backend(&self, backend: &str, fallback: Option<&str>) {
        self.notifier.counters.set_backend(backend, fallback);
    }

    /// Sends a message, and wakes the core if it sleeps.
    ///
    /// A message for a core that has ended is dropped. It is never a woken task, because a core ends after its last
    /// task. In a forked child, messages are dropped, too, except tasks, which only their core may drop.
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

    /// Drops all messages, those already sent and later ones, because the core has ended. Any thread may call it
    /// repeatedly.
    pub(super) fn close(&self) {
        drop(self.mailbox.close());
    }

    #[inline]
    fn schedule(&self, runnable: Runnable) {
        let mut runnable = Some(runnable);
        let _ = CONTEXT.try_with(|context| {
            if context.number.get() == self.number {
                // `extend` takes 50 instructions more for an `Option`.
                if let Some(runnable) = runnable.take() {
                    context.ready.borrow_mut().push_back(runnable);
                }
                #[cfg(feature = "tokio")]
                context.sleep.take().into_iter().for_each(Waker::wake);
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

/// The executor of a core.
pub(super) struct Executor {
    /// The other runtime on this thread. Dropped before the core, whose descriptors it watches.
    local: RefCell<Option<Rc<dyn Local>>>,
    core: Rc<Core>,
    inbox: Arc<Inbox>,
    /// A waker of each task that has not ended.
    tasks: RefCell<Slab<Waker>>,
    /// The engine of the runtime's files.
    engine: OnceCell<Engine>,
    /// The handle to all cores.
    handle: OnceCell<Handle>,
    stopping: Cell<bool>,
    /// The wakers of tasks that wait for the shutdown.
    stop_wakers: RefCell<Slab<Waker>>,
    /// Values that are bound to the core; `None` once it has ended.
    kept: RefCell<Option<Slab<Rc<dyn Any>>>>,
}

/// Returns the calling thread's executor.
pub(super) fn current() -> Option<Rc<Executor>> {
    // Also `None` while the thread-locals are being dropped.
    let existing = CONTEXT.try_with(|context| context.executor.borrow().clone());
    existing.ok().flatten()
}

/// Returns whether the calling thread can be a core, which it can't while its thread-locals are being dropped.
pub(super) fn is_possible() -> bool {
    CONTEXT.try_with(|_| ()).is_ok() && Core::can_be_current()
}

/// Returns the value at `position` of core `home`, if this is its thread.
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

/// Drops the value at `position` of core `home`. Returns `false` if the calling thread is not that core.
pub(super) fn forget_on_this_core(home: &Inbox, position: usize) -> bool {
    let executor = current().filter(|executor| executor.inbox.number == home.number);
    let Some(executor) = executor else {
        return false;
    };
    executor.forget(position);
    true
}

/// Returns whether the calling thread's runtime is shutting down.
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
        panic!(
            "runtime::spawn needs a runtime core, and this thread is not one; use Handle::spawn_on on other threads"
        );
    };
    executor.start(ReportedTask::new(future, end));
    handle
}

/// Removes a task from the list when it ends or is dropped.
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
    // An async block would reserve memory for the future twice.
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
    pub(super) fn new(
        core: Rc<Core>,
        inbox: Arc<Inbox>,
        local: Option<Rc<dyn Local>>,
    ) -> Rc<Executor> {
        Rc::new(Executor {
            local: RefCell::new(local),
            core,
            inbox,
            tasks: RefCell::default(),
            engine: OnceCell::new(),
            handle: OnceCell::new(),
            stopping: Cell::new(false),
            stop_wakers: RefCell::default(),
            kept: RefCell::new(Some(Slab::new())),
        })
    }

    /// Returns the other runtime on this thread.
    pub(super) fn local(&self) -> Option<Rc<dyn Local>> {
        self.local.borrow().clone()
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

    /// Stores a value until it is forgotten, or the core ends.
    pub(super) fn keep(&self, value: Rc<dyn Any>) -> Option<(Arc<Inbox>, usize)> {
        let position = self.kept.borrow_mut().as_mut()?.insert(value);
        Some((Arc::clone(&self.inbox), position))
    }

    fn forget(&self, position: usize) {
        let mut kept = self.kept.borrow_mut();
        let value = kept.as_mut().and_then(|kept| kept.try_remove(position));
        // The drop runs code of the user, which may call this function again.
        drop(kept);
        drop(value);
    }

    pub(super) fn engine(&self) -> Option<&Engine> {
        self.engine.get()
    }

    pub(super) fn handle(&self) -> Option<&Handle> {
        self.handle.get()
    }

    /// Returns the number of tasks that have not ended.
    pub(super) fn tasks(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Starts the shutdown, and wakes the tasks that wait for it.
    pub(super) fn stop(&self) {
        self.stopping.set(true);
        let wakers = self.stop_wakers.take();
        (wakers.into_iter()).for_each(|(_, waker)| contain(|| waker.wake()));
    }

    /// Polls for the shutdown. `position` is the index of the caller's waker, once it is stored.
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

    /// Removes the waker at `position`.
    pub(super) fn forget_stopping(&self, position: usize) {
        let waker = self.stop_wakers.borrow_mut().try_remove(position);
        drop(waker);
    }

    /// Runs tasks until `is_over` returns `true`, or the ring has failed. `ends_asleep` returns whether what `is_over`
    /// waits for has come during a sleep, and woke no task.
    pub(super) fn run(self: &Rc<Self>, is_over: impl Fn() -> bool, ends_asleep: impl Fn() -> bool) {
        let local = self.local();
        while !ends_asleep() && !self.core.has_failed() {
            self.read_messages();
            let more = self.run_ready();
            if is_over() {
                return;
            }
            let busy = || more || has_ready() || self.inbox.is_called() || ends_asleep();
            match &local {
                // A separate closure, so that `busy` is inlined into the other call.
                Some(local) => local.drive(&self.core, &|| busy()),
                None => self.core.drive(busy),
            }
        }
    }

    /// Runs the tasks that are ready, up to one that uses up its budget. Returns whether more are left.
    fn run_ready(&self) -> bool {
        let mut polls = 0;
        // A task may fork; no other task may run in the child.
        while polls < POLLS_MAX
            && !self.core.is_elsewhere()
            && let Some(runnable) = pop_ready()
        {
            polls += 1;
            self.core.refill();
            // A panic of a task is caught in the task. This one comes from its drop, or from a waker.
            let ran = catch_unwind(AssertUnwindSafe(|| runnable.run()));
            std::mem::forget(ran.err());
            // Such a poll may take a millisecond, and other sockets may be ready.
            if self.core.has_used_up() {
                break;
            }
        }
        self.inbox.notifier.counters.polls().add(polls);
        has_ready()
    }

    #[inline]
    fn read_messages(self: &Rc<Self>) {
        if self.inbox.is_called() {
            self.read_all_messages();
        }
    }

    fn read_all_messages(self: &Rc<Self>) {
        for message in self.inbox.mailbox.take() {
            match message {
                Message::Run(runnable) => push_ready(runnable),
                // If the start is refused, dropping its parts runs code of the user.
                Message::Start(start) => contain(start),
                Message::Forget(position) => contain(|| self.forget(position)),
                Message::Stop => self.stop(),
            }
        }
    }

    /// Makes this executor the calling thread's.
    pub(super) fn enter(self: &Rc<Self>, engine: Engine, handle: &Handle) {
        self.core.set_files(engine.submitter());
        let _ = self.engine.set(engine);
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

    /// Drops all tasks, completes their operations, and removes the executor from the thread. Returns the number of
    /// operations that the kernel did not complete.
    pub(super) fn leave(self: &Rc<Self>) -> u32 {
        // Dropping a task may wake or start others. A task that another thread is waking now is dropped when that
        // thread has sent it.
        self.drop_all_tasks();
        // Its tasks may use the core, and its blocking threads may wait for tasks that were dropped.
        let local = self.local.take();
        match self.core.is_elsewhere() {
            true => std::mem::forget(local),
            false => drop(local),
        }
        self.drop_all_tasks();
        // Drop the values that are bound to the core, even if other threads hold handles: their sockets close with
        // the others.
        let kept = self.kept.take();
        (kept.into_iter().flatten()).for_each(|(_, value)| contain(|| drop(value)));
        self.drop_all_tasks();
        self.inbox.close();
        // Without files it has never run, and has no operations.
        let until_ns = (self.engine.get()).map_or(0, |engine| engine.submitter().begin_end());
        let left = self.core.end(until_ns);
        // Dropping the last completed operations runs code of the user, which may have started tasks.
        self.drop_all_tasks();
        CONTEXT.with(|context| {
            context.number.set(0);
            context.executor.replace(None)
        });
        Core::set_current(None);
        left
    }

    fn drop_all_tasks(self: &Rc<Self>) {
        // A forked child has no thread that could send a task.
        while self.drop_tasks() > 0 && !self.core.is_elsewhere() {
            thread::sleep(WOKEN_ELSEWHERE);
        }
    }

    /// Drops the tasks that can be dropped now. Returns the number of those left.
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
