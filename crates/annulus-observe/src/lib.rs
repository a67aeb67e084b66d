//! Observability for Annulus: exporters of its counters. Each exporter is a module with a feature of the same name.
//!
//! | feature | module | effect |
//! |---|---|---|
//! | `prometheus` | `prometheus` | renders the counters as text and serves them to Prometheus |
//! | `metrics` | `metrics` | publishes the counters to the recorder of the facade `metrics` |
//! | `tracing` | `tracing` | emits alerts and backend choices as events |
#![forbid(unsafe_code)]

#[cfg(any(feature = "metrics", feature = "prometheus"))]
mod exported;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[cfg(feature = "tracing")]
pub mod tracing;
