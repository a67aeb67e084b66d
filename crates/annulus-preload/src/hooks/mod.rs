//! # Safety
//!
//! The functions that are found instead of libc's. They convert types, ask the rest of the library, and call the
//! next function of their name where it has no answer. Pointers are what the program passed; each function's own
//! manual page says what they must be (Typed, Lent).
//!
//! `C-unwind`: glibc ends a cancelled thread by unwinding it, also through these functions, which own nothing while
//! they are in the next one.
#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "the header's note holds for each: what the program passed is passed on"
)]

mod blocking;
mod descriptor;
mod epoll;
mod io;
mod poll;
mod process;
#[cfg(target_arch = "x86_64")]
mod raw_syscall;
mod socket;
mod stdio;
mod termination;
mod uncommon;

/// libc's `syscall` is watched from now on: on x86-64, elsewhere raw calls go past the library.
pub(crate) fn watch_syscalls() {
    #[cfg(target_arch = "x86_64")]
    raw_syscall::watch();
}

use crate::errno::{self, CallResult};
use crate::fd_table::{self, Entry, Kind};

/// What a descriptor is to a hook.
enum FdState {
    /// The kernel's.
    Kernel,
    /// Served, or something of it is in hand.
    Connection(&'static Entry),
    /// Closed, as far as the program knows.
    Closed,
    /// A parent of this process had it.
    Inherited(&'static Entry),
}

#[inline]
fn fd_state(fd: i32) -> FdState {
    let Some(entry) = fd_table::entry(fd) else {
        return FdState::Kernel;
    };
    match entry.kind() {
        Kind::Served | Kind::HandedBack => FdState::Connection(entry),
        Kind::Library => FdState::Closed,
        Kind::Closing => state_while_closing(entry),
        Kind::Free if entry.inherited() != Kind::Free => FdState::Inherited(entry),
        _ => FdState::Kernel,
    }
}

/// One that the program has closed, if it has not been given anew since.
#[cold]
fn state_while_closing(entry: &'static Entry) -> FdState {
    catch_panic(|| {
        crate::descriptor::finish_deferred_close(entry);
        None
    });
    match entry.kind() {
        Kind::Closing => FdState::Closed,
        Kind::Served | Kind::HandedBack => FdState::Connection(entry),
        _ => FdState::Kernel,
    }
}

/// What `serve` answers; a defect in it is the kernel's to answer for.
#[inline]
fn catch_panic(serve: impl FnOnce() -> Option<CallResult>) -> Option<CallResult> {
    errno::catch_panic(serve)
}

/// Before a call that gives the program a number: what a handler has closed is free by then.
fn close_deferred_numbers() {
    catch_panic(|| {
        crate::descriptor::close_deferred();
        None
    });
}

/// Whether a pointer may lead to memory of the program: where it can't, the kernel says so. One that might, and does
/// not, ends the program, where the kernel would have answered EFAULT.
#[inline]
fn may_be_mapped<T>(pointer: *const T) -> bool {
    /// The first page is never mapped, and user space ends here or before.
    const MAPPED: std::ops::Range<usize> = 4096..1 << 47;
    MAPPED.contains(&pointer.addr())
}
