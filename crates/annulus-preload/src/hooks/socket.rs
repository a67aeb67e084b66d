//! # Safety
//!
//! Sockets: accept, shutdown, options, and passing them to other processes (Typed, Lent: the header of `hooks` gives
//! the contract).
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

use std::ffi::{c_int, c_ulong, c_void};

use libc::{sockaddr, socklen_t};

use super::blocking::{before_accept, before_connect};
use super::io::read_buffered;
use super::unserve::{flush, hand_back, never_serve, never_serve_siblings};
use super::{FdState, attempt, buffered, catch_panic, create, fd_state, is_closed, may_be_mapped};
use crate::classify;
use crate::connection::Conn;
use crate::counters::{self, Call, Why};
use crate::epoll_set::{Set, SetGuard};
use crate::errno::{self, into_return_int};
use crate::events::{IN, OUT};
use crate::fd_table::{self, Entry, Kind};
use crate::gate;
use crate::hand_back;
use crate::output;
use crate::send;
use crate::shut_down;
use crate::sockopts;

hooks! {
    fn accept(fd: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t) -> c_int {
        before_accept(fd);
        let ret = create(|| pass_on!(real(fd, from, from_bytes)));
        accepted(fd, ret, false)
    }

    fn accept4(fd: c_int, from: *mut sockaddr, from_bytes: *mut socklen_t, flags: c_int) -> c_int {
        before_accept(fd);
        let ret = create(|| pass_on!(real(fd, from, from_bytes, flags)));
        accepted(fd, ret, flags & libc::SOCK_NONBLOCK != 0)
    }

    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
        let fd = create(|| pass_on!(real(domain, kind, protocol)));
        if matches!(domain, libc::AF_INET | libc::AF_INET6)
            && let Some(entry) = fd_table::entry(fd)
        {
            entry.mark_created();
        }
        fd
    }
}

fn accepted(listener_fd: c_int, fd: c_int, nonblock: bool) -> c_int {
    if fd >= 0
        && let (Some(listener), Some(entry)) = (fd_table::entry(listener_fd), fd_table::entry(fd))
    {
        attempt(|| classify::accepted((listener, listener_fd), (entry, fd), nonblock));
    }
    fd
}

hooks! {
    /// Hands a connection that is connected again, or dissolved (AF_UNSPEC), back first. Queued bytes are sent, and
    /// buffered bytes are discarded with the old connection.
    fn connect(fd: c_int, address: *const sockaddr, bytes: socklen_t) -> c_int {
        before_connect(fd);
        if is_closed(fd) {
            return -1;
        }
        let has_connection = matches!(fd_state(fd), FdState::Connection(_));
        if has_connection {
            hand_back(fd, Why::UnknownFlags);
            flush(fd);
            never_serve(fd, Why::UnknownFlags);
        }
        let ret = pass_on!(real(fd, address, bytes));
        if has_connection && ret == 0 {
            read_buffered(fd);
        }
        ret
    }

    fn shutdown(fd: c_int, how: c_int) -> c_int {
        if is_closed(fd) {
            return -1;
        }
        if let FdState::Connection(entry) = fd_state(fd)
            && let Some(result) = catch_panic(|| shut_down::shut_down(entry, fd, how))
        {
            counters::served(Call::Shutdown);
            return into_return_int(result);
        }
        attempt(|| shut_down::before_shutdown(fd));
        // A connection that was shut down before it is added to a set is not served.
        never_serve(fd, Why::NotConnected);
        pass_on!(real(fd, how))
    }

    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, bytes: socklen_t) -> c_int {
        if is_closed(fd) {
            return -1;
        }
        let word = pass_on!(first_word(value.cast(), bytes));
        sockopts::on_set(level, name, word);
        if (level, name) == (libc::IPPROTO_TCP, libc::TCP_CORK) && word != Some(0) {
            // The kernel would hold queued bytes back for 200 ms.
            flush(fd);
        }
        // A longer argument has more fields, whose defaults are unknown here.
        let int = word.filter(|_| bytes as usize == size_of::<c_int>());
        let is_harmless = sockopts::is_harmless(level, name, int);
        match fd_state(fd) {
            FdState::Connection(entry) if !is_harmless => {
                if (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT) {
                    let back = |guard: &mut SetGuard, _| {
                        hand_back::hand_back_for_low_water(guard, fd);
                    };
                    attempt(|| gate::with(entry, fd, back));
                } else {
                    hand_back(fd, Why::UnknownOption);
                }
                let encrypts = level == SOL_TLS;
                let too_late = encrypts && (buffered(fd) > 0 || flush(fd).is_some());
                let ret = if too_late {
                    // As on a kernel without TLS support: the program then encrypts the stream itself.
                    errno::set(libc::ENOPROTOOPT);
                    -1
                } else {
                    pass_on!(real(fd, level, name, value, bytes))
                };
                let took = ret == 0 && (encrypts || sockopts::changes_data(level, name));
                if took || too_late {
                    never_serve_siblings(fd, Why::UnknownOption);
                }
                return ret;
            }
            FdState::Kernel if !is_harmless => {
                // Before the call, as another thread may accept a connection from this listener right after it.
                let entry = fd_table::entry(fd);
                let was = entry.map_or(0, Entry::snapshot);
                never_serve(fd, Why::UnknownOption);
                let made = entry.map_or(0, Entry::snapshot);
                let ret = pass_on!(real(fd, level, name, value, bytes));
                if let Some(entry) = entry.filter(|_| ret != 0) {
                    entry.restore_if_unchanged(made, was);
                }
                return ret;
            }
            FdState::Connection(entry) if sockopts::edges_of(level, name) != 0 => {
                let ret = pass_on!(real(fd, level, name, value, bytes));
                if ret == 0 {
                    let report = |guard: &mut SetGuard, connection| {
                        report_edge(guard, entry, connection, sockopts::edges_of(level, name));
                    };
                    attempt(|| gate::with(entry, fd, report));
                }
                return ret;
            }
            _ => {}
        }
        pass_on!(real(fd, level, name, value, bytes))
    }
}

