//! Asynchronous file I/O on io_uring, from any executor, with a fallback behind the same API.
//!
//! ```
//! # fn main() -> std::io::Result<()> { pollster::block_on(async {
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 16384])?;
//! let engine = annulus::Engine::new()?;                    // the best backend there is
//! let file = engine.open(&path).await?;
//! let (n, page) = file.read_at(vec![0; 4096], 0).await?;   // a buffer goes in and comes back
//! let page = file.read_exact_at(page, 8192).await?;        // short transfers are resubmitted
//!
//! let reads = (0..4).map(|i| (vec![0; 4096], i * 4096));
//! let pages = file.read_many_at(reads).await;              // submitted together
//! # assert_eq!((n, page[0], pages.len()), (4096, 7, 4));
//! println!("{}", engine.backend());                        // which backend runs, and why
//! # Ok(()) }) }
//! ```
//!
//! Every future may be dropped at any point: memory that the kernel may still touch belongs to the
//! engine until the kernel lets go of it.

// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// What doesn't fit is an error, a bound, or said to be meant (`narrow`): memory was once freed by a length that a
// cast had cut off.
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)]

mod backend;
pub mod buf;
mod driver;
pub mod engine;
mod error;
mod fd;
pub mod fs;
pub mod metrics;
mod narrow;
#[cfg(feature = "net")]
pub mod net;
pub mod op;
#[cfg(feature = "__preload")]
#[doc(hidden)]
pub mod preload {
    //! For `annulus-preload` alone, and of no lasting shape.
    pub use crate::sys::server_ring::{Completion, ServerRing, Sqe, Wait, request};
}
#[cfg(feature = "net")]
pub mod runtime;
#[cfg(feature = "test-util")]
pub mod sim;
pub mod support;
mod sync;
mod sys;
#[cfg(feature = "net")]
pub mod time;
#[cfg(feature = "tokio")]
pub mod tokio;

/// The interface between an executor and the rings on its threads; for the integrations with executors only.
#[doc(hidden)]
pub mod thread {
    pub use crate::driver::thread_rings::{
        Presence, RingExecutor, ThreadRing, after_unpark, before_park, set_ring_executor,
    };
}

// Fourteen items; everything else is in a module (`tests/root.rs`).
pub use backend::Backend;
pub use buf::{IoBuf, IoBufMut};
pub use driver::Operation;
pub use engine::{Engine, EngineBackend, EngineBuilder};
pub use error::{BufError, BufResult, SetupError, WholeResult};
pub use fs::{File, OpenOptions};
pub use sys::engine_error::EngineError;

/// The Rust code of the README, as documentation tests.
#[cfg(all(doctest, feature = "net"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
