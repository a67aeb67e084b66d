//! # Safety
//!
//! The engine's own aligned memory, for reads whose target the kernel can't be given: a borrowed
//! slice, or one that is not aligned for direct I/O. Kept and used again; one pool per engine.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use super::{AlignedBuf, IoBuf, IoBufMut};

/// Alignment of every bounce buffer, bytes: no device asks for more than a page.
const ALIGN_BYTES: usize = 4096;
/// The smallest buffer kept.
const BYTES_MIN: usize = 4096;
/// Size classes: 4 KiB, 8 KiB … 1 MiB. Larger buffers are made and freed each time.
const CLASSES: usize = 9;
/// Bytes kept idle per class; what comes back beyond is freed.
const KEPT_BYTES: usize = 4 << 20;

/// Idle buffers by size class.
#[derive(Debug, Default)]
pub(crate) struct BouncePool {
    idle: [Mutex<Vec<AlignedBuf>>; CLASSES],
}

impl BouncePool {
    /// A buffer of at least `bytes`.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Bounce {
        let class = class_of(bytes);
        let kept = self.idle.get(class).and_then(|idle| lock(idle).pop());
        let mut buf = kept.unwrap_or_else(|| {
            let bytes = if class < CLASSES {
                BYTES_MIN << class
            } else {
                bytes
            };
            AlignedBuf::with_len(bytes, ALIGN_BYTES)
        });
        buf.set_len(bytes);
        Bounce {
            buf: Some(buf),
            pool: Arc::clone(self),
        }
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
    let rounded = bytes.max(BYTES_MIN).next_power_of_two();
    (rounded / BYTES_MIN).trailing_zeros() as usize
}

/// Nothing panics while the lock is held; if it did, the list would still be whole.
fn lock(idle: &Mutex<Vec<AlignedBuf>>) -> std::sync::MutexGuard<'_, Vec<AlignedBuf>> {
    idle.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer out of the pool; goes back when dropped.
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
        // Zeroed at birth: nothing is ever uninitialised.
    }
}
