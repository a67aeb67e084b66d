//! # Safety
//!
//! Signals of a program whose handlers may jump out of the call that they interrupt. The jump would leave a lock taken
//! permanently, and a list in the middle of a change. From the first `sigsetjmp` that saves the signal mask, all
//! signals are therefore blocked while a thread holds a lock: two system calls per lock. Other programs pay for one
//! load (Typed, Lent: a system call with two words of this stack).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::raw_libc as libc;

/// Handlers may jump.
pub(crate) static MAY_JUMP: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The number of locks that the calling thread holds with its signals blocked.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// The signal mask before the first of them.
    static BEFORE: Cell<u64> = const { Cell::new(0) };
}

/// Signals that the thread itself causes. Blocked, they would end the process.
const OWN: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Returns whether handlers may jump.
#[inline]
pub(crate) fn may_jump() -> bool {
    MAY_JUMP.load(Ordering::Relaxed)
}

/// Blocks signals before the calling thread takes a lock.
#[inline]
pub(crate) fn hold() {
    if may_jump() {
        hold_one();
    }
}

/// Runs `body` with signals blocked, if handlers may jump. A filter may forbid the call for it to other programs.
pub(crate) fn without<T>(body: impl FnOnce() -> T) -> T {
    hold();
    let result = body();
    release();
    result
}

/// Unblocks signals after the calling thread has released its last lock.
#[inline]
pub(crate) fn release() {
    if may_jump() {
        release_one();
    }
}

#[cold]
fn hold_one() {
    if HELD.get() == 0 {
        let blocked = OWN
            .into_iter()
            .fold(!0, |mask, signal| mask & !(1 << (signal - 1)));
        BEFORE.set(set_mask(blocked));
    }
    HELD.set(HELD.get() + 1);
}

#[cold]
fn release_one() {
    let held = HELD.get();
    // 0: the lock was taken before the first `sigsetjmp`.
    HELD.set(held.saturating_sub(1));
    if held == 1 {
        set_mask(BEFORE.get());
    }
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
