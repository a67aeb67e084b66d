//! A TLS echo server with a ring per core and a self-signed certificate:
//! `cargo run --release -p annulus-http --example tls_echo -- 127.0.0.1:7443`
//!
//! Try it with `openssl s_client -quiet -connect 127.0.0.1:7443`.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use annulus::net::{AsyncStream, TcpListener, TcpStream};
use annulus::runtime::{self, Runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args()
        .nth(1)
        .ok_or("usage: tls_echo ADDRESS:PORT")?;
    let address: SocketAddr = address.parse()?;
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    println!("TLS echo at {address}");
    Runtime::builder().run(|_core| accept(address, acceptor.clone()))?;
    Ok(())
}

async fn accept(address: SocketAddr, acceptor: TlsAcceptor) -> io::Result<()> {
    let mut incoming = TcpListener::bind(address)?.accept_multishot();
    while let Some(stream) = incoming.next().await {
        let (stream, acceptor) = (stream?, acceptor.clone());
        runtime::spawn(async move {
            if let Err(error) = echo(stream, acceptor).await {
                eprintln!("a connection failed: {error}");
            }
        });
    }
    Ok(())
}

async fn echo(stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<()> {
    // `AsyncStream` has Tokio's I/O traits, which rustls and other libraries use.
    let mut stream = acceptor.accept(AsyncStream::new(stream)).await?;
    let mut buffer = vec![0; 16 << 10];
    loop {
        let bytes = stream.read(&mut buffer).await?;
        if bytes == 0 {
            return stream.shutdown().await;
        }
        stream.write_all(&buffer[..bytes]).await?;
        stream.flush().await?;
    }
}
