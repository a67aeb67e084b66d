//! The end of the service of a set: it passes through from now on, or the program has closed it.

use crate::counters::{self, Why};
use crate::epoll_set::{Mode, RingContext, Set, SetGuard};
use crate::errno;
use crate::fd_budget;
use crate::fd_table::{self, Kind};
use crate::hand_back::{finish_hand_back, hand_back};
use crate::listeners;
use crate::log;
use crate::member::Member;
use crate::outbound::Queue;
use crate::output;
use crate::removal::{finish_removals, remove};
use crate::reserved_fds;
use crate::ring_policy;
use crate::ring_teardown;
use crate::stops;
use crate::unread;

/// Descriptors of a set that other threads have used; above this number, the whole set passes through.
const FOREIGN_FDS_MAX: u32 = 64;
/// Such descriptors of a set without any served connection; from this number on, the set passes through. Its waits
/// would otherwise ask a ring that serves nothing.
const UNSERVED_FOREIGN_FDS: u32 = 8;

/// Handles a call by a thread that is not the set's owner: hands the connection back.
pub(crate) fn on_foreign_thread(guard: &mut SetGuard, fd: i32) {
    guard.foreign_fds += 1;
    if guard.foreign_fds <= FOREIGN_FDS_MAX {
        hand_back(guard, fd, Why::OtherThread);
    }
    let is_unserved = guard.served == 0 && guard.foreign_fds >= UNSERVED_FOREIGN_FDS;
    if is_unserved || guard.foreign_fds > FOREIGN_FDS_MAX {
        pass_through_set(guard, Why::SeveralThreads);
    }
}

/// Handles that no ring may be used any more, which was noticed while this set had a ring. After a filter was set, the
/// ring is not entered again, not even to cancel requests.
pub(crate) fn on_forbidden(guard: &mut SetGuard) {
    if ring_policy::may_be_filtered()
        && let Some(context) = &mut guard.ring
    {
        context.ring.give_up();
    }
    pass_through_set(guard, ring_policy::why_no_rings());
}

/// Hands back all connections of a set, which passes through from now on.
pub(crate) fn pass_through_set(guard: &mut SetGuard, why: Why) {
    if guard.mode == Mode::Passing {
        return guard.released.clear();
    }
    counters::passed(why);
    if why == Why::Filtered {
        log::log_refused(ring_policy::why_filtered());
    }
    if why == Why::Released {
        log::write_line("an epoll set passes through until the operator resumes it: released");
    } else {
        stops::on_set(why, guard.served);
    }
    let Some(set) = set_of(guard) else { return };
    let had_ring = guard.ring.is_some();
    hand_back_all(guard, set, why);
    if guard.mode == Mode::Serving {
        listeners::hand_back_all(guard);
    }
    guard.mode = Mode::Passing;
    if had_ring {
        close_set_ring(guard, set);
    }
}

fn set_of(guard: &SetGuard) -> Option<&'static Set> {
    fd_table::entry(guard.fd).and_then(Set::of)
}

fn hand_back_all(guard: &mut SetGuard, set: &'static Set, why: Why) {
    if guard.is_owner() {
        // Together: each hand-back would enter the ring for its own.
        guard.cancel_all_requests();
    }
    for fd in set.members() {
        hand_back(guard, fd, why);
    }
}

/// Closes the ring. Memory that it may still write to is leaked, unless its owner makes sure that the kernel has no
/// request.
fn close_set_ring(guard: &mut SetGuard, set: &'static Set) {
    // Also in a signal handler: only the memory that the interrupted wait uses must stay.
    let is_quiescent = set.is_owner() && guard.cancel_all_requests();
    unread::copy_all_out(guard);
    let Some(context) = guard.ring.take() else {
        return;
    };
    set.set_wake(-1);
    guard.to_poll.clear();
    // Closing the ring cancels requests in the kernel, and does not wait for their end (trap 2).
    for connection in guard.connections() {
        guard[connection].inbound.complete();
        guard[connection].polled = 0;
        guard[connection].queue = Queue::Unlisted;
        finish_hand_back(guard, connection);
        output::mark_deferred(guard, connection);
    }
    errno::without_cancel(|| match guard.in_signal_handler() {
        true => abandon(context),
        false => close_ring(*context, is_quiescent),
    });
    ring_teardown::on_ring_closed();
    fd_budget::on_ring_closed();
    guard.queued.clear();
    guard.cancels.clear();
    guard.to_arm.clear();
    guard.kernel_polled = false;
}

/// Closes a ring and frees its memory. `is_quiescent`: the kernel has no request.
fn close_ring(context: RingContext, is_quiescent: bool) {
    let RingContext {
        ring,
        pool,
        arena,
        counters,
    } = context;
    counters.end();
    // A filter may allow less than an enter.
    reserved_fds::close_ring(ring, is_quiescent && !ring_policy::are_rings_forbidden());
    if !is_quiescent {
        // A cancelled receive could still write to this memory.
        std::mem::forget(pool);
    }
    drop(arena);
}

/// Closes a ring in a signal handler. The wait that the handler has interrupted still uses the ring's memory, so this
/// is leaked, and the wait fails as the ring is lost.
fn abandon(context: Box<RingContext>) {
    let context = Box::leak(context);
    context.ring.give_up();
    context
        .ring
        .descriptors()
        .into_iter()
        .for_each(reserved_fds::close);
}

/// Closes a set whose last number is closed: its connections belong to no set until the program adds them to another.
pub(crate) fn close_set(guard: &mut SetGuard, set: &'static Set) {
    for connection in guard.connections() {
        if fd_table::is(connection.fd, Kind::Served) {
            output::flush(guard, connection);
            remove(guard, connection);
        } else {
            guard.unready(connection);
            guard[connection].member = Member::Out;
            finish_hand_back(guard, connection);
        }
    }
    finish_removals(guard);
    forget_streams(set);
    guard.mode = Mode::Passing;
    guard.released.clear();
    close_set_ring(guard, set);
}

/// Forgets the set of streams that no ring serves, as the set is closed.
pub(crate) fn forget_streams(set: &'static Set) {
    for entry in set.members().filter_map(fd_table::entry) {
        if entry.may_be_kernel_member() {
            entry.set_epoll_set(std::ptr::null_mut());
        }
    }
}
