//! # Safety
//!
//! The exported functions, which the loader finds before libc's. They convert types, call the rest of the library, and
//! call the next function with their name if the library returns no result. Pointers come from the program; the manual
//! page of each function gives their contract (Typed, Lent).
//!
//! The ABI is `C-unwind` because glibc cancels a thread by unwinding it, also through these functions. They own nothing
//! while they call the next function.
#![allow(unsafe_code)]
#![allow(clippy::missing_safety_doc, reason = "the header names the contract")]

/// Calls a function with the arguments of the hook, or with values made from them.
macro_rules! pass_on {
    ($($name:ident)::+ ($($arguments:tt)*)) => {
        // SAFETY: Typed, Lent: the program keeps the conditions of the hook's manual page, and the called function has
        // no others.
        unsafe { $($name)::+($($arguments)*) }
    };
}

/// Exports functions. Each entry states name and type once, and what the function does:
///
/// - `before { … } fn …;`: runs the block, in which the arguments are visible, then the next function with that name.
/// - `fn … = …;`: returns the result of the expression. If it is `None`, calls the next function.
/// - `fn … { … }`: runs the body. `real(…)` in it is the next function.
macro_rules! hooks {
    ($(before $before:block $(fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty;)*)+) => {
        $($(
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
                $before
                $crate::real::call_next!($name($($arg: $type),*) -> $ret)
            }
        )*)*
    };
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty $(= $served:expr;)? $($body:block)?
    )+) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
                #[allow(dead_code, reason = "some hooks only call another hook")]
                #[inline]
                unsafe fn real($($arg: $type),*) -> $ret {
                    $crate::real::call_next!($name($($arg: $type),*) -> $ret)
                }
                #[allow(unused_variables, reason = "a body calls `real`")]
                // SAFETY: Typed, Lent: the arguments of the hook, unchanged.
                let next = || unsafe { real($($arg),*) };
                $(match $served {
                    Some(result) => $crate::errno::into_return(result) as $ret,
                    None => next(),
                })?
                $($body)?
            }
        )*
    };
}

/// Exports functions with any arguments. Each runs the block, which sees the first arguments, and then jumps to the
/// next function with its name, or to the one that the block returns, with registers and stack unchanged.
macro_rules! passes_registers {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $before:block)*) => {$(
        const _: () = {
            extern "C" fn next($($arg: $type),*) -> *mut std::ffi::c_void {
                $before
                $crate::real::next_of!($name)
            }

            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                $crate::arch::jump_to!(next)
            }
        };
    )*};
}

mod blocking;
mod descriptor;
mod epoll;
mod io;
mod poll;
mod process;
mod raw_syscall;
mod socket;
mod stdio;
mod termination;
mod uncommon;
mod unserve;
mod waits;

use crate::counters::Why;
use crate::epoll_set::Set;
use crate::errno::{self, attempt, catch_panic};
use crate::fd_limit;
use crate::fd_table::{self, Entry, Kind};
use crate::receive;
use crate::sys::may_be_mapped;

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = load;

/// The library's entry point.
extern "C" fn load() {
    let serves = crate::process::load();
    if serves {
        raw_syscall::watch();
    }
}

/// The state of a descriptor, for a hook.
enum FdState {
    /// Not served: the kernel handles the call.
    Kernel,
    /// Served, or handed back with buffered bytes.
    Connection(&'static Entry),
    /// Closed, from the program's point of view.
    Closed,
    /// Served or handed back in a parent of this process.
    Inherited(&'static Entry),
}

#[inline]
fn fd_state(fd: i32) -> FdState {
    match fd_table::entry(fd) {
        Some(entry) if entry.is_connection() => FdState::Connection(entry),
        Some(entry) => unserved_state(entry, fd),
        None => FdState::Kernel,
    }
}

/// Returns whether the descriptor is closed, from the program's point of view, and sets errno then.
fn is_closed(fd: i32) -> bool {
    let is_closed = matches!(fd_state(fd), FdState::Closed);
    if is_closed {
        errno::set(libc::EBADF);
    }
    is_closed
}

/// Not inlined into each hook, whose calls are mostly for served connections.
#[inline(never)]
fn unserved_state(entry: &'static Entry, fd: i32) -> FdState {
    match entry.kind() {
        Kind::Served | Kind::HandedBack => FdState::Connection(entry),
        Kind::Library => FdState::Closed,
        Kind::Closing => state_while_closing(entry),
        Kind::Free if entry.inherited() != Kind::Free => FdState::Inherited(entry),
        Kind::Stream if is_foreign(entry) => refuse_foreign(entry, fd),
        _ => FdState::Kernel,
    }
}

/// Returns whether a thread that does not wait on the stream's set uses the stream, which a ring may serve later.
#[inline]
fn is_foreign(entry: &'static Entry) -> bool {
    Set::of(entry).is_some_and(|set| !set.is_owner() && set.owner() != 0)
        && entry.why_never_served().is_none()
}

/// Keeps the set from moving the stream to its ring: it would receive bytes behind those that this call is reading.
#[cold]
fn refuse_foreign(entry: &'static Entry, fd: i32) -> FdState {
    match entry.refuse(Why::OtherThread) {
        true => FdState::Kernel,
        // Meanwhile, a ring serves it, or it was closed.
        false => fd_state(fd),
    }
}

/// The state of a number that the program has closed, unless it has been reused since.
#[cold]
fn state_while_closing(entry: &'static Entry) -> FdState {
    attempt(|| Set::finish_deferred_close(entry));
    match entry.kind() {
        Kind::Closing => FdState::Closed,
        Kind::Served | Kind::HandedBack => FdState::Connection(entry),
        _ => FdState::Kernel,
    }
}

/// Returns the number of bytes that the library has received and the program has not read.
fn buffered(fd: i32) -> usize {
    match fd_state(fd) {
        FdState::Connection(entry) => catch_panic(|| receive::readable(entry, fd)).unwrap_or(0),
        _ => 0,
    }
}

/// Makes a call that creates a descriptor. If the process has none left, the library releases its own, and the call is
/// repeated.
fn create(call: impl Fn() -> i32) -> i32 {
    if fd_table::is_private() {
        return call();
    }
    attempt(crate::descriptor::close_deferred);
    let fd = call();
    if fd >= 0 {
        attempt(|| fd_limit::on_new_number(fd));
        return fd;
    }
    if errno::get() != libc::EMFILE {
        return fd;
    }
    match catch_panic(|| fd_limit::release_all().then_some(())) {
        Some(_) => call(),
        None => fd,
    }
}
