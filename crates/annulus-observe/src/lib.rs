//! Observability for Annulus: alerts on metrics, exporters, and snapshots of other processes.
//!
//! This crate is for programs that use `annulus` and report their metrics, and for tools that inspect
//! such programs. Alerts run in the program itself:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use annulus_observe::alert::Alerts;
//!
//! let rules = ["read.p99 > 500us for 5s".parse()?, "errors > 0.1%".parse()?];
//! let guard = Alerts::new(rules).run(Duration::from_secs(1), |event| eprintln!("{event}"))?;
//! // The rules are checked every second until the guard is dropped.
//! # drop(guard);
//! # Ok(()) }
//! ```
//!
//! # Modules and features
//!
//! No feature is enabled by default.
//!
//! | module | feature | purpose |
//! |---|---|---|
//! | (root) | none | [`snapshot_of`] reads the metrics that another process shares; [`started_ticks`] tells it from a later one |
//! | [`alert`] | none | raises and clears alerts by rules such as `read.p99 > 500us for 5s` |
//! | `prometheus` | `prometheus` | serves the metrics to Prometheus, or renders them as text |
//! | `metrics` | `metrics` | publishes the metrics to the recorder of the `metrics` facade |
//! | `tracing` | `tracing` | emits alerts and backend choices as events |
//!
//! # Fallback and cost
//!
//! All backends count in the same way, including epoll and blocking threads. Latencies are recorded
//! only while they are in use: by alerts, an exporter or an observer in another process.
//!
//! # Stopping
//!
//! Each function that starts a thread returns a guard. Dropping the guard stops the thread.
//!
//! # Where to go next
//!
//! - [`annulus::metrics`]: snapshots of the process itself, and sharing them with other processes.
//! - `examples/metrics.rs`: a program that prints its metrics and serves them to Prometheus.
//! - docs/reference/metrics.md: each metric, the syntax of rules, and the cost.
//! - contrib/prometheus/rules.yml and contrib/grafana/annulus.json: alert rules and a dashboard.
#![forbid(unsafe_code)]
// They panic if the output is closed or full.
#![cfg_attr(not(test), warn(clippy::print_stderr, clippy::print_stdout))]
// The documentation shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

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

pub use process::{snapshot_of, started_ticks};
