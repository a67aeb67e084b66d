//! A thread that polls the rings of threads whose executor does not.
//!
//! The reactor of an executor polls the rings of its threads. It does not run while all threads of the executor are
//! blocked, for example in a nested `block_on` that waits for a read on one of these rings. This thread then polls the
//! ring, and tells the executor. It starts with the first such ring, wakes a few times per second while operations are
//! in flight or were submitted recently, and otherwise sleeps. It ends with the last ring.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use super::thread_rings;
use super::threadless::ThreadlessDriver;
use super::threadless_state::Drive;
use crate::sys::forked;
use crate::sys::ring::Ring;

/// The name of the thread, visible in `/proc`.
const THREAD_NAME: &str = "annulus-watch";
/// The time between two looks. A ring is polled if completions waited for the whole of it.
const TICK: Duration = Duration::from_millis(250);
/// The number of looks without a submission after which the thread sleeps.
const IDLE_TICKS: u32 = 40;
/// The number of attempts to get the lock. A child of a fork never gets a lock that another thread held.
const LOCK_ATTEMPTS: u32 = 1_000;

struct WatchedRing {
    driver: Weak<ThreadlessDriver<Ring>>,
    /// The number of the executor.
    executor: u64,
}

struct WatchedRings {
    rings: Vec<WatchedRing>,
    thread: Option<Thread>,
    process: u64,
}

static STATE: Mutex<WatchedRings> = Mutex::new(WatchedRings {
    rings: Vec::new(),
    thread: None,
    process: 0,
});
/// True if an operation was submitted since the last look.
static SUBMITTED: AtomicBool = AtomicBool::new(false);
/// True if the thread sleeps until the next submission, or is about to.
static ASLEEP: AtomicBool = AtomicBool::new(false);

fn lock() -> Option<MutexGuard<'static, WatchedRings>> {
    (0..LOCK_ATTEMPTS).find_map(|_| match STATE.try_lock() {
        Ok(state) => Some(state),
        Err(std::sync::TryLockError::Poisoned(state)) => Some(state.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => {
            thread::yield_now();
            None
        }
    })
}

/// Adds a ring. Without the thread, the ring works as long as its executor runs.
pub(super) fn add(driver: &Arc<ThreadlessDriver<Ring>>, executor: u64) {
    let Some(mut state) = lock() else { return };
    if state.process != forked::process() {
        *state = WatchedRings {
            rings: Vec::new(),
            thread: None,
            process: forked::process(),
        };
        ASLEEP.store(false, SeqCst);
    }
    state.rings.push(WatchedRing {
        driver: Arc::downgrade(driver),
        executor,
    });
    if state.thread.is_none() {
        let builder = thread::Builder::new().name(THREAD_NAME.to_owned());
        let started = builder.spawn(run);
        state.thread = started.ok().map(|started| started.thread().clone());
    }
}

/// Notes that an operation is about to be submitted to a watched ring.
#[inline]
pub(super) fn note_submission() {
    if !SUBMITTED.load(Relaxed) {
        SUBMITTED.store(true, SeqCst);
        wake();
    }
}

/// Makes the thread notice that a ring has ended.
pub(super) fn note_end() {
    wake();
}

fn wake() {
    // Pairs with `sleep`: at least one of the two sees the other's store.
    if ASLEEP.load(SeqCst)
        && let Some(state) = lock()
        && let Some(thread) = &state.thread
    {
        thread.unpark();
    }
}

fn run() {
    let process = forked::process();
    let mut idle_ticks = 0;
    loop {
        thread::park_timeout(TICK);
        let Some(busy) = inspect_all(process) else {
            return;
        };
        let submitted = SUBMITTED.swap(false, SeqCst);
        idle_ticks = if submitted || busy { 0 } else { idle_ticks + 1 };
        if idle_ticks >= IDLE_TICKS {
            idle_ticks = 0;
            sleep();
        }
    }
}

/// Sleeps until the next submission, or the end of a ring.
fn sleep() {
    ASLEEP.store(true, SeqCst);
    if !SUBMITTED.load(SeqCst) {
        thread::park();
    }
    ASLEEP.store(false, SeqCst);
}

/// Polls the rings that no thread has polled although a poll was due. Returns whether a ring has operations in flight,
/// and `None` if there are no rings and the thread must end.
fn inspect_all(process: u64) -> Option<bool> {
    let mut missed = Vec::new();
    let mut drivers = Vec::new();
    let mut busy = false;
    let mut state = STATE.lock().unwrap_or_else(|state| state.into_inner());
    state.rings.retain(|ring| {
        let Some(driver) = ring.driver.upgrade().filter(|driver| !driver.is_over()) else {
            return false;
        };
        let found = driver.inspect();
        busy |= found.busy;
        if found.missed {
            missed.push((Arc::clone(&driver), ring.executor));
        }
        drivers.push(driver);
        true
    });
    let ends = state.rings.is_empty() || state.process != process;
    if ends && state.process == process {
        state.thread = None;
    }
    drop(state);
    // Outside the lock: dropping the last reference to a driver may run foreign code, and so does a poll.
    drop(drivers);
    for (driver, executor) in missed {
        driver.poll();
        thread_rings::report_missed(executor);
    }
    (!ends).then_some(busy)
}
