//! Timeouts, panics, and the end of a runtime.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream as Plain};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use annulus::Backend;
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{self, Handle, Runtime};
use annulus_hyper::{Server, serve};
use hyper::service::service_fn;

use crate::support::*;

#[test]
fn a_client_that_sends_a_head_too_slowly_is_closed() {
    on_each(|| async {
        let timeout = Duration::from_millis(100);
        let server = Server::new().with_header_read_timeout(Some(timeout));
        let address = start_as(server)?;
        // Nothing; half a head; half of the HTTP/2 preface; nothing after a request.
        for sent in [
            "",
            "GET / HTTP/1.1\r\nhost:",
            "PRI * HTTP",
            "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        ] {
            let begun = Instant::now();
            let stream = TcpStream::connect(address).await?;
            stream.send_all(sent).await?;
            let response = rest_of(&stream).await?;
            let took = begun.elapsed();
            assert!(took >= timeout, "{sent:?}: {took:?}");
            assert!(took < Duration::from_secs(20), "{sent:?}: {took:?}");
            assert_eq!(
                response.ends_with("Hello, World!"),
                sent.ends_with("\r\n\r\n")
            );
        }
        Ok(())
    });
}

#[test]
fn a_client_that_sends_each_head_in_time_is_served() {
    on_each(|| async {
        let server = Server::new().with_header_read_timeout(Some(QUICK));
        let address = start_as(server)?;
        loop {
            let begun = Instant::now();
            let result = send_five_requests(address).await;
            // The client's thread was delayed by more than the timeout, so the server was right to
            // close.
            if result.is_err() && begun.elapsed() >= QUICK + 5 * LATE {
                continue;
            }
            return result;
        }
    });
}

const QUICK: Duration = Duration::from_millis(400);
/// Five of these exceed the timeout, which starts again with each head.
const LATE: Duration = Duration::from_millis(150);

async fn send_five_requests(address: SocketAddr) -> io::Result<()> {
    let mut requests = http1(address).await?;
    let path = format!("/late/{}", LATE.as_millis());
    for _ in 0..5 {
        requests.ready().await.map_err(io::Error::other)?;
        let response = requests.send_request(of_path(&path, nothing())).await;
        assert_eq!(text_of(response.map_err(io::Error::other)?).await?, "late");
    }
    Ok(())
}

#[test]
fn a_panicking_handler_ends_only_its_own_connection() {
    on_each(|| async {
        let address = start()?;
        let mut other = http1(address).await?;
        for _ in 0..3 {
            let mut requests = http1(address).await?;
            let response = requests.send_request(of_path("/panic", nothing())).await;
            assert!(response.is_err());
            // On HTTP/2 it ends only its stream.
            let mut requests = http2(address).await?;
            let response = requests.send_request(of_url("/panic", nothing())).await;
            assert!(response.is_err());
            let response = requests.send_request(of_url("/", nothing())).await;
            let response = response.map_err(io::Error::other)?;
            assert_eq!(text_of(response).await?, "Hello, World!");

            other.ready().await.map_err(io::Error::other)?;
            let response = other.send_request(of_path("/", nothing())).await;
            let response = response.map_err(io::Error::other)?;
            assert_eq!(text_of(response).await?, "Hello, World!");
        }
        Ok(())
    });
}

/// A runtime with a server, on another thread.
struct Other {
    address: SocketAddr,
    handle: Handle,
    thread: thread::JoinHandle<io::Result<()>>,
}

fn other(backend: Backend) -> Option<Other> {
    let (sender, receiver) = mpsc::channel();
    let builder = Runtime::builder().backend(backend).cores(1).grace(PATIENCE);
    let thread = thread::spawn(move || {
        builder.run(move |_core| {
            let sender = sender.clone();
            async move {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let _ = sender.send((runtime::handle(), listener.local_addr()?));
                serve(listener, service_fn(respond)).await
            }
        })
    });
    let Ok((handle, address)) = receiver.recv() else {
        let error = thread.join().unwrap().unwrap_err();
        assert_eq!(backend, Backend::Uring, "{error}");
        println!("skip: {error}");
        return None;
    };
    Some(Other {
        address,
        handle,
        thread,
    })
}

fn send_request_to(stream: &mut Plain, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
}

/// Returns everything until the server closes, and asserts an orderly end.
fn rest(mut stream: &Plain) -> String {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_stopping_runtime_finishes_responses_and_closes_idle_connections() {
    for backend in [Backend::Fallback, Backend::Uring] {
        let Some(other) = other(backend) else {
            continue;
        };
        let connect = || {
            let stream = Plain::connect(other.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream
        };
        let (silent, mut idle, mut busy, mut large) = (connect(), connect(), connect(), connect());
        send_request_to(&mut idle, "/");
        let mut first = [0; 8];
        idle.read_exact(&mut first).unwrap();
        let before = LAST_BEGUN.load(Ordering::SeqCst);
        send_request_to(&mut busy, "/last");
        send_request_to(&mut large, "/bytes/20000000");
        large.read_exact(&mut first).unwrap();
        // By then the earlier connections are accepted, too.
        while LAST_BEGUN.load(Ordering::SeqCst) == before {
            thread::yield_now();
        }
        other.handle.shutdown();
        assert_eq!(rest(&silent), "");
        assert!(rest(&idle).ends_with("Hello, World!"));
        let response = rest(&busy);
        assert!(response.contains("connection: close"), "{response}");
        assert!(response.ends_with("last"), "{response}");
        let (mut bytes, mut memory) = (first.len(), vec![0; 1 << 20]);
        while let read @ 1.. = large.read(&mut memory).unwrap() {
            bytes += read;
        }
        assert!(bytes > 20_000_000, "{bytes}");
        other.thread.join().unwrap().unwrap();
        let refused = Plain::connect(other.address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
