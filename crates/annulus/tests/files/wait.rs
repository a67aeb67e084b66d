//! Waiting for a condition that must become true. The deadline is reached only when something is broken.

use std::thread;
use std::time::{Duration, Instant};

use crate::fixtures::Fixture;

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until `holds`.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until `holds`, on a thread that may be the one that drives the ring.
pub(crate) async fn eventually_on(fixture: &Fixture, what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {what}");
        fixture
            .engine
            .sleep(Duration::from_millis(1))
            .await
            .unwrap();
    }
}

/// Runs `body` on a separate thread and waits for its end.
#[track_caller]
pub(crate) fn in_time<T: Send + 'static>(
    what: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let thread = thread::spawn(body);
    eventually(what, || thread.is_finished());
    thread.join().unwrap()
}
