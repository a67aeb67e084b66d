//! # Safety
//!
//! Protection from SIGXFSZ, which kills the process. The kernel sends it to a thread whose write would make a file
//! longer than RLIMIT_FSIZE, and fails the write with EFBIG. If the signal is blocked, only the error remains. The
//! library blocks the signal on its own threads, on a runtime's cores while they run, and, if there is such a limit, on
//! other threads during each enter call. Invariant: Owned (the sets are locals of the calls that fill and read them).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use rustix::process::{Resource, getrlimit};

/// Returns whether the size of files is limited in this process.
pub(crate) fn is_limited() -> bool {
    // Miri does not have the call.
    !cfg!(miri) && getrlimit(Resource::Fsize).current.is_some()
}

/// Blocks the signal on the calling thread, which belongs to the library, until the thread ends.
pub(crate) fn block_signal() {
    change(libc::SIG_BLOCK);
}

/// Blocks the signal on the current thread until it is dropped there.
pub(crate) struct SignalBlocked {
    /// True if the signal was blocked before, and stays blocked.
    already: bool,
}

impl SignalBlocked {
    pub(crate) fn new() -> SignalBlocked {
        SignalBlocked {
            already: change(libc::SIG_BLOCK),
        }
    }
}

impl Drop for SignalBlocked {
    fn drop(&mut self) {
        if self.already {
            return;
        }
        // A signal that was sent meanwhile would kill the process as soon as it is unblocked, so it is consumed.
        let (set, now) = (
            only_it(),
            libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
        );
        // SAFETY: Owned: both are locals that the call only reads.
        while unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const now) } > 0 {}
        change(libc::SIG_UNBLOCK);
    }
}

/// Changes the mask. Returns whether the signal was blocked before.
fn change(how: i32) -> bool {
    if cfg!(miri) {
        return true; // It does not have the call.
    }
    let set = only_it();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: Owned: `set` is read, and `before` has space for a set.
    unsafe { libc::pthread_sigmask(how, &raw const set, before.as_mut_ptr()) };
    // SAFETY: Owned: a set of zeroes is empty, and the call has written a valid one.
    unsafe { libc::sigismember(before.as_ptr(), libc::SIGXFSZ) == 1 }
}

fn only_it() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: Owned: a set of zeroes is empty; the signal is added to it.
    unsafe {
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}
