//! # Safety
//!
//! Writes to served connections. Small writes are queued in the arena and sent together at the end of the round; large
//! writes are sent immediately, behind queued bytes. Pointers are the program's, valid for the call by the contract of
//! the function that it called (Lent).
#![allow(unsafe_code)]

use libc::iovec;

use crate::connection::{self as flag, Conn, OUT};
use crate::counters::{self, Why};
use crate::deferred_output;
use crate::duplicates;
use crate::epoll_set::{Inner, Mode, Set};
use crate::errno::CallResult;
use crate::fd_table::{self, Entry, Kind};
use crate::flush_thread;
use crate::gate;
use crate::hand_back;
use crate::ring_policy;
use crate::send_errors::{self, SendFailure};
use crate::sys;

/// Writes of this size or more are not queued: a copy costs more than a call.
const DIRECT_WRITE_BYTES: usize = 4096;
/// The maximum number of queued bytes of one connection.
const QUEUED_MAX: usize = 64 << 10;
/// Connections with queued bytes that make a set send before the end of the round. With a small limit, the writes of a
/// server that serves its connections in turn would not be batched.
const CONNECTIONS_MAX: usize = 256;
/// Writes between two checks of the clock, and the age at which queued bytes are sent, ns.
const WRITES_PER_CHECK: u32 = 32;
const FLUSH_AFTER_NS: u64 = 1_000_000;

/// The longest time that a process waits for deferred output at its end, ms.
pub(crate) const LAST_BYTES_MS: u64 = 1000;

