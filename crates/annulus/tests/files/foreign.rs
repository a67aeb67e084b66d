//! Buffers are foreign code: what one of them does wrong is the affair of its own operation.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

use annulus::fs::CachedReads;
use annulus::{EngineError, File};
use annulus_testing::panicking_buffer::PanickingBuffer;

use crate::grounds::{Ground, bytes, for_each_backend_with};

const BYTES: usize = 4096;

/// `None`: it has panicked.
async fn contained<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        match polled {
            Ok(polled) => polled.map(Some),
            Err(_) => std::task::Poll::Ready(None),
        }
    })
    .await
}

/// Lets the buffer of an operation panic at each of the moments it is asked. What is asked of the engine then is
/// answered. The operation's own answer is how often the buffer was asked; the value, how often it failed with an error
/// because a driver or a blocking thread had asked.
async fn at_each_moment(
    ground: &Ground,
    moodily: impl AsyncFn(&File, u32) -> io::Result<u32>,
) -> u32 {
    let contents = bytes(3, 2 * BYTES);
    let file = ground.file("f", &contents).await;
    file.set_cached_reads(CachedReads::Never);
    let asked = moodily(&file, 0).await.unwrap();
    assert!(asked > 1, "it is asked before and after");
    let mut failed = 0;
    for panics_at in 1..=asked {
        if let Some(Err(error)) = contained(moodily(&file, panics_at)).await {
            assert_eq!(
                EngineError::of(&error),
                Some(EngineError::Panicked),
                "{error}"
            );
            failed += 1;
        }
        let (count, _) = file.read_at(vec![0; BYTES], 0).await.unwrap();
        assert_eq!(count, BYTES);
    }
    assert_eq!(file.close().await.unwrap(), annulus::fs::Closed::Now);
    failed
}

/// One blocking thread is the hardest case: it must not be lost.
fn for_each(test: impl AsyncFn(&Ground)) {
    for_each_backend_with(|builder| builder.blocking_threads(1), test);
}

#[test]
fn a_buffer_that_panics_is_the_failure_of_its_own_read() {
    for_each(async |ground| {
        let failed = at_each_moment(ground, async |file, panics_at| {
            let (_, buf) = file
                .read_at(PanickingBuffer::new(BYTES, panics_at), 0)
                .await?;
            Ok(buf.calls())
        })
        .await;
        assert!(failed > 0);
    });
}

#[test]
fn a_buffer_that_panics_is_the_failure_of_its_own_write() {
    for_each(async |ground| {
        let failed = at_each_moment(ground, async |file, panics_at| {
            let buf = file
                .write_all_at(PanickingBuffer::new(BYTES, panics_at), 0)
                .await?;
            Ok(buf.calls())
        })
        .await;
        assert!(failed > 0);
    });
}

#[test]
fn a_buffer_that_panics_is_the_failure_of_its_own_vectored_read() {
    for_each(async |ground| {
        at_each_moment(ground, async |file, panics_at| {
            let bufs = vec![
                PanickingBuffer::new(BYTES / 2, 0),
                PanickingBuffer::new(BYTES / 2, panics_at),
            ];
            let (_, bufs) = file.read_vectored_at(bufs, 0).await?;
            Ok(bufs[1].calls())
        })
        .await;
    });
}

#[test]
fn a_buffer_that_panics_fails_its_own_read_of_a_batch_and_no_other() {
    for_each(async |ground| {
        let failed = at_each_moment(ground, async |file, panics_at| {
            let bad = |n| if n == 3 { panics_at } else { 0 };
            let reads = (0..8).map(|n| (PanickingBuffer::new(BYTES / 8, bad(n)), n * 512));
            let mut asked = Ok(0);
            for (n, answer) in file.read_many_at(reads).await.into_iter().enumerate() {
                match answer {
                    Ok((_, buf)) if n == 3 => asked = Ok(buf.calls()),
                    Ok((count, _)) => assert_eq!(count, BYTES / 8),
                    Err(error) if n == 3 => asked = Err(error.into()),
                    Err(error) => panic!("read {n}: {error}"),
                }
            }
            asked
        })
        .await;
        assert!(failed > 0);
    });
}
