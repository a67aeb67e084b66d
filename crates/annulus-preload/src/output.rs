//! # Safety
//!
//! The output of a connection: bytes that are queued in the arena, and deferred bytes, which did not fit into the
//! kernel's send buffer. Queued bytes lie in the connection's part of the arena (Owned).
#![allow(unsafe_code)]

use crate::connection::Conn;
use crate::duplicates;
use crate::epoll_set::{Inner, Mode, Set};
use crate::errno;
use crate::events::{EDGE_TRIGGERED, ONESHOT, OUT};
use crate::fd_table::{self, Kind};
use crate::flush_request;
use crate::member::Member;
use crate::outbound::{Fin, Outbound, Queue};
use crate::send_errors;
use crate::sys;

/// Connections with queued bytes that make a set send before the end of the round. With a small limit, the writes of a
/// server that serves its connections in turn would not be batched.
const CONNECTIONS_MAX: usize = 256;
/// Writes between two checks of the clock, and the age at which queued bytes are sent, ns.
const WRITES_PER_CHECK: u32 = 32;
pub(crate) const FLUSH_AFTER_NS: u64 = 1_000_000;

/// Returns room for `more` bytes behind those that are queued already, if the arena has it.
#[inline]
pub(crate) fn reserve(inner: &mut Inner, connection: Conn, more: usize) -> Option<&mut [u8]> {
    let one = &inner[connection];
    let (from, used, reserved) = (one.out_from, one.out_bytes, one.out_reserved);
    let extended = (inner.ring.as_mut()?.arena).extend(from, used, reserved, more as u32)?;
    (inner[connection].out_from, inner[connection].out_reserved) = extended;
    let arena = &mut inner.ring.as_mut()?.arena;
    Some(arena.space(extended.0 + used, more as u32))
}

/// Returns such room, after sending what is in the arena if that is needed.
pub(crate) fn make_room(inner: &mut Inner, connection: Conn, more: usize) -> Option<&mut [u8]> {
    if reserve(inner, connection, more).is_none() {
        inner.submit_sends();
        // Deferred output comes first.
        if inner[connection].outbound != Outbound::Writable {
            return None;
        }
    }
    reserve(inner, connection, more)
}

/// Records that `bytes` more are in the arena. errno is unchanged.
#[inline]
pub(crate) fn on_queued(inner: &mut Inner, connection: Conn, bytes: usize) {
    inner[connection].out_bytes += bytes as u32;
    inner.writes += 1;
    if inner.writes == 1 {
        inner.written_at_ns = sys::now_ns();
    }
    let sends_immediately = inner.batching.sends_immediately();
    if inner[connection].queue == Queue::Unlisted {
        inner[connection].queue = Queue::Listed;
        inner.queued.push(connection.fd);
        if inner.queued_at_ns == 0 && !sends_immediately {
            inner.set_queued_since(match inner.writes {
                1 => inner.written_at_ns,
                _ => sys::now_ns(),
            });
            flush_request::on_queued();
        }
    }
    let checks_clock = inner.writes.is_multiple_of(WRITES_PER_CHECK);
    let is_late = checks_clock && sys::now_ns() - inner.queued_at_ns > FLUSH_AFTER_NS;
    if is_late || inner.queued.len() >= CONNECTIONS_MAX || sends_immediately {
        errno::keep(|| inner.submit_sends());
    }
}

/// Sends writes immediately for a while.
pub(crate) fn suspend_batching(inner: &mut Inner) {
    inner.batching.suspend();
}

/// Ends a round, and measures whether its writes waited too long, or would have. Writes are not held back for a server
/// that does other work for long after it has written.
pub(crate) fn end_round(inner: &mut Inner) {
    let writes = std::mem::take(&mut inner.writes);
    if writes == 0 {
        return;
    }
    let took_ns = sys::now_ns().saturating_sub(inner.written_at_ns);
    inner.batching.round(writes, took_ns, sys::preempted);
    if took_ns > FLUSH_AFTER_NS && inner.queued_at_ns != 0 && inner.batching.sends_immediately() {
        flush_request::was_late();
    }
}

/// Removes queued bytes, of which the first `sent` have been sent; the others are deferred.
pub(crate) fn drop_queued(inner: &mut Inner, connection: Conn, sent: usize) {
    let queued = inner[connection].out_bytes as usize;
    if queued == 0 {
        return;
    }
    if let Some(context) = &inner.ring
        && sent < queued
    {
        let queued = context
            .arena
            .bytes(inner[connection].out_from, queued as u32);
        let unsent = queued[sent..].to_vec();
        defer(inner, connection, &unsent);
    }
    // The connection stays in the list of those with queued bytes, but has none.
    inner[connection].clear_queued();
}

/// Sends queued bytes now.
pub(crate) fn flush(inner: &mut Inner, connection: Conn) {
    flush_with(inner, connection, inner[connection].more());
}

/// Sends the last bytes and FIN in one segment. This must happen before the program closes the connection: a close with
/// unread data, which may arrive at any moment, would discard unsent bytes.
pub(crate) fn flush_last(inner: &mut Inner, connection: Conn) {
    flush_with(inner, connection, libc::MSG_MORE);
    if inner[connection].outbound == Outbound::Writable {
        let _ = sys::shutdown(connection.fd, libc::SHUT_WR);
    }
}

