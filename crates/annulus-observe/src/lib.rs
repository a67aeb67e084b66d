//! Observability for Annulus: snapshots of other processes, alerts on the counters, and exporters of them.
//!
//! | module | feature | effect |
//! |---|---|---|
//! | (root) | none | [`snapshot_of`] reads the counters that another process shares |
//! | [`alert`] | none | raises and clears alerts by rules such as `read.p99 > 500us for 5s` |
//! | `prometheus` | `prometheus` | renders the counters as text and serves them to Prometheus |
//! | `metrics` | `metrics` | publishes the counters to the recorder of the facade `metrics` |
//! | `tracing` | `tracing` | emits alerts and backend choices as events |
#![forbid(unsafe_code)]

pub mod alert;
#[cfg(any(feature = "metrics", feature = "prometheus"))]
mod exported;
#[cfg(feature = "metrics")]
pub mod metrics;
mod process;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[doc(hidden)]
pub mod switch;
#[cfg(feature = "tracing")]
pub mod tracing;

pub use process::snapshot_of;
