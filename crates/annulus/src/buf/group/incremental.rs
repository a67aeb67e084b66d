//! How far the kernel has filled each buffer of an incremental group, and who still reads it.
//!
//! A CQE names a buffer and says how much has come, not where: that is behind what came before (trap 29).
//! A buffer that anybody reads is lost to the kernel as a whole once it is full, so what is bounded is how
//! many are read: a quarter of the memory, and at least one buffer, always comes back by itself.

use super::GroupLayout;

pub(super) struct Parts {
    parts: Box<[Part]>,
    bytes: u32,
    /// Buffers that have chunks.
    read: u32,
    read_max: u32,
}

#[derive(Clone, Copy, Default)]
struct Part {
    /// Bytes that have come.
    filled: u32,
    chunks: u32,
    /// The kernel has finished with it.
    finished: bool,
}

/// Where something was received.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) from: u32,
    /// It is to be copied out.
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

    /// The kernel has put `bytes` bytes into buffer `id`; `goes_on`: and keeps it. Unless they are none, a
    /// chunk of it is about, to be `release`d. `None`: it can't have put them there.
    #[inline]
    pub(super) fn receive(&mut self, id: u16, bytes: u32, goes_on: bool) -> Option<Received> {
        let part = self.parts.get_mut(usize::from(id))?;
        if part.finished || bytes > self.bytes - part.filled {
            return None;
        }
        let from = part.filled;
        if bytes == 0 {
            // The kernel has used up nothing, whatever the flag says: some forget it here.
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

    /// A chunk of buffer `id` has gone. True: the buffer is for the kernel again.
    #[inline]
    pub(super) fn release(&mut self, id: u16) -> bool {
        let part = &mut self.parts[usize::from(id)];
        debug_assert!(part.chunks > 0, "a chunk is given back once");
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

    /// Buffers that have chunks.
    #[cfg(test)]
    pub(super) fn read(&self) -> u32 {
        self.read
    }
}
