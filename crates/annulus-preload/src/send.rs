//! # Safety
//!
//! What a program writes to a connection that is served: small writes are queued in the arena and leave together
//! at the end of the round; large ones go at once, behind what is queued. Pointers are the program's, valid for the
//! call by the contract of the function that it called (Lent).
#![allow(unsafe_code)]

use libc::iovec;

use crate::connection::{self as flag, Conn, OUT};
use crate::counters::{self, Call, Why};
use crate::deferred_output;
use crate::epoll_set::{Held, Inner, Mode, Set};
use crate::errno::Answer;
use crate::fd_table::{self, Entry, Kind};
use crate::flush_thread;
use crate::hand_back;
use crate::process;
use crate::sys;

/// From so many bytes on a write is not queued: a copy costs more than a call.
const AT_ONCE_BYTES: usize = 4096;
/// Most that is queued of one connection, bytes.
const QUEUED_MAX: usize = 64 << 10;
/// So many connections have something queued: it is sent without waiting for the end of the round. Few, and what a
/// server writes that goes round its connections would not be gathered.
const CONNECTIONS_MAX: usize = 256;
/// After so many writes a round looks at the clock, and sends what has waited for so long, ns.
const WRITES_A_LOOK: u32 = 32;
const LOOK_NS: u64 = 1_000_000;

/// The set of a connection, if this call is to be served. `Err`: to the kernel, and why.
pub(crate) fn served(entry: &'static Entry, fd: i32) -> Result<Held, Why> {
    let set = Set::of(entry).ok_or(Why::Kernel)?;
    let mut held = set.take().ok_or(Why::InHandler)?;
    if entry.kind() == Kind::Served && !set.is_mine() && held.mode == Mode::Serving {
        hand_back::touched_by_a_stranger(&mut held, fd);
    }
    Ok(held)
}

/// Writes to a connection that is served, or that has something in hand. `None`: the kernel answers.
///
/// # Safety
///
/// Lent: the vectors are valid for reads.
pub(crate) unsafe fn write(
    entry: &'static Entry,
    fd: i32,
    vectors: &[iovec],
    flags: i32,
) -> Option<Answer> {
    const KNOWN: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
    let mut held = match served(entry, fd) {
        Ok(held) => held,
        Err(why) => {
            counters::passed(why);
            return None;
        }
    };
    let inner: &mut Inner = &mut held;
    if entry.kind() == Kind::Served && flags & !KNOWN != 0 {
        hand_back::hand_back(inner, fd, Why::UnknownFlags);
    }
    let mut connection = inner.connection(fd)?;
    let answer = if entry.kind() == Kind::Replay {
        if connection.error != 0 {
            // The ring was told of it, and the kernel tells it once.
            let error = std::mem::take(&mut connection.error);
            hand_back::settle(inner, fd, connection);
            return Some(Err(error));
        }
        if connection.backlog.is_empty() {
            return None;
        }
        let shut = connection.is(flag::SHUT);
        if !shut {
            go_on(inner, fd, connection);
        }
        if connection.backlog.is_empty() {
            return None;
        }
        let blocks = !shut && flags & libc::MSG_DONTWAIT == 0 && !held.in_handler() && blocks(fd);
        if blocks {
            drop(held);
            return match deferred_output::wait_for_room(fd) {
                // SAFETY: Lent, passed on.
                Ok(()) => unsafe { write(entry, fd, vectors, flags) },
                Err(errno) => Some(Err(errno)),
            };
        }
        Err(if shut { libc::EPIPE } else { libc::EAGAIN })
    } else {
        // SAFETY: Lent, passed on.
        let answer = unsafe { write_served(inner, fd, connection, vectors) };
        if held.in_handler() {
            // Its thread may be about to sleep.
            flush(&mut held, fd, connection);
        }
        answer
    };
    if answer == Err(libc::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        drop(held);
        if !process::asks_little() && sys::is_deadly(libc::SIGPIPE) {
            flush_everything(process::LAST_BYTES_MS);
        }
        sys::raise_pipe();
    }
    Some(answer)
}

