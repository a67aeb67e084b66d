//! Annulus on other people's executors and behind other people's interfaces: one module and one
//! feature each.
//!
//! | feature | module | for |
//! |---|---|---|
//! | `tokio` | `tokio` | rings on the threads of Tokio runtimes |
//! | `futures`, `tokio-io` | `stream` | our streams behind `AsyncRead` and `AsyncWrite` |
#![forbid(unsafe_code)]

#[cfg(any(feature = "futures", feature = "tokio-io"))]
pub mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
