//! Timeouts, panics, and the end of a runtime.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream as Plain};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use annulus::Backend;
use annulus::net::{TcpListener, TcpStream};
use annulus::runtime::{Handle, Runtime};
use annulus_hyper::{Server, serve};
use hyper::service::service_fn;

use crate::support::*;

#[test]
fn a_client_that_is_slow_with_a_head_is_sent_away() {
    on_each(|| async {
        let timeout = Duration::from_millis(100);
        let server = Server::new().with_header_read_timeout(Some(timeout));
        let address = start_as(server)?;
        // Says nothing; half a head; half of what HTTP/2 begins with; nothing after a request.
        for said in [
            "",
            "GET / HTTP/1.1\r\nhost:",
            "PRI * HTTP",
            "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        ] {
            let begun = Instant::now();
            let stream = TcpStream::connect(address).await?;
            stream.send_all(said).await?;
            let answer = rest_of(&stream).await?;
            let took = begun.elapsed();
            assert!(took >= timeout, "{said:?}: {took:?}");
            assert!(took < Duration::from_secs(20), "{said:?}: {took:?}");
            assert_eq!(
                answer.ends_with("Hello, World!"),
                said.ends_with("\r\n\r\n")
            );
        }
        Ok(())
    });
}

#[test]
fn a_client_that_is_quick_enough_is_not() {
    on_each(|| async {
        let server = Server::new().with_header_read_timeout(Some(QUICK));
        let address = start_as(server)?;
        loop {
            let begun = Instant::now();
            let answered = ask_five_times(address).await;
            // A client that did not get to run for as long as the timeout was not quick enough.
            if answered.is_err() && begun.elapsed() >= QUICK + 5 * LATE {
                continue;
            }
            return answered;
        }
    });
}

const QUICK: Duration = Duration::from_millis(400);
/// Five times this is longer than the timeout, which is for each head anew.
const LATE: Duration = Duration::from_millis(150);

async fn ask_five_times(address: SocketAddr) -> io::Result<()> {
    let mut requests = http1(address).await?;
    let path = format!("/late/{}", LATE.as_millis());
    for _ in 0..5 {
        requests.ready().await.map_err(io::Error::other)?;
        let answer = requests.send_request(of_path(&path, nothing())).await;
        assert_eq!(text_of(answer.map_err(io::Error::other)?).await?, "late");
    }
    Ok(())
}

#[test]
fn a_handler_that_panics_ends_its_connection_and_nothing_else() {
    on_each(|| async {
        let address = start()?;
        let mut other = http1(address).await?;
        for _ in 0..3 {
            let mut requests = http1(address).await?;
            let answer = requests.send_request(of_path("/panic", nothing())).await;
            assert!(answer.is_err());
            // Of HTTP/2, one stream only.
            let mut requests = http2(address).await?;
            let answer = requests.send_request(of_url("/panic", nothing())).await;
            assert!(answer.is_err());
            let answer = requests.send_request(of_url("/", nothing())).await;
            let answer = answer.map_err(io::Error::other)?;
            assert_eq!(text_of(answer).await?, "Hello, World!");

            other.ready().await.map_err(io::Error::other)?;
            let answer = other.send_request(of_path("/", nothing())).await;
            let answer = answer.map_err(io::Error::other)?;
            assert_eq!(text_of(answer).await?, "Hello, World!");
        }
        Ok(())
    });
}

/// A runtime with a server of its own, on a thread of its own.
struct Other {
    address: SocketAddr,
    handle: Handle,
    thread: thread::JoinHandle<io::Result<()>>,
}

fn other(backend: Backend) -> Option<Other> {
    let (tell, told) = mpsc::channel();
    let (give, given) = mpsc::channel();
    let builder = Runtime::builder()
        .backend(backend)
        .threads(1)
        .grace(PATIENCE);
    let thread = thread::spawn(move || {
        let started = move |handle| drop(give.send(handle));
        builder.run_with(started, move |_core| {
            let tell = tell.clone();
            async move {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let _ = tell.send(listener.local_addr()?);
                serve(listener, service_fn(answer)).await
            }
        })
    });
    let (Ok(handle), Ok(address)) = (given.recv(), told.recv()) else {
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

fn ask(stream: &mut Plain, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
}

/// What comes until the end, which comes in order.
fn rest(mut stream: &Plain) -> String {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
fn a_runtime_that_stops_lets_answers_end_and_closes_idle_connections() {
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
        ask(&mut idle, "/");
        let mut first = [0; 8];
        idle.read_exact(&mut first).unwrap();
        let before = LAST_BEGUN.load(Ordering::SeqCst);
        ask(&mut busy, "/last");
        ask(&mut large, "/bytes/20000000");
        large.read_exact(&mut first).unwrap();
        // Then those that came before it are accepted, too.
        while LAST_BEGUN.load(Ordering::SeqCst) == before {
            thread::yield_now();
        }
        other.handle.shutdown();
        assert_eq!(rest(&silent), "");
        assert!(rest(&idle).ends_with("Hello, World!"));
        let answer = rest(&busy);
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(answer.ends_with("last"), "{answer}");
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
