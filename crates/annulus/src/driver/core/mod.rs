//! The driver of a core: one thread that runs tasks and, between them, its ring.
//!
//! Everything here stays on that thread, so nothing is shared, locked or counted atomically. Other threads reach the
//! core only through a `Notifier`. Sockets have their own table (`table.rs`), whose entries own the memory that the
//! kernel uses until the final CQE, as slots do for files. The core's file operations go through a `DriverHandle`,
//! whose driver has the ring (`uring/local.rs`). Without a ring, `readiness.rs` waits for sockets, and blocking
//! threads run the file operations.

mod closing;
mod core_driver;
mod notifier;
mod operation;
#[cfg(feature = "tokio")]
mod other_runtime;
#[cfg(feature = "tokio")]
mod outside;
mod readiness;
mod receive_buffers;
mod rings;
mod shared;
mod sleep;
mod table;
#[cfg(test)]
mod tests;
mod token;
mod waiters;

pub(crate) use core_driver::{Core, CoreConfig, GroupChoice};
pub(crate) use notifier::Notifier;
pub(crate) use operation::SocketOperation;
#[cfg(feature = "tokio")]
pub(crate) use other_runtime::{Awake, SleepCalls};
pub(crate) use shared::SharedOperation;
pub(crate) use table::CompletionHandler;
pub(crate) use token::Token;
pub(crate) use waiters::{Crowd, WaitersCell};

pub(crate) use crate::driver::timers::Timer;
