//! An eventfd: how another thread interrupts a driver that sleeps in the kernel.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// One per ring. The driver keeps a read of it in flight; `wake` completes that read.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Never blocks: the counter would have to reach 2^64 - 1 first.
    pub(crate) fn wake(&self) {
        while let Err(rustix::io::Errno::INTR) = rustix::io::write(&self.0, &1u64.to_ne_bytes()) {}
    }

    pub(crate) fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
