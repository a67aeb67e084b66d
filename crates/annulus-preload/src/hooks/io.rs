//! # Safety
//!
//! Reads and writes (Typed, Lent: the header of `hooks` gives the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, mmsghdr, msghdr, off64_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

use super::blocking::{before_blocking, before_read, before_repeat};
use super::unserve::{hand_back, mark_passed_fds_shared, never_serve_siblings};
use super::waits::{flush_before, poll, wait_for_pipe, waits_for_room, when_there_is_room};
use super::{FdState, attempt, buffered, catch_panic, fd_state, may_be_mapped};
use crate::counters::{self, Call, Why};
use crate::epoll_set::{Set, SetGuard};
use crate::errno::{self, CallResult, catch_panic_only, into_return};
use crate::events::{ERR, OUT};
use crate::fd_table::{self, Kind};
use crate::gate;
use crate::output;
use crate::real;
use crate::receive;
use crate::ring_teardown;
use crate::send;
use crate::sys;
use crate::vectors::{Source, Target};

/// Flags of calls that do not change what the library does in the usual state of a connection.
const USUAL_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

/// The maximum number of vectors of a call.
const VECTORS_MAX: usize = 1024;

#[inline]
fn read_by(call: Call, fd: c_int, target: Target<'_>, flags: c_int) -> Option<CallResult> {
    if flags & !USUAL_FLAGS == 0
        && let Some(entry) = fd_table::entry(fd)
    {
        let result = catch_panic_only(|| receive::read_usual(entry, fd, target, call));
        if result.is_some() {
            return result;
        }
    }
    read_any(call, fd, target, flags)
}

#[inline(never)]
fn read_any(call: Call, fd: c_int, target: Target<'_>, flags: c_int) -> Option<CallResult> {
    let by_read = matches!(call, Call::Read | Call::Readv);
    if flags & libc::MSG_OOB != 0 {
        never_serve_siblings(fd, Why::UnknownFlags);
    }
    let result = match fd_state(fd) {
        FdState::Kernel => {
            before_read(fd);
            return None;
        }
        FdState::Closed => Some(Err(libc::EBADF)),
        FdState::Connection(entry) => {
            let result = catch_panic(|| receive::read(entry, fd, target, flags, by_read));
            if matches!(result, None | Some(Err(libc::EAGAIN))) {
                before_repeat();
            }
            result
        }
        FdState::Inherited(entry) => {
            counters::passed(Why::Forked);
            catch_panic(|| receive::read_inherited(entry, target))
        }
    };
    counters::count_result(call, result);
    if flags & libc::MSG_WAITALL != 0
        && let Some(Ok(done @ 1..)) = result
    {
        return Some(Ok(pass_on!(receive_rest(fd, target, done, flags))));
    }
    result
}

/// Continues a receive with `MSG_WAITALL` on a blocking connection, of which `done` bytes were buffered. Returns the
/// number of bytes of both. Urgent data, and an error that the kernel has now, are left to the next call.
#[cold]
unsafe fn receive_rest(fd: c_int, target: Target<'_>, mut done: usize, mut flags: c_int) -> usize {
    let vectors = target.vectors();
    let total: usize = vectors.iter().map(|vector| vector.iov_len).sum();
    let is_served =
        matches!(fd_state(fd), FdState::Connection(entry) if entry.kind() == Kind::Served);
    let end_ns = sys::limit_ends_ns(fd, libc::SO_RCVTIMEO);
    let has_error = || sys::poll_now(fd, ERR) & ERR != 0 && sys::readable(fd) == 0;
    let mut waits = flags & libc::MSG_DONTWAIT == 0 && !is_served && sys::is_blocking(fd);
    while waits && done < total && !sys::is_at_mark(fd) && !has_error() {
        before_blocking();
        let ret = target.behind::<VECTORS_MAX, _>(done, |rest| {
            let mut message = sys::message(rest.vectors());
            pass_on!(real::recvmsg(fd, &raw mut message, flags))
        });
        done += usize::try_from(ret).unwrap_or(0);
        // The teardown of the ring may have ended the wait.
        waits = flags & libc::MSG_PEEK == 0
            && (ret > 0 || ret < 0 && matches!(errno::get(), libc::EINTR | libc::EAGAIN))
            && ring_teardown::has_interrupted();
        if waits && end_ns.is_some() {
            // The kernel would count the whole limit again.
            flags |= libc::MSG_DONTWAIT;
            waits = pass_on!(poll(fd, libc::POLLIN, end_ns)).is_ok();
        }
    }
    done
}

