//! # Safety
//!
//! Aligned memory of the engine, for reads whose target the kernel cannot use: a borrowed slice, or memory that is not
//! aligned for direct I/O. Buffers are reused; there is one pool per engine (Owned). The bytes are copied to the buffer
//! of the operation (Lent, Written).
#![allow(unsafe_code)]

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::{AlignedBuf, IoBuf, IoBufMut, ReadTarget};

/// The alignment of every bounce buffer, in bytes. No device needs more than a page.
const ALIGN_BYTES: usize = 4096;
/// The smallest size class, in bytes.
const BYTES_MIN: usize = 4096;
/// The number of size classes: 4 KiB, 8 KiB … 1 MiB. Larger buffers are allocated and freed each time.
const CLASSES: usize = 9;
/// The number of idle bytes per class; buffers beyond that are freed.
const KEPT_BYTES: usize = 4 << 20;

/// Idle buffers by size class.
#[derive(Debug, Default)]
pub(crate) struct BouncePool {
    idle: [Mutex<Vec<AlignedBuf>>; CLASSES],
}

impl BouncePool {
    /// Takes a buffer of `bytes` bytes. Fails with `OutOfMemory` if memory is short.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> io::Result<Bounce> {
        let class = class_of(bytes);
        let kept = self.idle.get(class).and_then(|idle| lock(idle).pop());
        let mut buf = match kept {
            Some(buf) => buf,
            None if class < CLASSES => AlignedBuf::try_with_len(BYTES_MIN << class, ALIGN_BYTES)?,
            None => AlignedBuf::try_with_len(bytes, ALIGN_BYTES)?,
        };
        buf.set_len(bytes);
        Ok(Bounce {
            buf: Some(buf),
            pool: Arc::clone(self),
        })
    }

    fn put(&self, buf: AlignedBuf) {
        let class = class_of(buf.capacity());
        if let Some(idle) = self.idle.get(class) {
            let mut idle = lock(idle);
            if idle.len() < KEPT_BYTES >> (class + BYTES_MIN.trailing_zeros() as usize) {
                idle.push(buf);
            }
        }
    }
}

fn class_of(bytes: usize) -> usize {
    match bytes.max(BYTES_MIN).checked_next_power_of_two() {
        Some(rounded) => (rounded / BYTES_MIN).trailing_zeros() as usize,
        None => CLASSES,
    }
}

/// Nothing panics while the lock is held; if it did, the list would still be consistent.
fn lock(idle: &Mutex<Vec<AlignedBuf>>) -> std::sync::MutexGuard<'_, Vec<AlignedBuf>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer from the pool. Dropping it returns it.
#[derive(Debug)]
pub(crate) struct Bounce {
    /// `None` only while being dropped.
    buf: Option<AlignedBuf>,
    pool: Arc<BouncePool>,
}

impl Drop for Bounce {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.pool.put(buf);
        }
    }
}

impl std::ops::Deref for Bounce {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl std::ops::DerefMut for Bounce {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.buf.as_deref_mut().unwrap_or_default()
    }
}

// SAFETY: Still. The block belongs to the `AlignedBuf`, which does not move it.
unsafe impl IoBuf for Bounce {
    fn stable_ptr(&self) -> *const u8 {
        self.as_ptr()
    }

    fn init_bytes(&self) -> usize {
        self.len()
    }
}

// SAFETY: Still, and the bounce is the block's only owner.
unsafe impl IoBufMut for Bounce {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn lent_bytes(&self) -> usize {
        self.len()
    }

    unsafe fn set_init(&mut self, _: usize) {
        // Nothing to do: allocated zeroed, so always initialised.
    }
}

/// Copies `from` to the place that a read of `into` would fill, and marks it as initialised.
pub(crate) fn copy_in<B: IoBufMut>(into: &mut B, from: &[u8]) {
    assert!(
        from.len() <= into.fill_bytes(),
        "the copy does not fit into the buffer"
    );
    // SAFETY: Lent: this function owns the buffer here, and at least `from.len()` bytes may be filled.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.fill_ptr(), from.len()) };
    // SAFETY: Written: these `from.len()` bytes were copied just now.
    unsafe { into.set_filled(from.len()) };
}
