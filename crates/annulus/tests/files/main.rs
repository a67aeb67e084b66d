//! File operations by topic. Every test runs on every backend, or prints why it does not. With `--cfg annulus_portable`
//! the tests of what every platform has run on the implementation of the other platforms.

// Tests of what only Linux has are left out, with what only they use.
#![cfg_attr(annulus_portable, allow(unused))]

mod fixtures;
#[cfg(not(annulus_portable))]
mod page_cache;
mod wait;

#[cfg(feature = "bytes")]
mod append;
#[cfg(not(annulus_portable))]
mod arena;
#[cfg(not(annulus_portable))]
mod attributes;
mod bad_input;
#[cfg(not(annulus_portable))]
mod cached;
mod close;
mod contract;
mod copy;
#[cfg(not(annulus_portable))]
mod current_thread;
#[cfg(all(feature = "futures", feature = "tokio-io"))]
mod cursor;
#[cfg(not(annulus_portable))]
mod dir_base;
#[cfg(not(annulus_portable))]
mod direct;
mod dirs;
mod executors;
mod foreign;
#[cfg(not(annulus_portable))]
mod limits;
#[cfg(not(annulus_portable))]
mod load;
#[cfg(not(annulus_portable))]
mod local;
mod many;
#[cfg(not(annulus_portable))]
mod merge;
mod metadata;
mod open;
#[cfg(not(annulus_portable))]
mod polling;
#[cfg(annulus_portable)]
mod portable;
mod read_write;
mod send;
#[cfg(not(annulus_portable))]
mod thread_end;
mod timeout;
#[cfg(all(feature = "tokio-io", not(annulus_portable)))]
mod uncached;
#[cfg(not(annulus_portable))]
mod vectored;
mod whole;