/// Writes to a connection that is served, or that has deferred output. `None`: passes through to the kernel.
///
/// # Safety
///
/// Lent: the vectors are valid for reads.
pub(crate) unsafe fn write(
    entry: &'static Entry,
    fd: i32,
    vectors: &[iovec],
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
    let mut connection = inner.connection(fd)?;
    let result = if entry.kind() == Kind::HandedBack {
        let shut_down = connection.is(flag::SHUT);
        if !connection.backlog.is_empty() && !shut_down {
            send_backlog(inner, fd, connection);
        }
        if connection.error != 0 {
            // The ring or a send has consumed the error, which the kernel returns only once.
            let error = duplicates::take_error(inner, fd, connection);
            hand_back::finish_hand_back(inner, fd, connection);
            return Some(Err(error));
        }
        if connection.backlog.is_empty() {
            return None;
        }
        Err(if shut_down { libc::EPIPE } else { libc::EAGAIN })
    } else {
        connection.set_more(flags & libc::MSG_MORE != 0);
        // SAFETY: Lent: the caller guarantees these pointers.
        let result = unsafe { write_served(inner, fd, connection, vectors) };
        if guard.in_signal_handler() {
            // Its thread may be about to sleep.
            flush(&mut guard, fd, connection);
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

/// # Safety
///
/// Lent: the vectors are valid for reads.
unsafe fn write_served(
    inner: &mut Inner,
    fd: i32,
    mut connection: Conn,
    vectors: &[iovec],
) -> CallResult {
    let total = sys::vector_bytes(vectors, true)?;
    if connection.error != 0 {
        return Err(std::mem::take(&mut connection.error));
    }
    if connection.is(flag::BROKEN | flag::SHUT) {
        return Err(libc::EPIPE);
    }
    if total == 0 {
        return Ok(0);
    }
    if !connection.backlog.is_empty() {
        // The send buffer may have drained since.
        send_backlog(inner, fd, connection);
        if !connection.backlog.is_empty() {
            return Err(libc::EAGAIN);
        }
    }
    let queued = connection.out_bytes as usize;
    let at_once = total >= DIRECT_WRITE_BYTES || queued + total > QUEUED_MAX;
    if !at_once && !connection.is(flag::FULL) {
        // SAFETY: Lent: the caller guarantees these pointers.
        if unsafe { queue(inner, fd, connection, vectors, total) } {
            return Ok(total);
        }
        // The socket was not writable before, and queued bytes have been sent, perhaps in part.
        if connection.error != 0 {
            return Err(std::mem::take(&mut connection.error));
        }
        if connection.is(flag::BROKEN) {
            return Err(libc::EPIPE);
        }
        if connection.is(flag::FULL) {
            return Err(libc::EAGAIN);
        }
    }
    // SAFETY: Lent: the caller guarantees these pointers.
    unsafe { write_directly(inner, fd, connection, vectors, total) }
}

/// Copies the bytes into the arena. Returns `false` if they do not fit.
///
/// # Safety
///
/// Lent: the vectors are valid for reads, `total` bytes of them.
unsafe fn queue(
    inner: &mut Inner,
    fd: i32,
    connection: Conn,
    vectors: &[iovec],
    total: usize,
) -> bool {
    let Some(at) = reserve_output(inner, connection, total) else {
        return false;
    };
    let mut at = at;
    for vector in vectors {
        // SAFETY: Lent: the caller's vectors; Owned: `reserve_output` has reserved all of these bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(vector.iov_base.cast::<u8>(), at, vector.iov_len);
            at = at.add(vector.iov_len);
        }
    }
    on_queued(inner, fd, connection, total);
    true
}

/// Reserves `more` bytes behind those that are queued already.
pub(crate) fn reserve_output(
    inner: &mut Inner,
    mut connection: Conn,
    more: usize,
) -> Option<*mut u8> {
    for attempt in 0..2 {
        let context = inner.ring.as_mut()?;
        let (from, used) = (connection.out_from, connection.out_bytes);
        let target = (context.arena).extend(from, used, connection.out_reserved, more as u32);
        if let Some((from, reserved)) = target {
            (connection.out_from, connection.out_reserved) = (from, reserved);
            // SAFETY: Owned: within the arena, as `extend` guarantees.
            return Some(unsafe { context.arena.at(from).add(used as usize) });
        }
        if attempt == 0 {
            inner.submit_sends();
            // Deferred output comes first.
            if connection.is(flag::FULL | flag::BROKEN) {
                return None;
            }
        }
    }
    None
}

/// Records that `bytes` more are in the arena.
pub(crate) fn on_queued(inner: &mut Inner, fd: i32, mut connection: Conn, bytes: usize) {
    connection.out_bytes += bytes as u32;
    inner.writes += 1;
    if inner.writes == 1 {
        inner.written_at_ns = sys::now_ns();
    }
    let sends_immediately = inner.batching.sends_immediately();
    if !connection.is(flag::QUEUED) {
        connection.mark(flag::QUEUED);
        inner.queued.push(fd);
        if inner.queued_at_ns == 0 && !sends_immediately {
            inner.set_queued_since(match inner.writes {
                1 => inner.written_at_ns,
                _ => sys::now_ns(),
            });
            flush_thread::on_queued();
        }
    }
    let checks_clock = inner.writes.is_multiple_of(WRITES_PER_CHECK);
    let is_late = checks_clock && sys::now_ns() - inner.queued_at_ns > FLUSH_AFTER_NS;
    if is_late || inner.queued.len() >= CONNECTIONS_MAX || sends_immediately {
        inner.submit_sends();
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
        flush_thread::was_late();
    }
}

/// # Safety
///
/// Lent: the vectors are valid for reads, `total` bytes of them.
unsafe fn write_directly(
    inner: &mut Inner,
    fd: i32,
    mut connection: Conn,
    vectors: &[iovec],
    total: usize,
) -> CallResult {
    let queued = connection.out_bytes as usize;
    let sent = match &inner.ring {
        Some(context) if queued > 0 && vectors.len() < 64 => {
            let mut all = [iovec {
                iov_base: context.arena.at(connection.out_from).cast(),
                iov_len: queued,
            }; 64];
            all[1..=vectors.len()].copy_from_slice(vectors);
            // SAFETY: Lent: the caller's, and the arena's.
            unsafe { sys::send_vectors(fd, &all[..=vectors.len()], connection.more()) }
        }
        Some(_) if queued > 0 => {
            flush(inner, fd, connection);
            if connection.is(flag::FULL) {
                return Err(libc::EAGAIN);
            }
            // SAFETY: Lent: the caller guarantees these pointers.
            return unsafe { write_directly(inner, fd, connection, vectors, total) };
        }
        // SAFETY: Lent: the caller guarantees these pointers.
        _ => unsafe { sys::send_vectors(fd, vectors, connection.more()) },
    };
    match sent {
        Ok(sent) => {
            let from_queue = sent.min(queued);
            drop_queued(inner, fd, connection, from_queue);
            let from_call = sent - from_queue;
            if from_call < total {
                on_full(inner, fd, connection);
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
                    drop_queued(inner, fd, connection, 0);
                    on_full(inner, fd, connection);
                }
                SendFailure::Call => {}
                SendFailure::Ended => {
                    drop_queued(inner, fd, connection, queued);
                    on_broken(inner, fd, errno);
                    connection.error = 0;
                }
            }
            Err(errno)
        }
    }
}

/// Removes queued bytes, of which the first `sent` have been sent; the others are deferred.
fn drop_queued(inner: &mut Inner, fd: i32, mut connection: Conn, sent: usize) {
    let queued = connection.out_bytes as usize;
    if queued == 0 {
        return;
    }
    if let Some(context) = &inner.ring
        && sent < queued
    {
        let from = context.arena.at(connection.out_from);
        // SAFETY: Owned: the connection's part of the arena.
        let unsent = unsafe { std::slice::from_raw_parts(from.add(sent), queued - sent) };
        let unsent = unsent.to_vec();
        deferred_output::defer(inner, fd, connection, &unsent);
    }
    // The connection stays in the list of those with queued bytes, but has none.
    (
        connection.out_from,
        connection.out_bytes,
        connection.out_reserved,
    ) = (0, 0, 0);
}

/// Sends queued bytes now.
pub(crate) fn flush(inner: &mut Inner, fd: i32, connection: Conn) {
    flush_with(inner, fd, connection, connection.more());
}

/// Sends the last bytes and FIN in one segment. This must happen before the program closes the connection: a close with
/// unread data, which may arrive at any moment, would discard unsent bytes.
pub(crate) fn flush_last(inner: &mut Inner, fd: i32, connection: Conn) {
    flush_with(inner, fd, connection, libc::MSG_MORE);
    if !connection.is(flag::FULL | flag::BROKEN) {
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    }
}

fn flush_with(inner: &mut Inner, fd: i32, connection: Conn, flags: i32) {
    if connection.out_bytes > 0
        && let Some(context) = &inner.ring
    {
        // SAFETY: Owned: the connection's part of the arena.
        let queued = unsafe {
            std::slice::from_raw_parts(
                context.arena.at(connection.out_from),
                connection.out_bytes as usize,
            )
        };
        match sys::send_with(fd, queued, flags) {
            Ok(sent) if sent == queued.len() => drop_queued(inner, fd, connection, sent),
            Ok(sent) => {
                drop_queued(inner, fd, connection, sent);
                on_full(inner, fd, connection);
            }
            Err(errno) if send_errors::keeps_bytes(errno) => {
                drop_queued(inner, fd, connection, 0);
                on_full(inner, fd, connection);
            }
            Err(errno) => {
                drop_queued(inner, fd, connection, usize::MAX);
                on_broken(inner, fd, errno);
            }
        }
    }
    if connection.is(flag::FULL) {
        send_backlog(inner, fd, connection);
    }
}

/// Records that the send buffer is full: the ring polls for writability.
pub(crate) fn on_full(inner: &mut Inner, fd: i32, mut connection: Conn) {
    connection.mark(flag::FULL);
    wait_writable(inner, fd);
}

/// Queries whether the kernel reports a connection with a small send buffer as writable. If not, the ring polls for it,
/// although the last write was taken.
pub(crate) fn check_writable(inner: &mut Inner, fd: i32, connection: Conn) {
    let is_asked = connection.is(flag::NARROW)
        && !connection.is(flag::SHUT | flag::DEAD)
        && fd_table::entry(fd).is_some_and(|entry| entry.kind() == Kind::Served);
    if is_asked && sys::poll_now(fd, OUT) & OUT == 0 {
        on_full(inner, fd, connection);
    }
}

/// Makes the ring poll for writability, if the set has one.
fn wait_writable(inner: &mut Inner, fd: i32) {
    if inner.mode == Mode::Serving {
        inner.to_poll.push(fd);
    }
}

/// Records that no write can succeed any more.
pub(crate) fn on_broken(inner: &mut Inner, fd: i32, errno: i32) {
    duplicates::for_each_duplicate(inner, fd, |inner, fd, mut connection| {
        connection.mark(flag::BROKEN);
        if errno != libc::EPIPE {
            connection.error = errno;
            connection.mark(flag::DEAD);
        }
        connection.backlog.clear();
        connection.clear(flag::FULL);
        inner.notify(fd, connection, 0);
    });
}

/// Sends deferred output, and reports writability when all of it has been sent.
pub(crate) fn send_backlog(inner: &mut Inner, fd: i32, mut connection: Conn) {
    while !connection.backlog.is_empty() {
        match sys::send(fd, connection.backlog.as_slice()) {
            Ok(sent) => connection.backlog.take(sent),
            Err(errno) if send_errors::keeps_bytes(errno) => return wait_writable(inner, fd),
            Err(errno) => return on_broken(inner, fd, errno),
        }
    }
    duplicates::for_each_duplicate(inner, fd, on_sent);
}

/// Handles the end of the deferred output of a connection, or of a duplicate.
fn on_sent(inner: &mut Inner, fd: i32, mut connection: Conn) {
    if connection.is(flag::TO_SHUT) {
        connection.clear(flag::TO_SHUT);
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    }
    if connection.is(flag::FULL) {
        connection.clear(flag::FULL);
        // The bytes that were just sent may have filled the buffer again.
        check_writable(inner, fd, connection);
        if connection.is(flag::FULL) {
            return;
        }
        inner.notify(fd, connection, OUT);
        hand_back::report_again(inner, fd, connection, flag::OUT);
    }
}

/// Sends queued bytes before exec or exit, and waits for deferred output, for at most `wait_ms`.
pub(crate) fn flush_everything(wait_ms: u64) {
    let deadline_ns = sys::now_ns() + wait_ms * 1_000_000;
    for fd in 0..fd_table::served_max() as i32 {
        let Some(entry) = fd_table::entry(fd) else {
            break;
        };
        if !matches!(entry.kind(), Kind::Served | Kind::HandedBack) {
            continue;
        }
        let Some(mut guard) = Set::of(entry).and_then(|set| set.take()) else {
            continue;
        };
        let Some(connection) = guard.connection(fd) else {
            continue;
        };
        flush(&mut guard, fd, connection);
        while !connection.backlog.is_empty() && sys::now_ns() < deadline_ns {
            sys::pause_us(500);
            send_backlog(&mut guard, fd, connection);
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
    let plain = connection.error == 0
        && !connection.is(flag::BROKEN | flag::SHUT | flag::FULL)
        && connection.out_bytes as usize + count <= QUEUED_MAX
        && count > 0;
    if !plain {
        return None;
    }
    let target = reserve_output(inner, connection, count)?;
    // SAFETY: Lent: `count` bytes were reserved.
    match unsafe { sys::pread(from, target, count, at) } {
        Ok(0) => Some(Ok(0)),
        Ok(bytes) => {
            on_queued(inner, to, connection, bytes);
            Some(Ok(bytes))
        }
        // The file cannot be read at an offset.
        Err(_) => None,
    }
}

/// Fails with the connection's error, and clears it. `None`: there is none, or only in the kernel.
pub(crate) fn take_error(entry: &'static Entry, fd: i32) -> Option<CallResult> {
    let mut guard = gate::served(entry, fd).ok()?;
    let connection = guard.connection(fd)?;
    let error = duplicates::take_error(&mut guard, fd, connection);
    (error != 0).then_some(Err(error))
}
