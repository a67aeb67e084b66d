//! The current-thread driver: the calling thread alternates between running a future and polling the ring.

use std::fmt;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::Engine;
use crate::driver::thread_rings::Driving;
use crate::driver::threadless::ThreadlessDriver;
use crate::driver::threadless_state::Drive;
use crate::error::SetupError;
use crate::sync::{AtomicBool, Ordering};
use crate::sys::ring::Ring;

/// A ring that the calling thread drives itself while it runs a future.
///
/// Operations that are started inside [`block_on`](CurrentThreadDriver::block_on) use this ring. There is no second
/// thread and no hand-off, and one call into the kernel submits and waits. This is the cheapest way to do file I/O from
/// one thread. The engine and its files stay usable from other threads. If a future started here is awaited on another
/// thread, it completes only while this thread runs its driver.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 8192])?;
/// let engine = annulus::Engine::new()?;
/// let driver = match engine.current_thread_driver() {
///     Ok(driver) => driver,
///     Err(error) => return Ok(eprintln!("{error}")),       // use any executor instead
/// };
/// let n = driver.block_on(async {
///     let file = engine.open(&path).await?;
///     let (n, _page) = file.read_at(vec![0; 4096], 0).await?;
///     std::io::Result::Ok(n)
/// })?;
/// # assert_eq!(n, 4096);
/// # Ok(()) }
/// ```
pub struct CurrentThreadDriver {
    engine: Engine,
    index: usize,
    signal: Arc<Signal>,
    waker: Waker,
    /// Keeps the driver on the thread that created it.
    stays: PhantomData<*const ()>,
}

/// The waker of the future.
struct Signal {
    awaited: AtomicBool,
    driver: Arc<ThreadlessDriver<Ring>>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.awaited.store(true, Ordering::SeqCst);
        self.driver.interrupt();
    }
}

impl CurrentThreadDriver {
    pub(super) fn new(engine: &Engine) -> Result<CurrentThreadDriver, SetupError> {
        let (index, driver, _) = engine.submitter.make_own()?;
        let signal = Arc::new(Signal {
            awaited: AtomicBool::new(false),
            driver,
        });
        Ok(CurrentThreadDriver {
            engine: engine.clone(),
            index,
            waker: Waker::from(Arc::clone(&signal)),
            signal,
            stays: PhantomData,
        })
    }

    /// Runs `future` to completion, and drives the ring while the future waits.
    ///
    /// Operations of other futures that this thread started make progress meanwhile. Operations that are still in
    /// flight on return wait for the next call, or for the end of the driver.
    ///
    /// Calls may be nested: a future may call `block_on` of the driver that runs it. The outer future is polled again
    /// after the inner call has returned.
    ///
    /// # Deadlocks
    ///
    /// `future` must not block this thread until an operation of the same engine completes, for example in the
    /// `block_on` of another executor: no other thread drives the ring.
    ///
    /// The engine is used as on any executor. The result need not be an `io::Result`:
    ///
    /// ```
    /// let engine = annulus::Engine::new()?;
    /// let Ok(driver) = engine.current_thread_driver() else { return Ok(()) }; // no io_uring
    /// let elapsed = driver.block_on(async {
    ///     let start = std::time::Instant::now();
    ///     engine.nop().await.map(|()| start.elapsed())
    /// })?;
    /// println!("{elapsed:?} without a hand-off");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(&self.waker);
        let Signal { awaited, driver } = &*self.signal;
        let _driving = Driving::new(self.engine.submitter.number(), self.index);
        let owner_polls = OwnerPolls::new(&self.signal);
        awaited.store(true, Ordering::SeqCst);
        loop {
            if awaited.swap(false, Ordering::SeqCst)
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                drop(owner_polls);
                return output;
            }
            if driver.is_over() {
                // The engine has been shut down. Other threads complete its operations and do not interrupt this
                // driver.
                std::thread::park_timeout(OVER_PAUSE);
                awaited.store(true, Ordering::SeqCst);
            } else {
                driver.drive(awaited);
            }
        }
    }
}

/// Poll interval of a future whose driver has ended.
const OVER_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// A guard: while it exists, the driver's thread polls the ring itself.
struct OwnerPolls<'a> {
    signal: &'a Signal,
    /// An outer call of `block_on` already polls.
    nested: bool,
}

impl OwnerPolls<'_> {
    fn new(signal: &Signal) -> OwnerPolls<'_> {
        let nested = signal.driver.begin_owner_polls();
        OwnerPolls { signal, nested }
    }
}

impl Drop for OwnerPolls<'_> {
    fn drop(&mut self) {
        // All calls share one flag, so this call may have consumed a wake-up of the outer future.
        self.signal.awaited.store(true, Ordering::SeqCst);
        if !self.nested {
            self.signal.driver.end_owner_polls();
        }
    }
}

impl Drop for CurrentThreadDriver {
    fn drop(&mut self) {
        self.signal.driver.drain(None);
    }
}

impl fmt::Debug for CurrentThreadDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentThreadDriver")
            .finish_non_exhaustive()
    }
}
