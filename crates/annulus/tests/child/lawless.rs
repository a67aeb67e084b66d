//! Buffers that break the contract of `IoBufMut`, each in a way that a look at it shows. What they lend is never
//! outside of their memory, so that a test which fails writes to the wrong bytes and to nobody else's.
#![allow(unsafe_code)]

use annulus::{IoBuf, IoBufMut};

/// What it has is read from its start; what it lends are the `room` bytes `gap` bytes further on.
#[derive(Debug)]
pub(crate) struct Lawless {
    pub(crate) memory: Box<[u8; 4096]>,
    len: usize,
    gap: usize,
    room: usize,
}

impl Lawless {
    /// Filled elsewhere than it is read.
    pub(crate) fn apart() -> Lawless {
        Lawless::new(1000, 1000, 1016)
    }

    /// Has more than it lends.
    pub(crate) fn too_full() -> Lawless {
        Lawless::new(1000, 0, 16)
    }

    fn new(len: usize, gap: usize, room: usize) -> Lawless {
        Lawless {
            memory: Box::new([0; 4096]),
            len,
            gap,
            room,
        }
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.memory.iter().all(|&byte| byte == 0)
    }
}

// SAFETY: Still, as a Box. That is what it keeps to.
unsafe impl IoBuf for Lawless {
    fn stable_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len
    }
}

// SAFETY: not sound, on purpose: the library is to refuse it before it makes anything of it.
unsafe impl IoBufMut for Lawless {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.memory[self.gap..].as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.room
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        self.len = self.len.max(bytes);
    }
}
