//! # Safety
//!
//! Reads of served connections, from the bytes that the ring has received, into the program's memory (Lent).
#![allow(unsafe_code)]

use libc::iovec;

use crate::connection::{Conn, Connection};
use crate::counters::{self, Call, Why};
use crate::duplicates;
use crate::epoll_set::{Inner, Mode, SetGuard};
use crate::errno::CallResult;
use crate::fd_table::{Entry, Kind};
use crate::gate;
use crate::hand_back;
use crate::inbound::Inbound;
use crate::outbound::Outbound;
use crate::poll_cycle;
use crate::ring_policy;
use crate::sys;
use crate::unread::{copy_out, release_buffer};
use crate::vectors::Target;

/// Supported flags of a receive; any other hands the connection back.
const KNOWN: i32 = libc::MSG_PEEK
    | libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Reads received bytes, or finds none, if the connection is in its usual state. `None`: [`read`] decides.
#[inline]
pub(crate) fn read_usual(
    entry: &'static Entry,
    fd: i32,
    target: Target<'_>,
    call: Call,
) -> Option<CallResult> {
    let mut guard = gate::usual(entry)?;
    let inner: &mut Inner = &mut guard;
    let connection = inner.own_connection(entry, fd);
    let total = target.bytes(true).ok()?;
    let one = &inner[connection];
    let received = one.bytes as usize;
    let result = if total == 0 || total > received && !one.copied_out.is_empty() {
        return None;
    } else if received > 0 {
        let count = target.fill(0, one.received());
        consume_received(inner, connection, count);
        if inner[connection].inbound != Inbound::Armed {
            rearm(inner, connection);
        }
        Ok(count)
    } else if one.inbound == Inbound::Armed
        && one.round == inner.round
        && one.error == 0
        && !one.has_input_ended()
    {
        // The ring was asked since the last wait, and a receive is pending.
        nothing_yet(inner, connection)
    } else {
        return None;
    };
    inner.count_served(call);
    Some(result)
}

/// Reads from a connection that is served, or that has buffered bytes. `None`: passes through to the kernel. `by_read`:
/// the call is `read` or `readv`, which do not access the socket if their buffer is empty.
pub(crate) fn read(
    entry: &'static Entry,
    fd: i32,
    target: Target<'_>,
    flags: i32,
    by_read: bool,
) -> Option<CallResult> {
    let mut guard = match gate::served(entry, fd) {
        Ok(guard) => guard,
        Err(why) => {
            counters::passed(why);
            return None;
        }
    };
    if entry.kind() == Kind::Served && flags & !KNOWN != 0 {
        hand_back::hand_back(&mut guard, fd, Why::UnknownFlags);
    }
    let connection = guard.connection(fd)?;
    let total = match target.bytes(flags & libc::MSG_TRUNC == 0) {
        Ok(total) => total,
        Err(errno) => return Some(Err(errno)),
    };
    if total == 0 && by_read {
        return Some(Ok(0));
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return None;
    }
    let is_peek = flags & libc::MSG_PEEK != 0;
    guard = reap_first(guard, entry, connection, if is_peek { total } else { 1 });
    let inner: &mut Inner = &mut guard;
    if inner[connection].buffered() > 0 {
        let was_handed_back = entry.kind() != Kind::Served;
        if is_peek && !was_handed_back && !inner[connection].inbound.is_armed() {
            buffer_following(inner, connection, total);
        }
        let done = copy_buffered(inner, connection, (target, total), flags);
        let more = match was_handed_back && done < total {
            true => read_following(fd, target, done, flags),
            false => 0,
        };
        return Some(Ok(done + more));
    }
    if let Some(result) = read_last(inner, connection, (target, total), flags) {
        return Some(result);
    }
    // The end that was received comes before an error.
    if inner[connection].error != 0 && !inner[connection].ended {
        return Some(Err(duplicates::take_error(inner, connection)));
    }
    if inner[connection].has_input_ended() {
        return Some(Ok(0));
    }
    if entry.kind() == Kind::HandedBack {
        hand_back::finish_hand_back(inner, connection);
        return None;
    }
    match inner[connection].inbound {
        Inbound::Direct | Inbound::Readable => {
            Some(read_directly(inner, connection, (target, total), flags))
        }
        // No receive is armed: the kernel has all of the data.
        Inbound::Idle | Inbound::Listed => None,
        _ => Some(nothing_yet(inner, connection)),
    }
}

/// Finds no bytes. The next read asks the ring again: a program may wait for bytes by reads alone.
#[inline]
fn nothing_yet(inner: &mut Inner, connection: Conn) -> CallResult {
    inner[connection].round = inner.round.wrapping_sub(1);
    Err(libc::EAGAIN)
}

