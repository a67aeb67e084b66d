//! compio: reads and writes of owned buffers, one task per connection.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use compio::BufResult;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::Runtime;

pub fn serve(address: SocketAddr) -> io::Result<Infallible> {
    Runtime::new()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        crate::listening(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            compio::runtime::spawn(echo(stream)).detach();
        }
    })
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer: Vec<u8> = Vec::with_capacity(crate::SMALL_BYTES);
    loop {
        let BufResult(result, read) = stream.read(buffer).await;
        let count = result?;
        if count == 0 {
            return Ok(());
        }
        let BufResult(result, written) = stream.write_all(read).await;
        result?;
        buffer = written;
        buffer.clear();
        if let Some(bytes) = crate::grown(count, buffer.capacity()) {
            buffer.reserve_exact(bytes);
        }
    }
}
