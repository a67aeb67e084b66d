//! The teardown of a ring interrupts its thread once, some time later: the kernel removes the ring from the
//! thread's state, and wakes the thread as a signal would (trap 16). Only `epoll_wait` returns EINTR for that. A
//! program without signal handlers does not expect EINTR; a program with handlers retries.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::errno;
use crate::ring_policy;
use crate::sys;

/// The time at which the last ring was closed; 0: none has been.
static CLOSED_NS: AtomicU64 = AtomicU64::new(0);
/// The time within which the teardown may interrupt. The kernel first waits for an RCU grace period, which takes
/// milliseconds on an idle machine, and much longer on a busy one.
const LATE_NS: u64 = 10_000_000_000;
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;

/// Records that a ring of this process has been closed.
pub(crate) fn on_ring_closed() {
    CLOSED_NS.store(sys::now_ns(), Ordering::Relaxed);
}

/// Waits by `call`, and retries if only the teardown of a ring has interrupted it. `call` gets the remaining timeout,
/// ns.
pub(crate) fn retry_interrupted(
    timeout_ns: Option<u64>,
    call: impl Fn(Option<u64>) -> c_int,
) -> c_int {
    // Another thread may close the first ring meanwhile.
    let start_ns = timeout_ns.map_or(0, |_| sys::now_ns());
    let mut left_ns = timeout_ns;
    loop {
        let ret = call(left_ns);
        if ret >= 0 || errno::get() != libc::EINTR {
            return ret;
        }
        if !has_interrupted() {
            errno::set(libc::EINTR);
            return ret;
        }
        let left = |ns: u64| ns.saturating_sub(sys::now_ns().saturating_sub(start_ns));
        left_ns = timeout_ns.map(left);
    }
}

/// Returns whether the teardown of a ring has just interrupted a wait.
pub(crate) fn has_interrupted() -> bool {
    let closed_ns = CLOSED_NS.load(Ordering::Relaxed);
    let is_recent = closed_ns != 0 && sys::now_ns().saturating_sub(closed_ns) < LATE_NS;
    is_recent
        && match HANDLERS.load(Ordering::Relaxed) {
            UNKNOWN if ring_policy::may_be_filtered() => false,
            UNKNOWN => !handles_signals(),
            cached => cached == HANDLES_NONE,
        }
}

/// The program's use of signal handlers, queried before it sets a system call filter that may forbid the query.
static HANDLERS: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const HANDLES_NONE: u8 = 1;
const HANDLES_SOME: u8 = 2;

/// Queries the signal handlers for the last time, before the program sets a filter.
pub(crate) fn cache_handlers() {
    let handlers = if handles_signals() {
        HANDLES_SOME
    } else {
        HANDLES_NONE
    };
    HANDLERS.store(handlers, Ordering::Relaxed);
}

fn handles_signals() -> bool {
    let mut handlers = SIGNALS.filter_map(sys::handler_of);
    handlers.any(|handler| handler != libc::SIG_DFL && handler != libc::SIG_IGN)
}