/// The number of buffered bytes below which a stopped receive is armed again.
const REARM_BELOW_BYTES: usize = 32 << 10;

/// A burst of fewer bytes makes the ring receive again.
const SMALL_BYTES: u32 = 4096;

/// Reads from the kernel.
fn read_directly(
    inner: &mut Inner,
    connection: Conn,
    (target, total): (Target<'_>, usize),
    flags: i32,
) -> CallResult {
    let result = sys::receive_vectors(connection.fd, target, flags);
    let drained = match result {
        Ok(bytes) => bytes < total,
        Err(errno) => errno == libc::EAGAIN,
    };
    if flags & libc::MSG_PEEK != 0 {
        return result;
    }
    let direct_bytes = &mut inner[connection].direct_bytes;
    *direct_bytes = direct_bytes.saturating_add(result.unwrap_or(0) as u32);
    if drained {
        on_drained(inner, connection);
    }
    result
}

/// Decides whether the ring receives or polls next, as the kernel has no more data for a direct reader.
fn on_drained(inner: &mut Inner, connection: Conn) {
    let direct_bytes = std::mem::take(&mut inner[connection].direct_bytes);
    inner[connection].inbound = match direct_bytes {
        1..SMALL_BYTES => Inbound::Idle,
        _ => Inbound::Direct,
    };
    inner.arm(connection);
}

/// Queries whether the last read has taken exactly the data that the kernel had: then there is nothing to report.
pub(crate) fn check_drained(inner: &mut Inner, connection: Conn) {
    let one = &inner[connection];
    let may_be_drained =
        one.inbound == Inbound::Readable && one.direct_bytes > 0 && one.buffered() == 0;
    if inner.mode == Mode::Serving && may_be_drained && sys::readable(connection.fd) == 0 {
        on_drained(inner, connection);
    }
}

/// Reads data of a connection that has ended, before its error and its end, if the ring has left the data in the
/// kernel.
fn read_last(
    inner: &mut Inner,
    connection: Conn,
    space: (Target<'_>, usize),
    flags: i32,
) -> Option<CallResult> {
    let over = inner[connection].error != 0 || inner[connection].outbound == Outbound::Dead;
    if !over || inner[connection].inbound != Inbound::Readable {
        return None;
    }
    let result = read_directly(inner, connection, space, flags);
    if matches!(result, Ok(1..)) {
        return Some(result);
    }
    inner[connection].inbound.set_readable(false);
    None
}

/// Reaps completions first if less than `needed` is buffered, so that the read sees data that arrived since the last
/// wait. The first read of a round that takes bytes, and finds no more, does not.
fn reap_first(
    mut guard: SetGuard,
    entry: &'static Entry,
    connection: Conn,
    needed: usize,
) -> SetGuard {
    let buffered = guard[connection].buffered();
    let may_reap = guard[connection].inbound.is_armed()
        && buffered < needed
        && (buffered > 0 || guard[connection].round != guard.round)
        && entry.kind() == Kind::Served
        && guard.mode == Mode::Serving
        && !guard.in_signal_handler();
    if may_reap
        && guard
            .ring
            .as_mut()
            .is_some_and(|context| context.ring.is_ready())
    {
        return poll_cycle::reap_now(guard);
    }
    guard
}

/// Appends data of the kernel to the buffered bytes of a served connection without a receive, up to `total` bytes: a
/// peek returns it, and so does the next read.
#[cold]
fn buffer_following(inner: &mut Inner, connection: Conn, total: usize) {
    let needed = total.saturating_sub(inner[connection].buffered());
    let mut bytes = vec![0; needed.min(sys::readable(connection.fd))];
    let vector = [iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }];
    // SAFETY: Lent: a vector of this function.
    let target = unsafe { Target::new(&vector) };
    if let Ok(count @ 1..) = sys::receive_vectors(connection.fd, target, 0) {
        inner[connection].copied_out.append(&bytes[..count]);
        inner[connection].direct_bytes =
            inner[connection].direct_bytes.saturating_add(count as u32);
    }
}

/// The vectors into which such data is read; a signal handler may have a small stack.
const FOLLOWING_VECTORS_MAX: usize = 64;

/// Reads data that follows the first `done` bytes, which were buffered. Returns the number of bytes.
fn read_following(fd: i32, target: Target<'_>, done: usize, flags: i32) -> usize {
    // The next read returns an error: the kernel is not called if it has no data.
    if ring_policy::may_be_filtered() || sys::readable(fd) == 0 {
        return 0;
    }
    const PEEK_ALL: i32 = libc::MSG_PEEK | libc::MSG_WAITALL;
    if flags & (PEEK_ALL | libc::MSG_DONTWAIT) == PEEK_ALL && sys::is_blocking(fd) {
        // The hook waits for all: another peek would begin with the same bytes.
        return 0;
    }
    target.behind::<FOLLOWING_VECTORS_MAX, _>(done, |rest| {
        sys::receive_vectors(fd, rest, flags).unwrap_or(0)
    })
}

/// Reads buffered bytes. Returns their number.
fn copy_buffered(
    inner: &mut Inner,
    connection: Conn,
    (target, total): (Target<'_>, usize),
    flags: i32,
) -> usize {
    let one = &inner[connection];
    let done = match flags & libc::MSG_TRUNC {
        0 => fill_from(one, target),
        // They are discarded.
        _ => total.min(one.buffered()),
    };
    if flags & libc::MSG_PEEK == 0 {
        drop_first(inner, connection, done);
    }
    done
}

/// Copies buffered bytes, as many as fit. Returns their number.
fn fill_from(connection: &Connection, target: Target<'_>) -> usize {
    let first = target.fill(0, connection.received());
    first + target.fill(first, connection.copied_out.as_slice())
}

/// Consumes the first `bytes` buffered bytes.
fn drop_first(inner: &mut Inner, connection: Conn, bytes: usize) {
    let first = bytes.min(inner[connection].bytes as usize);
    if first > 0 {
        consume_received(inner, connection, first);
    }
    inner[connection].copied_out.take(bytes - first);
    rearm(inner, connection);
}

/// Receives again after the program has read, if little is buffered.
fn rearm(inner: &mut Inner, connection: Conn) {
    if inner[connection].buffered() < REARM_BELOW_BYTES {
        inner.arm(connection);
        hand_back::finish_hand_back(inner, connection);
    }
}

/// Consumes the first `bytes` bytes in the receive buffer, which has at least that many.
#[inline]
fn consume_received(inner: &mut Inner, connection: Conn, bytes: usize) {
    let one = &mut inner[connection];
    one.at = one.at.wrapping_add(bytes);
    one.bytes -= bytes as u32;
    if one.bytes == 0 {
        release_buffer(inner, connection);
    }
}

/// Returns the library's part of FIONREAD: the number of buffered bytes.
pub(crate) fn readable(entry: &'static Entry, fd: i32) -> Option<usize> {
    let mut guard = gate::served(entry, fd).ok()?;
    if !guard.in_signal_handler()
        && entry.kind() == Kind::Served
        && guard
            .ring
            .as_mut()
            .is_some_and(|context| context.ring.is_ready())
    {
        guard = poll_cycle::reap_now(guard);
    }
    let connection = guard.connection(fd)?;
    Some(guard[connection].buffered())
}

/// Returns the library's part of SIOCOUTQ: the number of queued and deferred bytes.
pub(crate) fn unsent(entry: &'static Entry, fd: i32) -> Option<usize> {
    gate::with(entry, fd, |guard, connection| {
        guard[connection].out_bytes as usize + guard[connection].backlog.len()
    })
}

/// In a child of a fork, reads the bytes that its parent had buffered when it forked. `None`: there are none, and the
/// call passes through.
pub(crate) fn read_inherited(entry: &'static Entry, target: Target<'_>) -> Option<CallResult> {
    if entry.inherited() != Kind::Served && entry.inherited() != Kind::HandedBack {
        return None;
    }
    // SAFETY: Held: the child is not served through this entry, and has its own copy.
    let connection = unsafe { &mut *entry.connection() };
    let done = fill_from(connection, target);
    let first = done.min(connection.bytes as usize);
    connection.at = connection.at.wrapping_add(first);
    connection.bytes -= first as u32;
    connection.copied_out.take(done - first);
    (done > 0).then_some(Ok(done))
}

/// Moves buffered bytes into a pipe, as many as it has room for. `None`: there are none, and the kernel splices.
pub(crate) fn splice_buffered(
    entry: &'static Entry,
    fd: i32,
    pipe: i32,
    bytes: usize,
) -> Option<CallResult> {
    let mut guard = gate::served(entry, fd).ok()?;
    let connection = guard.connection(fd)?;
    copy_out(&mut guard, connection);
    let available = guard[connection].copied_out.as_slice();
    if available.is_empty() {
        return None;
    }
    let bytes = &available[..available.len().min(bytes)];
    let result = sys::write_pages(pipe, bytes);
    if let Ok(written) = result {
        drop_first(&mut guard, connection, written);
    }
    Some(result)
}
