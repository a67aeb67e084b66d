//! Metrics in the text formats of Prometheus, and an endpoint that serves them.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! // Port 0 selects a free port. Use a fixed one, and configure it in Prometheus.
//! let metrics = annulus_observe::prometheus::serve("127.0.0.1:0".parse().unwrap())?;
//! println!("metrics at http://{}/metrics", metrics.addr());
//! # Ok(()) }
//! ```
//!
//! Latencies are recorded while the [`Endpoint`] exists. A program that has an HTTP server returns [`Exposition::text`]
//! from it instead. docs/reference/metrics.md describes each metric, and what to do if it is high.

mod machine;
mod page;
mod serve;

pub use page::Exposition;
pub use serve::{Endpoint, serve, serve_machine};
