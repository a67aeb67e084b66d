//! # Safety
//!
//! What a program reads from a connection that is served: what the ring has brought. Pointers are the program's,
//! valid for the call by the contract of the function that it called (Lent).
#![allow(unsafe_code)]

use libc::iovec;

use crate::connection::{self as flag, Conn};
use crate::counters::{self, Why};
use crate::epoll_set::{Held, Inner, Mode, Set};
use crate::errno::Answer;
use crate::fd_table::{self, Entry, Kind};
use crate::hand_back;
use crate::poll_cycle;
use crate::process;
use crate::send::served;
use crate::sys;

/// The flags of a receive that are known; others hand the connection back.
const KNOWN: i32 = libc::MSG_PEEK
    | libc::MSG_DONTWAIT
    | libc::MSG_WAITALL
    | libc::MSG_TRUNC
    | libc::MSG_NOSIGNAL
    | libc::MSG_CMSG_CLOEXEC;

/// Reads from a connection that is served, or that has something in hand. `None`: the kernel answers. `by_read`:
/// by `read` or `readv`, which ask the socket nothing if they have no room.
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
) -> Option<Answer> {
    let mut held = match served(entry, fd) {
        Ok(held) => held,
        Err(why) => {
            counters::passed(why);
            return None;
        }
    };
    if entry.kind() == Kind::Served && flags & !KNOWN != 0 {
        hand_back::hand_back(&mut held, fd, Why::UnknownFlags);
    }
    let mut connection = held.connection(fd)?;
    let total = match room_of(vectors, flags) {
        Ok(total) => total,
        Err(errno) => return Some(Err(errno)),
    };
    if total == 0 && by_read {
        return Some(Ok(0));
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return None;
    }
    held = look_first(held, entry, connection);
    let inner: &mut Inner = &mut held;
    if connection.in_hand() > 0 {
        let replayed = entry.kind() != Kind::Served;
        // SAFETY: Lent, passed on.
        let done = unsafe { take(inner, fd, connection, vectors, flags) };
        // SAFETY: Lent, passed on.
        return Some(Ok(done
            + unsafe {
                what_follows(fd, (vectors, total), done, replayed, flags)
            }));
    }
    // SAFETY: Lent, passed on.
    if let Some(answer) = unsafe { read_last(inner, fd, connection, (vectors, total), flags) } {
        return Some(answer);
    }
    // The end that was received comes before an error.
    if connection.error != 0 && !connection.is(flag::ENDED) {
        return Some(Err(std::mem::take(&mut connection.error)));
    }
    if connection.is(flag::ENDED | flag::DEAD) {
        return Some(Ok(0));
    }
    if entry.kind() == Kind::Replay {
        hand_back::settle(inner, fd, connection);
        return None;
    }
    if connection.is(flag::BULK) && !connection.is(flag::ARMED) {
        // SAFETY: Lent, passed on.
        return Some(unsafe { read_directly(inner, fd, connection, (vectors, total), flags) });
    }
    if connection.is(flag::ARMED) {
        return Some(Err(libc::EAGAIN));
    }
    // Nothing has been asked of the kernel: it has what there is.
    None
}

/// With less than this in hand a receive that was stopped goes on.
const AGAIN_BYTES: usize = 32 << 10;

/// How much the vectors hold.
fn room_of(vectors: &[iovec], flags: i32) -> Answer {
    let mut total = 0_usize;
    for vector in vectors {
        if vector.iov_len > isize::MAX as usize {
            return Err(libc::EINVAL);
        }
        total = total.saturating_add(vector.iov_len);
        let nowhere = !(4096..1 << 47).contains(&vector.iov_base.addr());
        if nowhere && vector.iov_len > 0 && flags & libc::MSG_TRUNC == 0 {
            return Err(libc::EFAULT);
        }
    }
    Ok(total)
}

/// Less than this of a connection that so much came from, and the ring receives again.
const SMALL_BYTES: u32 = 4096;

