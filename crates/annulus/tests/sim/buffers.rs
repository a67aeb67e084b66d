//! Counted buffers: a leaked one is noticed, and so is a read or write after its drop.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use annulus::{IoBuf, IoBufMut};

/// Counts the buffers that are alive.
#[derive(Clone, Default)]
pub(crate) struct Census(Arc<AtomicUsize>);

impl Census {
    pub(crate) fn alive(&self) -> usize {
        self.0.load(Relaxed)
    }

    pub(crate) fn buffer(&self, bytes: Vec<u8>) -> Counted {
        self.0.fetch_add(1, Relaxed);
        Counted {
            bytes,
            census: self.clone(),
        }
    }
}

/// A buffer that the census counts.
pub(crate) struct Counted {
    pub(crate) bytes: Vec<u8>,
    census: Census,
}

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Counted({} bytes)", self.bytes.len())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // Data that is written from here on differs from the requested data.
        self.bytes.fill(0xdd);
        self.census.0.fetch_sub(1, Relaxed);
    }
}

// SAFETY: Still: as for its `Vec`.
unsafe impl IoBuf for Counted {
    fn stable_ptr(&self) -> *const u8 {
        self.bytes.stable_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.bytes.init_bytes()
    }
}

// SAFETY: Still: as for its `Vec`.
unsafe impl IoBufMut for Counted {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.stable_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.bytes.lent_bytes()
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        // SAFETY: Written: the caller upholds the contract in `# Safety`.
        unsafe { self.bytes.set_init(bytes) }
    }
}

/// A counter that tasks of one thread share.
#[derive(Clone, Default)]
pub(crate) struct Tally(Rc<Cell<u64>>);

impl Tally {
    pub(crate) fn add(&self, more: u64) {
        self.0.set(self.0.get() + more);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
}

/// The random numbers of a test, independent of the simulation's.
#[derive(Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
