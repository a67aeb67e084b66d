//! An epoll instance: readiness of descriptors, for the driver that has no ring.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::call::timespec;

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    /// The name it was added under.
    pub(crate) token: u64,
    /// Data, the end of it, or an error.
    pub(crate) readable: bool,
    /// Room, or an error.
    pub(crate) writable: bool,
    /// Nothing more will come after what has.
    pub(crate) ended: bool,
}

/// The instance.
pub(crate) struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// Events taken at a time: so few that what one touches is still in the processor's cache when its task
/// runs, and enough of them that the call costs next to nothing for each.
const EVENTS_MAX: usize = 256;

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

    /// Forgets `fd`. A descriptor that is closed is forgotten with its last copy: a child of a fork may
    /// have one.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits, at most `timeout_ns`, for something to become ready; a signal ends it, too.
    pub(crate) fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<()> {
        let timeout = timeout_ns.map(timespec);
        self.events.clear();
        let spare = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, spare, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns event `nth` of the last wait.
    pub(crate) fn event(&self, nth: usize) -> Option<Readiness> {
        use epoll::EventFlags as Is;
        let event = self.events.get(nth)?;
        // The fields are packed: copied, not borrowed.
        let (flags, data) = (event.flags, event.data);
        let broken = Is::ERR | Is::HUP;
        Some(Readiness {
            token: data.u64(),
            readable: flags.intersects(Is::IN | Is::RDHUP | broken),
            writable: flags.intersects(Is::OUT | broken),
            ended: flags.intersects(Is::RDHUP | Is::HUP),
        })
    }
}
