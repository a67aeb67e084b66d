//! # Safety
//!
//! An open descriptor, shared by the file that names it and the operations that use it: the last of
//! them closes it (Open). The number never changes while a handle lives.
#![allow(unsafe_code)]

mod cached;
#[cfg(feature = "net")]
mod line;
#[cfg(feature = "net")]
mod order;
#[cfg(feature = "net")]
mod socket;

pub(crate) use cached::CachedHint;
pub use cached::CachedReads;
#[cfg(feature = "net")]
pub(crate) use line::{Line, Permit, Queued};
#[cfg(feature = "net")]
pub(crate) use order::{QueuedSend, SendPermit};
#[cfg(feature = "net")]
pub(crate) use socket::{CloseSocket, Socket, ZeroCopy};

use std::fmt;
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::sys::call;
use crate::sys::sqe::opcode;

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
    /// Reads and writes are system calls on a blocking thread.
    by_thread: AtomicBool,
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
            by_thread: AtomicBool::new(false),
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

    /// The opcode of a transfer: `opcode`, or the one that no ring has.
    #[inline]
    pub(crate) fn opcode_of_transfer(&self, opcode: u8) -> u8 {
        if self.0.by_thread.load(Relaxed) {
            return opcode::BY_THREAD;
        }
        opcode
    }

    /// Has reads and writes be system calls on a blocking thread, from here on.
    pub(crate) fn keep_from_rings(&self) {
        self.0.by_thread.store(true, Relaxed);
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
