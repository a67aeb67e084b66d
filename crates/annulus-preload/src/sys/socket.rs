//! # Safety
//!
//! Direct system calls on sockets: transfers, options, and the end of a connection (Sealed). Pointers are valid for the
//! call (Lent), as each function documents.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_void};
use std::ptr;

use super::{Numeric, Plain, now_ns, numeric, result, zeroed};
use crate::errno::CallResult;
use crate::raw_libc as libc;
use crate::vectors::{Source, Target};

/// Returns a message of vectors, which are not borrowed.
pub(crate) fn message(vectors: &[libc::iovec]) -> libc::msghdr {
    libc::msghdr {
        msg_iov: vectors.as_ptr().cast_mut(),
        msg_iovlen: vectors.len(),
        ..zeroed()
    }
}

/// Sends without blocking and without raising SIGPIPE.
pub(crate) fn send_vectors(fd: i32, source: Source<'_>, flags: c_int) -> CallResult {
    let message = message(source.vectors());
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: Lent: the message of this stack, and its vectors.
    result(unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags) })
}

/// Sends one range of bytes, as [`send_vectors`] does.
pub(crate) fn send(fd: i32, bytes: &[u8]) -> CallResult {
    send_with(fd, bytes, 0)
}

/// Sends bytes with flags. The kernel may hold bytes back (`MSG_MORE`) if more bytes or the end follow.
pub(crate) fn send_with(fd: i32, bytes: &[u8], flags: c_int) -> CallResult {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: Lent: borrowed for the call.
    result(unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd,
            bytes.as_ptr(),
            bytes.len(),
            flags,
            ptr::null::<c_void>(),
            0,
        )
    })
}

pub(crate) fn shutdown(fd: i32, how: c_int) -> CallResult {
    numeric(Numeric::Shutdown, fd, how, 0)
}

/// Returns the value of an integer option.
pub(crate) fn option(fd: i32, level: c_int, name: c_int) -> Result<c_int, i32> {
    get(fd, level, name)
}

/// Returns the value of an option, of its type.
fn get<T: Plain>(fd: i32, level: c_int, name: c_int) -> Result<T, i32> {
    let (mut value, mut bytes) = (zeroed::<T>(), size_of::<T>() as libc::socklen_t);
    // SAFETY: Lent: of this stack, with its size.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd,
            level,
            name,
            &raw mut value,
            &raw mut bytes,
        )
    };
    result(ret).map(|_| value)
}

/// Sets an option of `SOL_SOCKET`, of its type.
fn set<T: Plain>(fd: i32, name: c_int, value: &T) {
    // SAFETY: Lent: borrowed for the call, with its size.
    unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd,
            libc::SOL_SOCKET,
            name,
            ptr::from_ref(value),
            size_of::<T>(),
        )
    };
}

/// The number of bytes that can be read; 0 also if it is unknown.
pub(crate) fn readable(fd: i32) -> usize {
    query(fd, libc::FIONREAD as c_long)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(0)
}

/// Returns the integer that an `ioctl` reports.
fn query(fd: i32, request: c_long) -> Option<c_int> {
    let mut value: c_int = 0;
    // SAFETY: Lent: of this stack.
    let ret = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, &raw mut value) };
    (ret == 0).then_some(value)
}

/// Returns whether the next byte to read is urgent data.
pub(crate) fn is_at_mark(fd: i32) -> bool {
    const SIOCATMARK: c_long = 0x8905;
    query(fd, SIOCATMARK).is_some_and(|is_at| is_at != 0)
}

/// Returns the port of a socket's own address. `None`: it is not an IP address.
pub(crate) fn own_port(fd: i32) -> Option<u16> {
    ip_port(fd, libc::SYS_getsockname)
}

/// Returns whether neither side of a TCP connection has ended its direction.
pub(crate) fn is_established(fd: i32) -> bool {
    /// `TCP_ESTABLISHED`, in the first byte of the result.
    const ESTABLISHED: u8 = 1;
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)
        .is_ok_and(|info| info.to_ne_bytes()[0] == ESTABLISHED)
}

pub(crate) fn is_connected(fd: i32) -> bool {
    ip_port(fd, libc::SYS_getpeername).is_some()
}

fn ip_port(fd: i32, call: c_long) -> Option<u16> {
    let mut address: libc::sockaddr_in6 = zeroed();
    let mut bytes = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    // SAFETY: Lent: of this stack, with its size.
    let ret = unsafe { libc::syscall(call, fd, &raw mut address, &raw mut bytes) };
    let family = c_int::from(address.sin6_family);
    // The port is at the same offset in both address types.
    (ret == 0 && (family == libc::AF_INET || family == libc::AF_INET6))
        .then(|| u16::from_be(address.sin6_port))
}

/// Receives without blocking.
pub(crate) fn receive_vectors(fd: i32, target: Target<'_>, flags: c_int) -> CallResult {
    let mut message = message(target.vectors());
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: Lent: the message of this stack, and its vectors.
    result(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut message, flags) })
}

/// Makes a close discard unsent bytes and reset the connection.
pub(crate) fn reset_when_closed(fd: i32) {
    set_linger(fd, true);
}

/// Makes a close neither wait nor discard unsent bytes.
pub(crate) fn do_not_linger(fd: i32) {
    set_linger(fd, false);
}

fn set_linger(fd: i32, on: bool) {
    let linger = libc::linger {
        l_onoff: on.into(),
        l_linger: 0,
    };
    set(fd, libc::SO_LINGER, &linger);
}

/// Ends a connection that a ring still refers to: the peer receives now what the kernel would send at the last close.
pub(crate) fn end_as_if_closed(fd: i32) {
    if readable(fd) > 0 || resets_when_closed(fd) {
        disconnect(fd);
    } else {
        let _ = shutdown(fd, libc::SHUT_RDWR);
    }
}

/// Returns whether a close discards unsent bytes.
fn resets_when_closed(fd: i32) -> bool {
    linger_s(fd) == Some(0)
}

/// Returns the time that a close waits for unsent bytes, s; 0: it discards them. `None`: neither.
pub(crate) fn linger_s(fd: i32) -> Option<i32> {
    let linger: libc::linger = get(fd, libc::SOL_SOCKET, libc::SO_LINGER).ok()?;
    (linger.l_onoff != 0).then_some(linger.l_linger)
}

/// Resets a connection, even if another descriptor or a ring refers to it (connect(2), AF_UNSPEC).
fn disconnect(fd: i32) {
    // Zero: AF_UNSPEC.
    let unspecified: libc::sockaddr = zeroed();
    // SAFETY: Lent: of this stack, with its size.
    unsafe {
        libc::syscall(
            libc::SYS_connect,
            fd,
            &raw const unspecified,
            size_of::<libc::sockaddr>(),
        )
    };
}

/// Sets an option of `SOL_SOCKET`.
pub(crate) fn set_option(fd: i32, name: c_int, value: c_int) {
    set(fd, name, &value);
}

/// Returns the time at which the time limit of a call ends that begins now: `SO_SNDTIMEO` or `SO_RCVTIMEO`. `None`: no
/// limit.
pub(crate) fn limit_ends_ns(fd: i32, option: c_int) -> Option<u64> {
    let time: libc::timeval = get(fd, libc::SOL_SOCKET, option).ok()?;
    let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (ns > 0).then(|| now_ns().saturating_add(ns))
}
