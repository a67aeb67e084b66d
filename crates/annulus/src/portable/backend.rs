//! The backend that a program requests, and the one in use: always blocking threads.

use std::fmt;

use crate::error::SetupError;

/// The backend to request from an [`EngineBuilder`](crate::EngineBuilder).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// io_uring if the platform has it; otherwise the fallback.
    #[default]
    Auto,
    /// io_uring. Fails on this platform.
    Uring,
    /// Blocking threads.
    Fallback,
}

/// The backend of an engine, and the reason for it. `Display` writes it as a sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackendInUse {
    /// Blocking threads for files.
    Fallback {
        /// The maximum number of blocking threads.
        blocking_threads: usize,
        /// Always false on this platform.
        epoll: bool,
        /// The reason why io_uring is not used; `None` if the fallback was requested.
        reason: Option<SetupError>,
    },
}

impl fmt::Display for BackendInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackendInUse::Fallback {
            blocking_threads,
            reason,
            ..
        } = self;
        write!(f, "up to {blocking_threads} blocking threads")?;
        match reason {
            None => f.write_str(", as configured"),
            Some(reason) => write!(f, ": {reason}"),
        }
    }
}
