//! The number of sends per response. In a child process, because the counters are per process.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use annulus::Backend;
use annulus::metrics;
use annulus::net::TcpListener;
use annulus::runtime::{self, Runtime};
use annulus_hyper::{CoreTimer, HyperStream, Server};
use annulus_testing::child_process::in_child;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};

const ROUNDS: u64 = 100;
const TOGETHER: usize = 16;
const REQUEST: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::new(Bytes::from_static(
        b"Hello, World!",
    ))))
}

/// Unexpected further sends would happen within this time.
const SETTLED: Duration = Duration::from_millis(50);

fn sends() -> u64 {
    let total = metrics::snapshot().total();
    let of = |name| {
        total
            .operation(name)
            .map_or(0, |operation| operation.completed)
    };
    of("send") + of("send_vectored")
}

/// Returns the total number of sends once it is at least `expected`. A client may receive a response before the core
/// has reaped the completion of its send.
fn sends_from(expected: u64) -> u64 {
    while sends() < expected {
        thread::yield_now();
    }
    thread::sleep(SETTLED);
    sends()
}

/// Returns the number of sends while a client pipelines `together` requests, `ROUNDS` times.
fn sends_for(address: SocketAddr, together: usize) -> u64 {
    let mut stream = TcpStream::connect(address).unwrap();
    let requests = REQUEST.repeat(together);
    let mut round = || {
        stream.write_all(requests.as_bytes()).unwrap();
        let (mut all, mut memory) = (String::new(), [0; 4096]);
        while all.matches("Hello, World!").count() < together {
            let bytes = stream.read(&mut memory).unwrap();
            assert!(bytes > 0, "{all}");
            all += std::str::from_utf8(&memory[..bytes]).unwrap();
        }
    };
    let before = sends();
    round();
    let before = sends_from(before + 1);
    (0..ROUNDS).for_each(|_| round());
    sends_from(before + ROUNDS) - before
}

#[test]
fn a_response_takes_one_send_and_so_do_the_responses_to_pipelined_requests() {
    in_child(
        "sends::a_response_takes_one_send_and_so_do_the_responses_to_pipelined_requests",
        || {
            for backend in [Backend::Fallback, Backend::Uring] {
                let ran = Runtime::builder().backend(backend).block_on(async move {
                    let served = TcpListener::bind("127.0.0.1:0")?;
                    let plain = TcpListener::bind("127.0.0.1:0")?;
                    let (of_served, of_plain) = (served.local_addr()?, plain.local_addr()?);
                    drop(runtime::spawn(async move {
                        Server::new().serve(served, service_fn(hello)).await
                    }));
                    // hyper's own builder, without the submission at the end of a poll.
                    drop(runtime::spawn(async move {
                        let mut incoming = plain.accept_multishot();
                        while let Some(Ok(stream)) = incoming.next().await {
                            let connection = (http1::Builder::new().timer(CoreTimer))
                                .serve_connection(HyperStream::new(stream), service_fn(hello));
                            drop(runtime::spawn(connection));
                        }
                    }));
                    let client = runtime::spawn_blocking(move || {
                        assert_eq!(sends_for(of_plain, 1), ROUNDS, "{backend:?}, plain");
                        assert_eq!(sends_for(of_served, 1), ROUNDS, "{backend:?}");
                        assert_eq!(sends_for(of_served, TOGETHER), ROUNDS, "{backend:?}");
                    });
                    client.await?;
                    io::Result::Ok(())
                });
                match ran {
                    Ok(outcome) => outcome.unwrap(),
                    Err(error) if error.allows_fallback() => println!("skip: {error}"),
                    Err(error) => panic!("{backend:?}: {error}"),
                }
            }
        },
    );
}
