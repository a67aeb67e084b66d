//! The handling of listeners that all echo servers share, so that they differ only in the measured parts.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

/// Sets TCP_NODELAY on the listener, so that replies are sent without delay. Accepted sockets inherit the option, which
/// saves a call for each.
pub(crate) fn without_delay(listener: &TcpListener) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: the value of the option is an `int` that lives for the length of the call. The descriptor is open because
    // `listener` is.
    let code = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if code == 0 {
        return Ok(());
    }
    Err(about(
        "turning off delayed sending on the listener",
        &io::Error::last_os_error(),
    ))
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
