//! Upgraded connections on threads that are not their core: errors that say so, and an end for the peer.

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

const ASK: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";

fn tokio() -> Tokio {
    let builder = Builder::new_multi_thread();
    { builder }.worker_threads(1).enable_all().build().unwrap()
}

fn switching() -> Response<AnyBody> {
    let mut answer = Response::new(nothing());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [("connection", "upgrade"), ("upgrade", "echo")] {
        answer.headers_mut().insert(name, value.parse().unwrap());
    }
    answer
}

/// A server whose handler leaves the upgraded connection to a task of Tokio's, as axum's `on_upgrade` does. What
/// came of its first read and write is told; `keep` then leaks it.
fn elsewhere(keep: bool) -> io::Result<(SocketAddr, mpsc::Receiver<[io::Error; 2]>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (tell, told) = mpsc::channel();
    let answer = move |request: Request<Incoming>| {
        let tell = tell.clone();
        drop(tokio::spawn(async move {
            let mut stream = hyper::upgrade::on(request).await.unwrap();
            let errors = [
                read(&mut stream).await.unwrap_err(),
                write(&mut stream, b"x").await.unwrap_err(),
            ];
            tell.send(errors).unwrap();
            if keep {
                std::future::pending::<()>().await;
            }
        }));
        std::future::ready(Ok::<_, Infallible>(switching()))
    };
    drop(runtime::spawn(serve(listener, service_fn(answer))));
    Ok((address, told))
}

async fn ask(address: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    stream.send_all(ASK).await?;
    // To its end: the client does not hang.
    rest_of(&stream).await
}

#[test]
fn an_upgraded_connection_on_another_thread_is_an_error_that_says_so_and_is_closed() {
    let beside = tokio();
    let _context = beside.enter();
    on_each(|| async {
        let (address, told) = elsewhere(false)?;
        let answer = ask(address).await?;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        for error in told.recv().unwrap() {
            let says = error.to_string();
            assert!(says.contains("belongs to core 0"), "{says}");
            assert!(says.contains("annulus::runtime::spawn"), "{says}");
        }
        Ok(())
    });
}

#[test]
fn an_upgraded_connection_that_another_thread_keeps_is_closed_at_the_end_of_its_core() {
    let beside = tokio();
    let _context = beside.enter();
    let (tell, clients) = mpsc::channel();
    on_each(|| {
        let tell = tell.clone();
        async move {
            let (address, told) = elsewhere(true)?;
            // The client outlives the runtime, whose end it waits for.
            let client = std::thread::spawn(move || {
                let mut stream = std::net::TcpStream::connect(address)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(ASK.as_bytes())?;
                stream.read_to_end(&mut Vec::new())
            });
            tell.send(client).unwrap();
            let told = runtime::spawn_blocking(move || told.recv().unwrap()).await;
            assert!(told.is_ok());
            Ok(())
        }
    });
    drop(tell);
    for client in clients {
        assert!(client.join().unwrap().unwrap() > 0);
    }
}

#[test]
fn a_handler_that_asks_for_tokios_tasks_without_tokio_ends_its_connection() {
    on_each(|| async {
        let (address, _told) = elsewhere(false)?;
        assert_eq!(ask(address).await?, "");
        Ok(())
    });
}

#[test]
fn a_stream_may_be_dropped_on_another_thread_and_sends_what_was_written() {
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
fn a_sleep_may_go_to_another_thread() {
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
