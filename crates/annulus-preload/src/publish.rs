//! Publishes the counters and the operator's switch of the process: `annulus top` and `annulus release` find them.

use std::sync::atomic::{AtomicI32, Ordering};

use annulus::metrics;

use crate::counters;
use crate::log;
use crate::reserved_fds::{self, Inode};
use crate::switch_position;

/// The descriptor by which `annulus top` finds the counters; -1: not published.
static PUBLISHED: AtomicI32 = AtomicI32::new(-1);

/// Publishes the counters at the first ring of the process, or for the switch.
pub(crate) fn begin() {
    if counters::are_shared() {
        return;
    }
    match metrics::share_above(reserved_fds::lowest()) {
        Ok(descriptor) => {
            reserved_fds::remember(descriptor, Inode::Own);
            PUBLISHED.store(descriptor, Ordering::Relaxed);
            switch_position::begin();
        }
        // Counting continues; only `annulus top` cannot attach.
        Err(error) => log::write_line(&format!(
            "cannot publish the counters, so `annulus top` cannot attach: {error}"
        )),
    }
    counters::share();
}

/// Returns the descriptor by which `annulus top` finds the counters; -1: not published.
pub(crate) fn descriptor() -> i32 {
    PUBLISHED.load(Ordering::Relaxed)
}

/// Closes that descriptor. Counting continues; `annulus top` cannot attach any more. Returns whether there was one.
pub(crate) fn end() -> bool {
    let descriptor = PUBLISHED.swap(-1, Ordering::Relaxed);
    if descriptor >= 0 {
        reserved_fds::close(descriptor);
    }
    descriptor >= 0
}

/// Resets the state in a child of a fork, whose counters are empty.
pub(crate) fn reset() {
    counters::reset();
    PUBLISHED.store(-1, Ordering::Relaxed);
}
