//! The records of a set for members that are not served connections.

use crate::events::ONESHOT;
use crate::sys;

/// A member of two sets, or one whose number was closed while a duplicate is open. The kernel's set knows it, but not
/// its buffered bytes and its error.
#[derive(Clone, Copy)]
pub(crate) struct SharedMember {
    /// The number and the generation of the connection that has them.
    pub(crate) fd: i32,
    pub(crate) generation: u32,
    /// The number by which the program added it. It differs from `fd` if it was closed while a duplicate is open.
    pub(crate) added_as: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// The event was reported, and must not be reported again.
    pub(crate) reported: bool,
    /// The events of what a set of another thread held of it when the calling thread began to wait.
    pub(crate) held_elsewhere: u32,
}

impl SharedMember {
    /// Returns whether the program names this member by `fd`.
    pub(crate) fn is_named(&self, fd: i32) -> bool {
        self.added_as == fd && self.fd == fd
    }

    /// Returns whether it is a one-shot member that was reported.
    pub(crate) fn has_fired(&self) -> bool {
        self.reported && self.events & ONESHOT != 0
    }

    /// Removes it from the kernel's set, which knows it by the number by which it was added. If that number is closed,
    /// a duplicate takes it for a moment.
    pub(crate) fn remove_from(&self, set: i32) {
        let number = match self.is_named(self.fd) {
            true => Ok(self.fd),
            false => sys::dup_above(self.fd, self.added_as),
        };
        if number == Ok(self.added_as) {
            let _ = sys::control(set, libc::EPOLL_CTL_DEL, self.added_as, 0, 0);
        }
        if let Some(duplicate) = number.ok().filter(|&number| number != self.fd) {
            let _ = sys::close(duplicate);
        }
    }
}

/// A member: its descriptor, the events, and the data that the set returns with them.
#[derive(Clone, Copy)]
pub(crate) struct Interest {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// A listener that is a member of the set, level-triggered.
#[derive(Clone, Copy)]
pub(crate) struct Listener {
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// A poll of this generation is pending in the kernel.
    pub(crate) polled: bool,
    pub(crate) generation: u32,
    /// Events that the kernel has returned and that have not been reported yet.
    pub(crate) ready_events: u32,
}

impl Listener {
    pub(crate) fn new(interest: Interest, generation: u32) -> Listener {
        let Interest { fd, events, data } = interest;
        Listener {
            fd,
            events,
            data,
            polled: false,
            generation,
            ready_events: 0,
        }
    }
}
