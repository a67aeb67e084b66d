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
mod shared_addresses;
#[cfg(feature = "net")]
mod socket;
mod uncached;

pub use cached::CachedReads;
pub(crate) use cached::{CachedHint, MountHints};
#[cfg(feature = "net")]
pub(crate) use line::{Line, Permit, Queued};
#[cfg(feature = "net")]
pub(crate) use order::{QueuedSend, SendPermit};
#[cfg(feature = "net")]
pub(crate) use shared_addresses::{AddressShare, Claim, Share, SharedAddresses};
#[cfg(feature = "net")]
pub(crate) use socket::{CloseSocket, Socket, ZeroCopy};
pub use uncached::NotUncached;

use std::fmt;
#[cfg(feature = "tokio")]
use std::os::fd::FromRawFd;
use std::os::fd::IntoRawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};
use std::sync::{Arc, OnceLock, Weak};

use crate::sys::call;
use crate::sys::mount::{self, Closing, FileSystem};
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
    uncached: uncached::Uncached,
    /// Reads and writes use the ring that polls the device.
    polled: AtomicBool,
    /// Reads and writes are system calls on a blocking thread.
    by_thread: AtomicBool,
    /// One of the three constants below; `OFFSETS_UNKNOWN` until it matters.
    offsets: AtomicU8,
    /// The file is on a mount that is known to be local.
    local: AtomicBool,
    /// The flags that the file was opened with, or `FLAGS_UNKNOWN`.
    open_flags: AtomicU32,
    /// The open file has `O_NONBLOCK`, which `open_flags` has not.
    is_nonblocking: AtomicBool,
    /// The last query of the file has shown that its close is brief.
    closes_briefly: AtomicBool,
    /// Closes the file if that may take long and no call of `File::close` does it.
    closes_later: OnceLock<Weak<dyn CloseLater>>,
}

/// Closes descriptors on a thread that may block.
pub(crate) trait CloseLater: Send + Sync {
    /// Closes `raw`, which the caller gives up, later.
    fn close_later(&self, raw: i32);
}

/// The number in place of one that has been closed or given up.
pub(crate) const GIVEN_UP: i32 = -1;

const OFFSETS_UNKNOWN: u8 = 0;
const HAS_OFFSETS: u8 = 1;
const NO_OFFSETS: u8 = 2;

