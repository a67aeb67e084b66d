//! # Safety
//!
//! Writes to served connections. Small writes are queued in the arena and sent together at the end of the round; large
//! writes are sent immediately, behind queued bytes. They are in the program's memory (Lent).
#![allow(unsafe_code)]

use libc::iovec;

use crate::connection::Conn;
use crate::counters::{self, Call, Why};
use crate::deferred_output;
use crate::duplicates;
use crate::epoll_set::Inner;
use crate::epoll_set_list;
use crate::errno::CallResult;
use crate::fd_table::{Entry, Kind};
use crate::gate;
use crate::hand_back;
use crate::outbound::{Fin, Outbound};
use crate::output;
use crate::ring_policy;
use crate::send_errors::{self, SendFailure};
use crate::sys;
use crate::vectors::Source;

/// Writes of this size or more are not queued: a copy costs more than a call.
const DIRECT_WRITE_BYTES: usize = 4096;
/// The maximum number of queued bytes of one connection.
const QUEUED_MAX: usize = 64 << 10;
/// The longest time that a process waits for deferred output at its end, ms.
pub(crate) const LAST_BYTES_MS: u64 = 1000;

/// Queues a small write, if the connection is in its usual state. `None`: [`write()`] decides.
#[inline]
pub(crate) fn write_usual(
    entry: &'static Entry,
    fd: i32,
    source: Source<'_>,
    call: Call,
) -> Option<CallResult> {
    let mut guard = gate::usual(entry)?;
    let inner: &mut Inner = &mut guard;
    let connection = inner.own_connection(entry, fd);
    let total = source.bytes().ok()?;
    let one = &mut inner[connection];
    let fits = !is_large(total, one.out_bytes) && total > 0;
    let is_usual = one.accepts_write() && one.error == 0 && one.backlog.is_empty();
    if !fits || !is_usual {
        return None;
    }
    one.has_more = false;
    source.copy_to(output::reserve(inner, connection, total)?);
    output::on_queued(inner, connection, total);
    inner.count_served(call);
    Some(Ok(total))
}

/// Returns whether a write is not queued behind `queued` bytes.
#[inline]
fn is_large(total: usize, queued: u32) -> bool {
    total >= DIRECT_WRITE_BYTES || queued as usize + total > QUEUED_MAX
}

/// Writes to a connection that is served, or that has deferred output. `None`: passes through to the kernel.
pub(crate) fn write(
    entry: &'static Entry,
    fd: i32,
    source: Source<'_>,
    flags: i32,
) -> Option<CallResult> {
    const KNOWN: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
    let mut guard = match gate::served(entry, fd) {
        Ok(guard) => guard,
        Err(why) => {
            counters::passed(why);
            return None;
        }
    };
    let inner: &mut Inner = &mut guard;
    if entry.kind() == Kind::Served && flags & !KNOWN != 0 {
        hand_back::hand_back(inner, fd, Why::UnknownFlags);
    }
    let connection = inner.connection(fd)?;
    let result = if entry.kind() == Kind::HandedBack {
        let shut_down = inner[connection].fin != Fin::Open;
        if !inner[connection].backlog.is_empty() && !shut_down {
            output::send_backlog(inner, connection);
        }
        if inner[connection].error != 0 {
            // The ring or a send has consumed the error, which the kernel returns only once.
            let error = duplicates::take_error(inner, connection);
            hand_back::finish_hand_back(inner, connection);
            return Some(Err(error));
        }
        if inner[connection].backlog.is_empty() {
            return None;
        }
        Err(if shut_down { libc::EPIPE } else { libc::EAGAIN })
    } else {
        inner[connection].has_more = flags & libc::MSG_MORE != 0;
        let result = write_served(inner, connection, source);
        if guard.in_signal_handler() {
            // Its thread may be about to sleep.
            output::flush(&mut guard, connection);
        }
        result
    };
    drop(guard);
    raise_if_broken(result, flags);
    Some(result)
}

/// Raises SIGPIPE if the result of a call requires it. If that ends the process, output is sent first.
pub(crate) fn raise_if_broken(result: CallResult, flags: i32) {
    if result == Err(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        if !ring_policy::may_be_filtered() && sys::is_fatal(libc::SIGPIPE) {
            flush_everything(LAST_BYTES_MS);
        }
        sys::raise_pipe();
    }
}

