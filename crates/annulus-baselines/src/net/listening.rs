//! The handling of listeners that all echo servers share, so that they differ only in the measured parts.

use std::io;
use std::net::TcpListener;

use socket2::SockRef;

/// Sets TCP_NODELAY on the listener, so that replies are sent without delay. Accepted sockets inherit the option, which
/// saves a call for each.
pub(crate) fn without_delay(listener: &TcpListener) -> io::Result<()> {
    let set = SockRef::from(listener).set_tcp_nodelay(true);
    set.map_err(|error| about("turning off delayed sending on the listener", &error))
}

/// Ignores errors that concern only the connection that was being accepted. Any other error ends the server, because a
/// server that no longer accepts would falsify the measurement.
pub(crate) fn accept_failed(error: &io::Error) -> io::Result<()> {
    match error.raw_os_error() {
        Some(libc::ECONNABORTED | libc::EINTR | libc::EPROTO | libc::EPERM) => Ok(()),
        Some(libc::EMFILE | libc::ENFILE) => Err(about(
            "accepting a connection (raise the limit of open files, `ulimit -n`)",
            error,
        )),
        _ => Err(about("accepting a connection", error)),
    }
}

/// Returns the error with the failed step in its message.
pub(crate) fn about(doing: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing}: {error}"))
}
