//! HTTP/1: kept connections, pipelines, requests in pieces, upgrades.

use std::io;
use std::time::Duration;

use annulus::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use annulus::runtime;
use annulus_hyper::{HyperStream, Server, serve};
use hyper::service::service_fn;
use hyper::{Request, StatusCode, Version};

use crate::support::*;

/// What the server sends for `/`, without the date.
const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-length: 13\r\ndate: \r\n\r\nHello, World!";

fn without_dates(answers: &str) -> String {
    let mut left = answers;
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
        let answer = requests.send_request(of_path("/", nothing())).await;
        let answer = answer.map_err(io::Error::other)?;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.version(), Version::HTTP_11);
        assert_eq!(text_of(answer).await?, "Hello, World!");
        Ok(())
    });
}

#[test]
fn hello_over_a_unix_stream() {
    on_each(|| async {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("http");
        let listener = UnixListener::bind(&path)?;
        drop(runtime::spawn(serve(listener, service_fn(answer))));
        let stream = HyperStream::new(UnixStream::connect(&path).await?);
        let shaken = hyper::client::conn::http1::handshake(stream).await;
        let (mut requests, connection) = shaken.map_err(io::Error::other)?;
        drop(runtime::spawn(connection));
        let answer = requests.send_request(of_path("/", nothing())).await;
        let answer = answer.map_err(io::Error::other)?;
        assert_eq!(text_of(answer).await?, "Hello, World!");
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
            let answer = requests.send_request(request).await;
            assert_eq!(text_of(answer.map_err(io::Error::other)?).await?, sent);
        }
        Ok(())
    });
}

#[test]
fn requests_that_come_together_are_answered_in_order() {
    on_each(|| async {
        let stream = TcpStream::connect(start()?).await?;
        let mut asked = String::new();
        for number in 0..40 {
            asked +=
                &format!("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n{number:04}");
        }
        asked += "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.send_all(asked).await?;
        let answers = rest_of(&stream).await?;
        let at = |number| answers.find(&format!("\r\n\r\n{number:04}"));
        assert!(at(0).is_some() && (1..40).all(|number| at(number) > at(number - 1)));
        assert!(answers.ends_with("Hello, World!"), "{answers}");
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
            let answer = without_dates(&rest_of(&stream).await?);
            let answer = answer.replace("connection: close\r\n", "");
            assert_eq!(answer, HELLO, "cut at {cut}");
        }
        Ok(())
    });
}

#[test]
fn what_begins_as_http2_does_and_goes_on_otherwise_is_http1() {
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
            let answer = rest_of(&stream).await?;
            assert!(answer.starts_with("HTTP/1."), "{pieces:?}: {answer}");
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
        let answer = requests
            .send_request(request.body(nothing()).unwrap())
            .await;
        let answer = answer.map_err(io::Error::other)?;
        assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
        let upgraded = hyper::upgrade::on(answer).await;
        let mut stream = upgraded.map_err(io::Error::other)?;
        for bytes in [1, 10, 4_096, 300_000] {
            let sent = vec![bytes as u8; bytes];
            // Both directions hold more than the last is long only together.
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
fn each_connection_may_have_a_service_that_knows_the_peer() {
    on_each(|| async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        drop(runtime::spawn(async move {
            let make = |stream: &TcpStream| {
                let peer = stream.peer_addr().map(|peer| peer.to_string());
                let peer = peer.unwrap_or_default();
                service_fn(move |_| {
                    let answer = hyper::Response::new(whole(peer.clone()));
                    std::future::ready(Ok::<_, hyper::Error>(answer))
                })
            };
            Server::new().serve_each(listener, make).await
        }));
        let stream = TcpStream::connect(address).await?;
        let near = stream.local_addr()?;
        stream.send_all("GET / HTTP/1.0\r\n\r\n").await?;
        let answer = rest_of(&stream).await?;
        assert!(answer.ends_with(&near.to_string()), "{answer}");
        Ok(())
    });
}