/// Whether its calls wait for room.
fn blocks(fd: i32) -> bool {
    sys::flags_of(fd).is_ok_and(|flags| flags as i32 & libc::O_NONBLOCK == 0)
}

/// # Safety
///
/// Lent: the vectors are valid for reads.
unsafe fn write_served(
    inner: &mut Inner,
    fd: i32,
    mut connection: Conn,
    vectors: &[iovec],
) -> Answer {
    let mut total = 0_usize;
    for vector in vectors {
        if vector.iov_len > isize::MAX as usize {
            return Err(libc::EINVAL);
        }
        total = total.saturating_add(vector.iov_len);
        if !(4096..1 << 47).contains(&vector.iov_base.addr()) && vector.iov_len > 0 {
            return Err(libc::EFAULT);
        }
    }
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
        // The kernel may have made room since.
        go_on(inner, fd, connection);
        if !connection.backlog.is_empty() {
            return Err(libc::EAGAIN);
        }
    }
    let queued = connection.out_bytes as usize;
    let at_once = total >= AT_ONCE_BYTES || queued + total > QUEUED_MAX;
    if !at_once && !connection.is(flag::FULL) {
        // SAFETY: Lent, passed on.
        if unsafe { queue(inner, fd, connection, vectors, total) } {
            return Ok(total);
        }
        // Room was looked for, and what was queued has been sent, perhaps in part.
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
    // SAFETY: Lent, passed on.
    unsafe { write_at_once(inner, fd, connection, vectors, total) }
}

/// Puts it into the arena. False: there is no room.
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
    let Some(at) = make_room(inner, connection, total) else {
        return false;
    };
    let mut at = at;
    for vector in vectors {
        // SAFETY: Lent: the caller's; Owned: room for all of them was made.
        unsafe {
            std::ptr::copy_nonoverlapping(vector.iov_base.cast::<u8>(), at, vector.iov_len);
            at = at.add(vector.iov_len);
        }
    }
    is_queued(inner, fd, connection, total);
    true
}

/// Room for `more` bytes behind those that are queued already.
pub(crate) fn make_room(inner: &mut Inner, mut connection: Conn, more: usize) -> Option<*mut u8> {
    for attempt in 0..2 {
        let machine = inner.ring.as_mut()?;
        let (from, used) = (connection.out_from, connection.out_bytes);
        let place = (machine.arena).extend(from, used, connection.out_room, more as u32);
        if let Some((from, room)) = place {
            (connection.out_from, connection.out_room) = (from, room);
            // SAFETY: Owned: within the arena, as `extend` has answered.
            return Some(unsafe { machine.arena.at(from).add(used as usize) });
        }
        if attempt == 0 {
            inner.submit_sends();
            // What the kernel had no room for comes first.
            if connection.is(flag::FULL | flag::BROKEN) {
                return None;
            }
        }
    }
    None
}

/// So many bytes more lie in the arena.
pub(crate) fn is_queued(inner: &mut Inner, fd: i32, mut connection: Conn, bytes: usize) {
    connection.out_bytes += bytes as u32;
    inner.writes += 1;
    if inner.writes == 1 {
        inner.written_at_ns = sys::now_ns();
    }
    let hurries = inner.pace.hurries();
    if !connection.is(flag::QUEUED) {
        connection.mark(flag::QUEUED);
        inner.queued.push(fd);
        if inner.queued_at_ns == 0 && !hurries {
            inner.is_queued_since(match inner.writes {
                1 => inner.written_at_ns,
                _ => sys::now_ns(),
            });
            flush_thread::is_queued();
        }
    }
    let looks = inner.writes.is_multiple_of(WRITES_A_LOOK);
    let is_late = looks && sys::now_ns() - inner.queued_at_ns > LOOK_NS;
    if is_late || inner.queued.len() >= CONNECTIONS_MAX || hurries {
        inner.submit_sends();
    }
}