#[inline]
fn write_by(call: Call, fd: c_int, source: Source<'_>, flags: c_int) -> Option<CallResult> {
    if flags & !USUAL_FLAGS == 0
        && let Some(entry) = fd_table::entry(fd)
    {
        let result = catch_panic_only(|| send::write_usual(entry, fd, source, call));
        if result.is_some() {
            return result;
        }
    }
    write_any(call, fd, source, flags)
}

#[inline(never)]
fn write_any(call: Call, fd: c_int, source: Source<'_>, flags: c_int) -> Option<CallResult> {
    attempt(|| Set::before_kernel_write(fd));
    let result = match fd_state(fd) {
        FdState::Kernel => {
            fd_table::on_written(fd);
            return None;
        }
        FdState::Inherited(_) => return None,
        FdState::Closed => Some(Err(libc::EBADF)),
        // The kernel does not access the socket.
        FdState::Connection(_) if call == Call::Writev && source.bytes() == Ok(0) => Some(Ok(0)),
        FdState::Connection(entry) => {
            let result = catch_panic(|| send::write(entry, fd, source, flags));
            match result {
                Some(Err(libc::EAGAIN))
                    if entry.kind() == Kind::HandedBack
                        && flags & libc::MSG_DONTWAIT == 0
                        && waits_for_room(entry, fd) =>
                {
                    // Once the deferred output is sent, the call passes through.
                    let attempt = || catch_panic(|| send::write(entry, fd, source, flags));
                    pass_on!(when_there_is_room(fd, flags, attempt))
                }
                result => result,
            }
        }
    };
    if result == Some(Err(libc::EAGAIN)) {
        before_repeat();
    }
    counters::count_result(call, result);
    result
}

/// Returns the vectors, up to 1,024, the kernel's limit. `None`: the kernel returns the error.
unsafe fn slice<'a>(vectors: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if !may_be_mapped(vectors) || count > VECTORS_MAX {
        return None;
    }
    // SAFETY: Lent: the caller passes `count` valid vectors.
    Some(unsafe { std::slice::from_raw_parts(vectors, count) })
}

fn plain<'a>(message: *mut msghdr) -> Option<&'a msghdr> {
    let aligned = message.is_aligned() && may_be_mapped(message);
    // SAFETY: Lent: the program passes a message, and does not change it during the call.
    aligned.then(|| unsafe { &*message })
}

fn one(base: *const c_void, bytes: size_t) -> [iovec; 1] {
    [iovec {
        iov_base: base.cast_mut(),
        iov_len: bytes,
    }]
}

#[inline]
unsafe fn read_one(
    call: Call,
    fd: c_int,
    (base, bytes): (*mut c_void, size_t),
    flags: c_int,
) -> Option<CallResult> {
    let vectors = one(base, bytes);
    read_by(call, fd, pass_on!(Target::new(&vectors)), flags)
}

#[inline]
unsafe fn write_one(
    call: Call,
    fd: c_int,
    (base, bytes): (*const c_void, size_t),
    flags: c_int,
) -> Option<CallResult> {
    let vectors = one(base, bytes);
    write_by(call, fd, pass_on!(Source::new(&vectors)), flags)
}

