//! A Tokio runtime on a core's thread.
//!
//! The core runs its tasks, and then drives its backend inside of Tokio's `block_on`. If it has nothing to do, it
//! sleeps there, and Tokio runs its own tasks and waits in its reactor. The reactor watches what can end the sleep of a
//! core: the eventfd registered with the ring or the epoll instance, the notifier, and a timer. So `tokio::spawn` and
//! Tokio's timers stay on the core's thread.
//!
//! Tasks of the core run outside of `block_on`, as code may then block in place or enter other runtimes. Tasks of Tokio
//! that use the core's sockets during a sleep wake a task that submits their operations.
//!
//! A program that does not use Tokio pays nothing. The core drives its backend itself until Tokio's reactor has its
//! first event. The first timer, task or socket of Tokio causes one.

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Handle, Runtime};

use super::executor;
use super::surroundings::{self, Local};
use crate::driver::core::{Awake, Core, SleepCalls};
use crate::sys::timer_fd::TimerFd;
use crate::sys::wake::EventFd;

/// The maximum number of rounds of a busy core between two rounds of Tokio.
const ROUNDS_MAX: u32 = 8;

pub(super) struct LocalTokio {
    backend: Arc<OwnedFd>,
    notifier: Arc<EventFd>,
    /// `None` until Tokio is used.
    watched: OnceCell<Watched>,
    eventfd_registered: Cell<bool>,
    timer: AsyncFd<TimerFd>,
    /// The time to which the timer is set, ns, if it has not passed.
    set_ns: Cell<Option<u64>>,
    /// The rounds of the core since Tokio's last.
    rounds: Cell<u32>,
    handle: Handle,
    /// `None` once it has ended.
    runtime: Option<Runtime>,
    /// The longest wait for its blocking threads at the end.
    end_timeout: Cell<Duration>,
    /// Tokio's epoll instance, which the core polls until Tokio is used.
    reactor: Option<OwnedFd>,
}

/// The descriptors whose edges end a sleep of the core, besides the timer.
struct Watched {
    backend: AsyncFd<Arc<OwnedFd>>,
    notifier: AsyncFd<Arc<EventFd>>,
}

impl LocalTokio {
    pub(super) fn new(core: &Core, drain_timeout: Duration) -> io::Result<LocalTokio> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .thread_name("annulus-tokio")
            .build()?;
        let entered = runtime.enter();
        let timer = watch(TimerFd::new()?)?;
        drop(entered);
        let reactor = timer.get_ref().watcher();
        if let Some(reactor) = &reactor {
            core.poll_reactor(reactor.as_raw_fd())?;
        }
        let (backend, notifier) = core.sleep_sources()?;
        Ok(LocalTokio {
            backend: Arc::new(backend),
            notifier,
            watched: OnceCell::new(),
            eventfd_registered: Cell::new(false),
            timer,
            set_ns: Cell::new(None),
            rounds: Cell::new(0),
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            end_timeout: Cell::new(drain_timeout),
            reactor,
        })
    }

    /// Returns the descriptors that end a sleep of the core, if Tokio is used. If the reactor can't watch them, the
    /// next round tries again.
    fn watched(&self, core: &Core) -> Option<&Watched> {
        if self.watched.get().is_none() {
            if self.reactor.is_some() && !core.is_reactor_ready() {
                return None;
            }
            if !self.eventfd_registered.get() {
                let reactor = self.reactor.as_ref().map(AsFd::as_fd);
                core.register_wake_eventfd(self.backend.as_fd(), reactor)
                    .ok()?;
                self.eventfd_registered.set(true);
            }
            let _entered = self.handle.enter();
            let _ = self.watched.set(Watched {
                backend: watch(Arc::clone(&self.backend)).ok()?,
                notifier: watch(Arc::clone(&self.notifier)).ok()?,
            });
            self.handle.spawn(poll_fn(submit));
        }
        self.watched.get()
    }

    /// Returns whether Tokio runs its tasks before those of the core, as it does from time to time.
    fn is_turn_of_tokio(&self) -> bool {
        self.rounds.set(self.rounds.get() + 1);
        self.handle.metrics().global_queue_depth() > 0 || self.rounds.get() > ROUNDS_MAX
    }

    /// Lets Tokio run its tasks before the round ends.
    fn run_tokio(&self, context: &Context<'_>) -> Poll<()> {
        self.rounds.set(0);
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Clears the edges that there were. Returns whether there was one; otherwise the next one wakes the task.
    fn clear(&self, watched: &Watched, context: &mut Context<'_>) -> bool {
        let expired = is_ready(&self.timer, context);
        if expired {
            self.set_ns.set(None);
        }
        // Both are cleared, so this is not `||`.
        expired | is_ready(&watched.backend, context) | is_ready(&watched.notifier, context)
    }

    fn begin_sleep(
        &self,
        core: &Core,
        busy: &dyn Fn() -> bool,
        context: &Context<'_>,
    ) -> Result<Poll<()>, Awake> {
        let next_ns = core.begin_sleep(
            busy,
            SleepCalls {
                on_push: executor::submit_soon,
                on_earlier_timer: executor::end_sleep,
            },
        )?;
        // An earlier time stays set, and ends one sleep too early.
        if let Some(next_ns) = next_ns
            && self.set_ns.get().is_none_or(|set_ns| next_ns < set_ns)
        {
            self.set_ns.set(Some(next_ns));
            self.timer.get_ref().set(next_ns);
        }
        self.rounds.set(0);
        drop(executor::set_sleep(Some(context.waker().clone())));
        Ok(Poll::Pending)
    }
}

