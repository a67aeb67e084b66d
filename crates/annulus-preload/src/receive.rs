//! # Safety
//!
//! Reads of served connections, from the bytes that the ring has received. Pointers are the program's, valid for the
//! call by the contract of the function that it called (Lent).
#![allow(unsafe_code)]

use libc::iovec;

use crate::connection::Conn;
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

/// Supported flags of a receive; any other hands the connection back.
const KNOWN: i32 = libc::MSG_PEEK
    | libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Reads received bytes, or finds none, if the connection is in its usual state. `None`: [`read`] decides.
///
/// # Safety
///
/// Lent: `base` is valid for writes of `bytes`.
#[inline]
pub(crate) unsafe fn read_usual(
    entry: &'static Entry,
    fd: i32,
    (base, bytes): (*mut u8, usize),
    call: Call,
) -> Option<CallResult> {
    let mut guard = gate::usual(entry)?;
    let inner: &mut Inner = &mut guard;
    let connection = inner.own_connection(entry, fd);
    let one = &inner[connection];
    let received = one.bytes as usize;
    let result = if received == 0 {
        // The ring was asked since the last wait, and a receive is pending.
        let is_empty = one.inbound == Inbound::Armed && one.round == inner.round;
        let is_usual = is_empty && one.copied_out.is_empty() && one.error == 0;
        if !is_usual || one.has_input_ended() || bytes == 0 {
            return None;
        }
        Err(libc::EAGAIN)
    } else {
        if !sys::may_be_mapped(base) || bytes > received && !one.copied_out.is_empty() {
            return None;
        }
        let count = received.min(bytes);
        // SAFETY: Lent: the caller's buffer; Owned: the connection's part of a buffer.
        unsafe { std::ptr::copy_nonoverlapping(one.at, base, count) };
        consume_received(inner, connection, count);
        if inner[connection].inbound != Inbound::Armed {
            rearm(inner, connection);
        }
        Ok(count)
    };
    inner.count_served(call);
    Some(result)
}

/// Reads from a connection that is served, or that has buffered bytes. `None`: passes through to the kernel. `by_read`:
/// the call is `read` or `readv`, which do not access the socket if their buffer is empty.
///
/// # Safety
///
/// Lent: the vectors are valid for writes.
pub(crate) unsafe fn read(
    entry: &'static Entry,
    fd: i32,
    vectors: &[iovec],
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
    let total = match sys::vector_bytes(vectors, flags & libc::MSG_TRUNC == 0) {
        Ok(total) => total,
        Err(errno) => return Some(Err(errno)),
    };
    if total == 0 && by_read {
        return Some(Ok(0));
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return None;
    }
    guard = reap_first(guard, entry, connection);
    let inner: &mut Inner = &mut guard;
    if inner[connection].buffered() > 0 {
        let was_handed_back = entry.kind() != Kind::Served;
        // SAFETY: Lent: the caller guarantees these pointers.
        let done = unsafe { copy_buffered(inner, connection, vectors, flags) };
        // SAFETY: Lent: the caller guarantees these pointers.
        return Some(Ok(done
            + unsafe {
                read_following(fd, (vectors, total), done, was_handed_back, flags)
            }));
    }
    // SAFETY: Lent: the caller guarantees these pointers.
    if let Some(result) = unsafe { read_last(inner, connection, (vectors, total), flags) } {
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
            // SAFETY: Lent: the caller guarantees these pointers.
            Some(unsafe { read_directly(inner, connection, (vectors, total), flags) })
        }
        // No receive is armed: the kernel has all of the data.
        Inbound::Idle | Inbound::Listed => None,
        _ => Some(Err(libc::EAGAIN)),
    }
}

/// The number of buffered bytes below which a stopped receive is armed again.
const REARM_BELOW_BYTES: usize = 32 << 10;

/// A burst of fewer bytes makes the ring receive again.
const SMALL_BYTES: u32 = 4096;

/// Reads from the kernel, and decides whether the ring receives or polls next.
///
/// # Safety
///
/// Lent: the vectors are valid for writes, `total` bytes of them.
unsafe fn read_directly(
    inner: &mut Inner,
    connection: Conn,
    (vectors, total): (&[iovec], usize),
    flags: i32,
) -> CallResult {
    // SAFETY: Lent: the caller guarantees these pointers.
    let result = unsafe { sys::receive_vectors(connection.fd, vectors, flags) };
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
        let direct_bytes = std::mem::take(&mut inner[connection].direct_bytes);
        inner[connection].inbound = match direct_bytes {
            1..SMALL_BYTES => Inbound::Idle,
            _ => Inbound::Direct,
        };
        inner.arm(connection);
    }
    result
}

/// Reads data of a connection that has ended, before its error and its end, if the ring has left the data in the
/// kernel.
///
/// # Safety
///
/// Lent: the vectors are valid for writes, `total` bytes of them.
unsafe fn read_last(
    inner: &mut Inner,
    connection: Conn,
    space: (&[iovec], usize),
    flags: i32,
) -> Option<CallResult> {
    let over = inner[connection].error != 0 || inner[connection].outbound == Outbound::Dead;
    if !over || inner[connection].inbound != Inbound::Readable {
        return None;
    }
    // SAFETY: Lent: the caller guarantees these pointers.
    let result = unsafe { read_directly(inner, connection, space, flags) };
    if matches!(result, Ok(1..)) {
        return Some(result);
    }
    inner[connection].inbound.set_readable(false);
    None
}

