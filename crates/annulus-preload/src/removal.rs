//! # Safety
//!
//! Removes a connection from its set, and moves it to another one, with its buffered bytes. (Held: the callers have the
//! lock of the set.)
#![allow(unsafe_code)]

use crate::byte_queue::TakenBytes;
use crate::connection::Conn;
use crate::counters::Why;
use crate::epoll_set::{Inner, Set};
use crate::fd_table::{self, Entry, Kind, never_served};
use crate::hand_back::{cancel_if_owner, count_unserved, finish_hand_back, stop_receiving};
use crate::member::Member;
use crate::outbound::{Fin, Outbound};
use crate::output;
use crate::unread;

/// Removes a connection from its set. Adding it again in the same round undoes the removal.
pub(crate) fn remove(inner: &mut Inner, connection: Conn) {
    inner[connection].member = Member::Out;
    inner.unready(connection);
    inner.forget_reported(connection.fd, inner[connection].data);
    inner.removed.push(connection.fd);
}

/// Returns whether `set` may serve a connection that was removed from its set.
pub(crate) fn may_move(entry: &'static Entry, set: &'static Set) -> bool {
    let connection = entry.connection();
    // SAFETY: Held: the states of a connection that the program no longer uses, by its own calls.
    let (member, ended, fin, outbound) = unsafe {
        let ended = (*connection).ended;
        (
            (*connection).member,
            ended,
            (*connection).fin,
            (*connection).outbound,
        )
    };
    // Deferred output is sent by the set in which it was written.
    if ended || fin != Fin::Open || outbound != Outbound::Writable {
        return false;
    }
    let own = std::ptr::eq(entry.set(), set);
    // A connection that is still served has not left its own set yet.
    let left = member == Member::Out && !(own && entry.kind() == Kind::Served);
    left && entry.why_never_served().is_none()
}

/// Releases a connection that was removed from its set, for another set to serve. Returns its buffered bytes.
pub(crate) fn reclaim(inner: &mut Inner, fd: i32) -> TakenBytes {
    let (Some(entry), Some(connection)) = (fd_table::entry(fd), inner.connection(fd)) else {
        return TakenBytes::none();
    };
    output::flush(inner, connection);
    unread::copy_out(inner, connection);
    stop_receiving(inner, connection);
    cancel_if_owner(inner, connection);
    inner.unready(connection);
    if entry.kind() == Kind::Served {
        count_unserved(inner);
    } else {
        inner.handed_back_count = inner.handed_back_count.saturating_sub(1);
    }
    let buffered = inner[connection].copied_out.move_out();
    inner[connection].renew();
    entry.set_epoll_set(std::ptr::null_mut());
    entry.set_kind(Kind::Stream, entry.flags());
    buffered
}

/// Keeps the buffered bytes of a connection that came from another set and is not served here.
pub(crate) fn keep_buffered(inner: &mut Inner, entry: &'static Entry, fd: i32, buffered: &[u8]) {
    if buffered.is_empty() {
        return;
    }
    inner.name(entry, fd);
    entry.set_kind(
        Kind::HandedBack,
        never_served(entry.flags(), Why::SeveralSets),
    );
    if let Some(connection) = inner.connection(fd) {
        inner[connection].begin(0, 0);
        inner[connection].member = Member::Out;
        inner[connection].copied_out.append(buffered);
        inner.handed_back_count += 1;
    }
}

/// Hands connections back to the kernel that were removed from their set and not added again.
pub(crate) fn finish_removals(inner: &mut Inner) {
    for fd in std::mem::take(&mut inner.removed) {
        let Some(entry) = fd_table::entry(fd) else {
            continue;
        };
        if entry.kind() != Kind::Served {
            continue;
        }
        let Some(connection) = inner.connection(fd) else {
            continue;
        };
        if inner[connection].member != Member::Out {
            continue;
        }
        output::flush(inner, connection);
        unread::copy_out(inner, connection);
        stop_receiving(inner, connection);
        count_unserved(inner);
        inner.handed_back_count += 1;
        entry.set_kind(Kind::HandedBack, entry.flags());
        finish_hand_back(inner, connection);
    }
}
