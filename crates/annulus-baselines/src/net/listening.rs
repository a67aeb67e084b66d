//! The handling of listeners that all echo servers share, so that they differ only in the measured parts.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;

use socket2::SockRef;
use tokio::net::TcpStream;

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

/// Serves each connection of `listener` in a task of a Tokio runtime on this thread. Returns only with an error.
pub(crate) fn serve_in_tasks<F: Future<Output: Send + 'static> + Send + 'static>(
    listener: TcpListener,
    serve: impl Fn(TcpStream) -> F,
) -> io::Result<Infallible> {
    without_delay(&listener)?;
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(serve(stream))),
                Err(error) => accept_failed(&error)?,
            }
        }
    })
}
