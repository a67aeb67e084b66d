//! What files can do, by topic: every test runs on every backend, or says why not.

mod grounds;
#[path = "../child/lawless.rs"]
mod lawless;
#[path = "../child/mapped.rs"]
mod mapped;
#[path = "../child/moody.rs"]
#[allow(dead_code, reason = "here its drop does nothing")]
mod moody;
mod page_cache;
#[path = "../child/skip.rs"]
mod skip;
mod wait;

#[cfg(feature = "bytes")]
mod append;
mod arena;
mod bad_input;
mod cached;
mod close;
mod contract;
mod current_thread;
mod direct;
mod dirs;
mod executors;
mod foreign;
mod limits;
mod load;
mod many;
mod merge;
mod metadata;
mod open;
mod polling;
mod read_write;
mod thread_end;
mod timeout;
mod vectored;
