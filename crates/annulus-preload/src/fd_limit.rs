//! The limit on descriptors (`RLIMIT_NOFILE`). The library's own descriptors count towards it, so it releases them
//! before the program has none left: the rings first, and the others, by which the operator sees the process, last. The
//! process is not served again.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use crate::counters::{self, Why};
use crate::epoll_set_list;
use crate::flush_thread;
use crate::hand_back;
use crate::log;
use crate::reserved_fds;
use crate::sys;
use crate::writability;

/// The numbers that are left when the rings are released; a quarter of a limit below 128. Calls that no hook sees, such
/// as `open`, may take them.
const LEFT_WITHOUT_RINGS: i32 = 32;
/// The numbers that are left when all other descriptors are released.
const LEFT_WITHOUT_OTHERS: i32 = 8;

/// The next number at which something is released; `i32::MAX` without a ring.
static NEAR: AtomicI32 = AtomicI32::new(i32::MAX);
/// The program has had few descriptors left.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// Returns the first of the last `left` numbers; of a small limit, the last quarter at most.
fn number_with(left: i32) -> i32 {
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

fn watch() {
    NEAR.store(number_with(LEFT_WITHOUT_RINGS), Ordering::Relaxed);
}

/// Returns whether the program was short of descriptors. Then no more rings are created.
pub(crate) fn is_short() -> bool {
    IS_SHORT.load(Ordering::Relaxed)
}

/// Runs when the program has got a number. All lower numbers are taken.
#[inline]
pub(crate) fn on_new_number(fd: i32) {
    if fd >= NEAR.load(Ordering::Relaxed) {
        check_limit(fd);
    }
}

#[cold]
fn check_limit(fd: i32) {
    if fd >= number_with(LEFT_WITHOUT_OTHERS) {
        release_all();
    } else if fd >= number_with(LEFT_WITHOUT_RINGS) {
        release_rings();
    } else {
        // The program has raised its limit.
        watch();
    }
}

/// Hands all sets back. Returns whether there was a ring with a number below the limit.
fn release_rings() -> bool {
    IS_SHORT.store(true, Ordering::Relaxed);
    NEAR.store(number_with(LEFT_WITHOUT_OTHERS), Ordering::Relaxed);
    let mut any = false;
    epoll_set_list::for_each(|guard| {
        let ring = guard.ring.as_ref();
        let counts = ring.is_some_and(|context| context.ring.descriptors().into_iter().any(counts));
        // A handler has interrupted a call that uses the ring.
        if counts && !guard.in_signal_handler() {
            hand_back::pass_through_set(guard, Why::Descriptors);
            any = true;
        }
    });
    any
}

/// Returns whether a descriptor takes a number from the program. Numbers from the limit on are no longer available: the
/// program has lowered the limit.
fn counts(fd: i32) -> bool {
    u64::try_from(fd).is_ok_and(|fd| fd < sys::fd_limit())
}

/// Releases all descriptors of the library that it can do without. Returns whether there were any.
#[cold]
pub(crate) fn release_all() -> bool {
    let had_ring = release_rings();
    NEAR.store(i32::MAX, Ordering::Relaxed);
    let had_set = counts(writability::descriptor()) && {
        flush_thread::stop_if_idle();
        flush_thread::is_stopped() && writability::release()
    };
    let had_counters = counts(counters::descriptor()) && counters::unshare();
    let had_log = counts(log::descriptor())
        && log::close("the process is running out of descriptors: closed the log and the counters");
    had_ring || had_set || had_counters || had_log
}

/// Resets the state in a child of a fork, which has no ring.
pub(crate) fn reset() {
    NEAR.store(i32::MAX, Ordering::Relaxed);
    IS_SHORT.store(false, Ordering::Relaxed);
    RINGS.store(0, Ordering::Relaxed);
}