fn flush_with(inner: &mut Inner, connection: Conn, flags: i32) {
    if inner[connection].out_bytes > 0
        && let Some(context) = &inner.ring
    {
        let one = &inner[connection];
        let queued = context.arena.bytes(one.out_from, one.out_bytes);
        match sys::send_with(connection.fd, queued, flags) {
            Ok(sent) if sent == queued.len() => drop_queued(inner, connection, sent),
            Ok(sent) => {
                drop_queued(inner, connection, sent);
                on_full(inner, connection);
            }
            Err(errno) if send_errors::keeps_bytes(errno) => {
                drop_queued(inner, connection, 0);
                on_full(inner, connection);
            }
            Err(errno) => {
                drop_queued(inner, connection, usize::MAX);
                on_broken(inner, connection, errno);
            }
        }
    }
    if inner[connection].outbound == Outbound::Full {
        send_backlog(inner, connection);
    }
}

/// Records that the send buffer is full: the ring polls for writability.
pub(crate) fn on_full(inner: &mut Inner, connection: Conn) {
    inner[connection].outbound.fill();
    wait_writable(inner, connection.fd);
}

/// Queries whether the kernel reports a connection with a small send buffer as writable. If not, the ring polls for it,
/// although the last write was taken.
pub(crate) fn check_writable(inner: &mut Inner, connection: Conn) {
    let is_asked = inner[connection].is_narrow
        && inner[connection].accepts_write()
        && fd_table::is(connection.fd, Kind::Served);
    // It is not asked successfully if the program has set RLIMIT_NOFILE to 0.
    if is_asked && sys::poll(connection.fd, OUT, Some(0)) == Ok(0) {
        on_full(inner, connection);
    }
}

/// Makes the ring poll for writability, if the set has one.
fn wait_writable(inner: &mut Inner, fd: i32) {
    if inner.mode == Mode::Serving {
        inner.to_poll.push(fd);
    }
}

/// Records that no write can succeed any more.
pub(crate) fn on_broken(inner: &mut Inner, connection: Conn, errno: i32) {
    duplicates::for_each_duplicate(inner, connection.fd, |inner, connection| {
        inner[connection].outbound.fail(errno);
        if errno != libc::EPIPE {
            inner[connection].error = errno;
        }
        inner[connection].backlog.clear();
        inner.notify(connection, 0);
    });
}

/// Sends deferred output, and reports writability when all of it has been sent.
pub(crate) fn send_backlog(inner: &mut Inner, connection: Conn) {
    while !inner[connection].backlog.is_empty() {
        match sys::send(connection.fd, inner[connection].backlog.as_slice()) {
            Ok(sent) => inner[connection].backlog.take(sent),
            Err(errno) if send_errors::keeps_bytes(errno) => {
                return wait_writable(inner, connection.fd);
            }
            Err(errno) => return on_broken(inner, connection, errno),
        }
    }
    duplicates::for_each_duplicate(inner, connection.fd, on_sent);
}

/// Handles the end of the deferred output of a connection, or of a duplicate.
fn on_sent(inner: &mut Inner, connection: Conn) {
    if inner[connection].fin == Fin::AfterBacklog {
        inner[connection].fin = Fin::Sent;
        let _ = sys::shutdown(connection.fd, libc::SHUT_WR);
    }
    if inner[connection].outbound == Outbound::Full {
        inner[connection].outbound = Outbound::Writable;
        // The bytes that were just sent may have filled the buffer again.
        check_writable(inner, connection);
        if inner[connection].outbound == Outbound::Full {
            return;
        }
        inner.notify(connection, OUT);
        report_again(inner, connection, OUT);
    }
}

/// Defers bytes that do not fit into the send buffer, behind those that are deferred already.
pub(crate) fn defer(inner: &mut Inner, connection: Conn, unsent: &[u8]) {
    inner[connection].backlog.append(unsent);
    inner.may_have_backlog = true;
    mark_deferred(inner, connection);
}

/// Makes the flush thread watch a connection with deferred output.
pub(crate) fn mark_deferred(inner: &mut Inner, connection: Conn) {
    if inner[connection].backlog.is_empty() || inner[connection].awaits_watch {
        return;
    }
    inner[connection].awaits_watch = true;
    inner.deferred.push(connection.fd);
    if let Some(set) = fd_table::entry(connection.fd).and_then(Set::of) {
        set.set_has_deferred(true);
    }
    flush_request::ensure_running();
}

/// Makes the kernel report an edge of a connection that was handed back, which its set could not know: the library has
/// sent queued bytes (`event` is OUT), or holds received ones (IN). Changing the member makes the kernel report all its
/// pending events again.
pub(crate) fn report_again(inner: &Inner, connection: Conn, event: u32) {
    let edge = inner[connection].events & (EDGE_TRIGGERED | ONESHOT) == EDGE_TRIGGERED;
    if fd_table::is(connection.fd, Kind::HandedBack)
        && edge
        && inner[connection].member != Member::Out
        && inner[connection].events & event != 0
    {
        let (events, data) = (inner[connection].events, inner[connection].data);
        let _ = sys::control(inner.fd, libc::EPOLL_CTL_MOD, connection.fd, events, data);
    }
}
