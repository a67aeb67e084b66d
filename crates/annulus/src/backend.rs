//! The backend that a user requests for an engine or a runtime, and the one that is in use.

use std::fmt;
use std::sync::{Arc, OnceLock};

#[cfg(feature = "net")]
use crate::buf::ReceiveMode;
use crate::error::SetupError;
use crate::sys::probe;
use crate::sys::ring::SetupMode;
#[cfg(feature = "test-util")]
use crate::sys::sim::SimConfig;
use crate::sys::sq_poll::{self, SqPoll};

/// The backend to request from an [`EngineBuilder`](crate::EngineBuilder) or, with feature `net`, from a
/// `RuntimeBuilder`.
///
/// [`BackendInUse`] reports which one was chosen, and why.
///
/// The default suits most programs. A benchmark asks for one backend, so that it does not measure another one:
///
/// ```
/// use annulus::{Backend, Engine};
///
/// assert_eq!(Backend::default(), Backend::Auto);
/// let Err(error) = Engine::builder().backend(Backend::Uring).build() else { return };
/// println!("{error}"); // names the cause and the remedy
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// io_uring if the kernel has it, allows it and has the memory for it; otherwise the fallback.
    #[default]
    Auto,
    /// io_uring. If it is not available, building fails with an error that names the remedy.
    Uring,
    /// No io_uring: blocking threads for an engine, epoll and blocking threads for a runtime.
    Fallback,
    /// A simulated kernel in memory, with its own file system, behind the engine's driver threads. Delays pass on the
    /// machine's clock. [`Sim`](crate::sim::Sim) also gives access to the files, and has a repeatable clock and order
    /// of completions.
    ///
    /// Engines only: a runtime returns [`SetupError::Config`](crate::SetupError::Config), because the simulated kernel
    /// has no sockets.
    #[cfg(feature = "test-util")]
    Sim(SimConfig),
}

/// The backend of an engine or of a core, and the reason for it. `Display` writes it as a sentence.
///
/// ```
/// use annulus::{Backend, BackendInUse, Engine};
///
/// let engine = Engine::builder().backend(Backend::Fallback).build()?;
/// match engine.backend() {
///     BackendInUse::Uring(rings) => println!("{} rings", rings.threads),
///     BackendInUse::Fallback { reason: Some(reason), .. } => println!("fallback: {reason}"),
///     BackendInUse::Fallback { reason, .. } => assert!(reason.is_none()), // it was requested
///     other => println!("{other}"), // a sentence for each backend
/// }
/// # Ok::<(), annulus::SetupError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum BackendInUse {
    /// io_uring.
    Uring(UringInUse),
    /// Blocking threads for files, and on a core epoll for sockets.
    Fallback {
        /// The maximum number of blocking threads.
        blocking_threads: usize,
        /// True on a core, whose sockets use epoll.
        epoll: bool,
        /// The reason why io_uring is not used; `None` if the fallback was requested.
        reason: Option<SetupError>,
    },
    /// A simulated kernel.
    #[cfg(feature = "test-util")]
    Sim {
        /// The seed of its random choices.
        seed: u64,
        /// The number of driver threads; 0 if the calling thread drives.
        drivers: usize,
    },
}

/// The rings of an engine or of a core.
///
/// With little memory, a ring may be smaller than requested:
///
/// ```
/// use annulus::{BackendInUse, Engine};
///
/// let engine = Engine::builder().ring_entries(128).build()?;
/// if let BackendInUse::Uring(rings) = engine.backend() {
///     assert!(rings.sq_entries <= 128);
/// }
/// # Ok::<(), annulus::SetupError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct UringInUse {
    /// The set-up mode that the kernel accepted.
    pub setup_mode: SetupMode,
    /// The number of driver threads of an engine, or of cores of a runtime.
    pub threads: usize,
    /// The number of entries of each submission queue.
    pub sq_entries: u32,
    /// The state of the requested polling.
    pub polling: PollingInUse,
    /// The receive buffers of a core; `None` for an engine.
    #[cfg(feature = "net")]
    pub receive: Option<ReceiveInUse>,
    /// The first reason why a thread of an executor has no ring; empty while there is none.
    pub(crate) thread_ring_refusal: Arc<OnceLock<SetupError>>,
}

/// The state of the polling that was requested for an engine. `Display` writes a part of the sentence of
/// [`BackendInUse`](crate::BackendInUse), and nothing if no polling was requested.
///
/// ```
/// use annulus::{BackendInUse, Engine};
///
/// let engine = Engine::builder().iopoll(true).build()?;
/// if let BackendInUse::Uring(rings) = engine.backend() {
///     match &rings.polling.iopoll {
///         Some(Err(reason)) => println!("completions use interrupts: {reason}"),
///         iopoll => assert!(matches!(iopoll, Some(Ok(())))),
///     }
/// }
/// # Ok::<(), annulus::SetupError>(())
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct PollingInUse {
    /// The thread that polls the submission queues, or the reason why it is not used; `None` if it was not requested.
    pub sqpoll: Option<Result<SqPoll, SetupError>>,
    /// The ring that polls devices, or the reason why there is none; `None` if it was not requested.
    /// [`File::poll_support`](crate::File::poll_support) reports whether a file uses it.
    pub iopoll: Option<Result<(), SetupError>>,
    /// Advice against the requested setting. The setting is used all the same.
    pub advice: Option<String>,
}

