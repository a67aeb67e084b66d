//! Requests to the flush thread (`flush_thread`): writes and deferred output start or wake it.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use crate::config;
use crate::errno;
use crate::identity;
use crate::writability;

pub(crate) const NONE: u32 = 0;
pub(crate) const RUNNING: u32 = 1;
pub(crate) const ASLEEP: u32 = 2;
pub(crate) const THREAD_EXITED: u32 = 3;
pub(crate) const STOP_REQUESTED: u32 = 4;

pub(crate) static STATE: AtomicU32 = AtomicU32::new(NONE);
/// Bytes have been late in this process.
static LATE: AtomicBool = AtomicBool::new(false);

/// Starts the thread, which sends output by the code that makes the requests.
pub(crate) static START: OnceLock<fn() -> io::Result<()>> = OnceLock::new();

/// Runs after bytes that may become late were queued. errno is unchanged.
#[inline]
pub(crate) fn on_queued() {
    if STATE.load(Ordering::Relaxed) != RUNNING {
        ensure_running_if_needed();
    }
}

#[cold]
fn ensure_running_if_needed() {
    if LATE.load(Ordering::Relaxed)
        || config::get().batch_from_start
        || !identity::is_single_threaded()
    {
        errno::keep(wake_or_start);
    }
}

/// Records that bytes were queued for too long.
pub(crate) fn was_late() {
    LATE.store(true, Ordering::Relaxed);
}

/// Starts or wakes the thread for bytes that nothing else sends. The caller has recorded them where the thread looks
/// after it has announced its sleep (Dekker's pattern): a fence on each side, so that one sees the other.
#[inline]
pub(crate) fn ensure_running() {
    fence(Ordering::SeqCst);
    if STATE.load(Ordering::Relaxed) != RUNNING {
        wake_or_start();
    }
}

#[cold]
fn wake_or_start() {
    let swap = |from, to| STATE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    if swap(ASLEEP, RUNNING).is_ok() {
        writability::wake(&STATE);
    } else if swap(NONE, RUNNING).is_ok() && START.get().is_none_or(|start| start().is_err()) {
        // Late bytes stay queued until their own thread next waits.
        STATE.store(NONE, Ordering::Release);
    }
}

/// Returns whether there is no thread, and none is being started.
pub(crate) fn is_stopped() -> bool {
    STATE.load(Ordering::Acquire) == NONE
}

/// Resets the state in a child of a fork, which does not have the thread.
pub(crate) fn reset() {
    STATE.store(NONE, Ordering::Relaxed);
    LATE.store(false, Ordering::Relaxed);
}
