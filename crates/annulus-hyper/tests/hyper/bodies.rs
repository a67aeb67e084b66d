//! Large bodies, both ways, and what a connection holds of them.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use annulus::net::{TcpStream, UnixStream};
use annulus::runtime;
use annulus_hyper::Server;
use hyper::Response;
use hyper::body::{Body, Bytes, Frame};
use hyper::service::service_fn;

use crate::support::*;

const LARGE: u64 = 64 << 20;

#[test]
fn sixty_four_mebibytes_go_both_ways_at_once_by_http1() {
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        let expected = hash_of_pattern(LARGE);
        // With a length, and in chunks.
        for says_length in [true, false] {
            requests.ready().await.map_err(io::Error::other)?;
            let request = of_path("/echo", pattern(LARGE, says_length));
            let answer = requests.send_request(request).await;
            let body = answer.map_err(io::Error::other)?.into_body();
            let length = body.size_hint().exact();
            assert_eq!(length, says_length.then_some(LARGE));
            assert_eq!(hash_of(body).await.map_err(io::Error::other)?, expected);
        }
        Ok(())
    });
}

#[test]
fn sixty_four_mebibytes_go_both_ways_at_once_by_http2() {
    on_each(|| async {
        let mut requests = http2(start()?).await?;
        let request = of_url("/echo", pattern(LARGE, true));
        let answer = requests.send_request(request).await;
        let body = answer.map_err(io::Error::other)?.into_body();
        let got = hash_of(body).await.map_err(io::Error::other)?;
        assert_eq!(got, hash_of_pattern(LARGE));
        Ok(())
    });
}

#[test]
fn bodies_of_every_length_near_the_buffers_are_whole() {
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        for around in [4_096, 8_192, 65_536, 131_072, 262_144_u64] {
            for bytes in [around - 200, around - 1, around, around + 1] {
                for path in ["bytes", "chunked"] {
                    requests.ready().await.map_err(io::Error::other)?;
                    let request = of_path(&format!("/{path}/{bytes}"), nothing());
                    let answer = requests.send_request(request).await;
                    let body = answer.map_err(io::Error::other)?.into_body();
                    let got = hash_of(body).await.map_err(io::Error::other)?;
                    assert_eq!(got, hash_of_pattern(bytes), "{path} {bytes}");
                }
                requests.ready().await.map_err(io::Error::other)?;
                let request = of_path("/hash", pattern(bytes, bytes % 2 == 0));
                let answer = requests.send_request(request).await;
                let got = text_of(answer.map_err(io::Error::other)?).await?;
                assert_eq!(got, hash_of_pattern(bytes).0.to_string());
            }
        }
        Ok(())
    });
}

/// Counts what is asked of it.
struct Endless(Rc<Cell<usize>>);

const PIECE: &[u8] = &[7; 16 << 10];

impl Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.set(self.0.get() + PIECE.len());
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(PIECE)))))
    }
}

#[test]
fn a_peer_that_does_not_read_is_waited_for() {
    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let made = Rc::new(Cell::new(0));
        let counted = Rc::clone(&made);
        let service = service_fn(move |_| {
            let answer = Response::new(Endless(Rc::clone(&counted)));
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let served = runtime::spawn(async move {
            let served = Server::new().serve_connection(far, service).await;
            served.map_err(|error| error.to_string())
        });
        near.send_all("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await?;
        // The socket's buffer, hyper's, and ours; then no more is made.
        let mut held = 0;
        while held == 0 || made.get() != held {
            held = made.get();
            assert!(held < 2 << 20, "{held}");
            annulus::time::sleep(Duration::from_millis(100)).await;
        }
        // Read, it goes on.
        let mut read = 0;
        let mut chunks = near.recv_multishot();
        while read < 8 << 20
            && let Some(chunk) = chunks.next().await
        {
            read += chunk?.len();
        }
        assert!(made.get() > held);
        drop(near);
        let error = served.await?.unwrap_err();
        assert!(!error.is_empty());
        Ok(())
    });
}

#[test]
fn a_connection_that_goes_in_the_middle_of_a_body_disturbs_nobody() {
    on_each(|| async {
        let address = start()?;
        for request in [
            // On the way in,
            "POST /hash HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nhalf of it",
            "POST /hash HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
            // and on the way out.
            "GET /bytes/50000000 HTTP/1.1\r\nhost: x\r\n\r\n",
        ] {
            for resets in [false, true] {
                let stream = TcpStream::connect(address).await?;
                stream.send_all(request).await?;
                annulus::time::sleep(Duration::from_millis(5)).await;
                if resets {
                    stream.set_linger(Some(Duration::ZERO))?;
                }
                drop(stream);
            }
        }
        let mut requests = http1(address).await?;
        let answer = requests.send_request(of_path("/", nothing())).await;
        let answer = answer.map_err(io::Error::other)?;
        assert_eq!(text_of(answer).await?, "Hello, World!");
        Ok(())
    });
}
