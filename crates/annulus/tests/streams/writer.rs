//! Writers: gathering, back-pressure, errors, ends.

use std::io::{self, ErrorKind, IoSlice};
use std::task::Poll;
use std::time::Duration;

use annulus::IoBuf;
use annulus::net::UnixStream;
use annulus::runtime;
use annulus::time::timeout;

use super::{check, on_each, pattern, tcp_pair};

#[test]
fn small_writes_of_one_poll_arrive_as_one_piece() {
    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let mut writer = near.writer();
        for at in 0..100 {
            writer.write(&pattern(at * 10, 10)).await?;
        }
        writer.write_buf(pattern(1_000, 24)).await?;
        // A waiting receive gets each send as a separate piece.
        let (bytes, buf) = far.recv(vec![0; 4096]).await?;
        assert_eq!(bytes, 1_024);
        check(0, &buf[..bytes]);
        Ok(())
    });
}

#[test]
fn gathered_bytes_and_given_buffers_arrive_in_the_order_of_their_writes() {
    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let mut writer = near.writer();
        writer.write(&pattern(0, 10)).await?;
        writer.write_buf(pattern(10, 5_000)).await?;
        writer.write(&pattern(5_010, 10)).await?;
        writer
            .write_buf(pattern(5_020, 8_000).into_boxed_slice())
            .await?;
        writer.flush().await?;
        assert_eq!(writer.unsent(), 0);
        check(0, &far.recv_exact(vec![0; 13_020]).await?);
        Ok(())
    });
}

#[test]
fn a_slow_reader_stops_the_writer_at_its_limit() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let mut writer = near.writer().with_limit(10_000);
        let mut written = 0;
        // Until nothing is accepted any more: the sockets and the writer are full.
        while let Ok(taken) = timeout(
            Duration::from_millis(200),
            std::future::poll_fn(|context| writer.poll_write(context, &pattern(written, 3_000))),
        )
        .await
        {
            written += taken? as u64;
            assert!(writer.unsent() <= 10_000);
        }
        assert_eq!(writer.unsent(), 10_000);
        // Once it is read, the writer continues.
        let reader = runtime::spawn(async move {
            let mut received = 0;
            let mut chunks = far.recv_multishot();
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk?;
                check(received, &chunk);
                received += chunk.len() as u64;
            }
            io::Result::Ok(received)
        });
        writer.write(&pattern(written, 50_000)).await?;
        writer.finish().await?;
        assert_eq!(writer.unsent(), 0);
        assert_eq!(reader.await??, written + 50_000);
        Ok(())
    });
}

#[test]
fn large_buffers_and_small_ones_keep_their_order() {
    on_each(|| async {
        let mut random = fastrand::Rng::with_seed(42);
        let (near, far) = tcp_pair().await?;
        let mut writer = near.writer();
        let total = 4_000_000;
        let reader = runtime::spawn(async move {
            let all = far.recv_exact(vec![0; total]).await?;
            check(0, &all);
            io::Result::Ok(far.recv(vec![0; 1]).await?.0)
        });
        let mut at = 0;
        while at < total {
            let bytes = random.usize(0..=100_000).min(total - at);
            let bytes = if random.bool() { bytes } else { bytes % 3_000 };
            let piece = pattern(at as u64, bytes);
            match random.u8(..3) {
                0 => writer.write(&piece).await?,
                1 => writer.write_buf(piece).await?,
                _ => {
                    let half = bytes / 2;
                    let mut two = [IoSlice::new(&piece[..half]), IoSlice::new(&piece[half..])];
                    let mut left = &mut two[..];
                    while left.iter().any(|piece| !piece.is_empty()) {
                        let taken = std::future::poll_fn(|context| {
                            writer.poll_write_vectored(context, left)
                        })
                        .await?;
                        IoSlice::advance_slices(&mut left, taken);
                    }
                }
            }
            at += bytes;
        }
        writer.finish().await?;
        assert_eq!(reader.await??, 0);
        Ok(())
    });
}

#[test]
fn a_dropped_writer_sends_its_data() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let mut writer = near.writer().with_limit(5_000_000);
        writer.write(&pattern(0, 5_000_000)).await?;
        drop(writer);
        drop(near);
        check(0, &far.recv_exact(vec![0; 5_000_000]).await?);
        assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
        Ok(())
    });
}

#[test]
fn a_half_that_became_a_writer_ends_its_direction_when_all_is_sent() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let (read, write) = near.into_split();
        let mut writer = write.into_writer().with_limit(3_000_000);
        writer.write(&pattern(0, 3_000_000)).await?;
        drop(writer);
        check(0, &far.recv_exact(vec![0; 3_000_000]).await?);
        assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
        far.send_all("open").await?;
        assert_eq!(read.recv_exact(vec![0; 4]).await?, b"open");
        Ok(())
    });
}

