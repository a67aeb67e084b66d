//! # Safety
//!
//! The exported functions, which the loader finds before libc's. They convert types, call the rest of the library, and
//! call the next function of their name if it returns no result. Pointers come from the program; each function's manual
//! page gives their contract (Typed, Lent).
//!
//! `C-unwind`: glibc cancels a thread by unwinding it, also through these functions, which own nothing while they are
//! in the next one.
#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "the header's note holds for each: the arguments are the program's, and go on unchanged"
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
    /// Served, or handed back with buffered bytes.
    Connection(&'static Entry),
    /// Closed, from the program's point of view.
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

/// The state of a number that the program has closed, unless it has been reused since.
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

/// Calls `serve`, and passes through if it panics.
#[inline]
fn catch_panic(serve: impl FnOnce() -> Option<CallResult>) -> Option<CallResult> {
    errno::catch_panic(serve)
}

/// Before a call that creates a descriptor: numbers that a handler has closed are freed.
fn close_deferred_numbers() {
    catch_panic(|| {
        crate::descriptor::close_deferred();
        None
    });
}

/// Whether a pointer may be mapped in the program. If not, the kernel returns the error. If it may be and is not, the
/// program ends where the kernel would have returned EFAULT.
#[inline]
fn may_be_mapped<T>(pointer: *const T) -> bool {
    /// The first page is never mapped, and user space ends here or before.
    const MAPPED: std::ops::Range<usize> = 4096..1 << 47;
    MAPPED.contains(&pointer.addr())
}
