//! A TLS echo server on a thread per core, with a certificate made at the start: `tls_echo 127.0.0.1:7443`.
//!
//! Try it with `openssl s_client -quiet -connect 127.0.0.1:7443`.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use annulus::net::{AsyncStream, TcpListener, TcpStream};
use annulus::runtime::{self, Runtime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

fn main() -> ExitCode {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:7443");
    let Ok(address) = address.parse() else {
        eprintln!("{address:?} is no address; give one such as 127.0.0.1:7443");
        return ExitCode::from(2);
    };
    match serve(address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serving TLS at {address} failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    println!("TLS echo at {address}");
    Runtime::builder().run(move |_core| accept(address, acceptor.clone()))?;
    Ok(())
}

async fn accept(address: SocketAddr, acceptor: TlsAcceptor) -> io::Result<()> {
    let mut incoming = TcpListener::bind(address)?.accept_multishot();
    while let Some(stream) = incoming.next().await {
        let (stream, acceptor) = (stream?, acceptor.clone());
        drop(runtime::spawn(async move {
            if let Err(error) = echo(stream, acceptor).await {
                eprintln!("a connection failed: {error}");
            }
        }));
    }
    Ok(())
}

async fn echo(stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<()> {
    let mut stream = acceptor.accept(AsyncStream::new(stream)).await?;
    let mut buf = vec![0; 16 << 10];
    loop {
        match stream.read(&mut buf).await? {
            0 => return stream.shutdown().await,
            bytes => {
                stream.write_all(&buf[..bytes]).await?;
                stream.flush().await?;
            }
        }
    }
}
