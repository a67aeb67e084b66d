//! An echo server as most people would write it today: Tokio on one thread, with a task per connection.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::listening::serve_in_tasks;

/// The initial size of a connection's buffer. One page suits small messages and many connections.
const SMALL_BYTES: usize = 4 * 1024;
/// The largest size of a buffer. A read that fills the buffer doubles it up to this size.
const LARGE_BYTES: usize = 64 * 1024;

/// Serves connections of `listener` on this thread. Returns only with an error.
pub fn serve(listener: TcpListener) -> io::Result<Infallible> {
    serve_in_tasks(listener, echo)
}

/// Echoes until the peer ends the stream or the connection fails. An error ends only this connection.
async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; SMALL_BYTES];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
        if count == buffer.len() && count < LARGE_BYTES {
            buffer.resize(2 * count, 0);
        }
    }
}
