//! The close of a connection by the program. Queued bytes are sent first, unread bytes are discarded as the kernel
//! does, and the ring's requests are cancelled, as they would delay the end.

use crate::byte_queue::TakenBytes;
use crate::connection::Conn;
use crate::counters::Why;
use crate::draining::{self, SharedWith};
use crate::duplicates;
use crate::epoll_set::{Inner, Mode, Set, SetGuard};
use crate::fd_table::{Entry, Kind, SHARED, UNSHARED};
use crate::hand_back::{count_unserved, stop_receiving};
use crate::member::Member;
use crate::output;
use crate::ring_policy;
use crate::sockopts;
use crate::sys;
use crate::token::TokenKind;
use crate::unread;
use crate::writability;

/// Closes a connection, whose number is free when the call returns. Returns `true` if it was closed here, and `false`
/// if the program's call must close it.
pub(crate) fn close(
    set: &'static Set,
    guard: &mut SetGuard,
    entry: &'static Entry,
    fd: i32,
) -> bool {
    let Some(connection) = guard.connection(fd) else {
        return false;
    };
    let in_signal_handler = guard.in_signal_handler();
    let inner: &mut Inner = guard;
    let was_served = entry.kind() == Kind::Served;
    if inner[connection].copied_out.is_shared() && inner[connection].member != Member::Out {
        duplicates::continue_by_duplicate(inner, connection);
    }
    inner.unready(connection);
    inner.forget_reported(fd, inner[connection].data);
    inner[connection].member = Member::Out;
    let by_owner = inner.ring.is_some()
        && inner.mode == Mode::Serving
        && set.is_owner()
        && !inner.pushed
        && !in_signal_handler;
    if by_owner {
        cancel_now(inner, connection);
    }
    discard(inner, entry, connection);
    let idle = !inner[connection].inbound.is_armed() && inner[connection].polled == 0;
    let ends_now = by_owner && idle && send_with_fin(inner, entry, connection);
    if !ends_now {
        output::flush(inner, connection);
        if !idle {
            stop_receiving(inner, connection);
        }
    }
    let unsent = match inner[connection].backlog.is_shared() {
        // A duplicate sends them.
        true => {
            writability::forget(fd);
            inner[connection].backlog.clear();
            TakenBytes::none()
        }
        false => inner[connection].backlog.move_out(),
    };
    if was_served {
        count_unserved(inner);
    } else {
        inner.handed_back_count = inner.handed_back_count.saturating_sub(1);
    }
    inner[connection].renew();
    if finish_close(fd, unsent.as_slice(), !idle, entry.flags()) {
        return true;
    }
    entry.forget();
    // The library sent the end of the stream, so it also closes the number.
    ends_now && sys::close(fd).is_ok()
}

/// Finishes a close that the kernel cannot do alone. Unsent bytes are sent later. A connection that the ring still
/// refers to (`ring_has_refs`) would not end until its owner waits again, which may be never. Returns whether the
/// connection keeps its number until its bytes are sent.
fn finish_close(fd: i32, unsent: &[u8], ring_has_refs: bool, flags: u32) -> bool {
    if !unsent.is_empty() {
        let shared_with = match ring_has_refs {
            true => SharedWith::Ring,
            false => SharedWith::Nothing,
        };
        return draining::take_over(fd, unsent, shared_with.unless_shared(flags & SHARED != 0));
    }
    if ring_has_refs && flags & (UNSHARED | SHARED) == UNSHARED {
        sys::end_as_if_closed(fd);
    }
    false
}

/// Cancels the ring's requests for a connection: they would delay its end.
fn cancel_now(inner: &mut Inner, connection: Conn) {
    let before = inner.cancels.len();
    if inner[connection].inbound.is_armed() {
        inner.cancel(TokenKind::Receive, connection);
    }
    if inner[connection].polled != 0 {
        inner.cancel(TokenKind::Poll, connection);
    }
    if inner.cancels.len() > before {
        inner.submit_cancels();
    }
}

/// Sends the last response of a connection in one segment with FIN, which saves a packet in each direction for
/// connections of one request. Only used if the close ends the connection for all processes, in order: otherwise the
/// peer would see an end before the kernel's reset. Returns whether everything was sent.
fn send_with_fin(inner: &mut Inner, entry: &'static Entry, connection: Conn) -> bool {
    if inner[connection].out_bytes == 0 || entry.flags() & (UNSHARED | SHARED) != UNSHARED {
        return false;
    }
    if sys::readable(connection.fd) > 0 || sockopts::has_linger(connection.fd) {
        return false;
    }
    output::flush_last(inner, connection);
    inner[connection].backlog.is_empty()
}

/// Discards unread bytes as the kernel does: sends queued bytes, then resets the connection.
fn discard(inner: &mut Inner, entry: &'static Entry, connection: Conn) {
    if inner[connection].buffered() == 0 {
        return inner[connection].copied_out.clear();
    }
    unread::copy_out(inner, connection);
    // The last number of the connection discards them, unless another process has it.
    let discards = !inner[connection].copied_out.is_shared()
        && entry.why_never_served() != Some(Why::PassedOn);
    inner[connection].copied_out.clear();
    // After a filter was set, the peer sees an end instead of a reset: the `setsockopt` may be forbidden.
    if discards && !ring_policy::may_be_filtered() {
        output::flush(inner, connection);
        sys::reset_when_closed(connection.fd);
    }
}
