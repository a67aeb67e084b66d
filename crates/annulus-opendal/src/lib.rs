//! Local files as a service of OpenDAL, on io_uring: in place of `opendal::services::Fs`.
//!
//! Experimental. [`Fs`] has the options of `services-fs` and the same results and errors, and uses the same files.
//!
//! ```
//! # #[tokio::main] async fn main() -> opendal::Result<()> {
//! # let folder = tempfile::tempdir().unwrap(); let root = folder.path().to_str().unwrap();
//! use opendal::Operator;
//!
//! let operator = Operator::new(annulus_opendal::Fs::default().root(root))?;
//! operator.write("table/part-1", vec![7; 10_000]).await?;
//! let header = operator.read_with("table/part-1").range(0..4096).await?;
//! assert_eq!(header.len(), 4096);
//! # Ok(()) }
//! ```
//!
//! Cached data is copied on the calling thread, and so are opens and metadata of cached paths on local file systems.
//! Everything else is an operation of the [engine](annulus::Engine), on a Tokio runtime of the rings of its threads.
//! Without io_uring the engine uses blocking threads.

#![forbid(unsafe_code)]

mod files;
mod list;
mod read;
mod service;
mod write;

pub use service::{Fs, FsConfig};
