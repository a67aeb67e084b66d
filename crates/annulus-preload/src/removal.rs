//! Removes a connection from its set, and undoes the removal.

use crate::connection::Conn;
use crate::epoll_set::{Inner, Mode};
use crate::events::KNOWN;
use crate::fd_table::{self, Entry, Kind};
use crate::hand_back::{finish_hand_back, stop_serving};
use crate::member::Member;
use crate::outbound::Outbound;
use crate::sys;

/// Removes a connection from its set. Adding it again in the same round undoes the removal.
pub(crate) fn remove(inner: &mut Inner, connection: Conn) {
    inner[connection].member = Member::Out;
    inner.unready(connection);
    inner.forget_reported(connection.fd, inner[connection].data);
    inner.removed.push(connection.fd);
}

/// Undoes the removal of a connection that was handed back because of it, and that still has unread bytes. Returns
/// whether the set serves it again.
pub(crate) fn undo(inner: &mut Inner, entry: &'static Entry, fd: i32, events: u32) -> bool {
    let Some(connection) = inner.connection(fd) else {
        return false;
    };
    let one = &inner[connection];
    let is_usual =
        one.member == Member::Out && !one.is_over() && one.outbound == Outbound::Writable;
    let may_be_served = is_usual && one.error == 0 && entry.why_never_served().is_none();
    // The kernel returns the error of one that was reset meanwhile.
    let by_ring = inner.mode == Mode::Serving && events & !KNOWN == 0;
    if !may_be_served || !by_ring || !sys::is_connected(fd) {
        return false;
    }
    inner.handed_back_count = inner.handed_back_count.saturating_sub(1);
    inner.served += 1;
    // Its unread bytes, or those in the kernel, hide an error from a receive.
    inner.to_poll.push(fd);
    entry.set_kind(Kind::Served, entry.flags());
    true
}

/// Hands connections back to the kernel that were removed from their set and not added again.
pub(crate) fn finish_removals(inner: &mut Inner) {
    for fd in std::mem::take(&mut inner.removed) {
        let served = fd_table::entry(fd).filter(|entry| entry.is(Kind::Served));
        if let Some((entry, connection)) = served.zip(inner.connection(fd))
            && inner[connection].member == Member::Out
        {
            stop_serving(inner, entry, connection);
            finish_hand_back(inner, connection);
        }
    }
}
