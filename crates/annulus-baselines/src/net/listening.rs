//! What the echo servers do alike with a listener, so that they differ only in what is measured.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

/// Replies leave at once: accepted sockets inherit this from their listener, which saves a call for each.
pub(crate) fn without_delay(listener: &TcpListener) -> io::Result<()> {
    let on: c_int = 1;
    // SAFETY: the option's value is an `int` that lives for the length of the call; the descriptor is open because
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

/// A connection that was gone before it was accepted is nobody's fault; every other error ends the server, because
/// a server that accepts no more would make the measurement a lie.
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

/// The same error with what was being done.
pub(crate) fn about(doing: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{doing}: {error}"))
}
