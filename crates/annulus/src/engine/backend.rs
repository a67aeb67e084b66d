//! The backend of an engine, and the reason for it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::polling::PollingInUse;
use crate::error::SetupError;
use crate::sys::ring::SetupMode;

/// The backend of an engine, and the reason for it. `Display` writes it as a sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum EngineBackend {
    /// io_uring.
    Uring {
        /// The set-up mode that the kernel accepted.
        setup_mode: SetupMode,
        /// The number of driver threads.
        threads: usize,
        /// The number of entries of each submission queue.
        sq_entries: u32,
        /// The state of the requested polling.
        polling: PollingInUse,
        /// The first reason why a thread of an executor has no ring.
        thread_ring_refusal: ThreadRingRefusal,
    },
    /// Blocking threads.
    Blocking {
        /// The maximum number of threads.
        threads: usize,
        /// The reason why io_uring is not used; `None` if blocking threads were requested.
        reason: Option<SetupError>,
    },
    /// A simulated kernel.
    #[cfg(feature = "test-util")]
    Sim {
        /// The seed of its random choices.
        seed: u64,
        /// The number of driver threads; 0 if the calling thread drives.
        threads: usize,
    },
}

impl EngineBackend {
    /// Returns the reason for running with less than was requested, if that is the case.
    pub(super) fn fallback(&self) -> Option<String> {
        match self {
            EngineBackend::Uring { polling, .. } => polling.refusal().map(ToString::to_string),
            EngineBackend::Blocking { reason, .. } => reason.as_ref().map(ToString::to_string),
            #[cfg(feature = "test-util")]
            EngineBackend::Sim { .. } => None,
        }
    }
}

impl fmt::Display for EngineBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineBackend::Uring {
                setup_mode,
                threads,
                sq_entries,
                polling,
                thread_ring_refusal,
            } => {
                let plural = if *threads == 1 { "thread" } else { "threads" };
                write!(
                    f,
                    "io_uring ({}; {threads} driver {plural}, {sq_entries} entries{polling}{thread_ring_refusal})",
                    setup_mode.describe()
                )
            }
            EngineBackend::Blocking {
                threads,
                reason: None,
            } => {
                write!(f, "up to {threads} blocking threads, as configured")
            }
            EngineBackend::Blocking {
                threads,
                reason: Some(reason),
            } => {
                write!(f, "up to {threads} blocking threads: {reason}")
            }
            #[cfg(feature = "test-util")]
            EngineBackend::Sim { seed, threads: 0 } => {
                write!(f, "a simulated kernel (seed {seed})")
            }
            #[cfg(feature = "test-util")]
            EngineBackend::Sim { seed, threads } => {
                let plural = if *threads == 1 { "thread" } else { "threads" };
                write!(
                    f,
                    "a simulated kernel (seed {seed}; {threads} driver {plural})"
                )
            }
        }
    }
}

/// The first reason why a thread of an executor has no ring; empty while there is none. Such a thread submits
/// to the engine's drivers.
#[derive(Debug)]
pub struct ThreadRingRefusal(pub(super) Arc<OnceLock<SetupError>>);

impl ThreadRingRefusal {
    /// Creates the value of drivers without threads of executors.
    #[cfg(feature = "net")]
    pub(crate) fn none() -> ThreadRingRefusal {
        ThreadRingRefusal(Arc::default())
    }

    /// Returns the reason.
    pub fn get(&self) -> Option<&SetupError> {
        self.0.get()
    }
}

impl fmt::Display for ThreadRingRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            None => Ok(()),
            Some(reason) => write!(f, "; threads without their own rings: {reason}"),
        }
    }
}
