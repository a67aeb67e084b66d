//! The buffers that a core's ring receives into, as sockets and the core itself see them.

use super::Core;
use crate::buf::{Chunk, Group, GroupLayout, ReceiveMode};
use crate::sys::sqe::Cqe;

impl Core {
    /// The number of the receive buffers' group.
    pub(crate) fn group_id(&self) -> u16 {
        self.with_group(Group::id).unwrap_or_default()
    }

    /// How the kernel fills the receive buffers.
    pub(crate) fn receive_mode(&self) -> ReceiveMode {
        self.with_group(Group::mode).unwrap_or_default()
    }

    /// The receive buffers, and why they are not as was wanted.
    pub(crate) fn group_facts(&self) -> (Option<GroupLayout>, Option<String>) {
        (self.with_group(Group::layout), self.mode_refused.clone())
    }

    /// Bytes of a receive buffer.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.with_group(Group::buffer_bytes).unwrap_or(4096)
    }

    /// What the kernel has received into buffer `id`.
    #[inline]
    pub(crate) fn received(&self, id: u16, bytes: u32) -> Option<Chunk> {
        self.with_group(|group| group.received(id, bytes))
    }

    /// As [`received`](Core::received), where a buffer is filled bit by bit or several at a time. False: what
    /// the kernel says makes no sense.
    #[inline]
    pub(crate) fn received_parts(&self, cqe: &Cqe, id: u16, each: impl FnMut(Chunk)) -> bool {
        self.with_group(|group| group.received_parts(id, cqe.bytes(), cqe.keeps_buffer(), each))
            .unwrap_or(true)
    }

    /// A buffer to receive into by a call.
    pub(crate) fn blank(&self) -> Option<Chunk> {
        self.with_group(Group::blank)
    }

    #[inline]
    pub(super) fn with_group<T>(&self, act: impl FnOnce(&Group) -> T) -> Option<T> {
        self.group.borrow().as_ref().map(act)
    }
}