/// Nothing is held back any more, for a while.
pub(crate) fn hurry(inner: &mut Inner) {
    inner.pace.hurry();
}

/// The round is over: whether what was written in it has waited too long, or would have. Nothing is held back of a
/// server that does something else for long after it has written.
pub(crate) fn end_round(inner: &mut Inner) {
    let writes = std::mem::take(&mut inner.writes);
    if writes == 0 {
        return;
    }
    let took_ns = sys::now_ns().saturating_sub(inner.written_at_ns);
    inner.pace.round(writes, took_ns, sys::preempted);
    if took_ns > LOOK_NS && inner.queued_at_ns != 0 && inner.pace.hurries() {
        flush_thread::was_late();
    }
}

/// # Safety
///
/// Lent: the vectors are valid for reads, `total` bytes of them.
unsafe fn write_at_once(
    inner: &mut Inner,
    fd: i32,
    mut connection: Conn,
    vectors: &[iovec],
    total: usize,
) -> Answer {
    let queued = connection.out_bytes as usize;
    let sent = match &inner.ring {
        Some(machine) if queued > 0 && vectors.len() < 64 => {
            let mut all = [iovec {
                iov_base: machine.arena.at(connection.out_from).cast(),
                iov_len: queued,
            }; 64];
            all[1..=vectors.len()].copy_from_slice(vectors);
            // SAFETY: Lent: the caller's, and the arena's.
            unsafe { sys::send_vectors(fd, &all[..=vectors.len()], 0) }
        }
        Some(_) if queued > 0 => {
            flush(inner, fd, connection);
            if connection.is(flag::FULL) {
                return Err(libc::EAGAIN);
            }
            // SAFETY: Lent, passed on.
            return unsafe { write_at_once(inner, fd, connection, vectors, total) };
        }
        // SAFETY: Lent, passed on.
        _ => unsafe { sys::send_vectors(fd, vectors, 0) },
    };
    match sent {
        Ok(sent) => {
            let ours = sent.min(queued);
            drop_queued(inner, fd, connection, ours);
            let theirs = sent - ours;
            if theirs < total {
                is_full(inner, fd, connection);
            }
            if theirs == 0 {
                Err(libc::EAGAIN)
            } else {
                Ok(theirs)
            }
        }
        Err(libc::EAGAIN) => {
            drop_queued(inner, fd, connection, 0);
            is_full(inner, fd, connection);
            Err(libc::EAGAIN)
        }
        Err(
            errno @ (libc::EFAULT
            | libc::EINVAL
            | libc::EINTR
            | libc::ENOBUFS
            | libc::ENOMEM
            | libc::EMSGSIZE),
        ) => Err(errno),
        Err(errno) => {
            drop_queued(inner, fd, connection, queued);
            broke(inner, fd, connection, errno);
            connection.error = 0;
            Err(errno)
        }
    }
}

/// Of what is queued the first `sent` bytes have gone; the rest waits for room.
fn drop_queued(inner: &mut Inner, fd: i32, mut connection: Conn, sent: usize) {
    let queued = connection.out_bytes as usize;
    if queued == 0 {
        return;
    }
    if let Some(machine) = &inner.ring
        && sent < queued
    {
        let from = machine.arena.at(connection.out_from);
        // SAFETY: Owned: the connection's part of the arena.
        let rest = unsafe { std::slice::from_raw_parts(from.add(sent), queued - sent) };
        let rest = rest.to_vec();
        deferred_output::put_aside(inner, fd, connection, &rest);
    }
    // It stays in the list of those that have something queued, with nothing.
    (
        connection.out_from,
        connection.out_bytes,
        connection.out_room,
    ) = (0, 0, 0);
}

