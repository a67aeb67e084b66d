//! Annulus on other people's executors and behind other people's interfaces: one module and one
//! feature each.
//!
//! | feature | module | for |
//! |---|---|---|
//! | `tokio` | `tokio` | rings on the threads of Tokio runtimes |
#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
pub mod tokio;
