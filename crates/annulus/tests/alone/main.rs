//! Tests of what a whole process or machine shares: limits, signals, filters, forks, allocations, threads. Each that
//! changes or counts something of its process runs in a child process (`in_child`), because `cargo test` runs all tests
//! of a program in one process.

#[cfg(feature = "net")]
mod accept;
mod alloc;
#[cfg(feature = "net")]
mod fork;
#[cfg(feature = "tokio")]
mod fork_tokio;
#[cfg(feature = "net")]
mod fsize;
mod fuse;
mod idle;
mod memlock;
mod memory;
mod nofile;
mod panics;
#[cfg(feature = "net")]
mod runtime;
mod seccomp;
#[cfg(feature = "signal")]
mod signals;
mod sysctl;
mod throttle;
#[cfg(feature = "tokio")]
mod tokio_fs;
#[cfg(feature = "tokio")]
mod tokio_no_io;
#[cfg(feature = "tokio")]
mod tokio_refused;
#[cfg(feature = "tokio")]
mod tokio_threads;