/// Sends what is queued, now.
pub(crate) fn flush(inner: &mut Inner, fd: i32, connection: Conn) {
    flush_by(inner, fd, connection, sys::send);
}

/// The same, behind which nothing follows: the end leaves in the same segment. And before the program closes it, as
/// a close with something unread, which may come at any moment, would take back what has not left.
pub(crate) fn flush_last(inner: &mut Inner, fd: i32, connection: Conn) {
    flush_by(inner, fd, connection, sys::send_more);
    if !connection.is(flag::FULL | flag::BROKEN) {
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    }
}

fn flush_by(inner: &mut Inner, fd: i32, connection: Conn, send: fn(i32, &[u8]) -> Answer) {
    if connection.out_bytes > 0
        && let Some(machine) = &inner.ring
    {
        // SAFETY: Owned: the connection's part of the arena.
        let queued = unsafe {
            std::slice::from_raw_parts(
                machine.arena.at(connection.out_from),
                connection.out_bytes as usize,
            )
        };
        match send(fd, queued) {
            Ok(sent) if sent == queued.len() => drop_queued(inner, fd, connection, sent),
            Ok(sent) => {
                drop_queued(inner, fd, connection, sent);
                is_full(inner, fd, connection);
            }
            Err(libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::ENOBUFS) => {
                drop_queued(inner, fd, connection, 0);
                is_full(inner, fd, connection);
            }
            Err(errno) => {
                drop_queued(inner, fd, connection, usize::MAX);
                broke(inner, fd, connection, errno);
            }
        }
    }
    if connection.is(flag::FULL) {
        go_on(inner, fd, connection);
    }
}

/// The kernel takes no more: the ring waits for room.
pub(crate) fn is_full(inner: &mut Inner, fd: i32, mut connection: Conn) {
    connection.mark(flag::FULL);
    wait_for_room(inner, fd);
}

/// By its ring, if it has one.
fn wait_for_room(inner: &mut Inner, fd: i32) {
    if inner.mode == Mode::Serving {
        inner.to_poll.push(fd);
    }
}

/// Nothing can be written any more.
pub(crate) fn broke(inner: &mut Inner, fd: i32, mut connection: Conn, errno: i32) {
    connection.mark(flag::BROKEN);
    if errno != libc::EPIPE {
        connection.error = errno;
        connection.mark(flag::DEAD);
    }
    connection.backlog.clear();
    connection.clear(flag::FULL);
    inner.notify(fd, connection, 0);
}

/// Sends what had no room. The program is told when there is some again.
pub(crate) fn go_on(inner: &mut Inner, fd: i32, mut connection: Conn) {
    while !connection.backlog.is_empty() {
        match sys::send(fd, connection.backlog.as_slice()) {
            Ok(sent) => connection.backlog.take(sent),
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS) => {
                wait_for_room(inner, fd);
                return;
            }
            Err(errno) => return broke(inner, fd, connection, errno),
        }
    }
    if connection.is(flag::TO_SHUT) {
        connection.clear(flag::TO_SHUT);
        let _ = sys::shutdown(fd, libc::SHUT_WR);
    }
    if connection.is(flag::FULL) {
        connection.clear(flag::FULL);
        inner.notify(fd, connection, OUT);
        hand_back::has_room(inner, fd, connection);
    }
}

/// Before the process becomes another program, or ends: what is queued is sent, and what had no room is waited
/// for, for at most so long.
pub(crate) fn flush_everything(wait_ms: u64) {
    let deadline_ns = sys::now_ns() + wait_ms * 1_000_000;
    for fd in 0..hand_back::served_max() as i32 {
        let Some(entry) = fd_table::entry(fd) else {
            break;
        };
        if !matches!(entry.kind(), Kind::Served | Kind::Replay) {
            continue;
        }
        let Some(mut held) = Set::of(entry).and_then(|set| set.take()) else {
            continue;
        };
        let Some(connection) = held.connection(fd) else {
            continue;
        };
        flush(&mut held, fd, connection);
        while !connection.backlog.is_empty() && sys::now_ns() < deadline_ns {
            sys::pause_us(500);
            go_on(&mut held, fd, connection);
        }
    }
    deferred_output::wait_until(deadline_ns);
}

