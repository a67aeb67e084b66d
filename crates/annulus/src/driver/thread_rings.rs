//! The rings of the calling thread, by engine.
//!
//! An executor that can drive rings on its threads is registered once (`set_ring_executor`); it is Tokio. From then on
//! the first operation of an engine on such a thread creates a ring there; later ones find it in a thread-local cell.
//! If a ring cannot be created, the operations of that thread go to the engine's drivers, and it tries again later at
//! most. All rings of threads together hold at most a quarter of the process's descriptors.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use super::contain::{contain, contained};
use super::handle::DriverHandle;
use super::ring_watch;
use super::submitter::Submitter;
use super::threadless::ThreadlessDriver;
use super::threadless_state::Drive;
use crate::error::SetupError;
use crate::sys::probe;
use crate::sys::ring::Ring;

/// An executor that drives rings on its own threads. A trait, because the drivers must not import Tokio's module.
pub(crate) trait RingExecutor: Send + Sync {
    /// Returns whether the calling thread is in the executor. Called for each operation, so it should be fast.
    fn presence(&self) -> Presence;

    /// Registers a ring that was created for the calling thread. From now on the executor must call
    /// [`ThreadRing::poll`], from any thread, whenever the ring's descriptor is readable, until
    /// [`ThreadRing::poll_over`] is ready. Dropping the ring ends it.
    ///
    /// # Errors
    ///
    /// Fails with any error that prevents the registration. The thread's operations then go to the engine's drivers.
    fn register(&self, ring: ThreadRing) -> io::Result<()>;

    /// Returns whether the executor runs the [`Batches`] of its rings as a task, and a task that is woken on the
    /// calling thread runs there. Otherwise each operation is submitted immediately.
    fn runs_batches(&self) -> bool;

    /// Reports that completions of a ring stayed unnoticed although the executor with this number should have polled
    /// it, for example because all of its threads were blocked. The caller has polled the ring.
    fn missed_completions(&self, executor: u64);
}

/// A thread's part in an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The thread is not in an executor.
    Absent,
    /// The thread is in an executor that cannot drive rings, for this reason.
    Unusable(&'static str),
    /// The thread is in the executor with this number, for example as a worker or inside `block_on`.
    Inside(u64),
}

static EXECUTOR: OnceLock<&'static dyn RingExecutor> = OnceLock::new();

/// Registers the executor that drives rings on its threads, for all engines of the process.
#[cfg(feature = "tokio")]
pub(crate) fn set_ring_executor(ring_executor: &'static dyn RingExecutor) {
    let _ = EXECUTOR.set(ring_executor);
}

/// Reports to the executor that completions of a ring stayed unnoticed.
pub(super) fn report_missed(executor: u64) {
    if let Some(ring_executor) = EXECUTOR.get() {
        contain(|| ring_executor.missed_completions(executor));
    }
}

/// A ring of one thread, for the executor that drives it. Dropping it cancels the operations in flight as far as
/// possible, and waits for the others.
pub(crate) struct ThreadRing {
    driver: Arc<ThreadlessDriver<Ring>>,
    descriptor: OwnedFd,
    _share: DescriptorShare,
}

/// The number of descriptors of a ring: its own, its eventfd, and the one that the executor polls.
const DESCRIPTORS_PER_RING: u64 = 3;
/// The number of rings of threads.
static RINGS: AtomicU64 = AtomicU64::new(0);

/// A ring's share of the process's descriptors.
struct DescriptorShare;

impl DescriptorShare {
    /// Fails if the rings would hold more than a quarter of the descriptors.
    fn take() -> Result<DescriptorShare, SetupError> {
        let Some(limit) = probe::nofile() else {
            RINGS.fetch_add(1, Ordering::Relaxed);
            return Ok(DescriptorShare);
        };
        let max = limit / 4 / DESCRIPTORS_PER_RING;
        let more = |rings| (rings < max).then_some(rings + 1);
        match RINGS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(DescriptorShare),
            Err(rings) => Err(SetupError::Config(format!(
                "{rings} threads have their own rings, with a quarter of the descriptors (RLIMIT_NOFILE is {limit}); \
                 further threads submit to the engine's drivers; raise the limit for more rings (ulimit -n 65536)"
            ))),
        }
    }
}

