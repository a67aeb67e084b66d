//! A budget of synchronous completions in a row per thread. A task that only reads cached data never waits for a driver
//! and would starve other tasks of the same executor if it did not yield.

use std::cell::Cell;

/// Completions of 4 KiB in a row before a task yields once: about 40 µs.
const RUN_MAX: u32 = 32;
/// A larger completion counts as several, because the time is spent on copying.
const UNIT_BYTES: u32 = 8 << 10;

thread_local! {
    static RUN: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether this thread may complete one more operation synchronously. If not, its task must yield after
/// `reset`.
#[inline]
pub(crate) fn may_go_on() -> bool {
    RUN.get() < RUN_MAX
}

/// Counts `operations` operations of `bytes` each that completed synchronously.
#[inline]
pub(crate) fn count(operations: u32, bytes: u32) {
    let units = operations.saturating_mul(1 + bytes / UNIT_BYTES);
    RUN.set(RUN.get().saturating_add(units));
}

/// Resets the count, because the task waits or yields.
#[inline]
pub(crate) fn reset() {
    RUN.set(0);
}
