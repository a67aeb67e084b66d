//! Buffers are foreign code: a buffer that misbehaves fails its own operation and no other.

use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;

#[cfg(not(annulus_portable))]
use annulus::fs::CachedReads;
use annulus::{EngineError, File};
use annulus_testing::panicking_buffer::PanickingBuffer;

use crate::fixtures::{Fixture, bytes, for_each_backend_with};

const BYTES: usize = 4096;

/// Returns the output of `future`, or `None` if it panicked.
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

/// Makes the buffers of a test and counts those that are not dropped yet.
struct Buffers(Arc<()>);

impl Buffers {
    /// Returns a buffer that panics at call `panics_at`, or never if that is 0.
    fn buffer(&self, bytes: usize, panics_at: u32) -> PanickingBuffer {
        let mut buffer = PanickingBuffer::new(bytes, panics_at);
        let alive = Arc::clone(&self.0);
        buffer.on_drop = Some(Box::new(move || drop(alive)));
        buffer
    }

    fn alive(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

/// Runs an operation once for each call of its buffer, and lets the buffer panic at that call. The engine must complete
/// a read after each panic. `operation` returns how often its buffer was called. The result is the number of runs that
/// failed with an error because a driver or a blocking thread called the buffer.
#[cfg(not(annulus_portable))]
async fn at_each_call(
    fixture: &Fixture,
    operation: impl AsyncFn(&File, &Buffers, u32) -> io::Result<u32>,
) -> u32 {
    let contents = bytes(3, 2 * BYTES);
    let file = fixture.file("f", &contents).await;
    file.set_cached_reads(CachedReads::Never);
    let buffers = Buffers(Arc::new(()));
    let calls = operation(&file, &buffers, 0).await.unwrap();
    assert!(calls > 1, "the buffer is called before and after");
    let mut failed = 0;
    for panics_at in 1..=calls {
        if let Some(Err(error)) = contained(operation(&file, &buffers, panics_at)).await {
            assert_eq!(
                EngineError::of(&error),
                Some(EngineError::Panicked),
                "{error}"
            );
            failed += 1;
        }
        read(&file).await;
    }
    // A panic on this thread drops the rest of its batch in flight. Those reads hold their buffers and the file until
    // their driver has cancelled them (an operation drops its file before its buffer). A ring of this thread is driven
    // by the reads of this loop.
    while buffers.alive() > 0 {
        read(&file).await;
    }
    assert_eq!(file.close().await.unwrap(), annulus::fs::Closed::Now);
    failed
}

async fn read(file: &File) {
    let (count, _) = file.read_at(vec![0; BYTES], 0).await.unwrap();
    assert_eq!(count, BYTES);
}

/// With one blocking thread, because a panic that ended that thread would leave none.
fn for_each(test: impl AsyncFn(&Fixture)) {
    for_each_backend_with(|builder| builder.blocking_threads(1), test);
}

#[cfg(not(annulus_portable))]
#[test]
fn a_panicking_buffer_fails_only_its_own_read() {
    for_each(async |fixture| {
        let failed = at_each_call(fixture, async |file, buffers, panics_at| {
            let (_, buf) = file.read_at(buffers.buffer(BYTES, panics_at), 0).await?;
            Ok(buf.calls())
        })
        .await;
        assert!(failed > 0);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_panicking_buffer_fails_only_its_own_write() {
    for_each(async |fixture| {
        let failed = at_each_call(fixture, async |file, buffers, panics_at| {
            let buf = file
                .write_all_at(buffers.buffer(BYTES, panics_at), 0)
                .await?;
            Ok(buf.calls())
        })
        .await;
        assert!(failed > 0);
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_panicking_buffer_fails_only_its_own_vectored_read() {
    for_each(async |fixture| {
        at_each_call(fixture, async |file, buffers, panics_at| {
            let bufs = vec![
                buffers.buffer(BYTES / 2, 0),
                buffers.buffer(BYTES / 2, panics_at),
            ];
            let (_, bufs) = file.read_vectored_at(bufs, 0).await?;
            Ok(bufs[1].calls())
        })
        .await;
    });
}

#[cfg(not(annulus_portable))]
#[test]
fn a_panicking_buffer_fails_only_its_own_read_of_a_batch() {
    for_each(async |fixture| {
        let failed = at_each_call(fixture, async |file, buffers, panics_at| {
            let bad = |n| if n == 3 { panics_at } else { 0 };
            let reads = (0..8).map(|n| (buffers.buffer(BYTES / 8, bad(n)), n * 512));
            let mut calls = Ok(0);
            for (n, result) in file.read_many_at(reads).await.into_iter().enumerate() {
                match result {
                    Ok((_, buf)) if n == 3 => calls = Ok(buf.calls()),
                    Ok((count, _)) => assert_eq!(count, BYTES / 8),
                    Err(error) if n == 3 => calls = Err(error.into()),
                    Err(error) => panic!("read {n}: {error}"),
                }
            }
            calls
        })
        .await;
        assert!(failed > 0);
    });
}

/// A panic drops the rest of the batch, whose other buffers panic as well.
#[cfg(not(annulus_portable))]
#[test]
fn panicking_buffers_of_a_batch_end_no_process() {
    for_each(async |fixture| {
        let failed = at_each_call(fixture, async |file, buffers, panics_at| {
            let reads = (0..8).map(|n| (buffers.buffer(BYTES / 8, panics_at), n * 512));
            let mut results = file.read_many_at(reads).await;
            let (_, buf) = results.swap_remove(0)?;
            Ok(buf.calls())
        })
        .await;
        assert!(failed > 0);
    });
}
