//! Decides whether a descriptor can be served: it must be a connected, non-blocking TCP stream.

use crate::config;
use crate::counters::Why;
use crate::fd_table::{self, BY_OPTION, BY_PORT, Entry, Kind, NEVER_SERVED, NONBLOCK, UNSHARED};
use crate::sockopts;
use crate::stops;
use crate::sys;

/// Checks whether an epoll set may serve the descriptor. Queries the kernel for anything that the table does not
/// record.
pub(crate) fn can_be_served(entry: &Entry, fd: i32) -> Result<(), Why> {
    let kind = entry.kind();
    if !matches!(kind, Kind::Free | Kind::Stream) {
        return Err(Why::NotAStream);
    }
    if kind == Kind::Free {
        let option = |name| sys::option(fd, libc::SOL_SOCKET, name);
        // MPTCP is excluded: its streams have other rules.
        if option(libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP) {
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
        let unusual = !entry.is_created() && (sockopts::is_unusual(fd) || sockopts::has_ulp(fd));
        entry.set_listener(None);
        let never_served = if unusual { NEVER_SERVED | BY_OPTION } else { 0 };
        entry.set_kind(Kind::Stream, never_served);
    }
    if entry.flags() & NEVER_SERVED != 0 {
        return Err(match entry.flags() {
            flags if flags & BY_PORT != 0 => Why::Port,
            flags if flags & BY_OPTION != 0 => Why::UnknownOption,
            _ => Why::Duplicated,
        });
    }
    if sockopts::are_siblings_never_served(entry) {
        return Err(Why::UnknownOption);
    }
    // The peer may have reset it since it was accepted, or since it was last in a set.
    if kind != Kind::Free && !fd_table::is_just_accepted(fd) && !sys::is_connected(fd) {
        return Err(Why::NotConnected);
    }
    if entry.flags() & NONBLOCK == 0 {
        let flags = sys::flags_of(fd).map_err(|_| Why::Kernel)?;
        if flags as i32 & libc::O_NONBLOCK == 0 {
            return Err(Why::Blocking);
        }
        entry.set_kind(Kind::Stream, entry.flags() | NONBLOCK);
    }
    Ok(())
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
    let reason = listener.flags() & (BY_PORT | BY_OPTION);
    let never_served = if reason == 0 {
        0
    } else {
        NEVER_SERVED | reason
    };
    entry.set_listener(Some(listener_fd));
    entry.set_kind(Kind::Stream, nonblock | never_served | UNSHARED);
    fd_table::on_accepted(fd);
}

/// Records a listening socket.
fn on_listening(entry: &Entry, fd: i32) {
    let by_port = config::get().passes(sys::own_port(fd).unwrap_or(0));
    // The program may have set an option that the kernel cannot report.
    let set_by_program = entry.kind() == Kind::Stream && entry.flags() & BY_OPTION != 0;
    let by_option = sockopts::listener_is_unusual(fd) || set_by_program;
    let flags = match (by_port, by_option) {
        (true, _) => NEVER_SERVED | BY_PORT,
        (false, true) => NEVER_SERVED | BY_OPTION,
        (false, false) => 0,
    };
    if flags != 0 {
        let why = if by_port {
            Why::Port
        } else {
            Why::UnknownOption
        };
        stops::on_listener(why);
    }
    entry.set_kind(Kind::Listener, flags);
}
