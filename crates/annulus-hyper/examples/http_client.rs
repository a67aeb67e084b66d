//! Gets a URL by hyper's client on a core, and writes its body to standard output:
//! `http_client [--http2] http://127.0.0.1:8080/path`. No names, no TLS.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use annulus::net::TcpStream;
use annulus::runtime::{self, Runtime};
use annulus_hyper::{CoreExecutor, HyperStream};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::HOST;
use hyper::{Request, Response, Uri};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_http2 = words.first().is_some_and(|word| word == "--http2");
    let url = words
        .get(usize::from(is_http2))
        .map(|text| text.parse::<Uri>());
    let Some(Ok(url)) = url else {
        eprintln!("give a URL with an address: http_client [--http2] http://127.0.0.1:8080/path");
        return ExitCode::from(2);
    };
    let got = Runtime::builder().block_on(get(url.clone(), is_http2));
    match got.map_err(Into::into).and_then(|got| got) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("getting {url} failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn get(url: Uri, is_http2: bool) -> Result<(), Box<dyn Error>> {
    let authority = url.authority().ok_or("there is no address in it")?.as_str();
    let address = match url.port() {
        Some(_) => authority.to_owned(),
        None => format!("{authority}:80"),
    };
    let stream = HyperStream::new(TcpStream::connect(address).await?);
    let request = Request::get(url.clone());
    let answer = if is_http2 {
        let (mut requests, connection) = http2::handshake(CoreExecutor, stream).await?;
        runtime::spawn(connection);
        requests
            .send_request(request.body(Empty::<Bytes>::new())?)
            .await?
    } else {
        let (mut requests, connection) = http1::handshake(stream).await?;
        runtime::spawn(connection);
        let path = url.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::get(path).header(HOST, authority);
        requests
            .send_request(request.body(Empty::<Bytes>::new())?)
            .await?
    };
    show(answer).await
}

async fn show(answer: Response<Incoming>) -> Result<(), Box<dyn Error>> {
    eprintln!("{:?} {}", answer.version(), answer.status());
    let mut body = answer.into_body();
    let mut out = io::stdout().lock();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            out.write_all(&data)?;
        }
    }
    Ok(())
}
