//! Code shared by the tests of several crates: skipped tests, child processes, buffers, workloads and a file system
//! with faults.
//!
//! Test programs use this crate as a dev-dependency. Paths that cargo knows for a test program only
//! (`CARGO_TARGET_TMPDIR`, `CARGO_BIN_EXE_…`) are arguments here.

#[cfg(feature = "annulus")]
pub mod broken_buffer;
pub mod child_process;
#[cfg(feature = "fuse")]
pub mod faulty_fs;
#[cfg(feature = "fuse")]
pub mod hung_fs;
pub mod memory_map;
pub mod once;
#[cfg(feature = "annulus")]
pub mod panicking_buffer;
pub mod pattern;
#[cfg(feature = "preload")]
pub mod preload_counts;
#[cfg(feature = "preload")]
pub mod preload_library;
#[cfg(feature = "schema")]
pub mod schema;
pub mod skip;
#[cfg(all(feature = "annulus", not(annulus_portable)))]
pub mod stress_load;
pub mod sysctl;
#[cfg(feature = "annulus")]
pub mod workload;
pub mod zipf;

/// The Rust code of a page of the guide as doctests. This crate has the libraries that the page moves from.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/moving.md")]
struct GuideMoving;
