//! Futures that are dropped after any number of polls: received data is not lost, and sent data is a sequence of whole
//! buffers.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use annulus::net::TcpStream;
use annulus::runtime;

use super::{check, on_each, pattern, tcp_pair};

/// Polls `future` at most `polls` times, each time after a wake-up, then drops it.
async fn poll_at_most<F: Future + Unpin>(mut future: F, polls: u32) -> Option<F::Output> {
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::new(&mut future).poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Receives in one of the ways, and drops the future after some polls. Returns the number of received bytes.
async fn receive_somehow(
    stream: &TcpStream,
    at: u64,
    random: &mut fastrand::Rng,
) -> io::Result<Option<usize>> {
    let polls = random.u32(1..4);
    let bytes = random.usize(1..=9_000);
    let received = match random.u8(..3) {
        0 => match poll_at_most(stream.recv(vec![0; bytes]), polls).await {
            Some(result) => {
                let (bytes, buf) = result?;
                check(at, &buf[..bytes]);
                Some(bytes)
            }
            None => None,
        },
        1 => match poll_at_most(stream.recv_exact(vec![0; bytes]), polls).await {
            Some(Ok(buf)) => {
                check(at, &buf);
                Some(buf.len())
            }
            Some(Err(error)) if error.error().kind() == io::ErrorKind::UnexpectedEof => Some(0),
            Some(Err(error)) => return Err(error.into()),
            None => None,
        },
        _ => {
            let mut chunks = stream.recv_multishot();
            match poll_at_most(Box::pin(chunks.next()), polls).await {
                Some(Some(chunk)) => {
                    let mut chunk = chunk?;
                    check(at, &chunk);
                    let taken = random.usize(0..=chunk.len());
                    chunk.advance(taken);
                    chunks.unread(chunk);
                    (taken > 0).then_some(taken)
                }
                Some(None) => Some(0),
                None => None,
            }
        }
    };
    Ok(received)
}

#[test]
fn receives_that_are_dropped_at_any_poll_lose_nothing_and_change_no_order() {
    on_each(|| async {
        for seed in 0..12 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (near, far) = tcp_pair().await?;
            let mut sizes = random.fork();
            let total = 150_000_u64;
            let sender = runtime::spawn(async move {
                let mut at = 0;
                while at < total {
                    let bytes = sizes.u64(1..=12_000).min(total - at);
                    near.send_all(pattern(at, bytes as usize)).await?;
                    at += bytes;
                    for _ in 0..sizes.u8(..3) {
                        runtime::yield_now().await;
                    }
                }
                io::Result::Ok(())
            });
            let mut at = 0;
            // An exact receive that reaches the end returns an error with its buffer, so the test stops before the end.
            while at < total - 9_000 {
                match receive_somehow(&far, at, &mut random).await? {
                    Some(0) => panic!("seed {seed}: the end came at {at}"),
                    Some(bytes) => at += bytes as u64,
                    None => {}
                }
            }
            check(at, &far.recv_exact(vec![0; (total - at) as usize]).await?);
            assert_eq!(far.recv(vec![0; 1]).await?.0, 0, "seed {seed}");
            sender.await??;
        }
        Ok(())
    });
}

#[test]
fn sends_that_are_dropped_at_any_poll_leave_whole_buffers_in_order() {
    on_each(|| async {
        for seed in 0..12 {
            let mut random = fastrand::Rng::with_seed(100 + seed);
            let (near, far) = tcp_pair().await?;
            let reader = runtime::spawn(async move {
                let mut all = Vec::new();
                let mut chunks = far.recv_multishot();
                while let Some(chunk) = chunks.next().await {
                    all.extend_from_slice(&chunk?);
                    runtime::yield_now().await;
                }
                io::Result::Ok(all)
            });
            // Each buffer has its number, its length, and its number repeated.
            let mut finished = Vec::new();
            for number in 0..60_u8 {
                let bytes = random.u32(1..300_000);
                let mut buf = vec![number; 5 + bytes as usize];
                buf[1..5].copy_from_slice(&bytes.to_le_bytes());
                let polls = random.u32(1..4);
                if let Some(sent) = poll_at_most(near.send_all(buf), polls).await {
                    sent?;
                    finished.push(number);
                }
            }
            drop(near);
            let all = reader.await??;
            let mut rest = &all[..];
            let mut arrived = Vec::new();
            while let Some((head, body)) = rest.split_first_chunk::<5>() {
                let bytes = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
                assert!(
                    bytes <= body.len(),
                    "seed {seed}: buffer {} is cut off",
                    head[0]
                );
                assert!(
                    body[..bytes].iter().all(|byte| *byte == head[0]),
                    "seed {seed}"
                );
                arrived.push(head[0]);
                rest = &body[bytes..];
            }
            assert!(rest.is_empty(), "seed {seed}: a head is cut off");
            assert!(
                arrived.is_sorted_by(|one, next| one < next),
                "seed {seed}: {arrived:?}"
            );
            let lost = finished.iter().find(|number| !arrived.contains(number));
            assert_eq!(lost, None, "seed {seed}");
        }
        Ok(())
    });
}

#[test]
fn a_write_that_is_dropped_has_written_a_part_from_the_start() {
    on_each(|| async {
        for seed in 0..12 {
            let mut random = fastrand::Rng::with_seed(200 + seed);
            let (near, far) = tcp_pair().await?;
            let mut writer = near.writer().with_limit(random.usize(1..20_000));
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
            let mut written = 0;
            for _ in 0..100 {
                let piece = pattern(written, random.usize(0..30_000));
                let polls = random.u32(1..4);
                let writes = std::future::poll_fn(|context| writer.poll_write(context, &piece));
                if let Some(taken) = poll_at_most(writes, polls).await {
                    written += taken? as u64;
                }
                if random.u8(..8) == 0 {
                    let flush = poll_at_most(Box::pin(writer.flush()), random.u32(1..3)).await;
                    flush.transpose()?;
                }
            }
            drop(writer);
            drop(near);
            assert_eq!(reader.await??, written, "seed {seed}");
        }
        Ok(())
    });
}
