//! # Safety
//!
//! The end of the process waits for bytes that a cursor has taken, and that are not with the kernel yet. A handler of
//! `exit(3)` does so. It is a function without arguments that touches only atomics (Atomic).
//!
//! A forked child inherits the handler and the count, but not the threads that would lower it. It is recognised by the
//! number of its process.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::forked;

// Of each platform's C library.
unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// The longest wait.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The time between two looks at the count.
const PAUSE: Duration = Duration::from_millis(1);

/// The number of `Unfinished`, and in the upper half the number of the process that they belong to.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Makes the end of the process wait while it exists.
pub(crate) struct Unfinished(());

/// The part of `COUNT` that belongs to the calling process: its number in the upper half.
fn mark() -> u64 {
    forked::process() << 32
}

fn is_of(count: u64, mark: u64) -> bool {
    count >> 32 == mark >> 32
}

impl Unfinished {
    pub(crate) fn new() -> Unfinished {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: Atomic: the handler expects nothing, and touches atomics only. If it is refused, nothing waits.
            let _ = unsafe { atexit(wait) };
        });
        let mark = mark();
        let more = |count| Some(if is_of(count, mark) { count } else { mark } + 1);
        let _ = COUNT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        Unfinished(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let mark = mark();
        // One of the parent's does not count in a child.
        let fewer = |count: u64| is_of(count, mark).then(|| count.saturating_sub(1).max(mark));
        let _ = COUNT.fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
    }
}

/// Waits until nothing is unfinished.
extern "C" fn wait() {
    let (mark, begun) = (mark(), Instant::now());
    let is_unfinished = || {
        let count = COUNT.load(Ordering::Acquire);
        is_of(count, mark) && count > mark
    };
    while is_unfinished() && begun.elapsed() < WAIT_MAX {
        thread::sleep(PAUSE);
    }
}
