//! Looking again and again, on a thread of its own: what alerts and exporters stand on.

use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Snapshot, snapshot, watch};

/// Calls back with a [`snapshot`] now and `every` so often, on a thread of its own that [watches](watch), until the
/// guard is dropped. A callback that panics is called again the next time.
///
/// # Errors
///
/// `InvalidInput` if `every` is zero; why there is no thread.
pub fn every(
    every: Duration,
    mut callback: impl FnMut(&Snapshot) + Send + 'static,
) -> io::Result<Every> {
    if every.is_zero() {
        let says = "looking without a pause; say how often, in a time above zero";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, says));
    }
    let (guard, stopped) = channel::<Infallible>();
    // Before the thread runs, so that what is done from here on is seen.
    let watching = watch();
    let look = move || {
        let _watching = watching;
        loop {
            let now = snapshot();
            // The panic has been reported where it happened.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(&now)));
            if stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("annulus-watch".to_owned());
    Ok(Every {
        guard: Some(guard),
        thread: Some(thread.spawn(look)?),
    })
}

/// A thread that looks; dropped, it is told to end, and waited for.
#[derive(Debug)]
#[must_use = "dropped, it looks no more"]
pub struct Every {
    guard: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Every {
    fn drop(&mut self) {
        drop(self.guard.take());
        if let Some(thread) = self.thread.take()
            // Its own callback may be where it is dropped.
            && thread.thread().id() != thread::current().id()
        {
            // It has nothing to say: panics of the callback end there.
            let _ = thread.join();
        }
    }
}
