//! The backend that a user requests, for an engine or a runtime.

#[cfg(feature = "test-util")]
use crate::sys::sim::SimConfig;

/// The backend to request from an [`EngineBuilder`](crate::EngineBuilder) or, with feature `net`, from a
/// `RuntimeBuilder`.
///
/// [`EngineBackend`](crate::EngineBackend) and `CoreBackend` report the backend in use.
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
