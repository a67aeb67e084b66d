//! Signals on a runtime's cores. Feature `signal`.
//!
//! ```
//! use annulus::runtime::Runtime;
//! use annulus::signal::{self, Signal};
//!
//! # fn main() -> std::io::Result<()> {
//! Runtime::builder().cores(1).run(|_core| async {
//!     let mut terminate = Signal::new(signal::SIGTERM)?;
//!     # signal_hook::low_level::raise(signal::SIGTERM)?;
//!     terminate.recv().await
//! })
//! # }
//! ```
//!
//! To end a runtime at SIGINT and SIGTERM, call
//! [`shutdown_on_signals`](crate::runtime::RuntimeBuilder::shutdown_on_signals) on its builder.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::pin::pin;

use signal_hook::SigId;
use signal_hook::consts::FORBIDDEN;
pub use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::low_level::{pipe, unregister};

use crate::net::UnixStream;

/// The arrivals of one signal. The signal no longer has its default effect, also after the last value was dropped.
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// use annulus::signal::{self, Signal};
///
/// let mut hangup = Signal::new(signal::SIGHUP)?; // no longer ends the process
/// # use signal_hook::low_level::raise;
/// raise(signal::SIGHUP)?;
/// raise(signal::SIGHUP)?; // may be reported together with the first
/// hangup.recv().await?; // reload the configuration
/// # Ok(()) })? }
/// ```
pub struct Signal {
    number: i32,
    arrivals: UnixStream,
    _handler: Registered,
}

/// A handler that is removed when this is dropped.
struct Registered(SigId);

impl Drop for Registered {
    fn drop(&mut self) {
        unregister(self.0);
    }
}

/// A signal that is handled, and whose arrivals no core awaits yet.
struct Handler {
    number: i32,
    arrivals: StdStream,
    registered: Registered,
}

impl Handler {
    fn new(number: i32) -> io::Result<Handler> {
        if FORBIDDEN.contains(&number) {
            let text = format!("signal {number} can't be handled; choose another one");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (arrivals, handler) = StdStream::pair()?;
        let registered = Registered(pipe::register(number, handler)?);
        Ok(Handler {
            number,
            arrivals,
            registered,
        })
    }

    fn on_core(self) -> io::Result<Signal> {
        Ok(Signal {
            number: self.number,
            arrivals: UnixStream::from_std(self.arrivals)?,
            _handler: self.registered,
        })
    }
}

impl Signal {
    /// Starts to handle the signal `number` on the calling core. Handlers of other code still run.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// use annulus::signal::Signal;
    ///
    /// const SIGKILL: i32 = 9;
    /// let error = Signal::new(SIGKILL).unwrap_err(); // the kernel lets no process handle it
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with `InvalidInput` for signals that can't be handled, such as SIGKILL. Fails with any error of
    /// `sigaction(2)`, and if the calling thread is not a runtime core.
    pub fn new(number: i32) -> io::Result<Signal> {
        Handler::new(number)?.on_core()
    }

    /// Waits until the signal has arrived since the last call. Several arrivals may be reported as one. Dropping the
    /// future loses none.
    ///
    /// Two signals in one loop:
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
    /// # use signal_hook::low_level::raise;
    /// use annulus::signal::{self, Signal};
    ///
    /// let (mut reload, mut stop) = (Signal::new(signal::SIGHUP)?, Signal::new(signal::SIGTERM)?);
    /// # raise(signal::SIGHUP)?; let mut reloads = 0;
    /// loop {
    ///     let reloading = async { reload.recv().await.map(|()| true) };
    ///     let stopping = async { stop.recv().await.map(|()| false) };
    ///     if !futures_lite::future::or(reloading, stopping).await? {
    ///         break; // SIGTERM
    ///     }
    ///     # raise(signal::SIGTERM)?; reloads += 1;
    /// }
    /// # assert_eq!(reloads, 1);
    /// # Ok(()) })? }
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the runtime ends.
    pub async fn recv(&mut self) -> io::Result<()> {
        self.arrivals.recv(vec![0; 64]).await?;
        Ok(())
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signal")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Waits for Ctrl-C (SIGINT), from the first poll on. From then on, the signal no longer ends the process, even if the
/// future is dropped.
///
/// A server that runs until Ctrl-C:
///
/// ```
/// # fn main() -> std::io::Result<()> { annulus::runtime::Runtime::builder().block_on(async {
/// # annulus::runtime::spawn(async { signal_hook::low_level::raise(annulus::signal::SIGINT) });
/// let serve = async { std::future::pending().await };
/// let interrupt = async { annulus::signal::ctrl_c().await };
/// futures_lite::future::or(interrupt, serve).await?; // drops `serve` at the signal
/// # Ok(()) })? }
/// ```
///
/// # Errors
///
/// Fails as [`Signal::new`] does.
pub async fn ctrl_c() -> io::Result<()> {
    Signal::new(SIGINT)?.recv().await
}

/// The signals that ask a program to end: SIGINT and SIGTERM.
#[derive(Debug)]
pub(crate) struct Terminated([Signal; 2]);

/// Handlers of these signals, which no core awaits yet. From here on the signals no longer end the process.
pub(crate) struct TerminationHandlers([Handler; 2]);

impl TerminationHandlers {
    pub(crate) fn new() -> io::Result<TerminationHandlers> {
        Ok(TerminationHandlers([
            Handler::new(SIGINT)?,
            Handler::new(SIGTERM)?,
        ]))
    }

    pub(crate) fn on_core(self) -> io::Result<Terminated> {
        let [interrupt, terminate] = self.0;
        Ok(Terminated([interrupt.on_core()?, terminate.on_core()?]))
    }
}

impl Terminated {
    /// Waits for one of them.
    pub(crate) async fn recv(&mut self) -> io::Result<()> {
        let [interrupt, terminate] = &mut self.0;
        let (mut interrupt, mut terminate) = (pin!(interrupt.recv()), pin!(terminate.recv()));
        poll_fn(|context| match interrupt.as_mut().poll(context) {
            std::task::Poll::Pending => terminate.as_mut().poll(context),
            ready => ready,
        })
        .await
    }
}
