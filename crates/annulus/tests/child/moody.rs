//! A buffer that panics at the wrong moment.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use annulus::{IoBuf, IoBufMut};

/// Panics when it is asked for its length or place for the n-th time, from 1 on; 0 is never.
pub(crate) struct Moody {
    bytes: Vec<u8>,
    asked: AtomicU32,
    panics_at: u32,
    /// What it does when it is dropped.
    pub(crate) last_will: Option<Box<dyn FnOnce() + Send>>,
}

impl Moody {
    pub(crate) fn new(bytes: usize, panics_at: u32) -> Moody {
        Moody {
            bytes: vec![7; bytes],
            asked: AtomicU32::new(0),
            panics_at,
            last_will: None,
        }
    }

    /// So often so far.
    pub(crate) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    fn ask(&self) {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        assert_ne!(asked, self.panics_at, "a buffer that will not say");
    }
}

impl Drop for Moody {
    fn drop(&mut self) {
        self.last_will.take().into_iter().for_each(|will| will());
    }
}

// SAFETY: the vector is never resized, and all of it is initialised.
unsafe impl IoBuf for Moody {
    fn stable_ptr(&self) -> *const u8 {
        self.ask();
        self.bytes.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.ask();
        self.bytes.len()
    }
}

// SAFETY: the vector's block stays in place while nothing resizes it, and this value alone owns it.
unsafe impl IoBufMut for Moody {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.ask();
        self.bytes.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.ask();
        self.bytes.len()
    }

    unsafe fn set_init(&mut self, _: usize) {
        self.ask();
    }
}