#[test]
fn a_failed_send_is_reported_by_the_calls_after_it() {
    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let mut writer = near.writer();
        drop(far);
        // Closed in the background: once the end has been received, it is closed.
        assert_eq!(near.recv(vec![0; 1]).await?.0, 0);
        // The first write is accepted, because the error is not known yet.
        writer.write(b"lost").await?;
        let error = writer.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        assert_eq!(
            writer.write(b"x").await.unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
        let (error, buf) = writer
            .write_buf(vec![1; 9_000])
            .await
            .unwrap_err()
            .into_parts();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        assert_eq!(buf.map(|buf| buf.len()), Some(9_000));
        assert_eq!(
            writer.finish().await.unwrap_err().kind(),
            ErrorKind::BrokenPipe
        );
        Ok(())
    });
}

#[test]
fn a_waiting_writer_fails_when_the_peer_closes() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let mut writer = near.writer();
        let writes = runtime::spawn(async move {
            loop {
                if let Err(error) = writer.write(&[7; 40_000]).await {
                    return error.kind();
                }
            }
        });
        let _ = far.recv_exact(vec![0; 10_000]).await?;
        drop(far);
        let kind = writes.await?;
        assert!(
            matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset),
            "{kind:?}"
        );
        Ok(())
    });
}

#[test]
fn the_streams_own_sends_go_between_the_writers() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let mut writer = near.writer();
        writer.write(b"one ").await?;
        writer.flush().await?;
        near.send_all("two ").await?;
        writer
            .write_buf(vec![b'3'; 5_000].subslice(..4_999))
            .await?;
        writer.finish().await?;
        assert_eq!(far.recv_exact(vec![0; 8]).await?, b"one two ");
        assert_eq!(far.recv_exact(vec![0; 4_999]).await?, vec![b'3'; 4_999]);
        assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
        let error = near.send_all("late").await.unwrap_err();
        assert_eq!(error.error().kind(), ErrorKind::BrokenPipe);
        Ok(())
    });
}

#[test]
fn an_empty_write_completes_immediately() {
    on_each(|| async {
        let (near, _far) = tcp_pair().await?;
        let mut writer = near.writer();
        writer.write(b"").await?;
        writer.write_buf(Vec::new()).await?;
        let flushed = std::future::poll_fn(|context| Poll::Ready(writer.poll_flush(context))).await;
        assert!(matches!(flushed, Poll::Ready(Ok(()))));
        assert_eq!(writer.unsent(), 0);
        Ok(())
    });
}

#[test]
fn a_buffer_is_accepted_without_waiting_while_the_unsent_bytes_are_below_the_limit() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let mut writer = near.writer().with_limit(10_000);
        assert_eq!(writer.try_write_buf(pattern(0, 9_999)), Ok(()));
        // One byte less than the limit is unsent, so the next buffer is accepted as a whole.
        assert_eq!(writer.try_write_buf(pattern(9_999, 50_000)), Ok(()));
        assert_eq!(
            writer.try_write_buf(vec![0; 3]),
            Err(vec![0; 3]),
            "given back"
        );
        writer.finish().await?;
        check(0, &far.recv_exact(vec![0; 59_999]).await?);
        assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
        Ok(())
    });
}

/// The end of the direction does not overtake what a writer has accepted.
#[test]
fn the_end_of_a_direction_follows_the_data_of_writers() {
    on_each(|| async {
        for bytes in [5, 5_000, 1_000_000] {
            for is_dropped in [false, true] {
                // Halves that are borrowed.
                let (near, far) = tcp_pair().await?;
                let (_read, write) = near.split();
                let mut writer = write.writer().with_limit(usize::MAX);
                writer.write(&pattern(0, bytes)).await?;
                let writer = (!is_dropped).then_some(writer);
                write.finish();
                check(0, &far.recv_exact(vec![0; bytes]).await?);
                assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
                drop(writer);

                // Halves that are owned.
                let (near, far) = tcp_pair().await?;
                let mut writer = near.writer().with_limit(usize::MAX);
                let (_read, write) = near.into_split();
                writer.write(&pattern(0, bytes)).await?;
                writer.write_buf(pattern(bytes as u64, bytes)).await?;
                let writer = (!is_dropped).then_some(writer);
                drop(write);
                check(0, &far.recv_exact(vec![0; 2 * bytes]).await?);
                assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
                drop(writer);
            }
        }
        Ok(())
    });
}
