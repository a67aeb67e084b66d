//! Gets a URL with hyper's client and writes the body to standard output (HTTP/1.1, without TLS):
//! `cargo run --release -p annulus-hyper --example http_get -- http://127.0.0.1:8080/hello/World`

use std::error::Error;
use std::io::Write;

use annulus::net::TcpStream;
use annulus::runtime::{self, Runtime};
use annulus_hyper::HyperStream;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::HOST;
use hyper::{Request, Uri};

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: http_get URL")?;
    let url: Uri = url.parse()?;
    // One core, on this thread.
    Runtime::builder().block_on(get(url))?
}

async fn get(url: Uri) -> Result<(), Box<dyn Error>> {
    let host = url.host().ok_or("the URL has no host")?;
    let address = format!("{host}:{}", url.port_u16().unwrap_or(80));
    let stream = HyperStream::new(TcpStream::connect(address).await?);
    let (mut requests, connection) = http1::handshake(stream).await?;
    // This task drives the connection while requests are made on it.
    runtime::spawn(connection);

    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::get(path).header(HOST, host);
    let response = requests
        .send_request(request.body(Empty::<Bytes>::new())?)
        .await?;
    eprintln!("{}", response.status());
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            std::io::stdout().write_all(&data)?;
        }
    }
    Ok(())
}
