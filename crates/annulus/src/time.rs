//! Timers on a runtime's cores: [`sleep`], [`timeout`] and [`interval`].
//!
//! ```
//! use std::io;
//! use std::time::Duration;
//!
//! use annulus::runtime::Runtime;
//! use annulus::time;
//!
//! # fn main() -> io::Result<()> {
//! Runtime::builder().cores(1).run(|_core| async {
//!     time::sleep(Duration::from_millis(5)).await;
//!
//!     let slow = time::sleep(Duration::from_secs(60));
//!     let error = time::timeout(Duration::from_millis(5), slow).await.unwrap_err();
//!     assert_eq!(error.kind(), io::ErrorKind::TimedOut);
//!
//!     let mut interval = time::interval(Duration::from_millis(5));
//!     for _ in 0..3 {
//!         interval.tick().await;
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! A timer needs no system call: it bounds the core's next sleep. Its resolution is that of the kernel's timers,
//! about 50 µs.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::driver::core::{Core, Notifier, Timer};
use crate::narrow::to_ns;
use crate::sys::call::now_ns;
use crate::sys::engine_error::EngineError;

fn core() -> Rc<Core> {
    match Core::current() {
        Some(core) => core,
        None => panic!(
            "timers need a runtime core, and this thread is not one; start a runtime with Runtime::block_on or \
             Runtime::run, or move the task to a core with Handle::spawn_on"
        ),
    }
}

/// Returns a future that completes when `time` has passed since this call. Dropping it cancels the timer.
///
/// The time starts with the call, not with the first poll:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use std::time::{Duration, Instant};
/// use annulus::time;
///
/// let start = Instant::now();
/// let first = time::sleep(Duration::from_millis(2));
/// let second = time::sleep(Duration::from_millis(1));
/// first.await;
/// second.await; // ready already
/// assert!(start.elapsed() >= Duration::from_millis(2));
/// # Ok(()) })? }
/// ```
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core.
pub fn sleep(time: Duration) -> Sleep {
    let _ = core();
    Sleep {
        at_ns: now_ns().saturating_add(to_ns(time)),
        armed: None,
        has_yielded: false,
    }
}

/// The future of [`sleep`].
///
/// It is `Send`, for interfaces that require it, such as axum's handlers. Its timer is set on the core that polls it.
/// It may be dropped on any thread.
///
/// Several timers can be awaited in one `select`, and kept over its rounds:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use std::time::Duration;
/// use annulus::time;
///
/// let short = time::sleep(Duration::from_millis(1));
/// let long = time::sleep(Duration::from_secs(600));
/// // Waits for the first of the two. Dropping the other one cancels its timer.
/// futures_lite::future::or(short, long).await;
/// # Ok(()) })? }
/// ```
///
/// # Panics
///
/// Panics if polled on a thread that is not a runtime core, unless the time has passed.
#[must_use = "a sleep does nothing until it is awaited"]
pub struct Sleep {
    at_ns: u64,
    armed: Option<Armed>,
    /// True if it has yielded because the budget of its task was used up. It yields once, as others may use it up each
    /// time.
    has_yielded: bool,
}

/// A timer, and the notifier of the core that has it.
struct Armed {
    home: Arc<Notifier>,
    timer: Timer,
}

impl Sleep {
    fn set(&mut self, at_ns: u64) {
        self.clear();
        self.at_ns = at_ns;
        self.has_yielded = false;
    }

