//! The library beside Tokio: rings on the threads of its runtimes, its context on cores, and what is assumed about it.
#![cfg(feature = "tokio")]

mod assumptions;
#[cfg(feature = "net")]
mod context;
mod default;
mod fs;
#[cfg(feature = "net")]
#[path = "../matrix/on_core.rs"]
mod on_core;
mod rings;
mod stress;
#[path = "../matrix/tokio_runtimes.rs"]
mod tokio_runtimes;
