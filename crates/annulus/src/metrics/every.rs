//! Periodic snapshots on a background thread, the basis of alerts and exporters.

use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Snapshot, snapshot, watch};

/// Calls `callback` with a [`snapshot`] now and every `every`, on a new thread that [records latencies](watch). Stops
/// when the guard is dropped. If the callback panics, it is called again at the next interval.
///
/// ```
/// use std::{sync::mpsc, time::Duration};
/// use annulus::metrics;
///
/// let (sender, log) = mpsc::channel();
/// let guard = metrics::every(Duration::from_millis(5), move |snapshot| {
///     let _ = sender.send(snapshot.at_ns); // runs on a thread of its own
/// })?;
/// let first = log.recv().unwrap(); // immediately
/// assert!(log.recv().unwrap() > first);
/// drop(guard); // ends the thread; no further call
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// Fails with `InvalidInput` if `every` is zero, and with any error of starting a thread.
pub fn every(
    every: Duration,
    mut callback: impl FnMut(&Snapshot) + Send + 'static,
) -> io::Result<Every> {
    if every.is_zero() {
        let what = "the interval between snapshots is zero; it must be longer";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let (guard, stopped) = channel::<Infallible>();
    // Created before the thread starts, so that operations from now on are recorded.
    let watching = watch();
    let run = move || {
        let _watching = watching;
        loop {
            let now = snapshot();
            // The panic hook has reported the panic.
            let _ = catch_unwind(AssertUnwindSafe(|| callback(&now)));
            if stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("annulus-watch".to_owned());
    Ok(Every {
        guard: Some(guard),
        thread: Some(thread.spawn(run)?),
    })
}

/// The guard of a periodic snapshot. Dropping it stops the thread and waits for its end.
///
/// A guard that is not stored stops the thread at once:
///
/// ```
/// use std::time::Duration;
///
/// let error = annulus::metrics::every(Duration::ZERO, |_| ()).unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
/// let _ = annulus::metrics::every(Duration::from_secs(1), |_| ())?; // stopped already: bind it to a name
/// let _reports = annulus::metrics::every(Duration::from_secs(1), |_| ())?; // runs to the end of the scope
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard stops the snapshots"]
pub struct Every {
    guard: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Every {
    fn drop(&mut self) {
        drop(self.guard.take());
        if let Some(thread) = self.thread.take()
            // The callback itself may drop the guard.
            && thread.thread().id() != thread::current().id()
        {
            // Panics of the callback do not reach this result.
            let _ = thread.join();
        }
    }
}
