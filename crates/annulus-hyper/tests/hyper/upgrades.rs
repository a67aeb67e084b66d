//! Upgraded connections on threads other than their core.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::task::Poll;

use annulus::net::{TcpListener, TcpStream};
use annulus::runtime;
use annulus_hyper::{CoreTimer, HyperStream, serve};
use hyper::body::Incoming;
use hyper::rt::Timer;
use hyper::service::service_fn;
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode};
use tokio::runtime::{Builder, Runtime as Tokio};

use crate::support::*;

const UPGRADE: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";

fn tokio() -> Tokio {
    let builder = Builder::new_multi_thread();
    { builder }.worker_threads(1).enable_all().build().unwrap()
}

fn switching() -> Response<AnyBody> {
    let mut response = Response::new(nothing());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [("connection", "upgrade"), ("upgrade", "echo")] {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

/// Starts a server whose handler passes the upgraded connection to a Tokio task, as axum's `on_upgrade` does.
fn elsewhere<F>(serve_upgraded: impl Fn(Upgraded) -> F + Clone + 'static) -> io::Result<SocketAddr>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let respond = move |request: Request<Incoming>| {
        let upgraded = hyper::upgrade::on(request);
        let serve_upgraded = serve_upgraded.clone();
        drop(runtime::spawn(async move {
            let stream = upgraded.await.map_err(io::Error::other)?;
            tokio::spawn(serve_upgraded(stream)).await?
        }));
        std::future::ready(Ok::<_, Infallible>(switching()))
    };
    drop(runtime::spawn(serve(listener, service_fn(respond))));
    Ok(address)
}

/// Echoes until the end of the stream.
async fn echo(mut stream: Upgraded) -> io::Result<()> {
    loop {
        let bytes = read(&mut stream).await?;
        if bytes.is_empty() {
            return close(&mut stream).await;
        }
        write(&mut stream, &bytes).await?;
    }
}

/// Requests an upgrade, and returns the stream after the head of the response.
async fn upgraded(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.send_all(UPGRADE).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.extend(stream.recv_exact(vec![0; 1]).await?);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{head:?}");
    Ok(stream)
}

#[test]
fn an_upgraded_connection_echoes_on_another_thread() {
    let beside = tokio();
    let _context = beside.enter();
    on_each(|| async {
        let stream = upgraded(elsewhere(echo)?).await?;
        for bytes in [1, 100, 70_000, 1_000_000] {
            let sent: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            let send = stream.send_all(sent.clone());
            let receive = stream.recv_exact(vec![0; bytes]);
            let (send, received) = futures_util::future::join(send, receive).await;
            drop(send?);
            assert!(received? == sent);
        }
        stream.shutdown(std::net::Shutdown::Write)?;
        assert_eq!(rest_of(&stream).await?, "");
        Ok(())
    });
}

#[test]
fn an_upgraded_connection_may_change_threads() {
    let beside = tokio();
    let _context = beside.enter();
    on_each(|| async {
        let address = elsewhere(|mut stream| async move {
            let first = read(&mut stream).await?;
            write(&mut stream, &first).await?;
            let handle = tokio::runtime::Handle::current();
            tokio::task::spawn_blocking(move || handle.block_on(echo(stream))).await?
        })?;
        let stream = upgraded(address).await?;
        for text in ["one", "two"] {
            stream.send_all(text).await?;
            assert_eq!(stream.recv_exact(vec![0; 3]).await?, text.as_bytes());
        }
        Ok(())
    });
}

#[test]
fn what_was_written_on_another_thread_is_sent_when_the_stream_is_dropped() {
    let beside = tokio();
    let _context = beside.enter();
    on_each(|| async {
        let address = elsewhere(|mut stream| async move {
            let text = [b'x'; 50_000];
            let written = std::future::poll_fn(|context| {
                hyper::rt::Write::poll_write(std::pin::Pin::new(&mut stream), context, &text)
            });
            assert_eq!(written.await?, text.len());
            Ok(())
        })?;
        assert_eq!(rest_of(&upgraded(address).await?).await?.len(), 50_000);
        Ok(())
    });
}

#[test]
fn an_upgraded_connection_held_by_another_thread_is_closed_when_its_core_ends() {
    let beside = tokio();
    let _context = beside.enter();
    let (sender, ends) = mpsc::channel();
    on_each(|| {
        let sender = sender.clone();
        async move {
            let (held, is_held) = mpsc::channel();
            let address = elsewhere(move |mut stream| {
                let (held, sender) = (held.clone(), sender.clone());
                async move {
                    write(&mut stream, b"x").await?;
                    held.send(()).unwrap();
                    let error = read(&mut stream).await.unwrap_err();
                    sender
                        .send((error, write(&mut stream, b"x").await))
                        .unwrap();
                    Ok(())
                }
            })?;
            // The client outlives the runtime, because it waits for the runtime's end.
            let client = std::thread::spawn(move || {
                let mut stream = std::net::TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(UPGRADE.as_bytes())?;
                stream.read_to_end(&mut Vec::new())
            });
            CLIENTS.lock().unwrap().push(client);
            let held = runtime::spawn_blocking(move || is_held.recv().unwrap()).await;
            assert!(held.is_ok());
            Ok(())
        }
    });
    drop(sender);
    for (read, write) in ends {
        assert_eq!(read.kind(), io::ErrorKind::NotConnected, "{read}");
        assert!(write.is_err());
    }
    for client in CLIENTS.lock().unwrap().drain(..) {
        assert!(client.join().unwrap().unwrap() > 0);
    }
}

/// The clients of the test above, which wait for the end of the runtime.
static CLIENTS: std::sync::Mutex<Vec<std::thread::JoinHandle<io::Result<usize>>>> =
    std::sync::Mutex::new(Vec::new());

#[test]
fn a_handler_that_spawns_a_tokio_task_without_tokio_ends_its_connection() {
    on_each(|| async {
        let stream = TcpStream::connect(elsewhere(echo)?).await?;
        stream.send_all(UPGRADE).await?;
        // Until the end, so that a client that hangs fails the test.
        assert!(rest_of(&stream).await?.starts_with("HTTP/1.1 101 "));
        Ok(())
    });
}

#[test]
fn dropping_a_stream_on_another_thread_sends_the_written_bytes() {
    on_each(|| async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?).await?;
        let far = listener.accept().await?;
        let mut stream = HyperStream::new(near);
        std::future::poll_fn(|context| {
            hyper::rt::Write::poll_write(std::pin::Pin::new(&mut stream), context, b"written")
        })
        .await?;
        std::thread::spawn(move || drop(stream)).join().unwrap();
        assert_eq!(rest_of(&far).await?, "written");
        Ok(())
    });
}

#[test]
fn a_sleep_may_be_dropped_on_another_thread() {
    on_each(|| async {
        let mut sleep = CoreTimer.sleep(PATIENCE);
        std::future::poll_fn(|context| {
            assert!(sleep.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        std::thread::spawn(move || drop(sleep)).join().unwrap();
        Ok(())
    });
}
