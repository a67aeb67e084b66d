//! Upgraded connections on threads other than their core: reads and writes fail, and the peer's connection ends.

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

/// Starts a server whose handler passes the upgraded connection to a Tokio task, as axum's `on_upgrade` does. The
/// channel returns the errors of its first read and write. With `keep` the task then holds the connection for good.
fn elsewhere(keep: bool) -> io::Result<(SocketAddr, mpsc::Receiver<[io::Error; 2]>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (sender, errors) = mpsc::channel();
    let respond = move |request: Request<Incoming>| {
        let sender = sender.clone();
        drop(tokio::spawn(async move {
            let mut stream = hyper::upgrade::on(request).await.unwrap();
            let errors = [
                read(&mut stream).await.unwrap_err(),
                write(&mut stream, b"x").await.unwrap_err(),
            ];
            sender.send(errors).unwrap();
            if keep {
                std::future::pending::<()>().await;
            }
        }));
        std::future::ready(Ok::<_, Infallible>(switching()))
    };
    drop(runtime::spawn(serve(listener, service_fn(respond))));
    Ok((address, errors))
}

async fn request_upgrade(address: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    stream.send_all(UPGRADE).await?;
    // Until the end, so that a client that hangs fails the test.
    rest_of(&stream).await
}

#[test]
fn using_an_upgraded_connection_on_another_thread_fails_with_a_hint_and_closes_it() {
    let beside = tokio();
    let _context = beside.enter();
    on_each(|| async {
        let (address, errors) = elsewhere(false)?;
        let response = request_upgrade(address).await?;
        assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
        for error in errors.recv().unwrap() {
            let message = error.to_string();
            assert!(message.contains("belongs to core 0"), "{message}");
            assert!(message.contains("annulus::runtime::spawn"), "{message}");
        }
        Ok(())
    });
}

#[test]
fn an_upgraded_connection_held_by_another_thread_is_closed_when_its_core_ends() {
    let beside = tokio();
    let _context = beside.enter();
    let (sender, clients) = mpsc::channel();
    on_each(|| {
        let sender = sender.clone();
        async move {
            let (address, errors) = elsewhere(true)?;
            // The client outlives the runtime, because it waits for the runtime's end.
            let client = std::thread::spawn(move || {
                let mut stream = std::net::TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(UPGRADE.as_bytes())?;
                stream.read_to_end(&mut Vec::new())
            });
            sender.send(client).unwrap();
            let errors = runtime::spawn_blocking(move || errors.recv().unwrap()).await;
            assert!(errors.is_ok());
            Ok(())
        }
    });
    drop(sender);
    for client in clients {
        assert!(client.join().unwrap().unwrap() > 0);
    }
}

#[test]
fn a_handler_that_spawns_a_tokio_task_without_tokio_ends_its_connection() {
    on_each(|| async {
        let (address, _errors) = elsewhere(false)?;
        assert_eq!(request_upgrade(address).await?, "");
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
