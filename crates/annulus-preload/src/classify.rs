//! Decides whether a descriptor can be served: it must be a connected, non-blocking TCP stream.

use std::ptr;

use crate::config;
use crate::counters::Why;
use crate::fd_table::{
    self, CREATED, Entry, Kind, NONBLOCK, NOT_TCP, SHARED, UNSHARED, never_served,
};
use crate::sockopts;
use crate::stops;
use crate::sys;

/// Checks whether an epoll set may serve the descriptor. Queries the kernel for anything that the table does not
/// record.
pub(crate) fn can_be_served(entry: &Entry, fd: i32) -> Result<(), Why> {
    let was_known = entry.kind() != Kind::Free;
    may_be_served(entry, fd)?;
    // The peer may have reset it since it was accepted, or since it was last in a set.
    if was_known && !fd_table::is_just_accepted(fd) && !sys::is_connected(fd) {
        return Err(Why::NotConnected);
    }
    Ok(())
}

/// Checks whether an epoll set may serve the descriptor later, if it is still connected then.
pub(crate) fn may_be_served(entry: &Entry, fd: i32) -> Result<(), Why> {
    let kind = entry.kind();
    if !matches!(kind, Kind::Free | Kind::Stream) {
        return Err(Why::NotAStream);
    }
    if kind == Kind::Free {
        if entry.has_mark(NOT_TCP) {
            return Err(Why::NotAStream);
        }
        let state = entry.snapshot();
        let option = |name| sys::option(fd, libc::SOL_SOCKET, name);
        // MPTCP is excluded: its streams have other rules.
        let protocol = option(libc::SO_PROTOCOL);
        if protocol != Ok(libc::IPPROTO_TCP) {
            // Of a number of a parent, the parent's state stays.
            if protocol != Err(libc::EBADF) && entry.inherited() == Kind::Free {
                entry.mark_not_tcp(state);
            }
            return Err(Why::NotAStream);
        }
        if option(libc::SO_ACCEPTCONN) != Ok(0) {
            on_listening(entry, fd);
            return Err(Why::NotAStream);
        }
        if config::get().passes(sys::own_port(fd).unwrap_or(0)) {
            return Err(Why::Port);
        }
        if !sys::is_connected(fd) {
            return Err(Why::NotConnected);
        }
        // The options of a socket from another process are not recorded here.
        let unusual =
            !entry.has_mark(CREATED) && (sockopts::is_unusual(fd) || sockopts::has_ulp(fd));
        let why = why_not_inherited(entry).or(unusual.then_some(Why::UnknownOption));
        entry.set_listener(None);
        if !entry.has_mark(CREATED) {
            entry.set_epoll_set(ptr::null_mut());
        }
        entry.set_kind(Kind::Stream, why.map_or(0, |why| never_served(0, why)));
    }
    if let Some(why) = entry.why_never_served() {
        return Err(why);
    }
    if let Some(why) = sockopts::why_siblings_never_served(entry) {
        return Err(why);
    }
    if entry.flags() & NONBLOCK == 0 {
        let flags = sys::flags_of(fd).map_err(|_| Why::Kernel)?;
        if flags as i32 & libc::O_NONBLOCK == 0 {
            return Err(Why::Blocking);
        }
        entry.set_flag(NONBLOCK);
    }
    Ok(())
}

/// Returns why a parent of this process would not have served the connection either: it has a second number, by which
/// this process may read as well, or urgent data.
fn why_not_inherited(entry: &Entry) -> Option<Why> {
    if entry.inherited() == Kind::Free {
        return None;
    }
    let duplicated = (entry.flags() & SHARED != 0).then_some(Why::Duplicated);
    entry.why_never_served().or(duplicated)
}

/// Records a socket that `accept` returned, and its listener.
pub(crate) fn accepted(
    (listener, listener_fd): (&Entry, i32),
    (entry, fd): (&Entry, i32),
    nonblock: bool,
) {
    if listener.kind() != Kind::Listener {
        let is_tcp =
            sys::option(listener_fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
        if !is_tcp {
            entry.forget();
            return;
        }
        on_listening(listener, listener_fd);
    }
    let nonblock = if nonblock { NONBLOCK } else { 0 };
    let flags = match listener.why_never_served().filter(fd_table::is_inherited) {
        Some(why) => never_served(nonblock | UNSHARED, why),
        None => nonblock | UNSHARED,
    };
    entry.set_listener(Some(listener_fd));
    entry.set_epoll_set(ptr::null_mut());
    entry.set_kind(Kind::Stream, flags);
    fd_table::on_accepted(fd);
}

/// Records a listening socket.
fn on_listening(entry: &Entry, fd: i32) {
    let by_port = config::get().passes(sys::own_port(fd).unwrap_or(0));
    // The program may have set an option that the kernel cannot report.
    let set_by_program = entry.why_never_served().filter(|why| {
        entry.kind() == Kind::Stream && matches!(why, Why::UnknownOption | Why::UnknownFlags)
    });
    let by_option = sockopts::listener_is_unusual(fd).then_some(Why::UnknownOption);
    let why = by_port
        .then_some(Why::Port)
        .or(set_by_program)
        .or(by_option);
    if let Some(why) = why {
        stops::on_listener(why);
    }
    entry.set_kind(Kind::Listener, why.map_or(0, |why| never_served(0, why)));
}
