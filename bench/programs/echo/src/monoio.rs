//! monoio: the example of its front page, with the io_uring driver.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use monoio::net::{TcpListener, TcpStream};

pub fn serve(address: SocketAddr) -> io::Result<Infallible> {
    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind(address)?;
        crate::listening(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            monoio::spawn(echo(stream));
        }
    })
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer: Vec<u8> = Vec::with_capacity(crate::SMALL_BYTES);
    loop {
        let (result, read) = stream.read(buffer).await;
        let count = result?;
        if count == 0 {
            return Ok(());
        }
        let (result, written) = stream.write_all(read).await;
        result?;
        buffer = written;
        buffer.clear();
        if let Some(bytes) = crate::grown(count, buffer.capacity()) {
            buffer.reserve_exact(bytes);
        }
    }
}
