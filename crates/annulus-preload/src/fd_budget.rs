//! The share of the descriptor limit (`RLIMIT_NOFILE`) that rings may take. `fd_limit` releases them before the program
//! has none left.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use crate::reserved_fds;
use crate::sys;

/// The numbers that are left when the rings are released; a quarter of a limit below 128. Calls that no hook sees, such
/// as `open`, may take them.
pub(crate) const LEFT_WITHOUT_RINGS: i32 = 32;
/// The numbers that are left when all other descriptors are released.
pub(crate) const LEFT_WITHOUT_OTHERS: i32 = 8;

/// The next number at which something is released; `i32::MAX` without a ring.
pub(crate) static NEAR: AtomicI32 = AtomicI32::new(i32::MAX);
/// The program has had few descriptors left.
pub(crate) static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Returns the first of the last `left` numbers; of a small limit, the last quarter at most.
pub(crate) fn number_with(left: i32) -> i32 {
    let limit = i32::try_from(sys::fd_limit()).unwrap_or(i32::MAX);
    limit - left.min(limit / 4)
}

/// The rings that the process has.
static RINGS: AtomicUsize = AtomicUsize::new(0);
/// The part of the limit that the descriptors of all rings take at most: an eighth. The first ring may take more.
const PART_OF_RINGS: u64 = 8;

/// Returns whether another ring leaves enough numbers to the program: rings take a part of the limit, and none of its
/// last quarter.
pub(crate) fn allows_ring(set_fd: i32) -> bool {
    let limit = sys::fd_limit();
    let rings = RINGS.load(Ordering::Relaxed);
    let fits = rings == 0 || ((rings + 1) * reserved_fds::RING_FDS) as u64 <= limit / PART_OF_RINGS;
    let Ok(lowest_free) = sys::dup_above(set_fd, 0) else {
        return false;
    };
    let _ = sys::close(lowest_free);
    fits && (lowest_free as u64) < limit - limit / 4
}

/// Runs when a ring was closed.
pub(crate) fn on_ring_closed() {
    RINGS.fetch_sub(1, Ordering::Relaxed);
}

/// Runs when a ring was created.
pub(crate) fn on_ring() {
    RINGS.fetch_add(1, Ordering::Relaxed);
    watch();
}

/// Watches the numbers that the program gets from now on.
pub(crate) fn watch() {
    NEAR.store(number_with(LEFT_WITHOUT_RINGS), Ordering::Relaxed);
}

/// Returns whether the program was short of descriptors. Then no more rings are created.
pub(crate) fn is_short() -> bool {
    IS_SHORT.load(Ordering::Relaxed)
}

/// Resets the state in a child of a fork, which has no ring.
pub(crate) fn reset() {
    NEAR.store(i32::MAX, Ordering::Relaxed);
    IS_SHORT.store(false, Ordering::Relaxed);
    RINGS.store(0, Ordering::Relaxed);
}
