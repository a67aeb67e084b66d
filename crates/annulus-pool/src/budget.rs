//! A task whose pages are all in memory never waits. It would starve the other tasks of its executor if it did not
//! yield.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

/// The hits in a row, on one thread, after which a task yields: about as many as Tokio's budget, in copies of 4 KiB.
const HITS: u32 = 128;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(HITS) };
}

/// Spends one hit, and yields if too many followed each other.
#[inline]
pub(crate) async fn spend() {
    let left = LEFT.with(|left| {
        left.set(left.get().wrapping_sub(1));
        left.get()
    });
    if left == 0 {
        LEFT.set(HITS);
        let mut has_yielded = false;
        poll_fn(|context| {
            if has_yielded {
                return Poll::Ready(());
            }
            has_yielded = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}