hooks! {
    fn read(fd: c_int, base: *mut c_void, bytes: size_t) -> ssize_t
        = pass_on!(read_one(Call::Read, fd, (base, bytes), 0));

    fn __read_chk(fd: c_int, base: *mut c_void, bytes: size_t, capacity: size_t) -> ssize_t {
        checked(bytes, capacity);
        pass_on!(read(fd, base, bytes))
    }

    fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t
        = pass_on!(slice(vectors, count as usize))
            .and_then(|valid| read_by(Call::Readv, fd, pass_on!(Target::new(valid)), 0));

    fn recv(fd: c_int, base: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t
        = pass_on!(read_one(Call::Recv, fd, (base, bytes), flags));

    fn __recv_chk(fd: c_int, base: *mut c_void, bytes: size_t, capacity: size_t, flags: c_int) -> ssize_t {
        checked(bytes, capacity);
        pass_on!(recv(fd, base, bytes, flags))
    }

    fn recvfrom(fd: c_int, base: *mut c_void, bytes: size_t, flags: c_int, from: *mut sockaddr,
        from_bytes: *mut socklen_t) -> ssize_t
        = pass_on!(read_one(Call::Recv, fd, (base, bytes), flags)).map(|result| {
            let count = result?;
            // A stream has no sender address to return. An invalid pointer for it is an error after the read.
            if !from.is_null() && !may_be_mapped(from_bytes) {
                return Err(libc::EFAULT);
            }
            if !from.is_null() {
                // SAFETY: Lent: with an address, the program also passes its length; see `may_be_mapped`.
                let length = unsafe { &mut *from_bytes };
                if length.cast_signed() < 0 {
                    return Err(libc::EINVAL);
                }
                *length = 0;
            }
            Ok(count)
        });

    fn __recvfrom_chk(fd: c_int, base: *mut c_void, bytes: size_t, capacity: size_t, flags: c_int,
        from: *mut sockaddr, from_bytes: *mut socklen_t) -> ssize_t {
        checked(bytes, capacity);
        pass_on!(recvfrom(fd, base, bytes, flags, from, from_bytes))
    }

    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t
        // SAFETY: Lent: the program passes a message, or null.
        = unsafe { message.as_ref() }
            // The kernel returns the error for an invalid length.
            .filter(|message| message.msg_namelen.cast_signed() >= 0)
            .and_then(|message| pass_on!(slice(message.msg_iov, message.msg_iovlen)))
            .and_then(|valid| read_by(Call::Recvmsg, fd, pass_on!(Target::new(valid)), flags))
            .inspect(|result| if result.is_ok() {
                // SAFETY: Lent: a message that was read above; nothing refers to it any more.
                let message = unsafe { &mut *message };
                message.msg_namelen = 0;
                message.msg_controllen = 0;
                message.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            });

    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int {
        let FdState::Connection(_) = fd_state(fd) else {
            before_read(fd);
            return pass_on!(real(fd, messages, count, flags, timeout));
        };
        let is_first = Cell::new(true);
        pass_on!(each(messages, count, |message| {
            let waits = is_first.replace(false) || flags & libc::MSG_WAITFORONE == 0;
            let dont_wait = if waits { 0 } else { libc::MSG_DONTWAIT };
            recvmsg(fd, message, flags & !libc::MSG_WAITFORONE | dont_wait)
        }))
    }

    fn write(fd: c_int, base: *const c_void, bytes: size_t) -> ssize_t
        = pass_on!(write_one(Call::Write, fd, (base, bytes), 0));

    fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t
        = pass_on!(slice(vectors, count as usize))
            .and_then(|valid| write_by(Call::Writev, fd, pass_on!(Source::new(valid)), 0));

    fn send(fd: c_int, base: *const c_void, bytes: size_t, flags: c_int) -> ssize_t
        = pass_on!(write_one(Call::Send, fd, (base, bytes), flags));

    fn sendto(fd: c_int, base: *const c_void, bytes: size_t, flags: c_int, to: *const sockaddr,
        to_bytes: socklen_t) -> ssize_t = {
        if to.is_null() {
            pass_on!(write_one(Call::Send, fd, (base, bytes), flags))
        } else {
            // A stream ignores an address; the kernel decides on errors.
            hand_back(fd, Why::UnknownFlags);
            pass_on!(flush_before(fd, flags))
        }
    };

    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t
        = plain(message.cast_mut()).and_then(|valid| {
            let is_plain = valid.msg_name.is_null() && valid.msg_controllen == 0;
            if is_plain
                && let Some(vectors) = pass_on!(slice(valid.msg_iov, valid.msg_iovlen))
                && let Some(result) = write_by(Call::Sendmsg, fd, pass_on!(Source::new(vectors)), flags)
            {
                return Some(result);
            }
            pass_on!(mark_passed_fds_shared(valid));
            if is_plain {
                return None;
            }
            hand_back(fd, Why::UnknownFlags);
            pass_on!(flush_before(fd, flags))
        });

    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if let FdState::Connection(_) = fd_state(fd) {
            return pass_on!(each(messages, count, |message| sendmsg(fd, message, flags)));
        }
        if may_be_mapped(messages) {
            for nth in 0..count.min(VECTORS_MAX as c_uint) as usize {
                pass_on!(mark_passed_fds_shared(&(*messages.add(nth)).msg_hdr));
            }
        }
        pass_on!(real(fd, messages, count, flags))
    }
}

/// Calls `call` for each message, as the kernel does. Returns the number of messages, or the error of the first.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    call: impl Fn(*mut msghdr) -> ssize_t,
) -> c_int {
    // The kernel processes this many at most.
    let count = count.min(VECTORS_MAX as c_uint);
    for nth in 0..count {
        // SAFETY: Lent: the program passes `count` messages.
        let message = unsafe { messages.add(nth as usize) };
        // SAFETY: Lent: one of the program's messages.
        let ret = call(unsafe { &raw mut (*message).msg_hdr });
        if ret < 0 {
            return if nth == 0 { -1 } else { nth as c_int };
        }
        // SAFETY: Lent: one of the program's messages.
        unsafe { (*message).msg_len = ret as c_uint };
    }
    count as c_int
}

