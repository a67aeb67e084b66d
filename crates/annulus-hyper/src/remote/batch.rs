//! Batches of wake-ups between a core and the tasks on other threads that use its streams.
//!
//! A thread that is woken on the same processor may run immediately, in place of the thread that woke it. With a
//! wake-up per message, core and worker would then change places for each message. Therefore the core gathers wake-ups
//! until its ready tasks have run. One task of Tokio passes them on, and gathers the wake-ups of the core in the other
//! direction.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
#[cfg(feature = "axum")]
use std::time::Duration;

use annulus::runtime::{self, CoreBound};

/// The longest time for which wake-ups of the core are held back, for example because a task blocks its thread.
#[cfg(feature = "axum")]
const HELD_BACK: Duration = Duration::from_millis(1);

thread_local! {
    /// The batches of this thread's core. Its streams keep them.
    static OF_THIS_CORE: RefCell<Weak<Batches>> = const { RefCell::new(Weak::new()) };
}

/// The batches of one core.
pub(super) struct Batches {
    /// The tasks on other threads that are woken next.
    users: RefCell<Vec<Waker>>,
    to_core: Arc<ToCore>,
}

/// Wakes tasks of the core, from any thread.
pub(super) struct ToCore {
    #[cfg_attr(
        not(feature = "axum"),
        expect(dead_code, reason = "without Tokio there are no batches")
    )]
    core: CoreBound<()>,
    held_back: Mutex<HeldBack>,
}

#[derive(Default)]
struct HeldBack {
    /// The number of batches that hold back the wake-ups of the core.
    batches: usize,
    wakers: Vec<Waker>,
}

impl Batches {
    /// Returns the batches of the calling core. Fails if the core is ending.
    pub(super) fn of_this_core() -> std::io::Result<Rc<Batches>> {
        OF_THIS_CORE.with_borrow_mut(|of_this_core| {
            if let Some(existing) = of_this_core.upgrade() {
                return Ok(existing);
            }
            let to_core = ToCore {
                core: CoreBound::new(Rc::new(()))?,
                held_back: Mutex::default(),
            };
            let batches = Rc::new(Batches {
                users: RefCell::default(),
                to_core: Arc::new(to_core),
            });
            *of_this_core = Rc::downgrade(&batches);
            Ok(batches)
        })
    }

    pub(super) fn to_core(&self) -> &Arc<ToCore> {
        &self.to_core
    }

    /// Wakes tasks on other threads when the ready tasks of the core have run.
    pub(super) fn wake_users(self: &Rc<Self>, wakers: impl Iterator<Item = Waker>) {
        let mut users = self.users.borrow_mut();
        let was_empty = users.is_empty();
        users.extend(wakers);
        if was_empty && !users.is_empty() {
            drop(users);
            drop(runtime::spawn(Rc::clone(self).pass_on()));
        }
    }

    async fn pass_on(self: Rc<Self>) {
        let users = self.users.take();
        #[cfg(feature = "axum")]
        if users.len() > 1
            && let Ok(tokio) = tokio::runtime::Handle::try_current()
        {
            let batch = Arc::new(Batch::begin(&self.to_core));
            let passes_on = PassesOn {
                users,
                batch: Arc::clone(&batch),
            };
            drop(tokio.spawn(passes_on.run()));
            annulus::time::sleep(HELD_BACK).await;
            batch.end();
            return;
        }
        users.into_iter().for_each(Waker::wake);
    }
}

/// The core has ended. The tasks find that out when they are woken.
impl Drop for Batches {
    fn drop(&mut self) {
        self.users.take().into_iter().for_each(Waker::wake);
    }
}

impl ToCore {
    fn held_back(&self) -> MutexGuard<'_, HeldBack> {
        self.held_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a task of the core, now or at the end of the batch.
    pub(super) fn wake(&self, waker: Waker) {
        let mut held_back = self.held_back();
        if held_back.batches > 0 {
            return held_back.wakers.push(waker);
        }
        drop(held_back);
        waker.wake();
    }
}

/// A batch of tasks that run on Tokio's threads. While it lasts, the wake-ups of the core are held back.
#[cfg(feature = "axum")]
struct Batch {
    to_core: Arc<ToCore>,
    has_ended: std::sync::atomic::AtomicBool,
}

#[cfg(feature = "axum")]
impl Batch {
    fn begin(to_core: &Arc<ToCore>) -> Batch {
        to_core.held_back().batches += 1;
        Batch {
            to_core: Arc::clone(to_core),
            has_ended: false.into(),
        }
    }

    /// Wakes all tasks of the core with one message.
    fn end(&self) {
        if self
            .has_ended
            .swap(true, std::sync::atomic::Ordering::Relaxed)
        {
            return;
        }
        let mut held_back = self.to_core.held_back();
        held_back.batches -= 1;
        let wakers = std::mem::take(&mut held_back.wakers);
        drop(held_back);
        if !wakers.is_empty() {
            (self.to_core.core).on_core(|_| wakers.into_iter().for_each(Waker::wake));
        }
    }
}

/// Wakes the tasks of a batch, and ends it when they have run. A Tokio runtime that is ending drops it early.
#[cfg(feature = "axum")]
struct PassesOn {
    users: Vec<Waker>,
    batch: Arc<Batch>,
}

#[cfg(feature = "axum")]
impl PassesOn {
    async fn run(mut self) {
        self.wake_all();
        // Continues when the thread has no other task to run.
        tokio::task::yield_now().await;
    }

    fn wake_all(&mut self) {
        self.users.drain(..).for_each(Waker::wake);
    }
}

#[cfg(feature = "axum")]
impl Drop for PassesOn {
    fn drop(&mut self) {
        self.wake_all();
        self.batch.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use annulus::runtime::Runtime;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_core_that_ends_wakes_the_tasks_that_it_has_gathered() {
        let counts = std::array::from_fn::<_, 3, _>(|_| Arc::new(Count::default()));
        let wakers = counts.clone().map(Waker::from);
        let gathered = Runtime::builder().cores(1).block_on(async move {
            let batches = Batches::of_this_core()?;
            batches.wake_users(wakers.into_iter());
            // Nothing else runs on the core before it ends.
            std::io::Result::Ok(())
        });
        gathered.unwrap().unwrap();
        assert_eq!(counts.map(|count| count.0.load(Ordering::SeqCst)), [1; 3]);
    }

    #[test]
    #[cfg(feature = "axum")]
    fn a_tokio_runtime_that_has_ended_holds_back_no_task_permanently() {
        let all = std::array::from_fn::<_, 4, _>(|_| Arc::new(Count::default()));
        let tokio = tokio::runtime::Runtime::new().unwrap();
        let builder = Runtime::builder().cores(1);
        let builder = builder.with_tokio_handle(tokio.handle().clone());
        tokio.shutdown_background();
        let run = builder.run(move |_core| {
            let all = all.clone();
            let [of_core, users @ ..] = all.clone().map(Waker::from);
            async move {
                let batches = Batches::of_this_core()?;
                batches.wake_users(users.into_iter());
                runtime::yield_now().await;
                batches.to_core().wake(of_core);
                // Tokio drops its tasks in the background.
                while all.iter().any(|one| one.0.load(Ordering::SeqCst) == 0) {
                    runtime::yield_now().await;
                }
                Ok(())
            }
        });
        run.unwrap();
    }
}
