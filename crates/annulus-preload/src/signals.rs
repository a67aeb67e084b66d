//! # Safety
//!
//! Signals of a program whose handlers may jump out of the call that they interrupt: it has called a `sigsetjmp` that
//! saves the signal mask. The library serves it no longer ([`before_jumps`](crate::process::before_jumps)). The locks
//! of others, such as those of `malloc` and the loader, are taken with signals blocked (Typed, Lent: a system call with
//! two words of this stack).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::raw_libc as libc;

/// Handlers may jump.
static MAY_JUMP: AtomicBool = AtomicBool::new(false);
/// No set is tracked any more.
static TRACKS_NOTHING: AtomicBool = AtomicBool::new(false);

/// Signals that the thread itself causes. Blocked, they would end the process.
const OWN: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Records that handlers may jump.
pub(crate) fn allow_jumps() {
    MAY_JUMP.store(true, Ordering::Relaxed);
}

/// Records that no set is tracked any more.
pub(crate) fn end_tracking() {
    TRACKS_NOTHING.store(true, Ordering::Relaxed);
}

/// Returns whether no set is tracked any more, as handlers may jump.
pub(crate) fn tracks_nothing() -> bool {
    TRACKS_NOTHING.load(Ordering::Relaxed)
}

/// Runs `body` with signals blocked, if handlers may jump. A filter may forbid the call for it to other programs.
pub(crate) fn without<T>(body: impl FnOnce() -> T) -> T {
    if !MAY_JUMP.load(Ordering::Relaxed) {
        return body();
    }
    let blocked = (OWN.into_iter()).fold(!0, |mask, signal| mask & !(1 << (signal - 1)));
    let before = set_mask(blocked);
    let result = body();
    set_mask(before);
    result
}

/// Sets the calling thread's signal mask, and returns the previous one.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: Lent: two signal sets of this stack, with the kernel's size.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            size_of::<u64>(),
        );
    }
    before
}
