//! An epoll instance, for the readiness driver that has no ring.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::call::timespec;

/// The readiness of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    /// The token that the descriptor was added with.
    pub(crate) token: u64,
    /// There is data, the end of the stream, or an error.
    pub(crate) readable: bool,
    /// There is space in the send buffer, or an error.
    pub(crate) writable: bool,
    /// The stream has ended, or has urgent data. A short receive then does not mean that the socket is empty.
    pub(crate) may_have_rest: bool,
}

/// An epoll instance and its events.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// The number of events per wait. Small enough that the data they touch is still in the processor's cache when the
/// tasks run, and large enough that the cost of the call per event is negligible.
const EVENTS_MAX: usize = 256;

/// The longest wait of one call, ns: 24 days. `epoll_wait` takes 31 bits of milliseconds; the call that takes more is
/// missing before Linux 5.11 and under some filters (trap 72).
const WAIT_NS_MAX: u64 = 0x7fff_ffff * 1_000_000;

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        Ok(Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    /// Reports each change of `fd`, once, under `token`: edge-triggered.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::PRI
            | epoll::EventFlags::ET;
        self.add_as(fd, token, flags)
    }

    /// Reports `fd` while it is readable.
    pub(crate) fn add_level(&self, fd: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        self.add_as(fd, token, epoll::EventFlags::IN)
    }

    fn add_as(&self, fd: BorrowedFd<'_>, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, flags)?)
    }

    /// Removes `fd`. A closed descriptor is removed only when its last copy is closed, and a child of a fork may have a
    /// copy.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits at most `timeout_ns`, and at most 24 days, for a descriptor to become ready. A signal also ends the wait.
    pub(crate) fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        let timeout = timeout_ns.map(|ns| timespec(ns.min(WAIT_NS_MAX)));
        self.events.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns whether the last wait may have left events.
    #[cfg(all(feature = "net", feature = "tokio"))]
    pub(crate) fn may_have_more(&self) -> bool {
        self.events.len() == self.events.capacity()
    }

    #[cfg(all(feature = "net", feature = "tokio"))]
    pub(crate) fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.epoll.try_clone()
    }

    /// Returns event `nth` of the last wait.
    pub(crate) fn event(&self, nth: usize) -> Option<Readiness> {
        use epoll::EventFlags as Is;
        let event = self.events.get(nth)?;
        // The fields are packed, so they are copied and not borrowed.
        let (flags, data) = (event.flags, event.data);
        let broken = Is::ERR | Is::HUP;
        Some(Readiness {
            token: data.u64(),
            readable: flags.intersects(Is::IN | Is::RDHUP | broken),
            writable: flags.intersects(Is::OUT | broken),
            may_have_rest: flags.intersects(Is::RDHUP | Is::HUP | Is::PRI),
        })
    }
}
