//! # Safety
//!
//! An open descriptor, shared by its file and by the operations that use it. The last owner closes it (Open). The
//! number never changes while a handle exists.
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

/// Closes descriptors that are not the process's, such as those of the simulated kernel.
pub(crate) trait CloseFd: Send + Sync {
    /// Closes `fd` like `close(2)`. Returns 0 or a negative errno.
    fn close(&self, fd: i32) -> i32;
}

/// A shared open descriptor.
#[derive(Clone)]
pub(crate) struct Fd(Arc<Opened>);

struct Opened {
    raw: i32,
    /// `None` for a descriptor of this process.
    closer: Option<Arc<dyn CloseFd>>,
    cached: CachedHint,
    /// Reads and writes use the ring that polls the device.
    polled: AtomicBool,
    /// Reads and writes are system calls on a blocking thread.
    by_thread: AtomicBool,
}

impl Fd {
    /// Takes over `raw`.
    ///
    /// # Safety
    ///
    /// Open: the caller owns `raw` and gives it up.
    pub(crate) unsafe fn own(raw: i32, closer: Option<Arc<dyn CloseFd>>) -> Fd {
        Fd(Arc::new(Opened {
            raw,
            closer,
            cached: CachedHint::default(),
            polled: AtomicBool::new(false),
            by_thread: AtomicBool::new(false),
        }))
    }

    /// Takes over a file of std.
    pub(crate) fn adopt(file: std::fs::File) -> Fd {
        // SAFETY: Open: `into_raw_fd` gives up the ownership of the number.
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

    /// Returns whether reads and writes are polled for. This is a hint: if the kernel refuses to poll, they are done
    /// another way.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.0.polled.load(Relaxed)
    }

    pub(crate) fn set_polled(&self, polled: bool) {
        self.0.polled.store(polled, Relaxed);
    }

    /// Returns the opcode of a transfer: `opcode`, or the one that makes it a system call on a blocking thread.
    #[inline]
    pub(crate) fn opcode_of_transfer(&self, opcode: u8) -> u8 {
        if self.0.by_thread.load(Relaxed) {
            return opcode::BY_THREAD;
        }
        opcode
    }

    /// Makes reads and writes system calls on a blocking thread, from now on.
    pub(crate) fn keep_from_rings(&self) {
        self.0.by_thread.store(true, Relaxed);
    }

    /// Returns the number, for the caller to close, if this is the only handle.
    pub(crate) fn into_raw(self) -> Result<i32, Fd> {
        match Arc::try_unwrap(self.0) {
            Ok(opened) => {
                let raw = opened.raw;
                let mut opened = std::mem::ManuallyDrop::new(opened);
                // SAFETY: Once: the rest of `opened` is forgotten, so the closer is dropped only here.
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
                // SAFETY: Open: `own` took over the number, and this is the last handle. An error can't be reported
                // here; `File::close` reports it.
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
