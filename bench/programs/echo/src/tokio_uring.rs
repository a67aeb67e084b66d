//! tokio-uring: the example of its repository, one task per connection.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use tokio_uring::buf::BoundedBuf;
use tokio_uring::net::{TcpListener, TcpStream};

pub fn serve(address: SocketAddr) -> io::Result<Infallible> {
    tokio_uring::start(async {
        let listener = TcpListener::bind(address)?;
        crate::listening(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio_uring::spawn(echo(stream));
        }
    })
}

async fn echo(stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; crate::SMALL_BYTES];
    loop {
        let (result, read) = stream.read(buffer).await;
        let count = result?;
        if count == 0 {
            return Ok(());
        }
        let (result, written) = stream.write_all(read.slice(..count)).await;
        result?;
        buffer = written.into_inner();
        if let Some(bytes) = crate::grown(count, buffer.len()) {
            buffer.resize(bytes, 0);
        }
    }
}