impl Drop for DescriptorShare {
    fn drop(&mut self) {
        RINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ThreadRing {
    /// Submits waiting operations and handles completions. Never blocks; may be called from any thread.
    pub(crate) fn poll(&self) {
        self.driver.poll();
    }

    /// Returns the batches of the ring.
    pub(crate) fn batches(&self) -> Batches {
        Batches(Arc::clone(&self.driver))
    }

    /// Ready when the ring has ended (because its engine has, for example) and should be dropped.
    pub(crate) fn poll_over(&self, context: &mut Context<'_>) -> Poll<()> {
        self.driver.set_end_waker(context.waker());
        if self.driver.is_over() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// The descriptor is readable when the ring needs to be polled; level- and edge-triggered polling both work.
impl AsRawFd for ThreadRing {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        self.driver.drain(None);
        ring_watch::note_end();
    }
}

/// A ring of a thread.
struct ExecutorRing {
    engine: u64,
    /// The number of the executor.
    executor: u64,
    /// `None` if the ring could not be created.
    ring: Option<OwnRing>,
    /// The number of operations of the thread before the next attempt to create the ring. `None` if another attempt
    /// would fail for the same reason.
    retry: Cell<Option<u32>>,
}

impl ExecutorRing {
    #[inline]
    fn is_over(&self) -> bool {
        match &self.ring {
            Some(ring) => ring.driver.is_over(),
            None => self.retry.get() == Some(0),
        }
    }
}

/// The number of operations of a thread between two attempts to create its ring. A failed attempt takes as long as a
/// few operations.
const RETRY: u32 = 1024;

/// The maximum number of a thread's entries without a ring.
const REFUSED_MAX: usize = 64;

/// A ring that its thread can use.
struct OwnRing {
    /// The index of the driver handle in the engine.
    index: usize,
    driver: Arc<ThreadlessDriver<Ring>>,
}

/// The batches of a ring: operations of tasks that were woken together. The executor runs a task that waits for the
/// begin of each, lets the tasks that are ready run, and ends it.
///
/// It may be dropped at any time. The executor must then have ended, or end the ring.
pub(crate) struct Batches(Arc<ThreadlessDriver<Ring>>);

impl Batches {
    /// Waits for the begin of a batch. Returns `false` when the ring has ended.
    pub(crate) async fn begin(&self) -> bool {
        poll_fn(|context| self.0.poll_batch(context)).await
    }

    /// Ends the batch: submits the operations that are queued. Never blocks; may be called from any thread.
    pub(crate) fn end(&self) {
        self.0.flush();
    }
}

/// Submits what is queued: an executor that ends may drop the task.
impl Drop for Batches {
    fn drop(&mut self) {
        self.end();
    }
}

/// All rings of a thread. When the thread ends, they are drained.
struct ThreadRings(RefCell<Vec<ExecutorRing>>);

impl Drop for ThreadRings {
    fn drop(&mut self) {
        for entry in self.0.take() {
            if let Some(ring) = entry.ring {
                ring.driver.drain(None);
            }
        }
    }
}

thread_local! {
    static THREAD_RINGS: ThreadRings = const { ThreadRings(RefCell::new(Vec::new())) };
    /// The engine and the driver index of the `Driving` that exists.
    static CURRENT: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
}

/// Returns a number for an engine; never 0.
pub(super) fn new_engine() -> u64 {
    static ENGINES: AtomicU64 = AtomicU64::new(1);
    ENGINES.fetch_add(1, Ordering::Relaxed)
}

/// Returns the driver of `submitter` on the calling thread. Creates one if the thread should have one.
#[inline]
pub(super) fn handle(submitter: &Submitter) -> Option<&DriverHandle> {
    let (engine, index) = CURRENT.get();
    if engine == submitter.number()
        && let Some(handle) = submitter.own_handle(index)
        && !handle.stopping()
    {
        return Some(handle);
    }
    find_or_make(submitter, *EXECUTOR.get()?)
}

fn find_or_make<'a>(
    submitter: &'a Submitter,
    ring_executor: &'static dyn RingExecutor,
) -> Option<&'a DriverHandle> {
    if !submitter.makes_rings() {
        return None;
    }
    let executor = match ring_executor.presence() {
        Presence::Absent => return None,
        Presence::Unusable(reason) => {
            submitter.no_thread_ring(reason);
            return None;
        }
        Presence::Inside(executor) => executor,
    };
    let engine = submitter.number();
    let existing = THREAD_RINGS
        .try_with(|rings| find(&rings.0, ring_executor, engine, executor))
        .ok()?;
    let index = match existing {
        Some(existing) => existing?,
        None => make(submitter, ring_executor, executor)?,
    };
    submitter.own_handle(index)
}

/// Looks a ring up, and begins a batch if that pays. `Some(None)` if the ring could not be created.
fn find(
    rings: &RefCell<Vec<ExecutorRing>>,
    ring_executor: &dyn RingExecutor,
    engine: u64,
    executor: u64,
) -> Option<Option<usize>> {
    let mut entries = rings.try_borrow().ok()?;
    if entries.iter().any(ExecutorRing::is_over) {
        drop(entries);
        remove_ended(rings)?;
        entries = rings.try_borrow().ok()?;
    }
    let existing = entries
        .iter()
        .find(|entry| entry.engine == engine && entry.executor == executor)?;
    let Some(ring) = &existing.ring else {
        let retry = existing.retry.get();
        existing.retry.set(retry.map(|left| left.saturating_sub(1)));
        return Some(None);
    };
    let (index, driver) = (ring.index, Arc::clone(&ring.driver));
    // With nothing borrowed, as above.
    drop(entries);
    ring_watch::note_submission();
    if ring_executor.runs_batches() {
        driver.begin_batch();
    }
    Some(Some(index))
}

#[cold]
fn remove_ended(rings: &RefCell<Vec<ExecutorRing>>) -> Option<()> {
    let mut entries = rings.try_borrow_mut().ok()?;
    let ended: Vec<_> = (entries.extract_if(.., |entry| entry.is_over())).collect();
    drop(entries);
    // With nothing borrowed: dropping the last reference drops the executor's waker, which is foreign code.
    drop(ended);
    Some(())
}

#[cold]
fn make(
    submitter: &Submitter,
    ring_executor: &'static dyn RingExecutor,
    executor: u64,
) -> Option<usize> {
    let made = DescriptorShare::take().and_then(|share| {
        let (index, driver, pollable) = submitter.make_own()?;
        let ring = ThreadRing {
            driver: Arc::clone(&driver),
            descriptor: pollable,
            _share: share,
        };
        let registered = contained(|| ring_executor.register(ring));
        let panicked = || Err(io::Error::other("the executor panicked"));
        registered
            .unwrap_or_else(panicked)
            .map_err(|error| SetupError::Os {
                what: "registering a ring with the executor",
                error,
            })?;
        ring_watch::add(&driver, executor);
        Ok(OwnRing { index, driver })
    });
    let (ring, retry) = match made {
        Ok(ring) => (Some(ring), None),
        Err(error) => {
            // Descriptors and memory may be free later.
            let is_final = matches!(
                error,
                SetupError::Missing { .. }
                    | SetupError::Refused { .. }
                    | SetupError::TooOld { .. }
                    | SetupError::Polling { .. }
            );
            submitter.refused(error);
            (None, (!is_final).then_some(RETRY))
        }
    };
    let index = ring.as_ref().map(|ring| ring.index);
    let entry = ExecutorRing {
        engine: submitter.number(),
        executor,
        ring,
        retry: Cell::new(retry),
    };
    let _ = THREAD_RINGS.try_with(|rings| {
        let mut entries = rings.0.borrow_mut();
        // Nothing reports the end of an engine or executor without a ring. One that is removed early tries again.
        let mut refused = (entries.iter().enumerate()).filter(|(_, entry)| entry.ring.is_none());
        if let Some((oldest, _)) = refused.next()
            && refused.count() + 1 >= REFUSED_MAX
        {
            entries.remove(oldest);
        }
        entries.push(entry);
    });
    index
}

/// While it exists, the calling thread's operations of one engine go to one driver.
pub(crate) struct Driving {
    before: (u64, usize),
}

impl Driving {
    pub(crate) fn new(engine: u64, index: usize) -> Driving {
        Driving {
            before: CURRENT.replace((engine, index)),
        }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        CURRENT.set(self.before);
    }
}

#[cfg(all(test, feature = "net", feature = "tokio", not(annulus_loom)))]
mod tests {
    use annulus_testing::child_process::in_child;

    use super::*;

    #[test]
    fn a_thread_forgets_refusals_of_engines_that_have_ended() {
        let test =
            "driver::thread_rings::tests::a_thread_forgets_refusals_of_engines_that_have_ended";
        in_child(test, || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()
                .unwrap();
            RINGS.fetch_add(u64::from(u32::MAX), Ordering::Relaxed);
            let mut has_rings = false;
            for _ in 0..3 * REFUSED_MAX {
                let engine = crate::Engine::new().unwrap();
                runtime.block_on(engine.nop()).unwrap();
                has_rings = engine.submitter().makes_rings();
            }
            let entries = THREAD_RINGS.with(|rings| rings.0.borrow().len());
            assert_eq!(entries, if has_rings { REFUSED_MAX } else { 0 });
        });
    }
}