impl PollingInUse {
    /// Returns the requested polling, as if it were all available.
    pub(crate) fn requested(sqpoll: Option<SqPoll>, iopoll: bool) -> PollingInUse {
        let advice = |_| sq_poll::advice(probe::processors().len());
        PollingInUse {
            sqpoll: sqpoll.map(Ok),
            iopoll: iopoll.then_some(Ok(())),
            advice: sqpoll.and_then(advice),
        }
    }

    /// Returns why a part of the requested polling is missing.
    fn refusal(&self) -> Option<&SetupError> {
        let sqpoll = self
            .sqpoll
            .as_ref()
            .and_then(|result| result.as_ref().err());
        let iopoll = self
            .iopoll
            .as_ref()
            .and_then(|result| result.as_ref().err());
        sqpoll.or(iopoll)
    }
}

impl fmt::Display for PollingInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.sqpoll {
            None => {}
            Some(Ok(poll)) => write!(f, "; {poll}")?,
            Some(Err(error)) => write!(f, "; without sqpoll: {error}")?,
        }
        if let (Some(advice), Some(Ok(_))) = (&self.advice, &self.sqpoll) {
            write!(f, "; {advice}")?;
        }
        match &self.iopoll {
            None => Ok(()),
            Some(Ok(())) => f.write_str("; a separate ring polls devices"),
            Some(Err(error)) => write!(f, "; without iopoll: {error}"),
        }
    }
}

/// The buffers into which the kernel receives for a core. `Display` writes a part of the sentence of [`BackendInUse`].
///
/// ```
/// use annulus::{BackendInUse, runtime::Runtime};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::builder().receive_buffers(16, 4096).run(|core| async move {
///     if let BackendInUse::Uring(rings) = core.backend() {
///         let receive = rings.receive.as_ref().expect("a core receives");
///         assert_eq!((receive.buffers, receive.buffer_bytes), (16, 4096));
///     }
///     Ok(())
/// })
/// # }
/// ```
#[cfg(feature = "net")]
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceiveInUse {
    /// The number of buffers.
    pub buffers: u16,
    /// The size of a buffer, bytes.
    pub buffer_bytes: u32,
    /// The way in which the kernel fills them.
    pub mode: ReceiveMode,
    /// The reason why the mode requested with `RuntimeBuilder::receive_mode` is not used.
    pub mode_refused: Option<String>,
}

impl BackendInUse {
    /// Returns the reason for running with less than was requested, if that is the case.
    pub(crate) fn fallback(&self) -> Option<String> {
        match self {
            BackendInUse::Uring(rings) => {
                let refusal = rings.polling.refusal().map(ToString::to_string);
                #[cfg(feature = "net")]
                let refusal = refusal.or_else(|| rings.receive.as_ref()?.mode_refused.clone());
                refusal
            }
            BackendInUse::Fallback { reason, .. } => reason.as_ref().map(ToString::to_string),
            #[cfg(feature = "test-util")]
            BackendInUse::Sim { .. } => None,
        }
    }
}

impl fmt::Display for BackendInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendInUse::Uring(rings) => rings.fmt(f),
            BackendInUse::Fallback {
                blocking_threads,
                epoll,
                reason,
            } => {
                match epoll {
                    true => f.write_str("epoll and blocking threads")?,
                    false => write!(f, "up to {blocking_threads} blocking threads")?,
                }
                match reason {
                    None => f.write_str(", as configured"),
                    Some(reason) => write!(f, ": {reason}"),
                }
            }
            #[cfg(feature = "test-util")]
            BackendInUse::Sim { seed, drivers: 0 } => {
                write!(f, "a simulated kernel (seed {seed})")
            }
            #[cfg(feature = "test-util")]
            BackendInUse::Sim { seed, drivers } => {
                let drivers = Drivers(*drivers);
                write!(f, "a simulated kernel (seed {seed}; {drivers})")
            }
        }
    }
}

impl fmt::Display for UringInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, entries) = (self.setup_mode.describe(), self.sq_entries);
        write!(f, "io_uring ({mode}; ")?;
        #[cfg(feature = "net")]
        let receive = self.receive.as_ref();
        #[cfg(not(feature = "net"))]
        let receive = None::<&str>;
        match receive {
            Some(receive) => write!(f, "{entries} entries, {receive} a core")?,
            None => write!(f, "{}, {entries} entries", Drivers(self.threads))?,
        }
        self.polling.fmt(f)?;
        if let Some(reason) = self.thread_ring_refusal.get() {
            write!(f, "; threads without their own rings: {reason}")?;
        }
        f.write_str(")")
    }
}

#[cfg(feature = "net")]
impl fmt::Display for ReceiveInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReceiveInUse {
            buffers,
            buffer_bytes,
            mode,
            mode_refused,
        } = self;
        f.write_str(match mode {
            ReceiveMode::Whole => "",
            ReceiveMode::Incremental => "incrementally filled: ",
        })?;
        write!(f, "{buffers} receive buffers of {buffer_bytes} bytes")?;
        match mode_refused {
            Some(reason) => write!(f, ", one for each receive: {reason},"),
            None => Ok(()),
        }
    }
}

/// Writes a number of driver threads.
struct Drivers(usize);

impl fmt::Display for Drivers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 driver thread"),
            drivers => write!(f, "{drivers} driver threads"),
        }
    }
}
