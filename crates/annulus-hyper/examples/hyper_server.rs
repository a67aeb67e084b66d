//! A server of hyper's on a thread per core, HTTP/1.1 and HTTP/2: `hyper_server [ADDRESS] [THREADS]`.
//!
//! `/` says hello, `/echo` sends back what it is sent as it comes, and `/upgrade` becomes a line of bytes in
//! both directions, each of which comes back. Try it with `curl -T FILE http://127.0.0.1:8080/echo`.

use std::error::Error;
use std::net::SocketAddr;
use std::process::ExitCode;

use annulus::net::TcpListener;
use annulus::runtime::{self, Runtime};
use annulus_hyper::serve;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::rt::{Read, ReadBuf, Write};
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};

type BoxedResponse = Response<BoxBody<Bytes, hyper::Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let address = words.first().map_or("127.0.0.1:8080", String::as_str);
    let threads = words.get(1).map_or(Ok(1), |text| text.parse::<usize>());
    let (Ok(address), Ok(threads @ 1..), ..=2) = (address.parse(), threads, words.len()) else {
        eprintln!("give an address and perhaps a number of threads: hyper_server 127.0.0.1:8080 1");
        return ExitCode::from(2);
    };
    match run(address, threads) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serving HTTP at {address} failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(address: SocketAddr, threads: usize) -> std::io::Result<()> {
    Runtime::builder()
        .threads(threads)
        .run(move |core| async move {
            let listener = TcpListener::bind(address)?;
            if core.index() == 0 {
                println!("listening on {}", listener.local_addr()?);
            }
            serve(listener, service_fn(answer)).await
        })
}

async fn answer(request: Request<Incoming>) -> Result<BoxedResponse, Box<dyn Error + Send + Sync>> {
    let nothing = || Empty::new().map_err(|never| match never {}).boxed();
    Ok(match request.uri().path() {
        "/" => {
            let hello = Full::new(Bytes::from_static(b"Hello, World!"));
            Response::new(hello.map_err(|never| match never {}).boxed())
        }
        "/echo" => Response::new(request.into_body().boxed()),
        "/upgrade" if request.headers().contains_key(UPGRADE) => {
            runtime::spawn(async move {
                if let Err(error) = echo(request).await {
                    eprintln!("an upgraded connection failed: {error}");
                }
            });
            let mut answer = Response::new(nothing());
            *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = answer.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("echo"));
            answer
        }
        _ => {
            let mut answer = Response::new(nothing());
            *answer.status_mut() = StatusCode::NOT_FOUND;
            answer
        }
    })
}

/// What follows an upgrade is bytes, by the same traits that hyper reads and writes by.
async fn echo(request: Request<Incoming>) -> Result<(), Box<dyn Error>> {
    let mut stream = hyper::upgrade::on(request).await?;
    let mut memory = [0; 4096];
    loop {
        let mut buf = ReadBuf::new(&mut memory);
        std::future::poll_fn(|context| pin(&mut stream).poll_read(context, buf.unfilled())).await?;
        if buf.filled().is_empty() {
            std::future::poll_fn(|context| pin(&mut stream).poll_shutdown(context)).await?;
            return Ok(());
        }
        let mut left = buf.filled();
        while !left.is_empty() {
            let written =
                std::future::poll_fn(|context| pin(&mut stream).poll_write(context, left)).await?;
            left = &left[written..];
        }
        std::future::poll_fn(|context| pin(&mut stream).poll_flush(context)).await?;
    }
}

fn pin(stream: &mut Upgraded) -> std::pin::Pin<&mut Upgraded> {
    std::pin::Pin::new(stream)
}
