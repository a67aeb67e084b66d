//! The limit on descriptors (`RLIMIT_NOFILE`). The library's own descriptors count towards it, so it releases them
//! before the program has none left: the rings first, and the others, by which the operator sees the process, last. The
//! process is not served again.

use std::sync::atomic::Ordering;

use crate::counters::Why;
use crate::epoll_set_list;
use crate::fd_budget::{
    self, IS_SHORT, LEFT_WITHOUT_OTHERS, LEFT_WITHOUT_RINGS, NEAR, number_with,
};
use crate::flush_thread;
use crate::log;
use crate::publish;
use crate::set_end;
use crate::sys;
use crate::writability;

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
        fd_budget::watch();
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
            set_end::pass_through_set(guard, Why::Descriptors);
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
    let had_counters = counts(publish::descriptor()) && publish::end();
    let had_log = counts(log::descriptor())
        && log::close("the process is running out of descriptors: closed the log and the counters");
    had_ring || had_set || had_counters || had_log
}
