//! The library's streams behind the traits of futures-io and of Tokio, on both backends.
//!
//! # Safety
//!
//! Reads memory that a receive has initialised (Written).
#![cfg(all(feature = "futures", feature = "net", feature = "tokio-io"))]
#![allow(unsafe_code)]

use std::future::Future;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use annulus::Backend;
use annulus::net::{AsyncStream, ConnectedStream, TcpListener, TcpStream, UdpSocket, UnixStream};
use annulus::runtime::{self, Runtime};

/// Runs a test on a core of each kind.
fn on_each<F>(test: impl Fn() -> F)
where
    F: Future<Output = io::Result<()>> + 'static,
{
    for backend in [Backend::Fallback, Backend::Uring] {
        let future = Box::pin(test());
        let run = Runtime::builder().backend(backend).block_on(async move {
            annulus::time::timeout(Duration::from_secs(300), future).await?
        });
        match run {
            Ok(outcome) => outcome.unwrap_or_else(|error| panic!("{backend:?}: {error}")),
            Err(error) if error.allows_fallback() => annulus_testing::skip::skip(error),
            Err(error) => panic!("{backend:?}: {error}"),
        }
    }
}

async fn tcp_pair() -> io::Result<(AsyncStream<TcpStream>, AsyncStream<TcpStream>)> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let far = listener.accept().await?;
    Ok((AsyncStream::new(near), AsyncStream::new(far)))
}

fn bytes_of(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    fastrand::Rng::with_seed(count as u64).fill(&mut bytes);
    bytes
}

#[test]
fn both_directions_together_through_tokios_traits() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};

    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let echo = runtime::spawn(async move {
            let (mut read, mut write) = split(far);
            let bytes = copy(&mut read, &mut write).await?;
            write.shutdown().await?;
            io::Result::Ok(bytes)
        });
        let (mut read, mut write) = split(near);
        let writes = runtime::spawn(async move {
            // In pieces of different sizes; the last one is followed by the end.
            for piece in bytes_of(3_000_000).chunks(7_001) {
                write.write_all(piece).await?;
            }
            write.shutdown().await
        });
        let mut back = Vec::new();
        read.read_to_end(&mut back).await?;
        assert!(back == bytes_of(3_000_000));
        writes.await??;
        assert_eq!(echo.await??, 3_000_000);
        Ok(())
    });
}

#[test]
fn both_directions_together_through_the_traits_of_futures() {
    use futures_util::io::{AsyncReadExt, AsyncWriteExt, copy};

    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let echo = runtime::spawn(async move {
            let (read, mut write) = far.split();
            let bytes = copy(read, &mut write).await?;
            write.close().await?;
            io::Result::Ok(bytes)
        });
        let (mut read, mut write) = near.split();
        let writes = runtime::spawn(async move {
            for piece in bytes_of(3_000_000).chunks(7_001) {
                write.write_all(piece).await?;
            }
            write.close().await
        });
        let mut back = Vec::new();
        read.read_to_end(&mut back).await?;
        assert!(back == bytes_of(3_000_000));
        writes.await??;
        assert_eq!(echo.await??, 3_000_000);
        Ok(())
    });
}

#[test]
fn one_task_reads_and_writes_in_the_same_poll() {
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    // As a protocol with frames in both directions does: whichever direction is ready continues.
    on_each(|| async {
        let (mut near, mut far) = tcp_pair().await?;
        let sent = bytes_of(2_000_000);
        let (mut written, mut echoed, mut back) = (0, 0, Vec::new());
        let (mut seen, mut memory) = (Vec::new(), vec![0; 5_000]);
        std::future::poll_fn(|context| {
            loop {
                let mut moved = false;
                if written < sent.len()
                    && let Poll::Ready(bytes) =
                        Pin::new(&mut near).poll_write(context, &sent[written..])
                {
                    written += bytes?;
                    moved = true;
                }
                for (stream, into) in [(&mut far, &mut seen), (&mut near, &mut back)] {
                    let mut buf = ReadBuf::new(&mut memory);
                    if let Poll::Ready(read) = Pin::new(stream).poll_read(context, &mut buf) {
                        read?;
                        into.extend_from_slice(buf.filled());
                        moved = true;
                    }
                }
                if echoed < seen.len()
                    && let Poll::Ready(bytes) =
                        Pin::new(&mut far).poll_write(context, &seen[echoed..])
                {
                    echoed += bytes?;
                    moved = true;
                }
                if back.len() >= sent.len() {
                    return Poll::Ready(io::Result::Ok(()));
                }
                if !moved {
                    return Poll::Pending;
                }
            }
        })
        .await?;
        assert!(back == sent);
        Ok(())
    });
}

#[test]
fn a_vectored_write_goes_out_as_one_piece() {
    use tokio::io::{AsyncWrite, AsyncWriteExt};

    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let mut near = AsyncStream::new(near);
        assert!(near.is_write_vectored());
        let pieces = [
            IoSlice::new(b"head "),
            IoSlice::new(b""),
            IoSlice::new(b"body"),
        ];
        assert_eq!(near.write_vectored(&pieces).await?, 9);
        near.flush().await?;
        let (bytes, buf) = far.recv(vec![0; 64]).await?;
        assert_eq!(&buf[..bytes], b"head body");
        Ok(())
    });
}

