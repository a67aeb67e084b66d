//! Large bodies in both directions, and the memory that a connection holds for them.

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

const LARGE: u64 = 16 << 20;

#[test]
fn http1_transfers_16_mib_in_both_directions_concurrently() {
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        let expected = hash_of_pattern(LARGE);
        for with_length in [true, false] {
            requests.ready().await.map_err(io::Error::other)?;
            let request = of_path("/echo", pattern(LARGE, with_length));
            let response = requests.send_request(request).await;
            let body = response.map_err(io::Error::other)?.into_body();
            let length = body.size_hint().exact();
            assert_eq!(length, with_length.then_some(LARGE));
            assert_eq!(hash_of(body).await.map_err(io::Error::other)?, expected);
        }
        Ok(())
    });
}

#[test]
fn http2_transfers_16_mib_in_both_directions_concurrently() {
    on_each(|| async {
        let mut requests = http2(start()?).await?;
        let request = of_url("/echo", pattern(LARGE, true));
        let response = requests.send_request(request).await;
        let body = response.map_err(io::Error::other)?.into_body();
        let got = hash_of(body).await.map_err(io::Error::other)?;
        assert_eq!(got, hash_of_pattern(LARGE));
        Ok(())
    });
}

#[test]
fn bodies_with_lengths_near_buffer_sizes_arrive_complete() {
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        for around in [4_096, 8_192, 65_536, 131_072, 262_144_u64] {
            for bytes in [around - 200, around - 1, around, around + 1] {
                for path in ["bytes", "chunked"] {
                    requests.ready().await.map_err(io::Error::other)?;
                    let request = of_path(&format!("/{path}/{bytes}"), nothing());
                    let response = requests.send_request(request).await;
                    let body = response.map_err(io::Error::other)?.into_body();
                    let got = hash_of(body).await.map_err(io::Error::other)?;
                    assert_eq!(got, hash_of_pattern(bytes), "{path} {bytes}");
                }
                requests.ready().await.map_err(io::Error::other)?;
                let request = of_path("/hash", pattern(bytes, bytes % 2 == 0));
                let response = requests.send_request(request).await;
                let got = text_of(response.map_err(io::Error::other)?).await?;
                assert_eq!(got, hash_of_pattern(bytes).0.to_string());
            }
        }
        Ok(())
    });
}

#[test]
fn uploads_and_short_requests_alternate_on_one_connection() {
    on_each(|| async {
        let mut requests = http1(start()?).await?;
        for bytes in [
            65_536, 0, 65_536, 65_536, 100, 30_000, 5_000_000, 1, 4_096, 65_536,
        ] {
            for _ in 0..5 {
                requests.ready().await.map_err(io::Error::other)?;
                let request = of_path("/hash", pattern(bytes, bytes % 3 != 0));
                let response = requests.send_request(request).await;
                let got = text_of(response.map_err(io::Error::other)?).await?;
                assert_eq!(got, hash_of_pattern(bytes).0.to_string());
            }
        }
        Ok(())
    });
}

/// Counts the bytes that it produced.
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
fn a_peer_that_does_not_read_stops_the_body() {
    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let total = Rc::new(Cell::new(0));
        let counted = Rc::clone(&total);
        let service = service_fn(move |_| {
            let response = Response::new(Endless(Rc::clone(&counted)));
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let served = runtime::spawn(async move {
            let served = Server::new().serve_connection(far, service).await;
            served.map_err(|error| error.to_string())
        });
        near.send_all("GET / HTTP/1.1\r\nhost: x\r\n\r\n").await?;
        // The socket's buffer, hyper's and ours fill up; then no more is produced.
        let mut produced = 0;
        while produced == 0 || total.get() != produced {
            produced = total.get();
            assert!(produced < 2 << 20, "{produced}");
            annulus::time::sleep(Duration::from_millis(100)).await;
        }
        // The body goes on once the peer reads.
        let mut read = 0;
        let mut chunks = near.recv_multishot();
        while read < 8 << 20
            && let Some(chunk) = chunks.next().await
        {
            read += chunk?.len();
        }
        assert!(total.get() > produced);
        drop(near);
        let error = served.await?.unwrap_err();
        assert!(!error.is_empty());
        Ok(())
    });
}

#[test]
fn a_connection_closed_within_a_body_does_not_affect_others() {
    on_each(|| async {
        let address = start()?;
        for request in [
            // While the request body is received.
            "POST /hash HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\nhalf of it",
            "POST /hash HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal",
            &format!(
                "POST /hash HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n\r\n{}",
                "x".repeat(300_000)
            ),
            // While the response body is sent.
            "GET /bytes/50000000 HTTP/1.1\r\nhost: x\r\n\r\n",
        ] {
            for resets in [false, true] {
                let stream = TcpStream::connect(address).await?;
                stream.send_all(request.to_owned()).await?;
                annulus::time::sleep(Duration::from_millis(5)).await;
                if resets {
                    stream.set_linger(Some(Duration::ZERO))?;
                }
                drop(stream);
            }
        }
        let mut requests = http1(address).await?;
        let response = requests.send_request(of_path("/", nothing())).await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(text_of(response).await?, "Hello, World!");
        Ok(())
    });
}