/// The largest part of a file that is read into the queue, bytes; larger parts are sent from the page cache.
const FILE_MAX: usize = 64 << 10;

hooks! {
    fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        hand_back(from, Why::UnknownFlags);
        if offset.is_null()
            && let Some(result) = pass_on!(splice_buffered(from, to, count, 0))
        {
            return into_return(result);
        }
        if let FdState::Connection(entry) = fd_state(to)
            && count <= FILE_MAX
            && may_be_mapped(offset)
        {
            // SAFETY: Lent: the program passes an offset to read and write; see `may_be_mapped`.
            let at = unsafe { offset.read_unaligned() };
            let sent = catch_panic(|| send::write_file(entry, to, from, at, count));
            counters::count_result(Call::Sendfile, sent);
            if let Some(result) = sent {
                if let Ok(bytes) = result {
                    // SAFETY: Lent: as above.
                    unsafe { offset.write_unaligned(at + bytes as off64_t) };
                }
                return into_return(result);
            }
        }
        if let Some(result) = pass_on!(flush_before(to, 0)) {
            return into_return(result);
        }
        let ret = pass_on!(real(to, from, offset, count));
        after_real(to, ret, count);
        ret
    }

    fn sendfile(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
        pass_on!(sendfile64(to, from, offset, count))
    }

    fn splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, bytes: size_t,
        flags: c_uint) -> ssize_t = {
        hand_back(from, Why::UnknownFlags);
        hand_back(to, Why::UnknownFlags);
        if let FdState::Kernel = fd_state(from) {
            before_read(from);
        }
        let moved = match from_offset.is_null() && to_offset.is_null() {
            true => pass_on!(splice_buffered(from, to, bytes, flags)),
            false => None,
        };
        moved.or_else(|| pass_on!(flush_before(to, 0)))
    };
}

/// The flags that `splice` accepts.
const SPLICE_FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// Moves buffered bytes of a connection into a pipe, by the kernel's rules: waits for room unless the call or the pipe
/// is non-blocking, and then moves what fits. No lock is held while it waits. `None`: the kernel handles the call.
unsafe fn splice_buffered(
    from: c_int,
    to: c_int,
    bytes: size_t,
    flags: c_uint,
) -> Option<CallResult> {
    let FdState::Connection(entry) = fd_state(from) else {
        return None;
    };
    // The kernel returns the error.
    if bytes == 0 || flags & !SPLICE_FLAGS != 0 || !sys::is_pipe(to) {
        return None;
    }
    loop {
        let result = catch_panic(|| receive::splice_buffered(entry, from, to, bytes))?;
        let may_wait = flags & libc::SPLICE_F_NONBLOCK == 0 && sys::is_blocking(to);
        if result != Err(libc::EAGAIN) || !may_wait {
            return Some(result);
        }
        if let Err(errno) = pass_on!(wait_for_pipe(to)) {
            return Some(Err(errno));
        }
    }
}

/// Reads the buffered bytes of a connection that was handed back.
pub(super) fn read_buffered(fd: c_int) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Only buffered bytes: a blocking socket must not wait for more.
    while let count @ 1.. = buffered(fd) {
        let from = bytes.len();
        bytes.resize(from + count, 0);
        // SAFETY: Lent: `count` bytes of a vector of this function.
        let read = unsafe { read(fd, bytes[from..].as_mut_ptr().cast(), count) };
        bytes.truncate(from + usize::try_from(read).unwrap_or(0));
        if read <= 0 {
            break;
        }
    }
    bytes
}

/// Makes the ring poll for writability if the kernel has sent less than `count`. The reason may also be the end of the
/// file, so the kernel is queried first: it reports writability only after a send that did not fit.
fn after_real(fd: c_int, ret: ssize_t, count: size_t) {
    let less = (ret >= 0 && (ret as usize) < count) || (ret < 0 && errno::get() == libc::EAGAIN);
    if less && let FdState::Connection(entry) = fd_state(fd) {
        let poll = |guard: &mut SetGuard, connection| {
            if sys::poll_now(fd, OUT) & OUT == 0 {
                output::on_full(guard, connection);
            }
        };
        attempt(|| gate::with(entry, fd, poll));
    }
}

/// Ends the program if a read is larger than its buffer, as the C library does.
fn checked(bytes: size_t, capacity: size_t) {
    if bytes > capacity {
        counters::failed(Call::Read, libc::EFAULT);
        // SAFETY: Typed: a function of glibc without arguments.
        unsafe { __chk_fail() };
    }
}

unsafe extern "C" {
    fn __chk_fail() -> !;
}
