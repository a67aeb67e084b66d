//! Halves of streams, and receives that fill a buffer.

use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::time::Duration;

use annulus::net::UnixStream;
use annulus::runtime;
use annulus::time::timeout;

use super::{check, on_each, pattern, tcp_pair};

#[test]
fn two_tasks_send_and_receive_on_one_stream() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let (read, write) = near.into_split();
        let (far_read, far_write) = far.into_split();
        // The other side echoes; neither side reads before it writes.
        let echo = runtime::spawn(async move {
            let mut chunks = far_read.recv_multishot();
            while let Some(chunk) = chunks.next().await {
                far_write.send_all(chunk?).await?;
            }
            io::Result::Ok(())
        });
        let sender = runtime::spawn(async move {
            for part in 0..64 {
                write.send_all(pattern(part * 50_000, 50_000)).await?;
            }
            io::Result::Ok(())
        });
        for part in 0..64 {
            check(part * 50_000, &read.recv_exact(vec![0; 50_000]).await?);
        }
        // The sender's half is dropped, and so is the echo's.
        assert_eq!(read.recv(vec![0; 1]).await?.0, 0);
        sender.await??;
        echo.await??;
        Ok(())
    });
}

#[test]
fn borrowed_halves_work_side_by_side() {
    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let (read, write) = near.split();
        let mut sends = std::pin::pin!(write.send_all(pattern(0, 3_000_000)));
        let mut other_way = std::pin::pin!(far.send_all("back"));
        let mut receives = std::pin::pin!(read.recv_exact(vec![0; 4]));
        let (mut sent, mut back, mut received) = (false, false, None);
        let mut all = far.recv_exact(vec![0; 3_000_000]);
        let all = std::future::poll_fn(|context| {
            sent = sent || sends.as_mut().poll(context).is_ready();
            back = back || other_way.as_mut().poll(context).is_ready();
            if received.is_none()
                && let std::task::Poll::Ready(result) = receives.as_mut().poll(context)
            {
                received = Some(result);
            }
            std::pin::Pin::new(&mut all).poll(context)
        })
        .await?;
        check(0, &all);
        let received = received.expect("a few bytes came before millions of them")?;
        assert_eq!(received, b"back");
        Ok(())
    });
}

#[test]
fn halves_of_one_stream_reunite_and_those_of_two_do_not() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let (other_near, _other_far) = tcp_pair().await?;
        let (read, write) = near.into_split();
        let (other_read, other_write) = other_near.into_split();
        let error = read.reunite(other_write).expect_err("two streams");
        let near = error.0.reunite(write).expect("one stream");
        other_read.reunite(error.1).expect("the other stream");
        // The stream is whole: the halves have ended neither direction.
        near.send_all("ping").await?;
        assert_eq!(far.recv_exact(vec![0; 4]).await?, b"ping");
        far.send_all("pong").await?;
        assert_eq!(near.recv_exact(vec![0; 4]).await?, b"pong");
        Ok(())
    });
}

#[test]
fn a_dropped_write_half_ends_its_direction_after_the_queued_sends() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let (read, write) = near.into_split();
        // More than the socket takes, and the rest of it is not awaited.
        let sends =
            runtime::spawn(async move { write.send_all(pattern(0, 8_000_000)).await.map(drop) });
        let mut received = 0;
        let mut chunks = far.recv_multishot();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk?;
            check(received, &chunk);
            received += chunk.len() as u64;
        }
        assert_eq!(received, 8_000_000);
        sends.await??;
        // The other direction is open.
        far.send_all("still").await?;
        assert_eq!(read.recv_exact(vec![0; 5]).await?, b"still");
        Ok(())
    });
}

#[test]
fn a_dropped_read_half_leaves_the_write_half_working() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        let (read, write) = near.into_split();
        assert!(
            timeout(Duration::from_millis(5), read.recv(vec![0; 1]))
                .await
                .is_err()
        );
        drop(read);
        write.send_all("after").await?;
        assert_eq!(far.recv_exact(vec![0; 5]).await?, b"after");
        Ok(())
    });
}

#[test]
fn an_exact_receive_puts_pieces_together_and_leaves_what_follows() {
    on_each(|| async {
        let (near, far) = UnixStream::pair()?;
        let sends = runtime::spawn(async move {
            for at in 0..100 {
                near.send_all(pattern(at, 1)).await?;
                runtime::yield_now().await;
            }
            near.send_all(pattern(100, 20_000)).await?;
            Ok::<_, io::Error>(near)
        });
        check(0, &far.recv_exact(vec![0; 60]).await?);
        check(
            60,
            &far.recv_exact(Vec::with_capacity(7_000)).await?[..7_000],
        );
        let (bytes, rest) = far.recv(vec![0; 10]).await?;
        check(7_060, &rest[..bytes]);
        let from = 7_060 + bytes as u64;
        check(
            from,
            &far.recv_exact(vec![0; 20_100 - from as usize]).await?,
        );
        drop(sends.await??);
        assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
        Ok(())
    });
}

#[test]
fn an_end_before_the_buffer_is_full_is_an_error_with_the_received_bytes() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        near.send_all("abc").await?;
        near.shutdown(Shutdown::Write)?;
        let (error, buf) = far
            .recv_exact(Vec::with_capacity(64))
            .await
            .unwrap_err()
            .into_parts();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(buf.as_deref(), Some(&b"abc"[..]));
        // The end is reported again.
        assert_eq!(far.recv(vec![0; 1]).await?.0, 0);
        Ok(())
    });
}

#[test]
fn bytes_that_are_put_back_are_received_next() {
    on_each(|| async {
        let (near, far) = tcp_pair().await?;
        near.send_all("header, body").await?;
        let mut chunks = far.recv_multishot();
        let mut chunk = chunks.next().await.expect("there is data")?;
        chunk.advance(8);
        chunks.unread(chunk);
        assert_eq!(far.recv_exact(vec![0; 4]).await?, b"body");
        Ok(())
    });
}
