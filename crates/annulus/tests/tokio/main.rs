//! The library beside Tokio: rings on the threads of its runtimes, its context on cores, and what is assumed about it.
#![cfg(feature = "tokio")]
// Tests of what only Linux has are left out, with what only they use.
#![cfg_attr(annulus_portable, allow(unused))]

#[cfg(not(annulus_portable))]
mod assumptions;
#[cfg(feature = "net")]
mod context;
#[cfg(not(annulus_portable))]
mod default;
mod fs;
#[cfg(feature = "net")]
#[path = "../matrix/on_core.rs"]
mod on_core;
#[cfg(not(annulus_portable))]
mod rings;
#[cfg(not(annulus_portable))]
mod stress;
#[path = "../matrix/tokio_runtimes.rs"]
mod tokio_runtimes;