/// Reaps completions first if nothing is buffered, so that the read sees data that arrived since the last wait. Once
/// per round.
fn reap_first(mut guard: SetGuard, entry: &'static Entry, connection: Conn) -> SetGuard {
    let may_reap = guard[connection].inbound.is_armed()
        && guard[connection].buffered() == 0
        && guard[connection].round != guard.round
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

/// Reads data that follows the buffered bytes of a connection that was handed back. Returns the number of bytes.
///
/// # Safety
///
/// Lent: the vectors are valid for writes, `total` bytes of them.
unsafe fn read_following(
    fd: i32,
    (vectors, total): (&[iovec], usize),
    done: usize,
    was_handed_back: bool,
    flags: i32,
) -> usize {
    let [vector] = vectors else { return 0 };
    // The next read returns an error: the kernel is not called if it has no data.
    let reads_more = was_handed_back && done < total && flags & libc::MSG_PEEK == 0;
    if !reads_more || ring_policy::may_be_filtered() || sys::readable(fd) == 0 {
        return 0;
    }
    let remaining = iovec {
        iov_base: vector.iov_base.wrapping_byte_add(done),
        iov_len: total - done,
    };
    // SAFETY: Lent: the rest of a vector that the caller lends.
    unsafe { sys::receive_vectors(fd, &[remaining], flags) }.unwrap_or(0)
}

/// Copies buffered bytes to the vectors.
///
/// # Safety
///
/// Lent: the vectors are valid for writes.
unsafe fn copy_buffered(
    inner: &mut Inner,
    connection: Conn,
    vectors: &[iovec],
    flags: i32,
) -> usize {
    let discard = flags & libc::MSG_TRUNC != 0;
    let peek = flags & libc::MSG_PEEK != 0;
    let (mut done, first) = (0, inner[connection].bytes as usize);
    for vector in vectors {
        let (mut space, mut into) = (vector.iov_len, vector.iov_base.cast::<u8>());
        while space > 0 {
            let (from, available) = if done < first {
                (inner[connection].at.wrapping_add(done), first - done)
            } else {
                let remaining = &inner[connection].copied_out.as_slice()[done - first..];
                (remaining.as_ptr().cast_mut(), remaining.len())
            };
            let count = space.min(available);
            if count == 0 {
                break;
            }
            if !discard {
                // SAFETY: Lent: the caller's vector; Owned: the connection's buffered bytes.
                unsafe { std::ptr::copy_nonoverlapping(from, into, count) };
            }
            (space, into) = (space - count, into.wrapping_add(count));
            done += count;
        }
    }
    if !peek {
        drop_first(inner, connection, done);
    }
    done
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
    let guard = gate::served(entry, fd).ok()?;
    let mut guard = guard;
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
    let guard = gate::served(entry, fd).ok()?;
    let connection = guard.connection(fd)?;
    Some(guard[connection].out_bytes as usize + guard[connection].backlog.len())
}

/// In a child of a fork, reads the bytes that its parent had buffered when it forked. `None`: there are none, and the
/// call passes through.
///
/// # Safety
///
/// Lent: the vectors are valid for writes.
pub(crate) unsafe fn read_inherited(
    entry: &'static Entry,
    vectors: &[iovec],
) -> Option<CallResult> {
    if entry.inherited() != Kind::Served && entry.inherited() != Kind::HandedBack {
        return None;
    }
    // SAFETY: Held: the child is not served through this entry, and has its own copy.
    let connection = unsafe { &mut *entry.connection() };
    let mut done = 0;
    for vector in vectors {
        let count = vector.iov_len.min(connection.bytes as usize);
        // SAFETY: Lent: the caller's; the copy of the parent's buffer is mapped in the child.
        unsafe {
            std::ptr::copy_nonoverlapping(connection.at, vector.iov_base.cast::<u8>(), count);
        }
        connection.at = connection.at.wrapping_add(count);
        connection.bytes -= count as u32;
        let more = connection.copied_out.as_slice();
        let remaining = (vector.iov_len - count).min(more.len());
        // SAFETY: Lent: the rest of the caller's vector.
        unsafe {
            let into = vector.iov_base.cast::<u8>().add(count);
            std::ptr::copy_nonoverlapping(more.as_ptr(), into, remaining);
        }
        connection.copied_out.take(remaining);
        done += count + remaining;
    }
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
    let result = match ring_policy::may_be_filtered() {
        true => Err(libc::EOPNOTSUPP),
        false => sys::write_what_fits(pipe, bytes),
    };
    let result = match result {
        Err(libc::EOPNOTSUPP) => sys::write_pages(pipe, bytes),
        result => result,
    };
    if let Ok(written) = result {
        drop_first(&mut guard, connection, written);
    }
    Some(result)
}
