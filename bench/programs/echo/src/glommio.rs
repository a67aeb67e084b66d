//! glommio: one executor on this thread; its streams are used through the traits of `futures-lite`.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::LocalExecutor;
use glommio::net::{TcpListener, TcpStream};

pub fn serve(address: SocketAddr) -> io::Result<Infallible> {
    LocalExecutor::default().run(async {
        let listener =
            TcpListener::bind(address).map_err(|error| crate::failed("listening", error))?;
        let local = listener.local_addr();
        crate::listening(local.map_err(|error| crate::failed("querying the address", error))?)?;
        loop {
            let stream = listener.accept().await;
            let stream = stream.map_err(|error| crate::failed("accepting", error))?;
            glommio::spawn_local(echo(stream)).detach();
        }
    })
}

async fn echo(mut stream: TcpStream) -> io::Result<()> {
    let delay = stream.set_nodelay(true);
    delay.map_err(|error| crate::failed("setting TCP_NODELAY", error))?;
    let mut buffer = vec![0; crate::SMALL_BYTES];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..count]).await?;
        if let Some(bytes) = crate::grown(count, buffer.len()) {
            buffer.resize(bytes, 0);
        }
    }
}
