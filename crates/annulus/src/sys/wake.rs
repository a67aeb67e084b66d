//! The ways in which other threads wake a driver that sleeps: in the kernel by an eventfd, or outside of it.

use std::io;
#[cfg(all(feature = "net", feature = "tokio"))]
use std::os::fd::RawFd;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::call::timespec;
use crate::sync::{AtomicU32, Mutation, Ordering, broken};

/// The wake-up of a driver; one per ring. The driver keeps a read of it in flight, or sleeps on it. `wake` completes
/// that read, or ends the sleep of a driver that is parked.
#[derive(Debug)]
pub(crate) struct EventFd {
    fd: OwnedFd,
    parking: Parking,
}

impl EventFd {
    pub(crate) fn new() -> io::Result<EventFd> {
        Ok(EventFd {
            fd: eventfd(0, EventfdFlags::CLOEXEC)?,
            parking: Parking::new(),
        })
    }

    /// Wakes the driver. Never blocks: the counter would have to reach 2^64 - 1 first.
    pub(crate) fn wake(&self) {
        if self.parking.notify() {
            return self.parking.wake();
        }
        self.write();
    }

    /// Wakes the driver to end it: also completes a read of the eventfd that is in flight while the driver is parked.
    pub(crate) fn end(&self) {
        if self.parking.notify() {
            self.parking.wake();
        }
        self.write();
    }

    fn write(&self) {
        while let Err(rustix::io::Errno::INTR) = rustix::io::write(&self.fd, &1u64.to_ne_bytes()) {}
    }

    /// Sleeps until it is woken, for at most `timeout_ns`; for a driver whose ring cannot wait. Returns whether it was
    /// woken; all earlier wake-ups are then consumed.
    pub(crate) fn sleep(&self, timeout_ns: Option<u64>) -> bool {
        let timeout = timeout_ns.map(timespec);
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        // A signal also ends the sleep; the caller checks its state again.
        let woken = poll(&mut fds, timeout.as_ref()).is_ok_and(|ready| ready > 0);
        // Trap 14: exactly 8 bytes. It can't block: this is the only reader.
        woken && rustix::io::read(&self.fd, &mut [0; 8]).is_ok()
    }

    /// Sleeps until it is woken, for at most `timeout_ns`; for a driver with nothing in flight. May return earlier.
    pub(crate) fn park(&self, timeout_ns: Option<u64>) {
        if self.parking.begin() {
            self.parking.wait(timeout_ns);
        }
        self.parking.end();
    }

    /// Notes that the driver is awake, and will look at all of its lists before it sleeps.
    pub(crate) fn note_awake(&self) {
        self.parking.end();
    }

    pub(crate) fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

#[cfg(all(feature = "net", feature = "tokio"))]
impl From<EventFd> for OwnedFd {
    fn from(eventfd: EventFd) -> OwnedFd {
        eventfd.fd
    }
}

#[cfg(all(feature = "net", feature = "tokio"))]
impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.raw()
    }
}

const AWAKE: u32 = 0;
const PARKED: u32 = 1;
const NOTIFIED: u32 = 2;

/// The state of a driver that may sleep outside of its ring. A notification is kept until the driver is awake, so that
/// a driver that is about to park does not miss it.
#[derive(Debug)]
pub(crate) struct Parking(AtomicU32);

impl Parking {
    pub(crate) fn new() -> Parking {
        Parking(AtomicU32::new(AWAKE))
    }

    /// Notifies the driver. Returns whether it is parked and must be woken.
    pub(crate) fn notify(&self) -> bool {
        self.0.swap(NOTIFIED, Ordering::AcqRel) == PARKED
    }

    /// Called by the driver after it has checked its lists. Returns `false` if it must not park.
    pub(crate) fn begin(&self) -> bool {
        if broken(Mutation::ParkedRegardless) {
            self.0.store(PARKED, Ordering::Release);
            return true;
        }
        let (acquire, release) = (Ordering::Acquire, Ordering::AcqRel);
        let begun = self.0.compare_exchange(AWAKE, PARKED, release, acquire);
        begun.is_ok()
    }

    /// Called by the driver when it is awake, before it looks at its lists.
    pub(crate) fn end(&self) {
        // Not a store: the submissions of the notifier must be visible.
        self.0.swap(AWAKE, Ordering::AcqRel);
    }
}

#[cfg(not(annulus_loom))]
impl Parking {
    fn wait(&self, timeout_ns: Option<u64>) {
        let timeout = timeout_ns.map(timespec);
        let flags = rustix::thread::futex::Flags::PRIVATE;
        // An error is a notification that came first, a signal or the timeout; the caller checks its state again.
        let _ = rustix::thread::futex::wait(&self.0, flags, PARKED, timeout.as_ref());
    }

    fn wake(&self) {
        let flags = rustix::thread::futex::Flags::PRIVATE;
        let _ = rustix::thread::futex::wake(&self.0, flags, 1);
    }
}

/// The model checker has no futexes; its kernel waits by other means.
#[cfg(annulus_loom)]
impl Parking {
    fn wait(&self, _timeout_ns: Option<u64>) {}

    fn wake(&self) {}
}