/// Counts what became of a write.
pub(crate) fn count(call: Call, answer: Option<Answer>) {
    match answer {
        Some(Ok(_) | Err(libc::EAGAIN)) => counters::served(call),
        Some(Err(errno)) => {
            counters::served(call);
            counters::failed(call, errno);
        }
        None => {}
    }
}

/// Reads a part of a file into the queue. `None`: the kernel sends it.
pub(crate) fn write_file(
    entry: &'static Entry,
    to: i32,
    from: i32,
    at: i64,
    count: usize,
) -> Option<Answer> {
    let mut held = served(entry, to).ok()?;
    if entry.kind() != Kind::Served || held.in_handler() {
        return None;
    }
    let connection = held.connection(to)?;
    let inner: &mut Inner = &mut held;
    let plain = connection.error == 0
        && !connection.is(flag::BROKEN | flag::SHUT | flag::FULL)
        && connection.out_bytes as usize + count <= QUEUED_MAX
        && count > 0;
    if !plain {
        return None;
    }
    let place = make_room(inner, connection, count)?;
    // SAFETY: Lent: room for as many was made.
    match unsafe { sys::pread(from, place, count, at) } {
        Ok(0) => Some(Ok(0)),
        Ok(bytes) => {
            is_queued(inner, to, connection, bytes);
            Some(Ok(bytes))
        }
        // It is no file that can be read at an offset.
        Err(_) => None,
    }
}

/// The program sends FIN, behind what it has written. `None`: the kernel does it.
pub(crate) fn shut(entry: &'static Entry, fd: i32, how: i32) -> Option<Answer> {
    let mut held = served(entry, fd).ok()?;
    // Of one that is over for reading the kernel knows all that is still to be said.
    if how != libc::SHUT_WR {
        hand_back::hand_back(&mut held, fd, Why::UnknownFlags);
        // The call makes an edge of its own.
        held.knows_no_more_of(fd);
        let mut connection = held.connection(fd)?;
        held.notify(fd, connection, 0);
        if how != libc::SHUT_RDWR || connection.backlog.is_empty() {
            return None;
        }
        // What had no room comes before FIN.
        connection.mark(flag::TO_SHUT | flag::SHUT);
        return Some(sys::shutdown(fd, libc::SHUT_RD));
    }
    let mut connection = held.connection(fd)?;
    let inner: &mut Inner = &mut held;
    flush(inner, fd, connection);
    if !connection.backlog.is_empty() {
        connection.mark(flag::TO_SHUT | flag::SHUT);
        return Some(Ok(0));
    }
    let answer = sys::shutdown(fd, how);
    if answer.is_ok() {
        connection.mark(flag::SHUT);
    }
    // The kernel tells whoever waits, whatever came of it: an edge of its own.
    inner.knows_no_more(fd, connection.data);
    inner.notify(fd, connection, 0);
    Some(answer)
}

/// The kernel is about to do it for one that a set had: an edge of its own.
pub(crate) fn is_about_to_shut(fd: i32) {
    let entry = fd_table::entry(fd).filter(|entry| entry.kind() == Kind::Stream);
    let set = entry.and_then(Set::of).filter(|set| set.is_mine());
    if let Some(mut held) = set.and_then(Set::take) {
        held.knows_no_more_of(fd);
    }
}

/// The error that is to be said, which is over then. `None`: the kernel knows.
pub(crate) fn take_error(entry: &'static Entry, fd: i32) -> Option<Answer> {
    let held = served(entry, fd).ok()?;
    let mut connection = held.connection(fd)?;
    let error = std::mem::take(&mut connection.error);
    (error != 0).then_some(Ok(error as usize))
}
