//! Pages of files in memory, in place of a memory map.
//!
//! Experimental, for Linux, read-only, for files that do not change. A [`PagePool`] has a fixed amount of registered
//! memory. Its files are read into it with io_uring, and pages that have not been used lately leave it.
//!
//! A map reads with page faults: each blocks its thread, one at a time, and an error is a signal. A miss of a pool is
//! an operation: a task waits and not its thread, many are in flight, and an error is an [`io::Error`](std::io::Error)
//! for exactly those who wait. A hit changes no memory that threads share.
//!
//! ```
//! # fn main() -> std::io::Result<()> { pollster::block_on(async {
//! # let dir = tempfile::tempdir()?; let path = dir.path().join("data"); std::fs::write(&path, vec![7; 100_000])?;
//! use annulus_pool::PagePool;
//!
//! let engine = annulus::Engine::new()?;
//! let pool = PagePool::builder(&engine).memory(64 << 20).build()?;
//! let file = pool.open(&path).await?;
//!
//! let page = file.page(17).await?;                              // read, and held until it is dropped
//! assert_eq!((page.len(), page[0]), (4096, 7));
//! let pages = file.pages(&[3, 9, 17]).await?;                   // two reads at the same time
//! assert_eq!(file.with(9, |bytes| bytes[100]), Some(7));        // in memory, or `None`
//! let mut record = [0; 6000];
//! file.read_exact_at(&mut record, 5000).await?;                 // copied, across pages
//! # assert_eq!((record[0], record[5999], pages.len()), (7, 7, 3));
//! # Ok(()) }) }
//! ```
//!
//! The [guide] shows the move from a map, and when a map is better.
//!
//! # What to know
//!
//! - **Immutable files.** Pages in memory do not follow changes of the file.
//! - **Guards hold frames.** A task that holds pages and waits for others waits indefinitely if all frames are held so.
//!   [`PoolFile::pages`] takes several without that.
//! - **Forks.** A forked child has no frames: every call fails there, and the bytes of a guard are an error.
//! - **Filters.** A seccomp filter that refuses `membarrier(2)` has to be there before the first pool. With a later one
//!   no page leaves memory any more, and reads wait indefinitely for a frame.
//! - **Memory** is taken when the pool is made, and not given back under pressure, as the page cache would.

#![cfg_attr(
    annulus_loom,
    allow(dead_code, reason = "the models have the protocol only")
)]

mod barrier;
#[cfg(not(annulus_loom))]
mod batch;
#[cfg(not(annulus_loom))]
mod budget;
#[cfg(all(feature = "bytes", not(annulus_loom)))]
mod chain;
mod entry;
// The page of docs/guide, whose examples are tested here. The page is a symbolic link, so that the package contains it.
#[cfg(all(doc, not(annulus_loom)))]
#[doc = include_str!("../guide/pool.txt")]
pub mod guide {}
#[cfg(not(annulus_loom))]
mod file;
#[cfg(not(annulus_loom))]
mod forked;
#[cfg(not(annulus_loom))]
mod hazard;
#[cfg(not(annulus_loom))]
mod load;
#[cfg(all(test, annulus_loom))]
mod models;
mod mutation;
mod one_at_a_time;
#[cfg(not(annulus_loom))]
mod page;
#[cfg(not(annulus_loom))]
mod policy;
#[cfg(not(annulus_loom))]
mod pool;
#[cfg(not(annulus_loom))]
mod shared;
#[cfg(not(annulus_loom))]
mod stats;
mod sync;
#[cfg(not(annulus_loom))]
mod table;
#[cfg(not(annulus_loom))]
mod waiting;

#[cfg(all(feature = "bytes", not(annulus_loom)))]
pub use crate::chain::PageBytes;
#[cfg(not(annulus_loom))]
pub use crate::{
    file::PoolFile,
    page::Page,
    pool::{Builder, PagePool},
    stats::Stats,
};
