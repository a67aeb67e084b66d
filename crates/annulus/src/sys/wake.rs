//! An eventfd with which other threads wake a driver that sleeps in the kernel.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::call::timespec;

/// The wake-up of a driver; one per ring. The driver keeps a read of it in flight, or sleeps on it. `wake` completes
/// that read.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<EventFd> {
        Ok(EventFd(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Wakes the driver. Never blocks: the counter would have to reach 2^64 - 1 first.
    pub(crate) fn wake(&self) {
        while let Err(rustix::io::Errno::INTR) = rustix::io::write(&self.0, &1u64.to_ne_bytes()) {}
    }

    /// Sleeps until it is woken, for at most `timeout_ns`; for a driver whose ring cannot wait. Returns whether it was
    /// woken; all earlier wake-ups are then consumed.
    pub(crate) fn sleep(&self, timeout_ns: Option<u64>) -> bool {
        let timeout = timeout_ns.map(timespec);
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        // A signal also ends the sleep; the caller checks its state again.
        let woken = poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0);
        // Trap 14: exactly 8 bytes. It can't block: this is the only reader.
        woken && rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    pub(crate) fn raw(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