/// No access mode, so the file does not count as one that is only read.
const FLAGS_UNKNOWN: u32 = u32::MAX;

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
            uncached: uncached::Uncached::default(),
            polled: AtomicBool::new(false),
            by_thread: AtomicBool::new(false),
            offsets: AtomicU8::new(OFFSETS_UNKNOWN),
            local: AtomicBool::new(false),
            open_flags: AtomicU32::new(FLAGS_UNKNOWN),
            is_nonblocking: AtomicBool::new(false),
            closes_briefly: AtomicBool::new(false),
            closes_later: OnceLock::new(),
        }))
    }

    /// Takes over a file of std.
    pub(crate) fn adopt(file: std::fs::File) -> Fd {
        // SAFETY: Open: `into_raw_fd` gives up the ownership of the number.
        unsafe { Fd::own(file.into_raw_fd(), None) }
    }

    #[inline]
    pub(crate) fn raw(&self) -> i32 {
        if self.0.is_nonblocking.load(Acquire) {
            self.0.remove_nonblocking();
        }
        self.0.raw
    }

    /// Returns the number for a call on which `O_NONBLOCK` has no effect.
    #[inline]
    pub(crate) fn raw_for_brief_call(&self) -> i32 {
        self.0.raw
    }

    /// Returns the path of its link in /proc, which every process may follow.
    pub(crate) fn proc_link(&self) -> String {
        format!("/proc/self/fd/{}", self.raw())
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
        if self.0.by_thread.load(Relaxed) || !self.has_offsets() {
            return opcode::BY_THREAD;
        }
        opcode
    }

    /// Returns whether the file has offsets. A ring would ignore the offset of a transfer on a pipe or a socket; the
    /// system call fails with ESPIPE.
    #[inline]
    pub(crate) fn has_offsets(&self) -> bool {
        match self.0.offsets.load(Relaxed) {
            OFFSETS_UNKNOWN => self.query_offsets(),
            known => known == HAS_OFFSETS,
        }
    }

    #[cold]
    fn query_offsets(&self) -> bool {
        let has_offsets = self.is_simulated() || call::is_seekable(self.0.raw);
        let known = if has_offsets { HAS_OFFSETS } else { NO_OFFSETS };
        self.0.offsets.store(known, Relaxed);
        has_offsets
    }

    /// Returns whether the file has no offsets, as far as that has been queried.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    pub(crate) fn is_stream(&self) -> bool {
        self.0.offsets.load(Relaxed) == NO_OFFSETS
    }

    /// Records that the file has offsets.
    #[inline]
    pub(crate) fn note_offsets(&self) {
        if self.0.offsets.load(Relaxed) == OFFSETS_UNKNOWN {
            self.0.offsets.store(HAS_OFFSETS, Relaxed);
        }
    }

    /// Records the file system of the file.
    pub(crate) fn set_file_system(&self, file_system: FileSystem) {
        self.0
            .local
            .store(file_system == FileSystem::Local, Relaxed);
        // After a short direct read on FUSE, a ring's kernel (observed on 6.18) repeats the first offset for the
        // remainder, so a read across the end of the file appears complete.
        let by_thread = file_system == FileSystem::Fuse;
        self.0.by_thread.store(by_thread, Relaxed);
    }

    /// Returns whether the file is on a mount that is known to be local.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        self.0.local.load(Relaxed)
    }

    /// Records the flags that the file was opened with.
    pub(crate) fn set_open_flags(&self, flags: u32) {
        self.0.open_flags.store(flags, Relaxed);
    }

    /// Records that the open file has `O_NONBLOCK` beside these flags. It is removed before the first call on which it
    /// could have an effect, because many files are closed without one.
    pub(crate) fn note_nonblocking(&self) {
        let has_it = self.0.open_flags.load(Relaxed) & call::O_NONBLOCK != 0;
        self.0.is_nonblocking.store(!has_it, Release);
    }

    /// Returns whether the file was opened for reading only.
    pub(crate) fn only_reads(&self) -> bool {
        self.0.only_reads()
    }

    /// Returns whether the file was opened for appending.
    #[cfg(any(feature = "futures", feature = "tokio", feature = "tokio-io"))]
    pub(crate) fn appends(&self) -> bool {
        let flags = self.0.open_flags.load(Relaxed);
        flags != FLAGS_UNKNOWN && flags & call::O_APPEND != 0
    }

    /// Records whether a query has shown that the close of the file, on a local mount, is brief.
    pub(crate) fn set_closes_briefly(&self, closes_briefly: bool) {
        self.0.closes_briefly.store(closes_briefly, Relaxed);
    }

    /// Returns whether the last query has shown that the close of the file is brief.
    pub(crate) fn closes_briefly(&self) -> bool {
        self.0.closes_briefly.load(Relaxed)
    }

    /// Makes the last handle leave a close that may take long to `thread`.
    pub(crate) fn close_later_by(&self, thread: Weak<dyn CloseLater>) {
        let _ = self.0.closes_later.set(thread);
    }

    /// Returns the file of std, if this is the only handle.
    #[cfg(feature = "tokio")]
    pub(crate) fn into_std(self) -> Result<std::fs::File, Fd> {
        // Removes the flags of the attempt to open the file without blocking.
        let _ = self.raw();
        let raw = self.into_raw()?;
        // SAFETY: Open: this was the only handle, which has given up the number.
        Ok(unsafe { std::fs::File::from_raw_fd(raw) })
    }

    /// Returns the number, for the caller to close, if this is the only handle.
    pub(crate) fn into_raw(self) -> Result<i32, Fd> {
        match Arc::try_unwrap(self.0) {
            Ok(mut opened) => Ok(std::mem::replace(&mut opened.raw, GIVEN_UP)),
            Err(shared) => Err(Fd(shared)),
        }
    }
}

impl Opened {
    fn only_reads(&self) -> bool {
        self.open_flags.load(Relaxed) & call::O_ACCMODE == call::O_RDONLY
    }

    #[cold]
    fn remove_nonblocking(&self) {
        call::set_open_flags(self.raw, self.open_flags.load(Relaxed));
        // Another thread may do the same meanwhile.
        self.is_nonblocking.store(false, Release);
    }

    /// Returns the thread that should close the file because that may take long: it has no name any more, or a process
    /// serves it. A written file is closed here in the second case: its writers want to know that it is closed, for
    /// example before they run it.
    fn closer_thread(&self) -> Option<Arc<dyn CloseLater>> {
        let closes_later = self.closes_later.get()?;
        let only_reads = self.only_reads();
        let takes_long = if self.local.load(Relaxed) {
            let is_brief = only_reads && self.closes_briefly.load(Relaxed);
            !is_brief && mount::closing(self.raw) == Closing::Frees
        } else {
            only_reads && self.by_thread.load(Relaxed)
        };
        takes_long.then(|| closes_later.upgrade()).flatten()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.raw == GIVEN_UP {
            return;
        }
        if let Some(closer) = &self.closer {
            closer.close(self.raw);
            return;
        }
        if let Some(thread) = self.closer_thread() {
            return thread.close_later(self.raw);
        }
        // SAFETY: Open: `own` took over the number, and this is the last handle. An error can't be reported here;
        // `File::close` reports it.
        let _ = unsafe { call::close(self.raw) };
    }
}

impl fmt::Debug for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fd({})", self.0.raw)
    }
}

/// Closes a socket without a ring.
#[cfg(feature = "net")]
pub(crate) fn close_now(raw: i32) {
    // SAFETY: Open: the last holder of the socket is gone, and gives the number up.
    let _ = unsafe { call::close(raw) };
}

/// Closes sockets whose core no longer exists.
#[cfg(feature = "net")]
pub(crate) struct Plain;

#[cfg(feature = "net")]
impl CloseSocket for Plain {
    fn close(&self, raw: i32, _: Option<u32>) {
        close_now(raw);
    }
}
