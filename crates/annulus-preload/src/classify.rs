//! Whether a descriptor can be served: it must be a TCP stream that is connected and does not block.

use crate::config;
use crate::counts::Why;
use crate::options;
use crate::sys;
use crate::table::{self, BY_PORT, Entry, Kind, LEFT_ALONE, NONBLOCK, OWN};

/// Whether the set that it is put into may serve it; what is not known of it is asked of the kernel.
pub(crate) fn can_be_served(entry: &Entry, fd: i32) -> Result<(), Why> {
    let kind = entry.kind();
    if !matches!(kind, Kind::Free | Kind::Stream) {
        return Err(Why::NotAStream);
    }
    if kind == Kind::Free {
        let option = |name| sys::option(fd, libc::SOL_SOCKET, name);
        // Not that of MPTCP, whose streams have rules of their own.
        if option(libc::SO_PROTOCOL) != Ok(libc::IPPROTO_TCP) {
            return Err(Why::NotAStream);
        }
        let left_alone = config::get().passes(sys::own_port(fd).unwrap_or(0));
        if option(libc::SO_ACCEPTCONN) != Ok(0) {
            options::is_inherited(fd);
            entry.become_kind(
                Kind::Listener,
                if left_alone { LEFT_ALONE | BY_PORT } else { 0 },
            );
            return Err(Why::NotAStream);
        }
        if left_alone {
            return Err(Why::Port);
        }
        if !sys::is_connected(fd) {
            return Err(Why::NotConnected);
        }
        entry.become_kind(Kind::Stream, 0);
    }
    if entry.flags() & LEFT_ALONE != 0 {
        let by_port = entry.flags() & BY_PORT != 0;
        return Err(if by_port { Why::Port } else { Why::Duplicated });
    }
    // Its peer may have reset it since it was accepted, or since a set had it.
    if kind != Kind::Free && !table::is_fresh(fd) && !sys::is_connected(fd) {
        return Err(Why::NotConnected);
    }
    if entry.flags() & NONBLOCK == 0 {
        let flags = sys::flags_of(fd).map_err(|_| Why::Kernel)?;
        if flags as i32 & libc::O_NONBLOCK == 0 {
            return Err(Why::Blocking);
        }
        entry.become_kind(Kind::Stream, entry.flags() | NONBLOCK);
    }
    Ok(())
}

/// What is known of a socket that `accept` has answered with; `listener` is remembered.
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
        options::is_inherited(listener_fd);
        let port = sys::own_port(listener_fd).unwrap_or(0);
        let passes = config::get().passes(port);
        let flags = if passes { LEFT_ALONE | BY_PORT } else { 0 };
        listener.become_kind(Kind::Listener, flags);
    }
    let nonblock = if nonblock { NONBLOCK } else { 0 };
    let left_alone = listener.flags() & BY_PORT;
    let left_alone = if left_alone != 0 {
        LEFT_ALONE | BY_PORT
    } else {
        0
    };
    entry.become_kind(Kind::Stream, nonblock | left_alone | OWN);
    table::is_accepted(fd);
}
