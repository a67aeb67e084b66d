//! # Safety
//!
//! An open descriptor, shared by the file that names it and the operations that use it: the last of
//! them closes it (Open). The number never changes while a handle lives.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::sys::call;

/// Who closes a descriptor; the simulated kernel's are not the process's.
pub(crate) trait CloseFd: Send + Sync {
    /// As `close(2)`: 0, or minus an errno.
    fn close(&self, fd: i32) -> i32;
}

/// A shared open descriptor.
#[derive(Clone)]
pub(crate) struct Fd(Arc<Opened>);

struct Opened {
    raw: i32,
    /// `None`: the process's own table.
    closer: Option<Arc<dyn CloseFd>>,
    cached: CachedHint,
    /// Reads and writes go through the ring that polls the device.
    polled: AtomicBool,
}

impl Fd {
    /// Takes over `raw`.
    ///
    /// # Safety
    ///
    /// Open. The caller owns `raw` and gives it up.
    pub(crate) unsafe fn own(raw: i32, closer: Option<Arc<dyn CloseFd>>) -> Fd {
        Fd(Arc::new(Opened {
            raw,
            closer,
            cached: CachedHint::default(),
            polled: AtomicBool::new(false),
        }))
    }

    /// Takes over std's file.
    pub(crate) fn adopt(file: std::fs::File) -> Fd {
        // SAFETY: Open: `into_raw_fd` passes the ownership on.
        unsafe { Fd::own(file.into_raw_fd(), None) }
    }

    #[inline]
    pub(crate) fn raw(&self) -> i32 {
        self.0.raw
    }

    pub(crate) fn is_simulated(&self) -> bool {
        self.0.closer.is_some()
    }

    #[inline]
    pub(crate) fn cached(&self) -> &CachedHint {
        &self.0.cached
    }

    /// Whether reads and writes are polled for. A hint: what the kernel refuses to poll for is done by
    /// other means.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.0.polled.load(Relaxed)
    }

    pub(crate) fn set_polled(&self, polled: bool) {
        self.0.polled.store(polled, Relaxed);
    }

    /// The number, to be closed by the caller, if nobody else holds the descriptor.
    pub(crate) fn into_raw(self) -> Result<i32, Fd> {
        match Arc::try_unwrap(self.0) {
            Ok(opened) => {
                let raw = opened.raw;
                let mut opened = std::mem::ManuallyDrop::new(opened);
                // SAFETY: Once: the rest of `opened` is forgotten, so the closer is dropped here only.
                unsafe { std::ptr::drop_in_place(&raw mut opened.closer) };
                Ok(raw)
            }
            Err(shared) => Err(Fd(shared)),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        match &self.closer {
            Some(closer) => _ = closer.close(self.raw),
            None => {
                // SAFETY: Open: `own` was given the number, and this is the last handle.
                // An error here has nobody to go to; `File::close` reports it.
                let _ = unsafe { call::close(self.raw) };
            }
        }
    }
}

impl fmt::Debug for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fd({})", self.0.raw)
    }
}

/// Whether asking the page cache first has paid for this file.
///
/// After a run of misses only every n-th read asks, n doubling up to a bound; a hit starts again.
/// Lossy on purpose: two threads may overwrite each other's step.
#[derive(Default)]
pub(crate) struct CachedHint {
    /// Misses in a row.
    misses: AtomicU32,
    /// Reads that did not ask since the last that did.
    skipped: AtomicU32,
}

/// Misses in a row that are simply tried again.
const MISSES_FREE: u32 = 4;
/// One read in at most `1 << SKIP_SHIFT_MAX` asks, however long the run of misses.
const SKIP_SHIFT_MAX: u32 = 8;

impl CachedHint {
    /// Whether this read should ask.
    #[inline]
    pub(crate) fn ask(&self) -> bool {
        let misses = self.misses.load(Relaxed);
        if misses < MISSES_FREE {
            return true;
        }
        let skipped = self.skipped.load(Relaxed) + 1;
        let every = 1 << (misses - MISSES_FREE + 1).min(SKIP_SHIFT_MAX);
        if skipped < every {
            self.skipped.store(skipped, Relaxed);
            return false;
        }
        self.skipped.store(0, Relaxed);
        true
    }

    #[inline]
    pub(crate) fn hit(&self) {
        if self.misses.load(Relaxed) != 0 {
            self.misses.store(0, Relaxed);
        }
    }

    pub(crate) fn miss(&self) {
        let misses = self.misses.load(Relaxed);
        if misses < MISSES_FREE + SKIP_SHIFT_MAX {
            self.misses.store(misses + 1, Relaxed);
        }
    }

    /// The file system can't answer without blocking; never ask again.
    pub(crate) fn never(&self) {
        self.misses.store(MISSES_FREE + SKIP_SHIFT_MAX, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_run_of_misses_few_reads_ask_and_a_hit_starts_again() {
        let hint = CachedHint::default();
        let mut asked = 0;
        for _ in 0..10_000 {
            if hint.ask() {
                asked += 1;
                hint.miss();
            }
        }
        assert!((10..100).contains(&asked), "{asked} of 10,000 reads asked");
        hint.hit();
        assert!((0..MISSES_FREE).all(|_| hint.ask()));
    }
}
