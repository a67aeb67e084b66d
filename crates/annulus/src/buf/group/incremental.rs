//! The state of the buffers of an incremental group: how far the kernel has filled each of them, and which have chunks.
//!
//! A CQE names a buffer and a length, but no position: the bytes follow those of earlier CQEs (trap 29). A full buffer
//! with chunks is lost to the kernel as a whole, so the number of such buffers is bounded.
//!
//! Beyond that bound, received data is copied out: a quarter of the memory, and at least one buffer, stays available.

use super::GroupLayout;

pub(super) struct Parts {
    parts: Box<[Part]>,
    bytes: u32,
    /// The number of buffers with chunks.
    read: u32,
    read_max: u32,
}

#[derive(Clone, Copy, Default)]
struct Part {
    /// The number of received bytes.
    filled: u32,
    chunks: u32,
    /// The kernel has finished with it.
    finished: bool,
}

/// The position of received bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) from: u32,
    /// Set if the bytes must be copied out.
    pub(super) is_scarce: bool,
}

impl Parts {
    pub(super) fn new(layout: GroupLayout) -> Parts {
        let count = u32::from(layout.count);
        Parts {
            parts: vec![Part::default(); usize::from(layout.count)].into_boxed_slice(),
            bytes: layout.bytes,
            read: 0,
            read_max: count - (count / 4).max(1),
        }
    }

    /// Records that the kernel has put `bytes` bytes into buffer `id`, and keeps the buffer if `goes_on`. Unless
    /// `bytes` is 0, the caller must `release` a chunk later. Returns `None` if the kernel cannot have put them there.
    #[inline]
    pub(super) fn receive(&mut self, id: u16, bytes: u32, goes_on: bool) -> Option<Received> {
        let part = self.parts.get_mut(usize::from(id))?;
        if part.finished || bytes > self.bytes - part.filled {
            return None;
        }
        let from = part.filled;
        if bytes == 0 {
            // The kernel has used nothing of the buffer, whatever the flag says: some kernels omit it here.
            return Some(Received {
                from,
                is_scarce: false,
            });
        }
        let is_scarce = part.chunks == 0 && self.read >= self.read_max;
        self.read += u32::from(part.chunks == 0);
        part.chunks += 1;
        part.filled += bytes;
        part.finished = !goes_on;
        Some(Received { from, is_scarce })
    }

    /// Drops a chunk of buffer `id`. Returns `true` if the buffer can go to the kernel again.
    #[inline]
    pub(super) fn release(&mut self, id: u16) -> bool {
        let part = &mut self.parts[usize::from(id)];
        debug_assert!(part.chunks > 0, "a chunk is returned once");
        part.chunks -= 1;
        if part.chunks > 0 {
            return false;
        }
        self.read -= 1;
        if part.finished {
            *part = Part::default();
            return true;
        }
        false
    }

    /// Returns the number of buffers with chunks.
    #[cfg(test)]
    pub(super) fn read(&self) -> u32 {
        self.read
    }
}
