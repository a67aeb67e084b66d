//! The operator's switch: a word that other processes can write (`annulus::metrics::layout::switch`). It decides
//! whether all connections are handed back. Each thread loads the word at each wait, and hands back the sets that it
//! owns. From Linux 6.7 on, a change of the word also wakes a ring that sleeps. A set that was handed back in this way,
//! or got no ring because of the switch, is served again at the first wait after the switch is reset.

use annulus::metrics::layout::switch::{self, SwitchCounter};

use crate::classify;
use crate::counters::Why;
use crate::early_members;
use crate::epoll_ctl;
use crate::epoll_set::{Mode, Set, SetGuard};
use crate::epoll_set_list;
use crate::events::{EDGE_TRIGGERED, KNOWN, ONESHOT, OUT, RDHUP};
use crate::fd_table::{self, Kind};
use crate::inherited_set;
use crate::listeners;
use crate::log;
use crate::set_end;
use crate::set_members::Interest;
use crate::switch_position;
use crate::sys;

/// Hands all connections of a set back; the calling thread owns the set.
#[cold]
pub(crate) fn release(guard: &mut SetGuard) {
    // Before the ring is counted as closed.
    switch::add(SwitchCounter::SetsHandedBack, 1);
    switch::add(SwitchCounter::HandedBack, i64::from(guard.served));
    set_end::pass_through_set(guard, Why::Released);
    guard.released.mark();
}

/// Runs before a wait on the set, and serves the set again if the switch has been reset.
#[inline]
pub(crate) fn apply(set: &'static Set, guard: &mut SetGuard) {
    if guard.released.is_marked() && !switch_position::is_released() {
        serve_again(set, guard);
    }
}

#[cold]
fn serve_again(set: &'static Set, guard: &mut SetGuard) {
    if set.owner() == 0 {
        set.own();
    }
    if set.is_owner() && guard.mode == Mode::Passing {
        guard.mode = Mode::Fresh;
        guard.already_reported.clear();
        take_members(guard);
        if early_members::are_enough(guard, 0) {
            epoll_ctl::start(set, guard);
        }
        let connections = guard.served;
        log::write_line(&format!(
            "an epoll set is served again, with {connections} connections"
        ));
        switch::add(SwitchCounter::SetsServedAgain, 1);
        switch::add(SwitchCounter::ServedAgain, i64::from(connections));
    }
    guard.released.clear();
}

/// Records members of the kernel's set that a ring may serve, as if they had been added before the ring existed.
fn take_members(guard: &mut SetGuard) {
    (guard.early_members, guard.listeners) = (Vec::new(), Vec::new());
    let other_members = members_of_others(guard.set_ptr());
    for member in inherited_set::kernel_members(guard.fd) {
        let Some(entry) = fd_table::entry(member.fd) else {
            continue;
        };
        if other_members.binary_search(&member.fd).is_ok() {
            continue;
        }
        if entry.kind() == Kind::Listener {
            listeners::adopt_member(guard, member);
        } else if is_plain(&member)
            && classify::can_be_served(entry, member.fd).is_ok()
            && is_quiet(member.fd)
        {
            guard.name(entry, member.fd);
            guard.early_members.push(member);
        }
    }
}

/// Returns whether a member is enabled and has only flags that a ring can serve.
fn is_plain(member: &Interest) -> bool {
    member.events & !KNOWN == 0 && member.events & !(EDGE_TRIGGERED | ONESHOT) != 0
}

/// Returns whether neither side has ended and the socket is writable, as a set assumes of a new connection.
fn is_quiet(fd: i32) -> bool {
    sys::poll_now(fd, OUT | RDHUP) == OUT && sys::is_established(fd)
}

/// Returns the members of other sets, in order: those sets would miss data that this ring receives.
fn members_of_others(but: *const Set) -> Vec<i32> {
    let others = epoll_set_list::numbers().filter(|&(_, set)| !std::ptr::eq(set, but));
    let members = others.flat_map(|(fd, _)| inherited_set::kernel_members(fd));
    let mut numbers: Vec<i32> = members.map(|member| member.fd).collect();
    numbers.sort_unstable();
    numbers
}
