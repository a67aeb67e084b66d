//! HTTP/2: many streams, small windows, pings.

use std::io;
use std::time::{Duration, Instant};

use annulus::net::{TcpListener, TcpStream};
use annulus::runtime;
use annulus_hyper::{CoreExecutor, CoreTimer, HyperStream, Server};
use hyper::Version;
use hyper::client::conn::http2;

use crate::support::*;

#[test]
fn hello() {
    on_each(|| async {
        let mut requests = http2(start()?).await?;
        let response = requests.send_request(of_url("/", nothing())).await;
        let response = response.map_err(io::Error::other)?;
        assert_eq!(response.version(), Version::HTTP_2);
        assert_eq!(text_of(response).await?, "Hello, World!");
        Ok(())
    });
}

#[test]
fn concurrent_streams_with_small_windows_keep_their_bytes() {
    on_each(|| async {
        let mut server = Server::new();
        (server.http2())
            .initial_stream_window_size(20_000)
            .initial_connection_window_size(70_000)
            .max_concurrent_streams(40);
        let mut first = http2(start_as(server)?).await?;
        // The first response also carries the limit of concurrent streams.
        let response = first.send_request(of_url("/", nothing())).await;
        drop(response.map_err(io::Error::other)?);
        let requests = first;
        let tasks = (0..100_u64).map(|number| {
            let (mut requests, bytes) = (requests.clone(), number * 3_001);
            runtime::spawn(async move {
                let body = pattern(bytes, number % 2 == 0);
                let response = requests.send_request(of_url("/echo", body)).await?;
                let got = hash_of(response.into_body()).await?;
                Ok::<_, hyper::Error>((got, hash_of_pattern(bytes)))
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            let (got, expected) = task.await?.map_err(io::Error::other)?;
            assert_eq!(got, expected);
        }
        Ok(())
    });
}

#[test]
fn cancelled_streams_do_not_affect_others() {
    on_each(|| async {
        let requests = http2(start()?).await?;
        // A larger number of resets would look like an attack (rapid reset).
        for number in 0..15 {
            let mut requests = requests.clone();
            let late = runtime::spawn(async move {
                requests
                    .send_request(of_url("/late/60000", nothing()))
                    .await
                    .is_ok()
            });
            if number % 2 == 0 {
                runtime::yield_now().await;
            }
            late.abort();
        }
        let mut requests = requests.clone();
        let response = requests
            .send_request(of_url("/bytes/1000000", nothing()))
            .await;
        let response = response.map_err(io::Error::other)?;
        let got = hash_of(response.into_body())
            .await
            .map_err(io::Error::other)?;
        assert_eq!(got, hash_of_pattern(1_000_000));
        Ok(())
    });
}

#[test]
fn a_peer_that_answers_no_ping_is_closed_after_the_timeout() {
    on_each(|| async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        // Receives and sends nothing.
        drop(runtime::spawn(async move {
            let stream = listener.accept().await?;
            rest_of(&stream).await
        }));
        let stream = HyperStream::new(TcpStream::connect(address).await?);
        let mut builder = http2::Builder::new(CoreExecutor);
        let shaken = (builder.timer(CoreTimer))
            .keep_alive_interval(Duration::from_millis(20))
            .keep_alive_timeout(Duration::from_millis(50))
            .keep_alive_while_idle(true)
            .handshake::<_, AnyBody>(stream)
            .await;
        let (_requests, connection) = shaken.map_err(io::Error::other)?;
        let begun = Instant::now();
        let error = connection.await.unwrap_err();
        assert!(error.is_timeout(), "{error:?}");
        assert!(begun.elapsed() >= Duration::from_millis(50));
        Ok(())
    });
}
