//! Annulus on other people's executors and behind other people's interfaces: one module and one
//! feature each.
//!
//! | feature | module | for |
//! |---|---|---|
//! | `tokio` | `tokio` | rings on the threads of Tokio runtimes |
//! | `futures`, `tokio-io` | `stream` | our streams behind `AsyncRead` and `AsyncWrite` |
//! | `hyper` | `hyper` | hyper and what is built on it, such as axum, on our streams, tasks and timers |
//! | `prometheus` | `prometheus` | what is measured as text, and an endpoint that Prometheus reads from |
//! | `metrics` | `metrics` | what is measured, in whatever recorder the facade has |
//! | `tracing` | `tracing` | alerts, and which backend was chosen, as events |
#![forbid(unsafe_code)]

#[cfg(any(feature = "metrics", feature = "prometheus"))]
mod exported;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[cfg(any(feature = "futures", feature = "hyper", feature = "tokio-io"))]
pub mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "tracing")]
pub mod tracing;