#[test]
fn unread_received_bytes_go_back_with_the_stream() {
    use tokio::io::AsyncReadExt;

    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        near.send_all("for the adapter, for the stream").await?;
        let mut far = AsyncStream::new(far);
        let mut head = [0; 16];
        far.read_exact(&mut head).await?;
        assert_eq!(&head, b"for the adapter,");
        let far = far.into_inner();
        assert_eq!(far.recv_exact(vec![0; 15]).await?, b" for the stream");
        Ok(())
    });
}

#[test]
fn a_slow_reader_stops_the_writes_at_the_limit() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    on_each(|| async {
        let (near, mut far) = tcp_pair().await?;
        let mut near = near.with_write_limit(20_000);
        let mut written = 0;
        let quarter = Duration::from_millis(250);
        while let Ok(bytes) = annulus::time::timeout(quarter, near.write(&[5; 9_000])).await {
            written += bytes?;
        }
        let shown = format!("{near:?}");
        assert!(shown.contains("unsent: 20000"), "{shown}");
        // The rest is sent although the adapter is dropped.
        drop(near);
        let mut all = Vec::new();
        far.read_to_end(&mut all).await?;
        assert_eq!(all.len(), written);
        assert!(all.iter().all(|byte| *byte == 5));
        Ok(())
    });
}

#[test]
fn a_flush_waits_until_all_is_sent_and_reports_errors() {
    use tokio::io::AsyncWriteExt;

    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let mut near = AsyncStream::new(near);
        near.write_all(b"taken").await?;
        near.flush().await?;
        assert!(format!("{near:?}").contains("unsent: 0"));
        drop(far);
        // The peer has unread bytes, so its end is a reset, and later writes fail.
        let error = loop {
            near.write_all(b"more").await?;
            if let Err(error) = near.flush().await {
                break error;
            }
        };
        assert!(
            matches!(
                error.kind(),
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
            ),
            "{error}"
        );
        Ok(())
    });
}

/// Takes items through the trait, not through the methods of the same names.
async fn first<S: futures_util::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    futures_util::StreamExt::next(stream).await
}

#[test]
fn each_type_with_a_next_on_a_socket_is_a_stream_of_futures() {
    on_each(|| async {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?).await?;
        let mut connections = listener.accept_multishot();
        let Some(far) = first(&mut connections).await else {
            return Err(io::Error::other("no connection"));
        };
        near.send_all("some bytes").await?;
        drop(near);
        let far = far?;
        let (mut chunks, mut received) = (far.recv_multishot(), Vec::new());
        while let Some(chunk) = first(&mut chunks).await {
            received.extend_from_slice(&chunk?);
        }
        assert_eq!(received, b"some bytes");

        let (one, other) = (
            UdpSocket::bind("127.0.0.1:0")?,
            UdpSocket::bind("127.0.0.1:0")?,
        );
        one.send_to("a datagram", other.local_addr()?).await?;
        let datagram = first(&mut other.recv_multishot()).await.unwrap()?;
        assert_eq!(&datagram.chunk[..], b"a datagram");
        Ok(())
    });
}

#[test]
fn batches_of_reads_and_listings_are_streams_of_futures() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, bytes_of(40_000)).unwrap();
    pollster::block_on(async {
        let engine = annulus::Engine::new().unwrap();
        let file = engine.open(&path).await.unwrap();
        let reads = || (0..10).map(|n| (vec![0; 100], n * 4_000));
        let mut many = file.read_many_at(reads());
        let mut merged = file
            .read_many_at(reads())
            .merge(annulus::fs::Merge::default());
        let mut offsets = [Vec::new(), Vec::new()];
        while let Some(read) = first(&mut many).await {
            assert_eq!(read.result.unwrap().0, 100);
            offsets[0].push(read.offset);
        }
        while let Some(read) = first(&mut merged).await {
            assert_eq!(read.result.unwrap().0, 100);
            offsets[1].push(read.offset);
        }
        let mut entries = engine.read_dir(dir.path());
        assert_eq!(first(&mut entries).await.unwrap().unwrap().name(), "data");
        assert!(first(&mut entries).await.is_none());
        for mut offsets in offsets {
            offsets.sort_unstable();
            assert!(offsets.into_iter().eq((0..10).map(|n| n * 4_000)));
        }
    });
}

#[test]
fn unix_streams_have_the_methods_that_they_share_with_tcp() {
    on_each(|| async {
        let dir = tempfile::tempdir()?;
        let listener = annulus::net::UnixListener::bind(dir.path().join("socket"))?;
        let near = UnixStream::connect(dir.path().join("socket")).await?;
        let far = listener.accept().await?;
        near.try_send(b"sent".to_vec()).unwrap();
        near.sent().await?;
        assert_eq!(far.recv_exact(vec![0; 4]).await?, b"sent");
        let (one, other) = std::os::unix::net::UnixStream::pair()?;
        let (one, other) = (UnixStream::from_std(one)?, UnixStream::from_std(other)?);
        one.send_all("from std").await?;
        assert_eq!(other.recv_exact(vec![0; 8]).await?, b"from std");
        Ok(())
    });
}

