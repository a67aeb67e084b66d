//! Local files as an object store, on io_uring: `ObjectStore` of object_store 0.13 and 0.14.
//!
//! [`v0_14::LocalFileSystem`] and [`v0_13::LocalFileSystem`] replace `object_store::local::LocalFileSystem` of their
//! version. Each version is a feature, and both are on by default. The [guide](guide/index.html) has the differences,
//! open files, memory, crashes, and figures.
//!
//! ```
//! use std::sync::Arc;
//!
//! use annulus_object_store::v0_14::LocalFileSystem;
//! use object_store::{ObjectStore, ObjectStoreExt, path::Path};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), object_store::Error> {
//! # let folder = tempfile::tempdir().expect("a temporary folder"); let folder = folder.path();
//! let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(folder)?);
//! let location = Path::from("year=2026/part-0");
//! store.put(&location, "contents".into()).await?;
//! assert_eq!(store.get_range(&location, 3..8).await?, "tents");
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(not(any(feature = "v0_13", feature = "v0_14")), allow(dead_code))] // Nothing uses the store then.

mod blocking;
mod calls;
mod error;
mod file_systems;
mod group;
// The page of docs/guide, whose examples are tested here. The first definition of a link counts: links.txt replaces the
// page's links from file to file. The page is a symbolic link, so that the package contains it.
#[cfg(all(doc, feature = "v0_14"))]
#[cfg_attr(not(doctest), doc = include_str!("../guide/links.txt"))]
#[doc = include_str!("../guide/object-store.txt")]
pub mod guide {}
mod list;
mod names;
mod open_files;
mod read;
mod stat;
mod store;
mod upload;
mod walk;
mod write;

#[cfg(feature = "v0_13")]
pub mod v0_13;
#[cfg(feature = "v0_14")]
pub mod v0_14;
