//! What is measured, as Prometheus reads it, and an endpoint that it reads from.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! // Port 0 is any that is free; in earnest, one that Prometheus is told.
//! let metrics = annulus_observe::prometheus::serve("127.0.0.1:0".parse().unwrap())?;
//! println!("metrics at http://{}/metrics", metrics.addr());
//! # Ok(()) }
//! ```
//!
//! While the [`Endpoint`] lives, latencies are recorded. docs/reference/metrics.md says what each metric means, and what to do
//! when it is high. A program that has an HTTP server already answers with [`Exposition::text`].

mod page;
mod serve;

pub use page::Exposition;
pub use serve::{Endpoint, serve};