/// Returns the first word of an argument. `None`: it is shorter, or not in the program's memory.
unsafe fn first_word(value: *const c_int, bytes: socklen_t) -> Option<c_int> {
    let has_word = bytes as usize >= size_of::<c_int>() && may_be_mapped(value);
    // SAFETY: Lent: the program passes `bytes` bytes to read, at least an int; see `may_be_mapped`.
    has_word.then(|| unsafe { value.read_unaligned() })
}

/// Reports those of the events `key` that are pending, also if they were reported before.
fn report_edge(guard: &mut SetGuard, entry: &Entry, connection: Conn, key: u32) {
    guard.forget_reported_fd(connection.fd);
    if entry.kind() == Kind::Served && key == OUT {
        guard[connection].is_narrow = sockopts::has_small_send_buffer(connection.fd);
        output::check_writable(guard, connection);
    }
    // Of a connection that was handed back, the kernel reports everything but what the library holds. It reports
    // nothing at all if it has neither unread bytes nor the end of the stream.
    let has_input = guard[connection].buffered() > 0 || guard[connection].ended;
    let holds = key == IN && has_input && guard[connection].held_events() != 0;
    if guard[connection].mask() & key != 0 && (entry.kind() == Kind::Served || holds) {
        guard.notify(connection, key);
    }
    if holds {
        output::report_again(guard, connection, key);
    }
}

/// The option level with which the kernel starts to encrypt or decrypt a stream, at the next byte that it has.
const SOL_TLS: c_int = 282;

hooks! {
    fn sockatmark(fd: c_int) -> c_int {
        let mut at_mark: c_int = 0;
        let pointer = (&raw mut at_mark).expose_provenance();
        // SAFETY: Lent: the address of a variable of this function.
        match unsafe { super::descriptor::ioctl(fd, super::descriptor::SIOCATMARK, pointer as c_ulong) }
        {
            0 => at_mark,
            error => error,
        }
    }

    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, bytes: *mut socklen_t) -> c_int {
        if is_closed(fd) {
            return -1;
        }
        if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
            && let FdState::Connection(entry) = fd_state(fd)
            && may_be_mapped(value)
            && may_be_mapped(bytes)
            // SAFETY: Lent: the program passes a length; see `may_be_mapped`.
            && unsafe { *bytes } as usize >= size_of::<c_int>()
            && let Some(Err(error)) = catch_panic(|| send::take_error(entry, fd))
        {
            counters::served(Call::Getsockopt);
            // SAFETY: Lent: the program passes a length and that many bytes to write, at least an int.
            unsafe {
                value.cast::<c_int>().write_unaligned(error);
                *bytes = size_of::<c_int>() as socklen_t;
            }
            return 0;
        }
        match (level, name) {
            // The queue is part of the state that these options report.
            (libc::IPPROTO_TCP, libc::TCP_INFO) | (libc::SOL_SOCKET, SO_MEMINFO) => {
                let mine = |entry: &Entry| Set::of(entry).is_some_and(Set::is_owner);
                // Another thread only queries the kernel's state.
                if fd_table::entry(fd).is_some_and(mine) {
                    flush(fd);
                }
            }
            (libc::IPPROTO_TCP, libc::TCP_ZEROCOPY_RECEIVE)
                if has_bytes_to_read(fd) =>
            {
                // As on a kernel without this option: the program reads the bytes.
                errno::set(libc::EINVAL);
                return -1;
            }
            _ => {}
        }
        pass_on!(real(fd, level, name, value, bytes))
    }
}

const SO_MEMINFO: c_int = 55;

/// Makes a program that receives by mapping kernel pages read buffered bytes first. Returns `false` if there are none.
fn has_bytes_to_read(fd: c_int) -> bool {
    never_serve_siblings(fd, Why::UnknownFlags);
    hand_back(fd, Why::UnknownFlags);
    let has_any = buffered(fd) > 0;
    if let FdState::Kernel = fd_state(fd) {
        never_serve(fd, Why::UnknownFlags);
    }
    has_any
}
