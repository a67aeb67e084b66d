//! Futures that are dropped at random points.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use annulus::Engine;

use crate::buffers::Rng;

/// Awaits a future in four of five cases; otherwise drops it before it is polled, after its first poll, or later.
pub(crate) async fn with_luck<F: Future>(
    engine: &Engine,
    rng: &mut Rng,
    future: F,
) -> Option<F::Output> {
    match rng.below(15) {
        0 => None,
        1 => {
            let mut future = pin!(future);
            poll_fn(|context| match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => Poll::Ready(None),
            })
            .await
        }
        2 => {
            let mut time = engine.sleep(Duration::from_micros(rng.below(400)));
            let mut future = pin!(future);
            poll_fn(|context| {
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    return Poll::Ready(Some(output));
                }
                Pin::new(&mut time).poll(context).map(|_| None)
            })
            .await
        }
        _ => Some(future.await),
    }
}

/// Returns a timeout in some cases.
pub(crate) fn impatience(rng: &mut Rng) -> Option<Duration> {
    (rng.below(8) == 0).then(|| Duration::from_micros(rng.below(400)))
}