    fn clear(&mut self) {
        let Some(Armed { home, timer }) = self.armed.take() else {
            return;
        };
        match Core::current() {
            Some(core) if core.is_of(&home) => core.clear_timer(timer),
            // Its core clears it when it next wakes.
            _ => home.clear_timer(timer),
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if now_ns() >= self.at_ns {
            let is_first = self.armed.is_none() && !self.has_yielded;
            if is_first && Core::current().is_some_and(|core| !core.spend(context)) {
                self.has_yielded = true;
                return Poll::Pending;
            }
            self.clear();
            return Poll::Ready(());
        }
        let core = core();
        match &self.armed {
            Some(armed) if core.is_of(&armed.home) => {
                core.set_timer(Some(armed.timer), self.at_ns, context.waker());
            }
            _ => {
                self.clear();
                self.armed = Some(Armed {
                    timer: core.set_timer(None, self.at_ns, context.waker()),
                    home: core.notifier(),
                });
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clear();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("at_ns", &self.at_ns)
            .finish_non_exhaustive()
    }
}

/// Awaits `future` for at most `time`. The returned future owns `future`, and dropping one drops the other.
///
/// The future is stored inline: `timeout` allocates no memory. At the end of the time, `future` is not dropped before
/// the returned future is.
///
/// A receive that times out loses no data, and the stream goes on:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # let (near, far) = annulus::net::UnixStream::pair()?;
/// use std::{io::ErrorKind, time::Duration};
/// use annulus::time;
///
/// let late = time::timeout(Duration::from_millis(1), far.recv(vec![0; 64])).await;
/// assert_eq!(late.unwrap_err().kind(), ErrorKind::TimedOut);
/// near.send_all("hello").await?;
/// // The outer result is the timeout's, the inner one the future's.
/// let received = time::timeout(Duration::from_secs(600), far.recv(vec![0; 64])).await;
/// let (bytes, _) = received??;
/// assert_eq!(bytes, 5);
/// # Ok(()) })? }
/// ```
///
/// # Errors
///
/// Fails with [`EngineError::TimedOut`], of the kind [`io::ErrorKind::TimedOut`], if
/// `future` is not ready in time.
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core.
pub fn timeout<F: Future>(time: Duration, future: F) -> Timeout<F> {
    Timeout {
        future,
        sleep: sleep(time),
    }
}

pin_project_lite::pin_project! {
    /// The future of [`timeout`].
    ///
    /// It polls the future first, so a limit of zero still takes what is ready:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::time;
    /// use std::time::Duration;
    ///
    /// assert_eq!(time::timeout(Duration::ZERO, async { 7 }).await?, 7);
    /// let never = time::timeout(Duration::ZERO, std::future::pending::<()>());
    /// assert!(never.await.is_err());
    /// # Ok(()) })? }
    /// ```
    #[must_use = "it does nothing until it is awaited"]
    #[derive(Debug)]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = io::Result<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.future.poll(context) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(this.sleep)
            .poll(context)
            .map(|()| Err(EngineError::TimedOut.into()))
    }
}

/// Returns an interval whose first tick is immediate, and whose next ticks follow at multiples of `period`. A late
/// tick does not delay later ones. Missed ticks are skipped.
///
/// A tick may be dropped and awaited again, as in a `select`:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use std::time::Duration;
/// use annulus::time;
///
/// let mut interval = time::interval(Duration::from_secs(3600));
/// interval.tick().await; // the first one is immediate
/// let second = futures_lite::future::poll_once(interval.tick()).await;
/// assert!(second.is_none()); // in an hour; the dropped wait changes nothing
/// # Ok(()) })? }
/// ```
///
/// # Panics
///
/// Panics if the calling thread is not a runtime core, or if `period` is 0.
pub fn interval(period: Duration) -> Interval {
    let period_ns = to_ns(period);
    assert!(period_ns > 0, "the period of an interval must not be 0");
    Interval {
        sleep: sleep(Duration::ZERO),
        period_ns,
    }
}

/// A sequence of ticks. Made by [`interval`].
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use std::time::Duration;
/// use annulus::{runtime, time};
///
/// // A task that looks after something until the runtime ends.
/// runtime::spawn(async {
///     let mut interval = time::interval(Duration::from_millis(1));
///     while !runtime::is_stopping() {
///         interval.tick().await; // the first tick is immediate
///     }
/// });
/// # time::sleep(Duration::from_millis(3)).await;
/// # Ok(()) })? }
/// ```
#[derive(Debug)]
pub struct Interval {
    sleep: Sleep,
    period_ns: u64,
}

impl Interval {
    /// Waits for the next tick. Cancel-safe: dropping the future loses no tick.
    ///
    /// An interval that has fallen behind skips the ticks that it missed:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use std::time::{Duration, Instant};
    /// use annulus::time;
    ///
    /// let start = Instant::now();
    /// let mut interval = time::interval(Duration::from_millis(2));
    /// interval.tick().await; // at 0 ms
    /// std::thread::sleep(Duration::from_millis(5)); // over the ticks at 2 and 4 ms
    /// interval.tick().await; // one tick for both, immediately
    /// interval.tick().await; // at 6 ms or later
    /// assert!(start.elapsed() >= Duration::from_millis(6));
    /// # Ok(()) })? }
    /// ```
    pub async fn tick(&mut self) {
        std::future::poll_fn(|context| Pin::new(&mut self.sleep).poll(context)).await;
        let due_ns = self.sleep.at_ns;
        let late = now_ns().saturating_sub(due_ns) / self.period_ns;
        let step_ns = self.period_ns.saturating_mul(late + 1);
        self.sleep.set(due_ns.saturating_add(step_ns));
    }
}
