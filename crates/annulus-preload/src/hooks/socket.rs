//! # Safety
//!
//! Sockets: accepted, shut down, their options, and those that are passed to other processes (Typed, Lent: as the
//! header of the hooks says).
#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "the header's note holds for each: what the program passed is passed on"
)]

use std::ffi::{c_int, c_void};

use libc::{msghdr, sockaddr, socklen_t};

use super::io::hand_back;
use super::waiting::before_an_accept;
use super::{Found, find, guard, may_be};
use crate::classify;
use crate::counts::{self, Call, Why};
use crate::errno::{self, say_int};
use crate::options;
use crate::real;
use crate::send;
use crate::table::{self, BY_PORT, Kind, LEFT_ALONE};

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept(
    fd: c_int,
    from: *mut sockaddr,
    from_bytes: *mut socklen_t,
) -> c_int {
    super::free_numbers();
    before_an_accept(fd);
    let said = unsafe { real::accept(fd, from, from_bytes) };
    accepted(fd, said, false)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    from: *mut sockaddr,
    from_bytes: *mut socklen_t,
    flags: c_int,
) -> c_int {
    super::free_numbers();
    before_an_accept(fd);
    let said = unsafe { real::accept4(fd, from, from_bytes, flags) };
    accepted(fd, said, flags & libc::SOCK_NONBLOCK != 0)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    super::free_numbers();
    unsafe { real::socket(domain, kind, protocol) }
}

fn accepted(listener_fd: c_int, fd: c_int, nonblock: bool) -> c_int {
    if fd >= 0
        && let (Some(listener), Some(entry)) = (table::entry(listener_fd), table::entry(fd))
    {
        guard(|| {
            classify::accepted((listener, listener_fd), (entry, fd), nonblock);
            None
        });
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Found::Closed = find(fd) {
        errno::set(libc::EBADF);
        return -1;
    }
    if let Found::Ours(entry) = find(fd)
        && let Some(answer) = guard(|| send::shut(entry, fd, how))
    {
        counts::served(Call::Shutdown);
        return say_int(answer);
    }
    guard(|| {
        send::is_about_to_shut(fd);
        None
    });
    // One that is over in a direction before a set has it is not served.
    leave_alone(fd);
    unsafe { real::shutdown(fd, how) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    bytes: socklen_t,
) -> c_int {
    options::is_set(level, name);
    match find(fd) {
        Found::Closed => {
            errno::set(libc::EBADF);
            return -1;
        }
        Found::Ours(_) if !options::is_known(level, name) => hand_back(fd, Why::UnknownOption),
        Found::Theirs if options::changes_reading(level, name) => leave_alone(fd),
        _ => {}
    }
    unsafe { real::setsockopt(fd, level, name, value, bytes) }
}

/// Whatever set it is put into must not serve it.
pub(super) fn leave_alone(fd: c_int) {
    if let Some(entry) = table::entry(fd)
        && matches!(entry.kind(), Kind::Stream | Kind::Free)
    {
        // Of one that is no stream nothing comes of it, and `close` forgets it.
        entry.become_kind(Kind::Stream, entry.flags() | LEFT_ALONE);
    } else if let Some(entry) = table::entry(fd)
        && entry.kind() == Kind::Replay
    {
        entry.become_kind(Kind::Replay, entry.flags() | LEFT_ALONE);
    } else if let Some(entry) = table::entry(fd)
        && entry.kind() == Kind::Listener
    {
        // Those that it accepts inherit the option.
        entry.become_kind(Kind::Listener, entry.flags() | LEFT_ALONE | BY_PORT);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    bytes: *mut socklen_t,
) -> c_int {
    if let Found::Closed = find(fd) {
        errno::set(libc::EBADF);
        return -1;
    }
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
        && let Found::Ours(entry) = find(fd)
        && may_be(value)
        && may_be(bytes)
        && unsafe { *bytes } as usize >= size_of::<c_int>()
        && let Some(Ok(error)) = guard(|| send::take_error(entry, fd))
    {
        counts::served(Call::Getsockopt);
        unsafe {
            value.cast::<c_int>().write_unaligned(error as c_int);
            *bytes = size_of::<c_int>() as socklen_t;
        }
        return 0;
    }
    unsafe { real::getsockopt(fd, level, name, value, bytes) }
}

/// Descriptors that a message carries to another process are shared from now on.
pub(super) unsafe fn pass_on(message: &msghdr) {
    if message.msg_controllen == 0 || message.msg_control.is_null() {
        return;
    }
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while let Some(control) = unsafe { header.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let empty = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = control.cmsg_len.saturating_sub(empty) / size_of::<c_int>();
            let fds = unsafe { libc::CMSG_DATA(header) }.cast::<c_int>();
            for nth in 0..count {
                let fd = unsafe { fds.add(nth).read_unaligned() };
                hand_back(fd, Why::PassedOn);
                if table::entry(fd).is_some_and(|entry| entry.kind() == Kind::Stream) {
                    leave_alone(fd);
                }
            }
        }
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}