/// Receives directly if the stream does, otherwise by chunks, and appends to `into`. Returns the number of bytes, 0 at
/// the end, and whether the receive was direct.
async fn receive<S: ConnectedStream>(
    stream: &mut AsyncStream<S>,
    space: usize,
    into: &mut Vec<u8>,
) -> io::Result<(usize, bool)> {
    std::future::poll_fn(|context| {
        let mut memory = vec![MaybeUninit::uninit(); space];
        let Some(polled) = stream.poll_direct(context, &mut memory) else {
            let received = std::task::ready!(stream.fill(context))?;
            let bytes = received.len().min(space);
            into.extend_from_slice(&received[..bytes]);
            stream.advance(bytes);
            return Poll::Ready(Ok((bytes, false)));
        };
        let bytes = std::task::ready!(polled)?;
        // SAFETY: Written: the receive has initialised that many bytes.
        into.extend(
            memory[..bytes]
                .iter()
                .map(|byte| unsafe { byte.assume_init() }),
        );
        Poll::Ready(Ok((bytes, true)))
    })
    .await
}

#[test]
fn direct_receives_chunks_and_receives_of_the_stream_together_lose_no_byte() {
    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let sent = bytes_of(2_000_000);
        let sends = runtime::spawn(async move {
            let mut random = fastrand::Rng::with_seed(38);
            let mut left = &bytes_of(2_000_000)[..];
            while !left.is_empty() {
                // Short and long messages, in runs, so that the receiver changes its way.
                let most = [100, 5_000, 200_000][random.usize(..3)];
                for _ in 0..random.usize(1..20) {
                    let (piece, rest) = left.split_at(random.usize(..most).min(left.len()));
                    near.send_all(piece.to_vec()).await?;
                    left = rest;
                    if random.bool() {
                        annulus::time::sleep(Duration::from_micros(50)).await;
                    }
                }
            }
            io::Result::Ok(())
        });
        let mut random = fastrand::Rng::with_seed(39);
        let (mut far, mut back) = (AsyncStream::new(far), Vec::new());
        loop {
            let space = [64, 8_192, 300_000][random.usize(..3)];
            if random.usize(..50) == 0 {
                // A wait that is dropped takes nothing with it, nor does another kind of receive.
                let _ = futures_lite::future::poll_once(receive(&mut far, space, &mut back)).await;
                let stream = far.into_inner();
                let (bytes, buf) = stream.recv(vec![0; space]).await?;
                back.extend_from_slice(&buf[..bytes]);
                far = AsyncStream::new(stream);
            } else if receive(&mut far, space, &mut back).await?.0 == 0 {
                break;
            }
        }
        assert!(back == sent);
        sends.await?
    });
}

#[test]
fn bulk_data_is_received_directly() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let near = near.into_inner();
        let (mut far, mut back) = (far, Vec::new());
        let mut directly = 0;
        for round in 1..=20 {
            let sends = async { near.send_all(bytes_of(100_000)).await.map(drop) };
            let receives = async {
                while back.len() < round * 100_000 {
                    let (bytes, is_direct) = receive(&mut far, 300_000, &mut back).await?;
                    directly += if is_direct { bytes } else { 0 };
                }
                io::Result::Ok(())
            };
            let (sent, received) = futures_lite::future::zip(sends, receives).await;
            sent?;
            received?;
        }
        assert!(directly > 1_000_000, "{directly}");
        assert!(back.chunks(100_000).all(|one| one == bytes_of(100_000)));
        // The end is reported directly as well, and stays.
        drop(near);
        assert_eq!(receive(&mut far, 1_000, &mut back).await?.0, 0);
        assert_eq!(receive(&mut far, 1_000, &mut back).await?.0, 0);
        Ok(())
    });
}

#[test]
fn a_direct_receive_that_waits_ends_with_the_connection() {
    on_each(|| async {
        for resets in [false, true] {
            let (near, mut far) = tcp_pair().await?;
            let near = near.into_inner();
            let sends = runtime::spawn(async move {
                near.send_all(bytes_of(300_000)).await?;
                io::Result::Ok(near)
            });
            let mut back = Vec::new();
            while back.len() < 300_000 {
                receive(&mut far, 100_000, &mut back).await?;
            }
            let near = sends.await??;
            let waits = runtime::spawn(async move {
                let mut back = Vec::new();
                receive(&mut far, 100_000, &mut back).await
            });
            runtime::yield_now().await;
            if resets {
                near.set_linger(Some(Duration::ZERO))?;
            }
            drop(near);
            match waits.await? {
                Ok((bytes, _)) => assert_eq!((bytes, resets), (0, false)),
                Err(error) => assert_eq!(
                    (error.kind(), resets),
                    (io::ErrorKind::ConnectionReset, true)
                ),
            }
        }
        Ok(())
    });
}