impl Local for LocalTokio {
    /// Meanwhile Tokio runs its tasks. A core that stays busy lets them run from time to time.
    fn drive(&self, core: &Core, busy: &dyn Fn() -> bool) {
        let Some((watched, runtime)) = self.watched(core).zip(self.runtime.as_ref()) else {
            return core.drive(busy);
        };
        if core.is_elsewhere() {
            return;
        }
        // Outside of Tokio. A waker may poll a future of Tokio that yields. Inside, Tokio would keep the waker of that
        // future for its next sleep, and drop it if the round ends before.
        core.drive(|| true);
        if busy() && !self.is_turn_of_tokio() {
            return;
        }
        let mut has_begun = false;
        let round = poll_fn(|context| {
            if has_begun {
                // The next round looks at what ended the sleep.
                self.clear(watched, context);
                return Poll::Ready(());
            }
            has_begun = true;
            if busy() {
                return self.run_tokio(context);
            }
            if self.clear(watched, context) {
                return Poll::Ready(());
            }
            // More work for the backend. Tokio's tasks run first, while what they received is in the cache.
            let begun = self.begin_sleep(core, busy, context);
            begun.unwrap_or_else(|Awake| self.run_tokio(context))
        });
        core.set_runs_other(true);
        runtime.block_on(round);
        core.set_runs_other(false);
        drop(executor::set_sleep(None));
        core.end_sleep();
    }

    fn limit_end(&self, timeout: Duration) {
        self.end_timeout.set(self.end_timeout.get().min(timeout));
    }

    fn context(&self) -> Box<dyn surroundings::Context> {
        Box::new(self.handle.clone())
    }
}

/// Drops Tokio's tasks, and waits for its blocking threads. Not for a forked child: it does not have the threads, and
/// shares the reactor with its parent.
impl Drop for LocalTokio {
    fn drop(&mut self) {
        let runtime = self.runtime.take();
        (runtime.into_iter()).for_each(|runtime| runtime.shutdown_timeout(self.end_timeout.get()));
    }
}

/// Watches for edges of a descriptor that is never read.
fn watch<T: AsRawFd>(source: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "sound because these descriptors never change; the new form is unsafe"
    )]
    AsyncFd::with_interest(source, Interest::READABLE)
}

/// Returns whether there was an edge. Otherwise the next one wakes the task.
fn is_ready<T: AsRawFd>(source: &AsyncFd<T>, context: &mut Context<'_>) -> bool {
    match source.poll_read_ready(context) {
        Poll::Ready(Ok(mut ready)) => {
            ready.clear_ready();
            true
        }
        // The reactor has ended.
        Poll::Ready(Err(_)) => true,
        Poll::Pending => false,
    }
}

/// The task of Tokio that submits the operations of its other tasks while the core sleeps. It runs after those that
/// are ready now.
fn submit(context: &mut Context<'_>) -> Poll<()> {
    drop(executor::set_submitter(Some(context.waker().clone())));
    if Core::current().is_some_and(|core| core.submit_asleep()) {
        executor::end_sleep();
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::driver::core::{Core, SleepCalls};
    use crate::runtime::Runtime;

    /// The ring's read of the eventfd may take a notification during a sleep in Tokio, so that Tokio sees none.
    #[test]
    fn a_notification_that_the_ring_takes_ends_the_sleep_in_tokio() {
        let builder = Runtime::builder().backend(crate::Backend::Uring).cores(1);
        let ran = builder.block_on(async {
            // The ring's own sleep arms the read.
            crate::time::sleep(Duration::from_millis(1)).await;
            let core = Core::current().unwrap();
            let calls = SleepCalls {
                on_push: || (),
                on_earlier_timer: || (),
            };
            assert!(core.begin_sleep(|| false, calls).is_ok());
            assert!(!core.submit_asleep(), "nothing has happened");
            core.notifier().wake();
            assert!(core.submit_asleep());
            core.end_sleep();
        });
        if let Err(error) = ran {
            println!("skip: {error}");
        }
    }
}
