//! A buffer whose methods panic at a chosen call.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use annulus::{IoBuf, IoBufMut};

/// A buffer that panics at the n-th call of one of its methods, counted from 1; never if n is 0.
pub struct PanickingBuffer {
    bytes: Vec<u8>,
    calls: AtomicU32,
    panics_at: u32,
    /// Runs when the buffer is dropped.
    pub on_drop: Option<Box<dyn FnOnce() + Send>>,
}

impl PanickingBuffer {
    /// Returns a buffer of `bytes` initialised bytes that panics at call `panics_at`.
    pub fn new(bytes: usize, panics_at: u32) -> PanickingBuffer {
        PanickingBuffer {
            bytes: vec![7; bytes],
            calls: AtomicU32::new(0),
            panics_at,
            on_drop: None,
        }
    }

    /// Returns the number of calls of its buffer methods so far.
    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    fn count_call(&self) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        assert_ne!(
            calls, self.panics_at,
            "the test's buffer panics at this call"
        );
    }
}

impl Drop for PanickingBuffer {
    fn drop(&mut self) {
        self.on_drop.take().into_iter().for_each(|run| run());
    }
}

// SAFETY: the vector is never resized, and all of it is initialised.
unsafe impl IoBuf for PanickingBuffer {
    fn stable_ptr(&self) -> *const u8 {
        self.count_call();
        self.bytes.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.count_call();
        self.bytes.len()
    }
}

// SAFETY: the vector's block stays in place while nothing resizes it, and this value alone owns it.
unsafe impl IoBufMut for PanickingBuffer {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.count_call();
        self.bytes.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.count_call();
        self.bytes.len()
    }

    unsafe fn set_init(&mut self, _: usize) {
        self.count_call();
    }
}
