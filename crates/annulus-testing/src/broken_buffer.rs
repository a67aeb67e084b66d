//! Buffers that break the contract of `IoBufMut` in ways that the library can detect. They only lend their own memory,
//! so a failing test writes to the wrong bytes of the buffer and never outside it.
#![allow(unsafe_code)]

use annulus::{IoBuf, IoBufMut};

/// A buffer whose initialised bytes begin at its start. It lends `space` bytes that begin `gap` bytes after its start.
#[derive(Debug)]
pub struct BrokenBuffer {
    /// All bytes of the buffer.
    pub memory: Box<[u8; 4096]>,
    len: usize,
    gap: usize,
    space: usize,
}

impl BrokenBuffer {
    /// Returns a buffer that is filled at another address than it is read from.
    pub fn apart() -> BrokenBuffer {
        BrokenBuffer::new(1000, 1000, 1016)
    }

    /// Returns a buffer with more initialised bytes than it lends.
    pub fn too_full() -> BrokenBuffer {
        BrokenBuffer::new(1000, 0, 16)
    }

    fn new(len: usize, gap: usize, space: usize) -> BrokenBuffer {
        BrokenBuffer {
            memory: Box::new([0; 4096]),
            len,
            gap,
            space,
        }
    }

    /// Returns whether no byte was written.
    pub fn is_untouched(&self) -> bool {
        self.memory.iter().all(|&byte| byte == 0)
    }
}

// SAFETY: Still: the box is never replaced. The buffer breaks the other rules on purpose.
unsafe impl IoBuf for BrokenBuffer {
    fn stable_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len
    }
}

// SAFETY: unsound on purpose. The library must refuse the buffer before it uses the memory.
unsafe impl IoBufMut for BrokenBuffer {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.memory[self.gap..].as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.space
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        self.len = self.len.max(bytes);
    }
}
