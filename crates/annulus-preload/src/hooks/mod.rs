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

use crate::errno::{self, Answer};
use crate::fd_table::{self, Entry, Kind};

/// What a descriptor is to a hook.
enum Found {
    /// The kernel's.
    Theirs,
    /// Served, or something of it is in hand.
    Ours(&'static Entry),
    /// Closed, as far as the program knows.
    Closed,
    /// A parent of this process had it.
    Inherited(&'static Entry),
}

#[inline]
fn find(fd: i32) -> Found {
    let Some(entry) = fd_table::entry(fd) else {
        return Found::Theirs;
    };
    match entry.kind() {
        Kind::Served | Kind::Replay => Found::Ours(entry),
        Kind::Ours => Found::Closed,
        Kind::Closing => closing(entry),
        Kind::Free if entry.inherited() != Kind::Free => Found::Inherited(entry),
        _ => Found::Theirs,
    }
}

/// One that the program has closed, if it has not been given anew since.
#[cold]
fn closing(entry: &'static Entry) -> Found {
    guard(|| {
        crate::descriptor::see_closed(entry);
        None
    });
    match entry.kind() {
        Kind::Closing => Found::Closed,
        Kind::Served | Kind::Replay => Found::Ours(entry),
        _ => Found::Theirs,
    }
}

/// What `serve` answers; a defect in it is the kernel's to answer for.
#[inline]
fn guard(serve: impl FnOnce() -> Option<Answer>) -> Option<Answer> {
    errno::guarded(serve)
}

/// Before a call that gives the program a number: what a handler has closed is free by then.
fn free_numbers() {
    guard(|| {
        crate::descriptor::close_what_waits();
        None
    });
}

/// Whether a pointer may lead to memory of the program: where it can't, the kernel says so. One that might, and does
/// not, ends the program, where the kernel would have answered EFAULT.
#[inline]
fn may_be<T>(pointer: *const T) -> bool {
    /// The first page is never mapped, and user space ends here or before.
    const MAPPED: std::ops::Range<usize> = 4096..1 << 47;
    MAPPED.contains(&pointer.addr())
}
