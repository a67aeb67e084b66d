//! HTTP/1: kept connections, pipelining, requests in pieces, upgrades.

use std::io;
use std::time::Duration;

use annulus::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use annulus::runtime;
use annulus_hyper::{HyperStream, Server, serve};
use hyper::service::service_fn;
use hyper::{Request, StatusCode, Version};

use crate::support::*;

/// The server's response to `/`, without the date.
const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 13\r\ndate: \r\n\r\nHello, World!";

fn without_dates(responses: &str) -> String {
    let mut left = responses;
    let mut text = String::new();
    while let Some((before, after)) = left.split_once("date: ") {
        text += before;
        text += "date: ";
        left = after.find("\r\n").map_or("", |end| &after[end..]);
    }
    text + left
}

#[test]
fn hello() {
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        let response = requests.send_request(of_path("/", nothing())).await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.version(), Version::HTTP_11);
        assert_eq!(text_of(response).await?, "Hello, World!");
        Ok(())
    });
}

#[test]
fn hello_over_a_unix_stream() {
    on_each(|| async {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("http");
        let listener = UnixListener::bind(&path)?;
        drop(runtime::spawn(serve(listener, service_fn(respond))));
        let stream = HyperStream::new(UnixStream::connect(&path).await?);
        let shaken = hyper::client::conn::http1::handshake(stream).await;
        let (mut requests, connection) = shaken.map_err(io::Error::other)?;
        drop(runtime::spawn(connection));
        let response = requests.send_request(of_path("/", nothing())).await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(text_of(response).await?, "Hello, World!");
        Ok(())
    });
}

#[test]
fn a_connection_is_kept_for_many_requests() {
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        for number in 0..500 {
            requests.ready().await.map_err(io::Error::other)?;
            let sent = "x".repeat(number * 7);
            let request = of_path("/echo", whole(sent.clone()));
            let response = requests.send_request(request).await;
            assert_eq!(text_of(response.map_err(io::Error::other)?).await?, sent);
        }
        Ok(())
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    on_each(|| async {
        let stream = TcpStream::connect(start()?).await?;
        let mut requests = String::new();
        for number in 0..40 {
            requests +=
                &format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n{number:04}");
        }
        requests += "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.send_all(requests).await?;
        let responses = rest_of(&stream).await?;
        let at = |number| responses.find(&format!("\r\n\r\n{number:04}"));
        assert!(at(0).is_some() && (1..40).all(|number| at(number) > at(number - 1)));
        assert!(responses.ends_with("Hello, World!"), "{responses}");
        Ok(())
    });
}

#[test]
fn a_request_may_be_cut_anywhere() {
    on_each(|| async {
        let address = start()?;
        let request = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        for cut in 1..request.len() {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            stream.send_all(request[..cut].to_owned()).await?;
            annulus::time::sleep(Duration::from_micros(200)).await;
            stream.send_all(request[cut..].to_owned()).await?;
            let response = without_dates(&rest_of(&stream).await?);
            let response = response.replace("connection: close\r\n", "");
            assert_eq!(response, HELLO, "cut at {cut}");
        }
        Ok(())
    });
}

#[test]
fn a_request_that_only_begins_like_http2_is_served_as_http1() {
    on_each(|| async {
        let address = start()?;
        for pieces in [
            &["P", "RI * HT", "TP/1.0\r\n\r\n"][..],
            &["PRIX / HTTP/1.0\r\n\r\n"],
        ] {
            let stream = TcpStream::connect(address).await?;
            for piece in pieces {
                stream.send_all(piece.to_string()).await?;
                annulus::time::sleep(Duration::from_millis(5)).await;
            }
            let response = rest_of(&stream).await?;
            assert!(response.starts_with("HTTP/1."), "{pieces:?}: {response}");
        }
        Ok(())
    });
}

#[test]
fn an_upgraded_connection_carries_bytes_both_ways_until_its_end() {
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        let request = Request::get("/upgrade").header("host", "x");
        let request = request
            .header("connection", "upgrade")
            .header("upgrade", "echo");
        let response = requests
            .send_request(request.body(nothing()).unwrap())
            .await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        let upgraded = hyper::upgrade::on(response).await;
        let mut stream = upgraded.map_err(io::Error::other)?;
        for bytes in [1, 10, 4_096, 300_000] {
            let sent = vec![bytes as u8; bytes];
            // The last length exceeds what the buffers of one direction hold.
            write(&mut stream, &sent).await?;
            let mut back = Vec::new();
            while back.len() < bytes {
                back.extend(read(&mut stream).await?);
            }
            assert!(back == sent, "{bytes} bytes");
        }
        close(&mut stream).await?;
        assert_eq!(read(&mut stream).await?, b"");
        Ok(())
    });
}

#[test]
fn a_service_per_connection_can_use_the_peer_address() {
    on_each(|| async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        drop(runtime::spawn(async move {
            let make = |stream: &TcpStream| {
                let peer = stream.peer_addr().map(|peer| peer.to_string());
                let peer = peer.unwrap_or_default();
                service_fn(move |_| {
                    let response = hyper::Response::new(whole(peer.clone()));
                    std::future::ready(Ok::<_, hyper::Error>(response))
                })
            };
            Server::new().serve_each(listener, make).await
        }));
        let stream = TcpStream::connect(address).await?;
        let near = stream.local_addr()?;
        stream.send_all("GET / HTTP/1.0\r\n\r\n").await?;
        let response = rest_of(&stream).await?;
        assert!(response.ends_with(&near.to_string()), "{response}");
        Ok(())
    });
}
