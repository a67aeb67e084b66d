//! Access to the receive buffers of a core's ring.

use super::core_driver::Core;
use crate::buf::{Chunk, Group, GroupLayout, ReceiveMode};
use crate::sys::sqe::Cqe;

impl Core {
    /// Returns the id of the buffer group.
    pub(crate) fn group_id(&self) -> u16 {
        self.with_group(Group::id).unwrap_or_default()
    }

    /// Returns the receive mode of the buffer group.
    pub(crate) fn receive_mode(&self) -> ReceiveMode {
        self.with_group(Group::mode).unwrap_or_default()
    }

    /// Returns the layout of the receive buffers, and the reason if it is not the requested one.
    pub(crate) fn group_facts(&self) -> (Option<GroupLayout>, Option<String>) {
        (self.with_group(Group::layout), self.mode_refused.clone())
    }

    /// Returns the size of a receive buffer, bytes.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.with_group(Group::buffer_bytes).unwrap_or(4096)
    }

    /// Returns the data that the kernel has received into buffer `id`.
    #[inline]
    pub(crate) fn received(&self, id: u16, bytes: u32) -> Option<Chunk> {
        self.with_group(|group| group.received(id, bytes))
    }

    /// Passes the received data to `each` if buffers are filled incrementally or several at a time. Returns `false` if
    /// the completion is inconsistent.
    #[inline]
    pub(crate) fn received_parts(&self, cqe: &Cqe, id: u16, each: impl FnMut(Chunk)) -> bool {
        self.with_group(|group| group.received_parts(id, cqe.bytes(), cqe.keeps_buffer(), each))
            .unwrap_or(true)
    }

    /// Returns an empty buffer for a receive by system call.
    pub(crate) fn blank(&self) -> Option<Chunk> {
        self.with_group(Group::blank)
    }

    #[inline]
    pub(super) fn with_group<T>(&self, act: impl FnOnce(&Group) -> T) -> Option<T> {
        self.group.borrow().as_ref().map(act)
    }
}
