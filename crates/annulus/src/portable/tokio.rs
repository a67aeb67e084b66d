//! Tokio. Its threads have no rings on this platform: operations run on the blocking threads of their engine.

#[path = "../tokio/fs/mod.rs"]
pub mod fs;

use std::io;

use tokio::runtime::Handle;

/// Declares that the threads of `runtime` can have rings. Has no effect on this platform.
///
/// # Errors
///
/// Never fails on this platform.
pub fn adopt(_: &Handle) -> io::Result<()> {
    Ok(())
}

/// Declares that the threads of `runtime` have no rings. Has no effect on this platform.
pub fn use_drivers(_: &Handle) {}