fn write_served(inner: &mut Inner, connection: Conn, source: Source<'_>) -> CallResult {
    let total = source.bytes()?;
    if inner[connection].error != 0 {
        return Err(std::mem::take(&mut inner[connection].error));
    }
    if inner[connection].outbound.is_broken() || inner[connection].fin != Fin::Open {
        return Err(libc::EPIPE);
    }
    if total == 0 {
        return Ok(0);
    }
    if !inner[connection].backlog.is_empty() {
        // The send buffer may have drained since.
        output::send_backlog(inner, connection);
        if !inner[connection].backlog.is_empty() {
            return Err(libc::EAGAIN);
        }
    }
    let at_once = is_large(total, inner[connection].out_bytes);
    if !at_once && inner[connection].outbound == Outbound::Writable {
        if let Some(room) = output::make_room(inner, connection, total) {
            source.copy_to(room);
            output::on_queued(inner, connection, total);
            return Ok(total);
        }
        // The socket was not writable before, and queued bytes have been sent, perhaps in part.
        if inner[connection].error != 0 {
            return Err(std::mem::take(&mut inner[connection].error));
        }
        match inner[connection].outbound {
            Outbound::Writable => {}
            Outbound::Full => return Err(libc::EAGAIN),
            Outbound::Broken | Outbound::Dead => return Err(libc::EPIPE),
        }
    }
    write_directly(inner, connection, source, total)
}

fn write_directly(
    inner: &mut Inner,
    connection: Conn,
    source: Source<'_>,
    total: usize,
) -> CallResult {
    let one = &inner[connection];
    let (queued, more) = (one.out_bytes as usize, one.more());
    let vectors = source.vectors();
    let sent = match &inner.ring {
        Some(context) if queued > 0 && vectors.len() < 64 => {
            let queued = context.arena.bytes(one.out_from, one.out_bytes);
            let mut all = [iovec {
                iov_base: queued.as_ptr().cast_mut().cast(),
                iov_len: queued.len(),
            }; 64];
            let all = &mut all[..=vectors.len()];
            all[1..].copy_from_slice(vectors);
            // SAFETY: Lent: the vectors of `source`; Owned: bytes of the arena.
            sys::send_vectors(connection.fd, unsafe { Source::new(all) }, more)
        }
        Some(_) if queued > 0 => {
            output::flush(inner, connection);
            if inner[connection].outbound == Outbound::Full {
                return Err(libc::EAGAIN);
            }
            return write_directly(inner, connection, source, total);
        }
        _ => sys::send_vectors(connection.fd, source, more),
    };
    match sent {
        Ok(sent) => {
            let from_queue = sent.min(queued);
            output::drop_queued(inner, connection, from_queue);
            let from_call = sent - from_queue;
            if from_call < total {
                output::on_full(inner, connection);
            }
            if from_call == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok(from_call)
            }
        }
        Err(errno) => {
            match send_errors::meaning(errno) {
                SendFailure::Retry => {
                    output::drop_queued(inner, connection, 0);
                    output::on_full(inner, connection);
                }
                SendFailure::Call => {}
                SendFailure::Ended => {
                    output::drop_queued(inner, connection, queued);
                    output::on_broken(inner, connection, errno);
                    inner[connection].error = 0;
                }
            }
            Err(errno)
        }
    }
}

/// Sends queued bytes before exec or exit, and waits for deferred output, for at most `wait_ms`.
pub(crate) fn flush_everything(wait_ms: u64) {
    let deadline_ns = sys::now_ns() + wait_ms * 1_000_000;
    for set in epoll_set_list::all() {
        let Some(mut guard) = set.take() else {
            continue;
        };
        for connection in guard.connections() {
            output::flush(&mut guard, connection);
            while !guard[connection].backlog.is_empty() && sys::now_ns() < deadline_ns {
                sys::pause_us(500);
                output::send_backlog(&mut guard, connection);
            }
        }
    }
    deferred_output::wait_until(deadline_ns);
}

/// Reads a part of a file into the queue. `None`: passes through, so the kernel sends it.
pub(crate) fn write_file(
    entry: &'static Entry,
    to: i32,
    from: i32,
    at: i64,
    count: usize,
) -> Option<CallResult> {
    let mut guard = gate::served(entry, to).ok()?;
    if entry.kind() != Kind::Served || guard.in_signal_handler() {
        return None;
    }
    let connection = guard.connection(to)?;
    let inner: &mut Inner = &mut guard;
    let plain = inner[connection].error == 0
        && inner[connection].accepts_write()
        && inner[connection].out_bytes as usize + count <= QUEUED_MAX
        && count > 0;
    if !plain {
        return None;
    }
    let room = output::make_room(inner, connection, count)?;
    match sys::pread(from, room, at) {
        Ok(0) => Some(Ok(0)),
        Ok(bytes) => {
            output::on_queued(inner, connection, bytes);
            Some(Ok(bytes))
        }
        // The file cannot be read at an offset.
        Err(_) => None,
    }
}

/// Fails with the connection's error, and clears it. `None`: there is none, or only in the kernel.
pub(crate) fn take_error(entry: &'static Entry, fd: i32) -> Option<CallResult> {
    let error = gate::with(entry, fd, |guard, one| duplicates::take_error(guard, one))?;
    (error != 0).then_some(Err(error))
}