/// The kernel's answer, and what it says of what is still to come.
///
/// # Safety
///
/// Lent: the vectors are valid for writes, `total` bytes of them.
unsafe fn read_directly(
    inner: &mut Inner,
    fd: i32,
    mut connection: Conn,
    (vectors, total): (&[iovec], usize),
    flags: i32,
) -> Answer {
    // SAFETY: Lent, passed on.
    let answer = unsafe { sys::receive_vectors(fd, vectors, flags) };
    let drained = match answer {
        Ok(bytes) => bytes < total,
        Err(errno) => errno == libc::EAGAIN,
    };
    if flags & libc::MSG_PEEK != 0 {
        return answer;
    }
    connection.burst = connection.burst.saturating_add(answer.unwrap_or(0) as u32);
    if drained {
        connection.clear(flag::READABLE);
        let burst = std::mem::take(&mut connection.burst);
        if burst > 0 && burst < SMALL_BYTES {
            connection.clear(flag::BULK);
        }
        inner.arm(fd, connection);
    }
    answer
}

/// Of one that is over: what the kernel has comes before its error and its end, if the ring has left it there.
///
/// # Safety
///
/// Lent: the vectors are valid for writes, as many bytes as is said.
unsafe fn read_last(
    inner: &mut Inner,
    fd: i32,
    mut connection: Conn,
    room: (&[iovec], usize),
    flags: i32,
) -> Option<Answer> {
    let over = connection.error != 0 || connection.is(flag::DEAD);
    if !over || !connection.is(flag::READABLE) || connection.is(flag::ARMED) {
        return None;
    }
    // SAFETY: Lent, passed on.
    let answer = unsafe { read_directly(inner, fd, connection, room, flags) };
    if matches!(answer, Ok(1..)) {
        return Some(answer);
    }
    connection.clear(flag::READABLE);
    None
}

/// A read with nothing in hand sees what has come since the program waited, unless it has read in this round.
fn look_first(mut held: Held, entry: &'static Entry, connection: Conn) -> Held {
    let may_look = connection.is(flag::ARMED)
        && connection.in_hand() == 0
        && connection.round != held.round
        && entry.kind() == Kind::Served
        && held.mode == Mode::Serving
        && !held.in_handler();
    if may_look
        && held
            .ring
            .as_mut()
            .is_some_and(|machine| machine.ring.is_ready())
    {
        return poll_cycle::look(held);
    }
    held
}

/// Of one that was handed back the kernel may have what follows what was in hand: so much of it.
///
/// # Safety
///
/// Lent: the vectors are valid for writes, `total` bytes of them.
unsafe fn what_follows(
    fd: i32,
    (vectors, total): (&[iovec], usize),
    done: usize,
    replayed: bool,
    flags: i32,
) -> usize {
    let [vector] = vectors else { return 0 };
    // An error is the next read's to say: with nothing there the kernel is not asked.
    let wanted = replayed && done < total && flags & libc::MSG_PEEK == 0;
    if !wanted || process::asks_little() || sys::readable(fd) == 0 {
        return 0;
    }
    let rest = iovec {
        iov_base: vector.iov_base.wrapping_byte_add(done),
        iov_len: total - done,
    };
    // SAFETY: Lent, passed on: the rest of the vector.
    unsafe { sys::receive_vectors(fd, &[rest], flags) }.unwrap_or(0)
}

/// Copies what is in hand to the vectors, which have room for something or nothing.
///
/// # Safety
///
/// Lent: the vectors are valid for writes.
unsafe fn take(
    inner: &mut Inner,
    fd: i32,
    connection: Conn,
    vectors: &[iovec],
    flags: i32,
) -> usize {
    let discard = flags & libc::MSG_TRUNC != 0;
    let peek = flags & libc::MSG_PEEK != 0;
    let (mut done, first) = (0, connection.bytes as usize);
    for vector in vectors {
        let (mut room, mut into) = (vector.iov_len, vector.iov_base.cast::<u8>());
        while room > 0 {
            let (from, there) = if done < first {
                (connection.at.wrapping_add(done), first - done)
            } else {
                let rest = &connection.spilled.as_slice()[done - first..];
                (rest.as_ptr().cast_mut(), rest.len())
            };
            let count = room.min(there);
            if count == 0 {
                break;
            }
            if !discard {
                // SAFETY: Lent: the caller's; Owned: what is in hand of the connection.
                unsafe { std::ptr::copy_nonoverlapping(from, into, count) };
            }
            (room, into) = (room - count, into.wrapping_add(count));
            done += count;
        }
    }
    if !peek {
        drop_first(inner, fd, connection, done);
    }
    done
}

