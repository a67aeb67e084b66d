//! Foreign code: wakers, and the buffers and drops of callers. A panic in it ends where it is called.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::metrics::{Counters, SourceKind};

/// Runs foreign code that returns a value. Returns `None` if it panicked, which fails its operation and nothing else.
#[inline]
pub(crate) fn contained<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    let mut value = None;
    contain(|| value = Some(foreign()));
    value
}

/// The number of panics that ended in [`contain`].
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of panics of foreign code that were caught in this process.
pub(super) fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Runs foreign code. A panic in it ends here and is counted, and the driver continues.
#[inline]
pub(crate) fn contain(foreign: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(foreign)) {
        count_panic();
        // Dropping any other payload would run foreign code again.
        if !panic.is::<String>() && !panic.is::<&str>() {
            std::mem::forget(panic);
        }
    }
}

/// Counts a caught panic, in a source that ends immediately: most foreign code belongs to no source.
#[cold]
fn count_panic() {
    PANICS.fetch_add(1, Ordering::Relaxed);
    Counters::new(SourceKind::FastPath).panics().add(1);
}
