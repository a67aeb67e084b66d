//! Annulus on other people's executors and behind other people's interfaces: one module and one
//! feature each.
//!
//! | feature | module | for |
//! |---|---|---|
//! | `prometheus` | `prometheus` | what is measured as text, and an endpoint that Prometheus reads from |
//! | `metrics` | `metrics` | what is measured, in whatever recorder the facade has |
//! | `tracing` | `tracing` | alerts, and which backend was chosen, as events |
#![forbid(unsafe_code)]

#[cfg(any(feature = "metrics", feature = "prometheus"))]
mod exported;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[cfg(feature = "tracing")]
pub mod tracing;
