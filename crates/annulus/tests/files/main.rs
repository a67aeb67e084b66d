//! File operations by topic. Every test runs on every backend, or prints why it does not.

mod fixtures;
mod page_cache;
mod wait;

#[cfg(feature = "bytes")]
mod append;
mod arena;
mod attributes;
mod bad_input;
mod cached;
mod close;
mod contract;
mod copy;
mod current_thread;
#[cfg(all(feature = "futures", feature = "tokio-io"))]
mod cursor;
mod dir_base;
mod direct;
mod dirs;
mod executors;
mod foreign;
mod limits;
mod load;
mod local;
mod many;
mod merge;
mod metadata;
mod open;
mod polling;
mod read_write;
mod send;
mod thread_end;
mod timeout;
mod vectored;
mod whole;
