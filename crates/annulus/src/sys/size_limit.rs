//! # Safety
//!
//! SIGXFSZ, which kills: the kernel sends it to the thread whose write would make a file longer than RLIMIT_FSIZE
//! allows, and answers the write with EFBIG. Where the signal is blocked only the answer remains. The library blocks
//! it on its own threads, on a runtime's cores while they run, and on other threads for each enter call if there is
//! such a limit. Invariant: Owned (the sets are locals of the calls that fill and read them).
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

use rustix::process::{Resource, getrlimit};

/// Whether the size of files is limited in this process.
pub(crate) fn is_limited() -> bool {
    getrlimit(Resource::Fsize).current.is_some()
}

/// Blocks the signal on the calling thread, which is the library's own, until the thread ends.
pub(crate) fn block_signal() {
    change(libc::SIG_BLOCK);
}

/// The signal is blocked on the thread that made it, until it is dropped there.
pub(crate) struct SignalBlocked {
    /// It was blocked before, and stays so.
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
        // One that was sent meanwhile would kill as soon as it is let through.
        let (set, now) = (
            only_it(),
            libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
        );
        // SAFETY: Owned: the two are read; nothing is written.
        while unsafe { libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const now) } > 0 {}
        change(libc::SIG_UNBLOCK);
    }
}

/// Returns whether it was blocked before.
fn change(how: i32) -> bool {
    let set = only_it();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: Owned: `set` is read, `before` has room for a set.
    unsafe { libc::pthread_sigmask(how, &raw const set, before.as_mut_ptr()) };
    // SAFETY: Owned: a set of all zeros is empty, and the call has written one.
    unsafe { libc::sigismember(before.as_ptr(), libc::SIGXFSZ) == 1 }
}

fn only_it() -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: Owned: a set of all zeros is empty; one that is in it is added.
    unsafe {
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}