/// The first so many bytes in hand have been read.
fn drop_first(inner: &mut Inner, fd: i32, mut connection: Conn, bytes: usize) {
    let first = bytes.min(connection.bytes as usize);
    if first > 0 {
        connection.at = connection.at.wrapping_add(first);
        connection.bytes -= first as u32;
        if connection.bytes == 0 {
            give_back(inner, connection);
        }
    }
    connection.spilled.take(bytes - first);
    if connection.in_hand() < AGAIN_BYTES {
        inner.arm(fd, connection);
        hand_back::settle(inner, fd, connection);
    }
}

/// The buffer of a connection has been read.
fn give_back(inner: &mut Inner, mut connection: Conn) {
    connection.at = std::ptr::null_mut();
    if let Some(mut machine) = inner.ring.take() {
        inner.release(&mut machine, connection.buffer);
        inner.ring = Some(machine);
    }
}

/// Moves what lies in a buffer to memory of the connection's own: whoever does not read must not keep what all
/// receive into.
pub(crate) fn spill(inner: &mut Inner, mut connection: Conn) {
    if connection.bytes == 0 {
        return;
    }
    // SAFETY: Owned: the connection's part of a buffer of which it is a reader.
    let held = unsafe { std::slice::from_raw_parts(connection.at, connection.bytes as usize) };
    let later = connection.spilled.move_out();
    connection.spilled.append(held);
    connection.spilled.append(later.as_slice());
    connection.bytes = 0;
    give_back(inner, connection);
}

/// Frees all buffers that have readers.
pub(crate) fn spill_all(inner: &mut Inner) {
    for fd in 0..hand_back::served_max() as i32 {
        let ours = |entry: &&Entry| {
            Set::of(entry).is_some_and(|set| set.is_mine()) && entry.kind() == Kind::Served
        };
        if fd_table::entry(fd).as_ref().is_some_and(ours)
            && let Some(connection) = inner.connection(fd)
        {
            spill(inner, connection);
        }
    }
    // The buffers may all have been free before: then nobody has said so.
    for fd in std::mem::take(&mut inner.starved) {
        if let Some(connection) = inner.connection(fd) {
            inner.arm(fd, connection);
        }
    }
}

/// What FIONREAD says: what is in hand, and what the kernel has.
pub(crate) fn readable(entry: &'static Entry, fd: i32) -> Option<usize> {
    let held = served(entry, fd).ok()?;
    let mut held = held;
    if !held.in_handler()
        && entry.kind() == Kind::Served
        && held
            .ring
            .as_mut()
            .is_some_and(|machine| machine.ring.is_ready())
    {
        held = poll_cycle::look(held);
    }
    let connection = held.connection(fd)?;
    Some(connection.in_hand())
}

/// What SIOCOUTQ says on top of what the kernel has: what is queued.
pub(crate) fn unsent(entry: &'static Entry, fd: i32) -> Option<usize> {
    let held = served(entry, fd).ok()?;
    let connection = held.connection(fd)?;
    Some(connection.out_bytes as usize + connection.backlog.len())
}

/// In a child of a fork: what its parent had in hand when it forked. `None`: nothing, the kernel answers.
///
/// # Safety
///
/// Lent: the vectors are valid for writes.
pub(crate) unsafe fn read_inherited(entry: &'static Entry, vectors: &[iovec]) -> Option<Answer> {
    if entry.inherited() != Kind::Served && entry.inherited() != Kind::Replay {
        return None;
    }
    // SAFETY: Held: a child that reads what its parent served is not served itself, and has its own copy.
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
        let more = connection.spilled.as_slice();
        let rest = (vector.iov_len - count).min(more.len());
        // SAFETY: Lent: as above.
        unsafe {
            let into = vector.iov_base.cast::<u8>().add(count);
            std::ptr::copy_nonoverlapping(more.as_ptr(), into, rest);
        }
        connection.spilled.take(rest);
        done += count + rest;
    }
    (done > 0).then_some(Ok(done))
}

/// Moves what is in hand to a pipe. `None`: nothing is, the kernel splices.
pub(crate) fn splice_in_hand(
    entry: &'static Entry,
    fd: i32,
    pipe: i32,
    bytes: usize,
) -> Option<Answer> {
    let mut held = served(entry, fd).ok()?;
    let connection = held.connection(fd)?;
    spill(&mut held, connection);
    let there = connection.spilled.as_slice();
    if there.is_empty() {
        return None;
    }
    let answer = sys::write(pipe, &there[..there.len().min(bytes)]);
    if let Ok(written) = answer {
        drop_first(&mut held, fd, connection, written);
    }
    Some(answer)
}
